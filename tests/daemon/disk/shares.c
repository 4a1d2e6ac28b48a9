/* What a tenant's blocks may take of disks, and keep: its share, its cap, and what a restart knows of them. */
#include "daemon/block/disk_class.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/disk/stats.h"
#include "store/ring/ring.h"
#include "store/slab/disk.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT = 1, BETA = 7, HOST = 512 };

/* One disk, or two, and two tenants: `default`, which has neither share nor cap, and beta. */
struct shares {
	struct rig_disks d;
	struct cache_options o;
	struct cache_tenant_options tenants[2];
	struct rig other, beta;        /* sessions over blocks of one slot */
};

/* A layout whose slots have so many pages of 4 KiB, from 2 on. */
static struct kv_layout pages_layout(uint32_t pages)
{
	struct kv_layout l = rig_layout(pages, 0);

	l.heads = l.total_heads = 7 * (pages - 1); /* of 576 bytes each */
	return l;
}

static void shares_make_on(struct shares *s, uint32_t disks, uint32_t slots)
{
	rig_disks_make(&s->d, NULL, disks, slots);
	s->o = rig_disk_options(&s->d, disks, HOST);
	s->o.extent_bytes = 256 << 10;
	s->o.tenants = s->tenants;
	s->o.tenant_count = 2;
	s->o.spill_share_milli = 1000; /* all is spilled */
	for (uint32_t i = 0; i < 2; i++)
		s->tenants[i] = (struct cache_tenant_options){
			.name = i ? "beta" : "default", .number = i ? BETA : DEFAULT,
			.pinned_bytes_max = UINT64_MAX / 4, .host_bytes = s->o.host_bytes / 2,
		};
}

static void shares_make(struct shares *s, uint32_t slots)
{
	shares_make_on(s, 1, slots);
}

static void shares_open(struct shares *s)
{
	const struct kv_layout l = pages_layout(2);

	rig_open_layouts(&s->other, &s->o, &l, 1);
	rig_restored(&s->other);
	rig_join_tenant(&s->beta, &s->other, BETA, &l, 1);
}

static void shares_remove(struct shares *s)
{
	rig_close(&s->other);
	rig_disks_remove(&s->d);
}

/* Of what was put before, memory has nothing from now on. */
static void shares_again(struct shares *s)
{
	rig_close(&s->other);
	shares_open(s);
}

/* Both clocks are the cache's. */
static void later(struct shares *s, uint64_t us)
{
	s->other.now += us;
	s->beta.now = s->other.now;
	rig_tick(s->other.c, s->other.now);
}

static uint64_t disk_bytes(struct shares *s, uint32_t tenant)
{
	uint64_t bytes;

	cache_lock(s->other.c);
	bytes = tenant_of_number(s->other.c, tenant)->disk_bytes;
	cache_unlock(s->other.c);
	return bytes;
}

/* Puts and flushes, a few at a time; returns how many a Flush has acknowledged. */
static uint32_t put_flushed(struct rig *r, uint64_t first, uint32_t count)
{
	uint32_t done = 0;

	for (uint32_t i = 0; i < count; i += 8) {
		const uint32_t n = count - i < 8 ? count - i : 8;
		enum status st[8];

		ck_assert_uint_eq(rig_put(r, first + i, n), n);
		ck_assert_int_eq(rig_flush(r, first + i, n, st), STATUS_OK);
		for (uint32_t k = 0; k < n; k++)
			done += st[k] == STATUS_OK;
	}
	return done;
}

/* Puts that other blocks push out of memory again, so that disks alone have those before. */
static void put_through(struct shares *s, struct rig *r, uint64_t first, uint32_t count)
{
	for (uint32_t i = 0; i < count; i += 8) {
		rig_put_slowly(r, first + i, 8);
		later(s, 1000000);
		r->now = s->other.now;
	}
}

/* What a Flush of everything promised a tenant is known after a restart: its flushed blocks outlast those that come
 * later and are not flushed. */
START_TEST(promises_outlast_a_restart)
{
	enum { KEPT = 32 };
	struct shares s;

	shares_make(&s, 128);
	shares_open(&s);
	rig_put_slowly(&s.beta, 0, KEPT);
	ck_assert_int_eq(rig_flush(&s.beta, 0, 0, NULL), STATUS_OK);
	shares_again(&s);
	ck_assert_uint_eq(rig_read_all(&s.beta, 0, KEPT), KEPT);
	put_through(&s, &s.beta, 1000, 1200);
	ck_assert_uint_eq(rig_read_all(&s.beta, 0, KEPT), KEPT);
	shares_remove(&s);
}
END_TEST

