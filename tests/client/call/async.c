/* Asynchronous calls: results, completion exactly once by callback and eventfd, cancel, deadlines, and the end of things. */
#include "tests/client/rig.h"

#include "client/value/clock.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* STALLED_US: of calls that are never answered and whose deadline is not to come; SOON_US: whose is to, once the fake has them. */
enum { KEYS = CLIENT_RIG_KEYS, STALLED_US = 300000000, SOON_US = 1000000 };
#ifdef TERRACE_SANITIZED
enum { CLOSES = 30 };
#else
enum { CLOSES = 200 };
#endif

static const struct terrace_keys keys = {bytes, KEYS, KEY_BYTES};

static void open_session(void)
{
	client_rig_open(1);
}

/* Counts callbacks and remembers on which thread. */
struct told {
	atomic_uint times;
	pthread_t thread;
	struct terrace_op *op;
};

static void tell(struct terrace_op *op, void *arg)
{
	struct told *told = arg;

	told->op = op;
	told->thread = pthread_self();
	ck_assert(terrace_op_done(op));
	atomic_fetch_add(&told->times, 1);
}

START_TEST(everything)
{
	uint64_t n = terrace_block_bytes(&layouts[0]);
	struct told told = {0};
	struct terrace_completion completion = {tell, &told, -1};
	enum terrace_status statuses[KEYS];
	struct terrace_reservation *r;
	struct terrace_lease *lease;
	struct terrace_op *op;
	uint8_t states[KEYS], *block = calloc(1, n);
	uint32_t prefix, tokens;

	ck_assert_int_eq(terrace_reserve_async(session, &keys, NULL, 0, &completion, &op), TERRACE_OK);
	ck_assert_int_eq(terrace_reserve_finish(op, statuses, &r), TERRACE_OK);
	ck_assert_uint_eq(atomic_load(&told.times), 1);
	ck_assert(!pthread_equal(told.thread, pthread_self()));
	for (uint32_t i = 0; i < KEYS; i++) {
		ck_assert_int_eq(statuses[i], TERRACE_OK);
		memset(terrace_reservation_block(r, i, 0), (int)i + 1, n);
	}
	ck_assert_int_eq(terrace_commit_async(r, 0, &completion, &op), TERRACE_OK);
	ck_assert_int_eq(terrace_commit_finish(op, statuses), TERRACE_OK);
	ck_assert_int_eq(statuses[KEYS - 1], TERRACE_OK);
	ck_assert_int_eq(terrace_lookup_async(session, &keys, 0, &completion, &op), TERRACE_OK);
	ck_assert_int_eq(terrace_lookup_finish(op, &prefix, states), TERRACE_OK);
	ck_assert_uint_eq(prefix, KEYS);
	ck_assert_mem_eq(states, "\1\1\1\1", 4);
	ck_assert_int_eq(terrace_lease_async(session, &keys, TERRACE_LEASE_ALL, 0, &completion, &op), TERRACE_OK);
	ck_assert_int_eq(terrace_lease_finish(op, &lease), TERRACE_OK);
	ck_assert_uint_eq(*(const uint8_t *)terrace_lease_block(lease, 2, 0), 3);
	terrace_release(lease);
	ck_assert_int_eq(terrace_put_async(session, 0, bytes, KEY_BYTES, NULL, block, 0, &completion, &op), TERRACE_OK);
	ck_assert_int_eq(terrace_put_finish(op), TERRACE_EXISTS);
	ck_assert_int_eq(terrace_get_async(session, 0, bytes, KEY_BYTES, block, 0, &completion, &op), TERRACE_OK);
	ck_assert_int_eq(terrace_get_finish(op, &tokens), TERRACE_OK);
	ck_assert_uint_eq(tokens, 16);
	ck_assert_uint_eq(block[n - 1], 1);
	FAULT(corrupt_get, true);
	ck_assert_int_eq(terrace_get_async(session, 0, bytes, KEY_BYTES, block, 0, &completion, &op), TERRACE_OK);
	ck_assert_int_eq(terrace_get_finish(op, &tokens), TERRACE_CORRUPT);
	ck_assert_uint_eq(atomic_load(&told.times), 7);

	FAULT(corrupt_get, false);
	ck_assert_int_eq(terrace_warm_async(session, &keys, true, 0, &completion, &op), TERRACE_OK);
	ck_assert_int_eq(terrace_warm_finish(op, &prefix), TERRACE_OK);
	ck_assert_uint_eq(prefix, KEYS);
	ck_assert_int_eq(terrace_flush_async(session, &keys, 0, &completion, &op), TERRACE_OK);
	statuses[KEYS - 1] = TERRACE_INTERNAL;
	ck_assert_int_eq(terrace_flush_finish(op, statuses), TERRACE_OK);
	ck_assert_int_eq(statuses[KEYS - 1], TERRACE_OK);
	ck_assert_int_eq(terrace_flush_async(session, NULL, 0, &completion, &op), TERRACE_OK);
	ck_assert_int_eq(terrace_warm_finish(op, NULL), TERRACE_INVALID); /* of another kind: it still must be finished */
	ck_assert_int_eq(terrace_flush_finish(op, NULL), TERRACE_OK);
	ck_assert_uint_eq(atomic_load(&told.times), 10);

	/* Results nobody takes are given back. The lease above is released one way: that may be seen late. */
	ck_assert_uint_eq(fake_await(&fake, &fake.released, 1), 1);
	ck_assert_int_eq(terrace_lease_async(session, &keys, TERRACE_LEASE_ALL, 0, NULL, &op), TERRACE_OK);
	ck_assert_int_eq(terrace_lease_finish(op, NULL), TERRACE_OK);
	ck_assert_uint_eq(fake_await(&fake, &fake.released, 2), 2);
	ck_assert_int_eq(terrace_delete(session, &keys, 0, NULL), TERRACE_OK);
	ck_assert_int_eq(terrace_reserve_async(session, &keys, NULL, 0, NULL, &op), TERRACE_OK);
	ck_assert_int_eq(terrace_reserve_finish(op, NULL, NULL), TERRACE_OK);
	ck_assert_uint_eq(fake_await(&fake, &fake.aborted, KEYS), KEYS);
	ck_assert_int_eq(terrace_put_async(session, 0, bytes, KEY_BYTES, NULL, block, 0, NULL, &op), TERRACE_OK);
	ck_assert_int_eq(terrace_put_finish(op), TERRACE_OK);
	free(block);
}
END_TEST

