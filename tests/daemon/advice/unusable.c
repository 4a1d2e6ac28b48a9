/* Blocks that no prefix needs any more, as a block that such prefixes need has left: they are marked, they leave before
 * colder blocks, and they are as before once the missing block is back. Then random sessions: no block that a usable
 * prefix needs is ever marked, and all blocks behind the last usable prefix are. */
#include "daemon/advice/graph.h"
#include "daemon/block/block.h"
#include "daemon/block/by_id.h"
#include "daemon/block/grid.h"
#include "daemon/block/key.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/commit.h"
#include "daemon/call/lookup.h"
#include "daemon/call/reserve.h"
#include "daemon/session/attachment.h"
#include "daemon/session/end.h"
#include "daemon/session/open.h"
#include "daemon/session/session.h"
#include "store/status.h"
#include "tests/daemon/cache_chain.h"
#include "tests/daemon/cache_rig.h"
#include "tests/daemon/vram/rig.h"

#include <stdlib.h>
#include <string.h>

enum { UNIT = RIG_TOKENS, FULL = 1, STATE = 2, KEYS_MAX = 400, LAYOUTS = 4 };

/* ---- what the advisor looks up, in one hold of the lock at most ---- */

static struct {
	bool on;
	uint32_t held, held_max;
} looks;

void __real_cache_lock(struct cache *c);
void __wrap_cache_lock(struct cache *c);
void __wrap_cache_lock(struct cache *c)
{
	__real_cache_lock(c);
	looks.held = 0;
}

struct block *__real_by_id_find(const struct cache *c, uint64_t id);
struct block *__wrap_by_id_find(const struct cache *c, uint64_t id);
struct block *__wrap_by_id_find(const struct cache *c, uint64_t id)
{
	if (looks.on && ++looks.held > looks.held_max)
		looks.held_max = looks.held;
	return __real_by_id_find(c, id);
}

static struct cache_options options(uint32_t slots)
{
	struct cache_options o = rig_options(slots);

	o.graph_nodes = 4096;
	return o;
}

/* What the daemon does within a second. */
static void settle(struct rig *r)
{
	rig_tick(r->c, r->now += 50000);
	looks.on = true;
	advisor_pass(r->c);
	looks.on = false;
}

static struct block *find(struct rig *r, uint32_t layout, uint64_t n)
{
	uint8_t key[RIG_KEY_BYTES];

	rig_key(key, n);
	return by_id_find(r->c, policy_id(key_name(key, sizeof(key)), r->s.layout_id[layout]));
}

/* The marks of keys in a row, one digit each; '.': there is no block. */
static const char *marks(struct rig *r, uint32_t layout, const uint64_t *chain, uint32_t count)
{
	static char text[KEYS_MAX + 1];

	for (uint32_t i = 0; i < count; i++) {
		const struct block *b = find(r, layout, chain[i]);

		text[i] = !b ? '.' : b->unusable ? '1' : '0';
	}
	text[count] = 0;
	return text;
}

/* The block of one layout leaves all tiers, as by an eviction. */
static void lose(struct rig *r, uint32_t layout, uint64_t n)
{
	struct block *b = find(r, layout, n);

	ck_assert_ptr_nonnull(b);
	index_read_lock();
	cache_lock(r->c);
	block_remove(r->c, b, CACHE_REASON_EVICTED);
	cache_unlock(r->c);
	index_read_unlock();
}

static const uint64_t chain[] = { 1, 2, 3, 4, 5, 6, 7, 8 }, other[] = { 1, 2, 33, 34 },
		      old[] = { 101, 102, 103, 104, 105, 106, 107, 108 }, fresh[] = { 201, 202, 203, 204, 205 };

/* ---- one layout ---- */

static void goes_first(const char *policy)
{
	struct cache_options o = options(16);
	struct rig r;

	o.policy = policy;
	rig_open(&r, &o, 1);
	chain_request(&r, old, 8);
	r.now += 1000000;
	chain_request(&r, chain, 8);
	settle(&r);
	lose(&r, 0, 3);
	settle(&r);
	ck_assert_str_eq(marks(&r, 0, chain, 8), "00.11111");
	ck_assert_str_eq(marks(&r, 0, old, 8), "00000000");
	ck_assert_double_eq(rig_stat(&r, "terrace_unusable_blocks_total", ""), 5);
	for (uint32_t i = 0; i < 5; i++) { /* one slot is free */
		chain_request(&r, fresh + i, 1);
		ck_assert_str_eq(marks(&r, 0, old, 8), "00000000");
		ck_assert_str_eq(marks(&r, 0, chain, 3), "00.");
	}
	ck_assert_uint_eq(r.c->unusable_blocks, 1);
	rig_check_accounting(r.c);
	rig_close(&r);
}

