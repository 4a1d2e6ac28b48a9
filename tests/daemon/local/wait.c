/* Local calls that wait, or that a worker has: their wakes and deadlines, callers that go away in the middle, memory
 * that is on its way, and the stop. */
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/values.h"
#include "daemon/call/lookup.h"
#include "daemon/call/reserve.h"
#include "daemon/local/local_calls.h"
#include "daemon/process/daemon.h"
#include "daemon/process/part.h"
#include "daemon/threads/deadline.h"
#include "daemon/threads/pool.h"
#include "store/status.h"
#include "tests/daemon/local/rig.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/wait.h>

START_TEST(a_lease_that_waits)
{
	Terrace__V1__LeaseReply *leased;
	int keeper = attach(), fd = caller();

	shell_store(&s, "k1");
	lease_waits(fd, 100000000ull * NET_S); /* so long that only its wake lets it go on */
	unlink(hold);
	ck_assert_uint_eq(answer(fd, &terrace__v1__lease_reply__descriptor, &leased), STATUS_OK);
	ck_assert_int_eq(leased->status, TERRACE__V1__STATUS__OK);
	ck_assert_uint_ne(leased->lease, 0);
	held_becomes(1, 0);
	drop(leased);
	close(fd);
	until("terrace_local_connections", "", 0);
	held_becomes(1, 0); /* the reply was read: the lease is the session's */
	close(keeper);
}
END_TEST

/* 0: who hangs up; 1: who speaks out of turn. */
START_TEST(a_lease_that_waits_in_vain)
{
	Terrace__V1__LookupRequest q = lookup_k1();
	int keeper = attach(), fd = caller();

	shell_store(&s, "k1");
	lease_waits(fd, 1000000ull * NET_S);
	if (_i) {
		say(fd, FDSOCK_LOOKUP, &q, 0);
		ck_assert_int_eq(hear(fd, packet, sizeof packet), 0);
	} else {
		close(fd);
	}
	until("terrace_local_calls", "", 0);
	unlink(hold);
	usleep(50000);
	held_becomes(0, 0);
	until("terrace_rpc_calls_total", "method=Cache.Lease,status=CANCELLED,way=local", 1);
	if (_i)
		close(fd);
	until("terrace_local_connections", "", 0);
	close(keeper);
}
END_TEST

/* Before it is answered. */
static bool seen_to_wait(int fd)
{
	struct pollfd p = { fd, POLLIN, 0 };

	while (!poll(&p, 1, 1))
		if (stat_of("terrace_local_calls", "") == 1)
			return true;
	return false;
}

/* Who is told a little before, or, by a slow machine, then. Again with more time, if the machine did not see it wait. The connection lives on. */
START_TEST(a_lease_whose_time_is_up)
{
	Terrace__V1__LookupRequest after = lookup_k1();
	Terrace__V1__LeaseRequest q;
	uint32_t granted = 0, late = 0;
	int keeper = attach(), fd = caller();
	bool waited = false;

	shell_store(&s, "k1");
	q = lease_k1(true);
	hold_copies();
	for (uint64_t left_us = 300000; !waited; left_us *= 2) {
		Terrace__V1__LeaseReply *leased = NULL;
		uint32_t status;

		ck_assert_uint_lt(left_us, 1000000ull * NET_S);
		say(fd, FDSOCK_LEASE, &q, left_us);
		waited = seen_to_wait(fd);
		status = answer(fd, &terrace__v1__lease_reply__descriptor, &leased);
		ck_assert(leased ? !leased->lease : status == STATUS_DEADLINE);
		granted += leased != NULL;
		late += !leased;
		drop(leased);
		until("terrace_local_calls", "", 0);
	}
	unlink(hold);
	usleep(50000);
	held_becomes(0, 0);
	until("terrace_rpc_calls_total", "method=Cache.Lease,status=OK,way=local", granted);
	until("terrace_rpc_calls_total", "method=Cache.Lease,status=DEADLINE,way=local", late);
	say(fd, FDSOCK_LOOKUP, &after, 0);
	ck_assert_uint_eq(answer(fd, NULL, NULL), STATUS_OK);
	close(fd);
	until("terrace_local_connections", "", 0);
	close(keeper);
}
END_TEST

