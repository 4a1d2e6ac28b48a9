/* Packed blocks: the public functions of the kernels' codec and attention.
 *
 * All arguments are checked here, since the kernels assert theirs. Then the work is done in place, on the calling
 * thread, in the default mode of floating-point arithmetic: no result depends on the mode that the caller's thread has
 * set (kernels/float_mode.h).
 */
#include "client/value/layout.h"
#include "client/value/status.h"
#include "kernels/attend.h"
#include "kernels/codec.h"
#include "kernels/float_mode.h"
#include "kernels/repack.h"

#include <math.h>
#include <stdlib.h>

_Static_assert((int)TERRACE_F32 == (int)KV_DTYPE_F32 && (int)TERRACE_F16 == (int)KV_DTYPE_F16 &&
		       (int)TERRACE_BF16 == (int)KV_DTYPE_BF16 && (int)TERRACE_E4M3 == (int)KV_DTYPE_E4M3,
	       "element types");

enum {
	BLOCK_ALIGN = 16,
	SCRATCH_ALIGN = 64,
	QUERIES_MAX = 1 << 20,
	Q_HEADS_MAX = 1 << 16,
	BLOCKS_MAX = 1 << 24, /* with 256 tokens each, 2^32 tokens: the most kv_tokens can count */
};

static bool dtype_ok(enum terrace_dtype dtype)
{
	return dtype == TERRACE_F32 || dtype == TERRACE_F16 || dtype == TERRACE_BF16;
}

/* A part of a block that a codec call works on. */
struct span {
	struct kv_layout layout;
	struct kv_geometry geometry;
	uint32_t layer, head, first_token, n;
	enum kv_dtype dtype;
};

static enum terrace_status span_read(struct span *s, const struct terrace_layout *layout, const void *block,
				     enum terrace_dtype dtype)
{
	const char *problem = client_layout_read(layout, &s->layout);

	if (problem)
		return client_fail(TERRACE_INVALID, "%s", problem);
	if (!client_layout_codec(&s->layout))
		return TERRACE_UNSUPPORTED;
	if (!block || (uintptr_t)block % BLOCK_ALIGN)
		return client_fail(TERRACE_INVALID, "the block is NULL, or not aligned to %d bytes", BLOCK_ALIGN);
	if (s->layer >= s->layout.layers || s->head >= s->layout.heads)
		return client_fail(TERRACE_INVALID, "layer %u, head %u: the layout has %u and %u", s->layer, s->head,
				   s->layout.layers, s->layout.heads);
	if (s->first_token > s->layout.block_tokens || s->n > s->layout.block_tokens - s->first_token)
		return client_fail(TERRACE_INVALID, "%u tokens from %u on: a block has %u", s->n, s->first_token,
				   s->layout.block_tokens);
	if (!dtype_ok(dtype))
		return client_fail(TERRACE_INVALID, "dtype %d is not an element type", (int)dtype);
	s->dtype = (enum kv_dtype)dtype;
	kv_geometry_of(&s->layout, &s->geometry);
	return TERRACE_OK;
}

/* Checks that vectors of one side do not overlap: decode writes them. */
static enum terrace_status stride_check(const struct span *s, const void *vectors, size_t stride, uint32_t dim)
{
	if ((uintptr_t)vectors % kv_dtype_bytes(s->dtype))
		return client_fail(TERRACE_INVALID, "k or v is not aligned to its elements");
	if (vectors && s->n > 1 && stride < dim)
		return client_fail(TERRACE_INVALID, "stride %zu is less than the %u elements of a vector", stride, dim);
	return TERRACE_OK;
}

static enum terrace_status strides_check(const struct span *s, const void *k, size_t k_stride, const void *v, size_t v_stride)
{
	enum terrace_status status = stride_check(s, k, k_stride, kv_key_dims(&s->layout));

	return status ? status : stride_check(s, v, v_stride, s->layout.head_dim_v);
}

/* The address of the rope part in vectors of the key: behind the latent's elements. */
static uint8_t *rope_of(const struct span *s, const void *k)
{
	return (uint8_t *)(uintptr_t)k + s->layout.head_dim_k * kv_dtype_bytes(s->dtype);
}

