/* See attend_plans.h. */
#include "tests/gpu/attend_plans.h"

#include <algorithm>
#include <map>
#include <string>

#include "kernels/cuda/plan.cuh"
#include "tests/gpu/gpu.h"

namespace
{

struct planned_batch {
	struct kv_layout layout;
	uint32_t queries, group, window, split;
	std::vector<uint32_t> tokens;
	std::vector<int32_t> ranges; /* one a sequence, or none at all */
};

/* Of a sequence: of each of its rows the atoms at which parts begin, and the last one's end. */
typedef std::vector<std::vector<uint32_t>> row_cuts;

/* The segments of a plan as they are in the workspace. */
struct segments {
	struct attend_plan plan;
	std::vector<segment> all;
};

struct segments plan_of(const planned_batch &b)
{
	struct kv_geometry geometry;
	struct kv_cuda_attend a = {};
	struct segments s;

	kv_geometry_of(&b.layout, &geometry);
	const device_array<uint32_t> tokens(b.tokens);
	const device_array<int32_t> ranges(b.ranges.empty() ? std::vector<int32_t>(2) : b.ranges);

	a.layout = &b.layout;
	a.geometry = &geometry;
	a.sequences = (uint32_t)b.tokens.size();
	a.queries = b.queries;
	a.q_heads = b.layout.heads * b.group;
	a.blocks_stride = *std::max_element(b.tokens.begin(), b.tokens.end()) / b.layout.block_tokens + 1;
	a.kv_tokens = tokens.data;
	a.features.window = b.window;
	a.features.ranges = b.ranges.empty() ? nullptr : ranges.data;
	a.features.ranges_max = !b.ranges.empty();
	a.split_tokens = b.split;
	device_array<uint8_t> workspace(workspace_of(kv_cuda_attend_workspace, a));

	a.workspace = workspace.data;
	a.workspace_bytes = workspace.count;
	if (attend_plan_of(&a, &s.plan) != STATUS_OK || kv_cuda_attend_plan(&a, nullptr) != STATUS_OK) {
		fprintf(stderr, "no plan\n");
		exit(1);
	}
	CUDA(cudaDeviceSynchronize());
	const std::vector<uint8_t> bytes = workspace.get();

