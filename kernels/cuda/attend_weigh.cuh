/* Turns scores into weights, as operand B of the second product.
 *
 * A column (one query head) has a unit 2^max for each lane group. A weight is 2^(score - max) times V's scale; it is
 * below 2, or 2^15 as a float. The unit is changed when a weight would not fit, which is rare once the first tokens
 * have been seen. A new unit leaves three bits for growth, and the sums so far are converted to it. Integer weights
 * count 2^-15 and are rounded. The rounding error of one weight is carried to the lane's next one, so that many small
 * weights beside a large one keep their sum. Integer sums are shifted by whole bits.
 */
#ifndef TERRACE_KERNELS_CUDA_ATTEND_WEIGH_CUH
#define TERRACE_KERNELS_CUDA_ATTEND_WEIGH_CUH

#include "kernels/cuda/attend_shape.cuh"
#include "kernels/cuda/fragments.cuh"

constexpr float UNIT_BITS = -2; /* of the largest integer weight when the unit is set: three more for growth */
constexpr float FLOAT_UNIT_BITS = 12; /* of others: halves of fp16 then reach 2^-36 of it */
constexpr float WEIGHT_STEP = 0x1p-15f; /* of integer weights */
constexpr uint32_t HALVING_STEPS =
	512; /* integer sums are halved after so many steps, before 32 bits could overflow */
/* The largest codes, tq4's with 128 on top, times the largest byte of a weight, and what halving has left of the steps
 * before. */
static_assert(2ll * HALVING_STEPS * 32 * 242 * 255 <= INT32_MAX, "sums overflow");

/* A score as factors, score = x * unit, and V's scale. */
struct scored {
	float x, unit, v_scale;
	uint32_t v_zero;
};

/* What the scores of a step, 8 tokens apart, have on top, less a unit's logarithm: nothing, or what lies on a
 * line. */
struct level {
	DEVICE float above(int, float max) const
	{
		return -max;
	}
};

struct slant {
	float first, slope;

	DEVICE float above(int i, float max) const
	{
		return i ? fmaf(slope, (float)(8 * i), first - max) : first - max;
	}
};

DEVICE float max_over_g(float x)
{
	x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 4));
	x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 8));
	return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 16));
}

/* Divides sums, less `less`, by 2^(next - max). High and low bytes are shifted as one number. */
template <int WORDS> DEVICE void shrink(int32_t (&o)[WORDS][4], float max, float next, int64_t less)
{
	const int shift = (int)fminf(next - max, 31);

#pragma unroll
	for (int j = 0; j < WORDS; j++) {
#pragma unroll
		for (int r = 0; r < 4; r += 2) {
			int32_t high = o[j][r + 1] >> shift;
			int64_t rest =
				(int64_t)(o[j][r + 1] - (int32_t)((uint32_t)high << shift)) * 256 + o[j][r] - less;

			o[j][r + 1] = high;
			o[j][r] = (int32_t)(rest >> shift);
		}
	}
}

template <int WORDS> DEVICE void shrink(float (&o)[WORDS][4], float max, float next, int64_t)
{
	const float factor = exp2_fast(max - next);

#pragma unroll
	for (int j = 0; j < WORDS; j++)
#pragma unroll
		for (int r = 0; r < 4; r++)
			o[j][r] *= factor;
}

/* What shifting will take from the weights of a column's lanes. */
DEVICE uint64_t weights_lost(const column &c, float next)
{
	const int shift = (int)fminf(fmaxf(next - c.max, 0), 31);
	uint64_t lost = c.weights & ((1u << shift) - 1);

#pragma unroll
	for (int i = 4; i < 32; i *= 2)
		lost += __shfl_xor_sync(ALL_LANES, lost, i);
	return lost;
}

/* Brings a column's sums to the unit 2^next, if that is above its own; the whole warp. OFFSET times the weights is in
 * each sum, and must be so afterwards: so what shifting takes from the weights is taken from the sums first. */
