/* See repack.h. Tokens go an atom at a time where sixteen of them fill one in order and the machine has code for that
 * (repack_avx2.c), which nearly all of a list do; others one by one. */
#include "kernels/repack.h"

#include "kernels/codec.h"
#include "kernels/machine.h"
#include "kernels/order.h"
#include "kernels/repack_atoms.h"
#include "kernels/simd.h"

#include <string.h>

enum { TOKENS = KV_ATOM_TOKENS, SCALE_BYTES = 4, LINE = 64, AHEAD = 2, STREAMED = 1 << 20 /* bytes of a long list */,
       ATOM_MAX = 2 * TOKENS * (KV_HEAD_DIM_MAX / 2 + SCALE_BYTES) };

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

static bool is_streamed(const struct kv_repack *r, const struct kv_repack_atoms *code)
{
	uint64_t bytes = (uint64_t)r->tokens * r->layout->heads * (r->geometry->atom_bytes / TOKENS);

	return code && bytes > STREAMED && r->side[KV_SIDE_K].codes && r->side[KV_SIDE_V].codes;
}

/* One head of a turn, and on to the next one. */
KV_INLINE void turn_move(struct turn *turn, const struct kv_repack *r, const struct kv_repack_atoms *code,
	bool streamed,
			 bool to_pages)
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

KV_INLINE void repack(const struct kv_repack *r, bool to_pages)
{
	const struct kv_repack_atoms *code = atoms_code();
	bool streamed = !to_pages && is_streamed(r, code);
	uint32_t i = 0, heads = r->layout->heads;
	struct turn turns[2], *now = &turns[0], *next = &turns[1], *other;

	for (turn_next(r, &i, now); now->n; other = now, now = next, next = other) {
		turn_next(r, &i, next);
		for (uint32_t head = 0; head < heads; head++) {
			if (head + AHEAD < heads)
				turn_fetch(now, AHEAD, to_pages);
			else
				turn_fetch(next, (head + AHEAD) % heads, to_pages);
			turn_move(now, r, code, streamed, to_pages);
		}
	}
	if (streamed)
		code->finish();
}

void kv_repack_from_pages(const struct kv_repack *r)
{
	repack(r, false);
}

void kv_repack_to_pages(const struct kv_repack *r)
{
	repack(r, true);
}
