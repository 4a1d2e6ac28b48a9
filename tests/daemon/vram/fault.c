/* GPUs that are lost, in every state of what they have; processes that die with memory of a GPU; what cannot be had. */
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/call/faults.h"
#include "daemon/call/lease.h"
#include "daemon/call/reserve.h"
#include "daemon/memory/evict.h"
#include "daemon/session/attachment.h"
#include "daemon/session/end.h"
#include "daemon/vram/copy_queue.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "daemon/vram/stats.h"
#include "proto/fdsock.h"
#include "store/device.h"
#include "store/host/extent.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double lost(struct vram_rig *v, const char *gpu)
{
	return rig_stat(&v->r, "terrace_gpu_lost", gpu);
}

static void lose_and_wait(struct vram_rig *v, uint32_t gpu)
{
	vr_lose(v, gpu);
	for (int i = 0; !lost(v, gpu ? "gpu=1" : "gpu=0"); i++) {
		ck_assert_int_lt(i, 10000);
		rig_tick(v->r.c, v->r.now);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	rig_quiet(&v->r);
}

/* What host memory has stays, what was on the GPU alone is a miss. */
START_TEST(a_gpu_is_lost_at_rest)
{
	struct cache_place p[8];
	struct cache_leased l;
	struct vram_rig v;
	uint64_t id;
	enum status st;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32, .write_back = true });
	ck_assert_uint_eq(vr_put(&v, 0, 0, 8), 8);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 4), 4);
	ck_assert(!cache_degraded(v.r.c));
	lose_and_wait(&v, 0);
	ck_assert(cache_degraded(v.r.c));
	ck_assert_uint_eq(rig_prefix(&v.r, 0, 8), 4);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_evictions_total", "tier=gpu,reason=lost"), 8);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_dropped_blocks_total", ""), 4);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 4, true, false, p, &l), STATUS_UNAVAILABLE);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 4, true, true, p, &l), STATUS_OK);
	for (uint64_t n = 0; n < 4; n++)
		ck_assert(!vr_on_gpu(&p[n], 0) && vr_matches(&v, &p[n], n, 0));
	vr_release(&v, &l);
	ck_assert_int_eq(vr_reserve(&v, 0, 50, 1, &st, &id, p), STATUS_UNAVAILABLE);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 50, 1), 1);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 50, 1), 1);
	vr_close(&v);
}
END_TEST

START_TEST(while_blocks_go_up)
{
	struct cache_place p[8];
	struct cache_leased l;
	struct vram_rig v;

	vr_open_filled(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32 }, 8);
	vr_hold(&v, 0, 2);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 4, true, false, p, &l), STATUS_OK);
	ck_assert_uint_eq(l.progress_page_layers, VR_LAYERS);
	ck_assert(!vr_layer_there(&v, &l, VR_LAYERS - 1));
	ck_assert_uint_eq(v.progress_page[l.progress_page_word + FDSOCK_PROGRESS_PAGE_FAILED], 0);
	lose_and_wait(&v, 0);
	/* Nobody waits for ever, and all are told. */
	ck_assert(vr_layer_there(&v, &l, VR_LAYERS - 1));
	ck_assert_uint_eq(v.progress_page[l.progress_page_word + FDSOCK_PROGRESS_PAGE_FAILED], 1);
	ck_assert_int_eq(cache_release(v.r.c, v.r.s.id, l.lease), STATUS_OK);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 8), 8);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_blocks", "gpu=0"), 0);
	vr_close(&v);
}
END_TEST

START_TEST(while_blocks_go_down)
{
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32 });
	vr_hold(&v, 0, 1);
	ck_assert_uint_eq(vr_put(&v, 0, 0, 8), 8);
	RIG_AWAIT(rig_stat(&v.r, "terrace_slots_used", "tier=host") == 8); /* where they are to land */
	lose_and_wait(&v, 0);
	ck_assert_uint_eq(rig_prefix(&v.r, 0, 8), 0);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_slots_used", "tier=host"), 0);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_dropped_blocks_total", ""), 8);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 8), 8);
	vr_close(&v);
}
END_TEST

