/* int4_pth between blocks and an engine's pages (terrace_repack_from_pages, _to_pages): the bytes are those of the
 * codec's linear form, there and back is the identity for any strides and any lists, what is beside is not touched,
 * and bad calls are refused before anything is written. Everything once for each kind of machine that this one can be.
 */
#include "client/include/terrace.h"
#include "kernels/codec.h"
#include "tests/kernels/attend_rig.h"

#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, LAYER = 1, BLOCK_TOKENS = 32, BLOCKS = 4, SLOTS = BLOCKS * BLOCK_TOKENS, POISON = 0xa5 };

/* Pages of one side as bytes, whose vectors and scales are at places of their own. */
struct side {
	uint32_t d;
	struct terrace_pages pages;
};

struct bench {
	struct terrace_layout layout;
	uint64_t block_bytes;
	void *blocks[BLOCKS];
	uint8_t *room; /* of all pages */
	size_t room_bytes;
	uint32_t heads, page_tokens, pages;
	struct side side[2];
	int64_t slots[SLOTS], page_slots[SLOTS];
	uint32_t tokens;
};

static struct terrace_layout layout_of(uint32_t dk, uint32_t dv, uint32_t heads)
{
	struct terrace_layout l = TERRACE_LAYOUT_INIT;

	l.layers = LAYERS;
	l.heads = l.total_heads = heads;
	l.head_dim_k = dk;
	l.head_dim_v = dv;
	l.block_tokens = BLOCK_TOKENS;
	l.k_format = l.v_format = TERRACE_FORMAT_INT4_PTH;
	return l;
}

/* As vLLM has them: [pages][tokens][heads][K | scale | V | scale], or heads before tokens; with gaps. */
static void pages_of_vllm(struct bench *b, uint32_t gap, bool heads_first)
{
	int64_t each = b->side[0].d / 2 + b->side[1].d / 2 + 8 + gap, tokens = b->page_tokens, heads = b->heads;

	b->room_bytes = (size_t)(each * tokens * heads) * b->pages;
	b->room = allocate(b->room_bytes);
	for (int s = 0; s < 2; s++) {
		struct terrace_pages *p = &b->side[s].pages;

		p->code_head = heads_first ? each * tokens : each;
		p->code_token = heads_first ? each : each * heads;
		p->code_page = each * tokens * heads;
		p->scale_head = p->code_head;
		p->scale_token = p->code_token;
		p->scale_page = p->code_page;
		p->codes = b->room + (s ? b->side[0].d / 2 + 4 : 0);
		p->scales = (uint8_t *)p->codes + b->side[s].d / 2;
	}
}

/* Codes of K, codes of V, scales of K, scales of V, each an array [pages][tokens][heads], from its end or its
 * beginning. */
static void pages_apart(struct bench *b, bool backwards)
{
	int64_t cells = (int64_t)b->pages * b->page_tokens * b->heads, at = 0;

	b->room_bytes = (size_t)(cells * (b->side[0].d / 2 + b->side[1].d / 2 + 8));
	b->room = allocate(b->room_bytes);
	for (int i = 0; i < 4; i++) {
		struct terrace_pages *p = &b->side[i % 2].pages;
		int64_t each = i < 2 ? b->side[i].d / 2 : 4, step = backwards ? -each : each;
		uint8_t *first = b->room + at + (backwards ? (cells - 1) * each : 0);

		at += cells * each;
		if (i < 2) {
			p->codes = first;
			p->code_head = step;
			p->code_token = step * b->heads;
			p->code_page = step * b->heads * b->page_tokens;
		} else {
			p->scales = first;
			p->scale_head = step;
			p->scale_token = step * b->heads;
			p->scale_page = step * b->heads * b->page_tokens;
		}
	}
}

