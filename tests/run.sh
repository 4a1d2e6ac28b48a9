#!/bin/sh
# Installs what the tests need, builds, runs everything, and counts: `sh tests/run.sh [--long]`. Of the environment it keeps HOME, TMPDIR and CUDA_HOME.
#
# Stages: the source rules (tests/rules.sh), the plain build and its tests (the endurance run in the background), the same tests under
# AddressSanitizer + UndefinedBehaviorSanitizer and under ThreadSanitizer, and every fuzz target for some seconds. Nothing is built beside
# tests: some have bounds of time. --long adds the tests labelled `long`, longer fuzzing and every CUDA kernel. The logs stay in build/logs. The last line is "N passed, N failed, N skipped".
set -u
cd "$(dirname "$0")/.." || exit 1
root=$PWD

long=no
WHOLE=OFF
for argument in "$@"; do
	case $argument in
	--long) long=yes WHOLE=ON ;;
	*) echo "usage: sh tests/run.sh [--long]" >&2; exit 2 ;;
	esac
done

# Tests have the environment that CI gives them, whoever runs this, so that what they need besides is found to be missing here and not there.
if [ "${BARE-}" != yes ]; then
	sh deploy/packages.sh build test || exit 1
	umask 022
	exec env -i BARE=yes PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME="${HOME:-/root}" ${TMPDIR:+"TMPDIR=$TMPDIR"} \
		${CUDA_HOME:+"CUDA_HOME=$CUDA_HOME"} sh tests/run.sh "$@" </dev/null
fi
unset BARE
export WHOLE

logs=$root/build/logs
rm -rf "$logs"
mkdir -p "$logs"
at_once=$(($(nproc) + 6)) # most tests wait for a disk or a process most of the time
at_once_asan=$(($(nproc) + 3)) # under AddressSanitizer they compute more
passed=0 failed=0 skipped=0
started=$(date +%s)

# note TEXT: with the seconds so far, and those of CPU that what has ended took.
note() {
	times >"$logs/times"
	cpu=$(awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, part, "m"); sum += 60 * part[1] + part[2] } printf "%d", sum }' "$logs/times")
	echo "[$(($(date +%s) - started)) s, $cpu s of CPU] $*"
}

# one NAME COMMAND...: a test that is one command; exit 77 is a skip.
one() {
	name=$1
	shift
	"$@" >"$logs/$name.log" 2>&1
	case $? in
	0) passed=$((passed + 1)); note "ok    $name" ;;
	77) skipped=$((skipped + 1)); note "skip  $name: $(tail -n 1 "$logs/$name.log")" ;;
	*) failed=$((failed + 1)); note "FAIL  $name"; tail -n 60 "$logs/$name.log" ;;
	esac
}

# The later builds are made while tests wait for a disk, a process or the clock: they get what nobody else wants of the processors
# (SCHED_IDLE), so that tests that have bounds of time do not notice. Where no test runs, they go as all others, if that may be.
builder=
builds_begin() {
	setsid sh tests/build.sh "$@" &
	builder=$!
}

# builds_go --idle | --other
builds_go() {
	cat /proc/[0-9]*/stat 2>/dev/null | awk -v group="$builder" '{ pid = $1; sub(/.*\) /, ""); if ($3 == group) print pid }' |
		xargs -r -n 1 chrt "$1" --pid 0 >/dev/null 2>&1
}

# built NAME: waits for that build; false if it failed.
built() {
	note "build $1"
	[ -e "$logs/$1.built" ] || builds_go --other
	while ! [ -e "$logs/$1.built" ] && kill -0 "$builder" 2>/dev/null; do sleep 0.2; done
	builds_go --idle
	[ "$(cat "$logs/$1.built" 2>/dev/null)" = 0 ] && return
	failed=$((failed + 1))
	note "FAIL  build of $1"
	tail -n 60 "$logs/$1.build.log"
	false
}

# said_of_failed LOG: what the failed tests of a run of ctest printed, as far as 150 lines each.
said_of_failed() {
	awk '/^ *[0-9]+\/[0-9]+ Test +#/ { failed = /\*\*\*|SEGFAULT/ && !/Skipped/; lines = 0 }
		/^ +Start +[0-9]+: / || /^[0-9.]+% tests passed/ { next }
		failed && lines++ < 150' "$1"
}

