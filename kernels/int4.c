/* See int4.h. */
#include "kernels/int4.h"

#include "kernels/half.h"
#include "kernels/simd.h"

/* round(x * inverse + zero), halves up, with one rounding of product and sum as a fused
 * multiply-add has: the product is exact in double for x on the grid of fp16 or bf16. Clamped before the
 * fraction is cut off, so that cutting is rounding down. */
static inline float rounded(float x, float inverse, float zero)
{
	float t = (float)((double)x * (double)inverse + (double)zero) + 0.5f;

	return t < 0 ? 0 : t > 15 ? 15 : t;
}

KV_CLONES void kv_int4_quantise(uint32_t d, const float *x, uint16_t *codes, uint32_t *bits)
{
	float low = x[0], high = x[0];

	for (uint32_t i = 1; i < d; i++) {
		low = x[i] < low ? x[i] : low;
		high = x[i] > high ? x[i] : high;
	}
	float scale = (high - low) * (1.0f / 15.0f);

	scale = scale < 1e-6f ? 1e-6f : scale;
	float inverse = kv_int4_reciprocal(scale);
	uint32_t zero = (uint32_t)rounded(-low, inverse, 0);

	for (uint32_t i = 0; i < d; i++)
		codes[i] = (uint16_t)(int32_t)rounded(x[i], inverse, (float)zero);
	*bits = (float_bits(scale) & ~15u) | zero;
}
