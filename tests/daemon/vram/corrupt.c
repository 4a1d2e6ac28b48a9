/* Bytes that change on a GPU, on the way to it, or in the memory that they go up from: checksums that were made once find it, and the block
 * comes from where else it is, or is a miss. Each loop runs with threads for sums (_i 1) and without. */
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/call/faults.h"
#include "daemon/call/lease.h"
#include "daemon/call/reserve.h"
#include "daemon/threads/checksum_pool.h"
#include "daemon/threads/pool.h"
#include "daemon/vram/state.h"
#include "daemon/vram/stats.h"
#include "daemon/vram/vram.h"
#include "proto/fdsock.h"
#include "store/device.h"
#include "store/host/extent.h"
#include "store/slot.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 16, LAYER_BYTES = VR_BLOCK_BYTES / VR_LAYERS };

static void open_with(struct vram_rig *v, const struct rig_disks *d, int threads)
{
	vr_open(v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = SLOTS, .host_slots = SLOTS, .disks = d, .spill_milli = d ? 900 : 0,
					       .sum_threads = 2 * (uint32_t)threads });
	if (d)
		rig_restored(&v->r);
}

/* ---- down ---- */

/* With a disk the block comes from there; without, it is a miss. */
static void down_again(const struct rig_disks *d, int threads, int32_t put)
{
	struct cache_gpu_view gpu;
	struct vram_rig v;

	open_with(&v, d, threads);
	ck_assert_uint_eq(vr_put(&v, put, 0, 1), 1);
	rig_quiet(&v.r);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 1), 1);
	vr_push_out(&v, 3 * SLOTS);
	ck_assert_str_eq(vr_tier(&v, 0), d ? "gpu+disk" : "gpu");
	vr_flip(&v, 0, 0, 100000);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 1), d != NULL);
	ck_assert_double_eq(vr_corrupt(&v, "to=host"), 1);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_corrupt_blocks_total", ""), 1);
	ck_assert_str_eq(vr_tier(&v, 0), d ? "host+disk" : "");
	vr_sound(&v);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 1), d != NULL);
	ck_assert_double_eq(vr_corrupt(&v, "to=host"), 1);
	ck_assert_uint_eq(cache_gpus(v.r.c, &gpu, 1), 1);
	ck_assert_uint_eq(gpu.corrupt_down, 1);
	ck_assert_uint_eq(gpu.corrupt_up, 0);
	vr_close(&v);
}

START_TEST(put_on_a_gpu_and_down_twice)
{
	struct rig_disks d;

	vr_disks_make(&d, 1, 96);
	down_again(&d, _i, 0);
	rig_disks_remove(&d);
	down_again(NULL, _i, 0);
}
END_TEST

START_TEST(brought_up_and_down)
{
	struct rig_disks d;

	vr_disks_make(&d, 1, 96);
	down_again(&d, _i, CACHE_HOST);
	rig_disks_remove(&d);
	down_again(NULL, _i, CACHE_HOST);
}
END_TEST

/* The copy on another GPU is of the same bytes: its sums are known with the first's, whichever way they became known. */
START_TEST(known_on_another_gpu)
{
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 2, .gpu_slots = SLOTS, .host_slots = SLOTS, .sum_threads = 2, .write_back = true });
	ck_assert_uint_eq(vr_put(&v, _i ? CACHE_HOST : 0, 0, 1), 1);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 1), 1);
	if (_i) /* up, then across; else across, then down */
		vr_push_out(&v, 3 * SLOTS);
	ck_assert_uint_eq(vr_warm(&v, 1, 0, 1), 1);
	if (!_i) {
		ck_assert_uint_eq(vr_warm(&v, CACHE_HOST, 0, 1), 1);
		vr_push_out(&v, 3 * SLOTS);
	}
	ck_assert_str_eq(vr_tier(&v, 0), "gpu");
	vr_flip(&v, 1, 0, 5);
	/* It is tried from either: at last it is there, from the one that is right. */
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 1), 1);
	ck_assert_double_eq(vr_corrupt(&v, "to=host"), 1);
	vr_sound(&v);
	ck_assert_uint_eq(vr_read_all(&v, 1, 0, 1), 1);
	vr_close(&v);
}
END_TEST