/* More blocks of another tenant's share are colder than a search looks at: a tenant finds its own all the same. */
START_TEST(a_share_hides_no_block_of_others)
{
	enum { SHARE = 500, SLOTS = 900, MORE = 640 };
	struct shares s;

	shares_make(&s, SLOTS);
	s.tenants[1].disk_bytes = (uint64_t)SHARE * RIG_SLOT_BYTES;
	shares_open(&s);
	ck_assert_uint_eq(put_flushed(&s.beta, 0, SHARE), SHARE);
	shares_again(&s);
	for (uint32_t i = 0; i < MORE; i += 32) {
		ck_assert_uint_eq(put_flushed(&s.other, i, 32), 32);
		later(&s, 1000000);
	}
	ck_assert_uint_ge(disk_bytes(&s, DEFAULT), (uint64_t)(SLOTS - SHARE - 64) * RIG_SLOT_BYTES);
	ck_assert_uint_eq(disk_bytes(&s, BETA), (uint64_t)SHARE * RIG_SLOT_BYTES);
	ck_assert_uint_eq(rig_read_all(&s.beta, 0, SHARE), SHARE);
	shares_remove(&s);
}
END_TEST

/* Each block is once in the list of those that may go. */
static void no_cold_twice(struct shares *s)
{
	cache_lock(s->other.c);
	for (struct disk_class *k = s->other.c->tier->units[0].classes; k; k = k->next)
		for (const struct class_cold *l = k->cold; l; l = l->next)
			for (uint32_t i = 1; i < l->count; i++)
				for (uint32_t j = 0; j < i; j++)
					ck_assert_uint_ne(l->id[i], l->id[j]);
	cache_unlock(s->other.c);
}

/* The same of a share that no search sees the end of. */
START_TEST(a_large_share_hides_no_block_of_others)
{
	enum { SHARE = 8448, MORE = 640 }; /* more than DISPLACE_SCAN_DEEP in disk/place.c */
	struct shares s;

	shares_make(&s, SHARE + 400);
	s.tenants[1].disk_bytes = (uint64_t)SHARE * RIG_SLOT_BYTES;
	shares_open(&s);
	for (uint32_t i = 0; i < SHARE; i += 64) {
		ck_assert_uint_eq(rig_put(&s.beta, i, 64), 64);
		rig_quiet(&s.beta);
	}
	shares_again(&s);
	for (uint32_t i = 0; i < MORE; i += 32) {
		ck_assert_uint_eq(put_flushed(&s.other, i, 32), 32);
		no_cold_twice(&s);
		later(&s, 1000000);
	}
	ck_assert_uint_eq(disk_bytes(&s, BETA), (uint64_t)SHARE * RIG_SLOT_BYTES);
	ck_assert_uint_eq(rig_read_all(&s.other, MORE - 64, 64), 64);
	shares_remove(&s);
}
END_TEST

/* The cap is by slots as they are: what fits below it to the byte is kept. */
START_TEST(a_cap_is_used_to_its_end)
{
	enum { CAP = 48 };
	struct shares s;

	shares_make(&s, 256);
	s.tenants[1].disk_bytes_max = (uint64_t)CAP * RIG_SLOT_BYTES;
	shares_open(&s);
	ck_assert_uint_eq(put_flushed(&s.beta, 0, CAP), CAP);
	rig_quiet(&s.beta);
	ck_assert_uint_eq(disk_bytes(&s, BETA), (uint64_t)CAP * RIG_SLOT_BYTES);
	ck_assert_double_eq(rig_stat(&s.beta, "terrace_evictions_total", "tier=disk,reason=full"), 0);
	shares_again(&s); /* what memory has too is not displaced */
	ck_assert_uint_eq(put_flushed(&s.beta, 1000, CAP), CAP);
	ck_assert_uint_eq(disk_bytes(&s, BETA), (uint64_t)CAP * RIG_SLOT_BYTES);
	ck_assert_uint_eq(rig_read_all(&s.beta, 1000, CAP), CAP);
	shares_remove(&s);
}
END_TEST

