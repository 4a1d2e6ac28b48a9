/* A copy of a block is wrong. One in memory takes the block with it, out of all tiers, and it is a miss: who finds it so, and whatever is under way
 * with it. What a lease holds stays as it is until the lease ends. Loops run with threads for sums (_i 1) and without, where nothing else is said. */
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/call/delete.h"
#include "daemon/call/flush.h"
#include "daemon/call/inspect.h"
#include "daemon/call/lease.h"
#include "daemon/call/warm.h"
#include "daemon/disk/scrub.h"
#include "daemon/disk/state.h"
#include "daemon/vram/state.h"
#include "proto/fdsock.h"
#include "store/device.h"
#include "store/host/extent.h"
#include "store/index.h"
#include "store/slot.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 16 };

static void open_with(struct vram_rig *v, const struct rig_disks *d, int threads)
{
	vr_open(v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = SLOTS, .host_slots = SLOTS, .disks = d, .spill_milli = 900,
					       .sum_threads = 2 * (uint32_t)threads });
	rig_restored(&v->r);
}

/* A byte in each 64 KiB of every slab. */
static void rot(const struct rig_disks *d)
{
	DIR *dir = opendir(d->folder[0]);

	ck_assert_ptr_nonnull(dir);
	for (struct dirent *e; (e = readdir(dir));) {
		char path[400];
		uint8_t byte;
		int fd;

		snprintf(path, sizeof(path), "%s/%s", d->folder[0], e->d_name);
		fd = strncmp(e->d_name, "slab-", 5) ? -1 : open(path, O_RDWR);
		for (off_t at = 32 << 10; fd >= 0 && pread(fd, &byte, 1, at) == 1; at += 64 << 10) {
			byte ^= 1;
			ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
		}
		if (fd >= 0)
			close(fd);
	}
	closedir(dir);
}

/* A copy on a GPU is wrong, and held; then that on the disk turns out to be wrong, too: nothing is left, and its name can be put anew. */
START_TEST(an_engine_holds_the_last)
{
	struct cache_verified sum = { .blocks = 0 };
	struct cache_place p;
	struct cache_leased l;
	uint64_t cursor = 0;
	struct rig_disks d;
	struct vram_rig v;
	uint32_t there;

	vr_disks_make(&d, 1, 192);
	open_with(&v, &d, 1);
	ck_assert_uint_eq(vr_put(&v, 0, 0, 1), 1);
	rig_quiet(&v.r);
	vr_push_out(&v, 3 * SLOTS);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 1, true, false, &p, &l), STATUS_OK);
	vr_bytes(&v, &p)[77] ^= 1;
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 1), 1);
	vr_push_out(&v, 3 * SLOTS);
	ck_assert_str_eq(vr_tier(&v, 0), "disk");
	there = (uint32_t)rig_stat(&v.r, "terrace_blocks", "tier=disk");
	rot(&d);
	while (cursor != UINT64_MAX)
		ck_assert_int_eq(cache_verify_disk_step(v.r.c, &cursor, UINT64_MAX, &sum), STATUS_OK);
	ck_assert_uint_eq(sum.corrupt, there); /* what is written meanwhile is sound */
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 1), 1);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 1), 1);
	vr_release(&v, &l);
	vr_end(&v, &d);
}
END_TEST

/* A miss to a lease in memory and on a GPU, until it is put anew. */
static void check_gone(struct vram_rig *v, int32_t gpu)
{
	struct cache_leased l;
	struct cache_place p;

	ck_assert_str_eq(vr_tier(v, 0), "");
	ck_assert_int_eq(vr_lease(v, CACHE_HOST, 0, 1, true, false, &p, &l), STATUS_MISS);
	ck_assert_int_eq(vr_lease(v, gpu, 0, 1, true, false, &p, &l), STATUS_MISS);
	rig_check_accounting(v->r.c);
}

static void put_anew(struct vram_rig *v, int32_t gpu)
{
	ck_assert_uint_eq(vr_put(v, CACHE_HOST, 0, 1), 1);
	ck_assert_uint_eq(vr_read_all(v, gpu, 0, 1), 1);
	ck_assert_uint_eq(vr_read_all(v, CACHE_HOST, 0, 1), 1);
	rig_check_accounting(v->r.c);
}

