/* Moves tokens in and out of packed blocks (see codec.h), an atom's tokens at a time. Vectors become rows of codes in
 * dim order: by codec_lanes.h, or one by one where the machine has no such code or it does not know the format. rows.c
 * moves these rows to their places in the atom.
 */
#include "kernels/codec_lanes.h"

#include <assert.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/order.h"
#include "kernels/simd.h"

static uint32_t scale_read(enum kv_format f, const uint8_t *scales, uint32_t token)
{
	const uint8_t *at = scales + kv_scale_at(f, token);
	uint32_t s = 0;

	for (uint32_t i = 0; i < kv_format_info(f)->scale_bytes; i++)
		s |= (uint32_t)at[i] << (8 * i);
	return s;
}

static void scale_write(enum kv_format f, uint8_t *scales, uint32_t token, uint32_t s)
{
	uint8_t *at = scales + kv_scale_at(f, token);

	for (uint32_t i = 0; i < kv_format_info(f)->scale_bytes; i++)
		at[i] = (uint8_t)(s >> (8 * i));
}

KV_CLONES static void vector_load(enum kv_dtype dtype, uint32_t d, const void *src, size_t at, float *x)
{
	switch (dtype) {
	case KV_DTYPE_F32:
		memcpy(x, (const float *)src + at, d * sizeof(*x));
		break;
	case KV_DTYPE_F16:
		for (uint32_t i = 0; i < d; i++)
			x[i] = float_from_half(((const uint16_t *)src)[at + i]);
		break;
	case KV_DTYPE_BF16:
		for (uint32_t i = 0; i < d; i++)
			x[i] = float_from_bf16(((const uint16_t *)src)[at + i]);
		break;
	case KV_DTYPE_E4M3:
		for (uint32_t i = 0; i < d; i++)
			x[i] = float_from_e4m3(((const uint8_t *)src)[at + i]);
		break;
	}
}

KV_CLONES static void vector_store(enum kv_dtype dtype, uint32_t d, const float *x, void *dst, size_t at)
{
	switch (dtype) {
	case KV_DTYPE_F32:
		memcpy((float *)dst + at, x, d * sizeof(*x));
		break;
	case KV_DTYPE_F16:
		for (uint32_t i = 0; i < d; i++)
			((uint16_t *)dst)[at + i] = half_saturated(x[i]);
		break;
	case KV_DTYPE_BF16:
		for (uint32_t i = 0; i < d; i++)
			((uint16_t *)dst)[at + i] = bf16_saturated(x[i]);
		break;
	case KV_DTYPE_E4M3:
		for (uint32_t i = 0; i < d; i++)
			((uint8_t *)dst)[at + i] = e4m3_from_float(x[i]);
		break;
	}
}

/* Codes of an atom's tokens, a byte each or 16 bits. */
union code_rows {
	uint8_t bytes[KV_ATOM_TOKENS * KV_HEAD_DIM_MAX];
	uint16_t halves[KV_ATOM_TOKENS * KV_HEAD_DIM_MAX];
};

const struct kv_codec_lanes *kv_codec_lanes(void)
{
#if defined(__x86_64__)
	switch (kv_machine()) {
	case KV_MACHINE_VNNI:
	case KV_MACHINE_AVX512:
		return &kv_codec_lanes_avx512;
	case KV_MACHINE_AVX2:
		return &kv_codec_lanes_avx2;
	case KV_MACHINE_PLAIN:
		break;
	}
#endif
	return NULL;
}

static bool has_halves(enum kv_format f)
{
	return kv_format_info(f)->code_bits == 16;
}

static void row_set(enum kv_format f, uint32_t d, uint32_t row, const uint16_t *codes, union code_rows *rows)
{
	for (uint32_t i = 0; i < d; i++)
		if (has_halves(f))
			rows->halves[row * d + i] = codes[i];
		else
			rows->bytes[row * d + i] = (uint8_t)codes[i];
}

