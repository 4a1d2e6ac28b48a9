terrace_test(format LIBS terrace_kernels ONE_THREAD)
terrace_test(codec LIBS terrace_kernels ONE_THREAD)
terrace_test(codec_machines LIBS terrace_kernels ONE_THREAD)
terrace_test(kernel_tables LIBS terrace_kernels)
terrace_test(golden_int4 LIBS terrace_kernels ONE_THREAD)
terrace_test(attend SOURCES attend.c attend_rig.c LIBS terrace_kernels TIMEOUT 600 ONE_THREAD)
terrace_test(attend_features SOURCES attend_features.c attend_rig.c LIBS terrace_kernels TIMEOUT 600 ONE_THREAD)
terrace_test(attend_public LIBS terrace_static)
set_source_files_properties(attend_rig.c PROPERTIES COMPILE_OPTIONS "${TERRACE_FASTEST}") # the reference
