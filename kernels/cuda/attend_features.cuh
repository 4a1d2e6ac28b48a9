/* What features add to scores (kernels/attend_features.h), in powers of 2. */
#ifndef TERRACE_KERNELS_CUDA_ATTEND_FEATURES_CUH
#define TERRACE_KERNELS_CUDA_ATTEND_FEATURES_CUH

#include "kernels/cuda/attend_shape.cuh"
#include "kernels/cuda/attend_weigh.cuh"

/* cap * tanh(s / cap) as cap - 2 cap / (1 + e^(2 s / cap)), in powers of 2; good to cap * 2^-21. A column's
 * unit has 2 log2(e) / cap in it already (attend_args). */
template <int TOKENS> DEVICE void cap_scores(const attend_args &a, scored (&x)[TOKENS])
{
#pragma unroll
	for (int i = 0; i < TOKENS; i++)
		x[i].x = fmaf(-2 * a.cap, reciprocal_fast(1 + exp2_fast(x[i].x * x[i].unit)), a.cap);
}

/* Caps scores by a large cap: by the series near 0, where cap_scores() cancels. */
template <int TOKENS> DEVICE void cap_scores_closely(const attend_args &a, scored (&x)[TOKENS])
{
#pragma unroll
	for (int i = 0; i < TOKENS; i++) {
		const float exponent = x[i].x * x[i].unit, y = exponent * 0.34657359f;
		const float far = fmaf(-2 * a.cap, reciprocal_fast(1 + exp2_fast(exponent)), a.cap);

		x[i].x = fabsf(y) < 0.02f ? a.cap * y * fmaf(y * y, -0.33333333f, 1) : far;
	}
}

template <int TOKENS>
DEVICE void add_alibi(const attend_args &a, const told_column &c, uint32_t token, scored (&x)[TOKENS])
{
	const float first = (float)((int32_t)token - c.position);

	if (a.features.alibi_sqrt) {
#pragma unroll
		for (int i = 0; i < TOKENS; i++)
			x[i].x = fmaf(-c.slope, root_fast(fabsf(first + 8 * i)), x[i].x);
	} else {
#pragma unroll
		for (int i = 0; i < TOKENS; i++)
			x[i].x = fmaf(-c.slope, fabsf(first + 8 * i), x[i].x);
	}
}

/* The tree's bias for tokens that are queries themselves. */
template <int TOKENS>
DEVICE void add_tree_bias(const attend_args &a, uint32_t tokens, const told_column &c, uint32_t token,
			  scored (&x)[TOKENS])
{
#pragma unroll
	for (int i = 0; i < TOKENS; i++) {
		const uint32_t at = token + 8 * i;
		const int32_t query = (int32_t)(at + a.queries - tokens);

		if (query >= 0 && at < tokens)
			x[i].x += __ldg(a.features.tree_bias + c.bias_row + query) * 1.44269504f;
	}
}

/* Scores of tokens token, token + 8, ... */
template <bool EDGE, int TOKENS>
DEVICE void add_features(const attend_args &a, uint32_t tokens, const told_column &c, uint32_t token,
			 scored (&x)[TOKENS])
{
	if (a.cap > 0) {
		if (a.cap_is_large)
			cap_scores_closely(a, x);
		else
			cap_scores(a, x);
#pragma unroll
		for (int i = 0; i < TOKENS; i++)
			x[i].unit = 1;
	} else {
#pragma unroll
		for (int i = 0; i < TOKENS; i++) {
			x[i].x *= x[i].unit;
			x[i].unit = 1;
		}
	}
	if (a.features.alibi)
		add_alibi(a, c, token, x);
	if (EDGE && a.features.tree_bias)
		add_tree_bias(a, tokens, c, token, x);
}

/* What there is to do with scores that every column sees in full. */
enum scoring {
	SCORES_AS_THEY_ARE,
	SCORES_ON_A_SLANT, /* no soft cap, and ALiBi, if any, that falls all the way */
	CAPPED_SCORES_ON_A_SLANT,
	SCORES_BY_EACH_FEATURE,
};

/* With ranges a token may be later than the query. */
DEVICE enum scoring scoring_of(const attend_args &a)
{
	const bool falls = !a.features.alibi || (!a.features.alibi_sqrt && a.features.ranges_max == 0);

	if (!falls || (a.cap > 0 && a.cap_is_large))
		return SCORES_BY_EACH_FEATURE;
	return a.cap > 0 ? CAPPED_SCORES_ON_A_SLANT : SCORES_ON_A_SLANT;
}

/* A score as cap_scores makes it, but for its constant: an atom's, while the next one's are being made. */
DEVICE void cap_score(const attend_args &a, scored &x)
{
	x.x = reciprocal_fast(1 + exp2_fast(x.x * x.unit));
	x.unit = a.cap_twice;
}

/* ALiBi, the constant of cap_scores and the weights' unit as one addition a score; `behind`: the first token's position
 * less the column's. */
template <bool CAPPED> DEVICE slant slant_of(const attend_args &a, const column &c, float behind)
{
	return {fmaf(c.slope, behind, CAPPED ? a.cap : 0), c.slope};
}

/* The tokens that every column of the tile sees with nothing but what all tokens have: [from, to). */
template <class S>
DEVICE void find_interior(const attend_args &a, uint32_t told, uint32_t tokens, uint32_t *from, uint32_t *to)
{
	*from = 0;
	*to = a.features.tree_bias ? tokens - min(tokens, a.queries) : tokens;
#pragma unroll
	for (uint32_t n = 0; n < S::TILES; n++) {
		const told_column c = told_of_column(told, 4 * n + threadIdx.x % 4);

		*from = max(*from, c.from);
		*to = min(*to, c.to);
	}
#pragma unroll
	for (int i = 1; i < 4; i *= 2) {
		*from = max(*from, __shfl_xor_sync(ALL_LANES, *from, i));
		*to = min(*to, __shfl_xor_sync(ALL_LANES, *to, i));
	}
}

#endif
