/* Slabs that are given up, for compaction, for a smaller budget, and for slots of another size: what memory has too keeps a copy on disk all along. */
#include "daemon/block/disk_class.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/call/flush.h"
#include "daemon/call/inspect.h"
#include "daemon/disk/compact.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/disk/stats.h"
#include "kernels/format.h"
#include "store/ring/ring.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HOST = 64, DISK = 256, SLAB = 32 };

static _Atomic uint32_t delay_ms, delayed;

static int slowly(void *arg, const struct ring_request *q, uint32_t *most)
{
	(void)arg;
	(void)most;
	if (q->op == RING_WRITE && delay_ms) {
		delayed++;
		nanosleep(&(struct timespec){ .tv_nsec = delay_ms * 1000000 }, NULL);
	}
	return 0;
}

/* Syncs of disk 1, where the kernel is called as it is (the engine with threads). */
static _Atomic bool sync_hangs;
static _Atomic uint32_t hanging;

static int sync_file(int fd)
{
	char link[32], path[256] = "";

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (readlink(link, path, sizeof(path) - 1) > 0 && strstr(path, "/disk1/") && sync_hangs) {
		hanging++;
		while (sync_hangs)
			nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
		hanging--;
	}
	return fdatasync(fd);
}

static const struct ring_calls calls = { .fault = slowly, .fdatasync = sync_file };

static void open_with(struct rig *r, const struct rig_disks *d, uint32_t disks, enum cache_io io, uint32_t slow_ms)
{
	struct cache_options o = rig_disk_options(d, disks, HOST);

	delay_ms = 0;
	o.io_calls = &calls;
	o.io = io;
	o.disk_slow_ms = slow_ms ? slow_ms : o.disk_slow_ms;
	rig_open(r, &o, 1);
	rig_restored(r);
}

static void open_on(struct rig *r, const struct rig_disks *d, uint32_t disks)
{
	open_with(r, d, disks, CACHE_IO_AUTO, 0);
}

static uint64_t dirty(struct rig *r)
{
	struct cache_layout_view v[4];

	ck_assert_uint_eq(cache_layouts(r->c, v, 4), 1);
	return v[0].dirty_blocks;
}

/* Flushed blocks of which memory has the last HOST, on more slabs than one. */
static void fill(struct rig *r, uint32_t count)
{
	rig_put_slowly(r, 0, count);
	ck_assert_int_eq(rig_flush(r, 0, 0, NULL), STATUS_OK);
	ck_assert_uint_eq(dirty(r), 0);
}

static uint32_t compact(struct rig *r, uint32_t disk, uint64_t bytes)
{
	enum status s;
	uint64_t freed;
	uint32_t slabs = 0;

	for (int tries = 0; tries < 200; tries++) {
		s = cache_compact_step(r->c, disk, bytes, &freed);
		if (s == STATUS_MISS)
			return slabs;
		ck_assert(s == STATUS_OK || s == STATUS_BUSY);
		slabs += s == STATUS_OK;
		rig_quiet(r);
	}
	ck_abort_msg("compaction never ends");
}

/* Of 120 blocks on 4 slabs 32 slots stay, or 64: the newest 64 are in memory. Those that were on the slabs that went are in the place of
 * older ones, and a start that knows nothing of memory finds them. */
