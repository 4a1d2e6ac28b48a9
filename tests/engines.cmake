# Serving engines: terrace.vllm's contract without an engine, and with the long tests real engines of pinned versions from PyPI (engines/run.sh).
if(TARGET terrace AND TARGET terraced AND NOT TERRACE_SANITIZE)
  add_test(NAME engines_contract COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/engines/test_contract.py $<TARGET_FILE:terraced> $<TARGET_FILE:terrace>)
  set_tests_properties(engines_contract PROPERTIES TIMEOUT 180)
  add_test(NAME engines_vllm COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/engines/run.sh)
  set_tests_properties(engines_vllm PROPERTIES TIMEOUT 7200 LABELS long SKIP_RETURN_CODE 77 PROCESSORS 2 ENVIRONMENT
                       "TERRACED=$<TARGET_FILE:terraced>;LIBTERRACE=$<TARGET_FILE:terrace>")
endif()
