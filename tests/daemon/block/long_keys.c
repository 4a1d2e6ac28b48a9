/* Keys of 1 to 64 bytes in every part of the cache. The keys of the tests differ as little as keys can: in their last
 * bytes behind 32 equal ones, in their lengths, or in how many zero bytes they end with. Each must be a block of its
 * own in memory, on disk, over a restart, for a watch, for a delete and in the graph. */
#include "daemon/advice/graph.h"
#include "daemon/block/block.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/commit.h"
#include "daemon/call/delete.h"
#include "daemon/call/explain.h"
#include "daemon/call/inspect.h"
#include "daemon/call/lease.h"
#include "daemon/call/lookup.h"
#include "daemon/call/reserve.h"
#include "daemon/call/stream.h"
#include "daemon/session/end.h"
#include "daemon/session/watch.h"
#include "store/index.h"
#include "store/slot.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <stdlib.h>
#include <string.h>

enum { HOST = 16, DISK = 256, MOST = 64 };

struct name {
	uint8_t bytes[SLOT_KEY_MAX];
	uint32_t n;
};

/* Returns how many there are. */
static uint32_t names_make(struct name *out)
{
	static const uint8_t lengths[] = { 1, 15, 16, 17, 31, 32, 33, 36, 40, 48, 63, 64 };
	uint32_t count = 0;

	for (size_t l = 0; l < sizeof(lengths); l++)
		for (uint32_t kind = 0; kind < 3; kind++) {
			struct name *k = &out[count++];

			*k = (struct name){ .n = lengths[l] };
			memset(k->bytes, 0x5a, k->n < 8 ? 0 : 8); /* zeroes from there on */
			k->bytes[k->n - 1] ^= (uint8_t)kind;
		}
	return count;
}

static struct cache_keys key_of(const struct name *k)
{
	return (struct cache_keys){ k->bytes, 1, k->n };
}

static struct slot_info info_of(const struct name *names, uint32_t i)
{
	struct slot_info info = { .tokens = RIG_TOKENS, .turn = i + 1, .position = (uint64_t)RIG_TOKENS * i };

	if (i) {
		memcpy(info.parent, names[i - 1].bytes, names[i - 1].n);
		info.parent_bytes = (uint8_t)names[i - 1].n;
	}
	return info;
}

/* By a reservation of the key, or of an open block that gets its key at the commit. */
static enum status put(struct rig *r, const struct name *names, uint32_t i, bool open)
{
	const struct slot_info info = info_of(names, i);
	const struct cache_keys k = key_of(&names[i]), none = { NULL, 1, 0 };
	struct cache_commit_item item = { .info = &info, .tokens = RIG_TOKENS };
	struct cache_place place;
	enum status st;

	ck_assert_int_eq(
		cache_reserve(r->c,
			      &(struct cache_reserve_call){
				      .session = r->s.id,
				      .keys = open ? &none : &k,
				      .open = open,
				      .on = &(struct cache_on){ .attachment = r->attachment, .gpu = CACHE_HOST },
				      .may_grow = true,
				      .now_us = r->now,
				      .statuses = &st,
				      .reservations = &item.reservation,
				      .places = &place,
				      .places_max = 1 },
			      &r->why),
		STATUS_OK);
	if (st)
		return st;
	rig_fill(rig_block(r, &place), r->s.block_bytes[0], i, 0);
	if (open) {
		memcpy(item.key, names[i].bytes, names[i].n);
		item.key_bytes = (uint8_t)names[i].n;
	}
	ck_assert_int_eq(cache_commit(r->c,
				      &(struct cache_commit_call){ .session = r->s.id,
								   .items = &item,
								   .count = 1,
								   .now_us = r->now,
								   .unix_ms = 1,
								   .statuses = &st },
				      NULL, &r->why),
			 STATUS_OK);
	return st;
}

static enum status stream_put(struct rig *r, const struct name *names, uint32_t i)
{
	const struct slot_info info = info_of(names, i);
	struct cache_write w;
	enum status s = cache_write_begin(r->c,
					  &(struct cache_stream_call){ .session = r->s.id,
								       .key = names[i].bytes,
								       .key_bytes = names[i].n,
								       .info = &info,
								       .now_us = r->now },
					  &w, &r->why);

	if (s)
		return s;
	rig_fill(w.block, w.block_bytes, i, 0);
	return cache_write_end(r->c, r->s.id, &w, true, r->now, 1);
}

static void put_any(struct rig *r, const struct name *names, uint32_t i)
{
	ck_assert_msg((i % 3 == 2 ? stream_put(r, names, i) : put(r, names, i, i % 3)) == STATUS_OK, "key %u", i);
}

static bool is_there(struct rig *r, const struct name *k)
{
	const struct cache_keys one = key_of(k);
	uint32_t prefix;

	ck_assert_int_eq(cache_lookup(r->c, r->s.id, &one, &prefix, NULL, 0, &r->why), STATUS_OK);
	return prefix;
}

