/* Public names: the hash against its authors' test vectors and against OpenSSL, secrets from files, two secrets of a
 * tenant, and names that are made while secrets are replaced. */
#include "daemon/names/names.h"
#include "daemon/secrets/secret_file.h"
#include "daemon/names/secret.h"
#include "daemon/names/siphash.h"

#include <check.h>
#include <fcntl.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/held_folder.h"

enum { VECTORS = 64 };

static const uint64_t key_of_vectors[2] = { 0x0706050403020100, 0x0f0e0d0c0b0a0908 };

static void hex(const uint8_t *bytes, size_t n, char *out)
{
	for (size_t i = 0; i < n; i++)
		sprintf(out + 2 * i, "%02x", bytes[i]);
}

/* ---- the hash ---- */

/* vectors_sip128 of https://github.com/veorq/SipHash: key 00 to 0f, and of row n the bytes 00 to n - 1. Three of its
 * rows, and the SHA-256 of all 64. */
START_TEST(hash_is_that_of_the_vectors)
{
	static const struct {
		unsigned n;
		const char *hash;
	} rows[] = {
		{ 0, "a3817f04ba25a8e66df67214c7550293" },
		{ 15, "5493e99933b0a8117e08ec0f97cfc3d9" },
		{ 63, "5150d1772f50834a503e069a973fbd7c" },
	};
	uint8_t bytes[VECTORS], all[VECTORS][16], digest[32];
	char text[65];

	for (unsigned n = 0; n < VECTORS; n++) {
		bytes[n] = (uint8_t)n;
		siphash_128(key_of_vectors, bytes, n, all[n]);
	}
	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		hex(all[rows[i].n], 16, text);
		ck_assert_str_eq(text, rows[i].hash);
	}
	ck_assert(EVP_Digest(all, sizeof all, digest, NULL, EVP_sha256(), NULL));
	hex(digest, sizeof digest, text);
	ck_assert_str_eq(text, "ecfaa9fe47ff788fa834a9863ea2715a2880cd37d2b8c3c194402838428119b9");
}
END_TEST

static void openssl_hash(const uint8_t key[16], const uint8_t *bytes, size_t n, uint8_t out[16])
{
	EVP_MAC *mac = EVP_MAC_fetch(NULL, "SIPHASH", NULL);
	EVP_MAC_CTX *ctx = EVP_MAC_CTX_new(mac);
	size_t size = 16, got = 0;
	const OSSL_PARAM params[] = { OSSL_PARAM_construct_size_t(OSSL_MAC_PARAM_SIZE, &size),
				      OSSL_PARAM_construct_end() };

	ck_assert(EVP_MAC_init(ctx, key, 16, params) && EVP_MAC_update(ctx, bytes, n) &&
		  EVP_MAC_final(ctx, out, &got, 16) && got == 16);
	EVP_MAC_CTX_free(ctx);
	EVP_MAC_free(mac);
}

static void random_bytes(uint8_t *to, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = (uint8_t)(rand() >> 7);
}

START_TEST(hash_is_openssls)
{
	uint8_t key[16], bytes[300], mine[16], its[16];
	uint64_t words[2];

	srand(11);
	for (size_t n = 0; n <= sizeof bytes; n++) {
		random_bytes(key, sizeof key);
		random_bytes(bytes, n);
		memcpy(words, key, sizeof words);
		words[0] = le64toh(words[0]);
		words[1] = le64toh(words[1]);
		siphash_128(words, bytes, n, mine);
		openssl_hash(key, bytes, n, its);
		ck_assert_mem_eq(mine, its, 16);
	}
}
END_TEST

/* ---- secrets ---- */

static char folder[64];

static void begin(void)
{
	ck_assert(held_folder_make("/tmp", folder, sizeof folder));
}

static void end(void)
{
	char command[96];

	snprintf(command, sizeof command, "rm -rf %s", folder);
	ck_assert_int_eq(system(command), 0);
}

static const char *file(const char *name, const void *bytes, size_t n, mode_t mode)
{
	static char path[2][128];
	static int turn;
	char *at = path[turn = !turn];
	int fd;

	snprintf(at, sizeof path[0], "%s/%s", folder, name);
	unlink(at);
	fd = open(at, O_WRONLY | O_CREAT | O_EXCL, 0600);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, bytes, n), (ssize_t)n);
	ck_assert_int_eq(fchmod(fd, mode), 0);
	close(fd);
	return at;
}