/* Lists: all slots in order to pages in order, to shuffled ones, and some of them, some skipped, in any order. */
static void make_list(struct bench *b, int kind)
{
	for (uint32_t i = 0; i < SLOTS; i++)
		b->slots[i] = b->page_slots[i] = i;
	for (uint32_t i = SLOTS; kind && i > 1; i--) {
		uint32_t j = random_below(i);
		int64_t x = b->page_slots[i - 1];

		b->page_slots[i - 1] = b->page_slots[j];
		b->page_slots[j] = x;
	}
	b->tokens = SLOTS;
	for (uint32_t i = SLOTS; kind == 2 && i > 1; i--) {
		uint32_t j = random_below(4) ? i - 1 : random_below(i);
		int64_t x = b->slots[i - 1];

		b->slots[i - 1] = b->slots[j];
		b->slots[j] = x;
	}
	for (uint32_t i = 0; kind == 2 && i < SLOTS; i++) {
		if (random_below(40) == 0)
			b->slots[i] = -1;
		if (random_below(40) == 0)
			b->page_slots[i] = -7;
	}
	if (kind == 2)
		b->tokens = SLOTS - random_below(30);
}

static void bench_init(struct bench *b, uint32_t dk, uint32_t dv, int kind)
{
	memset(b, 0, sizeof(*b));
	random_state = 1 + dk * 31 + dv * 7 + (uint64_t)kind;
	b->heads = 1 + random_below(3);
	b->page_tokens = kind ? 1 + random_below(40) : 16;
	b->pages = (SLOTS + b->page_tokens - 1) / b->page_tokens;
	b->side[0].d = dk;
	b->side[1].d = dv;
	b->layout = layout_of(dk, dv, b->heads);
	b->block_bytes = terrace_block_bytes(&b->layout);
	for (int i = 0; i < BLOCKS; i++) {
		b->blocks[i] = allocate(b->block_bytes);
		memset(b->blocks[i], POISON, b->block_bytes);
	}
	if (random_below(2))
		pages_of_vllm(b, kind ? random_below(9) : 0, random_below(2));
	else
		pages_apart(b, random_below(2));
	make_list(b, kind);
}

static void bench_fini(struct bench *b)
{
	for (int i = 0; i < BLOCKS; i++)
		free(b->blocks[i]);
	free(b->room);
}

static struct terrace_repack_options options_of(const struct bench *b)
{
	struct terrace_repack_options o = TERRACE_REPACK_OPTIONS_INIT;

	o.layer = LAYER;
	o.tokens = b->tokens;
	o.slots = b->slots;
	o.page_slots = b->page_slots;
	o.blocks = b->blocks;
	o.block_count = BLOCKS;
	o.page_tokens = b->page_tokens;
	o.page_count = b->pages;
	o.k = b->side[0].pages;
	o.v = b->side[1].pages;
	return o;
}

/* A head's vector in the pages, as the linear form has it. */
static void page_read(const struct bench *b, int s, int64_t slot, uint32_t head, uint8_t *out)
{
	const struct terrace_pages *p = &b->side[s].pages;
	int64_t page = slot / b->page_tokens, token = slot % b->page_tokens;

	memcpy(out, (uint8_t *)p->codes + page * p->code_page + token * p->code_token + head * p->code_head,
		b->side[s].d / 2);
	memcpy(out + b->side[s].d / 2,
	       (uint8_t *)p->scales + page * p->scale_page + token * p->scale_token + head * p->scale_head, 4);
}

/* What the blocks hold for the list is what the pages hold; and the blocks hold nothing else. */
static void check_equal(const struct bench *b)
{
	struct kv_layout l = {.layers = LAYERS, .heads = b->heads, .total_heads = b->heads, .head_dim_k = b->side[0].d,
			      .head_dim_v = b->side[1].d, .block_tokens = BLOCK_TOKENS, .k_format = KV_INT4_PTH,
			      .v_format = KV_INT4_PTH, .rotation_version = kv_rotation_version(b->side[0].d,
			      	b->side[1].d),
			      .codebook_version = 1, .layout_version = 1};
	struct kv_geometry g;
	uint8_t ours[KV_HEAD_DIM_MAX], theirs[KV_HEAD_DIM_MAX], *clean = allocate(b->block_bytes);

	ck_assert_ptr_null(kv_layout_problem(&l));
	kv_geometry_of(&l, &g);
	for (int block = 0; block < BLOCKS; block++) {
		memset(clean, POISON, b->block_bytes);
		for (uint32_t i = 0; i < b->tokens; i++) {
			if (b->slots[i] < 0 || b->page_slots[i] < 0 || b->slots[i] / BLOCK_TOKENS != block)
				continue;
			for (uint32_t head = 0; head < b->heads; head++)
				for (int s = 0; s < 2; s++) {
					page_read(b, s, b->page_slots[i], head, theirs);
					kv_repack_out(&l, &g, b->blocks[block], LAYER, head, (enum kv_side)s,
						      (uint32_t)(b->slots[i] % BLOCK_TOKENS), 1, ours);
					ck_assert_mem_eq(ours, theirs, b->side[s].d / 2 + 4);
					kv_repack_in(&l, &g, clean, LAYER, head, (enum kv_side)s,
						     (uint32_t)(b->slots[i] % BLOCK_TOKENS), 1, theirs);
				}
		}
		ck_assert_mem_eq(b->blocks[block], clean, b->block_bytes);
	}
	free(clean);
}

