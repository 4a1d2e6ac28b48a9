#!/bin/sh
# etcd 3.4.23 (Debian 12): a comparison of the *value* of a key that is not there is false both ways, EQUAL and
# NOT_EQUAL. A transaction "put, unless the key has this value already" therefore does nothing where the key is missing;
# the same condition on a version or revision, which are 0 then, holds.
# One would guess that NOT_EQUAL holds for a missing key, as nothing is not "x".
# Seen: `compare value of missing = x: FAILURE`, `compare value of missing != x: FAILURE`, `compare version of
# missing = 0: SUCCESS`, and `!=` of a key with another value: SUCCESS. A program that registers by such a
# transaction has to compare a revision. Exits 0 if all that is so, 1 if it has changed, 2 if the packages cannot be had.
set -u
version=3.4.23-4+b4
folder=$(mktemp -d)
etcd=
trap '[ -z "$etcd" ] || kill "$etcd"; rm -rf "$folder"' EXIT
cd "$folder" || exit 2
apt-get -qq download "etcd-server=$version" "etcd-client=$version" 2>"$folder/apt.log" || { cat "$folder/apt.log"; exit 2; }
for package in ./*.deb; do dpkg-deb -x "$package" . || exit 2; done
PATH=$folder/usr/bin:$PATH
export ETCDCTL_API=3
port=$((20000 + $$ % 20000))
etcd --data-dir data --listen-client-urls "http://127.0.0.1:$port" --advertise-client-urls "http://127.0.0.1:$port" \
	--listen-peer-urls "http://127.0.0.1:$((port + 1))" >etcd.log 2>&1 &
etcd=$!
ctl() { etcdctl --endpoints "127.0.0.1:$port" "$@"; }
for _ in $(seq 100); do ctl endpoint health >/dev/null 2>&1 && break; sleep 0.1; done
etcd --version | head -n 1

# compare TEXT: SUCCESS or FAILURE of a transaction with that one comparison
compare() {
	printf '%s\n\nget a\n\nget a\n\n' "$1" | ctl txn | head -n 1
}

failed=0
expect() {
	got=$(compare "$2")
	echo "compare $1: $got"
	[ "$got" = "$3" ] || failed=1
}
ctl put there y >/dev/null
expect "value of missing = x" 'value("missing") = "x"' FAILURE
expect "value of missing != x" 'value("missing") != "x"' FAILURE
expect "value of there (y) != x" 'value("there") != "x"' SUCCESS
expect "version of missing = 0" 'version("missing") = "0"' SUCCESS
exit $failed
