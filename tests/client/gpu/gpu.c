/* Leases and reservations on a GPU, over the simulated device and the fake daemon: addresses and what lies there, streams that wait and
 * that are waited for, and the ends that a daemon, a GPU or a session can come to meanwhile. */
#include "tests/client/gpu/rig.h"
#include "tests/client/unmap.h"

#include "client/value/clock.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void open_one(void)
{
	rig_open(1, false);
}

static void open_two(void)
{
	rig_open(2, false);
}

/* ---- without one --------------------------------------------------------------------------------------------------- */

START_TEST(no_gpu_lent)
{
	struct terrace_lease_options lease = TERRACE_LEASE_OPTIONS_INIT;
	struct terrace_reserve_options reserve = TERRACE_RESERVE_OPTIONS_INIT;
	struct terrace_warm_options warm = TERRACE_WARM_OPTIONS_INIT;
	struct terrace_gpu_info info = TERRACE_GPU_INFO_INIT;
	struct terrace_reservation *r;
	struct terrace_lease *l;
	struct terrace_op *op;
	uint64_t addresses[RIG_KEYS];

	rig_open(1, true);
	rig_put();
	ck_assert_uint_eq(terrace_session_gpu_count(rig.session), 0);
	ck_assert_int_eq(terrace_session_gpu(rig.session, 0, &info), TERRACE_INVALID);
	lease.gpu = reserve.gpu = warm.gpu = 0;
	ck_assert_int_eq(terrace_warm_with(rig.session, &rig.keys, &warm, 0, NULL), TERRACE_UNSUPPORTED);
	ck_assert_int_eq(terrace_lease_with(rig.session, &rig.keys, &lease, 0, &l), TERRACE_UNSUPPORTED);
	ck_assert_str_eq(terrace_error(), "lease: the daemon lends no GPU's memory: it was started without --gpus, or has lost them (terracectl status)");
	ck_assert_int_eq(terrace_lease_with_async(rig.session, &rig.keys, &lease, 0, NULL, &op), TERRACE_UNSUPPORTED);
	ck_assert_int_eq(terrace_reserve_with(rig.session, &rig.keys, NULL, &reserve, 0, NULL, &r), TERRACE_UNSUPPORTED);
	ck_assert_int_eq(terrace_reserve_open_with(rig.session, NULL, &reserve, 0, &r), TERRACE_UNSUPPORTED);
	lease.gpu = -2;
	ck_assert_int_eq(terrace_lease_with(rig.session, &rig.keys, &lease, 0, &l), TERRACE_INVALID);
	l = rig_lease(-1, true);
	ck_assert_ptr_nonnull(terrace_lease_block(l, 0, 0));
	ck_assert_int_eq(terrace_lease_addresses(l, 0, addresses), TERRACE_PRECONDITION);
	ck_assert_int_eq(terrace_lease_wait_layer(l, 0, rig.stream), TERRACE_PRECONDITION);
	ck_assert_int_eq(terrace_release_after(l, rig.stream), TERRACE_PRECONDITION);
	OK(terrace_lease_check(l));
	terrace_release(l);
	rig_close();
}
END_TEST

/* The daemon lends one, but this process has no plugin, or does not see that GPU. */
START_TEST(no_gpu_here)
{
	struct terrace_connect_options connect = TERRACE_CONNECT_OPTIONS_INIT;
	struct terrace_lease_options o = TERRACE_LEASE_OPTIONS_INIT;
	struct terrace_layout layout = fake_layout();
	struct terrace_session *session;
	struct terrace_client *client;
	struct terrace_lease *l;
	int32_t g = 7;

	rig_open(1, false);
	if (_i == 0) {
		setenv("SIM_GPU_DEVICES", "0", 1);
		ck_assert_int_eq(terrace_session_gpu_of(rig.session, 0, &g), TERRACE_INVALID);
	} else {
		memset(rig.fake.gpu.info.uuid, 1, sizeof(rig.fake.gpu.info.uuid));
	}
	connect.address = rig.fake.address;
	connect.timeout_us = RIG_TIMEOUT_US;
	OK(terrace_connect(&connect, &client));
	OK(terrace_session_open(client, &layout, 1, NULL, &session));
	o.gpu = 0;
	ck_assert_int_eq(terrace_lease_with(session, &rig.keys, &o, 0, &l), TERRACE_UNSUPPORTED);
	ck_assert_str_eq(terrace_error(), "lease: this process does not see the daemon's GPU: see CUDA_VISIBLE_DEVICES, or lease in host memory");
	if (_i == 1)
		ck_assert_int_eq(terrace_session_gpu_of(session, 0, &g), TERRACE_NOT_FOUND);
	ck_assert_int_eq(g, 7);
	terrace_session_close(session);
	terrace_disconnect(client);
	rig_close();
}
END_TEST

