/* A disk: slots and slabs over restarts, budget, scans, many threads. Each with both engines. */
#include "tests/store/slab/rig.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef TERRACE_SANITIZED
enum { SCALE = 10 };
#elif defined(TERRACE_TESTS_SMALL)
enum { SCALE = 4 };
#else
enum { SCALE = 1 };
#endif

START_TEST(options_out_of_bounds_are_refused)
{
	struct rig r;
	struct disk_options good;

	rig_begin(&r, rig_engines[_i], NULL);
	good = r.options;
	r.options.budget_bytes = 8191;
	ck_assert_int_eq(rig_try(&r), STATUS_INVALID);
	r.options = good, r.options.slab_bytes = 8191;
	ck_assert_int_eq(rig_try(&r), STATUS_INVALID);
	r.options = good, r.options.slab_bytes = good.budget_bytes + 1;
	ck_assert_int_eq(rig_try(&r), STATUS_INVALID);
	r.options = good, r.options.folder = "";
	ck_assert_int_eq(rig_try(&r), STATUS_INVALID);
	r.options = good, r.options.ring.depth = 0;
	ck_assert_int_eq(rig_try(&r), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(r.why, r.folder));
	r.options = good;
	rig_open(&r);
	ck_assert_int_eq(rig_look(&r).ring.engine, rig_engines[_i]);
	rig_end(&r);
	disk_close(NULL);
}
END_TEST

START_TEST(a_block_comes_back_as_it_was_written)
{
	uint8_t *slot = rig_pages(RIG_SLOT), *back = rig_pages(RIG_SLOT);
	struct disk_place p[40];
	struct rig r;
	uint64_t id;

	rig_begin(&r, rig_engines[_i], NULL);
	rig_open(&r);
	id = disk_id(r.disk);
	for (uint64_t i = 0; i < 40; i++) {
		p[i] = rig_take(&r, RIG_SLOT);
		rig_block(slot, i, i + 1);
		ck_assert_int_eq(rig_write(&r, p[i], slot, RIG_SLOT), STATUS_OK);
	}
	ck_assert_int_eq(rig_sync(&r), STATUS_OK);
	rig_close(&r);
	rig_open(&r);
	ck_assert_uint_eq(disk_id(r.disk), id);
	ck_assert_uint_eq(rig_look(&r).slots_used, rig_look(&r).slots); /* until it is known better */
	for (uint64_t i = 0; i < 40; i++) {
		ck_assert_int_eq(rig_read(&r, p[i], back, RIG_SLOT), STATUS_OK);
		ck_assert_int_eq(rig_judge(back, i, i + 1), STATUS_OK);
		ck_assert_int_eq(rig_judge(back, i + 1, 0), STATUS_STALE);
		rig_block(slot, i, i + 1);
		ck_assert_mem_eq(back, slot, RIG_SLOT);
		/* A header alone. */
		memset(back, 0, RIG_SLOT);
		ck_assert_int_eq(rig_read(&r, p[i], back, SLOT_HEADER_BYTES), STATUS_OK);
		ck_assert_mem_eq(back, slot, SLOT_HEADER_BYTES);
		ck_assert_uint_eq(back[SLOT_HEADER_BYTES], 0);
	}
	ck_assert(rig_look(&r).direct);
	ck_assert(rig_look(&r).space_promised);
	rig_end(&r);
	free(slot);
	free(back);
}
END_TEST

START_TEST(registered_memory_is_read_into)
{
	uint8_t *memory = rig_pages(4 * RIG_SLOT);
	struct disk_place p;
	struct rig_wait w;
	uint32_t buffer;
	struct rig r;

	rig_begin(&r, rig_engines[_i], NULL);
	rig_open(&r);
	ck_assert_int_eq(disk_buffer_add(r.disk, memory, 4 * RIG_SLOT, &buffer), STATUS_OK);
	p = rig_take(&r, RIG_SLOT);
	rig_block(memory, 1, 9);
	rig_wait_begin(&w);
	ck_assert_int_eq(disk_write(r.disk, p, memory, RIG_SLOT, buffer, RING_IDLE, &w.q), STATUS_OK);
	ck_assert_int_eq(rig_wait_end(&w), STATUS_OK);
	rig_wait_begin(&w);
	ck_assert_int_eq(disk_read(r.disk, p, memory + 2 * RIG_SLOT, RIG_SLOT, buffer, RING_PREFETCH, &w.q), STATUS_OK);
	ck_assert_int_eq(rig_wait_end(&w), STATUS_OK);
	ck_assert_int_eq(rig_judge(memory + 2 * RIG_SLOT, 1, 9), STATUS_OK);
	rig_end(&r);
	free(memory);
}
END_TEST

