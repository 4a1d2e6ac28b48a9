/* Loading a model: the three files, and the weights' names, shapes and dtype against the config. */
#include "model.h"

#include "file.h"

#include "terrace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t weights_max = (size_t)64 << 30, json_max = (size_t)64 << 20;

/* Finds a tensor of that shape in BF16. columns 0: it is a vector. NULL: there is none, and fault says why. */
static const uint8_t *find(const struct safetensors *st, const char *name, uint64_t rows, uint64_t columns,
			   struct fault *fault)
{
	const struct safetensors_tensor *t = safetensors_find(st, name);
	uint32_t dims = columns ? 2 : 1;

	if (!t) {
		fault_write(fault, "tensor \"%s\" is missing", name);
		return NULL;
	}
	if (t->dtype != SAFETENSORS_BF16) {
		fault_write(fault, "tensor \"%s\" is %s, only BF16 is supported", name, safetensors_dtype_name(t->dtype));
		return NULL;
	}
	if (t->dims != dims || t->shape[0] != rows || (columns && t->shape[1] != columns)) {
		fault_write(fault, "tensor \"%s\" has not the shape that config.json gives it, [%llu%s%.0llu]", name,
			  (unsigned long long)rows, columns ? ", " : "", (unsigned long long)columns);
		return NULL;
	}
	return t->data;
}

/* Reads a BF16 tensor as floats: rows x max(columns, 1) of them. */
static bool load_floats(const struct safetensors *st, const char *name, uint32_t rows, uint32_t columns, float **out,
			struct fault *fault)
{
	const uint8_t *from = find(st, name, rows, columns, fault);
	size_t count = (size_t)rows * (columns ? columns : 1);

	if (!from)
		return false;
	*out = malloc(count * sizeof(float));
	if (!*out)
		return fault_set(fault, "out of memory");
	for (size_t i = 0; i < count; i++) {
		uint32_t bits = (uint32_t)from[2 * i] << 16 | (uint32_t)from[2 * i + 1] << 24;

		memcpy(&(*out)[i], &bits, sizeof(bits));
	}
	return true;
}

static bool load_matrix(const struct safetensors *st, const char *name, uint32_t out, uint32_t in,
			struct panel_matrix *matrix, struct fault *fault)
{
	const uint8_t *from = find(st, name, out, in, fault);

	if (!from)
		return false;
	if (!panel_matrix_init(matrix, out, in, from))
		return fault_set(fault, "out of memory");
	return true;
}

static bool load_layer(const struct model_config *c, const struct safetensors *st, uint32_t index, struct model_layer *l,
		       struct fault *fault)
{
	const struct {
		const char *name;
		uint32_t out, in;
		struct panel_matrix *matrix;
	} matrices[] = {
		{ "self_attn.q_proj", c->q_heads * c->head_dim, c->hidden, &l->q },
		{ "self_attn.k_proj", c->kv_heads * c->head_dim, c->hidden, &l->k },
		{ "self_attn.v_proj", c->kv_heads * c->head_dim, c->hidden, &l->v },
		{ "self_attn.o_proj", c->hidden, c->q_heads * c->head_dim, &l->o },
		{ "mlp.gate_proj", c->intermediate, c->hidden, &l->gate },
		{ "mlp.up_proj", c->intermediate, c->hidden, &l->up },
		{ "mlp.down_proj", c->hidden, c->intermediate, &l->down },
	};
	char name[96];

	for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++) {
		snprintf(name, sizeof(name), "model.layers.%u.%s.weight", index, matrices[i].name);
		if (!load_matrix(st, name, matrices[i].out, matrices[i].in, matrices[i].matrix, fault))
			return false;
	}
	snprintf(name, sizeof(name), "model.layers.%u.input_layernorm.weight", index);
	if (!load_floats(st, name, c->hidden, 0, &l->input_norm, fault))
		return false;
	snprintf(name, sizeof(name), "model.layers.%u.post_attention_layernorm.weight", index);
	return load_floats(st, name, c->hidden, 0, &l->post_norm, fault);
}

bool model_load_weights(struct model *m, const struct safetensors *st, struct fault *fault)
{
	const struct model_config *c = &m->config;
	static const char embedding[] = "model.embed_tokens.weight";

	if (st->count != 2 + 9 * (size_t)c->layers)
		return fault_set(fault, "%zu tensors, a model of %u layers has %zu", st->count, c->layers,
				 2 + 9 * (size_t)c->layers);
	m->layers = calloc(c->layers, sizeof(*m->layers));
	if (!m->layers)
		return fault_set(fault, "out of memory");
	if (!load_floats(st, embedding, c->vocab, c->hidden, &m->embedding, fault) ||
	    !load_matrix(st, embedding, c->vocab, c->hidden, &m->head, fault) ||
	    !load_floats(st, "model.norm.weight", c->hidden, 0, &m->final_norm, fault))
		return false;
	for (uint32_t i = 0; i < c->layers; i++) {
		if (!load_layer(c, st, i, &m->layers[i], fault))
			return false;
	}
	return true;
}

/* Loads a model from its three open files. The maps stay the caller's. */
static bool load_files(struct model *m, const struct file_map *config, const struct file_map *tokens,
		       const struct file_map *weights, struct fault *fault)
{
	struct safetensors st;
	uint8_t parts[2][32];
	bool ok;

	if (!model_config_parse(config->data, config->size, &m->config, fault))
		return fault_prefix(fault, "config.json");
	if (!tokenizer_parse(tokens->data, tokens->size, &m->tokenizer, fault))
		return fault_prefix(fault, "tokenizer.json");
	if (m->tokenizer.count != m->config.vocab)
		return fault_set(fault, "tokenizer.json: %u tokens, config.json says %u", m->tokenizer.count,
				 m->config.vocab);
	if (!safetensors_parse(weights->data, weights->size, &st, fault))
		return fault_prefix(fault, "model.safetensors");
	ok = model_load_weights(m, &st, fault);
	safetensors_free(&st);
	if (!ok)
		return fault_prefix(fault, "model.safetensors");
	terrace_fingerprint(weights->data, weights->size, parts[0]);
	terrace_fingerprint(config->data, config->size, parts[1]);
	terrace_fingerprint(parts, sizeof(parts), m->fingerprint);
	return true;
}

bool model_open(struct model *m, const char *directory, struct fault *fault)
{
	struct file_map config = { 0 }, tokens = { 0 }, weights = { 0 };
	bool ok;

	memset(m, 0, sizeof(*m));
	ok = file_map_open(&config, directory, "config.json", json_max, fault) &&
	     file_map_open(&tokens, directory, "tokenizer.json", json_max, fault) &&
	     file_map_open(&weights, directory, "model.safetensors", weights_max, fault);
	if (ok && !load_files(m, &config, &tokens, &weights, fault)) {
		fault_prefix(fault, directory);
		model_close(m);
		ok = false;
	}
	file_map_close(&config);
	file_map_close(&tokens);
	file_map_close(&weights);
	return ok;
}

void model_close(struct model *m)
{
	for (uint32_t i = 0; m->layers && i < m->config.layers; i++) {
		struct model_layer *l = &m->layers[i];
		struct panel_matrix *const matrices[] = { &l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down };

		for (size_t j = 0; j < sizeof(matrices) / sizeof(matrices[0]); j++)
			panel_matrix_fini(matrices[j]);
		free(l->input_norm);
		free(l->post_norm);
	}
	free(m->layers);
	free(m->embedding);
	free(m->final_norm);
	panel_matrix_fini(&m->head);
	tokenizer_free(&m->tokenizer);
	memset(m, 0, sizeof(*m));
}
