/* Reads config.json of a model, in the form of Hugging Face's transformers.
 *
 * A config says in one of several ways what a layer keeps. The first of these that is there counts: a latent
 * (kv_lora_rank), a pattern of letters (hybrid_override_pattern), a list of words (layer_types) or of numbers
 * (attn_layer_indices), a period (attn_layer_period, full_attention_interval, sliding_window_pattern), or a window for
 * all layers (sliding_window). A field that is null counts as missing, as it does for transformers.
 */
#include "client/value/model.h"

#include "client/value/json.h"
#include "client/value/status.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* No product of them passes 64 bits. */
enum { LAYERS_MAX = 512, HEADS_MAX = 1024, FIELD_MAX = 1 << 16, WINDOW_MAX = 1 << 30, CONV_MAX = 64, EXPAND_MAX = 64 };
enum { PATTERN_GEMMA_3 = 6, PATTERN_GEMMA_2 = 2 };

struct reader {
	struct json config;
	struct model *model;
	uint32_t hidden, query_heads;
	uint8_t kind[LAYERS_MAX];
};

static bool member(const struct reader *r, const char *name, struct json *value)
{
	return json_member(r->config, name, value) && json_kind(*value) != JSON_NULL;
}

static bool has(const struct reader *r, const char *name)
{
	struct json value;

	return member(r, name, &value);
}

static enum terrace_status wrong(const char *name, struct json value, const char *want)
{
	const int shown = value.bytes > 40 ? 40 : (int)value.bytes;

	return client_fail(TERRACE_INVALID, "%s is %.*s%s, and must be %s", name, shown, value.at,
			   value.bytes > 40 ? "..." : "", want);
}

static enum terrace_status missing(const char *name, const char *what)
{
	return client_fail(TERRACE_INVALID, "%s is missing: %s", name, what);
}

/* Reads a size of 1 to `most` from the field. TERRACE_INVALID: it is missing or wrong. */
static enum terrace_status read_size(const struct reader *r, const char *name, uint32_t most, uint32_t *out)
{
	struct json value;
	char want[48];
	uint64_t n;

	if (!member(r, name, &value))
		return missing(
			name,
			"it is no config.json of a model that keeps K and V, or a state, in a form that is known here");
	if (!json_uint(value, most, &n) || n == 0) {
		snprintf(want, sizeof(want), "a number of 1 to %u", most);
		return wrong(name, value, want);
	}
	*out = (uint32_t)n;
	return TERRACE_OK;
}

/* Reads a size, 1 to `most`, from the field `name` or, if that is missing, from `other`. If both are missing, it is
 * `otherwise`; 0: one of them must be there. */
static enum terrace_status read_either(const struct reader *r, const char *name, const char *other, uint32_t otherwise,
				       uint32_t most, uint32_t *out)
{
	if (has(r, name) || (!has(r, other) && otherwise == 0))
		return read_size(r, name, most, out);
	if (has(r, other))
		return read_size(r, other, most, out);
	*out = otherwise;
	return TERRACE_OK;
}

static bool says_false(const struct reader *r, const char *name)
{
	struct json value;
	bool is;

	return member(r, name, &value) && json_bool(value, &is) && !is;
}

static bool type_begins(const struct reader *r, const char *text)
{
	return !strncmp(r->model->type, text, strlen(text));
}

static void all_layers(struct reader *r, enum model_kind kind)
{
	memset(r->kind, kind, r->model->layers);
}

/* ---- which layer keeps what ---- */

static enum terrace_status by_letters(struct reader *r, const char *name)
{
	struct json value, text;

	(void)member(r, name, &value);
	if (!json_text(value, &text) || text.bytes != r->model->layers)
		return wrong(name, value, "a letter for each of num_hidden_layers");
	for (uint32_t i = 0; i < text.bytes; i++)
		switch (text.at[i]) {
		case 'M':
			r->kind[i] = MODEL_STATE;
			break;
		case '*':
			r->kind[i] = MODEL_FULL;
			break;
		case '-':
		case 'E':
			r->kind[i] = MODEL_NOTHING;
			break;
		default:
			return wrong(name, value, "of the letters M, *, - and E");
		}
	return TERRACE_OK;
}

