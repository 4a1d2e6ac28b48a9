#!/bin/sh
# Daemons over real verbs: soft-RoCE in a QEMU guest (vm.sh). They are those of BUILD (build/default).
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${BUILD:-$root/build/default}
cd "$root"
exec bash "$root/tests/rdma/vm.sh" -t "${LIMIT:-900}" -- /usr/bin/python3 "$root/tests/rdma/test_devices.py" "$build/daemon/terraced" "$build/client/ctl/terracectl" "$@"