	s.all.resize((s.plan.arrived_at - s.plan.segments_at) / sizeof(segment));
	memcpy(s.all.data(), &bytes[s.plan.segments_at], s.all.size() * sizeof(segment));
	return s;
}

/* The first atom that a row has to have. */
uint32_t first_atom(const planned_batch &b, uint32_t sequence)
{
	const int32_t n = (int32_t)b.tokens[sequence], query = n - (int32_t)b.queries;
	int32_t first = query - (int32_t)b.window + 1;

	if (b.window == 0)
		return 0;
	if (!b.ranges.empty() && b.ranges[2 * sequence + 1] >= query && b.ranges[2 * sequence] < n)
		first = std::min(first, b.ranges[2 * sequence]);
	const uint32_t atom = (uint32_t)std::max(first, 0) / KV_ATOM_TOKENS;

	return b.layout.block_tokens / KV_ATOM_TOKENS % 2 ? atom : atom / 2 * 2;
}

/* Where a row is whole: its parts as they were met, by their numbers. */
typedef std::map<uint32_t, segment> row_parts;

/* Walks the CTAs' lists. What is wrong with them, or nothing; rows[i]: the parts of row i. */
std::string gather(const struct segments &s, uint32_t heads, std::vector<row_parts> *rows)
{
	std::vector<bool> slots(s.plan.parts_max ? s.plan.rows * s.plan.parts_max : 2 * s.plan.ctas);

	for (uint32_t cta = 0; cta < s.plan.ctas; cta++) {
		size_t walked = 0;

		for (uint32_t i = cta; i != NO_SEGMENT; i = s.all[i].next) {
			if (i >= s.all.size() || walked++ > s.all.size())
				return "a CTA's list does not end";
			const segment &g = s.all[i];

			if (g.parts == 0)
				break;
			const uint32_t row = (g.sequence * heads + g.head) * s.plan.tiles + g.tile,
				       slot = s.plan.parts_max ? row * s.plan.parts_max + g.part : 2 * cta + (g.part == 0);

			if (g.part >= g.parts || row >= rows->size() || !(*rows)[row].emplace(g.part, g).second)
				return "a part that is none, or twice";
			if (s.plan.parts_max == 0 && g.part > 0 && i != cta)
				return "a row's later part is not its CTA's first segment";
			if (g.parts > 1 && (slot >= slots.size() || slots[slot]))
				return "two parts in one slot";
			if (g.parts > 1)
				slots[slot] = true;
		}
	}
	return "";
}

/* What is wrong with a row's parts; *cuts: where they begin and end. */
std::string look_at_row(const planned_batch &b, uint32_t sequence, const row_parts &parts, std::vector<uint32_t> *cuts)
{
	const uint32_t end = (b.tokens[sequence] + KV_ATOM_TOKENS - 1) / KV_ATOM_TOKENS,
		       split = b.split / KV_ATOM_TOKENS;
	uint32_t at = first_atom(b, sequence);

	if (parts.empty() || parts.size() != parts.begin()->second.parts)
		return "parts are missing";
	for (const auto &p : parts) {
		const segment &g = p.second;

		if (g.first_atom != at || g.tokens != b.tokens[sequence] || g.parts != parts.size())
			return "a part does not begin where the one before it ends";
		at += g.atoms;
		if (g.atoms % 2 && at != end)
			return "an odd number of atoms before the sequence's end";
		if (split && at != end && at % split && (at + 1) % split)
			return "an end that is no multiple of split_tokens, nor 16 tokens before one";
		cuts->push_back(g.first_atom);
	}
	cuts->push_back(at);
	return at == end ? "" : "the last part does not end where the sequence does";
}

/* What is wrong with the plan of a batch; *cuts: of each of its sequences. */
std::string look_at_plan(const planned_batch &b, std::vector<row_cuts> *cuts)
{
	const struct segments s = plan_of(b);
	std::vector<row_parts> rows(s.plan.rows);
	std::string wrong = gather(s, b.layout.heads, &rows);
	const uint32_t rows_each = b.layout.heads * s.plan.tiles;

	cuts->assign(b.tokens.size(), row_cuts(rows_each));
	for (uint32_t row = 0; row < s.plan.rows && wrong.empty(); row++)
		wrong = look_at_row(b, row / rows_each, rows[row], &(*cuts)[row / rows_each][row % rows_each]);
	return wrong;
}

/* Batches of a few long sequences, of many, of equal ones; with and without a window. */
planned_batch random_batch(random_source &r)
{
	const enum kv_format formats[] = {KV_TQ4, KV_INT4_PTH, KV_FP8};
	const uint32_t blocks[] = {16, 32, 48, 80, 128}, groups[] = {1, 4, 8, 16}, splits[] = {0, 512, 544, 1024},
		       most[] = {40, 1200, 5000}, kind = (uint32_t)(r.next() % 3);
	planned_batch b = {layout_of(formats[r.next() % 3], 128, 1, 1 + (uint32_t)(r.next() % 4), blocks[r.next() % 5]),
			   1 + (uint32_t)(r.next() % 4), groups[r.next() % 4], 0, splits[r.next() % 4], {}, {}};
	const uint32_t sequences = 1 + (uint32_t)(r.next() % (kind == 0 ? 4 : 40)), limit = most[r.next() % 3];
	const bool ranges = r.next() % 4 == 0;

	if (r.next() % 4)
		b.window = 1 + (uint32_t)(r.next() % 1500);
	for (uint32_t i = 0; i < sequences; i++) {
		const uint32_t n = kind == 1 && i > 0 ? b.tokens[0] : (uint32_t)(r.next() % (limit + 1));

		b.tokens.push_back(n);
		if (ranges)
			b.ranges.insert(b.ranges.end(), {(int32_t)(n / 2), r.next() % 2 ? (int32_t)n : (int32_t)(n / 2 + n / 4)});
	}
	return b;
}

planned_batch turned(const planned_batch &b)
{
	planned_batch t = b;

	std::reverse(t.tokens.begin(), t.tokens.end());
	for (size_t i = 0; i < t.ranges.size(); i += 2) {
		t.ranges[i] = b.ranges[b.ranges.size() - 2 - i];
		t.ranges[i + 1] = b.ranges[b.ranges.size() - 1 - i];
	}
	t.tokens.push_back(3000); /* and one more */
	if (!t.ranges.empty())
		t.ranges.insert(t.ranges.end(), {1, 0});
	return t;
}

} // namespace

bool run_plans(uint32_t count)
{
	random_source r(count);
	uint32_t bad = 0, fixed = 0;

	for (uint32_t i = 0; i < count; i++) {
		const planned_batch b = random_batch(r);
		std::vector<row_cuts> cuts, others;
		std::string wrong = look_at_plan(b, &cuts);

		if (b.split && wrong.empty()) {
			fixed++;
			wrong = look_at_plan(turned(b), &others);
			for (size_t s = 0; s < cuts.size() && wrong.empty(); s++)
				if (cuts[s] != others[cuts.size() - 1 - s])
					wrong = "a sequence is cut otherwise in another batch";
		}
		if (wrong.empty())
			continue;
		bad++;
		printf("BAD  plan %u, %zu sequences of %u.. tokens, blocks of %u, queries %u, window %u, split_tokens %u: %s\n", i,
		       b.tokens.size(), b.tokens[0], b.layout.block_tokens, b.queries, b.window, b.split, wrong.c_str());
	}
	printf("%-4s %u plans, %u of them with split_tokens: %u bad\n", bad ? "BAD" : "ok", count, fixed, bad);
	fflush(stdout);
	return bad == 0;
}