/* Pages of random bytes into blocks, and from there into pages of other bytes: those of the list come back, others
 * stay. */
static void there_and_back(uint32_t dk, uint32_t dv, int kind)
{
	struct bench b;
	struct terrace_repack_options o;
	uint8_t *first, *want;

	bench_init(&b, dk, dv, kind);
	o = options_of(&b);
	for (size_t i = 0; i < b.room_bytes; i++)
		b.room[i] = (uint8_t)random_below(256);
	first = allocate(b.room_bytes);
	want = allocate(b.room_bytes);
	memcpy(first, b.room, b.room_bytes);
	ck_assert_int_eq(terrace_repack_from_pages(&b.layout, &o), TERRACE_OK);
	ck_assert_mem_eq(b.room, first, b.room_bytes);
	check_equal(&b);
	/* Which bytes are the list's: those that become others when its tokens are made others. */
	for (size_t i = 0; i < b.room_bytes; i++)
		b.room[i] = (uint8_t)~first[i];
	memcpy(want, b.room, b.room_bytes);
	for (uint32_t i = 0; i < b.tokens; i++)
		for (uint32_t head = 0; head < b.heads && b.slots[i] >= 0 && b.page_slots[i] >= 0; head++)
			for (int s = 0; s < 2; s++) {
				const struct terrace_pages *p = &b.side[s].pages;
				int64_t page = b.page_slots[i] / b.page_tokens, token = b.page_slots[i] % b.page_tokens;
				int64_t codes = page * p->code_page + token * p->code_token + head * p->code_head +
						((uint8_t *)p->codes - b.room);
				int64_t scale = page * p->scale_page + token * p->scale_token + head * p->scale_head +
						((uint8_t *)p->scales - b.room);

				memcpy(want + codes, first + codes, b.side[s].d / 2);
				memcpy(want + scale, first + scale, 4);
			}
	ck_assert_int_eq(terrace_repack_to_pages(&b.layout, &o), TERRACE_OK);
	ck_assert_mem_eq(b.room, want, b.room_bytes);
	free(first);
	free(want);
	bench_fini(&b);
}

START_TEST(identity)
{
	for (size_t i = 0; i < COUNT(head_dims); i++)
		for (int kind = 0; kind < 3; kind++)
			for (int other = 0; other < 2; other++)
				there_and_back(head_dims[i], other ? head_dims[(i * 3 + 1) % COUNT(head_dims)]
					: head_dims[i], kind);
}
END_TEST

/* Lists so long that blocks and pages are written past the caches, from pages whose heads fill a token's row or do
 * not. */
struct long_case {
	uint32_t lead, gap;    /* bytes before the pages; behind a head's */
	bool v_first, one_side, shuffled;
	uint32_t page_tokens;
};

enum { LONG_HEADS = 37, LONG_LIST = 512, LONG_K = 128, LONG_V = 256, LONG_BEHIND = 100 };

struct long_list {
	struct terrace_layout layout;
	struct terrace_repack_options options;
	size_t each, bytes; /* of a head of a token; of pages, and of what is before and behind them */
	uint8_t *pages, *memory;
	int64_t slots[LONG_LIST], page_slots[LONG_LIST];
	void *blocks[LONG_LIST / BLOCK_TOKENS];
};

static struct terrace_pages long_pages(const struct long_list *l, uint8_t *codes, uint32_t d, uint32_t page_tokens)
{
	int64_t head = (int64_t)l->each, token = head * LONG_HEADS, page = token * page_tokens;

