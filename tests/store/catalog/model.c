/* Random changes against a model, over restarts and over kill -9: a catalog is always what it was
 * after some batch, and holds everything that was flushed. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/store/catalog/rig.h"

#ifdef TERRACE_SANITIZED
enum { KILLS = 40 };
#else
enum { KILLS = 200 };
#endif
enum { KEYS = 96 };

/* What a table is to hold: for each key the number of the change that put it, 0 for none. */
struct model {
	uint64_t put_by[CATALOG_TABLES][KEYS];
};

struct step {
	enum { STEP_PUT, STEP_DROP, STEP_EMPTY } what;
	enum catalog_table table;
	unsigned key;
};

/* Change number n (from 1) of a history; everything follows from seed and n. */
static struct step step_of(uint64_t seed, uint64_t n)
{
	uint64_t dice = seed * 0x9e3779b97f4a7c15ull ^ n * 0xd1342543de82ef95ull;

	for (int i = 0; i < 4; i++)
		rig_rnd(&dice);
	return (struct step){ dice % 256 == 0 ? STEP_EMPTY : dice % 4 == 0 ? STEP_DROP : STEP_PUT,
			      (enum catalog_table)(dice / 256 % CATALOG_META), (unsigned)(dice / 4096 % KEYS) };
}

static size_t key_of(unsigned key, char text[CATALOG_KEY_MAX])
{
	return (size_t)snprintf(text, CATALOG_KEY_MAX, "%0*u", 1 + (int)(key * 7 % 100), key);
}

static size_t value_of(uint64_t n, uint8_t value[CATALOG_VALUE_MAX])
{
	uint64_t rng = n * 0x9e3779b97f4a7c15ull + 1;
	size_t bytes = rig_rnd(&rng) % 40 == 0 ? rig_rnd(&rng) % CATALOG_VALUE_MAX : rig_rnd(&rng) % 200;

	memcpy(value, &n, sizeof(n));
	for (size_t i = 0; i < bytes; i++)
		value[i] = (uint8_t)rig_rnd(&rng);
	return bytes;
}

static void model_step(struct model *m, struct step s, uint64_t n)
{
	if (s.what == STEP_EMPTY)
		memset(m->put_by[s.table], 0, sizeof(m->put_by[0]));
	else
		m->put_by[s.table][s.key] = s.what == STEP_PUT ? n : 0;
}

static enum status catalog_step(struct catalog *c, struct step s, uint64_t n)
{
	uint8_t value[CATALOG_VALUE_MAX];
	char key[CATALOG_KEY_MAX];
	size_t bytes = key_of(s.key, key);

	if (s.what == STEP_EMPTY)
		return catalog_empty(c, s.table);
	if (s.what == STEP_DROP)
		return catalog_drop(c, s.table, key, bytes);
	return catalog_put(c, s.table, key, bytes, value, value_of(n, value));
}

struct compared {
	const struct model *m;
	enum catalog_table table;
	unsigned found;
	bool differs;
};

static bool compare(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
	struct compared *c = arg;
	uint8_t expected[CATALOG_VALUE_MAX];
	char text[CATALOG_KEY_MAX + 1] = "", again[CATALOG_KEY_MAX];
	unsigned k;
	uint64_t n;

	memcpy(text, key, key_bytes);
	k = (unsigned)strtoul(text, NULL, 10);
	ck_assert_uint_lt(k, KEYS);
	ck_assert_uint_eq(key_of(k, again), key_bytes);
	ck_assert_mem_eq(again, key, key_bytes);
	n = c->m->put_by[c->table][k];
	c->found++;
	if (n == 0 || value_of(n, expected) != value_bytes || memcmp(expected, value, value_bytes) != 0)
		c->differs = true;
	return true;
}

static bool model_is(const struct model *m, struct catalog *c)
{
	for (int t = 0; t < CATALOG_META; t++) {
		struct compared with = { m, (enum catalog_table)t, 0, false };
		unsigned expected = 0;
		uint64_t damaged;

		for (int k = 0; k < KEYS; k++)
			expected += m->put_by[t][k] != 0;
		ck_assert_int_eq(catalog_walk(c, with.table, compare, &with, &damaged), STATUS_OK);
		ck_assert_uint_eq(damaged, 0);
		if (with.differs || with.found != expected)
			return false;
	}
	return true;
}

static struct rig rig;

static void setup(void)
{
	rig_init(&rig);
	rig.options.batch_ms = 1;
}

static void teardown(void)
{
	rig_fini(&rig);
}

START_TEST(a_model_agrees)
{
	struct model m = { 0 };
	uint64_t rng = 0xabcdef12345 + (uint64_t)_i, n = 0;

	rig_open(&rig, CATALOG_FRESH);
	for (int round = 0; round < 60; round++) {
		uint64_t most = rig_rnd(&rng) % 400;

		for (uint64_t i = 0; i < most; i++) {
			struct step s = step_of((uint64_t)_i + 1, ++n);

			ck_assert_int_eq(catalog_step(rig.c, s, n), STATUS_OK);
			model_step(&m, s, n);
		}
		if (round % 3 == 2) {
			rig_close(&rig);
			rig_open(&rig, CATALOG_FOUND);
		} else {
			ck_assert_int_eq(rig_flush(&rig), STATUS_OK);
		}
		ck_assert(model_is(&m, rig.c));
	}
}
END_TEST

