#!/bin/sh
# tests/sweep.sh: what a process that was killed has left goes; what one that lives has stays, and so does what is not a test's.
set -u
here=$(dirname "$0")
base=$(mktemp -d "${TMPDIR:-/tmp}/terrace-sweep.XXXXXX") || exit 1
owners=
trap 'kill -9 $owners 2>/dev/null; rm -rf "$base"' EXIT

fail() {
	echo "$*"
	ls -l "$base"
	exit 1
}

# own NAME: a process that holds the folder, as tests do, until it is killed.
own() {
	mkdir "$base/$1"
	echo bytes >"$base/$1/file"
	(
		exec 9<"$base/$1"
		flock --shared 9
		touch "$base/$1/held"
		exec sleep 600
	) &
	owners="$owners $!"
	tries=0
	until [ -e "$base/$1/held" ]; do
		tries=$((tries + 1))
		[ "$tries" -lt 600 ] || fail "$1 is not held"
		sleep 0.1
	done
}

own terrace-held-living
own terrace-held-dead
mkdir "$base/terrace-held-new" "$base/somebody-elses"
dead=${owners##* }
kill -9 "$dead"
wait "$dead" 2>/dev/null
sh "$here/sweep.sh" "$base"
[ -e "$base/terrace-held-dead" ] || fail "one that was made just now is gone"
sleep 1
sh "$here/sweep.sh" "$base" 0
[ -e "$base/terrace-held-living/file" ] || fail "a living one's is gone"
[ -e "$base/somebody-elses" ] || fail "somebody else's is gone"
[ ! -e "$base/terrace-held-dead" ] || fail "a dead one's is there"
[ ! -e "$base/terrace-held-new" ] || fail "one that nobody holds is there"
