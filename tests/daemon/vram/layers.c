/* Leases on GPUs whose copies are under way: what the progress page says of the layers, and what is left when nobody
 * waits for them any more. */
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/call/faults.h"
#include "daemon/call/lease.h"
#include "daemon/call/reserve.h"
#include "daemon/call/warm.h"
#include "daemon/session/attachment.h"
#include "daemon/session/open.h"
#include "daemon/vram/queue.h"
#include "daemon/vram/state.h"
#include "eviction/policy.h"
#include "kernels/format.h"
#include "store/device.h"
#include "store/host/extent.h"
#include "store/ring/ring.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double moved(struct vram_rig *v, const char *from, const char *to)
{
	char labels[48];

	rig_quiet(&v->r); /* the progress page knows of a copy before the accounting do */
	snprintf(labels, sizeof(labels), "from=%s,to=%s", from, to);
	return rig_stat(&v->r, "terrace_moved_bytes_total", labels) / VR_BLOCK_BYTES;
}

START_TEST(layers_come_in_their_order)
{
	struct cache_place p[8];
	struct cache_leased l, second;
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32 });
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 8), 8);
	ck_assert_uint_eq(vr_put(&v, 0, 100, 1), 1); /* the GPU has an extent now */
	rig_quiet(&v.r);
	for (int round = 0; round < 3; round++) {
		vr_hold(&v, 0, 1);
		ck_assert_int_eq(vr_lease(&v, 0, round * 2, 2, true, false, p, &l), STATUS_OK);
		ck_assert_uint_eq(l.progress_page_layers, VR_LAYERS);
		RIG_AWAIT(vr_layer_there(&v, &l, 0));
		ck_assert(!vr_layer_there(&v, &l, 1));
		for (uint64_t n = 0; n < 2; n++) { /* the first layer of each block, and of the others nothing */
			uint8_t *whole = calloc(1, VR_BLOCK_BYTES);

			rig_fill(whole, VR_BLOCK_BYTES, round * 2 + n, 0);
			ck_assert_mem_eq(vr_bytes(&v, &p[n]), whole, VR_BLOCK_BYTES / VR_LAYERS);
			ck_assert_mem_ne(vr_bytes(&v, &p[n]) + VR_BLOCK_BYTES / VR_LAYERS, whole + VR_BLOCK_BYTES / VR_LAYERS, 64);
			free(whole);
		}
		/* Another lease of the same blocks waits for the same copies. */
		ck_assert_int_eq(vr_lease(&v, 0, round * 2, 2, true, false, p, &second), STATUS_OK);
		ck_assert_uint_eq(second.progress_page_layers, VR_LAYERS);
		ck_assert(!vr_layer_there(&v, &second, 0));
		vr_go(&v, 0);
		vr_wait_layers(&v, &l);
		vr_wait_layers(&v, &second);
		for (uint64_t n = 0; n < 2; n++)
			ck_assert(vr_matches(&v, &p[n], round * 2 + n, 0));
		vr_release(&v, &l);
		vr_release(&v, &second);
	}
	ck_assert_double_eq(moved(&v, "host", "gpu"), 6);
	vr_close(&v);
}
END_TEST

static void layer_matches(struct vram_rig *v, const struct cache_place *p, uint32_t count, uint32_t layer)
{
	const uint32_t bytes = VR_BLOCK_BYTES / VR_LAYERS;
	uint8_t *whole = malloc(VR_BLOCK_BYTES);

	for (uint64_t n = 0; n < count; n++) {
		rig_fill(whole, VR_BLOCK_BYTES, n, 0);
		ck_assert_mem_eq(vr_bytes(v, &p[n]) + layer * bytes, whole + layer * bytes, bytes);
	}
	free(whole);
}

/* The same when the GPU has no memory for them yet. _i: of several extents, whose copies begin one after the other: a layer is there when
 * it is of all of them. */