START_TEST(while_it_is_written_and_leased)
{
	struct cache_place p[4], q[4];
	struct cache_leased l;
	enum status st[4];
	struct vram_rig v;
	uint64_t id[4];

	vr_open(&v, &(struct vram_rig_options){ .gpus = 2, .gpu_slots = 16, .host_slots = 32, .write_back = true });
	ck_assert_uint_eq(vr_put(&v, 0, 10, 4), 4);
	ck_assert_uint_eq(vr_put(&v, 1, 20, 4), 4);
	ck_assert_int_eq(vr_lease(&v, 0, 10, 4, true, false, q, &l), STATUS_OK);
	ck_assert_int_eq(vr_reserve(&v, 0, 0, 4, st, id, p), STATUS_OK);
	lose_and_wait(&v, 0);
	ck_assert_int_eq(vr_commit(&v, id, 2, st), STATUS_OK);
	ck_assert_int_eq(st[0], STATUS_UNAVAILABLE);
	ck_assert_int_eq(st[1], STATUS_UNAVAILABLE);
	ck_assert_int_eq(cache_abort(v.r.c, v.r.s.id, id[2]), STATUS_OK);
	ck_assert_int_eq(cache_abort(v.r.c, v.r.s.id, id[3]), STATUS_OK);
	ck_assert_uint_eq(rig_prefix(&v.r, 10, 4), 0);
	vr_release(&v, &l);
	/* The keys are free again, and the other GPU goes on. */
	ck_assert_uint_eq(vr_put(&v, 1, 0, 4), 4);
	ck_assert_uint_eq(vr_read_all(&v, 1, 0, 4), 4);
	ck_assert_uint_eq(vr_read_all(&v, 1, 20, 4), 4);
	ck_assert_double_eq(lost(&v, "gpu=1"), 0);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_slots_used", "gpu=0"), 0);
	vr_close(&v);
}
END_TEST

/* What has copies on two GPUs loses one. */
START_TEST(one_of_two_copies_is_lost)
{
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 2, .gpu_slots = 16, .host_slots = 32, .write_back = true });
	ck_assert_uint_eq(vr_put(&v, 0, 0, 4), 4);
	ck_assert_uint_eq(vr_read_all(&v, 1, 0, 2), 2);
	lose_and_wait(&v, 0);
	ck_assert_uint_eq(rig_prefix(&v.r, 0, 4), 2);
	ck_assert_uint_eq(vr_read_all(&v, 1, 0, 2), 2);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 2), 2);
	vr_close(&v);
}
END_TEST

START_TEST(while_memory_is_awaited)
{
	struct cache_place p[8];
	struct cache_leased l;
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 96);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 16, .disks = &d, .spill_milli = 900 });
	rig_restored(&v.r);
	for (uint64_t n = 0; n < 40; n++) {
		ck_assert_uint_eq(vr_put(&v, CACHE_HOST, n, 1), 1);
		rig_quiet(&v.r);
	}
	vr_lose(&v, 0);
	/* Loads are begun for a GPU that is found lost when they have come, or before. */
	ck_assert_int_ne(vr_lease(&v, 0, 0, 8, true, false, p, &l), STATUS_BUSY);
	rig_quiet(&v.r);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 40), 40);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

static bool has_queue(struct vram_rig *v, uint32_t gpu, enum device_way way)
{
	cache_lock(v->r.c);
	const bool is = vram_queued(vram_gpu(v->r.c, gpu), way);

	cache_unlock(v->r.c);
	return is;
}

static _Atomic uint32_t lists_across;

static enum status copy_counted(struct device *d, struct device_copy *c, const char **why)
{
	lists_across += c->way == DEVICE_ACROSS;
	return terrace_device_ops()->copy(d, c, why);
}

