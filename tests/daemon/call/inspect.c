/* What operators see: inspection, the scrub, statistics. */
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/inspect.h"
#include "daemon/call/lease.h"
#include "daemon/call/lookup.h"
#include "daemon/call/stats.h"
#include "daemon/call/stream.h"
#include "daemon/session/watch.h"
#include "store/slot.h"
#include "tests/daemon/cache_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

START_TEST(inspection_shows_one_block)
{
	const struct cache_options o = rig_options(64);
	struct slot_info info = { .parent = "mother", .parent_bytes = 6, .role = 3, .turn = 9, .tokens = 11,
				  .position = 4711 };
	struct cache_block_view v[4];
	uint8_t key[RIG_KEY_BYTES], other[RIG_KEY_BYTES];
	struct cache_write w, pending;
	uint32_t n = 99, found;
	struct rig r;

	rig_open(&r, &o, 2);
	rig_key(key, 1);
	rig_key(other, 2);
	ck_assert_int_eq(cache_write_begin(r.c, &(struct cache_stream_call){ .session = r.s.id, .layout = 1,
			.key = key, .key_bytes = 16, .info = &info, .now_us = r.now }, &w, &r.why), STATUS_OK);
	rig_fill(w.block, w.block_bytes, 1, 1);
	ck_assert_int_eq(cache_write_end(r.c, r.s.id, &w, true, r.now, 1), STATUS_OK);
	ck_assert_int_eq(cache_write_begin(r.c, &(struct cache_stream_call){ .session = r.s.id, .key = other,
			.key_bytes = 16, .info = &info, .now_us = r.now }, &pending, &r.why), STATUS_OK);
	r.now += 3000000;
	struct cache_keys k = { key, 1, 16 };
	ck_assert_int_eq(cache_touch(r.c, r.s.id, &k, r.now, &found, &r.why), STATUS_OK);
	r.now += 2000000;
	ck_assert_int_eq(cache_inspect(r.c, &(struct cache_block_name){ .tenant = "", .key = key,
			.key_bytes = 16 }, r.now, v, 4, &n, &r.why), STATUS_OK);
	ck_assert_uint_eq(n, 1);
	ck_assert_str_eq(v[0].state, "stored");
	ck_assert_str_eq(v[0].tier, "host");
	ck_assert_uint_eq(v[0].layout_id, r.s.layout_id[1]);
	ck_assert_uint_eq(v[0].tokens, 11);
	ck_assert_uint_eq(v[0].turn, 9);
	ck_assert_uint_eq(v[0].role, 3);
	ck_assert_uint_eq(v[0].position, 4711);
	ck_assert_uint_eq(v[0].age_ms, 5000);
	ck_assert_uint_eq(v[0].idle_ms, 2000);
	ck_assert_uint_eq(v[0].uses, 1);
	ck_assert_uint_eq(v[0].pins, 0);
	ck_assert_uint_eq(v[0].parent_bytes, 6);
	ck_assert_int_eq(memcmp(v[0].parent, "mother", 6), 0);
	ck_assert(v[0].checksum_ok);
	w.block[100] ^= 1;
	ck_assert_int_eq(cache_inspect(r.c, &(struct cache_block_name){ .tenant = "default",
			.layout_id = r.s.layout_id[1], .key = key, .key_bytes = 16 }, r.now, v, 4, &n, &r.why),
			 STATUS_OK);
	ck_assert(!v[0].checksum_ok);
	ck_assert_int_eq(cache_inspect(r.c, &(struct cache_block_name){ .tenant = "",
			.layout_id = r.s.layout_id[0], .key = key, .key_bytes = 16 }, r.now, v, 4, &n, &r.why),
			 STATUS_OK);
	ck_assert_uint_eq(n, 0);
	ck_assert_int_eq(cache_inspect(r.c, &(struct cache_block_name){ .tenant = "", .key = other,
			.key_bytes = 16 }, r.now, v, 4, &n, &r.why), STATUS_OK);
	ck_assert_uint_eq(n, 1);
	ck_assert_str_eq(v[0].state, "reserved");
	ck_assert_int_eq(cache_inspect(r.c, &(struct cache_block_name){ .tenant = "", .key = key }, r.now, v, 4,
				       &n, &r.why), STATUS_INVALID);
	ck_assert_int_eq(cache_inspect(r.c, &(struct cache_block_name){ .tenant = "acme", .key = key,
			.key_bytes = 16 }, r.now, v, 4, &n, &r.why), STATUS_DENIED);
	ck_assert_int_eq(cache_write_end(r.c, r.s.id, &pending, false, r.now, 1), STATUS_CANCELLED);
	rig_close(&r);
}
END_TEST