START_TEST(nonsense_is_refused)
{
	uint8_t *slot = rig_pages(2 * RIG_SLOT);
	struct disk_place p, none;
	struct rig r;

	rig_begin(&r, rig_engines[_i], NULL);
	rig_open(&r);
	ck_assert_int_eq(disk_slot_take(r.disk, RIG_SLOT, &p), STATUS_MISS);
	ck_assert_int_eq(disk_slot_take(r.disk, 0, &p), STATUS_INVALID);
	ck_assert_int_eq(disk_slot_take(r.disk, 5000, &p), STATUS_INVALID);
	ck_assert_int_eq(disk_slab_prepare(r.disk, (uint64_t)SLOT_BYTES_MAX + 4096), STATUS_INVALID);
	p = rig_take(&r, RIG_SLOT);
	ck_assert_int_eq(rig_read(&r, p, slot, 0), STATUS_INVALID);
	ck_assert_int_eq(rig_read(&r, p, slot, 100), STATUS_INVALID);
	ck_assert_int_eq(rig_read(&r, p, slot + 512, 4096), STATUS_INVALID);
	ck_assert_int_eq(rig_read(&r, p, slot, RIG_SLOT + 4096), STATUS_INVALID);
	none = p, none.slot = 1u << 20;
	ck_assert_int_eq(rig_read(&r, none, slot, 4096), STATUS_STALE);
	none = p, none.slab++;
	ck_assert_int_eq(rig_read(&r, none, slot, 4096), STATUS_STALE);
	none.slab = 0;
	ck_assert_int_eq(rig_read(&r, none, slot, 4096), STATUS_STALE);
	none = p, none.slot++; /* free */
	ck_assert_int_eq(rig_write(&r, none, slot, 4096), STATUS_STALE);
	ck_assert_int_eq(rig_tombstone(&r, none, slot), STATUS_STALE);
	ck_assert_int_eq(disk_slab_drop(r.disk, 99), STATUS_STALE);
	rig_end(&r);
	free(slot);
}
END_TEST

START_TEST(slots_are_taken_once_and_lowest_first)
{
	enum { SLOTS = (1 << 20) / 4096 - 1 };
	static bool seen[3][SLOTS];
	struct disk_place p, first = { 0 };
	struct rig r;

	memset(seen, 0, sizeof(seen));
	rig_begin(&r, rig_engines[_i], NULL);
	r.options.budget_bytes = 3 << 20;
	rig_open(&r);
	for (uint32_t i = 0; i < 3 * SLOTS; i++) {
		p = rig_take(&r, 4096);
		if (i == 0)
			first = p;
		ck_assert_uint_le(p.slab, 3);
		ck_assert_uint_lt(p.slot, SLOTS);
		ck_assert(!seen[p.slab - 1][p.slot]);
		seen[p.slab - 1][p.slot] = true;
	}
	ck_assert_int_eq(disk_slot_take(r.disk, 4096, &p), STATUS_MISS);
	ck_assert_int_eq(disk_slab_prepare(r.disk, 4096), STATUS_EXHAUSTED);
	ck_assert_uint_eq(rig_look(&r).slab_bytes_used, 3 << 20);
	ck_assert_uint_eq(rig_look(&r).slots_used, 3 * SLOTS);
	first.slot = 70;
	disk_slot_give(r.disk, first);
	first.slot = 7;
	disk_slot_give(r.disk, first);
	ck_assert_int_eq(disk_slot_take(r.disk, 4096, &p), STATUS_OK);
	ck_assert_uint_eq(p.slot, 7);
	ck_assert_int_eq(disk_slot_take(r.disk, 4096, &p), STATUS_OK);
	ck_assert_uint_eq(p.slot, 70);
	ck_assert_int_eq(disk_slot_take(r.disk, 4096, &p), STATUS_MISS);
	rig_end(&r);
}
END_TEST

START_TEST(an_empty_slab_of_another_size_is_dropped)
{
	struct disk_place p[62], q;
	struct disk_slab_view v;
	struct rig r;

	rig_begin(&r, rig_engines[_i], NULL);
	r.options.budget_bytes = 2 << 20;
	rig_open(&r);
	for (uint32_t n = 0; n < 62; n++)
		p[n] = rig_take(&r, 32768);
	ck_assert_uint_eq(p[61].slab, 2);
	ck_assert_int_eq(disk_slab_prepare(r.disk, 65536), STATUS_EXHAUSTED);
	ck_assert_int_eq(disk_slab_drop_free(r.disk, 65536), STATUS_MISS);
	for (uint32_t n = 0; n < 31; n++)
		disk_slot_give(r.disk, p[n]);
	ck_assert_int_eq(disk_slab_drop_free(r.disk, 32768), STATUS_MISS); /* its own size */
	ck_assert_int_eq(disk_slab_drop_free(r.disk, 65536), STATUS_OK);
	ck_assert_int_ne(access(rig_path(&r, "slab-000001.trc"), F_OK), 0);
	ck_assert_uint_eq(rig_look(&r).slab_bytes_used, 4096 + 31 * 32768);
	ck_assert_int_eq(disk_slab_prepare(r.disk, 65536), STATUS_OK);
	ck_assert_int_eq(disk_slab_prepare(r.disk, 65536), STATUS_OK); /* has free slots: no other */
	ck_assert_int_eq(disk_slot_take(r.disk, 65536, &q), STATUS_OK);
	ck_assert_uint_eq(q.slab, 3);
	ck_assert(disk_slab_next(r.disk, 2, &v));
	ck_assert_uint_eq(v.slab, 3);
	ck_assert_uint_eq(v.slots, 15);
	ck_assert_uint_eq(v.used, 1);
	ck_assert_uint_eq(v.slot_bytes, 65536);
	ck_assert_uint_eq(v.file_bytes, 4096 + 15 * 65536);
	ck_assert(!disk_slab_next(r.disk, 3, &v));
	ck_assert(disk_slab_next(r.disk, 0, &v));
	ck_assert_uint_eq(v.slab, 2);
	rig_end(&r);
}
END_TEST

