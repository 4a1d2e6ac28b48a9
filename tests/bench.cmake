# terrace-bench: figures with baselines, see bench/README.md. The test only runs it, quickly: figures of a busy machine
# prove nothing.
add_executable(terrace-bench
  bench/main.c bench/report.c bench/child.c bench/service.c bench/redis.c bench/echo.c
  bench/rpc.c bench/lease.c bench/index.c bench/kernels.c bench/repack.c bench/put.c bench/nvme.c bench/restart.c
  bench/spill.c bench/advisor.c bench/vram.c bench/lists.c bench/sums.c bench/caches.c bench/clients.c
  bench/growth.c bench/handover.c bench/tail.c bench/opaque.c bench/network.c bench/fetch.c bench/member.c bench/cluster.c
  bench/raw_tls.c bench/far.c bench/sides.c bench/pairs.c bench/line.c gpu/device_rig.c)
target_compile_options(terrace-bench PRIVATE ${TERRACE_FASTEST})
target_link_libraries(terrace-bench
  PRIVATE terrace_static terrace_cache_seed terrace_kernels PkgConfig::GRPC Threads::Threads m ${CMAKE_DL_LIBS})
add_dependencies(terrace-bench terraced sim_plugin sim_runtime)
# An engine process of `clients`: by the shared library, so that LD_LIBRARY_PATH makes it one of another build (RUNPATH, not RPATH).
add_executable(terrace-bench-client bench/clients_worker.c)
target_link_libraries(terrace-bench-client PRIVATE terrace m)
target_link_options(terrace-bench-client PRIVATE -Wl,--enable-new-dtags)
add_dependencies(terrace-bench terrace-bench-client)

add_test(NAME bench_runs COMMAND terrace-bench all --quick --json --terraced $<TARGET_FILE:terraced>)
set_tests_properties(bench_runs PROPERTIES TIMEOUT 180 SKIP_RETURN_CODE 77)
add_test(NAME bench_unprinted COMMAND sh -c "$<TARGET_FILE:terrace-bench> --list >/dev/full") # what is not printed is not measured
set_tests_properties(bench_unprinted PROPERTIES WILL_FAIL TRUE)
# With --against: the arithmetic of pairs, and what is said of builds that are none.
terrace_test(bench_pairs SOURCES bench/check_pairs.c bench/report.c bench/line.c bench/child.c)
add_test(NAME bench_against COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/bench/test_against.py
         $<TARGET_FILE:terraced> $<TARGET_FILE:terrace-bench>)
set_tests_properties(bench_against PROPERTIES TIMEOUT 300)
if(TERRACE_SANITIZE) # what it measures is in tests that look at what is done
  set_tests_properties(bench_runs PROPERTIES LABELS long)
endif()
# Over the simulated GPU: that it runs; figures are the real one's (gpu/run.sh).
add_test(NAME bench_vram COMMAND terrace-bench vram --quick --json --terraced $<TARGET_FILE:terraced>)
add_test(NAME bench_caches COMMAND terrace-bench caches --quick --json)
add_test(NAME bench_lists COMMAND terrace-bench lists --quick --json --terraced $<TARGET_FILE:terraced>)
set_tests_properties(bench_vram bench_caches bench_lists PROPERTIES TIMEOUT 120
                     ENVIRONMENT "LD_LIBRARY_PATH=${SIM_DEVICE_FOLDER}")
if(TERRACE_SANITIZE MATCHES thread) # figures; leases of many blocks on a GPU are in client_gpu* and cache_vram_* too
  set_tests_properties(bench_lists PROPERTIES LABELS long)
endif()

# Time to the first token by tier, with the example engine: the texts and what is reused are checked, not the times.
if(TARGET tinylm_core)
  add_executable(tinylm_ttft bench/ttft.c bench/report.c bench/child.c bench/service.c)
  target_link_libraries(tinylm_ttft PRIVATE tinylm_core terrace_static terrace_kernels Threads::Threads m)
  add_dependencies(tinylm_ttft terraced sim_plugin sim_runtime)
  if(NOT TESTS_SMALL)
    set(TTFT_TOKENS --tokens 2200) # beyond the context that the model was trained with
  endif()
  add_test(NAME tinylm_ttft COMMAND tinylm_ttft --quick ${TTFT_TOKENS} --json --model ${CMAKE_CURRENT_SOURCE_DIR}/data/tinylm-8m
           --terraced $<TARGET_FILE:terraced>)
  set_tests_properties(tinylm_ttft PROPERTIES TIMEOUT 180
                       ENVIRONMENT "LD_LIBRARY_PATH=${SIM_DEVICE_FOLDER}")
  if(TERRACE_SANITIZE MATCHES thread) # arithmetic, as of tinylm_demo
    set_tests_properties(tinylm_ttft PROPERTIES LABELS long)
  endif()
endif()
