/* One of two disks hangs: what it keeps waiting, and what not. */
#include "daemon/block/block.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/call/delete.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/disk/stats.h"
#include "daemon/disk/tier.h"
#include "store/index.h"
#include "store/ring/ring.h"
#include "store/slab/disk.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HOST = 64, DISK = 512, SLOW_MS = 50 };

static _Atomic bool one_hangs;     /* the first disk that is read or written, while it is set */
static struct disk *_Atomic hung_disk;

static int hang(void *arg, const struct ring_request *q, uint32_t *most)
{
	struct disk *disk = ((const struct disk_request *)q)->disk, *none = NULL;

	(void)arg;
	(void)most;
	if (q->op == RING_SYNC || !one_hangs)
		return 0;
	atomic_compare_exchange_strong(&hung_disk, &none, disk);
	while (one_hangs && hung_disk == disk)
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	return 0;
}

static void open_on(struct rig *r, const struct rig_disks *d, int engine)
{
	static const struct ring_calls calls = { .fault = hang };
	struct cache_options o = rig_disk_options(d, 2, HOST);

	o.io_calls = &calls;
	o.io = engine ? CACHE_IO_THREADS : CACHE_IO_URING;
	o.disk_slow_ms = SLOW_MS;
	rig_open(r, &o, 1);
	rig_restored(r);
}

static void ignore(void *arg)
{
	(void)arg;
}

static void all_ok(const enum status *st, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		ck_assert_int_eq(st[i], STATUS_OK);
}

static bool one_is_slow(struct rig *r)
{
	struct cache_disk_state disk[2];

	cache_disks(r->c, disk, 2);
	return !strcmp(disk[0].health, "slow") || !strcmp(disk[1].health, "slow");
}

/* Which of the two disks has the block; NULL: it is deleted. */
static struct disk *disk_of(struct rig *r, uint64_t n)
{
	struct cache_keys k = rig_keys(n, 1);
	struct index_ident ident;
	struct index_record *found;
	struct disk *disk;

	index_read_lock();
	cache_lock(r->c);
	block_ident(r->c->pools[0], k.bytes, k.key_bytes, &ident);
	found = index_find(r->c->index, &ident);
	disk = found ? block_of(found)->slab_map->class->unit->disk : NULL;
	cache_unlock(r->c);
	index_read_unlock();
	free((void *)k.bytes);
	return disk;
}

/* The first block from n on that is, or is not, on the hung disk. */
static uint64_t of_hung(struct rig *r, uint64_t n, bool is)
{
	while (!disk_of(r, n) || (disk_of(r, n) == hung_disk) != is)
		n++;
	return n;
}

/* One step; with `last` at the deadline. */
static enum status delete_step(struct rig *r, const uint64_t *n, uint32_t count, struct cache_wait *w, bool last, enum status *st)
{
	uint8_t bytes[4 * RIG_KEY_BYTES];
	const struct cache_keys k = { bytes, count, RIG_KEY_BYTES };

	for (uint32_t i = 0; i < count; i++)
		rig_key(bytes + i * RIG_KEY_BYTES, n[i]);
	w->last = last;
	return cache_delete(r->c, r->s.id, &k, st, w, &r->why);
}

/* Of two disks one hangs. Deletes and flushes that do not concern it end, and others have at their deadline what is known. */
START_TEST(one_hung_disk_keeps_no_other_key_waiting)
{
	struct cache_wait hung = { .ready = ignore }, mixed = { .ready = ignore }, beside = { .ready = ignore };
	const uint64_t first = 0;
	enum status st[24], told[3], s = STATUS_BUSY;
	struct rig_disks d;
	uint64_t n[3];
	struct rig r;

	rig_disks_make(&d, NULL, 2, DISK);
	open_on(&r, &d, _i);
	rig_put(&r, 0, 24);
	rig_flush(&r, 0, 24, st);
	all_ok(st, 24);
	one_hangs = true;
	ck_assert_int_eq(delete_step(&r, &first, 1, &hung, false, st), STATUS_BUSY);
	RIG_AWAIT(hung_disk);
	/* Of the other disk: as ever. */
	n[0] = of_hung(&r, 1, false);
	RIG_AWAIT(delete_step(&r, n, 1, &beside, false, st) == STATUS_OK);
	ck_assert_int_eq(st[0], STATUS_OK);
	cache_wait_end(r.c, &beside);
	/* Of both, and of none. */
	n[0] = of_hung(&r, n[0] + 1, false);
	n[1] = of_hung(&r, 1, true);
	n[2] = 9999;
	for (int i = 0; s == STATUS_BUSY || told[0] == STATUS_DEADLINE; i++, usleep(1000)) { /* until what concerns the other disk is over */
		ck_assert_int_lt(i, 10000);
		ck_assert_int_eq(delete_step(&r, n, 3, &mixed, false, st), STATUS_BUSY);
		memcpy(told, st, sizeof(told));
		s = delete_step(&r, n, 3, &mixed, true, told);
	}
	ck_assert_int_eq(s, STATUS_OK);
	ck_assert_int_eq(told[0], STATUS_OK);
	ck_assert_int_eq(told[1], STATUS_DEADLINE);
	ck_assert_int_eq(told[2], STATUS_MISS);
	cache_wait_end(r.c, &mixed);
	/* What is stored now goes to the other. */
	RIG_AWAIT(one_is_slow(&r));
	rig_put(&r, 100, 8);
	ck_assert_int_eq(rig_flush(&r, 100, 8, st), STATUS_OK);
	all_ok(st, 8);
	one_hangs = false;
	RIG_AWAIT(delete_step(&r, &first, 1, &hung, false, st) == STATUS_OK);
	cache_wait_end(r.c, &hung);
	rig_quiet(&r);
	rig_check_accounting(r.c);
	rig_close(&r);
	open_on(&r, &d, _i);
	ck_assert_uint_eq(rig_read_all(&r, 0, 24), 24 - 4);
	ck_assert_uint_eq(rig_read_all(&r, 100, 8), 8);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* One has failed, and the catalog's queue had no room for the word of it: until it has, what is deleted might come back with that disk. */
START_TEST(a_delete_waits_for_the_ban_of_a_failed_disk)
{
	struct cache_wait w = { .ready = ignore };
	const uint64_t n = 9999;
	struct rig_disks d;
	enum status st;
	struct unit *u;
	struct rig r;

	rig_disks_make(&d, NULL, 2, DISK);
	open_on(&r, &d, 0);
	u = &r.c->tier->units[0];
	disk_quarantine(u->disk, "for the test");
	cache_lock(r.c);
	unit_failed(r.c, u);
	ck_assert(u->failed && u->banned);
	u->banned = false;
	cache_unlock(r.c);
	for (int i = 0; i < 50; i++, usleep(1000))
		ck_assert_int_eq(delete_step(&r, &n, 1, &w, false, &st), STATUS_BUSY);
	RIG_AWAIT((rig_tick(r.c, r.now), delete_step(&r, &n, 1, &w, false, &st) == STATUS_OK));
	ck_assert(u->banned);
	cache_wait_end(r.c, &w);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_disk_hung");
	TCase *t = tcase_create("cache_disk_hung");
	SRunner *runner;
	int failed;

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, one_hung_disk_keeps_no_other_key_waiting, 0, 2);
	tcase_add_test(t, a_delete_waits_for_the_ban_of_a_failed_disk);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