/* The last slab of a budget is as small as it must be. */
START_TEST(the_last_slab_takes_what_is_left)
{
	struct disk_slab_view v;
	struct rig r;

	rig_begin(&r, rig_engines[_i], NULL);
	r.options.budget_bytes = (1 << 20) + 4096 + 3 * 8192 + 100;
	rig_open(&r);
	for (int i = 0; i < 127 + 3; i++)
		rig_take(&r, 8192);
	ck_assert_int_eq(disk_slab_prepare(r.disk, 8192), STATUS_EXHAUSTED);
	ck_assert_int_eq(disk_slab_prepare(r.disk, 4096), STATUS_EXHAUSTED);
	ck_assert(disk_slab_next(r.disk, 1, &v));
	ck_assert_uint_eq(v.slots, 3);
	/* A smaller budget than what is there: all stays, nothing comes. */
	rig_close(&r);
	r.options.budget_bytes = r.options.slab_bytes = 8192;
	rig_open(&r);
	disk_slot_free_unmarked(r.disk);
	ck_assert_uint_eq(rig_look(&r).slots, 130);
	rig_take(&r, 8192);
	ck_assert_int_eq(disk_slab_prepare(r.disk, 4096), STATUS_EXHAUSTED);
	rig_end(&r);
}
END_TEST

START_TEST(a_closed_slab_is_emptied_and_dropped)
{
	uint8_t *slot = rig_pages(RIG_SLOT);
	struct disk_place p, q;
	struct disk_slab_view v;
	struct rig_wait w;
	struct rig r;

	rig_begin(&r, rig_engines[_i], NULL);
	rig_open(&r);
	p = rig_take(&r, RIG_SLOT);
	disk_slab_close(r.disk, p.slab, true);
	ck_assert_int_eq(disk_slot_take(r.disk, RIG_SLOT, &q), STATUS_MISS);
	disk_slot_give(r.disk, p);
	ck_assert_int_eq(disk_slot_take(r.disk, RIG_SLOT, &q), STATUS_MISS);
	disk_slab_close(r.disk, p.slab, false);
	ck_assert_int_eq(disk_slot_take(r.disk, RIG_SLOT, &q), STATUS_OK);
	ck_assert_uint_eq(q.slab, p.slab);
	disk_slab_close(r.disk, p.slab, true);
	ck_assert(disk_slab_next(r.disk, 0, &v));
	ck_assert(v.closed);
	/* Not while a transfer is under way. */
	r.fault.shut = true;
	rig_wait_begin(&w);
	ck_assert_int_eq(disk_read(r.disk, q, slot, 4096, RING_NONE, RING_URGENT, &w.q), STATUS_OK);
	ck_assert_int_eq(disk_slab_drop(r.disk, q.slab), STATUS_BUSY);
	r.fault.shut = false;
	ck_assert_int_eq(rig_wait_end(&w), STATUS_OK);
	ck_assert_int_eq(disk_slab_drop(r.disk, q.slab), STATUS_OK);
	ck_assert_int_eq(rig_read(&r, q, slot, 4096), STATUS_STALE);
	disk_slot_give(r.disk, q); /* too late, and no harm */
	ck_assert_int_eq(disk_slab_drop(r.disk, q.slab), STATUS_STALE);
	ck_assert_uint_eq(rig_look(&r).slab_bytes_used, 0);
	rig_end(&r);
	free(slot);
}
END_TEST

