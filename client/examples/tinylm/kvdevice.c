/* Steps on the GPU; see kvdevice.h. */
#include "kvdevice.h"

#include <stdlib.h>
#include <string.h>

enum {
	SPAN_TOKENS = 512,    /* at most */
	SEQUENCES_MAX = 4096, /* of an attention call */
	MERGE_PARTS = 16,
	ALIGN = 256
};

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static struct terrace_cuda_attend_options attend_options(const struct kvdevice *d, uint32_t sequences)
{
	struct terrace_cuda_attend_options o = TERRACE_CUDA_ATTEND_OPTIONS_INIT;

	o.sequences = sequences;
	o.queries = 1;
	o.q_heads = d->q_heads;
	o.q = d->q;
	o.q_dtype = TERRACE_F32;
	o.blocks = d->tables;
	o.blocks_stride = d->span_blocks;
	o.kv_tokens = d->kv_tokens;
	o.out = d->out;
	o.out_dtype = TERRACE_F32;
	o.lse = d->lse;
	o.workspace = d->workspace;
	o.workspace_bytes = d->workspace_bytes;
	return o;
}

/* Places one of the buffers, which all lie in one allocation: at base + *at. Moves *at behind it. */
static void *carve(char *base, size_t *at, size_t bytes)
{
	size_t here = *at;

	*at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
	return base ? base + here : NULL;
}

/* Sets the buffers' pointers into `base`, which may be NULL to learn the size. Returns the bytes of all buffers. */
static size_t place_buffers(struct kvdevice *d, char *base)
{
	const size_t rows = d->rows_max, parts = rows * d->spans_max, dim = d->layout.head_dim_k;
	size_t at = 0;

	d->addresses = carve(base, &at, d->block_count * sizeof(*d->addresses));
	d->slots = carve(base, &at, rows * sizeof(*d->slots));
	d->tables = carve(base, &at, parts * d->span_blocks * sizeof(*d->tables));
	d->kv_tokens = carve(base, &at, parts * sizeof(*d->kv_tokens));
	d->q = carve(base, &at, parts * d->q_heads * dim * sizeof(float));
	d->out = carve(base, &at, parts * d->q_heads * dim * sizeof(float));
	d->lse = carve(base, &at, parts * d->q_heads * sizeof(float));
	d->k = carve(base, &at, rows * d->layout.heads * dim * sizeof(float));
	d->v = carve(base, &at, rows * d->layout.heads * dim * sizeof(float));
	d->workspace = carve(base, &at, d->workspace_bytes);
	return at;
}

static bool allocate(struct kvdevice *d, struct fault *fault)
{
	const size_t parts = (size_t)d->rows_max * d->spans_max;

	d->host_addresses = calloc(d->block_count, sizeof(*d->host_addresses));
	d->host_slots = calloc(d->rows_max, sizeof(*d->host_slots));
	d->host_tables = calloc(parts * d->span_blocks, sizeof(*d->host_tables));
	d->host_tokens = calloc(parts, sizeof(*d->host_tokens));
	d->blocks = device_alloc(&d->device, d->block_count * d->block_bytes, fault);
	d->buffers = d->blocks ? device_alloc(&d->device, place_buffers(d, NULL), fault) : NULL;
	if (!d->buffers)
		return false;
	if (!d->host_addresses || !d->host_slots || !d->host_tables || !d->host_tokens)
		return fault_set(fault, "out of memory");
	for (uint32_t i = 0; i < d->block_count; i++)
		kvdevice_place(d, i, 0);
	place_buffers(d, d->buffers);
	return device_wait(&d->device, fault);
}

static uint32_t span_tokens(const struct terrace_layout *layout)
{
	return SPAN_TOKENS / layout->block_tokens * layout->block_tokens;
}

uint32_t kvdevice_rows_max(const struct terrace_layout *layout, uint32_t capacity)
{
	const uint32_t span = span_tokens(layout);

	return SEQUENCES_MAX / ((capacity + span - 1) / span);
}

