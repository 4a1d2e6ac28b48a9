# The shell of the daemon. The core behind it is tested by cache.cmake.
terrace_test(config LIBS terrace_daemon)
terrace_test(log_line LIBS terrace_daemon PkgConfig::JANSSON)
terrace_test(workers LIBS terrace_daemon)
terrace_test(disk_log LIBS terrace_daemon)
terrace_test(door LIBS terrace_daemon)
terrace_test(rpc_handlers LIBS terrace_daemon)
terrace_test(rpc_put_stream LIBS terrace_daemon)
terrace_test(rpc_server LIBS terrace_daemon PkgConfig::GRPC)
