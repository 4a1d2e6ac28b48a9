/* Attention straight from the codes, 16 lanes at a time: nothing is decoded into memory. Compiled for AVX-512 and for
 * AVX2 from attend_lanes_body.h; attend_vnni.c is for AVX-512 with integer dot products.
 *
 * K: a table in a register turns a load of codes into floats. They are multiplied with the queries, whose elements are
 * in the order of the lanes. The token's scale is multiplied into the sum. V: the weights, times the tokens' scales,
 * are in the order of the lanes and are multiplied with the values. A lane's sums cover a quarter or an eighth of the
 * tokens and are added up at the end. int4's codes count from 8; (8 - zero point) is multiplied by the sum of the
 * query, or of the weights, and added. A row's result does not depend on the rows beside it.
 */
#ifndef TERRACE_KERNELS_ATTEND_LANES_H
#define TERRACE_KERNELS_ATTEND_LANES_H

#include "kernels/lane_order.h"
#include "kernels/machine.h"

enum {
	KV_LANE_ATOMS = 4,       /* atoms of a tile */
	KV_LANE_TOKENS = KV_LANE_ATOMS * KV_ATOM_TOKENS,
	KV_LANE_ROWS_MAX = 64,   /* of a pass: their sums stay in the second-level cache */
};

/* One side of an atom. ahead: what will be read next, to be fetched into the cache; any address. */
struct kv_lane_atom {
	const uint8_t *codes, *scales, *ahead;
};

/* What else is known of a row of queries: its sum; or the step of its integers and their sum. */
struct kv_lane_row {
	float sum, step;
	int32_t whole;
};

/* K: rows of queries as `queries` made them; s[rows][KV_LANE_TOKENS] gets the scores of the atoms'
 * tokens, in the order of positions. */
struct kv_lane_scores {
	enum kv_format format;
	uint32_t d, rows, atoms;
	const struct kv_lane_order *order;
	const struct kv_lane_atom *atom; /* [atoms] */
	const float *q;
	const struct kv_lane_row *row;
	float *s;
};

/* V: sums[rows][kv_lane_sum_floats] += the weights w[rows][KV_LANE_TOKENS] times V. A weight of 0 takes
 * nothing of its token's scale, but the code is multiplied by 0: V of fp16 and bf16 must be finite. */
struct kv_lane_weighing {
	enum kv_format format;
	uint32_t d, rows, atoms;
	const struct kv_lane_order *order;
	const struct kv_lane_atom *atom;
	const float *w;
	float *sums;
};

struct kv_lane_code {
	/* out[kv_lane_rows(rows)][2 * d] and row[...] <- q[rows][d], for `score` alone. */
	void (*queries)(const struct kv_lane_order *k, enum kv_format f, uint32_t d, uint32_t rows, const float *q,
			float *out, struct kv_lane_row *row);
	void (*score)(const struct kv_lane_scores *);
	/* s[16 n], n <= KV_LANE_ATOMS, becomes exp(s - *max), where *max first grows to the largest of them (masked
	 * ones are -INFINITY, and so may be all); returns their sum. */
	float (*soften)(uint32_t n, float *s, float *max);
	void (*weigh)(const struct kv_lane_weighing *);
};

extern const struct kv_lane_code kv_lane_code_avx2, kv_lane_code_avx512, kv_lane_code_vnni;

/* Rows are taken in groups of 4, 2 and 1; this many are stored for `rows` of them, the rest zeroes. */
static inline uint32_t kv_lane_rows(uint32_t rows)
{
	return rows % 4 == 3 ? rows + 1 : rows;
}

/* Floats of one row in `sums`: the sums of the lanes, then 16 for int4's zero points. */
static inline uint32_t kv_lane_sum_floats(const struct kv_lane_order *v)
{
	return (v->vectors * 8 * v->sums + 1) * KV_LANES;
}

/* `queries` of floats. */
void kv_lane_queries(const struct kv_lane_order *k, enum kv_format f, uint32_t d, uint32_t rows, const float *q,
		     float *out, struct kv_lane_row *row);

/* total[d] += one row of `sums`, which becomes zeroes. */
void kv_lane_collect(const struct kv_lane_order *v, enum kv_format f, uint32_t d, float *sums, float *total);

#endif
