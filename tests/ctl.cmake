# terracectl as a program, through its pipes.
function(terrace_ctl_test name source)
  terrace_test(${name} SOURCES client/ctl/${source}.c client/ctl/run.c ${ARGN})
  target_compile_definitions(${name} PRIVATE TERRACECTL="$<TARGET_FILE:terracectl>")
  add_dependencies(${name} terracectl)
endfunction()

terrace_ctl_test(ctl_codec codec LIBS terrace_kernels)
terrace_ctl_test(ctl_usage usage LIBS PkgConfig::JANSSON)
target_compile_definitions(ctl_usage PRIVATE TERRACED="$<TARGET_FILE:terraced>")
add_dependencies(ctl_usage terraced)
if(TERRACE_SANITIZE MATCHES thread) # what has one thread; ctl_daemon talks to a daemon
  set_tests_properties(ctl_codec ctl_usage PROPERTIES LABELS long)
endif()

# Against a live daemon.
terrace_ctl_test(ctl_daemon daemon LIBS terrace_static PkgConfig::JANSSON)
target_compile_definitions(ctl_daemon PRIVATE TERRACED="$<TARGET_FILE:terraced>")
add_dependencies(ctl_daemon terraced)