START_TEST(by_eventfd)
{
	int fd = eventfd(0, EFD_CLOEXEC);
	struct terrace_completion completion = {.eventfd = fd};
	struct pollfd ready = {.fd = fd, .events = POLLIN};
	struct terrace_op *ops[8];
	uint64_t sum = 0, value;

	for (int i = 0; i < 8; i++)
		ck_assert_int_eq(terrace_lookup_async(session, &keys, 0, &completion, &ops[i]), TERRACE_OK);
	while (sum < 8) {
		ck_assert_int_eq(poll(&ready, 1, 30000), 1);
		ck_assert_int_eq(read(fd, &value, sizeof(value)), sizeof(value));
		sum += value;
	}
	ck_assert_uint_eq(sum, 8);
	for (int i = 0; i < 8; i++) {
		ck_assert(terrace_op_done(ops[i]));
		ck_assert_int_eq(terrace_lookup_finish(ops[i], NULL, NULL), TERRACE_OK);
	}
	ck_assert_int_eq(poll(&ready, 1, 20), 0);
	close(fd);
}
END_TEST

struct swapped {
	int fd, other;
	_Atomic bool done;
};

/* Its number is another file's when the callback returns. */
static void close_eventfd(struct terrace_op *op, void *arg)
{
	struct swapped *swapped = arg;

	ck_assert_int_eq(terrace_lookup_finish(op, NULL, NULL), TERRACE_OK);
	ck_assert_int_eq(dup2(swapped->other, swapped->fd), swapped->fd);
	atomic_store(&swapped->done, true);
}