/* What waits for its turn to be copied from a lost GPU to another is not copied: that could cost the other, too. */
START_TEST(while_blocks_wait_to_go_across)
{
	enum { LISTS = 8, UNDER_WAY = 4 };
	struct device_ops ops = *terrace_device_ops();
	struct vram_rig v;

	ops.copy = copy_counted;
	vr_open(&v, &(struct vram_rig_options){ .gpus = 2, .gpu_slots = 16, .host_slots = 32, .write_back = true, .ops = &ops });
	ck_assert_uint_eq(vr_put(&v, 0, 0, LISTS), LISTS);
	ck_assert_uint_eq(vr_put(&v, 1, 100, 1), 1); /* there is an extent */
	vr_hold(&v, 1, 0);
	for (uint32_t i = 0; i < LISTS; i++) {
		vr_warm_begin(&v, 1, i, 1);
		RIG_AWAIT(i >= UNDER_WAY || !has_queue(&v, 1, DEVICE_ACROSS));
	}
	ck_assert(has_queue(&v, 1, DEVICE_ACROSS));
	vr_lose(&v, 0);
	RIG_AWAIT(lost(&v, "gpu=0"));
	vr_go(&v, 1);
	rig_quiet(&v.r);
	ck_assert_uint_eq(lists_across, UNDER_WAY);
	ck_assert_uint_eq(vr_read_all(&v, 1, 100, 1), 1);
	ck_assert_double_eq(lost(&v, "gpu=1"), 0);
	vr_close(&v);
}
END_TEST

/* ---- a driver that takes its time, or has no memory ---- */

/* Nobody waits for it who wants nothing of it. */
START_TEST(a_driver_that_does_not_answer)
{
	struct timespec began, now;
	struct vram_rig v;
	char stuck[128], name[160];
	FILE *f;

	snprintf(stuck, sizeof(stuck), "/tmp/terrace-test-stuck-%d", (int)getpid());
	snprintf(name, sizeof(name), "%s.0", stuck);
	setenv("SIM_GPU_STUCK_FILE", stuck, 1);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32 });
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 4), 4);
	f = fopen(name, "w");
	ck_assert_ptr_nonnull(f);
	fclose(f);
	clock_gettime(CLOCK_MONOTONIC, &began);
	alarm(20); /* what would wait for it here would do so for ever */
	do {
		rig_tick(v.r.c, v.r.now);
		ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 4), 4);
		ck_assert_double_eq(lost(&v, "gpu=0"), 0);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec * 1000 + now.tv_nsec / 1000000 - began.tv_sec * 1000 - began.tv_nsec / 1000000 < 200);
	alarm(0);
	unlink(name);
	lose_and_wait(&v, 0); /* it asks again */
	vr_close(&v);
}
END_TEST

static struct device_copy *_Atomic kept;

/* The device keeps the first list up. */
static enum status copy_kept(struct device *d, struct device_copy *c, const char **why)
{
	struct device_copy *none = NULL;

	if (c->way == DEVICE_UP && atomic_compare_exchange_strong(&kept, &none, c))
		return STATUS_OK;
	return terrace_device_ops()->copy(d, c, why);
}

/* A lost GPU may take seconds to end the lists that it has: whoever waits for one of them is told before. */
START_TEST(before_its_last_list_has_ended)
{
	struct device_ops ops = *terrace_device_ops();
	struct cache_place p[4];
	struct cache_leased l;
	struct vram_rig v;

	ops.copy = copy_kept;
	vr_open_filled(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32, .ops = &ops }, 4);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 4, true, false, p, &l), STATUS_OK);
	ck_assert_uint_eq(l.progress_page_layers, VR_LAYERS);
	RIG_AWAIT(kept);
	vr_lose(&v, 0);
	RIG_AWAIT(lost(&v, "gpu=0"));
	ck_assert(vr_layer_there(&v, &l, VR_LAYERS - 1));
	ck_assert_uint_eq(v.progress_page[l.progress_page_word + FDSOCK_PROGRESS_PAGE_FAILED], 1);
	kept->done(kept, STATUS_UNAVAILABLE);
	rig_quiet(&v.r);
	vr_release(&v, &l);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 4), 4);
	vr_close(&v);
}
END_TEST

