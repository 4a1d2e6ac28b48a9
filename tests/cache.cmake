# The cache without its shell.
add_library(cache_rig STATIC cache_chain.c cache_rig.c cache_rig_disk.c)
target_link_libraries(cache_rig PUBLIC terrace_cache PkgConfig::CHECK)

set(cache_tests session lookup lease put ghost watch room admin threads model disk disk_fault disk_threads)
foreach(name ${cache_tests})
  terrace_test(cache_${name} LIBS cache_rig)
endforeach()
terrace_test(cache_cost LIBS cache_rig terrace_cache_seed)
terrace_test(cache_advice LIBS cache_rig)
terrace_test(cache_advice_graph LIBS cache_rig)
terrace_test(cache_explain LIBS cache_rig)
terrace_test(cache_trace LIBS cache_rig terrace_replay)
# liburcu is not instrumented.
foreach(name ${cache_tests} cost advice advice_graph explain trace)
  set_tests_properties(cache_${name} PROPERTIES ENVIRONMENT "TSAN_OPTIONS=ignore_noninstrumented_modules=1")
endforeach()