START_TEST(layers_come_while_extents_are_made)
{
	const uint32_t count = _i ? 3 * VR_EXTENT_SLOTS - 2 : VR_EXTENT_SLOTS - 2;
	struct cache_place p[3 * VR_EXTENT_SLOTS];
	struct cache_leased l, second;
	struct vram_rig v;

	setenv("SIM_GPU_US_PER_MIB", "2000", 1);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 4 * VR_EXTENT_SLOTS, .host_slots = 4 * VR_EXTENT_SLOTS });
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, count), count);
	vr_hold(&v, 0, !_i);
	ck_assert_int_eq(vr_lease(&v, 0, 0, count, true, false, p, &l), STATUS_OK);
	ck_assert_uint_eq(l.progress_page_layers, VR_LAYERS);
	if (_i)
		vr_go(&v, 0);
	for (uint32_t layer = 0; layer < VR_LAYERS; layer++) {
		RIG_AWAIT(vr_layer_there(&v, &l, layer));
		ck_assert(_i || layer == VR_LAYERS - 1 || !vr_layer_there(&v, &l, layer + 1));
		layer_matches(&v, p, count, layer);
		if (!_i)
			vr_hold(&v, 0, layer + 2);
	}
	vr_go(&v, 0);
	ck_assert_int_eq(vr_lease(&v, 0, 0, count, true, false, p, &second), STATUS_OK);
	vr_wait_layers(&v, &second);
	vr_release(&v, &l);
	vr_release(&v, &second);
	vr_close(&v);
}
END_TEST

/* A call that does not come back for what it waited for leaves nothing behind; nor does one whose GPU is lost meanwhile. */
START_TEST(a_lease_that_is_given_up)
{
	_Atomic int called = 0;
	struct cache_wait w = { .ready = vr_count, .arg = &called };
	struct cache_keys k = rig_keys(0, 4);
	struct cache_on on = { .gpu = 0 };
	struct cache_place p[4];
	struct cache_leased l;
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32 });
	on.attachment = v.r.attachment;
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 4), 4);
	ck_assert_int_eq(cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k,
			.all = true, .on = &on, .now_us = v.r.now, .places = p, .places_max = 4 }, &l, &w,
				     &v.r.why), STATUS_BUSY);
	if (_i == 1)
		vr_lose(&v, 0);
	if (_i)
		vr_await_called(&v, &called, 1);
	cache_wait_end(v.r.c, &w);
	if (_i != 1) {
		ck_assert_int_eq(vr_lease(&v, 0, 0, 4, true, false, p, &l), STATUS_OK);
		vr_wait_layers(&v, &l);
		layer_matches(&v, p, 4, VR_LAYERS - 1);
		vr_release(&v, &l);
	}
	free((void *)k.bytes);
	vr_close(&v);
}
END_TEST

/* A lease that is given back while its copies are under way, and its blocks deleted: nothing is left behind. */
START_TEST(given_back_while_it_is_copied)
{
	struct cache_place p[4];
	struct cache_leased l;
	enum status st[4];
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32 });
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 4), 4);
	vr_hold(&v, 0, 2);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 4, true, false, p, &l), STATUS_OK);
	vr_release(&v, &l);
	ck_assert_int_eq(rig_delete(&v.r, 2, 2, st), STATUS_OK);
	vr_go(&v, 0);
	rig_quiet(&v.r);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 4), 2);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_slots_used", "gpu=0"), 2);
	vr_close(&v);
}
END_TEST

