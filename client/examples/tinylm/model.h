/* A model as the engine computes with it: config, weights widened to float in panels, tokenizer. */
#ifndef TINYLM_MODEL_H
#define TINYLM_MODEL_H

#include "config.h"
#include "panel.h"
#include "safetensors.h"
#include "tokenizer.h"

struct model_layer {
	float *input_norm, *post_norm; /* [hidden] */
	struct panel_matrix q, k, v, o, gate, up, down;
};

/* Immutable once open: any number of engines may share it. */
struct model {
	struct model_config config;
	struct tokenizer tokenizer;
	float *embedding; /* [vocab][hidden] */
	float *final_norm;
	struct panel_matrix head; /* the embedding again, as the output matrix */
	struct model_layer *layers;
	uint8_t fingerprint[32];  /* of the bytes of the weights' and the config's files */
};

/* Reads config.json, tokenizer.json and model.safetensors of a folder. On failure *m is empty and the message names the file. */
bool model_open(struct model *m, const char *directory, struct fault *fault);

/* Takes the weights out of parsed tensors: each must be there with the config's shape, in BF16. m->config is set before.
 * Tensors the model does not have are refused. Fills embedding, norms and matrices. */
bool model_load_weights(struct model *m, const struct safetensors *st, struct fault *fault);

/* Frees; zeroed memory is fine. */
void model_close(struct model *m);

#endif
