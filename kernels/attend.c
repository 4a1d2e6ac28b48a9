/* Attention over packed blocks, a tile at a time.
 *
 * The rows that share a KV head (queries x heads of the group) are taken in passes of at most PASS_ROWS. A
 * pass walks the tokens that any of its rows sees in tiles of TILE_TOKENS: the tile's atoms are decoded
 * once, then every group of TILE_ROWS rows does S = Q K^T, the online softmax and O += P V against it, the
 * two products by one small matrix kernel whose inner loop runs along contiguous floats (K's tile is
 * transposed for it; with fewer rows than MATRIX_ROWS the transposition costs more than it saves and plain
 * dot products are taken).
 *
 * Nothing is rotated back inside the loop. The rotation R is unnormalised, R^T R = d, so that (R q) . (R
 * k) = d q . k: 1/d goes into the scale; and sum p (R v) = R sum p v, so that O is rotated back once, at
 * the end.
 *
 * fp32 throughout, but no sum is long: a tile's weights are summed into a double, and every FLUSH_TILES
 * tiles O is added to a second accumulator and starts again at zero, so that the rounding error does not
 * grow with the number of tokens.
 */
#include "kernels/attend.h"
#include "kernels/simd.h"

#include <math.h>
#include <string.h>

enum {
	LANES = 8,         /* floats of a vec8 */
	TILE_TOKENS = 64,
	TILE_ROWS = 64,
	PASS_ROWS = 512,   /* bounds the scratch; each atom is decoded once a pass */
	MATRIX_ROWS = 4,
	MATRIX_COLS = 32,  /* columns of the matrix kernel come in multiples of it; so do head dims */
	FLUSH_TILES = 32,
	SCRATCH_ALIGN = 64,
};

#define INLINE static inline __attribute__((always_inline)) /* into every clone of its callers */
#define POSITION_MAX ((int64_t)1 << 62)

typedef float vec8 __attribute__((vector_size(32), may_alias));

/* What a row has seen so far. acc and total of the pass are relative to exp(max) and exp(total_max). */
struct row {
	int64_t from, to; /* tokens it sees */
	double sum;       /* of exp(s - max) */
	float max, total_max;
};

/* One pass. Matrices are row-major; their rows are multiples of MATRIX_COLS floats. */
struct pass {
	const struct kv_attend *a;
	uint32_t head, group; /* KV head; query heads that share it */
	uint64_t first_row;   /* row of the head: query * group + head of the group */
	uint32_t rows;
	uint32_t dk, wide;    /* dims of K; dims accumulated */
	bool k_rotated, out_rotated;
	struct row *row;      /* [rows] */
	float *q;             /* [rows][dk], scaled */
	float *acc, *total;   /* [rows][wide] */
	float *k, *kt;        /* [TILE_TOKENS][dk], [dk][TILE_TOKENS] */
	float *v;             /* [TILE_TOKENS][wide]; k itself where V is a view of K */
	float *s;             /* [TILE_ROWS][TILE_TOKENS]: scores, then weights */
};

/* c[rows][vecs * LANES] += a[rows][depth] b[depth][vecs * LANES], with c in registers. */
INLINE void panel(unsigned rows, unsigned vecs, uint32_t depth, const float *a, size_t lda, const float *b,
		  size_t ldb, float *c, size_t ldc)
{
	vec8 sum[4][4];

	for (unsigned r = 0; r < rows; r++)
		for (unsigned j = 0; j < vecs; j++)
			sum[r][j] = *(const vec8 *)(c + r * ldc + j * LANES);
	for (uint32_t i = 0; i < depth; i++)
		for (unsigned r = 0; r < rows; r++)
			for (unsigned j = 0; j < vecs; j++)
				sum[r][j] += a[r * lda + i] * *(const vec8 *)(b + i * ldb + j * LANES);
	for (unsigned r = 0; r < rows; r++)
		for (unsigned j = 0; j < vecs; j++)
			*(vec8 *)(c + r * ldc + j * LANES) = sum[r][j];
}

