/* See order.h. A table is filled under a lock and published by a flag, so that readers take no lock. */
#include "kernels/order.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>

#include "kernels/places.h"
#include "kernels/simd.h"

enum { WIDTHS = 5, SIDES = 2, DIMS = KV_HEAD_DIM_COUNT };

static struct kv_plane_order tables[WIDTHS][SIDES][DIMS];
static atomic_bool ready[WIDTHS][SIDES][DIMS];
static pthread_mutex_t filling = PTHREAD_MUTEX_INITIALIZER;

static unsigned width_index(unsigned width)
{
	return width == 16 ? 4 : width == 8 ? 3 : width == 4 ? 2 : width == 2 ? 1 : 0;
}

/* Bytes are numbered by the smallest dim in them, which gives every token the same dims in byte k. */
static void fill(struct kv_plane_order *o, unsigned width, enum kv_side side, uint32_t d)
{
	/* A plane of 1 bit is the second one of codes of 3 bits. */
	const unsigned bits = width == 1 ? 3 : width, which = width == 1 ? 1 : 0;
	const uint32_t base = width == 1 ? KV_ATOM_TOKENS * d * 2 / 8 : 0;

	o->bytes = d * width / 8;
	for (uint32_t token = 0; token < KV_ATOM_TOKENS; token++) {
		/* number of the byte at an offset, plus one */
		uint16_t byte_of[KV_ATOM_TOKENS * KV_PLANE_BYTES_MAX] = {0};
		uint32_t known = 0;

		for (uint32_t dim = 0; dim < d; dim++) {
			struct kv_place p[2];

			places_of(bits, side, d, token, dim, p);
			for (unsigned i = which; i < which + (width == 16 ? 2 : 1); i++) {
				uint32_t at = p[i].byte - base;

				if (byte_of[at] == 0) {
					o->at[token * o->bytes + known] = (uint16_t)at;
					byte_of[at] = (uint16_t)++known;
				}
				o->dim[byte_of[at] - 1][width == 16 ? 0 : p[i].shift / width] =
					(uint16_t)dim;
			}
		}
		assert(known == o->bytes);
	}
}

/* Does byte k begin a run of `run` bytes? */
static bool is_run(const struct kv_plane_order *o, unsigned width, uint32_t k, unsigned run)
{
	if (k + run > o->bytes)
		return false;
	for (uint32_t i = 0; i < run; i++)
		for (uint32_t q = 0; q < 8 / width; q++)
			if (o->dim[k + i][q] != o->dim[k][0] + q * run + i)
				return false;
	return true;
}

static void find_parts(struct kv_plane_order *o, unsigned width)
{
	struct kv_plane_part *part = o->part;
	uint32_t k = 0;

	while (k < o->bytes) {
		unsigned run = is_run(o, width, k, 32) ? 32 : is_run(o, width, k, 16) ? 16 : 8;
		unsigned dims = run * 8 / width, dim = o->dim[k][0];

		if (!is_run(o, width, k, run) || o->parts == KV_PLANE_PARTS_MAX) {
			o->parts = 0;
			return;
		}
		if (o->parts && part->run == run && dim == part->dim + dims * part->runs) {
			part->runs++;
		} else {
			part = &o->part[o->parts++];
			*part = (struct kv_plane_part){(uint16_t)k, (uint16_t)dim, (uint16_t)run, 1};
		}
		k += run;
	}
}

static bool are_words(const struct kv_plane_order *o, unsigned width, enum kv_side side)
{
	for (uint32_t t = 0; t < KV_ATOM_TOKENS; t++)
		for (uint32_t k = 0; k < o->bytes; k++) {
			uint32_t token = t, first = k & ~3u, place = k & 3;

			if (side == KV_SIDE_V && width == 16) {
				token = t & ~1u;
				first = k & ~1u;
				place = t % 2 * 2 + k % 2;
			} else if (side == KV_SIDE_V) {
				token = t % 8 & ~1u;
				first = k;
				place = t % 2 * 2 + t / 8;
			}
			if (kv_plane_at(o, t)[k] != kv_plane_at(o, token)[first] + place)
				return false;
		}
	return true;
}

