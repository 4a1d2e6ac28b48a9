/* Attention from packed blocks, for a few queries a sequence (see cuda_kernels.h).
 *
 * One kernel (attend_kernel.cuh), instantiated for a pair of formats in each attend_*.cu. The grid
 * fills the device once; each CTA walks the segments that the plan (plan.cuh) gives it. In a segment
 * every one of its warps takes its own run of atoms and keeps a ring of copies going into shared memory
 * (attend_feed.cuh), so that no warp waits for another before the end. A step is 32 tokens (16 where V
 * is 8 or 16 bits): scores on the tensor cores, weights (attend_weigh.cuh), weighted values on the
 * tensor cores again (fragments.cuh). The query is rotated here, while the first loads are under way
 * (attend_query.cuh), and the result is rotated back after the parts of a row have met
 * (attend_finish.cuh). Features other than sinks are an instance of their own, so that the plain one
 * does not pay for them.
 */
#include "kernels/cuda/arguments.cuh"
#include "kernels/cuda/attend_shape.cuh"
#include "kernels/cuda/format.cuh"
#include "kernels/cuda/fragments_float.cuh"
#include "kernels/cuda/fragments_int4.cuh"
#include "kernels/cuda/fragments_tq.cuh"
#include "kernels/cuda/fragments_tq4.cuh"

namespace
{

typedef enum status (*launcher)(const attend_args &, const attend_plan &, head_dims, cudaStream_t);

const struct {
	enum kv_format k, v;
	launcher launch;
} pairs[] = {
	{KV_F16, KV_F16, attend_launch<fp16_keys, fp16_values>},
	{KV_BF16, KV_BF16, attend_launch<bf16_keys, bf16_values>},
	{KV_FP8, KV_FP8, attend_launch<fp8_keys, fp8_values>},
	{KV_INT4_PTH, KV_INT4_PTH, attend_launch<int4_keys, int4_values>},
	{KV_TQ4, KV_TQ4, attend_launch<tq4_keys, tq4_values>},
	{KV_TQ3, KV_TQ3, attend_launch<tq3_keys, tq3_values>},
	{KV_TQ2, KV_TQ2, attend_launch<tq2_keys, tq2_values>},
	{KV_FP8, KV_TQ4, attend_launch<fp8_keys, tq4_values>},
	{KV_FP8, KV_TQ3, attend_launch<fp8_keys, tq3_values>},
	{KV_TQ4, KV_TQ3, attend_launch<tq4_keys, tq3_values>},
};

launcher launcher_of(enum kv_format k, enum kv_format v)
{
	for (const auto &p : pairs)
		if (p.k == k && p.v == v)
			return p.launch;
	return nullptr;
}

/* What a call asks for, as the kernel wants it; the workspace's parts are where the plan says. */
attend_args args_of(const struct kv_cuda_attend *a, const struct attend_plan &plan)
{
	uint8_t *workspace = (uint8_t *)a->workspace;
	const bool rotated = format_rotated(a->layout->k_format);
	attend_args args = {};

	args.blocks = a->blocks;
	args.q = a->q;
	args.out = a->out;
	args.lse = a->lse;
	args.segments = (const segment *)(workspace + plan.segments_at);
	args.arrived = (uint32_t *)(workspace + plan.arrived_at);
	args.partials = (float *)(workspace + plan.partials_at);
	args.sums = (float2 *)(workspace + plan.sums_at);
	args.layer_at = a->layer * a->geometry->layer_bytes;
	args.chunk_bytes = a->geometry->chunk_bytes;
	args.block_atoms = a->geometry->atoms;
	args.block_magic = (uint32_t)((0x100000000 + args.block_atoms - 1) / args.block_atoms);
	args.blocks_stride = a->blocks_stride;
	args.heads = a->layout->heads;
	args.q_heads = a->q_heads;
	args.group = a->q_heads / a->layout->heads;
	args.queries = a->queries;
	args.columns = plan.columns;
	args.tiles = plan.tiles;
	args.parts_max = plan.parts_max;
	args.q_dtype = a->q_dtype;
	args.out_dtype = a->out_dtype;
	/* Rotation is unnormalised: rotated queries and keys are sqrt(D) too long each. */
	args.scale_log2 = a->scale * 1.44269504f / (rotated ? (float)a->layout->head_dim_k : 1);
	args.settled = a->settled;
	args.features = a->features;
	args.features.window = plan.window;
	args.features.softcap = soft_cap_of(&a->features);
	args.cap = args.features.softcap * 1.44269504f;
	if (args.features.softcap > 0)
		args.scale_log2 *= 2 / args.features.softcap;
	args.cap_twice = -2 * args.cap;
	args.cap_is_large = args.features.softcap > SOFT_CAP_ROUGH;
	return args;
}

/* What a run wants beyond the plan's shape. */
bool arguments_sound(const struct kv_cuda_attend *a)
{
	return a->q && a->out && a->blocks && a->workspace && a->layer < a->layout->layers && fabsf(a->scale) < INFINITY &&
	       dtype_read(a->q_dtype) && dtype_written(a->out_dtype) && aligned_to(256, {a->workspace}) &&
	       aligned_to(16, {a->q, a->out}) && aligned_to(8, {a->blocks}) && aligned_to(4, {a->lse});
}

} // namespace

extern "C" bool kv_cuda_attend_supported(enum kv_format k, enum kv_format v)
{
	return launcher_of(k, v) != nullptr;
}

extern "C" enum status kv_cuda_attend_run(const struct kv_cuda_attend *a, cudaStream_t stream)
{
	struct attend_plan plan;
	enum status status = attend_plan_of(a, &plan);

	if (status != STATUS_OK)
		return status;
	if (!arguments_sound(a))
		return STATUS_INVALID;
	if (a->workspace_bytes < plan.bytes)
		return STATUS_EXHAUSTED;
	if (a->sequences == 0)
		return STATUS_OK;
	return launcher_of(a->layout->k_format, a->layout->v_format)(
		args_of(a, plan), plan, {a->layout->head_dim_k, a->layout->head_dim_v}, stream);
}
