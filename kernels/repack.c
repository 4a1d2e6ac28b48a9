/* See repack.h. Tokens are moved an atom at a time where sixteen of them fill one in order and the machine has code for
 * that (repack_avx2.c): nearly all tokens of a list. The others are moved one by one.
 */
#include "kernels/repack.h"

#include "kernels/codec.h"
#include "kernels/machine.h"
#include "kernels/order.h"
#include "kernels/repack_atoms.h"
#include "kernels/simd.h"

#include <string.h>

enum {
	TOKENS = KV_ATOM_TOKENS,
	SCALE_BYTES = 4,
	LINE = 64,
	AHEAD = 2,           /* heads; of an atom that goes to rows: */
	ATOMS_AHEAD = 1,
	STREAMED = 1 << 20,  /* bytes of a long list */
	ATOM_MAX = 2 * TOKENS * (KV_HEAD_DIM_MAX / 2 + SCALE_BYTES),
	ROOM = 24 << 10
};

/* One side of some tokens that are neighbours in an atom, up to 16: where head 0 has them in pages, and how much
 * farther the head that is its turn has them. Divisions are done here, once for all heads. */
struct span {
	const struct kv_pages_side *pages;
	enum kv_side side;
	uint32_t d, n, first;     /* first: in the atom */
	uint8_t *codes, *scales;  /* the atom's parts, of the head */
	uint8_t *page_codes[TOKENS], *page_scales[TOKENS];
	ptrdiff_t code_offset, scale_offset;
};

static void span_of(const struct kv_repack *r, enum kv_side side, uint32_t i, uint32_t n, struct span *s)
{
	const struct kv_pages_side *p = &r->side[side];
	const struct kv_geometry *g = r->geometry;
	uint32_t block_tokens = r->layout->block_tokens, in_block = (uint32_t)(r->slots[i] % block_tokens);
	uint8_t *atom = (uint8_t *)r->blocks[r->slots[i] / block_tokens] + kv_atom_at(g, r->layer, 0, in_block);
	bool k = side == KV_SIDE_K;

	s->pages = p;
	s->side = side;
	s->d = k ? r->layout->head_dim_k : r->layout->head_dim_v;
	s->n = n;
	s->first = in_block % TOKENS;
	s->codes = atom + (k ? g->k_codes_at : g->v_codes_at);
	s->scales = atom + (k ? g->k_scales_at : g->v_scales_at);
	s->code_offset = s->scale_offset = 0;
	for (uint32_t t = 0; t < n; t++) {
		int64_t page = r->page_slots[i + t] / r->page_tokens, token = r->page_slots[i + t] % r->page_tokens;

		s->page_codes[t] = p->codes + page * p->code_page + token * p->code_token;
		s->page_scales[t] = p->scales + page * p->scale_page + token * p->scale_token;
	}
}

/* On to the next head. */
static void span_advance(struct span *s, uint32_t chunk_bytes)
{
	s->codes += chunk_bytes;
	s->scales += chunk_bytes;
	s->code_offset += s->pages->code_head;
	s->scale_offset += s->pages->scale_head;
}

/* n and first are constants of the callers. kv_scale_at says where a scale is, by a look-up in the table. */
KV_INLINE void scales_move(const struct span *s, uint32_t n, uint32_t first, bool to_pages)
{
	for (uint32_t t = 0; t < n; t++) {
		uint32_t token = first + t;
		uint8_t *ours = s->scales + (token % 8 * 2 + token / 8) * SCALE_BYTES,
			*theirs = s->page_scales[t] + s->scale_offset;

		if (to_pages)
			memcpy(theirs, ours, SCALE_BYTES);
		else
			memcpy(ours, theirs, SCALE_BYTES);
	}
}

static void token_move(const struct span *s, uint32_t t, bool to_pages)
{
	uint8_t *theirs = s->page_codes[t] + s->code_offset;
	uint16_t codes[KV_HEAD_DIM_MAX];

	if (to_pages) {
		kv_token_unpack(KV_INT4_PTH, s->side, s->d, s->first + t, s->codes, codes);
		for (uint32_t k = 0; k < s->d / 2; k++)
			theirs[k] = (uint8_t)(codes[2 * k] | codes[2 * k + 1] << 4);
	} else {
		for (uint32_t k = 0; k < s->d / 2; k++) {
			codes[2 * k] = theirs[k] & 15;
			codes[2 * k + 1] = theirs[k] >> 4;
		}
		kv_token_pack(KV_INT4_PTH, s->side, s->d, s->first + t, codes, s->codes);
	}
}