static void row_get(enum kv_format f, uint32_t d, uint32_t row, const union code_rows *rows, uint16_t *codes)
{
	for (uint32_t i = 0; i < d; i++)
		codes[i] = has_halves(f) ? rows->halves[row * d + i] : rows->bytes[row * d + i];
}

static void rows_quantise(const struct kv_part *p, enum kv_rounding rounding, uint32_t n, const void *src,
			  enum kv_dtype dtype, size_t stride, union code_rows *rows, uint32_t *scales)
{
	const struct kv_codec_lanes *lanes = kv_codec_lanes();
	float x[KV_HEAD_DIM_MAX], prepared[KV_HEAD_DIM_MAX];
	uint16_t codes[KV_HEAD_DIM_MAX];
	enum kv_format f = p->format;
	uint32_t d = p->d;

	if (lanes && dtype != KV_DTYPE_E4M3 && lanes->quantise(f, rounding, d, n, src, dtype, stride, rows, scales))
		return;
	for (uint32_t t = 0; t < n; t++) {
		vector_load(dtype, d, src, t * stride, x);
		kv_prepare(f, rounding, d, false, x, prepared);
		kv_quantise(f, rounding, d, prepared, codes, &scales[t]);
		row_set(f, d, t, codes, rows);
	}
}

/* wide: dims wanted. */
static void rows_dequantise(enum kv_format f, uint32_t d, uint32_t n, const union code_rows *rows,
			    const uint32_t *scales, bool unrotate, uint32_t wide, void *dst, enum kv_dtype dtype,
			    size_t stride)
{
	const struct kv_codec_lanes *lanes = kv_codec_lanes();
	float x[KV_HEAD_DIM_MAX];
	uint16_t codes[KV_HEAD_DIM_MAX];

	if (lanes && lanes->dequantise(f, d, n, rows, scales, unrotate, wide, dst, dtype, stride))
		return;
	for (uint32_t t = 0; t < n; t++) {
		row_get(f, d, t, rows, codes);
		kv_dequantise(f, d, codes, scales[t], x);
		if (unrotate)
			kv_unrotate(x, d);
		vector_store(dtype, wide, x, dst, t * stride);
	}
}

void kv_encode(const struct kv_layout *l, const struct kv_geometry *g, void *block, uint32_t layer,
	       uint32_t head, enum kv_side side, uint32_t first_token, uint32_t n, const void *src,
	       enum kv_dtype dtype, size_t stride)
{
	const struct kv_part p = kv_part_of(l, g, side);
	size_t bytes = stride * kv_dtype_bytes(dtype);
	union code_rows rows;
	uint32_t scales[KV_ATOM_TOKENS], m;

	if (p.format == KV_NONE)
		return;
	for (uint32_t i = 0; i < n; i += m) {
		uint32_t token = first_token + i, first = token % KV_ATOM_TOKENS;
		uint8_t *atom = (uint8_t *)block + kv_atom_at(g, layer, head, token);

		m = n - i < KV_ATOM_TOKENS - first ? n - i : KV_ATOM_TOKENS - first;
		rows_quantise(&p, l->int4_rounding, m, (const uint8_t *)src + i * bytes, dtype, stride, &rows, scales);
		kv_rows_pack(p.format, p.order, p.d, first, m, &rows, atom + p.codes_at);
		for (uint32_t t = 0; t < m; t++)
			scale_write(p.format, atom + p.scales_at, first + t, scales[t]);
	}
}

