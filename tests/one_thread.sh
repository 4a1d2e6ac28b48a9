#!/bin/sh
# Programs whose tests are not run under ThreadSanitizer must not be able to start a thread: `one_thread.sh PROGRAM...`.
set -u
[ $# -gt 0 ] || { echo "no programs"; exit 1; }
code=0
for program in "$@"; do
	symbols=$(nm -D --undefined-only "$program") || exit 1
	if starts=$(echo "$symbols" | grep -E ' (pthread_create|thrd_create|grpc_init|call_rcu|io_uring_.*|dlopen)(@|$)'); then
		echo "$program has threads, or may have:" $starts
		code=1
	fi
done
echo "$# programs looked at"
exit $code
