#!/bin/sh
# Builds in build/default all that `cmake --install` copies, and the targets that are named: `sh deploy/build.sh TARGET...`.
set -eu
cd "$(dirname "$0")/.."

bin=build/default
echo "Building; the first time takes some minutes..."
log=$(mktemp)
# A folder that was configured for tests stays so.
testing=""
[ -e "$bin/CMakeCache.txt" ] || testing=-DBUILD_TESTING=OFF
# shellcheck disable=SC2086 # one word or none
if ! { cmake -G Ninja -S . -B "$bin" $testing && cmake --build "$bin" -j "$(nproc)" --target installed "$@"; } >"$log" 2>&1; then
	tail -n 40 "$log" >&2
	echo "The build failed; the whole log is in $log. A build folder of another version may be in the way: rm -r $bin, and try again." >&2
	exit 1
fi
rm -f "$log"
