# Installs a build into an empty prefix, builds the example against it as a stranger would, and runs it.
#
#   cmake -D BUILD_DIR=… -D EXAMPLE_DIR=… -D CXX=… -P install_example.cmake

set(work ${BUILD_DIR}/install_example)
set(prefix ${work}/prefix)
file(REMOVE_RECURSE ${work})

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})
run(${CMAKE_COMMAND} -S ${EXAMPLE_DIR} -B ${work}/build -D CMAKE_CXX_COMPILER=${CXX}
    -D CMAKE_PREFIX_PATH=${prefix} -D CMAKE_BUILD_TYPE=Release)
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/plan_a_batch)
run(${prefix}/bin/contextile --version)