START_TEST(what_is_behind_a_gap_goes_first)
{
	goes_first("lru");
	goes_first("s3fifo");
	goes_first("sieve");
	goes_first("graph");
}
END_TEST

START_TEST(the_missing_block_comes_back)
{
	const struct cache_options o = options(16);
	struct rig r;

	rig_open(&r, &o, 1);
	chain_request(&r, old, 8);
	r.now += 1000000;
	chain_request(&r, chain, 8);
	settle(&r);
	lose(&r, 0, 3);
	lose(&r, 0, 5);
	settle(&r);
	ck_assert_str_eq(marks(&r, 0, chain, 8), "00.1.111");
	chain_request(&r, chain, 3);
	settle(&r);
	ck_assert_str_eq(marks(&r, 0, chain, 8), "0000.111");
	chain_request(&r, chain, 5);
	settle(&r);
	ck_assert_str_eq(marks(&r, 0, chain, 8), "00000000");
	ck_assert_uint_eq(r.c->unusable_blocks, 0);
	for (uint32_t i = 0; i < 5; i++)
		chain_request(&r, fresh + i, 1);
	ck_assert_str_eq(marks(&r, 0, chain, 8), "00000000"); /* older ones went */
	ck_assert_str_eq(marks(&r, 0, old, 8), "000.....");
	rig_close(&r);
}
END_TEST

/* What comes back far behind another gap is of no more use than before. */
START_TEST(one_of_two_missing_blocks_comes_back)
{
	const struct cache_options o = options(512);
	uint64_t keys[KEYS_MAX];
	struct rig r;

	for (uint32_t i = 0; i < KEYS_MAX; i++)
		keys[i] = 1000 + i;
	rig_open(&r, &o, 1);
	chain_request(&r, keys, KEYS_MAX);
	settle(&r);
	lose(&r, 0, keys[0]);
	lose(&r, 0, keys[KEYS_MAX - 50]);
	settle(&r);
	ck_assert_uint_eq(r.c->unusable_blocks, KEYS_MAX - 2);
	ck_assert_uint_eq(rig_put(&r, keys[KEYS_MAX - 50], 1), 1);
	settle(&r);
	ck_assert_uint_eq(r.c->unusable_blocks, KEYS_MAX - 2);
	ck_assert_uint_eq(rig_put(&r, keys[0], 1), 1);
	settle(&r);
	ck_assert_uint_eq(r.c->unusable_blocks, 0);
	rig_close(&r);
}
END_TEST

START_TEST(another_branch_stays)
{
	const struct cache_options o = options(32);
	struct rig r;

	rig_open(&r, &o, 1);
	chain_request(&r, chain, 8);
	chain_request(&r, other, 4);
	settle(&r);
	lose(&r, 0, 3);
	settle(&r);
	ck_assert_str_eq(marks(&r, 0, chain, 8), "00.11111");
	ck_assert_str_eq(marks(&r, 0, other, 4), "0000");
	lose(&r, 0, 1);
	settle(&r);
	ck_assert_str_eq(marks(&r, 0, other, 4), ".111");
	rig_close(&r);
}
END_TEST

/* Longer than what is looked at in one go. */
START_TEST(a_long_chain)
{
	enum { LONG = 1500 };
	struct cache_options o = options(2048);
	uint64_t keys[LONG];
	struct rig r;

	rig_open(&r, &o, 1);
	for (uint32_t i = 0; i < LONG; i++)
		keys[i] = 1000 + i;
	for (uint32_t n = 100; n <= LONG; n += 100)
		chain_request(&r, keys, n);
	settle(&r);
	lose(&r, 0, keys[0]);
	settle(&r);
	ck_assert_uint_eq(r.c->unusable_blocks, LONG - 1);
	chain_request(&r, keys, 1);
	settle(&r);
	ck_assert_uint_eq(r.c->unusable_blocks, 0);
	rig_close(&r);
}
END_TEST

START_TEST(a_use_makes_it_usable)
{
	const struct cache_options o = options(32);
	struct rig r;

	rig_open(&r, &o, 1);
	chain_request(&r, chain, 8);
	settle(&r);
	lose(&r, 0, 3);
	settle(&r);
	chain_request(&r, chain + 4, 1); /* keys need not be chained */
	ck_assert_str_eq(marks(&r, 0, chain, 8), "00.10111");
	ck_assert_uint_eq(r.c->unusable_blocks, 4);
	rig_close(&r);
}
END_TEST

/* ---- other tiers ---- */

static uint32_t there(struct rig *r, const uint64_t *names, uint32_t count)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < count; i++)
		n += find(r, 0, names[i]) != NULL;
	return n;
}

