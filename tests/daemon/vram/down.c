/* What comes down from GPUs to a memory that is full: before a stop, for a flush, to be written through, for room;
 * from one that is lost meanwhile. */
#include "daemon/block/disk_class.h"
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/call/faults.h"
#include "daemon/call/inspect.h"
#include "daemon/call/lease.h"
#include "daemon/call/settle.h"
#include "daemon/disk/scrub.h"
#include "daemon/disk/state.h"
#include "eviction/policy.h"
#include "store/device.h"
#include "store/ring/ring.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENT_MS = 60000 }; /* a busy machine is no slow disk */

/* Nothing is lost for what comes down to be written. */
START_TEST(settles_write_through_a_full_memory)
{
	enum { BLOCKS = 16 };
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 64);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = BLOCKS, .host_slots = BLOCKS, .write_back = true, .disks = &d,
						.spill_milli = 1 });
	rig_restored(&v.r);
	ck_assert_uint_eq(vr_put(&v, 0, 0, BLOCKS), BLOCKS);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 100, BLOCKS), BLOCKS);
	v.r.served = true;
	for (int i = 0; i < 100 && !cache_settle(v.r.c, 100000, NULL); i++)
		rig_tick(v.r.c, v.r.now);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_dropped_blocks_total", ""), 0);
	vr_close(&v);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 16, .disks = &d });
	rig_restored(&v.r);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, BLOCKS), BLOCKS);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 100, BLOCKS), BLOCKS);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* Nor for what is flushed: all of the session, or (_i) by keys. */
START_TEST(flushes_write_through_a_full_memory)
{
	enum { BLOCKS = 16 };
	enum status st[2 * BLOCKS];
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 64);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = BLOCKS, .host_slots = BLOCKS, .write_back = true, .disks = &d,
						.spill_milli = 1 });
	rig_restored(&v.r);
	ck_assert_uint_eq(vr_put(&v, 0, 0, BLOCKS), BLOCKS);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, BLOCKS, BLOCKS), BLOCKS);
	ck_assert_int_eq(rig_flush(&v.r, 0, _i ? 2 * BLOCKS : 0, st), STATUS_OK);
	for (uint32_t k = 0; _i && k < 2 * BLOCKS; k++)
		ck_assert_int_eq(st[k], STATUS_OK);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_dropped_blocks_total", ""), 0);
	for (uint64_t n = 0; n < 2 * BLOCKS; n++)
		ck_assert_msg(strstr(vr_tier(&v, n), "disk"), "block %u", (unsigned)n);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* Memory is full of what the GPU has, too, and of that more than memory holds: what comes down does not take the place of what would have to again. */
START_TEST(flushes_more_than_memory_holds)
{
	enum { BLOCKS = 16, MEMORY = 4 };
	enum status st[BLOCKS];
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 64);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = BLOCKS, .host_slots = MEMORY, .write_back = true, .disks = &d,
						.spill_milli = 1 });
	rig_restored(&v.r);
	ck_assert_uint_eq(vr_put(&v, 0, 0, BLOCKS), BLOCKS);
	ck_assert_uint_eq(vr_warm(&v, CACHE_HOST, 0, MEMORY), MEMORY);
	rig_quiet(&v.r);
	ck_assert_int_eq(rig_flush(&v.r, 0, _i ? BLOCKS : 0, st), STATUS_OK);
	for (uint64_t n = 0; n < BLOCKS; n++)
		ck_assert_msg(strstr(vr_tier(&v, n), "disk"), "block %u", (unsigned)n);
	ck_assert_double_le(rig_stat(&v.r, "terrace_moved_bytes_total", "from=gpu,to=host") / VR_BLOCK_BYTES, BLOCKS);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* A second copy of what a GPU has costs memory nothing that is nowhere else, while the GPU has room: it comes down when a disk has some of that. */
START_TEST(written_write_through_to_what_memory_spares)
{
	enum { BLOCKS = 16 };
	struct rig_disks d;
	struct vram_rig v;
	enum status st[BLOCKS];

	vr_disks_make(&d, 1, 64);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 2 * BLOCKS, .host_slots = BLOCKS, .disks = &d, .spill_milli = 1 });
	rig_restored(&v.r);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, BLOCKS), BLOCKS);
	ck_assert_uint_eq(vr_put(&v, 0, 100, BLOCKS / 2), BLOCKS / 2);
	rig_quiet(&v.r);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_dropped_blocks_total", ""), 0);
	ck_assert_int_eq(rig_flush(&v.r, 0, BLOCKS, st), STATUS_OK);
	for (uint64_t n = 100; n < 100 + BLOCKS / 2; n++)
		RIG_AWAIT((rig_tick(v.r.c, v.r.now), !strcmp(vr_tier(&v, n), "gpu+host")));
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, BLOCKS), BLOCKS);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_dropped_blocks_total", ""), 0);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* A GPU of which more is to be clean than memory holds: what has come down stays, and does not make place for the next, for ever; with a disk (_i) it goes
 * on to there. */