/* What no progress page can tell of, a copy from another GPU, or any without a progress page, is waited for. */
START_TEST(granted_when_it_is_there)
{
	const bool across = _i;
	_Atomic int called = 0;
	struct cache_wait w = { .ready = vr_count, .arg = &called }, second = w;
	struct cache_keys k = rig_keys(0, 2);
	struct cache_on on = { .gpu = across };
	struct cache_place p[2];
	struct cache_leased l;
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 2, .gpu_slots = 16, .host_slots = 32,
						.no_progress_page = !across,
						.write_back = true });
	on.attachment = v.r.attachment;
	ck_assert_uint_eq(vr_put(&v, across ? 0 : CACHE_HOST, 0, 2), 2);
	ck_assert_uint_eq(vr_put(&v, across, 50, 1), 1); /* there is an extent */
	vr_hold(&v, across, 1);
	ck_assert_int_eq(cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k,
			.all = true, .on = &on, .now_us = v.r.now, .places = p, .places_max = 2 }, &l, &w,
				     &v.r.why), STATUS_BUSY);
	ck_assert_int_eq(cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k,
			.all = true, .on = &on, .now_us = v.r.now, .places = p, .places_max = 2 }, &l, &second,
				     &v.r.why), STATUS_BUSY);
	for (int i = 0; i < 50; i++) {
		rig_tick(v.r.c, v.r.now);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
		ck_assert_int_eq(called, 0);
	}
	vr_go(&v, across);
	RIG_AWAIT(called == 2);
	ck_assert_int_eq(cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k,
			.all = true, .on = &on, .now_us = v.r.now, .places = p, .places_max = 2 }, &l, &w,
				     &v.r.why), STATUS_OK);
	cache_wait_end(v.r.c, &w);
	cache_wait_end(v.r.c, &second);
	ck_assert_uint_eq(l.progress_page_layers, 0);
	for (uint64_t n = 0; n < 2; n++)
		ck_assert(vr_on_gpu(&p[n], across) && vr_matches(&v, &p[n], n, 0));
	vr_release(&v, &l);
	free((void *)k.bytes);
	vr_close(&v);
}
END_TEST

static bool on_gpu(struct vram_rig *v, uint64_t n)
{
	return strstr(vr_tier(v, n), "gpu") != NULL;
}

/* Makes the extents for so many blocks. */
static void grow(struct vram_rig *v, uint32_t count)
{
	uint64_t *id = calloc(count, sizeof(*id));
	struct cache_place p;
	enum status st;

	for (uint32_t i = 0; i < count; i++)
		ck_assert_int_eq(vr_reserve(v, 0, 100000 + i, 1, &st, &id[i], &p), STATUS_OK);
	for (uint32_t i = 0; i < count; i++)
		ck_assert_int_eq(cache_abort(v->r.c, v->r.s.id, id[i]), STATUS_OK);
	free(id);
}

/* What leases may hold of a GPU is bounded while their copies are under way as when they are there. What is copied for nobody yet takes none of
 * it. */
START_TEST(a_share_of_the_gpu)
{
	enum { BLOCKS = 2 * VR_EXTENT_SLOTS, SHARE = BLOCKS / 2, LEASED = SHARE - 2 }; /* the share is of three spans, with the reserve */
	struct cache_leased l, second;
	struct cache_place p[BLOCKS];
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = BLOCKS, .host_slots = 3 * BLOCKS, .gpu_pinned_milli = 334 });
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 2 * BLOCKS), 2 * BLOCKS);
	ck_assert_uint_eq(vr_warm(&v, 0, BLOCKS, BLOCKS), BLOCKS); /* all extents are made */
	rig_quiet(&v.r);
	vr_hold(&v, 0, 0);
	vr_warm_begin(&v, 0, 0, LEASED);
	ck_assert_int_eq(vr_lease(&v, 0, LEASED, LEASED, true, false, p, &l), STATUS_OK);
	ck_assert_uint_eq(l.progress_page_layers, VR_LAYERS);
	for (int there = 0; there < 2; there++) {
		ck_assert_int_eq(vr_lease(&v, 0, 2 * LEASED, 3, true, false, p, &second), STATUS_EXHAUSTED);
		ck_assert_int_eq(vr_lease(&v, 0, 2 * LEASED - 1, 2, true, false, p, &second), STATUS_OK); /* one of them is held already */
		vr_release(&v, &second);
		vr_go(&v, 0);
		rig_quiet(&v.r);
	}
	vr_release(&v, &l);
	ck_assert_int_eq(vr_lease(&v, 0, 2 * LEASED, 3, true, false, p, &second), STATUS_OK);
	vr_release(&v, &second);
	vr_close(&v);
}
END_TEST