START_TEST(on_a_disk)
{
	struct cache_options o;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, 64);
	o = rig_disk_options(&d, 1, 16);
	o.graph_nodes = 4096;
	o.prefetch_bytes = 0;
	rig_open(&r, &o, 1);
	rig_restored(&r);
	chain_request(&r, old, 8);
	rig_quiet(&r);
	r.now += 1000000;
	chain_request(&r, chain, 8);
	rig_quiet(&r);
	rig_put_slowly(&r, 1000, 24); /* both are on the disk alone */
	settle(&r);
	lose(&r, 0, 3);
	settle(&r);
	ck_assert_str_eq(marks(&r, 0, chain, 8), "00.11111");
	for (uint64_t n = 2000; there(&r, chain + 3, 5); n += 1) {
		ck_assert_uint_lt(n, 3000);
		ck_assert_uint_eq(rig_put(&r, n, 1), 1);
		rig_quiet(&r);
	}
	ck_assert_uint_gt(there(&r, old, 8), 0); /* a disk makes room for several blocks at a time */
	ck_assert_str_eq(marks(&r, 0, chain, 3), "00.");
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

static void mark(struct rig *r, uint64_t n, bool is)
{
	cache_lock(r->c);
	block_unusable(r->c, find(r, 0, n), is);
	cache_unlock(r->c);
}

START_TEST(on_a_gpu)
{
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = VR_EXTENT_SLOTS, .host_slots = 64 });
	ck_assert_uint_eq(vr_put(&v, 0, 1, VR_EXTENT_SLOTS), VR_EXTENT_SLOTS);
	rig_quiet(&v.r);
	mark(&v.r, 2, true);
	mark(&v.r, 4, true);
	mark(&v.r, 6, true);
	mark(&v.r, 6, false);
	ck_assert_uint_eq(vr_put(&v, 0, 101, 2), 2);
	rig_quiet(&v.r);
	for (uint64_t n = 1; n <= VR_EXTENT_SLOTS; n++)
		ck_assert_str_eq(vr_tier(&v, n), n == 2 || n == 4 ? "host" : "gpu+host");
	rig_check_accounting(v.r.c);
	vr_close(&v);
}
END_TEST

/* A copy that comes to a tier while its block is unusable goes first there. */
START_TEST(a_copy_on_its_way_to_a_disk)
{
	static const uint64_t spilled[] = { 101, 102, 103, 104, 105, 106, 107, 108 };
	enum { DISK = 64, HOT = 8 };
	struct cache_options o;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	o = rig_disk_options(&d, 1, 16);
	o.graph_nodes = 4096;
	rig_open(&r, &o, 1);
	rig_restored(&r);
	rig_put_slowly(&r, 101, 24);
	ck_assert_uint_eq(there(&r, spilled, 8), 8);
	ck_assert_uint_eq(rig_put(&r, HOT, 1), 1);
	mark(&r, HOT, true); /* it is in memory alone so far */
	ck_assert_ptr_null(find(&r, 0, HOT)->slab_map);
	for (uint64_t n = 201; !find(&r, 0, HOT)->slab_map; n++) {
		ck_assert_uint_eq(rig_put(&r, n, 1), 1);
		rig_quiet(&r);
		ck_assert_ptr_nonnull(find(&r, 0, HOT));
	}
	for (uint64_t n = 1001; find(&r, 0, HOT); n++) {
		ck_assert_uint_lt(n, 1001 + DISK);
		ck_assert_uint_eq(rig_put(&r, n, 1), 1);
		rig_quiet(&r);
	}
	ck_assert_uint_gt(there(&r, spilled, 8), 0); /* a disk makes room for several blocks at a time */
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* An unusable block displaces none on a disk, until it is usable again. */
START_TEST(none_makes_room_for_it_on_a_disk)
{
	struct cache_options o;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, 16);
	o = rig_disk_options(&d, 1, 16);
	o.graph_nodes = 4096;
	rig_open(&r, &o, 1);
	rig_restored(&r);
	rig_put_slowly(&r, 101, 64);
	ck_assert_uint_eq(rig_put(&r, 1, 2), 2);
	mark(&r, 1, true);
	for (uint64_t n = 1001; !find(&r, 0, 1)->no_spill; n++) {
		ck_assert_uint_eq(rig_put(&r, n, 1), 1);
		rig_quiet(&r);
		ck_assert_ptr_nonnull(find(&r, 0, 1));
		ck_assert_ptr_null(find(&r, 0, 1)->slab_map);
	}
	mark(&r, 1, false);
	for (uint64_t n = 2001; !find(&r, 0, 1)->slab_map; n++) {
		ck_assert_uint_eq(rig_put(&r, n, 1), 1);
		rig_quiet(&r);
		ck_assert_ptr_nonnull(find(&r, 0, 1));
	}
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

START_TEST(a_copy_on_its_way_to_memory)
{
	enum { HOST = 16 };
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = VR_EXTENT_SLOTS, .host_slots = HOST });
	vr_hold(&v, 0, 0);
	ck_assert_uint_eq(vr_put(&v, 0, 1, VR_EXTENT_SLOTS), VR_EXTENT_SLOTS);
	mark(&v.r, 4, true);
	ck_assert_ptr_null(find(&v.r, 0, 4)->span);
	vr_go(&v, 0);
	rig_quiet(&v.r);
	ck_assert_ptr_nonnull(find(&v.r, 0, 4)->span);
	for (uint64_t n = 101; find(&v.r, 0, 4)->span; n++) {
		ck_assert_uint_lt(n, 101 + HOST);
		ck_assert_uint_eq(vr_put(&v, CACHE_HOST, n, 1), 1);
		rig_quiet(&v.r);
	}
	for (uint64_t n = 1; n <= VR_EXTENT_SLOTS; n++)
		ck_assert_str_eq(vr_tier(&v, n), n == 4 ? "gpu" : "gpu+host");
	rig_check_accounting(v.r.c);
	vr_close(&v);
}
END_TEST

