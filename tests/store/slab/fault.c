/* Disks that fail, by requests that fail on order (ring_calls.fault): the status of the request, the
 * health, what goes on and what does not, and how long it takes. Each with both engines.
 */
#include "tests/store/slab/rig.h"

#include "store/slab/private.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
	enum ring_op op;
	int error;
	enum status status;
	enum disk_health health;
} rows[] = {
	{ RING_READ, EIO, STATUS_IO, DISK_QUARANTINED },
	{ RING_WRITE, EIO, STATUS_IO, DISK_QUARANTINED },
	{ RING_SYNC, EIO, STATUS_IO, DISK_QUARANTINED },
	{ RING_READ, ENODATA, STATUS_IO, DISK_QUARANTINED },
	{ RING_READ, EREMOTEIO, STATUS_IO, DISK_QUARANTINED },
	{ RING_READ, ENOSPC, STATUS_EXHAUSTED, DISK_QUARANTINED }, /* no sound disk says that to a reader */
	{ RING_WRITE, EROFS, STATUS_IO, DISK_QUARANTINED },
	{ RING_WRITE, ENOSPC, STATUS_EXHAUSTED, DISK_FULL },
	{ RING_WRITE, EDQUOT, STATUS_EXHAUSTED, DISK_FULL },
	{ RING_WRITE, EFBIG, STATUS_EXHAUSTED, DISK_FULL }, /* a limit of the process, not a fault of the disk */
	{ RING_SYNC, ENOSPC, STATUS_EXHAUSTED, DISK_QUARANTINED }, /* what was acknowledged may be lost */
	{ RING_READ, ENOMEM, STATUS_IO, DISK_HEALTHY },
	{ RING_WRITE, ENOMEM, STATUS_IO, DISK_HEALTHY },
};
enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

static enum status try_op(struct rig *r, enum ring_op op, struct disk_place p, uint8_t *slot)
{
	switch (op) {
	case RING_READ:
		return rig_read(r, p, slot, RIG_SLOT);
	case RING_WRITE:
		return rig_write(r, p, slot, RIG_SLOT);
	default:
		return rig_sync(r);
	}
}

static void fail_on(struct rig *r, enum ring_op op, int error, int times)
{
	r->fault.op = (int)op + 1;
	r->fault.error = error;
	r->fault.times = times;
}

/* A disk with one written block. */
static struct disk_place begin(struct rig *r, int engine, uint8_t *slot)
{
	struct disk_place p;

	rig_begin(r, rig_engines[engine], NULL);
	r->options.slow_us = 50000;
	rig_open(r);
	p = rig_take(r, RIG_SLOT);
	rig_block(slot, 1, 1);
	ck_assert_int_eq(rig_write(r, p, slot, RIG_SLOT), STATUS_OK);
	return p;
}

static void expect_nothing_goes(struct rig *r, struct disk_place p, uint8_t *slot)
{
	struct disk_place q;
	uint32_t asked = r->fault.asked;

	r->fault.op = 0;
	ck_assert_int_eq(rig_read(r, p, slot, RIG_SLOT), STATUS_UNAVAILABLE);
	ck_assert_int_eq(rig_write(r, p, slot, RIG_SLOT), STATUS_UNAVAILABLE);
	ck_assert_int_eq(rig_tombstone(r, p, slot), STATUS_UNAVAILABLE);
	ck_assert_int_eq(rig_sync(r), STATUS_UNAVAILABLE);
	ck_assert_int_eq(disk_slot_take(r->disk, RIG_SLOT, &q), STATUS_UNAVAILABLE);
	ck_assert_int_eq(disk_slab_prepare(r->disk, RIG_SLOT), STATUS_UNAVAILABLE);
	ck_assert_int_eq(disk_slab_drop_free(r->disk, 4096), STATUS_UNAVAILABLE);
	ck_assert_int_eq(disk_slab_drop(r->disk, p.slab), STATUS_UNAVAILABLE);
	ck_assert_int_eq(disk_scan(r->disk, NULL, NULL, NULL), STATUS_UNAVAILABLE);
	ck_assert_uint_eq(r->fault.asked, asked);
	disk_slot_give(r->disk, p); /* bookkeeping goes on */
}

