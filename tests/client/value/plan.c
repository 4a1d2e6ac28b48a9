/* terrace_plan(): public models against sizes that were computed from their papers' numbers, and bad configs. */
#include "client/include/terrace.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB (1ull << 30)
#define TIB (1ull << 40)

/* The whole file, whose size goes to *bytes. */
static char *config_of(const char *model, size_t *bytes)
{
	char path[512], *text = malloc(1 << 16);
	FILE *file;

	snprintf(path, sizeof(path), TEST_DATA "/models/%s.json", model);
	file = fopen(path, "rb");
	ck_assert_msg(file != NULL, "%s", path);
	*bytes = fread(text, 1, 1 << 16, file);
	fclose(file);
	return text;
}

static struct terrace_plan_options options_of(enum terrace_format format)
{
	struct terrace_plan_options o = TERRACE_PLAN_OPTIONS_INIT;

	o.k_format = format;
	o.memory_bytes = 64 * GIB;
	o.disk_bytes = TIB;
	return o;
}

struct want {
	enum terrace_plan_kind kind;
	uint32_t layers, heads, dim, window;
	uint64_t block_bytes; /* tq4: 16 tokens x layers x heads x 2 x (dim / 2 + 2); states and latents by hand, as
				 said below */
};

/* A latent: 61 layers x 16 tokens x (512 / 2 + 2 bytes of tq4 and 64 x 2 of its rope part). Of Granite a layer's state is 3 x (8192 + 2 x 128) x 2 of the
 * convolution and 8192 x 128 x 2; of Nemotron-H 3 x (8192 + 2 x 8 x 128) x 2 and the same; of Qwen3-Next 3 x (2 x 16 x
 * 128 + 32 x 128) x 2 and 32 x 128 x 128 x 2; of Jamba 3 x 8192 x 2 and 8192 x 16 x 2. */
static const struct {
	const char *model;
	uint32_t layers, groups;
	struct want group[2];
} rows[] = {
	{ "llama-3.1-8b", 32, 1, { { TERRACE_PLAN_FULL, 32, 8, 128, 0, 16 * 32 * 8 * 2 * 66 } } },
	{ "qwen3-8b", 36, 1, { { TERRACE_PLAN_FULL, 36, 8, 128, 0, 16 * 36 * 8 * 2 * 66 } } },
	{ "gemma-3-1b",
	  26,
	  2,
	  { { TERRACE_PLAN_FULL, 4, 1, 256, 0, 16 * 4 * 2 * 130 },
	    { TERRACE_PLAN_WINDOW, 22, 1, 256, 512, 16 * 22 * 2 * 130 } } },
	{ "gemma-3-27b",
	  62,
	  2,
	  { { TERRACE_PLAN_FULL, 10, 16, 128, 0, 16 * 10 * 16 * 2 * 66 },
	    { TERRACE_PLAN_WINDOW, 52, 16, 128, 1024, 16 * 52 * 16 * 2 * 66 } } },
	{ "deepseek-v3", 61, 1, { { TERRACE_PLAN_LATENT, 61, 1, 512, 0, 61 * 16 * 386 } } },
	{ "granite-4.0-h-small",
	  40,
	  2,
	  { { TERRACE_PLAN_FULL, 4, 8, 128, 0, 16 * 4 * 8 * 2 * 66 },
	    { TERRACE_PLAN_STATE, 36, 0, 0, 0, 36ull * (3 * 8448 * 2 + 8192 * 128 * 2) } } },
	{ "nemotron-h-8b",
	  52,
	  2,
	  { { TERRACE_PLAN_FULL, 4, 8, 128, 0, 16 * 4 * 8 * 2 * 66 },
	    { TERRACE_PLAN_STATE, 24, 0, 0, 0, 24ull * (3 * 10240 * 2 + 8192 * 128 * 2) } } },
	{ "qwen3-next-80b",
	  48,
	  2,
	  { { TERRACE_PLAN_FULL, 12, 2, 256, 0, 16 * 12 * 2 * 2 * 130 },
	    { TERRACE_PLAN_STATE, 36, 0, 0, 0, 36ull * (3 * 8192 * 2 + 32 * 128 * 128 * 2) } } },
	{ "jamba-1.5-mini",
	  32,
	  2,
	  { { TERRACE_PLAN_FULL, 4, 8, 128, 0, 16 * 4 * 8 * 2 * 66 },
	    { TERRACE_PLAN_STATE, 28, 0, 0, 0, 28ull * (3 * 8192 * 2 + 8192 * 16 * 2) } } },
};