void kv_decode(const struct kv_layout *l, const struct kv_geometry *g, const void *block,
	       uint32_t layer, uint32_t head, enum kv_side side, uint32_t first_token, uint32_t n,
	       bool rotated, void *dst, enum kv_dtype dtype, size_t stride)
{
	bool view = side == KV_SIDE_V && l->v_format == KV_NONE;
	const struct kv_part p = kv_part_of(l, g, view ? KV_SIDE_K : side);
	bool unrotate = kv_format_info(p.format)->rotated && !rotated;
	size_t bytes = stride * kv_dtype_bytes(dtype);
	union code_rows rows;
	uint32_t scales[KV_ATOM_TOKENS], m;

	if (p.format == KV_NONE)
		return;
	for (uint32_t i = 0; i < n; i += m) {
		uint32_t token = first_token + i, first = token % KV_ATOM_TOKENS;
		const uint8_t *atom = (const uint8_t *)block + kv_atom_at(g, layer, head, token);

		m = n - i < KV_ATOM_TOKENS - first ? n - i : KV_ATOM_TOKENS - first;
		kv_rows_unpack(p.format, p.order, p.d, first, m, atom + p.codes_at, &rows);
		for (uint32_t t = 0; t < m; t++)
			scales[t] = scale_read(p.format, atom + p.scales_at, first + t);
		rows_dequantise(p.format, p.d, m, &rows, scales, unrotate, view ? l->head_dim_v : p.d,
				(uint8_t *)dst + i * bytes, dtype, stride);
	}
}

void kv_decode_atom(const struct kv_part *p, const uint8_t *atom, unsigned tokens, float *out, size_t stride)
{
	union code_rows rows;
	uint32_t bits[KV_ATOM_TOKENS];

	kv_rows_unpack(p->format, p->order, p->d, 0, tokens, atom + p->codes_at, &rows);
	for (uint32_t t = 0; t < tokens; t++)
		bits[t] = scale_read(p->format, atom + p->scales_at, t);
	rows_dequantise(p->format, p->d, tokens, &rows, bits, false, p->d, out, KV_DTYPE_F32, stride);
}

static void token_put(const struct kv_part *p, uint8_t *atom, uint32_t token, const uint16_t *codes,
		      uint32_t scale)
{
	kv_token_pack(p->format, p->order, p->d, token, codes, atom + p->codes_at);
	scale_write(p->format, atom + p->scales_at, token, scale);
}

static uint32_t token_get(const struct kv_part *p, const uint8_t *atom, uint32_t token, uint16_t *codes)
{
	kv_token_unpack(p->format, p->order, p->d, token, atom + p->codes_at, codes);
	return scale_read(p->format, atom + p->scales_at, token);
}

void kv_repack_out(const struct kv_layout *l, const struct kv_geometry *g, const void *block,
		   uint32_t layer, uint32_t head, enum kv_side side, uint32_t first_token,
		   uint32_t n, uint8_t *out)
{
	const struct kv_part p = kv_part_of(l, g, side);
	uint16_t codes[KV_HEAD_DIM_MAX];

	if (p.format == KV_NONE)
		return;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t token = first_token + i;
		const uint8_t *atom = (const uint8_t *)block + kv_atom_at(g, layer, head, token);
		uint32_t scale = token_get(&p, atom, token % KV_ATOM_TOKENS, codes);

		kv_linear_pack(p.format, p.d, codes, scale, out + i * kv_linear_bytes(p.format, p.d));
	}
}

void kv_repack_in(const struct kv_layout *l, const struct kv_geometry *g, void *block,
		  uint32_t layer, uint32_t head, enum kv_side side, uint32_t first_token,
		  uint32_t n, const uint8_t *in)
{
	const struct kv_part p = kv_part_of(l, g, side);
	uint16_t codes[KV_HEAD_DIM_MAX];
	uint32_t scale;

	if (p.format == KV_NONE)
		return;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t token = first_token + i;
		uint8_t *atom = (uint8_t *)block + kv_atom_at(g, layer, head, token);

		kv_linear_unpack(p.format, p.d, in + i * kv_linear_bytes(p.format, p.d), codes, &scale);
		token_put(&p, atom, token % KV_ATOM_TOKENS, codes, scale);
	}
}
