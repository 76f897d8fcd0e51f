# Tests on several MPI ranks, through launch/run.

# tsr_mpi_test(name RANKS 1 2 4 PROGRAM target [ARGS ...] [EXIT code] [LABELS ...] [TIMEOUT s]):
# a test name_n<ranks> for each number of ranks, which passes if mpirun ends with `code` (default 0).
# The exit codes of the ranks are what counts: the first that is not 0 is mpirun's.
function(tsr_mpi_test name)
  cmake_parse_arguments(arg "" "PROGRAM;EXIT;TIMEOUT" "RANKS;ARGS;LABELS" ${ARGN})
  if(NOT arg_EXIT)
    set(arg_EXIT 0)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  foreach(ranks ${arg_RANKS})
    add_test(NAME ${name}_n${ranks}
      COMMAND ${PROJECT_SOURCE_DIR}/cmake/expect_exit.sh ${arg_EXIT}
        ${PROJECT_SOURCE_DIR}/launch/run -n ${ranks} $<TARGET_FILE:${arg_PROGRAM}> ${arg_ARGS})
    # Open MPI leaves memory behind, in plugins whose names are gone by then, so leaks are looked for in
    # the other tests only.
    # PROCESSORS: ctest -j does not start as many of them at once. Ranks of a run that fails wait for each other most
    # of the time; more than two would have a machine of two cores for themselves alone.
    if(ranks EQUAL 1 OR NOT arg_EXIT EQUAL 0)
      set(processors 1)
    else()
      set(processors 2)
    endif()
    set_tests_properties(${name}_n${ranks} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT ${arg_TIMEOUT} COST ${arg_TIMEOUT}
      LABELS "mpi;${arg_LABELS}" PROCESSORS ${processors}
      ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0")
  endforeach()
endfunction()