START_TEST(an_unread_reply_is_undone)
{
	Terrace__V1__LeaseRequest q = lease_k1(false);
	int keeper = attach(), fd = caller();

	q = lease_k1(false);
	shell_store(&s, "k1");
	say(fd, FDSOCK_LEASE, &q, 0);
	held_becomes(1, 0);
	close(fd);
	held_becomes(0, 0);
	fd = caller();
	say(fd, FDSOCK_LEASE, &q, 0);
	ck_assert_uint_eq(answer(fd, NULL, NULL), STATUS_OK);
	close(fd);
	until("terrace_local_connections", "", 0);
	held_becomes(1, 0);
	close(keeper);
}
END_TEST

/* A process that is killed with its reply unread gives back, though its child keeps the socket open. */
START_TEST(death_is_seen_write_through_a_child)
{
	int keeper = attach(), ready[2], stay[2];
	Terrace__V1__LeaseRequest q = lease_k1(false);
	char byte = 0;
	pid_t engine;

	shell_store(&s, "k1");
	ck_assert_int_eq(pipe(ready), 0);
	ck_assert_int_eq(pipe(stay), 0);
	engine = fork();
	if (!engine) {
		int fd = caller();

		close(stay[1]);
		if (!fork()) { /* until the test's end of the pipe is closed */
			if (read(stay[0], &byte, 1))
				_exit(1);
			_exit(0);
		}
		say(fd, FDSOCK_LEASE, &q, 0);
		if (write(ready[1], &byte, 1) != 1)
			_exit(1);
		pause();
	}
	ck_assert_int_eq(read(ready[0], &byte, 1), 1);
	held_becomes(1, 0);
	kill(engine, SIGKILL);
	held_becomes(0, 0);
	until("terrace_local_connections", "", 0);
	waitpid(engine, NULL, 0);
	close(stay[1]);
	close(keeper);
}
END_TEST

/* The commit stands, the lease that came with it does not. */
START_TEST(a_caller_that_goes_while_a_worker_has_his_call)
{
	Terrace__V1__CommitRequest q = TERRACE__V1__COMMIT_REQUEST__INIT;
	Terrace__V1__CommitItem item = TERRACE__V1__COMMIT_ITEM__INIT, *items = &item;
	struct cache_keys key = { (const uint8_t *)"k1", 1, 2 };
	struct cache_place places[2];
	int keeper = attach(), fd = caller();
	uint32_t prefix = 0;
	enum status status;
	const char *why = "";

	ck_assert_int_eq(cache_reserve(s.daemon.cache, &(struct cache_reserve_call){ .session = s.session.id,
			.keys = &key, .on = &(struct cache_on){ .attachment = attachment, .gpu = CACHE_HOST },
			.may_grow = true, .now_us = daemon_now_us(), .statuses = &status,
			.reservations = &item.reservation, .places = places, .places_max = 2 }, &why),
			 STATUS_OK);
	q.session = s.session.id;
	q.attachment = attachment;
	q.lease = true;
	q.items = &items;
	q.n_items = 1;
	cache_lock(s.daemon.cache);
	say(fd, FDSOCK_COMMIT, &q, 0);
	until_a_worker_runs();
	close(fd);
	usleep(20000);
	cache_unlock(s.daemon.cache);
	until("terrace_local_connections", "", 0);
	held_becomes(0, 0);
	ck_assert_int_eq(cache_lookup(s.daemon.cache, s.session.id, &key, &prefix, NULL, 0, &why), STATUS_OK);
	ck_assert_uint_eq(prefix, 1);
	close(keeper);
}
END_TEST

START_TEST(a_stop_ends_calls_that_wait)
{
	struct fdsock_welcome w;
	int keeper = attach(), idle = caller(), fd = caller(), late;

	shell_store(&s, "k1");
	lease_waits(fd, 1000000ull * NET_S);
	local_part.calls_stop(s.daemon.local, 1000000ull * NET_S);
	ck_assert_int_eq(hear(idle, packet, sizeof packet), 0);
	ck_assert(!local_part.calls_wait(s.daemon.local, 50 * 1000));
	late = greet_with(FDSOCK_CALLER, s.session.token, &w);
	ck_assert_uint_eq(w.status, STATUS_EXHAUSTED);
	local_part.calls_stop(s.daemon.local, 0);
	ck_assert_uint_eq(answer(fd, NULL, NULL), STATUS_UNAVAILABLE);
	ck_assert(local_part.calls_wait(s.daemon.local, NET_S * 1000000ull));
	unlink(hold);
	held_becomes(0, 0);
	close(idle);
	close(fd);
	close(late);
	close(keeper);
}
END_TEST