START_TEST(an_eventfd_is_closed_in_the_callback)
{
	struct swapped swapped = {.fd = eventfd(0, EFD_CLOEXEC), .other = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
	struct terrace_completion completion = {close_eventfd, &swapped, swapped.fd, 0};
	struct terrace_op *op;
	uint64_t value;

	ck_assert_int_eq(terrace_lookup_async(session, &keys, 0, &completion, &op), TERRACE_OK);
	for (int ms = 0; ms < 30000 && !atomic_load(&swapped.done); ms++) /* a close of the connection would cancel it */
		poll(NULL, 0, 1);
	client_rig_close(); /* waits for the thread that may write still */
	ck_assert_int_eq(read(swapped.other, &value, sizeof(value)), -1);
	ck_assert_int_eq(errno, EAGAIN);
	close(swapped.fd);
	close(swapped.other);
	client_rig_open(1);
}
END_TEST

START_TEST(cancel)
{
	struct told told = {0};
	struct terrace_completion completion = {tell, &told, -1};
	struct terrace_op *op;
	uint32_t prefix = 9;

	FAULT(stall_method, "Lookup");
	ck_assert_int_eq(terrace_lookup_async(session, &keys, STALLED_US, &completion, &op), TERRACE_OK);
	poll(NULL, 0, 10);
	ck_assert(!terrace_op_done(op));
	terrace_op_cancel(op);
	ck_assert_int_eq(terrace_lookup_finish(op, &prefix, NULL), TERRACE_CANCELLED);
	ck_assert_str_ne(terrace_error(), "");
	ck_assert_uint_eq(prefix, 9);
	ck_assert_uint_eq(atomic_load(&told.times), 1);

	ck_assert_int_eq(terrace_lookup_async(session, &keys, 20000, NULL, &op), TERRACE_OK);
	ck_assert_int_eq(terrace_lookup_finish(op, &prefix, NULL), TERRACE_DEADLINE);
	FAULT(stall_method, NULL);
	ck_assert_int_eq(terrace_lookup_async(session, &keys, 0, NULL, &op), TERRACE_OK);
	while (!terrace_op_done(op))
		poll(NULL, 0, 1);
	terrace_op_cancel(op); /* too late */
	ck_assert_int_eq(terrace_lookup_finish(op, &prefix, NULL), TERRACE_OK);
	terrace_op_cancel(NULL);
}
END_TEST

/* A cancel at any moment: one completion, and no lease left behind. */
START_TEST(cancel_races)
{
	struct terrace_reservation *r;
	struct terrace_lease *lease;
	struct terrace_op *op;
	unsigned leases = 0;

	ck_assert_int_eq(terrace_reserve(session, &keys, NULL, 0, NULL, &r), TERRACE_OK);
	ck_assert_int_eq(terrace_commit(r, 0, NULL, NULL), TERRACE_OK);
	for (int i = 0; i < 200; i++) {
		struct told told = {0};
		struct terrace_completion completion = {tell, &told, -1};
		enum terrace_status status;

		ck_assert_int_eq(terrace_lease_async(session, &keys, TERRACE_LEASE_ALL, 0, &completion, &op), TERRACE_OK);
		for (volatile int spin = 0; spin < i * 200; spin++)
			;
		terrace_op_cancel(op);
		status = terrace_lease_finish(op, &lease);
		ck_assert(status == TERRACE_OK || status == TERRACE_CANCELLED);
		ck_assert_uint_eq(atomic_load(&told.times), 1);
		if (!status) {
			terrace_release(lease);
			leases++;
		}
	}
	ck_assert_uint_ge(fake_await(&fake, &fake.released, leases), leases);
}
END_TEST

/* Every key is stored already: there is nothing to commit, and that is no failure. */
/* The call that ended so is given up by its number. */
static void recalled_as(unsigned times)
{
	ck_assert_uint_eq(fake_await(&fake, &fake.recalled, times), times);
	pthread_mutex_lock(&fake.lock);
	ck_assert_uint_ne(fake.stalled_call, 0);
	ck_assert_uint_eq(fake.recalled_call, fake.stalled_call);
	fake.stalled_call = 0;
	pthread_mutex_unlock(&fake.lock);
}

/* Whose answer has not come in time may have been granted something: nothing of it is left behind. Of those that had one nothing is
 * recalled. */
START_TEST(granted_and_not_heard)
{
	struct terrace_reservation *r;
	struct terrace_lease *lease;
	struct terrace_op *op;
	unsigned times = 0;

	FAULT(stall_method, "Reserve");
	ck_assert_int_eq(terrace_reserve(session, &keys, NULL, SOON_US, NULL, &r), TERRACE_DEADLINE);
	recalled_as(++times);
	ck_assert_int_eq(terrace_reserve_open(session, NULL, SOON_US, &r), TERRACE_DEADLINE);
	recalled_as(++times);
	ck_assert_int_eq(terrace_reserve_async(session, &keys, NULL, SOON_US, NULL, &op), TERRACE_OK);
	ck_assert_int_eq(terrace_reserve_finish(op, NULL, &r), TERRACE_DEADLINE);
	recalled_as(++times);
	FAULT(stall_method, NULL);
	ck_assert_int_eq(terrace_reserve(session, &keys, NULL, 0, NULL, &r), TERRACE_OK);
	FAULT(stall_method, "Commit");
	ck_assert_int_eq(terrace_commit(r, SOON_US, NULL, &lease), TERRACE_DEADLINE);
	recalled_as(++times);
	FAULT(stall_method, "Lease");
	ck_assert_int_eq(terrace_lease(session, &keys, TERRACE_LEASE_ALL, SOON_US, &lease), TERRACE_DEADLINE);
	ck_assert_str_ne(terrace_error(), "");
	recalled_as(++times);
	ck_assert_int_eq(terrace_lease_async(session, &keys, TERRACE_LEASE_ALL, STALLED_US, NULL, &op), TERRACE_OK);
	terrace_op_cancel(op);
	ck_assert_int_eq(terrace_lease_finish(op, &lease), TERRACE_CANCELLED);
	ck_assert_uint_eq(fake_await(&fake, &fake.recalled, times + 1), times + 1);
	times++;
	FAULT(stall_method, NULL);
	ck_assert_int_eq(terrace_lease(session, &keys, TERRACE_LEASE_ALL, 0, &lease), TERRACE_MISS);
	ck_assert_uint_ge(fake_await(&fake, &fake.aborted, KEYS), KEYS); /* those of the failed commit */
	ck_assert_int_eq(terrace_reserve(session, &keys, NULL, 0, NULL, &r), TERRACE_OK);
	ck_assert_int_eq(terrace_commit(r, 0, NULL, &lease), TERRACE_OK);
	terrace_release(lease);
	ck_assert_uint_eq(fake_await(&fake, &fake.released, 1), 1);
	ck_assert_uint_eq(fake_count(&fake, &fake.recalled), times);
}
END_TEST

START_TEST(commit_of_nothing)
{
	enum terrace_status statuses[KEYS];
	struct told told = {0};
	struct terrace_completion completion = {tell, &told, -1};
	struct terrace_reservation *r;
	struct terrace_op *op;

	ck_assert_int_eq(terrace_reserve(session, &keys, NULL, 0, NULL, &r), TERRACE_OK);
	ck_assert_int_eq(terrace_commit(r, 0, NULL, NULL), TERRACE_OK);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(terrace_reserve(session, &keys, NULL, 0, NULL, &r), TERRACE_OK);
		ck_assert_ptr_null(terrace_reservation_block(r, 0, 0));
		if (i) {
			ck_assert_int_eq(terrace_commit(r, 0, statuses, NULL), TERRACE_OK);
		} else {
			ck_assert_int_eq(terrace_commit_async(r, 0, &completion, &op), TERRACE_OK);
			ck_assert_msg(!terrace_commit_finish(op, statuses), "%s", terrace_error());
			ck_assert_uint_eq(atomic_load(&told.times), 1);
		}
		for (int k = 0; k < KEYS; k++)
			ck_assert_int_eq(statuses[k], TERRACE_EXISTS);
	}
}
END_TEST