START_TEST(a_memory_smaller_than_what_is_to_be_clean)
{
	enum { BLOCKS = 32, MEMORY = 4, CLEAN = BLOCKS / 4 };
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 64);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = BLOCKS, .host_slots = MEMORY, .write_back = true, .disks = _i ? &d : NULL,
						.spill_milli = 250 });
	if (_i)
		rig_restored(&v.r);
	ck_assert_uint_eq(vr_put(&v, 0, 0, BLOCKS), BLOCKS);
	rig_quiet(&v.r);
	for (int i = 0; i < 20; i++)
		rig_tick(v.r.c, v.r.now += 50000);
	rig_quiet(&v.r);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_moved_bytes_total", "from=gpu,to=host") / VR_BLOCK_BYTES, _i ? CLEAN : MEMORY);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_dropped_blocks_total", ""), 0);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, BLOCKS), BLOCKS);
	rig_check_accounting(v.r.c);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* Where memory takes nothing, as leases have it, one that asks for it is enough: what is dropped then on a full GPU is not asked for one by one, with
 * the cache's lock. */
START_TEST(memory_is_asked_once)
{
	enum { BLOCKS = 32, UPS = 8 };
	struct cache_leased l, up;
	struct cache_place p[BLOCKS];
	struct vram_rig v;
	double asked;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = BLOCKS, .host_slots = BLOCKS, .write_back = true });
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, BLOCKS), BLOCKS);
	ck_assert_int_eq(vr_lease(&v, CACHE_HOST, 0, BLOCKS, true, false, p, &l), STATUS_OK);
	ck_assert_uint_eq(vr_put(&v, 0, 100, BLOCKS), BLOCKS);
	asked = rig_stat(&v.r, "terrace_gpu_moves_failed_total", "to=host"); /* as it was written back */
	vr_hold(&v, 0, 0);
	ck_assert_int_eq(vr_lease(&v, 0, 0, UPS, true, false, p, &up), STATUS_OK);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_evictions_total", "tier=gpu,reason=shed"), UPS);
	ck_assert_double_le(rig_stat(&v.r, "terrace_gpu_moves_failed_total", "to=host") - asked, BLOCKS + UPS); /* all have waited for another extent */
	vr_go(&v, 0);
	vr_wait_layers(&v, &up);
	vr_release(&v, &up);
	vr_release(&v, &l);
	vr_close(&v);
}
END_TEST

/* What cannot come down, as leases have all of memory, is left: that is said. */
START_TEST(settles_in_part)
{
	enum { BLOCKS = 16 };
	struct cache_place p[BLOCKS];
	struct cache_leased l;
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 64);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = BLOCKS, .host_slots = BLOCKS, .write_back = true, .disks = &d });
	rig_restored(&v.r);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 100, BLOCKS), BLOCKS);
	ck_assert_int_eq(vr_lease(&v, CACHE_HOST, 100, BLOCKS, true, false, p, &l), STATUS_OK);
	ck_assert_uint_eq(vr_put(&v, 0, 0, 4), 4);
	v.r.served = true;
	for (int i = 0; i < 20; i++) {
		ck_assert(!cache_settle(v.r.c, 10000, NULL));
		rig_tick(v.r.c, v.r.now);
	}
	vr_release(&v, &l);
	v.r.served = false;
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

static _Atomic uint32_t lists_down, starves_at;

/* The driver has no memory for one list down. */
static enum status copy_starved(struct device *d, struct device_copy *c, const char **why)
{
	if (c->way != DEVICE_DOWN || atomic_fetch_add(&lists_down, 1) != starves_at)
		return terrace_device_ops()->copy(d, c, why);
	c->done(c, STATUS_EXHAUSTED);
	return STATUS_OK;
}