/* A lease beside a long Warm, of which the first block has come. False: when its first layer was seen to be there, the Warm was over. */
static bool lease_beside_a_long_warm(void)
{
	enum { BLOCKS = 40 * VR_EXTENT_SLOTS, LIST_BLOCKS = (8 << 20) / VR_BLOCK_BYTES }; /* 80 MiB, and 8 */
	_Atomic int called = 0;
	struct cache_wait w = { .ready = vr_count, .arg = &called };
	struct cache_keys k = rig_keys(0, BLOCKS);
	struct cache_leased l;
	struct cache_place p;
	struct vram_rig v;
	uint32_t warmed, rung;
	bool in_time;

	setenv("SIM_GPU_US_PER_MIB", "8000", 1);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = BLOCKS + VR_EXTENT_SLOTS, .host_slots = BLOCKS + 16 });
	grow(&v, BLOCKS + VR_EXTENT_SLOTS);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, BLOCKS + 1), BLOCKS + 1);
	rung = vram_gpu(v.r.c, 0)->rung;
	ck_assert_int_eq(cache_warm(v.r.c, &(struct cache_warm_call){ .session = v.r.s.id, .keys = &k,
			.now_us = v.r.now }, &w, &warmed, &v.r.why), STATUS_BUSY);
	ck_assert_uint_ge(vram_gpu(v.r.c, 0)->rung - rung, BLOCKS / LIST_BLOCKS); /* each as soon as it was a list */
	RIG_AWAIT(on_gpu(&v, 0));
	ck_assert_int_eq(vr_lease(&v, 0, BLOCKS, 1, true, false, &p, &l), STATUS_OK);
	ck_assert_uint_eq(l.progress_page_layers, VR_LAYERS);
	RIG_AWAIT(vr_layer_there(&v, &l, 0));
	in_time = !called && !on_gpu(&v, BLOCKS - 1);
	vr_wait_layers(&v, &l);
	ck_assert(vr_matches(&v, &p, BLOCKS, 0));
	vr_release(&v, &l);
	cache_wait_end(v.r.c, &w);
	ck_assert_uint_eq(vr_warm(&v, 0, 0, BLOCKS), BLOCKS);
	ck_assert_double_eq(moved(&v, "host", "gpu"), BLOCKS + 1);
	free((void *)k.bytes);
	vr_close(&v);
	return in_time;
}

/* Of a long Warm the first blocks are there while the last are still copied, and a lease that comes meanwhile does not wait for all. Again, if a busy
 * machine looked too late. */
START_TEST(a_long_warm_comes_in_pieces)
{
	bool in_time = false;

	for (int tries = 0; tries < 10 && !in_time; tries++)
		in_time = lease_beside_a_long_warm();
	ck_assert(in_time);
}
END_TEST

static _Atomic uint32_t made_ready;

static void count_ready(struct device *d, enum device_way way)
{
	(void)d;
	made_ready += way == DEVICE_UP;
}

struct leasing {
	struct vram_rig *v;
	uint64_t first;
};

static void *lease_four(void *arg)
{
	const struct leasing *g = arg;
	struct cache_place p[4];
	struct cache_leased l;

	cache_thread_enter();
	ck_assert_int_eq(vr_lease(g->v, 0, g->first, 4, true, false, p, &l), STATUS_OK);
	vr_wait_layers(g->v, &l);
	vr_release(g->v, &l);
	cache_thread_leave();
	return NULL;
}

/* A call that is to bring something up has the submission thread and the device made ready while it is still at its
 * work (here it waits for the lock), one that finds all of it there has not. */
START_TEST(what_is_expected_is_made_ready_for)
{
	struct device_ops ops = *terrace_device_ops();
	struct leasing g;
	struct vram_rig v;
	const struct gpu *gpu;
	pthread_t t;

	ops.ready = count_ready;
	vr_open_filled(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32, .sum_threads = 2, .ops = &ops }, 8);
	gpu = vram_gpu(v.r.c, 0);
	for (int call = 0; call < 3; call++) { /* four that are not there, as the first of all calls, the same four, four others */
		const uint32_t expected = gpu->expected, ready = made_ready, more = call != 1;

		g = (struct leasing){ &v, call == 2 ? 4 : 0 };
		cache_lock(v.r.c);
		ck_assert_int_eq(pthread_create(&t, NULL, lease_four, &g), 0);
		if (more) {
			RIG_AWAIT(gpu->expected == expected + 1);
			RIG_AWAIT(made_ready == ready + 1);
		}
		cache_unlock(v.r.c);
		pthread_join(t, NULL);
		ck_assert_uint_eq(gpu->expected, expected + more);
		ck_assert_uint_eq(gpu->calls_ended, gpu->expected);
		rig_quiet(&v.r);
	}
	vr_close(&v);
}
END_TEST