static bool kind_of(struct json word, uint8_t *out)
{
	static const struct {
		const char *word;
		uint8_t kind;
	} words[] = {
		{ "full_attention", MODEL_FULL },    { "attention", MODEL_FULL }, { "sliding_attention", MODEL_WINDOW },
		{ "linear_attention", MODEL_STATE }, { "mamba", MODEL_STATE },	  { "mamba2", MODEL_STATE },
	};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (json_is(word, words[i].word)) {
			*out = words[i].kind;
			return true;
		}
	return false;
}

static enum terrace_status by_words(struct reader *r, const char *name)
{
	struct json value, word;
	size_t cursor = 0;
	uint32_t n = 0;

	(void)member(r, name, &value);
	for (; n < r->model->layers && json_element(value, &cursor, &word); n++)
		if (!kind_of(word, &r->kind[n])) {
			char element[48];

			snprintf(element, sizeof(element), "%s[%u]", name, n);
			return wrong(element, word,
				     "full_attention, attention, sliding_attention, linear_attention, mamba or mamba2");
		}
	if (n < r->model->layers || json_element(value, &cursor, &word))
		return wrong(name, value, "a list of a word for each of num_hidden_layers");
	return TERRACE_OK;
}

static enum terrace_status by_numbers(struct reader *r, const char *name)
{
	struct json value, number;
	size_t cursor = 0;
	uint64_t n;

	(void)member(r, name, &value);
	if (json_kind(value) != JSON_ARRAY)
		return wrong(name, value, "a list of the layers that attend");
	all_layers(r, MODEL_STATE);
	while (json_element(value, &cursor, &number)) {
		if (!json_uint(number, r->model->layers - 1, &n))
			return wrong(name, value, "a list of numbers below num_hidden_layers");
		r->kind[n] = MODEL_FULL;
	}
	return TERRACE_OK;
}

/* Gives layer `first` of each period the kind `one`, and all others the kind `others`. */
static void by_period(struct reader *r, uint32_t period, uint32_t first, enum model_kind one, enum model_kind others)
{
	for (uint32_t i = 0; i < r->model->layers; i++)
		r->kind[i] = i % period == first % period ? one : others;
}

static enum terrace_status by_attention_period(struct reader *r)
{
	enum terrace_status s;
	uint32_t period, offset = 0;
	struct json value;
	uint64_t n;

	s = read_size(r, "attn_layer_period", LAYERS_MAX, &period);
	if (s)
		return s;
	if (member(r, "attn_layer_offset", &value)) {
		if (!json_uint(value, period - 1, &n))
			return wrong("attn_layer_offset", value, "a number below attn_layer_period");
		offset = (uint32_t)n;
	}
	by_period(r, period, offset, MODEL_FULL, MODEL_STATE);
	return TERRACE_OK;
}

static enum terrace_status by_last_of(struct reader *r, const char *name, uint32_t otherwise, enum model_kind others)
{
	uint32_t period = otherwise;
	enum terrace_status s = has(r, name) ? read_size(r, name, LAYERS_MAX, &period) : TERRACE_OK;

	if (!s)
		by_period(r, period, period - 1, MODEL_FULL, others);
	return s;
}

/* Gives layers a window. Qwen 2 and 3 name a window that they use only if use_sliding_window says so, and then not in
 * the first layers. */
static enum terrace_status by_window(struct reader *r)
{
	const bool asked = has(r, "use_sliding_window");
	uint32_t full = 0;
	enum terrace_status s;

	all_layers(r, MODEL_FULL);
	if (!has(r, "sliding_window") || says_false(r, "use_sliding_window") || (!asked && type_begins(r, "qwen")))
		return TERRACE_OK;
	all_layers(r, MODEL_WINDOW);
	if (!asked || !has(r, "max_window_layers"))
		return TERRACE_OK;
	s = read_size(r, "max_window_layers", LAYERS_MAX, &full);
	memset(r->kind, MODEL_FULL, full < r->model->layers ? full : r->model->layers);
	return s;
}

