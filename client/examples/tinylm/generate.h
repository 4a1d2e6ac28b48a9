/* Generating text: a prompt through a sequence, then one token after the other. */
#ifndef TINYLM_GENERATE_H
#define TINYLM_GENERATE_H

#include "kvspec.h"
#include "sequence.h"

struct generate_options {
	uint32_t tokens_max;  /* to generate; fewer if the context fills or the end-of-text token comes */
	float temperature;    /* 0: greedy, the lowest id among equals */
	uint64_t seed;        /* of the sampling */
	uint32_t block_tokens;
	void (*emit)(void *arg, uint32_t token); /* called for each token as it comes; may be NULL */
	void *arg;
};

struct generated {
	uint32_t *tokens, count; /* free with generated_free */
	struct sequence_stats stats;
	double decode_seconds;
};

/* Runs prompt[n] with KV of that form and generates. cache: NULL, or open on the layout of that form and block_tokens (kvcache_layout). */
bool generate_run(struct forward *forward, const struct kvspec *spec, struct prefix_cache *cache, const uint32_t *prompt,
		  uint32_t n, const struct generate_options *options, struct generated *out, struct fault *fault);

void generated_free(struct generated *g);

/* The tokens of a text as a document's beginning: the model's first token, then the text's, at most `context`. The caller's to free(). */
bool generate_prompt(const struct model *model, uint32_t context, const char *text, size_t bytes, uint32_t **tokens, uint32_t *count,
		     struct fault *fault);

/* Tokens as text that can be shown anywhere: broken UTF-8 and control characters but newline and tab become '?'. The
 * caller's to free(); NULL without memory. */
char *generate_text(const struct model *model, const uint32_t *tokens, uint32_t count);

#endif