	return (struct terrace_pages){codes, codes + d / 2, page, token, head, page, token, head};
}

static void long_list_init(struct long_list *l, const struct long_case *c)
{
	uint32_t k = LONG_K / 2 + 4, v = c->one_side ? 0 : LONG_V / 2 + 4;

	memset(l, 0, sizeof(*l));
	l->layout = layout_of(LONG_K, LONG_V, LONG_HEADS);
	l->each = k + v + c->gap;
	l->bytes = c->lead + l->each * LONG_HEADS * LONG_LIST + LONG_BEHIND;
	l->pages = allocate(l->bytes);
	l->memory = allocate(terrace_block_bytes(&l->layout) * LONG_LIST / BLOCK_TOKENS);
	for (int i = 0; i < LONG_LIST / BLOCK_TOKENS; i++)
		l->blocks[i] = l->memory + terrace_block_bytes(&l->layout) * (size_t)i;
	for (uint32_t i = 0; i < LONG_LIST; i++)
		l->slots[i] = l->page_slots[i] = i;
	for (uint32_t i = LONG_LIST; c->shuffled && i > 1; i--) {
		uint32_t j = random_below(i);
		int64_t x = l->page_slots[i - 1];

		l->page_slots[i - 1] = l->page_slots[j];
		l->page_slots[j] = x;
	}
	l->options = (struct terrace_repack_options){
		.size = sizeof(l->options), .layer = LAYER, .tokens = LONG_LIST - 5, /* the last atom is not whole */
		.slots = l->slots, .page_slots = l->page_slots, .blocks = l->blocks,
		.block_count = LONG_LIST / BLOCK_TOKENS, .page_tokens = c->page_tokens,
		.page_count = LONG_LIST / c->page_tokens,
		.k = long_pages(l, l->pages + c->lead + (c->v_first ? v : 0), LONG_K, c->page_tokens)};
	if (!c->one_side)
		l->options.v = long_pages(l, l->pages + c->lead + (c->v_first ? 0 : k), LONG_V, c->page_tokens);
}

/* The bytes of the list's tokens in `from` are put into `to`. */
static void long_list_copy(const struct long_list *l, const struct long_case *c, uint8_t *to, const uint8_t *from)
{
	for (uint32_t i = 0; i < l->options.tokens; i++)
		for (uint32_t head = 0; head < LONG_HEADS; head++) {
			size_t at = c->lead + ((size_t)l->page_slots[i] * LONG_HEADS + head) * l->each;

			memcpy(to + at, from + at, l->each - c->gap);
		}
}

static void long_list_check(const struct long_case *c)
{
	struct long_list l;
	uint8_t *first, *want;

	long_list_init(&l, c);
	first = allocate(l.bytes);
	want = allocate(l.bytes);
	for (size_t i = 0; i < l.bytes; i++)
		first[i] = l.pages[i] = (uint8_t)random_bits();
	ck_assert_int_eq(terrace_repack_from_pages(&l.layout, &l.options), TERRACE_OK);
	ck_assert_mem_eq(l.pages, first, l.bytes);
	for (size_t i = 0; i < l.bytes; i++)
		want[i] = l.pages[i] = (uint8_t)~first[i];
	long_list_copy(&l, c, want, first);
	ck_assert_int_eq(terrace_repack_to_pages(&l.layout, &l.options), TERRACE_OK);
	ck_assert_mem_eq(l.pages, want, l.bytes);
	free(first);
	free(want);
	free(l.pages);
	free(l.memory);
}

START_TEST(long_list)
{
	const struct long_case cases[] = {
		{.page_tokens = LONG_LIST},
		{.page_tokens = 16, .lead = 4},
		{.page_tokens = 32, .lead = 61, .shuffled = true},
		{.page_tokens = 8, .lead = 3, .v_first = true},
		{.page_tokens = 16, .lead = 64, .one_side = true},
		{.page_tokens = 16, .lead = 1, .one_side = true, .shuffled = true},
		{.page_tokens = 16, .lead = 2, .gap = 1},
		{.page_tokens = 64, .gap = 12, .v_first = true, .shuffled = true},
	};

	for (size_t i = 0; i < COUNT(cases); i++)
		long_list_check(&cases[i]);
}
END_TEST