/* All who wait for it get it from the disk, with nothing shed. */
START_TEST(several_wait_for_it)
{
	_Atomic int called = 0;
	struct cache_wait w[3];
	struct cache_keys k = rig_keys(0, 1);
	struct cache_on on = { .gpu = CACHE_HOST };
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 96);
	open_with(&v, &d, _i);
	on.attachment = v.r.attachment;
	ck_assert_uint_eq(vr_put(&v, 0, 0, 1), 1);
	rig_quiet(&v.r);
	vr_push_out(&v, 3 * SLOTS);
	vr_flip(&v, 0, 0, VR_BLOCK_BYTES - 1);
	vr_hold(&v, 0, 0);
	for (int i = 0; i < 3; i++) {
		struct cache_place p;
		struct cache_leased l;

		w[i] = (struct cache_wait){ .ready = vr_count, .arg = &called };
		ck_assert_int_eq(cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k,
				.all = true, .on = &on, .now_us = v.r.now, .places = &p, .places_max = 1 }, &l,
					     &w[i], &v.r.why), STATUS_BUSY);
	}
	vr_go(&v, 0);
	vr_await_called(&v, &called, 3);
	for (int i = 0; i < 3; i++) {
		struct cache_place p;
		struct cache_leased l;

		ck_assert_int_eq(cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k,
				.all = true, .on = &on, .now_us = v.r.now, .places = &p, .places_max = 1 }, &l,
					     &w[i], &v.r.why), STATUS_OK);
		ck_assert(vr_matches(&v, &p, 0, 0));
		vr_release(&v, &l);
		cache_wait_end(v.r.c, &w[i]);
	}
	ck_assert_double_eq(vr_corrupt(&v, "to=host"), 1);
	free((void *)k.bytes);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* An engine holds the copy: its slot is nobody else's before that has ended, and nobody else gets the copy. */
START_TEST(an_engine_holds_it)
{
	const double used = 1;
	struct cache_place p, q;
	struct cache_leased l, other;
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 96);
	open_with(&v, &d, 1);
	ck_assert_uint_eq(vr_put(&v, 0, 0, 1), 1);
	rig_quiet(&v.r);
	vr_push_out(&v, 3 * SLOTS);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 1, true, false, &p, &l), STATUS_OK);
	vr_bytes(&v, &p)[77] ^= 1;
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 1), 1);
	ck_assert_double_eq(vr_corrupt(&v, "to=host"), 1);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_slots_used", "gpu=0"), used);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_blocks", "gpu=0"), 0);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 1, true, false, &q, &other), STATUS_MISS);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 1, true, true, &q, &other), STATUS_OK);
	ck_assert(!vr_on_gpu(&q, 0) && vr_matches(&v, &q, 0, 0));
	vr_release(&v, &other);
	vr_release(&v, &l);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_slots_used", "gpu=0"), 0);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 1), 1);
	rig_quiet(&v.r);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_held_bytes", "gpu=0"), 0);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* Deleted meanwhile, or its GPU lost: nothing is left behind. */
START_TEST(held_to_the_end)
{
	struct cache_place p;
	struct cache_leased l;
	struct rig_disks d;
	struct vram_rig v;
	enum status st;

	vr_disks_make(&d, 1, 96);
	open_with(&v, &d, 1);
	ck_assert_uint_eq(vr_put(&v, 0, 0, 1), 1);
	rig_quiet(&v.r);
	vr_push_out(&v, 3 * SLOTS);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 1, true, false, &p, &l), STATUS_OK);
	vr_bytes(&v, &p)[77] ^= 1;
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 1), 1);
	if (_i)
		vr_lose(&v, 0);
	if (_i)
		RIG_AWAIT(cache_degraded(v.r.c));
	ck_assert_int_eq(rig_delete(&v.r, 0, 1, &st), STATUS_OK);
	vr_release(&v, &l);
	rig_quiet(&v.r);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_slots_used", "gpu=0"), 0);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* ---- up ---- */

static uint32_t failed(const struct vram_rig *v)
{
	return v->progress_page[FDSOCK_PROGRESS_PAGE_FAILED];
}

