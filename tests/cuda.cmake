# What needs a GPU is tests/gpu/run.sh; here it is only compiled, where there is an nvcc: two minutes, so once and not again in the
# builds with sanitizers, which nvcc does not take part in.
if(TERRACE_SANITIZE)
  return()
endif()
add_test(NAME cuda_compile COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/gpu/compile.sh)
set_tests_properties(cuda_compile PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77)
