/* Plain and packed KV of a sequence; see kvcache.h. */
#include "kvcache.h"

#include "panel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
	QUERY_ROWS = 8,   /* query rows of a tile of the plain attention */
	PACKED_ROWS = 4,  /* query rows a KV head that a packed attention is given at least: packed_attend_few() says why */
};

void kvcache_layout(const struct model_config *config, const uint8_t fingerprint[32], enum terrace_format k_format,
		    enum terrace_format v_format, uint32_t block_tokens, struct terrace_layout *layout)
{
	*layout = (struct terrace_layout)TERRACE_LAYOUT_INIT;
	memcpy(layout->fingerprint, fingerprint, sizeof(layout->fingerprint));
	layout->layers = config->layers;
	layout->heads = config->kv_heads;
	layout->total_heads = config->kv_heads;
	layout->head_dim_k = config->head_dim;
	layout->head_dim_v = config->head_dim;
	layout->block_tokens = block_tokens;
	layout->k_format = k_format;
	layout->v_format = v_format;
}

bool kvcache_init(struct kvcache *c, const struct model_config *config, const struct terrace_layout *layout,
		  uint32_t capacity, struct fault *fault)
{
	memset(c, 0, sizeof(*c));
	c->config = config;
	c->packed = layout != NULL;
	if (layout) {
		const char *problem = terrace_layout_problem(layout);
		size_t blocks;

		if (problem)
			return fault_set(fault, "this model's KV cannot be packed so: %s", problem);
		c->layout = *layout;
		blocks = (capacity + layout->block_tokens - 1) / layout->block_tokens;
		c->capacity = capacity;
		c->blocks = calloc(blocks, sizeof(*c->blocks));
		c->slots = calloc(blocks, sizeof(*c->slots));
	} else {
		size_t floats;

		c->capacity = (capacity + PANEL_WIDTH - 1) / PANEL_WIDTH * PANEL_WIDTH;
		floats = (size_t)config->layers * config->kv_heads * c->capacity * config->head_dim;
		c->k = calloc(floats, sizeof(float));
		c->v = calloc(floats, sizeof(float));
	}
	if (layout ? !c->blocks || !c->slots : !c->k || !c->v) {
		kvcache_fini(c);
		return fault_set(fault, "out of memory for the KV of %u tokens", capacity);
	}
	return true;
}

bool kvcache_use_device(struct kvcache *c, uint32_t rows_max, struct fault *fault)
{
	struct kvdevice *device = malloc(sizeof(*device));

	if (!device)
		return fault_set(fault, "out of memory");
	if (!kvdevice_open(device, &c->layout, c->config->q_heads, c->capacity, rows_max, fault)) {
		free(device);
		return false;
	}
	c->device = device;
	return true;
}

void kvcache_fini(struct kvcache *c)
{
	if (c->device)
		kvdevice_close(c->device);
	free(c->device);
	free(c->k);
	free(c->v);
	free(c->blocks);
	free(c->slots);
	memset(c, 0, sizeof(*c));
}

uint32_t kvcache_grain(const struct kvcache *c)
{
	return c->packed ? c->layout.block_tokens : PANEL_WIDTH;
}

/* ---- plain ------------------------------------------------------------------------------------------------------- */

static size_t plain_at(const struct kvcache *c, uint32_t layer, uint32_t head)
{
	return ((size_t)layer * c->config->kv_heads + head) * c->capacity * c->config->head_dim;
}

static void plain_store(struct kvcache *c, uint32_t layer, uint32_t first, uint32_t n, const float *k, const float *v)
{
	const uint32_t d = c->config->head_dim, heads = c->config->kv_heads;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = first + i;

		for (uint32_t h = 0; h < heads; h++) {
			const float *from = k + ((size_t)i * heads + h) * d;
			float *panel = c->k + plain_at(c, layer, h) + (size_t)(at / PANEL_WIDTH) * PANEL_WIDTH * d +
				       at % PANEL_WIDTH;

			for (uint32_t e = 0; e < d; e++)
				panel[(size_t)e * PANEL_WIDTH] = from[e];
			memcpy(c->v + plain_at(c, layer, h) + (size_t)at * d, v + ((size_t)i * heads + h) * d,
			       d * sizeof(float));
		}
	}
}

size_t kvcache_scratch(const struct model_config *config, uint32_t capacity)
{
	size_t plain = QUERY_ROWS * ((size_t)capacity + PANEL_WIDTH + 2 * (size_t)config->head_dim);
	size_t packed = 2 * PACKED_ROWS * (size_t)config->q_heads * config->head_dim;

	return plain > packed ? plain : packed;
}

/* Attends with one tile: up to 8 (query, head) pairs of one KV head. Row r is query r / group, head r % group of the
 * group. */
static void plain_tile(const struct kvcache *c, const float *k, const float *v, uint32_t first, uint32_t rows,
		       const float *q, float *out, uint32_t group, float *scratch)
{
	const uint32_t d = c->config->head_dim, stride = c->config->q_heads * d;
	const uint32_t seen = first + (rows - 1) / group + 1;
	const size_t width = (seen + PANEL_WIDTH - 1) / PANEL_WIDTH * PANEL_WIDTH;
	float *queries = scratch, *sums = queries + QUERY_ROWS * d, *scores = sums + QUERY_ROWS * d;
	const float scale = 1.0f / sqrtf((float)d);

	for (uint32_t r = 0; r < rows; r++) {
		for (uint32_t e = 0; e < d; e++)
			queries[r * d + e] = q[(size_t)(r / group) * stride + r % group * d + e] * scale;
	}
	for (uint32_t t = 0; t < width; t += PANEL_WIDTH)
		panel_tile(rows, queries, d, k + (size_t)t * d, PANEL_WIDTH, d, scores + t, width);
	for (uint32_t r = 0; r < rows; r++)
		panel_softmax(scores + r * width, first + r / group + 1, width);
	for (uint32_t e = 0; e < d; e += PANEL_WIDTH)
		panel_tile(rows, scores, width, v + e, d, seen, sums + e, d);
	for (uint32_t r = 0; r < rows; r++)
		memcpy(out + (size_t)(r / group) * stride + r % group * d, sums + r * d, d * sizeof(float));
}