static void expect_wiped(struct rig *r)
{
	rig_close(r);
	ck_assert_int_eq(access(rig_path(r, "quarantine"), F_OK), 0);
	r->fault.times = 0;
	rig_open(r);
	ck_assert(rig_look(r).wiped);
	ck_assert_uint_eq(rig_look(r).slabs, 0);
	ck_assert_int_eq(rig_look(r).health, DISK_HEALTHY);
}

START_TEST(a_failure_has_its_status_and_its_health)
{
	for (int engine = rig_engine_first(); engine < 2; engine++) {
		uint8_t *slot = rig_pages(RIG_SLOT);
		struct rig r;
		struct disk_place p = begin(&r, engine, slot);
		uint64_t before = rig_now_ms();

		fail_on(&r, rows[_i].op, rows[_i].error, 1);
		ck_assert_int_eq(try_op(&r, rows[_i].op, p, slot), rows[_i].status);
		ck_assert_int_eq(rig_look(&r).health, rows[_i].health);
		ck_assert_uint_lt(rig_now_ms() - before, 20000);
		ck_assert_int_eq(rig_look(&r).why[0] == '\0', rows[_i].health == DISK_HEALTHY);
		if (rows[_i].health == DISK_QUARANTINED) {
			expect_nothing_goes(&r, p, slot);
			expect_wiped(&r);
		} else {
			ck_assert_int_eq(rig_read(&r, p, slot, RIG_SLOT), STATUS_OK);
			ck_assert_int_eq(rig_judge(slot, 1, 1), STATUS_OK);
		}
		rig_end(&r);
		free(slot);
	}
}
END_TEST

/* What a disk says that has just found no room, in the order that it is asked. */
enum { FULL_WRITE, FULL_AGAIN, FULL_TAKE, FULL_PREPARE, FULL_READ, FULL_BURY, FULL_ASKED };

static const enum status full_says[FULL_ASKED] = {
	[FULL_WRITE] = STATUS_EXHAUSTED,   [FULL_AGAIN] = STATUS_EXHAUSTED, [FULL_TAKE] = STATUS_EXHAUSTED,
	[FULL_PREPARE] = STATUS_EXHAUSTED, [FULL_READ] = STATUS_OK,         [FULL_BURY] = STATUS_OK,
};

static void ask_full(struct rig *r, struct disk_place p, uint8_t *slot, enum status said[FULL_ASKED])
{
	uint8_t *page = rig_pages(4096);
	struct disk_place q;

	fail_on(r, RING_WRITE, ENOSPC, 1);
	said[FULL_WRITE] = rig_write(r, p, slot, RIG_SLOT);
	said[FULL_AGAIN] = rig_write(r, p, slot, RIG_SLOT);
	said[FULL_TAKE] = disk_slot_take(r->disk, RIG_SLOT, &q);
	said[FULL_PREPARE] = disk_slab_prepare(r->disk, 4096);
	said[FULL_READ] = rig_read(r, p, slot, RIG_SLOT);
	slot_tombstone((struct slot_header *)page, (struct slot_header *)slot, 1);
	said[FULL_BURY] = rig_tombstone(r, p, page);
	free(page);
}

static void full_ends(struct rig *r)
{
	uint64_t until = rig_now_ms() + RIG_NET_MS;

	while (rig_look(r).health == DISK_FULL && rig_now_ms() < until)
		usleep(10000);
	ck_assert_int_eq(rig_look(r).health, DISK_HEALTHY);
}

/* A second long; again, if the machine did not get through the questions in that. */
START_TEST(a_full_disk_reads_buries_and_tries_again)
{
	uint8_t *slot = rig_pages(RIG_SLOT);
	enum status said[FULL_ASKED];
	struct rig r;
	struct disk_place p = begin(&r, _i, slot), q;
	uint64_t before, took;
	uint32_t tries = 0;

	do {
		full_ends(&r);
		rig_block(slot, 1, 1);
		ck_assert_int_eq(rig_write(&r, p, slot, RIG_SLOT), STATUS_OK);
		before = rig_now_ms();
		ask_full(&r, p, slot, said);
		took = rig_now_ms() - before;
	} while (++tries < 10 && took >= 900);
	ck_assert_uint_lt(took, 900); /* else the refusals prove nothing */
	for (int i = 0; i < FULL_ASKED; i++)
		ck_assert_msg(said[i] == full_says[i], "%d: %s", i, status_name(said[i]));
	ck_assert_int_eq(rig_sync(&r), STATUS_OK);
	ck_assert_uint_eq(rig_look(&r).full_events, tries);
	full_ends(&r);
	ck_assert_uint_ge(rig_now_ms() - before, 1000);
	ck_assert_ptr_nonnull(strstr(rig_look(&r).shortage, "the file system is full")); /* still told: nothing was written since */
	ck_assert_int_eq(disk_slot_take(r.disk, RIG_SLOT, &q), STATUS_OK);
	ck_assert_int_eq(rig_write(&r, q, slot, RIG_SLOT), STATUS_OK);
	ck_assert_str_eq(rig_look(&r).shortage, "");
	rig_end(&r);
	free(slot);
}
END_TEST