KV_INLINE void span_move(const struct span *s, const struct kv_repack_atoms *code, bool to_pages)
{
	if (s->n == TOKENS)
		scales_move(s, TOKENS, 0, to_pages);
	else
		scales_move(s, s->n, s->first, to_pages);
	if (code && s->n == TOKENS && s->d % 64 == 0 && to_pages)
		(s->side == KV_SIDE_K ? code->k_to : code->v_to)(s->d, s->page_codes, s->code_offset, s->codes);
	else if (code && s->n == TOKENS && s->d % 64 == 0)
		(s->side == KV_SIDE_K ? code->k_from : code->v_from)(s->d, s->page_codes, s->code_offset, s->codes);
	else
		for (uint32_t t = 0; t < s->n; t++)
			token_move(s, t, to_pages);
}

/* Tokens i .. i + 15 of the list fill an atom in order. */
static bool is_atom(const struct kv_repack *r, uint32_t i)
{
	if (r->tokens - i < TOKENS || r->slots[i] < 0 || r->slots[i] % TOKENS)
		return false;
	for (uint32_t t = 0; t < TOKENS; t++)
		if (r->slots[i + t] != r->slots[i] + t || r->page_slots[i + t] < 0)
			return false;
	return true;
}

static const struct kv_repack_atoms *atoms_code(void)
{
#if defined(__x86_64__)
	return kv_machine() >= KV_MACHINE_AVX2 ? &kv_repack_atoms_avx2 : NULL;
#else
	return NULL;
#endif
}

/* Both sides of the tokens that are moved together; n is 0 behind the last. */
struct turn {
	uint32_t n, sides;
	struct span side[2];
};

/* The first tokens at or behind *i that are not skipped; *i is then behind them. */
static void turn_next(const struct kv_repack *r, uint32_t *i, struct turn *turn)
{
	turn->n = turn->sides = 0;
	while (*i < r->tokens && (r->slots[*i] < 0 || r->page_slots[*i] < 0))
		(*i)++;
	if (*i == r->tokens)
		return;
	turn->n = is_atom(r, *i) ? TOKENS : 1;
	for (unsigned side = KV_SIDE_K; side <= KV_SIDE_V; side++)
		if (r->side[side].codes)
			span_of(r, (enum kv_side)side, *i, turn->n, &turn->side[turn->sides++]);
	*i += turn->n;
}

/* Asks for what is moved AHEAD heads later. Sixteen tokens in pages are more streams than the processor follows by
 * itself. */
KV_INLINE void turn_fetch(const struct turn *turn, uint32_t heads, bool to_pages)
{
	for (uint32_t s = 0; s < turn->sides; s++) {
		const struct span *span = &turn->side[s];
		ptrdiff_t ahead = span->code_offset + (ptrdiff_t)heads * span->pages->code_head;

		for (uint32_t t = 0; t < span->n; t++)
			for (uint32_t byte = 0; byte < span->d / 2; byte += LINE)
				if (to_pages)
					__builtin_prefetch(span->page_codes[t] + ahead + byte, 1);
				else
					__builtin_prefetch(span->page_codes[t] + ahead + byte, 0);
	}
}

/* A head's atom is made in the first-level cache and written past the caches: the memory it goes to need not be read
 * first. */
static void turn_stream(struct turn *turn, const struct kv_geometry *g, const struct kv_repack_atoms *code)
{
	uint8_t room[ATOM_MAX] __attribute__((aligned(64))), *atom = turn->side[0].codes - g->k_codes_at;

	turn->side[0].codes = room + g->k_codes_at;
	turn->side[0].scales = room + g->k_scales_at;
	turn->side[1].codes = room + g->v_codes_at;
	turn->side[1].scales = room + g->v_scales_at;
	span_move(&turn->side[0], code, false);
	span_move(&turn->side[1], code, false);
	code->stream(atom, room, g->atom_bytes);
	turn->side[0].codes = atom + g->k_codes_at;
	turn->side[0].scales = atom + g->k_scales_at;
	turn->side[1].codes = atom + g->v_codes_at;
	turn->side[1].scales = atom + g->v_scales_at;
}

