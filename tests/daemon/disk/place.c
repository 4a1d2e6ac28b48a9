/* Where blocks go on disks, and what leaves them: by room, by what was flushed, over several sizes of blocks. */
#include "daemon/block/block.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/wait.h"
#include "daemon/call/flush.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/disk/stats.h"
#include "store/ring/ring.h"
#include "store/slab/disk.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HOST = 96, SIZES_HOST = 512 };

/* A layout whose slots have so many pages of 4 KiB, from 2 on. */
static struct kv_layout pages_layout(uint32_t pages)
{
	struct kv_layout l = rig_layout(pages, 0);

	l.heads = l.total_heads = 7 * (pages - 1); /* of 576 bytes each */
	return l;
}

/* Sessions of several sizes in one cache. */
struct sizes {
	struct rig_disks d;
	struct cache_options o;
	struct rig r[4];
	uint32_t count;
};

/* One disk of so many slots of 8 KiB; memory in extents that are small enough for all sizes. */
static void sizes_make(struct sizes *z, uint32_t slots)
{
	rig_disks_make(&z->d, NULL, 1, slots);
	z->o = rig_disk_options(&z->d, 1, SIZES_HOST);
	z->o.extent_bytes = 256 << 10;
	z->o.spill_share_milli = 1000; /* all is spilled */
}

static void sizes_open(struct sizes *z, const uint32_t *pages, uint32_t count)
{
	struct kv_layout l = pages_layout(pages[0]);

	rig_open_layouts(&z->r[0], &z->o, &l, 1);
	rig_restored(&z->r[0]);
	for (uint32_t i = 1; i < count; i++) {
		l = pages_layout(pages[i]);
		rig_join_layouts(&z->r[i], &z->r[0], &l, 1);
	}
	z->count = count;
}

static void flushed(struct rig *r, uint64_t first, uint32_t count)
{
	enum status st[128];

	ck_assert_uint_le(count, 128);
	ck_assert_int_eq(rig_flush(r, first, count, st), STATUS_OK);
	for (uint32_t i = 0; i < count; i++)
		ck_assert_int_eq(st[i], STATUS_OK);
}

/* Puts and flushes, a few at a time. */
static void put_flushed(struct rig *r, uint64_t first, uint32_t count)
{
	for (uint32_t i = 0; i < count; i += 8) {
		const uint32_t n = count - i < 8 ? count - i : 8;

		ck_assert_uint_eq(rig_put(r, first + i, n), n);
		flushed(r, first + i, n);
	}
}

static double evicted(struct rig *r)
{
	return rig_stat(r, "terrace_evictions_total", "tier=disk,reason=full");
}

/* Two models fill the disk: one is flushed and not used again, the other is spilled, and used later. A third one
 * takes slabs of the second one. rounds: 0, flushed by keys; 1, all at once; 2 and 3: the same, and a restart before
 * the third one comes. */
START_TEST(slabs_without_flushed_blocks_go_first)
{
	static const uint32_t pages[] = { 2, 4, 6 };
	enum { KEPT = 32, SPILLED = 64, NEW = 15 };
	struct sizes z;

	sizes_make(&z, 128);
	sizes_open(&z, pages, 3);
	rig_put_slowly(&z.r[0], 0, KEPT);
	if (_i % 2)
		ck_assert_int_eq(rig_flush(&z.r[0], 0, 0, NULL), STATUS_OK);
	else
		flushed(&z.r[0], 0, KEPT);
	rig_put_slowly(&z.r[1], 1000, SPILLED);
	if (_i >= 2) {
		rig_close(&z.r[0]);
		sizes_open(&z, pages, 3);
	}
	put_flushed(&z.r[2], 2000, NEW);
	put_flushed(&z.r[2], 3000, NEW);
	rig_quiet(&z.r[0]);
	ck_assert_uint_eq(rig_read_all(&z.r[0], 0, KEPT), KEPT);
	ck_assert_uint_eq(rig_read_all(&z.r[2], 2000, NEW), NEW);
	ck_assert_uint_eq(rig_read_all(&z.r[2], 3000, NEW), NEW);
	ck_assert_double_gt(evicted(&z.r[0]), 0);
	rig_close(&z.r[0]);
	sizes_open(&z, pages, 3);
	ck_assert_uint_eq(rig_read_all(&z.r[0], 0, KEPT), KEPT);
	ck_assert_uint_eq(rig_read_all(&z.r[2], 2000, NEW), NEW);
	ck_assert_uint_eq(rig_read_all(&z.r[2], 3000, NEW), NEW);
	rig_close(&z.r[0]);
	rig_disks_remove(&z.d);
}
END_TEST