START_TEST(a_copy_on_its_way_to_a_gpu)
{
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = VR_EXTENT_SLOTS, .host_slots = 64 });
	ck_assert_uint_eq(vr_put(&v, 0, 101, 1), 1); /* the session works on that GPU */
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 1, VR_EXTENT_SLOTS - 1), VR_EXTENT_SLOTS - 1);
	rig_quiet(&v.r);
	vr_hold(&v, 0, 0);
	vr_warm_begin(&v, 0, 1, VR_EXTENT_SLOTS - 1);
	mark(&v.r, 4, true);
	vr_go(&v, 0);
	rig_quiet(&v.r);
	for (uint64_t n = 1; n < VR_EXTENT_SLOTS; n++)
		ck_assert_str_eq(vr_tier(&v, n), "gpu+host");
	ck_assert_uint_eq(vr_put(&v, 0, 102, 1), 1);
	rig_quiet(&v.r);
	for (uint64_t n = 1; n < VR_EXTENT_SLOTS; n++)
		ck_assert_str_eq(vr_tier(&v, n), n == 4 ? "host" : "gpu+host");
	rig_check_accounting(v.r.c);
	vr_close(&v);
}
END_TEST

/* ---- several layouts ---- */

static void join_session(struct rig *to, struct rig *from, const struct kv_layout *layouts,
			 const struct grid_wish *wishes, uint32_t count)
{
	const struct cache_open_call q = { .tenant = "",
					   .layouts = layouts,
					   .layout_count = count,
					   .unit = UNIT,
					   .wishes = wishes,
					   .engine = "test",
					   .now_us = from->now };
	uint64_t session;

	*to = (struct rig){ .c = from->c, .now = from->now };
	ck_assert_int_eq(cache_session_open(to->c, &q, &to->s, &to->why), STATUS_OK);
	ck_assert_int_eq(cache_attach(to->c, to->s.token, 1, to->now, &to->attachment, &session, &to->why), STATUS_OK);
}

static struct kv_layout full_layout(void)
{
	struct kv_layout l = rig_layout(20, 0);

	l.block_tokens = 2 * UNIT;
	return l;
}

/* Full attention of two units a block, and a state of one. */
static void open_hybrid(struct rig *r, struct rig *plain)
{
	const struct cache_options o = options(512);
	const struct kv_layout layouts[2] = { full_layout(), rig_layout(21, 0) };
	const struct grid_wish wishes[2] = { { .partial = false }, { .last = 1, .sparse = true } };

	rig_open(plain, &o, 1);
	join_session(r, plain, layouts, wishes, 2);
}

static struct cache_keys keys_named(const uint64_t *names, uint32_t count, uint8_t *bytes)
{
	for (uint32_t i = 0; i < count; i++)
		rig_key(bytes + (size_t)i * RIG_KEY_BYTES, names[i]);
	return (struct cache_keys){ bytes, count, RIG_KEY_BYTES };
}

static uint32_t prefix_of(struct rig *r, const uint64_t *names, uint32_t count)
{
	uint8_t bytes[KEYS_MAX * RIG_KEY_BYTES];
	const struct cache_keys k = keys_named(names, count, bytes);
	uint32_t prefix = 99;

	ck_assert_int_eq(cache_lookup(r->c, r->s.id, &k, &prefix, NULL, 0, &r->why), STATUS_OK);
	return prefix;
}

