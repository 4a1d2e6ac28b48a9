/* One vector at a time: quantise, dequantise, and the linear byte form (see codec.h). chunk.c
 * places codes in blocks. */
#include "kernels/codec.h"

#include <math.h>
#include <string.h>

#include "kernels/codebook.h"
#include "kernels/half.h"
#include "kernels/int4.h"
#include "kernels/simd.h"

#define E4M3_MAX 448.0f

/* Largest magnitude that a format is given: beyond it values saturate, infinities too. A rotated vector of fp16
 * numbers may be head_dim times as large as they are, and its fp16 scale still holds; vLLM's INT4
 * keeps the rotated vector in fp16, or in bf16, which holds it. */
static float limit_of(enum kv_format f, enum kv_rounding rounding)
{
	if (f == KV_BF16)
		return KV_BF16_MAX;
	if (kv_format_info(f)->codes == KV_CODES_CODEBOOK || (kv_format_rounds(f) && rounding == KV_ROUND_BF16))
		return KV_FINITE_MAX * KV_HEAD_DIM_MAX;
	return KV_FINITE_MAX;
}

KV_CLONES static void clean(uint32_t d, const float *restrict x, float limit, float *restrict out)
{
	for (uint32_t i = 0; i < d; i++) {
		float v = x[i];

		v = v > limit ? limit : v;
		v = v < -limit ? -limit : v;
		out[i] = v == v ? v : 0;
	}
}

/* The smallest fp16 that is not below s, so that s / scale never exceeds what s was divided by. */
static uint16_t half_not_below(float s)
{
	uint16_t h = half_from_float(s);

	return (uint16_t)(float_from_half(h) < s ? h + 1 : h);
}

KV_CLONES static void fp8_quantise(uint32_t d, const float *restrict x, uint16_t *restrict codes,
				   uint32_t *scale)
{
	float largest = 0;

	for (uint32_t i = 0; i < d; i++)
		largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
	uint16_t h = half_not_below(largest / E4M3_MAX);
	float step = h ? float_from_half(h) : 1.0f;

	for (uint32_t i = 0; i < d; i++)
		codes[i] = e4m3_from_float(x[i] / step);
	*scale = h;
}

KV_CLONES static void raw_quantise(enum kv_format f, uint32_t d, const float *restrict x,
				   uint16_t *restrict codes)
{
	if (f == KV_F16) {
		for (uint32_t i = 0; i < d; i++)
			codes[i] = half_from_float(x[i]);
	} else {
		for (uint32_t i = 0; i < d; i++)
			codes[i] = bf16_from_float(x[i]);
	}
}

void kv_quantise(enum kv_format f, enum kv_rounding rounding, uint32_t d, const float *x, uint16_t *codes,
	uint32_t *scale)
{
	float finite[KV_HEAD_DIM_MAX];
	float s;

	clean(d, x, limit_of(f, rounding), finite);
	*scale = 0;
	switch (f) {
	case KV_F16:
	case KV_BF16:
		raw_quantise(f, d, finite, codes);
		break;
	case KV_FP8:
		fp8_quantise(d, finite, codes, scale);
		break;
	case KV_INT4_PTH:
		kv_int4_quantise(d, finite, codes, scale);
		break;
	case KV_TQ4:
	case KV_TQ3:
	case KV_TQ2:
		kv_codebook_quantise(f, d, finite, codes, &s);
		*scale = half_saturated(s);
		break;
	case KV_NONE:
	case KV_FORMAT_COUNT:
		break;
	}
}

KV_CLONES static void int4_dequantise(uint32_t d, const uint16_t *restrict codes, uint32_t bits,
				      float *restrict x)
{
	float scale = float_of_bits(bits & ~15u);
	int32_t zero = (int32_t)(bits & 15);

	for (uint32_t i = 0; i < d; i++)
		x[i] = (float)(codes[i] - zero) * scale;
}

static void codebook_dequantise(enum kv_format f, uint32_t d, const uint16_t *restrict codes,
				float scale, float *restrict x)
{
	const float *values = kv_codebook_values(f);
	float scaled[16];
	uint32_t n = 1u << kv_format_info(f)->code_bits;

	for (uint32_t i = 0; i < n; i++)
		scaled[i] = values[i] * scale;
	for (uint32_t i = 0; i < d; i++)
		x[i] = scaled[codes[i] & (n - 1)];
}

KV_CLONES static void fp8_dequantise(uint32_t d, const uint16_t *restrict codes, float scale,
				     float *restrict x)
{
	for (uint32_t i = 0; i < d; i++)
		x[i] = float_from_e4m3((uint8_t)codes[i]) * scale;
}