/* Where the operator wants that, a call finds the submission thread awake whom one before it has woken, and it does its
 * work and ends as if it slept. */
START_TEST(a_submission_that_is_kept_awake)
{
	for (int on = 0; on < 2; on++) {
		struct cache_place p[4];
		struct cache_leased l;
		struct vram_rig v;
		const struct gpu *gpu;

		vr_open_filled(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 256, .host_slots = 256, .sum_threads = 2,
							       .poll_us = on ? 3600ull * 1000000 : 0 }, 200);
		ck_assert_uint_eq(vr_warm(&v, 0, 0, 4), 4);
		rig_quiet(&v.r);
		gpu = vram_gpu(v.r.c, 0);
		RIG_AWAIT(gpu->sleeps);
		cache_called(v.r.c);
		if (on)
			RIG_AWAIT(!gpu->sleeps);
		ck_assert(gpu->sleeps == !on);
		ck_assert_int_eq(vr_lease(&v, 0, 4, 4, true, false, p, &l), STATUS_OK);
		vr_wait_layers(&v, &l);
		vr_release(&v, &l);
		/* More lists than may be under way: it hears that one has ended, too. */
		vr_hold(&v, 0, 0);
		vr_warm_begin(&v, 0, 8, 190);
		RIG_AWAIT(gpu->queue[DEVICE_UP].copy_batches == 4);
		vr_go(&v, 0);
		RIG_AWAIT(on_gpu(&v, 197));
		vr_close(&v); /* it waits for no hour */
	}
}
END_TEST

/* A lease that is about to come has the submission thread awake for a moment, if the one before it had something to be
 * copied. */
START_TEST(a_lease_that_comes)
{
	struct cache_place p[4];
	struct cache_leased l;
	struct vram_rig v;
	const struct gpu *gpu;

	vr_open_filled(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32, .sum_threads = 2 }, 8);
	gpu = vram_gpu(v.r.c, 0);
	for (int round = 0; round < 4; round++) { /* copied, there, copied, in memory */
		const uint64_t first = round == 2 ? 4 : 0;
		uint64_t before;

		ck_assert_int_eq(vr_lease(&v, round == 3 ? CACHE_HOST : 0, first, 4, true, false, p, &l), STATUS_OK);
		if (round < 3)
			vr_wait_layers(&v, &l);
		vr_release(&v, &l);
		rig_quiet(&v.r);
		RIG_AWAIT(gpu->sleeps);
		before = gpu->announced_until_us;
		if (round == 1) {
			cache_lease_announce(v.r.c);
			ck_assert_uint_eq(gpu->announced_until_us, before);
		} else {
			/* a tick may have it awake */
			RIG_AWAIT((cache_lease_announce(v.r.c), gpu->announced_until_us > before));
		}
		RIG_AWAIT(gpu->sleeps && vram_clock_us() > gpu->announced_until_us);
	}
	vr_close(&v);
}
END_TEST

/* A lost GPU has nothing to be awake for: calls do not wake its submission thread, each of them. */
START_TEST(a_lost_gpu_is_not_kept_awake)
{
	struct vram_rig v;
	const struct gpu *gpu;

	vr_open_filled(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32, .poll_us = 1000 }, 4);
	gpu = vram_gpu(v.r.c, 0);
	RIG_AWAIT(gpu->sleeps);
	vr_lose(&v, 0);
	RIG_AWAIT(cache_degraded(v.r.c));
	RIG_AWAIT(!gpu->sleeps);
	cache_called(v.r.c);
	ck_assert(!gpu->sleeps);
	vr_close(&v);
}
END_TEST

