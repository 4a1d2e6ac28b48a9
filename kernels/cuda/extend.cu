/* Attention of long queries over a packed prefix and their own tokens (see cuda_kernels.h).
 *
 * Four kernels: bounds and the line of steps, then queries and new tokens as tiles (extend_prepare.cu); the products
 * (extend_kernel.cuh, or extend_portable.cuh before and after compute capability 9.0), instantiated for a pair of
 * formats in each extend_*.cu; the parts of a row together (extend_merge.cu). Every grid is fixed by the shape; lengths
 * are read on the device.
 */
#include "kernels/cuda/arguments.cuh"
#include "kernels/cuda/extend_shape.cuh"

namespace
{

typedef enum status (*launcher)(const extend_args &, head_dims, cudaStream_t);

/* Products of warpgroups are for compute capability 9.0, in code for sm_90a. TERRACE_CUDA_PORTABLE leaves them out, for
 * tests. */
#ifdef TERRACE_CUDA_PORTABLE
#define LAUNCHERS(k, v) nullptr, extend_portable<k, v>
#else
#define LAUNCHERS(k, v) extend_launch<k, v>, extend_portable<k, v>
#endif
const struct {
	enum kv_format k, v;
	launcher launch, portable;
} pairs[] = {
	{KV_F16, KV_F16, LAUNCHERS(KV_F16, KV_F16)},
	{KV_BF16, KV_BF16, LAUNCHERS(KV_BF16, KV_BF16)},
	{KV_FP8, KV_FP8, LAUNCHERS(KV_FP8, KV_FP8)},
	{KV_INT4_PTH, KV_INT4_PTH, LAUNCHERS(KV_INT4_PTH, KV_INT4_PTH)},
	{KV_TQ4, KV_TQ4, LAUNCHERS(KV_TQ4, KV_TQ4)},
	{KV_TQ3, KV_TQ3, LAUNCHERS(KV_TQ3, KV_TQ3)},
	{KV_TQ2, KV_TQ2, LAUNCHERS(KV_TQ2, KV_TQ2)},
	{KV_FP8, KV_TQ4, LAUNCHERS(KV_FP8, KV_TQ4)},
	{KV_FP8, KV_TQ3, LAUNCHERS(KV_FP8, KV_TQ3)},
	{KV_TQ4, KV_TQ3, LAUNCHERS(KV_TQ4, KV_TQ3)},
};
#undef LAUNCHERS

/* nullptr if there is none for these formats. */
launcher launcher_of(enum kv_format k, enum kv_format v, bool portable)
{
	for (const auto &p : pairs)
		if (p.k == k && p.v == v)
			return portable ? p.portable : p.launch;
	return nullptr;
}

/* What is where in the workspace. */
struct extend_plan {
	uint32_t tile_count, own_tiles, tokens, rows, ctas;
	bool portable; /* by the kernel without products of warpgroups */
	uint32_t units, slots;
	size_t bounds_at, lines_at[2], cuts_at[2], q_images_at, q_rests_at, q_units_at, k_images_at,
		v_images_at, k_fine_at, v_fine_at, partials_at, sums_at, bytes;
};

size_t place(size_t *at, size_t bytes)
{
	const size_t here = *at;

	*at += (bytes + 255) / 256 * 256;
	return here;
}

bool shape_sound(const struct kv_cuda_extend *e)
{
	return layout_sound(e->layout, e->geometry) && e->q_heads > 0 && e->q_heads % e->layout->heads == 0 && e->sequences <= 4096 &&
	       fabsf(e->scale) < INFINITY && features_sound(&e->features) && (!e->features.tree_bias || e->tree_stride > 0);
}

enum status plan_of(const struct kv_cuda_extend *e, struct extend_plan *plan)
{
	const struct kv_layout *l = e->layout;
	int device, sms, major, minor;
	bool portable_code;

	if (!shape_sound(e))
		return STATUS_INVALID;
	const uint32_t dk = l->head_dim_k, dv = l->head_dim_v, group = e->q_heads / l->heads;

	if (!launcher_of(l->k_format, l->v_format, true) || !attend_dims_built({dk, dv}))
		return STATUS_UNSUPPORTED;
	if (cudaGetDevice(&device) != cudaSuccess ||
	    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
	    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
	    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess)
		return STATUS_INTERNAL;
	const enum status code = major < 8 ? STATUS_UNSUPPORTED : code_is_portable(&portable_code);