/* Asks for the chain, and puts the cells that `cells` names, a bit a layout. */
static void put_cells(struct rig *r, const uint64_t *names, uint32_t count, const uint64_t *cells)
{
	const struct cache_on on = { .attachment = r->attachment, .gpu = CACHE_HOST };
	uint8_t bytes[KEYS_MAX * RIG_KEY_BYTES];
	const struct cache_keys k = keys_named(names, count, bytes);
	struct cache_commit_item items[KEYS_MAX] = { { 0 } };
	struct cache_place places[LAYOUTS * KEYS_MAX];
	uint64_t reservations[KEYS_MAX];
	enum status statuses[KEYS_MAX];
	uint32_t n = 0;
	const struct cache_reserve_call reserve = { .session = r->s.id, .keys = &k, .cells = cells, .on = &on,
						    .may_grow = true, .now_us = r->now, .statuses = statuses,
						    .reservations = reservations, .places = places,
						    .places_max = LAYOUTS * KEYS_MAX };

	prefix_of(r, names, count);
	ck_assert_int_eq(cache_reserve(r->c, &reserve, &r->why), STATUS_OK);
	for (uint32_t i = 0; i < count; i++)
		if (reservations[i])
			items[n++].reservation = reservations[i];
	if (n)
		ck_assert_int_eq(cache_commit(r->c,
					      &(struct cache_commit_call){ .session = r->s.id, .items = items,
									   .count = n, .now_us = r->now, .unix_ms = 1,
									   .statuses = statuses },
					      NULL, &r->why),
				 STATUS_OK);
}

/* States of the fourth key and of the last. */
static void put_hybrid(struct rig *r, const uint64_t *names, uint32_t count)
{
	uint64_t cells[KEYS_MAX];

	for (uint32_t i = 0; i < count; i++)
		cells[i] = (i % 2 ? FULL : 0) | (i == 3 || i == count - 1 ? STATE : 0);
	put_cells(r, names, count, cells);
}

static void put_state(struct rig *r, const uint64_t *names, uint32_t count)
{
	uint64_t cells[KEYS_MAX] = { 0 };

	cells[count - 1] = STATE;
	put_cells(r, names, count, cells);
}

START_TEST(the_last_state_leaves)
{
	struct rig plain, r;

	open_hybrid(&r, &plain);
	put_hybrid(&r, chain, 8);
	settle(&r);
	ck_assert_uint_eq(prefix_of(&r, chain, 8), 8);
	lose(&r, 1, 8);
	settle(&r);
	ck_assert_uint_eq(prefix_of(&r, chain, 8), 4);
	ck_assert_str_eq(marks(&r, 0, chain, 8), ".0.0.1.1");
	ck_assert_str_eq(marks(&r, 1, chain, 8), "...0....");
	put_state(&r, chain, 6);
	settle(&r);
	ck_assert_str_eq(marks(&r, 0, chain, 8), ".0.0.0.1");
	put_state(&r, chain, 8);
	settle(&r);
	ck_assert_str_eq(marks(&r, 0, chain, 8), ".0.0.0.0");
	lose(&r, 1, 6); /* a later prefix is usable */
	lose(&r, 1, 4);
	settle(&r);
	ck_assert_str_eq(marks(&r, 0, chain, 8), ".0.0.0.0");
	rig_close(&plain);
}
END_TEST

START_TEST(a_state_whose_chain_is_gone)
{
	struct rig plain, r;

	open_hybrid(&r, &plain);
	put_hybrid(&r, chain, 8);
	settle(&r);
	lose(&r, 0, 4);
	settle(&r);
	ck_assert_str_eq(marks(&r, 1, chain, 8), "...1...1");
	ck_assert_str_eq(marks(&r, 0, chain, 8), ".1...1.1"); /* nor has the first block a state to end with */
	rig_close(&plain);
}
END_TEST

/* The states of one chain keep what it shares with another. */
START_TEST(a_branch_with_a_state)
{
	static const uint64_t branch[] = { 1, 2, 3, 4, 55, 56 };
	struct rig plain, r;

	open_hybrid(&r, &plain);
	put_hybrid(&r, chain, 8);
	put_hybrid(&r, branch, 6);
	settle(&r);
	lose(&r, 1, 4);
	settle(&r);
	ck_assert_str_eq(marks(&r, 0, chain, 8), ".0.0.0.0");
	lose(&r, 1, 8); /* what is before it is needed by the branch alone */
	settle(&r);
	ck_assert_str_eq(marks(&r, 0, chain, 8), ".0.0.1.1");
	ck_assert_str_eq(marks(&r, 0, branch, 6), ".0.0.0");
	lose(&r, 1, 56);
	settle(&r);
	ck_assert_str_eq(marks(&r, 0, branch, 6), ".1.1.1");
	rig_close(&plain);
}
END_TEST

/* One family needs each block of a layout, another the last alone. What the first cannot use is looked through in
 * several goes, as the chain is long; the other can use all of it. */
