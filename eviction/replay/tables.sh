#!/bin/sh
# The tables of eviction/README.md: `sh eviction/replay/tables.sh TERRACE-REPLAY TRACES OUT`, where TRACES holds the two traces of
# tests/data/traces. Prints them, and leaves CSV and SVG in OUT.
set -eu
replay=$1 traces=$2 out=$3
conversation=$traces/mooncake_conversation.jsonl.xz coding=$traces/claude_code_a.txt.xz
growth=30600 # of Llama 3 8B; policies are not told
mkdir -p "$out"

echo "## conversation"
"$replay" --trace "$conversation" --size 0.01,0.05,0.1,0.25,0.5 --recompute-growth $growth:0 \
	--csv "$out/replay_conversation.csv" --svg "$out/replay_conversation.svg"
echo "## conversation, told of 80 % of ended sessions and of 5 % that go on"
"$replay" --trace "$conversation" --size 0.01,0.05,0.1,0.25,0.5 --policy lru,graph,opt --hint end:0.8:0.05 --recompute-growth $growth:0 \
	--csv "$out/replay_conversation_hint.csv"
echo "## coding"
"$replay" --trace "$coding" --size 0.005,0.01,0.02,0.05 --recompute-growth $growth:0 --csv "$out/replay_coding.csv" --svg "$out/replay_coding.svg"
echo "## policies that are told of cost: conversation, coding"
"$replay" --trace "$conversation" --size 0.01,0.05,0.1,0.25,0.5 --policy gdsf,graph --recompute-growth $growth --csv "$out/replay_cost_conversation.csv"
"$replay" --trace "$coding" --size 0.005,0.01,0.02,0.05 --policy gdsf,graph --recompute-growth $growth --csv "$out/replay_cost_coding.csv"
echo "## against models fitted offline: conversation, with the hint, coding"
"$replay" --trace "$conversation" --offline --recompute-growth $growth:0 --csv "$out/replay_offline_conversation.csv"
"$replay" --trace "$conversation" --offline --hint end:0.8:0.05 --recompute-growth $growth:0 --csv "$out/replay_offline_conversation_hint.csv"
"$replay" --trace "$coding" --offline --size 0.005,0.01 --recompute-growth $growth:0 --csv "$out/replay_offline_coding.csv"
echo "## in time, conversation and coding"
"$replay" --trace "$conversation" --size 0.01,0.05,0.1 --policy lru,arc,graph,opt --folds 5
"$replay" --trace "$coding" --size 0.005,0.01,0.02,0.05 --policy lru,arc,graph,opt --folds 5
nodes() { # ARGUMENT...: adds the rows to one file
	"$replay" --trace "$conversation" --nodes 4 --policy lru,s3fifo,sieve,graph,opt --recompute-growth $growth:0 \
		--csv "$out/nodes.csv" "$@"
	[ -s "$nodes" ] || head -n 1 "$out/nodes.csv" >"$nodes"
	tail -n +2 "$out/nodes.csv" >>"$nodes"
	rm "$out/nodes.csv"
}
nodes=$out/replay_nodes_conversation.csv
rm -f "$nodes"
echo "## four nodes with blocks of 16 tokens: a block of the trace has 32, so peers are told of each; then blocks of 512"
nodes --told 1 --size 0.01,0.05,0.1,0.2,0.5
nodes --told 16 --size 0.05,0.2
echo "## the same with uneven load, with equal memory and with memory by each node's own blocks"
nodes --told 1 --load 4:2:1:1 --size 0.05,0.2,0.5
nodes --told 1 --load 4:2:1:1 --room own --size 0.05
nodes --told 1 --room own --size 0.05
echo "## the same by a router that knows no sessions; and if sending a block were no use"
nodes --told 1 --spread request --size 0.05,0.2
nodes --told 1 --sent none --size 0.05,0.2
nodes --told 1 --sent none --spread request --size 0.05,0.2