/* The place that *op is written to may be gone once the callback has run. */
struct request {
	struct terrace_op *op;
	atomic_bool ended;
};

static void request_end(struct terrace_op *op, void *arg)
{
	struct request *request = arg;

	if (request->op == op && !terrace_lookup_finish(op, NULL, NULL))
		request->op = NULL;
	atomic_store(&request->ended, true);
}

START_TEST(place_of_the_op)
{
	for (int i = 0; i < 300; i++) {
		struct request request = {0};
		struct terrace_completion completion = {request_end, &request, -1};

		ck_assert_int_eq(terrace_lookup_async(session, &keys, 0, &completion, &request.op), TERRACE_OK);
		while (!atomic_load(&request.ended))
			sched_yield();
		ck_assert_ptr_null(request.op);
	}
}
END_TEST

/* A session closes while leases are being made in it: each operation completes, and nothing is read that is gone. */
START_TEST(close_races)
{
	struct terrace_reservation *r;

	ck_assert_int_eq(terrace_reserve(session, &keys, NULL, 0, NULL, &r), TERRACE_OK);
	ck_assert_int_eq(terrace_commit(r, 0, NULL, NULL), TERRACE_OK);
	for (int i = 0; i < CLOSES; i++) {
		struct terrace_session *s;
		struct terrace_op *ops[4];
		struct terrace_lease *lease;
		struct terrace_token token;

		terrace_session_token(session, &token);
		ck_assert_msg(!terrace_session_attach(client, &token, &s), "%s", terrace_error());
		for (int k = 0; k < 4; k++)
			ck_assert_int_eq(terrace_lease_async(s, &keys, TERRACE_LEASE_ALL, 0, NULL, &ops[k]), TERRACE_OK);
		for (volatile int spin = 0; spin < i * 500; spin++)
			;
		terrace_session_close(s);
		for (int k = 0; k < 4; k++) {
			enum terrace_status status = terrace_lease_finish(ops[k], &lease);

			if (!status)
				terrace_release(lease);
			else
				ck_assert_msg(status == TERRACE_CANCELLED || status == TERRACE_UNAVAILABLE, "%d: %s",
					      status, terrace_error());
		}
	}
}
END_TEST