START_TEST(a_long_chain_of_which_others_need_the_end)
{
	const struct cache_options o = options(2 * KEYS_MAX + 64);
	const struct kv_layout two[] = { rig_layout(40, 0), rig_layout(41, 0) };
	const struct grid_wish last[] = { { .last = 0 }, { .last = 1 } }, each = { .last = 0 };
	uint64_t keys[KEYS_MAX], cells[KEYS_MAX];
	struct rig plain, r, s;

	for (uint32_t i = 0; i < KEYS_MAX; i++) {
		keys[i] = 1000 + i;
		cells[i] = 3;
	}
	rig_open(&plain, &o, 1);
	join_session(&r, &plain, two, last, 2);
	join_session(&s, &plain, &two[1], &each, 1);
	put_cells(&r, keys, KEYS_MAX, cells);
	ck_assert_uint_eq(prefix_of(&s, keys, KEYS_MAX), KEYS_MAX);
	settle(&r);
	lose(&r, 1, keys[0]);
	settle(&r);
	ck_assert_uint_eq(prefix_of(&r, keys, KEYS_MAX), KEYS_MAX);
	ck_assert_uint_eq(r.c->unusable_blocks, 0);
	rig_close(&plain);
}
END_TEST

/* However much is behind a block, and whichever way it is looked through, the lock is left after a few hundred looks. */
START_TEST(the_lock_is_left_in_between)
{
	const struct cache_options o = options(1024);
	uint64_t keys[KEYS_MAX];
	struct rig plain, r;

	for (uint32_t i = 0; i < KEYS_MAX; i++)
		keys[i] = 1000 + i;
	rig_open(&plain, &o, 1);
	chain_request(&plain, keys, KEYS_MAX);
	settle(&plain);
	looks.held_max = 0;
	lose(&plain, 0, keys[0]);
	settle(&plain);
	ck_assert_uint_eq(plain.c->unusable_blocks, KEYS_MAX - 1);
	chain_request(&plain, keys, 1);
	settle(&plain);
	ck_assert_uint_eq(plain.c->unusable_blocks, 0);
	ck_assert_uint_gt(looks.held_max, 100);
	ck_assert_uint_le(looks.held_max, 256);
	rig_close(&plain);
	open_hybrid(&r, &plain);
	put_hybrid(&r, keys, KEYS_MAX / 2);
	settle(&r);
	looks.held_max = 0;
	lose(&r, 1, keys[KEYS_MAX / 2 - 1]);
	lose(&r, 1, keys[3]);
	settle(&r);
	ck_assert_uint_eq(r.c->unusable_blocks, KEYS_MAX / 4);
	ck_assert_uint_gt(looks.held_max, 100);
	ck_assert_uint_le(looks.held_max, 256);
	rig_close(&plain);
}
END_TEST

/* Sessions that have the full attention alone may use all of it. */
START_TEST(another_session_may_use_it)
{
	const struct kv_layout alone = full_layout();
	const struct grid_wish wish = { .partial = false };
	struct rig plain, r, s;

	open_hybrid(&r, &plain);
	join_session(&s, &r, &alone, &wish, 1);
	put_hybrid(&r, chain, 8);
	ck_assert_uint_eq(prefix_of(&s, chain, 8), 8);
	settle(&r);
	lose(&r, 1, 8);
	settle(&r);
	ck_assert_str_eq(marks(&r, 0, chain, 8), ".0.0.0.0");
	lose(&r, 0, 4); /* that they need, too */
	settle(&r);
	ck_assert_str_eq(marks(&r, 0, chain, 8), ".0...1.1");
	rig_close(&plain);
}
END_TEST

/* Keys that are not chained, and calls for the rest of a chain: a block that a call may begin with needs no other. */
START_TEST(a_block_that_calls_begin_with)
{
	static const uint64_t otherwise[] = { 301, 4, 5, 302 };
	const struct cache_options o = options(64);
	struct rig r;

	rig_open(&r, &o, 1);
	chain_request(&r, chain, 8);
	chain_request(&r, otherwise, 4);
	chain_request(&r, chain + 6, 2);
	settle(&r);
	lose(&r, 0, 2);
	settle(&r);
	ck_assert_str_eq(marks(&r, 0, chain, 8), "0.100000");
	lose(&r, 0, 4);
	settle(&r);
	ck_assert_str_eq(marks(&r, 0, chain, 8), "0.1.1100");
	ck_assert_str_eq(marks(&r, 0, otherwise, 4), "0.11");
	rig_close(&r);
}
END_TEST

/* A longer prefix goes on with such a block, and needs those before it. */
START_TEST(a_state_before_a_block_that_calls_begin_with)
{
	struct rig plain, r;

	open_hybrid(&r, &plain);
	put_hybrid(&r, chain, 8);
	prefix_of(&r, chain + 4, 3);
	settle(&r);
	lose(&r, 1, 4);
	settle(&r);
	ck_assert_uint_eq(prefix_of(&r, chain, 8), 8);
	ck_assert_str_eq(marks(&r, 0, chain, 8), ".0.0.0.0");
	rig_close(&plain);
}
END_TEST