/* Blocks of two sizes are written at a time: those under way count as what they are. */
START_TEST(a_cap_holds_for_two_sizes)
{
	enum { LARGE = 16, LARGE_BYTES = LARGE * 4096, CAP = 8 * LARGE_BYTES };
	const struct kv_layout l = pages_layout(LARGE);
	struct rig large;
	struct shares s;

	shares_make(&s, 1024);
	s.tenants[1].disk_bytes_max = CAP;
	shares_open(&s);
	rig_join_tenant(&large, &s.other, BETA, &l, 1);
	put_flushed(&large, 0, 1); /* both sizes have a slab */
	put_flushed(&s.beta, 0, 1);
	for (uint32_t i = 1; i < 8; i++) {
		ck_assert_uint_eq(rig_put(&large, 8 * i, 8), 8);
		ck_assert_uint_eq(rig_put(&s.beta, 8 * i, 8), 8);
		rig_quiet(&s.beta);
		ck_assert_uint_le(disk_bytes(&s, BETA), CAP);
	}
	shares_remove(&s);
}
END_TEST

/* A tenant at its cap has blocks of one size on the disk, and brings blocks of another one. */
START_TEST(at_the_cap_another_size_gets_in)
{
	enum { PAGES = 6, CAP = 64, OF_OTHER = CAP * 2 / PAGES };
	const struct kv_layout l = pages_layout(PAGES);
	struct rig larger;
	struct shares s;

	shares_make(&s, 512);
	s.tenants[1].disk_bytes_max = (uint64_t)CAP * RIG_SLOT_BYTES;
	shares_open(&s);
	ck_assert_uint_eq(put_flushed(&s.beta, 0, CAP), CAP);
	shares_again(&s);
	rig_join_tenant(&larger, &s.other, BETA, &l, 1);
	later(&s, 60 * 1000000ull);
	larger.now = s.beta.now;
	ck_assert_uint_eq(put_flushed(&larger, 1000, OF_OTHER), OF_OTHER);
	ck_assert_uint_eq(rig_read_all(&larger, 1000, OF_OTHER), OF_OTHER);
	ck_assert_uint_le(disk_bytes(&s, BETA), (uint64_t)CAP * RIG_SLOT_BYTES);
	/* and a restart does not find what has gone */
	shares_again(&s);
	ck_assert_uint_le(disk_bytes(&s, BETA), (uint64_t)CAP * RIG_SLOT_BYTES);
	rig_join_tenant(&larger, &s.other, BETA, &l, 1);
	ck_assert_uint_eq(rig_read_all(&larger, 1000, OF_OTHER), OF_OTHER);
	shares_remove(&s);
}
END_TEST

/* A block that is larger than all that its tenant may ever have: nothing goes for it. */
static void never_fits(bool by_cap)
{
	enum { PAGES = 32, HAD = 8 };
	const struct kv_layout l = pages_layout(PAGES);
	struct rig larger;
	struct shares s;
	enum status st;

	shares_make(&s, 256);
	if (by_cap)
		s.tenants[1].disk_bytes_max = HAD * RIG_SLOT_BYTES;
	else
		s.tenants[0].disk_bytes = s.d.disk[0].bytes - 2 * HAD * RIG_SLOT_BYTES + 1;
	shares_open(&s);
	ck_assert_uint_eq(put_flushed(&s.beta, 0, HAD), HAD);
	shares_again(&s);
	rig_join_tenant(&larger, &s.other, BETA, &l, 1);
	ck_assert_uint_eq(rig_put(&larger, 1000, 1), 1);
	for (int i = 0; i < 4; i++) {
		ck_assert_int_eq(rig_flush(&larger, 1000, 1, &st), STATUS_OK);
		ck_assert_int_ne(st, STATUS_OK);
		later(&s, 1000000);
	}
	ck_assert_uint_eq(disk_bytes(&s, BETA), HAD * RIG_SLOT_BYTES);
	shares_remove(&s);
}

START_TEST(what_no_cap_takes_displaces_nothing)
{
	never_fits(true);
}
END_TEST

START_TEST(what_shares_leave_no_room_for_displaces_nothing)
{
	never_fits(false);
}
END_TEST

/* A tenant at its cap has flushed blocks, the coldest, and others: what is not flushed takes the place of the others. */
START_TEST(at_the_cap_flushed_blocks_outlast_others)
{
	enum { KEPT = 96, PLAIN = 64, CAP = KEPT + PLAIN };
	struct shares s;

	shares_make(&s, 320);
	s.o.slab_bytes = 34 * RIG_SLOT_BYTES;
	s.tenants[1].disk_bytes_max = (uint64_t)CAP * RIG_SLOT_BYTES;
	shares_open(&s);
	ck_assert_uint_eq(put_flushed(&s.beta, 0, KEPT), KEPT);
	put_through(&s, &s.beta, 1000, PLAIN + 800);
	ck_assert_uint_le(disk_bytes(&s, BETA), (uint64_t)CAP * RIG_SLOT_BYTES);
	ck_assert_uint_eq(rig_read_all(&s.beta, 0, KEPT), KEPT);
	ck_assert_uint_gt(rig_read_all(&s.beta, 1000 + PLAIN + 800 - 32, 32), 16);
	shares_remove(&s);
}
END_TEST