START_TEST(wrong_finish)
{
	struct terrace_op *op;
	struct terrace_lease *lease;

	ck_assert_int_eq(terrace_lookup_async(session, &keys, 0, NULL, &op), TERRACE_OK);
	ck_assert_int_eq(terrace_lease_finish(op, &lease), TERRACE_INVALID);
	ck_assert_int_eq(terrace_lookup_finish(op, NULL, NULL), TERRACE_OK);
	ck_assert_int_eq(terrace_lookup_finish(NULL, NULL, NULL), TERRACE_INVALID);
	ck_assert_int_eq(terrace_lookup_async(session, &keys, 0, NULL, NULL), TERRACE_INVALID);
	ck_assert_int_eq(terrace_lookup_async(NULL, &keys, 0, NULL, &op), TERRACE_INVALID);
}
END_TEST

/* Who has made a mistake is told which one, and no other. */
START_TEST(words_of_mistakes)
{
	struct terrace_lease_options lease = TERRACE_LEASE_OPTIONS_INIT;
	struct terrace_reserve_options reserve = TERRACE_RESERVE_OPTIONS_INIT;
	struct terrace_block_info infos[2] = {TERRACE_BLOCK_INFO_INIT};
	const struct terrace_keys two = {bytes, 2, KEY_BYTES};
	struct terrace_reservation *r;
	struct terrace_lease *l;

#define WORDS(call, words) \
	ck_assert_int_eq(call, TERRACE_INVALID); \
	ck_assert_str_eq(terrace_error(), words)
	WORDS(terrace_lease(session, &keys, TERRACE_LEASE_PREFIX, 0, NULL), "lease: the pointer for the result is NULL");
	WORDS(terrace_lease(session, &keys, (enum terrace_lease_mode)7, 0, &l), "lease: mode 7 is not one of enum terrace_lease_mode");
	lease.gpu = -2;
	WORDS(terrace_lease_with(session, &keys, &lease, 0, &l), "lease: gpu -2: none has that number: give one of terrace_session_gpu_of, or -1 for host memory");
	WORDS(terrace_reserve(session, &keys, NULL, 0, NULL, NULL), "reserve: the pointer for the result is NULL");
	reserve.gpu = -2;
	WORDS(terrace_reserve_with(session, &keys, NULL, &reserve, 0, NULL, &r), "reserve: gpu -2: none has that number: give one of terrace_session_gpu_of, or -1 for host memory");
	WORDS(terrace_reserve(session, &two, infos, 0, NULL, &r), "reserve: info 1: its size is not set: begin a block info with TERRACE_BLOCK_INFO_INIT");
	ck_assert_int_eq(terrace_reserve_open(session, NULL, 0, &r), TERRACE_OK);
	WORDS(terrace_commit_open(r, bytes, KEY_BYTES, 17, 0), "commit_open: tokens is 17, not 1 to 16");
	ck_assert_int_eq(terrace_reserve_open(session, NULL, 0, &r), TERRACE_OK);
	WORDS(terrace_commit_open(r, NULL, KEY_BYTES, 9, 0), "commit_open: the keys' bytes are NULL");
	WORDS(terrace_put_async(session, 0, bytes, KEY_BYTES, NULL, bytes, 0, NULL, NULL), "put: the pointer for the operation is NULL");
	WORDS(terrace_get_async(session, 0, bytes, KEY_BYTES, bytes, 0, NULL, NULL), "get: the pointer for the operation is NULL");
#undef WORDS
}
END_TEST

/* The callback finishes its own op and starts the next, and may not finish one that is not done. */
struct chain {
	atomic_uint left;
	atomic_uint refused;
	struct terrace_op *stalled;
};