/* A lease has the wrong copy, and keeps its slot; the block is gone, on its disk too, also for the next run. */
START_TEST(wrong_in_memory_that_a_lease_has)
{
	struct cache_place p;
	struct cache_leased l;
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 192);
	open_with(&v, &d, _i);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 1), 1);
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
	ck_assert_int_eq(vr_lease(&v, CACHE_HOST, 0, 1, true, false, &p, &l), STATUS_OK);
	vr_bytes(&v, &p)[0] ^= 1;
	ck_assert_uint_eq(vr_warm(&v, 0, 0, 1), 0);
	ck_assert_double_eq(vr_corrupt(&v, "to=gpu"), 1);
	check_gone(&v, 0);
	vr_push_out(&v, 3 * SLOTS);
	vr_bytes(&v, &p)[0] ^= 1;
	ck_assert(vr_matches(&v, &p, 0, 0)); /* its slot is no other block's */
	vr_release(&v, &l);
	rig_quiet(&v.r);
	ck_assert_double_ge(rig_stat(&v.r, "terrace_tombstones_total", "status=ok"), 1);
	vr_close(&v);
	open_with(&v, &d, _i);
	check_gone(&v, 0);
	put_anew(&v, 0);
	vr_end(&v, &d);
}
END_TEST

/* Deleted, and put anew in memory or (_i 1) on a GPU, while the lease still has the wrong copy. */
START_TEST(put_anew_while_a_lease_has_it)
{
	struct cache_place p;
	struct cache_leased l;
	struct rig_disks d;
	struct vram_rig v;
	enum status st;

	vr_disks_make(&d, 1, 96);
	open_with(&v, &d, 1);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 1), 1);
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
	ck_assert_int_eq(vr_lease(&v, CACHE_HOST, 0, 1, true, false, &p, &l), STATUS_OK);
	vr_bytes(&v, &p)[0] ^= 1;
	ck_assert_uint_eq(vr_warm(&v, 0, 0, 1), 0);
	ck_assert_int_eq(rig_delete(&v.r, 0, 1, &st), STATUS_OK);
	ck_assert_int_eq(st, STATUS_MISS);
	ck_assert_uint_eq(vr_put(&v, _i ? 0 : CACHE_HOST, 0, 1), 1);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 1), 1);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 1), 1);
	rig_check_accounting(v.r.c);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* There is a sound copy on another GPU: a lease of it (_i 1) is good until it ends, and no other call gets it. */
START_TEST(sound_on_another_gpu)
{
	struct cache_place p, there, void_p;
	struct cache_leased l, void_l, sound_l;
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 2, .gpu_slots = SLOTS, .host_slots = SLOTS, .sum_threads = 2 });
	ck_assert_uint_eq(vr_put(&v, 0, 50, 1), 1); /* there is an extent: granted at once */
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 1), 1);
	ck_assert_uint_eq(vr_read_all(&v, 1, 0, 1), 1);
	rig_quiet(&v.r);
	ck_assert_int_eq(vr_lease(&v, CACHE_HOST, 0, 1, true, false, &p, &l), STATUS_OK);
	if (_i)
		ck_assert_int_eq(vr_lease(&v, 1, 0, 1, true, false, &there, &sound_l), STATUS_OK);
	vr_bytes(&v, &p)[9] ^= 1;
	ck_assert_int_eq(vr_lease(&v, 0, 0, 1, true, false, &void_p, &void_l), STATUS_OK);
	vr_wait_layers(&v, &void_l);
	ck_assert_uint_eq(v.progress_page[FDSOCK_PROGRESS_PAGE_FAILED], 1);
	RIG_AWAIT(vr_corrupt(&v, "to=gpu") == 1);
	check_gone(&v, 1);
	vr_release(&v, &void_l);
	if (_i) {
		ck_assert_uint_eq(vr_warm(&v, 1, 1000, 3 * SLOTS), 0);
		for (uint64_t n = 1000; n < 1000 + 3 * SLOTS; n++) /* nothing takes the leased slot */
			vr_put(&v, 1, n, 1);
		rig_quiet(&v.r); /* memory has places for what comes down */
		ck_assert(vr_on_gpu(&there, 1) && vr_matches(&v, &there, 0, 0));
		check_gone(&v, 1);
		vr_release(&v, &sound_l);
	}
	vr_release(&v, &l);
	rig_quiet(&v.r);
	rig_check_accounting(v.r.c);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_held_bytes", "gpu=0"), 0);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_held_bytes", "gpu=1"), 0);
	put_anew(&v, 1);
	vr_close(&v);
}
END_TEST

