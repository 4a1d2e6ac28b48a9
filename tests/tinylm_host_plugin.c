/* A plugin whose kernels are those of the CPU; see tinylm_host_device.h. TINYLM_HOST_PROBLEM in the environment is what it says is
 * wrong with its device. */
#include "kernels/attend.h"
#include "kernels/cuda/plugin.h"
#include "tests/tinylm_host_device.h"

#include <stdlib.h>
#include <string.h>

enum { ADDRESSES_MAX = 4096 };

static const char *problem(void)
{
	return getenv("TINYLM_HOST_PROBLEM");
}

static const char *last_error(void)
{
	return "no error";
}

static bool attend_supported(enum kv_format k, enum kv_format v)
{
	return k == v;
}

/* The plan is a copy of the lengths. */
static size_t attend_workspace(const struct kv_cuda_attend *a)
{
	return attend_supported(a->layout->k_format, a->layout->v_format) ? a->sequences * sizeof(uint32_t) : 0;
}

static enum status attend_plan(const struct kv_cuda_attend *a, struct CUstream_st *stream)
{
	size_t bytes = attend_workspace(a);

	if (!stream || a->sequences > 4096 || a->workspace_bytes < bytes)
		return STATUS_INVALID;
	memcpy(host_device_memory(a->workspace), host_device_memory(a->kv_tokens), bytes);
	return STATUS_OK;
}

static enum status attend_sequence(const struct kv_cuda_attend *a, uint32_t sequence, uint32_t kv_tokens)
{
	const size_t row = (size_t)a->queries * a->q_heads, floats = row * a->layout->head_dim_k;
	const uint64_t *table = (uint64_t *)host_device_memory(a->blocks) + (size_t)sequence * a->blocks_stride;
	const void *blocks[ADDRESSES_MAX];
	struct kv_attend k = {
		.layout = a->layout,
		.geometry = a->geometry,
		.layer = a->layer,
		.queries = a->queries,
		.q_heads = a->q_heads,
		.q = (float *)host_device_memory(a->q) + sequence * floats,
		.scale = a->scale,
		.blocks = blocks,
		.kv_tokens = kv_tokens,
		.causal = true,
		.first_pos = (int64_t)kv_tokens - a->queries,
		.out = (float *)host_device_memory(a->out) + sequence * floats,
		.lse = (float *)host_device_memory(a->lse) + sequence * row,
	};
	const char *wrong;
	void *scratch;

	for (uint32_t i = 0; i < a->blocks_stride && i * a->layout->block_tokens < kv_tokens; i++)
		blocks[i] = host_device_memory((void *)(uintptr_t)table[i]);
	scratch = aligned_alloc(64, (kv_attend_scratch(&k) + 63) / 64 * 64);
	wrong = kv_attend_run(&k, scratch);
	free(scratch);
	return wrong ? STATUS_INVALID : STATUS_OK;
}

/* Refuses lengths that are not those of the plan. */
static enum status attend_run(const struct kv_cuda_attend *a, struct CUstream_st *stream)
{
	const uint32_t *kv_tokens = host_device_memory(a->kv_tokens), *planned = host_device_memory(a->workspace);
	enum status status = STATUS_OK;

	if (!stream || a->q_dtype != KV_DTYPE_F32 || a->out_dtype != KV_DTYPE_F32 || a->blocks_stride > ADDRESSES_MAX ||
	    memcmp(kv_tokens, planned, a->sequences * sizeof(*kv_tokens)) != 0)
		return STATUS_INVALID;
	for (uint32_t s = 0; s < a->sequences && status == STATUS_OK; s++)
		status = attend_sequence(a, s, kv_tokens[s]);
	return status;
}

static enum status encode(const struct kv_cuda_codec *c, struct CUstream_st *stream)
{
	const int64_t *slots = host_device_memory(c->slots);
	const uint64_t *blocks = host_device_memory(c->blocks);
	const struct kv_layout *l = c->layout;
	const float *k = host_device_memory(c->k), *v = host_device_memory(c->v);

	if (!stream || c->dtype != KV_DTYPE_F32)
		return STATUS_INVALID;
	for (uint32_t t = 0; t < c->tokens; t++) {
		int64_t block = slots[t] / l->block_tokens;
		uint32_t at = (uint32_t)(slots[t] % l->block_tokens);

		if (slots[t] < 0 || block >= c->block_count)
			return STATUS_INVALID;
		for (uint32_t h = 0; h < l->heads; h++) {
			void *memory = host_device_memory((void *)(uintptr_t)blocks[block]);

			kv_encode(l, c->geometry, memory, c->layer, h, KV_SIDE_K, at, 1,
				  k + t * c->k_stride + (size_t)h * l->head_dim_k, c->dtype, c->k_stride);
			kv_encode(l, c->geometry, memory, c->layer, h, KV_SIDE_V, at, 1,
				  v + t * c->v_stride + (size_t)h * l->head_dim_v, c->dtype, c->v_stride);
		}
	}
	return STATUS_OK;
}

/* In place only. */
static enum status merge(const struct kv_cuda_merge *m, struct CUstream_st *stream)
{
	if (!stream || m->parts > KV_CUDA_MERGE_PARTS || m->merged != m->out[0] || m->merged_lse != m->lse[0])
		return STATUS_INVALID;
	for (uint32_t i = 1; i < m->parts; i++)
		kv_merge(m->rows, m->d, host_device_memory(m->merged), host_device_memory(m->merged_lse),
			 host_device_memory(m->out[i]), host_device_memory(m->lse[i]));
	return STATUS_OK;
}

static size_t extend_workspace(const struct kv_cuda_extend *e)
{
	(void)e;
	return 0;
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

static enum status copy(const struct kv_cuda_copy *c, struct CUstream_st *stream)
{
	(void)c;
	(void)stream;
	return STATUS_UNSUPPORTED;
}

__attribute__((visibility("default"))) const struct kv_cuda_plugin *kv_cuda_plugin(void)
{
	static const struct kv_cuda_plugin table = {
		.version = KV_CUDA_PLUGIN_VERSION, .bytes = sizeof(table), .problem = problem, .last_error = last_error,
		.attend_supported = attend_supported, .attend_workspace = attend_workspace, .attend_plan = attend_plan,
		.attend_run = attend_run, .extend_workspace = extend_workspace, .extend_run = extend_run, .encode = encode,
		.decode = decode, .merge = merge, .copy = copy,
	};

	return &table;
}