bool kvdevice_open(struct kvdevice *d, const struct terrace_layout *layout, uint32_t q_heads, uint32_t capacity,
		   uint32_t rows_max, struct fault *fault)
{
	struct terrace_cuda_attend_options shape;

	memset(d, 0, sizeof(*d));
	d->layout = *layout;
	d->q_heads = q_heads;
	d->rows_max = rows_max;
	d->block_bytes = terrace_block_bytes(layout);
	d->block_count = (capacity + layout->block_tokens - 1) / layout->block_tokens;
	d->span_tokens = span_tokens(layout);
	d->span_blocks = d->span_tokens / layout->block_tokens;
	d->spans_max = (capacity + d->span_tokens - 1) / d->span_tokens;
	if (rows_max > kvdevice_rows_max(layout, capacity))
		return fault_set(fault, "a chunk of %u tokens: on the GPU at most %u with a context of %u", rows_max,
				 kvdevice_rows_max(layout, capacity), capacity);
	shape = attend_options(d, rows_max * d->spans_max);
	if (terrace_cuda_attend_workspace(&d->layout, &shape, &d->workspace_bytes) != TERRACE_OK)
		return fault_set(fault, "%.300s", terrace_error());
	if (device_open(&d->device, fault) && allocate(d, fault))
		return true;
	kvdevice_close(d);
	return false;
}