static enum terrace_status read_kinds(struct reader *r)
{
	if (has(r, "kv_lora_rank")) {
		all_layers(r, MODEL_LATENT);
		return TERRACE_OK;
	}
	if (has(r, "hybrid_override_pattern"))
		return by_letters(r, "hybrid_override_pattern");
	if (has(r, "layer_types"))
		return by_words(r, "layer_types");
	if (has(r, "attn_layer_indices"))
		return by_numbers(r, "attn_layer_indices");
	if (has(r, "attn_layer_period"))
		return by_attention_period(r);
	if (has(r, "full_attention_interval"))
		return by_last_of(r, "full_attention_interval", 1, MODEL_STATE);
	if (has(r, "sliding_window_pattern") || type_begins(r, "gemma3"))
		return by_last_of(r, "sliding_window_pattern", PATTERN_GEMMA_3, MODEL_WINDOW);
	if (type_begins(r, "gemma2"))
		return by_last_of(r, "sliding_window_pattern", PATTERN_GEMMA_2, MODEL_WINDOW);
	return by_window(r);
}

/* ---- how much that is ---- */

static enum terrace_status read_heads(struct reader *r)
{
	struct model *m = r->model;
	enum terrace_status s = read_size(r, "num_attention_heads", HEADS_MAX, &r->query_heads);

	if (!s)
		m->heads = r->query_heads;
	if (!s && has(r, "num_key_value_heads"))
		s = read_size(r, "num_key_value_heads", HEADS_MAX, &m->heads);
	if (s)
		return s;
	if (has(r, "head_dim") || has(r, "attention_head_dim"))
		return read_either(r, "head_dim", "attention_head_dim", 0, FIELD_MAX, &m->head_dim);
	s = read_size(r, "hidden_size", FIELD_MAX, &r->hidden);
	if (s)
		return s;
	if (r->hidden % r->query_heads)
		return client_fail(TERRACE_INVALID,
				   "head_dim is missing, and hidden_size %u is no multiple of num_attention_heads %u",
				   r->hidden, r->query_heads);
	m->head_dim = r->hidden / r->query_heads;
	return TERRACE_OK;
}

static enum terrace_status read_latent(struct reader *r)
{
	enum terrace_status s = read_size(r, "kv_lora_rank", FIELD_MAX, &r->model->latent);

	return s ? s : read_size(r, "qk_rope_head_dim", FIELD_MAX, &r->model->rope);
}

static bool names(const struct reader *r, const char *name, const char *dtype)
{
	struct json value;

	return member(r, name, &value) && json_is(value, dtype);
}

/* Bytes of an element of the recurrent part, which some models keep in more bits. */
static uint64_t recurrent_bytes(const struct reader *r)
{
	return names(r, "mamba_ssm_cache_dtype", "float32") || names(r, "mamba_ssm_dtype", "float32")
		       ? 4
		       : r->model->element_bytes;
}

/* Reads the sizes of Gated DeltaNet, as Qwen3-Next has it. */
static enum terrace_status read_delta(struct reader *r)
{
	uint32_t keys = 0, values = 0, key = 0, value = 0, conv = 0;
	const struct {
		const char *name;
		uint32_t *out;
	} fields[] = {
		{"linear_num_key_heads", &keys}, {"linear_num_value_heads", &values}, {"linear_key_head_dim", &key},
		{"linear_value_head_dim", &value}, {"linear_conv_kernel_dim", &conv},
	};

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		enum terrace_status s = read_size(r, fields[i].name, i == 4 ? CONV_MAX : HEADS_MAX, fields[i].out);

		if (s)
			return s;
	}
	r->model->state_bytes = (conv - 1) * (2ull * keys * key + (uint64_t)values * value) * r->model->element_bytes +
				(uint64_t)values * key * value * recurrent_bytes(r);
	return TERRACE_OK;
}

/* Reads the sizes of Mamba 1, which has no heads: the recurrent part is a state for each inner channel. */
static enum terrace_status read_mamba_1(struct reader *r, uint32_t state, uint32_t conv)
{
	uint32_t expand = 0;
	enum terrace_status s = read_size(r, "hidden_size", FIELD_MAX, &r->hidden);
	uint64_t inner;

	if (!s)
		s = read_size(r, "mamba_expand", EXPAND_MAX, &expand);
	if (s)
		return s;
	inner = (uint64_t)expand * r->hidden;
	r->model->state_bytes = (conv - 1) * inner * r->model->element_bytes + inner * state * recurrent_bytes(r);
	return TERRACE_OK;
}

/* Reads the head dim of Mamba 2. Granite and Bamba leave it to the model ("auto"), or do not say it. */
static enum terrace_status read_mamba_head(struct reader *r, uint32_t heads, uint32_t *out)
{
	uint32_t expand = 0;
	enum terrace_status s;
	struct json value;

