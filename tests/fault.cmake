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

# Mixed load at three times the memory; an hour with the long tests.
if(TERRACE_SANITIZE)
  set(ENDURANCE_SECONDS 20)
else()
  set(ENDURANCE_SECONDS 300)
endif()
add_test(NAME endurance COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/fault/test_endurance.py
         $<TARGET_FILE:terraced> $<TARGET_FILE:storm> ${ENDURANCE_SECONDS})
set_tests_properties(endurance PROPERTIES TIMEOUT 600)
add_test(NAME endurance_hour COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/fault/test_endurance.py
         $<TARGET_FILE:terraced> $<TARGET_FILE:storm> 3600)
set_tests_properties(endurance_hour PROPERTIES TIMEOUT 4000 LABELS long)