KV_CLONES static void raw_dequantise(enum kv_format f, uint32_t d, const uint16_t *restrict codes,
				     float *restrict x)
{
	if (f == KV_F16) {
		for (uint32_t i = 0; i < d; i++)
			x[i] = float_from_half(codes[i]);
	} else {
		for (uint32_t i = 0; i < d; i++)
			x[i] = float_from_bf16(codes[i]);
	}
}

void kv_dequantise(enum kv_format f, uint32_t d, const uint16_t *codes, uint32_t scale, float *x)
{
	switch (f) {
	case KV_F16:
	case KV_BF16:
		raw_dequantise(f, d, codes, x);
		break;
	case KV_FP8:
		fp8_dequantise(d, codes, float_from_half((uint16_t)scale), x);
		break;
	case KV_INT4_PTH:
		int4_dequantise(d, codes, scale, x);
		break;
	case KV_TQ4:
	case KV_TQ3:
	case KV_TQ2:
		codebook_dequantise(f, d, codes, float_from_half((uint16_t)scale), x);
		break;
	case KV_NONE:
	case KV_FORMAT_COUNT:
		break;
	}
}

KV_CLONES static void round_to_half(uint32_t d, float *x)
{
	for (uint32_t i = 0; i < d; i++)
		x[i] = float_from_half(half_from_float(x[i]));
}

KV_CLONES static void round_to_bf16(uint32_t d, float *x)
{
	for (uint32_t i = 0; i < d; i++)
		x[i] = float_from_bf16(bf16_from_float(x[i]));
}

void kv_prepare(enum kv_format f, enum kv_rounding rounding, uint32_t d, bool rotated, const float *x, float *out)
{
	if (kv_format_info(f)->rotated && !rotated) {
		clean(d, x, KV_FINITE_MAX, out);
		kv_rotate(out, d);
	} else {
		memcpy(out, x, d * sizeof(*x));
	}
	if (kv_format_rounds(f))
		(rounding == KV_ROUND_BF16 ? round_to_bf16 : round_to_half)(d, out);
}

size_t kv_linear_bytes(enum kv_format f, uint32_t d)
{
	const struct kv_format_info *info = kv_format_info(f);

	return (size_t)d * info->code_bits / 8 + info->scale_bytes;
}

void kv_linear_pack(enum kv_format f, uint32_t d, const uint16_t *codes, uint32_t scale, uint8_t *out)
{
	const struct kv_format_info *info = kv_format_info(f);
	uint32_t pending = 0, bits = 0;

	for (uint32_t i = 0; i < d; i++) {
		pending |= (uint32_t)codes[i] << bits;
		for (bits += info->code_bits; bits >= 8; bits -= 8) {
			*out++ = (uint8_t)pending;
			pending >>= 8;
		}
	}
	for (uint32_t i = 0; i < info->scale_bytes; i++)
		*out++ = (uint8_t)(scale >> (8 * i));
}

void kv_linear_unpack(enum kv_format f, uint32_t d, const uint8_t *in, uint16_t *codes, uint32_t *scale)
{
	const struct kv_format_info *info = kv_format_info(f);
	uint32_t pending = 0, bits = 0, mask = (1u << info->code_bits) - 1, s = 0;

	for (uint32_t i = 0; i < d; i++) {
		for (; bits < info->code_bits; bits += 8)
			pending |= (uint32_t)*in++ << bits;
		codes[i] = (uint16_t)(pending & mask);
		pending >>= info->code_bits;
		bits -= info->code_bits;
	}
	for (uint32_t i = 0; i < info->scale_bytes; i++)
		s |= (uint32_t)*in++ << (8 * i);
	*scale = s;
}

void kv_linear_encode(enum kv_format f, enum kv_rounding rounding, uint32_t d, bool rotated, const float *x,
	uint8_t *out)
{
	float prepared[KV_HEAD_DIM_MAX];
	uint16_t codes[KV_HEAD_DIM_MAX];
	uint32_t scale;

	kv_prepare(f, rounding, d, rotated, x, prepared);
	kv_quantise(f, rounding, d, prepared, codes, &scale);
	kv_linear_pack(f, d, codes, scale, out);
}

void kv_linear_decode(enum kv_format f, uint32_t d, bool rotated, const uint8_t *in, float *x)
{
	uint16_t codes[KV_HEAD_DIM_MAX];
	uint32_t scale;

	kv_linear_unpack(f, d, in, codes, &scale);
	kv_dequantise(f, d, codes, scale, x);
	if (kv_format_info(f)->rotated && !rotated)
		kv_unrotate(x, d);
}