/* So long a list that what is written would not stay in the caches anyway. */
static bool is_long(const struct kv_repack *r, const struct kv_repack_atoms *code)
{
	return code && (uint64_t)r->tokens * r->layout->heads * (r->geometry->atom_bytes / TOKENS) > STREAMED;
}

/* One head of a turn, and on to the next one. */
KV_INLINE void head_move(struct turn *turn, const struct kv_repack *r, const struct kv_repack_atoms *code,
			 bool streamed, bool to_pages)
{
	streamed = streamed && turn->n == TOKENS;
	if (streamed)
		turn_stream(turn, r->geometry, code);
	for (uint32_t s = 0; s < turn->sides; s++) {
		if (!streamed)
			span_move(&turn->side[s], code, to_pages);
		span_advance(&turn->side[s], r->geometry->chunk_bytes);
	}
}

/* Where the heads of a token fill one piece of the pages, a *row*, as vLLM's [K | scale | V | scale] do: a cell is what
 * a head has of it. Rows are made in the first-level cache, a batch of heads at a time, and written past the caches in
 * whole lines, from row to row where these are neighbours: the memory they go to need not be read first. */
struct rows {
	uint32_t cell, batch;            /* bytes; heads. No rows: batch is 0 */
	ptrdiff_t codes_at[2], scales_at[2]; /* in a cell, by side of a turn */
	uint8_t room[ROOM] __attribute__((aligned(LINE)));
};

/* A part of a cell: the codes or scales of a side. */
struct part {
	uintptr_t at;
	uint32_t bytes;
	ptrdiff_t page, token, head;
};

static uint32_t parts_of(const struct kv_repack *r, struct part parts[4])
{
	uint32_t n = 0;

	for (unsigned side = KV_SIDE_K; side <= KV_SIDE_V; side++) {
		const struct kv_pages_side *p = &r->side[side];
		uint32_t d = side == KV_SIDE_K ? r->layout->head_dim_k : r->layout->head_dim_v;

		if (!p->codes)
			continue;
		parts[n++] = (struct part){(uintptr_t)p->codes, d / 2, p->code_page, p->code_token, p->code_head};
		parts[n++] = (struct part){(uintptr_t)p->scales, SCALE_BYTES, p->scale_page, p->scale_token,
					   p->scale_head};
	}
	return n;
}

static bool strides_equal(const struct part *a, const struct part *b)
{
	return a->page == b->page && a->token == b->token && a->head == b->head;
}

/* The cell's bytes if the parts fill it without a gap, whatever their order; else 0. */
static uint32_t cell_of(const struct part *parts, uint32_t n, uintptr_t begin)
{
	uintptr_t end = begin;

	for (uint32_t found = 0, i = 0; found < n; found++, i = 0) {
		while (i < n && (parts[i].at != end || !strides_equal(&parts[i], &parts[0])))
			i++;
		if (i == n)
			return 0;
		end += parts[i].bytes;
	}
	return parts[0].head == (ptrdiff_t)(end - begin) ? (uint32_t)(end - begin) : 0;
}

static void rows_of(const struct kv_repack *r, struct rows *rows)
{
	struct part parts[4];
	uint32_t n = parts_of(r, parts), heads = r->layout->heads, fit;
	uintptr_t begin = UINTPTR_MAX;

	for (uint32_t i = 0; i < n; i++)
		begin = parts[i].at < begin ? parts[i].at : begin;
	rows->batch = 0;
	rows->cell = cell_of(parts, n, begin);
	if (!rows->cell)
		return;
	fit = ROOM / TOKENS / rows->cell;
	rows->batch = (heads - 1) / ((heads - 1) / fit + 1) + 1;
	for (uint32_t i = 0; i < n; i += 2) {
		rows->codes_at[i / 2] = (ptrdiff_t)(parts[i].at - begin);
		rows->scales_at[i / 2] = (ptrdiff_t)(parts[i + 1].at - begin);
	}
}

/* The turn's spans as they would be if pages were the room, with rows of so many bytes; blocks are where they are. */
static void turn_aim(struct turn *turn, struct rows *rows, uint32_t row_bytes)
{
	for (uint32_t s = 0; s < turn->sides; s++) {
		struct span *span = &turn->side[s];

		span->code_offset = span->scale_offset = 0;
		for (uint32_t t = 0; t < TOKENS; t++) {
			span->page_codes[t] = rows->room + t * row_bytes + rows->codes_at[s];
			span->page_scales[t] = rows->room + t * row_bytes + rows->scales_at[s];
		}
	}
}