#define TEXT "0123456789abcdef0123456789abcdef"

static struct secret secret_of(const char *text, const char *tenant)
{
	char why[SECRET_WHY_MAX] = "";
	struct secret s;
	const enum status status = secret_read(file("s", text, strlen(text), 0400), tenant, &s, why);

	ck_assert_msg(status == STATUS_OK, "%s", why);
	return s;
}

static void same_secrets(const struct secret *a, const struct secret *b)
{
	ck_assert_mem_eq(a->key, b->key, sizeof a->key);
	ck_assert_mem_eq(a->same, b->same, sizeof a->same);
	ck_assert_uint_eq(a->fingerprint, b->fingerprint);
}

/* What other daemons, of other versions, derive too: HMAC-SHA-256 under the secret, of label, zero, tenant. */
START_TEST(derivation_is_fixed)
{
	static const char label[] = "terrace 1 public names\0chat", shown[] = "terrace 1 fingerprint of a secret\0chat";
	const struct secret s = secret_of(TEXT, "chat");
	uint8_t mac[32];
	uint64_t words[2];
	uint32_t print;

	ck_assert(HMAC(EVP_sha256(), TEXT, 32, (const uint8_t *)label, sizeof label - 1, mac, NULL));
	memcpy(words, mac, sizeof words);
	ck_assert_uint_eq(s.key[0], le64toh(words[0]));
	ck_assert_uint_eq(s.key[1], le64toh(words[1]));
	ck_assert(HMAC(EVP_sha256(), TEXT, 32, (const uint8_t *)shown, sizeof shown - 1, mac, NULL));
	memcpy(&print, mac, sizeof print);
	ck_assert_uint_eq(s.fingerprint, be32toh(print));
}
END_TEST

START_TEST(secrets_differ_by_tenant_and_not_by_newline)
{
	const struct secret a = secret_of(TEXT, "a"), line = secret_of(TEXT "\n", "a"), b = secret_of(TEXT, "b");
	const struct secret lines = secret_of(TEXT "\n\n", "a");

	same_secrets(&a, &line);
	ck_assert_mem_eq(a.same, b.same, sizeof a.same);
	ck_assert_mem_ne(a.key, b.key, sizeof a.key);
	ck_assert_uint_ne(a.fingerprint, b.fingerprint);
	ck_assert_mem_ne(a.key, lines.key, sizeof a.key); /* one newline is dropped, not two */
}
END_TEST

static void refused(const char *path, enum status wanted, const char *word)
{
	char why[SECRET_WHY_MAX] = "";
	struct secret s, untouched;

	memset(&s, 0x5a, sizeof s);
	untouched = s;
	ck_assert_msg(secret_read(path, "a", &s, why) == wanted, "%s", why);
	ck_assert_msg(strstr(why, word) && strstr(why, path), "%s", why);
	ck_assert_mem_eq(&s, &untouched, sizeof s);
	ck_assert_msg(!strstr(why, "0123456789abcdef"), "%s", why); /* no sentence has the secret */
}

START_TEST(files_that_are_no_secrets)
{
	static const mode_t modes[] = { 0444, 0404, 0402, 0401, 0420, 0666, 0777 };
	static uint8_t large[SECRET_BYTES_MAX + 1];
	char path[128];

	random_bytes(large, sizeof large);
	for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
		refused(file("s", TEXT, 32, modes[i]), STATUS_DENIED, "chmod 0400");
	refused(file("s", TEXT, 31, 0400), STATUS_INVALID, "it has 31 bytes");
	refused(file("s", "", 0, 0400), STATUS_INVALID, "it has 0 bytes");
	refused(file("s", large, sizeof large, 0400), STATUS_INVALID, "it has 4097 bytes");
	memset(large, 0, sizeof large);
	refused(file("s", large, 64, 0400), STATUS_INVALID, "damaged");
	snprintf(path, sizeof path, "%s/none", folder);
	refused(path, STATUS_NOT_FOUND, "make the secret there");
	refused(folder, STATUS_INVALID, "no regular file");
	ck_assert_int_eq(mkfifo(path, 0600), 0);
	refused(path, STATUS_INVALID, "no regular file");
	if (geteuid() == 0) {
		const char *of_other = file("s", TEXT, 32, 0400);

		ck_assert_int_eq(chown(of_other, 41002, 41002), 0);
		refused(of_other, STATUS_DENIED, "of uid 41002, who could change it");
	}
}
END_TEST

