# The example engine: its parsers, its arithmetic, its command line and, with a daemon, the demo.
if(NOT TARGET tinylm_core)
  return()
endif()

terrace_test(tinylm_parsers LIBS tinylm_core terrace_static)
terrace_test(tinylm_tokenizer LIBS tinylm_core terrace_static)
terrace_test(tinylm_model LIBS tinylm_core terrace_static TIMEOUT 300)
terrace_test(tinylm_ppl LIBS tinylm_core terrace_static TIMEOUT 300)
terrace_test(tinylm_cli LIBS tinylm_core terrace_static)
target_compile_definitions(tinylm_cli PRIVATE TINYLM="$<TARGET_FILE:tinylm>")
add_dependencies(tinylm_cli tinylm)

# The bounds of the formats over all 16 windows: two minutes of a CPU.
add_test(NAME tinylm_ppl_16 COMMAND tinylm_ppl 16)
set_tests_properties(tinylm_ppl_16 PROPERTIES LABELS long TIMEOUT 1200)

if(TARGET terraced)
  terrace_test(tinylm_demo LIBS tinylm_core terrace_static TIMEOUT 300)
  target_compile_definitions(tinylm_demo PRIVATE TINYLM="$<TARGET_FILE:tinylm>" TERRACED="$<TARGET_FILE:terraced>")
  add_dependencies(tinylm_demo tinylm terraced)
  set_tests_properties(tinylm_demo PROPERTIES RUN_SERIAL TRUE)
  if(TERRACE_SANITIZE STREQUAL "thread")
    # Two and a half minutes of arithmetic; the threads it uses are also those of kill_storm and client_threads.
    set_tests_properties(tinylm_demo PROPERTIES LABELS long)
  endif()
endif()