	if ((member(r, "mamba_d_head", &value) && !json_is(value, "auto")) || has(r, "mamba_head_dim"))
		return read_either(r, "mamba_d_head", "mamba_head_dim", 0, FIELD_MAX, out);
	s = read_size(r, "mamba_expand", EXPAND_MAX, &expand);
	if (!s)
		s = read_size(r, "hidden_size", FIELD_MAX, &r->hidden);
	if (s)
		return s;
	if (expand * (uint64_t)r->hidden % heads)
		return client_fail(
			TERRACE_INVALID,
			"mamba_d_head is not said, and mamba_expand %u times hidden_size %u is no multiple of %u heads",
			expand, r->hidden, heads);
	*out = (uint32_t)(expand * (uint64_t)r->hidden / heads);
	return TERRACE_OK;
}

static enum terrace_status read_mamba(struct reader *r)
{
	uint32_t heads = 0, head = 0, state = 0, groups = 0, conv = 0;
	enum terrace_status s = read_either(r, "mamba_d_state", "ssm_state_size", 0, FIELD_MAX, &state);
	uint64_t inner;

	if (!s)
		s = read_either(r, "mamba_d_conv", "conv_kernel", 0, CONV_MAX, &conv);
	if (s)
		return s;
	if (!has(r, "mamba_n_heads") && !has(r, "mamba_num_heads"))
		return read_mamba_1(r, state, conv);
	s = read_either(r, "mamba_n_heads", "mamba_num_heads", 0, HEADS_MAX, &heads);
	if (!s)
		s = read_mamba_head(r, heads, &head);
	if (!s)
		s = read_either(r, "mamba_n_groups", "n_groups", 1, HEADS_MAX, &groups);
	if (s)
		return s;
	inner = (uint64_t)heads * head;
	r->model->state_bytes = (conv - 1) * (inner + 2ull * groups * state) * r->model->element_bytes +
				inner * state * recurrent_bytes(r);
	return TERRACE_OK;
}

static enum terrace_status read_sizes(struct reader *r)
{
	struct model *m = r->model;
	enum terrace_status s = TERRACE_OK;

	if (m->group_layers[MODEL_FULL] || m->group_layers[MODEL_WINDOW])
		s = read_heads(r);
	if (!s && m->group_layers[MODEL_WINDOW])
		s = read_size(r, "sliding_window", WINDOW_MAX, &m->window);
	if (!s && m->group_layers[MODEL_LATENT])
		s = read_latent(r);
	if (!s && m->group_layers[MODEL_STATE])
		s = has(r, "linear_num_value_heads") ? read_delta(r) : read_mamba(r);
	return s;
}

/* Goes to the text model in the description of a model that also sees. */
static void enter_text_model(struct reader *r)
{
	struct json text;

	if (!has(r, "num_hidden_layers") && member(r, "text_config", &text) && json_kind(text) == JSON_OBJECT)
		r->config = text;
}

static void read_type(struct reader *r)
{
	struct json value, text;

	if (member(r, "model_type", &value) && json_text(value, &text))
		snprintf(r->model->type, sizeof(r->model->type), "%.*s", (int)(text.bytes < 31 ? text.bytes : 31),
			 text.at);
}

enum terrace_status client_model_read(const char *config, size_t bytes, struct model *out)
{
	struct model m = { .element_bytes = 2 };
	struct reader r = { .model = &m };
	enum terrace_status s;
	size_t where;

	if (!json_check(config, bytes, &r.config, &where))
		return client_fail(TERRACE_INVALID, "byte %zu is not what JSON has there: give a model's config.json",
				   where);
	if (json_kind(r.config) != JSON_OBJECT)
		return client_fail(TERRACE_INVALID, "the text is no JSON object: give a model's config.json");
	read_type(&r);
	enter_text_model(&r);
	read_type(&r);
	m.element_bytes = names(&r, "torch_dtype", "float32") || names(&r, "dtype", "float32") ? 4 : 2;
	m.half = names(&r, "torch_dtype", "float16") || names(&r, "dtype", "float16");
	s = read_size(&r, "num_hidden_layers", LAYERS_MAX, &m.layers);
	if (!s)
		s = read_kinds(&r);
	for (uint32_t i = 0; !s && i < m.layers; i++)
		m.group_layers[r.kind[i]]++;
	if (!s)
		s = read_sizes(&r);
	if (!s)
		*out = m;
	return s;
}