START_TEST(files_that_are_secrets)
{
	static uint8_t large[SECRET_BYTES_MAX];
	char why[SECRET_WHY_MAX], path[128];
	struct secret s;

	random_bytes(large, sizeof large);
	ck_assert_int_eq(secret_read(file("s", large, sizeof large, 0440), "a", &s, why), STATUS_OK);
	/* Kubernetes and others name secrets by links; what counts is the file that was opened */
	snprintf(path, sizeof path, "%s/link", folder);
	ck_assert_int_eq(symlink(file("s", large, 32, 0600), path), 0);
	ck_assert_int_eq(secret_read(path, "a", &s, why), STATUS_OK);
	file("s", large, 32, 0604);
	refused(path, STATUS_DENIED, "mode 0604");
}
END_TEST

/* ---- names ---- */

static const uint32_t numbers[] = { 1, 70, 71 };

static struct names *table(void)
{
	struct names *n;

	ck_assert_int_eq(names_create(numbers, 3, &n), STATUS_OK);
	return n;
}

static uint32_t fingerprint(const struct names *n, uint32_t tenant, int which)
{
	uint32_t f[NAMES_SECRETS] = { 0 };

	ck_assert_uint_gt(names_fingerprints(n, tenant, f), (uint32_t)which);
	return f[which];
}

START_TEST(a_name_is_of_layout_key_and_length)
{
	const struct secret s = secret_of(TEXT, "a"), other = secret_of("another secret of 32 bytes or so ", "a");
	struct names *n = table();
	struct public_name first[2], again[2];
	uint8_t key[NAMES_KEY_MAX] = { 1, 2, 3 }, input[80] = { 8, 7, 6, 5, 4, 3, 2, 1, 1, 2, 3, 0, 4 }, hash[16];

	ck_assert_uint_eq(names_of(n, 0, 1, key, 32, first), 0);
	names_set(n, 0, &s, NULL);
	ck_assert_uint_eq(names_of(n, 1, 1, key, 32, first), 0); /* of another tenant */
	ck_assert_uint_eq(names_of(n, 0, 0x0102030405060708, key, 4, first), 1);
	siphash_128(s.key, input, 13, hash);
	ck_assert_mem_eq(first[0].bytes, hash, 16);
	names_of(n, 0, 0x0102030405060708, key, 5, again); /* the same bytes and one zero */
	ck_assert_mem_ne(first, again, 16);
	names_of(n, 0, 0x0102030405060709, key, 4, again);
	ck_assert_mem_ne(first, again, 16);
	ck_assert_uint_eq(names_of(n, 0, 1, key, NAMES_KEY_MAX, again), 1);
	names_set(n, 0, &other, NULL);
	names_of(n, 0, 0x0102030405060708, key, 4, again);
	ck_assert_mem_ne(first, again, 16);
	names_destroy(n);
}
END_TEST

START_TEST(old_names_are_made_until_the_secret_is_dropped)
{
	const struct secret a = secret_of(TEXT, "a"), b = secret_of("another secret of 32 bytes or so ", "a");
	struct names *n = table();
	struct public_name before[2], both[2], after[2];
	const uint8_t key[32] = { 9 };
	uint64_t version = names_version(n);

	names_set(n, 1, &a, NULL);
	ck_assert_uint_ne(names_version(n), version);
	ck_assert_uint_eq(names_of(n, 1, 5, key, 32, before), 1);
	names_set(n, 1, &a, &a); /* copied first: it is one secret yet */
	ck_assert_uint_eq(names_of(n, 1, 5, key, 32, both), 1);
	names_set(n, 1, &b, &a);
	ck_assert_uint_eq(names_of(n, 1, 5, key, 32, both), 2);
	ck_assert_mem_eq(&both[1], &before[0], 16);
	ck_assert_uint_eq(fingerprint(n, 1, 0), b.fingerprint);
	ck_assert_uint_eq(fingerprint(n, 1, 1), a.fingerprint);
	names_set(n, 1, &b, NULL);
	ck_assert_uint_eq(names_of(n, 1, 5, key, 32, after), 1);
	ck_assert_mem_eq(&after[0], &both[0], 16);
	names_set(n, 1, NULL, &a);
	ck_assert_uint_eq(names_of(n, 1, 5, key, 32, after), 0);
	names_destroy(n);
}
END_TEST