/* A lease that was granted ahead is void, and to the one after it the block is a miss, whether a disk had it or not. */
START_TEST(a_lease_prefetch_of_what_is_wrong)
{
	for (int disks = 0; disks < 2; disks++) {
		struct cache_place p[4];
		struct cache_leased l;
		struct rig_disks d;
		struct vram_rig v;

		if (disks)
			vr_disks_make(&d, 1, 96);
		open_with(&v, disks ? &d : NULL, _i);
		ck_assert_uint_eq(vr_put(&v, 0, 50, 1), 1); /* there is an extent: granted at once */
		ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 4), 4);
		if (disks)
			ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
		rig_quiet(&v.r);
		vr_flip(&v, CACHE_HOST, 2, 3 * LAYER_BYTES + 9);
		ck_assert_int_eq(vr_lease(&v, 0, 0, 4, true, false, p, &l), STATUS_OK);
		ck_assert_uint_eq(l.progress_page_layers, VR_LAYERS);
		ck_assert(l.progress_page_summed);
		vr_wait_layers(&v, &l);
		ck_assert_uint_eq(failed(&v), 1);
		ck_assert_double_eq(vr_corrupt(&v, "to=gpu"), 1);
		vr_release(&v, &l);
		ck_assert_uint_eq(vr_read_all(&v, 0, 0, 4), 3);
		ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 4), 3);
		ck_assert_double_eq(vr_corrupt(&v, "to=gpu"), 1);
		vr_sound(&v);
		vr_close(&v);
		if (disks)
			rig_disks_remove(&d);
	}
}
END_TEST

/* Who waits for the end has what is sound before them. */
START_TEST(a_call_that_waits_for_the_end)
{
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 96);
	open_with(&v, &d, _i);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 4), 4);
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
	rig_quiet(&v.r);
	for (uint64_t n = 1; n < 4; n++)
		vr_flip(&v, CACHE_HOST, n, (uint32_t)n * LAYER_BYTES);
	ck_assert_uint_eq(vr_warm(&v, 0, 0, 4), 1);
	ck_assert_double_eq(vr_corrupt(&v, "to=gpu"), 3);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 4), 1);
	ck_assert_uint_eq(failed(&v), 0);
	vr_sound(&v);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* A header that is no longer the block's tells nothing of its bytes, with or without the sums. */
START_TEST(a_header_that_is_wrong)
{
	struct cache_place p;
	struct cache_leased l;
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = SLOTS, .host_slots = SLOTS, .no_verify = _i });
	ck_assert_uint_eq(vr_put(&v, 0, 50, 1), 1); /* there is an extent: leases are granted at once */
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 2), 2);
	rig_quiet(&v.r);
	ck_assert_int_eq(vr_lease(&v, CACHE_HOST, 0, 1, true, false, &p, &l), STATUS_OK);
	(vr_bytes(&v, &p) - SLOT_HEADER_BYTES)[offsetof(struct slot_header, position)] ^= 1;
	vr_release(&v, &l);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 1, true, false, &p, &l), STATUS_OK);
	vr_wait_layers(&v, &l);
	ck_assert_double_eq(vr_corrupt(&v, "to=gpu"), 1);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_slots_used", "gpu=0"), 2); /* it is held */
	ck_assert_uint_eq(failed(&v), 1);
	vr_release(&v, &l);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_gpu_slots_used", "gpu=0"), 1);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 2), 1);
	vr_close(&v);
}
END_TEST

/* Blocks in memory, and two sessions; the GPU has an extent. */
static void open_two(struct vram_rig *v, struct vram_rig *other, int threads, uint32_t blocks)
{
	open_with(v, NULL, threads);
	vr_join(other, v, 0, "other");
	vr_progress_page(other);
	ck_assert_uint_eq(vr_put(v, 0, 50, 1), 1);
	ck_assert_uint_eq(vr_put(v, CACHE_HOST, 0, blocks), blocks);
	rig_quiet(&v->r);
}

static void close_two(struct vram_rig *v, struct vram_rig *other)
{
	munmap((void *)other->progress_page, EXTENT_PAGE_BYTES);
	vr_close(v);
}