/* Of one size: the flushed blocks are the coldest, and what is put after them is more than the disk has room for. */
START_TEST(flushed_blocks_outlast_spilled_ones)
{
	enum { KEPT = 32, SPILLED = 400 };
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, 128);
	struct cache_options o = rig_disk_options(&d, 1, HOST);

	rig_open(&r, &o, 1);
	rig_restored(&r);
	rig_put_slowly(&r, 0, KEPT);
	flushed(&r, 0, KEPT);
	for (uint32_t i = 0; i < SPILLED; i += 8) {
		rig_put_slowly(&r, 1000 + i, 8);
		r.now += 1000000;
	}
	ck_assert_double_gt(evicted(&r), 0);
	ck_assert_uint_eq(rig_read_all(&r, 0, KEPT), KEPT);
	/* Where all was flushed the coldest goes: also of those. */
	for (uint32_t i = 0; i < 256; i += 8) {
		put_flushed(&r, 5000 + i, 8);
		r.now += 1000000;
	}
	ck_assert_uint_eq(rig_read_all(&r, 5000 + 192, 64), 64);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* Of two disks one has eight times the room of the other: what fits on both is not displaced, nor refused. */
START_TEST(the_larger_disk_takes_more)
{
	enum { SMALL = 64, LARGE = 512, BLOCKS = 480 };
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 2, SMALL);
	d.disk[1].bytes = (uint64_t)LARGE * RIG_SLOT_BYTES;
	struct cache_options o = rig_disk_options(&d, 2, HOST);

	rig_open(&r, &o, 1);
	rig_restored(&r);
	put_flushed(&r, 0, BLOCKS);
	ck_assert_double_eq(evicted(&r), 0);
	ck_assert_uint_eq(rig_read_all(&r, 0, BLOCKS), BLOCKS);
	ck_assert_double_gt(rig_stat(&r, "terrace_disk_blocks", "disk=0"), SMALL / 2); /* the other one is used */
	rig_close(&r);
	rig_open(&r, &o, 1);
	rig_restored(&r);
	ck_assert_uint_eq(rig_read_all(&r, 0, BLOCKS), BLOCKS);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

static struct disk *_Atomic full_disk;
static _Atomic int full_after;     /* writes that it takes */

static int fill_up(void *arg, const struct ring_request *q, uint32_t *most)
{
	struct disk *disk = ((const struct disk_request *)q)->disk, *none = NULL;

	(void)arg;
	(void)most;
	if (q->op != RING_WRITE || q->bytes <= SLOT_HEADER_BYTES)
		return 0;
	atomic_compare_exchange_strong(&full_disk, &none, disk);
	return disk == full_disk && atomic_fetch_sub(&full_after, 1) <= 0 ? ENOSPC : 0;
}