enum terrace_status terrace_encode(const struct terrace_layout *layout, void *block, uint32_t layer, uint32_t head,
				   uint32_t first_token, uint32_t n, const void *k, size_t k_stride, const void *v,
				   size_t v_stride, enum terrace_dtype dtype)
{
	struct span s = {.layer = layer, .head = head, .first_token = first_token, .n = n};
	enum terrace_status status = span_read(&s, layout, block, dtype);
	struct kv_float_mode mode;

	if (!status)
		status = strides_check(&s, k, k_stride, v, v_stride);
	if (status)
		return client_fail_in(status, "encode");
	mode = kv_float_mode_enter();
	if (k)
		kv_encode(&s.layout, &s.geometry, block, layer, head, KV_SIDE_K, first_token, n, k, s.dtype, k_stride);
	if (k && s.layout.rope_dim)
		kv_encode(&s.layout, &s.geometry, block, layer, head, KV_SIDE_ROPE, first_token, n, rope_of(&s, k),
			  s.dtype, k_stride);
	if (v)
		kv_encode(&s.layout, &s.geometry, block, layer, head, KV_SIDE_V, first_token, n, v, s.dtype, v_stride);
	kv_float_mode_leave(mode);
	return TERRACE_OK;
}

enum terrace_status terrace_decode(const struct terrace_layout *layout, const void *block, uint32_t layer, uint32_t head,
				   uint32_t first_token, uint32_t n, void *k, size_t k_stride, void *v, size_t v_stride,
				   enum terrace_dtype dtype)
{
	struct span s = {.layer = layer, .head = head, .first_token = first_token, .n = n};
	enum terrace_status status = span_read(&s, layout, block, dtype);
	struct kv_float_mode mode;

	if (!status)
		status = strides_check(&s, k, k_stride, v, v_stride);
	if (status)
		return client_fail_in(status, "decode");
	mode = kv_float_mode_enter();
	if (k)
		kv_decode(&s.layout, &s.geometry, block, layer, head, KV_SIDE_K, first_token, n, false, k, s.dtype,
			  k_stride);
	if (k && s.layout.rope_dim)
		kv_decode(&s.layout, &s.geometry, block, layer, head, KV_SIDE_ROPE, first_token, n, false,
			  rope_of(&s, k), s.dtype, k_stride);
	if (v)
		kv_decode(&s.layout, &s.geometry, block, layer, head, KV_SIDE_V, first_token, n, false, v, s.dtype,
			  v_stride);
	kv_float_mode_leave(mode);
	return TERRACE_OK;
}

/* Checks the number of blocks. The kernel itself checks the blocks that it looks at. */
static enum terrace_status blocks_check(const struct kv_layout *l, const struct terrace_attend_options *o)
{
	uint64_t used = ((uint64_t)o->kv_tokens + l->block_tokens - 1) / l->block_tokens;

	if (o->block_count > BLOCKS_MAX || used > o->block_count)
		return client_fail(TERRACE_INVALID, "kv_tokens is %u, which does not fit in %u blocks", o->kv_tokens, o->block_count);
	if (used && !o->blocks)
		return client_fail(TERRACE_INVALID, "blocks is NULL");
	return TERRACE_OK;
}

/* Reads the caller's features; f NULL: there are none. The kernel checks the numbers. out_scale must outlive *out. */
static enum terrace_status features_read(const struct terrace_attend_features *f, float *out_scale,
					 struct kv_attend_features *out)
{
	struct terrace_attend_features in = TERRACE_ATTEND_FEATURES_INIT;

	if (f && !client_options_copy(&in, sizeof(in), f, sizeof(in)))
		return client_fail(TERRACE_INVALID, "the features' size is not set: begin them with TERRACE_ATTEND_FEATURES_INIT");
	*out_scale = in.out_scale;
	*out = (struct kv_attend_features){
		.window = in.window,
		.softcap = in.softcap,
		.sinks = in.sinks,
		.alibi = in.alibi,
		.alibi_sqrt = in.alibi_sqrt,
		.tree_bias = in.tree_bias,
		.ranges = in.ranges,
		.ranges_max = in.range_count,
		.out_scale = in.out_scale != 0.0f ? out_scale : NULL,
	};
	return TERRACE_OK;
}

static enum terrace_status attend_check(const struct kv_layout *l, const struct terrace_attend_options *o)
{
	if (o->layer >= l->layers)
		return client_fail(TERRACE_INVALID, "layer %u: the layout has %u", o->layer, l->layers);
	if (o->queries > QUERIES_MAX || !o->q_heads || o->q_heads > Q_HEADS_MAX || o->q_heads % l->heads)
		return client_fail(TERRACE_INVALID, "%u queries, %u query heads on %u KV heads", o->queries, o->q_heads,
				   l->heads);
	if (!dtype_ok(o->q_dtype) || (!dtype_ok(o->out_dtype) && o->out_dtype != TERRACE_E4M3))
		return client_fail(TERRACE_INVALID, "q_dtype %d, out_dtype %d: not element types", (int)o->q_dtype,
				   (int)o->out_dtype);
	if (!isfinite(o->scale))
		return client_fail(TERRACE_INVALID, "scale is not finite");
	if (o->scale == 0.0f && l->rope_dim)
		return client_fail(TERRACE_INVALID, KV_ROPE_SCALE);
	if (o->queries && (!o->q || !o->out))
		return client_fail(TERRACE_INVALID, "q or out is NULL");
	/* Positions are added to and subtracted from: keep them where that cannot overflow. */
	if (o->first_pos > INT64_MAX / 2 || o->first_pos < INT64_MIN / 2)
		return client_fail(TERRACE_INVALID, "first_pos is out of range");
	return blocks_check(l, o);
}