/* What calls begin with, after a restart that takes up all blocks. */
START_TEST(a_block_that_calls_began_with_before_a_restart)
{
	struct cache_options o;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, 64);
	o = rig_disk_options(&d, 1, 32);
	o.graph_nodes = 4096;
	o.prefetch_bytes = 0;
	rig_open(&r, &o, 1);
	rig_restored(&r);
	settle(&r);
	chain_request(&r, chain, 8);
	chain_request(&r, chain + 6, 2);
	rig_quiet(&r);
	settle(&r);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	rig_close(&r);
	rig_open(&r, &o, 1);
	rig_restored(&r);
	settle(&r);
	chain_request(&r, fresh, 1); /* tells what layouts the session has */
	rig_quiet(&r);
	settle(&r);
	ck_assert_str_eq(marks(&r, 0, chain, 8), "00000000");
	lose(&r, 0, 3);
	settle(&r);
	ck_assert_str_eq(marks(&r, 0, chain, 8), "00.11100");
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* A window of two blocks. */
START_TEST(a_window)
{
	const struct cache_options o = options(64);
	const struct kv_layout layouts[2] = { rig_layout(30, 0), rig_layout(31, 33) };
	struct rig r;

	rig_open_layouts(&r, &o, layouts, 2);
	chain_request(&r, chain, 8);
	settle(&r);
	lose(&r, 1, 4);
	settle(&r);
	ck_assert_str_eq(marks(&r, 0, chain, 8), "00000000");
	lose(&r, 1, 8);
	settle(&r);
	ck_assert_uint_eq(prefix_of(&r, chain, 8), 7);
	ck_assert_str_eq(marks(&r, 0, chain, 8), "00000001");
	lose(&r, 1, 6);
	settle(&r);
	ck_assert_uint_eq(prefix_of(&r, chain, 8), 3);
	ck_assert_str_eq(marks(&r, 0, chain, 8), "00011111");
	ck_assert_str_eq(marks(&r, 1, chain, 8), "000.1.1.");
	rig_close(&r);
}
END_TEST

/* ---- random sessions ---- */

enum { CHAINS = 3, LENGTH = 16, SESSIONS = 150, ROUNDS = 12, MULTIPLE_MAX = 8 };

struct sample {
	struct rig r;
	struct grid grid;
	uint32_t layouts;
	uint64_t chain[CHAINS][LENGTH];
	bool served[CHAINS][LENGTH];   /* at the beginning a usable prefix ended with that key or behind it */
};

static uint32_t below(uint32_t n)
{
	return (uint32_t)rand() % n;
}

/* The first has all of its blocks; false: its layouts' blocks end together too seldom. */
static bool open_random(struct sample *t, struct rig *plain, uint32_t number)
{
	static const uint32_t windows[] = { 2, 17, 18, 33, 60, 100 };
	struct kv_layout layouts[LAYOUTS];
	struct grid_wish wishes[LAYOUTS] = { { 0 } };

	t->layouts = 1 + below(LAYOUTS);
	for (uint32_t l = 0; l < t->layouts; l++) {
		const uint32_t kind = l ? below(3) : 0;

		layouts[l] = rig_layout(number * LAYOUTS + l, kind == 1 ? windows[below(6)] : 0);
		layouts[l].block_tokens = (1 + below(3)) * UNIT;
		wishes[l] = (struct grid_wish){ .last = kind == 2 ? 1 + below(3) : 0, .partial = below(2) };
	}
	if (grid_make(&t->grid, UNIT, layouts, t->layouts, wishes) || grid_multiple(&t->grid) > MULTIPLE_MAX ||
	    grid_is_plain(&t->grid))
		return false;
	join_session(&t->r, plain, layouts, wishes, t->layouts);
	return true;
}

/* Chains that share their beginnings. */
static void name_chains(struct sample *t, uint32_t number)
{
	for (uint32_t c = 0; c < CHAINS; c++) {
		const uint32_t shared = c ? below(LENGTH) : 0;

		for (uint32_t i = 0; i < LENGTH; i++)
			t->chain[c][i] = i < shared ? t->chain[c - 1][i] : 1000 * (number + 1) + 100 * c + i;
	}
}

static void put_all(struct sample *t, uint32_t c)
{
	uint64_t cells[LENGTH] = { 0 };

	for (uint32_t i = 0; i < LENGTH; i++)
		for (uint32_t l = 0; l < t->layouts; l++)
			cells[i] |= (uint64_t)grid_has_cell(&t->grid.rule[l], i) << l;
	put_cells(&t->r, t->chain[c], LENGTH, cells);
}