static enum status warm_step(struct vram_rig *v, int32_t gpu, struct cache_wait *w, uint32_t *blocks)
{
	struct cache_keys k = rig_keys(0, 1);
	enum status s = cache_warm(v->r.c, &(struct cache_warm_call){ .session = v->r.s.id, .keys = &k,
			.gpu = gpu, .now_us = v->r.now }, w, blocks, &v->r.why);

	free((void *)k.bytes);
	return s;
}

static _Atomic bool gate_shut;

static enum status gated_copy(struct device *d, struct device_copy *c, const char **why)
{
	while (gate_shut)
		usleep(200);
	return terrace_device_ops()->copy(d, c, why);
}

/* Two GPUs want it at once: both find it wrong, it is counted once, and both calls have a miss. */
START_TEST(wrong_for_two_gpus)
{
	struct device_ops ops = *terrace_device_ops();
	_Atomic int called = 0;
	struct cache_wait w[2] = { { .ready = vr_count, .arg = &called }, { .ready = vr_count, .arg = &called } };
	uint32_t blocks[2] = { 0, 0 };
	struct rig_disks d;
	struct vram_rig v;

	ops.copy = gated_copy; /* a list that nobody watches is looked at when it has begun */
	vr_disks_make(&d, 1, 96);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 2, .gpu_slots = SLOTS, .host_slots = SLOTS, .disks = &d, .spill_milli = 900,
						.sum_threads = 2 * (uint32_t)_i, .ops = &ops });
	rig_restored(&v.r);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 1), 1);
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
	vr_flip(&v, CACHE_HOST, 0, 5);
	gate_shut = true;
	for (uint32_t g = 0; g < 2; g++) {
		ck_assert_int_eq(warm_step(&v, (int32_t)g, &w[g], &blocks[g]), STATUS_BUSY);
		RIG_AWAIT(rig_stat(&v.r, "terrace_gpu_slots_used", g ? "gpu=1" : "gpu=0") == 1);
	}
	gate_shut = false;
	for (uint32_t g = 0; g < 2; g++)
		RIG_AWAIT(warm_step(&v, (int32_t)g, &w[g], &blocks[g]) == STATUS_OK);
	for (uint32_t g = 0; g < 2; g++) {
		ck_assert_uint_eq(blocks[g], 0);
		cache_wait_end(v.r.c, &w[g]);
	}
	check_gone(&v, 1);
	ck_assert_double_eq(vr_corrupt(&v, "to=gpu"), 1);
	rig_check_accounting(v.r.c);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

static void until_found(struct vram_rig *v, double wrong)
{
	RIG_AWAIT(rig_stat(&v->r, "terrace_gpu_corrupt_blocks_total", "to=gpu") >= wrong);
}

/* Where Verify has key 0 before it: other blocks are on a GPU that is held, and Verify would wait for them. */
static uint64_t cursor_at_first(struct vram_rig *v)
{
	struct cache_keys k = rig_keys(0, 1);
	struct index_walk w = { .place = 0 };
	const struct index_record *r;

	index_read_lock();
	do
		r = index_walk_next(v->r.c->index, &w);
	while (r && memcmp(r->name.inline_key, k.bytes, k.key_bytes) != 0);
	index_read_unlock();
	ck_assert_ptr_nonnull(r);
	free((void *)k.bytes);
	return w.place;
}

