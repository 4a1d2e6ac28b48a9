/* A driver that takes long over unmapping, even until streams are done which wait for words of the progress page; and
 * ends of a session that nobody hears at first. */
#include "tests/client/gpu/rig.h"
#include "tests/client/unmap.h"

#include "client/value/clock.h"
#include "client/call/lease.h"
#include "client/session/session.h"
#include "proto/fdsock.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SETTLE_MS = 60, WORD = 5, BASE = 7 };

static struct sim_stream *other;

static void open_rig(void)
{
	rig_open(1, false);
	other = sim_stream_create();
	ck_assert_ptr_nonnull(other);
	rig_put();
}

/* The driver can be held up. */
static void open_stuck(void)
{
	rig_stuck_begin();
	open_rig();
}

/* extent_drop waits for streams that wait for words. */
static void open_waiting(void)
{
	setenv("SIM_GPU_DROP_WAITS", "1", 1);
	open_rig();
}

static void close_all(void)
{
	rig_unstick();
	sim_stream_destroy(other);
	rig_close();
}

/* Key i alone: keys 0 and 1 are in different extents. */
static struct terrace_lease *lease_one(int i, uint32_t layers)
{
	struct terrace_lease_options o = TERRACE_LEASE_OPTIONS_INIT;
	struct terrace_keys key = {rig.bytes + i * RIG_KEY_BYTES, 1, RIG_KEY_BYTES};
	struct terrace_lease *lease = NULL;

	o.mode = TERRACE_LEASE_ALL;
	o.gpu = 0;
	RIG_FAULT(gpu.word, WORD);
	RIG_FAULT(gpu.base, BASE);
	RIG_FAULT(gpu.layers, layers);
	OK(terrace_lease_with(rig.session, &key, &o, 0, &lease));
	RIG_FAULT(gpu.layers, 0);
	return lease;
}

static enum status note(void *arg, bool failed)
{
	atomic_store((atomic_int *)arg, failed ? -1 : 1);
	return STATUS_OK;
}

static void wait_and_note(struct terrace_lease *lease, atomic_int *noted)
{
	atomic_store(noted, 0);
	OK(terrace_lease_wait_layer(lease, 0, rig.stream));
	ck_assert(sim_stream_put(rig.stream, note, noted));
}

/* ---- a driver that takes long -------------------------------------------------------------------------------------- */

/* The daemon goes while the driver unmaps, which waits for a stream that waits for the daemon. */
START_TEST(words_are_moved_meanwhile)
{
	struct terrace_lease *gone, *late;
	atomic_int noted;

	atomic_store(&rig.fake.gpu.progress_page[WORD], BASE);
	gone = lease_one(0, 0);
	late = lease_one(1, 2);
	wait_and_note(late, &noted);
	unmap_unused(rig_attachment(), FAKE_GPU_EXTENT);
	OK(terrace_release_after(gone, other));
	poll(NULL, 0, SETTLE_MS);
	fake_restart(&rig.fake);
	RIG_AWAIT(atomic_load(&noted) == 1);
	ck_assert_int_eq(terrace_lease_check(late), TERRACE_STALE);
	terrace_release(late);
}
END_TEST

/* The same by the library's own close. */
START_TEST(closes_let_streams_go_on)
{
	struct terrace_lease *gone, *late;
	atomic_int noted;
	uint64_t began;

	atomic_store(&rig.fake.gpu.progress_page[WORD], BASE);
	gone = lease_one(0, 0);
	late = lease_one(1, 2);
	wait_and_note(late, &noted);
	unmap_unused(rig_attachment(), FAKE_GPU_EXTENT);
	terrace_release(gone);
	poll(NULL, 0, SETTLE_MS);
	began = client_now_us();
	terrace_session_close(rig.session);
	ck_assert_uint_lt(client_now_us() - began, 5000000);
	RIG_AWAIT(atomic_load(&noted) == 1);
	terrace_release(late);
	rig_open_again();
}
END_TEST

