#!/bin/sh
# mooncake-transfer-engine-non-cuda 0.3.13.post1 (PyPI), its store over TCP: put() of a key that is there returns 0, the
# sign of success, and keeps the first value. remove() is refused (-706) for some seconds after a client has looked at
# the key: get_size() and is_exist() count as get() does. remove_all() passes over such keys without an error. upsert()
# replaces the value at once, and remove(key, True) removes.
# Guess before the run: the second put() overwrites, and remove() works straight after a get().
# Seen:
#     put first: 0; put second: 0; get: first
#     put, remove: 0 0, there: 0
#     put, is_exist, remove: 0 1 -706, there: 1
#     put, get_size, remove: 0 5 -706, there: 1
#     put, is_exist, remove_all: 0 1 0, there: 1
#     put, is_exist, remove by force: 0 1 0, there: 0
#     put, is_exist, upsert second: 0 1 0; get: second
# An adapter of this store that writes a block anew by put() keeps the old bytes and is told nothing. Exits 0 if that is
# so, 1 if it has changed, 2 if the packages cannot be had.
set -u
folder=$(mktemp -d)
master=
trap '[ -z "$master" ] || kill "$master"; rm -rf "$folder"' EXIT
cd "$folder" || exit 2
apt-get -qq download libibverbs1 libnl-3-200 libnl-route-3-200 libnuma1 libcurl4 libnghttp2-14 libpsl5 librtmp1 \
	libssh2-1 libldap-2.5-0 libsasl2-2 libbrotli1 2>apt.log || { cat apt.log; exit 2; }
for package in ./*.deb; do dpkg-deb -x "$package" . || exit 2; done
python3 -m venv venv && venv/bin/pip -q install --no-deps mooncake-transfer-engine-non-cuda==0.3.13.post1 || exit 2
mooncake=$(echo venv/lib/python3*/site-packages/mooncake)
libraries=$(echo "$folder"/usr/lib/*-linux-gnu)
export LD_LIBRARY_PATH="$libraries"
ldd "$mooncake/store.so" | grep 'not found' && exit 2
port=$((20000 + $$ % 20000))
"$mooncake/mooncake_master" -rpc_address=127.0.0.1 -rpc_port=$port -metrics_host=127.0.0.1 -metrics_port=$((port + 1)) \
	>master.log 2>&1 &
master=$!
venv/bin/python - $port 2>client.log <<'END'
import os
import socket
import sys
import time

from mooncake.store import MooncakeDistributedStore

for _ in range(300):
    try:
        socket.create_connection(("127.0.0.1", int(sys.argv[1]))).close()
        break
    except OSError:
        time.sleep(0.1)
store = MooncakeDistributedStore()
if store.setup("127.0.0.1", "P2PHANDSHAKE", 16 << 20, 16 << 20, "tcp", "", "127.0.0.1:" + sys.argv[1]) != 0:
    sys.exit(2)
seen = [(store.put("a", b"first"), store.put("a", b"second"), store.get("a"))]
print("put first: %d; put second: %d; get: %s" % (seen[-1][0], seen[-1][1], seen[-1][2].decode()))


def calls(name, *results):
    there = store.is_exist(name)
    seen.append(results + (there,))
    return "%s, there: %d" % (" ".join(map(str, results)), there)


print("put, remove:", calls("b", store.put("b", b"first"), store.remove("b")))
print("put, is_exist, remove:", calls("c", store.put("c", b"first"), store.is_exist("c"), store.remove("c")))
print("put, get_size, remove:", calls("d", store.put("d", b"first"), store.get_size("d"), store.remove("d")))
print("put, is_exist, remove_all:", calls("e", store.put("e", b"first"), store.is_exist("e"), store.remove_all()))
print("put, is_exist, remove by force:", calls("g", store.put("g", b"first"), store.is_exist("g"), store.remove("g", True)))
seen.append((store.put("f", b"first"), store.is_exist("f"), store.upsert("f", b"second"), store.get("f")))
print("put, is_exist, upsert second: %d %d %d; get: %s" % (seen[-1][:3] + (seen[-1][3].decode(),)))
sys.stdout.flush()
expected = [(0, 0, b"first"), (0, 0, 0), (0, 1, -706, 1), (0, 5, -706, 1), (0, 1, 0, 1), (0, 1, 0, 0),
            (0, 1, 0, b"second")]
os._exit(0 if seen == expected else 1)  # no wait for the store's threads
END
