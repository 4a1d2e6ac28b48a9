/* The readers of safetensors and config.json against files that are not what they should be: a table of corruptions each, and
 * seeded mutations, which must end in a clear refusal or in a result that is safe to use. */
#include "client/examples/tinylm/config.h"
#include "client/examples/tinylm/file.h"
#include "client/examples/tinylm/model.h"
#include "client/examples/tinylm/safetensors.h"

#include <check.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef TERRACE_SANITIZED
enum { MUTATIONS = 2000 };
#elif defined(TERRACE_TESTS_SMALL)
enum { MUTATIONS = 20000 };
#else
enum { MUTATIONS = 50000 };
#endif

static uint64_t random_state;

static uint32_t random_below(uint32_t n)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(random_state >> 33) % n;
}

/* ---- safetensors ------------------------------------------------------------------------------------------------- */

/* A file of that header and `data` bytes behind it, in memory of exactly its size. */
static uint8_t *make_file(const char *header, size_t data, size_t *size)
{
	size_t length = strlen(header);
	uint8_t *file = calloc(1, 8 + length + data);

	for (int i = 0; i < 8; i++)
		file[i] = (uint8_t)((uint64_t)length >> 8 * i);
	memcpy(file + 8, header, length);
	*size = 8 + length + data;
	return file;
}

static const char good_header[] =
	"{\"__metadata__\":{\"format\":\"pt\"},"
	"\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
	"\"none\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[12,12]},"
	"\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[12,16]}}   ";

START_TEST(test_safetensors_good)
{
	struct safetensors st;
	struct fault fault;
	size_t size;
	uint8_t *file = make_file(good_header, 16, &size);
	const struct safetensors_tensor *a;

	ck_assert_msg(safetensors_parse(file, size, &st, &fault), "%s", fault.text);
	ck_assert_uint_eq(st.count, 3);
	a = safetensors_find(&st, "a");
	ck_assert_ptr_nonnull(a);
	ck_assert_uint_eq(a->dims, 2);
	ck_assert_uint_eq(a->shape[1], 3);
	ck_assert_int_eq(a->dtype, SAFETENSORS_BF16);
	ck_assert_ptr_eq(a->data, file + size - 16);
	ck_assert_ptr_null(safetensors_find(&st, "c"));
	safetensors_free(&st);
	safetensors_free(&st);
	free(file);
}
END_TEST

static const struct {
	const char *header;
	size_t data;
	const char *says; /* part of the message */
} bad_files[] = {
	{ "", 0, "'{'" },
	{ "[]", 0, "'{'" },
	{ "{", 0, "JSON" },
	{ "{}x", 0, "JSON" },
	{ "{}", 1, "belong to no tensor" },
	{ "{\"a\":1}", 0, "not an object" },
	{ "{\"a\":{}}", 0, "dtype" },
	{ "{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype" },
	{ "{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype" },
	{ "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "shape" },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"more\":1}}", 4, "unknown field" },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "shape[0]" },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "shape[0]" },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "at most 8" },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,4]}}", 4, "overflows" },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,4]}}", 4, "JSON" },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets" },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "data_offsets" },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 8, "data_offsets" },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "data_offsets" },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "do not lie" },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4, "do not lie" },
	{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "need 8 bytes" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
	  "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[2,5]}}", 5, "overlap" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
	  "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]}}", 5, "before tensor \"b\"" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 5, "at the end" },
	{ "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
	  "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, "JSON" },
	{ "{\"__metadata__\":[]}", 0, "__metadata__" },
	{ "{\"__metadata__\":{\"format\":1}}", 0, "__metadata__" },
};

START_TEST(test_safetensors_bad)
{
	struct safetensors st;
	struct fault fault;
	size_t size;
	uint8_t *file = make_file(bad_files[_i].header, bad_files[_i].data, &size);

	ck_assert_msg(!safetensors_parse(file, size, &st, &fault), "row %d was taken", _i);
	ck_assert_msg(strstr(fault.text, bad_files[_i].says) != NULL, "row %d: \"%s\"", _i, fault.text);
	ck_assert_ptr_null(st.tensors);
	free(file);
}
END_TEST

