#!/bin/sh
# etcd 3.4.23 (Debian 12): a lease whose owner is dead begins anew when etcd restarts. A lease of 10 s that no client
# renews, with 3 s left when etcd is killed and started again with its data, has 10 s again, so that its keys live
# on: for as long as restarts come sooner than the lease's time, for ever. (Checkpoints of leases are experimental
# in 3.4, and off.)
# Guess before the run: the time goes on, so 3 s or less are left after the restart, or the full time, since only the
# granted TTL is stored.
# Seen: `left before: 2 or 3`, `left after: 9 or 10`, and the key is there 5 s later. A daemon that died before a
# restart of etcd therefore stays a member for up to one more lease. Exits 0 if that is so, 1 if it has changed, 2 if
# the packages cannot be had.
set -u
version=3.4.23-4+b4
folder=$(mktemp -d)
etcd=
trap '[ -z "$etcd" ] || kill -9 "$etcd"; rm -rf "$folder"' EXIT
cd "$folder" || exit 2
apt-get -qq download "etcd-server=$version" "etcd-client=$version" 2>"$folder/apt.log" || { cat "$folder/apt.log"; exit 2; }
for package in ./*.deb; do dpkg-deb -x "$package" . || exit 2; done
PATH=$folder/usr/bin:$PATH
export ETCDCTL_API=3
port=$((20000 + $$ % 20000))
ctl() { etcdctl --endpoints "127.0.0.1:$port" "$@"; }
start() {
	etcd --data-dir data --listen-client-urls "http://127.0.0.1:$port" --advertise-client-urls "http://127.0.0.1:$port" \
		--listen-peer-urls "http://127.0.0.1:$((port + 1))" >>etcd.log 2>&1 &
	etcd=$!
	for _ in $(seq 200); do ctl endpoint health >/dev/null 2>&1 && return; sleep 0.1; done
	exit 2
}
left() { ctl lease timetolive "$lease" | sed -n 's/.*remaining(\(-*[0-9]*\)s).*/\1/p'; }

start
etcd --version | head -n 1
lease=$(ctl lease grant 10 | awk '{ print $2 }')
ctl put --lease="$lease" member here >/dev/null
while [ "$(left)" -gt 3 ]; do sleep 0.2; done
before=$(left)
kill -9 "$etcd"
wait "$etcd" 2>/dev/null
start
after=$(left)
sleep 5
key=$(ctl get member --print-value-only)
echo "left before: $before s; left after: $after s; the key 5 s later: ${key:-gone}"
[ "$before" -le 3 ] && [ "${after:-0}" -ge 8 ] && [ "$key" = here ]
