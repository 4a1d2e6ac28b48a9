#!/bin/sh
# A cluster on one machine, in one command: three daemons on loopback addresses, one etcd, TLS with certificates of a throw-away CA. A prefix is stored on node 1
# and leased on node 2; node 1 is killed, and node 3 leases the prefix; node 1 comes back, and the prefix is deleted everywhere. A step that does not show what
# it should ends the script with exit code 1. At its end, also by Ctrl-C, the processes and their files are gone.
# `sh deploy/cluster/run.sh [--keep] [--dir FOLDER]`. --keep: the cluster runs on until Ctrl-C. FOLDER: a new or empty one for configurations, certificates and
# logs, which stay there; without it they are temporary.
# With BUILD in the environment the programs of that build folder are taken as they are, and nothing is built.
set -eu
here=$(pwd)
cd "$(dirname "$0")/../.."

keep=no
work=""
while [ $# -gt 0 ]; do
	case "$# $1" in
	*' --keep') keep=yes ;;
	1' --dir') echo "run.sh: --dir needs a folder" >&2; exit 2 ;;
	*' --dir')
		shift
		case $1 in
		/*) work=$1 ;;
		*) work=$here/$1 ;;
		esac
		;;
	*) echo "usage: sh deploy/cluster/run.sh [--keep] [--dir FOLDER]" >&2; exit 2 ;;
	esac
	shift
done
if [ -n "$work" ] && [ -n "$(ls -A "$work" 2>/dev/null)" ]; then
	echo "run.sh: $work is not empty: name a new folder" >&2
	exit 2
fi

if [ -n "${BUILD-}" ]; then
	sh deploy/packages.sh cluster
	bin=$BUILD
else
	sh deploy/packages.sh build cluster
	sh deploy/build.sh chain
	bin=$(pwd)/build/default
fi

# ---- processes and files, and their end

umask 077
stays=$work
if [ -n "$work" ]; then
	mkdir -p "$work"
else
	work=$(mktemp -d "${TMPDIR:-/tmp}/terrace.XXXXXX")
fi
etcd="" node1="" node2="" node3=""

stop() {
	trap '' INT TERM HUP
	for process in $node1 $node2 $node3 $etcd; do
		kill -TERM "$process" 2>/dev/null || true
	done
	wait
	if [ -z "$stays" ]; then
		rm -rf "$work"
	fi
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

fail() {
	echo "run.sh: $*" >&2
	for log in "$work"/*.log; do
		[ -e "$log" ] || continue
		echo "--- the end of $(basename "$log")" >&2
		tail -n 8 "$log" >&2
	done
	exit 1
}

step() {
	echo
	echo "$*"
}

start_node() {
	"$bin/daemon/terraced" --config "$work/node$1.conf" >>"$work/node$1.log" 2>&1 &
	eval "node$1=\$!"
}

# ctl NODE WORD...
ctl() {
	to=$1
	shift
	"$bin/client/ctl/terracectl" --address "unix:$work/node$to.sock" --timeout 20 "$@"
}

# chain NODE store|lease|delete
chain() {
	TERRACE_ADDRESS=unix:$work/node$1.sock "$bin/client/examples/chain/chain" "$2"
}

# The sum of a figure of a node: 0 if there is none yet.
figure() {
	ctl "$1" stat "$2" 2>/dev/null | awk -v name="$2" '$1 == name { sum += $NF } END { printf "%d", sum }'
}

# until_so SENTENCE COMMAND...: until the command succeeds. Its output is in $work/said then.
until_so() {
	what=$1
	tries=0
	shift
	until "$@" >"$work/said" 2>&1; do
		tries=$((tries + 1))
		if [ "$tries" -ge 300 ]; then
			cat "$work/said" >&2
			fail "not within a minute: $what"
		fi
		for process in $node1 $node2 $node3 $etcd; do
			kill -0 "$process" 2>/dev/null || fail "a process has ended that should run: $what"
		done
		sleep 0.2
	done
}

# members COUNT NODE...: whether each of these nodes has joined and knows so many members, itself among them.
members() {
	count=$1
	shift
	for n in "$@"; do
		ctl "$n" peers || return 1
		[ "$(figure "$n" terrace_peers)" = "$((count - 1))" ] || return 1
	done
}

# located NODE MEMBER: whether that node finds the prefix's end at that member.
located() {
	ctl "$1" locate --layout "$layout" --tokens "$work/tokens" || return 1
	awk -v member="$2" '$1 == 63 { for (i = 4; i <= NF; i++) found += $i == member } END { exit !found }' "$work/said"
}

# ---- certificates, secret, configurations

cat >"$work/openssl.cnf" <<END
[req]
distinguished_name = name
x509_extensions = ca
[name]
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
END

# certificate NAME HOST
certificate() {
	printf 'basicConstraints = CA:FALSE\nextendedKeyUsage = serverAuth, clientAuth\nsubjectAltName = IP:%s, DNS:%s\n' "$2" "$3" >"$work/$1.ext"
	openssl req -new -config "$work/openssl.cnf" -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$work/$1.key" -subj "/CN=$1" -out "$work/$1.csr" &&
		openssl x509 -req -in "$work/$1.csr" -CA "$work/ca.pem" -CAkey "$work/ca.key" -CAcreateserial -days 30 -extfile "$work/$1.ext" -out "$work/$1.pem" &&
		rm "$work/$1.csr" "$work/$1.ext"
}

{
	openssl req -x509 -config "$work/openssl.cnf" -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$work/ca.key" -subj "/CN=example CA" -days 30 \
		-out "$work/ca.pem" && certificate etcd 127.0.0.5 etcd.cluster
	for n in 1 2 3; do
		certificate "node$n" "127.0.0.$((n + 1))" node.cluster
	done
	openssl rand -hex 32 >"$work/secret"
} >"$work/openssl.log" 2>&1 || fail "openssl could not make the certificates"
rm "$work/openssl.log"
for n in 1 2 3; do
	sed "s|@NODE@|node$n|g; s|@HOST@|127.0.0.$((n + 1))|g; s|@DIR@|$work|g" deploy/cluster/terraced.conf.in >"$work/node$n.conf"
	"$bin/daemon/terraced" --config "$work/node$n.conf" --check-config >"$work/node$n.log" 2>&1 || fail "terraced does not take $work/node$n.conf"
done
seq 0 1023 >"$work/tokens"

# ---- the cluster

step "1. etcd starts at 127.0.0.5:2379, with TLS, and three daemons at 127.0.0.2, .3 and .4."
etcd --name etcd1 --data-dir "$work/etcd" --listen-client-urls https://127.0.0.5:2379 --advertise-client-urls https://127.0.0.5:2379 \
	--cert-file "$work/etcd.pem" --key-file "$work/etcd.key" --client-cert-auth --trusted-ca-file "$work/ca.pem" \
	--listen-peer-urls http://127.0.0.5:2380 --initial-advertise-peer-urls http://127.0.0.5:2380 --initial-cluster etcd1=http://127.0.0.5:2380 \
	>"$work/etcd.log" 2>&1 &
etcd=$!
for n in 1 2 3; do
	start_node "$n"
done
until_so "three members at each node" members 3 1 2 3
echo "   Each knows three members. terracectl peers at node 1:"
ctl 1 peers

step "2. An engine stores a prefix of 1,024 tokens on node 1."
chain 1 store || fail "the prefix was not stored"
layout=$(ctl 1 layouts | awk '$1 == "layout_id" { print $2; exit }')

step "3. The cluster's directory, in which every 16th block stands, tells node 2 that node 1 has it. terracectl locate there:"
until_so "node 2 finds the prefix at node 1" located 2 node1
cat "$work/said"
key=$(awk '$1 == 63 { print $2 }' "$work/said")

step "4. An engine leases the prefix on node 2, which copies the blocks from node 1, checks them, and keeps them."
chain 2 lease || fail "node 2 did not get the whole prefix"
bytes=$(figure 2 terrace_peer_fetched_bytes_total)
[ "$bytes" -gt 0 ] || fail "node 2 fetched nothing (terrace_peer_fetched_bytes_total)"
echo "   Node 2 has fetched $bytes bytes (terrace_peer_fetched_bytes_total). terracectl explain of the last block, at node 2:"
ctl 2 explain "$key" >"$work/said" || fail "node 2 does not have the last block"
sed -n '/ age_ms/q; p' "$work/said"
grep -q 'tier  *host' "$work/said" || fail "the last block is not in the memory of node 2"

step "5. Node 1 is killed with SIGKILL. An engine leases the prefix on node 3, which gets it from node 2."
until_so "node 3 finds the prefix at node 2" located 3 node2
killed=$node1
node1=""
kill -KILL "$killed"
wait "$killed" 2>/dev/null || true
until_so "node 3 gets the whole prefix" chain 3 lease
cat "$work/said"
until_so "the others drop node 1" members 2 2 3
echo "   After member_ttl the others have dropped node 1. terracectl peers at node 2:"
ctl 2 peers

step "6. Node 1 starts again, with empty memory, and an engine leases the prefix there."
start_node 1
until_so "three members again" members 3 1 2 3
until_so "node 1 gets the whole prefix" chain 1 lease
cat "$work/said"

step "7. An engine deletes the prefix on node 3. That is done when every member has confirmed it."
until_so "the delete is confirmed" chain 3 delete
cat "$work/said"
for n in 1 2 3; do
	code=0
	chain "$n" lease >"$work/said" 2>&1 || code=$?
	if [ "$code" != 3 ] || ! grep -q '^leased 0 of' "$work/said"; then
		fail "node $n has some of the deleted prefix still: $(cat "$work/said")"
	fi
done
echo "   No node has any of it."

echo
echo "All of it held."
cat <<END

To go on by hand$([ "$keep" = yes ] || echo ", run it with --keep"):

    terracectl --address unix:$work/node2.sock peers
    TERRACE_ADDRESS=unix:$work/node1.sock $bin/client/examples/chain/chain store
    terracectl --address unix:$work/node2.sock locate --layout $layout --tokens $work/tokens
    terracectl --address unix:$work/node2.sock stat 'terrace_peer*'
    curl http://127.0.0.2:9464/metrics
    prometheus --config.file=deploy/cluster/prometheus.yml

terracectl is $bin/client/ctl/terracectl.
END
if [ "$keep" = yes ] || [ -n "$stays" ]; then
	echo "Configurations, certificates and logs are in $work."
fi
if [ "$keep" = yes ]; then
	echo "The cluster runs until Ctrl-C."
	wait
fi