/* What was to be written through, and came to nothing, is written through when the driver can again; what a session writes back is not for that. */
START_TEST(written_write_through_after_all)
{
	struct device_ops ops = *terrace_device_ops();
	struct vram_rig v;

	ops.copy = copy_starved;
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 16, .write_back = _i, .ops = &ops });
	ck_assert_uint_eq(vr_put(&v, 0, 0, 1), 1);
	if (_i)
		vr_warm_begin(&v, CACHE_HOST, 0, 1);
	RIG_AWAIT((rig_tick(v.r.c, v.r.now), rig_stat(&v.r, "terrace_gpu_moves_failed_total", "to=host") == 1));
	rig_quiet(&v.r);
	if (_i)
		ck_assert_str_eq(vr_tier(&v, 0), "gpu");
	else
		RIG_AWAIT((rig_tick(v.r.c, v.r.now), !strcmp(vr_tier(&v, 0), "gpu+host")));
	rig_quiet(&v.r);
	ck_assert_uint_eq(lists_down, 2 - (uint32_t)_i);
	rig_check_accounting(v.r.c);
	vr_close(&v);
}
END_TEST

/* The same of what a disk has too: who waits for it in memory gets it from there, in the same call. */
START_TEST(starved_on_its_way_down)
{
	struct device_ops ops = *terrace_device_ops();
	struct cache_leased l;
	struct cache_place p;
	struct rig_disks d;
	struct vram_rig v;
	enum status st;

	ops.copy = copy_starved;
	vr_disks_make(&d, 1, 96);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 16, .spill_milli = 900, .disks = &d, .ops = &ops });
	rig_restored(&v.r);
	starves_at = UINT32_MAX;
	ck_assert_uint_eq(vr_put(&v, 0, 0, 1), 1);
	ck_assert_int_eq(rig_flush(&v.r, 0, 1, &st), STATUS_OK);
	vr_push_out(&v, 48);
	ck_assert_str_eq(vr_tier(&v, 0), "gpu+disk");
	starves_at = lists_down;
	ck_assert_int_eq(vr_lease(&v, CACHE_HOST, 0, 1, true, false, &p, &l), STATUS_OK);
	ck_assert_uint_gt(lists_down, starves_at);
	ck_assert(vr_matches(&v, &p, 0, 0));
	vr_release(&v, &l);
	vr_end(&v, &d);
}
END_TEST

/* The GPU that it comes down from is lost, and a disk, or another GPU, has it too: who waits gets it from there, in the same call. */
START_TEST(lost_on_its_way_down)
{
	struct vram_rig_options o = { .gpus = 2, .gpu_slots = 16, .host_slots = 16, .spill_milli = 900, .write_back = true };
	struct cache_keys k = rig_keys(0, 1);
	_Atomic int called = 0;
	struct cache_wait w = { .ready = vr_count, .arg = &called };
	struct cache_on on = { .gpu = CACHE_HOST };
	struct cache_leased l;
	struct cache_place p;
	struct rig_disks d;
	struct vram_rig v;
	enum status st;

	vr_disks_make(&d, 1, 96);
	o.disks = _i ? NULL : &d;
	vr_open(&v, &o);
	if (!_i)
		rig_restored(&v.r);
	on.attachment = v.r.attachment;
	ck_assert_uint_eq(vr_put(&v, 0, 0, 1), 1);
	if (_i)
		ck_assert_uint_eq(vr_read_all(&v, 1, 0, 1), 1);
	else
		ck_assert_int_eq(rig_flush(&v.r, 0, 1, &st), STATUS_OK);
	vr_push_out(&v, 48);
	ck_assert_str_eq(vr_tier(&v, 0), _i ? "gpu" : "gpu+disk");
	vr_hold(&v, 0, 0);
	vr_hold(&v, 1, 0);
	ck_assert_int_eq(cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k,
			.all = true, .on = &on, .now_us = v.r.now, .places = &p, .places_max = 1 }, &l, &w,
				     &v.r.why), STATUS_BUSY);
	vr_lose(&v, rig_stat(&v.r, "terrace_gpu_downs", "gpu=1") == 1);
	RIG_AWAIT(cache_degraded(v.r.c));
	vr_go(&v, 0);
	vr_go(&v, 1);
	RIG_AWAIT(called);
	ck_assert_int_eq(cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k,
			.all = true, .on = &on, .now_us = v.r.now, .places = &p, .places_max = 1 }, &l, &w,
				     &v.r.why), STATUS_OK);
	ck_assert(vr_matches(&v, &p, 0, 0));
	vr_release(&v, &l);
	cache_wait_end(v.r.c, &w);
	free((void *)k.bytes);
	vr_end(&v, &d);
}
END_TEST

