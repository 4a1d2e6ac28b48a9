/* The tokenizer: exactly the tokens that the model was trained on, any bytes there and back, and tokenizer.json files that
 * are broken or ask for what is not implemented. */
#include "client/examples/tinylm/file.h"
#include "client/examples/tinylm/tokenizer.h"
#include "client/examples/tinylm/unicode.h"

#include <check.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TERRACE_SANITIZED
enum { MUTATIONS = 15, TEXTS = 300, DASHES = 20000 };
#else
enum { MUTATIONS = 300, TEXTS = 5000, DASHES = 1000000 };
#endif

enum { HELD_OUT = 16 * 2048 + 1 };

static struct tokenizer tokenizer;
static uint64_t random_state;

static uint32_t random_below(uint32_t n)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(random_state >> 33) % n;
}

static char *read_json(size_t *size)
{
	struct file_map map;
	struct fault fault;
	char *text;

	ck_assert_msg(file_map_open(&map, TEST_DATA "/tinylm-8m", "tokenizer.json", 1u << 26, &fault), "%s", fault.text);
	text = malloc(map.size + 1);
	memcpy(text, map.data, map.size);
	text[map.size] = 0;
	*size = map.size;
	file_map_close(&map);
	return text;
}

static void setup(void)
{
	struct fault fault;
	size_t size;
	char *json = read_json(&size);

	ck_assert_msg(tokenizer_parse(json, size, &tokenizer, &fault), "%s", fault.text);
	free(json);
}

