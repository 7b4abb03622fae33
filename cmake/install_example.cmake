# Installs a build into an empty prefix, builds the examples against it as a stranger would, and runs them.
# The first example is the one of the README.
#
#   cmake -D BUILD_DIR=… -D SOURCE_DIR=… -D CXX=… -P install_example.cmake

set(work ${BUILD_DIR}/install_example)
set(prefix ${work}/prefix)
file(REMOVE_RECURSE ${work})

function(run)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${work} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(READ ${SOURCE_DIR}/README.md readme)
file(READ ${SOURCE_DIR}/examples/plan_a_batch/plan_a_batch.cc example)
string(FIND "${readme}" "${example}" place)
if(place EQUAL -1)
  message(FATAL_ERROR "README.md: expected the program of examples/plan_a_batch, found none")
endif()
file(MAKE_DIRECTORY ${work})
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})
foreach(name plan_a_batch run_a_plan)
  run(${CMAKE_COMMAND} -S ${SOURCE_DIR}/examples/${name} -B ${work}/${name} -D CMAKE_CXX_COMPILER=${CXX}
      -D CMAKE_PREFIX_PATH=${prefix} -D CMAKE_BUILD_TYPE=Release
      "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror")
  run(${CMAKE_COMMAND} --build ${work}/${name})
  run(${work}/${name}/${name})
endforeach()
run(${prefix}/bin/contextile --version)
