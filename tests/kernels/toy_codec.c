/* The codec of the format that tests add (TERRACE_TEST_FORMAT): 16 values from -7.5 to 7.5, a step apart, times an fp16
 * scale. With its row in kernels/format.h it is all that the format has.
 */
#include "kernels/codec.h"
#include "kernels/vector_codec.h"

#include <math.h>

static void quantise(enum kv_format f, uint32_t d, const float *x, uint16_t *codes, uint32_t *scale)
{
	float largest = 0, step;

	(void)f;
	for (uint32_t i = 0; i < d; i++)
		largest = fmaxf(largest, fabsf(x[i]));
	*scale = kv_half_from(largest / 7.5f);
	step = kv_half_to((uint16_t)*scale);
	for (uint32_t i = 0; i < d; i++)
		codes[i] = (uint16_t)(step > 0 ? fminf(fmaxf(floorf(x[i] / step) + 8, 0), 15) : 0);
}

static void dequantise(enum kv_format f, uint32_t d, const uint16_t *codes, uint32_t scale, float *x)
{
	(void)f;
	for (uint32_t i = 0; i < d; i++)
		x[i] = ((float)codes[i] - 7.5f) * kv_half_to((uint16_t)scale);
}

const struct kv_vector_codec kv_codec_test = {{KV_FINITE_MAX, KV_FINITE_MAX}, quantise, dequantise};