static struct {
	_Atomic int ups;
	_Atomic bool second;
	struct device_copy *_Atomic first;
} starved;

/* Of the lists up, the first finds no memory, once the second has come; the others go through. */
static enum status copy_starved(struct device *d, struct device_copy *c, const char **why)
{
	struct device_copy *first = starved.first;

	if (c->way == DEVICE_UP && atomic_fetch_add(&starved.ups, 1) == 0) {
		starved.first = c;
		return STATUS_OK;
	}
	if (c->way == DEVICE_UP && !atomic_exchange(&starved.second, true))
		first->done(first, STATUS_EXHAUSTED);
	return terrace_device_ops()->copy(d, c, why);
}

/* Blocks in memory, of which a Warm has `warm` and gets nothing. */
static void begin_starved(struct vram_rig *v, uint32_t warm)
{
	static struct device_ops ops;

	ops = *terrace_device_ops();
	ops.copy = copy_starved;
	vr_open_filled(v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32, .write_back = true, .ops = &ops }, 8);
	vr_warm_begin(v, 0, 0, warm);
	RIG_AWAIT(starved.first);
}

/* Who shares copies that come to nothing is told so with the copies behind them, though these are well. */
START_TEST(copies_before_a_fence_that_fail)
{
	struct cache_place p[8];
	struct cache_leased l;
	struct vram_rig v;

	begin_starved(&v, 4);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 6, true, false, p, &l), STATUS_OK);
	ck_assert_uint_eq(l.progress_page_layers, VR_LAYERS);
	vr_wait_layers(&v, &l);
	ck_assert_uint_eq(v.progress_page[l.progress_page_word + FDSOCK_PROGRESS_PAGE_FAILED], 1);
	rig_quiet(&v.r);
	vr_release(&v, &l);
	ck_assert_double_eq(lost(&v, "gpu=0"), 0);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_moves_failed_total", "to=gpu"), 4);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 8), 8);
	ck_assert_uint_eq(vr_warm(&v, 0, 0, 8), 8);
	vr_close(&v);
}
END_TEST

/* Whose copies have failed once is not granted leases ahead of them any more, as nobody would believe that they are there. */
START_TEST(leases_after_a_fence_that_failed)
{
	struct cache_place p[8];
	struct cache_leased l;
	struct vram_rig v;

	begin_starved(&v, 2);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 4, true, false, p, &l), STATUS_OK);
	vr_wait_layers(&v, &l);
	ck_assert_uint_eq(v.progress_page[l.progress_page_word + FDSOCK_PROGRESS_PAGE_FAILED], 1);
	vr_release(&v, &l);
	rig_quiet(&v.r);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 8, true, false, p, &l), STATUS_OK);
	ck_assert_uint_eq(l.progress_page_layers, 0);
	for (uint64_t n = 0; n < 8; n++)
		ck_assert(vr_on_gpu(&p[n], 0) && vr_matches(&v, &p[n], n, 0));
	vr_release(&v, &l);
	vr_close(&v);
}
END_TEST

static struct {
	_Atomic bool begun, failed, goes_on;
} untold;

/* The first list up fails before its bringer comes back to describe it, so that its end stays the completion thread's
 * to tell. */
static enum status copy_failed(struct device *d, struct device_copy *c, const char **why)
{
	if (c->way != DEVICE_UP || atomic_exchange(&untold.begun, true))
		return terrace_device_ops()->copy(d, c, why);
	c->done(c, STATUS_EXHAUSTED);
	untold.failed = true;
	for (int i = 0; !untold.goes_on && i < 10000; i++)
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	return STATUS_OK;
}