/* What a disk has goes up through a small memory to a GPU that is full of what is nowhere else: all of that goes down to the disk by the same memory. */
START_TEST(warms_write_through_a_small_memory_to_a_full_gpu)
{
	enum { BLOCKS = 24 };
	const uint32_t memory[] = { 4, 8, 2 * BLOCKS };
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 4 * BLOCKS);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 8, .host_slots = 2 * BLOCKS, .disks = &d });
	rig_restored(&v.r);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, BLOCKS), BLOCKS);
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
	vr_close(&v);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = BLOCKS, .host_slots = memory[_i], .write_back = true, .disks = &d,
						.spill_milli = _i < 2 ? 1 : 250 });
	rig_restored(&v.r);
	ck_assert_uint_eq(vr_put(&v, 0, 100, BLOCKS), BLOCKS);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_dropped_blocks_total", ""), 0);
	ck_assert_uint_eq(vr_warm(&v, 0, 0, BLOCKS), BLOCKS);
	rig_quiet(&v.r);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_dropped_blocks_total", ""), 0);
	for (uint64_t n = 0; n < BLOCKS; n++) {
		ck_assert_msg(!strncmp(vr_tier(&v, n), "gpu", 3), "block %u", (unsigned)n);
		ck_assert_msg(vr_tier(&v, 100 + n)[0], "block %u", (unsigned)n + 100);
	}
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 100, BLOCKS), BLOCKS);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* The disk has slabs with room for so many: none needs to be made while writes are held, which would wait for them. */
static void slabs_make(struct vram_rig *v, uint32_t blocks)
{
	enum { FIRST = 2000, SLABS_MAX = 64 };
	enum status st[SLABS_MAX];

	for (uint64_t n = FIRST; n < FIRST + blocks; n++)
		ck_assert(vr_put(v, CACHE_HOST, n, 1) == 1 && rig_flush(&v->r, 0, 0, NULL) == STATUS_OK);
	ck_assert_int_eq(rig_delete(&v->r, FIRST, blocks, st), STATUS_OK);
}

/* A GPU that is full of what was written back, and beside it a disk with others and a small memory. */
static void open_full(struct vram_rig *v, struct rig_disks *d, uint32_t blocks, struct vram_rig_options *o)
{
	vr_disks_make(d, 1, 4 * blocks + 64);
	vr_open(v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 8, .host_slots = 2 * blocks, .disks = d });
	rig_restored(&v->r);
	slabs_make(v, 64);
	ck_assert_uint_eq(vr_put(v, CACHE_HOST, 0, blocks), blocks);
	ck_assert_int_eq(rig_flush(&v->r, 0, 0, NULL), STATUS_OK);
	vr_close(v);
	o->gpus = 1;
	o->gpu_slots += blocks;
	o->write_back = true;
	o->disks = d;
	vr_open(v, o);
	rig_restored(&v->r);
	ck_assert_uint_eq(vr_put(v, 0, 100, blocks), blocks);
	rig_quiet(&v->r);
	ck_assert_double_eq(rig_stat(&v->r, "terrace_dropped_blocks_total", ""), 0);
}

/* The same of a lease, with a progress page or without one (_i & 2), of what a disk has, or (_i > 3) of what memory
 * has. */
START_TEST(leases_write_through_a_small_memory_on_a_full_gpu)
{
	enum { BLOCKS = 24, IN_MEMORY = 2 };
	const uint32_t memory = _i & 1 ? 8 : 4, count = _i > 3 ? IN_MEMORY : BLOCKS;
	struct vram_rig_options o = { .host_slots = memory, .spill_milli = 250, .no_progress_page = _i & 2,
	    .gpu_patience_ms = PATIENT_MS };
	struct cache_place p[BLOCKS];
	struct cache_leased l;
	struct rig_disks d;
	struct vram_rig v;

	open_full(&v, &d, BLOCKS, &o);
	if (_i > 3)
		ck_assert_uint_eq(vr_warm(&v, CACHE_HOST, 0, IN_MEMORY), IN_MEMORY);
	ck_assert_int_eq(vr_lease(&v, 0, 0, count, true, false, p, &l), STATUS_OK);
	vr_wait_layers(&v, &l);
	for (uint64_t n = 0; n < count; n++)
		ck_assert(vr_on_gpu(&p[n], 0) && vr_matches(&v, &p[n], n, 0));
	vr_release(&v, &l);
	rig_quiet(&v.r);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_dropped_blocks_total", ""), 0);
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK); /* a lease in memory takes whoever's place it must */
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 100, BLOCKS), BLOCKS);
	rig_check_accounting(v.r.c);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* But a disk that does not write keeps no lease waiting for long. */