/* A share is in bytes: what has no room below it for one more slot keeps the slot that reaches over it. */
START_TEST(a_share_is_kept_to_the_byte)
{
	enum { HAS = 33 };
	struct shares s;

	shares_make(&s, 128);
	s.tenants[1].disk_bytes = (uint64_t)(HAS - 1) * RIG_SLOT_BYTES + 1;
	shares_open(&s);
	ck_assert_uint_eq(put_flushed(&s.beta, 0, HAS), HAS);
	shares_again(&s);
	for (uint32_t i = 0; i < 640; i += 32) {
		later(&s, 1000000);
		put_flushed(&s.other, i, 32);
	}
	ck_assert_uint_eq(disk_bytes(&s, BETA), (uint64_t)HAS * RIG_SLOT_BYTES);
	ck_assert_uint_eq(rig_read_all(&s.beta, 0, HAS), HAS);
	shares_remove(&s);
}
END_TEST

/* The table has a smaller cap at the next start: what is put then brings the tenant down to it. */
START_TEST(a_smaller_cap_is_reached)
{
	enum { HAD = 96, CAP = 40, NEW = 32 };
	struct shares s;

	shares_make(&s, 256);
	s.tenants[1].disk_bytes_max = (uint64_t)HAD * RIG_SLOT_BYTES;
	shares_open(&s);
	ck_assert_uint_eq(put_flushed(&s.beta, 0, HAD), HAD);
	rig_close(&s.other);
	s.tenants[1].disk_bytes_max = (uint64_t)CAP * RIG_SLOT_BYTES;
	shares_open(&s);
	ck_assert_uint_eq(disk_bytes(&s, BETA), (uint64_t)HAD * RIG_SLOT_BYTES);
	for (uint32_t i = 0; i < NEW; i += 8) {
		later(&s, 1000000);
		ck_assert_uint_eq(put_flushed(&s.beta, 1000 + i, 8), 8);
	}
	rig_quiet(&s.beta);
	ck_assert_uint_le(disk_bytes(&s, BETA), (uint64_t)CAP * RIG_SLOT_BYTES);
	ck_assert_uint_eq(rig_read_all(&s.beta, 1000, NEW), NEW);
	shares_remove(&s);
}
END_TEST

/* Slabs of another tenant's share have no flushed block. They are not this tenant's to take, so they are no reason to
 * keep its blocks in memory. */
START_TEST(what_others_may_not_lose_keeps_nothing_back)
{
	enum { SHARE = 64 };
	double spilled;
	struct shares s;

	shares_make(&s, 192);
	s.o.slab_bytes = 9 * RIG_SLOT_BYTES; /* headers of slabs take a ninth of the disk: it is full before its bytes are */
	s.tenants[1].disk_bytes = (uint64_t)SHARE * RIG_SLOT_BYTES;
	shares_open(&s);
	put_through(&s, &s.beta, 0, SHARE);
	shares_again(&s);
	for (uint32_t i = 0; i < 800; i += 32) {
		later(&s, 1000000);
		put_flushed(&s.other, i, 32);
	}
	shares_again(&s);
	spilled = rig_stat(&s.other, "terrace_spills_total", "status=ok");
	put_through(&s, &s.other, 5000, 8);
	ck_assert_double_eq(rig_stat(&s.other, "terrace_spills_total", "status=ok") - spilled, 8);
	ck_assert_uint_eq(disk_bytes(&s, BETA), (uint64_t)SHARE * RIG_SLOT_BYTES);
	shares_remove(&s);
}
END_TEST

/* A tenant at its cap has flushed blocks, which are the coldest it has, and a slab without one. More slabs without one
 * than a search looks at are another tenant's, and colder: its own slab is found all the same. */