/* A lease between the failure of copies and the end of their moves gets copies of its own. */
START_TEST(copies_that_have_failed_and_not_ended)
{
	struct device_ops ops = *terrace_device_ops();
	_Atomic int called = 0;
	struct cache_wait w = { .ready = vr_count, .arg = &called };
	struct cache_keys k = rig_keys(0, 4);
	struct cache_on on = { .gpu = 0 };
	struct cache_place p[4];
	struct cache_leased l;
	struct vram_rig v;
	enum status s;

	ops.copy = copy_failed;
	vr_open_filled(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32, .write_back = true, .ops = &ops }, 4);
	on.attachment = v.r.attachment;
	vr_warm_begin(&v, 0, 0, 4);
	RIG_AWAIT(untold.failed);
	s = cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k, .all = true,
							   .on = &on, .now_us = v.r.now, .places = p,
							   .places_max = 4 }, &l, &w, &v.r.why);
	untold.goes_on = true;
	for (int i = 0; s == STATUS_BUSY; i++) {
		ck_assert_int_lt(i, 10000);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
		s = cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k, .all = true,
				.on = &on, .now_us = v.r.now, .places = p, .places_max = 4 }, &l, &w, &v.r.why);
	}
	cache_wait_end(v.r.c, &w);
	ck_assert_int_eq(s, STATUS_OK);
	vr_wait_layers(&v, &l);
	ck_assert_uint_eq(v.progress_page[l.progress_page_word + FDSOCK_PROGRESS_PAGE_FAILED], 0);
	rig_quiet(&v.r);
	for (uint64_t n = 0; n < 4; n++)
		ck_assert(vr_on_gpu(&p[n], 0) && vr_matches(&v, &p[n], n, 0));
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_moves_failed_total", "to=gpu"), 4);
	vr_release(&v, &l);
	free((void *)k.bytes);
	vr_close(&v);
}
END_TEST

START_TEST(a_gpu_that_cannot_be_opened)
{
	struct cache_gpu_view views[2];
	struct vram_rig v;

	setenv("SIM_GPU_NO_EXPORT", "1", 1);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 2, .gpu_slots = 16, .host_slots = 32,
	    .no_progress_page = true });
	ck_assert_uint_eq(cache_gpus(v.r.c, views, 2), 2);
	ck_assert(views[0].lost && views[1].lost && *views[0].why);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 4), 4);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 4), 4);
	vr_close(&v);
}
END_TEST

/* ---- processes ---- */

struct engine {
	pid_t pid;
	int pidfd;
};

/* The engine's process: maps the hold that it is sent, and stays. */
static _Noreturn void engine_run(int socket, bool lets_go)
{
	int fd = rig_fd_take(socket);
	void *hold = mmap(NULL, EXTENT_PAGE_BYTES, PROT_READ, MAP_SHARED, fd, 0);

	close(fd);
	if (hold == MAP_FAILED || (lets_go && munmap(hold, EXTENT_PAGE_BYTES)) || write(socket, "", 1) != 1)
		_exit(1);
	for (;;)
		pause();
}

/* A process of the attachment, which is watched, with the extent's hold mapped. With `lets_go` it unmaps, but lives. */
static struct engine engine_start(struct vram_rig *v, uint32_t extent, bool lets_go)
{
	struct cache_lent lent;
	struct engine e;
	int sockets[2];
	char byte;

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
	e.pid = fork();
	if (e.pid == 0)
		engine_run(sockets[1], lets_go);
	e.pidfd = pidfd_open(e.pid, 0);
	ck_assert_int_ge(e.pidfd, 0);
	cache_attach_watch(v->r.c, v->r.attachment, e.pidfd);
	ck_assert_int_eq(cache_attach_lend(v->r.c, v->r.attachment, extent, true, &lent), STATUS_OK);
	ck_assert_int_ge(lent.device_fd, 0);
	ck_assert_int_eq(lent.gpu, 0);
	ck_assert_uint_eq(lent.bytes % SIM_GRANULARITY, 0);
	ck_assert_uint_gt(lent.bytes, 0);
	ck_assert_uint_ge(lent.range_bytes, lent.at + lent.bytes);
	rig_fd_send(sockets[0], lent.fd);
	close(lent.fd);
	close(lent.device_fd);
	ck_assert_int_eq(read(sockets[0], &byte, 1), 1);
	close(sockets[0]);
	close(sockets[1]);
	return e;
}

