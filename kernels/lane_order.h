/* Which token and which dim are in each lane when an atom's codes are read 64 bytes at a time, as fields of 16 lanes.
 * The tables are built from kv_code_places at their first use, by any thread. They are never freed and never changed.
 *
 * A plane in which the tensor core's lanes have whole 16-byte vectors (kernels/README.md) is read in *loads*. Load (m,
 * g), the 64 bytes at 512 m + 64 g, is lanes 4g .. 4g + 3 of vector m: tokens g and g + 8 of K, dims of row g of V. A
 * load has `fields` fields of 16 lanes; kv_lane_place says where in the load each of them is. Positions of tokens are
 * counted in the order of the scales: 0 8 1 9 2 10 ... 7 15.
 */
#ifndef TERRACE_KERNELS_LANE_ORDER_H
#define TERRACE_KERNELS_LANE_ORDER_H

#include "kernels/codec.h"

enum {
	KV_LANES = 16,
	KV_LANE_FIELDS_MAX = 16,                  /* fields of a load */
	KV_LANE_CLASSES_MAX = 4,
	KV_LANE_DIM_MAX = 256,
		/* what has lanes: 15 bits of a query times 8 of a value fit a sum of 32 */
	KV_LANE_Q_MAX = KV_LANE_DIM_MAX / 8,      /* loads of one g times fields */
	KV_LANE_SUMS_MAX = KV_LANE_DIM_MAX * 8 / KV_LANES,
};

struct kv_lane_order {
	uint32_t vectors; /* values of m */
	unsigned fields;
	/* K: dim of lane l of field f of load (m, any g) */
	uint8_t k_dim[KV_LANE_Q_MAX][KV_LANES]; /* [m * fields + f][l] */
	/* V: field f goes to sum kv_lane_sum(f) of its load, weighed by token class kv_lane_class(f) */
	unsigned sums, classes;
	uint8_t v_dim[KV_LANE_SUMS_MAX][KV_LANES];        /* [(m * 8 + g) * sums + sum][l] */
	uint32_t v_token[KV_LANE_CLASSES_MAX][KV_LANES];  /* position of the token of lane l */
};

/* NULL where the format's planes have no whole vectors at this head dim (d = 96: all of 4 bits and less;
 * 2 and 3 bits: 64 and 192 as well), for the dims 80, 112 and 512, and for a format without fields: attention then
 * decodes it. */
const struct kv_lane_order *kv_lane_order(enum kv_format f, enum kv_side side, uint32_t d);

/* The numbers of sums and classes of V and, of a field, which it belongs to. */
static inline unsigned kv_lane_sums(enum kv_format f)
{
	return f == KV_TQ4 || f == KV_INT4_PTH ? 2 : f == KV_TQ3 || f == KV_TQ2 ? 4 : 1;
}

/* 0: a format that the code for lanes does not know. */
static inline unsigned kv_lane_fields(enum kv_format f)
{
	return f == KV_F16 || f == KV_BF16        ? 2
	       : f == KV_FP8                      ? 4
	       : f == KV_INT4_PTH || f == KV_TQ4 ? 8
	       : f == KV_TQ3 || f == KV_TQ2       ? 16
						  : 0;
}

static inline unsigned kv_lane_sum(enum kv_format f, unsigned field)
{
	return kv_lane_sums(f) == 2 ? field % 2 : kv_lane_sums(f) == 4 ? field % 2 * 2 + field / 8 : 0;
}

static inline unsigned kv_lane_class(enum kv_format f, unsigned field)
{
	return kv_lane_sums(f) == 1 ? field : field % 8 / 2;
}

/* The byte of the load, and the bit in it, of lane l of a field: 4 bits are the nibbles of each word, low
 * ones first; 2 and 3 bits the even fields of every byte that way, then the odd ones; fp8 bytes 0 and 2 of
 * the first 8 words, of the others, then bytes 1 and 3; fp16 the first 16 halves and the others; bf16 the
 * low halves of the words and the high ones. */
static inline unsigned kv_lane_place(enum kv_format f, unsigned field, unsigned l, unsigned *shift)
{
	*shift = 0;
	switch (f) {
	case KV_F16:
		return 32 * field + 2 * l;
	case KV_BF16:
		return 4 * l + 2 * field;
	case KV_FP8:
		return 32 * (field % 2) + 2 * l + field / 2;
	default:
		*shift = 4 * (field % 2) + 2 * (field / 8);
		return 4 * l + field % 8 / 2;
	}
}

#endif
