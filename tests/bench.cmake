# terrace-bench: figures with baselines, see bench/README.md. The test only runs it, quickly: figures of a busy machine
# prove nothing.
add_executable(terrace-bench
  bench/main.c bench/report.c bench/child.c bench/service.c bench/redis.c bench/echo.c
  bench/rpc.c bench/lease.c bench/index.c bench/kernels.c bench/put.c bench/nvme.c bench/restart.c bench/spill.c bench/advisor.c)
target_compile_options(terrace-bench PRIVATE ${TERRACE_FASTEST})
target_link_libraries(terrace-bench
  PRIVATE terrace_static terrace_cache_seed terrace_kernels PkgConfig::GRPC Threads::Threads m)
add_dependencies(terrace-bench terraced)

add_test(NAME bench_runs COMMAND terrace-bench all --quick --json --terraced $<TARGET_FILE:terraced>)
# gRPC's library is not instrumented.
set_tests_properties(bench_runs PROPERTIES TIMEOUT 180 SKIP_RETURN_CODE 77
                     ENVIRONMENT TSAN_OPTIONS=ignore_noninstrumented_modules=1)