/* The daemon's GPU is this process's second: the first is left alone, and so is the second until it is used. */
START_TEST(only_what_is_used_is_opened)
{
	struct terrace_lease_options o = TERRACE_LEASE_OPTIONS_INIT;
	struct terrace_session *session;
	struct terrace_lease *lease;
	int32_t g = 7;

	setenv("SIM_GPU_DEVICES", "2", 1);
	rig_open(1, false);
	rig_put();
	memcpy(rig.fake.gpu.info.uuid, "simulated-1", sizeof("simulated-1"));
	OK(terrace_session_open(rig.client, rig.layouts, 1, NULL, &session));
	setenv("SIM_GPU_SHUT", "1", 1);
	OK(terrace_session_gpu_of(session, 1, &g));
	ck_assert_int_eq(g, 0);
	ck_assert_int_eq(terrace_session_gpu_of(session, 0, &g), TERRACE_NOT_FOUND);
	setenv("SIM_GPU_SHUT", "0", 1);
	o.gpu = 0;
	/* The second it is, since the memory, which the fake has of the first, cannot be had on it. */
	ck_assert_int_eq(terrace_lease_with(session, &rig.keys, &o, 0, &lease), TERRACE_INTERNAL);
	terrace_session_close(session);
	rig_close();
}
END_TEST

START_TEST(sessions_for_a_gpu)
{
	struct terrace_session_options o = TERRACE_SESSION_OPTIONS_INIT;
	struct terrace_gpu_info info = TERRACE_GPU_INFO_INIT;
	struct terrace_layout mixed = rig.layouts[0];
	struct terrace_session *other;
	int32_t g = 7;

	ck_assert_uint_eq(terrace_session_gpu_count(rig.session), 1);
	OK(terrace_session_gpu(rig.session, 0, &info));
	ck_assert_mem_eq(info.uuid, rig.fake.gpu.info.uuid, 16);
	ck_assert_uint_eq(info.bytes, 12345);
	info.size = 1;
	ck_assert_int_eq(terrace_session_gpu(rig.session, 0, &info), TERRACE_INVALID);
	OK(terrace_session_gpu_of(rig.session, 0, &g));
	ck_assert_int_eq(g, 0);
	ck_assert_int_eq(terrace_session_gpu_of(rig.session, 3, &g), TERRACE_INVALID);
	o.gpu = true;
	o.gpu_write_back = true;
	OK(terrace_session_open(rig.client, rig.layouts, 1, &o, &other));
	ck_assert(rig.fake.opened->gpu_write_back);
	terrace_session_close(other);
	o.size--;
	ck_assert_int_eq(terrace_session_open(rig.client, rig.layouts, 1, &o, &other), TERRACE_INVALID);
	o.size++;
	mixed.v_format = TERRACE_FORMAT_TQ2;
	ck_assert_int_eq(terrace_session_open(rig.client, &mixed, 1, &o, &other), TERRACE_UNSUPPORTED);
	ck_assert_str_eq(terrace_error(),
			 "session_open: no CUDA kernel attends fp8 keys with tq2 values of head dims 64 and 64");
	o = (struct terrace_session_options)TERRACE_SESSION_OPTIONS_INIT;
	OK(terrace_session_open(rig.client, &mixed, 1, &o, &other));
	ck_assert(!rig.fake.opened->gpu_write_back);
	terrace_session_close(other);
}
END_TEST

/* ---- blocks -------------------------------------------------------------------------------------------------------- */

