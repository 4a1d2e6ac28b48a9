terrace_test(format LIBS terrace_kernels)
terrace_test(codec LIBS terrace_kernels)
terrace_test(golden_int4 LIBS terrace_kernels)
terrace_test(attend LIBS terrace_kernels)
