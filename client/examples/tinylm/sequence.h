/* One sequence of tokens being computed, and the blocks that its K and V lie in.
 *
 * With a prefix cache a prompt takes this way:
 *   1. the keys of its full blocks are chained hashes of their tokens;
 *   2. terrace_lease() protects the longest prefix that is stored; its blocks are attended where they lie, read-only;
 *   3. terrace_reserve() gives slots for the other full blocks, and their K and V are packed straight into them;
 *   4. terrace_commit() publishes those after the prefill and leases them;
 *   5. the tail grows token by token in an open block, which is published when it is full.
 * With forward->cuda the blocks are attended on the GPU. If the daemon lends memory of it, that is all: leases and slots are there, and a
 * leased prefix is attended layer by layer as it comes. Else a leased block is copied there once, and a reserved one is copied from there
 * to its slot just before it is published.
 * Whenever the daemon gives no slot, the block is private memory; when it loses a block after all, the block's tokens are
 * computed again. The same packed bytes come out either way, so the text does not depend on the daemon. */
#ifndef TINYLM_SEQUENCE_H
#define TINYLM_SEQUENCE_H

#include "forward.h"
#include "prefix_cache.h"

/* The owner of a block's memory. */
enum sequence_owner {
	SEQUENCE_NONE,
	SEQUENCE_PRIVATE,  /* this sequence: block->memory */
	SEQUENCE_LEASED,   /* the daemon: stored, read-only */
	SEQUENCE_RESERVED, /* the daemon: a slot of the reservation `filling` */
	SEQUENCE_OPEN      /* the daemon: the slot of the reservation `open` */
};

struct sequence_block {
	enum sequence_owner owner;
	void *memory;
};

struct sequence_stats {
	uint32_t reused_tokens; /* leased instead of computed */
	uint32_t stored_blocks; /* published by this sequence */
	uint32_t lost_blocks;   /* computed again */
	double prefill_seconds; /* from the prompt to its logits and its blocks' publication */
};

struct sequence {
	struct forward *forward;
	struct prefix_cache *cache; /* NULL: none */
	struct kvcache kv;
	uint32_t *tokens, count;
	struct sequence_block *blocks;
	uint32_t block_tokens, block_count; /* block_count: blocks with memory; 0 for a plain KV */
	uint8_t (*keys)[PREFIX_KEY_BYTES];
	uint32_t key_count;
	struct terrace_lease **leases;
	uint32_t lease_count;
	struct terrace_reservation *filling, *open;
	uint32_t filling_first; /* block of its key 0 */
	struct sequence_stats stats;
};

/* An empty sequence of at most forward->positions tokens. layout NULL: plain KV, and then no cache. The cache's layout, if
 * there is a cache, is `layout`. */
bool sequence_open(struct sequence *s, struct forward *forward, const struct terrace_layout *layout,
		   struct prefix_cache *cache, struct fault *fault);

/* Runs a prompt of n >= 1 tokens through the empty sequence. logits[vocab] are those after its last token. */
bool sequence_prefill(struct sequence *s, const uint32_t *tokens, uint32_t n, float *logits, struct fault *fault);

/* Runs one more token. */
bool sequence_append(struct sequence *s, uint32_t token, float *logits, struct fault *fault);

/* Gives leases and slots back and frees; zeroed memory is fine. */
void sequence_close(struct sequence *s);

#endif
