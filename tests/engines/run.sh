#!/bin/sh
# Runs real serving engines against live daemons: `sh tests/engines/run.sh [NAME...]`, NAME being vllm-VERSION as in
# client/python/terrace/vllm/compatibility.py; none: all. TEST in the environment names tests, with blanks between
# (Shows.test_3_daemon_killed_and_stopped). TERRACE_LONG=1 runs some of them for longer. BENCH in the environment runs a
# bench in their place (`BENCH="throughput 21"`): see bench_vllm.py.
#
# Each engine has a virtual environment in build/engines, which is made where it is not there, of the versions in
# tests/engines/NAME.txt: the first downloads about 3 GB from PyPI, each other one 130 MB. Wants the plain build
# (build/default), or TERRACED and LIBTERRACE. Exit code: 0, 1 if a test fails, 77 if the packages cannot be had.
set -u
cd "$(dirname "$0")/../.." || exit 1
engines=$PWD/build/engines
mkdir -p "$engines"
terraced=${TERRACED-$PWD/build/default/daemon/terraced} library=${LIBTERRACE-$PWD/build/default/client/libterrace.so}
[ -x "$terraced" ] && [ -e "$library" ] || { echo "no $terraced or $library: build first"; exit 1; }
[ $# -gt 0 ] || set -- $(sed -n 's/^VERSIONS = //p' client/python/terrace/vllm/compatibility.py | grep -o '"[0-9]*\.[0-9]*\.[0-9]*"' | tr -d '"' | sort -rV | sed 's/^/vllm-/')

# environment NAME. --no-deps: the list is whole. It has the build of torch that is on PyPI in the place of the one that
# the package asks for, and no Triton, which is not needed on a CPU.
environment() {
	cmp -s "tests/engines/$1.txt" "$engines/$1/ready" && return
	if ! [ -x "$engines/uv/bin/uv" ]; then
		/usr/bin/python3 -m venv "$engines/uv" && "$engines/uv/bin/pip" install -q uv==0.13.9 || return
	fi
	"$engines/uv/bin/uv" venv -q --clear --python /usr/bin/python3 "$engines/$1" &&
		"$engines/uv/bin/uv" pip install -q --python "$engines/$1/bin/python" --no-deps -r "tests/engines/$1.txt" &&
		cp "tests/engines/$1.txt" "$engines/$1/ready"
}

failed=0
for name in "$@"; do
	[ -e "tests/engines/$name.txt" ] || { echo "$name: no such engine; tests/engines/NAME.txt has the packages of each" >&2; exit 1; }
	environment "$name" || { echo "skipped: the packages of $name cannot be had"; exit 77; }
	echo "$name"
	export LOGS="$engines/logs/$name"
	rm -rf "$LOGS" && mkdir -p "$LOGS"
	program=test_vllm.py
	[ -z "${BENCH-}" ] || program=bench_vllm.py
	/usr/bin/python3 "tests/engines/$program" "$terraced" "$library" "$engines/$name/bin/python" "$PWD/tests/data/tinylm-8m" ${BENCH-${TEST-}} || failed=1
done
exit "$failed"