/* Extents lie side by side: blocks of the second begin one extent after those of the first. */
START_TEST(leases_have_addresses)
{
	uint64_t stride = (terrace_block_bytes(&rig.layouts[0]) + 255) / 256 * 256, addresses[RIG_KEYS];
	struct terrace_lease *lease, *again;

	rig_put();
	lease = rig_lease(0, false);
	rig_check(lease);
	ck_assert_ptr_null(terrace_lease_block(lease, 0, 0));
	ck_assert_uint_eq(terrace_lease_tokens(lease, 0), 16);
	OK(terrace_lease_addresses(lease, 0, addresses));
	ck_assert_uint_eq(addresses[1] - addresses[0], SIM_GRANULARITY);
	ck_assert_uint_eq(addresses[2] - addresses[0], stride);
	ck_assert_int_eq(terrace_lease_addresses(lease, rig.layout_count, addresses), TERRACE_INVALID);
	OK(terrace_lease_check(lease));
	OK(terrace_lease_wait_layer(lease, 0, rig.stream));
	ck_assert_int_eq(terrace_lease_wait_layer(lease, rig.layouts[0].layers, rig.stream), TERRACE_INVALID);
	again = rig_lease(0, false);
	terrace_release(lease);
	rig_check(again);
	terrace_release(again);
	ck_assert_uint_eq(fake_await(&rig.fake, &rig.fake.released, 2), 2);
	/* The two host extents that the put wrote, the progress page, and two extents of the GPU a layout, each once. */
	ck_assert_uint_eq(fake_count(&rig.fake, &rig.fake.maps), 2 + 1 + 2 * rig.layout_count);
}
END_TEST

/* What stays in host memory has an address too, and is seen there by both. */
/* The daemon is told which GPU; this process opens none for it. */
START_TEST(warming_a_gpu)
{
	struct terrace_warm_options o = TERRACE_WARM_OPTIONS_INIT;
	struct terrace_completion completion = TERRACE_COMPLETION_INIT;
	struct terrace_op *op;
	uint32_t blocks = 99;

	setenv("SIM_GPU_SHUT", "0", 1);
	rig_put();
	OK(terrace_warm_with(rig.session, &rig.keys, NULL, 0, &blocks));
	ck_assert(blocks == 0 && fake_count(&rig.fake, &rig.fake.warmed_gpu) == 0);
	o.wait = true;
	o.gpu = 0;
	OK(terrace_warm_with(rig.session, &rig.keys, &o, 0, &blocks));
	ck_assert(blocks == RIG_KEYS && fake_count(&rig.fake, &rig.fake.warmed_gpu) == 1);
	OK(terrace_warm(rig.session, &rig.keys, true, 0, &blocks));
	ck_assert(blocks == RIG_KEYS && fake_count(&rig.fake, &rig.fake.warmed_gpu) == 0);
	OK(terrace_warm_with_async(rig.session, &rig.keys, &o, 0, &completion, &op));
	OK(terrace_warm_finish(op, &blocks));
	ck_assert(blocks == RIG_KEYS && fake_count(&rig.fake, &rig.fake.warmed_gpu) == 1);
	for (o.gpu = -2; o.gpu < 2; o.gpu += 3)
		ck_assert_int_eq(terrace_warm_with(rig.session, &rig.keys, &o, 0, &blocks), TERRACE_INVALID);
	o = (struct terrace_warm_options)TERRACE_WARM_OPTIONS_INIT;
	o.size = 1;
	ck_assert_int_eq(terrace_warm_with(rig.session, &rig.keys, &o, 0, &blocks), TERRACE_INVALID);
}
END_TEST

START_TEST(host_blocks_have_addresses)
{
	struct terrace_lease *lease;
	uint64_t addresses[RIG_KEYS];

	rig_put();
	RIG_FAULT(gpu.stays, true);
	lease = rig_lease(0, true);
	rig_check(lease);
	OK(terrace_lease_addresses(lease, 0, addresses));
	ck_assert_ptr_eq((uint8_t *)sim_at(addresses[0]), terrace_lease_block(lease, 0, 0));
	unmap_unused(rig_attachment(), 1);
	terrace_release(lease);
	RIG_AWAIT(fake_count(&rig.fake, &rig.fake.released) == 1);
	lease = rig_lease(-1, false); /* maps anew */
	terrace_release(lease);
	lease = rig_lease(0, true);
	rig_check(lease);
	terrace_release(lease);
}
END_TEST