/* From the room to the pages, from `offset` on in each row. */
static void rows_write(const struct rows *rows, const struct turn *turn, ptrdiff_t offset, uint32_t row_bytes,
		       const struct kv_repack_atoms *code)
{
	uint8_t *const *codes = turn->side[0].page_codes;

	for (uint32_t t = 0, n; t < TOKENS; t += n) {
		for (n = 1; t + n < TOKENS && codes[t + n] == codes[t] + n * row_bytes; n++)
			;
		code->stream_lines(codes[t] - rows->codes_at[0] + offset, rows->room + t * row_bytes, n * row_bytes);
	}
}

static uint8_t *atom_of(const struct turn *turn, const struct kv_geometry *g)
{
	const struct span *first = &turn->side[0];

	return first->codes - (first->side == KV_SIDE_K ? g->k_codes_at : g->v_codes_at);
}

/* Asks for the whole atom that is moved ATOMS_AHEAD heads later than this one. */
static void atom_fetch(const struct turn *turn, const struct turn *next, const struct kv_repack *r, uint32_t head)
{
	const struct kv_geometry *g = r->geometry;
	const uint8_t *atom;

	if (head + ATOMS_AHEAD < r->layout->heads)
		atom = atom_of(turn, g) + (head + ATOMS_AHEAD) * g->chunk_bytes;
	else if (next->n)
		atom = atom_of(next, g) + (head + ATOMS_AHEAD) % r->layout->heads * g->chunk_bytes;
	else
		return;
	for (uint32_t byte = 0; byte < g->atom_bytes; byte += LINE)
		__builtin_prefetch(atom + byte);
}

/* All heads of an atom to rows. */
static void turn_rows(const struct turn *turn, const struct turn *next, struct rows *rows, const struct kv_repack *r,
		      const struct kv_repack_atoms *code)
{
	uint32_t heads = r->layout->heads;
	struct turn in_room = *turn;

	for (uint32_t head = 0, n; head < heads; head += n) {
		n = heads - head < rows->batch ? heads - head : rows->batch;
		turn_aim(&in_room, rows, n * rows->cell);
		for (uint32_t i = 0; i < n; i++) {
			atom_fetch(turn, next, r, head + i);
			head_move(&in_room, r, code, false, true);
		}
		rows_write(rows, turn, (ptrdiff_t)head * rows->cell, n * rows->cell, code);
	}
}

/* All heads of a turn. */
KV_INLINE void turn_move(struct turn *now, const struct turn *next, const struct kv_repack *r,
			 const struct kv_repack_atoms *code, bool streamed, bool to_pages)
{
	uint32_t heads = r->layout->heads;

	for (uint32_t head = 0; head < heads; head++) {
		if (head + AHEAD < heads)
			turn_fetch(now, AHEAD, to_pages);
		else
			turn_fetch(next, (head + AHEAD) % heads, to_pages);
		head_move(now, r, code, streamed, to_pages);
	}
}

void kv_repack_from_pages(const struct kv_repack *r)
{
	const struct kv_repack_atoms *code = atoms_code();
	bool streamed = is_long(r, code) && r->side[KV_SIDE_K].codes && r->side[KV_SIDE_V].codes;
	struct turn turns[2], *now = &turns[0], *next = &turns[1], *other;
	uint32_t i = 0;

	for (turn_next(r, &i, now); now->n; other = now, now = next, next = other) {
		turn_next(r, &i, next);
		turn_move(now, next, r, code, streamed, false);
	}
	if (streamed)
		code->finish();
}

void kv_repack_to_pages(const struct kv_repack *r)
{
	const struct kv_repack_atoms *code = atoms_code();
	struct turn turns[2], *now = &turns[0], *next = &turns[1], *other;
	struct rows rows = {.batch = 0};
	uint32_t i = 0;

	if (is_long(r, code))
		rows_of(r, &rows);
	for (turn_next(r, &i, now); now->n; other = now, now = next, next = other) {
		turn_next(r, &i, next);
		if (rows.batch && now->n == TOKENS)
			turn_rows(now, next, &rows, r, code);
		else
			turn_move(now, next, r, code, false, true);
	}
	if (rows.batch)
		code->finish();
}