/* Who finds it wrong in memory: a copy to another GPU, or Verify. */
/* The GPU's thread looks again at what waits for room when it has tried to make more slots, when sums that pin blocks have come, and when
 * a slot has come free. Once none of these is ahead it looks no more before a copy ends. */
static void until_looked(struct vram_rig *v, uint32_t gpu)
{
	const struct gpu *g = v->r.c->vram->gpu[gpu];
	bool looks = true;

	while (looks) {
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
		cache_lock(v->r.c);
		looks = g->making || g->freed;
		for (const struct vram_class *k = g->classes; k; k = k->next)
			looks |= k->wanted || k->sums_due;
		cache_unlock(v->r.c);
	}
}

static void find(struct vram_rig *v, bool by_verify)
{
	struct cache_verified sum = { .blocks = 0 };
	struct cache_leased void_l;
	struct cache_place void_p;
	uint64_t cursor = cursor_at_first(v);

	if (by_verify) {
		while (!sum.corrupt) {
			ck_assert_uint_ne(cursor, UINT64_MAX);
			ck_assert_int_eq(cache_verify_step(v->r.c, &cursor, 1, &sum), STATUS_OK);
		}
		return;
	}
	ck_assert_int_eq(vr_lease(v, 0, 0, 1, true, false, &void_p, &void_l), STATUS_OK);
	vr_wait_layers(v, &void_l);
	ck_assert_uint_eq(v->progress_page[FDSOCK_PROGRESS_PAGE_FAILED], 1);
	until_found(v, 1);
	vr_release(v, &void_l);
}

/* To GPU 2, to the end: by a Warm or by a lease without a progress page, which is given back. */
static enum status bring(struct vram_rig *v, const struct cache_keys *k, struct cache_wait *w, uint32_t *blocks)
{
	const struct cache_on on = { .attachment = v->r.attachment, .gpu = 2 };
	struct cache_leased l;
	struct cache_place p;
	enum status s;

	if (v->progress_page)
		return cache_warm(v->r.c, &(struct cache_warm_call){ .session = v->r.s.id, .keys = k, .gpu = 2,
				.now_us = v->r.now }, w, blocks, &v->r.why);
	s = cache_lease(v->r.c, &(struct cache_lease_call){ .session = v->r.s.id, .keys = k, .all = true,
							    .on = &on, .now_us = v->r.now, .places = &p,
							    .places_max = 1 }, &l, w, &v->r.why);
	if (!s) {
		ck_assert(vr_on_gpu(&p, 2) && vr_matches(v, &p, 0, 0));
		vr_release(v, &l);
	}
	*blocks = !s;
	return s;
}

/* The only sound copy is on its way to a third GPU when memory's is found wrong: the call that waits for it has a miss. On its way it is
 * copied (_i & 1: or waits for room), and is found wrong by a copy (_i & 2: by Verify); then the copy across ends well (_i & 4: ill, with that GPU, or _i & 8:
 * with the sound copy's). */
