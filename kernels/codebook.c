/* Lloyd-Max codebooks of the unit normal on a grid of half-integers (see codebook.h).
 *
 * tq3 and tq2: of all scales that keep the largest magnitude within 127.5, the one whose rounded
 * Lloyd-Max magnitudes (0.2451 0.7560 1.3439 2.1520; 0.4528 1.5104) have the least expected squared
 * error on N(0,1): .034548 and .117482, against .034548 and .117482 unrounded. tq4 has .009505
 * against .009501.
 */
#include "kernels/codebook.h"

#include <math.h>

#include "kernels/codec.h"
#include "kernels/simd.h"

static const struct kv_codebook tq4 = {
	.magnitudes = 8,
	.per_unit = 41.86f,
	.magnitude = {5.5f, 16.5f, 27.5f, 39.5f, 52.5f, 67.5f, 86.5f, 114.5f},
	.values = {5.5f, 16.5f, 27.5f, 39.5f, 52.5f, 67.5f, 86.5f, 114.5f,
		   -5.5f, -16.5f, -27.5f, -39.5f, -52.5f, -67.5f, -86.5f, -114.5f},
};

static const struct kv_codebook tq3 = {
	.magnitudes = 4,
	.per_unit = 50.90f,
	.magnitude = {12.5f, 38.5f, 68.5f, 109.5f},
	.values = {12.5f, 38.5f, 68.5f, 109.5f, -12.5f, -38.5f, -68.5f, -109.5f},
};

static const struct kv_codebook tq2 = {
	.magnitudes = 2,
	.per_unit = 78.45f,
	.magnitude = {35.5f, 118.5f},
	.values = {35.5f, 118.5f, -35.5f, -118.5f},
};

const struct kv_codebook *kv_codebook(enum kv_format f)
{
	return f == KV_TQ4 ? &tq4 : f == KV_TQ3 ? &tq3 : f == KV_TQ2 ? &tq2 : NULL;
}

const float *kv_codebook_values(enum kv_format f)
{
	return kv_codebook(f)->values;
}

/* Sum of squares in 16 partial sums, in an order that does not depend on the vector width. */
KV_CLONES static float length_of(uint32_t d, const float *x)
{
	float part[16] = {0};
	float sum = 0;

	for (uint32_t i = 0; i < d; i += 16)
		for (uint32_t j = 0; j < 16; j++)
			part[j] += x[i + j] * x[i + j];
	for (uint32_t j = 0; j < 16; j++)
		sum += part[j];
	return sqrtf(sum);
}

/* Picks codes by the thresholds below each of the n magnitudes but the first; squares are of twice
 * the magnitudes. Returns the sum of the squares of the chosen ones, exact. One pass a threshold:
 * each is a vector compare and two adds. */
KV_CLONES static uint32_t pick(uint32_t n, uint32_t d, const float *x, const float *threshold,
			       const uint32_t *square, uint16_t *codes)
{
	uint32_t code[KV_HEAD_DIM_MAX], sum = d * square[0];

	for (uint32_t i = 0; i < d; i++)
		code[i] = x[i] < 0 ? n : 0;
	for (uint32_t j = 1; j < n; j++) {
		float t = threshold[j];
		uint32_t above = 0;

		for (uint32_t i = 0; i < d; i++) {
			uint32_t one = fabsf(x[i]) > t ? 1 : 0;

			code[i] += one;
			above += one;
		}
		sum += above * (square[j] - square[j - 1]);
	}
	for (uint32_t i = 0; i < d; i++)
		codes[i] = (uint16_t)code[i];
	return sum;
}

void kv_codebook_quantise(enum kv_format f, uint32_t d, const float *x, uint16_t *codes, float *scale)
{
	const struct kv_codebook *c = kv_codebook(f);
	float length = length_of(d, x), step = length / sqrtf((float)d) / c->per_unit;
	float threshold[KV_MAGNITUDES_MAX] = {0};
	uint32_t square[KV_MAGNITUDES_MAX];

	for (uint32_t j = 0; j < c->magnitudes; j++) {
		if (j > 0)
			threshold[j] = (c->magnitude[j - 1] + c->magnitude[j]) / 2 * step;
		square[j] = (uint32_t)(4 * c->magnitude[j] * c->magnitude[j]);
	}
	uint32_t sum = pick(c->magnitudes, d, x, threshold, square, codes);

	*scale = length / (sqrtf((float)sum) / 2);
}
