# Engines and daemons that die.
if(NOT TARGET terraced)
  return()
endif()

add_executable(storm fault/storm.c)
target_link_libraries(storm PRIVATE terrace_static)

if(TERRACE_SANITIZE)
  set(KILL_ROUNDS 60)
else()
  set(KILL_ROUNDS 1000)
endif()
add_test(NAME kill_storm COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/fault/test_kill.py
         $<TARGET_FILE:terraced> $<TARGET_FILE:storm> ${KILL_ROUNDS})
set_tests_properties(kill_storm PROPERTIES TIMEOUT 420 RUN_SERIAL TRUE)