START_TEST(slab_numbers_are_never_used_twice)
{
	struct rig r;
	uint32_t last = 0;

	rig_begin(&r, rig_engines[_i], NULL);
	for (int round = 0; round < 6; round++) {
		struct disk_place p;

		rig_open(&r);
		disk_slot_free_unmarked(r.disk);
		p = rig_take(&r, RIG_SLOT);
		ck_assert_uint_gt(p.slab, last);
		last = p.slab;
		if (round % 2 == 0) { /* also of a slab made and dropped within a run */
			ck_assert_int_eq(disk_slab_drop(r.disk, last), STATUS_OK);
			p = rig_take(&r, RIG_SLOT);
			ck_assert_uint_gt(p.slab, last);
			last = p.slab;
		}
		ck_assert_int_eq(disk_slab_drop(r.disk, last), STATUS_OK);
		rig_close(&r);
	}
	rig_end(&r);
}
END_TEST

START_TEST(what_is_not_marked_becomes_free)
{
	struct disk_place p[100], q;
	uint64_t free_slots;
	struct rig r;

	rig_begin(&r, rig_engines[_i], NULL);
	rig_open(&r);
	for (int i = 0; i < 100; i++)
		p[i] = rig_take(&r, RIG_SLOT);
	ck_assert_int_eq(disk_slot_mark(r.disk, p[0], RIG_SLOT), STATUS_STALE); /* only what was found at open */
	rig_close(&r);
	rig_open(&r);
	ck_assert_int_eq(disk_slot_take(r.disk, RIG_SLOT, &q), STATUS_MISS);
	for (int i = 0; i < 100; i += 3)
		ck_assert_int_eq(disk_slot_mark(r.disk, p[i], RIG_SLOT), STATUS_OK);
	ck_assert_int_eq(disk_slot_mark(r.disk, p[3], RIG_SLOT), STATUS_EXISTS);
	ck_assert_int_eq(disk_slot_mark(r.disk, p[1], RIG_SLOT + 4096), STATUS_STALE);
	q = p[1], q.slot = 63;
	ck_assert_int_eq(disk_slot_mark(r.disk, q, RIG_SLOT), STATUS_STALE);
	q = p[1], q.slab = 77;
	ck_assert_int_eq(disk_slot_mark(r.disk, q, RIG_SLOT), STATUS_STALE);
	/* Given, and taken again, before all is marked: it stays taken. */
	disk_slot_give(r.disk, p[7]);
	disk_slot_give(r.disk, p[9]);
	ck_assert_int_eq(disk_slot_take(r.disk, RIG_SLOT, &q), STATUS_OK);
	ck_assert_uint_eq(q.slot, 7);
	disk_slot_free_unmarked(r.disk);
	ck_assert_uint_eq(rig_look(&r).slots_used, 34); /* 34 marked, one of them given, one taken */
	ck_assert_int_eq(disk_room(r.disk, RIG_SLOT, &free_slots), DISK_ROOM_SLOT);
	ck_assert_uint_eq(free_slots, rig_look(&r).slots - 34);
	ck_assert_int_eq(disk_slot_mark(r.disk, p[5], RIG_SLOT), STATUS_STALE);
	ck_assert_int_eq(disk_slot_take(r.disk, RIG_SLOT, &q), STATUS_OK);
	ck_assert_uint_eq(q.slot, 1);
	rig_end(&r);
}
END_TEST

/* ---- the size of slabs, and room ---- */

static const struct {
	uint64_t budget, most;
	uint32_t files;
	uint64_t bytes;
} slab_sizes[] = {
	{ 64ull << 30, 0, 0, 64 << 20 },             /* a 1024th */
	{ 1ull << 40, 0, 0, 1 << 30 },
	{ 512 << 20, 0, 0, 1 << 20 },                /* 1 MiB at least */
	{ 64 << 20, 256 << 20, 0, 1 << 20 },         /* what is allowed is more than that: it does not matter */
	{ 1 << 20, 0, 0, 1 << 20 },
	{ 512 << 10, 0, 0, 512 << 10 },              /* never more than the budget */
	{ 1ull << 40, 900 << 20, 0, 900 << 20 },     /* as many as it makes are allowed */
	{ 1ull << 40, 1 << 20, 0, (1ull << 40) / 1536 + 1 }, /* that would be a million files */
	{ 15360ull << 20, 0, 100, (15360ull << 20) / 100 + 1 }, /* descriptors for 100 */
	{ 1 << 20, 128 << 10, 0, 128 << 10 },
	{ UINT64_MAX, 0, 0, UINT64_MAX / 1024 },
};

START_TEST(the_size_of_a_slab)
{
	const uint64_t bytes = disk_slab_bytes(slab_sizes[_i].budget, slab_sizes[_i].most, slab_sizes[_i].files);

	ck_assert_uint_ge(bytes + 1, slab_sizes[_i].bytes); /* rounded */
	ck_assert_uint_le(bytes, slab_sizes[_i].bytes);
	ck_assert_uint_le(slab_sizes[_i].budget / bytes,
			  slab_sizes[_i].files ? slab_sizes[_i].files : DISK_SLABS_ENOUGH);
}
END_TEST

