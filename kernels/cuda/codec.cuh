/* What encode.cu and decode.cu share: a warp works on one vector, one (token, head, side). */
#ifndef TERRACE_KERNELS_CUDA_CODEC_CUH
#define TERRACE_KERNELS_CUDA_CODEC_CUH

#include "kernels/cuda/arguments.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/format.cuh"
#include "kernels/cuda/hadamard.cuh"
#include "kernels/places.h"

constexpr uint32_t CODEC_WARPS = 4;

/* Launches a kernel that may come up while the one before it in the stream ends: it begins with
 * begin_after_previous. */
template <class... P, class... A>
static void launch_early(void (*kernel)(P...), dim3 grid, uint32_t threads, size_t shared, cudaStream_t stream, const A &...args)
{
	cudaLaunchAttribute overlap = {};
	cudaLaunchConfig_t config = {};
	bool portable = true;

	overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	overlap.val.programmaticStreamSerializationAllowed = 1;
	config.gridDim = grid;
	config.blockDim = dim3(threads);
	config.dynamicSmemBytes = shared;
	config.stream = stream;
	config.attrs = &overlap;
	config.numAttrs = code_is_portable(&portable) == STATUS_OK && !portable;
	cudaLaunchKernelEx(&config, kernel, args...); /* what went wrong is cudaGetLastError's to say */
}

/* Every thread's, before it looks at memory. What the kernel before has written is there then; the next one may come up
 * as soon as there is room for it. */
DEVICE void begin_after_previous()
{
	wait_for_previous_kernel();
	let_next_kernel_start();
}

/* One side of the layout. */
struct codec_side {
	uint32_t codes_at, scales_at; /* in an atom */
	void *vectors;
	size_t stride;
};

struct codec_args {
	const int64_t *slots;
	const uint64_t *blocks;
	uint64_t layer_at;
	uint32_t tokens, heads, block_count, block_tokens, chunk_bytes, atom_bytes;
	enum kv_dtype dtype;
	const int64_t *rows; /* of decode; NULL: a token's row is its own number */
	enum kv_rounding rounding;
};

/* The row that a token is decoded to; negative: none. */
DEVICE int64_t row_of(const codec_args &a, uint32_t token)
{
	return a.rows ? a.rows[token] : token;
}

/* The atom of a slot, which is one of the table's, for one head. Atoms are numbered in 32 bits (codec_launch). */
DEVICE uint8_t *atom_at(const codec_args &a, int64_t slot, uint32_t head, uint32_t *in_atom)
{
	const uint32_t atoms = a.block_tokens / KV_ATOM_TOKENS, atom = (uint32_t)(slot / KV_ATOM_TOKENS);

	*in_atom = (uint32_t)slot % KV_ATOM_TOKENS;
	return (uint8_t *)(a.blocks[atom / atoms] + a.layer_at + (uint64_t)head * a.chunk_bytes +
			   (uint64_t)(atom % atoms) * a.atom_bytes);
}

/* The atom of a token's slot for one head; NULL if it is to be skipped. */
DEVICE uint8_t *atom_of(const codec_args &a, uint32_t token, uint32_t head, uint32_t *in_atom)
{
	const int64_t slot = a.slots[token];

	if (slot < 0 || slot >= (int64_t)a.block_count * a.block_tokens)
		return nullptr;
	return atom_at(a, slot, head, in_atom);
}

/* Entry of a token's scale in the atom's scales part: kv_scale_at. */
DEVICE uint32_t scale_entry(uint32_t in_atom)
{
	return in_atom % 8 * 2 + in_atom / 8;
}

/* Codebooks (kernels/codebook.c): magnitudes in order of their codes. */
template <int FORMAT> DEVICE float codebook_magnitude(uint32_t i)
{
	constexpr float tq4[8] = {5.5f, 16.5f, 27.5f, 39.5f, 52.5f, 67.5f, 86.5f, 114.5f};
	constexpr float tq3[4] = {12.5f, 38.5f, 68.5f, 109.5f}, tq2[2] = {35.5f, 118.5f};
	float m = 0;

#pragma unroll
	for (uint32_t j = 0; j < 1u << (format_bits(FORMAT) - 1);
	     j++) /* selects, so that the tables need no memory */
		m = i != j ? m : FORMAT == KV_TQ4 ? tq4[j] : FORMAT == KV_TQ3 ? tq3[j % 4] : tq2[j % 2];
	return m;
}

/* Which sides a launch does: grid.y of them, from `first` on. The second is V; with `rope` the rope part. */
struct codec_work {
	codec_args args;
	codec_side sides[2];
	uint32_t first, count;
	cudaStream_t stream;
	enum kv_format rope; /* of a layout with a rope part, else KV_NONE */
};

template <class Kernel, int D>
static enum status codec_launch_format(enum kv_format f, const codec_work &w)
{
	const dim3 grid((w.args.tokens * w.args.heads - 1) / CODEC_WARPS + 1, w.count);