static void ticks(struct vram_rig *v, int count)
{
	for (int i = 0; i < count; i++) {
		v->r.now += 50000;
		rig_tick(v->r.c, v->r.now);
	}
}

/* A process whose end would not be seen gets no memory, of a GPU or of the host. */
START_TEST(an_unwatched_process_gets_nothing)
{
	struct cache_place p[2];
	struct cache_lent lent;
	struct cache_leased l;
	struct vram_rig keeper, v;

	vr_open(&keeper, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 64 });
	vr_join(&v, &keeper, 0, "unwatched");
	ck_assert_uint_eq(vr_put(&v, 0, 0, 1), 1);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 1, 1), 1);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 1, true, false, p, &l), STATUS_OK);
	vr_release(&v, &l);
	ck_assert_int_eq(vr_lease(&v, CACHE_HOST, 1, 1, true, false, p + 1, &l), STATUS_OK);
	vr_release(&v, &l);
	for (int i = 0; i < 2; i++) {
		for (int j = 0; j < 2; j++)
			ck_assert_int_eq(cache_attach_lend(v.r.c, v.r.attachment, p[j].extent, false, &lent),
					 STATUS_EXHAUSTED);
		cache_attach_watch(v.r.c, v.r.attachment, -1); /* there was no descriptor */
	}
	cache_attach_watch(v.r.c, v.r.attachment, pidfd_open(getpid(), 0));
	ck_assert_int_eq(cache_attach_lend(v.r.c, v.r.attachment, p[0].extent, false, &lent), STATUS_OK);
	close(lent.fd);
	close(lent.device_fd);
	ck_assert_int_eq(cache_attach_lend(v.r.c, v.r.attachment, p[1].extent, false, &lent), STATUS_OK);
	close(lent.fd);
	vr_close(&keeper);
}
END_TEST

struct lending {
	struct vram_rig *v;
	uint32_t extent;
	enum status got;
};

static void *lend_one(void *arg)
{
	struct lending *l = arg;
	struct cache_lent lent;

	cache_thread_enter();
	l->got = cache_attach_lend(l->v->r.c, l->v->r.attachment, l->extent, false, &lent);
	cache_thread_leave();
	return NULL;
}

/* Its process, which lives on, gets nothing of the GPU any more, so it has nothing to unmap, and the session ends. */
START_TEST(a_session_that_ends_while_it_is_lent_to)
{
	struct vram_rig keeper, v;
	struct cache_place p;
	struct cache_leased l;
	struct lending lending;
	pthread_t t;

	vr_open(&keeper, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 64 });
	vr_join(&v, &keeper, 0, "ends");
	cache_attach_watch(v.r.c, v.r.attachment, pidfd_open(getpid(), 0));
	ck_assert_uint_eq(vr_put(&v, 0, 0, 1), 1);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 1, true, false, &p, &l), STATUS_OK);
	vr_release(&v, &l);
	rig_quiet(&v.r);
	lending = (struct lending){ &v, p.extent, STATUS_OK };
	pthread_mutex_lock(&v.r.c->extents); /* where it is made */
	ck_assert_int_eq(pthread_create(&t, NULL, lend_one, &lending), 0);
	for (bool begun = false; !begun;) {
		cache_lock(v.r.c);
		begun = attachment_find(v.r.c, v.r.attachment)->lending;
		cache_unlock(v.r.c);
	}
	ck_assert_int_eq(cache_session_close(v.r.c, v.r.s.id, v.r.now, &v.r.why), STATUS_OK);
	pthread_mutex_unlock(&v.r.c->extents);
	pthread_join(t, NULL);
	ck_assert_int_eq(lending.got, STATUS_DENIED);
	cache_attach_gone(v.r.c, v.r.attachment, v.r.now, NULL);
	ticks(&v, 10);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_ghost_sessions", ""), 0);
	vr_close(&keeper);
}
END_TEST