START_TEST(leases_beside_a_disk_that_hangs)
{
	enum { BLOCKS = 16, LEASED = 4 };
	struct vram_rig_options o = { .host_slots = 2 * LEASED, .spill_milli = 1, .disk_depth = 2, .io_calls = &vr_held_writes };
	struct cache_place p[LEASED];
	struct cache_leased l;
	struct rig_disks d;
	struct vram_rig v;

	open_full(&v, &d, BLOCKS, &o);
	ck_assert_uint_eq(vr_warm(&v, CACHE_HOST, 0, LEASED), LEASED);
	pthread_mutex_lock(&vr_writes);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 1000, LEASED), LEASED);
	ck_assert_int_eq(vr_lease(&v, 0, 0, LEASED, true, false, p, &l), STATUS_OK);
	vr_wait_layers(&v, &l);
	for (uint64_t n = 0; n < LEASED; n++)
		ck_assert(vr_on_gpu(&p[n], 0) && vr_matches(&v, &p[n], n, 0));
	ck_assert_double_ge(rig_stat(&v.r, "terrace_dropped_blocks_total", ""), 1);
	pthread_mutex_unlock(&vr_writes);
	vr_release(&v, &l);
	vr_end(&v, &d);
}
END_TEST

/* Nor does what others get of the GPU, whose layout has copies that just go. */
START_TEST(leases_beside_those_that_wait_for_nothing)
{
	enum { BLOCKS = 16, LEASED = 4, OTHERS = 12 };
	struct vram_rig_options o = { .gpu_slots = 8, .host_slots = 48, .spill_milli = 1, .disk_depth = 2, .io_calls = &vr_held_writes };
	struct cache_place p[LEASED], q[OTHERS];
	struct cache_leased l, held, other, others;
	struct cache_keys k = rig_keys(0, LEASED);
	struct cache_on on = { .gpu = 0 };
	_Atomic int called = 0;
	struct cache_wait wait = { .ready = vr_count, .arg = &called };
	struct rig_disks d;
	struct vram_rig v, w;

	open_full(&v, &d, BLOCKS, &o);
	on.attachment = v.r.attachment;
	vr_join(&w, &v, VR_SMALL, "other");
	ck_assert_uint_eq(vr_put(&w, CACHE_HOST, 0, OTHERS), OTHERS);
	ck_assert_int_eq(vr_lease(&w, CACHE_HOST, 0, OTHERS, true, false, q, &others), STATUS_OK);
	ck_assert_uint_eq(vr_read_all(&w, 0, 0, OTHERS), OTHERS);
	ck_assert_int_eq(vr_lease(&v, CACHE_HOST, 0, LEASED, true, false, p, &held), STATUS_OK);
	pthread_mutex_lock(&vr_writes);
	for (uint64_t n = 1000; n < 1048; n++)
		ck_assert_uint_eq(vr_put(&v, CACHE_HOST, n, 1), 1);
	ck_assert_int_eq(cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k,
			.all = true, .on = &on, .now_us = v.r.now, .places = p, .places_max = LEASED }, &l,
				     &wait, &v.r.why), STATUS_BUSY);
	for (uint64_t i = 0; !called && i < 2000; i++) {
		ck_assert_int_eq(vr_lease(&w, 0, i % 3 * LEASED, LEASED, true, false, q, &other), STATUS_OK);
		vr_release(&w, &other);
		rig_tick(v.r.c, v.r.now);
		usleep(500);
	}
	ck_assert(called);
	pthread_mutex_unlock(&vr_writes);
	ck_assert_int_eq(cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k,
			.all = true, .on = &on, .now_us = v.r.now, .places = p, .places_max = LEASED }, &l,
				     &wait, &v.r.why), STATUS_OK);
	cache_wait_end(v.r.c, &wait);
	vr_release(&v, &l);
	vr_release(&v, &held);
	vr_release(&w, &others);
	free((void *)k.bytes);
	vr_end(&v, &d);
}
END_TEST

static _Atomic uint32_t write_us;