/* c[rows][cols] += a[rows][depth] b[depth][cols]; cols is a multiple of MATRIX_COLS. */
KV_CLONES static void multiply_add(uint32_t rows, uint32_t cols, uint32_t depth, const float *a, size_t lda,
				   const float *b, size_t ldb, float *c, size_t ldc)
{
	uint32_t r = 0;

	for (; r + 4 <= rows; r += 4)
		for (uint32_t j = 0; j < cols; j += 2 * LANES)
			panel(4, 2, depth, a + r * lda, lda, b + j, ldb, c + r * ldc + j, ldc);
	for (; r < rows; r++)
		for (uint32_t j = 0; j < cols; j += 4 * LANES)
			panel(1, 4, depth, a + r * lda, lda, b + j, ldb, c + r * ldc + j, ldc);
}

/* Transposes eight vectors in registers. */
INLINE void transpose8(vec8 x[LANES])
{
	vec8 y[LANES], z[LANES];

	for (unsigned i = 0; i < LANES; i += 2) {
		y[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
		y[i + 1] = __builtin_shufflevector(x[i], x[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
	}
	for (unsigned i = 0; i < LANES; i++) {
		unsigned low = i & ~2u;

		z[i] = i & 2 ? __builtin_shufflevector(y[low], y[low + 2], 2, 3, 10, 11, 6, 7, 14, 15)
			     : __builtin_shufflevector(y[low], y[low + 2], 0, 1, 8, 9, 4, 5, 12, 13);
	}
	for (unsigned i = 0; i < LANES / 2; i++) {
		x[i] = __builtin_shufflevector(z[i], z[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
		x[i + 4] = __builtin_shufflevector(z[i], z[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
	}
}

/* kt[dk][TILE_TOKENS] <- the transpose of the first `tokens` (a multiple of LANES) rows of
 * k[TILE_TOKENS][dk]. */
KV_CLONES static void transpose_tile(uint32_t tokens, uint32_t dk, const float *k, float *kt)
{
	for (uint32_t t = 0; t < tokens; t += LANES)
		for (uint32_t i = 0; i < dk; i += LANES) {
			vec8 x[LANES];

			for (unsigned r = 0; r < LANES; r++)
				x[r] = *(const vec8 *)(k + (size_t)(t + r) * dk + i);
			transpose8(x);
			for (unsigned r = 0; r < LANES; r++)
				*(vec8 *)(kt + (size_t)(i + r) * TILE_TOKENS + t) = x[r];
		}
}

/* s[tokens] = k q, tokens a multiple of LANES. */
KV_CLONES static void dot_products(uint32_t tokens, uint32_t dk, const float *q, const float *k, float *s)
{
	for (uint32_t t = 0; t < tokens; t += LANES) {
		const float *row = k + (size_t)t * dk;
		vec8 x[LANES] = {{0}};

		for (uint32_t i = 0; i < dk; i += LANES)
			for (unsigned r = 0; r < LANES; r++)
				x[r] += *(const vec8 *)(q + i) * *(const vec8 *)(row + (size_t)r * dk + i);
		transpose8(x);
		*(vec8 *)(s + t) = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
	}
}

/* exp(x) for x <= 0, to a unit in the last place; 0 below exp(-87), NaN for NaN. x = n ln 2 + f with |f|
 * <= ln(2) / 2; adding 1.5 * 2^23 leaves n in the low bits; a Taylor polynomial of degree 7 is exact
 * enough for exp(f). */
INLINE float exp_nonpositive(float x)
{
	float bounded = x < -87.0f ? -87.0f : x;
	float shifted = bounded * 1.44269504f + 12582912.0f;
	float n = shifted - 12582912.0f;
	float f = bounded - n * 0.693359375f + n * 2.12194440e-4f;
	float p = 1.0f / 5040, power;
	uint32_t bits;

	p = p * f + 1.0f / 720;
	p = p * f + 1.0f / 120;
	p = p * f + 1.0f / 24;
	p = p * f + 1.0f / 6;
	p = p * f + 0.5f;
	p = p * f * f + f + 1.0f;
	memcpy(&bits, &shifted, sizeof(bits));
	bits = (bits - 0x4b400000u + 127) << 23;
	memcpy(&power, &bits, sizeof(power));
	return x < -87.0f ? 0.0f : p * power;
}

/* Scores s[n] (a multiple of LANES) of one row become weights exp(s - max); returns the factor for what was
 * accumulated before. A masked token's score is -INFINITY and its weight 0. */
KV_CLONES static float soften(uint32_t n, float *s, struct row *row)
{
	float top[LANES], part[LANES] = {0}, max = row->max, base, factor;
	double sum = 0;

	for (unsigned j = 0; j < LANES; j++)
		top[j] = s[j];
	for (uint32_t i = LANES; i < n; i += LANES)
		for (unsigned j = 0; j < LANES; j++)
			top[j] = s[i + j] > top[j] ? s[i + j] : top[j];
	for (unsigned j = 0; j < LANES; j++)
		max = top[j] > max ? top[j] : max;
	base = max == -INFINITY ? 0 : max;
	for (uint32_t i = 0; i < n; i++)
		s[i] = exp_nonpositive(s[i] - base);
	for (uint32_t i = 0; i < n; i += LANES)
		for (unsigned j = 0; j < LANES; j++)
			part[j] += s[i + j];
	for (unsigned j = 0; j < LANES; j++)
		sum += (double)part[j];
	factor = row->max == max ? 1.0f : expf(row->max - base);
	row->sum = row->sum * (double)factor + sum;
	row->max = max;
	return factor;
}

/* x <- x * factor (+ y where there is one). */
KV_CLONES static void scale_add(uint32_t n, float factor, float *restrict x, const float *restrict y)
{
	if (y)
		for (uint32_t i = 0; i < n; i++)
			x[i] = x[i] * factor + y[i];
	else
		for (uint32_t i = 0; i < n; i++)
			x[i] *= factor;
}

static void load(const void *src, enum kv_dtype type, size_t at, uint32_t n, float scale, float *x)
{
	const float *f = src;
	const uint16_t *h = src;

	for (uint32_t i = 0; i < n; i++)
		x[i] = scale * (type == KV_DTYPE_F32   ? f[at + i]
				: type == KV_DTYPE_F16 ? kv_half_to(h[at + i])
						       : kv_bf16_to(h[at + i]));
}

static void store(void *dst, enum kv_dtype type, size_t at, uint32_t n, const float *x)
{
	float *f = dst;
	uint16_t *h = dst;

	if (type == KV_DTYPE_F32)
		memcpy(f + at, x, n * sizeof(*x));
	else
		for (uint32_t i = 0; i < n; i++)
			h[at + i] = type == KV_DTYPE_F16 ? kv_half_from(x[i]) : kv_bf16_from(x[i]);
}

/* The tokens that query i sees: from <= j < to; 0, 0 if none. Both only grow with i until there are none. */
static void query_sees(const struct kv_attend *a, uint64_t i, int64_t *from, int64_t *to)
{
	int64_t p = a->first_pos + (int64_t)i, n = a->kv_tokens, window = a->layout->window;

	*from = window && p - window >= 0 ? p - window + 1 : 0;
	*to = a->causal && p + 1 < n ? p + 1 : n;
	if (*from >= *to)
		*from = *to = 0;
}

/* The tokens that at least one of `n` rows from `r` on sees. */
static void rows_see(const struct row *row, uint32_t n, int64_t *from, int64_t *to)
{
	*from = INT64_MAX;
	*to = 0;
	for (uint32_t r = 0; r < n; r++)
		if (row[r].from < row[r].to) {
			*from = row[r].from < *from ? row[r].from : *from;
			*to = row[r].to > *to ? row[r].to : *to;
		}
}

/* Index of a row of the pass among the [queries][q_heads] vectors. */
static size_t row_vector(const struct pass *p, uint32_t r)
{
	uint64_t row = p->first_row + r;

	return row / p->group * p->a->q_heads + (uint64_t)p->head * p->group + row % p->group;
}

static void load_queries(struct pass *p)
{
	const struct kv_attend *a = p->a;
	float scale = p->k_rotated ? a->scale / (float)p->dk : a->scale;

	for (uint32_t r = 0; r < p->rows; r++) {
		float *q = p->q + (size_t)r * p->dk;
		struct row *row = p->row + r;

		load(a->q, a->q_dtype, row_vector(p, r) * p->dk, p->dk, scale, q);
		if (p->k_rotated)
			kv_rotate(q, p->dk);
		*row = (struct row){.max = -INFINITY, .total_max = -INFINITY};
		query_sees(a, (p->first_row + r) / p->group, &row->from, &row->to);
	}
	memset(p->acc, 0, (size_t)p->rows * p->wide * sizeof(*p->acc));
	memset(p->total, 0, (size_t)p->rows * p->wide * sizeof(*p->total));
}

/* Decodes the tokens at .. end - 1 (at most a tile) and transposes K. Tokens before `from` become zeros:
 * their weight of 0 must meet no NaN. What the tile holds past `end` is anything, and masked. */
static void load_tile(struct pass *p, int64_t at, int64_t from, int64_t end)
{
	const struct kv_attend *a = p->a;
	const struct kv_layout *l = a->layout;
	const struct kv_geometry *g = a->geometry;
	uint32_t n = (uint32_t)(end - at);

	for (uint32_t t = 0; t < n; t += KV_ATOM_TOKENS) {
		uint32_t token = (uint32_t)at + t;
		const uint8_t *block = a->blocks[token / l->block_tokens];
		const uint8_t *atom = block + kv_atom_at(g, a->layer, p->head, token % l->block_tokens);
		uint32_t tokens = n - t < KV_ATOM_TOKENS ? n - t : KV_ATOM_TOKENS;

		kv_decode_atom(l->k_format, KV_SIDE_K, p->dk, atom + g->k_codes_at, atom + g->k_scales_at,
			       tokens, p->k + (size_t)t * p->dk);
		if (l->v_format != KV_NONE)
			kv_decode_atom(l->v_format, KV_SIDE_V, p->wide, atom + g->v_codes_at,
				       atom + g->v_scales_at, tokens, p->v + (size_t)t * p->wide);
	}
	if (from > at) {
		memset(p->k, 0, (size_t)(from - at) * p->dk * sizeof(*p->k));
		memset(p->v, 0, (size_t)(from - at) * p->wide * sizeof(*p->v));
	}
	if (p->rows >= MATRIX_ROWS)
		transpose_tile((n + LANES - 1) / LANES * LANES, p->dk, p->k, p->kt);
}

/* s[n][TILE_TOKENS] <- the scores of n rows against the tile's first `tokens` tokens, and of some padding. */
static void score_tile(struct pass *p, uint32_t first, uint32_t n, uint32_t tokens)
{
	uint32_t cols = (tokens + MATRIX_COLS - 1) / MATRIX_COLS * MATRIX_COLS;
	const float *q = p->q + (size_t)first * p->dk;

	if (p->rows < MATRIX_ROWS) {
		for (uint32_t r = 0; r < n; r++)
			dot_products(cols, p->dk, q + (size_t)r * p->dk, p->k,
				     p->s + (size_t)r * TILE_TOKENS);
		return;
	}
	memset(p->s, 0, (size_t)n * TILE_TOKENS * sizeof(*p->s));
	multiply_add(n, cols, p->dk, q, p->dk, p->kt, TILE_TOKENS, p->s, TILE_TOKENS);
}

/* Rows first .. first + n - 1 (at most TILE_ROWS) against the tile that begins at token `at`. */
static void attend_tile(struct pass *p, uint32_t first, uint32_t n, int64_t at)
{
	int64_t from, to;
	uint32_t tokens, padded;

	rows_see(p->row + first, n, &from, &to);
	if (to <= at || from >= at + TILE_TOKENS)
		return;
	tokens = to - at < TILE_TOKENS ? (uint32_t)(to - at) : TILE_TOKENS;
	padded = (tokens + LANES - 1) / LANES * LANES;
	score_tile(p, first, n, tokens);
	for (uint32_t r = 0; r < n; r++) {
		struct row *row = p->row + first + r;
		float *s = p->s + (size_t)r * TILE_TOKENS, factor;

		for (uint32_t t = 0; t < padded && at + t < row->from; t++)
			s[t] = -INFINITY;
		for (uint32_t t = padded; t > 0 && at + t > row->to; t--)
			s[t - 1] = -INFINITY;
		factor = soften(padded, s, row);
		if (factor != 1.0f)
			scale_add(p->wide, factor, p->acc + (size_t)(first + r) * p->wide, NULL);
	}
	multiply_add(n, p->wide, tokens, p->s, TILE_TOKENS, p->v, p->wide, p->acc + (size_t)first * p->wide,
		     p->wide);
}

/* total += acc, acc <- 0. */
static void flush(struct pass *p)
{
	for (uint32_t r = 0; r < p->rows; r++) {
		struct row *row = p->row + r;
		float factor = row->total_max == row->max ? 1.0f : expf(row->total_max - row->max);

		scale_add(p->wide, factor, p->total + (size_t)r * p->wide, p->acc + (size_t)r * p->wide);
		row->total_max = row->max;
	}
	memset(p->acc, 0, (size_t)p->rows * p->wide * sizeof(*p->acc));
}

static void store_rows(struct pass *p)
{
	const struct kv_attend *a = p->a;
	uint32_t d = a->layout->head_dim_v;

	for (uint32_t r = 0; r < p->rows; r++) {
		const struct row *row = p->row + r;
		float *x = p->total + (size_t)r * p->wide;
		size_t vector = row_vector(p, r);
		bool seen = row->sum != 0;

		if (seen)
			scale_add(p->wide, (float)(1 / row->sum), x, NULL);
		else
			memset(x, 0, p->wide * sizeof(*x));
		if (seen && p->out_rotated)
			kv_unrotate(x, p->wide);
		store(a->out, a->out_dtype, vector * d, d, x);
		if (a->lse)
			a->lse[vector] = seen ? (float)((double)row->max + log(row->sum)) : -INFINITY;
	}
}

static void run_pass(struct pass *p)
{
	int64_t from, to;
	uint32_t tiles = 0;

	load_queries(p);
	rows_see(p->row, p->rows, &from, &to);
	if (from < to)
		for (int64_t at = from - from % KV_ATOM_TOKENS; at < to; at += TILE_TOKENS) {
			load_tile(p, at, from, to - at < TILE_TOKENS ? to : at + TILE_TOKENS);
			for (uint32_t r = 0; r < p->rows; r += TILE_ROWS)
				attend_tile(p, r, p->rows - r < TILE_ROWS ? p->rows - r : TILE_ROWS, at);
			if (++tiles % FLUSH_TILES == 0)
				flush(p);
		}
	flush(p);
	store_rows(p);
}

static bool dtype_known(enum kv_dtype t)
{
	return t == KV_DTYPE_F32 || t == KV_DTYPE_F16 || t == KV_DTYPE_BF16;
}

/* What is wrong with everything but the pointers to data. */
static const char *shape_problem(const struct kv_attend *a)
{
	const char *problem;

	if (!a || !a->layout || !a->geometry)
		return "attention without a layout and its geometry";
	problem = kv_layout_problem(a->layout);
	if (problem)
		return problem;
	if (a->layer >= a->layout->layers)
		return "layer out of the layout's range";
	if (a->q_heads == 0 || a->q_heads % a->layout->heads)
		return "q_heads is not a multiple of the layout's KV heads";
	if (!dtype_known(a->q_dtype) || !dtype_known(a->out_dtype))
		return "unknown dtype of q or out";
	if (a->first_pos > POSITION_MAX || a->first_pos < -POSITION_MAX)
		return "first_pos is out of range";
	if (!isfinite(a->scale))
		return "scale is not finite";
	return NULL;
}

/* What is wrong with the blocks that a query sees; the others are never looked at. No query sees a token
 * before the first query's: if that sees none, it stands before token 0, or behind with all the others. */
static const char *blocks_problem(const struct kv_attend *a)
{
	int64_t from, to, last_from, last_to, size = a->layout->block_tokens;

	query_sees(a, 0, &from, &to);
	query_sees(a, a->queries - 1, &last_from, &last_to);
	if (last_to > to)
		to = last_to;
	if (from < to && !a->blocks)
		return "no blocks";
	for (int64_t b = from / size; b * size < to; b++)
		if (!a->blocks[b] || (uintptr_t)a->blocks[b] % 16)
			return "a block's address is null or not a multiple of 16";
	return NULL;
}

static bool misplaced(const void *data, enum kv_dtype type)
{
	return !data || (uintptr_t)data % kv_dtype_bytes(type);
}

static const char *run_problem(const struct kv_attend *a, const void *scratch)
{
	const char *problem = shape_problem(a);

	if (problem || a->queries == 0)
		return problem;
	if (misplaced(a->q, a->q_dtype) || misplaced(a->out, a->out_dtype))
		return "q or out is null or not aligned to its elements";
	if ((uintptr_t)a->lse % sizeof(float))
		return "lse is not aligned to its elements";
	if (!scratch || (uintptr_t)scratch % SCRATCH_ALIGN)
		return "scratch is null or not 64-byte aligned";
	return blocks_problem(a);
}

/* Fills in the shape, and the pointers into the scratch if there is one; returns the bytes taken. */
static size_t pass_init(struct pass *p, const struct kv_attend *a, void *scratch)
{
	const struct kv_layout *l = a->layout;
	bool view = l->v_format == KV_NONE;
	uint32_t group = a->q_heads / l->heads;
	uint64_t all = (uint64_t)a->queries * group;
	size_t rows = all < PASS_ROWS ? (size_t)all : PASS_ROWS;
	float *x = scratch;

	*p = (struct pass){.a = a, .group = group, .dk = l->head_dim_k};
	p->k_rotated = kv_format_info(l->k_format)->rotated;
	p->out_rotated = view ? p->k_rotated : kv_format_info(l->v_format)->rotated;
	p->wide = view ? p->dk : l->head_dim_v;
	if (scratch) {
		p->q = x;
		p->acc = p->q + rows * p->dk;
		p->total = p->acc + rows * p->wide;
		p->k = p->total + rows * p->wide;
		p->kt = p->k + TILE_TOKENS * p->dk;
		p->v = view ? p->k : p->kt + TILE_TOKENS * p->dk;
		p->s = p->kt + TILE_TOKENS * (p->dk + (view ? 0 : p->wide));
		p->row = (struct row *)(p->s + TILE_ROWS * TILE_TOKENS);
	}
	return rows * sizeof(*p->row) +
	       sizeof(float) * (rows * (p->dk + 2 * p->wide) + TILE_ROWS * TILE_TOKENS +
				TILE_TOKENS * (2 * p->dk + (view ? 0 : p->wide)));
}

size_t kv_attend_scratch(const struct kv_attend *a)
{
	struct pass p;

	return shape_problem(a) ? 0 : pass_init(&p, a, NULL);
}

const char *kv_attend_run(const struct kv_attend *a, void *scratch)
{
	const char *problem = run_problem(a, scratch);
	struct pass p;
	uint64_t rows;

	if (problem || a->queries == 0)
		return problem;
	pass_init(&p, a, scratch);
	rows = (uint64_t)a->queries * p.group;
	for (p.head = 0; p.head < a->layout->heads; p.head++)
		for (p.first_row = 0; p.first_row < rows; p.first_row += PASS_ROWS) {
			p.rows = rows - p.first_row < PASS_ROWS ? (uint32_t)(rows - p.first_row) : PASS_ROWS;
			run_pass(&p);
		}
	return NULL;
}
