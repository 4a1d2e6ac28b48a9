/* Copies that a lease was granted ahead of, which come, or never do: the daemon goes, the GPU is lost, the session is closed. And a daemon
 * that lies about its GPU's memory. */
#include "client/memory/attachment.h"
#include "client/session/session.h"
#include "tests/client/gpu/rig.h"

#include "client/value/clock.h"
#include "client/driver/driver_thread.h"
#include "client/call/lease.h"
#include "proto/fdsock.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void open_one(void)
{
	rig_open(1, false);
	rig_put();
}

static void lose(void)
{
	close(open(rig.lost_file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

/* Leases told that `layers` copies are to come behind `base` of word 5. */
static struct terrace_lease *promised(uint32_t base, uint32_t layers)
{
	struct terrace_lease *lease;

	RIG_FAULT(gpu.word, 5);
	RIG_FAULT(gpu.base, base);
	RIG_FAULT(gpu.layers, layers);
	lease = rig_lease(0, false);
	RIG_FAULT(gpu.layers, 0);
	return lease;
}

static enum status note(void *arg, bool failed)
{
	atomic_store((atomic_int *)arg, failed ? -1 : 1);
	return STATUS_OK;
}

/* Has the stream wait for a layer, and then note that it went on. */
static void wait_and_note(struct terrace_lease *lease, uint32_t layer, atomic_int *noted)
{
	atomic_store(noted, 0);
	OK(terrace_lease_wait_layer(lease, layer, rig.stream));
	ck_assert(sim_stream_put(rig.stream, note, noted));
}

static void progress_page(uint32_t value)
{
	atomic_store(&rig.fake.gpu.progress_page[5], value);
}

/* ---- promises ------------------------------------------------------------------------------------------------------ */

/* Words count modulo 2^32. */
START_TEST(layers_come)
{
	uint32_t base = _i ? 0xffffffffu : 10;
	struct terrace_lease *lease;
	atomic_int first, second;

	progress_page(base);
	lease = promised(base, 2);
	ck_assert_int_eq(terrace_lease_check(lease), TERRACE_BUSY);
	wait_and_note(lease, 0, &first);
	wait_and_note(lease, 1, &second);
	ck_assert_int_eq(terrace_lease_wait_layer(lease, 2, rig.stream), TERRACE_INVALID);
	poll(NULL, 0, 60);
	ck_assert_int_eq(atomic_load(&first), 0);
	progress_page(base + 1);
	RIG_AWAIT(atomic_load(&first) == 1);
	poll(NULL, 0, 30);
	ck_assert_int_eq(atomic_load(&second), 0);
	ck_assert_int_eq(terrace_lease_check(lease), TERRACE_BUSY);
	progress_page(base + 2);
	RIG_AWAIT(atomic_load(&second) == 1);
	OK(terrace_lease_check(lease));
	rig_check(lease);
	RIG_FAULT(fd_fault, FAKE_FD_SOUND);
	terrace_release(lease);
	/* One that is kept from the start. */
	lease = promised(base, 1);
	OK(terrace_lease_check(lease));
	terrace_release(lease);
}
END_TEST

static void sums(uint32_t value)
{
	atomic_store(&rig.fake.gpu.progress_page[5 + FDSOCK_PROGRESS_PAGE_SUMMED], value);
}

/* With checksums beside the copies a layer is there when both words say so, whichever comes first. */
START_TEST(layers_are_summed)
{
	struct terrace_lease *lease;
	atomic_int first, second;

	progress_page(10);
	sums(10);
	RIG_FAULT(gpu.summed, true);
	lease = promised(10, 2);
	wait_and_note(lease, 0, &first);
	wait_and_note(lease, 1, &second);
	if (_i)
		sums(12);
	else
		progress_page(12);
	poll(NULL, 0, 60);
	ck_assert_int_eq(atomic_load(&first), 0);
	ck_assert_int_eq(terrace_lease_check(lease), TERRACE_BUSY);
	if (_i)
		progress_page(11);
	else
		sums(11);
	RIG_AWAIT(atomic_load(&first) == 1);
	poll(NULL, 0, 30);
	ck_assert_int_eq(atomic_load(&second), 0);
	ck_assert_int_eq(terrace_lease_check(lease), TERRACE_BUSY);
	progress_page(12);
	sums(12);
	RIG_AWAIT(atomic_load(&second) == 1);
	OK(terrace_lease_check(lease));
	terrace_release(lease);
	/* The daemon goes: both words are moved on. */
	lease = promised(12, 1);
	wait_and_note(lease, 0, &first);
	fake_restart(&rig.fake);
	RIG_AWAIT(atomic_load(&first) == 1);
	ck_assert_int_eq(terrace_lease_check(lease), TERRACE_STALE);
	terrace_release(lease);
	RIG_FAULT(gpu.summed, false);
}
END_TEST

/* Who gives up a lease whose sums do not come leaves the copies of those behind it where they are. */
START_TEST(sums_take_too_long)
{
	struct terrace_lease *early, *late;
	atomic_int last;

	progress_page(10);
	sums(10);
	RIG_FAULT(gpu.summed, true);
	early = promised(10, 2);
	late = promised(12, 2);
	progress_page(14);
	wait_and_note(late, 1, &last);
	pthread_mutex_lock(&early->view->attachment->progress_page.lock);
	early->promise.until_us = client_now_us();
	pthread_mutex_unlock(&early->view->attachment->progress_page.lock);
	RIG_AWAIT(atomic_load(&rig.fake.gpu.progress_page[5 + FDSOCK_PROGRESS_PAGE_SUMMED]) == 12);
	ck_assert_int_eq(terrace_lease_check(early), TERRACE_UNAVAILABLE);
	ck_assert_uint_eq(atomic_load(&rig.fake.gpu.progress_page[5]), 14);
	sums(14);
	RIG_AWAIT(atomic_load(&last) == 1);
	OK(terrace_lease_check(late));
	terrace_release(early);
	terrace_release(late);
	RIG_FAULT(gpu.summed, false);
}
END_TEST

/* What was there stays; what was to come does not, and nobody waits for it. */
START_TEST(the_daemon_goes)
{
	struct terrace_lease *whole = rig_lease(0, false), *early, *late;
	atomic_int first, second;

	progress_page(7);
	early = promised(7, 1);
	late = promised(8, 2);
	wait_and_note(early, 0, &first);
	progress_page(8);
	RIG_AWAIT(atomic_load(&first) == 1);
	wait_and_note(late, 1, &second);
	fake_restart(&rig.fake);
	RIG_AWAIT(atomic_load(&second) == 1);
	ck_assert_int_eq(terrace_lease_check(late), TERRACE_STALE);
	OK(terrace_lease_check(early));
	OK(terrace_lease_check(whole));
	rig_check(whole);
	ck_assert_uint_eq(atomic_load(&rig.fake.gpu.progress_page[5]), 10);
	/* A daemon that was only slow moves it back: on it goes all the same. */
	progress_page(9);
	wait_and_note(late, 1, &second);
	RIG_AWAIT(atomic_load(&second) == 1);
	terrace_release(early);
	terrace_release(late);
	OK(terrace_release_after(whole, rig.stream));
	OK(terrace_session_reopen(rig.session, 0));
	rig_put();
	rig_check(early = rig_lease(0, false));
	terrace_release(early);
}
END_TEST

START_TEST(the_session_is_closed)
{
	struct terrace_lease *early, *late;
	atomic_int first, second;
	unsigned unmapped;

	progress_page(7);
	late = promised(8, 2);
	early = promised(7, 1); /* the later one first on the list: its word passes the other's */
	wait_and_note(early, 0, &first);
	wait_and_note(late, 0, &second);
	unmapped = fake_count(&rig.fake, &rig.fake.unmapped);
	terrace_session_close(rig.session);
	RIG_AWAIT(atomic_load(&first) == 1 && atomic_load(&second) == 1);
	ck_assert_int_eq(terrace_lease_check(early), TERRACE_CANCELLED);
	ck_assert_int_eq(terrace_lease_check(late), TERRACE_CANCELLED);
	ck_assert_int_eq(terrace_lease_wait_layer(late, 0, rig.stream), TERRACE_CANCELLED);
	ck_assert_int_eq(terrace_release_after(late, rig.stream), TERRACE_CANCELLED);
	/* The daemon waits for the word, not for the end of the process. */
	ck_assert_uint_gt(fake_await(&rig.fake, &rig.fake.unmapped, unmapped + 1), unmapped);
	terrace_release(early);
	terrace_release(late);
	OK(terrace_session_open(rig.client, rig.layouts, 1, NULL, &rig.session));
}
END_TEST

enum terrace_status __real_client_progress_page_open(struct client_attachment *a, uint32_t g, uint64_t deadline_us);
enum terrace_status __wrap_client_progress_page_open(struct client_attachment *a, uint32_t g, uint64_t deadline_us);

static atomic_bool delayed, arrived, closed_meanwhile;

enum terrace_status __wrap_client_progress_page_open(struct client_attachment *a, uint32_t g, uint64_t deadline_us)
{
	if (atomic_exchange(&delayed, false)) {
		atomic_store(&arrived, true);
		RIG_AWAIT(atomic_load(&closed_meanwhile));
	}
	return __real_client_progress_page_open(a, g, deadline_us);
}

static void *use_thread(void *arg)
{
	struct terrace_reserve_options slots = TERRACE_RESERVE_OPTIONS_INIT;
	struct terrace_lease_options o = TERRACE_LEASE_OPTIONS_INIT;
	struct terrace_reservation *r;
	struct terrace_lease *lease;
	struct terrace_op *op;

	slots.gpu = o.gpu = 0;
	switch (*(int *)arg) {
	case 0: return (void *)(uintptr_t)terrace_session_gpu_ready(rig.session, 0, TERRACE_GPU_LEASES, 0);
	case 1: return (void *)(uintptr_t)terrace_lease_with(rig.session, &rig.keys, &o, 0, &lease);
	case 2: return (void *)(uintptr_t)terrace_lease_with_async(rig.session, &rig.keys, &o, 0, NULL, &op);
	case 3: return (void *)(uintptr_t)terrace_reserve_with(rig.session, &rig.keys, NULL, &slots, 0, NULL, &r);
	case 4: return (void *)(uintptr_t)terrace_reserve_with_async(rig.session, &rig.keys, NULL, &slots, 0, NULL, &op);
	default: return (void *)(uintptr_t)terrace_reserve_open_with(rig.session, NULL, &slots, 0, &r);
	}
}

/* A close of the session ends what waits for a mapping, and does not wait for it: it has what it needs of the session yet. */
START_TEST(a_close_ends_what_maps)
{
	void *status, *there[8];
	pthread_t thread;

	atomic_store(&delayed, true);
	ck_assert_int_eq(pthread_create(&thread, NULL, use_thread, &_i), 0);
	RIG_AWAIT(atomic_load(&arrived));
	terrace_session_close(rig.session);
	client_driver_tasks_settle(client_deadline_us(RIG_TIMEOUT_US));
	for (int i = 0; i < 8; i++)
		there[i] = calloc(1, sizeof(struct client_attachment));
	atomic_store(&closed_meanwhile, true);
	pthread_join(thread, &status);
	ck_assert_int_eq((int)(uintptr_t)status, TERRACE_CANCELLED);
	for (int i = 0; i < 8; i++)
		free(there[i]);
	rig_open_again();
}
END_TEST

/* Copies that take too long. The word that is moved for the sake of one lease passes what another waits for. */
START_TEST(copies_take_too_long)
{
	struct terrace_lease *early, *late;
	atomic_int first;

	progress_page(7);
	early = promised(7, 1);
	late = promised(8, 2);
	wait_and_note(early, 0, &first);
	pthread_mutex_lock(&late->view->attachment->progress_page.lock);
	late->promise.until_us = client_now_us();
	pthread_mutex_unlock(&late->view->attachment->progress_page.lock);
	RIG_AWAIT(atomic_load(&first) == 1);
	ck_assert_int_eq(terrace_lease_check(early), TERRACE_UNAVAILABLE);
	ck_assert_int_eq(terrace_lease_check(late), TERRACE_UNAVAILABLE);
	terrace_release(early);
	terrace_release(late);
}
END_TEST

/* Streams of a lost GPU fail by themselves; what waits for them ends. */
START_TEST(the_gpu_is_lost)
{
	struct terrace_reserve_options reserve = TERRACE_RESERVE_OPTIONS_INIT;
	struct terrace_lease_options o = TERRACE_LEASE_OPTIONS_INIT;
	struct terrace_lease *whole = rig_lease(0, false), *late, *other;
	static uint8_t fresh[RIG_KEY_BYTES] = "a fresh key";
	struct terrace_keys key = {fresh, 1, RIG_KEY_BYTES};
	struct terrace_reservation *r;
	struct terrace_op *op;

	reserve.gpu = o.gpu = 0;
	OK(terrace_reserve_with(rig.session, &key, NULL, &reserve, 0, NULL, &r));
	progress_page(7);
	late = promised(7, 1);
	OK(terrace_lease_wait_layer(late, 0, rig.stream));
	OK(terrace_commit_after(r, rig.stream, 0, NULL, &op));
	OK(terrace_release_after(whole, rig.stream));
	lose();
	ck_assert_int_eq(terrace_commit_finish(op, NULL), TERRACE_UNAVAILABLE);
	ck_assert_uint_eq(fake_await(&rig.fake, &rig.fake.released, 1), 1);
	ck_assert_uint_eq(fake_await(&rig.fake, &rig.fake.aborted, 1), 1);
	ck_assert_int_eq(terrace_lease_check(late), TERRACE_UNAVAILABLE);
	ck_assert_int_eq(terrace_release_after(late, rig.stream), TERRACE_UNAVAILABLE);
	ck_assert_int_eq(terrace_lease_with(rig.session, &rig.keys, &o, 0, &other), TERRACE_UNAVAILABLE);
	ck_assert_str_eq(terrace_error(), "lease: the GPU is lost: use host memory; a restart of the daemon takes the GPU back");
	terrace_release(late);
}
END_TEST

/* Lost to the daemon alone, which says so and moves the word on: streams go on, results are void, and what was there before stays. */
START_TEST(the_daemon_loses_the_gpu)
{
	struct terrace_lease *early, *late, *later;
	atomic_int first;

	progress_page(7);
	early = promised(7, 1);
	late = promised(8, 2);
	progress_page(8);
	OK(terrace_lease_check(early));
	wait_and_note(late, 1, &first);
	atomic_store(&rig.fake.gpu.progress_page[5 + FDSOCK_PROGRESS_PAGE_FAILED], 1);
	progress_page(12);
	RIG_AWAIT(atomic_load(&first) == 1);
	ck_assert_int_eq(terrace_lease_check(late), TERRACE_UNAVAILABLE);
	OK(terrace_lease_check(early));
	/* Granted before the daemon noticed. */
	later = promised(10, 2);
	ck_assert_int_eq(terrace_lease_check(later), TERRACE_UNAVAILABLE);
	poll(NULL, 0, 30);
	ck_assert_uint_eq(atomic_load(&rig.fake.gpu.progress_page[5]), 12);
	terrace_release(early);
	terrace_release(late);
	terrace_release(later);
}
END_TEST

static void lease_and_check(void)
{
	struct terrace_lease *lease = rig_lease(0, false);

	rig_check(lease);
	terrace_release(lease);
}

/* ---- lies ---------------------------------------------------------------------------------------------------------- */

static enum terrace_status lease_status(int32_t gpu)
{
	struct terrace_lease_options o = TERRACE_LEASE_OPTIONS_INIT;
	struct terrace_lease *lease;
	enum terrace_status status;

	o.gpu = gpu;
	status = terrace_lease_with(rig.session, &rig.keys, &o, 0, &lease);
	if (!status)
		terrace_release(lease);
	return status;
}

static const struct {
	enum fake_fd_fault fault;
	enum terrace_status want;
	const char *says;
} lies[] = {
	{FAKE_FD_GPU_UNKNOWN, TERRACE_INTERNAL, "it is of no GPU of the session"},
	{FAKE_FD_GPU_ODD, TERRACE_INTERNAL, "it is not inside its range"},
	{FAKE_FD_GPU_FAR, TERRACE_INTERNAL, "it is not inside its range"},
	{FAKE_FD_GPU_WRAPS, TERRACE_INTERNAL, "it is not inside its range"},
	{FAKE_FD_GPU_OVERLAPS, TERRACE_INTERNAL, "it lies where another is"},
	{FAKE_FD_GPU_RANGE, TERRACE_INTERNAL, "its range has another size than before"},
	{FAKE_FD_GPU_HUGE, TERRACE_INTERNAL, "its range is not a multiple"},
	{FAKE_FD_GPU_NO_MEMORY, TERRACE_INTERNAL, "no descriptor of its memory"},
	{FAKE_FD_GPU_NO_HOLD, TERRACE_INTERNAL, "its descriptor is not of memory"},
	{FAKE_FD_GPU_SMALL_HOLD, TERRACE_INTERNAL, "its memory is smaller than said"},
	{FAKE_FD_GPU_NOT_MEMORY, TERRACE_INTERNAL, "extent"},
	{FAKE_FD_GPU_SIZE, TERRACE_INTERNAL, "extent"},
	{FAKE_FD_GPU_IS_HOST, TERRACE_INTERNAL, "its memory is smaller than said"},
	{FAKE_FD_PROGRESS_PAGE_EMPTY, TERRACE_INTERNAL, "its memory is smaller than said"},
	{FAKE_FD_REFUSES, TERRACE_EXHAUSTED, "does not hand it out: resource exhausted"},
};

/* Refused with words, nothing is left mapped, and the next lease is as good as ever. */
START_TEST(lies_are_refused)
{
	enum terrace_status status;

	RIG_FAULT(fd_fault, lies[_i].fault);
	status = lease_status(0);
	ck_assert_msg(status == lies[_i].want && strstr(terrace_error(), lies[_i].says), "fault %d: %s: %s",
		      (int)lies[_i].fault, terrace_status_text(status), terrace_error());
	RIG_FAULT(fd_fault, FAKE_FD_SOUND);
	if (lies[_i].fault == FAKE_FD_GPU_RANGE)
		return; /* the first size that was told is taken for the truth */
	lease_and_check();
}
END_TEST

#define TWIST(name, change)                                                                                            \
	static void name(struct fake *f, const char *method, ProtobufCMessage *reply)                                  \
	{                                                                                                              \
		Terrace__V1__LeaseReply *m = (Terrace__V1__LeaseReply *)reply;                                         \
		(void)f;                                                                                               \
		if (reply->descriptor == &terrace__v1__lease_reply__descriptor && method) {                            \
			change;                                                                                        \
		}                                                                                                      \
	}
TWIST(on_the_progress_page, m->places->extent[1] = 0xfffffffe)
TWIST(odd, m->places->offset[1] += 16)
TWIST(far, m->places->offset[1] = SIM_GRANULARITY)
TWIST(wraps, m->places->offset[1] = 0 - (uint64_t)256)
TWIST(unasked, m->places->extent[1] = 1; m->places->offset[1] = 0)
TWIST(no_word, m->progress_page_word = 1024; m->progress_page_layers = 1)
TWIST(many_layers, m->progress_page_layers = 513)
TWIST(no_sums_word, m->progress_page_word = 256; m->progress_page_layers = 1; m->progress_page_summed = 1)

static const struct {
	void (*twist)(struct fake *f, const char *method, ProtobufCMessage *reply);
	const char *says;
} twists[] = {
	{on_the_progress_page, "is on the progress page"},        {odd, "is not inside its extent"},
	{far, "is not inside its extent"},        {wraps, "is not inside its extent"},
	{unasked, "is in host memory, not on the GPU"},
	{no_word, "has no word 1024"},            {many_layers, "promises 513 layers"},
	{no_sums_word, "has no word 256"},
};

START_TEST(twisted)
{
	RIG_FAULT(twist, twists[_i].twist);
	ck_assert_int_eq(lease_status(0), TERRACE_INTERNAL);
	ck_assert_msg(strstr(terrace_error(), twists[_i].says) != NULL, "%s", terrace_error());
	RIG_FAULT(twist, NULL);
	lease_and_check();
}
END_TEST

/* Asked for host memory, given the GPU's; and copies to come that nobody asked for. */
TWIST(promise, m->progress_page_layers = 1)
START_TEST(not_what_was_asked)
{
	RIG_FAULT(twist, promise);
	ck_assert_int_eq(lease_status(-1), TERRACE_INTERNAL);
	RIG_FAULT(twist, NULL);
	terrace_release(rig_lease(0, false));
	ck_assert_int_eq(lease_status(-1), TERRACE_INTERNAL);
	ck_assert_msg(strstr(terrace_error(), "on one unasked") != NULL, "%s", terrace_error());
	RIG_FAULT(fd_fault, FAKE_FD_HOST_IS_GPU);
}
END_TEST

/* An extent is a tenant's: a block of one layout lies where another's lies in other extents. */
TWIST(swapped, m->places->extent[0] = FAKE_GPU_EXTENT + FAKE_EXTENTS)
static void open_two(void)
{
	rig_open(2, false);
	rig_put();
}

START_TEST(layouts_share_extents)
{
	struct terrace_lease *lease;
	uint64_t first[RIG_KEYS], second[RIG_KEYS];

	lease_and_check();
	RIG_FAULT(twist, swapped);
	lease = rig_lease(0, false);
	OK(terrace_lease_addresses(lease, 0, first));
	OK(terrace_lease_addresses(lease, 1, second));
	ck_assert_uint_eq(first[0] / SIM_GRANULARITY, second[0] / SIM_GRANULARITY);
	terrace_release(lease);
	RIG_FAULT(twist, NULL);
	lease_and_check();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client_gpu_ends");
	TCase *one = tcase_create("one"), *two = tcase_create("two");
	int failed;
	SRunner *runner;

	tcase_add_checked_fixture(one, open_one, rig_close);
	tcase_add_loop_test(one, layers_come, 0, 2);
	tcase_add_loop_test(one, layers_are_summed, 0, 2);
	tcase_add_test(one, sums_take_too_long);
	tcase_add_test(one, the_daemon_goes);
	tcase_add_test(one, the_session_is_closed);
	tcase_add_loop_test(one, a_close_ends_what_maps, 0, 6);
	tcase_add_test(one, copies_take_too_long);
	tcase_add_test(one, the_gpu_is_lost);
	tcase_add_test(one, the_daemon_loses_the_gpu);
	tcase_add_loop_test(one, lies_are_refused, 0, sizeof(lies) / sizeof(lies[0]));
	tcase_add_loop_test(one, twisted, 0, sizeof(twists) / sizeof(twists[0]));
	tcase_add_test(one, not_what_was_asked);
	tcase_set_timeout(one, 100);
	suite_add_tcase(suite, one);
	tcase_add_checked_fixture(two, open_two, rig_close);
	tcase_add_test(two, layouts_share_extents);
	tcase_set_timeout(two, 100);
	suite_add_tcase(suite, two);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