START_TEST(a_stop_does_not_wait_for_a_worker_for_ever)
{
	Terrace__V1__CommitRequest q = TERRACE__V1__COMMIT_REQUEST__INIT;
	Terrace__V1__CommitItem item = TERRACE__V1__COMMIT_ITEM__INIT, *items = &item;
	int keeper = attach(), fd = caller();

	item.reservation = 1;
	q.session = s.session.id;
	q.items = &items;
	q.n_items = 1;
	cache_lock(s.daemon.cache);
	say(fd, FDSOCK_COMMIT, &q, 0);
	until_a_worker_runs();
	local_part.calls_stop(s.daemon.local, 0);
	ck_assert(!local_part.calls_wait(s.daemon.local, 50 * 1000));
	cache_unlock(s.daemon.cache);
	ck_assert(local_part.calls_wait(s.daemon.local, NET_S * 1000000ull));
	close(fd);
	close(keeper);
}
END_TEST

/* ---- memory that is on its way ---- */

enum { WORKERS = 2, TRIES = 50 };

/* Work that lasts until it is told to end. */
struct busy {
	struct work work;
	atomic_bool *go;
};

static void busy_run(struct work *w)
{
	const struct busy *b = (const struct busy *)w;

	while (!atomic_load(b->go))
		usleep(1000);
}

static struct workers_view workers_seen(void)
{
	struct workers_view v;

	workers_look(s.daemon.workers, &v);
	return v;
}

/* No worker has time for a call. */
static void workers_hold(struct busy busy[WORKERS], atomic_bool *go)
{
	const uint64_t end = daemon_now_us() + NET_S * 1000000ull;

	atomic_store(go, false);
	for (int i = 0; i < WORKERS; i++) {
		busy[i] = (struct busy){ { .run = busy_run }, go };
		ck_assert_int_eq(workers_submit(s.daemon.workers, &busy[i].work), STATUS_OK);
	}
	while (workers_seen().running < WORKERS && daemon_now_us() < end)
		usleep(1000);
	ck_assert_uint_eq(workers_seen().running, WORKERS);
}

static void workers_free(atomic_bool *go)
{
	const uint64_t end = daemon_now_us() + NET_S * 1000000ull;

	atomic_store(go, true);
	while (workers_seen().running + workers_seen().queued > 0 && daemon_now_us() < end)
		usleep(1000);
	ck_assert_uint_eq(workers_seen().running, 0);
}

/* Another thread seems to take pages, or has done. */
static void growing_set(bool on)
{
	struct cache *c = s.daemon.cache;

	cache_lock(c);
	c->growing = on;
	c->growth_until = deadline_in(NET_S * 1000000ull);
	pthread_cond_broadcast(&c->growth);
	cache_unlock(c);
}

static Terrace__V1__ReserveRequest reserve_of(Terrace__V1__Keys *keys)
{
	Terrace__V1__ReserveRequest q = TERRACE__V1__RESERVE_REQUEST__INIT;

	q.session = s.session.id;
	q.attachment = attachment;
	q.keys = keys;
	return q;
}

/* Of the key, in both layouts. */
static uint64_t reserve_here(const char *key)
{
	struct cache_keys k = { (const uint8_t *)key, 1, (uint32_t)strlen(key) };
	struct cache_place places[2];
	uint64_t reservation = 0;
	enum status status;
	const char *why = "";

	ck_assert_int_eq(cache_reserve(s.daemon.cache, &(struct cache_reserve_call){ .session = s.session.id, .keys = &k,
			.on = &(struct cache_on){ .attachment = attachment, .gpu = CACHE_HOST }, .may_grow = true,
			.now_us = daemon_now_us(), .statuses = &status, .reservations = &reservation,
			.places = places, .places_max = 2 }, &why), STATUS_OK);
	ck_assert_int_eq(status, STATUS_OK);
	return reservation;
}