START_TEST(test_what_memory_has_stays_durable)
{
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	open_on(&r, &d, 1);
	fill(&r, 120);
	ck_assert_uint_ge(compact(&r, 0, 2 * SLAB * RIG_SLOT_BYTES + 2 * 4096), 1);
	ck_assert_uint_eq(dirty(&r), 0);
	ck_assert_double_le(rig_stat(&r, "terrace_disk_blocks", "disk=0"), 2 * SLAB + 2);
	rig_check_accounting(r.c);
	const uint32_t there = rig_read_all(&r, 120 - 48, 48);

	ck_assert_uint_ge(there, 48);
	rig_close(&r);
	open_on(&r, &d, 1);
	ck_assert_uint_eq(rig_read_all(&r, 120 - 48, 48), 48);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* Their copies go to the other disk. */
START_TEST(test_another_disk_takes_them)
{
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 2, DISK);
	open_on(&r, &d, 2);
	fill(&r, 48);
	compact(&r, 0, 1);
	ck_assert_uint_eq(dirty(&r), 0);
	ck_assert_double_eq(rig_stat(&r, "terrace_disk_blocks", "disk=0"), 0);
	const double kept = rig_stat(&r, "terrace_disk_blocks", "disk=1");

	ck_assert_double_ge(kept, SLAB - 1);
	ck_assert_uint_eq(rig_read_all(&r, 0, 48), (uint32_t)kept);
	rig_check_accounting(r.c);
	rig_close(&r);
	open_on(&r, &d, 2);
	ck_assert_uint_eq(rig_read_all(&r, 0, 48), (uint32_t)kept);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

static void ignore(void *arg)
{
	(void)arg;
}

static bool is_slow(struct rig *r, uint32_t disk)
{
	struct cache_disk_state disks[2];

	return cache_disks(r->c, disks, 2) == 2 && !strcmp(disks[disk].health, "slow");
}

/* A disk that hangs, and has none of the copies, is not waited for. */
START_TEST(test_a_disk_without_copies_is_not_synced)
{
	struct cache_wait w = { .ready = ignore };
	struct timespec began, ended;
	struct rig_disks d;
	uint64_t freed;
	enum status s;
	struct rig r;

	rig_disks_make(&d, NULL, 2, DISK);
	open_with(&r, &d, 2, CACHE_IO_THREADS, 100);
	fill(&r, 120);
	sync_hangs = true;
	for (uint64_t next = 1000; !hanging; next += 8) { /* until some of it goes to that disk, which may be passed over for its own slowness */
		ck_assert_uint_lt(next, 9000);
		rig_put(&r, next, 8);
		for (int ms = 0; ms < 100 && !hanging; ms++) {
			rig_tick(r.c, r.now); /* it may have no slab yet, or none with a free slot */
			if (cache_flush(r.c, r.s.id, NULL, r.now, &w, NULL, &r.why) != STATUS_BUSY) { /* all was on the other */
				cache_wait_end(r.c, &w);
				w = (struct cache_wait){ .ready = ignore };
			}
			usleep(1000);
		}
	}
	RIG_AWAIT((cache_flush(r.c, r.s.id, NULL, r.now, &w, NULL, &r.why), is_slow(&r, 1))); /* from now on it gets no copies */
	clock_gettime(CLOCK_MONOTONIC, &began);
	s = cache_compact_step(r.c, 0, 1, &freed);
	clock_gettime(CLOCK_MONOTONIC, &ended);
	ck_assert(s == STATUS_OK || s == STATUS_BUSY);
	ck_assert_int_lt(ended.tv_sec - began.tv_sec, 8);
	sync_hangs = false;
	while ((s = cache_flush(r.c, r.s.id, NULL, r.now, &w, NULL, &r.why)) == STATUS_BUSY)
		rig_tick(r.c, r.now);
	ck_assert_int_eq(s, STATUS_OK);
	cache_wait_end(r.c, &w);
	rig_quiet(&r);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* With no other place they are evicted from both tiers, rather than served without being durable. */
START_TEST(test_without_a_place_they_are_evicted)
{
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	open_on(&r, &d, 1);
	fill(&r, 24);
	ck_assert_uint_eq(compact(&r, 0, 1), 1);
	ck_assert_uint_eq(dirty(&r), 0);
	ck_assert_double_eq(rig_stat(&r, "terrace_evictions_total", "tier=disk,reason=compact"), 24);
	ck_assert_uint_eq(rig_read_all(&r, 0, 24), 0);
	rig_check_accounting(r.c);
	rig_put_slowly(&r, 0, 24);
	ck_assert_uint_eq(rig_read_all(&r, 0, 24), 24);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

struct compactor {
	struct rig *rig;
	enum status status;
};

static void *compact_once(void *arg)
{
	struct compactor *x = arg;
	uint64_t freed;

	cache_thread_enter();
	x->status = cache_compact_step(x->rig->c, 0, 1, &freed);
	cache_thread_leave();
	return NULL;
}

/* Deletes while the copies are under way: they wait for both slots, and no start brings the blocks back. The other disk has a place for
 * each. _i: there is no time to finish the copies, so the slab stays. */
START_TEST(test_deletes_beside_a_compaction)
{
	struct compactor x = { .status = STATUS_OK };
	enum status st[8];
	struct rig_disks d;
	pthread_t thread;
	struct rig r;

	rig_disks_make(&d, NULL, 2, DISK);
	open_on(&r, &d, 2);
	fill(&r, SLAB);
	x.rig = &r;
	delayed = 0;
	delay_ms = _i ? 40 : 4;
	ck_assert_int_eq(pthread_create(&thread, NULL, compact_once, &x), 0);
	for (int i = 0; !delayed; i++) { /* the first copy is under way */
		ck_assert_int_lt(i, 20000);
		nanosleep(&(struct timespec){ .tv_nsec = 500000 }, NULL);
	}
	nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	for (uint32_t i = 0; i < 24; i += 8) {
		ck_assert_int_eq(rig_delete(&r, i, 8, st), STATUS_OK);
		for (int k = 0; k < 8; k++)
			ck_assert_int_eq(st[k], STATUS_OK);
	}
	pthread_join(thread, NULL);
	ck_assert(x.status == STATUS_OK || x.status == STATUS_BUSY);
	delay_ms = 0;
	rig_quiet(&r);
	rig_check_accounting(r.c);
	rig_flush(&r, 24, 8, st);
	ck_assert_uint_eq(rig_read_all(&r, 0, 24), 0);
	ck_assert_uint_eq(rig_read_all(&r, 24, 8), 8);
	rig_close(&r);
	open_on(&r, &d, 2);
	ck_assert_uint_eq(rig_read_all(&r, 0, 24), 0);
	ck_assert_uint_eq(rig_read_all(&r, 24, 8), 8);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* A process that fills the cache, says so, and gives slabs up until it is killed. */
static void compact_and_die(const struct rig_disks *d, int told)
{
	uint64_t freed;
	struct rig r;

	open_on(&r, d, 1);
	fill(&r, 120);
	delay_ms = 1;
	if (write(told, "", 1) != 1)
		_exit(1);
	for (uint64_t slabs = 3; slabs >= 2; slabs--)
		while (cache_compact_step(r.c, 0, slabs * (SLAB * RIG_SLOT_BYTES + 4096), &freed) != STATUS_MISS)
			rig_tick(r.c, r.now);
	pause();
}

/* What was flushed, and was in memory when a slab was given up, is there after a kill at any moment of that. */
START_TEST(test_a_kill_loses_nothing_that_memory_has)
{
	struct rig_disks d;
	struct rig r;
	int told[2], status;
	char byte;
	pid_t pid;

	rig_disks_make(&d, NULL, 1, DISK);
	ck_assert_int_eq(pipe(told), 0);
	pid = fork();
	if (!pid)
		compact_and_die(&d, told[1]);
	ck_assert_int_eq(read(told[0], &byte, 1), 1);
	nanosleep(&(struct timespec){ .tv_nsec = _i * 4000000 }, NULL);
	kill(pid, SIGKILL);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFSIGNALED(status));
	close(told[0]);
	close(told[1]);
	open_on(&r, &d, 1);
	ck_assert_uint_eq(rig_read_all(&r, 120 - 48, 48), 48);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* A run whose disk may take less than the one before: slabs go until it does, and what was on the others stays. */
START_TEST(test_a_smaller_budget_is_kept)
{
	struct rig_disks d;
	struct rig r;
	uint32_t left;

	rig_disks_make(&d, NULL, 1, DISK);
	open_on(&r, &d, 1);
	fill(&r, 120);
	ck_assert_double_eq(rig_stat(&r, "terrace_disk_slabs", "disk=0"), 4);
	rig_close(&r);
	d.disk[0].bytes /= 4;
	open_on(&r, &d, 1);
	ck_assert_double_eq(rig_stat(&r, "terrace_restored_blocks", ""), 120);
	rig_quiet(&r);
	ck_assert_double_le(rig_stat(&r, "terrace_disk_slab_bytes", "disk=0"), (double)d.disk[0].bytes);
	left = (uint32_t)rig_stat(&r, "terrace_disk_blocks", "disk=0");
	ck_assert_uint_ge(left, 120 - 3 * 33);
	ck_assert_uint_eq(rig_read_all(&r, 0, 120), left);
	rig_put_slowly(&r, 1000, HOST);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	ck_assert_double_le(rig_stat(&r, "terrace_disk_slab_bytes", "disk=0"), (double)d.disk[0].bytes);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

static const struct disk_class *class_of(const struct rig *r, const struct kv_layout *l)
{
	const struct disk_class *k = r->c->tier->units[0].classes;
	struct kv_geometry g;

	kv_geometry_of(l, &g);
	while (k && k->slot_bytes != g.need_bytes)
		k = k->next;
	return k;
}

static uint32_t slabs_of(const struct rig *r, const struct kv_layout *l)
{
	const struct disk_class *k;
	uint32_t n = 0;

	cache_lock(r->c);
	k = class_of(r, l);
	for (const struct slab_map *slab_map = k ? k->slab_maps : NULL; slab_map; slab_map = slab_map->next)
		n++;
	cache_unlock(r->c);
	return n;
}

/* A model comes in the place of another one, whose blocks have another size and fill the disk. */
START_TEST(test_idle_slabs_go_to_another_size)
{
	struct kv_layout after = rig_layout(2, 0);
	const struct kv_layout before = rig_layout(1, 0);
	struct cache_options o;
	struct rig_disks d;
	uint32_t slabs, needed;
	struct rig r;

	after.layers *= 4;
	after.total_heads = after.heads *= 4;
	rig_disks_make(&d, NULL, 1, 128);
	o = rig_disk_options(&d, 1, HOST);
	o.disk_policy = "graph";
	rig_open_layouts(&r, &o, &before, 1);
	rig_restored(&r);
	rig_put_slowly(&r, 0, 256);
	rig_close(&r);

	rig_open_layouts(&r, &o, &after, 1);
	rig_restored(&r);
	slabs = slabs_of(&r, &before);
	ck_assert_uint_ge(slabs, 7);
	/* It gets one, and more as long as memory has all that is in its own. Then those are displaced. */
	rig_put_slowly(&r, 1000, 64);
	needed = slabs_of(&r, &after);
	ck_assert_uint_ge(needed, 1);
	ck_assert_uint_lt(needed, slabs - 2);
	ck_assert_uint_lt(slabs_of(&r, &before), slabs);
	for (uint32_t i = 0; i < 4; i++, r.now += 2000 * 1000) /* what has not been idle for long stays */
		rig_put_slowly(&r, 1104 + 8 * i, 8);
	ck_assert_uint_le(slabs_of(&r, &after), needed + 1);
	r.now += 600 * 1000 * 1000ull;
	for (uint32_t i = 0; i < 16; i++, r.now += 2000 * 1000)
		rig_put_slowly(&r, 2000 + 8 * i, 8);
	ck_assert_uint_ge(slabs_of(&r, &after), needed + 2);
	rig_tick(r.c, r.now += 2000 * 1000);
	cache_lock(r.c);
	ck_assert_uint_le(class_of(&r, &before)->policy_room, 128 / 2 * 9 / 8); /* its policy knows */
	cache_unlock(r.c);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_disk_compact");
	TCase *tc = tcase_create("compact");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, test_what_memory_has_stays_durable);
	tcase_add_test(tc, test_another_disk_takes_them);
	tcase_add_test(tc, test_a_disk_without_copies_is_not_synced);
	tcase_add_test(tc, test_without_a_place_they_are_evicted);
	tcase_add_test(tc, test_a_smaller_budget_is_kept);
	tcase_add_test(tc, test_idle_slabs_go_to_another_size);
	tcase_add_loop_test(tc, test_deletes_beside_a_compaction, 0, 2);
	tcase_add_loop_test(tc, test_a_kill_loses_nothing_that_memory_has, 0, 20);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