START_TEST(asynchronous)
{
	struct terrace_lease_options o = TERRACE_LEASE_OPTIONS_INIT;
	struct terrace_reserve_options to = TERRACE_RESERVE_OPTIONS_INIT;
	struct terrace_reservation *r;
	struct terrace_lease *lease;
	struct terrace_op *op;

	rig_put();
	o.gpu = to.gpu = 0;
	OK(terrace_lease_with_async(rig.session, &rig.keys, &o, 0, NULL, &op));
	OK(terrace_lease_finish(op, &lease));
	rig_check(lease);
	terrace_release(lease);
	OK(terrace_delete(rig.session, &rig.keys, 0, NULL));
	OK(terrace_reserve_with_async(rig.session, &rig.keys, NULL, &to, 0, NULL, &op));
	OK(terrace_reserve_finish(op, NULL, &r));
	ck_assert_uint_eq(fake_count(&rig.fake, &rig.fake.gpu.reserves), 1);
	terrace_abort(r);
}
END_TEST

/* Every key that got a slot is filled. */
static struct terrace_reservation *reserve_on_gpu(void)
{
	struct terrace_reserve_options o = TERRACE_RESERVE_OPTIONS_INIT;
	struct terrace_reservation *r;
	uint64_t addresses[RIG_KEYS];

	o.gpu = 0;
	OK(terrace_reserve_with(rig.session, &rig.keys, NULL, &o, 0, NULL, &r));
	for (uint32_t l = 0; l < rig.layout_count; l++) {
		OK(terrace_reservation_addresses(r, l, addresses));
		for (uint32_t i = 0; i < RIG_KEYS; i++) {
			ck_assert_ptr_null(terrace_reservation_block(r, i, l));
			if (addresses[i])
				memset((uint8_t *)sim_at(addresses[i]), (int)(1 + i + 100 * l), terrace_block_bytes(&rig.layouts[l]));
		}
	}
	return r;
}

START_TEST(reservations_on_a_gpu)
{
	struct terrace_reservation *r = reserve_on_gpu();
	enum terrace_status statuses[RIG_KEYS];
	struct terrace_lease *lease, *other;

	OK(terrace_commit(r, 0, statuses, &lease));
	rig_check(lease);
	OK(terrace_lease_check(lease));
	other = rig_lease(0, false);
	rig_check(other);
	terrace_release(lease);
	terrace_release(other);
	ck_assert_uint_eq(fake_count(&rig.fake, &rig.fake.gpu.reserves), 1);
}
END_TEST

/* A key without a slot has no address in the commit's lease; the others keep theirs. */
START_TEST(commits_with_gaps)
{
	struct terrace_keys second = {rig.bytes + RIG_KEY_BYTES, 1, RIG_KEY_BYTES};
	uint64_t reserved[RIG_KEYS], leased[RIG_KEYS];
	struct terrace_reservation *r;
	struct terrace_lease *lease;

	OK(terrace_reserve(rig.session, &second, NULL, 0, NULL, &r));
	memset(terrace_reservation_block(r, 0, 0), 2, terrace_block_bytes(&rig.layouts[0]));
	OK(terrace_commit(r, 0, NULL, NULL));
	r = reserve_on_gpu();
	OK(terrace_reservation_addresses(r, 0, reserved));
	OK(terrace_commit(r, 0, NULL, &lease));
	OK(terrace_lease_addresses(lease, 0, leased));
	ck_assert(reserved[0] && !reserved[1] && reserved[2] && reserved[3]);
	for (int i = 0; i < RIG_KEYS; i++) {
		ck_assert(!leased[i] == !reserved[i]);
		if (leased[i])
			ck_assert_uint_eq(*(uint8_t *)sim_at(leased[i]), 1 + i);
	}
	terrace_release(lease);
	rig_check(lease = rig_lease(0, false));
	terrace_release(lease);
}
END_TEST