static enum disk_room room(struct rig *r, uint64_t slot_bytes)
{
	uint64_t free_slots, counted = 0;
	const enum disk_room room = disk_room(r->disk, slot_bytes, &free_slots);
	struct disk_slab_view v = { .slab = 0 };

	while (disk_slab_next(r->disk, v.slab, &v))
		counted += v.slot_bytes == slot_bytes && !v.closed ? v.slots - v.used : 0;
	ck_assert_uint_eq(free_slots, counted);
	return room;
}

/* What disk_room says is what a take, or a slab that is made for it, then finds. */
START_TEST(room_is_told_as_it_is)
{
	struct disk_place p[127], q;
	struct rig r;

	rig_begin(&r, rig_engines[_i], NULL);
	r.options.budget_bytes = 4096 + 127 * 8192 + 4096 + 15 * 65536 + 4096;
	rig_open(&r);
	ck_assert_int_eq(room(&r, 8192), DISK_ROOM_SLAB);
	ck_assert_int_eq(room(&r, 8191), DISK_ROOM_NONE); /* no size */
	ck_assert_int_eq(room(&r, 4 << 20), DISK_ROOM_NONE);
	for (int i = 0; i < 127; i++)
		p[i] = rig_take(&r, 8192);
	ck_assert_int_eq(room(&r, 8192), DISK_ROOM_SLAB);
	q = rig_take(&r, 8192);
	ck_assert_int_eq(room(&r, 8192), DISK_ROOM_SLOT);
	ck_assert_int_eq(room(&r, 65536), DISK_ROOM_NONE);
	/* A slab without a block is room for another size, and none for its own that is more than its slots. */
	disk_slot_give(r.disk, q);
	ck_assert_int_eq(room(&r, 65536), DISK_ROOM_SLAB);
	ck_assert_int_eq(disk_slab_drop_free(r.disk, 65536), STATUS_OK);
	rig_take(&r, 65536);
	ck_assert_int_eq(room(&r, 65536), DISK_ROOM_SLOT);
	ck_assert_int_eq(room(&r, 8192), DISK_ROOM_NONE);
	disk_slot_give(r.disk, p[5]);
	ck_assert_int_eq(room(&r, 8192), DISK_ROOM_SLOT);
	disk_slab_close(r.disk, p[5].slab, true);
	ck_assert_int_eq(room(&r, 8192), DISK_ROOM_NONE);
	disk_slab_close(r.disk, p[5].slab, false);
	/* The same of what an earlier run left, and of what it left free. */
	rig_close(&r);
	rig_open(&r);
	ck_assert_int_eq(room(&r, 8192), DISK_ROOM_NONE);
	disk_slot_free_unmarked(r.disk);
	ck_assert_uint_eq(rig_look(&r).slots_used, 0);
	ck_assert_int_eq(room(&r, 8192), DISK_ROOM_SLOT);
	ck_assert_int_eq(room(&r, 4096), DISK_ROOM_SLAB);
	while (!disk_slab_drop_free(r.disk, 0))
		;
	ck_assert_uint_eq(rig_look(&r).slots, 0);
	ck_assert_int_eq(room(&r, 4096), DISK_ROOM_SLAB);
	disk_quarantine(r.disk, "a test");
	ck_assert_int_eq(room(&r, 4096), DISK_ROOM_NONE);
	rig_end(&r);
}
END_TEST

/* A block that is smaller than its class's slots: it is written, found again by a scan, marked and read. */
START_TEST(a_block_may_be_smaller_than_its_slot)
{
	uint8_t *slot = rig_pages(RIG_SLOT), *back = rig_pages(RIG_SLOT);
	const uint64_t stride = RIG_SLOT + 4096;
	struct disk_place p, q;
	struct rig r;

	rig_begin(&r, rig_engines[_i], NULL);
	rig_open(&r);
	rig_block(slot, 1, 1);
	rig_take(&r, stride);
	p = rig_take(&r, stride);
	ck_assert_int_eq(rig_write(&r, p, slot, RIG_SLOT), STATUS_OK);
	rig_close(&r);
	rig_open(&r);
	ck_assert_int_eq(disk_slot_mark(r.disk, p, RIG_SLOT), STATUS_OK);
	disk_slot_free_unmarked(r.disk);
	ck_assert_int_eq(rig_read(&r, p, back, RIG_SLOT), STATUS_OK);
	ck_assert_int_eq(rig_judge(back, 1, 1), STATUS_OK);
	ck_assert_int_eq(disk_slot_take(r.disk, stride, &q), STATUS_OK);
	ck_assert_uint_eq(q.slot, 0);
	rig_end(&r);
	free(slot);
	free(back);
}
END_TEST

/* ---- scans ---- */

enum { SCAN_SLOTS = 10000 / SCALE, SCAN_BYTES = 8192 };