/* Its own bytes, by a lease. */
static void check_bytes(struct rig *r, const struct name *names, uint32_t i)
{
	const struct cache_keys one = key_of(&names[i]);
	struct cache_leased l;
	struct cache_place p;

	ck_assert_msg(rig_lease_keys(r, &one, &p, &l) == STATUS_OK && l.blocks == 1, "key %u", i);
	ck_assert_msg(rig_matches(rig_block(r, &p), r->s.block_bytes[0], i, 0), "key %u", i);
	ck_assert_int_eq(cache_release(r->c, r->s.id, l.lease), STATUS_OK);
}

static void check_view(struct rig *r, const struct name *names, uint32_t i)
{
	const struct slot_info want = info_of(names, i);
	struct cache_block_view v;
	uint32_t n;

	ck_assert_int_eq(cache_inspect(r->c,
				       &(struct cache_block_name){
					       .tenant = "", .key = names[i].bytes, .key_bytes = names[i].n },
				       r->now, &v, 1, &n, &r->why),
			 STATUS_OK);
	ck_assert_uint_eq(n, 1);
	ck_assert(v.checksum_ok);
	ck_assert_uint_eq(v.turn, want.turn);
	ck_assert_uint_eq(v.position, want.position);
	ck_assert_uint_eq(v.parent_bytes, want.parent_bytes);
	ck_assert_mem_eq(v.parent, want.parent, sizeof(v.parent));
}

START_TEST(each_is_a_block_of_its_own)
{
	const struct cache_options o = rig_options(MOST);
	struct name names[MOST];
	const uint32_t count = names_make(names);
	struct rig r;

	rig_open(&r, &o, 1);
	for (uint32_t i = 0; i < count; i++) {
		for (uint32_t k = i; k < count; k++)
			ck_assert_msg(!is_there(&r, &names[k]), "key %u after %u", k, i);
		put_any(&r, names, i);
		ck_assert_int_eq(put(&r, names, i, false), STATUS_EXISTS);
	}
	for (uint32_t i = 0; i < count; i++) {
		check_bytes(&r, names, i);
		check_view(&r, names, i);
	}
	rig_check_accounting(r.c);
	rig_close(&r);
}
END_TEST

/* One that is reserved is busy for its own name alone. */
START_TEST(a_reservation_claims_one_name)
{
	const struct cache_options o = rig_options(MOST);
	struct name names[MOST];
	const uint32_t count = names_make(names);
	struct cache_place place;
	uint64_t id[MOST];
	enum status st;
	struct rig r;

	rig_open(&r, &o, 1);
	for (uint32_t twice = 0; twice < 2; twice++)
		for (uint32_t i = 0; i < count; i++) {
			const struct cache_keys k = key_of(&names[i]);

			ck_assert_int_eq(cache_reserve(r.c,
						       &(struct cache_reserve_call){
							       .session = r.s.id,
							       .keys = &k,
							       .on = &(struct cache_on){ .attachment = r.attachment,
											 .gpu = CACHE_HOST },
							       .may_grow = true,
							       .now_us = r.now,
							       .statuses = &st,
							       .reservations = &id[i],
							       .places = &place,
							       .places_max = 1 },
						       &r.why),
					 STATUS_OK);
			ck_assert_msg(st == (twice ? STATUS_BUSY : STATUS_OK), "key %u", i);
		}
	rig_check_accounting(r.c);
	rig_close(&r);
}
END_TEST

static void delete_one(struct rig *r, const struct name *k)
{
	const struct cache_keys one = key_of(k);
	enum status st;

	ck_assert_int_eq(cache_delete(r->c, r->s.id, &one, &st, NULL, &r->why), STATUS_OK);
	ck_assert_int_eq(st, STATUS_OK);
}

static void check_half(struct rig *r, const struct name *names, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		ck_assert_msg(is_there(r, &names[i]) == (i % 2 == 0), "key %u", i);
		if (i % 2)
			continue;
		check_bytes(r, names, i);
		check_view(r, names, i);
	}
}

/* On the disk, deleted there, over two restarts: by the catalog, and without it by the headers. */
START_TEST(disks_keep_them)
{
	struct name names[MOST];
	const uint32_t count = names_make(names);
	struct cache_options o;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	o = rig_disk_options(&d, 1, HOST);
	rig_open(&r, &o, 1);
	rig_restored(&r);
	for (uint32_t i = 0; i < count; i++) {
		put_any(&r, names, i);
		if (i % 8 == 7)
			rig_quiet(&r);
	}
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	for (uint32_t i = 1; i < count; i += 2)
		delete_one(&r, &names[i]);
	rig_quiet(&r);
	check_half(&r, names, count);
	rig_check_accounting(r.c);
	rig_close(&r);
	for (int again = 0; again < 2; again++) {
		o.rebuild = again;
		rig_open(&r, &o, 1);
		rig_restored(&r);
		check_half(&r, names, count);
		rig_quiet(&r);
		rig_check_accounting(r.c);
		rig_close(&r);
	}
	rig_disks_remove(&d);
}
END_TEST

static const struct name *named(const struct name *names, uint32_t count, const struct cache_watch_event *e)
{
	for (uint32_t i = 0; i < count; i++)
		if (names[i].n == e->key_bytes && !memcmp(names[i].bytes, e->key, e->key_bytes))
			return &names[i];
	ck_abort_msg("an event of a key that was never put");
	return NULL;
}