/* A transfer that does not end before it is let: after 50 ms the disk is slow. A refusal does not wait for it. */
START_TEST(a_slow_disk_serves_only_who_waits)
{
	uint8_t *slot = rig_pages(2 * RIG_SLOT);
	struct rig r;
	struct disk_place p = begin(&r, _i, slot);
	uint64_t until = rig_now_ms() + RIG_NET_MS;
	struct rig_wait w, v;

	r.fault.shut = true;
	rig_wait_begin(&w);
	rig_wait_begin(&v);
	ck_assert_int_eq(disk_read(r.disk, p, slot, RIG_SLOT, RING_NONE, RING_IDLE, &w.q), STATUS_OK);
	while (rig_look(&r).health != DISK_SLOW && rig_now_ms() < until)
		usleep(1000);
	ck_assert_int_eq(rig_look(&r).health, DISK_SLOW);
	ck_assert_str_ne(rig_look(&r).why, "");
	ck_assert_int_eq(disk_read(r.disk, p, slot, RIG_SLOT, RING_NONE, RING_IDLE, &v.q), STATUS_BUSY);
	ck_assert_int_eq(disk_read(r.disk, p, slot, RIG_SLOT, RING_NONE, RING_PREFETCH, &v.q), STATUS_BUSY);
	ck_assert_int_eq(disk_write(r.disk, p, slot, RIG_SLOT, RING_NONE, RING_IDLE, &v.q), STATUS_BUSY);
	ck_assert_int_eq(rig_look(&r).refused_slow, 3);
	ck_assert_int_eq(disk_read(r.disk, p, slot + RIG_SLOT, RIG_SLOT, RING_NONE, RING_URGENT, &v.q), STATUS_OK);
	ck_assert_int_eq(atomic_load(&w.done) + atomic_load(&v.done), 0);
	r.fault.shut = false;
	ck_assert_int_eq(rig_wait_end(&w), STATUS_OK);
	ck_assert_int_eq(rig_wait_end(&v), STATUS_OK);
	ck_assert_int_eq(rig_judge(slot, 1, 1), STATUS_OK);
	ck_assert_int_eq(rig_judge(slot + RIG_SLOT, 1, 1), STATUS_OK);
	usleep(2000);
	ck_assert_int_eq(rig_look(&r).health, DISK_HEALTHY);
	rig_wait_begin(&w);
	ck_assert_int_eq(disk_read(r.disk, p, slot, RIG_SLOT, RING_NONE, RING_IDLE, &w.q), STATUS_OK);
	ck_assert_int_eq(rig_wait_end(&w), STATUS_OK);
	rig_end(&r);
	free(slot);
}
END_TEST

static bool count(void *arg, struct disk_place p, uint64_t slot_bytes, const struct slot_header *h)
{
	(void)p;
	(void)slot_bytes;
	*(uint32_t *)arg += h != NULL;
	return true;
}

START_TEST(a_slow_disk_is_scanned_all_the_same)
{
	uint8_t *slot = rig_pages(RIG_SLOT);
	struct rig r;
	uint32_t seen = 0;

	rig_block(slot, 1, 1);
	rig_begin(&r, rig_engines[_i], NULL);
	r.options.slow_us = 1000;
	r.options.slab_bytes = 4096 + 20 * RIG_SLOT;
	r.options.ring.queue_max = 4;
	r.options.ring.depth = 2; /* most headers are asked for when it is slow already */
	rig_open(&r);
	for (int i = 0; i < 20; i++)
		ck_assert_int_eq(rig_write(&r, rig_take(&r, RIG_SLOT), slot, RIG_SLOT), STATUS_OK);
	r.fault.delay_ms = 20;
	ck_assert_int_eq(disk_scan(r.disk, count, &seen, NULL), STATUS_OK);
	ck_assert_uint_eq(seen, 20);
	rig_end(&r);
	free(slot);
}
END_TEST

