# Installs a build into an empty prefix, builds the examples against it as a user would, and runs
# them. docs/start.md holds plan_a_batch and attend_a_batch; the result of attend_a_batch is known.
#
#   cmake -D BUILD_DIR=… -D SOURCE_DIR=… -D CXX=… -D REDIS=ON -D GLOO=ON -P install_example.cmake

set(work ${BUILD_DIR}/install_example)
set(prefix ${work}/prefix)
file(REMOVE_RECURSE ${work})

function(run)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${work} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(expect_program page name)
  file(READ ${SOURCE_DIR}/${page} text)
  file(READ ${SOURCE_DIR}/examples/${name}/${name}.cc program)
  string(FIND "${text}" "${program}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "${page}: expected the program of examples/${name}, found none")
  endif()
endfunction()

expect_program(docs/start.md plan_a_batch)
expect_program(docs/start.md attend_a_batch)
file(MAKE_DIRECTORY ${work})
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})
foreach(name plan_a_batch run_a_plan attend_a_batch train_ahead go_on)
  run(${CMAKE_COMMAND} -S ${SOURCE_DIR}/examples/${name} -B ${work}/${name} -D CMAKE_CXX_COMPILER=${CXX}
      -D CMAKE_PREFIX_PATH=${prefix} -D CMAKE_BUILD_TYPE=Release
      "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror")
  run(${CMAKE_COMMAND} --build ${work}/${name})
endforeach()
foreach(name plan_a_batch run_a_plan attend_a_batch)
  run(${work}/${name}/${name})
endforeach()
execute_process(COMMAND ${work}/attend_a_batch/attend_a_batch OUTPUT_VARIABLE printed COMMAND_ERROR_IS_FATAL ANY)
set(expected "out 89473, lse 6.5511, dv 0.0029\n")  # 1 + 256 · 699/2, log 700, 4 heads · 0.5/700
if(NOT printed STREQUAL expected)
  message(FATAL_ERROR "attend_a_batch: expected ${expected}, found ${printed}")
endif()
# Everything in one process, then planner and ranks as processes, the planner killed once.
run(${work}/train_ahead/train_ahead --steps 4 --check-every 2)
run(${work}/train_ahead/train_ahead --help)
# A folder that is not there is none that a planner and ranks could share.
execute_process(COMMAND ${work}/train_ahead/train_ahead --planner --store file://${work}/no-such-folder
                ERROR_VARIABLE printed RESULT_VARIABLE code TIMEOUT 60)
if(NOT code EQUAL 2 OR NOT printed MATCHES "expected a folder that is there" OR EXISTS ${work}/no-such-folder)
  message(FATAL_ERROR "train_ahead: expected exit code 2 for a folder that is not there, found ${code}: ${printed}")
endif()
find_program(REDIS_SERVER redis-server)
if(REDIS_SERVER AND REDIS AND GLOO)
  run(${SOURCE_DIR}/examples/train_ahead/run_local ${work}/train_ahead/train_ahead 12)
else()
  message(STATUS "train_ahead as processes: skipped, it needs redis-server and builds with hiredis and gloo")
endif()
if(GLOO)
  run(${SOURCE_DIR}/examples/go_on/kill_one ${work}/go_on/go_on)
else()
  message(STATUS "go_on: skipped, it needs a build with gloo")
endif()
run(${prefix}/bin/contextile --version)
