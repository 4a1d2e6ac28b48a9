/* How fast int4_pth gets from an engine's pages into blocks and back: pages as vLLM has them ([K | scale | V | scale] a
 * head and token), in any order, or with codes and scales in arrays of their own, of 8 heads of 128 dims. Shares are of
 * the best plain copy in the same run, in bytes read and written; at least .7 is the aim. */
#include "tests/gpu/bench.h"

enum { HEADS = 8, DIM = 128, PAGE_TOKENS = 16, VECTOR = DIM / 2 + 4 };

#define LEAST 0.7

/* Where a list's tokens are. */
struct repack_world {
	struct kv_layout layout;
	struct kv_geometry geometry;
	device_array<uint8_t> blocks, pages;
	device_array<int64_t> slots, page_slots;
	device_array<uint64_t> table;

	explicit repack_world(uint32_t tokens)
	    : layout(layout_of(KV_INT4_PTH, DIM, 1, HEADS, PAGE_TOKENS)), geometry(),
	      blocks((size_t)tokens * HEADS * 2 * VECTOR), pages(blocks.count), slots(tokens), page_slots(tokens),
	      table(tokens / PAGE_TOKENS)
	{
		std::vector<int64_t> s(tokens), p(tokens);
		std::vector<uint64_t> t(table.count);
		random_source r(3);

		kv_geometry_of(&layout, &geometry);
		for (uint32_t i = 0; i < t.size(); i++)
			t[i] = (uint64_t)(uintptr_t)blocks.data + i * geometry.block_bytes;
		std::vector<uint32_t> order(t.size());

		for (uint32_t i = 0; i < order.size(); i++)
			order[i] = i;
		for (size_t i = t.size(); i > 1; i--) {
			std::swap(t[i - 1], t[r.next() % i]);
			std::swap(order[i - 1], order[r.next() % i]);
		}
		for (uint32_t i = 0; i < tokens; i++) {
			s[i] = i;
			p[i] = (int64_t)order[i / PAGE_TOKENS] * PAGE_TOKENS + i % PAGE_TOKENS;
		}
		slots.set(s);
		page_slots.set(p);
		table.set(t);
	}
};

static struct kv_pages_side side_of(uint8_t *codes, uint8_t *scales, ptrdiff_t code_head, ptrdiff_t scale_head)
{
	return {codes,
		scales,
		code_head * HEADS * PAGE_TOKENS,
		code_head * HEADS,
		code_head,
		scale_head * HEADS * PAGE_TOKENS,
		scale_head * HEADS,
		scale_head};
}

static void run_way(const char *way, const char *shape, const struct kv_cuda_repack &c,
		    enum status (*run)(const struct kv_cuda_repack *, cudaStream_t), double ceiling,
		    cudaStream_t stream)
{
	const double moved = 2.0 * c.tokens * HEADS * 2 * VECTOR,
		     us = time_graph(stream,
				     [&] {
					     for (int i = 0; i < 4; i++)
						     must(run(&c, stream));
				     }) /
			  4,
		     share = moved / us / 1e3 / ceiling;

	printf("{\"bench\":\"repack\",\"way\":\"%s\",\"pages\":\"%s\",\"tokens\":%u,\"kv_heads\":%d,\"head_dim\":%d,"
	       "\"us\":%.2f,\"bytes\":%.0f,"
	       "\"gbs\":%.0f,\"copy_share\":%.3f,\"least\":%.1f}\n",
	       way, shape, c.tokens, HEADS, DIM, us, moved, moved / us / 1e3, share, LEAST);
	fflush(stdout);
}

static void run_repack(uint32_t tokens, double ceiling, cudaStream_t stream)
{
	const repack_world w(tokens);
	const size_t vectors = (size_t)tokens * HEADS, codes = vectors * (DIM / 2), scales = vectors * 4;
	uint8_t *pages = w.pages.data;
	struct kv_cuda_repack c = {};

	c.layout = &w.layout;
	c.geometry = &w.geometry;
	c.tokens = tokens;
	c.slots = w.slots.data;
	c.page_slots = w.page_slots.data;
	c.blocks = w.table.data;
	c.block_count = tokens / PAGE_TOKENS;
	c.page_tokens = PAGE_TOKENS;
	c.page_count = tokens / PAGE_TOKENS;
	for (bool apart : {false, true}) {
		const char *shape = apart ? "apart" : "as vLLM's";

		c.side[KV_SIDE_K] = apart ? side_of(pages, pages + 2 * codes, DIM / 2, 4)
					  : side_of(pages, pages + DIM / 2, 2 * VECTOR, 2 * VECTOR);
		c.side[KV_SIDE_V] = apart ? side_of(pages + codes, pages + 2 * codes + scales, DIM / 2, 4)
					  : side_of(pages + VECTOR, pages + VECTOR + DIM / 2, 2 * VECTOR, 2 * VECTOR);
		run_way("from pages", shape, c, kv_cuda_repack_from_pages, ceiling, stream);
		run_way("to pages", shape, c, kv_cuda_repack_to_pages, ceiling, stream);
	}
}

void bench_repack(cudaStream_t stream)
{
	const double copy = device_copy_rate(stream);

	printf("{\"bench\":\"copy ceiling\",\"read_and_written_gbs\":%.0f}\n", 2 * copy);
	for (uint32_t tokens : {131072, 32768, 4096, 256})
		run_repack(tokens, 2 * copy, stream);
}
