#!/bin/sh
# Daemons of one cluster in network namespaces, with a real etcd: `sh tests/peers/run.sh [TEST]...` of the directory, as
# Peers.test_located, and `sh tests/peers/run.sh --fetch [TEST]...` of the blocks that come from other members. They are those of BUILD
# (build/default).
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${BUILD:-$root/build/default}
if [ "${1-}" = --fetch ]; then
	shift
	exec /usr/bin/python3 "$root/tests/peers/test_fetch.py" "$build/daemon/terraced" "$build/client/ctl/terracectl" "$build/client/libterrace.so" "$@"
fi
exec /usr/bin/python3 "$root/tests/peers/test_peers.py" "$build/daemon/terraced" "$build/client/ctl/terracectl" "$@"