static bool has_room(void)
{
	struct cache *c = s.daemon.cache;
	bool room;

	cache_lock(c);
	room = memory_class_has_room(c->classes[0]);
	cache_unlock(c);
	return room;
}

/* No slot is free then. */
static void fill_memory(void)
{
	char key[16];

	for (int n = 0; has_room(); n++) {
		ck_assert_int_lt(n, 100000);
		snprintf(key, sizeof key, "full%d", n);
		shell_store(&s, key);
	}
}

static void abort_here(uint64_t reservation)
{
	ck_assert_int_eq(cache_abort(s.daemon.cache, s.session.id, reservation), STATUS_OK);
}

static uint64_t reserved(int fd)
{
	Terrace__V1__ReserveReply *r;
	uint64_t reservation;

	ck_assert_uint_eq(answer(fd, &terrace__v1__reserve_reply__descriptor, &r), STATUS_OK);
	ck_assert_int_eq(r->status[0], TERRACE__V1__STATUS__OK);
	reservation = r->reservation[0];
	drop(r);
	return reservation;
}

/* A Reserve that needs pages which another thread is taking is put aside, and comes again by itself: it is answered
 * though no worker ever had time for it. Again, if the machine was so slow that the call has asked for a worker. */
START_TEST(a_reserve_comes_again)
{
	Terrace__V1__Keys key = keys_of("more", 4);
	Terrace__V1__ReserveRequest q;
	int keeper = attach(), fd = caller();
	struct busy busy[WORKERS];
	atomic_bool go = false;
	bool asked = true;
	uint64_t held;

	held = reserve_here("held");
	fill_memory();
	q = reserve_of(&key);
	for (int i = 0; asked; i++) {
		ck_assert_int_lt(i, TRIES);
		workers_hold(busy, &go);
		growing_set(true);
		say(fd, FDSOCK_RESERVE, &q, NET_S * 1000000ull);
		until("terrace_local_calls", "", 1);
		usleep(2000);
		abort_here(held);
		usleep(20000);
		asked = workers_seen().queued > 0;
		if (asked)
			workers_free(&go);
		held = reserved(fd); /* in place of the other */
		if (!asked)
			ck_assert_uint_eq(workers_seen().running, WORKERS);
		growing_set(false);
		workers_free(&go);
		abort_here(held);
		held = reserve_here("held");
	}
	abort_here(held);
	close(fd);
	close(keeper);
}
END_TEST

/* But not without end: then a worker waits for the pages. */
START_TEST(a_reserve_comes_again_so_often)
{
	Terrace__V1__Keys key = keys_of("more", 4);
	Terrace__V1__ReserveRequest q;
	int keeper, fd;

	keeper = attach();
	fd = caller();
	abort_here(reserve_here("first"));
	fill_memory();
	q = reserve_of(&key);
	growing_set(true);
	say(fd, FDSOCK_RESERVE, &q, NET_S * 1000000ull);
	until_a_worker_runs();
	growing_set(false);
	abort_here(reserved(fd));
	close(fd);
	close(keeper);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("near_wait");
	TCase *t = tcase_create("near_wait");
	SRunner *r;

	tcase_add_checked_fixture(t, local_rig_open, local_rig_close);
	tcase_set_timeout(t, 120);
	tcase_add_test(t, a_lease_that_waits);
	tcase_add_loop_test(t, a_lease_that_waits_in_vain, 0, 2);
	tcase_add_test(t, a_lease_whose_time_is_up);
	tcase_add_test(t, an_unread_reply_is_undone);
	tcase_add_test(t, death_is_seen_write_through_a_child);
	tcase_add_test(t, a_caller_that_goes_while_a_worker_has_his_call);
	tcase_add_test(t, a_stop_ends_calls_that_wait);
	tcase_add_test(t, a_stop_does_not_wait_for_a_worker_for_ever);
	tcase_add_test(t, a_reserve_comes_again);
	tcase_add_test(t, a_reserve_comes_again_so_often);
	suite_add_tcase(suite, t);
	r = srunner_create(suite);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
