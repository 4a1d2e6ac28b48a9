/* A made-up hybrid model, and a naive engine that computes it without a cache.
 *
 * The model has 12 attention layers of one head and one recurrent layer. Every 6th attention layer is a full one. The
 * others have a sliding window of 512 tokens. The recurrent layer keeps a state of a fixed size, and K and V of all
 * attention layers depend on that state: an engine that continues from a wrong state, or without a block that it needs,
 * gets other outputs. */
#ifndef HYBRID_MODEL_H
#define HYBRID_MODEL_H

#include <stdbool.h>
#include <stdint.h>

enum { LAYERS = 12, FULL_EVERY = 6, DIM = 64, WINDOW = 512, TOKENS_MAX = 1536 };

/* What the recurrent layer keeps of all tokens so far. */
struct state {
	float x[DIM];
};

/* A prompt, and what one engine knows of it: K and V of each layer and token, and the state behind each token. */
struct sequence {
	uint32_t tokens[TOKENS_MAX], count;
	struct state state[TOKENS_MAX];
	float k[LAYERS][TOKENS_MAX][DIM], v[LAYERS][TOKENS_MAX][DIM];
};

/* One query vector a layer, that of the prompt's last token, and its result: [layer][dim]. */
struct result {
	float out[LAYERS][DIM], lse[LAYERS];
};

bool model_is_full(uint32_t layer);
void model_query(uint32_t layer, float q[DIM]);
/* Computes state, K and V of the tokens from `from` on. The state of token from - 1 must be there. */
void model_compute(struct sequence *s, uint32_t from);
/* Attention of the last token to those of its own that stand at `from` or behind and in the layer's window. A layer
 * without one gets out 0 and lse -INFINITY. */
void model_attend(const struct sequence *s, uint32_t from, struct result *r);

#endif
