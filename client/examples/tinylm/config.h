/* config.json of a Llama-like model: the fields this engine needs, and a refusal of everything it does not do. */
#ifndef TINYLM_CONFIG_H
#define TINYLM_CONFIG_H

#include "fault.h"

#include <stddef.h>
#include <stdint.h>

struct model_config {
	uint32_t hidden, intermediate, layers;
	uint32_t q_heads, kv_heads, head_dim; /* q_heads is a multiple of kv_heads; head_dim one Terrace packs */
	uint32_t vocab, positions_max;
	uint32_t bos, eos; /* token ids */
	float rms_eps;
	float rope_theta;
};

/* Parses the text of a config.json. A field that would change the computation in a way the engine does not know (another
 * activation, biases, rope scaling, untied embeddings, a sliding window) is refused by name; so is a field it has never
 * heard of. *out is written only on success. */
bool model_config_parse(const char *json, size_t size, struct model_config *out, struct fault *fault);

#endif