/* A session over small blocks, so that a lease may have thousands of them: 4 KiB each, in four layers. */
static void join_small(struct vram_rig *v, const struct vram_rig *of)
{
	struct kv_layout l = vr_layout(20);
	uint64_t session;

	l.block_tokens = 16;
	l.k_format = l.v_format = KV_TQ4;
	*v = *of;
	ck_assert_int_eq(cache_session_open(v->r.c, &(struct cache_open_call){ .tenant = "", .layouts = &l,
			.layout_count = 1, .engine = "small", .now_us = v->r.now }, &v->r.s, &v->r.why),
			 STATUS_OK);
	ck_assert_int_eq(cache_attach(v->r.c, v->r.s.token, 1, v->r.now, &v->r.attachment, &session, &v->r.why), STATUS_OK);
	vr_progress_page(v);
}

/* Stores them, each filled as its number says. */
static void put_small(struct vram_rig *v, uint32_t count)
{
	for (uint64_t n = 0; n < count; n++) {
		struct cache_place p;
		enum status st;
		uint64_t id;

		ck_assert_int_eq(vr_reserve(v, CACHE_HOST, n, 1, &st, &id, &p), STATUS_OK);
		ck_assert_int_eq(st, STATUS_OK);
		rig_fill(rig_block(&v->r, &p), v->r.s.block_bytes[0], n, 0);
		ck_assert_int_eq(vr_commit(v, &id, 1, &st), STATUS_OK);
	}
}

/* As many blocks as a lease may have come layer by layer, too. */
START_TEST(layers_of_thousands)
{
	enum { BLOCKS = 3000 };
	struct cache_place *p = calloc(BLOCKS, sizeof(*p));
	enum status *st = calloc(BLOCKS, sizeof(*st));
	struct vram_rig keeper, v;
	struct cache_leased l;

	vr_open(&keeper, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 10 * VR_EXTENT_SLOTS, .host_slots = 200,
	    .no_progress_page = true });
	join_small(&v, &keeper);
	put_small(&v, BLOCKS);
	ck_assert_uint_eq(vr_warm(&v, 0, 0, BLOCKS), BLOCKS); /* the GPU has its extents */
	ck_assert_int_eq(rig_delete(&v.r, 0, BLOCKS, st), STATUS_OK);
	put_small(&v, BLOCKS);
	vr_hold(&v, 0, 1);
	ck_assert_int_eq(vr_lease(&v, 0, 0, BLOCKS, true, false, p, &l), STATUS_OK);
	ck_assert_uint_eq(l.progress_page_layers, VR_LAYERS);
	RIG_AWAIT(vr_layer_there(&v, &l, 0));
	ck_assert(!vr_layer_there(&v, &l, 1));
	vr_go(&v, 0);
	vr_wait_layers(&v, &l);
	for (uint64_t n = 0; n < BLOCKS; n++)
		ck_assert(rig_matches(vr_bytes(&v, &p[n]), v.r.s.block_bytes[0], n, 0));
	vr_release(&v, &l);
	munmap((void *)v.progress_page, EXTENT_PAGE_BYTES);
	free(st);
	free(p);
	vr_close(&keeper);
}
END_TEST

static struct policy_ops counted;
static const struct policy_ops *counted_of;
static _Atomic int searches;

static struct policy_node *counted_victim(struct policy *p, bool (*may)(const struct policy_node *, void *), void *arg, uint32_t scan_max)
{
	atomic_fetch_add(&searches, 1);
	return counted_of->victim(p, may, arg, scan_max);
}