/* The file system of one of two disks is full, beside other data: the other one takes all, and nothing is displaced. */
START_TEST(a_full_file_system_is_no_room)
{
	static const struct ring_calls calls = { .fault = fill_up };
	enum { BLOCKS = 320 };
	struct rig_disks d;
	struct rig r;

	full_disk = NULL;
	full_after = 40;
	rig_disks_make(&d, NULL, 2, 384);
	struct cache_options o = rig_disk_options(&d, 2, HOST);

	o.io_calls = &calls;
	rig_open(&r, &o, 1);
	rig_restored(&r);
	put_flushed(&r, 0, BLOCKS);
	ck_assert_double_eq(evicted(&r), 0);
	ck_assert_uint_eq(rig_read_all(&r, 0, BLOCKS), BLOCKS);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* Two layouts of which one needs a 16th less share a class: one slab has blocks of both, which a restart finds, by
 * the catalog or (1) by the headers. A third one that needs less than that has a slab of its own. */
START_TEST(layouts_of_nearly_one_size_share_slabs)
{
	static const uint32_t pages[] = { 17, 16, 15 };
	struct sizes z;

	sizes_make(&z, 1024);
	z.o.slab_bytes = 1 << 20;
	sizes_open(&z, pages, 3);
	put_flushed(&z.r[0], 0, 4);
	put_flushed(&z.r[1], 100, 4);
	ck_assert_double_eq(rig_stat(&z.r[0], "terrace_disk_slabs", "disk=0"), 1);
	ck_assert_double_eq(rig_stat(&z.r[0], "terrace_disk_block_sizes", "disk=0"), 1);
	put_flushed(&z.r[2], 200, 4);
	ck_assert_double_eq(rig_stat(&z.r[0], "terrace_disk_slabs", "disk=0"), 2);
	rig_close(&z.r[0]);
	z.o.rebuild = _i;
	sizes_open(&z, pages, 3);
	ck_assert_double_eq(rig_stat(&z.r[0], "terrace_restored_blocks", ""), 12);
	for (uint32_t i = 0; i < 3; i++)
		ck_assert_uint_eq(rig_read_all(&z.r[i], 100 * i, 4), 4);
	ck_assert_double_eq(rig_stat(&z.r[0], "terrace_disk_lost_blocks", "disk=0"), 0);
	rig_close(&z.r[0]);
	rig_disks_remove(&z.d);
}
END_TEST

/* More sizes than slabs: that is told. Before, with as many, it is not. */
START_TEST(a_disk_that_is_small_for_its_sizes_is_told)
{
	static const uint32_t pages[] = { 2, 4, 6 };
	struct cache_disk_state state;
	struct sizes z;

	sizes_make(&z, 64);
	z.o.slab_bytes = z.d.disk[0].bytes / 2;
	sizes_open(&z, pages, 3);
	put_flushed(&z.r[0], 0, 4);
	put_flushed(&z.r[1], 0, 4);
	ck_assert_uint_eq(cache_disks(z.r[0].c, &state, 1), 1);
	ck_assert_uint_eq(state.slabs_room, 2);
	ck_assert_uint_eq(state.sizes, 2);
	ck_assert(!state.small);
	put_flushed(&z.r[2], 0, 4); /* it takes what the first one had */
	rig_put(&z.r[0], 100, 4);
	rig_flush(&z.r[0], 0, 0, NULL);
	cache_disks(z.r[0].c, &state, 1);
	ck_assert_uint_eq(state.sizes, 3);
	ck_assert(state.small);
	ck_assert_double_eq(rig_stat(&z.r[0], "terrace_disk_small", "disk=0"), 1);
	rig_close(&z.r[0]);
	rig_disks_remove(&z.d);
}
END_TEST

/* ---- a slab that cannot be given up just then ---- */

/* The disk's class of r[i]'s blocks. With the lock. */
static struct disk_class *class_of(const struct sizes *z, uint32_t i)
{
	struct disk_class *k = z->r[0].c->tier->units[0].classes;

	while (k->slot_bytes != z->r[i].c->pools[i]->geometry.need_bytes)
		k = k->next;
	return k;
}

/* Readers hold, or let go, a block of each slab of r[1]'s. */
static void hold_slabs(const struct sizes *z, bool hold)
{
	cache_lock(z->r[0].c);
	for (const struct slab_map *m = class_of(z, 1)->slab_maps; m; m = m->next)
		for (uint32_t i = 0; i < m->slots; i++)
			if (m->at[i].block && hold)
				block_pin(m->at[i].block);
			else if (m->at[i].block)
				block_unpin(m->at[i].block);
	cache_unlock(z->r[0].c);
}

static bool has_room(const struct sizes *z)
{
	const struct disk_class *k;
	uint64_t free_slots;
	bool room;

	cache_lock(z->r[0].c);
	k = class_of(z, 0);
	room = disk_room(k->unit->disk, k->slot_bytes, &free_slots) != DISK_ROOM_NONE;
	cache_unlock(z->r[0].c);
	return room;
}

static bool chores_in_vain(const struct sizes *z)
{
	bool full;

	cache_lock(z->r[0].c);
	full = class_of(z, 0)->full;
	cache_unlock(z->r[0].c);
	return full;
}

static void has_ended(void *arg)
{
	*(_Atomic bool *)arg = true;
}

/* A block is to be flushed. All slots of its class have flushed blocks, and every slab of the other class, whose blocks
 * were not flushed, is being read: the Flush waits until one is not, and no flushed block goes for it. 0: the flushed
 * blocks are in memory too; 1: they are not. */
START_TEST(a_slab_that_is_read_is_waited_for)
{
	static const uint32_t pages[] = { 2, 4 };
	enum { SPILLED = 64, ONE = 500 };
	_Atomic bool ready = false;
	struct cache_wait wait = { .ready = has_ended, .arg = (void *)&ready };
	struct cache_keys key = rig_keys(ONE, 1);
	enum status s = STATUS_BUSY, st;
	uint32_t kept = 8;
	struct sizes z;

	sizes_make(&z, 128);
	sizes_open(&z, pages, 2);
	put_flushed(&z.r[0], 0, kept);
	rig_put_slowly(&z.r[1], 1000, SPILLED);
	while (has_room(&z))
		put_flushed(&z.r[0], kept++, 1);
	if (_i) {
		rig_close(&z.r[0]);
		sizes_open(&z, pages, 2);
	}
	const double before = evicted(&z.r[0]);

	hold_slabs(&z, true);
	ck_assert_uint_eq(rig_put(&z.r[0], ONE, 1), 1);
	for (int i = 0; i < 100; i++) {
		if (!i || wait.poll || atomic_exchange(&ready, false))
			s = cache_flush(z.r[0].c, z.r[0].s.id, &key, z.r[0].now, &wait, &st, &z.r[0].why);
		ck_assert_int_eq(s, STATUS_BUSY);
		rig_tick(z.r[0].c, z.r[0].now);
		usleep(100);
	}
	ck_assert(chores_in_vain(&z));
	ck_assert_double_eq(evicted(&z.r[0]), before);
	cache_wait_end(z.r[0].c, &wait);
	hold_slabs(&z, false);
	z.r[0].now += 1100000;
	flushed(&z.r[0], ONE, 1);
	ck_assert_double_gt(evicted(&z.r[0]), before);
	ck_assert_uint_eq(rig_read_all(&z.r[0], 0, kept), kept);
	ck_assert_uint_eq(rig_read_all(&z.r[0], ONE, 1), 1);
	free((void *)key.bytes);
	rig_close(&z.r[0]);
	rig_disks_remove(&z.d);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_disk_place");
	TCase *tc = tcase_create("place");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, slabs_without_flushed_blocks_go_first, 0, 4);
	tcase_add_test(tc, flushed_blocks_outlast_spilled_ones);
	tcase_add_test(tc, the_larger_disk_takes_more);
	tcase_add_test(tc, a_full_file_system_is_no_room);
	tcase_add_loop_test(tc, layouts_of_nearly_one_size_share_slabs, 0, 2);
	tcase_add_test(tc, a_disk_that_is_small_for_its_sizes_is_told);
	tcase_add_loop_test(tc, a_slab_that_is_read_is_waited_for, 0, 2);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