/* Other leases' copies are under way, some of them behind it: they are as they were. */
START_TEST(others_are_not_told)
{
	struct cache_place p, q;
	struct cache_leased wrong, right;
	struct vram_rig v, other;

	open_two(&v, &other, _i, 2);
	vr_flip(&v, CACHE_HOST, 0, LAYER_BYTES);
	vr_hold(&v, 0, 1);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 1, true, false, &p, &wrong), STATUS_OK);
	ck_assert_int_eq(vr_lease(&other, 0, 1, 1, true, false, &q, &right), STATUS_OK);
	ck_assert_uint_eq(right.progress_page_layers, VR_LAYERS);
	RIG_AWAIT(failed(&v));
	ck_assert(!vr_layer_there(&other, &right, 1));
	vr_go(&v, 0);
	vr_wait_layers(&other, &right);
	ck_assert_uint_eq(failed(&other), 0);
	ck_assert(vr_matches(&other, &q, 1, 0));
	vr_release(&other, &right);
	vr_release(&v, &wrong);
	rig_quiet(&v.r);
	close_two(&v, &other);
}
END_TEST

/* Two engines' leases, and a block that a call alone waits for, in one list, all of them wrong: both are told. */
START_TEST(all_are_told)
{
	struct cache_place p, q;
	struct cache_leased one, two;
	struct vram_rig v, other;

	open_two(&v, &other, _i, 4);
	for (uint64_t n = 0; n < 3; n++)
		vr_flip(&v, CACHE_HOST, n, LAYER_BYTES);
	vr_hold(&v, 0, 1);
	for (uint64_t n = 3; n < 4; n++) /* what is behind it comes as one list */
		vr_warm_begin(&v, 0, n, 1);
	vr_warm_begin(&v, 0, 2, 1);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 1, true, false, &p, &one), STATUS_OK);
	ck_assert_int_eq(vr_lease(&other, 0, 1, 1, true, false, &q, &two), STATUS_OK);
	vr_go(&v, 0);
	vr_wait_layers(&v, &one);
	vr_wait_layers(&other, &two);
	ck_assert_uint_eq(failed(&v), 1);
	ck_assert_uint_eq(failed(&other), 1);
	vr_release(&other, &two);
	vr_release(&v, &one);
	rig_quiet(&v.r);
	ck_assert_double_eq(vr_corrupt(&v, "to=gpu"), 3);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 4), 1);
	rig_check_accounting(v.r.c);
	close_two(&v, &other);
}
END_TEST

/* Two blocks are in memory, and leased on the GPU. They are copied, and their sums wait for the gate. `other`: instead of the first one lies the second
 * there, with its own header and sums. */
static void open_unsummed(struct vram_rig *v, struct vr_gate *gate, bool other, struct cache_place *p, struct cache_leased *l)
{
	*gate = (struct vr_gate){ .work = { .run = vr_gate_run }, .lock = PTHREAD_MUTEX_INITIALIZER };
	vr_open(v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = SLOTS, .host_slots = SLOTS, .sum_threads = 1 });
	ck_assert_uint_eq(vr_put(v, 0, 50, 1), 1);
	ck_assert_uint_eq(vr_put(v, CACHE_HOST, 0, 2), 2);
	rig_quiet(&v->r);
	if (other) {
		ck_assert_int_eq(vr_lease(v, CACHE_HOST, 0, 2, true, false, p, l), STATUS_OK);
		memcpy(vr_bytes(v, &p[0]) - SLOT_HEADER_BYTES, vr_bytes(v, &p[1]) - SLOT_HEADER_BYTES, VR_SLOT_BYTES);
		vr_release(v, l);
	}
	pthread_mutex_lock(&gate->lock);
	ck_assert(sums_submit(v->r.c->sums, &gate->work));
	ck_assert_int_eq(vr_lease(v, 0, 0, 2, true, false, p, l), STATUS_OK);
	RIG_AWAIT((int32_t)(v->progress_page[0] - l->progress_page_base - VR_LAYERS) >= 0);
}

/* A layer is there when it is copied and summed. The copies wait for no sums. */
START_TEST(copied_and_not_summed)
{
	struct cache_place p[2];
	struct cache_leased l;
	struct vram_rig v;
	struct vr_gate gate;

	open_unsummed(&v, &gate, false, p, &l);
	nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
	ck_assert(!vr_layer_there(&v, &l, 0));
	ck_assert_str_eq(vr_tier(&v, 0), "host");
	pthread_mutex_unlock(&gate.lock);
	vr_wait_layers(&v, &l);
	ck_assert_uint_eq(failed(&v), 0);
	ck_assert(vr_matches(&v, &p[0], 0, 0) && vr_matches(&v, &p[1], 1, 0));
	vr_release(&v, &l);
	vr_close(&v);
}
END_TEST

