/* From scores to weights, as operand B of the second product.
 *
 * A column (one query head) has its own unit 2^max a lane group, so that weight = 2^(score - max) times
 * V's scale is below 2, or 2^15 as a float. The unit is set when a weight would not fit, which is rare once the
 * first tokens have been seen, and then leaves three bits for growth; sums so far are brought to it. Integer
 * weights count 2^-15 and are rounded; what that takes from one, or gives it, is carried to the lane's next,
 * so that many small weights beside a large one keep their sum. Integer sums are shifted by whole
 * bits.
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
	float first, step;

	DEVICE float above(int i, float max) const
	{
		return fmaf(step, (float)i, first - max);
	}
};

DEVICE float max_over_g(float x)
{
	x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 4));
	x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 8));
	return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 16));
}

/* Divides sums by 2^(next - max). High and low bytes are shifted as one number. */
template <int WORDS> DEVICE void shrink(int32_t (&o)[WORDS][4], float max, float next)
{
	const int shift = (int)fminf(next - max, 31);

#pragma unroll
	for (int j = 0; j < WORDS; j++) {
#pragma unroll
		for (int r = 0; r < 4; r += 2) {
			int32_t high = o[j][r + 1] >> shift;
			int64_t rest =
				(int64_t)(o[j][r + 1] - (int32_t)((uint32_t)high << shift)) * 256 + o[j][r];

			o[j][r + 1] = high;
			o[j][r] = (int32_t)(rest >> shift);
		}
	}
}

template <int WORDS> DEVICE void shrink(float (&o)[WORDS][4], float max, float next)
{
	const float factor = exp2_fast(max - next);

#pragma unroll
	for (int j = 0; j < WORDS; j++)
#pragma unroll
		for (int r = 0; r < 4; r++)
			o[j][r] *= factor;
}

/* Brings a column's sums to the unit 2^next, if that is above its own. */
template <class Sum, int WORDS> DEVICE void set_unit(column &c, Sum (&o)[WORDS][4], float next)
{
	if (next > c.max) {
		const float factor = exp2_fast(c.max - next);

		shrink(o, c.max, next);
		c.weights >>= (int)fminf(next - c.max, 31);
		c.max = next;
		c.sum *= factor;
		c.carried *= factor;
	}
}

/* Sets a column's unit so that the step's weights fit, the largest with `bits` bits. */
template <class Line, class Sum, int WORDS, int TOKENS>
DEVICE void rescale(column &c, Sum (&o)[WORDS][4], const scored (&s)[TOKENS], Line line, float bits)
{
	float top = -INFINITY;

#pragma unroll
	for (int i = 0; i < TOKENS; i++)
		top = fmaxf(top, fmaf(s[i].x, s[i].unit, line.above(i, 0)) + __log2f(s[i].v_scale));
	set_unit(c, o, ceilf(max_over_g(top)) - bits);
}

/* The weights of a lane's tokens as integers, in the low 16 bits; returns bits that are set above if
 * one does not fit. What rounding takes from a token, or gives it, goes to the next one: `carried`, in and
 * out. EDGE: tokens with scores of -INFINITY, which may be no tokens, take nothing. */
template <bool EDGE, class Line, int TOKENS>
DEVICE uint32_t integer_weights_of(const column &c, const scored (&s)[TOKENS], Line line, float *carried,
				   float (&bare)[TOKENS], uint32_t (&bits)[TOKENS])
{
	constexpr float ROUND = 384; /* 1.5 * 2^8: the low bits of a sum with it count 2^-15 */
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

/* Scores of one column become weights: those of two atoms. EDGE: some may be -INFINITY. */
template <class V, bool EDGE, class Line, int WORDS>
DEVICE void weigh(column &c, int32_t (&o)[WORDS][4], const scored (&s)[4], Line line, uint32_t (&p)[2])
{
	float bare[4], carried;
	uint32_t bits[4];

	if (__any_sync(ALL_LANES, integer_weights_of<EDGE>(c, s, line, &carried, bare, bits))) {
		rescale(c, o, s, line, UNIT_BITS);
		integer_weights_of<EDGE>(c, s, line, &carried, bare, bits);
	}
	c.carried = carried;
	c.sum += (bare[0] + bare[1]) + (bare[2] + bare[3]);
	if constexpr (V::ZEROS) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			c.weights += (bits[i] & 0xffff) * s[i].v_zero;
	} else {
		c.weights += bits[0] + bits[1] + bits[2] + bits[3] - 4 * 0x43c00000u;
	}
	p[0] = V::operand(bits[0], bits[1]);
	p[1] = V::operand(bits[2], bits[3]);
}

/* The same of one atom, weights as floats. */
template <class V, bool EDGE, class Line, int WORDS>
DEVICE void weigh(column &c, float (&o)[WORDS][4], const scored (&s)[2], Line line, uint32_t (&p)[2])
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
		rescale(c, o, s, line, FLOAT_UNIT_BITS);
	}
	c.sum += bare[0] + bare[1];
	p[0] = V::operand(weight[0]);
	p[1] = V::operand(weight[1]);
}

#endif