START_TEST(at_the_cap_slabs_of_others_cost_no_flushed_block)
{
	enum { IN_SLAB = 8, KEPT = 10 * IN_SLAB, OTHERS = 17 * IN_SLAB, CAP = KEPT + IN_SLAB, MORE = 4 * IN_SLAB };
	double spilled;
	struct shares s;

	shares_make(&s, 512);
	s.o.slab_bytes = (IN_SLAB + 1) * RIG_SLOT_BYTES;
	s.tenants[1].disk_bytes_max = (uint64_t)CAP * RIG_SLOT_BYTES;
	shares_open(&s);
	ck_assert_uint_eq(put_flushed(&s.beta, 0, KEPT), KEPT);
	later(&s, 1000000);
	put_through(&s, &s.other, 0, OTHERS);
	put_through(&s, &s.beta, 1000, IN_SLAB);
	shares_again(&s); /* what memory has too is not displaced */
	ck_assert_uint_eq(disk_bytes(&s, BETA), (uint64_t)CAP * RIG_SLOT_BYTES);
	ck_assert_uint_eq(disk_bytes(&s, DEFAULT), (uint64_t)OTHERS * RIG_SLOT_BYTES);
	spilled = rig_stat(&s.beta, "terrace_spills_total", "status=ok");
	put_through(&s, &s.beta, 2000, MORE);
	rig_quiet(&s.beta);
	ck_assert_double_ge(rig_stat(&s.beta, "terrace_spills_total", "status=ok") - spilled, IN_SLAB);
	ck_assert_uint_eq(rig_read_all(&s.beta, 0, KEPT), KEPT);
	ck_assert_uint_eq(rig_read_all(&s.other, 0, OTHERS), OTHERS);
	ck_assert_uint_le(disk_bytes(&s, BETA), (uint64_t)CAP * RIG_SLOT_BYTES);
	shares_remove(&s);
}
END_TEST

/* The disk is full, and slabs of another tenant's share are the coldest without a flushed block: a tenant's own slab of
 * that kind is found all the same. */
START_TEST(slabs_of_a_share_cost_no_flushed_block)
{
	enum { IN_SLAB = 8, SHARE = 17 * IN_SLAB, KEPT = 36 * IN_SLAB };
	struct shares s;
	uint64_t had;

	shares_make(&s, 512);
	s.o.slab_bytes = (IN_SLAB + 1) * RIG_SLOT_BYTES;
	s.tenants[1].disk_bytes = (uint64_t)SHARE * RIG_SLOT_BYTES;
	shares_open(&s);
	ck_assert_uint_eq(put_flushed(&s.other, 0, KEPT), KEPT);
	later(&s, 1000000);
	put_through(&s, &s.beta, 0, SHARE);
	for (uint32_t n = 1000; rig_stat(&s.other, "terrace_evictions_total", "tier=disk,reason=full") < 1; n += 8) {
		ck_assert_uint_lt(n, 2000);
		put_through(&s, &s.other, n, 8);
	}
	shares_again(&s);
	had = disk_bytes(&s, DEFAULT);
	put_through(&s, &s.other, 3000, 4 * IN_SLAB);
	rig_quiet(&s.other);
	ck_assert_uint_eq(disk_bytes(&s, DEFAULT), had);
	ck_assert_uint_eq(rig_read_all(&s.other, 0, KEPT), KEPT);
	ck_assert_uint_eq(rig_read_all(&s.beta, 0, SHARE), SHARE);
	shares_remove(&s);
}
END_TEST

static _Atomic bool one_hangs;         /* the first disk that is written, while it is set */
static struct disk *_Atomic hung_disk;

static int hang(void *arg, const struct ring_request *q, uint32_t *most)
{
	struct disk *disk = ((const struct disk_request *)q)->disk, *none = NULL;

	(void)arg;
	(void)most;
	if (q->op != RING_WRITE || !one_hangs)
		return 0;
	atomic_compare_exchange_strong(&hung_disk, &none, disk);
	while (one_hangs && hung_disk == disk)
		usleep(1000);
	return 0;
}

