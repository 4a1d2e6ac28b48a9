/* int4_pth between blocks and pages as vLLM has them ([K | scale | V | scale] a head and token), of one layer's 8
 * heads of 128 dims, a whole list in one call, pages in any order, on one core; against memcpy of as many bytes in
 * one piece.
 */
#include <stdlib.h>
#include <string.h>

#include "client/include/terrace.h"
#include "tests/bench/bench.h"
#include "tests/bench/service.h"

enum { TOKENS = 16384, TOKENS_QUICK = 512, PAGE_TOKENS = 16, HEADS = 8, DIM = 128, VECTOR = DIM / 2 + 4 };

#define LEAST 0.7 /* of memcpy */

struct repack_bench {
	struct terrace_layout layout;
	struct terrace_repack_options options;
	uint32_t tokens, blocks;
	size_t bytes;
	uint8_t *memory, *pages, *copy;
	void **block;
	int64_t *slots, *page_slots;
};

static void *allocate(size_t bytes)
{
	void *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);

	if (!p)
		bench_die("repack: no memory");
	memset(p, 1, bytes);
	return p;
}

static void list_make(struct repack_bench *b)
{
	uint64_t state = 1;

	for (uint32_t i = 0; i < b->tokens; i++)
		b->slots[i] = b->page_slots[i] = i;
	for (uint32_t page = b->blocks; page > 1; page--) { /* pages shuffled, the tokens of each in order */
		uint32_t other = (uint32_t)((state = state * 6364136223846793005u + 1442695040888963407u) >> 33) % page;

		for (uint32_t t = 0; t < PAGE_TOKENS; t++) {
			int64_t *a = &b->page_slots[(page - 1) * PAGE_TOKENS + t],
				*c = &b->page_slots[other * PAGE_TOKENS + t];
			int64_t slot = *a;

			*a = *c;
			*c = slot;
		}
	}
}

static struct terrace_pages pages_of(uint8_t *codes)
{
	return (struct terrace_pages){.codes = codes, .scales = codes + DIM / 2, .code_head = 2 * VECTOR,
		.scale_head = 2 * VECTOR,
				      .code_token = HEADS * 2 * VECTOR, .scale_token = HEADS * 2 * VECTOR,
				      .code_page = PAGE_TOKENS * HEADS * 2 * VECTOR,
				      .scale_page = PAGE_TOKENS * HEADS * 2 * VECTOR};
}

static void set_up(struct repack_bench *b)
{
	b->tokens = bench_options.quick ? TOKENS_QUICK : TOKENS;
	b->blocks = b->tokens / PAGE_TOKENS;
	b->bytes = (size_t)b->tokens * HEADS * 2 * VECTOR;
	b->layout = (struct terrace_layout){.size = sizeof(b->layout), .layers = 1, .heads = HEADS,
		.total_heads = HEADS,
					    .head_dim_k = DIM, .head_dim_v = DIM, .block_tokens = PAGE_TOKENS,
					    .k_format = TERRACE_FORMAT_INT4_PTH, .v_format = TERRACE_FORMAT_INT4_PTH};
	b->memory = allocate(b->bytes);
	b->pages = allocate(b->bytes);
	b->copy = allocate(b->bytes);
	b->block = allocate(b->blocks * sizeof(*b->block));
	b->slots = allocate(b->tokens * sizeof(*b->slots));
	b->page_slots = allocate(b->tokens * sizeof(*b->page_slots));
	for (uint32_t i = 0; i < b->blocks; i++)
		b->block[i] = b->memory + i * terrace_block_bytes(&b->layout);
	list_make(b);
	b->options = (struct terrace_repack_options){
		.size = sizeof(b->options), .tokens = b->tokens, .slots = b->slots, .page_slots = b->page_slots,
		.blocks = b->block, .block_count = b->blocks, .page_tokens = PAGE_TOKENS, .page_count = b->blocks,
		.k = pages_of(b->pages), .v = pages_of(b->pages + VECTOR)};
}

static void report(const char *name, const struct repack_bench *b, double ns, double copy_ns)
{
	bench_report(&(struct bench_figure){
		.bench = "repack",
		.name = name,
		.unit = "GB/s",
		.value = (double)b->bytes / ns,
		.baseline = (double)b->bytes / copy_ns,
		.goal = BENCH_AT_LEAST,
		.target = LEAST,
	});
}

int bench_repack(void)
{
	double from_ns = INFINITY, to_ns = INFINITY, copy_ns = INFINITY;
	struct repack_bench b = {0};

	set_up(&b);
	for (unsigned round = 0; round < bench_options.rounds; round++) {
		uint64_t start = bench_now_ns(), copied, there;

		memcpy(b.copy, b.pages, b.bytes);
		copied = bench_now_ns();
		service_check(terrace_repack_from_pages(&b.layout, &b.options), "repack_from_pages");
		there = bench_now_ns();
		service_check(terrace_repack_to_pages(&b.layout, &b.options), "repack_to_pages");
		copy_ns = fmin(copy_ns, (double)(copied - start));
		from_ns = fmin(from_ns, (double)(there - copied));
		to_ns = fmin(to_ns, (double)(bench_now_ns() - there));
	}
	report("pages to blocks / memcpy", &b, from_ns, copy_ns);
	report("blocks to pages / memcpy", &b, to_ns, copy_ns);
	free(b.memory);
	free(b.pages);
	free(b.copy);
	free(b.block);
	free(b.slots);
	free(b.page_slots);
	return 0;
}