START_TEST(a_scan_of_a_failing_disk_says_so)
{
	uint8_t *slot = rig_pages(RIG_SLOT);
	struct rig r;
	uint32_t seen = 0;

	begin(&r, _i, slot);
	for (int i = 0; i < 200; i++)
		ck_assert_int_eq(rig_write(&r, rig_take(&r, RIG_SLOT), slot, RIG_SLOT), STATUS_OK);
	fail_on(&r, RING_READ, EIO, 1);
	ck_assert_int_eq(disk_scan(r.disk, count, &seen, NULL), STATUS_IO);
	ck_assert_uint_lt(seen, 201);
	ck_assert_int_eq(rig_look(&r).health, DISK_QUARANTINED);
	rig_end(&r);
	free(slot);
}
END_TEST

/* The first transfer of each request is cut to a page. */
START_TEST(short_transfers_are_continued)
{
	uint8_t *slot = rig_pages(RIG_SLOT), *back = rig_pages(RIG_SLOT);
	struct rig r;
	struct disk_place p = begin(&r, _i, slot);

	r.fault.most = 4096;
	for (uint64_t n = 2; n < 10; n++) {
		rig_block(slot, n, n);
		ck_assert_int_eq(rig_write(&r, p, slot, RIG_SLOT), STATUS_OK);
		memset(back, 0, RIG_SLOT);
		ck_assert_int_eq(rig_read(&r, p, back, RIG_SLOT), STATUS_OK);
		ck_assert_int_eq(rig_judge(back, n, n), STATUS_OK);
	}
	ck_assert_int_eq(rig_look(&r).health, DISK_HEALTHY);
	rig_end(&r);
	free(slot);
	free(back);
}
END_TEST

/* A file cut off behind the disk's back: the read ends early. */
START_TEST(a_slab_that_is_cut_off_ends_the_disk)
{
	uint8_t *slot = rig_pages(RIG_SLOT);
	struct rig r;
	struct disk_place p = begin(&r, _i, slot);

	ck_assert_int_eq(truncate(rig_path(&r, "slab-000001.trc"), 4096 + 4096), 0);
	ck_assert_int_eq(rig_read(&r, p, slot, RIG_SLOT), STATUS_IO);
	ck_assert_int_eq(rig_look(&r).health, DISK_QUARANTINED);
	ck_assert_ptr_nonnull(strstr(rig_look(&r).why, "slab-000001"));
	expect_wiped(&r);
	rig_end(&r);
	free(slot);
}
END_TEST

/* What waits behind a failure does not reach the kernel. */
START_TEST(a_failure_cancels_what_waits)
{
	enum { MANY = 40 };
	static struct rig_wait w[MANY];
	uint8_t *slot = rig_pages(RIG_SLOT), *pages = rig_pages(MANY * 4096);
	struct rig r;
	struct disk_place p;
	uint32_t cancelled = 0, failed = 0;

	rig_begin(&r, rig_engines[_i], NULL);
	r.options.ring.depth = 1;
	rig_open(&r);
	p = rig_take(&r, RIG_SLOT);
	ck_assert_int_eq(rig_write(&r, p, slot, RIG_SLOT), STATUS_OK);
	fail_on(&r, RING_READ, EIO, 1);
	r.fault.shut = true;
	for (int i = 0; i < MANY; i++) {
		rig_wait_begin(&w[i]);
		ck_assert_int_eq(disk_read(r.disk, p, pages + i * 4096, 4096, RING_NONE, RING_URGENT, &w[i].q), STATUS_OK);
	}
	r.fault.shut = false;
	for (int i = 0; i < MANY; i++) {
		enum status s = rig_wait_end(&w[i]);

		cancelled += s == STATUS_CANCELLED;
		failed += s == STATUS_IO;
	}
	ck_assert_uint_eq(failed, 1);
	ck_assert_uint_eq(cancelled, MANY - 1);
	rig_end(&r);
	free(slot);
	free(pages);
}
END_TEST