	if (Kernel::tiles(D, f, w))
		return launched();
	switch (f) {
	case KV_F16:
		Kernel::template launch<D, KV_F16>(grid, w);
		break;
	case KV_BF16:
		Kernel::template launch<D, KV_BF16>(grid, w);
		break;
	case KV_FP8:
		Kernel::template launch<D, KV_FP8>(grid, w);
		break;
	case KV_INT4_PTH:
		Kernel::template launch<D, KV_INT4_PTH>(grid, w);
		break;
	case KV_TQ4:
		Kernel::template launch<D, KV_TQ4>(grid, w);
		break;
	case KV_TQ3:
		Kernel::template launch<D, KV_TQ3>(grid, w);
		break;
	case KV_TQ2:
		Kernel::template launch<D, KV_TQ2>(grid, w);
		break;
	default: /* a format without kernels */
		return STATUS_UNSUPPORTED;
	}
	return launched();
}

template <class Kernel>
static enum status codec_launch_dim(uint32_t d, enum kv_format f, const codec_work &w)
{
	switch (d) {
	case 128:
		return codec_launch_format<Kernel, 128>(f, w);
#ifdef TERRACE_CUDA_ALL
	case 64:
		return codec_launch_format<Kernel, 64>(f, w);
	case 96:
		return codec_launch_format<Kernel, 96>(f, w);
	case 192:
		return codec_launch_format<Kernel, 192>(f, w);
	case 256:
		return codec_launch_format<Kernel, 256>(f, w);
#endif
#ifdef TERRACE_CUDA_CODEC_DIMS
	case 80:
		return codec_launch_format<Kernel, 80>(f, w);
	case 112:
		return codec_launch_format<Kernel, 112>(f, w);
	case 512:
		return codec_launch_format<Kernel, 512>(f, w);
#endif
	default:
		return STATUS_UNSUPPORTED;
	}
}

/* True if a call is sound, of whose tokens there are some. */
static inline bool codec_sound(const struct kv_cuda_codec *c)
{
	const struct kv_layout *l = c->layout;

	if (!layout_sound(l, c->geometry) || c->layer >= l->layers || !dtype_read(c->dtype) || !c->k ||
	    (l->v_format != KV_NONE && !c->v) || (uint64_t)c->tokens * l->heads > UINT32_MAX ||
	    (uint64_t)c->block_count * (l->block_tokens / KV_ATOM_TOKENS) > UINT32_MAX)
		return false;
	const size_t k = (size_t)l->heads * kv_key_dims(l),
		     v = l->v_format == KV_NONE ? 0 : (size_t)l->heads * l->head_dim_v;

	return aligned_to(kv_dtype_bytes(c->dtype), {c->k, c->v}) && aligned_to(8, {c->slots, c->blocks}) &&
	       (c->tokens == 0 || (c->slots && c->blocks)) && aligned_to(8, {c->rows}) &&
	       (c->tokens <= 1 || (c->k_stride >= k && c->v_stride >= v));
}

/* A latent and its rope part, whose elements follow the latent's, by one launch. */
template <class Kernel> static enum status codec_launch_latent(const struct kv_cuda_codec *c, codec_work w)
{
#ifdef TERRACE_CUDA_CODEC_DIMS
	const struct kv_layout *l = c->layout;
	const struct kv_geometry *g = c->geometry;

	w.sides[1] = {g->rope_codes_at, g->rope_scales_at,
		      (uint8_t *)c->k + (size_t)l->head_dim_k * kv_dtype_bytes(c->dtype), c->k_stride};
	w.count = 2;
	w.rope = l->rope_format;
	return codec_launch_format<typename Kernel::latent, KV_LATENT_DIM>(l->k_format, w);
#else
	(void)c;
	(void)w;
	return STATUS_UNSUPPORTED;
#endif
}

/* Checks a call and launches the kernel, for both sides at once if they are alike; one warp a vector. */
template <class Kernel>
static enum status codec_launch(const struct kv_cuda_codec *c, cudaStream_t stream)
{
	const struct kv_layout *l = c->layout;
	const struct kv_geometry *g = c->geometry;
	enum status status = STATUS_OK;

	if (!codec_sound(c))
		return STATUS_INVALID;
	if (c->tokens == 0)
		return STATUS_OK;
	/* Before a side is written. */
	if (!codec_dim_built(l->head_dim_k) || (l->v_format != KV_NONE && !codec_dim_built(l->head_dim_v)))
		return STATUS_UNSUPPORTED;
	codec_work w = {{c->slots, c->blocks, c->layer * g->layer_bytes, c->tokens, l->heads,
			 c->block_count, l->block_tokens, g->chunk_bytes, g->atom_bytes, c->dtype, c->rows,
			 	l->int4_rounding},
			{{g->k_codes_at, g->k_scales_at, c->k, c->k_stride},
			 {g->v_codes_at, g->v_scales_at, c->v, c->v_stride}},
			0,
			1,
			stream,
			KV_NONE};

	if (l->rope_dim)
		return codec_launch_latent<Kernel>(c, w);
	if (l->k_format == l->v_format && l->head_dim_k == l->head_dim_v) {
		w.count = 2;
		return codec_launch_dim<Kernel>(l->head_dim_k, l->k_format, w);
	}
	status = codec_launch_dim<Kernel>(l->head_dim_k, l->k_format, w);
	w.first = 1;
	if (status == STATUS_OK && l->v_format != KV_NONE)
		status = codec_launch_dim<Kernel>(l->head_dim_v, l->v_format, w);
	return status;
}

#endif