START_TEST(sound_on_its_way)
{
	const bool by_lease = _i == 12; /* and Verify */
	const bool waits = _i & 1, by_verify = _i & 2 || by_lease, to_lost = _i & 4 && !by_lease, from_lost = _i & 8 && !by_lease;
	_Atomic int called = 0;
	struct cache_wait w = { .ready = vr_count, .arg = &called };
	struct cache_keys k = rig_keys(0, 1);
	struct cache_place p;
	struct cache_leased l;
	uint32_t blocks = 0;
	enum status s;
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 3, .gpu_slots = SLOTS, .host_slots = 4 * SLOTS,
	    .sum_threads = 2, .no_progress_page = by_lease });
	ck_assert_uint_eq(vr_put(&v, 0, 50, 1), 1); /* there is an extent: granted at once */
	ck_assert_uint_eq(vr_put(&v, 2, 51, 1), 1);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 1), 1);
	ck_assert_uint_eq(vr_read_all(&v, 1, 0, 1), 1);
	rig_quiet(&v.r);
	ck_assert_int_eq(vr_lease(&v, CACHE_HOST, 0, 1, true, false, &p, &l), STATUS_OK);
	vr_bytes(&v, &p)[9] ^= 1;
	vr_release(&v, &l);
	vr_hold(&v, 2, 1);
	if (waits) /* room is there when these have come down, which they cannot before they have their sums */
		ck_assert_uint_eq(vr_put(&v, 2, 500, SLOTS), SLOTS);
	RIG_AWAIT(rig_stat(&v.r, "terrace_gpu_commit_sums_total", "result=made") == 2 + (waits ? SLOTS : 0));
	ck_assert_int_eq(bring(&v, &k, &w, &blocks), STATUS_BUSY);
	until_looked(&v, 2);
	find(&v, by_verify);
	ck_assert_str_eq(vr_tier(&v, 0), "");
	ck_assert_int_eq(called, 0);
	rig_check_accounting(v.r.c);
	if (to_lost || from_lost)
		vr_lose(&v, to_lost ? 2 : 1);
	vr_go(&v, 2);
	while ((s = bring(&v, &k, &w, &blocks)) == STATUS_BUSY)
		while (!w.poll && !atomic_exchange(&called, 0))
			nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	cache_wait_end(v.r.c, &w);
	free((void *)k.bytes);
	if (!to_lost && !from_lost)
		ck_assert_int_eq(s, by_lease ? STATUS_MISS : STATUS_OK);
	ck_assert_uint_eq(s ? 0 : blocks, 0);
	rig_quiet(&v.r);
	rig_check_accounting(v.r.c);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_held_bytes", "gpu=2"), 0);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 1), 0);
	put_anew(&v, 0);
	rig_check_accounting(v.r.c);
	vr_close(&v);
}
END_TEST

/* Begins to write key 0 to the disk, whose writes wait. */
static void spill(struct vram_rig *v)
{
	struct cache_wait w = { .ready = vr_count, .arg = &(_Atomic int){ 0 } };
	struct cache_keys k = rig_keys(0, 1);
	enum status st;
	bool is = false;

	for (int i = 0; !is; i++) {
		ck_assert_int_lt(i, 10000);
		ck_assert_int_eq(cache_flush(v->r.c, v->r.s.id, &k, v->r.now, &w, &st, &v->r.why), STATUS_BUSY);
		cache_lock(v->r.c);
		is = v->r.c->tier->transfer_count;
		cache_unlock(v->r.c);
		rig_tick(v->r.c, v->r.now); /* makes a slab */
	}
	cache_wait_end(v->r.c, &w);
	free((void *)k.bytes);
}

/* It is being written to a disk from there: what is written gets a tombstone, and neither this run nor the next one finds the block. */
START_TEST(wrong_while_it_is_spilled)
{
	struct cache_verified sum = { .blocks = 0 };
	struct cache_place p, q;
	struct cache_leased l, void_l;
	uint64_t cursor = 0;
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 96);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 2, .gpu_slots = SLOTS, .host_slots = SLOTS, .disks = &d, .spill_milli = 1,
						.sum_threads = 2, .io_calls = &vr_held_writes });
	rig_restored(&v.r);
	ck_assert_uint_eq(vr_put(&v, 0, 50, 1), 1); /* there is an extent */
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 1), 1);
	ck_assert_uint_eq(vr_read_all(&v, 1, 0, 1), 1);
	rig_quiet(&v.r);
	ck_assert_str_eq(vr_tier(&v, 0), "gpu+host");
	pthread_mutex_lock(&vr_writes);
	ck_assert_int_eq(vr_lease(&v, CACHE_HOST, 0, 1, true, false, &p, &l), STATUS_OK);
	vr_bytes(&v, &p)[9] ^= 1;
	vr_release(&v, &l);
	spill(&v);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 1, true, false, &q, &void_l), STATUS_OK);
	vr_wait_layers(&v, &void_l);
	vr_release(&v, &void_l);
	until_found(&v, 1);
	ck_assert_str_eq(vr_tier(&v, 0), "");
	pthread_mutex_unlock(&vr_writes);
	rig_quiet(&v.r);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_tombstones_total", "status=ok"), 1);
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
	while (cursor != UINT64_MAX)
		ck_assert_int_eq(cache_verify_disk_step(v.r.c, &cursor, UINT64_MAX, &sum), STATUS_OK);
	ck_assert_uint_eq(sum.blocks, 1);
	ck_assert_uint_eq(sum.corrupt, 0);
	check_gone(&v, 1);
	vr_close(&v);
	open_with(&v, &d, 1);
	check_gone(&v, 0);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 50, 1), 1);
	vr_end(&v, &d);
}
END_TEST