# suite NAME: runs ctest in build/NAME when it is built; counts each ctest entry.
suite() {
	suite=$1
	built "$suite" || return
	if [ "$long" = yes ]; then exclude='^$'; else exclude=long; fi
	note "test  $suite"
	jobs=$at_once
	[ "$suite" != asan ] || jobs=$at_once_asan
	[ "$suite" != default ] || beside_begin
	ctest --test-dir "build/$suite" -j "$jobs" -LE "$exclude|beside" --output-on-failure --no-tests=error \
		--output-junit "$logs/$suite.xml" >"$logs/$suite.test.log" 2>&1
	ok=$(grep -c 'Passed' "$logs/$suite.test.log")
	skip=$(grep -c '\*\*\*Skipped' "$logs/$suite.test.log")
	total=$(sed -n 's/^.*tests failed out of \([0-9]*\)$/\1/p' "$logs/$suite.test.log")
	bad=$((${total:-0} - ok - skip))
	# No total means ctest itself did not finish.
	if [ -z "$total" ]; then bad=1; fi
	passed=$((passed + ok)) skipped=$((skipped + skip)) failed=$((failed + bad))
	note "      $suite: $ok passed, $bad failed, $skip skipped"
	if [ "$bad" -ne 0 ]; then
		tail -n 20 "$logs/$suite.test.log"
		said_of_failed "$logs/$suite.test.log"
	fi
	grep -A2 'Skipped' "$logs/$suite.test.log" | sed 's/^/      /' | head -n 20
}

# What takes minutes but little of the machine runs beside the later stages: tests labelled `beside`, of the plain build. Those have
# no bounds of time, and so give way to those that have.
beside_begin() {
	nice -n 5 ctest --test-dir build/default -L beside --output-on-failure --no-tests=error >"$logs/beside.log" 2>&1 &
	beside=$!
}

beside=
ended() {
	[ -z "$builder" ] || kill -- "-$builder" 2>/dev/null
	[ -z "${held-}" ] || rm -rf "$held"
}
trap ended EXIT
trap 'exit 1' INT TERM

# What killed runs have left.
for folder in /dev/shm /tmp; do
	sh tests/sweep.sh "$folder"
done
# Files in memory, where a sync costs nothing, but for the tests of disks (`DISK`, ON_DISK in the lists), which unset TMPDIR and so
# are in /tmp: what a disk that does some hundred writes a second would take an hour for. A TMPDIR that is given is kept to by the others.
if [ -z "${TMPDIR:-}" ] && [ "$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }')" -gt $((4 << 20)) ] 2>/dev/null; then
	TMPDIR=$(mktemp -d /dev/shm/terrace-held-XXXXXX) && export TMPDIR && held=$TMPDIR
	exec 9<"$TMPDIR" # held until this and all tests are gone
	flock --shared 9
fi
# How quick the disk is, for whom a test fails on a slow one.
disk=$(mktemp /tmp/terrace-disk.XXXXXX)
began=$(date +%s%N)
dd if=/dev/zero of="$disk" bs=4k count=50 oflag=dsync 2>/dev/null
rm -f "$disk"
note "a write and sync of 4 KiB to /tmp takes $((($(date +%s%N) - began) / 50000)) us; other files in ${TMPDIR:-/tmp}"

export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS="ignore_noninstrumented_modules=1 second_deadlock_stack=1"

one rules sh tests/rules.sh
builds_begin default asan tsan fuzz
suite default
one layers python3 tests/layers.py objects build/default
suite asan
suite tsan
if built fuzz; then
	if [ "$long" = yes ]; then seconds=120; else seconds=3; fi
	note "fuzz"
	sh tests/fuzz/run.sh "$seconds" "$logs" >"$logs/fuzz.log" 2>&1
	code=$?
	ok=$(grep -c '^ok ' "$logs/fuzz.log") bad=$(grep -c '^FAIL ' "$logs/fuzz.log")
	[ "$code" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
	passed=$((passed + ok)) failed=$((failed + bad))
	note "      fuzz: $ok passed, $bad failed"
	[ "$bad" -eq 0 ] || tail -n 60 "$logs/fuzz.log"
fi

if [ -n "$beside" ]; then
	note "beside"
	wait "$beside"
	code=$?
	ok=$(grep -c 'Passed' "$logs/beside.log") bad=$(grep -c '\*\*\*' "$logs/beside.log")
	[ "$code" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
	passed=$((passed + ok)) failed=$((failed + bad))
	note "      beside: $ok passed, $bad failed"
	[ "$bad" -eq 0 ] || tail -n 60 "$logs/beside.log"
fi
wait "$builder"
builder=
note "done"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
