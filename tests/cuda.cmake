# The kernels on the CPU.
add_subdirectory(cuda_cpu)

# What needs a GPU is tests/gpu/run.sh; here it is only compiled, where there is an nvcc: a minute, and two more for every format; once and not
# again in the builds with sanitizers, which nvcc does not take part in.
if(TERRACE_SANITIZE)
  return()
endif()
add_test(NAME cuda_compile COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/gpu/compile.sh)
add_test(NAME cuda_compile_rest COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/gpu/compile.sh rest)
set_tests_properties(cuda_compile cuda_compile_rest PROPERTIES TIMEOUT 600 PROCESSORS 2 COST 300 SKIP_RETURN_CODE 77)
set_tests_properties(cuda_compile_rest PROPERTIES LABELS long)
# The GPUs' memory over a driver that is none: where there are CUDA's headers.
add_test(NAME gpu_device_fake COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/gpu/without_gpu.sh)
set_tests_properties(gpu_device_fake PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77)