/* A detached session's slots are not reused while its hold lives, nor, if it did not say that it unmapped, while its
 * process does. */
START_TEST(a_ghost_keeps_its_slots)
{
	struct cache_place mine, p[16];
	struct vram_rig keeper, v;
	struct engine e;
	enum status st;
	uint64_t id;

	vr_open(&keeper, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 64 });
	vr_join(&v, &keeper, 0, "ghost");
	ck_assert_int_eq(vr_reserve(&v, 0, 1000, 1, &st, &id, &mine), STATUS_OK);
	e = engine_start(&v, mine.extent, _i);
	if (_i == 2)
		cache_attach_unmapped(v.r.c, v.r.attachment, mine.extent);
	cache_attach_gone(v.r.c, v.r.attachment, v.r.now, NULL);
	ticks(&v, 10);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_ghost_sessions", ""), _i == 2 ? 0 : 1);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_held_bytes", "gpu=0"), _i == 2 ? 0 : VR_BLOCK_BYTES);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_quarantined_slots", "tier=gpu"), _i != 2);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_quarantined_slots", "tier=host"), 0);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_quarantined_bytes", "tier=gpu"), _i == 2 ? 0 : VR_SLOT_BYTES);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_quarantined_bytes", "tier=host"), 0);
	/* However full it gets. */
	for (uint64_t n = 0; n < 40; n++) {
		uint64_t other;

		ck_assert_int_eq(vr_reserve(&keeper, 0, n, 1, &st, &other, p), STATUS_OK);
		ck_assert_int_eq(st, STATUS_OK);
		ck_assert(_i == 2 || p[0].extent != mine.extent || p[0].offset != mine.offset);
		rig_fill(vr_bytes(&keeper, p), VR_BLOCK_BYTES, n, 0);
		ck_assert_int_eq(vr_commit(&keeper, &other, 1, &st), STATUS_OK);
	}
	kill(e.pid, SIGKILL);
	waitpid(e.pid, NULL, 0);
	ticks(&v, 10);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_ghost_sessions", ""), 0);
	rig_quiet(&v.r);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_held_bytes", "gpu=0"), 0);
	ck_assert_uint_eq(vr_read_all(&keeper, 0, 0, 40), 40);
	vr_close(&keeper);
}
END_TEST

/* ---- memory between layouts ---- */

/* A layout of another size that has nothing on the GPU stores its first block at once, and as many as there is room for, while a process that is idle
 * has mapped what the first layout has filled. _i: what the first layout has is on the GPU alone. */
START_TEST(a_newcomer_gets_memory_of_an_idle_layout)
{
	struct vram_rig v, w;
	struct cache_lent lent;
	struct cache_place p;
	struct cache_leased l;
	void *hold;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 64, .write_back = _i, .spill_milli = 1 });
	ck_assert_uint_eq(vr_put(&v, 0, 0, 16), 16);
	rig_quiet(&v.r);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 1, true, false, &p, &l), STATUS_OK);
	ck_assert_int_eq(cache_attach_lend(v.r.c, v.r.attachment, p.extent, false, &lent), STATUS_OK);
	hold = mmap(NULL, EXTENT_PAGE_BYTES, PROT_READ, MAP_SHARED, lent.fd, 0);
	close(lent.fd);
	close(lent.device_fd);
	vr_release(&v, &l);
	vr_join(&w, &v, VR_SMALL, "other");
	v.r.now = w.r.now += 20 * 1000 * 1000;
	rig_tick(w.r.c, w.r.now);
	ck_assert_uint_eq(vr_put(&w, 0, 500, 1), 1);
	ck_assert_uint_eq(vr_put(&w, 0, 501, 39), 39); /* three spans: the reserve, and two that are taken over */
	ck_assert_uint_eq(vr_read_all(&w, 0, 500, 40), 40);
	rig_quiet(&v.r);
	ck_assert_double_ge(rig_stat(&v.r, "terrace_span_trades_total", "tier=gpu"), 1);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_dropped_blocks_total", ""), 0);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 16), 16);
	rig_check_accounting(v.r.c);
	munmap(hold, EXTENT_PAGE_BYTES);
	vr_close(&v);
}
END_TEST