static enum terrace_status attend_run(const struct kv_attend *a)
{
	size_t bytes = kv_attend_scratch(a);
	const char *problem;
	void *scratch;

	bytes = (bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
	scratch = aligned_alloc(SCRATCH_ALIGN, bytes ? bytes : SCRATCH_ALIGN);
	if (!scratch)
		return client_fail(TERRACE_EXHAUSTED, "no memory for %zu bytes of scratch", bytes);
	problem = kv_attend_run(a, scratch);
	free(scratch);
	if (problem)
		return client_fail(TERRACE_INVALID, "%s", problem);
	return TERRACE_OK;
}

/* terrace_attend, in the default mode, since it reads floats before attention begins: a scale may be subnormal. Long
 * because of the table that turns public options into the kernels' struct. */
__attribute__((noinline)) static enum terrace_status attend(const struct terrace_layout *layout, const struct terrace_attend_options *options)
{
	struct terrace_attend_options o;
	struct kv_attend_features features;
	struct kv_layout l;
	struct kv_geometry g;
	float out_scale;
	const char *problem = client_layout_read(layout, &l);
	enum terrace_status status;

	if (problem)
		return client_fail(TERRACE_INVALID, "attend: %s", problem);
	if (!client_layout_codec(&l))
		return client_fail_in(TERRACE_UNSUPPORTED, "attend");
	if (!options || !client_options_copy(&o, sizeof(o), options, sizeof(o)))
		return client_fail(TERRACE_INVALID, "attend: the options' size is not set: begin them with TERRACE_ATTEND_OPTIONS_INIT");
	status = attend_check(&l, &o);
	if (!status)
		status = features_read(o.features, &out_scale, &features);
	if (status)
		return client_fail_in(status, "attend");
	if (!o.queries)
		return TERRACE_OK;
	kv_geometry_of(&l, &g);
	status = attend_run(&(struct kv_attend){
		.layout = &l,
		.geometry = &g,
		.layer = o.layer,
		.queries = o.queries,
		.q_heads = o.q_heads,
		.q = o.q,
		.q_dtype = (enum kv_dtype)o.q_dtype,
		.scale = o.scale != 0.0f ? o.scale : 1.0f / sqrtf((float)l.head_dim_k),
		.blocks = o.blocks,
		.kv_tokens = o.kv_tokens,
		.causal = o.causal,
		.first_pos = o.first_pos,
		.out = o.out,
		.out_dtype = (enum kv_dtype)o.out_dtype,
		.lse = o.lse,
		.features = features,
	});
	return status ? client_fail_in(status, "attend") : TERRACE_OK;
}

enum terrace_status terrace_attend(const struct terrace_layout *layout, const struct terrace_attend_options *options)
{
	const struct kv_float_mode mode = kv_float_mode_enter();
	const enum terrace_status status = attend(layout, options);

