/* Chain hash and fingerprint: fixed vectors, so that no build ever names a block otherwise, and properties. */
#include "client/include/terrace.h"

#include "client/value/keys.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void hex_of(const uint8_t *bytes, size_t n, char *hex)
{
	for (size_t i = 0; i < n; i++)
		sprintf(hex + 2 * i, "%02x", bytes[i]);
}

static const struct {
	bool parent;
	uint32_t tokens[5];
	size_t count;
	const char *salt, *want;
} vectors[] = {
	{false, {0}, 0, NULL, "94fd2298a3e11910b04859b19481d612"},
	{false, {1, 2, 3}, 3, NULL, "2170c4f93295f606e415421a45416374"},
	{true, {1, 2, 3}, 3, NULL, "4a79bad737fe0d2696c57acfcecec860"},
	{true, {1, 2, 3}, 3, "adapter", "966af9a9b89d6cc79b9c999d785bce07"},
	{false, {0xffffffff, 0, 70000, 5, 6}, 5, "", "79128ad0059464815b5b1771c732a9f9"},
};

START_TEST(chain_vectors)
{
	static const uint8_t parent[16] = "sixteen bytes!!";
	uint8_t key[16];
	char hex[33];

	terrace_chain_hash(vectors[_i].parent ? parent : NULL, vectors[_i].tokens, vectors[_i].count, vectors[_i].salt,
			   vectors[_i].salt ? strlen(vectors[_i].salt) : 0, key);
	hex_of(key, 16, hex);
	ck_assert_str_eq(hex, vectors[_i].want);
}
END_TEST

START_TEST(chain_depends_on_everything)
{
	static const uint8_t zeros[16];
	uint32_t tokens[300];
	uint8_t base[16], other[16], parent[16] = {9};

	for (uint32_t i = 0; i < 300; i++)
		tokens[i] = i * 77;
	terrace_chain_hash(parent, tokens, 300, "s", 1, base);
	for (size_t n = 0; n < 300; n += 13) {
		tokens[n] ^= 1;
		terrace_chain_hash(parent, tokens, 300, "s", 1, other);
		ck_assert_mem_ne(base, other, 16);
		tokens[n] ^= 1;
		terrace_chain_hash(parent, tokens, n, "s", 1, other);
		ck_assert_mem_ne(base, other, 16);
	}
	terrace_chain_hash(parent, tokens, 300, "t", 1, other);
	ck_assert_mem_ne(base, other, 16);
	terrace_chain_hash(parent, tokens, 300, NULL, 0, other);
	ck_assert_mem_ne(base, other, 16);
	terrace_chain_hash(parent, tokens, 300, "s", 1, other);
	ck_assert_mem_eq(base, other, 16);

	/* No parent is not a parent of zeros, and a token is not salt. */
	terrace_chain_hash(NULL, tokens, 2, NULL, 0, base);
	terrace_chain_hash(zeros, tokens, 2, NULL, 0, other);
	ck_assert_mem_ne(base, other, 16);
	terrace_chain_hash(NULL, tokens, 1, &tokens[1], 4, other);
	ck_assert_mem_ne(base, other, 16);
}
END_TEST

START_TEST(fingerprints)
{
	uint8_t a[32], b[32];
	char hex[65];

	terrace_fingerprint("model", 5, a);
	hex_of(a, 32, hex);
	ck_assert_str_eq(hex, "521e658a673d7353e5dedc67ca2fc79e83aa7d6d96b23cadda4f5154b599bca3");
	ck_assert_mem_ne(a, a + 16, 16);
	terrace_fingerprint("modem", 5, b);
	ck_assert_mem_ne(a, b, 16);
	ck_assert_mem_ne(a + 16, b + 16, 16);
	terrace_fingerprint(NULL, 0, a);
	terrace_fingerprint("", 0, b);
	ck_assert_mem_eq(a, b, 32);
}
END_TEST

START_TEST(keys_of_a_call)
{
	static const uint8_t bytes[64];
	static const struct {
		const uint8_t *bytes;
		uint32_t count, key_bytes;
		enum terrace_status want;
	} rows[] = {
		{bytes, 1, 1, TERRACE_OK},       {bytes, 2, 32, TERRACE_OK},      {bytes, 4096, 16, TERRACE_OK},
		{bytes, 0, 16, TERRACE_INVALID}, {bytes, 4097, 1, TERRACE_INVALID}, {bytes, 1, 0, TERRACE_INVALID},
		{bytes, 1, 65, TERRACE_INVALID}, {NULL, 1, 16, TERRACE_INVALID},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct terrace_keys keys = {rows[i].bytes, rows[i].count, rows[i].key_bytes};

		ck_assert_int_eq(client_keys_check(&keys), rows[i].want);
	}
	ck_assert_int_eq(client_keys_check(NULL), TERRACE_INVALID);
	ck_assert_str_ne(terrace_error(), "");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client_keys");
	TCase *c = tcase_create("keys");
	SRunner *runner;
	int failed;

	tcase_add_loop_test(c, chain_vectors, 0, sizeof(vectors) / sizeof(vectors[0]));
	tcase_add_test(c, chain_depends_on_everything);
	tcase_add_test(c, fingerprints);
	tcase_add_test(c, keys_of_a_call);
	suite_add_tcase(suite, c);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