/* A layout whose blocks are all leased keeps what it has; the newcomer has the reserve, and no more. */
START_TEST(leases_leave_the_reserve_to_a_newcomer)
{
	struct cache_place p[16];
	struct cache_leased l;
	struct vram_rig v, w;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 64 });
	ck_assert_uint_eq(vr_put(&v, 0, 0, 16), 16);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 16, true, false, p, &l), STATUS_OK);
	vr_join(&w, &v, VR_SMALL, "other");
	ck_assert_uint_eq(vr_put(&v, 0, 100, 1), 0);
	ck_assert_uint_eq(vr_put(&w, 0, 500, VR_SMALL_SLOTS), VR_SMALL_SLOTS);
	ck_assert_uint_eq(vr_read_all(&w, 0, 500, VR_SMALL_SLOTS), VR_SMALL_SLOTS);
	for (uint64_t n = 0; n < 16; n++)
		ck_assert(vr_matches(&v, &p[n], n, 0));
	vr_release(&v, &l);
	rig_check_accounting(v.r.c);
	vr_close(&v);
}
END_TEST

/* Slots that go from one layout to another: copies find what is there now. */
START_TEST(slots_change_hands)
{
	struct vram_rig v, w;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 24 });
	vr_join(&w, &v, 7, "other");
	for (int round = 0; round < 6; round++) {
		struct vram_rig *to = round % 2 ? &w : &v;
		const uint64_t first = (uint64_t)round * 100;
		uint32_t stored = 0;

		for (int i = 0; i < 400 && stored < 24; i++) {
			stored += vr_put(to, CACHE_HOST, first + stored, 1);
			v.r.now = w.r.now += 11000000;
			rig_tick(v.r.c, v.r.now);
		}
		ck_assert_uint_eq(stored, 24);
		ck_assert_uint_ge(vr_read_all(to, 0, first + 20, 4), 4);
		ck_assert_uint_ge(vr_read_all(to, CACHE_HOST, first + 20, 4), 4);
	}
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_moves_failed_total", "to=gpu"), 0);
	vr_close(&v);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_vram_fault");
	TCase *t = tcase_create("cache_vram_fault");
	SRunner *runner;
	int failed;

	tcase_set_timeout(t, 120);
	tcase_add_test(t, a_gpu_is_lost_at_rest);
	tcase_add_test(t, while_blocks_go_up);
	tcase_add_test(t, while_blocks_go_down);
	tcase_add_test(t, while_it_is_written_and_leased);
	tcase_add_test(t, one_of_two_copies_is_lost);
	tcase_add_test(t, while_memory_is_awaited);
	tcase_add_test(t, while_blocks_wait_to_go_across);
	tcase_add_test(t, a_driver_that_does_not_answer);
	tcase_add_test(t, before_its_last_list_has_ended);
	tcase_add_test(t, copies_before_a_fence_that_fail);
	tcase_add_test(t, leases_after_a_fence_that_failed);
	tcase_add_test(t, copies_that_have_failed_and_not_ended);
	tcase_add_test(t, a_gpu_that_cannot_be_opened);
	tcase_add_test(t, an_unwatched_process_gets_nothing);
	tcase_add_test(t, a_session_that_ends_while_it_is_lent_to);
	tcase_add_loop_test(t, a_ghost_keeps_its_slots, 0, 3);
	tcase_add_loop_test(t, a_newcomer_gets_memory_of_an_idle_layout, 0, 2);
	tcase_add_test(t, leases_leave_the_reserve_to_a_newcomer);
	tcase_add_test(t, slots_change_hands);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
