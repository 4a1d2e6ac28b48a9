#!/bin/sh
# Daemons of one cluster in network namespaces, with a real etcd: `sh tests/peers/run.sh [TEST]...` of the directory, as
# Peers.test_located; with --fetch first, of the blocks that come from other members; with --spill first, of
# those that go there before memory drops them; with --upgrade first, of members of other
# versions; with --storm first, of members that are killed, stopped and cut off;
# with --trace [--long], of what four daemons hit on a public trace. The daemons are those of BUILD (build/default).
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${BUILD:-$root/build/default}
case ${1-} in
--fetch | --spill | --upgrade | --storm)
	part=${1#--}
	shift
	exec /usr/bin/python3 "$root/tests/peers/test_$part.py" "$build/daemon/terraced" "$build/client/ctl/terracectl" "$build/client/libterrace.so" "$@"
	;;
--trace)
	shift
	exec /usr/bin/python3 "$root/tests/peers/test_trace.py" "$build/daemon/terraced" "$build/client/ctl/terracectl" "$build/tests/trace_nodes" "$@"
	;;
esac
exec /usr/bin/python3 "$root/tests/peers/test_peers.py" "$build/daemon/terraced" "$build/client/ctl/terracectl" "$@"
