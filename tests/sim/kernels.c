/* The kernels of a device that is none: the CPU's, run by the stream's thread; see sim/device.h. Arguments are copied at the call, as a
 * launch does it; what is wrong with memory then shows in the stream. */
#include "kernels/attend.h"
#include "kernels/cuda/plugin.h"
#include "tests/sim/device.h"
#include "tests/sim/stream.h"

#include <stdlib.h>
#include <string.h>

enum { ADDRESSES_MAX = 4096 };

static const char *problem(void)
{
	return getenv("SIM_GPU_PROBLEM");
}

static const char *last_error(void)
{
	return "no error";
}

struct launch {
	struct kv_layout layout;
	struct kv_geometry geometry;
	enum status (*run)(const struct launch *l);
	union {
		struct kv_cuda_attend attend;
		struct kv_cuda_codec codec;
		struct kv_cuda_merge merge;
		struct kv_cuda_copy copy;
	};
};

static enum status launch_run(void *launch, bool failed)
{
	struct launch *l = launch;
	enum status s = failed ? STATUS_OK : l->run(l);

	free(l);
	return s;
}

static enum status launch(const struct launch *as, struct CUstream_st *stream)
{
	struct launch *l = malloc(sizeof(*l));

	if (!l)
		return STATUS_INTERNAL;
	*l = *as;
	if (sim_stream_put((struct sim_stream *)stream, launch_run, l))
		return STATUS_OK;
	free(l);
	return STATUS_INVALID;
}

static bool attend_supported(enum kv_format k, enum kv_format v)
{
	return k == v;
}

/* The plan is a copy of the lengths. */
static enum status attend_workspace(const struct kv_cuda_attend *a, size_t *bytes)
{
	if (!attend_supported(a->layout->k_format, a->layout->v_format))
		return STATUS_UNSUPPORTED;
	*bytes = a->sequences * sizeof(uint32_t);
	return STATUS_OK;
}

static enum status plan_run(const struct launch *l)
{
	const struct kv_cuda_attend *a = &l->attend;

	memcpy(sim_memory(a->workspace), sim_memory(a->kv_tokens), a->sequences * sizeof(uint32_t));
	return STATUS_OK;
}

static enum status attend_launch(const struct kv_cuda_attend *a, enum status (*run)(const struct launch *l),
				 struct CUstream_st *stream)
{
	return launch(&(struct launch){ .layout = *a->layout, .geometry = *a->geometry, .run = run, .attend = *a }, stream);
}

static enum status attend_plan(const struct kv_cuda_attend *a, struct CUstream_st *stream)
{
	size_t bytes;

	if (a->sequences > 4096 || attend_workspace(a, &bytes) != STATUS_OK || a->workspace_bytes < bytes)
		return STATUS_INVALID;
	return attend_launch(a, plan_run, stream);
}

static enum status attend_sequence(const struct launch *l, uint32_t sequence, uint32_t kv_tokens)
{
	const struct kv_cuda_attend *a = &l->attend;
	const size_t row = (size_t)a->queries * a->q_heads, floats = row * l->layout.head_dim_k;
	const uint64_t *table = (uint64_t *)sim_memory(a->blocks) + (size_t)sequence * a->blocks_stride;
	const void *blocks[ADDRESSES_MAX];
	struct kv_attend k = {
		.layout = &l->layout,
		.geometry = &l->geometry,
		.layer = a->layer,
		.queries = a->queries,
		.q_heads = a->q_heads,
		.q = (float *)sim_memory(a->q) + sequence * floats,
		.scale = a->scale,
		.blocks = blocks,
		.kv_tokens = kv_tokens,
		.causal = true,
		.first_pos = (int64_t)kv_tokens - a->queries,
		.out = (float *)sim_memory(a->out) + sequence * floats,
		.lse = (float *)sim_memory(a->lse) + sequence * row,
	};
	const char *wrong;
	void *scratch;

	for (uint32_t i = 0; i < a->blocks_stride && i * l->layout.block_tokens < kv_tokens; i++)
		blocks[i] = sim_at(table[i]);
	scratch = aligned_alloc(64, (kv_attend_scratch(&k) + 63) / 64 * 64);
	wrong = kv_attend_run(&k, scratch);
	free(scratch);
	return wrong ? STATUS_INVALID : STATUS_OK;
}

/* Fails with lengths that are not those of the plan. */
static enum status attend_run_now(const struct launch *l)
{
	const struct kv_cuda_attend *a = &l->attend;
	const uint32_t *kv_tokens = sim_memory(a->kv_tokens), *planned = sim_memory(a->workspace);
	enum status status = STATUS_OK;

	if (memcmp(kv_tokens, planned, a->sequences * sizeof(*kv_tokens)) != 0)
		return STATUS_INVALID;
	for (uint32_t s = 0; s < a->sequences && status == STATUS_OK; s++)
		status = attend_sequence(l, s, kv_tokens[s]);
	return status;
}