const struct kv_plane_order *kv_plane_order(unsigned width, enum kv_side side, uint32_t d)
{
	unsigned w = width_index(width), i = kv_head_dim_index(d);
	struct kv_plane_order *o = &tables[w][side][i];

	if (!atomic_load_explicit(&ready[w][side][i], memory_order_acquire)) {
		pthread_mutex_lock(&filling);
		if (!atomic_load_explicit(&ready[w][side][i], memory_order_relaxed)) {
			fill(o, width, side, d);
			if (width < 16)
				find_parts(o, width);
			o->words = are_words(o, width, side);
			atomic_store_explicit(&ready[w][side][i], true, memory_order_release);
		}
		pthread_mutex_unlock(&filling);
	}
	return o;
}

/* width and code_shift are constants of the callers, so that every plane gets a loop of its own. */
KV_INLINE void plane_pack(const struct kv_plane_order *o, uint32_t token, unsigned width,
			  unsigned code_shift, const uint16_t *codes, uint8_t *plane)
{
	for (uint32_t k = 0; k < o->bytes; k++) {
		unsigned byte = 0;

		for (unsigned q = 0; q < 8 / width; q++)
			byte |= (codes[o->dim[k][q]] >> code_shift & ((1u << width) - 1)) << (q * width);
		plane[kv_plane_at(o, token)[k]] = (uint8_t)byte;
	}
}

/* Sets the plane's bits of the codes, or adds them to what an earlier plane set. */
KV_INLINE void plane_unpack(const struct kv_plane_order *o, uint32_t token, unsigned width,
			    unsigned code_shift, const uint8_t *plane, uint16_t *restrict codes)
{
	for (uint32_t k = 0; k < o->bytes; k++) {
		unsigned byte = plane[kv_plane_at(o, token)[k]];

		for (unsigned q = 0; q < 8 / width; q++) {
			uint16_t *code = &codes[o->dim[k][q]];
			unsigned bits = (byte >> (q * width) & ((1u << width) - 1)) << code_shift;

			*code = (uint16_t)(code_shift ? *code | bits : bits);
		}
	}
}

static void raw_pack(const struct kv_plane_order *o, uint32_t token, uint32_t d,
		     const uint16_t *codes, uint8_t *plane)
{
	for (uint32_t i = 0; i < d; i++) {
		plane[kv_plane_at(o, token)[2 * i]] = (uint8_t)codes[i];
		plane[kv_plane_at(o, token)[2 * i + 1]] = (uint8_t)(codes[i] >> 8);
	}
}

static void raw_unpack(const struct kv_plane_order *o, uint32_t token, uint32_t d,
		       const uint8_t *plane, uint16_t *codes)
{
	for (uint32_t i = 0; i < d; i++)
		codes[i] = (uint16_t)(plane[kv_plane_at(o, token)[2 * i]] | plane[kv_plane_at(o,
			token)[2 * i + 1]] << 8);
}

void kv_token_pack(enum kv_format f, enum kv_side side, uint32_t d, uint32_t token,
		   const uint16_t *codes, uint8_t *part)
{
	switch (kv_format_info(f)->code_bits) {
	case 16:
		raw_pack(kv_plane_order(16, side, d), token, d, codes, part);
		break;
	case 8:
		plane_pack(kv_plane_order(8, side, d), token, 8, 0, codes, part);
		break;
	case 4:
		plane_pack(kv_plane_order(4, side, d), token, 4, 0, codes, part);
		break;
	case 3:
		plane_pack(kv_plane_order(2, side, d), token, 2, 0, codes, part);
		plane_pack(kv_plane_order(1, side, d), token, 1, 2, codes,
			   part + KV_ATOM_TOKENS * d * 2 / 8);
		break;
	case 2:
		plane_pack(kv_plane_order(2, side, d), token, 2, 0, codes, part);
		break;
	}
}

void kv_token_unpack(enum kv_format f, enum kv_side side, uint32_t d, uint32_t token,
		     const uint8_t *part, uint16_t *codes)
{
	switch (kv_format_info(f)->code_bits) {
	case 16:
		raw_unpack(kv_plane_order(16, side, d), token, d, part, codes);
		break;
	case 8:
		plane_unpack(kv_plane_order(8, side, d), token, 8, 0, part, codes);
		break;
	case 4:
		plane_unpack(kv_plane_order(4, side, d), token, 4, 0, part, codes);
		break;
	case 3:
		plane_unpack(kv_plane_order(2, side, d), token, 2, 0, part, codes);
		plane_unpack(kv_plane_order(1, side, d), token, 1, 2,
			     part + KV_ATOM_TOKENS * d * 2 / 8, codes);
		break;
	case 2:
		plane_unpack(kv_plane_order(2, side, d), token, 2, 0, part, codes);
		break;
	}
}