START_TEST(deadlines_are_kept_meanwhile)
{
	struct terrace_lease *gone = lease_one(0, 0);
	struct terrace_reservation *r = rig_reserve_fresh();
	struct terrace_op *op;

	rig_hold();
	unmap_unused(rig_attachment(), FAKE_GPU_EXTENT);
	rig_stick();
	OK(terrace_release_after(gone, other));
	poll(NULL, 0, SETTLE_MS);
	OK(terrace_commit_after(r, rig.stream, 50000, NULL, &op));
	RIG_AWAIT(terrace_op_done(op));
	ck_assert_int_eq(terrace_commit_finish(op, NULL), TERRACE_DEADLINE);
	ck_assert(rig_is_stuck());
	rig_unstick();
	rig.gate = true;
	ck_assert_uint_eq(fake_await(&rig.fake, &rig.fake.aborted, 2), 2);
}
END_TEST

/* What is mapped can be leased while something else is unmapped. */
START_TEST(leases_go_on_meanwhile)
{
	struct terrace_lease *gone = lease_one(0, 0), *lease = lease_one(1, 0);
	atomic_bool over = false;
	pthread_t thread;

	unmap_unused(rig_attachment(), FAKE_GPU_EXTENT);
	rig_stick();
	ck_assert_int_eq(pthread_create(&thread, NULL, rig_unstick_when, &over), 0);
	terrace_release(gone);
	poll(NULL, 0, SETTLE_MS);
	terrace_release(lease);
	lease = lease_one(1, 0);
	ck_assert(rig_is_stuck());
	atomic_store(&over, true);
	pthread_join(thread, NULL);
	terrace_release(lease);
}
END_TEST

/* What the driver unmaps is mapped anew, when it has been. */
START_TEST(leases_wait_for_what_is_unmapped)
{
	struct terrace_lease *lease = lease_one(0, 0);
	unsigned maps = fake_count(&rig.fake, &rig.fake.maps);
	atomic_bool over = false;
	pthread_t thread;

	unmap_unused(rig_attachment(), FAKE_GPU_EXTENT);
	rig_stick();
	terrace_release(lease);
	poll(NULL, 0, SETTLE_MS);
	ck_assert_int_eq(pthread_create(&thread, NULL, rig_unstick_when, &over), 0);
	atomic_store(&over, true);
	lease = lease_one(0, 0);
	ck_assert_uint_eq(fake_count(&rig.fake, &rig.fake.maps), maps + 1);
	ck_assert_uint_eq(fake_count(&rig.fake, &rig.fake.unmapped), 1);
	pthread_join(thread, NULL);
	terrace_release(lease);
}
END_TEST

START_TEST(closes_do_not_wait_for_the_driver)
{
	struct terrace_lease *lease = rig_lease(0, false);
	unsigned extents = rig_mapped();
	atomic_bool over = false;
	pthread_t thread;

	terrace_release(lease);
	rig_stick();
	ck_assert_int_eq(pthread_create(&thread, NULL, rig_unstick_when, &over), 0);
	terrace_session_close(rig.session);
	ck_assert(rig_is_stuck());
	ck_assert_uint_eq(fake_count(&rig.fake, &rig.fake.unmapped), 0);
	atomic_store(&over, true);
	pthread_join(thread, NULL);
	ck_assert_uint_eq(extents, 2);
	ck_assert_uint_eq(fake_await(&rig.fake, &rig.fake.unmapped, extents), extents);
	rig_open_again();
}
END_TEST

