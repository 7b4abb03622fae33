# Configures examples/planner_alone, a project that adds this one, and looks at what it links: the
# planner and eight rooms, neither OpenBLAS nor MPI. With RUN, it is built and run, which compiles
# these rooms once more.
#
#   cmake -D BUILD_DIR=… -D SOURCE_DIR=… -D CXX=… [-D RUN=ON] -P planner_alone.cmake

set(work ${BUILD_DIR}/planner_alone)
file(REMOVE_RECURSE ${work})
file(MAKE_DIRECTORY ${work})

function(run)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${work} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run(${CMAKE_COMMAND} -S ${SOURCE_DIR}/examples/planner_alone -B ${work} -G Ninja -D CMAKE_CXX_COMPILER=${CXX}
    -D CMAKE_BUILD_TYPE=Release)
file(READ ${work}/build.ninja rules)
string(REGEX MATCHALL "lib(contextile_[a-z_]+)[.]a:" rooms "${rules}")
list(TRANSFORM rooms REPLACE "^libcontextile_(.*)[.]a:$" "\\1")
list(REMOVE_DUPLICATES rooms)
list(SORT rooms)
set(expected base batch cluster partition plan planner predict store strategy)
if(NOT rooms STREQUAL expected)
  message(FATAL_ERROR "planner_alone: expected the rooms ${expected}, found ${rooms}")
endif()
if(rules MATCHES "[^\n]*(openblas|libmpi|CLI11|httplib)[^\n]*")
  message(FATAL_ERROR "planner_alone: expected no OpenBLAS, MPI, CLI11 or cpp-httplib, found ${CMAKE_MATCH_0}")
endif()
if(RUN)
  run(${CMAKE_COMMAND} --build ${work})
  run(${work}/planner_alone)
endif()
