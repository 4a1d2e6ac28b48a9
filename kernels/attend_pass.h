/* What the parts of attention share: one pass over the tokens for some rows of one KV head. attend.c drives it,
 * attend_matrix.c decodes tiles, attend_lanes.h reads the codes, attend_weight.c makes
 * weights of scores, attend_check.c says what is wrong with the parameters.
 */
#ifndef TERRACE_KERNELS_ATTEND_PASS_H
#define TERRACE_KERNELS_ATTEND_PASS_H

#include "kernels/attend.h"
#include "kernels/attend_lanes.h"

enum {
	KV_TILE_TOKENS = KV_LANE_TOKENS,
	KV_TILE_ROWS = 64,         /* rows that a tile meets at a time */
	KV_PASS_ROWS = 512,        /* of the matrix way: bounds the scratch; each atom is decoded once a pass */
	KV_SCRATCH_ALIGN = 64,
	KV_RANGES_MAX = 64,
};

#define KV_POSITION_MAX ((int64_t)1 << 62)

/* What a row has seen so far. acc and total of the pass are relative to exp(max) and exp(total_max). */
struct kv_row {
	int64_t from, to; /* tokens it sees */
	int64_t position;
	uint32_t query, head; /* query head, of all */
	double sum;           /* of exp(s - max) */
	float max, total_max;
};

/* One pass. Matrices are row-major; their rows are multiples of 16 floats. */
struct kv_pass {
	const struct kv_attend *a;
	uint32_t head, group; /* KV head; query heads that share it */
	uint64_t first_row;   /* row of the head: query * group + head of the group */
	uint32_t rows, most_rows;
	uint32_t dk, wide;    /* elements of a key, its rope part's too; dims accumulated */
	bool k_rotated, out_rotated;
	struct kv_row *row;   /* [rows] */
	float *q;             /* [rows][dk], scaled */
	float *acc;           /* [rows][acc_floats] */
	float *total;         /* [rows][wide] */
	float *s;             /* [KV_TILE_ROWS][KV_TILE_TOKENS]: scores, then weights */
	size_t acc_floats;

	/* The matrix way; k, kt and v are of a tile. */
	float *k, *kt;        /* [KV_TILE_TOKENS][dk], [dk][KV_TILE_TOKENS] */
	float *v;             /* [KV_TILE_TOKENS][v_stride], `wide` of them; k itself where V is a view of K */
	uint32_t v_stride;

	/* The lanes' way, if `lanes`. */
	const struct kv_lane_code *lanes;
	const struct kv_lane_order *k_order, *v_order;
	float *lane_q;              /* of its `queries` */
	struct kv_lane_row *lane_row;
	uint8_t *ends;              /* [2] copies of V codes of atoms at the ends of what is seen */
};

/* ---- attend_check.c ---- */

/* What is wrong with everything but the pointers to data; NULL: nothing. */
const char *kv_attend_shape_problem(const struct kv_attend *a);
/* And with the rest. queries is not 0. */
const char *kv_attend_data_problem(const struct kv_attend *a, const void *scratch);
/* The tokens that query i sees, always one interval: from <= j < to; 0, 0 if none. */
void kv_attend_sees(const struct kv_attend *a, uint64_t i, int64_t *from, int64_t *to);

/* ---- attend_matrix.c ---- */

/* Decodes the tokens at .. end - 1 (at most a tile) and transposes K. Tokens before `from` become zeros:
 * their weight of 0 must meet no NaN. What the tile holds past `end` is anything, and masked. */
void kv_matrix_load(struct kv_pass *p, int64_t at, int64_t from, int64_t end);
/* p->s <- the scores of n rows against the tile's first `tokens` tokens, and of some padding. */
void kv_matrix_score(struct kv_pass *p, uint32_t first, uint32_t n, uint32_t tokens);
/* acc of n rows += weights times V of the tile's first `tokens` tokens. */
void kv_matrix_weigh(struct kv_pass *p, uint32_t first, uint32_t n, uint32_t tokens);

/* ---- attend_weight.c ---- */

/* What stands in the columns of a row's scores: tokens at + kv_column_token(c) (by position in each atom) or,
 * not by position, at + c. */
static inline uint32_t kv_column_token(uint32_t c)
{
	return c / 16 * 16 + c % 16 / 2 + c % 2 * 8;
}

/* Applies the features and the row's mask to its scores s[columns] (a multiple of 16), of tokens from `at` on,
 * and makes them weights exp(s - max), 0 where masked; returns the factor for what was accumulated before. */
float kv_attend_weights(const struct kv_pass *p, struct kv_row *row, int64_t at, uint32_t columns,
			bool by_position, float *s);

/* x <- x * factor (+ y where there is one). */
void kv_scale_add(size_t n, float factor, float *restrict x, const float *restrict y);

#endif
