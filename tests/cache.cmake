# The cache without its shell.
add_library(cache_rig STATIC cache_chain.c cache_rig.c cache_rig_disk.c)
target_link_libraries(cache_rig PUBLIC terrace_cache PkgConfig::CHECK)

set(cache_tests session lookup lease put ghost watch room admin threads model disk_compact disk_threads spill)
foreach(name ${cache_tests})
  terrace_test(cache_${name} LIBS cache_rig)
endforeach()
terrace_test(cache_disk LIBS cache_rig DISK)
terrace_test(cache_disk_power SOURCES cache_disk_power.c power_log.c LIBS cache_rig)
terrace_test(cache_disk_fault LIBS cache_rig DISK)
terrace_test(cache_disk_loads LIBS cache_rig)
terrace_test(cache_cost LIBS cache_rig terrace_cache_seed)
terrace_test(cache_advice LIBS cache_rig)
terrace_test(cache_advice_graph LIBS cache_rig)
terrace_test(cache_advice_keep LIBS cache_rig)
terrace_test(cache_explain LIBS cache_rig)
terrace_test(cache_trace LIBS cache_rig terrace_replay)
terrace_test(cache_learned TIMEOUT 240 LIBS cache_rig terrace_replay)
terrace_test(cache_tiers TIMEOUT 240 LIBS cache_rig terrace_replay)
add_test(NAME cache_learned_long COMMAND cache_learned --long)
set_tests_properties(cache_learned_long PROPERTIES TIMEOUT 1800 LABELS long ENVIRONMENT CK_FORK=no)
add_test(NAME cache_tiers_long COMMAND cache_tiers --long)
set_tests_properties(cache_tiers_long PROPERTIES TIMEOUT 3600 LABELS long ENVIRONMENT CK_FORK=no)
if(TERRACE_SANITIZE MATCHES thread) # half a minute; their threads are those of cache_threads and cache_disk_threads
  set_tests_properties(cache_tiers cache_learned cache_trace PROPERTIES LABELS long)
endif()

# The VRAM tier, over simulated GPUs.
add_library(cache_vram_rig STATIC cache_vram_rig.c)
target_link_libraries(cache_vram_rig PUBLIC cache_rig sim_device)
foreach(name vram vram_ahead vram_compact vram_corrupt vram_cost vram_down vram_fault vram_heir vram_layers vram_long vram_model vram_pipeline vram_policy vram_stop vram_sums vram_threads)
  terrace_test(cache_${name} LIBS cache_vram_rig)
endforeach()
if(TERRACE_SANITIZE) # it compares costs, of what the others do too
  set_tests_properties(cache_vram_cost PROPERTIES LABELS long)
endif()
set_tests_properties(cache_vram_pipeline PROPERTIES RUN_SERIAL TRUE) # it compares times
