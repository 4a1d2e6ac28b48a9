/* Moves codes between rows, one for each token, and the bytes of an atom (order.h), for the tokens of one atom at a
 * time. A row's codes are first folded into the token's bytes, eight at a time in a 64-bit word. These bytes are then
 * moved in words of four where the order has such words.
 */
#include "kernels/order.h"

#include <string.h>

#include "kernels/simd.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words of bytes are little-endian");

enum { TOKENS = KV_ATOM_TOKENS, EIGHT = 8 };

#define EACH_BYTE UINT64_C(0x0101010101010101)

/* The bytes of a token in a plane, from its codes: bits `shift` and up of each. */
KV_INLINE void fold(const struct kv_plane_order *o, unsigned width, unsigned shift, const uint8_t *codes,
		    uint8_t *bytes)
{
	uint64_t mask = ((1u << width) - 1) * EACH_BYTE, x;

	for (unsigned p = 0; p < o->parts; p++) {
		uint32_t run = o->part[p].run, dims = run * 8 / width;
		const uint8_t *from = codes + o->part[p].dim;
		uint8_t *to = bytes + o->part[p].byte;

		for (uint32_t i = 0; i < o->part[p].runs; i++, from += dims, to += run)
			for (uint32_t j = 0; j < run; j += EIGHT) {
				uint64_t sum = 0;

				for (unsigned q = 0; q < 8 / width; q++) {
					memcpy(&x, from + q * run + j, EIGHT);
					sum |= (x >> shift & mask) << q * width;
				}
				memcpy(to + j, &sum, EIGHT);
			}
	}
}

/* Back: sets the codes, or with a shift adds to them. */
KV_INLINE void unfold(const struct kv_plane_order *o, unsigned width, unsigned shift, const uint8_t *bytes,
		      uint8_t *codes)
{
	uint64_t mask = ((1u << width) - 1) * EACH_BYTE, x, old = 0;

	for (unsigned p = 0; p < o->parts; p++) {
		uint32_t run = o->part[p].run, dims = run * 8 / width;
		const uint8_t *from = bytes + o->part[p].byte;
		uint8_t *to = codes + o->part[p].dim;

		for (uint32_t i = 0; i < o->part[p].runs; i++, from += run, to += dims)
			for (uint32_t j = 0; j < run; j += EIGHT) {
				memcpy(&x, from + j, EIGHT);
				for (unsigned q = 0; q < 8 / width; q++) {
					uint64_t field = (x >> q * width & mask) << shift;

					if (shift)
						memcpy(&old, to + q * run + j, EIGHT);
					field |= old;
					memcpy(to + q * run + j, &field, EIGHT);
				}
			}
	}
}

KV_CLONES static void interleave4(uint32_t n, const uint8_t *a, const uint8_t *b, const uint8_t *c,
				  const uint8_t *d, uint32_t *restrict words)
{
	for (uint32_t i = 0; i < n; i++)
		words[i] = a[i] | (uint32_t)b[i] << 8 | (uint32_t)c[i] << 16 | (uint32_t)d[i] << 24;
}

KV_CLONES static void part4(uint32_t n, const uint32_t *words, uint8_t *restrict a, uint8_t *restrict b,
			    uint8_t *restrict c, uint8_t *restrict d)
{
	for (uint32_t i = 0; i < n; i++) {
		a[i] = (uint8_t)words[i];
		b[i] = (uint8_t)(words[i] >> 8);
		c[i] = (uint8_t)(words[i] >> 16);
		d[i] = (uint8_t)(words[i] >> 24);
	}
}

KV_CLONES static void interleave2(uint32_t n, const uint16_t *a, const uint16_t *b, uint32_t *restrict words)
{
	for (uint32_t i = 0; i < n; i++)
		words[i] = a[i] | (uint32_t)b[i] << 16;
}

KV_CLONES static void part2(uint32_t n, const uint32_t *words, uint16_t *restrict a, uint16_t *restrict b)
{
	for (uint32_t i = 0; i < n; i++) {
		a[i] = (uint16_t)words[i];
		b[i] = (uint16_t)(words[i] >> 16);
	}
}

/* n words, `step` entries of the table apart. */
KV_INLINE void scatter(uint32_t n, const uint16_t *at, unsigned step, const uint32_t *words, uint8_t *plane)
{
	for (uint32_t i = 0; i < n; i++)
		memcpy(plane + at[i * step], &words[i], sizeof(*words));
}