enum fate { ALIVE, DEAD, NEVER, DAMAGED, TOO_LARGE };

static enum fate fate_of(uint64_t n)
{
	return n % 11 == 0 ? DAMAGED : n % 7 == 0 ? NEVER : n % 3 == 0 ? DEAD : n % 101 == 1 ? TOO_LARGE : ALIVE;
}

struct census {
	struct rig *rig;
	struct disk_place *places;
	struct disk_place last;
	uint64_t alive, dead, none, stop_at;
};

static bool count_one(void *arg, struct disk_place p, uint64_t slot_bytes, const struct slot_header *h)
{
	struct census *c = arg;
	uint64_t n;

	if (!h) {
		c->none++;
		return true;
	}
	memcpy(&n, h->key, sizeof(n));
	ck_assert_uint_lt(n, SCAN_SLOTS);
	ck_assert_uint_eq(slot_bytes, SCAN_BYTES);
	ck_assert(c->places[n].slab == p.slab && c->places[n].slot == p.slot);
	ck_assert(p.slab > c->last.slab || p.slot > c->last.slot || c->alive + c->dead == 0);
	c->last = p;
	ck_assert_int_eq(fate_of(n), h->tombstone ? DEAD : ALIVE);
	ck_assert_uint_eq(h->generation, n + 5);
	if (h->tombstone)
		c->dead++;
	else
		c->alive++;
	/* The owner may call the disk. */
	if (!h->tombstone)
		ck_assert_int_eq(disk_slot_mark(c->rig->disk, p, slot_bytes), STATUS_OK);
	return c->alive + c->dead != c->stop_at;
}

static void header_of(uint8_t *page, uint64_t n)
{
	const struct slot_info info = { .tokens = 16 };
	uint8_t key[SLOT_KEY_MAX];
	struct slot_ident ident = rig_ident(n, key);

	ident.layers = 1;
	ident.block_bytes = ident.layer_bytes = fate_of(n) == TOO_LARGE ? 4097 : 4096;
	memset(page, 0, 3 * 4096);
	slot_seal(page, &ident, &info, n + 5, 1);
}

static void plant(struct rig *r, struct disk_place *places, uint8_t *page)
{
	for (uint64_t n = 0; n < SCAN_SLOTS; n++) {
		places[n] = rig_take(r, SCAN_BYTES);
		if (fate_of(n) == NEVER)
			continue;
		header_of(page, n);
		if (fate_of(n) == DAMAGED)
			page[n % 4096] ^= 16;
		ck_assert_int_eq(rig_write(r, places[n], page, SLOT_HEADER_BYTES), STATUS_OK);
		if (fate_of(n) != DEAD)
			continue;
		slot_tombstone((struct slot_header *)page, (struct slot_header *)page, 2);
		ck_assert_int_eq(rig_tombstone(r, places[n], page), STATUS_OK);
	}
}

START_TEST(a_scan_finds_what_is_there_and_nothing_else)
{
	struct disk_place *places = calloc(SCAN_SLOTS, sizeof(*places));
	uint64_t expected[5] = { 0 }, damaged = 99;
	struct census c = { .places = places };
	uint8_t *page = rig_pages(3 * 4096);
	struct rig r;

	for (uint64_t n = 0; n < SCAN_SLOTS; n++)
		expected[fate_of(n)]++;
	rig_begin(&r, rig_engines[_i], NULL);
	r.options.budget_bytes = 128 << 20;
	r.options.slab_bytes = 10 << 20;
	rig_open(&r);
	ck_assert_int_eq(disk_scan(r.disk, count_one, &c, &damaged), STATUS_OK); /* no slab */
	ck_assert_uint_eq(damaged, 0);
	plant(&r, places, page);
	rig_close(&r);
	rig_open(&r);
	c.rig = &r;
	ck_assert_int_eq(disk_scan(r.disk, count_one, &c, &damaged), STATUS_OK);
	ck_assert_uint_eq(c.alive, expected[ALIVE]);
	ck_assert_uint_eq(c.dead, expected[DEAD]);
	ck_assert_uint_eq(damaged, expected[DAMAGED] + expected[TOO_LARGE]);
	ck_assert_uint_ge(c.none, damaged + expected[NEVER]);
	disk_slot_free_unmarked(r.disk);
	ck_assert_uint_eq(rig_look(&r).slots_used, expected[ALIVE]);
	rig_close(&r);
	rig_open(&r);
	c = (struct census){ .rig = &r, .places = places, .stop_at = 70 };
	ck_assert_int_eq(disk_scan(r.disk, count_one, &c, NULL), STATUS_CANCELLED);
	ck_assert_uint_eq(c.alive + c.dead, 70);
	rig_end(&r);
	free(page);
	free(places);
}
END_TEST

/* ---- syncs and threads ---- */