/* Many that wait for a GPU that is full are not each looked for a slot for. */
START_TEST(a_long_queue_before_a_full_gpu)
{
	enum { BLOCKS = 100, ON_GPU = 480, TICKS = 10 }; /* an extent is 481 */
	_Atomic int called = 0;
	struct cache_wait w = { .ready = vr_count, .arg = &called };
	struct cache_keys k = rig_keys(0, BLOCKS);
	struct vram_rig keeper, v;
	uint32_t warmed;

	vr_open(&keeper, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = VR_EXTENT_SLOTS, .host_slots = 64,
	    .no_progress_page = true });
	join_small(&v, &keeper);
	ck_assert_int_eq(cache_session_write_back(v.r.c, v.r.s.id), STATUS_OK);
	put_small(&v, BLOCKS);
	for (uint64_t n = 1000; n < 1000 + ON_GPU; n++) {
		struct cache_place p;
		enum status st;
		uint64_t id;

		ck_assert_int_eq(vr_reserve(&v, 0, n, 1, &st, &id, &p), STATUS_OK);
		ck_assert_int_eq(vr_commit(&v, &id, 1, &st), STATUS_OK);
	}
	counted_of = v.r.c->policy;
	counted = *counted_of;
	counted.victim = counted_victim;
	cache_lock(v.r.c);
	v.r.c->policy = &counted;
	cache_unlock(v.r.c);
	vr_hold(&v, 0, 0); /* what is to go down for them does not come down */
	ck_assert_int_eq(cache_warm(v.r.c, &(struct cache_warm_call){ .session = v.r.s.id, .keys = &k,
			.now_us = v.r.now }, &w, &warmed, &v.r.why), STATUS_BUSY);
	rig_tick(v.r.c, v.r.now);
	atomic_store(&searches, 0);
	for (int i = 0; i < TICKS; i++)
		rig_tick(v.r.c, v.r.now);
	ck_assert_int_le(searches, 8 * TICKS);
	vr_go(&v, 0);
	rig_quiet(&v.r);
	cache_wait_end(v.r.c, &w);
	ck_assert_uint_eq(vr_warm(&v, 0, 0, BLOCKS), BLOCKS);
	rig_quiet(&v.r);
	cache_lock(v.r.c);
	v.r.c->policy = counted_of;
	cache_unlock(v.r.c);
	munmap((void *)v.progress_page, EXTENT_PAGE_BYTES);
	free((void *)k.bytes);
	vr_close(&keeper);
}
END_TEST

/* A GPU whose budget is used up is not asked for more of it, however long ago it was used up. */
START_TEST(a_full_gpu_keeps_no_lease_waiting)
{
	struct cache_place p[8];
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 64 });
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 32), 32);
	ck_assert_uint_eq(vr_warm(&v, 0, 0, 16), 16);
	rig_quiet(&v.r);
	for (uint64_t round = 0; round < 3; round++) {
		const struct cache_on on = { .attachment = v.r.attachment, .gpu = 0 };
		struct cache_keys k = rig_keys(16 - 8 * (round % 2), 8);
		_Atomic int called = 0;
		struct cache_wait w = { .ready = vr_count, .arg = &called };
		struct cache_leased l;

		v.r.now += 1100000;
		rig_tick(v.r.c, v.r.now);
		ck_assert_int_eq(cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k,
				.all = true, .on = &on, .now_us = v.r.now, .places = p, .places_max = 8 }, &l,
					     &w, &v.r.why), STATUS_OK);
		vr_wait_layers(&v, &l);
		vr_release(&v, &l);
		cache_wait_end(v.r.c, &w);
		rig_quiet(&v.r);
		free((void *)k.bytes);
	}
	vr_close(&v);
}
END_TEST

static _Atomic uint32_t reads[RING_PRIORITIES];

static int count_reads(void *arg, const struct ring_request *q, uint32_t *most)
{
	(void)arg;
	(void)most;
	if (q->op == RING_READ)
		atomic_fetch_add(&reads[q->priority], 1);
	return 0;
}

/* What a Warm brings from a disk to a GPU is read ahead of its use, what a lease brings is read for somebody who waits. */
START_TEST(reads_for_a_gpu_have_their_priority)
{
	static const struct ring_calls calls = { .fault = count_reads };
	struct cache_place p[8];
	struct cache_leased l;
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 96);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 16, .disks = &d, .spill_milli = 900,
						.io_calls = &calls });
	rig_restored(&v.r);
	for (uint64_t n = 0; n < 40; n++) {
		ck_assert_uint_eq(vr_put(&v, CACHE_HOST, n, 1), 1);
		rig_quiet(&v.r);
	}
	memset((void *)reads, 0, sizeof(reads));
	ck_assert_uint_eq(vr_warm(&v, 0, 0, 8), 8);
	ck_assert_uint_eq(reads[RING_URGENT], 0);
	ck_assert_uint_ge(reads[RING_PREFETCH], 1);
	memset((void *)reads, 0, sizeof(reads));
	ck_assert_int_eq(vr_lease(&v, 0, 8, 8, true, false, p, &l), STATUS_OK);
	vr_wait_layers(&v, &l);
	vr_release(&v, &l);
	ck_assert_uint_ge(reads[RING_URGENT], 1);
	ck_assert_uint_eq(reads[RING_PREFETCH], 0);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

