/* No byte holds codes of two tokens. So the bytes of an atom that are kept are the same for every layer and head, and
 * are looked up once. Each layer and head then costs a pass over one atom and the zeroing of the atoms behind it.
 */
#include "kernels/behind.h"

#include <assert.h>
#include <string.h>

#include "kernels/codec.h"

/* Two sides of 16 bits an element and 4 bytes of scale, each part aligned to 16. */
enum { ATOM_BYTES_MAX = 2 * KV_ATOM_TOKENS * (2 * KV_HEAD_DIM_MAX + 4) + 64 };

static void keep_vector(uint8_t *keep, const struct kv_part *p, uint32_t token)
{
	struct kv_place place[2];

	for (uint32_t dim = 0; dim < p->d; dim++) {
		const unsigned places = kv_code_places(p->format, p->order, p->d, token, dim, place);

		for (unsigned i = 0; i < places; i++)
			keep[p->codes_at + place[i].byte] = 0xff;
	}
	memset(keep + p->scales_at + kv_scale_at(p->format, token), 0xff, kv_format_info(p->format)->scale_bytes);
}

/* A byte each of an atom: 0xff if one of its first tokens owns it. */
static void keep_fill(const struct kv_layout *l, const struct kv_geometry *g, uint8_t *keep, uint32_t tokens)
{
	memset(keep, 0, g->atom_bytes);
	for (int side = KV_SIDE_K; side <= KV_SIDE_ROPE; side++) {
		const struct kv_part p = kv_part_of(l, g, (enum kv_side)side);

		for (uint32_t t = 0; t < tokens && p.format != KV_NONE; t++)
			keep_vector(keep, &p, t);
	}
}

static void atom_keep(uint8_t *atom, const uint8_t *keep, uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes; i++)
		atom[i] &= keep[i];
}

void kv_zero_behind_atoms(const struct kv_layout *l, const struct kv_geometry *g, void *atoms, uint32_t count,
			  uint32_t tokens)
{
	uint8_t keep[ATOM_BYTES_MAX];

	assert(g->atom_bytes <= ATOM_BYTES_MAX);
	keep_fill(l, g, keep, tokens);
	for (uint32_t i = 0; i < count; i++)
		atom_keep((uint8_t *)atoms + (uint64_t)i * g->atom_bytes, keep, g->atom_bytes);
}

void kv_zero_behind(const struct kv_layout *l, const struct kv_geometry *g, void *block, uint32_t tokens)
{
	const uint32_t atom = tokens / KV_ATOM_TOKENS, rest = tokens % KV_ATOM_TOKENS, full = atom + (rest > 0);
	uint8_t keep[ATOM_BYTES_MAX];

	if (tokens >= l->block_tokens)
		return;
	assert(g->atom_bytes <= ATOM_BYTES_MAX);
	if (rest)
		keep_fill(l, g, keep, rest);
	for (uint32_t i = 0; i < l->layers * l->heads; i++) {
		uint8_t *chunk = (uint8_t *)block + (uint64_t)i * g->chunk_bytes;

		if (rest)
			atom_keep(chunk + (uint64_t)atom * g->atom_bytes, keep, g->atom_bytes);
		memset(chunk + (uint64_t)full * g->atom_bytes, 0, g->chunk_bytes - (uint64_t)full * g->atom_bytes);
	}
}
