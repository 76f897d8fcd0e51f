# How every folder of the tree is built: one target a folder, its flags, and how a test is declared.

find_program(TSR_CCACHE ccache)
if(TSR_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${TSR_CCACHE})
endif()

find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

# tsr_need(variable package): what is missing where the variable is false, by Debian's name.
set(TSR_MISSING)
macro(tsr_need variable package)
  if(NOT ${variable})
    list(APPEND TSR_MISSING ${package})
  endif()
endmacro()

# Every external library is found once, here, and linked only by the folder that wraps it.
foreach(library JANSSON:jansson:libjansson-dev ZLIB:zlib:zlib1g-dev ZSTD:libzstd:libzstd-dev YAML:yaml-0.1:libyaml-dev
    ONIG:oniguruma:libonig-dev UTF8PROC:libutf8proc:libutf8proc-dev HWLOC:hwloc:libhwloc-dev)
  string(REPLACE ":" ";" library ${library})
  list(GET library 0 name)
  list(GET library 1 module)
  list(GET library 2 package)
  pkg_check_modules(TSR_${name} IMPORTED_TARGET ${module})
  tsr_need(TSR_${name}_FOUND ${package})
endforeach()
# CBC, which may be missing: nothing is linked with it.
set(TSR_HAVE_CBC OFF)
if(NOT TSR_CBC STREQUAL OFF)
  pkg_check_modules(TSR_COIN_CBC cbc>=2.10)
  if(TSR_COIN_CBC_FOUND)
    set(TSR_HAVE_CBC ON)
    list(APPEND CMAKE_BUILD_RPATH ${TSR_COIN_CBC_LIBRARY_DIRS})
  elseif(TSR_CBC STREQUAL ON)
    message(FATAL_ERROR "TSR_CBC=ON needs CBC 2.10 (package coinor-libcbc-dev)")
  endif()
endif()
pkg_check_modules(TSR_CMOCKA IMPORTED_TARGET cmocka)
find_package(MPI COMPONENTS C)
tsr_need(MPI_C_FOUND "libopenmpi-dev;openmpi-bin")
# The serial OpenBLAS: the pool in src/device splits the work, so that the threads never change a bit.
find_library(TSR_OPENBLAS_ARCHIVE NAMES libopenblas.a PATH_SUFFIXES openblas-serial)
find_path(TSR_OPENBLAS_INCLUDE NAMES cblas.h PATH_SUFFIXES openblas-serial)
if(NOT TSR_OPENBLAS_ARCHIVE OR NOT TSR_OPENBLAS_INCLUDE)
  list(APPEND TSR_MISSING libopenblas-serial-dev)
endif()
if(TSR_MISSING)
  list(JOIN TSR_MISSING " " missing)
  message(FATAL_ERROR "Libraries are missing. On Debian 12: apt-get install --no-install-recommends ${missing}\n"
    "Elsewhere install what these packages hold, or see README.md, Building by hand, and without a package registry.")
endif()
# Of one that chooses its micro-kernels when it starts, the object that does so; its getenv becomes
# tsr_gemm_core_getenv (src/kernels/gemm_core.c). Empty: this OpenBLAS was built for one processor.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${TSR_OPENBLAS_ARCHIVE})
set(TSR_OPENBLAS_CHOICE ${CMAKE_BINARY_DIR}/openblas_dynamic.o)
file(REMOVE ${CMAKE_BINARY_DIR}/dynamic.o)
execute_process(COMMAND ${CMAKE_AR} x ${TSR_OPENBLAS_ARCHIVE} dynamic.o WORKING_DIRECTORY ${CMAKE_BINARY_DIR} ERROR_QUIET)
if(EXISTS ${CMAKE_BINARY_DIR}/dynamic.o)
  execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${CMAKE_OBJCOPY} --redefine-sym getenv=tsr_gemm_core_getenv
    ${CMAKE_BINARY_DIR}/dynamic.o ${TSR_OPENBLAS_CHOICE})
else()
  set(TSR_OPENBLAS_CHOICE)
endif()

# What makes a bug harder to use: stack protector, checked copies of libc, stack clash, CET, and a program whose tables
# are read-only once it runs (tests/library/check_hardening.sh).
add_library(tsr_hardening INTERFACE)
set(flags -fstack-protector-strong -fstack-clash-protection)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND flags -fcf-protection=full)
endif()
target_compile_options(tsr_hardening INTERFACE $<$<COMPILE_LANGUAGE:C>:${flags}>)
list(JOIN flags "," flags)
target_compile_options(tsr_hardening INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${flags}>)
foreach(kind EXE SHARED MODULE) # here, as tests/CMakeLists.txt takes a linker that does not know it
  string(APPEND CMAKE_${kind}_LINKER_FLAGS " -Wl,-z,separate-code")