START_TEST(open_blocks_on_a_gpu)
{
	struct terrace_reserve_options o = TERRACE_RESERVE_OPTIONS_INIT;
	struct terrace_reservation *r;
	struct terrace_op *op;
	uint64_t address;

	o.gpu = 0;
	OK(terrace_reserve_open_with(rig.session, NULL, &o, 0, &r));
	OK(terrace_reservation_addresses(r, 0, &address));
	memset((uint8_t *)sim_at(address), 3, terrace_block_bytes(&rig.layouts[0]));
	ck_assert_int_eq(terrace_commit_after(r, rig.stream, 0, NULL, &op), TERRACE_INVALID);
	OK(terrace_commit_open(r, rig.bytes, RIG_KEY_BYTES, 16, 0));
}
END_TEST

/* ---- streams that are waited for ----------------------------------------------------------------------------------- */

static bool stored(void)
{
	bool yes = false;

	pthread_mutex_lock(&rig.fake.lock);
	for (int i = 0; i < FAKE_BLOCKS; i++)
		yes |= rig.fake.blocks[i].stored;
	pthread_mutex_unlock(&rig.fake.lock);
	return yes;
}

START_TEST(commit_follows_the_stream)
{
	struct terrace_reservation *r = reserve_on_gpu();
	enum terrace_status statuses[RIG_KEYS] = {TERRACE_INTERNAL};
	struct terrace_op *op;

	rig_hold();
	OK(terrace_commit_after(r, rig.stream, 0, NULL, &op));
	poll(NULL, 0, 60);
	ck_assert(!stored() && !terrace_op_done(op));
	rig.gate = true;
	OK(terrace_commit_finish(op, statuses));
	ck_assert(stored());
	ck_assert_int_eq(statuses[0], TERRACE_OK);
	terrace_release(rig_lease(0, false));
}
END_TEST

/* In time or not at all; and no slot goes back while the stream may write it. */
START_TEST(commit_is_late_or_cancelled)
{
	struct terrace_reservation *r = reserve_on_gpu();
	struct terrace_op *op;

	rig_hold();
	OK(terrace_commit_after(r, rig.stream, _i ? 0 : 50000, NULL, &op));
	if (_i)
		terrace_op_cancel(op);
	ck_assert_int_eq(terrace_commit_finish(op, NULL), _i ? TERRACE_CANCELLED : TERRACE_DEADLINE);
	poll(NULL, 0, 60);
	ck_assert_uint_eq(fake_count(&rig.fake, &rig.fake.aborted), 0);
	rig.gate = true;
	ck_assert_uint_eq(fake_await(&rig.fake, &rig.fake.aborted, RIG_KEYS), RIG_KEYS);
	ck_assert(!stored());
}
END_TEST

static void finish(struct terrace_op *op, void *arg)
{
	enum terrace_status status = terrace_commit_finish(op, NULL);

	atomic_store((atomic_int *)arg, (int)status + 1);
}

START_TEST(callbacks_finish_late_commits)
{
	struct terrace_reservation *r = reserve_on_gpu();
	struct terrace_completion completion = TERRACE_COMPLETION_INIT;
	atomic_int result = 0;
	struct terrace_op *op;

	completion.done = finish;
	completion.arg = &result;
	rig_hold();
	OK(terrace_commit_after(r, rig.stream, 50000, &completion, &op));
	RIG_AWAIT(atomic_load(&result) == TERRACE_DEADLINE + 1);
}
END_TEST

START_TEST(release_follows_the_stream)
{
	struct terrace_lease *lease;
	unsigned unmapped;

	rig_put();
	lease = rig_lease(0, false);
	rig_hold();
	unmap_unused(rig_attachment(), FAKE_GPU_EXTENT);
	unmapped = fake_count(&rig.fake, &rig.fake.unmapped);
	OK(terrace_release_after(lease, rig.stream));
	poll(NULL, 0, 60);
	ck_assert_uint_eq(fake_count(&rig.fake, &rig.fake.released), 0);
	ck_assert_uint_eq(fake_count(&rig.fake, &rig.fake.unmapped), unmapped);
	rig.gate = true;
	ck_assert_uint_eq(fake_await(&rig.fake, &rig.fake.released, 1), 1);
	ck_assert_uint_eq(fake_await(&rig.fake, &rig.fake.unmapped, unmapped + 1), unmapped + 1);
	rig_check(lease = rig_lease(0, false)); /* and mapped again */
	terrace_release(lease);
}
END_TEST

/* A close waits for the stream, whose work may still read. */
static void *open_the_gate(void *arg)
{
	(void)arg;
	poll(NULL, 0, 100);
	rig.gate = true;
	return NULL;
}

