# What needs a GPU is tests/gpu/run.sh; here it is only compiled, where there is an nvcc.
add_test(NAME cuda_compile COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/gpu/compile.sh)
set_tests_properties(cuda_compile PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77)