static uint64_t slot_of(uint64_t block_bytes)
{
	return (4096 + block_bytes + 4095) / 4096 * 4096;
}

/* Returns the bytes that 2,048 tokens of the group take. */
static uint64_t check_group(const struct terrace_plan_group *g, const struct want *w, const char *model)
{
	const bool packed = w->kind != TERRACE_PLAN_STATE;

	ck_assert_msg(g->kind == w->kind && g->layers == w->layers && g->packed == packed, "%s: kind %d, %u layers",
		      model, g->kind, g->layers);
	ck_assert_msg(g->block_bytes == w->block_bytes, "%s: %lu bytes, not %lu", model, g->block_bytes,
		      w->block_bytes);
	ck_assert_uint_eq(g->slot_bytes, slot_of(w->block_bytes));
	ck_assert_uint_eq(g->block_tokens, w->kind == TERRACE_PLAN_STATE ? 2048 : 16);
	ck_assert_uint_eq(g->layout.heads, w->heads);
	ck_assert_uint_eq(g->layout.head_dim_k, w->dim);
	ck_assert_uint_eq(g->layout.window, w->window);
	if (packed) {
		ck_assert_ptr_null(terrace_layout_problem(&g->layout));
		ck_assert_uint_eq(terrace_block_bytes(&g->layout), w->block_bytes);
	}
	return g->slot_bytes * (2048 / g->block_tokens);
}

START_TEST(models)
{
	const struct terrace_plan_options o = options_of(TERRACE_FORMAT_TQ4);
	struct terrace_plan p = TERRACE_PLAN_INIT;
	uint64_t bytes = 0;
	size_t n;
	char *config = config_of(rows[_i].model, &n);

	ck_assert_msg(!terrace_plan(config, n, &o, &p), "%s: %s", rows[_i].model, terrace_error());
	ck_assert_uint_eq(p.layers, rows[_i].layers);
	ck_assert_uint_eq(p.group_count, rows[_i].groups);
	for (uint32_t g = 0; g < p.group_count; g++)
		bytes += check_group(&p.groups[g], &rows[_i].group[g], rows[_i].model);
	ck_assert_uint_eq(p.bytes_token, (bytes + 2047) / 2048);
	ck_assert_uint_eq(p.memory_tokens, (uint64_t)((long double)(64 * GIB) * 2048 / bytes));
	ck_assert_uint_eq(p.disk_tokens, (uint64_t)((long double)TIB * 2048 / bytes));
	free(config);
}
END_TEST

/* Of a small model what a config says and leaves out; the rest is Llama's. */
static enum terrace_status plan_of(const char *fields, const struct terrace_plan_options *o, struct terrace_plan *p)
{
	char config[1024];
	const int n = snprintf(config, sizeof(config),
			       "{\"num_hidden_layers\": 4, \"num_attention_heads\": 8, \"hidden_size\": 512%s%s}",
			       *fields ? ", " : "", fields);

	*p = (struct terrace_plan)TERRACE_PLAN_INIT;
	return terrace_plan(config, (size_t)n, o, p);
}

START_TEST(forms_of_configs)
{
	static const struct {
		const char *fields;
		uint32_t full, windows, heads, dim;
	} forms[] = {
		{ "", 4, 0, 8, 64 },
		{ "\"num_key_value_heads\": 2", 4, 0, 2, 64 },
		{ "\"head_dim\": 128", 4, 0, 8, 128 },
		{ "\"head_dim\": null", 4, 0, 8, 64 },
		{ "\"model_type\": \"mistral\", \"sliding_window\": 4096", 0, 4, 8, 64 },
		{ "\"model_type\": \"mistral\", \"sliding_window\": null", 4, 0, 8, 64 },
		{ "\"model_type\": \"qwen2\", \"sliding_window\": 4096, \"use_sliding_window\": false", 4, 0, 8, 64 },
		{ "\"model_type\": \"qwen2\", \"sliding_window\": 4096", 4, 0, 8, 64 },
		{ "\"model_type\": \"qwen2\", \"sliding_window\": 4096, \"use_sliding_window\": true, "
		  "\"max_window_layers\": 3",
		  3, 1, 8, 64 },
		{ "\"sliding_window\": 32, \"layer_types\": [\"full_attention\", \"sliding_attention\", "
		  "\"full_attention\", \"sliding_attention\"]",
		  2, 2, 8, 64 },
		{ "\"model_type\": \"gemma2\", \"sliding_window\": 32", 2, 2, 8, 64 },
		{ "\"model_type\": \"gemma3_text\", \"sliding_window\": 32, \"sliding_window_pattern\": 4", 1, 3, 8,
		  64 },
	};

	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		const struct terrace_plan_options o = options_of(TERRACE_FORMAT_FP8);
		uint32_t layers[2] = { 0 };
		struct terrace_plan p;

		ck_assert_msg(!plan_of(forms[i].fields, &o, &p), "%s: %s", forms[i].fields, terrace_error());
		for (uint32_t g = 0; g < p.group_count; g++) {
			layers[p.groups[g].kind] = p.groups[g].layers;
			ck_assert_uint_eq(p.groups[g].layout.heads, forms[i].heads);
			ck_assert_uint_eq(p.groups[g].layout.head_dim_k, forms[i].dim);
		}
		ck_assert_msg(layers[0] == forms[i].full && layers[1] == forms[i].windows, "%s: %u and %u",
			      forms[i].fields, layers[0], layers[1]);
	}
}
END_TEST

