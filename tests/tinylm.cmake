# The example engine: its parsers, its arithmetic, its command line and, with a daemon, the demo.
if(NOT TARGET tinylm_core)
  return()
endif()

terrace_test(tinylm_parsers SOURCES client/examples/tinylm_parsers.c LIBS tinylm_core terrace_static ONE_THREAD)
terrace_test(tinylm_tokenizer SOURCES client/examples/tinylm_tokenizer.c LIBS tinylm_core terrace_static ONE_THREAD)
terrace_test(tinylm_model SOURCES client/examples/tinylm_model.c LIBS tinylm_core terrace_static TIMEOUT 300)
terrace_test(tinylm_ppl SOURCES client/examples/tinylm_ppl.c LIBS tinylm_core terrace_static TIMEOUT 300)
terrace_test(tinylm_cli SOURCES client/examples/tinylm_cli.c LIBS tinylm_core terrace_static)
target_compile_definitions(tinylm_cli PRIVATE TINYLM="$<TARGET_FILE:tinylm>")
add_dependencies(tinylm_cli tinylm)

# The bounds of the formats over all 16 windows: two minutes of a CPU.
add_test(NAME tinylm_ppl_16 COMMAND tinylm_ppl 16)
set_tests_properties(tinylm_ppl_16 PROPERTIES LABELS long TIMEOUT 1200)

if(TARGET terraced)
  terrace_test(tinylm_demo SOURCES client/examples/tinylm_demo.c LIBS tinylm_core terrace_static TIMEOUT 300)
  target_compile_definitions(tinylm_demo PRIVATE TINYLM="$<TARGET_FILE:tinylm>" TERRACED="$<TARGET_FILE:terraced>")
  add_dependencies(tinylm_demo tinylm terraced)
  set_tests_properties(tinylm_demo PROPERTIES PROCESSORS 2)
  if(TERRACE_SANITIZE)
    # Minutes of arithmetic; the engine and a daemon are in tinylm_ttft too, the threads also in kill_storm and client_threads.
    set_tests_properties(tinylm_demo PROPERTIES LABELS long)
  endif()
endif()

# The GPU path without a GPU: over the simulated device of sim.cmake.
if(TARGET terraced)
  set(host_device ${SIM_DEVICE_FOLDER})
  file(WRITE ${host_device}/empty/libterrace_cuda.so.0 "")

  # The same program as on a GPU, and over the host's device.
  terrace_test(gpu_plugin SOURCES gpu/plugin.c LIBS tinylm_core terrace)
  add_test(NAME gpu_plugin_host COMMAND gpu_plugin)
  set_tests_properties(gpu_plugin_host PROPERTIES TIMEOUT 300 ENVIRONMENT LD_LIBRARY_PATH=${host_device})
  add_dependencies(gpu_plugin sim_runtime sim_plugin)
  if(TERRACE_SANITIZE MATCHES thread) # arithmetic; what it does at a time is in client_gpu* and kill_storm_gpu*
    set_tests_properties(gpu_plugin_host PROPERTIES LABELS long)
  endif()

  terrace_test(tinylm_cuda SOURCES client/examples/tinylm_cuda.c LIBS PkgConfig::JANSSON TIMEOUT 600)
  target_compile_definitions(tinylm_cuda PRIVATE TINYLM="$<TARGET_FILE:tinylm>" TERRACED="$<TARGET_FILE:terraced>"
                             HOST_DEVICE="${host_device}" TERRACECTL="$<TARGET_FILE:terracectl>")
  add_dependencies(tinylm_cuda tinylm terraced terracectl sim_runtime sim_plugin)
endif()
if(TERRACE_SANITIZE) # the model's arithmetic is in tinylm_model too, and its threads in tinylm_cli
  set_tests_properties(tinylm_ppl PROPERTIES LABELS long)
  if(TERRACE_SANITIZE MATCHES thread)
    set_tests_properties(tinylm_model PROPERTIES LABELS long)
  endif()
endif()
if(TERRACE_SANITIZE AND TEST tinylm_cuda)
  set_tests_properties(tinylm_cuda PROPERTIES LABELS long)
endif()
