/* One vector at a time: quantise, dequantise, and the linear byte form (see codec.h), by the codec that the format's
 * row names (vector_codec.h). chunk.c places codes in blocks. */
#include "kernels/codec.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/codebook.h"
#include "kernels/half.h"
#include "kernels/int4.h"
#include "kernels/simd.h"
#include "kernels/vector_codec.h"

static const struct kv_vector_codec *codec_of(enum kv_format f)
{
#define CODEC(format, name, bits, scale, rotated, codes, codec) [format] = &kv_codec_##codec,
	static const struct kv_vector_codec *const codecs[KV_FORMAT_COUNT] = {KV_FORMAT_ROWS(CODEC)};
#undef CODEC

	assert((unsigned)f < KV_FORMAT_COUNT); /* KV_OPAQUE has none */
	return codecs[f];
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

KV_CLONES static void fp8_quantise(enum kv_format f, uint32_t d, const float *restrict x, uint16_t *restrict codes,
				   uint32_t *scale)
{
	float largest = 0;

	(void)f;
	for (uint32_t i = 0; i < d; i++)
		largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
	uint16_t h = half_not_below(largest / KV_FP8_TOP(d));
	float step = h ? float_from_half(h) : 1.0f;

	for (uint32_t i = 0; i < d; i++)
		codes[i] = e4m3_from_float(x[i] / step);
	*scale = h;
}

KV_CLONES static void fp8_dequantise(enum kv_format f, uint32_t d, const uint16_t *restrict codes, uint32_t scale,
				     float *restrict x)
{
	float step = float_from_half((uint16_t)scale);

	(void)f;
	for (uint32_t i = 0; i < d; i++)
		x[i] = float_from_e4m3((uint8_t)codes[i]) * step;
}

KV_CLONES static void fp16_quantise(enum kv_format f, uint32_t d, const float *restrict x, uint16_t *restrict codes,
				    uint32_t *scale)
{
	(void)f;
	for (uint32_t i = 0; i < d; i++)
		codes[i] = half_from_float(x[i]);
	*scale = 0;
}

KV_CLONES static void fp16_dequantise(enum kv_format f, uint32_t d, const uint16_t *restrict codes, uint32_t scale,
				      float *restrict x)
{
	(void)f;
	(void)scale;
	for (uint32_t i = 0; i < d; i++)
		x[i] = float_from_half(codes[i]);
}

KV_CLONES static void bf16_quantise(enum kv_format f, uint32_t d, const float *restrict x, uint16_t *restrict codes,
				    uint32_t *scale)
{
	(void)f;
	for (uint32_t i = 0; i < d; i++)
		codes[i] = bf16_from_float(x[i]);
	*scale = 0;
}

KV_CLONES static void bf16_dequantise(enum kv_format f, uint32_t d, const uint16_t *restrict codes, uint32_t scale,
				      float *restrict x)
{
	(void)f;
	(void)scale;
	for (uint32_t i = 0; i < d; i++)
		x[i] = float_from_bf16(codes[i]);
}

static void int4_quantise(enum kv_format f, uint32_t d, const float *x, uint16_t *codes, uint32_t *scale)
{
	(void)f;
	kv_int4_quantise(d, x, codes, scale);
}

KV_CLONES static void int4_dequantise(enum kv_format f, uint32_t d, const uint16_t *restrict codes, uint32_t bits,
				      float *restrict x)
{
	float scale = float_of_bits(bits & ~15u);
	int32_t zero = (int32_t)(bits & 15);

	(void)f;
	for (uint32_t i = 0; i < d; i++)
		x[i] = (float)(codes[i] - zero) * scale;
}

static void codebook_quantise(enum kv_format f, uint32_t d, const float *x, uint16_t *codes, uint32_t *scale)
{
	float s;

	kv_codebook_quantise(f, d, x, codes, &s);
	*scale = half_saturated(s);
}

static void codebook_dequantise(enum kv_format f, uint32_t d, const uint16_t *codes, uint32_t bits, float *x)
{
	const float *values = kv_codebook_values(f);
	float scaled[16], scale = float_from_half((uint16_t)bits);
	uint32_t n = 1u << kv_format_info(f)->code_bits;

	for (uint32_t i = 0; i < n; i++)
		scaled[i] = values[i] * scale;
	for (uint32_t i = 0; i < d; i++)
		x[i] = scaled[codes[i] & (n - 1)];
}

static void none_quantise(enum kv_format f, uint32_t d, const float *x, uint16_t *codes, uint32_t *scale)
{
	(void)f;
	(void)d;
	(void)x;
	(void)codes;
	*scale = 0;
}

static void none_dequantise(enum kv_format f, uint32_t d, const uint16_t *codes, uint32_t scale, float *x)
{
	(void)f;
	(void)d;
	(void)codes;
	(void)scale;
	(void)x;
}

/* A rotated vector of fp16 numbers may be head_dim times as large as they are, and its fp16 scale still holds; vLLM's
 * INT4 keeps the rotated vector in fp16, or in bf16, which holds it. */
#define ROTATED_MAX (KV_FINITE_MAX * KV_HEAD_DIM_MAX)

const struct kv_vector_codec
	kv_codec_none = {{KV_FINITE_MAX, KV_FINITE_MAX}, none_quantise, none_dequantise},
	kv_codec_fp16 = {{KV_FINITE_MAX, KV_FINITE_MAX}, fp16_quantise, fp16_dequantise},
	kv_codec_bf16 = {{KV_BF16_MAX, KV_BF16_MAX}, bf16_quantise, bf16_dequantise},
	kv_codec_fp8 = {{KV_FINITE_MAX, KV_FINITE_MAX}, fp8_quantise, fp8_dequantise},
	kv_codec_int4 = {{[KV_ROUND_F16] = KV_FINITE_MAX, [KV_ROUND_BF16] = ROTATED_MAX}, int4_quantise,
		int4_dequantise},
	kv_codec_codebook = {{ROTATED_MAX, ROTATED_MAX}, codebook_quantise, codebook_dequantise};

void kv_quantise(enum kv_format f, enum kv_rounding rounding, uint32_t d, const float *x, uint16_t *codes,
		 uint32_t *scale)
{
	const struct kv_vector_codec *codec = codec_of(f);
	float finite[KV_HEAD_DIM_MAX];

	clean(d, x, codec->limit[rounding], finite);
	codec->quantise(f, d, finite, codes, scale);
}

void kv_dequantise(enum kv_format f, uint32_t d, const uint16_t *codes, uint32_t scale, float *x)
{
	codec_of(f)->dequantise(f, d, codes, scale, x);
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