START_TEST(test_safetensors_truncated)
{
	size_t size;
	uint8_t *file = make_file(good_header, 16, &size);

	for (size_t cut = 0; cut < size; cut++) {
		uint8_t *part = malloc(cut ? cut : 1);
		struct safetensors st;
		struct fault fault;

		memcpy(part, file, cut);
		ck_assert_msg(!safetensors_parse(part, cut, &st, &fault), "%zu of %zu bytes were taken", cut, size);
		free(part);
	}
	free(file);
}
END_TEST

START_TEST(test_safetensors_header_length)
{
	static const uint64_t lengths[] = { 0, 1, 200, 1u << 27, UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 63 };
	struct safetensors st;
	struct fault fault;
	size_t size;
	uint8_t *file = make_file(good_header, 16, &size);

	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		memcpy(file, &lengths[i], 8);
		ck_assert(!safetensors_parse(file, size, &st, &fault));
	}
	free(file);
}
END_TEST

/* Every tensor that is handed out lies inside the buffer. */
START_TEST(test_safetensors_mutated)
{
	size_t size, taken = 0;
	uint8_t *good = make_file(good_header, 16, &size), *file = malloc(size);

	random_state = 1;
	for (int i = 0; i < MUTATIONS; i++) {
		struct safetensors st;
		struct fault fault;

		memcpy(file, good, size);
		for (uint32_t n = 1 + random_below(3); n > 0; n--)
			file[random_below((uint32_t)size - 16)] = "0123456789{}[],:\"aBFU \377\0"[random_below(24)];
		if (!safetensors_parse(file, size, &st, &fault))
			continue;
		taken++;
		for (size_t t = 0; t < st.count; t++) {
			const uint8_t *at = st.tensors[t].data;

			ck_assert(at >= file && at + st.tensors[t].bytes <= file + size);
		}
		safetensors_free(&st);
	}
	ck_assert_uint_gt(taken, 0); /* a mutated name is still a name */
	free(file);
	free(good);
}
END_TEST

/* ---- the model's own tensors ------------------------------------------------------------------------------------- */

struct loaded {
	struct file_map weights, config;
	uint8_t *copy;
	struct model model;
};

static void load_setup(struct loaded *l)
{
	struct fault fault;

	memset(l, 0, sizeof(*l));
	ck_assert(file_map_open(&l->weights, TEST_DATA "/tinylm-8m", "model.safetensors", 1u << 30, &fault));
	ck_assert(file_map_open(&l->config, TEST_DATA "/tinylm-8m", "config.json", 1u << 20, &fault));
	ck_assert(model_config_parse(l->config.data, l->config.size, &l->model.config, &fault));
	l->copy = malloc(l->weights.size);
	memcpy(l->copy, l->weights.data, l->weights.size);
}

/* Loads the copy; returns whether it was taken. */
static bool load_try(struct loaded *l, struct fault *fault)
{
	struct safetensors st;
	bool ok = safetensors_parse(l->copy, l->weights.size, &st, fault);

	ck_assert_msg(ok, "%s", fault->text);
	ok = model_load_weights(&l->model, &st, fault);
	safetensors_free(&st);
	model_close(&l->model);
	file_map_close(&l->weights);
	file_map_close(&l->config);
	free(l->copy);
	return ok;
}

static void replace(uint8_t *in, size_t size, const char *old, const char *new)
{
	uint8_t *at = memmem(in, size, old, strlen(old));

	ck_assert_ptr_nonnull(at);
	ck_assert_uint_eq(strlen(old), strlen(new));
	memcpy(at, new, strlen(new));
}

START_TEST(test_weights)
{
	static const struct {
		const char *old, *new, *says; /* old NULL: untouched */
	} rows[] = {
		{ NULL, NULL, NULL },
		{ "model.norm.weight", "model.morn.weight", "\"model.norm.weight\" is missing" },
		{ "model.layers.7.mlp.up_proj", "model.layers.8.mlp.up_proj", "is missing" },
		{ "\"dtype\":\"BF16\",\"shape\":[4096,256]", "\"dtype\":\"F16\", \"shape\":[4096,256]", "only BF16" },
		{ "\"shape\":[4096,256]", "\"shape\":[256,4096]", "has not the shape" },
	};
	struct loaded l;
	struct fault fault;
	bool ok;

	load_setup(&l);
	if (rows[_i].old)
		replace(l.copy, 10000, rows[_i].old, rows[_i].new);
	ok = load_try(&l, &fault);
	ck_assert_int_eq(ok, rows[_i].old == NULL);
	ck_assert_msg(ok || strstr(fault.text, rows[_i].says), "%s", fault.text);
}
END_TEST