static struct cache_verified scrub(struct rig *r, uint64_t max_bytes, int *steps)
{
	struct cache_verified sum = { 0 };
	uint64_t cursor = 0;

	for (*steps = 0; cursor != UINT64_MAX; ++*steps)
		ck_assert_int_eq(cache_verify_step(r->c, &cursor, max_bytes, &sum), STATUS_OK);
	return sum;
}

START_TEST(the_scrub_finds_damage)
{
	const struct cache_options o = rig_options(1024);
	struct cache_place places[2 * 300];
	struct cache_leased leased;
	struct cache_verified sum;
	struct cache_watch_event e;
	struct cache_watch *w;
	struct rig r;
	int steps;

	rig_open(&r, &o, 2);
	sum = scrub(&r, 1 << 20, &steps);
	ck_assert_uint_eq(sum.blocks, 0);
	ck_assert_uint_eq(rig_put(&r, 0, 300), 300);
	sum = scrub(&r, 10 * r.s.block_bytes[0], &steps);
	ck_assert_uint_eq(sum.blocks, 600);
	ck_assert_uint_eq(sum.bytes, 600 * r.s.block_bytes[0]);
	ck_assert_uint_eq(sum.corrupt, 0);
	ck_assert_int_ge(steps, 60);
	/* A flipped bit in a block, one in a header, and a header that claims a huge layer, all of leased
	 * blocks. */
	ck_assert_int_eq(rig_lease(&r, 0, 300, true, places, &leased), STATUS_OK);
	ck_assert_int_eq(cache_watch_open(r.c, r.s.id, true, NULL, NULL, &w, &r.why), STATUS_OK);
	rig_block(&r, &places[10])[7] ^= 0x10;
	struct slot_header *h = (struct slot_header *)(rig_block(&r, &places[21]) - SLOT_HEADER_BYTES);
	h->turn++;
	h = (struct slot_header *)(rig_block(&r, &places[30]) - SLOT_HEADER_BYTES);
	h->layer_bytes = 1ull << 40;
	sum = scrub(&r, UINT64_MAX, &steps);
	ck_assert_uint_eq(sum.blocks, 600);
	ck_assert_uint_eq(sum.corrupt, 3);
	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(cache_watch_next(w, &e), STATUS_OK);
		ck_assert_int_eq(e.kind, CACHE_REMOVED);
		ck_assert_int_eq(e.reason, CACHE_REASON_CORRUPT);
	}
	ck_assert_uint_eq(rig_prefix(&r, 0, 300), 5);
	ck_assert_double_eq(rig_stat(&r, "terrace_corrupt_blocks_total", ""), 3);
	ck_assert_int_eq(cache_release(r.c, r.s.id, leased.lease), STATUS_OK);
	sum = scrub(&r, UINT64_MAX, &steps);
	ck_assert_uint_eq(sum.blocks, 597);
	ck_assert_uint_eq(sum.corrupt, 0);
	cache_watch_close(w);
	rig_close(&r);
}
END_TEST

enum { HOST = 16 };

/* Damages memory's copy of the block, which is loaded for that if it is not there, and left there. */
static void damage(struct rig *r, uint64_t n)
{
	struct cache_leased leased;
	struct cache_place place;

	ck_assert_int_eq(rig_lease_wait(r, n, 1, true, &place, &leased), STATUS_OK);
	rig_block(r, &place)[3] ^= 1;
	ck_assert_int_eq(cache_release(r->c, r->s.id, leased.lease), STATUS_OK);
}