KV_INLINE void gather(uint32_t n, const uint16_t *at, unsigned step, const uint8_t *plane, uint32_t *words)
{
	for (uint32_t i = 0; i < n; i++)
		memcpy(&words[i], plane + at[i * step], sizeof(*words));
}

/* Tokens first .. first + n - 1 of a plane of at most 8 bits: bytes[n][o->bytes]. */
static void bytes_put(const struct kv_plane_order *o, enum kv_side side, uint32_t first, uint32_t n,
		      const uint8_t *bytes, uint8_t *plane)
{
	uint32_t size = o->bytes, words[KV_HEAD_DIM_MAX];

	if (side == KV_SIDE_K)
		for (uint32_t t = 0; t < n; t++) {
			memcpy(words, bytes + t * size, size);
			scatter(size / 4, kv_plane_at(o, first + t), 4, words, plane);
		}
	else if (n == TOKENS)
		for (uint32_t t = 0; t < TOKENS / 2; t += 2) {
			interleave4(size, bytes + t * size, bytes + (t + 8) * size, bytes + (t + 1) * size,
				    bytes + (t + 9) * size, words);
			scatter(size, kv_plane_at(o, t), 1, words, plane);
		}
	else
		for (uint32_t t = 0; t < n; t++)
			for (uint32_t k = 0; k < size; k++)
				plane[kv_plane_at(o, first + t)[k]] = bytes[t * size + k];
}

static void bytes_get(const struct kv_plane_order *o, enum kv_side side, uint32_t first, uint32_t n,
		      const uint8_t *plane, uint8_t *bytes)
{
	uint32_t size = o->bytes, words[KV_HEAD_DIM_MAX];

	if (side == KV_SIDE_K)
		for (uint32_t t = 0; t < n; t++) {
			gather(size / 4, kv_plane_at(o, first + t), 4, plane, words);
			memcpy(bytes + t * size, words, size);
		}
	else if (n == TOKENS)
		for (uint32_t t = 0; t < TOKENS / 2; t += 2) {
			gather(size, kv_plane_at(o, t), 1, plane, words);
			part4(size, words, bytes + t * size, bytes + (t + 8) * size, bytes + (t + 1) * size,
			      bytes + (t + 9) * size);
		}
	else
		for (uint32_t t = 0; t < n; t++)
			for (uint32_t k = 0; k < size; k++)
				bytes[t * size + k] = plane[kv_plane_at(o, first + t)[k]];
}

static void halves_put(const struct kv_plane_order *o, enum kv_side side, uint32_t d, uint32_t first, uint32_t n,
		       const uint16_t *rows, uint8_t *plane)
{
	uint32_t words[KV_HEAD_DIM_MAX];

	if (side == KV_SIDE_V && n == TOKENS) {
		for (uint32_t t = 0; t < TOKENS; t += 2) {
			interleave2(d, rows + t * d, rows + (t + 1) * d, words);
			scatter(d, kv_plane_at(o, t), 2, words, plane);
		}
		return;
	}
	for (uint32_t t = 0; t < n; t++) {
		const uint16_t *at = kv_plane_at(o, first + t), *row = rows + t * d;

		if (side == KV_SIDE_K) {
			memcpy(words, row, d * sizeof(*row));
			scatter(d / 2, at, 4, words, plane);
		} else {
			for (uint32_t i = 0; i < d; i++)
				memcpy(plane + at[2 * i], &row[i], sizeof(*row));
		}
	}
}

static void halves_get(const struct kv_plane_order *o, enum kv_side side, uint32_t d, uint32_t first, uint32_t n,
		       const uint8_t *plane, uint16_t *rows)
{
	uint32_t words[KV_HEAD_DIM_MAX];

	if (side == KV_SIDE_V && n == TOKENS) {
		for (uint32_t t = 0; t < TOKENS; t += 2) {
			gather(d, kv_plane_at(o, t), 2, plane, words);
			part2(d, words, rows + t * d, rows + (t + 1) * d);
		}
		return;
	}
	for (uint32_t t = 0; t < n; t++) {
		const uint16_t *at = kv_plane_at(o, first + t);
		uint16_t *row = rows + t * d;

		if (side == KV_SIDE_K) {
			gather(d / 2, at, 4, plane, words);
			memcpy(row, words, d * sizeof(*row));
		} else {
			for (uint32_t i = 0; i < d; i++)
				memcpy(&row[i], plane + at[2 * i], sizeof(*row));
		}
	}
}