static int write_slowly(void *arg, const struct ring_request *r, uint32_t *most)
{
	(void)arg;
	(void)most;
	if (r->op == RING_WRITE)
		usleep(write_us);
	return 0;
}

/* Nor is a lease in more of a hurry because it is long: as long as a disk that is slow makes one place after the other, it waits for each.
 * But it has an end (_i). */
START_TEST(leases_beside_a_slow_disk)
{
	static const struct ring_calls calls = { .fault = write_slowly };
	enum { LEASED_MAX = 48, DIRTY = 2 };
	const uint32_t leased = _i ? LEASED_MAX : 8;
	struct vram_rig_options o = { .host_slots = leased + DIRTY, .spill_milli = 1, .disk_depth = 1, .io_calls = &calls,
				      .gpu_patience_ms = _i ? 0 : 1000 }; /* less than all of its writes take, more than one on a busy machine */
	struct cache_place p[LEASED_MAX];
	struct cache_leased l, held;
	struct rig_disks d;
	struct vram_rig v;

	open_full(&v, &d, leased + 8, &o);
	write_us = _i ? 25000 : 150000;
	ck_assert_int_eq(vr_lease(&v, CACHE_HOST, 0, leased, true, false, p, &held), STATUS_OK);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 1000, DIRTY), DIRTY);
	ck_assert_int_eq(vr_lease(&v, 0, 0, leased, true, false, p, &l), STATUS_OK);
	vr_wait_layers(&v, &l);
	for (uint64_t n = 0; n < leased; n++)
		ck_assert(vr_on_gpu(&p[n], 0) && vr_matches(&v, &p[n], n, 0));
	ck_assert_int_eq(rig_stat(&v.r, "terrace_dropped_blocks_total", "") > 0, _i);
	write_us = 0;
	vr_release(&v, &held);
	vr_release(&v, &l);
	vr_end(&v, &d);
}
END_TEST

/* What a disk that has failed still counts as its own is nowhere else by that: it comes down before its place on the GPU goes; nor does memory's (_i). */
START_TEST(a_failed_disk_has_nothing)
{
	enum { BLOCKS = 16, MEMORY = 8 };
	struct cache_place p;
	struct rig_disks d;
	struct vram_rig v;
	enum status st;
	uint64_t id;

	vr_disks_make(&d, 1, 96);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = BLOCKS, .host_slots = MEMORY, .disks = &d, .write_back = true });
	rig_restored(&v.r);
	if (_i)
		ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, MEMORY), MEMORY);
	else
		ck_assert_uint_eq(vr_put(&v, 0, 0, BLOCKS), BLOCKS);
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
	if (_i)
		ck_assert_uint_eq(vr_read_all(&v, 0, 0, 2), 2); /* these may go */
	else
		vr_push_out(&v, 2 * MEMORY);
	rig_quiet(&v.r); /* a lease has its copies before the accounting do */
	ck_assert_str_eq(vr_tier(&v, BLOCKS / 2 - 1), _i ? "host+disk" : "gpu+disk");
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
	cache_lock(v.r.c);
	v.r.c->tier->units[0].failed = true; /* and not swept: that is the tick's */
	for (struct disk_class *k = v.r.c->tier->units[0].classes; k; k = k->next)
		k->failed = true;
	cache_unlock(v.r.c);
	if (_i)
		ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 500, 2), 2);
	else
		ck_assert_int_eq(vr_reserve(&v, 0, 500, 1, &st, &id, &p), STATUS_OK);
	ck_assert_uint_eq(rig_prefix(&v.r, 0, _i ? MEMORY : BLOCKS), _i ? MEMORY : BLOCKS);
	rig_tick(v.r.c, v.r.now);
	ck_assert_uint_eq(rig_prefix(&v.r, 0, _i ? MEMORY : BLOCKS), _i ? MEMORY : BLOCKS);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* Who is in no hurry: a flush of what is on the GPU; Verify; memory of the GPU that another layout wants. */
enum { NO_HURRY_FLUSH, NO_HURRY_VERIFY, NO_HURRY_DRAIN, NO_HURRY };