	kv_float_mode_leave(mode);
	return status;
}

enum terrace_status terrace_merge(uint32_t rows, uint32_t d, float *out_a, float *lse_a, const float *out_b,
				  const float *lse_b)
{
	if (rows && d && (!out_a || !lse_a || !out_b || !lse_b))
		return client_fail(TERRACE_INVALID, "merge: an argument is NULL");
	if (rows && d) {
		const struct kv_float_mode mode = kv_float_mode_enter();

		kv_merge(rows, d, out_a, lse_a, out_b, lse_b);
		kv_float_mode_leave(mode);
	}
	return TERRACE_OK;
}

/* ---- int4_pth between blocks and an engine's own pages ---- */

static enum terrace_status repack_sides_check(const struct kv_layout *l, const struct terrace_repack_options *o)
{
	if (l->rope_dim)
		return client_fail(TERRACE_UNSUPPORTED, CLIENT_ROPE_REPACK);
	if (!o->k.codes && !o->v.codes)
		return client_fail(TERRACE_INVALID, "neither K's nor V's pages are given");
	if ((o->k.codes && l->k_format != KV_INT4_PTH) || (o->v.codes && l->v_format != KV_INT4_PTH))
		return client_fail(TERRACE_UNSUPPORTED, "only int4_pth is repacked, and K is %s and V is %s: "
				   "decode and encode other formats", kv_format_info(l->k_format)->name,
				   kv_format_info(l->v_format)->name);
	if ((o->k.codes && !o->k.scales) || (o->v.codes && !o->v.scales))
		return client_fail(TERRACE_INVALID, "pages have codes, and their scales are NULL");
	if (o->layer >= l->layers)
		return client_fail(TERRACE_INVALID, "layer %u: the layout has %u", o->layer, l->layers);
	if (o->tokens && (!o->slots || !o->page_slots || !o->blocks))
		return client_fail(TERRACE_INVALID, "slots, page_slots or blocks is NULL");
	if (o->tokens && !o->page_tokens)
		return client_fail(TERRACE_INVALID, "page_tokens is 0");
	return TERRACE_OK;
}

/* The number of slots in `count` blocks or pages of `each` tokens. */
static uint64_t slots_of(uint64_t count, uint32_t each)
{
	return count > INT64_MAX / each ? INT64_MAX : count * each;
}

/* Every token that is not skipped has a slot on either side, and its block is there. Blocks are looked at once for
 * tokens in a row, for a division a token would take a tenth of the time of all. */
static enum terrace_status repack_tokens_check(const struct kv_layout *l, const struct terrace_repack_options *o)
{
	uint64_t slots = slots_of(o->block_count, l->block_tokens), page_slots = slots_of(o->page_count,
		o->page_tokens);
	int64_t begin = 0, end = 0; /* slots of the block that was looked at */

	for (uint32_t i = 0; i < o->tokens; i++) {
		int64_t slot = o->slots[i], page_slot = o->page_slots[i];
		uintptr_t block;

		if (slot < 0 || page_slot < 0)
			continue;
		if ((uint64_t)slot >= slots)
			return client_fail(TERRACE_INVALID, "token %u: slot %lld is none of %u blocks", i,
				(long long)slot,
					   o->block_count);
		if ((uint64_t)page_slot >= page_slots)
			return client_fail(TERRACE_INVALID, "token %u: slot %lld is none of %llu pages", i,
					   (long long)page_slot, (unsigned long long)o->page_count);
		if (slot >= begin && slot < end)
			continue;
		block = (uintptr_t)o->blocks[slot / l->block_tokens];
		if (!block || block % BLOCK_ALIGN)
			return client_fail(TERRACE_INVALID, "token %u: its block is NULL, or not aligned to %d bytes",
				i,
					   BLOCK_ALIGN);
		begin = slot / l->block_tokens * l->block_tokens;
		end = begin + l->block_tokens;
	}
	return TERRACE_OK;
}

static struct kv_pages_side pages_of(const struct terrace_pages *p)
{
	return (struct kv_pages_side){p->codes, p->scales, p->code_page, p->code_token, p->code_head,
				      p->scale_page, p->scale_token, p->scale_head};
}

static enum terrace_status repack(const struct terrace_layout *layout, const struct terrace_repack_options *options,
				  void (*run)(const struct kv_repack *))
{
	struct terrace_repack_options o;
	struct kv_geometry geometry;
	enum terrace_status status;
	struct kv_layout l;
	const char *problem = client_layout_read(layout, &l);

	if (problem)
		return client_fail(TERRACE_INVALID, "repack: %s", problem);
	if (!client_layout_codec(&l))
		return client_fail_in(TERRACE_UNSUPPORTED, "repack");
	if (!options || !client_options_copy(&o, sizeof(o), options, sizeof(o)))
		return client_fail(TERRACE_INVALID, "repack: the options' size is not set: begin them with "
				   "TERRACE_REPACK_OPTIONS_INIT");
	status = repack_sides_check(&l, &o);
	if (!status && o.tokens)
		status = repack_tokens_check(&l, &o);
	if (status)
		return client_fail_in(status, "repack");
	kv_geometry_of(&l, &geometry);
	run(&(struct kv_repack){&l, &geometry, o.layer, o.tokens, o.slots, o.page_slots, o.blocks, o.page_tokens,
				{pages_of(&o.k), pages_of(&o.v)}});
	return TERRACE_OK;
}

enum terrace_status terrace_repack_from_pages(const struct terrace_layout *layout,
					      const struct terrace_repack_options *options)
{
	return repack(layout, options, kv_repack_from_pages);
}

enum terrace_status terrace_repack_to_pages(const struct terrace_layout *layout,
					    const struct terrace_repack_options *options)
{
	return repack(layout, options, kv_repack_to_pages);
}
