#!/bin/sh
# record.sh NAME [TERRACE_BENCH [ARGUMENT]...]: runs `terrace-bench all --json` and keeps what it printed, under a line that says where, in
# results/NAME.jsonl.
set -eu
folder=$(dirname "$0")/results
name=${1:?usage: record.sh NAME [TERRACE_BENCH [ARGUMENT]...]}
shift
program=${1:-$(dirname "$0")/../../build/default/tests/terrace-bench}
[ $# -eq 0 ] || shift
processor=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)
memory=$(awk '/^MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)
huge=$(awk '/^HugePages_Total/ { print $2 }' /proc/meminfo)
out=$(mktemp)
trap 'rm -f "$out"' EXIT
printf '{"machine":"%s, %s cores, %s, Linux %s, %s huge pages","command":"%s"}\n' \
	"$processor" "$(nproc)" "$memory" "$(uname -r)" "$huge" "terrace-bench all --json${*:+ $*}" >"$out"
"$program" all --json "$@" >>"$out"
mkdir -p "$folder"
cat "$out" >"$folder/$name.jsonl"