static void verify_all(struct vram_rig *v, uint32_t blocks)
{
	struct cache_verified sum = { .blocks = 0 };
	uint64_t cursor = 0;

	v->r.served = true;
	while (cursor != UINT64_MAX)
		ck_assert_int_eq(cache_verify_step(v->r.c, &cursor, UINT64_MAX, &sum), STATUS_OK);
	/* What left memory for what came down is on the disk. */
	for (cursor = 0; cursor != UINT64_MAX;)
		ck_assert_int_eq(cache_verify_disk_step(v->r.c, &cursor, UINT64_MAX, &sum), STATUS_OK);
	v->r.served = false;
	ck_assert_uint_ge(sum.blocks, blocks);
	ck_assert_uint_eq(sum.unread + sum.corrupt, 0);
}

static void drain_some(struct vram_rig *v)
{
	struct vram_rig other;

	vr_join(&other, v, VR_SMALL, "other");
	for (int i = 0; i < 60 && !vr_put(&other, 0, 500, 1); i++) {
		rig_tick(v->r.c, other.r.now = v->r.now += 50000);
		rig_quiet(&v->r);
	}
	ck_assert_uint_eq(vr_read_all(&other, 0, 500, 1), 1);
}

/* Nothing in memory that no disk has yet goes for what comes down so, while a disk takes it. */
START_TEST(nothing_goes_for_who_is_in_no_hurry)
{
	enum { BLOCKS = 16, MEMORY = 8, SLABS = 32 };
	enum status st[SLABS];
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 96);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = BLOCKS, .host_slots = MEMORY, .write_back = true, .disks = &d,
						.spill_milli = 1 });
	rig_restored(&v.r);
	for (uint64_t n = 1000; n < 1000 + SLABS; n++) /* there are slabs */
		ck_assert(vr_put(&v, CACHE_HOST, n, 1) == 1 && rig_flush(&v.r, 0, 0, NULL) == STATUS_OK);
	ck_assert_int_eq(rig_delete(&v.r, 1000, SLABS, st), STATUS_OK);
	ck_assert_uint_eq(vr_put(&v, 0, 0, BLOCKS), BLOCKS);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 100, MEMORY), MEMORY);
	rig_quiet(&v.r);
	if (_i == NO_HURRY_FLUSH)
		ck_assert_int_eq(rig_flush(&v.r, 0, BLOCKS, st), STATUS_OK);
	for (uint32_t k = 0; _i == NO_HURRY_FLUSH && k < BLOCKS; k++)
		ck_assert_int_eq(st[k], STATUS_OK);
	if (_i == NO_HURRY_VERIFY)
		verify_all(&v, BLOCKS + MEMORY);
	if (_i == NO_HURRY_DRAIN)
		drain_some(&v);
	rig_quiet(&v.r);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_dropped_blocks_total", ""), 0);
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK); /* a lease in memory takes whoever's place it must */
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 100, MEMORY), MEMORY);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, BLOCKS), BLOCKS);
	rig_check_accounting(v.r.c);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

static bool refusing;

static bool refuse(struct policy *p, const struct policy_event *e, const struct policy_node *v)
{
	(void)p;
	(void)e;
	(void)v;
	return !refusing;
}

/* What memory has refused makes place for what comes down to be written before anything else does. */
START_TEST(what_was_refused_goes_first)
{
	enum { BLOCKS = 4, MEMORY = 8 };
	struct policy_ops ops;
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 64);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 8, .host_slots = MEMORY, .disks = &d, .spill_milli = 1 });
	rig_restored(&v.r);
	ops = *v.r.c->policy;
	ops.admit = refuse;
	v.r.c->policy = &ops;
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, MEMORY), MEMORY);
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
	refusing = true;
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 100, BLOCKS), BLOCKS);
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
	refusing = false;
	ck_assert_uint_eq(vr_put(&v, 0, 200, BLOCKS), BLOCKS);
	rig_quiet(&v.r);
	for (uint64_t n = 0; n < BLOCKS; n++) {
		ck_assert_str_eq(vr_tier(&v, 100 + n), "disk");
		ck_assert_msg(strstr(vr_tier(&v, 200 + n), "host"), "block %u", (unsigned)n);
	}
	ck_assert_double_eq(rig_stat(&v.r, "terrace_evictions_total", "tier=host,reason=refused"), BLOCKS);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

static enum status copy_not_across(struct device *d, struct device_copy *c, const char **why)
{
	if (c->way != DEVICE_ACROSS)
		return terrace_device_ops()->copy(d, c, why);
	c->done(c, STATUS_UNSUPPORTED);
	return STATUS_OK;
}