/* All that a tenant may have is on its way to a disk that hangs. Blocks of other tenants go to the other disk. */
START_TEST(a_tenant_on_a_hung_disk_keeps_no_spill_of_others)
{
	enum { BEFORE = 8, MORE = 16, SLOTS = 256 };
	static const struct ring_calls calls = { .fault = hang };
	struct shares s;

	shares_make_on(&s, 2, SLOTS);
	s.o.disk_depth = 1;
	s.o.io = CACHE_IO_THREADS;
	s.o.io_calls = &calls;
	s.tenants[1].disk_bytes_max = RIG_SLOT_BYTES;
	shares_open(&s);
	ck_assert_uint_eq(put_flushed(&s.other, 0, BEFORE), BEFORE); /* both disks have a slab */
	one_hangs = true;
	ck_assert_uint_eq(rig_put(&s.beta, 0, 8), 8);
	RIG_AWAIT((later(&s, 1000), hung_disk));
	ck_assert_uint_eq(rig_put(&s.other, 1000, MORE), MORE);
	for (int i = 0; i < 5000 && disk_bytes(&s, DEFAULT) < (BEFORE + MORE) * RIG_SLOT_BYTES; i++) {
		usleep(1000);
		later(&s, 1000);
	}
	ck_assert_uint_eq(disk_bytes(&s, DEFAULT), (BEFORE + MORE) * RIG_SLOT_BYTES);
	ck_assert_uint_eq(disk_bytes(&s, BETA), 0);
	one_hangs = false;
	rig_quiet(&s.other);
	shares_remove(&s);
}
END_TEST

static bool disk_is_slow(struct shares *s)
{
	struct cache_disk_state disk[2];

	cache_disks(s->other.c, disk, 2);
	return !strcmp(disk[0].health, "slow") || !strcmp(disk[1].health, "slow");
}

/* One disk of two hangs, with depth left. What the other one takes is shared: the tenant with more to spill does not
 * keep it for itself. */
static void takes_turns(bool beta_has_many)
{
	enum { BEFORE = 8, MANY = 128, FEW = 16, SLOTS = 512 };
	static const struct ring_calls calls = { .fault = hang };
	struct shares s;
	struct rig *const many = beta_has_many ? &s.beta : &s.other, *const few = beta_has_many ? &s.other : &s.beta;
	const uint32_t of_many = beta_has_many ? BETA : DEFAULT, of_few = beta_has_many ? DEFAULT : BETA;
	uint64_t had_many, had_few;

	shares_make_on(&s, 2, SLOTS);
	s.o.disk_depth = 4;
	s.o.disk_slow_ms = 50;
	s.o.io = CACHE_IO_THREADS;
	s.o.io_calls = &calls;
	shares_open(&s);
	ck_assert_uint_eq(put_flushed(&s.other, 0, BEFORE), BEFORE); /* both disks have a slab */
	one_hangs = true;
	hung_disk = NULL;
	ck_assert_uint_eq(rig_put(&s.other, 1000, 2), 2);
	RIG_AWAIT((later(&s, 1000), hung_disk && disk_is_slow(&s)));
	had_many = disk_bytes(&s, of_many);
	had_few = disk_bytes(&s, of_few);
	ck_assert_uint_eq(rig_put(many, 2000, MANY), MANY);
	ck_assert_uint_eq(rig_put(few, 3000, FEW), FEW);
	for (int i = 0; i < 4000 && disk_bytes(&s, of_few) < had_few + FEW * RIG_SLOT_BYTES; i++) {
		usleep(1000);
		later(&s, 1000);
	}
	ck_assert_uint_eq(disk_bytes(&s, of_few), had_few + FEW * RIG_SLOT_BYTES);
	ck_assert_uint_lt(disk_bytes(&s, of_many) - had_many, MANY / 4 * 3 * RIG_SLOT_BYTES);
	one_hangs = false;
	rig_quiet(&s.other);
	shares_remove(&s);
}

START_TEST(beside_a_hung_disk_tenants_take_turns)
{
	takes_turns(false);
}
END_TEST

START_TEST(beside_a_hung_disk_tenants_take_turns_anyhow)
{
	takes_turns(true);
}
END_TEST

int main(void)
{
	const TTest *tests[] = {
		promises_outlast_a_restart,
		a_share_hides_no_block_of_others,
		a_large_share_hides_no_block_of_others,
		a_cap_is_used_to_its_end,
		a_cap_holds_for_two_sizes,
		at_the_cap_another_size_gets_in,
		at_the_cap_flushed_blocks_outlast_others,
		what_no_cap_takes_displaces_nothing,
		what_shares_leave_no_room_for_displaces_nothing,
		a_share_is_kept_to_the_byte,
		a_smaller_cap_is_reached,
		what_others_may_not_lose_keeps_nothing_back,
		at_the_cap_slabs_of_others_cost_no_flushed_block,
		slabs_of_a_share_cost_no_flushed_block,
		a_tenant_on_a_hung_disk_keeps_no_spill_of_others,
		beside_a_hung_disk_tenants_take_turns,
		beside_a_hung_disk_tenants_take_turns_anyhow,
	};

	return rig_main("cache_disk_shares", tests, sizeof(tests) / sizeof(tests[0]));
}
