#!/bin/sh
# Builds every fuzz target with clang's libFuzzer and runs each for SECONDS: `sh tests/fuzz/run.sh SECONDS LOGS`.
# Prints "ok NAME" or "FAIL NAME" a target. A crash leaves its input in LOGS. Seeds are in tests/fuzz/seeds/NAME, if any.
set -u
cd "$(dirname "$0")/../.." || exit 1
seconds=${1-10}
logs=${2-build/logs}
mkdir -p "$logs"
if ! { CC=clang cmake --preset default -B build/fuzz -DTERRACE_FUZZ=ON -DTERRACE_SANITIZE=address,undefined &&
	cmake --build build/fuzz -j "$(nproc)" --target fuzzers; } >"$logs/fuzz.build.log" 2>&1; then
	tail -n 40 "$logs/fuzz.build.log"
	echo "FAIL build of the fuzz targets"
	exit 1
fi
code=0
for target in build/fuzz/tests/fuzz_*; do
	[ -x "$target" ] && [ -f "$target" ] || continue
	name=$(basename "$target")
	corpus=$(mktemp -d)
	seeds=tests/fuzz/seeds/$name
	[ -d "$seeds" ] || seeds=
	# shellcheck disable=SC2086 # no seeds: no argument
	if "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
		-artifact_prefix="$logs/$name." "$corpus" $seeds >"$logs/$name.log" 2>&1; then
		echo "ok $name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$logs/$name.log") runs"
	else
		echo "FAIL $name"
		tail -n 40 "$logs/$name.log"
		code=1
	fi
	rm -rf "$corpus"
done
exit $code