static void plain_attend(const struct kvcache *c, uint32_t layer, uint32_t first, uint32_t n, const float *q, float *out,
			 float *scratch)
{
	const uint32_t d = c->config->head_dim, group = c->config->q_heads / c->config->kv_heads;
	const uint32_t step = group < QUERY_ROWS ? QUERY_ROWS / group : 1;

	for (uint32_t h = 0; h < c->config->kv_heads; h++) {
		const float *k = c->k + plain_at(c, layer, h), *v = c->v + plain_at(c, layer, h);

		for (uint32_t i = 0; i < n; i += step) {
			uint32_t queries = n - i < step ? n - i : step;
			size_t at = ((size_t)i * c->config->q_heads + (size_t)h * group) * d;

			/* A group of more than 8 heads is done 8 heads at a time, each as a group of its own. */
			for (uint32_t g = 0; g < group; g += QUERY_ROWS) {
				uint32_t heads = group - g < QUERY_ROWS ? group - g : QUERY_ROWS;

				plain_tile(c, k, v, first + i, queries * heads, q + at + (size_t)g * d,
					   out + at + (size_t)g * d, heads, scratch);
			}
		}
	}
}

/* ---- packed ------------------------------------------------------------------------------------------------------ */

static bool packed_store(struct kvcache *c, uint32_t layer, uint32_t first, uint32_t n, const float *k, const float *v,
			 struct fault *fault)
{
	const uint32_t d = c->config->head_dim, heads = c->config->kv_heads, tokens = c->layout.block_tokens;

	for (uint32_t i = 0; i < n;) {
		uint32_t block = (first + i) / tokens, at = (first + i) % tokens;
		uint32_t count = tokens - at < n - i ? tokens - at : n - i;

		if (!c->slots[block])
			return fault_set(fault, "block %u cannot be written", block);
		for (uint32_t h = 0; h < heads; h++) {
			size_t from = ((size_t)i * heads + h) * d;

			if (terrace_encode(&c->layout, c->slots[block], layer, h, at, count, k + from,
					   (size_t)heads * d, v + from, (size_t)heads * d, TERRACE_F32) != TERRACE_OK)
				return fault_set(fault, "terrace_encode: %s", terrace_error());
		}
		i += count;
	}
	return true;
}

static bool packed_attend(const struct kvcache *c, uint32_t layer, int64_t first, uint32_t n, const float *q, float *out,
			  struct fault *fault)
{
	struct terrace_attend_options options = TERRACE_ATTEND_OPTIONS_INIT;

	options.layer = layer;
	options.queries = n;
	options.q_heads = c->config->q_heads;
	options.q = q;
	options.q_dtype = TERRACE_F32;
	options.blocks = c->blocks;
	options.kv_tokens = (uint32_t)(first + n);
	options.block_count = (options.kv_tokens + c->layout.block_tokens - 1) / c->layout.block_tokens;
	options.causal = true;
	options.first_pos = first;
	options.out = out;
	options.out_dtype = TERRACE_F32;
	if (terrace_attend(&c->layout, &options) != TERRACE_OK)
		return fault_set(fault, "terrace_attend: %s", terrace_error());
	return true;
}

/* Attention of very few rows is free to sum in another order (dot products instead of a matrix product), and then a
 * token computed alone would differ in the last bits from the same token computed in a chunk: the texts with and
 * without a reused prefix could part. So a lone query is given company: zero queries at the positions before it, whose
 * result is dropped. */
static bool packed_attend_few(const struct kvcache *c, uint32_t layer, uint32_t first, uint32_t n, uint32_t extra,
			      const float *q, float *out, float *scratch, struct fault *fault)
{
	const size_t row = (size_t)c->config->q_heads * c->config->head_dim;
	float *queries = scratch, *outs = scratch + (extra + n) * row;

	memset(queries, 0, extra * row * sizeof(float));
	memcpy(queries + extra * row, q, n * row * sizeof(float));
	if (!packed_attend(c, layer, (int64_t)first - extra, extra + n, queries, outs, fault))
		return false;
	memcpy(out, outs + extra * row, n * row * sizeof(float));
	return true;
}

bool kvcache_store(struct kvcache *c, uint32_t layer, uint32_t first, uint32_t n, const float *k, const float *v,
		   struct fault *fault)
{
	if (c->packed)
		return packed_store(c, layer, first, n, k, v, fault);
	plain_store(c, layer, first, n, k, v);
	return true;
}

bool kvcache_attend(const struct kvcache *c, uint32_t layer, uint32_t first, uint32_t n, const float *q, float *out,
		    float *scratch, struct fault *fault)
{
	const uint32_t group = c->config->q_heads / c->config->kv_heads, least = (PACKED_ROWS + group - 1) / group;

	if (c->packed && n < least)
		return packed_attend_few(c, layer, first, n, least - n, q, out, scratch, fault);
	if (c->packed)
		return packed_attend(c, layer, first, n, q, out, fault);
	plain_attend(c, layer, first, n, q, out, scratch);
	return true;
}