static void report(void *arg, enum status s)
{
	uint64_t n = (uint64_t)(uintptr_t)arg;

	if (s == STATUS_OK && write(STDOUT_FILENO, &n, sizeof(n)) != sizeof(n))
		_exit(3);
}

/* The victim: goes on with the history behind change `from` until it is killed; says on standard
 * output what is flushed. */
static int victim(const char *folder, uint64_t seed, uint64_t from)
{
	struct catalog_options o = { .folder = folder, .batch_ms = 1, .queue_bytes_max = 1 << 18, .map_bytes = 1 << 20 };
	enum catalog_state state;
	struct catalog *c;
	char why[200];

	if (catalog_open(&o, &c, &state, why, sizeof(why)) != STATUS_OK || state == CATALOG_DAMAGED) {
		fprintf(stderr, "victim: %s\n", why);
		return 2;
	}
	report((void *)(uintptr_t)from, STATUS_OK);
	for (uint64_t n = from + 1;; n++) {
		while (catalog_step(c, step_of(seed, n), n) == STATUS_EXHAUSTED)
			usleep(100);
		while (catalog_put(c, CATALOG_META, "n", 1, &n, sizeof(n)) == STATUS_EXHAUSTED)
			usleep(100);
		if (n % 64 == 0)
			catalog_flush(c, report, (void *)(uintptr_t)n);
	}
}

static const char *self;

/* Runs a victim for a while, which begins when it is open, or when it has flushed some; the last change that it had flushed, or `from`. */
static uint64_t kill_one(uint64_t seed, uint64_t from, bool flushes, unsigned after_us)
{
	char seed_text[32], from_text[32];
	uint64_t n, flushed = from;
	int out[2], how;
	pid_t pid;

	snprintf(seed_text, sizeof(seed_text), "%llu", (unsigned long long)seed);
	snprintf(from_text, sizeof(from_text), "%llu", (unsigned long long)from);
	ck_assert_int_eq(pipe(out), 0);
	pid = fork();
	if (pid == 0) {
		dup2(out[1], STDOUT_FILENO);
		close(out[0]);
		execl(self, self, "victim", rig.folder, seed_text, from_text, (char *)NULL);
		_exit(127);
	}
	close(out[1]);
	/* Its first word says that it is open. */
	ck_assert_int_eq(read(out[0], &n, sizeof(n)), sizeof(n));
	if (flushes && read(out[0], &n, sizeof(n)) == sizeof(n))
		flushed = n;
	usleep(after_us);
	ck_assert_int_eq(kill(pid, SIGKILL), 0);
	while (read(out[0], &n, sizeof(n)) == sizeof(n))
		flushed = n;
	close(out[0]);
	ck_assert_int_eq(waitpid(pid, &how, 0), pid);
	ck_assert(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
	return flushed;
}

START_TEST(killed_at_any_moment)
{
	uint64_t rng = 31337 + (uint64_t)_i, seed = 1000 + (uint64_t)_i, n = 0, moved = 0;
	struct model m = { 0 };

	for (int i = 0; i < KILLS / 4; i++) {
		uint64_t from = n, flushed = kill_one(seed, from, i % 2, (unsigned)(rig_rnd(&rng) % 30000)), at = 0;
		size_t bytes = sizeof(at);
		enum status s;

		rig_open(&rig, i == 0 && flushed == 0 && !rig_exists(&rig, "data.mdb") ? CATALOG_FRESH : CATALOG_FOUND);
		s = catalog_get(rig.c, CATALOG_META, "n", 1, &at, &bytes);
		ck_assert(s == STATUS_OK || (s == STATUS_MISS && flushed == 0));
		/* The history may go on behind a change whose number was lost. */
		ck_assert_uint_ge(at + (flushed == from), flushed);
		for (n = from; n < at;) {
			n++;
			model_step(&m, step_of(seed, n), n);
		}
		/* The batch may have ended between a change and its number. */
		if (!model_is(&m, rig.c)) {
			n++;
			model_step(&m, step_of(seed, n), n);
			ck_assert_msg(model_is(&m, rig.c), "neither %llu nor one more", (unsigned long long)at);
		}
		moved += n > from;
		rig_close(&rig);
	}
	ck_assert_uint_ge(moved, KILLS / 8);
}
END_TEST

int main(int argc, char **argv)
{
	char path[4096] = "";
	SRunner *sr;
	TCase *tc;
	Suite *s;
	int failed;

	if (argc == 5 && strcmp(argv[1], "victim") == 0)
		return victim(argv[2], strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10));
	if (readlink("/proc/self/exe", path, sizeof(path) - 1) < 0)
		return EXIT_FAILURE;
	self = path;
	s = suite_create("store_catalog_model");
	tc = tcase_create("model");
	tcase_set_timeout(tc, 110);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_loop_test(tc, a_model_agrees, 0, 3);
	tcase_add_loop_test(tc, killed_at_any_moment, 0, 4);
	suite_add_tcase(s, tc);
	sr = srunner_create(s);
	srunner_run_all(sr, CK_NORMAL);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