/* Deleted while what was found wrong is still being written to a disk: that is not over before its header cannot come back. */
START_TEST(deleted_while_it_is_spilled)
{
	_Atomic int called = 0;
	struct cache_wait w = { .ready = vr_count, .arg = &called };
	struct cache_keys k = rig_keys(0, 1);
	struct cache_place p;
	struct cache_leased l;
	struct rig_disks d;
	struct vram_rig v;
	enum status st;

	vr_disks_make(&d, 1, 96);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 2, .gpu_slots = SLOTS, .host_slots = SLOTS, .disks = &d, .spill_milli = 1,
						.io_calls = &vr_held_writes });
	rig_restored(&v.r);
	ck_assert_uint_eq(vr_put(&v, 0, 50, 1), 1); /* there is an extent: what is leased comes from memory */
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 1), 1);
	if (_i) /* that copy goes with it */
		ck_assert_uint_eq(vr_read_all(&v, 1, 0, 1), 1);
	vr_flip(&v, CACHE_HOST, 0, 9);
	pthread_mutex_lock(&vr_writes);
	spill(&v);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 1, true, false, &p, &l), STATUS_OK);
	vr_release(&v, &l);
	RIG_AWAIT(rig_stat(&v.r, "terrace_gpu_corrupt_blocks_total", "to=gpu") == 1);
	ck_assert_int_eq(cache_delete(v.r.c, v.r.s.id, &k, &st, &w, &v.r.why), STATUS_BUSY);
	for (int i = 0; i < 20; i++) {
		rig_tick(v.r.c, v.r.now);
		usleep(1000);
		ck_assert_int_eq(cache_delete(v.r.c, v.r.s.id, &k, &st, &w, &v.r.why), STATUS_BUSY);
	}
	pthread_mutex_unlock(&vr_writes);
	RIG_AWAIT(cache_delete(v.r.c, v.r.s.id, &k, &st, &w, &v.r.why) == STATUS_OK);
	cache_wait_end(v.r.c, &w);
	ck_assert_int_eq(st, STATUS_MISS);
	ck_assert_double_ge(rig_stat(&v.r, "terrace_tombstones_total", "status=ok"), 1);
	free((void *)k.bytes);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* Found by Verify: the same. */
START_TEST(verified_wrong_in_memory)
{
	struct cache_verified sum = { .blocks = 0 };
	uint64_t cursor = 0;
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 96);
	open_with(&v, &d, 1);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 2), 2);
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
	vr_flip(&v, CACHE_HOST, 1, 3);
	while (cursor != UINT64_MAX)
		ck_assert_int_eq(cache_verify_step(v.r.c, &cursor, UINT64_MAX, &sum), STATUS_OK);
	ck_assert_uint_eq(sum.corrupt, 1);
	ck_assert_str_eq(vr_tier(&v, 1), "");
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 2), 1);
	vr_sound(&v);
	rig_check_accounting(v.r.c);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* Memory's copy is known to be wrong, and the list that found it has not ended: from then on the block is a miss, also on another GPU that has a sound
 * copy (_i & 2), and its name can be put anew. With (_i & 4) the lease that found it is given back before that. */