/* The first layer of what is another block is not there before the lease is void, though headers are looked at with the second. */
START_TEST(another_block_in_its_place)
{
	struct cache_place p[2];
	struct cache_leased l;
	struct vram_rig v;
	struct vr_gate gate;

	open_unsummed(&v, &gate, true, p, &l);
	cache_lock(v.r.c); /* without which nobody is told that a lease is void */
	pthread_mutex_unlock(&gate.lock);
	nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
	ck_assert(!vr_layer_there(&v, &l, 0));
	cache_unlock(v.r.c);
	vr_wait_layers(&v, &l);
	ck_assert_uint_eq(failed(&v), 1);
	ck_assert_double_eq(vr_corrupt(&v, "to=gpu"), 1);
	vr_release(&v, &l);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 2), 1);
	vr_sound(&v);
	vr_close(&v);
}
END_TEST

static _Atomic bool gate_shut;

static enum status gated_copy(struct device *d, struct device_copy *c, const char **why)
{
	while (gate_shut)
		usleep(200);
	return terrace_device_ops()->copy(d, c, why);
}

static _Atomic bool pool_shut;
static _Atomic uint32_t at_gate;

static void wait_at_gate(struct work *w)
{
	(void)w;
	at_gate++;
	while (pool_shut)
		usleep(200);
}

/* So many that none is taken any more. */
static void pool_fill(struct vram_rig *v, uint32_t threads)
{
	static struct work work[1024];
	uint32_t i = 0;

	pool_shut = true;
	do {
		RIG_AWAIT(at_gate == (i < threads ? i : threads));
		ck_assert_uint_lt(i, 1024);
		work[i].run = wait_at_gate;
	} while (sums_submit(v->r.c->sums, &work[i++]));
}

/* A list that nobody watches is summed when it is copied, if enough comes behind it: so bytes that change until then are found; where the threads for
 * that have enough to do (_i), by the device's. */
START_TEST(summed_behind_its_copy)
{
	enum { LIST = (8 << 20) / VR_BLOCK_BYTES, NEXT = LIST / 2 + 1, SPACE = 2 * LIST };
	struct device_ops ops = *terrace_device_ops();
	struct cache_place p, q;
	struct cache_leased l;
	uint64_t id[SPACE];
	struct vram_rig v;
	enum status st;

	ops.copy = gated_copy;
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = SPACE, .host_slots = SPACE, .sum_threads = 2, .ops = &ops });
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, LIST + NEXT + 1), LIST + NEXT + 1);
	rig_quiet(&v.r);
	ck_assert_int_eq(vr_lease(&v, CACHE_HOST, 0, 1, true, false, &p, &l), STATUS_OK);
	vr_release(&v, &l);
	for (uint32_t i = 0; i < SPACE; i++) /* there are extents */
		ck_assert_int_eq(vr_reserve(&v, 0, 1000 + i, 1, &st, &id[i], &q), STATUS_OK);
	for (uint32_t i = 0; i < SPACE; i++)
		ck_assert_int_eq(cache_abort(v.r.c, v.r.s.id, id[i]), STATUS_OK);
	gate_shut = true;
	vr_warm_begin(&v, 0, LIST + NEXT, 1); /* the submission thread is busy with it while the others queue */
	RIG_AWAIT(gpu_copy_batches(vram_gpu(v.r.c, 0), DEVICE_UP) == 1);
	vr_warm_begin(&v, 0, 0, LIST + NEXT);
	vr_hold(&v, 0, 0);
	gate_shut = false;
	RIG_AWAIT(gpu_copy_batches(vram_gpu(v.r.c, 0), DEVICE_UP) == 3);
	usleep(10000); /* so long it would have been found sound */
	vr_bytes(&v, &p)[100000] ^= 1;
	if (_i)
		pool_fill(&v, 2);
	vr_go(&v, 0);
	RIG_AWAIT(rig_stat(&v.r, "terrace_gpu_corrupt_blocks_total", "to=gpu") == 1);
	pool_shut = false;
	ck_assert_double_eq(vr_corrupt(&v, "to=gpu"), 1);
	ck_assert_str_eq(vr_tier(&v, 0), "");
	vr_close(&v);
}
END_TEST

