/* What a model keeps of its tokens, read from its config.json. Layers of one kind are counted together in a group. */
#ifndef TERRACE_CLIENT_VALUE_MODEL_H
#define TERRACE_CLIENT_VALUE_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/include/terrace.h"

enum model_kind { MODEL_FULL, MODEL_WINDOW, MODEL_LATENT, MODEL_STATE, MODEL_NOTHING, MODEL_KINDS };

struct model {
	char type[32];                 /* of the field model_type */
	uint32_t layers;               /* of the model */
	uint32_t group_layers[MODEL_KINDS];
	uint32_t heads, head_dim;      /* KV heads and their size, of MODEL_FULL and MODEL_WINDOW */
	uint32_t window;               /* tokens, of MODEL_WINDOW */
	uint32_t latent, rope;         /* of MODEL_LATENT: elements a token and layer, and those of the rope part */
	uint32_t element_bytes;        /* of the model's own dtype */
	bool half;                     /* that dtype is fp16; otherwise it is bf16 or fp32 */
	uint64_t state_bytes;          /* of one layer, of MODEL_STATE */
};

/* TERRACE_OK, or TERRACE_INVALID with words that name the field. */
enum terrace_status client_model_read(const char *config, size_t bytes, struct model *out);

#endif
