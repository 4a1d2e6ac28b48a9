/* Perplexity on held-out text: what a KV format costs in quality. */
#ifndef TINYLM_PPL_H
#define TINYLM_PPL_H

#include "kvspec.h"
#include "model.h"

struct ppl_result {
	double nats;       /* mean negative log likelihood of a token */
	double perplexity; /* its exponential */
	uint64_t tokens;   /* predicted */
	double seconds;
};

struct ppl_options {
	uint32_t windows;      /* each of `window` tokens; every window starts with an empty cache */
	uint32_t window;       /* 1 to the model's positions: ppl_set_window() */
	uint32_t block_tokens;
	uint32_t chunk;        /* tokens of a run */
	uint32_t threads;      /* windows at a time; 0: one a CPU */
	bool cuda;             /* packed K and V on the GPU */
};

/* Sets options->window to what the user asked for, 0 being the model's whole context. */
bool ppl_set_window(struct ppl_options *options, const struct model_config *config, uint32_t window, struct fault *fault);

/* Reads windows * window + 1 tokens, little-endian uint16, from the start of a file. *tokens is the caller's to free(). */
bool ppl_read_tokens(const char *path, const struct ppl_options *options, uint32_t vocab, uint32_t **tokens,
		     struct fault *fault);

/* Window w sees tokens w * window ..., and predicts each one's successor, `window` predictions in all. With a packed spec
 * every K and V that attention uses is read back from packed blocks. */
bool ppl_run(const struct model *model, const struct kvspec *spec, const struct ppl_options *options,
	     const uint32_t *tokens, struct ppl_result *result, struct fault *fault);

#endif