/* K alone: V's bytes are not touched, and V need not be int4_pth. */
START_TEST(one_side)
{
	struct terrace_repack_options o;
	struct bench b;
	uint8_t *before;

	bench_init(&b, 128, 64, 1);
	memset(b.room, 0x3c, b.room_bytes);
	b.layout.v_format = TERRACE_FORMAT_NONE;
	o = options_of(&b);
	ck_assert_int_eq(terrace_repack_from_pages(&b.layout, &o), TERRACE_UNSUPPORTED);
	ck_assert_msg(strstr(terrace_error(), "V is none") != NULL, "%s", terrace_error());
	o.v = (struct terrace_pages){0};
	ck_assert_int_eq(terrace_repack_from_pages(&b.layout, &o), TERRACE_OK);
	b.layout.v_format = TERRACE_FORMAT_INT4_PTH;
	before = allocate(b.block_bytes);
	memset(before, 0x77, b.block_bytes);
	memset(b.blocks[0], 0x77, b.block_bytes);
	o.k = (struct terrace_pages){0};
	ck_assert_int_eq(terrace_repack_from_pages(&b.layout, &o), TERRACE_INVALID);
	ck_assert_mem_eq(b.blocks[0], before, b.block_bytes);
	free(before);
	bench_fini(&b);
}
END_TEST

START_TEST(refusals)
{
	struct terrace_repack_options good, o;
	struct bench b;
	void *blocks[BLOCKS];

	bench_init(&b, 64, 64, 0);
	memset(b.room, 0x3c, b.room_bytes);
	good = options_of(&b);
#define REFUSED(change, says)                                                                              \
	do {                                                                                               \
		o = good;                                                                                  \
		change;                                                                                    \
		ck_assert_int_eq(terrace_repack_from_pages(&b.layout, &o), TERRACE_INVALID);               \
		ck_assert_msg(strstr(terrace_error(), says) != NULL, "%s", terrace_error());               \
		ck_assert_int_eq(terrace_repack_to_pages(&b.layout, &o), TERRACE_INVALID);                 \
	} while (0)
	REFUSED(o.size = 0, "TERRACE_REPACK_OPTIONS_INIT");
	REFUSED(o.layer = LAYERS, "layer 2");
	REFUSED(o.slots = NULL, "slots");
	REFUSED(o.page_slots = NULL, "slots");
	REFUSED(o.blocks = NULL, "blocks");
	REFUSED(o.page_tokens = 0, "page_tokens");
	REFUSED(o.k.scales = NULL, "scales");
	REFUSED(o.block_count = BLOCKS - 1, "token 96: slot 96 is none of 3 blocks");
	REFUSED(o.page_count = 2, "token 32: slot 32 is none of 2 pages");
	memcpy(blocks, b.blocks, sizeof(blocks));
	blocks[2] = NULL;
	REFUSED(o.blocks = blocks, "token 64: its block is NULL");
	blocks[2] = (uint8_t *)b.blocks[2] + 8;
	REFUSED(o.blocks = blocks, "aligned");
	ck_assert_int_eq(terrace_repack_from_pages(&b.layout, NULL), TERRACE_INVALID);
	ck_assert_int_eq(terrace_repack_from_pages(NULL, &good), TERRACE_INVALID);
	for (int i = 0; i < BLOCKS; i++)
		for (uint64_t k = 0; k < b.block_bytes; k++)
			ck_assert_uint_eq(((uint8_t *)b.blocks[i])[k], POISON);
	for (size_t k = 0; k < b.room_bytes; k++)
		ck_assert_uint_eq(b.room[k], 0x3c);
	o = good;
	o.tokens = 0;
	o.slots = o.page_slots = NULL;
	ck_assert_int_eq(terrace_repack_from_pages(&b.layout, &o), TERRACE_OK);
	bench_fini(&b);
}
END_TEST

static void tests_add(TCase *t)
{
	tcase_add_test(t, identity);
	tcase_add_test(t, long_list);
	tcase_add_test(t, one_side);
	tcase_add_test(t, refusals);
}

int main(void)
{
	return on_every_machine("repack", tests_add);
}
