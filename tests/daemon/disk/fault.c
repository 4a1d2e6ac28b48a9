/* Disks that fail under the cache: what is lost, what is told, and how long it takes. The faults are injected where the ring asks the
 * kernel (store/ring/ring.h). */
#include "daemon/advice/advice.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/cache.h"
#include "daemon/call/flush.h"
#include "daemon/call/settle.h"
#include "daemon/disk/scrub.h"
#include "daemon/disk/state.h"
#include "daemon/disk/stats.h"
#include "daemon/disk/tier.h"
#include "daemon/session/attachment.h"
#include "daemon/session/open.h"
#include "kernels/format.h"
#include "store/ring/ring.h"
#include "store/slab/disk.h"
#include "store/status.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "daemon/advice/graph.h"
#include "daemon/block/by_id.h"
#define disk_class stored_class /* the cache has one of that name, too */
#include "store/slab/private.h"
#undef disk_class
#include "tests/daemon/cache_rig.h"

enum { HOST = 64, DISK = 512, SLOW_MS = 500 };

/* What the kernel is to answer, from now on. */
static struct fault {
	_Atomic int read_errno, write_errno, sync_errno;
	_Atomic uint32_t most;         /* bytes of the first transfer of each request */
	_Atomic uint32_t delay_ms;
	_Atomic int writes_failing;    /* EIO for so many writes more */
	_Atomic bool hangs;            /* reads and writes, while it is set */
	_Atomic uint32_t hanging;
} fault;

static int inject(void *arg, const struct ring_request *q, uint32_t *most)
{
	struct fault *f = arg;
	uint32_t ms = f->delay_ms;

	if (ms)
		nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 }, NULL);
	if (f->hangs && q->op != RING_SYNC) {
		atomic_fetch_add(&f->hanging, 1);
		while (f->hangs)
			nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
		atomic_fetch_sub(&f->hanging, 1);
	}
	if (f->most)
		*most = f->most;
	if (q->op == RING_WRITE && f->writes_failing > 0 && atomic_fetch_sub(&f->writes_failing, 1) > 0)
		return EIO;
	return q->op == RING_READ ? f->read_errno : q->op == RING_WRITE ? f->write_errno : f->sync_errno;
}

static const struct ring_calls calls = { .fault = inject, .arg = &fault };

/* The day's time goes an hour ahead of what the kernel waits by, as if it was set back whenever it has been read: no wait may go by it. */
int clock_gettime(clockid_t which, struct timespec *t)
{
	const long failed = syscall(SYS_clock_gettime, which, t);

	t->tv_sec += which == CLOCK_REALTIME ? 3600 : 0;
	return (int)failed;
}

static void fault_none(void)
{
	fault.read_errno = fault.write_errno = fault.sync_errno = 0;
	fault.most = fault.delay_ms = 0;
	fault.writes_failing = 0;
	fault.hangs = false;
}

static enum cache_io engine_of(int i)
{
	return i ? CACHE_IO_THREADS : CACHE_IO_URING;
}

static void open_with(struct rig *r, const struct rig_disks *d, uint32_t disks, int engine, uint32_t slow_ms)
{
	struct cache_options o = rig_disk_options(d, disks, HOST);

	o.io_calls = &calls;
	o.io = engine_of(engine);
	o.disk_slow_ms = slow_ms ? slow_ms : o.disk_slow_ms;
	fault_none();
	rig_open(r, &o, 1);
	rig_restored(r);
}

static void open_on(struct rig *r, const struct rig_disks *d, uint32_t disks, int engine)
{
	open_with(r, d, disks, engine, 0);
}

static void put_slowly(struct rig *r, uint64_t first, uint32_t count)
{
	for (uint32_t i = 0; i < count; i += 8) {
		rig_put(r, first + i, 8);
		rig_quiet(r);
	}
}

/* Until the kernel is asked for something that it does not answer. */
static void until_it_hangs(void)
{
	RIG_AWAIT(fault.hanging);
}

static void ignore(void *arg)
{
	(void)arg;
}

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Ticks until the failed disk's blocks are given up. */
static void ticks(struct rig *r, int n)
{
	for (int i = 0; i < n; i++)
		rig_tick(r->c, r->now += 50000);
}

