#!/bin/sh
# The tables of eviction/README.md: `sh eviction/replay/tables.sh TERRACE-REPLAY TRACES OUT`, where TRACES holds the two traces of
# tests/data/traces. Prints them, and leaves CSV and SVG in OUT.
set -eu
replay=$1 traces=$2 out=$3
conversation=$traces/mooncake_conversation.jsonl.xz coding=$traces/claude_code_a.txt.xz
mkdir -p "$out"

echo "## conversation"
"$replay" --trace "$conversation" --size 0.01,0.05,0.1,0.25,0.5 \
	--csv "$out/replay_conversation.csv" --svg "$out/replay_conversation.svg"
echo "## conversation, told of 80 % of ended sessions and of 5 % that go on"
"$replay" --trace "$conversation" --size 0.01,0.05,0.1,0.25,0.5 --policy lru,graph,opt --hint end:0.8:0.05 \
	--csv "$out/replay_conversation_hint.csv"
echo "## coding"
"$replay" --trace "$coding" --size 0.005,0.01,0.02,0.05 --csv "$out/replay_coding.csv" --svg "$out/replay_coding.svg"
for fold in 0:0.2 0.2:0.4 0.4:0.6 0.6:0.8 0.8:1; do
	echo "## requests $fold, conversation and coding"
	"$replay" --trace "$conversation" --size 0.01,0.05,0.1 --policy lru,arc,graph,opt --count $fold
	"$replay" --trace "$coding" --size 0.005,0.01,0.02,0.05 --policy lru,arc,graph,opt --count $fold
done