/* A head dim that no packed format has is counted in the model's dtype, and told. */
START_TEST(what_cannot_be_packed_is_opaque)
{
	const struct terrace_plan_options o = options_of(TERRACE_FORMAT_TQ4);
	struct terrace_plan p;

	ck_assert_int_eq(plan_of("\"head_dim\": 72", &o, &p), TERRACE_OK);
	ck_assert_uint_eq(p.groups[0].packed, 0);
	ck_assert_uint_eq(p.groups[0].block_bytes, 4 * 16 * 8 * 72 * 2 * 2);
	ck_assert_int_eq(plan_of("\"head_dim\": 72, \"torch_dtype\": \"float32\"", &o, &p), TERRACE_OK);
	ck_assert_uint_eq(p.groups[0].block_bytes, 4 * 16 * 8 * 72 * 2 * 4);
}
END_TEST

/* A latent in each format, and what its rope part and its rounding are then. */
START_TEST(latents)
{
	static const struct {
		const char *dtype;
		enum terrace_format format, rope, rope_is;
		uint32_t token_bytes; /* terrace.h has the table */
		enum terrace_rounding rounding;
	} forms[] = {
		{ "bfloat16", TERRACE_FORMAT_TQ4, 0, TERRACE_FORMAT_BF16, 386, TERRACE_ROUND_FP16 },
		{ "float16", TERRACE_FORMAT_TQ4, 0, TERRACE_FORMAT_FP16, 386, TERRACE_ROUND_FP16 },
		{ "bfloat16", TERRACE_FORMAT_TQ2, TERRACE_FORMAT_FP8, TERRACE_FORMAT_FP8, 196, TERRACE_ROUND_FP16 },
		{ "bfloat16", TERRACE_FORMAT_FP8, TERRACE_FORMAT_FP16, TERRACE_FORMAT_FP16, 642, TERRACE_ROUND_FP16 },
		{ "bfloat16", TERRACE_FORMAT_INT4_PTH, 0, TERRACE_FORMAT_BF16, 388, TERRACE_ROUND_BF16 },
		{ "bfloat16", TERRACE_FORMAT_BF16, 0, TERRACE_FORMAT_BF16, 1152, TERRACE_ROUND_FP16 },
	};

	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		struct terrace_plan_options o = options_of(forms[i].format);
		const struct terrace_plan_group *g;
		struct terrace_plan p;
		char fields[128];

		snprintf(fields, sizeof(fields),
			 "\"kv_lora_rank\": 512, \"qk_rope_head_dim\": 64, \"torch_dtype\": \"%s\"", forms[i].dtype);
		o.v_format = TERRACE_FORMAT_INT4_PTH; /* a latent has no V of its own */
		o.rope_format = forms[i].rope;
		ck_assert_msg(!plan_of(fields, &o, &p), "%s", terrace_error());
		g = &p.groups[0];
		ck_assert_uint_eq(g->packed, 1);
		ck_assert_int_eq(g->layout.v_format, TERRACE_FORMAT_NONE);
		ck_assert_int_eq(g->layout.rope_format, forms[i].rope_is);
		ck_assert_int_eq(g->layout.int4_rounding, forms[i].rounding);
		ck_assert_uint_eq(g->block_bytes, 4 * 16 * forms[i].token_bytes);
		ck_assert_uint_eq(terrace_block_bytes(&g->layout), g->block_bytes);
	}
}
END_TEST