/* Nor for a call that is in it, for ever; and what that has mapped goes when it comes back. */
START_TEST(closes_have_an_end)
{
	struct terrace_lease_options o = TERRACE_LEASE_OPTIONS_INIT;
	atomic_bool over = false;
	struct terrace_lease *lease;
	struct terrace_op *op;
	pthread_t thread;

	terrace_release(lease_one(0, 0)); /* the GPU is open, and the progress page mapped */
	o.gpu = 0;
	rig_attachment()->close_wait_us = 100000;
	rig_stick();
	OK(terrace_lease_with_async(rig.session, &rig.keys, &o, 0, NULL, &op));
	/* those of rig_put, the progress page, two of the GPU */
	RIG_AWAIT(fake_count(&rig.fake, &rig.fake.maps) == 2 + 1 + 2);
	ck_assert_int_eq(pthread_create(&thread, NULL, rig_unstick_when, &over), 0);
	terrace_session_close(rig.session);
	ck_assert(rig_is_stuck());
	atomic_store(&over, true);
	pthread_join(thread, NULL);
	ck_assert_int_eq(terrace_lease_finish(op, &lease), TERRACE_CANCELLED);
	ck_assert_uint_eq(fake_await(&rig.fake, &rig.fake.unmapped, 2), 2);
	rig_open_again();
}
END_TEST

/* Threads that map the same at once, while it is to go again and again. */
static void *lease_often(void *arg)
{
	(void)arg;
	for (int i = 0; i < 60; i++) {
		struct terrace_lease *lease = rig_lease(0, i % 2);

		rig_check(lease);
		if (i % 3)
			terrace_release(lease);
		else
			OK(terrace_release_after(lease, other));
	}
	return NULL;
}

START_TEST(threads_map_what_is_wanted_back)
{
	enum { THREADS = 4 };
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, lease_often, NULL), 0);
	for (uint32_t i = 0; i < 200; i++) {
		unmap_unused(rig_attachment(), i % 3 ? FAKE_GPU_EXTENT + i % 2 : 1 + i % 2);
		poll(NULL, 0, 1);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	ck_assert_uint_gt(fake_count(&rig.fake, &rig.fake.unmapped), 0);
}
END_TEST

/* ---- ends that are heard ------------------------------------------------------------------------------------------- */

/* A stream takes longer than a close waits: the memory goes with it, though a handle is left. */
START_TEST(late_streams_end_it)
{
	struct terrace_lease *kept = lease_one(0, 0), *lease = rig_lease(0, false);
	unsigned extents = rig_mapped();

	rig_hold();
	OK(terrace_release_after(lease, rig.stream));
	rig_attachment()->close_wait_us = 50000;
	terrace_session_close(rig.session);
	ck_assert_uint_eq(fake_count(&rig.fake, &rig.fake.unmapped), 0);
	rig.gate = true;
	ck_assert_uint_eq(fake_await(&rig.fake, &rig.fake.unmapped, extents), extents);
	terrace_release(kept);
	rig_open_again();
}
END_TEST