static enum status attend_run(const struct kv_cuda_attend *a, struct CUstream_st *stream)
{
	if (a->q_dtype != KV_DTYPE_F32 || a->out_dtype != KV_DTYPE_F32 || a->blocks_stride > ADDRESSES_MAX)
		return STATUS_INVALID;
	return attend_launch(a, attend_run_now, stream);
}

/* Codes of one token. */
static void encode_token(const struct launch *l, const float *k, const float *v, void *block, uint32_t at)
{
	const struct kv_cuda_codec *c = &l->codec;

	for (uint32_t h = 0; h < l->layout.heads; h++) {
		kv_encode(&l->layout, &l->geometry, block, c->layer, h, KV_SIDE_K, at, 1, k + (size_t)h * l->layout.head_dim_k,
			  c->dtype, c->k_stride);
		kv_encode(&l->layout, &l->geometry, block, c->layer, h, KV_SIDE_V, at, 1, v + (size_t)h * l->layout.head_dim_v,
			  c->dtype, c->v_stride);
	}
}

static enum status encode_run(const struct launch *l)
{
	const struct kv_cuda_codec *c = &l->codec;
	const int64_t *slots = sim_memory(c->slots);
	const uint64_t *blocks = sim_memory(c->blocks);
	const float *k = sim_memory(c->k), *v = sim_memory(c->v);

	for (uint32_t t = 0; t < c->tokens; t++) {
		int64_t block = slots[t] / l->layout.block_tokens;

		if (slots[t] < 0 || block >= c->block_count)
			return STATUS_INVALID;
		encode_token(l, k + t * c->k_stride, v + t * c->v_stride, sim_at(blocks[block]),
			     (uint32_t)(slots[t] % l->layout.block_tokens));
	}
	return STATUS_OK;
}

static enum status encode(const struct kv_cuda_codec *c, struct CUstream_st *stream)
{
	if (c->dtype != KV_DTYPE_F32)
		return STATUS_INVALID;
	return launch(&(struct launch){ .layout = *c->layout, .geometry = *c->geometry, .run = encode_run, .codec = *c }, stream);
}

static enum status merge_run(const struct launch *l)
{
	const struct kv_cuda_merge *m = &l->merge;

	for (uint32_t i = 1; i < m->parts; i++)
		kv_merge(m->rows, m->d, sim_memory(m->merged), sim_memory(m->merged_lse), sim_memory(m->out[i]),
			 sim_memory(m->lse[i]));
	return STATUS_OK;
}

/* In place only. */
static enum status merge(const struct kv_cuda_merge *m, struct CUstream_st *stream)
{
	if (m->parts > KV_CUDA_MERGE_PARTS || m->merged != m->out[0] || m->merged_lse != m->lse[0])
		return STATUS_INVALID;
	return launch(&(struct launch){ .run = merge_run, .merge = *m }, stream);
}

static enum status extend_workspace(const struct kv_cuda_extend *e, size_t *bytes)
{
	(void)e, (void)bytes;
	return STATUS_UNSUPPORTED;
}

static enum status extend_run(const struct kv_cuda_extend *e, struct CUstream_st *stream)
{
	(void)e;
	(void)stream;
	return STATUS_UNSUPPORTED;
}

static enum status decode(const struct kv_cuda_codec *c, struct CUstream_st *stream)
{
	(void)c;
	(void)stream;
	return STATUS_UNSUPPORTED;
}

static enum status repack(const struct kv_cuda_repack *r, struct CUstream_st *stream)
{
	(void)r;
	(void)stream;
	return STATUS_UNSUPPORTED;
}

static enum status copy_run(const struct launch *l)
{
	const struct kv_cuda_copy *c = &l->copy;
	const uint64_t *from = sim_memory(c->from), *to = sim_memory(c->to);

	for (uint32_t i = 0; i < c->count; i++)
		if (from[i] && to[i])
			memcpy(sim_at(to[i]), sim_at(from[i]), c->block_bytes);
	return STATUS_OK;
}

/* Whole blocks only. */
static enum status copy(const struct kv_cuda_copy *c, struct CUstream_st *stream)
{
	if (c->tokens)
		return STATUS_UNSUPPORTED;
	return launch(&(struct launch){ .run = copy_run, .copy = *c }, stream);
}

__attribute__((visibility("default"))) const struct kv_cuda_plugin *kv_cuda_plugin(void)
{
	static const struct kv_cuda_plugin table = {
		.version = KV_CUDA_PLUGIN_VERSION, .bytes = sizeof(table), .problem = problem, .last_error = last_error,
		.attend_supported = attend_supported, .attend_workspace = attend_workspace, .attend_plan = attend_plan,
		.attend_run = attend_run, .extend_workspace = extend_workspace, .extend_run = extend_run, .encode = encode,
		.decode = decode, .repack_from_pages = repack, .repack_to_pages = repack, .merge = merge, .copy = copy,
	};

	return &table;
}