/* Callers of a sync that fails all learn it, those of the next round too. */
START_TEST(a_failed_sync_fails_for_all)
{
	enum { CALLERS = 10 };
	static struct rig_wait w[CALLERS];
	uint8_t *slot = rig_pages(RIG_SLOT);
	struct rig r;

	begin(&r, _i, slot);
	fail_on(&r, RING_SYNC, EIO, 1);
	r.fault.shut = true;
	for (int i = 0; i < CALLERS; i++) {
		rig_wait_begin(&w[i]);
		ck_assert_int_eq(disk_sync(r.disk, &w[i].q), STATUS_OK);
	}
	r.fault.shut = false;
	ck_assert_int_eq(rig_wait_end(&w[0]), STATUS_IO);
	ck_assert_int_eq(w[0].q.ring.error, EIO);
	for (int i = 1; i < CALLERS; i++)
		ck_assert_int_ne(rig_wait_end(&w[i]), STATUS_OK);
	ck_assert_int_eq(rig_look(&r).health, DISK_QUARANTINED);
	rig_end(&r);
	free(slot);
}
END_TEST

START_TEST(a_disk_is_closed_over_what_is_under_way)
{
	enum { MANY = 100 };
	static struct rig_wait w[MANY];
	uint8_t *slot = rig_pages(RIG_SLOT), *pages = rig_pages(MANY * 4096);
	struct rig r;
	struct disk_place p = begin(&r, _i, slot);
	uint32_t well = 0, cancelled = 0;

	r.fault.asked = 0;
	r.fault.shut = true;
	for (int i = 0; i < MANY; i++) {
		rig_wait_begin(&w[i]);
		ck_assert_int_eq(disk_read(r.disk, p, pages + i * 4096, 4096, RING_NONE, RING_URGENT, &w[i].q), STATUS_OK);
	}
	rig_asked(&r, 1);
	rig_close_over(&r);
	for (int i = 0; i < MANY; i++) {
		ck_assert_int_eq(w[i].done, 1);
		well += w[i].q.ring.status == STATUS_OK;
		cancelled += w[i].q.ring.status == STATUS_CANCELLED;
	}
	ck_assert_uint_eq(well + cancelled, MANY);
	ck_assert_uint_ge(well, 1);
	ck_assert_uint_le(well, r.options.ring.depth);
	rig_end(&r);
	free(slot);
	free(pages);
}
END_TEST

/* The kernel may take for ever to make its file. */
START_TEST(a_disk_is_left_with_who_makes_a_slab)
{
	struct disk *left;
	struct rig r;

	rig_begin(&r, RING_THREADS, NULL);
	rig_open(&r);
	left = r.disk;
	r.disk = NULL;
	pthread_mutex_lock(&left->grow);
	ck_assert(!disk_close_by(left, 50 * 1000));
	pthread_mutex_unlock(&left->grow); /* it comes back, and finds the disk */
	ck_assert_int_eq(disk_slab_prepare(left, RIG_SLOT), STATUS_OK);
	rig_end(&r);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("store_disk_fault");
	TCase *tc = tcase_create("faults");
	int first = rig_engine_first();
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 100);
	tcase_add_loop_test(tc, a_failure_has_its_status_and_its_health, 0, ROWS);
	tcase_add_loop_test(tc, a_full_disk_reads_buries_and_tries_again, first, 2);
	tcase_add_loop_test(tc, a_slow_disk_serves_only_who_waits, first, 2);
	tcase_add_loop_test(tc, a_slow_disk_is_scanned_all_the_same, first, 2);
	tcase_add_loop_test(tc, a_scan_of_a_failing_disk_says_so, first, 2);
	tcase_add_loop_test(tc, short_transfers_are_continued, first, 2);
	tcase_add_loop_test(tc, a_slab_that_is_cut_off_ends_the_disk, first, 2);
	tcase_add_loop_test(tc, a_failure_cancels_what_waits, first, 2);
	tcase_add_loop_test(tc, a_failed_sync_fails_for_all, first, 2);
	tcase_add_loop_test(tc, a_disk_is_closed_over_what_is_under_way, first, 2);
	tcase_add_test(tc, a_disk_is_left_with_who_makes_a_slab);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
