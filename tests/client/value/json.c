/* The reader of JSON: what RFC 8259 allows is read, nothing else is. */
#include "client/value/json.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool sound(const char *text, struct json *value)
{
	size_t where;
	const bool is = json_check(text, strlen(text), value, &where);

	ck_assert_uint_le(where, strlen(text));
	return is;
}

static const struct {
	const char *text;
	bool sound;
} texts[] = {
	{ "{}", true },
	{ " [ ] ", true },
	{ "null", true },
	{ "true", true },
	{ "false", true },
	{ "0", true },
	{ "-0", true },
	{ "12.5e+3", true },
	{ "1E-2", true },
	{ "\"\"", true },
	{ "\"a\\n\\u00e4\\\\\"", true },
	{ "\"\xc3\xa4\"", true },
	{ "{\"a\":[1,{\"b\":null}],\"c\":\"d\"}", true },
	{ "[1 , 2]", true },
	{ "", false },
	{ " ", false },
	{ "{", false },
	{ "{]", false },
	{ "[1,]", false },
	{ "[,1]", false },
	{ "{\"a\"}", false },
	{ "{\"a\":1,}", false },
	{ "{a:1}", false },
	{ "{\"a\" 1}", false },
	{ "01", false },
	{ "1.", false },
	{ ".5", false },
	{ "+1", false },
	{ "1e", false },
	{ "- 1", false },
	{ "nul", false },
	{ "nulls", false },
	{ "True", false },
	{ "NaN", false },
	{ "\"", false },
	{ "\"\\x\"", false },
	{ "\"\\u12g4\"", false },
	{ "\"a\nb\"", false },
	{ "1 2", false },
	{ "[1]]", false },
	{ "'a'", false },
	{ "[1 2]", false },
	{ "// a\n1", false },
};

START_TEST(nothing_but_json_is_sound)
{
	struct json value;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		ck_assert_msg(sound(texts[i].text, &value) == texts[i].sound, "%s", texts[i].text);
}
END_TEST

START_TEST(nesting_is_bounded)
{
	char deep[3 * JSON_DEPTH_MAX];
	struct json value;

	for (int depth = JSON_DEPTH_MAX - 1; depth <= JSON_DEPTH_MAX + 1; depth++) {
		memset(deep, '[', (size_t)depth);
		memset(deep + depth, ']', (size_t)depth);
		deep[2 * depth] = 0;
		ck_assert_int_eq(sound(deep, &value), depth <= JSON_DEPTH_MAX);
	}
}
END_TEST

/* Every text that is cut off, or has a byte changed, is refused or read; nothing is read behind its end (sanitizers see
 * it). */
START_TEST(cut_and_changed_texts)
{
	static const char text[] = "{\"a\": [1, -2.5e3, {\"b\": \"c\\u0041\"}], \"d\": null, \"e\": true}";
	const size_t n = sizeof(text) - 1;

	for (size_t cut = 0; cut <= n; cut++) {
		char *copy = malloc(cut + 1); /* of exactly so many bytes, and one that may not be looked at */
		struct json value;
		size_t where;

		memcpy(copy, text, cut);
		ck_assert_int_eq(json_check(copy, cut, &value, &where), cut == n);
		free(copy);
	}
	for (size_t at = 0; at < n; at++)
		for (int byte = 1; byte < 256; byte++) {
			char copy[sizeof(text)];
			struct json value, member;

			memcpy(copy, text, sizeof(text));
			copy[at] = (char)byte;
			if (sound(copy, &value))
				(void)json_member(value, "d", &member);
		}
}
END_TEST

START_TEST(members_and_elements)
{
	struct json object, value, element;
	size_t cursor = 0;
	uint64_t n, sum = 0;
	bool is;

	ck_assert(sound("{ \"a\" : 1, \"ab\": [ 1, 2,3 ], \"t\": \"x\\ty\", \"b\": true, \"a\": 7, \"o\": {\"a\": 9} , "
			"\"n\": null}",
			&object));
	ck_assert(json_member(object, "a", &value) && json_uint(value, 10, &n));
	ck_assert_uint_eq(n, 7); /* the last one */
	ck_assert(!json_member(object, "c", &value) && !json_member(value, "a", &value));
	ck_assert(json_member(object, "ab", &value));
	ck_assert_int_eq(json_kind(value), JSON_ARRAY);
	while (json_element(value, &cursor, &element)) {
		ck_assert(json_uint(element, 3, &n));
		sum = 10 * sum + n;
	}
	ck_assert_uint_eq(sum, 123);
	ck_assert(json_member(object, "o", &value) && json_member(value, "a", &value) && json_uint(value, 9, &n));
	ck_assert(json_member(object, "b", &value) && json_bool(value, &is) && is);
	ck_assert(json_member(object, "t", &value) && !json_is(value, "x\ty") && !json_is(value, "x\\ty"));
	ck_assert(json_member(object, "n", &value));
	ck_assert_int_eq(json_kind(value), JSON_NULL);
}
END_TEST

START_TEST(integers_are_bounded)
{
	static const struct {
		const char *text;
		uint64_t most;
		bool fits;
	} rows[] = {
		{ "0", 0, true },
		{ "1", 0, false },
		{ "7", 7, true },
		{ "8", 7, false },
		{ "100", 100, true },
		{ "101", 100, false },
		{ "18446744073709551615", UINT64_MAX, true },
		{ "18446744073709551616", UINT64_MAX, false },
		{ "99999999999999999999999", UINT64_MAX, false },
		{ "-1", 9, false },
		{ "1.0", 9, false },
		{ "1e1", 99, false },
		{ "\"1\"", 9, false },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct json value;
		uint64_t n = 4711;

		ck_assert(sound(rows[i].text, &value));
		ck_assert_msg(json_uint(value, rows[i].most, &n) == rows[i].fits, "%s", rows[i].text);
		ck_assert(rows[i].fits ? n == strtoull(rows[i].text, NULL, 10) : n == 4711);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client_json");
	TCase *tc = tcase_create("json");
	SRunner *runner;
	int failed;

	tcase_add_test(tc, nothing_but_json_is_sound);
	tcase_add_test(tc, nesting_is_bounded);
	tcase_add_test(tc, cut_and_changed_texts);
	tcase_add_test(tc, members_and_elements);
	tcase_add_test(tc, integers_are_bounded);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
