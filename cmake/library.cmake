# libtessera.so and libtessera.a in the build directory: all folders of src in one, with nothing to be seen
# from outside but what include/tessera.h declares.
#
# OpenBLAS is inside both (see src/kernels/CMakeLists.txt for why it must be), its symbols hidden, so that a
# program with a BLAS of its own keeps it. What an embedder links beside the archive is in TSR_LIBRARY_LINK,
# which the build also writes to libtessera.link.

# The names of the interface, from the header.
set(header ${PROJECT_SOURCE_DIR}/include/tessera.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
file(STRINGS ${header} lines REGEX "^TSR_API .*[( *]tsr_[a-z_]+\\(")
list(TRANSFORM lines REPLACE ".*[ *](tsr_[a-z_]+)\\(.*" "\\1" OUTPUT_VARIABLE names)
set(TSR_LIBRARY_NAMES ${CMAKE_BINARY_DIR}/libtessera.names)
list(JOIN names "\n" text)
file(CONFIGURE OUTPUT ${TSR_LIBRARY_NAMES} CONTENT "${text}\n")
list(JOIN names "; " text)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/libtessera.map CONTENT "TESSERA_0.2 { global: ${text}; local: *; };\n")

set(TSR_LIBRARY_OBJECTS ${TSR_OPENBLAS_CHOICE}) # first: OpenBLAS' own is not looked for then
foreach(folder ${TSR_FOLDERS})
  list(APPEND TSR_LIBRARY_OBJECTS $<TARGET_OBJECTS:${folder}>)
endforeach()
set(TSR_LIBRARY_EXTERNAL MPI::MPI_C PkgConfig::TSR_HWLOC PkgConfig::TSR_JANSSON PkgConfig::TSR_YAML
  PkgConfig::TSR_ONIG PkgConfig::TSR_UTF8PROC PkgConfig::TSR_ZLIB PkgConfig::TSR_ZSTD Threads::Threads ${CMAKE_DL_LIBS} m)
if(TSR_HAVE_CUDA)
  list(APPEND TSR_LIBRARY_EXTERNAL CUDA::cudart_static)
endif()

# ---- shared ----

add_library(tessera_shared SHARED ${TSR_LIBRARY_OBJECTS})
target_link_libraries(tessera_shared PRIVATE tsr_hardening ${TSR_LIBRARY_EXTERNAL} ${TSR_OPENBLAS_ARCHIVE})
target_include_directories(tessera_shared INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
target_link_options(tessera_shared PRIVATE LINKER:--wrap=blas_memory_alloc
  LINKER:--version-script=${CMAKE_BINARY_DIR}/libtessera.map)
if(TSR_SANITIZE)
  target_link_options(tessera_shared PUBLIC -fsanitize=${TSR_SANITIZE})
else()
  target_link_options(tessera_shared PRIVATE LINKER:--no-undefined)
endif()
set_target_properties(tessera_shared PROPERTIES OUTPUT_NAME tessera SOVERSION 0.2 # tsr_job_options is another struct than in 0.1
  LINKER_LANGUAGE C LINK_DEPENDS ${CMAKE_BINARY_DIR}/libtessera.map
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})

# ---- static ----

# One object made of all others and of what they need of OpenBLAS; then everything but the interface
# becomes local to it.
set(TSR_LIBRARY_ARCHIVE ${CMAKE_BINARY_DIR}/libtessera.a)
set(whole ${CMAKE_BINARY_DIR}/libtessera.o)
add_custom_command(OUTPUT ${TSR_LIBRARY_ARCHIVE}
  COMMAND ${CMAKE_C_COMPILER} -r -nostdlib -o ${whole} -Wl,--wrap=blas_memory_alloc @${whole}.rsp
    ${TSR_OPENBLAS_ARCHIVE}
  COMMAND ${CMAKE_OBJCOPY} --keep-global-symbols=${TSR_LIBRARY_NAMES} ${whole}
  COMMAND ${CMAKE_COMMAND} -E rm -f ${TSR_LIBRARY_ARCHIVE}
  COMMAND ${CMAKE_AR} qcs ${TSR_LIBRARY_ARCHIVE} ${whole}
  COMMAND ${CMAKE_COMMAND} -E rm -f ${whole}
  DEPENDS ${TSR_FOLDERS} ${TSR_LIBRARY_OBJECTS} ${TSR_OPENBLAS_ARCHIVE} ${TSR_LIBRARY_NAMES}
  COMMENT "Making libtessera.a" VERBATIM)
file(GENERATE OUTPUT ${whole}.rsp CONTENT "$<JOIN:${TSR_LIBRARY_OBJECTS},\n>\n")
add_custom_target(tessera_static ALL DEPENDS ${TSR_LIBRARY_ARCHIVE})

# ---- what to link beside the archive ----

set(TSR_LIBRARY_LINK)
foreach(name HWLOC JANSSON YAML ONIG UTF8PROC ZLIB ZSTD)
  list(APPEND TSR_LIBRARY_LINK ${TSR_${name}_LINK_LIBRARIES})
endforeach()
if(TSR_HAVE_CUDA)
  get_target_property(cudart CUDA::cudart_static IMPORTED_LOCATION)
  list(APPEND TSR_LIBRARY_LINK ${cudart} -lstdc++ -lrt)
endif()
list(APPEND TSR_LIBRARY_LINK ${MPI_C_LIBRARIES} -lpthread -ldl -lm)
list(JOIN TSR_LIBRARY_LINK " " line)
file(WRITE ${CMAKE_BINARY_DIR}/libtessera.link "${line}\n")