endforeach()
target_link_options(tsr_hardening INTERFACE LINKER:-z,relro,-z,now,-z,noexecstack
  $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-pie>)
# The sanitizers check more; without optimisation libc refuses. 3 needs glibc 2.35.
if(NOT TSR_SANITIZE)
  include(CheckCSourceCompiles)
  set(CMAKE_REQUIRED_FLAGS "-O2 -Werror -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3")
  check_c_source_compiles("#include <string.h>\nint main(void) { return 0; }" TSR_FORTIFY_3)
  unset(CMAKE_REQUIRED_FLAGS)
  target_compile_options(tsr_hardening INTERFACE
    $<$<AND:$<COMPILE_LANGUAGE:C>,$<NOT:$<CONFIG:Debug>>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=$<IF:$<BOOL:${TSR_FORTIFY_3}>,3,2>>)
endif()

add_library(tsr_flags INTERFACE)
target_compile_definitions(tsr_flags INTERFACE _GNU_SOURCE)
# No contraction: a fused multiply-add is written as fmaf where it is meant.
target_compile_options(tsr_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Werror -Wshadow
  -Wstrict-prototypes -Wmissing-prototypes -Wno-missing-field-initializers -ffp-contract=off -fno-math-errno
  -fno-trapping-math> $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror,-Wno-missing-field-initializers>)
target_include_directories(tsr_flags INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
target_link_libraries(tsr_flags INTERFACE tsr_hardening Threads::Threads m)
if(TSR_SANITIZE)
  # A third of the time to compile: -O1 (src/kernels keeps its -O3, as its loops are where tests compute), and lines of
  # sources without types and variables. What values can be is known to -O2 and above: the release build warns by it.
  if(NOT TSR_FUZZ) # which runs for hours
    string(REPLACE "-O3" "-O1" CMAKE_C_FLAGS_RELEASE "${CMAKE_C_FLAGS_RELEASE}")
  endif()
  target_compile_options(tsr_flags INTERFACE -fsanitize=${TSR_SANITIZE} -fno-omit-frame-pointer -g1
    $<$<C_COMPILER_ID:GNU>:-Wno-format-truncation>)
  target_link_options(tsr_flags INTERFACE -fsanitize=${TSR_SANITIZE})
  target_compile_definitions(tsr_flags INTERFACE TSR_SANITIZED=1)
endif()

if(TSR_FUZZ)
  target_compile_options(tsr_flags INTERFACE -fsanitize=fuzzer-no-link
    -fsanitize-coverage-ignorelist=${CMAKE_SOURCE_DIR}/tests/fuzz/uncounted.txt)
endif()

# tsr_folder(name SOURCES ... [LINK ...]): src/<name> as the object library tsr_<name>.
function(tsr_folder name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
  add_library(tsr_${name} STATIC ${arg_SOURCES})
  target_link_libraries(tsr_${name} PUBLIC tsr_flags ${arg_LINK})
endfunction()

# tsr_test(name SOURCES ... LINK ... [LABELS ...] [TIMEOUT s]): a CMocka program run by ctest.
# Exit status 77 is a skip. The program may read its data through TSR_SOURCE_DIR.
function(tsr_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LINK;LABELS;COMMAND" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LINK} tsr_flags PkgConfig::TSR_CMOCKA)
  target_compile_definitions(${name} PRIVATE TSR_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  if(arg_COMMAND)
    add_test(NAME ${name} COMMAND ${arg_COMMAND})
  else()
    add_test(NAME ${name} COMMAND ${name})
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  # What a sanitizer's stage of launch/check leaves out it need not build.
  if((TSR_SANITIZE MATCHES thread AND "no_tsan" IN_LIST arg_LABELS) OR
     (TSR_SANITIZE MATCHES address AND "no_asan" IN_LIST arg_LABELS))
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  # COST: those that may take longest are begun first, so that none is left alone at the end.
  set_tests_properties(${name} PROPERTIES
    SKIP_RETURN_CODE 77 TIMEOUT ${arg_TIMEOUT} COST ${arg_TIMEOUT} LABELS "${arg_LABELS}")
endfunction()

# tsr_test_libraries(program name.so.1 ...): `program` as it is, and as program_missing with an argument
# and a folder where the loader finds files of these names that are no libraries.
function(tsr_test_libraries program)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${program}_missing)
  foreach(name ${ARGN})
    file(WRITE ${folder}/${name} "")
  endforeach()
  add_test(NAME ${program} COMMAND ${program})
  add_test(NAME ${program}_missing COMMAND ${program} missing)
  set_tests_properties(${program} ${program}_missing PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 60)
  set_tests_properties(${program}_missing PROPERTIES ENVIRONMENT "LD_LIBRARY_PATH=${folder}:$ENV{LD_LIBRARY_PATH}")
endfunction()