void kvdevice_close(struct kvdevice *d)
{
	device_close(&d->device);
	device_free(d->blocks);
	device_free(d->buffers);
	free(d->host_addresses);
	free(d->host_slots);
	free(d->host_tables);
	free(d->host_tokens);
	memset(d, 0, sizeof(*d));
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

void kvdevice_place(struct kvdevice *d, uint32_t block, uint64_t address)
{
	d->host_addresses[block] = address ? address : (uint64_t)(uintptr_t)(d->blocks + block * d->block_bytes);
}

/* Fills the tables of a step. Row r of span s is sequence s * rows + r of the attention. */
static void fill_step(struct kvdevice *d, uint32_t first)
{
	for (uint32_t r = 0; r < d->rows; r++)
		d->host_slots[r] = (int64_t)first + r;
	for (uint32_t s = 0; s < d->spans; s++) {
		for (uint32_t r = 0; r < d->rows; r++) {
			uint32_t sequence = s * d->rows + r, begin = s * d->span_tokens, end = first + r + 1;
			uint32_t seen = end > begin ? end - begin : 0;

			d->host_tokens[sequence] = seen < d->span_tokens ? seen : d->span_tokens;
			for (uint32_t b = 0; b < d->span_blocks && s * d->span_blocks + b < d->block_count; b++)
				d->host_tables[(size_t)sequence * d->span_blocks + b] =
					d->host_addresses[s * d->span_blocks + b];
		}
	}
}

bool kvdevice_begin(struct kvdevice *d, uint32_t first, uint32_t rows, struct fault *fault)
{
	struct terrace_cuda_attend_options options;
	size_t parts;

	d->rows = rows;
	d->spans = (first + rows - 1) / d->span_tokens + 1;
	parts = (size_t)d->rows * d->spans;
	options = attend_options(d, (uint32_t)parts);
	fill_step(d, first);
	if (!device_put(&d->device, d->addresses, d->host_addresses, d->block_count * sizeof(*d->addresses), fault) ||
	    !device_put(&d->device, d->slots, d->host_slots, rows * sizeof(*d->slots), fault) ||
	    !device_put(&d->device, d->tables, d->host_tables, parts * d->span_blocks * sizeof(*d->tables), fault) ||
	    !device_put(&d->device, d->kv_tokens, d->host_tokens, parts * sizeof(*d->kv_tokens), fault))
		return false;
	if (terrace_cuda_attend_plan(&d->layout, &options, d->device.stream) != TERRACE_OK)
		return fault_set(fault, "%.300s", terrace_error());
	return device_wait(&d->device, fault); /* the next step writes the host's tables again */
}

static bool encode(struct kvdevice *d, uint32_t layer, const float *k, const float *v, struct fault *fault)
{
	const size_t stride = (size_t)d->layout.heads * d->layout.head_dim_k, bytes = d->rows * stride * sizeof(float);
	struct terrace_cuda_codec_options o = TERRACE_CUDA_CODEC_OPTIONS_INIT;

	if (!device_put(&d->device, d->k, k, bytes, fault) || !device_put(&d->device, d->v, v, bytes, fault))
		return false;
	o.layer = layer;
	o.tokens = d->rows;
	o.slots = d->slots;
	o.blocks = d->addresses;
	o.block_count = d->block_count;
	o.k = d->k;
	o.v = d->v;
	o.k_stride = stride;
	o.v_stride = stride;
	o.dtype = TERRACE_F32;
	if (terrace_cuda_encode(&d->layout, &o, d->device.stream) != TERRACE_OK)
		return fault_set(fault, "%.300s", terrace_error());
	return true;
}

/* Merges the results of all spans into those of the first. */
static bool merge(struct kvdevice *d, struct fault *fault)
{
	const size_t lses = (size_t)d->rows * d->q_heads, floats = lses * d->layout.head_dim_k;
	struct terrace_cuda_merge_options o = TERRACE_CUDA_MERGE_OPTIONS_INIT;
	const float *lse[MERGE_PARTS] = { d->lse };
	const void *out[MERGE_PARTS] = { d->out };

	o.out = out;
	o.lse = lse;
	o.rows = (uint32_t)lses;
	o.d = d->layout.head_dim_k;
	o.in_dtype = TERRACE_F32;
	o.out_dtype = TERRACE_F32;
	o.merged = d->out;
	o.merged_lse = d->lse;
	for (uint32_t s = 1; s < d->spans; s += o.parts - 1) {
		for (o.parts = 1; o.parts < MERGE_PARTS && s + o.parts - 1 < d->spans; o.parts++) {
			out[o.parts] = d->out + (s + o.parts - 1) * floats;
			lse[o.parts] = d->lse + (s + o.parts - 1) * lses;
		}
		if (terrace_cuda_merge(&o, d->device.stream) != TERRACE_OK)
			return fault_set(fault, "%.300s", terrace_error());
	}
	return true;
}

bool kvdevice_layer(struct kvdevice *d, uint32_t layer, const float *k, const float *v, const float *q, float *out,
		    struct fault *fault)
{
	struct terrace_cuda_attend_options options = attend_options(d, d->spans * d->rows);
	const size_t floats = (size_t)d->rows * d->q_heads * d->layout.head_dim_k;

	options.layer = layer;
	if (d->coming && terrace_lease_wait_layer(d->coming, layer, d->device.stream) != TERRACE_OK)
		return fault_set(fault, "%.300s", terrace_error());
	if (!encode(d, layer, k, v, fault))
		return false;
	for (uint32_t s = 0; s < d->spans; s++) {
		if (!device_put(&d->device, d->q + s * floats, q, floats * sizeof(float), fault))
			return false;
	}
	if (terrace_cuda_attend(&d->layout, &options, d->device.stream) != TERRACE_OK)
		return fault_set(fault, "%.300s", terrace_error());
	return merge(d, fault) && device_get(&d->device, out, d->out, floats * sizeof(float), fault) &&
	       device_wait(&d->device, fault);
}

/* ---- whole blocks ------------------------------------------------------------------------------------------------ */

bool kvdevice_put(struct kvdevice *d, uint32_t block, const void *from, struct fault *fault)
{
	return device_put(&d->device, d->blocks + block * d->block_bytes, from, d->block_bytes, fault);
}

bool kvdevice_get(struct kvdevice *d, uint32_t block, void *to, struct fault *fault)
{
	return device_get(&d->device, to, d->blocks + block * d->block_bytes, d->block_bytes, fault) &&
	       device_wait(&d->device, fault);
}