START_TEST(test_weights_of_another_config)
{
	struct loaded l;
	struct fault fault;

	load_setup(&l);
	l.model.config.layers = 7;
	ck_assert(!load_try(&l, &fault));
	ck_assert_ptr_nonnull(strstr(fault.text, "tensors"));
	load_setup(&l);
	l.model.config.q_heads = 2;
	ck_assert(!load_try(&l, &fault));
	ck_assert_ptr_nonnull(strstr(fault.text, "q_proj"));
}
END_TEST

/* ---- config ------------------------------------------------------------------------------------------------------ */

static char *read_config(size_t *size)
{
	struct file_map map;
	struct fault fault;
	char *text;

	ck_assert_msg(file_map_open(&map, TEST_DATA "/tinylm-8m", "config.json", 1u << 20, &fault), "%s", fault.text);
	text = malloc(map.size + 1);
	memcpy(text, map.data, map.size);
	text[map.size] = 0;
	*size = map.size;
	file_map_close(&map);
	return text;
}

START_TEST(test_config_good)
{
	struct model_config c;
	struct fault fault;
	size_t size;
	char *text = read_config(&size);

	ck_assert_msg(model_config_parse(text, size, &c, &fault), "%s", fault.text);
	ck_assert_uint_eq(c.layers, 8);
	ck_assert_uint_eq(c.hidden, 256);
	ck_assert_uint_eq(c.intermediate, 640);
	ck_assert_uint_eq(c.q_heads, 4);
	ck_assert_uint_eq(c.kv_heads, 2);
	ck_assert_uint_eq(c.head_dim, 128);
	ck_assert_uint_eq(c.vocab, 4096);
	ck_assert_uint_eq(c.positions_max, 2048);
	free(text);
}
END_TEST