/* Nor are layers waited for that do not come. */
START_TEST(summed_though_copies_stand_still)
{
	struct cache_place p[2];
	struct cache_leased l;
	struct vram_rig v;

	open_with(&v, NULL, true);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 2), 2);
	ck_assert_uint_eq(vr_put(&v, 0, 2, 1), 1);
	rig_quiet(&v.r);
	vr_hold(&v, 0, 1);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 2, true, false, p, &l), STATUS_OK);
	RIG_AWAIT(v.progress_page[FDSOCK_PROGRESS_PAGE_SUMMED] == l.progress_page_base + VR_LAYERS);
	ck_assert(!vr_layer_there(&v, &l, 1));
	vr_go(&v, 0);
	vr_wait_layers(&v, &l);
	vr_release(&v, &l);
	vr_close(&v);
}
END_TEST

static double summed(struct vram_rig *v)
{
	rig_quiet(&v->r);
	return rig_stat(&v->r, "terrace_gpu_verified_bytes_total", "") / VR_BLOCK_BYTES;
}

/* What a disk's load has looked at on this way is not summed again. */
START_TEST(summed_once)
{
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 96);
	open_with(&v, &d, 1);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 4), 4);
	rig_quiet(&v.r);
	ck_assert_uint_eq(vr_warm(&v, 0, 0, 2), 2);
	ck_assert_double_eq(summed(&v), 2);
	vr_push_out(&v, 3 * SLOTS);
	ck_assert_str_eq(vr_tier(&v, 3), "disk");
	ck_assert_uint_eq(vr_read_all(&v, 0, 2, 2), 2);
	ck_assert_double_eq(summed(&v), 2);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* Without the sums the bytes go up as they are; on their way down they are found to be others than those that were put. */
START_TEST(not_verified_up)
{
	struct cache_place p;
	struct cache_leased l;
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = SLOTS, .host_slots = SLOTS, .no_verify = true });
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 1), 1);
	vr_flip(&v, CACHE_HOST, 0, 12);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 1, true, false, &p, &l), STATUS_OK);
	ck_assert(!l.progress_page_summed);
	vr_wait_layers(&v, &l);
	ck_assert(!vr_matches(&v, &p, 0, 0));
	vr_release(&v, &l);
	vr_push_out(&v, 3 * SLOTS);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 1), 0);
	ck_assert_double_eq(vr_corrupt(&v, "to=host"), 1);
	vr_close(&v);
}
END_TEST

/* ---- a GPU that is lost with it ---- */

static void lose(struct vram_rig *v)
{
	vr_lose(v, 0);
	RIG_AWAIT(cache_degraded(v->r.c));
}

/* Until the sweep has taken all copies off it. */
static void swept(struct vram_rig *v)
{
	RIG_AWAIT(rig_stat(&v->r, "terrace_gpu_blocks", "gpu=0") == 0);
}

/* How many blocks' copies down have ended, as the device says it. */
static _Atomic uint32_t copied_down;
static void (*_Atomic down_ended)(struct device_copy *c, enum status s);

static void count_down(struct device_copy *c, enum status s)
{
	const uint32_t count = s ? 0 : c->count;

	atomic_load(&down_ended)(c, s); /* it may be gone */
	atomic_fetch_add(&copied_down, count);
}

static enum status counted_copy(struct device *d, struct device_copy *c, const char **why)
{
	if (c->way == DEVICE_DOWN && c->done != count_down) {
		down_ended = c->done; /* always the same */
		c->done = count_down;
	}
	return terrace_device_ops()->copy(d, c, why);
}

