# The CUDA backend: built where nvcc and the libraries' headers are found, left out where they are not.
# cuBLASLt, NCCL and cuDNN are loaded at run time, when they are first needed (src/base/library.h); where
# one of them was found here, what is built here also looks in its folder.
#
#   TESSERA_CUDA    AUTO (default), ON (missing is an error) or OFF; its name in 0.1, TSR_CUDA, is taken too
#   TSR_CUDA_ARCHS  cards to build for; a shorter list builds faster
#   TSR_CUDA_EARLY  ON (default): kernels come in while the one before them ends (src/kernels/cuda.cuh); OFF
#                   to compare
#
# Sanitizer builds are the CPU's.
if(DEFINED TSR_CUDA)
  if(NOT TSR_CUDA STREQUAL AUTO)
    set(TESSERA_CUDA ${TSR_CUDA} CACHE STRING "" FORCE) # once: a build folder of 0.1 keeps it in its cache
  endif()
  unset(TSR_CUDA CACHE)
  unset(TSR_CUDA)
endif()
set(TSR_CUDA_ARCHS "80-real;86-real;89-real;90a-real;80-virtual;89-virtual" CACHE STRING "CUDA architectures")
option(TSR_CUDA_EARLY "kernels start early where the card can" ON)

set(TSR_HAVE_CUDA OFF)
if(TESSERA_CUDA STREQUAL ON OR (TESSERA_CUDA STREQUAL AUTO AND NOT TSR_SANITIZE))
  include(CheckLanguage)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES ${TSR_CUDA_ARCHS})
  endif()
  check_language(CUDA)
  find_package(CUDAToolkit QUIET)
  find_path(TSR_CUBLASLT_INCLUDE cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_path(TSR_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(TSR_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  find_path(TSR_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(TSR_CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR})
  if(CMAKE_CUDA_COMPILER AND CUDAToolkit_FOUND AND TSR_CUBLASLT_INCLUDE AND TSR_NCCL_INCLUDE
     AND CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.4)
    set(TSR_HAVE_CUDA ON)
  elseif(TESSERA_CUDA STREQUAL ON)
    message(FATAL_ERROR "TESSERA_CUDA=ON needs nvcc, the CUDA toolkit (12.4 or newer) with cublasLt.h, and nccl.h")
  endif()
endif()

if(TSR_HAVE_CUDA)
  enable_language(CUDA)
  if(TSR_CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${TSR_CCACHE})
  endif()
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(TSR_HAVE_CUDNN OFF)
  if(TSR_CUDNN_INCLUDE)
    set(TSR_HAVE_CUDNN ON)
  endif()
  list(APPEND CMAKE_BUILD_RPATH ${CUDAToolkit_LIBRARY_DIR})
  foreach(library ${TSR_NCCL_LIBRARY} ${TSR_CUDNN_LIBRARY})
    if(library)
      get_filename_component(folder ${library} DIRECTORY)
      list(APPEND CMAKE_BUILD_RPATH ${folder})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES CMAKE_BUILD_RPATH)
  message(STATUS "CUDA ${CUDAToolkit_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}, cuDNN ${TSR_HAVE_CUDNN}")
else()
  message(STATUS "No CUDA backend: the CPU alone")
endif()

# tsr_cuda_sources(folder SOURCES a.c b.cu ...): adds them to tsr_<folder> where CUDA is built.
function(tsr_cuda_sources folder)
  cmake_parse_arguments(arg "" "" "SOURCES" ${ARGN})
  if(NOT TSR_HAVE_CUDA)
    return()
  endif()
  target_sources(tsr_${folder} PRIVATE ${arg_SOURCES})
  target_compile_definitions(tsr_${folder} PRIVATE TSR_CUDA)
  target_include_directories(tsr_${folder} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS}
    ${TSR_CUBLASLT_INCLUDE} ${TSR_NCCL_INCLUDE} $<$<BOOL:${TSR_HAVE_CUDNN}>:${TSR_CUDNN_INCLUDE}>)
  target_link_libraries(tsr_${folder} PUBLIC CUDA::cudart_static)
endfunction()