static void chain_step(struct terrace_op *op, void *arg)
{
	struct chain *chain = arg;
	struct terrace_completion completion = {chain_step, chain, -1};
	struct terrace_op *next;

	if (terrace_put_finish(chain->stalled) == TERRACE_PRECONDITION)
		atomic_fetch_add(&chain->refused, 1);
	ck_assert_int_eq(terrace_lookup_finish(op, NULL, NULL), TERRACE_OK);
	terrace_disconnect(client); /* does nothing here */
	ck_assert_str_eq(terrace_error(), "disconnect: a callback would wait for itself: call it from another thread");
	if (atomic_fetch_sub(&chain->left, 1) > 1)
		ck_assert_int_eq(terrace_lookup_async(session, &keys, 0, &completion, &next), TERRACE_OK);
}

START_TEST(from_the_callback)
{
	struct chain chain = {.left = 20};
	struct terrace_completion completion = {chain_step, &chain, -1};
	uint8_t *block = calloc(1, terrace_block_bytes(&layouts[0]));
	struct terrace_op *op;
	uint64_t until;

	FAULT(stall_method, "Put");
	ck_assert_int_eq(terrace_put_async(session, 0, bytes, KEY_BYTES, NULL, block, STALLED_US, NULL, &chain.stalled), TERRACE_OK);
	ck_assert_int_eq(terrace_lookup_async(session, &keys, 0, &completion, &op), TERRACE_OK);
	until = client_deadline_us(30000000);
	while (atomic_load(&chain.left) && client_now_us() < until)
		poll(NULL, 0, 1);
	ck_assert_uint_eq(atomic_load(&chain.left), 0);
	ck_assert_uint_eq(atomic_load(&chain.refused), 20);
	terrace_op_cancel(chain.stalled);
	ck_assert_int_eq(terrace_put_finish(chain.stalled), TERRACE_CANCELLED);
	free(block);
}
END_TEST

/* The daemon dies with calls under way: each ends once, none hangs. */
START_TEST(daemon_death)
{
	struct told told[16];
	struct terrace_op *ops[16];
	unsigned calls = fake_count(&fake, &fake.calls);

	memset(told, 0, sizeof(told));
	FAULT(stall_method, "Lookup");
	for (int i = 0; i < 16; i++)
		ck_assert_int_eq(terrace_lookup_async(session, &keys, STALLED_US,
						      &(struct terrace_completion){tell, &told[i], -1}, &ops[i]),
				 TERRACE_OK);
	ck_assert_uint_eq(fake_await(&fake, &fake.calls, calls + 16), calls + 16); /* none comes after it */
	fake_restart(&fake);
	for (int i = 0; i < 16; i++) {
		enum terrace_status status = terrace_lookup_finish(ops[i], NULL, NULL);

		ck_assert_msg(status == TERRACE_UNAVAILABLE || status == TERRACE_CANCELLED, "%d: %s", status,
			      terrace_error());
		ck_assert_uint_eq(atomic_load(&told[i].times), 1);
	}
}
END_TEST

START_TEST(disconnect_cancels)
{
	struct terrace_connect_options o = TERRACE_CONNECT_OPTIONS_INIT;
	struct terrace_client *other;
	struct terrace_session *s;
	struct terrace_op *op;

	o.address = fake.address;
	o.timeout_us = CLIENT_RIG_TIMEOUT_US;
	ck_assert_int_eq(terrace_connect(&o, &other), TERRACE_OK);
	ck_assert_int_eq(terrace_session_open(other, layouts, 1, NULL, &s), TERRACE_OK);
	FAULT(stall_method, "Lookup");
	ck_assert_int_eq(terrace_lookup_async(s, &keys, STALLED_US, NULL, &op), TERRACE_OK);
	terrace_session_close(s);
	terrace_disconnect(other);
	ck_assert(terrace_op_done(op));
	ck_assert_int_eq(terrace_lookup_finish(op, NULL, NULL), TERRACE_CANCELLED);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client_async");
	TCase *c = tcase_create("async");
	SRunner *runner;
	int failed;

	tcase_add_checked_fixture(c, open_session, client_rig_close);
	tcase_set_timeout(c, 100);
	tcase_add_test(c, everything);
	tcase_add_test(c, by_eventfd);
	tcase_add_test(c, an_eventfd_is_closed_in_the_callback);
	tcase_add_test(c, cancel);
	tcase_add_test(c, cancel_races);
	tcase_add_test(c, granted_and_not_heard);
	tcase_add_test(c, commit_of_nothing);
	tcase_add_test(c, place_of_the_op);
	tcase_add_test(c, close_races);
	tcase_add_test(c, wrong_finish);
	tcase_add_test(c, words_of_mistakes);
	tcase_add_test(c, from_the_callback);
	tcase_add_test(c, daemon_death);
	tcase_add_test(c, disconnect_cancels);
	suite_add_tcase(suite, c);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
