/* Attention by decoding a tile of tokens into floats, for the formats and machines that attend_lanes.h does not serve.
 * Both products are one small matrix kernel whose inner loop runs along contiguous floats. K's tile is transposed for
 * it, also when there are few rows. Plain dot products would be up to a tenth faster with few rows, but they add up in
 * another order: a row's result would depend on the number of rows.
 */
#include "kernels/attend_pass.h"
#include "kernels/simd.h"

#include <string.h>

enum {
	LANES = 8,         /* floats of a vec8 */
	MATRIX_COLS = 32,  /* columns of scores come in multiples of it */
};

typedef float vec8 __attribute__((vector_size(32), may_alias));

/* c[rows][vecs * LANES] += a[rows][depth] b[depth][vecs * LANES], with c in registers. */
KV_INLINE void panel(unsigned rows, unsigned vecs, uint32_t depth, const float *a, size_t lda, const float *b,
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

/* c[rows][cols] += a[rows][depth] b[depth][cols]; cols is a multiple of 2 * LANES. */
KV_CLONES static void multiply_add(uint32_t rows, uint32_t cols, uint32_t depth, const float *a, size_t lda,
				   const float *b, size_t ldb, float *c, size_t ldc)
{
	uint32_t r = 0;

	for (; r + 4 <= rows; r += 4)
		for (uint32_t j = 0; j < cols; j += 2 * LANES)
			panel(4, 2, depth, a + r * lda, lda, b + j, ldb, c + r * ldc + j, ldc);
	for (; r < rows; r++) {
		uint32_t j = 0;

		for (; j + 4 * LANES <= cols; j += 4 * LANES)
			panel(1, 4, depth, a + r * lda, lda, b + j, ldb, c + r * ldc + j, ldc);
		if (j < cols)
			panel(1, 2, depth, a + r * lda, lda, b + j, ldb, c + r * ldc + j, ldc);
	}
}

/* Transposes eight vectors in registers. */
KV_INLINE void transpose8(vec8 x[LANES])
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

/* kt[dk][KV_TILE_TOKENS] <- the transpose of the first `tokens` (a multiple of LANES) rows of
 * k[KV_TILE_TOKENS][dk]. */
KV_CLONES static void transpose_tile(uint32_t tokens, uint32_t dk, const float *k, float *kt)
{
	for (uint32_t t = 0; t < tokens; t += LANES)
		for (uint32_t i = 0; i < dk; i += LANES) {
			vec8 x[LANES];

			for (unsigned r = 0; r < LANES; r++)
				x[r] = *(const vec8 *)(k + (size_t)(t + r) * dk + i);
			transpose8(x);
			for (unsigned r = 0; r < LANES; r++)
				*(vec8 *)(kt + (size_t)(i + r) * KV_TILE_TOKENS + t) = x[r];
		}
}

void kv_matrix_load(struct kv_pass *p, int64_t at, int64_t from, int64_t end)
{
	const struct kv_attend *a = p->a;
	const struct kv_layout *l = a->layout;
	const struct kv_geometry *g = a->geometry;
	const struct kv_part k = kv_part_of(l, g, KV_SIDE_K), v = kv_part_of(l, g, KV_SIDE_V),
			     rope = kv_part_of(l, g, KV_SIDE_ROPE);
	uint32_t n = (uint32_t)(end - at);

	for (uint32_t t = 0; t < n; t += KV_ATOM_TOKENS) {
		uint32_t token = (uint32_t)at + t;
		const uint8_t *block = a->blocks[token / l->block_tokens];
		const uint8_t *atom = block + kv_atom_at(g, a->layer, p->head, token % l->block_tokens);
		uint32_t tokens = n - t < KV_ATOM_TOKENS ? n - t : KV_ATOM_TOKENS;

		kv_decode_atom(&k, atom, tokens, p->k + (size_t)t * p->dk, p->dk);
		if (rope.format != KV_NONE)
			kv_decode_atom(&rope, atom, tokens, p->k + (size_t)t * p->dk + k.d, p->dk);
		if (v.format != KV_NONE)
			kv_decode_atom(&v, atom, tokens, p->v + (size_t)t * p->v_stride, p->v_stride);
	}
	if (from > at) {
		memset(p->k, 0, (size_t)(from - at) * p->dk * sizeof(*p->k));
		memset(p->v, 0, (size_t)(from - at) * p->v_stride * sizeof(*p->v));
	}
	transpose_tile((n + LANES - 1) / LANES * LANES, p->dk, p->k, p->kt);
}

void kv_matrix_score(struct kv_pass *p, uint32_t first, uint32_t n, uint32_t tokens)
{
	uint32_t cols = (tokens + MATRIX_COLS - 1) / MATRIX_COLS * MATRIX_COLS;
	const float *q = p->q + (size_t)first * p->dk;

	memset(p->s, 0, (size_t)n * KV_TILE_TOKENS * sizeof(*p->s));
	multiply_add(n, cols, p->dk, q, p->dk, p->kt, KV_TILE_TOKENS, p->s, KV_TILE_TOKENS);
}

void kv_matrix_weigh(struct kv_pass *p, uint32_t first, uint32_t n, uint32_t tokens)
{
	multiply_add(n, p->wide, tokens, p->s, KV_TILE_TOKENS, p->v, p->v_stride, p->acc + (size_t)first * p->wide,
		     p->wide);
}
