#!/bin/sh
# Terrace on a machine with nothing but a CPU, in one command: installs what is missing, builds, starts the daemon in a data folder of
# its own, lets a small language model serve a second prompt out of the packed KV blocks that the first one left, and stops.
# Leaves the build in build/default, which `cmake --install build/default` installs from, and nothing else.
# `sh deploy/quickstart.sh [--keep]`: --keep leaves the daemon running.
set -eu
cd "$(dirname "$0")/.."

keep=no
case "$# ${1-}" in
'0 ') ;;
'1 --keep') keep=yes ;;
*) echo "usage: sh deploy/quickstart.sh [--keep]" >&2; exit 2 ;;
esac

sh deploy/packages.sh build
sh deploy/build.sh tinylm
bin=build/default

work=$(mktemp -d "${TMPDIR:-/tmp}/terrace.XXXXXX")
address=unix:$work/terraced.sock
daemon=""
stop() {
	if [ -n "$daemon" ] && kill -TERM "$daemon" 2>/dev/null; then
		wait "$daemon" && echo "terraced stopped cleanly."
	fi
	daemon=""
	rm -rf "$work"
}
trap 'stop; exit 1' INT TERM HUP
trap stop EXIT

"$bin/daemon/terraced" --data-dir "$work/data" --socket "$work/terraced.sock" >"$work/terraced.log" 2>&1 &
daemon=$!
tries=0
until "$bin/client/ctl/terracectl" --address "$address" --timeout 2 status >"$work/status" 2>&1; do
	tries=$((tries + 1))
	if [ "$tries" -ge 100 ] || ! kill -0 "$daemon" 2>/dev/null; then
		cat "$work/terraced.log" "$work/status" >&2
		echo "terraced did not start." >&2
		exit 1
	fi
	sleep 0.1
done
cat "$work/status"

echo
if ! "$bin/client/examples/tinylm/tinylm" --model tests/data/tinylm-8m --demo --daemon "$address"; then
	tail -n 20 "$work/terraced.log" >&2
	echo "The demo did not end as it should." >&2
	exit 1
fi

echo
echo "What the daemon holds now (terracectl stat):"
"$bin/client/ctl/terracectl" --address "$address" stat terrace_blocks 'terrace_*bytes{*' terrace_stored 'terrace_evictions_total{*reason=full}' \
	terrace_lookup_hits terrace_leased_blocks

if [ "$keep" = yes ]; then
	trap - EXIT
	echo
	echo "terraced still runs: pid $daemon, address $address, data and log in $work."
	exit 0
fi
echo