static _Atomic bool telling;

static void *tell(void *arg)
{
	while (atomic_load(&telling))
		cache_leases_notify(arg);
	return NULL;
}

/* What a lease has brought is summed once, be its summers woken by the submission thread (0), by who has told of the
 * lease (1), or by who comes first (2); also without any (3), by the submission thread itself. */
START_TEST(summed_by_whoever_is_there)
{
	enum { ROUNDS = 20, BLOCKS = 6 };
	const uint64_t bytes = (uint64_t)BLOCKS * VR_BLOCK_BYTES;
	struct cache_place p[BLOCKS];
	enum status statuses[BLOCKS];
	struct cache_leased l;
	struct vram_rig v;
	pthread_t thread;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 2 * VR_EXTENT_SLOTS, .host_slots = 32, .sum_threads = _i == 3 ? 0 : 2 });
	atomic_store(&telling, _i == 2);
	if (_i == 2)
		ck_assert_int_eq(pthread_create(&thread, NULL, tell, v.r.c), 0);
	for (uint64_t round = 0; round < ROUNDS; round++) {
		double before = rig_stat(&v.r, "terrace_gpu_verified_bytes_total", "");

		ck_assert_uint_eq(vr_put(&v, CACHE_HOST, round * BLOCKS, BLOCKS), BLOCKS);
		vr_hold(&v, 0, 0); /* else it may all be there before the lease is granted */
		ck_assert_int_eq(vr_lease(&v, 0, round * BLOCKS, BLOCKS, true, false, p, &l), STATUS_OK);
		ck_assert_uint_eq(l.progress_page_layers, VR_LAYERS);
		if (_i == 1)
			cache_leases_notify(v.r.c);
		vr_go(&v, 0);
		vr_wait_layers(&v, &l);
		for (uint64_t n = 0; n < BLOCKS; n++)
			ck_assert(vr_matches(&v, &p[n], round * BLOCKS + n, 0));
		ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_verified_bytes_total", ""), before + (double)bytes);
		vr_release(&v, &l);
		ck_assert_int_eq(rig_delete(&v.r, round * BLOCKS, BLOCKS, statuses), STATUS_OK);
		rig_quiet(&v.r);
	}
	atomic_store(&telling, false);
	if (_i == 2)
		pthread_join(thread, NULL);
	vr_close(&v);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_vram_layers");
	TCase *t = tcase_create("cache_vram_layers");
	SRunner *runner;
	int failed;

	tcase_set_timeout(t, 120);
	tcase_add_test(t, layers_come_in_their_order);
	tcase_add_loop_test(t, layers_come_while_extents_are_made, 0, 2);
	tcase_add_loop_test(t, a_lease_that_is_given_up, 0, 3);
	tcase_add_loop_test(t, granted_when_it_is_there, 0, 2);
	tcase_add_test(t, given_back_while_it_is_copied);
	tcase_add_test(t, a_share_of_the_gpu);
	tcase_add_test(t, a_long_warm_comes_in_pieces);
	tcase_add_test(t, what_is_expected_is_made_ready_for);
	tcase_add_test(t, a_submission_that_is_kept_awake);
	tcase_add_test(t, a_lease_that_comes);
	tcase_add_test(t, a_lost_gpu_is_not_kept_awake);
	tcase_add_test(t, layers_of_thousands);
	tcase_add_test(t, a_long_queue_before_a_full_gpu);
	tcase_add_test(t, a_full_gpu_keeps_no_lease_waiting);
	tcase_add_test(t, reads_for_a_gpu_have_their_priority);
	tcase_add_loop_test(t, summed_by_whoever_is_there, 0, 4);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