template <int OFFSET, class Sum, int WORDS> DEVICE void set_unit(column &c, Sum (&o)[WORDS][4], float next)
{
	const int64_t less = OFFSET ? OFFSET * (int64_t)weights_lost(c, next) : 0;

	if (next > c.max) {
		const float factor = exp2_fast(c.max - next);

		shrink(o, c.max, next, less);
		c.weights >>= (int)fminf(next - c.max, 31);
		c.max = next;
		c.sum *= factor;
		c.carried *= factor;
	}
}

/* Sets a column's unit so that the step's weights fit, the largest with `bits` bits. */
template <int OFFSET, class Line, class Sum, int WORDS, int TOKENS>
DEVICE void rescale(column &c, Sum (&o)[WORDS][4], const scored (&s)[TOKENS], Line line, float bits)
{
	float top = -INFINITY;

#pragma unroll
	for (int i = 0; i < TOKENS; i++)
		top = fmaxf(top, fmaf(s[i].x, s[i].unit, line.above(i, 0)) + __log2f(s[i].v_scale));
	set_unit<OFFSET>(c, o, ceilf(max_over_g(top)) - bits);
}

constexpr float ROUND = 384; /* 1.5 * 2^8: the low bits of a sum with it count 2^-15 */
constexpr uint32_t ROUND_BITS = 0x43c00000;

/* The weights of a lane's tokens as integers, in the low 16 bits; returns bits that are set above if
 * one does not fit. What rounding takes from a token, or gives it, goes to the next one: `carried`, in and
 * out. EDGE: tokens with scores of -INFINITY, which may be no tokens, take nothing. */
template <bool EDGE, class Line, int TOKENS>
DEVICE uint32_t integer_weights_of(const column &c, const scored (&s)[TOKENS], Line line, float *carried,
				   float (&bare)[TOKENS], uint32_t (&bits)[TOKENS])
{
	uint32_t all = 0;

	*carried = c.carried;
#pragma unroll
	for (int i = 0; i < TOKENS; i++) {
		bare[i] = exp2_fast(fmaf(s[i].x, s[i].unit, line.above(i, c.max)));
		const float exact = fmaf(bare[i], s[i].v_scale, *carried), rounded = exact + ROUND;
		const bool takes = !EDGE || s[i].x != -INFINITY;

		bits[i] = __float_as_uint(takes ? rounded : ROUND);
		*carried = takes ? exact - (rounded - ROUND) : *carried;
		all |= bits[i];
	}
	/* Bits of the integer above the 16th, and of an exponent that is not ROUND's. */
	return all & 0x3c3f0000;
}

/* Scores of one tile become weights: those of two atoms. EDGE: some may be -INFINITY. */
template <class V, bool EDGE, class Line, int WORDS>
DEVICE void weigh(column (&c)[1], int32_t (&o)[1][WORDS][4], const scored (&s)[1][4], const Line (&line)[1],
		  uint32_t (&p)[1][2])
{
	float bare[4], carried;
	uint32_t bits[4];

	if (__any_sync(ALL_LANES, integer_weights_of<EDGE>(c[0], s[0], line[0], &carried, bare, bits))) {
		rescale<V::template OFFSET<1>>(c[0], o[0], s[0], line[0], UNIT_BITS);
		integer_weights_of<EDGE>(c[0], s[0], line[0], &carried, bare, bits);
	}
	c[0].carried = carried;
	c[0].sum += (bare[0] + bare[1]) + (bare[2] + bare[3]);
	if constexpr (V::ZEROS) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			c[0].weights += (bits[i] & 0xffff) * s[0][i].v_zero;
	} else {
		c[0].weights += bits[0] + bits[1] + bits[2] + bits[3] - 4 * ROUND_BITS;
	}
	p[0][0] = transpose_8x8(V::pack(bits[0], bits[1]));
	p[0][1] = transpose_8x8(V::pack(bits[2], bits[3]));
}