START_TEST(test_read_error_costs_that_disk)
{
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	open_on(&r, &d, 1, _i);
	put_slowly(&r, 0, 4 * HOST);
	fault.read_errno = EIO;
	ck_assert_uint_le(rig_read_all(&r, 0, HOST), HOST / 4); /* what memory still has */
	ck_assert_double_eq(rig_stat(&r, "terrace_disk_health_info", "disk=0,health=quarantined"), 1);
	ticks(&r, 3);
	ck_assert_double_eq(rig_stat(&r, "terrace_blocks", "tier=disk"), 0);
	fault_none();
	ck_assert_uint_eq(rig_read_all(&r, 0, HOST), 0); /* never tried again */
	rig_quiet(&r);
	ck_assert_uint_eq(rig_put(&r, 10000, 16), 16); /* memory goes on */
	ck_assert_uint_eq(rig_read_all(&r, 10000, 16), 16);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

static void all_ok(const enum status *st, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		ck_assert_int_eq(st[i], STATUS_OK);
}

/* Blocks of both disks, one of which then fails: a flush of all is acknowledged when the other has them, as the next start proves. */
START_TEST(test_write_error_transfers_to_the_other_disk)
{
	struct rig_disks d;
	enum status st[24];
	struct rig r;
	int failed;

	rig_disks_make(&d, NULL, 2, DISK);
	open_on(&r, &d, 2, _i);
	rig_put(&r, 0, 8);
	rig_flush(&r, 0, 8, st);
	all_ok(st, 8);
	ck_assert_double_eq(rig_stat(&r, "terrace_disk_blocks", "disk=0"), 4);
	ck_assert_double_eq(rig_stat(&r, "terrace_disk_blocks", "disk=1"), 4);
	rig_put(&r, 8, 16);
	fault.writes_failing = 1; /* whichever writes first is given up */
	rig_flush(&r, 8, 16, st);
	ck_assert_int_lt(fault.writes_failing, 1);
	all_ok(st, 16);
	ticks(&r, 3);
	failed = rig_stat(&r, "terrace_disk_blocks", "disk=0") > 0;
	ck_assert_double_eq(rig_stat(&r, "terrace_disk_blocks", failed ? "disk=1" : "disk=0"), 0);
	rig_flush(&r, 0, 24, st);
	all_ok(st, 24);
	ck_assert_double_eq(rig_stat(&r, "terrace_disk_blocks", failed ? "disk=0" : "disk=1"), 24);
	rig_check_accounting(r.c);
	rig_close(&r);
	open_on(&r, &d, 2, _i); /* memory has nothing, and the failed disk is wiped */
	ck_assert_double_eq(rig_stat(&r, "terrace_disk_blocks", failed ? "disk=1" : "disk=0"), 0);
	ck_assert_uint_eq(rig_read_all(&r, 0, 24), 24);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

START_TEST(test_failed_write_is_not_acknowledged)
{
	struct rig_disks d;
	enum status st[8];
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	open_on(&r, &d, 1, _i);
	rig_put(&r, 0, 8);
	fault.write_errno = EIO;
	ck_assert_int_eq(rig_flush(&r, 0, 8, st), STATUS_OK);
	for (int i = 0; i < 8; i++)
		ck_assert_int_eq(st[i], STATUS_UNAVAILABLE);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_UNAVAILABLE);
	ck_assert_uint_eq(rig_read_all(&r, 0, 8), 8); /* memory has them still */
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

START_TEST(test_failed_sync_is_not_acknowledged)
{
	struct rig_disks d;
	enum status st[8];
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	open_on(&r, &d, 1, _i);
	rig_put(&r, 0, 8);
	rig_quiet(&r);
	fault.sync_errno = EIO;
	ck_assert_int_eq(rig_flush(&r, 0, 8, st), STATUS_OK);
	for (int i = 0; i < 8; i++)
		ck_assert_int_ne(st[i], STATUS_OK);
	ck_assert_double_eq(rig_stat(&r, "terrace_disk_health_info", "disk=0,health=quarantined"), 1);
	fault_none();
	rig_flush(&r, 0, 8, st);
	ck_assert_int_ne(st[0], STATUS_OK); /* a sync that failed is never believed later */
	ck_assert_uint_eq(rig_read_all(&r, 0, 8), 8);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* Blocks of which the copies are written when their disk fails, and not synced yet: a flush that has begun is not acknowledged for that. */
START_TEST(test_a_disk_that_fails_during_a_flush)
{
	struct cache_wait w = { .ready = ignore };
	struct rig_disks d;
	struct rig r;
	enum status s;

	rig_disks_make(&d, NULL, 1, DISK);
	open_on(&r, &d, 1, _i);
	put_slowly(&r, 0, 2 * HOST - 16); /* the slab has room for more */
	rig_put(&r, 1000, 8);
	ck_assert_int_eq(cache_flush(r.c, r.s.id, NULL, r.now, &w, NULL, &r.why), STATUS_BUSY);
	rig_quiet(&r);
	fault.read_errno = EIO;
	ck_assert_uint_eq(rig_read_all(&r, 0, 1), 0);
	fault_none();
	ck_assert_double_eq(rig_stat(&r, "terrace_disk_health_info", "disk=0,health=quarantined"), 1);
	while ((s = cache_flush(r.c, r.s.id, NULL, r.now, &w, NULL, &r.why)) == STATUS_BUSY) {
		usleep(1000);
		ticks(&r, 1);
	}
	ck_assert_int_eq(s, STATUS_UNAVAILABLE);
	cache_wait_end(r.c, &w);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

START_TEST(test_full_disk_stops_spills_and_reads_go_on)
{
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	open_on(&r, &d, 1, _i);
	put_slowly(&r, 0, 2 * HOST);
	fault.write_errno = ENOSPC;
	for (uint64_t n = 1000; n < 1000 + 2 * HOST; n += 8) {
		ck_assert_uint_eq(rig_put(&r, n, 8), 8); /* memory never waits */
		ticks(&r, 1);
	}
	ck_assert_uint_eq(rig_read_all(&r, 0, HOST / 2), HOST / 2);
	ck_assert_double_gt(rig_stat(&r, "terrace_disk_full_events_total", "disk=0"), 0);
	fault_none();
	sleep(1);
	r.now += 2000000;
	put_slowly(&r, 2000, HOST);
	ck_assert_uint_eq(rig_read_all(&r, 2000, HOST), HOST);
	ck_assert_double_eq(rig_stat(&r, "terrace_disk_health_info", "disk=0,health=healthy"), 1);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* The stop does not wait for a disk that has failed, or is too small for what memory has. */
START_TEST(test_settling_ends_when_disks_have_no_place)
{
	struct cache_unsettled left = { 0, false };
	struct rig_disks d;
	struct rig r;
	enum status st;

	rig_disks_make(&d, NULL, 1, _i ? DISK : HOST / 2);
	open_on(&r, &d, 1, 1);
	rig_put(&r, 1000, 1);
	ck_assert_int_eq(rig_flush(&r, 1000, 1, &st), STATUS_OK); /* it has a slab */
	fault.write_errno = _i ? EIO : 0;
	ck_assert_uint_eq(rig_put(&r, 0, HOST - 1), HOST - 1);
	rig_quiet(&r);
	const double began = now_s();

	ck_assert(!cache_settle(r.c, 60000000, &left));
	ck_assert_double_lt(now_s() - began, 50);
	ck_assert(left.no_place);
	ck_assert_uint_ge(left.blocks, HOST / 4);
	ck_assert_uint_le(left.blocks, HOST);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* Block n is on a disk, too. */
static bool is_on_disk(struct rig *r, uint64_t n)
{
	const struct block *b;
	uint8_t key[RIG_KEY_BYTES];
	bool is;

	rig_key(key, n);
	cache_lock(r->c);
	b = by_id_find(r->c, policy_id(key_name(key, sizeof(key)), r->c->pools[0]->layout_id));
	is = b && b->slab_map;
	cache_unlock(r->c);
	return is;
}

/* A disk that hangs; or one whose blocks are all leased, so that it has no place for others. */
static void keep_spills_off(struct rig *r, bool full)
{
	struct cache_leased leased;
	struct cache_place place;
	uint32_t there = 0;
	enum status st;

	rig_put(r, 1000, 1);
	ck_assert_int_eq(rig_flush(r, 1000, 1, &st), STATUS_OK); /* it has a slab */
	fault.hangs = !full;
	ck_assert_uint_eq(rig_put(r, 0, HOST), HOST);
	rig_tick(r->c, r->now);
	if (!full)
		until_it_hangs();
	else
		rig_quiet(r);
	for (uint64_t n = 0; n < HOST && full; n++)
		if (is_on_disk(r, n)) {
			ck_assert_int_eq(rig_lease(r, n, 1, true, &place, &leased), STATUS_OK);
			there++;
		}
	ck_assert_uint_lt(there, HOST / 8);
}

/* Memory that another class is to get has blocks that are nowhere else, and the disk takes none of them, since it hangs or has no place: that
 * is waited for, but not long, and the first try is served. */
START_TEST(test_memory_does_not_wait_for_a_disk_to_transfer)
{
	const struct kv_layout l = rig_layout_other(40);
	struct cache_options o;
	struct rig_disks d;
	struct rig a, b = { .why = NULL };
	uint64_t session;

	rig_disks_make(&d, NULL, 1, _i ? 0 : DISK);
	o = rig_disk_options(&d, 1, HOST);
	o.io_calls = &calls;
	o.io = CACHE_IO_THREADS;
	fault_none();
	rig_open(&a, &o, 1);
	rig_restored(&a);
	keep_spills_off(&a, _i);
	b.c = a.c;
	b.now = a.now;
	ck_assert_int_eq(cache_session_open(b.c, &(struct cache_open_call){ .tenant = "", .layouts = &l,
			.layout_count = 1, .engine = "", .now_us = b.now }, &b.s, &b.why), STATUS_OK);
	ck_assert_int_eq(cache_attach(b.c, b.s.token, 1, b.now, &b.attachment, &session, &b.why), STATUS_OK);
	for (uint64_t n = 0; n < 3; n++)
		ck_assert_uint_eq(rig_put(&b, n, 1), 1);
	fault_none();
	a.now = b.now;
	rig_quiet(&a);
	rig_close(&a);
	rig_disks_remove(&d);
}
END_TEST

/* A disk that does not come back from making a slab keeps memory's chores no longer. */
START_TEST(test_a_slab_that_is_not_made_keeps_no_chores)
{
	struct rig_disks d;
	enum status st[8];
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	open_on(&r, &d, 1, 1);
	pthread_mutex_lock(&r.c->tier->units[0].disk->grow);
	rig_put(&r, 0, HOST);
	ck_assert(cache_tick(r.c, r.now)); /* it wants a slab */
	cache_chores(r.c);
	pthread_mutex_unlock(&r.c->tier->units[0].disk->grow);
	rig_flush(&r, 0, 8, st);
	all_ok(st, 8);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* What is read ahead and does not come has no part of what may be. */
START_TEST(test_what_fails_to_come_prefetch_takes_no_room)
{
	struct cache_options o;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	o = rig_disk_options(&d, 1, HOST);
	o.io_calls = &calls;
	o.graph_nodes = 1024;
	o.prefetch_bytes = 1 << 30;
	fault_none();
	rig_open(&r, &o, 1);
	rig_restored(&r);
	put_slowly(&r, 0, 2 * HOST);
	fault.read_errno = ENOMEM; /* the machine's lack, not the disk's */
	ck_assert_uint_eq(rig_prefix(&r, 0, 8), 8);
	ticks(&r, 2);
	rig_quiet(&r);
	ck_assert_double_gt(rig_stat(&r, "terrace_prefetch_bytes_total", "result=loaded"), 0);
	ck_assert_double_eq(rig_stat(&r, "terrace_prefetch_bytes_total", "result=wasted"),
			    rig_stat(&r, "terrace_prefetch_bytes_total", "result=loaded"));
	cache_lock(r.c);
	ck_assert_uint_eq(r.c->advice->prefetch.held_bytes, 0);
	cache_unlock(r.c);
	fault_none();
	ck_assert_uint_eq(rig_read_all(&r, 0, 8), 8);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

START_TEST(test_short_transfers_are_whole_in_the_end)
{
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	open_on(&r, &d, 1, _i);
	fault.most = 4096;
	put_slowly(&r, 0, 4 * HOST);
	ck_assert_uint_eq(rig_read_all(&r, 0, 4 * HOST), 4 * HOST);
	ck_assert_double_eq(rig_stat(&r, "terrace_dropped_blocks_total", ""), 0);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* A disk of 100 ms: puts and leases of what memory has take no part of it; a lease from disk waits for its own read. */
START_TEST(test_slow_disk_sheds)
{
	struct rig_disks d;
	struct rig r;
	double began;

	rig_disks_make(&d, NULL, 1, DISK);
	open_with(&r, &d, 1, 1, SLOW_MS);
	put_slowly(&r, 0, 2 * HOST);
	fault.delay_ms = 2 * SLOW_MS;
	began = now_s();
	for (uint64_t n = 1000; n < 1000 + 8 * HOST; n += 8) {
		ck_assert_uint_eq(rig_put(&r, n, 8), 8);
		ck_assert_uint_eq(rig_read_all(&r, n, 8), 8);
		ticks(&r, 1);
	}
	ck_assert_double_lt(now_s() - began, 15); /* the disk would take minutes */
	ck_assert_double_gt(rig_stat(&r, "terrace_evictions_total", "tier=host,reason=shed"), 0);
	began = now_s();
	ck_assert_uint_eq(rig_read_all(&r, 0, 1), 1);
	ck_assert_double_lt(now_s() - began, 15);
	fault_none();
	rig_quiet(&r);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

static bool is_slow(struct rig *r)
{
	struct cache_disk_state disk;

	return cache_disks(r->c, &disk, 1) == 1 && !strcmp(disk.health, "slow");
}

static void until_it_is_slow(struct rig *r)
{
	for (const double began = now_s(); !is_slow(r); usleep(1000))
		ck_assert_double_lt(now_s() - began, 60);
}

/* What a slow disk did not give is not said to be sound. */
START_TEST(test_verify_counts_what_it_did_not_read)
{
	struct cache_verified sum = { .blocks = 0 };
	struct cache_wait w = { .ready = ignore };
	struct cache_keys k = rig_keys(1000, 1);
	uint64_t cursor = 0;
	enum status st[16];
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	open_with(&r, &d, 1, 1, SLOW_MS);
	put_slowly(&r, 0, 16);
	rig_flush(&r, 0, 16, st);
	all_ok(st, 16);
	while (cursor != UINT64_MAX)
		cache_verify_disk_step(r.c, &cursor, UINT64_MAX, &sum);
	ck_assert_uint_eq(sum.blocks, 16);
	ck_assert_uint_eq(sum.unread, 0);
	rig_put(&r, 1000, 1);
	fault.delay_ms = 4 * SLOW_MS;
	ck_assert_int_eq(cache_flush(r.c, r.s.id, &k, r.now, &w, st, &r.why), STATUS_BUSY);
	until_it_is_slow(&r);
	sum = (struct cache_verified){ .blocks = 0 };
	for (cursor = 0; cursor != UINT64_MAX;)
		cache_verify_disk_step(r.c, &cursor, UINT64_MAX, &sum);
	cache_wait_end(r.c, &w);
	free((void *)k.bytes);
	ck_assert_uint_eq(sum.blocks + sum.unread, 16);
	ck_assert_uint_gt(sum.unread, 0);
	ck_assert_uint_eq(sum.corrupt, 0);
	fault_none();
	rig_quiet(&r);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* The cache is left behind in time, its folder stays locked, and what the disk does later meets memory that is still there. */
static void destroy_in_time(struct rig *r, const struct cache_options *o)
{
	const double began = now_s();
	struct cache *other;
	const char *why;

	ck_assert(!cache_destroy(r->c));
	ck_assert_double_lt(now_s() - began, 20);
	ck_assert_int_eq(cache_create(o, r->now, &other, &why), STATUS_BUSY);
	fault_none();
	for (int i = 0; fault.hanging && i < 60000; i++)
		usleep(1000);
	ck_assert_uint_eq(fault.hanging, 0);
	usleep(50000);
	cache_thread_leave();
}

START_TEST(test_close_does_not_wait_for_a_hung_disk)
{
	struct cache_wait w = { .ready = ignore };
	struct cache_keys k = rig_keys(1000, 8);
	struct cache_options o;
	struct rig_disks d;
	enum status st[16];
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	o = rig_disk_options(&d, 1, HOST);
	o.io_calls = &calls;
	o.io = engine_of(_i);
	o.disk_close_ms = 300;
	fault_none();
	rig_open(&r, &o, 1);
	rig_restored(&r);
	rig_put(&r, 0, 16);
	rig_flush(&r, 0, 16, st);
	all_ok(st, 16);
	rig_put(&r, 1000, 8);
	fault.hangs = true;
	ck_assert_int_eq(cache_flush(r.c, r.s.id, &k, r.now, &w, st, &r.why), STATUS_BUSY);
	until_it_hangs();
	cache_wait_end(r.c, &w);
	free((void *)k.bytes);
	destroy_in_time(&r, &o);
	rig_disks_remove(&d);
}
END_TEST

/* The same while the headers are read. */
START_TEST(test_close_does_not_wait_for_a_hung_scan)
{
	struct cache_options o;
	struct rig_disks d;
	enum status st[16];
	struct rig r;

	rig_disks_make(&d, NULL, 2, DISK);
	open_on(&r, &d, 2, _i);
	rig_put(&r, 0, 16);
	rig_flush(&r, 0, 16, st);
	all_ok(st, 16);
	rig_close(&r);
	o = rig_disk_options(&d, 2, HOST);
	o.io_calls = &calls;
	o.io = engine_of(_i);
	o.disk_close_ms = 300;
	o.rebuild = true;
	fault.hangs = true;
	rig_open(&r, &o, 1);
	until_it_hangs();
	destroy_in_time(&r, &o);
	rig_disks_remove(&d);
}
END_TEST

/* Has the advisor's lock, and he a round that cannot go on without: it has begun, and would end under it. */
static void *advises(void *rig)
{
	struct rig *r = rig;
	pthread_mutex_t *lock = &r->c->advice->advisor->lock;

	pthread_mutex_lock(lock);
	while (rig_stat(r, "terrace_advisor_pass_now_seconds", "") == 0)
		usleep(1000);
	fault.hanging = 1;
	while (fault.hangs)
		usleep(1000);
	pthread_mutex_unlock(lock);
	fault.hanging = 0;
	return NULL;
}

/* The same while the advisor is in the catalog, whose disk does not answer; and who asks for its graph is not kept for ever. Its pages are read by no call that could be made to wait: so he
 * waits for a lock of his. */
START_TEST(test_close_does_not_wait_for_a_hung_catalog)
{
	struct cache_keys k = rig_keys(0, 1);
	struct cache_graph_edge edge;
	struct cache_options o;
	struct rig_disks d;
	enum status st[16];
	pthread_t thread;
	struct rig r;
	uint32_t n;

	rig_disks_make(&d, NULL, 1, DISK);
	o = rig_disk_options(&d, 1, HOST);
	o.graph_nodes = 1024;
	o.advisor_ms = 1;
	o.disk_close_ms = 300;
	fault_none();
	rig_open(&r, &o, 1);
	rig_restored(&r);
	rig_put(&r, 0, 16);
	rig_flush(&r, 0, 16, st);
	all_ok(st, 16);
	fault.hangs = true;
	ck_assert_int_eq(pthread_create(&thread, NULL, advises, &r), 0);
	until_it_hangs();
	ck_assert_int_eq(cache_graph(r.c, k.bytes, k.key_bytes, &edge, 1, &n, &r.why), STATUS_UNAVAILABLE);
	free((void *)k.bytes);
	const double began = now_s();
	ck_assert(!cache_destroy(r.c));
	ck_assert_double_lt(now_s() - began, 20);
	ck_assert_str_eq(cache_left(r.c), "a disk does not answer, and the next start reads all headers");
	fault_none();
	pthread_join(thread, NULL);
	usleep(50000); /* what the advisor does then would be seen */
	cache_thread_leave();
	rig_disks_remove(&d);
}
END_TEST

/* After the disk has failed, and before its records are read: there is nothing to give up yet. The start wants the cache's lock for each of its
 * steps: it is held while the disk fails, by turns with none for the steps before. False: it was too late for that. */
static bool give_up_early(struct rig *r)
{
	struct unit *u = &r->c->tier->units[0];
	const double end = now_s() + 60;
	struct disk_view v;
	bool fails = false, late = false;

	while (!fails && !late) {
		ck_assert_double_lt(now_s(), end);
		cache_lock(r->c);
		late = u->failed;
		for (int ms = 0; !late && !fails && ms < 20; ms++) {
			usleep(1000);
			disk_look(u->disk, &v);
			fails = v.health == DISK_QUARANTINED;
		}
		if (fails) {
			unit_failed(r->c, u);
			tier_tick(r->c);
			ck_assert(u->swept);
		}
		cache_unlock(r->c);
		usleep(100);
	}
	return fails;
}

/* The start cannot note its run on the disk, and gives up what that has; blocks that are taken up from the catalog after that go, too. */
static bool disk_fails_at_the_start(int engine)
{
	struct cache_options o;
	struct rig_disks d;
	char run[128], in_it[160];
	struct rig r;
	bool early;

	rig_disks_make(&d, NULL, 1, DISK);
	open_on(&r, &d, 1, engine);
	put_slowly(&r, 0, 2 * HOST);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	rig_close(&r);
	snprintf(run, sizeof(run), "%s/run", d.folder[0]);
	snprintf(in_it, sizeof(in_it), "%s/in_it", run);
	ck_assert_int_eq(unlink(run), 0);
	ck_assert_int_eq(mkdir(run, 0700), 0);
	ck_assert_int_eq(mkdir(in_it, 0700), 0);
	o = rig_disk_options(&d, 1, HOST);
	o.io = engine_of(engine);
	rig_open(&r, &o, 1);
	early = give_up_early(&r);
	rig_restored(&r);
	ticks(&r, 3);
	ck_assert_double_eq(rig_stat(&r, "terrace_disk_health_info", "disk=0,health=quarantined"), 1);
	ck_assert_double_eq(rig_stat(&r, "terrace_blocks", "tier=disk"), 0);
	ck_assert_uint_eq(rig_prefix(&r, 0, 16), 0);
	ck_assert_uint_eq(rig_put(&r, 0, 16), 16);
	ck_assert_uint_eq(rig_read_all(&r, 0, 16), 16);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
	return early;
}

START_TEST(test_disk_that_fails_at_the_start_has_no_blocks)
{
	bool early = false;

	for (int tries = 0; tries < 20 && !early; tries++)
		early = disk_fails_at_the_start(_i);
	ck_assert(early);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_disk_fault");
	TCase *tc = tcase_create("faults");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, test_read_error_costs_that_disk, 0, 2);
	tcase_add_loop_test(tc, test_write_error_transfers_to_the_other_disk, 0, 2);
	tcase_add_loop_test(tc, test_failed_write_is_not_acknowledged, 0, 2);
	tcase_add_loop_test(tc, test_failed_sync_is_not_acknowledged, 0, 2);
	tcase_add_loop_test(tc, test_a_disk_that_fails_during_a_flush, 0, 2);
	tcase_add_loop_test(tc, test_full_disk_stops_spills_and_reads_go_on, 0, 2);
	tcase_add_loop_test(tc, test_settling_ends_when_disks_have_no_place, 0, 2);
	tcase_add_loop_test(tc, test_memory_does_not_wait_for_a_disk_to_transfer, 0, 2);
	tcase_add_test(tc, test_a_slab_that_is_not_made_keeps_no_chores);
	tcase_add_test(tc, test_what_fails_to_come_prefetch_takes_no_room);
	tcase_add_loop_test(tc, test_short_transfers_are_whole_in_the_end, 0, 2);
	tcase_add_test(tc, test_slow_disk_sheds);
	tcase_add_loop_test(tc, test_close_does_not_wait_for_a_hung_disk, 0, 2);
	tcase_add_loop_test(tc, test_close_does_not_wait_for_a_hung_scan, 0, 2);
	tcase_add_test(tc, test_close_does_not_wait_for_a_hung_catalog);
	tcase_add_test(tc, test_verify_counts_what_it_did_not_read);
	tcase_add_loop_test(tc, test_disk_that_fails_at_the_start_has_no_blocks, 0, 2);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
