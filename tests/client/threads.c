/* Many threads on one session, and the daemon taking extents back under them. */
#include "tests/client/rig.h"
#include "tests/client/unmap.h"

#include "client/session/session.h"

#include <poll.h>
#include <stdatomic.h>
#include <string.h>

enum { THREADS = 6, SHARED = CLIENT_RIG_KEYS };
#ifdef TERRACE_SANITIZED
enum { ROUNDS = 40 };
#else
enum { ROUNDS = 200 };
#endif

static atomic_bool over;

/* Reads the shared blocks, whose bytes are their number. */
static void use_lease(void)
{
	struct terrace_keys keys = {bytes, SHARED, KEY_BYTES};
	struct terrace_lease *lease;

	ck_assert_msg(!terrace_lease(session, &keys, TERRACE_LEASE_ALL, 0, &lease), "%s", terrace_error());
	for (uint32_t i = 0; i < SHARED; i++) {
		const uint8_t *block = terrace_lease_block(lease, i, 0);

		ck_assert_uint_eq(block[0], i + 1);
		ck_assert_uint_eq(block[terrace_block_bytes(&layouts[0]) - 1], i + 1);
	}
	terrace_release(lease);
}

/* Stores, finds and deletes a block of this thread's own. */
static void use_put(unsigned thread)
{
	uint8_t key[KEY_BYTES] = {(uint8_t)(thread + 1)};
	struct terrace_keys keys = {key, 1, KEY_BYTES};
	struct terrace_reservation *r;
	enum terrace_status status;
	uint32_t prefix;

	ck_assert_msg(!terrace_reserve(session, &keys, NULL, 0, &status, &r), "%s", terrace_error());
	ck_assert_int_eq(status, TERRACE_OK);
	memset(terrace_reservation_block(r, 0, 0), (int)thread, terrace_block_bytes(&layouts[0]));
	ck_assert_int_eq(terrace_commit(r, 0, &status, NULL), TERRACE_OK);
	ck_assert_int_eq(terrace_lookup(session, &keys, 0, &prefix, NULL), TERRACE_OK);
	ck_assert_uint_eq(prefix, 1);
	ck_assert_int_eq(terrace_delete(session, &keys, 0, &status), TERRACE_OK);
	ck_assert_int_eq(status, TERRACE_OK);
}

static void use_async(void)
{
	struct terrace_keys keys = {bytes, SHARED, KEY_BYTES};
	struct terrace_op *ops[3];
	struct terrace_lease *lease;
	uint32_t prefix;

	ck_assert_int_eq(terrace_lookup_async(session, &keys, 0, NULL, &ops[0]), TERRACE_OK);
	ck_assert_int_eq(terrace_lease_async(session, &keys, TERRACE_LEASE_ALL, 0, NULL, &ops[1]), TERRACE_OK);
	ck_assert_int_eq(terrace_lookup_async(session, &keys, 0, NULL, &ops[2]), TERRACE_OK);
	terrace_op_cancel(ops[2]);
	ck_assert_int_eq(terrace_lookup_finish(ops[0], &prefix, NULL), TERRACE_OK);
	ck_assert_msg(!terrace_lease_finish(ops[1], &lease), "%s", terrace_error());
	terrace_release(lease);
	terrace_lookup_finish(ops[2], NULL, NULL);
}

static void *worker(void *arg)
{
	unsigned thread = (unsigned)(uintptr_t)arg;

	for (int i = 0; i < ROUNDS; i++) {
		use_lease();
		use_put(thread);
		use_async();
	}
	return NULL;
}

static void *retirer(void *arg)
{
	(void)arg;
	for (uint32_t i = 0; !atomic_load(&over); i++) {
		unmap_unused(session->view->attachment, 1 + i % FAKE_EXTENTS);
		poll(NULL, 0, 3);
	}
	return NULL;
}

START_TEST(one_session)
{
	uint8_t block[64 << 10];
	pthread_t threads[THREADS], other;

	client_rig_open(1);
	ck_assert_uint_le(terrace_block_bytes(&layouts[0]), sizeof(block));
	for (int i = 0; i < SHARED; i++) {
		memset(block, i + 1, sizeof(block));
		ck_assert_int_eq(terrace_put(session, 0, bytes + i * KEY_BYTES, KEY_BYTES, NULL, block, 0), TERRACE_OK);
	}
	for (uintptr_t i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, worker, (void *)i), 0);
	ck_assert_int_eq(pthread_create(&other, NULL, retirer, NULL), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	atomic_store(&over, true);
	pthread_join(other, NULL);
	ck_assert_uint_gt(fake_await(&fake, &fake.unmapped, 1), 0);
	client_rig_close();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client_threads");
	TCase *c = tcase_create("threads");
	SRunner *runner;
	int failed;

	tcase_set_timeout(c, 100);
	tcase_add_test(c, one_session);
	suite_add_tcase(suite, c);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
