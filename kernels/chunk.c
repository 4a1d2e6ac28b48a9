/* Tokens in and out of packed blocks (see codec.h): each goes through one vector of codes in dim
 * order, which order.c puts at its places in the atom. */
#include "kernels/codec.h"

#include <string.h>

#include "kernels/half.h"
#include "kernels/order.h"
#include "kernels/simd.h"

/* One side of one (layer, head) of a block. */
struct side {
	enum kv_format format;
	enum kv_side side;
	uint32_t d;
	uint32_t codes_at, scales_at; /* in an atom */
};

static struct side side_of(const struct kv_layout *l, const struct kv_geometry *g, enum kv_side side)
{
	if (side == KV_SIDE_K)
		return (struct side){l->k_format, side, l->head_dim_k, g->k_codes_at, g->k_scales_at};
	return (struct side){l->v_format, side, l->head_dim_v, g->v_codes_at, g->v_scales_at};
}

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
			((uint16_t *)dst)[at + i] = half_from_float(x[i]);
		break;
	case KV_DTYPE_BF16:
		for (uint32_t i = 0; i < d; i++)
			((uint16_t *)dst)[at + i] = bf16_from_float(x[i]);
		break;
	}
}

static void token_put(const struct side *s, uint8_t *atom, uint32_t token, const uint16_t *codes,
		      uint32_t scale)
{
	kv_token_pack(s->format, s->side, s->d, token, codes, atom + s->codes_at);
	scale_write(s->format, atom + s->scales_at, token, scale);
}

static uint32_t token_get(const struct side *s, const uint8_t *atom, uint32_t token, uint16_t *codes)
{
	kv_token_unpack(s->format, s->side, s->d, token, atom + s->codes_at, codes);
	return scale_read(s->format, atom + s->scales_at, token);
}

void kv_encode(const struct kv_layout *l, const struct kv_geometry *g, void *block, uint32_t layer,
	       uint32_t head, enum kv_side side, uint32_t first_token, uint32_t n, const void *src,
	       enum kv_dtype dtype, size_t stride)
{
	struct side s = side_of(l, g, side);
	float x[KV_HEAD_DIM_MAX], prepared[KV_HEAD_DIM_MAX];
	uint16_t codes[KV_HEAD_DIM_MAX];
	uint32_t scale;

	if (s.format == KV_NONE)
		return;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t token = first_token + i;
		uint8_t *atom = (uint8_t *)block + kv_atom_at(g, layer, head, token);

		vector_load(dtype, s.d, src, i * stride, x);
		kv_prepare(s.format, s.d, false, x, prepared);
		kv_quantise(s.format, s.d, prepared, codes, &scale);
		token_put(&s, atom, token % KV_ATOM_TOKENS, codes, scale);
	}
}

void kv_decode(const struct kv_layout *l, const struct kv_geometry *g, const void *block,
	       uint32_t layer, uint32_t head, enum kv_side side, uint32_t first_token, uint32_t n,
	       bool rotated, void *dst, enum kv_dtype dtype, size_t stride)
{
	bool view = side == KV_SIDE_V && l->v_format == KV_NONE;
	struct side s = side_of(l, g, view ? KV_SIDE_K : side);
	uint32_t d = view ? l->head_dim_v : s.d;
	float x[KV_HEAD_DIM_MAX];
	uint16_t codes[KV_HEAD_DIM_MAX];

	for (uint32_t i = 0; i < n; i++) {
		uint32_t token = first_token + i;
		const uint8_t *atom = (const uint8_t *)block + kv_atom_at(g, layer, head, token);
		uint32_t scale = token_get(&s, atom, token % KV_ATOM_TOKENS, codes);

		kv_dequantise(s.format, s.d, codes, scale, x);
		if (kv_format_info(s.format)->rotated && !rotated)
			kv_unrotate(x, s.d);
		vector_store(dtype, d, x, dst, i * stride);
	}
}

void kv_decode_atom(enum kv_format f, enum kv_side side, uint32_t d, const uint8_t *codes,
		    const uint8_t *scales, unsigned tokens, float *out)
{
	uint16_t linear[KV_HEAD_DIM_MAX];

	for (uint32_t token = 0; token < tokens; token++) {
		kv_token_unpack(f, side, d, token, codes, linear);
		kv_dequantise(f, d, linear, scale_read(f, scales, token), out + (size_t)token * d);
	}
}

void kv_repack_out(const struct kv_layout *l, const struct kv_geometry *g, const void *block,
		   uint32_t layer, uint32_t head, enum kv_side side, uint32_t first_token,
		   uint32_t n, uint8_t *out)
{
	struct side s = side_of(l, g, side);
	uint16_t codes[KV_HEAD_DIM_MAX];

	if (s.format == KV_NONE)
		return;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t token = first_token + i;
		const uint8_t *atom = (const uint8_t *)block + kv_atom_at(g, layer, head, token);
		uint32_t scale = token_get(&s, atom, token % KV_ATOM_TOKENS, codes);

		kv_linear_pack(s.format, s.d, codes, scale, out + i * kv_linear_bytes(s.format, s.d));
	}
}

void kv_repack_in(const struct kv_layout *l, const struct kv_geometry *g, void *block,
		  uint32_t layer, uint32_t head, enum kv_side side, uint32_t first_token,
		  uint32_t n, const uint8_t *in)
{
	struct side s = side_of(l, g, side);
	uint16_t codes[KV_HEAD_DIM_MAX];
	uint32_t scale;

	if (s.format == KV_NONE)
		return;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t token = first_token + i;
		uint8_t *atom = (uint8_t *)block + kv_atom_at(g, layer, head, token);

		kv_linear_unpack(s.format, s.d, in + i * kv_linear_bytes(s.format, s.d), codes, &scale);
		token_put(&s, atom, token % KV_ATOM_TOKENS, codes, scale);
	}
}