/* Many that ask at a time share rounds: the kernel sees far fewer syncs than there are callers. */
START_TEST(syncs_are_merged)
{
	enum { CALLERS = 200 };
	static struct rig_wait w[CALLERS];
	uint8_t *page = rig_pages(4096);
	struct disk_place p;
	struct rig r;

	rig_begin(&r, rig_engines[_i], NULL);
	rig_open(&r);
	ck_assert_int_eq(rig_sync(&r), STATUS_OK); /* nothing is there */
	p = rig_take(&r, RIG_SLOT);
	ck_assert_int_eq(rig_write(&r, p, page, 4096), STATUS_OK);
	r.fault.op = RING_SYNC + 1;
	r.fault.asked = 0;
	r.fault.shut = true;
	for (int i = 0; i < CALLERS; i++) {
		rig_wait_begin(&w[i]);
		ck_assert_int_eq(disk_sync(r.disk, &w[i].q), STATUS_OK);
		rig_asked(&r, 1);
	}
	r.fault.shut = false;
	for (int i = 0; i < CALLERS; i++)
		ck_assert_int_eq(rig_wait_end(&w[i]), STATUS_OK);
	ck_assert_uint_eq(r.fault.asked, 2); /* the first caller's, and all others' */
	/* A closed disk ends those that wait. */
	rig_wait_begin(&w[0]);
	rig_wait_begin(&w[1]);
	r.fault.shut = true;
	ck_assert_int_eq(disk_sync(r.disk, &w[0].q), STATUS_OK);
	rig_asked(&r, 3);
	ck_assert_int_eq(disk_sync(r.disk, &w[1].q), STATUS_OK);
	rig_close_over(&r);
	ck_assert_int_eq(rig_wait_end(&w[0]), STATUS_OK);
	ck_assert_int_eq(rig_wait_end(&w[1]), STATUS_CANCELLED);
	rig_end(&r);
	free(page);
}
END_TEST

/* Every slab that was written is synced, more of them than are given to the ring at a time. */
START_TEST(a_sync_reaches_every_written_slab)
{
	uint8_t *page = rig_pages(4096);
	struct disk_place p[20];
	struct rig r;

	rig_begin(&r, rig_engines[_i], NULL);
	r.options.ring.queue_max = 2;
	r.options.slab_bytes = 8192;
	rig_open(&r);
	for (int i = 0; i < 20; i++) {
		p[i] = rig_take(&r, 4096);
		ck_assert_uint_eq(p[i].slab, i + 1);
		if (i % 2 == 0)
			ck_assert_int_eq(rig_write(&r, p[i], page, 4096), STATUS_OK);
	}
	r.fault.op = RING_SYNC + 1;
	r.fault.asked = 0;
	ck_assert_int_eq(rig_sync(&r), STATUS_OK);
	ck_assert_uint_eq(r.fault.asked, 10);
	ck_assert_int_eq(rig_sync(&r), STATUS_OK);
	ck_assert_uint_eq(r.fault.asked, 11); /* disk.id, since nothing else was written */
	rig_end(&r);
	free(page);
}
END_TEST

/* More than may wait are refused at once; the others end in their turn. */
START_TEST(what_may_wait_is_bounded)
{
	enum { MANY = 64 };
	static struct rig_wait w[MANY];
	uint8_t *page = rig_pages(4096 * MANY);
	struct disk_place p;
	uint32_t accepted = 0, ended = 0;
	struct rig r;

	rig_begin(&r, rig_engines[_i], NULL);
	r.options.ring.depth = 1;
	r.options.ring.queue_max = MANY - 8;
	rig_open(&r);
	p = rig_take(&r, RIG_SLOT);
	r.fault.shut = true;
	for (int i = 0; i < MANY; i++) {
		enum status s;

		rig_wait_begin(&w[i]);
		s = disk_read(r.disk, p, page + 4096 * i, 4096, RING_NONE, RING_PREFETCH, &w[i].q);
		if (i < MANY - 8)
			ck_assert_int_eq(s, STATUS_OK);
		if (s != STATUS_OK) {
			ck_assert_int_eq(s, STATUS_EXHAUSTED);
			atomic_store(&w[i].done, 2);
		}
		accepted += s == STATUS_OK;
	}
	rig_asked(&r, 1); /* the first, which goes on; all others wait */
	r.fault.shut = false;
	for (int i = 0; i < MANY; i++)
		ended += w[i].done != 2 && rig_wait_end(&w[i]) == STATUS_OK;
	ck_assert_uint_eq(ended, accepted);
	ck_assert_uint_ge(accepted, MANY - 8);
	ck_assert_uint_lt(accepted, MANY);
	ck_assert_int_eq(rig_look(&r).health, DISK_HEALTHY);
	ck_assert_int_eq(rig_read(&r, p, page, 4096), STATUS_OK);
	rig_end(&r);
	free(page);
}
END_TEST