START_TEST(close_waits_for_streams)
{
	struct terrace_lease *lease;
	pthread_t thread;

	rig_put();
	lease = rig_lease(0, false);
	rig_hold();
	OK(terrace_release_after(lease, rig.stream));
	ck_assert_int_eq(pthread_create(&thread, NULL, open_the_gate, NULL), 0);
	terrace_session_close(rig.session);
	ck_assert(rig.gate);
	pthread_join(thread, NULL);
	OK(terrace_session_open(rig.client, rig.layouts, rig.layout_count, NULL, &rig.session));
}
END_TEST

START_TEST(not_a_stream)
{
	struct terrace_reservation *r = reserve_on_gpu();
	struct terrace_lease *lease;
	struct terrace_op *op = NULL;

	ck_assert_int_eq(terrace_commit_after(r, NULL, 0, NULL, &op), TERRACE_INVALID);
	ck_assert_ptr_null(op);
	OK(terrace_commit(r, 0, NULL, &lease)); /* the handle was not touched */
	ck_assert_int_eq(terrace_release_after(lease, NULL), TERRACE_INVALID);
	terrace_release(lease);
}
END_TEST

START_TEST(not_in_a_child)
{
	struct terrace_reservation *r;
	struct terrace_lease *lease;
	struct terrace_op *op;
	uint64_t addresses[RIG_KEYS];
	int status;
	pid_t child;

	rig_put();
	lease = rig_lease(0, false);
	OK(terrace_delete(rig.session, &rig.keys, 0, NULL));
	r = reserve_on_gpu();
	child = fork();
	if (!child) {
		int32_t g;

		_exit(terrace_lease_addresses(lease, 0, addresses) != TERRACE_PRECONDITION ||
		      terrace_lease_wait_layer(lease, 0, rig.stream) != TERRACE_PRECONDITION ||
		      terrace_lease_check(lease) != TERRACE_PRECONDITION ||
		      terrace_release_after(lease, rig.stream) != TERRACE_PRECONDITION ||
		      terrace_reservation_addresses(r, 0, addresses) != TERRACE_PRECONDITION ||
		      terrace_commit_after(r, rig.stream, 0, NULL, &op) != TERRACE_PRECONDITION ||
		      terrace_session_gpu_of(rig.session, 0, &g) != TERRACE_PRECONDITION);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	terrace_release(lease);
	terrace_abort(r);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client_gpu");
	TCase *bare = tcase_create("bare"), *one = tcase_create("one"), *two = tcase_create("two");
	int failed;
	SRunner *runner;

	tcase_add_test(bare, no_gpu_lent);
	tcase_add_loop_test(bare, no_gpu_here, 0, 2);
	tcase_add_test(bare, only_what_is_used_is_opened);
	tcase_add_checked_fixture(one, open_one, rig_close);
	tcase_add_test(one, sessions_for_a_gpu);
	tcase_add_test(one, leases_have_addresses);
	tcase_add_test(one, warming_a_gpu);
	tcase_add_test(one, host_blocks_have_addresses);
	tcase_add_test(one, asynchronous);
	tcase_add_test(one, reservations_on_a_gpu);
	tcase_add_test(one, commits_with_gaps);
	tcase_add_test(one, open_blocks_on_a_gpu);
	tcase_add_test(one, commit_follows_the_stream);
	tcase_add_loop_test(one, commit_is_late_or_cancelled, 0, 2);
	tcase_add_test(one, callbacks_finish_late_commits);
	tcase_add_test(one, release_follows_the_stream);
	tcase_add_test(one, close_waits_for_streams);
	tcase_add_test(one, not_a_stream);
	tcase_add_test(one, not_in_a_child);
	tcase_add_checked_fixture(two, open_two, rig_close);
	tcase_add_test(two, leases_have_addresses);
	tcase_add_test(two, host_blocks_have_addresses);
	tcase_add_test(two, reservations_on_a_gpu);
	tcase_set_timeout(bare, 100);
	tcase_set_timeout(one, 100);
	tcase_set_timeout(two, 100);
	suite_add_tcase(suite, bare);
	suite_add_tcase(suite, one);
	suite_add_tcase(suite, two);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
