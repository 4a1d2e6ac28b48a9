/* Loads of codes and of scales, and functions by format and number of rows. For files that have included their own
 * lanes before.
 */
#ifndef TERRACE_KERNELS_ATTEND_LANES_LOAD_H
#define TERRACE_KERNELS_ATTEND_LANES_LOAD_H

#include "kernels/attend_lanes.h"

enum {
	LOADS = 8, /* values of g */
	VECTOR_BYTES = 512,
	LOAD_BYTES = 64,
	INT4_CENTRE = 8,
};

/* A load of codes: its words, and for 2 and 3 bits their even and odd fields as nibbles. */
struct load {
	const uint8_t *at;
	words w, even, odd;
};

LANES_FN bool two_bits(enum kv_format f)
{
	return f == KV_TQ3 || f == KV_TQ2;
}

/* Lane l's word of the sign plane and how far its bits are shifted, at 128 and 256 dims (m = 0, 1), K and V. */
static const uint32_t sign_word[2][3][KV_LANES] = {
	{{0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7},
	 {0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13},
	 {2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15}},
	{{0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7},
	 {0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13},
	 {2, 2, 3, 3, 6, 6, 7, 7, 10, 10, 11, 11, 14, 14, 15, 15}},
};
static const uint32_t sign_shift[2][KV_LANES] = {
	{0, 0, 4, 4, 0, 0, 4, 4, 0, 0, 4, 4, 0, 0, 4, 4},
	{0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4},
};

/* The signs of a load of magnitudes: bit q of every byte is that of field q. */
LANES_FN words signs_of(enum kv_side side, uint32_t d, const uint8_t *codes, uint32_t m, uint32_t g)
{
	bool wide = d == 256;
	const uint8_t *at = codes + KV_ATOM_TOKENS * d / 4 + g * (wide ? LOAD_BYTES : LOAD_BYTES / 2);
	words s = words_spread(at, wide, words_load(sign_word[side][wide ? 1 + m : 0]));

	return words_shr_each(s, words_load(sign_shift[side]));
}

LANES_FN struct load load_codes(enum kv_format f, enum kv_side side, uint32_t d, const uint8_t *codes, uint32_t m,
				uint32_t g)
{
	struct load x = {.at = codes + m * VECTOR_BYTES + g * LOAD_BYTES};

	if (f == KV_F16)
		return x;
	x.w = words_load(x.at);
	if (two_bits(f)) {
		words mask = words_all(0x33333333);

		x.even = words_and(x.w, mask);
		x.odd = words_and(words_shr(x.w, 2), mask);
	}
	if (f == KV_TQ3) {
		words s = signs_of(side, d, codes, m, g), low = words_all(0x04040404), high = words_all(0x40404040);

		x.even = words_or(x.even, words_or(words_and(words_shl(s, 2), low),
						   words_and(words_shl(s, 4), high)));
		x.odd = words_or(x.odd, words_or(words_and(words_shl(s, 1), low),
						 words_and(words_shl(s, 3), high)));
	}
	return x;
}

/* The scales of an atom's tokens as factors of what field_of gives; zero: 8 less the zero points. */
LANES_FN floats scales_of(enum kv_format f, const uint8_t *scales, floats *zero)
{
	words bits;

	switch (f) {
	case KV_F16:
	case KV_BF16:
		return floats_all(1);
	case KV_FP8:
		return floats_mul(floats_half(scales), floats_all(256));
	case KV_INT4_PTH:
		bits = words_load(scales);
		*zero = floats_sub(floats_all(INT4_CENTRE), floats_converted(words_and(bits, words_all(15))));
		return floats_of(words_and(bits, words_all(~15u)));
	default: /* the codebooks'; only formats with fields come here (lane_order.h) */
		return floats_half(scales);
	}
}

LANES_FN bool scaled(enum kv_format f)
{
	return kv_format_info(f)->scale_bytes > 0;
}

/* Rows in groups of at most `most` (4, 2 or 1). */
#define FOR_ROWS(work, f, most, a)                                            \
	for (uint32_t first = 0, n; first < kv_lane_rows((a)->rows); first += n) { \
		n = kv_lane_rows((a)->rows) - first;                          \
		n = n >= 4 && (most) >= 4 ? 4 : n >= 2 && (most) >= 2 ? 2 : 1; \
		if (n == 4 && (most) >= 4)                                    \
			work(f, 4, a, first);                                 \
		else if (n == 2 && (most) >= 2)                               \
			work(f, 2, a, first);                                 \
		else                                                          \
			work(f, 1, a, first);                                 \
	}

#define FORMAT_FUNCTIONS(name, f, weigh_rows_max)                                                        \
	static void score_##name(const struct kv_lane_scores *a)                         \
	{                                                                                \
		FOR_ROWS(score_rows, f, 4, a)                                         \
	}                                                                                \
	static void weigh_##name(const struct kv_lane_weighing *a)                       \
	{                                                                                \
		FOR_ROWS(weigh_rows, f, weigh_rows_max, a)           \
	}

#endif