/* Latents that are counted in the model's own dtype: of other sizes, and where opaque ones are asked for. */
START_TEST(latents_that_stay_opaque)
{
	struct terrace_plan_options o = options_of(TERRACE_FORMAT_TQ4);
	struct terrace_plan p;

	ck_assert_int_eq(plan_of("\"kv_lora_rank\": 256, \"qk_rope_head_dim\": 64", &o, &p), TERRACE_OK);
	ck_assert_uint_eq(p.groups[0].packed, 0);
	ck_assert_uint_eq(p.groups[0].block_bytes, 4 * 16 * 320 * 2);
	ck_assert_int_eq(plan_of("\"kv_lora_rank\": 512, \"qk_rope_head_dim\": 32", &o, &p), TERRACE_OK);
	ck_assert_uint_eq(p.groups[0].packed, 0);
	ck_assert_uint_eq(p.groups[0].block_bytes, 4 * 16 * 544 * 2);
	o = options_of(TERRACE_FORMAT_OPAQUE);
	ck_assert_int_eq(plan_of("\"kv_lora_rank\": 512, \"qk_rope_head_dim\": 64", &o, &p), TERRACE_OK);
	ck_assert_uint_eq(p.groups[0].packed, 0);
	ck_assert_uint_eq(p.groups[0].block_bytes, 4 * 16 * 576 * 2);
	ck_assert_uint_eq(p.groups[0].layout.head_dim_k, 0);
}
END_TEST

START_TEST(int4_rounds_to_the_models_dtype)
{
	struct terrace_plan_options o = options_of(TERRACE_FORMAT_INT4_PTH);
	struct terrace_plan p;

	ck_assert_int_eq(plan_of("\"torch_dtype\": \"bfloat16\"", &o, &p), TERRACE_OK);
	ck_assert_int_eq(p.groups[0].layout.int4_rounding, TERRACE_ROUND_BF16);
	ck_assert_int_eq(plan_of("\"torch_dtype\": \"float16\"", &o, &p), TERRACE_OK);
	ck_assert_int_eq(p.groups[0].layout.int4_rounding, TERRACE_ROUND_FP16);
	o = options_of(TERRACE_FORMAT_TQ4);
	o.v_format = TERRACE_FORMAT_TQ2;
	ck_assert_int_eq(plan_of("", &o, &p), TERRACE_OK);
	ck_assert_int_eq(p.groups[0].layout.v_format, TERRACE_FORMAT_TQ2);
	ck_assert_int_eq(p.groups[0].layout.int4_rounding, TERRACE_ROUND_FP16);
}
END_TEST

START_TEST(bad_configs_get_a_sentence)
{
	static const struct {
		const char *config, *says;
	} bad[] = {
		{ "", "byte 0 is not what JSON has there" },
		{ "{\"num_hidden_layers\": 4,}", "byte 24 is not what JSON has there" },
		{ "[1]", "no JSON object" },
		{ "{}", "num_hidden_layers is missing" },
		{ "{\"num_hidden_layers\": 0}", "num_hidden_layers is 0, and must be a number of 1 to 512" },
		{ "{\"num_hidden_layers\": 513}", "num_hidden_layers is 513" },
		{ "{\"num_hidden_layers\": \"4\"}", "num_hidden_layers is \"4\"" },
		{ "{\"num_hidden_layers\": 4}", "num_attention_heads is missing" },
		{ "{\"num_hidden_layers\": 4, \"num_attention_heads\": 3}", "hidden_size is missing" },
		{ "{\"num_hidden_layers\": 4, \"num_attention_heads\": 3, \"hidden_size\": 100}",
		  "hidden_size 100 is no multiple of num_attention_heads 3" },
		{ "{\"num_hidden_layers\": 2, \"layer_types\": [\"full_attention\", \"chunked_attention\"]}",
		  "layer_types[1] is \"chunked_attention\"" },
		{ "{\"num_hidden_layers\": 2, \"layer_types\": [\"attention\"]}",
		  "layer_types is [\"attention\"], and must be a list" },
		{ "{\"num_hidden_layers\": 1, \"layer_types\": [\"mamba\", \"mamba\"]}", "layer_types is" },
		{ "{\"num_hidden_layers\": 2, \"layer_types\": \"mamba\"}", "layer_types is \"mamba\"" },
		{ "{\"num_hidden_layers\": 1, \"layer_types\": [\"mamba\"]}", "mamba_d_state is missing" },
		{ "{\"num_hidden_layers\": 2, \"hybrid_override_pattern\": \"M\"}",
		  "hybrid_override_pattern is \"M\"" },
		{ "{\"num_hidden_layers\": 2, \"hybrid_override_pattern\": \"MX\"}", "of the letters" },
		{ "{\"num_hidden_layers\": 2, \"attn_layer_indices\": [2]}", "attn_layer_indices is [2]" },
		{ "{\"num_hidden_layers\": 2, \"attn_layer_period\": 2, \"attn_layer_offset\": 2}",
		  "attn_layer_offset is 2" },
		{ "{\"num_hidden_layers\": 2, \"kv_lora_rank\": 512}", "qk_rope_head_dim is missing" },
		{ "{\"num_hidden_layers\": 2, \"kv_lora_rank\": -1}", "kv_lora_rank is -1" },
		{ "{\"model_type\": \"gemma3_text\", \"num_hidden_layers\": 6, \"num_attention_heads\": 1, "
		  "\"head_dim\": 64}",
		  "sliding_window is missing" },
		{ "{\"num_hidden_layers\": 1, \"layer_types\": [\"linear_attention\"], \"linear_num_value_heads\": 4}",
		  "linear_num_key_heads is missing" },
		{ "{\"num_hidden_layers\": 512, \"attn_layer_indices\": [], \"mamba_d_state\": 65536, "
		  "\"mamba_d_conv\": 64, \"mamba_n_heads\": 1024, "
		  "\"mamba_d_head\": 65536}",
		  "512 layers make a block of " },
		{ "{\"num_hidden_layers\": 1, \"attn_layer_indices\": [], \"mamba_d_state\": 65537}",
		  "mamba_d_state is 65537, and must be a number of 1 to 65536" },
	};
	const struct terrace_plan_options o = options_of(TERRACE_FORMAT_TQ4);

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct terrace_plan p = TERRACE_PLAN_INIT;

		p.layers = 77;
		ck_assert_int_eq(terrace_plan(bad[i].config, strlen(bad[i].config), &o, &p), TERRACE_INVALID);
		ck_assert_msg(strstr(terrace_error(), bad[i].says) != NULL, "%s: %s", bad[i].config, terrace_error());
		ck_assert_uint_eq(p.layers, 77);
	}
}
END_TEST

