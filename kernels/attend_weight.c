/* From scores to weights: soft cap, ALiBi, tree bias, mask, and the online softmax. */
#include "kernels/attend_pass.h"
#include "kernels/simd.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { LANES = 16, ATOM = KV_ATOM_TOKENS };

/* exp(x) for x <= 0, to a unit in the last place; 0 below exp(-87), NaN for NaN. x = n ln 2 + f with |f|
 * <= ln(2) / 2; adding 1.5 * 2^23 leaves n in the low bits; a Taylor polynomial of degree 7 is exact
 * enough for exp(f). */
KV_INLINE float exp_nonpositive(float x)
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

/* s[n] (a multiple of LANES) becomes exp(s - *max), where *max first grows to the largest; returns their sum. */
KV_CLONES static float soften(uint32_t n, float *s, float *max)
{
	float top[LANES], part[LANES] = {0}, base, sum = 0;

	for (unsigned j = 0; j < LANES; j++)
		top[j] = s[j];
	for (uint32_t i = LANES; i < n; i += LANES)
		for (unsigned j = 0; j < LANES; j++)
			top[j] = s[i + j] > top[j] ? s[i + j] : top[j];
	for (unsigned j = 0; j < LANES; j++)
		*max = top[j] > *max ? top[j] : *max;
	base = *max == -INFINITY ? 0 : *max;
	for (uint32_t i = 0; i < n; i++)
		s[i] = exp_nonpositive(s[i] - base);
	for (uint32_t i = 0; i < n; i += LANES)
		for (unsigned j = 0; j < LANES; j++)
			part[j] += s[i + j];
	for (unsigned j = 0; j < LANES; j++)
		sum += part[j];
	return sum;
}

/* tanh(x) = (1 - e) / (1 + e), e = exp(-2 |x|), which is good to 1e-7 of the cap; of a large one near 0 its series,
 * without the cap, so that one far above the scores leaves them as they are. */
KV_CLONES static void soft_cap(uint32_t n, float cap, float *s)
{
	const bool large = cap > 64;
	float inverse = fminf(1.0f / cap, FLT_MAX); /* infinite of the smallest caps, and 0 times that is no number */

	for (uint32_t i = 0; i < n; i++) {
		float x = s[i] * inverse, y = x * x, e = exp_nonpositive(-2 * fabsf(x));
		float capped = copysignf(cap * ((1 - e) / (1 + e)), s[i]);

		s[i] = large && y < .01f ? s[i] + s[i] * y * (y * (2.0f / 15) - 1.0f / 3) : capped;
	}
}

/* Tokens of the columns of one atom, by position and not. */
static const float offsets[2][ATOM] = {
	{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
	{0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15},
};

/* ahead: of the first token before the query. */
KV_CLONES static void add_alibi(uint32_t n, float slope, bool root, float ahead, const float *offset, float *s)
{
	for (uint32_t i = 0; i < n; i += ATOM)
		for (uint32_t j = 0; j < ATOM; j++) {
			float distance = fabsf(ahead - (float)i - offset[j]);

			s[i + j] -= slope * (root ? sqrtf(distance) : distance);
		}
}

static uint32_t token_of(uint32_t column, bool by_position)
{
	return by_position ? kv_column_token(column) : column;
}

static void add_tree(const struct kv_attend *a, const struct kv_row *row, int64_t at, uint32_t columns,
		     bool by_position, float *s)
{
	int64_t first = (int64_t)a->kv_tokens - a->queries;
	const float *bias = a->features.tree_bias + (size_t)row->query * a->queries;

	if (at + columns <= first)
		return;
	for (uint32_t c = 0; c < columns; c++) {
		int64_t j = at + token_of(c, by_position);

		if (j >= first && j < (int64_t)a->kv_tokens)
			s[c] += bias[j - first];
	}
}

static void mask(const struct kv_row *row, int64_t at, uint32_t columns, bool by_position, float *s)
{
	if (row->from <= at && row->to >= at + columns)
		return;
	for (uint32_t c = 0; c < columns; c++) {
		int64_t j = at + token_of(c, by_position);

		if (j < row->from || j >= row->to)
			s[c] = -INFINITY;
	}
}

float kv_attend_weights(const struct kv_pass *p, struct kv_row *row, int64_t at, uint32_t columns,
			bool by_position, float *s)
{
	const struct kv_attend_features *f = &p->a->features;
	float max = row->max, sum, factor = 1;

	if (f->softcap > 0)
		soft_cap(columns, f->softcap, s);
	if (f->alibi)
		add_alibi(columns, f->alibi[row->head], f->alibi_sqrt, (float)(row->position - at),
			  offsets[by_position], s);
	if (f->tree_bias)
		add_tree(p->a, row, at, columns, by_position, s);
	mask(row, at, columns, by_position, s);
	sum = p->lanes ? p->lanes->soften(columns / LANES, s, &max) : soften(columns, s, &max);
	if (row->max != max)
		factor = row->max == -INFINITY ? 0 : expf(row->max - max);
	row->sum = row->sum * (double)factor + (double)sum;
	row->max = max;
	return factor;
}

KV_CLONES void kv_scale_add(size_t n, float factor, float *restrict x, const float *restrict y)
{
	if (y)
		for (size_t i = 0; i < n; i++)
			x[i] = x[i] * factor + y[i];
	else
		for (size_t i = 0; i < n; i++)
			x[i] *= factor;
}