/* One plane of the codes: their bits from `shift` on. width and shift are constants of the callers. */
KV_INLINE void plane_put(const struct kv_plane_order *o, unsigned width, unsigned shift, enum kv_side side,
			 uint32_t d, uint32_t first, uint32_t n, const uint8_t *rows, uint8_t *plane)
{
	uint8_t bytes[TOKENS * KV_HEAD_DIM_MAX];

	for (uint32_t t = 0; t < n; t++)
		fold(o, width, shift, rows + t * d, bytes + t * o->bytes);
	bytes_put(o, side, first, n, bytes, plane);
}

KV_INLINE void plane_get(const struct kv_plane_order *o, unsigned width, unsigned shift, enum kv_side side,
			 uint32_t d, uint32_t first, uint32_t n, const uint8_t *plane, uint8_t *rows)
{
	uint8_t bytes[TOKENS * KV_HEAD_DIM_MAX];

	bytes_get(o, side, first, n, plane, bytes);
	for (uint32_t t = 0; t < n; t++)
		unfold(o, width, shift, bytes + t * o->bytes, rows + t * d);
}

/* The planes of a format; false if one of them has no parts or no words (leftovers of d = 64, 96 and 192). */
static bool planes_of(enum kv_format f, enum kv_side side, uint32_t d, const struct kv_plane_order *o[2])
{
	unsigned bits = kv_format_info(f)->code_bits;

	o[0] = kv_plane_order(bits == 3 ? 2 : bits, side, d);
	o[1] = bits == 3 ? kv_plane_order(1, side, d) : o[0];
	return o[0]->words && o[1]->words && (bits == 16 || (o[0]->parts && o[1]->parts));
}

static uint16_t code_at(bool wide, const void *rows, size_t i)
{
	return wide ? ((const uint16_t *)rows)[i] : ((const uint8_t *)rows)[i];
}

void kv_rows_pack(enum kv_format f, enum kv_side side, uint32_t d, uint32_t first, uint32_t n,
		  const void *rows, uint8_t *part)
{
	unsigned bits = kv_format_info(f)->code_bits;
	uint8_t *second = part + TOKENS * d * 2 / 8;
	const struct kv_plane_order *o[2];
	uint16_t codes[KV_HEAD_DIM_MAX];

	if (!planes_of(f, side, d, o)) {
		for (uint32_t t = 0; t < n; t++) {
			for (uint32_t i = 0; i < d; i++)
				codes[i] = code_at(bits == 16, rows, t * d + i);
			kv_token_pack(f, side, d, first + t, codes, part);
		}
	} else if (bits == 16) {
		halves_put(o[0], side, d, first, n, rows, part);
	} else if (bits == 8) {
		bytes_put(o[0], side, first, n, rows, part);
	} else if (bits == 4) {
		plane_put(o[0], 4, 0, side, d, first, n, rows, part);
	} else {
		plane_put(o[0], 2, 0, side, d, first, n, rows, part);
		if (bits == 3)
			plane_put(o[1], 1, 2, side, d, first, n, rows, second);
	}
}

void kv_rows_unpack(enum kv_format f, enum kv_side side, uint32_t d, uint32_t first, uint32_t n,
		    const uint8_t *part, void *rows)
{
	unsigned bits = kv_format_info(f)->code_bits;
	const uint8_t *second = part + TOKENS * d * 2 / 8;
	const struct kv_plane_order *o[2];
	uint16_t codes[KV_HEAD_DIM_MAX];

	if (!planes_of(f, side, d, o)) {
		for (uint32_t t = 0; t < n; t++) {
			kv_token_unpack(f, side, d, first + t, part, codes);
			for (uint32_t i = 0; i < d; i++)
				if (bits == 16)
					((uint16_t *)rows)[t * d + i] = codes[i];
				else
					((uint8_t *)rows)[t * d + i] = (uint8_t)codes[i];
		}
	} else if (bits == 16) {
		halves_get(o[0], side, d, first, n, part, rows);
	} else if (bits == 8) {
		bytes_get(o[0], side, first, n, part, rows);
	} else if (bits == 4) {
		plane_get(o[0], 4, 0, side, d, first, n, part, rows);
	} else {
		plane_get(o[0], 2, 0, side, d, first, n, part, rows);
		if (bits == 3)
			plane_get(o[1], 1, 2, side, d, first, n, second, rows);
	}
}