START_TEST(bad_options_get_a_sentence)
{
	struct terrace_plan_options o = options_of(TERRACE_FORMAT_TQ4);
	struct terrace_plan p;

	o.k_format = 0;
	ck_assert_int_eq(plan_of("", &o, &p), TERRACE_INVALID);
	ck_assert_ptr_nonnull(strstr(terrace_error(), "k_format 0"));
	o = options_of(TERRACE_FORMAT_TQ4);
	o.v_format = 99;
	ck_assert_int_eq(plan_of("", &o, &p), TERRACE_INVALID);
	o = options_of(TERRACE_FORMAT_TQ4);
	o.block_tokens = 24;
	ck_assert_int_eq(plan_of("", &o, &p), TERRACE_INVALID);
	ck_assert_ptr_nonnull(strstr(terrace_error(), "block_tokens is 24"));
	o.rope_format = TERRACE_FORMAT_TQ4;
	ck_assert_int_eq(plan_of("", &o, &p), TERRACE_INVALID);
	ck_assert_ptr_nonnull(strstr(terrace_error(), "rope_format 5"));
	o.rope_format = 0;
	o.block_tokens = 32;
	o.state_tokens = 48;
	ck_assert_int_eq(plan_of("", &o, &p), TERRACE_INVALID);
	ck_assert_ptr_nonnull(strstr(terrace_error(), "state_tokens is 48"));
	o.size = 3;
	ck_assert_int_eq(plan_of("", &o, &p), TERRACE_INVALID);
	o = options_of(TERRACE_FORMAT_TQ4);
	p = (struct terrace_plan)TERRACE_PLAN_INIT;
	ck_assert_int_eq(terrace_plan(NULL, 0, &o, &p), TERRACE_INVALID);
	ck_assert_int_eq(terrace_plan("{}", 2, &o, NULL), TERRACE_INVALID);
	ck_assert_int_eq(terrace_plan("{}", 2, NULL, &p), TERRACE_INVALID);
	p.size = 8;
	ck_assert_int_eq(terrace_plan("{}", 2, &o, &p), TERRACE_INVALID);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client_plan");
	TCase *tc = tcase_create("plan");
	SRunner *runner;
	int failed;

	tcase_add_loop_test(tc, models, 0, sizeof(rows) / sizeof(rows[0]));
	tcase_add_test(tc, forms_of_configs);
	tcase_add_test(tc, what_cannot_be_packed_is_opaque);
	tcase_add_test(tc, latents);
	tcase_add_test(tc, latents_that_stay_opaque);
	tcase_add_test(tc, int4_rounds_to_the_models_dtype);
	tcase_add_test(tc, bad_configs_get_a_sentence);
	tcase_add_test(tc, bad_options_get_a_sentence);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