/* Of keys of at most `bound` bytes, without a gap in the numbers. */
static void check_watch(uint32_t bound)
{
	const struct cache_options o = rig_options(MOST);
	uint32_t told[MOST] = { 0 }, want = 0;
	struct name names[MOST];
	const uint32_t count = names_make(names);
	struct cache_watch_event e;
	struct cache_watch *w;
	uint64_t sequence = 0;
	enum status s;
	struct rig r;

	rig_open(&r, &o, 1);
	for (uint32_t i = 0; i < count / 2 * 2; i += 2)
		put_any(&r, names, i); /* told in the first look around */
	ck_assert_int_eq(cache_watch_open(r.c, r.s.id, false, NULL, NULL, &w, &r.why), STATUS_OK);
	cache_watch_bound(w, bound);
	for (uint32_t i = 1; i < count; i += 2)
		put_any(&r, names, i);
	for (uint32_t i = 0; i < count; i++)
		delete_one(&r, &names[i]);
	while ((s = cache_watch_next(w, &e)) == STATUS_OK || s == STATUS_BUSY) {
		if (s == STATUS_BUSY)
			continue;
		ck_assert_uint_eq(e.sequence, ++sequence);
		if (e.kind != CACHE_SYNCED)
			told[named(names, count, &e) - names]++;
	}
	ck_assert_int_eq(s, STATUS_MISS);
	for (uint32_t i = 0; i < count; i++) {
		/* The first look around came after the deletes: of what was there before it nothing but the delete is
		 * told. */
		want = names[i].n > bound ? 0 : i % 2 ? 2 : 1;
		ck_assert_msg(told[i] == want, "key %u: told %u times, not %u", i, told[i], want);
	}
	cache_watch_close(w);
	rig_close(&r);
}

START_TEST(a_watch_tells_them)
{
	check_watch(SLOT_KEY_MAX);
}
END_TEST

/* Of a client that has room for keys of 32 bytes. */
START_TEST(a_watch_with_a_bound_tells_the_short_ones)
{
	check_watch(32);
}
END_TEST

/* A chain of names: the graph has an edge from each to the next, and tells the keys in full. */
START_TEST(the_graph_ties_them)
{
	struct cache_options o = rig_options(MOST);
	struct cache_graph_edge e[MOST];
	struct name names[MOST];
	uint8_t chain[5][40];
	struct cache_keys k = { chain[0], 5, sizeof(chain[0]) };
	struct cache_leased l;
	struct cache_place p[5];
	uint32_t n, found = 0;
	struct rig r;

	o.graph_nodes = 4096;
	memset(chain, 7, sizeof(chain));
	for (uint32_t i = 0; i < 5; i++) {
		chain[i][39] = (uint8_t)i;
		names[i] = (struct name){ .n = sizeof(chain[i]) };
		memcpy(names[i].bytes, chain[i], sizeof(chain[i]));
	}
	rig_open(&r, &o, 1);
	for (uint32_t i = 0; i < 5; i++)
		put_any(&r, names, i);
	ck_assert_int_eq(rig_lease_keys(&r, &k, p, &l), STATUS_OK);
	ck_assert_uint_eq(l.blocks, 5);
	ck_assert_int_eq(cache_release(r.c, r.s.id, l.lease), STATUS_OK);
	rig_tick(r.c, r.now);
	advisor_pass(r.c);
	ck_assert_double_eq(rig_stat(&r, "terrace_graph_nodes", ""), 5);
	for (uint32_t i = 0; i < 4; i++) {
		ck_assert_int_eq(cache_graph(r.c, chain[i], sizeof(chain[i]), e, MOST, &n, &r.why), STATUS_OK);
		for (uint32_t x = 0; x < n; x++)
			found += !strcmp(e[x].type, "prefix_share") && e[x].key_bytes == sizeof(chain[i]) &&
				 !memcmp(e[x].key, chain[i + 1], sizeof(chain[i]));
	}
	ck_assert_uint_eq(found, 4);
	rig_close(&r);
}
END_TEST

/* What a block of a short key takes in memory is what it took when no key was longer than 32 bytes. */
START_TEST(a_short_key_costs_nothing_more)
{
	ck_assert_uint_eq(index_record_bytes(sizeof(struct block), 1), sizeof(struct block));
	ck_assert_uint_eq(index_record_bytes(sizeof(struct block), INDEX_KEY_INLINE), sizeof(struct block));
	ck_assert_uint_eq(index_record_bytes(sizeof(struct block), INDEX_KEY_INLINE + 1),
			  sizeof(struct block) + SLOT_KEY_MAX);
	ck_assert_uint_le(sizeof(struct block), 216);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { each_is_a_block_of_its_own,
				       a_reservation_claims_one_name,
				       disks_keep_them,
				       a_watch_tells_them,
				       a_watch_with_a_bound_tells_the_short_ones,
				       the_graph_ties_them,
				       a_short_key_costs_nothing_more };

	return rig_main("cache_long_keys", tests, sizeof(tests) / sizeof(tests[0]));
}
