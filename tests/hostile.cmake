# A hostile client beside an engine at one daemon: every method and every packet, from their definitions.
if(NOT TARGET terraced OR NOT TARGET terrace_static)
  return()
endif()

add_executable(hostile hostile/hostile.c hostile/calls.c hostile/packets.c hostile/wire.c hostile/kinds.c)
target_link_libraries(hostile PRIVATE terrace_proto PkgConfig::GRPC Threads::Threads)
target_compile_definitions(hostile PRIVATE FDSOCK_HEADER="${PROJECT_SOURCE_DIR}/proto/fdsock.h")
add_executable(victim hostile/victim.c)
target_link_libraries(victim PRIVATE terrace_static Threads::Threads)

# A fifth of the messages where nothing is there to tell of a wrong read; the whole under AddressSanitizer.
if(TARGET sim_plugin)
  if(TERRACE_SANITIZE MATCHES address)
    set(HOSTILE_MESSAGES 100000)
  else()
    set(HOSTILE_MESSAGES 20000)
  endif()
  add_test(NAME hostile COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/hostile/test_hostile.py $<TARGET_FILE:terraced> $<TARGET_FILE:hostile>
           $<TARGET_FILE:victim> ${SIM_DEVICE_FOLDER} --messages ${HOSTILE_MESSAGES})
  set_tests_properties(hostile PROPERTIES TIMEOUT 300 PROCESSORS 2
                       ENVIRONMENT_MODIFICATION "${ON_DISK}") # another user may not enter a TMPDIR of root's
endif()
