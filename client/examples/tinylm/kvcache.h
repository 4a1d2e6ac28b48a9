/* The K and V of one sequence, in one of two forms.
 *
 * *plain*: floats in the engine's own memory and an attention of its own: the unquantised baseline.
 * *packed*: a table of Terrace blocks; K and V are packed into them before anything attends, and attention is
 * terrace_attend() on the blocks, so that every K and V is read back from packed bytes, those of the current tokens too.
 * Whose memory a block is (private, leased, reserved in the daemon) is the business of sequence.c, which fills the table.
 * A packed cache may live on the GPU (kvdevice.h): then K and V are packed and attended there, and the table only says where the
 * daemon's copies of blocks are. */
#ifndef TINYLM_KVCACHE_H
#define TINYLM_KVCACHE_H

#include "config.h"
#include "kvdevice.h"

#include "terrace.h"

struct kvcache {
	const struct model_config *config;
	uint32_t capacity; /* tokens it may hold */
	uint32_t count;    /* tokens whose K and V are there, in all layers */
	bool packed;
	float *k;          /* plain: [layer][kv_head][capacity / 16][head_dim][16] */
	float *v;          /* plain: [layer][kv_head][capacity][head_dim] */
	struct terrace_layout layout;
	const void **blocks; /* packed: [ceil(capacity / block_tokens)], to read */
	void **slots;        /* the same, to write; NULL for a block that is borrowed read-only or not there */
	struct kvdevice *device; /* NULL: on the CPU */
};

/* The layout of all layers and KV heads of a model. */
void kvcache_layout(const struct model_config *config, const uint8_t fingerprint[32], enum terrace_format k_format,
		    enum terrace_format v_format, uint32_t block_tokens, struct terrace_layout *layout);

/* An empty cache; layout NULL: plain. The config must outlive it. */
bool kvcache_init(struct kvcache *c, const struct model_config *config, const struct terrace_layout *layout,
		  uint32_t capacity, struct fault *fault);

/* Moves an empty packed cache to the GPU; it then takes runs of up to rows_max tokens. On failure it stays where it
 * is. */
bool kvcache_use_device(struct kvcache *c, uint32_t rows_max, struct fault *fault);

/* Frees the tables, the plain floats and what is on the GPU, not the blocks. Zeroed memory is fine. */
void kvcache_fini(struct kvcache *c);

/* Tokens that different threads may store at the same time must not share a unit of this many tokens. */
uint32_t kvcache_grain(const struct kvcache *c);

/* On the CPU: stores one layer's K and V of the tokens at positions first .. first + n - 1; k and v are [n][kv_heads *
 * head_dim]. */
bool kvcache_store(struct kvcache *c, uint32_t layer, uint32_t first, uint32_t n, const float *k, const float *v,
		   struct fault *fault);

/* The floats of scratch that kvcache_attend wants. */
size_t kvcache_scratch(const struct model_config *config, uint32_t capacity);

/* On the CPU: causal attention of the queries at those positions over everything stored up to them; q and out are
 * [n][q_heads * head_dim]. */
bool kvcache_attend(const struct kvcache *c, uint32_t layer, uint32_t first, uint32_t n, const float *q, float *out,
		    float *scratch, struct fault *fault);

#endif