	if (code != STATUS_OK)
		return code;
	if ((uint64_t)e->total_queries * e->q_heads >= 1u << 28)
		return STATUS_INVALID;

	struct extend_plan p = {};
	size_t at = 0;

#ifdef TERRACE_CUDA_PORTABLE
	p.portable = true;
#else
	p.portable = major != 9 || minor != 0 || e->features.tree_bias || e->features.ranges_max ||
		     e->features.softcap > SOFT_CAP_ROUGH;
#endif
	p.rows = extend_rows(dk, dv);
	p.tokens = extend_tokens(l->k_format, l->v_format, dk, dv);
	p.ctas = (uint32_t)sms;
	p.tile_count = e->total_queries * group / p.rows + e->sequences;
	p.own_tiles = e->total_queries / p.tokens + e->sequences;
	p.units = p.tile_count * l->heads;
	p.slots = p.units + 2 * p.ctas;
	const bool fine = format_fine(l->k_format);
	const uint32_t own_tokens = extend_own_tokens(l->k_format, FINE_TOKENS, true);
	const size_t own = (size_t)p.own_tiles * l->heads,
		     own_fine = fine ? (size_t)(e->total_queries / own_tokens + e->sequences) * l->heads : 0;

	p.bounds_at = place(&at, (size_t)e->sequences * l->heads * BOUNDS * BOUND_PARTS * 4);
	for (size_t &line_at : p.lines_at)
		line_at = place(&at, ((size_t)p.units + 1) * sizeof(extend_tile));
	for (size_t &cuts_at : p.cuts_at)
		cuts_at = place(&at, ((size_t)p.ctas + 1) * 4);
	p.q_images_at = place(&at, (size_t)p.units * q_image_bytes(dk, dv));
	p.q_rests_at = place(&at, fine && format_rotated(l->k_format) ? (size_t)p.units * q_image_bytes(dk, dv) : 0);
	p.q_units_at = place(&at, (size_t)p.units * p.rows * 4);
	p.k_images_at = place(&at, own * k_tile_bytes(dk, p.tokens));
	p.v_images_at = place(&at, own * v_tile_bytes(dv, p.tokens));
	p.k_fine_at = place(&at, own_fine * k_tile_bytes(dk, FINE_TOKENS));
	p.v_fine_at = place(&at, own_fine * v_tile_bytes(dv, FINE_TOKENS));
	p.sums_at = place(&at, (size_t)p.slots * p.rows * 8);
	p.partials_at = place(&at, (size_t)p.slots * p.rows * dv * 4);
	p.bytes = at;
	*plan = p;
	return STATUS_OK;
}

/* Scores that would have errors of the order of 1e-3 with operands of fp16: above so much of scale |query| |key| /
 * sqrt(d), as far as magnitudes show it. Vectors of normal numbers have about 1.6. int4_pth's scale says less of a
 * key's length than those of codebooks do; fp8's values are not rotated, and may be large in a few dims, but their
 * queries are exact. */
constexpr float fine_from(enum kv_format k)
{
	return k == KV_FP8 ? 8 : k == KV_INT4_PTH ? 3.2f : 2.5f;
}

extend_args args_of(const struct kv_cuda_extend *e, const struct extend_plan &plan)
{
	uint8_t *workspace = (uint8_t *)e->workspace;
	const struct kv_layout *l = e->layout;
	const uint32_t windows[2] = {l->window, e->features.window};
	extend_args a = {};

	a.blocks = e->blocks;
	a.prefix_tokens = e->prefix_tokens;
	a.query_starts = e->query_starts;
	a.q = e->q;
	a.k = e->k;
	a.v = e->v;
	a.k_stride = e->k_stride;
	a.v_stride = e->v_stride;
	a.out = e->out;
	a.lse = e->lse;
	a.bounds = (uint32_t *)(workspace + plan.bounds_at);
	for (int i = 0; i < 2; i++) {
		a.lines[i] = (extend_tile *)(workspace + plan.lines_at[i]);
		a.cuts[i] = (uint32_t *)(workspace + plan.cuts_at[i]);
	}
	a.q_images = workspace + plan.q_images_at;
	a.q_rests = workspace + plan.q_rests_at;
	a.q_units = (float *)(workspace + plan.q_units_at);
	a.k_images = workspace + plan.k_images_at;
	a.v_images = workspace + plan.v_images_at;
	a.k_fine = workspace + plan.k_fine_at;
	a.v_fine = workspace + plan.v_fine_at;
	a.partials = (float *)(workspace + plan.partials_at);
	a.sums = (float2 *)(workspace + plan.sums_at);
	a.layer_at = e->layer * e->geometry->layer_bytes;
	a.chunk_bytes = e->geometry->chunk_bytes;
	a.block_atoms = e->geometry->atoms;
	a.block_magic = (uint32_t)((0x100000000 + a.block_atoms - 1) / a.block_atoms);
	a.blocks_stride = e->blocks_stride;
	a.sequences = e->sequences;
	a.tile_count = plan.tile_count;
	a.units = plan.units;
	a.slots = plan.slots;
	a.fine_from = fine_from(l->k_format) / fabsf(e->scale);
	a.reach = 1.01f * 1.44269504f * fabsf(e->scale);
	a.bounded = format_fine(l->k_format) && !e->features.alibi && !e->features.tree_bias;
	a.heads = l->heads;
	a.q_heads = e->q_heads;
	a.group = e->q_heads / l->heads;
	a.ctas = plan.ctas;
	a.q_dtype = e->q_dtype;
	a.own_dtype = e->own_dtype;
	a.out_dtype = e->out_dtype;
	a.k_format = l->k_format;
	a.v_format = l->v_format;
	/* Rotation is unnormalised: rotated queries and keys are sqrt(d) too long each. */
	a.scale_log2 = e->scale * 1.44269504f / (format_rotated(l->k_format) ? (float)l->head_dim_k : 1);
	a.softcap_log2 = soft_cap_of(&e->features) * 1.44269504f;
	a.sinks = e->features.sinks;
	a.alibi = e->features.alibi;
	a.alibi_sqrt = e->features.alibi_sqrt;
	a.out_scale = e->out_dtype == KV_DTYPE_E4M3 ? e->features.out_scale : nullptr;
	a.plain = e->features.softcap == 0 && !e->features.alibi;
	a.tree_bias = e->features.tree_bias;
	a.tree_stride = e->tree_stride;
	a.ranges = e->features.ranges;
	a.ranges_max = e->features.ranges_max;
	a.window = NO_TOKENS;
	for (uint32_t w : windows)
		a.window = w && w < a.window ? w : a.window;
	return a;
}

bool pointers_sound(const struct kv_cuda_extend *e)
{
	return e->query_starts && e->prefix_tokens && e->q && e->k && e->v && e->out && e->workspace &&
	       (e->blocks || e->blocks_stride == 0) && aligned_to(256, {e->workspace}) && aligned_to(16, {e->q, e->k, e->v, e->out}) &&
	       aligned_to(8, {e->blocks}) && aligned_to(4, {e->query_starts, e->prefix_tokens, e->lse});
}

bool vectors_sound(const struct kv_cuda_extend *e)
{
	const size_t heads = e->total_queries > 1 ? e->layout->heads : 0, k_least = heads * e->layout->head_dim_k,
		     v_least = heads * e->layout->head_dim_v;

	return dtype_read(e->q_dtype) && dtype_written(e->out_dtype) &&
	       (e->own_dtype == KV_DTYPE_F16 || e->own_dtype == KV_DTYPE_BF16) && e->k_stride % 8 == 0 && e->v_stride % 8 == 0 &&
	       e->k_stride >= k_least && e->v_stride >= v_least;
}

} // namespace

extern "C" enum status kv_cuda_extend_workspace(const struct kv_cuda_extend *e, size_t *bytes)
{
	struct extend_plan plan;
	const enum status status = plan_of(e, &plan);

	if (status == STATUS_OK)
		*bytes = plan.bytes;
	return status;
}

extern "C" enum status kv_cuda_extend_run(const struct kv_cuda_extend *e, cudaStream_t stream)
{
	struct extend_plan plan;
	enum status status = plan_of(e, &plan);

	if (status != STATUS_OK)
		return status;
	if (!pointers_sound(e) || !vectors_sound(e) || e->layer >= e->layout->layers)
		return STATUS_INVALID;
	if (e->workspace_bytes < plan.bytes)
		return STATUS_EXHAUSTED;
	if (e->sequences == 0 || e->total_queries == 0)
		return STATUS_OK;

	const extend_args a = args_of(e, plan);
	const head_dims d = {e->layout->head_dim_k, e->layout->head_dim_v};

	status = extend_prepare(a, d, plan.tokens, plan.own_tiles, stream);
	if (status == STATUS_OK)
		status = launcher_of(e->layout->k_format, e->layout->v_format, plan.portable)(a, d, stream);
	return status == STATUS_OK ? extend_merge(a, d, stream) : status;
}