/* What comes up by way of memory from another GPU, which cannot copy it across, takes nobody's only place there: not a Warm's, nor a lease's (_i). */
START_TEST(by_a_full_memory_from_another_gpu)
{
	struct device_ops ops = *terrace_device_ops();
	enum { BLOCKS = 8 };
	struct cache_place p[BLOCKS];
	struct cache_leased l;
	struct rig_disks d;
	struct vram_rig v;

	ops.copy = copy_not_across;
	vr_disks_make(&d, 1, 64);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 2, .gpu_slots = 16, .host_slots = BLOCKS, .write_back = true, .disks = &d, .spill_milli = 1,
						.ops = &ops, .gpu_patience_ms = PATIENT_MS });
	rig_restored(&v.r);
	ck_assert_uint_eq(vr_put(&v, 0, 0, BLOCKS), BLOCKS);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 100, BLOCKS), BLOCKS);
	if (_i)
		ck_assert_int_eq(vr_lease(&v, 1, 0, BLOCKS, true, false, p, &l), STATUS_OK);
	else
		ck_assert_uint_eq(vr_warm(&v, 1, 0, BLOCKS), BLOCKS);
	if (_i)
		vr_release(&v, &l);
	rig_quiet(&v.r);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_dropped_blocks_total", ""), 0);
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK); /* a lease in memory takes whoever's place it must */
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 100, BLOCKS), BLOCKS);
	ck_assert_uint_eq(vr_read_all(&v, 1, 0, BLOCKS), BLOCKS);
	rig_check_accounting(v.r.c);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* A Warm waits for nothing that does not come: what leases hold, on the GPU or (_i) in memory, does not make room. */
START_TEST(a_warm_ends_where_nothing_makes_room)
{
	enum { BLOCKS = 16 };
	struct cache_place p[BLOCKS];
	struct cache_leased l;
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 4 * BLOCKS);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = BLOCKS, .host_slots = BLOCKS, .write_back = true, .disks = &d });
	rig_restored(&v.r);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 8), 8);
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
	vr_push_out(&v, BLOCKS);
	rig_quiet(&v.r);
	for (uint64_t n = 0; n < BLOCKS; n += 4) {
		ck_assert_uint_eq(vr_put(&v, _i ? CACHE_HOST : 0, 100 + n, 4), 4);
		rig_quiet(&v.r);
	}
	ck_assert_int_eq(vr_lease(&v, _i ? CACHE_HOST : 0, 100, BLOCKS, true, false, p, &l), STATUS_OK);
	ck_assert_uint_eq(vr_warm(&v, 0, 0, 8), 0);
	vr_release(&v, &l);
	ck_assert_uint_eq(vr_warm(&v, 0, 0, 8), 8);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_vram_down");
	TCase *t = tcase_create("cache_vram_down");
	SRunner *runner;
	int failed;

	tcase_set_timeout(t, 120);
	tcase_add_test(t, settles_write_through_a_full_memory);
	tcase_add_test(t, settles_in_part);
	tcase_add_loop_test(t, flushes_write_through_a_full_memory, 0, 2);
	tcase_add_loop_test(t, flushes_more_than_memory_holds, 0, 2);
	tcase_add_test(t, written_write_through_to_what_memory_spares);
	tcase_add_loop_test(t, a_memory_smaller_than_what_is_to_be_clean, 0, 2);
	tcase_add_test(t, memory_is_asked_once);
	tcase_add_loop_test(t, written_write_through_after_all, 0, 2);
	tcase_add_test(t, starved_on_its_way_down);
	tcase_add_loop_test(t, lost_on_its_way_down, 0, 2);
	tcase_add_loop_test(t, warms_write_through_a_small_memory_to_a_full_gpu, 0, 3);
	tcase_add_loop_test(t, leases_write_through_a_small_memory_on_a_full_gpu, 0, 8);
	tcase_add_test(t, leases_beside_a_disk_that_hangs);
	tcase_add_test(t, leases_beside_those_that_wait_for_nothing);
	tcase_add_loop_test(t, leases_beside_a_slow_disk, 0, 2);
	tcase_add_loop_test(t, a_failed_disk_has_nothing, 0, 2);
	tcase_add_loop_test(t, nothing_goes_for_who_is_in_no_hurry, 0, NO_HURRY);
	tcase_add_test(t, what_was_refused_goes_first);
	tcase_add_loop_test(t, by_a_full_memory_from_another_gpu, 0, 2);
	tcase_add_loop_test(t, a_warm_ends_where_nothing_makes_room, 0, 2);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