/* Come down and not yet summed, when the sweep takes the copies that they are of: found wrong after that, it comes from its disk. */
START_TEST(lost_while_it_is_summed)
{
	struct vr_gate gate = { .work = { .run = vr_gate_run }, .lock = PTHREAD_MUTEX_INITIALIZER };
	struct device_ops ops = *terrace_device_ops();
	_Atomic int called = 0;
	struct cache_wait w = { .ready = vr_count, .arg = &called };
	struct cache_keys k = rig_keys(0, 2);
	struct cache_on on = { .gpu = CACHE_HOST };
	struct cache_place p[2];
	struct cache_leased l;
	struct rig_disks d;
	struct vram_rig v;

	ops.copy = counted_copy;
	vr_disks_make(&d, 1, 96);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = SLOTS, .host_slots = SLOTS, .disks = &d, .spill_milli = 900,
						.sum_threads = 1, .ops = &ops });
	rig_restored(&v.r);
	on.attachment = v.r.attachment;
	ck_assert_uint_eq(vr_put(&v, 0, 0, 2), 2);
	rig_quiet(&v.r);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 2), 2);
	vr_push_out(&v, 3 * SLOTS);
	ck_assert_str_eq(vr_tier(&v, 0), "gpu+disk");
	ck_assert_str_eq(vr_tier(&v, 1), "gpu+disk");
	vr_flip(&v, 0, 0, 100000);
	pthread_mutex_lock(&gate.lock);
	ck_assert(sums_submit(v.r.c->sums, &gate.work));
	atomic_store(&copied_down, 0);
	ck_assert_int_eq(cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k,
			.all = true, .on = &on, .now_us = v.r.now, .places = p, .places_max = 2 }, &l, &w,
				     &v.r.why), STATUS_BUSY);
	RIG_AWAIT(copied_down >= 2);
	lose(&v);
	swept(&v);
	ck_assert_int_eq(atomic_load(&called), 0);
	pthread_mutex_unlock(&gate.lock);
	vr_await_called(&v, &called, 1);
	ck_assert_int_eq(cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k,
			.all = true, .on = &on, .now_us = v.r.now, .places = p, .places_max = 2 }, &l, &w,
				     &v.r.why), STATUS_OK);
	ck_assert(vr_matches(&v, &p[0], 0, 0) && vr_matches(&v, &p[1], 1, 0));
	vr_release(&v, &l);
	cache_wait_end(v.r.c, &w);
	ck_assert_double_eq(vr_corrupt(&v, "to=host"), 1);
	free((void *)k.bytes);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* What is known of memory's bytes holds, whatever becomes of the copy. */
START_TEST(known_wrong_and_lost)
{
	struct cache_place p[2];
	struct cache_leased l;
	struct vram_rig v;

	open_with(&v, NULL, 1);
	ck_assert_uint_eq(vr_put(&v, 0, 50, 1), 1); /* there is an extent */
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 2), 2);
	rig_quiet(&v.r);
	vr_flip(&v, CACHE_HOST, 0, LAYER_BYTES);
	vr_hold(&v, 0, 1);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 2, true, false, p, &l), STATUS_OK);
	RIG_AWAIT(failed(&v));
	lose(&v);
	vr_go(&v, 0);
	vr_release(&v, &l);
	ck_assert_double_eq(vr_corrupt(&v, "to=gpu"), 1);
	ck_assert_str_eq(vr_tier(&v, 0), "");
	ck_assert_int_eq(vr_lease(&v, CACHE_HOST, 0, 1, true, false, p, &l), STATUS_MISS);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 1, 1), 1);
	vr_close(&v);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_vram_corrupt");
	TCase *t = tcase_create("cache_vram_corrupt");
	SRunner *runner;
	int failures;

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, put_on_a_gpu_and_down_twice, 0, 2);
	tcase_add_loop_test(t, brought_up_and_down, 0, 2);
	tcase_add_loop_test(t, known_on_another_gpu, 0, 2);
	tcase_add_loop_test(t, several_wait_for_it, 0, 2);
	tcase_add_test(t, an_engine_holds_it);
	tcase_add_loop_test(t, held_to_the_end, 0, 2);
	tcase_add_loop_test(t, a_lease_prefetch_of_what_is_wrong, 0, 2);
	tcase_add_loop_test(t, a_call_that_waits_for_the_end, 0, 2);
	tcase_add_loop_test(t, a_header_that_is_wrong, 0, 2);
	tcase_add_loop_test(t, others_are_not_told, 0, 2);
	tcase_add_loop_test(t, all_are_told, 0, 2);
	tcase_add_loop_test(t, summed_behind_its_copy, 0, 2);
	tcase_add_test(t, summed_though_copies_stand_still);
	tcase_add_test(t, copied_and_not_summed);
	tcase_add_test(t, another_block_in_its_place);
	tcase_add_test(t, summed_once);
	tcase_add_test(t, not_verified_up);
	tcase_add_test(t, lost_while_it_is_summed);
	tcase_add_test(t, known_wrong_and_lost);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failures = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failures ? 1 : 0;
}