static bool in_memory(struct rig *r, uint64_t n)
{
	uint8_t key[RIG_KEY_BYTES];
	struct cache_block_view v;
	uint32_t found;

	rig_key(key, n);
	ck_assert_int_eq(cache_inspect(r->c, &(struct cache_block_name){ .tenant = "", .key = key,
			.key_bytes = sizeof(key) }, r->now, &v, 1, &found, &r->why), STATUS_OK);
	return found && !strncmp(v.tier, "host", 4);
}

/* Half of the blocks have been looked at, and are gone for it. Those that are left leave memory and come back before
 * the others are put anew: each of them is looked at where it is now, and none of the others again. */
START_TEST(the_scrub_sees_what_transfers)
{
	struct cache_verified sum = { 0 };
	struct cache_options o;
	uint64_t cursor = 0;
	bool left[HOST];
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, 4 * HOST);
	o = rig_disk_options(&d, 1, HOST);
	rig_open(&r, &o, 1);
	rig_restored(&r);
	rig_put_slowly(&r, 0, HOST);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	for (uint64_t n = 0; n < HOST; n++)
		damage(&r, n);
	while (sum.corrupt < HOST / 2)
		ck_assert_int_eq(cache_verify_step(r.c, &cursor, 1, &sum), STATUS_OK);
	for (uint64_t n = 0; n < HOST; n++)
		left[n] = in_memory(&r, n);
	rig_put_slowly(&r, 500, HOST);
	for (int after = 1; after >= 0; after--)
		for (uint64_t n = 0; n < HOST; n++) {
			if (left[n] != after)
				continue;
			if (!after)
				ck_assert_uint_eq(rig_put(&r, n, 1), 1);
			damage(&r, n);
		}
	sum.corrupt = 0;
	while (cursor != UINT64_MAX)
		ck_assert_int_eq(cache_verify_step(r.c, &cursor, 1, &sum), STATUS_OK);
	ck_assert_uint_eq(sum.corrupt, HOST / 2);
	for (uint64_t n = 0; n < HOST; n++)
		ck_assert_int_eq(in_memory(&r, n), !left[n]);
	rig_quiet(&r);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

struct seen {
	char rows[256][192];
	int count;
};

static void collect(void *arg, const char *name, const char *labels, double value, bool counter,
		    const char *help)
{
	struct seen *s = arg;
	char row[192];

	ck_assert(!strncmp(name, "terrace_", 8) && *help && value >= 0);
	ck_assert_int_eq(counter, !strcmp(name + strlen(name) - 6, "_total"));
	snprintf(row, sizeof(row), "%s{%s}", name, labels);
	for (int i = 0; i < s->count; i++)
		ck_assert_str_ne(s->rows[i], row);
	ck_assert_int_lt(s->count, 256);
	strcpy(s->rows[s->count++], row);
}

START_TEST(statistics_are_named_once)
{
	const struct cache_options o = rig_options(64);
	struct seen seen = { .count = 0 };
	struct cache_place places[2];
	struct cache_leased leased;
	char labels[160];
	struct rig r;

	rig_open(&r, &o, 1);
	rig_put(&r, 0, 3);
	ck_assert_int_eq(rig_lease(&r, 0, 2, true, places, &leased), STATUS_OK);
	cache_stats(r.c, r.now, collect, &seen);
	snprintf(labels, sizeof(labels), "session=%llu,engine=test,pid=1,state=open",
		 (unsigned long long)r.s.number);
	ck_assert_double_eq(rig_stat(&r, "terrace_session_held_bytes", labels), 2 * RIG_SLOT_BYTES);
	ck_assert_int_gt(seen.count, 40);
	ck_assert_double_eq(rig_stat(&r, "terrace_blocks", "tier=host"), 3);
	ck_assert_double_eq(rig_stat(&r, "terrace_policy_info", "policy=lru"), 1);
	ck_assert_double_eq(rig_stat(&r, "terrace_budget_bytes", "tier=host"), o.host_bytes);
	ck_assert_double_eq(rig_stat(&r, "terrace_commits_total", "status=ok"), 3);
	rig_close(&r);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { inspection_shows_one_block, the_scrub_finds_damage,
				       the_scrub_sees_what_transfers,
				       statistics_are_named_once };

	return rig_main("cache_admin", tests, sizeof(tests) / sizeof(tests[0]));
}