static void teardown(void)
{
	tokenizer_free(&tokenizer);
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* All of the held-out tokens, document boundaries too, come back when their text is encoded. */
START_TEST(test_held_out)
{
	struct file_map map;
	struct fault fault;
	uint32_t *tokens = malloc(HELD_OUT * sizeof(*tokens)), *again;
	size_t bytes, count;
	char *text;

	ck_assert(file_map_open(&map, TEST_DATA "/tinylm-8m", "val_tokens.u16", 1u << 26, &fault));
	ck_assert_uint_ge(map.size, 2 * HELD_OUT);
	for (size_t i = 0; i < HELD_OUT; i++)
		tokens[i] = ((const uint8_t *)map.data)[2 * i] | (uint32_t)((const uint8_t *)map.data)[2 * i + 1] << 8;
	file_map_close(&map);
	ck_assert(tokenizer_decode(&tokenizer, tokens, HELD_OUT - 1, &text, &bytes, &fault));
	ck_assert(tokenizer_encode(&tokenizer, text, bytes, &again, &count, &fault));
	ck_assert_uint_eq(count, HELD_OUT - 1);
	for (size_t i = 0; i < count; i++)
		ck_assert_msg(again[i] == tokens[i], "token %zu is %u, was %u", i, again[i], tokens[i]);
	free(again);
	free(text);
	free(tokens);
}
END_TEST

/* A text's tokens, each shown between bars. */
static void expect_pieces(const char *text, const char *expected)
{
	char shown[512] = "";
	struct fault fault;
	uint32_t *ids;
	size_t count;

	ck_assert(tokenizer_encode(&tokenizer, text, strlen(text), &ids, &count, &fault));
	for (size_t i = 0; i < count; i++) {
		const struct tokenizer_token *t = &tokenizer.tokens[ids[i]];

		snprintf(shown + strlen(shown), sizeof(shown) - strlen(shown), "%.*s|", (int)t->bytes,
			 (const char *)tokenizer.text + t->at);
	}
	ck_assert_str_eq(shown, expected);
	free(ids);
}

/* Where the pattern cuts shows in what is not merged: a word's space is its own, digits and letters part, and the last of
 * several spaces goes to the word behind them. */
START_TEST(test_pieces)
{
	expect_pieces("", "");
	expect_pieces("the file", "the| file|");
	expect_pieces("the  file", "the| | file|");
	expect_pieces("file\n\nthe", "file|\n|\n|the|");
	expect_pieces("the<|endoftext|>the", "the|<|endoftext|>|the|");
	expect_pieces("<|endoftext|", "<|||end|of|text|||");
}
END_TEST

START_TEST(test_any_bytes)
{
	random_state = 3;
	for (int i = 0; i < TEXTS; i++) {
		static const char *const parts[] = { " ", "  ", "\n", "the", "'s", "'ll", "'", "\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9f\x98\x80",
						     "\xff", "\xc3", "\xe2\x82", "\xed\xa0\x80", "42", "--", "<|endoftext|>", "<|end",
						     "\xc2\xa0", "\xe3\x80\x80", "\t", "\xc2\xbd" };
		uint32_t *ids;
		char text[256] = "", *back;
		struct fault fault;
		size_t length = 0, count, bytes;

		for (uint32_t n = random_below(12); n > 0; n--) {
			const char *part = parts[random_below(sizeof(parts) / sizeof(parts[0]))];

			memcpy(text + length, part, strlen(part));
			length += strlen(part);
		}
		for (uint32_t n = random_below(6); n > 0; n--)
			text[length++] = (char)random_below(256);
		ck_assert(tokenizer_encode(&tokenizer, text, length, &ids, &count, &fault));
		ck_assert(tokenizer_decode(&tokenizer, ids, count, &back, &bytes, &fault));
		ck_assert_uint_eq(bytes, length);
		ck_assert_mem_eq(back, text, length);
		free(back);
		free(ids);
	}
}
END_TEST

/* One piece of a million bytes takes n log n, not n^2. */
START_TEST(test_long_piece)
{
	char *text = malloc(DASHES);
	struct fault fault;
	uint32_t *ids;
	size_t count;

	memset(text, '-', DASHES);
	ck_assert(tokenizer_encode(&tokenizer, text, DASHES, &ids, &count, &fault));
	ck_assert_uint_lt(count, DASHES / 4);
	free(ids);
	free(text);
}
END_TEST

START_TEST(test_decode_range)
{
	uint32_t ids[] = { 5, 4096 };
	struct fault fault;
	size_t bytes;
	char *text;

	ck_assert(!tokenizer_decode(&tokenizer, ids, 2, &text, &bytes, &fault));
	ck_assert_ptr_nonnull(strstr(fault.text, "4096"));
}
END_TEST

/* ---- Unicode ----------------------------------------------------------------------------------------------------- */

START_TEST(test_unicode)
{
	static const struct {
		uint32_t c;
		enum unicode_class class;
	} rows[] = {
		{ 'a', UNICODE_LETTER },    { 'Z', UNICODE_LETTER },      { '0', UNICODE_NUMBER },    { '_', UNICODE_OTHER },
		{ 0xaa, UNICODE_LETTER },   { 0xb2, UNICODE_NUMBER },     { 0xd7, UNICODE_OTHER },    { 0x300, UNICODE_OTHER },
		{ 0x4e2d, UNICODE_LETTER }, { 0x2167, UNICODE_NUMBER },   { 0x1f600, UNICODE_OTHER }, { 0x3000, UNICODE_SPACE },
		{ 0x200b, UNICODE_OTHER },  { 0x85, UNICODE_SPACE },      { 0x3134a, UNICODE_LETTER }, { 0x10ffff, UNICODE_OTHER },
		{ 0x1d7ff, UNICODE_NUMBER }, { UNICODE_BROKEN, UNICODE_OTHER },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		ck_assert_msg(unicode_class_of(rows[i].c) == rows[i].class, "U+%04x", rows[i].c);
}
END_TEST

START_TEST(test_utf8)
{
	static const struct {
		const char *bytes;
		size_t size, length;
		uint32_t c;
	} rows[] = {
		{ "a", 1, 1, 'a' },
		{ "\xc3\xa9", 2, 2, 0xe9 },
		{ "\xe4\xb8\xad", 3, 3, 0x4e2d },
		{ "\xf4\x8f\xbf\xbf", 4, 4, 0x10ffff },
		{ "\xc3", 1, 1, UNICODE_BROKEN },
		{ "\xc3(", 2, 1, UNICODE_BROKEN },
		{ "\xc0\x80", 2, 1, UNICODE_BROKEN },         /* overlong */
		{ "\xe0\x80\x80", 3, 1, UNICODE_BROKEN },     /* overlong */
		{ "\xed\xa0\x80", 3, 1, UNICODE_BROKEN },     /* a surrogate */
		{ "\xf4\x90\x80\x80", 4, 1, UNICODE_BROKEN }, /* past the end */
		{ "\xff", 1, 1, UNICODE_BROKEN },
		{ "\x80", 1, 1, UNICODE_BROKEN },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint32_t c;

		ck_assert_msg(unicode_next((const uint8_t *)rows[i].bytes, rows[i].size, &c) == rows[i].length, "row %zu", i);
		ck_assert_msg(c == rows[i].c, "row %zu", i);
	}
}
END_TEST

/* ---- files ------------------------------------------------------------------------------------------------------- */

static const struct {
	const char *old, *new, *says;
} bad_files[] = {
	{ "\"type\": \"BPE\"", "\"type\": \"Unigram\"", "\"BPE\"" },
	{ "\"truncation\": null", "\"truncation\": {}", "truncation" },
	{ "\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}", "normalizer" },
	{ "\"dropout\": null", "\"dropout\": 0.1", "dropout" },
	{ "\"unk_token\": null", "\"unk_token\": \"!\"", "unk_token" },
	{ "\"byte_fallback\": false", "\"byte_fallback\": true", "byte_fallback" },
	{ "\"ignore_merges\": false", "\"ignore_merges\": true", "ignore_merges" },
	{ "\"add_prefix_space\": false", "\"add_prefix_space\": true", "add_prefix_space" },
	{ "\"use_regex\": true", "\"use_regex\": false", "use_regex" },
	{ "\"type\": \"ByteLevel\"", "\"type\": \"Whitespace\"", "pre_tokenizer" },
	{ "\"lstrip\": false", "\"lstrip\": true", "lstrip" },
	{ "\"content\": \"<|endoftext|>\"", "\"content\": \"<|end|>\"", "under its id" },
	{ "\"id\": 0", "\"id\": 1", "under its id" },
	{ "\"!\": 1,", "\"!\": 2,", "twice" },
	{ "\"!\": 1,", "\"!\": 4096,", "no id" },
	{ "\"!\": 1,", "\"!\": -1,", "no id" },
	{ "\"!\": 1,", "\"!\": \"1\",", "no id" },
	{ "\"!\": 1,", "\"! \": 1,", "alphabet" },
	{ "\"!\": 1,", "\"\": 1,", "0 bytes" },
	{ "\"!\": 1,", "\"!!!!!\": 1,", "no token for byte 0x21" },
	{ "\"!\": 1,", "", "no id" },
	{ "\"merges\": [", "\"merges\": [ [\"!\"],", "merges[0]" },
	{ "\"merges\": [", "\"merges\": [ 5,", "merges[0]" },
	{ "\"merges\": [", "\"merges\": [ [\"!\", \"qqqq\"],", "not in the vocabulary" },
	{ "\"merges\": [", "\"merges\": [ [\"i\", \"n\"],", "twice" },
	{ "\"merges\": [", "\"merged\": [", "merges is not" },
	{ "\"vocab\": {", "\"vocal\": {", "vocab" },
	{ "\"model\": {", "\"modal\": {", "no model" },
	{ "{", "[", "JSON" },
};

START_TEST(test_bad_file)
{
	struct tokenizer t;
	struct fault fault;
	size_t size;
	char *json = read_json(&size), *at = strstr(json, bad_files[_i].old), *changed;
	int length;

	ck_assert_ptr_nonnull(at);
	length = asprintf(&changed, "%.*s%s%s", (int)(at - json), json, bad_files[_i].new, at + strlen(bad_files[_i].old));
	ck_assert_int_gt(length, 0);
	ck_assert_msg(!tokenizer_parse(changed, (size_t)length, &t, &fault), "row %d was taken", _i);
	ck_assert_msg(strstr(fault.text, bad_files[_i].says) != NULL, "row %d: \"%s\"", _i, fault.text);
	ck_assert_ptr_null(t.tokens);
	free(changed);
	free(json);
}
END_TEST

/* The older way to write a merge. */
START_TEST(test_merge_as_string)
{
	struct tokenizer t;
	struct fault fault;
	size_t size;
	char *json = read_json(&size), *at = strstr(json, "\"merges\": ["), *end = strchr(at, ']'), *changed;
	int length;

	length = asprintf(&changed, "%.*s\"merges\": [ \"\xc4\xa0 \xc4\xa0\"%s", (int)(at - json), json, end + 1);
	ck_assert_msg(tokenizer_parse(changed, (size_t)length, &t, &fault), "%s", fault.text);
	tokenizer_free(&t);
	free(changed);
	free(json);
}
END_TEST

/* What a mutated file parses to can still encode and decode anything. */
START_TEST(test_mutated)
{
	size_t size;
	char *good = read_json(&size), *json = malloc(size);

	random_state = 4;
	for (int i = 0; i < MUTATIONS; i++) {
		static const char text[] = "a text with 42 words -- and 'quotes'";
		struct tokenizer t;
		struct fault fault;
		size_t count, bytes;
		uint32_t *ids;
		char *back;

		memcpy(json, good, size);
		for (uint32_t n = 1 + random_below(3); n > 0; n--)
			json[random_below((uint32_t)size)] = "0123456789{}[],:\"abc \377\0"[random_below(24)];
		if (!tokenizer_parse(json, random_below(8) ? size : random_below((uint32_t)size), &t, &fault))
			continue;
		ck_assert(tokenizer_encode(&t, text, strlen(text), &ids, &count, &fault));
		ck_assert(tokenizer_decode(&t, ids, count, &back, &bytes, &fault));
		free(back);
		free(ids);
		tokenizer_free(&t);
	}
	free(json);
	free(good);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("tinylm_tokenizer");
	TCase *texts = tcase_create("texts"), *files = tcase_create("files");
	SRunner *runner;
	int failed;

	tcase_set_timeout(texts, 100);
	tcase_set_timeout(files, 100);
	tcase_add_checked_fixture(texts, setup, teardown);
	tcase_add_test(texts, test_held_out);
	tcase_add_test(texts, test_pieces);
	tcase_add_test(texts, test_any_bytes);
	tcase_add_test(texts, test_long_piece);
	tcase_add_test(texts, test_decode_range);
	tcase_add_test(files, test_unicode);
	tcase_add_test(files, test_utf8);
	tcase_add_loop_test(files, test_bad_file, 0, sizeof(bad_files) / sizeof(bad_files[0]));
	tcase_add_test(files, test_merge_as_string);
	tcase_add_test(files, test_mutated);
	suite_add_tcase(suite, texts);
	suite_add_tcase(suite, files);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