START_TEST(a_tenant_is_found_and_so_is_a_double)
{
	const struct secret a = secret_of(TEXT, "a"), of_b = secret_of(TEXT, "b");
	const struct secret c = secret_of("another secret of 32 bytes or so ", "c");
	struct names *n = table();

	ck_assert_uint_eq(names_count(n), 3);
	ck_assert_uint_eq(names_tenant(n, 71), 2);
	ck_assert_uint_eq(names_number(n, 2), 71);
	ck_assert_uint_eq(names_tenant(n, 72), NAMES_NO_TENANT);
	names_set(n, 0, &a, NULL);
	ck_assert_uint_eq(names_holder(n, 1, &of_b), 0);
	ck_assert_uint_eq(names_holder(n, 0, &of_b), NAMES_NO_TENANT);
	names_set(n, 0, &c, &a);
	ck_assert_uint_eq(names_holder(n, 1, &of_b), 0); /* an old one counts, too */
	names_set(n, 0, &c, NULL);
	ck_assert_uint_eq(names_holder(n, 1, &of_b), NAMES_NO_TENANT);
	names_destroy(n);
}
END_TEST

/* ---- threads ---- */

enum { READERS = 3, ROTATIONS = 20000 };

struct race {
	struct names *names;
	struct public_name a, b;
	_Atomic bool over;
	_Atomic uint64_t seen[3]; /* a alone, b with a, none of these */
};

static void *read_names(void *arg)
{
	struct race *r = arg;
	const uint8_t key[32] = { 7 };
	struct public_name got[2];

	while (!atomic_load(&r->over)) {
		const uint32_t n = names_of(r->names, 1, 3, key, 32, got);
		const bool one = n == 1 && !memcmp(&got[0], &r->a, 16);
		const bool two = n == 2 && !memcmp(&got[0], &r->b, 16) && !memcmp(&got[1], &r->a, 16);

		atomic_fetch_add(&r->seen[one ? 0 : two ? 1 : 2], 1);
	}
	return NULL;
}

/* Every answer is that of one moment: never a key of one secret with a half of another's. */
START_TEST(names_are_whole_while_secrets_change)
{
	const struct secret a = secret_of(TEXT, "a"), b = secret_of("another secret of 32 bytes or so ", "a");
	struct race r = { .names = table() };
	const uint8_t key[32] = { 7 };
	struct public_name got[2];
	pthread_t threads[READERS];

	names_set(r.names, 1, &b, &a);
	ck_assert_uint_eq(names_of(r.names, 1, 3, key, 32, got), 2);
	r.b = got[0];
	r.a = got[1];
	names_set(r.names, 1, &a, NULL);
	for (int i = 0; i < READERS; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, read_names, &r), 0);
	for (int i = 0; i < ROTATIONS || !atomic_load(&r.seen[0]) || !atomic_load(&r.seen[1]); i++)
		names_set(r.names, 1, i % 2 ? &a : &b, i % 2 ? NULL : &a);
	atomic_store(&r.over, true);
	for (int i = 0; i < READERS; i++)
		pthread_join(threads[i], NULL);
	ck_assert_uint_eq(atomic_load(&r.seen[2]), 0);
	names_destroy(r.names);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		hash_is_that_of_the_vectors,
		hash_is_openssls,
		derivation_is_fixed,
		secrets_differ_by_tenant_and_not_by_newline,
		files_that_are_no_secrets,
		files_that_are_secrets,
		a_name_is_of_layout_key_and_length,
		old_names_are_made_until_the_secret_is_dropped,
		a_tenant_is_found_and_so_is_a_double,
		names_are_whole_while_secrets_change,
	};
	Suite *suite = suite_create("names");
	TCase *tc = tcase_create("names");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, begin, end);
	for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
		tcase_add_test(tc, tests[i]);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
