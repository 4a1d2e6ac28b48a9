# End to end: real processes. The Python tests use the system's interpreter, whose packages deploy/packages.txt lists.
set(SYSTEM_PYTHON /usr/bin/python3)

if(NOT TARGET terraced)
  return()
endif()

function(terrace_python_test name script)
  add_test(NAME ${name} COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e/${script} $<TARGET_FILE:terraced> ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT 180)
endfunction()

terrace_python_test(e2e_grpcio test_grpcio.py)
if(TARGET terracectl)
  terrace_python_test(e2e_disk test_disk.py $<TARGET_FILE:terracectl>)
endif()
if(TARGET hello)
  terrace_python_test(e2e_hello test_hello.py $<TARGET_FILE:hello>)
endif()

set_tests_properties(e2e_hello e2e_grpcio PROPERTIES RUN_SERIAL TRUE)
if(TERRACE_SANITIZE MATCHES thread) # what it does is in cache_disk*, store_* and crash_core too
  set_tests_properties(e2e_disk PROPERTIES LABELS long)
endif()