START_TEST(known_wrong_at_once)
{
	struct cache_leased wrong;
	struct cache_place p;
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 96);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 2, .gpu_slots = SLOTS, .host_slots = 4 * SLOTS, .disks = &d, .sum_threads = 2 * (_i & 1),
						.write_back = true });
	rig_restored(&v.r);
	ck_assert_uint_eq(vr_put(&v, 0, 50, 1), 1); /* there is an extent */
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 1), 1);
	if (_i & 2)
		ck_assert_uint_eq(vr_read_all(&v, 1, 0, 1), 1);
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
	rig_quiet(&v.r);
	vr_flip(&v, CACHE_HOST, 0, 9);
	vr_hold(&v, 0, 1);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 1, true, false, &p, &wrong), STATUS_OK);
	RIG_AWAIT(v.progress_page[FDSOCK_PROGRESS_PAGE_FAILED]);
	cache_lock(v.r.c); /* the thread that has told of it has it for so long */
	cache_unlock(v.r.c);
	if (_i & 4)
		vr_release(&v, &wrong);
	check_gone(&v, 1);
	put_anew(&v, 1);
	vr_go(&v, 0);
	rig_quiet(&v.r);
	ck_assert_double_eq(vr_corrupt(&v, "to=gpu"), 1);
	if (!(_i & 4))
		vr_release(&v, &wrong);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 1), 1);
	rig_check_accounting(v.r.c);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* Memory's copy is found to be wrong while a call for a full GPU waits for room there, to be copied from it: the call has a miss, whatever else there
 * was of the block (_i: on a disk, or on another GPU). */
START_TEST(found_while_it_waits_for_room)
{
	_Atomic int called = 0;
	struct cache_wait w = { .ready = vr_count, .arg = &called };
	struct cache_keys k = rig_keys(0, 1);
	uint32_t blocks = 0;
	struct rig_disks d;
	struct vram_rig v;

	setenv("SIM_GPU_NO_PEERS", "1", 1);
	vr_disks_make(&d, 1, 96);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 3, .gpu_slots = SLOTS, .host_slots = 4 * SLOTS, .disks = _i ? &d : NULL });
	if (_i)
		rig_restored(&v.r);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 1), 1);
	if (_i)
		ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
	else
		ck_assert_uint_eq(vr_read_all(&v, 1, 0, 1), 1);
	rig_quiet(&v.r);
	vr_flip(&v, CACHE_HOST, 0, 9);
	vr_hold(&v, 2, 1);
	ck_assert_uint_eq(vr_put(&v, 2, 500, SLOTS), SLOTS);
	ck_assert_int_eq(cache_warm(v.r.c, &(struct cache_warm_call){ .session = v.r.s.id, .keys = &k, .gpu = 2,
			.now_us = v.r.now }, &w, &blocks, &v.r.why), STATUS_BUSY);
	until_looked(&v, 2);
	find(&v, true);
	ck_assert_int_eq(called, 0);
	vr_go(&v, 2);
	RIG_AWAIT((rig_tick(v.r.c, v.r.now), cache_warm(v.r.c, &(struct cache_warm_call){ .session = v.r.s.id,
			.keys = &k, .gpu = 2, .now_us = v.r.now }, &w, &blocks, &v.r.why)) == STATUS_OK);
	ck_assert_uint_eq(blocks, 0);
	cache_wait_end(v.r.c, &w);
	free((void *)k.bytes);
	check_gone(&v, 2);
	rig_check_accounting(v.r.c);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_vram_damaged");
	TCase *t = tcase_create("cache_vram_damaged");
	SRunner *runner;
	int failures;

	tcase_set_timeout(t, 120);
	tcase_add_test(t, an_engine_holds_the_last);
	tcase_add_loop_test(t, wrong_in_memory_that_a_lease_has, 0, 2);
	tcase_add_loop_test(t, put_anew_while_a_lease_has_it, 0, 2);
	tcase_add_loop_test(t, sound_on_another_gpu, 0, 2);
	tcase_add_loop_test(t, wrong_for_two_gpus, 0, 2);
	tcase_add_loop_test(t, sound_on_its_way, 0, 13);
	tcase_add_test(t, wrong_while_it_is_spilled);
	tcase_add_loop_test(t, deleted_while_it_is_spilled, 0, 2);
	tcase_add_test(t, verified_wrong_in_memory);
	tcase_add_loop_test(t, known_wrong_at_once, 0, 8);
	tcase_add_loop_test(t, found_while_it_waits_for_room, 0, 2);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failures = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failures ? 1 : 0;
}
