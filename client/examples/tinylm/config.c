/* config.json by a table: one row a field, saying what is read from it, or the only value that is taken. */
#include "config.h"

#include <jansson.h>

#include <string.h>

struct count_field {
	const char *name;
	size_t at; /* of a uint32_t in struct model_config */
	uint32_t min, max;
	bool optional;
};

#define AT(field) offsetof(struct model_config, field)

static const struct count_field counts[] = {
	{ "hidden_size", AT(hidden), 16, 65536, false },
	{ "intermediate_size", AT(intermediate), 16, 1 << 20, false },
	{ "num_hidden_layers", AT(layers), 1, 512, false },
	{ "num_attention_heads", AT(q_heads), 1, 1024, false },
	{ "num_key_value_heads", AT(kv_heads), 1, 1024, true },
	{ "head_dim", AT(head_dim), 64, 256, true },
	{ "vocab_size", AT(vocab), 2, 1 << 20, false },
	{ "max_position_embeddings", AT(positions_max), 16, 1 << 20, false },
	{ "bos_token_id", AT(bos), 0, (1 << 20) - 1, false },
	{ "eos_token_id", AT(eos), 0, (1 << 20) - 1, false },
};

/* Fields that may be there, but only with the value the engine implements. */
static const struct {
	const char *name;
	const char *string; /* the value; NULL: false or null */
} fixed[] = {
	{ "model_type", "llama" },     { "hidden_act", "silu" },  { "attention_bias", NULL },
	{ "mlp_bias", NULL },          { "rope_scaling", NULL },  { "sliding_window", NULL },
	{ "use_sliding_window", NULL },
};

/* Fields that do not change what the model computes at inference; the weights' dtype is checked in the weights' file. */
static const char *const ignored[] = {
	"torch_dtype",       "dtype",          "transformers_version", "use_cache",     "initializer_range",
	"attention_dropout", "pretraining_tp", "pad_token_id",         "_name_or_path",
};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static bool parse_count(const json_t *root, const struct count_field *f, struct model_config *c, struct fault *fault)
{
	const json_t *value = json_object_get(root, f->name);
	uint32_t number;

	if (!value && f->optional)
		return true;
	if (!value)
		return fault_set(fault, "%s is missing", f->name);
	if (!json_is_integer(value) || json_integer_value(value) < f->min || json_integer_value(value) > f->max)
		return fault_set(fault, "%s is not a whole number from %u to %u", f->name, f->min, f->max);
	number = (uint32_t)json_integer_value(value);
	memcpy((char *)c + f->at, &number, sizeof(number));
	return true;
}

static bool parse_real(const json_t *root, const char *name, double min, double max, float *out, struct fault *fault)
{
	const json_t *value = json_object_get(root, name);
	double number = json_number_value(value);

	if (!json_is_number(value) || !(number >= min && number <= max))
		return fault_set(fault, "%s is missing or not a number from %g to %g", name, min, max);
	*out = (float)number;
	return true;
}

static bool check_fixed(const json_t *root, size_t i, struct fault *fault)
{
	const json_t *value = json_object_get(root, fixed[i].name);

	if (!value)
		return true;
	if (!fixed[i].string) {
		if (json_is_null(value) || json_is_false(value))
			return true;
		return fault_set(fault, "%s is set, which this engine does not support", fixed[i].name);
	}
	if (json_is_string(value) && strcmp(json_string_value(value), fixed[i].string) == 0)
		return true;
	return fault_set(fault, "%s is not \"%s\", the only one this engine supports", fixed[i].name, fixed[i].string);
}

static bool check_known(const json_t *root, struct fault *fault)
{
	static const char *const others[] = { "architectures", "rms_norm_eps", "rope_theta", "tie_word_embeddings" };
	const char *name;
	json_t *value;

	json_object_foreach((json_t *)root, name, value) {
		bool known = false;

		for (size_t i = 0; i < LENGTH(counts); i++)
			known |= strcmp(name, counts[i].name) == 0;
		for (size_t i = 0; i < LENGTH(fixed); i++)
			known |= strcmp(name, fixed[i].name) == 0;
		for (size_t i = 0; i < LENGTH(ignored); i++)
			known |= strcmp(name, ignored[i]) == 0;
		for (size_t i = 0; i < LENGTH(others); i++)
			known |= strcmp(name, others[i]) == 0;
		if (!known)
			return fault_set(fault, "unknown field \"%.60s\"", name);
	}
	return true;
}

static bool check_architecture(const json_t *root, struct fault *fault)
{
	const json_t *list = json_object_get(root, "architectures");
	const char *name = json_string_value(json_array_get(list, 0));

	if (json_array_size(list) != 1 || !name || strcmp(name, "LlamaForCausalLM") != 0)
		return fault_set(fault, "architectures is not [\"LlamaForCausalLM\"]");
	if (!json_is_true(json_object_get(root, "tie_word_embeddings")))
		return fault_set(fault, "tie_word_embeddings is not true: an output matrix of its own is not supported");
	return true;
}

static bool check_shape(const struct model_config *c, struct fault *fault)
{
	if (c->q_heads % c->kv_heads != 0)
		return fault_set(fault, "num_attention_heads (%u) is not a multiple of num_key_value_heads (%u)", c->q_heads,
				 c->kv_heads);
	if (c->head_dim != 64 && c->head_dim != 96 && c->head_dim != 128 && c->head_dim != 192 && c->head_dim != 256)
		return fault_set(fault, "head_dim %u is none of 64, 96, 128, 192, 256", c->head_dim);
	if (c->hidden % 16 != 0 || c->intermediate % 16 != 0)
		return fault_set(fault, "hidden_size and intermediate_size must be multiples of 16");
	if (c->bos >= c->vocab || c->eos >= c->vocab)
		return fault_set(fault, "bos_token_id or eos_token_id is outside the vocabulary");
	return true;
}

static bool parse_root(const json_t *root, struct model_config *c, struct fault *fault)
{
	if (!json_is_object(root))
		return fault_set(fault, "not a JSON object");
	if (!check_known(root, fault) || !check_architecture(root, fault))
		return false;
	for (size_t i = 0; i < LENGTH(fixed); i++) {
		if (!check_fixed(root, i, fault))
			return false;
	}
	for (size_t i = 0; i < LENGTH(counts); i++) {
		if (!parse_count(root, &counts[i], c, fault))
			return false;
	}
	if (!parse_real(root, "rms_norm_eps", 0, 1, &c->rms_eps, fault) ||
	    !parse_real(root, "rope_theta", 1, 1e12, &c->rope_theta, fault))
		return false;
	if (c->kv_heads == 0)
		c->kv_heads = c->q_heads;
	if (c->head_dim == 0)
		c->head_dim = c->hidden / c->q_heads;
	return check_shape(c, fault);
}

bool model_config_parse(const char *json, size_t size, struct model_config *out, struct fault *fault)
{
	struct model_config config = { 0 };
	json_error_t error;
	json_t *root = json_loadb(json, size, JSON_REJECT_DUPLICATES, &error);
	bool ok;

	if (!root)
		return fault_set(fault, "not valid JSON: line %d: %s", error.line, error.text);
	ok = parse_root(root, &config, fault);
	json_decref(root);
	if (ok)
		*out = config;
	return ok;
}
