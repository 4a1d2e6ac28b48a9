#!/bin/sh
# Builds every fuzz target with clang's libFuzzer and runs each for SECONDS, as many at once as there are processors:
#   sh tests/fuzz/run.sh SECONDS LOGS
#   sh tests/fuzz/run.sh build            builds alone
# Prints "ok NAME" or "FAIL NAME" a target. A crash leaves its input in LOGS. Seeds are in tests/fuzz/seeds/NAME, if any.
set -u
cd "$(dirname "$0")/../.." || exit 1

# target PROGRAM SECONDS LOGS: one target.
if [ "${1-}" = target ]; then
	name=$(basename "$2") logs=$4
	corpus=$(mktemp -d)
	trap 'rm -rf "$corpus"' EXIT
	seeds=tests/fuzz/seeds/$name
	[ -d "$seeds" ] || seeds=
	# shellcheck disable=SC2086 # no seeds: no argument
	if "$2" -max_total_time="$3" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
		-artifact_prefix="$logs/$name." "$corpus" $seeds >"$logs/$name.log" 2>&1; then
		echo "ok $name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$logs/$name.log") runs"
		exit 0
	fi
	printf 'FAIL %s\n%s\n' "$name" "$(tail -n 40 "$logs/$name.log")"
	exit 1
fi

build() {
	CC=clang cmake -G Ninja -S . -B build/fuzz -DTERRACE_FUZZ=ON -DTERRACE_SANITIZE=address,undefined -DCMAKE_EXE_LINKER_FLAGS="${linker-}" &&
		cmake --build build/fuzz -j "$(nproc)" --target fuzzers
}
if [ "${1-}" = build ]; then
	build
	exit
fi

seconds=${1-10}
logs=${2-build/logs}
mkdir -p "$logs"
if ! build >"$logs/fuzz.build.log" 2>&1; then
	tail -n 40 "$logs/fuzz.build.log"
	echo "FAIL build of the fuzz targets"
	exit 1
fi
find build/fuzz/tests -maxdepth 1 -name 'fuzz_*' -type f -perm -u+x | sort |
	xargs -P "$(nproc)" -I{} sh tests/fuzz/run.sh target {} "$seconds" "$logs"