/* A usable prefix of a chain: what it needs is not marked. */
static void check_needed(struct sample *t, uint32_t c, uint32_t keys)
{
	for (uint32_t l = 0; l < t->layouts; l++) {
		struct grid_need need;

		grid_need(&t->grid.rule[l], 0, keys, false, &need);
		for (uint32_t i = 0; i < keys; i++) {
			const struct block *b = grid_needs(&need, i) ? find(&t->r, l, t->chain[c][i]) : NULL;

			ck_assert_msg(!b || !b->unusable, "layout %u, chain %u, block %u of %u", l, c, i, keys);
		}
	}
}

/* served: which keys have a usable prefix that ends with them or behind them, in some chain. */
static void look(struct sample *t, bool served[CHAINS][LENGTH])
{
	memset(served, 0, CHAINS * sizeof(served[0]));
	for (uint32_t c = 0; c < CHAINS; c++)
		for (uint32_t keys = LENGTH; keys; keys--) {
			if (prefix_of(&t->r, t->chain[c], keys) == keys) {
				check_needed(t, c, keys);
				served[c][keys - 1] = true;
			}
			served[c][keys - 1] |= keys < LENGTH && served[c][keys];
		}
}

static bool is_served(const struct sample *t, bool served[CHAINS][LENGTH], uint64_t name)
{
	bool any = false;

	for (uint32_t c = 0; c < CHAINS; c++)
		for (uint32_t i = 0; i < LENGTH; i++)
			any |= t->chain[c][i] == name && served[c][i];
	return any;
}

static void check(struct sample *t)
{
	bool served[CHAINS][LENGTH];

	look(t, served);
	for (uint32_t c = 0; c < CHAINS; c++)
		for (uint32_t i = 0; i < LENGTH; i++)
			for (uint32_t l = 0; l < t->layouts; l++) {
				const struct block *b = find(&t->r, l, t->chain[c][i]);

				if (b && is_served(t, t->served, t->chain[c][i]))
					ck_assert_msg(b->unusable == !is_served(t, served, t->chain[c][i]),
						      "layout %u, chain %u, block %u: %d", l, c, i, b->unusable);
			}
}

static void lose_some(struct sample *t)
{
	for (uint32_t tries = 1 + below(3); tries; tries--) {
		const uint32_t l = below(t->layouts);
		const uint64_t name = t->chain[below(CHAINS)][below(LENGTH)];

		if (find(&t->r, l, name))
			lose(&t->r, l, name);
	}
}

START_TEST(random_sessions)
{
	const struct cache_options o = options(1024);
	uint32_t sessions = 0, marked = 0;
	struct rig plain;

	srand(26);
	rig_open(&plain, &o, 1);
	for (uint32_t n = 0; sessions < RIG_ROUNDS(SESSIONS); n++) {
		struct sample t = { .layouts = 0 };

		ck_assert_uint_lt(n, 100 * SESSIONS);
		if (!open_random(&t, &plain, n))
			continue;
		sessions++;
		name_chains(&t, n);
		for (uint32_t c = 0; c < CHAINS; c++)
			put_all(&t, c);
		settle(&t.r);
		look(&t, t.served);
		for (uint32_t i = 0; i < ROUNDS; i++) {
			if (below(3))
				lose_some(&t);
			else
				put_all(&t, below(CHAINS));
			settle(&t.r);
			check(&t);
			marked += t.r.c->unusable_blocks != 0;
		}
		for (uint32_t c = 0; c < CHAINS; c++)
			for (uint32_t i = 0; i < LENGTH * t.layouts; i++)
				if (find(&t.r, i % t.layouts, t.chain[c][i / t.layouts]))
					lose(&t.r, i % t.layouts, t.chain[c][i / t.layouts]);
		plain.now = t.r.now;
		settle(&plain);
		ck_assert_int_eq(cache_session_close(t.r.c, t.r.s.id, t.r.now, &t.r.why), STATUS_OK);
		ck_assert_uint_eq(t.r.c->unusable_blocks, 0);
	}
	ck_assert_uint_gt(marked, sessions);
	rig_close(&plain);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { what_is_behind_a_gap_goes_first, the_missing_block_comes_back,
				       one_of_two_missing_blocks_comes_back, another_branch_stays, a_long_chain,
				       a_use_makes_it_usable, on_a_disk, on_a_gpu, a_copy_on_its_way_to_a_disk,
				       none_makes_room_for_it_on_a_disk, a_copy_on_its_way_to_memory,
				       a_copy_on_its_way_to_a_gpu, the_last_state_leaves, a_state_whose_chain_is_gone,
				       a_branch_with_a_state, a_long_chain_of_which_others_need_the_end,
				       the_lock_is_left_in_between, another_session_may_use_it,
				       a_block_that_calls_begin_with, a_state_before_a_block_that_calls_begin_with,
				       a_block_that_calls_began_with_before_a_restart, a_window, random_sessions };

	return rig_main("cache_advice_unusable", tests, sizeof(tests) / sizeof(tests[0]));
}