static void fill(int socket)
{
	struct fdsock_release nothing = {.head = {FDSOCK_MAGIC, FDSOCK_VERSION, FDSOCK_RELEASE}};

	while (send(socket, &nothing, offsetof(struct fdsock_release, leases), MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
		;
}

/* The daemon reads nothing for a while, or (1) nothing any more. */
START_TEST(words_wait_for_a_slow_daemon)
{
	unsigned extents;

	terrace_abort(rig_reserve_fresh());
	terrace_release(rig_lease(0, false));
	extents = rig_mapped();
	ck_assert_uint_eq(extents, 4);
	RIG_FAULT(deaf, true);
	fill(rig_attachment()->socket);
	terrace_session_close(rig.session);
	poll(NULL, 0, 2 * SETTLE_MS);
	ck_assert_uint_eq(fake_count(&rig.fake, &rig.fake.unmapped), 0);
	if (_i)
		fake_restart(&rig.fake);
	RIG_FAULT(deaf, false);
	if (!_i)
		ck_assert_uint_eq(fake_await(&rig.fake, &rig.fake.unmapped, extents), extents);
	rig_open_again();
}
END_TEST

struct leasing {
	uint64_t timeout_us;
	enum terrace_status status;
	atomic_bool over;
};

/* Of blocks in host memory, which is not mapped to be read yet. */
static void *lease_to_map(void *arg)
{
	struct leasing *l = arg;
	struct terrace_lease *lease = NULL;

	l->status = terrace_lease(rig.session, &rig.keys, TERRACE_LEASE_ALL, l->timeout_us, &lease);
	if (!l->status)
		terrace_release(lease);
	atomic_store(&l->over, true);
	return NULL;
}

static bool is_talking(void)
{
	struct client_attachment *a = rig_attachment();
	bool is;

	pthread_mutex_lock(&a->lock);
	is = a->talking;
	pthread_mutex_unlock(&a->lock);
	return is;
}

enum terrace_status __real_client_places_init(struct client_places *places, const struct client_placing *placing);
enum terrace_status __wrap_client_places_init(struct client_places *places, const struct client_placing *placing);

static atomic_bool session_closing, session_closed;

/* What cannot be mapped since the session is closed is given back when that has been. */
enum terrace_status __wrap_client_places_init(struct client_places *places, const struct client_placing *placing)
{
	const enum terrace_status status = __real_client_places_init(places, placing);

	if (atomic_load(&session_closing))
		RIG_AWAIT(atomic_load(&session_closed));
	return status;
}

/* Closes the session under a thread's call: what was the session's is something else's then. */
static void close_under(pthread_t thread)
{
	const size_t bytes = sizeof(struct client_view) + rig.layout_count * sizeof(struct client_layout);
	void *there[8];

	atomic_store(&session_closing, true);
	terrace_session_close(rig.session);
	for (int i = 0; i < 8; i++)
		there[i] = memset(malloc(bytes), 0xff, bytes);
	atomic_store(&session_closed, true);
	pthread_join(thread, NULL);
	for (int i = 0; i < 8; i++)
		free(there[i]);
}

/* The daemon reads nothing for a while: who wants something mapped waits for as long as his call may last, and nothing is broken by it; or (1)
 * until the session is closed. */
START_TEST(a_full_socket_is_waited_for)
{
	struct leasing l = {.timeout_us = 60000};
	struct terrace_lease *lease;
	pthread_t thread;

	RIG_FAULT(deaf, true);
	fill(rig_attachment()->socket);
	lease_to_map(&l);
	ck_assert_int_eq(l.status, TERRACE_DEADLINE);
	l = (struct leasing){.timeout_us = RIG_TIMEOUT_US};
	ck_assert_int_eq(pthread_create(&thread, NULL, lease_to_map, &l), 0);
	RIG_AWAIT(is_talking() || atomic_load(&l.over));
	if (_i) {
		close_under(thread);
		ck_assert(l.status && l.status != TERRACE_DEADLINE);
		RIG_FAULT(deaf, false);
		rig_open_again();
		return;
	}
	RIG_FAULT(deaf, false);
	pthread_join(thread, NULL);
	OK(l.status);
	OK(terrace_lease(rig.session, &rig.keys, TERRACE_LEASE_ALL, 0, &lease));
	terrace_release(lease);
}
END_TEST

/* The same of what is unmapped, of which the daemon has not heard. */
START_TEST(what_is_not_told_is_told_first)
{
	struct leasing l = {.timeout_us = RIG_TIMEOUT_US};
	pthread_t thread;

	lease_to_map(&l);
	OK(l.status);
	l.over = false;
	RIG_FAULT(deaf, true);
	fill(rig_attachment()->socket);
	unmap_unused(rig_attachment(), 1);
	ck_assert_int_eq(pthread_create(&thread, NULL, lease_to_map, &l), 0);
	RIG_AWAIT(is_talking() || atomic_load(&l.over));
	RIG_FAULT(deaf, false);
	pthread_join(thread, NULL);
	OK(l.status);
	ck_assert_uint_gt(fake_count(&rig.fake, &rig.fake.unmapped), 0);
}
END_TEST

/* ---- promises ------------------------------------------------------------------------------------------------------ */

static atomic_int watch; /* 1: the next call of client_after_watch fails; 2: it is in it */
static atomic_bool joined;

enum terrace_status __real_client_after_watch(struct client_attachment *a,
						 bool (*look)(struct client_attachment *attachment));
enum terrace_status __wrap_client_after_watch(struct client_attachment *a,
						 bool (*look)(struct client_attachment *attachment));

/* In vain, but while another thread comes, if it may. */
enum terrace_status __wrap_client_after_watch(struct client_attachment *a,
						 bool (*look)(struct client_attachment *attachment))
{
	uint64_t until = client_deadline_us(200000);
	int fails = 1;

	if (!atomic_compare_exchange_strong(&watch, &fails, 2))
		return __real_client_after_watch(a, look);
	while (!atomic_load(&joined) && client_now_us() < until)
		poll(NULL, 0, 1);
	return TERRACE_EXHAUSTED;
}

static void *lease_in_vain(void *arg)
{
	struct terrace_lease_options o = TERRACE_LEASE_OPTIONS_INIT;
	struct terrace_lease *lease;

	(void)arg;
	o.gpu = 0;
	ck_assert_int_eq(terrace_lease_with(rig.session, &rig.keys, &o, 0, &lease), TERRACE_EXHAUSTED);
	return NULL;
}

/* One thread's watch does not come about: another's promise, made meanwhile, is watched all the same. */
START_TEST(each_promise_is_watched)
{
	struct terrace_lease *late;
	atomic_int noted;
	pthread_t thread;

	terrace_release(rig_lease(0, false)); /* all is mapped */
	atomic_store(&rig.fake.gpu.progress_page[WORD], BASE);
	RIG_FAULT(gpu.word, WORD);
	RIG_FAULT(gpu.base, BASE);
	RIG_FAULT(gpu.layers, 1);
	atomic_store(&watch, 1);
	ck_assert_int_eq(pthread_create(&thread, NULL, lease_in_vain, NULL), 0);
	RIG_AWAIT(atomic_load(&watch) == 2);
	late = lease_one(0, 1);
	atomic_store(&joined, true);
	pthread_join(thread, NULL);
	wait_and_note(late, &noted);
	fake_restart(&rig.fake);
	RIG_AWAIT(atomic_load(&noted) == 1);
	ck_assert_int_eq(terrace_lease_check(late), TERRACE_STALE);
	terrace_release(late);
}
END_TEST

/* What the daemon wants back, and a GPU has a part in. */
static struct client_mapping *wanted_back(uint32_t extent)
{
	struct client_mapping *m = calloc(1, sizeof(*m));

	ck_assert_ptr_nonnull(m);
	*m = (struct client_mapping){.extent = extent, .retiring = true, .gpu = FDSOCK_NO_GPU, .bytes = 4096};
	m->registered = calloc(DEVICES_MAX, sizeof(*m->registered));
	m->base = mmap(NULL, m->bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(m->base, MAP_FAILED);
	return m;
}

static uint32_t extents_left(struct client_attachment *a)
{
	uint32_t n;

	pthread_mutex_lock(&a->lock);
	n = a->count;
	pthread_mutex_unlock(&a->lock);
	return n;
}

/* A daemon that reads nothing, with much to be told: it is tried now and then, and told all of it once it reads. */
START_TEST(a_full_socket_is_tried_by_and_by)
{
	enum { EXTENTS = 4 };
	struct client_attachment *a = calloc(1, sizeof(*a));
	struct fdsock_unmapped told = {.extent = 0};
	uint64_t until = client_deadline_us(RIG_TIMEOUT_US);
	uint32_t heard = 0;
	int ends[2];

	ck_assert_ptr_nonnull(a);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
	while (send(ends[0], &told, sizeof(told), MSG_DONTWAIT) > 0)
		;
	atomic_init(&a->references, 1);
	a->socket = ends[0];
	pthread_mutex_init(&a->lock, NULL);
	pthread_cond_init(&a->idle, NULL);
	client_progress_page_init(&a->progress_page);
	a->mappings = calloc(EXTENTS, sizeof(struct client_mapping *));
	ck_assert_ptr_nonnull(a->mappings);
	for (a->capacity = EXTENTS; a->count < EXTENTS; a->count++)
		a->mappings[a->count] = wanted_back(1 + a->count);
	a->retiring = EXTENTS;
	client_fds_listen(a);
	client_driver_tasks_settle(until);
	ck_assert_uint_lt(client_now_us(), until); /* every task has been run once, and none begins anew and anew */
	ck_assert_uint_eq(extents_left(a), EXTENTS);
	while (heard < EXTENTS && client_now_us() < until) {
		while (recv(ends[1], &told, sizeof(told), MSG_DONTWAIT) > 0)
			heard += told.extent != 0;
		poll(NULL, 0, 1);
	}
	ck_assert_uint_eq(heard, EXTENTS);
	while (extents_left(a) && client_now_us() < until)
		poll(NULL, 0, 1);
	ck_assert_uint_eq(extents_left(a), 0);
	client_fds_drop(a);
	close(ends[1]);
}
END_TEST

enum { ATTACHMENTS = 4000 };

static struct client_attachment *_Atomic heard;
static atomic_int ended;

/* As the library's thread that hears an attachment, which has no reference until it is closed, but takes some for its tasks. */
static void *hear(void *arg)
{
	(void)arg;
	for (int i = 0; i < ATTACHMENTS; i++) {
		struct client_attachment *a;
		bool closed = false;

		while (!(a = atomic_exchange(&heard, NULL)))
			sched_yield();
		while (!closed) {
			pthread_mutex_lock(&a->lock);
			closed = a->closed;
			if (!closed)
				client_fds_hold(a);
			a->premap.hears = !closed;
			pthread_mutex_unlock(&a->lock);
			client_fds_drop(a);
			sched_yield();
		}
		atomic_fetch_add(&ended, 1);
	}
	return NULL;
}

/* The last reference goes while that thread takes another: it is freed once, and at the end. */
START_TEST(who_hears_holds)
{
	pthread_t thread;

	ck_assert_int_eq(pthread_create(&thread, NULL, hear, NULL), 0);
	for (int i = 0; i < ATTACHMENTS; i++) {
		struct client_attachment *a = calloc(1, sizeof(*a));

		ck_assert_ptr_nonnull(a);
		atomic_init(&a->references, 1);
		a->socket = -1;
		a->premap.hears = true;
		pthread_mutex_init(&a->lock, NULL);
		pthread_cond_init(&a->idle, NULL);
		client_progress_page_init(&a->progress_page);
		atomic_store(&heard, a);
		while (atomic_load(&heard))
			sched_yield();
		client_fds_drop(a);
		while (atomic_load(&ended) <= i)
			sched_yield();
	}
	pthread_join(thread, NULL);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client_gpu_driver");
	TCase *waiting = tcase_create("waiting"), *stuck = tcase_create("stuck"), *alone = tcase_create("alone");
	int failed;
	SRunner *runner;

	tcase_add_checked_fixture(waiting, open_waiting, close_all);
	tcase_add_test(waiting, words_are_moved_meanwhile);
	tcase_add_test(waiting, closes_let_streams_go_on);
	tcase_add_checked_fixture(stuck, open_stuck, close_all);
	tcase_add_test(stuck, deadlines_are_kept_meanwhile);
	tcase_add_test(stuck, leases_go_on_meanwhile);
	tcase_add_test(stuck, leases_wait_for_what_is_unmapped);
	tcase_add_test(stuck, threads_map_what_is_wanted_back);
	tcase_add_test(stuck, closes_do_not_wait_for_the_driver);
	tcase_add_test(stuck, closes_have_an_end);
	tcase_add_test(stuck, late_streams_end_it);
	tcase_add_loop_test(stuck, words_wait_for_a_slow_daemon, 0, 2);
	tcase_add_loop_test(stuck, a_full_socket_is_waited_for, 0, 2);
	tcase_add_test(stuck, what_is_not_told_is_told_first);
	tcase_add_test(stuck, each_promise_is_watched);
	tcase_add_test(alone, a_full_socket_is_tried_by_and_by);
	tcase_add_test(alone, who_hears_holds);
	tcase_set_timeout(alone, 100);
	tcase_set_timeout(waiting, 100);
	tcase_set_timeout(stuck, 100);
	suite_add_tcase(suite, waiting);
	suite_add_tcase(suite, stuck);
	suite_add_tcase(suite, alone);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