/* Weights of a column's tokens of two atoms, packed, and what they add to it. */
struct weighed {
	uint32_t p[2], weights;
	float sum, carried;
};

/* Returns bits that are set if a weight does not fit. */
template <class V, bool EDGE, class Line>
DEVICE uint32_t weigh_column(const column &c, const scored (&s)[4], Line line, weighed &w)
{
	float bare[4];
	uint32_t bits[4];
	const uint32_t over = integer_weights_of<EDGE>(c, s, line, &w.carried, bare, bits);

	w.sum = (bare[0] + bare[1]) + (bare[2] + bare[3]);
	if constexpr (V::ZEROS) {
		w.weights = -ROUND_BITS * (s[0].v_zero + s[1].v_zero + s[2].v_zero + s[3].v_zero);
#pragma unroll
		for (int i = 0; i < 4; i++)
			w.weights += bits[i] * s[i].v_zero;
	} else {
		w.weights = bits[0] + bits[1] + bits[2] + bits[3] - 4 * ROUND_BITS;
	}
	w.p[0] = V::pack(bits[0], bits[1]);
	w.p[1] = V::pack(bits[2], bits[3]);
	return over;
}

/* Weighs several tiles. One vote for all, so that no tile's weights wait for another's, and all units are set, so that
 * the next one has time; what weights add is in few registers by then. */
template <class V, bool EDGE, class Line, int TILES, int WORDS>
DEVICE void weigh(column (&c)[TILES], int32_t (&o)[TILES][WORDS][4], const scored (&s)[TILES][4], const Line (&line)[TILES],
		  uint32_t (&p)[TILES][2])
{
	weighed w[TILES];
	uint32_t over = 0;

#pragma unroll
	for (int n = 0; n < TILES; n++)
		over |= weigh_column<V, EDGE>(c[n], s[n], line[n], w[n]);
	if (__any_sync(ALL_LANES, over)) {
#pragma unroll
		for (int n = 0; n < TILES; n++)
			rescale<V::template OFFSET<TILES>>(c[n], o[n], s[n], line[n], UNIT_BITS);
#pragma unroll
		for (int n = 0; n < TILES; n++)
			weigh_column<V, EDGE>(c[n], s[n], line[n], w[n]);
	}
#pragma unroll
	for (int n = 0; n < TILES; n++) {
		c[n].carried = w[n].carried;
		c[n].sum += w[n].sum;
		c[n].weights += w[n].weights;
		p[n][0] = transpose_8x8(w[n].p[0]);
		p[n][1] = transpose_8x8(w[n].p[1]);
	}
}

/* One column's of one atom, weights as floats. */
template <class V, class Line, int WORDS>
DEVICE void weigh_floats(column &c, float (&o)[WORDS][4], const scored (&s)[2], Line line, uint32_t (&p)[2])
{
	float bare[2], weight[2];

	for (bool again = false;; again = true) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			bare[i] = exp2_fast(fmaf(s[i].x, s[i].unit, line.above(i, c.max)));
			weight[i] = bare[i] * s[i].v_scale;
		}
		/* 2^16 is too large for fp16. */
		if (again || !__any_sync(ALL_LANES, fmaxf(weight[0], weight[1]) >= 0x1p15f))
			break;
		rescale<0>(c, o, s, line, FLOAT_UNIT_BITS);
	}
	c.sum += bare[0] + bare[1];
	p[0] = V::operand(weight[0]);
	p[1] = V::operand(weight[1]);
}

template <class V, bool EDGE, class Line, int TILES, int WORDS>
DEVICE void weigh(column (&c)[TILES], float (&o)[TILES][WORDS][4], const scored (&s)[TILES][2], const Line (&line)[TILES],
		  uint32_t (&p)[TILES][2])
{
#pragma unroll
	for (int n = 0; n < TILES; n++)
		weigh_floats<V>(c[n], o[n], s[n], line[n], p[n]);
}

#endif