enum { THREADS = 4, EACH = 6 };

struct worker {
	pthread_t thread;
	struct rig *rig;
	uint64_t seed, written;
};

/* Takes, writes, reads back, tombstones, gives; now and then a sync, an empty slab's end, a look. */
static void *churn(void *arg)
{
	struct worker *w = arg;
	struct rig *r = w->rig;
	uint64_t rng = w->seed, number[EACH];
	struct disk_place held[EACH];
	uint8_t *slot = rig_pages(RIG_SLOT);
	int n = 0;

	for (int step = 0; step < 1500 / SCALE; step++) {
		uint64_t dice = rig_next(&rng);

		if (n < EACH && dice % 2 == 0) {
			/* Somebody else may take what was prepared. */
			while (disk_slot_take(r->disk, RIG_SLOT, &held[n]) != STATUS_OK)
				ck_assert_int_eq(disk_slab_prepare(r->disk, RIG_SLOT), STATUS_OK);
			number[n] = rng;
			rig_block(slot, number[n], step + 1);
			ck_assert_int_eq(rig_write(r, held[n], slot, RIG_SLOT), STATUS_OK);
			n++;
			w->written++;
		} else if (n > 0) {
			uint32_t i = (uint32_t)(dice >> 8) % (uint32_t)n;

			ck_assert_int_eq(rig_read(r, held[i], slot, RIG_SLOT), STATUS_OK);
			ck_assert_int_eq(rig_judge(slot, number[i], 0), STATUS_OK);
			slot_tombstone((struct slot_header *)slot, (struct slot_header *)slot, 1);
			ck_assert_int_eq(rig_tombstone(r, held[i], slot), STATUS_OK);
			disk_slot_give(r->disk, held[i]);
			held[i] = held[--n];
			number[i] = number[n];
		}
		if (dice % 64 == 0)
			ck_assert_int_eq(rig_sync(r), STATUS_OK);
		if (dice % 128 == 1)
			disk_slab_drop_free(r->disk, 4096);
		if (dice % 64 == 2)
			ck_assert_int_eq(rig_look(r).health, DISK_HEALTHY);
	}
	while (n > 0)
		disk_slot_give(r->disk, held[--n]);
	free(slot);
	return NULL;
}

START_TEST(threads_never_share_a_slot)
{
	struct worker w[THREADS];
	uint64_t written = 0;
	struct rig r;

	rig_begin(&r, rig_engines[_i], NULL);
	r.options.slab_bytes = 4096 + 5 * RIG_SLOT;
	rig_open(&r);
	for (int i = 0; i < THREADS; i++) {
		w[i] = (struct worker){ .rig = &r, .seed = 7919u * (uint64_t)(i + 1) };
		ck_assert_int_eq(pthread_create(&w[i].thread, NULL, churn, &w[i]), 0);
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(w[i].thread, NULL);
		written += w[i].written;
	}
	ck_assert_uint_gt(written, 1000 / SCALE);
	ck_assert_uint_eq(rig_look(&r).slots_used, 0);
	rig_end(&r);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("store_disk");
	TCase *tc = tcase_create("disk");
	int first = rig_engine_first();
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 100);
	tcase_add_loop_test(tc, options_out_of_bounds_are_refused, first, 2);
	tcase_add_loop_test(tc, a_block_comes_back_as_it_was_written, first, 2);
	tcase_add_loop_test(tc, registered_memory_is_read_into, first, 2);
	tcase_add_loop_test(tc, nonsense_is_refused, first, 2);
	tcase_add_loop_test(tc, slots_are_taken_once_and_lowest_first, first, 2);
	tcase_add_loop_test(tc, an_empty_slab_of_another_size_is_dropped, first, 2);
	tcase_add_loop_test(tc, the_last_slab_takes_what_is_left, first, 2);
	tcase_add_loop_test(tc, a_closed_slab_is_emptied_and_dropped, first, 2);
	tcase_add_loop_test(tc, slab_numbers_are_never_used_twice, first, 2);
	tcase_add_loop_test(tc, what_is_not_marked_becomes_free, first, 2);
	tcase_add_loop_test(tc, the_size_of_a_slab, 0, sizeof(slab_sizes) / sizeof(slab_sizes[0]));
	tcase_add_loop_test(tc, room_is_told_as_it_is, first, 2);
	tcase_add_loop_test(tc, a_block_may_be_smaller_than_its_slot, first, 2);
	tcase_add_loop_test(tc, a_scan_finds_what_is_there_and_nothing_else, first, 2);
	tcase_add_loop_test(tc, syncs_are_merged, first, 2);
	tcase_add_loop_test(tc, a_sync_reaches_every_written_slab, first, 2);
	tcase_add_loop_test(tc, what_may_wait_is_bounded, first, 2);
	tcase_add_loop_test(tc, threads_never_share_a_slot, first, 2);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