static const struct {
	const char *old, *new, *says;
} bad_configs[] = {
	{ "\"hidden_size\": 256", "\"hidden_size\": -1", "hidden_size" },
	{ "\"hidden_size\": 256", "\"hidden_size\": 24.5", "hidden_size" },
	{ "\"hidden_size\": 256,", "", "hidden_size is missing" },
	{ "\"hidden_size\": 256", "\"hidden_size\": 250", "multiples of 16" },
	{ "\"hidden_size\": 256", "\"hidden_size\": 256, \"hidden_size\": 256", "JSON" },
	{ "\"num_hidden_layers\": 8", "\"num_hidden_layers\": 0", "num_hidden_layers" },
	{ "\"num_hidden_layers\": 8", "\"num_hidden_layers\": 100000", "num_hidden_layers" },
	{ "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", "not a multiple" },
	{ "\"head_dim\": 128", "\"head_dim\": 112", "head_dim 112" },
	{ "\"vocab_size\": 4096", "\"vocab_size\": \"4096\"", "vocab_size" },
	{ "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": -1", "rms_norm_eps" },
	{ "\"rope_theta\": 10000.0", "\"rope_theta\": 0", "rope_theta" },
	{ "\"rope_theta\": 10000.0", "\"rope_theta\": 10000.0, \"rope_scaling\": {\"factor\": 2}", "rope_scaling" },
	{ "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false", "tie_word_embeddings" },
	{ "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "hidden_act" },
	{ "\"attention_bias\": false", "\"attention_bias\": true", "attention_bias" },
	{ "\"mlp_bias\": false", "\"mlp_bias\": 1", "mlp_bias" },
	{ "\"model_type\": \"llama\"", "\"model_type\": \"mistral\"", "model_type" },
	{ "\"LlamaForCausalLM\"", "\"MambaForCausalLM\"", "architectures" },
	{ "\"eos_token_id\": 0", "\"eos_token_id\": 4096", "vocabulary" },
	{ "\"eos_token_id\": 0", "\"eos_token_id\": [0]", "eos_token_id" },
	{ "\"mlp_bias\": false", "\"num_experts\": 8", "unknown field \"num_experts\"" },
	{ "}", "", "JSON" },
	{ "{", "[{", "JSON" },
};

START_TEST(test_config_bad)
{
	struct model_config c = { .hidden = 77 };
	struct fault fault;
	size_t size;
	char *text = read_config(&size), *at = strstr(text, bad_configs[_i].old), *changed;
	int length;

	ck_assert_ptr_nonnull(at);
	length = asprintf(&changed, "%.*s%s%s", (int)(at - text), text, bad_configs[_i].new,
			  at + strlen(bad_configs[_i].old));
	ck_assert_int_gt(length, 0);
	ck_assert_msg(!model_config_parse(changed, (size_t)length, &c, &fault), "row %d was taken", _i);
	ck_assert_msg(strstr(fault.text, bad_configs[_i].says) != NULL, "row %d: \"%s\"", _i, fault.text);
	ck_assert_uint_eq(c.hidden, 77);
	free(changed);
	free(text);
}
END_TEST

/* What is taken keeps the promises that the engine's arithmetic rests on. */
START_TEST(test_config_mutated)
{
	size_t size, taken = 0;
	char *good = read_config(&size), *text = malloc(size);

	random_state = 2;
	for (int i = 0; i < MUTATIONS; i++) {
		struct model_config c;
		struct fault fault;

		memcpy(text, good, size);
		for (uint32_t n = 1 + random_below(2); n > 0; n--)
			text[random_below((uint32_t)size)] = "0123456789{}[],:\"-.eaf \377\0"[random_below(26)];
		if (!model_config_parse(text, size, &c, &fault))
			continue;
		taken++;
		ck_assert(c.kv_heads > 0 && c.q_heads % c.kv_heads == 0 && c.hidden % 16 == 0 && c.hidden > 0);
		ck_assert(c.bos < c.vocab && c.eos < c.vocab && c.rope_theta >= 1 && c.head_dim >= 64);
	}
	ck_assert_uint_gt(taken, 0);
	free(text);
	free(good);
}
END_TEST

/* ---- folders ----------------------------------------------------------------------------------------------------- */

static void write_file(const char *folder, const char *name, const void *data, size_t size)
{
	char path[600];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	f = fopen(path, "wb");
	ck_assert_ptr_nonnull(f);
	ck_assert_uint_eq(fwrite(data, 1, size, f), size);
	fclose(f);
}

static void expect_open_fails(const char *folder, const char *says)
{
	struct model m;
	struct fault fault;

	ck_assert(!model_open(&m, folder, &fault));
	ck_assert_msg(strstr(fault.text, says) != NULL, "\"%s\"", fault.text);
}

/* Missing, empty, wrong and truncated files of a model, each named in the message. */
START_TEST(test_model_folder)
{
	static const char *const names[] = { "config.json", "tokenizer.json", "model.safetensors" };
	char folder[] = "tinylm-folder-XXXXXX", path[600];
	struct file_map files[3];
	struct fault fault;

	expect_open_fails("no such folder", "config.json: No such file");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	for (int i = 0; i < 3; i++) {
		ck_assert(file_map_open(&files[i], TEST_DATA "/tinylm-8m", names[i], 1u << 30, &fault));
		expect_open_fails(folder, names[i]);
		write_file(folder, names[i], "", 0);
		expect_open_fails(folder, "the file is empty");
		snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
		unlink(path);
		ck_assert_int_eq(mkdir(path, 0700), 0);
		expect_open_fails(folder, "not a regular file");
		rmdir(path);
		write_file(folder, names[i], files[i].data, files[i].size);
	}
	for (int i = 0; i < 3; i++) {
		write_file(folder, names[i], files[i].data, files[i].size / 2);
		expect_open_fails(folder, names[i]);
		write_file(folder, names[i], files[i].data, files[i].size);
	}
	for (int i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
		unlink(path);
		file_map_close(&files[i]);
	}
	rmdir(folder);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("tinylm_parsers");
	TCase *cases = tcase_create("all");
	SRunner *runner;
	int failed;

	tcase_set_timeout(cases, 100);
	tcase_add_test(cases, test_safetensors_good);
	tcase_add_loop_test(cases, test_safetensors_bad, 0, sizeof(bad_files) / sizeof(bad_files[0]));
	tcase_add_test(cases, test_safetensors_truncated);
	tcase_add_test(cases, test_safetensors_header_length);
	tcase_add_test(cases, test_safetensors_mutated);
	tcase_add_loop_test(cases, test_weights, 0, 5);
	tcase_add_test(cases, test_weights_of_another_config);
	tcase_add_test(cases, test_config_good);
	tcase_add_loop_test(cases, test_config_bad, 0, sizeof(bad_configs) / sizeof(bad_configs[0]));
	tcase_add_test(cases, test_config_mutated);
	tcase_add_test(cases, test_model_folder);
	suite_add_tcase(suite, cases);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
