/* Which blocks other members are told of (daemon/exports/exports.h): few of a chain, late or when they are used, by
 * names and segments that depend on the chain alone, however the calls cut it; and taken back when they go. */
#include "daemon/block/block.h"
#include "daemon/block/key.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/views.h"
#include "daemon/cache.h"
#include "daemon/call/commit.h"
#include "daemon/call/lease.h"
#include "daemon/call/reserve.h"
#include "daemon/directory/name.h"
#include "daemon/directory/outbox.h"
#include "daemon/directory/owners.h"
#include "daemon/directory/segment.h"
#include "daemon/directory/table.h"
#include "daemon/exports/exports.h"
#include "daemon/names/names.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <stdlib.h>
#include <string.h>

enum { HOST = 2048, CHAIN = 600, MANY = 1024 };

static struct rig r;
static struct names *names;

static const struct secret secret[2] = { { .key = { 1, 2 }, .fingerprint = 1, .same = { 1 } },
					  { .key = { 3, 4 }, .fingerprint = 2, .same = { 2 } } };

static void begin_with(const struct cache_options *o, uint32_t window)
{
	const struct kv_layout layout = rig_layout(0, window);
	uint32_t number;

	rig_open_layouts(&r, o, &layout, 1);
	number = tenant_of_number(r.c, 0)->number;
	ck_assert_int_eq(names_create(&number, 1, &names), STATUS_OK);
	names_set(names, 0, &secret[0], NULL);
	ck_assert_int_eq(exports_create(r.c, names), STATUS_OK);
}

static void begin(void)
{
	const struct cache_options o = rig_options(HOST);

	begin_with(&o, 0);
}

static void end(void)
{
	rig_close(&r);
	names_destroy(names);
}

/* Puts keys first .. first + count - 1 of the chain as one call, which names the key before its first. */
static void put(uint64_t first, uint32_t count, bool says_parent)
{
	struct cache_keys keys = rig_keys(first, count);
	uint64_t reservations[CHAIN];
	enum status status[CHAIN];
	struct cache_place places[CHAIN];
	struct slot_info info[CHAIN];

	for (uint32_t i = 0; i < count; i++) {
		info[i] = (struct slot_info){ .tokens = RIG_TOKENS,
					      .position = says_parent ? 0 : (first + i) * RIG_TOKENS };
		if (first + i && says_parent) {
			info[i].parent_bytes = RIG_KEY_BYTES;
			rig_key(info[i].parent, first + i - 1);
		}
	}
	ck_assert_int_eq(
		cache_reserve(r.c,
			      &(struct cache_reserve_call){
				      .session = r.s.id,
				      .keys = &keys,
				      .info = info,
				      .on = &(struct cache_on){ .attachment = r.attachment, .gpu = CACHE_HOST },
				      .may_grow = true,
				      .now_us = r.now,
				      .reservations = reservations,
				      .statuses = status,
				      .places = places,
				      .places_max = count },
			      &r.why),
		STATUS_OK);
	for (uint32_t i = count; i-- > 0;) {
		struct cache_commit_item item = { .reservation = reservations[i] };

		ck_assert_int_eq(status[i], STATUS_OK);
		rig_fill(rig_block(&r, &places[i]), r.s.block_bytes[0], first + i, 0);
		ck_assert_int_eq(cache_commit(r.c,
					      &(struct cache_commit_call){ .session = r.s.id,
									   .items = &item,
									   .count = 1,
									   .now_us = r.now,
									   .unix_ms = 1,
									   .statuses = &status[i] },
					      NULL, &r.why),
				 STATUS_OK);
	}
	free((void *)keys.bytes);
}

/* Takes all changes; returns how many. */
static uint32_t take(struct export_change *out)
{
	uint32_t n = 0, more;
	bool lost;

	while ((more = exports_take(r.c, r.now, out + n, 7, &lost))) {
		n += more;
		ck_assert(!lost);
	}
	return n;
}

static void name_of(uint64_t n, uint64_t layout_id, struct public_name *out)
{
	struct public_name name[NAMES_SECRETS];
	uint8_t key[RIG_KEY_BYTES];

	rig_key(key, n);
	ck_assert_uint_ge(names_of(names, 0, layout_id, key, sizeof(key), name), 1);
	*out = name[0];
}

/* Whether a change is of the block at that position of the chain, in its segment. */
static bool is_of(const struct export_change *e, uint64_t position)
{
	struct public_name name, segment;

	name_of(position, r.c->pools[0]->layout_id, &name);
	name_of(segment_first(segment_of(position)), 0, &segment);
	return public_name_equal(&e->name, &name) && e->segment == segment.word[0] &&
	       e->tenant == r.c->pools[0]->tenant->number;
}

/* The changes add just what is told of among the first `count` of the chain, each once. */
static void are_all(const struct export_change *e, uint32_t n, uint32_t count)
{
	uint32_t told = 0;

	for (uint64_t position = 0; position < count; position++) {
		uint32_t times = 0;

		for (uint32_t i = 0; i < n; i++)
			times += !e[i].removed && is_of(&e[i], position);
		ck_assert_uint_eq(times, (position + 1) % EXPORT_EVERY == 0);
		told += times;
	}
	ck_assert_uint_eq(n, told);
}

static void lease(uint64_t first, uint32_t count)
{
	struct cache_place places[CHAIN];
	struct cache_leased leased;

	ck_assert_int_eq(rig_lease(&r, first, count, true, places, &leased), STATUS_OK);
	ck_assert_int_eq(cache_release(r.c, r.s.id, leased.lease), STATUS_OK);
}

START_TEST(few_are_told_of_and_late)
{
	struct export_change e[MANY];
	uint64_t at = 0;

	begin();
	put(0, CHAIN, false);
	ck_assert_uint_eq(take(e), 0);
	r.now += EXPORT_AGE_US - 1;
	ck_assert_uint_eq(take(e), 0);
	r.now++;
	are_all(e, take(e), CHAIN);
	ck_assert_uint_eq(take(e), 0);
	are_all(e, exports_walk(r.c, &at, e, MANY), CHAIN);
	ck_assert_uint_eq(exports_walk(r.c, &at, e, MANY), 0);
	end();
}
END_TEST

/* However the chain is cut, if each call says the key before its first. */
START_TEST(calls_continue_chains)
{
	struct export_change e[MANY];
	uint32_t n;

	srand((unsigned)_i);
	begin();
	for (uint64_t at = 0; at < CHAIN; at += n) {
		n = (uint32_t)rand() % (_i % 2 ? 3 : 90) + 1;
		if (n > CHAIN - at)
			n = (uint32_t)(CHAIN - at);
		put(at, n, true);
	}
	r.now += EXPORT_AGE_US;
	are_all(e, take(e), CHAIN);
	end();
}
END_TEST

/* What is not known to be of a chain is not told of, until a lease names the chain; and then at once. */
START_TEST(a_lease_names_the_chain)
{
	struct export_change e[MANY];
	uint32_t n;

	begin();
	put(32, 64, false); /* from inside the first segment into the second */
	r.now += EXPORT_AGE_US;
	n = take(e);
	ck_assert_uint_eq(n, 2); /* 79 and 95 */
	ck_assert(is_of(&e[0], 79) || is_of(&e[0], 95));
	put(0, 32, false);
	lease(0, 96);
	n = take(e);
	ck_assert_uint_eq(n, 4);
	ck_assert(is_of(&e[0], 15) && is_of(&e[1], 31) && is_of(&e[2], 47) && is_of(&e[3], 63));
	lease(0, 96);
	ck_assert_uint_eq(take(e), 0);
	end();
}
END_TEST

/* Nor is a position believed that the call does not give: what was said when the blocks were stored counts. */
START_TEST(a_lease_inside_a_chain)
{
	static const struct {
		uint32_t first;
		bool says_parent;      /* else the position */
	} rows[] = { { 32, true },  { 40, true },  { 63, true }, { 64, true },
		     { 32, false }, { 40, false }, { 70, false } };
	struct export_change e[MANY];
	uint32_t n;

	begin();
	put(0, 96, rows[_i].says_parent);
	lease(rows[_i].first, 96 - rows[_i].first);
	n = take(e);
	ck_assert_uint_eq(n, 96 / EXPORT_EVERY - rows[_i].first / EXPORT_EVERY);
	for (uint32_t i = 0; i < n; i++)
		ck_assert(is_of(&e[i], (rows[_i].first / EXPORT_EVERY + i + 1) * EXPORT_EVERY - 1));
	r.now += EXPORT_AGE_US;
	ck_assert_uint_eq(take(e), 96 / EXPORT_EVERY - n);
	end();
}
END_TEST

/* A put that goes on from a key of which nothing is known says nothing of the segment. */
START_TEST(a_put_inside_a_chain)
{
	struct export_change e[MANY];

	begin();
	put(33, 40, true);
	lease(33, 40);
	r.now += EXPORT_AGE_US;
	ck_assert_uint_eq(take(e), 0);
	put(0, 33, false);
	lease(0, 73);
	ck_assert_uint_eq(take(e), 4);
	end();
}
END_TEST

/* A lease that needs only the last blocks of its prefix tells of these, and by their own positions. */
START_TEST(a_lease_of_a_window)
{
	enum { WINDOW = 40 * RIG_TOKENS + 1 };
	const struct cache_options o = rig_options(HOST);
	struct export_change e[MANY];

	begin_with(&o, WINDOW);
	put(0, 96, false);
	lease(0, 96);
	ck_assert_uint_eq(take(e), 3);
	ck_assert(is_of(&e[0], 63) && is_of(&e[1], 79) && is_of(&e[2], 95));
	end();
}
END_TEST

START_TEST(what_goes_is_taken_back)
{
	struct export_change e[MANY];
	enum status s[2];
	uint64_t at = 0;

	begin();
	put(0, 64, false);
	rig_delete(&r, 47, 1, s); /* too young to be told of */
	lease(0, 32);
	ck_assert_uint_eq(take(e), 2);
	r.now += EXPORT_AGE_US;
	ck_assert_uint_eq(take(e), 1);
	ck_assert(is_of(&e[0], 63));
	rig_delete(&r, 31, 1, s);
	rig_delete(&r, 30, 1, s);
	ck_assert_uint_eq(take(e), 1);
	ck_assert(e[0].removed && is_of(&e[0], 31));
	rig_put(&r, 1000, HOST); /* all others are evicted */
	ck_assert_uint_eq(take(e), 2);
	ck_assert(e[0].removed && e[1].removed);
	ck_assert_uint_eq(exports_walk(r.c, &at, e, MANY), 0);
	end();
}
END_TEST

/* Before it is evicted; a lease brings it back. */
START_TEST(what_is_about_to_go_is_taken_back)
{
	enum { BEFORE = 64, PART = 16 };
	struct export_change e[MANY];
	uint32_t n = 0;

	begin();
	ck_assert_uint_eq(rig_put(&r, 1000, BEFORE), BEFORE);
	put(0, 64, false);
	lease(0, 64);
	ck_assert_uint_eq(take(e), 4);
	ck_assert_uint_eq(rig_put(&r, 2000, HOST - BEFORE - 64), HOST - BEFORE - 64);
	exports_cool(r.c, r.now);
	ck_assert_uint_eq(take(e), 0); /* nothing has left yet */
	for (uint32_t i = 0; !n; i++) {
		ck_assert_uint_eq(rig_put(&r, 2000 + HOST + PART * i, PART), PART);
		r.now += 100 * 1000;
		exports_cool(r.c, r.now);
		n = take(e);
	}
	ck_assert_uint_eq(rig_prefix(&r, 0, 64), 64);
	for (uint32_t i = 0; i < n; i++)
		ck_assert(e[i].removed);
	lease(0, 64);
	ck_assert_uint_eq(take(e), n);
	for (uint32_t i = 0; i < n; i++)
		ck_assert(!e[i].removed);
	exports_cool(r.c, r.now); /* it was used just now */
	ck_assert_uint_eq(take(e), 0);
	end();
}
END_TEST

START_TEST(so_is_what_only_a_disk_has)
{
	enum { DISK = 256, SMALL = 64, PART = 16 };
	struct rig_disks d;
	struct export_change e[MANY];
	uint32_t n = 0;

	rig_disks_make(&d, NULL, 1, DISK);
	const struct cache_options o = rig_disk_options(&d, 1, SMALL);

	begin_with(&o, 0);
	rig_restored(&r);
	rig_put_slowly(&r, 1000, DISK / 4);
	put(0, 32, false);
	rig_quiet(&r);
	lease(0, 32);
	ck_assert_uint_eq(take(e), 2);
	for (uint32_t i = 0; !n; i++) {
		rig_put_slowly(&r, 2000 + PART * i, PART);
		r.now += 100 * 1000;
		exports_cool(r.c, r.now);
		n = take(e);
	}
	ck_assert_uint_eq(rig_prefix(&r, 0, 32), 32);
	ck_assert(e[0].removed);
	end();
	rig_disks_remove(&d);
}
END_TEST

/* While a secret is changed the old names stay; when it is dropped, the next use tells of the block anew. */
START_TEST(secrets_change)
{
	struct export_change e[MANY];

	begin();
	put(0, 16, false);
	lease(0, 16);
	ck_assert_uint_eq(take(e), 1);
	names_set(names, 0, &secret[1], &secret[0]);
	lease(0, 16);
	ck_assert_uint_eq(take(e), 0);
	names_set(names, 0, &secret[1], NULL);
	lease(0, 16);
	ck_assert_uint_eq(take(e), 2);
	ck_assert(e[0].removed && !e[1].removed && is_of(&e[1], 15));
	end();
}
END_TEST

/* A reader that does not come: it is told that changes were lost, and the walk has all. */
START_TEST(a_late_reader_walks)
{
	struct export_change e[MANY];
	enum status s[1];
	uint32_t n, adds = 0;
	uint64_t at = 0;
	bool lost, any_lost = false;

	begin();
	put(0, 16, false);
	for (uint32_t i = 0; i < EXPORT_CHANGES_MAX / 2 + 4; i++) {
		lease(0, 16);
		rig_delete(&r, 15, 1, s);
		put(15, 1, true);
	}
	lease(0, 16);
	while ((n = exports_take(r.c, r.now, e, MANY, &lost))) {
		adds += n;
		any_lost |= lost;
	}
	ck_assert(any_lost);
	ck_assert_uint_eq(adds, EXPORT_CHANGES_MAX);
	are_all(e, exports_walk(r.c, &at, e, MANY), 16);
	end();
}
END_TEST

/* ---- with an outbox and the table of the one owner ---- */

static struct outbox_message message;

/* So long: what is due is told, checked by digests and repaired. */
static void owner_hears(struct outbox *o, struct directory *table, const struct directory_run *self, uint64_t seconds)
{
	struct digest_set differ;

	for (uint64_t until = r.now + seconds * 1000 * 1000; r.now < until; r.now += 100 * 1000) {
		exports_publish(r.c, r.now, o, r.now);
		while (outbox_next(o, r.now, &message)) {
			const struct directory_sender from = { *self, message.sequence };
			const struct directory_buckets content = { &message.set, message.changes, message.count,
								   message.part };
			struct directory_published out = { 0 };
			struct outbox_reply reply = { .differ = &differ };

			if (message.kind == OUTBOX_DIGEST)
				reply.status = directory_digest(table, &from, &message.digest, &differ);
			else if (message.kind == OUTBOX_REPLACE)
				reply.status = directory_replace(table, &from, &content, r.now, &out);
			else
				reply.status = directory_publish(table, &from, message.changes, message.count,
								 message.told, r.now, &out);
			reply.digest_wanted = out.digest_wanted;
			outbox_end(o, &message, &reply, r.now);
		}
	}
}

static uint32_t owner_knows(struct directory *table)
{
	struct directory_counts counts;

	directory_counts(table, &counts);
	return (uint32_t)counts.entries;
}

/* Removals that were not taken in time are told all the same: at once, and not only by a digest (_i). */
START_TEST(what_was_lost_is_taken_back)
{
	const struct directory_member member = { .run = { .node = { 1 }, .epoch = 1 } };
	struct outbox_options options = { .self = { 1 }, .names_max = 1000, .messages_a_second = 100 };
	const struct directory_options table_options = { .bytes_max = 1 << 16, .refused_us = 1 };
	struct directory *table;
	struct owners *owners;
	struct outbox *o;
	enum status s[1];
	struct public_name name;
	struct directory_found found;

	begin();
	ck_assert_int_eq(outbox_create(&options, &o), STATUS_OK);
	ck_assert_int_eq(directory_create(&table_options, &table), STATUS_OK);
	ck_assert_int_eq(owners_create(&member, 1, &owners), STATUS_OK);
	outbox_members(o, owners, r.now);
	directory_members(table, &member, 1);
	put(0, 32, false);
	lease(0, 32);
	owner_hears(o, table, &member.run, 3);
	ck_assert_uint_eq(owner_knows(table), 2);
	for (uint32_t i = 0; i < EXPORT_CHANGES_MAX / 2 + 4; i++) {
		rig_delete(&r, 15, 1, s);
		put(15, 1, true);
		lease(0, 16);
	}
	rig_delete(&r, 15, 1, s);
	owner_hears(o, table, &member.run, _i ? 200 : 3);
	ck_assert_uint_eq(owner_knows(table), 1);
	name_of(31, r.c->pools[0]->layout_id, &name);
	directory_find(table, r.c->pools[0]->tenant->number, &name, 1, r.now, &found);
	ck_assert_uint_eq(found.count, 1);
	outbox_destroy(o);
	owners_drop(owners);
	directory_destroy(table);
	end();
}
END_TEST

/* What goes while a walk is under way does not hide what stays. */
START_TEST(a_walk_has_what_stays)
{
	enum { POSITIONS = 1792, PART = 256 };
	struct export_change e[MANY];
	bool seen[POSITIONS] = { false };
	enum status s[1];
	uint64_t at = 0;
	uint32_t n;

	begin();
	for (uint64_t first = 0; first < POSITIONS; first += PART) {
		put(first, PART, first > 0);
		r.now += EXPORT_AGE_US;
		ck_assert_uint_eq(take(e), PART / EXPORT_EVERY);
	}
	while (exports_walk(r.c, &at, e, 1))
		for (uint64_t position = EXPORT_EVERY - 1; position < POSITIONS; position += EXPORT_EVERY)
			if (is_of(&e[0], position)) {
				seen[position] = true;
				rig_delete(&r, position, 1, s);
				ck_assert_int_eq(s[0], STATUS_OK);
			}
	n = take(e);
	for (uint64_t position = EXPORT_EVERY - 1; position < POSITIONS; position += EXPORT_EVERY) {
		for (uint32_t i = 0; i < n; i++)
			seen[position] |= !e[i].removed && is_of(&e[i], position);
		ck_assert(seen[position]);
	}
	end();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_exports");
	TCase *t = tcase_create("cache_exports");
	SRunner *runner;
	int failures;

	tcase_set_timeout(t, 120);
	tcase_add_test(t, few_are_told_of_and_late);
	tcase_add_loop_test(t, calls_continue_chains, 0, 20);
	tcase_add_test(t, a_lease_names_the_chain);
	tcase_add_loop_test(t, a_lease_inside_a_chain, 0, 7);
	tcase_add_test(t, a_put_inside_a_chain);
	tcase_add_test(t, a_lease_of_a_window);
	tcase_add_test(t, what_goes_is_taken_back);
	tcase_add_test(t, what_is_about_to_go_is_taken_back);
	tcase_add_test(t, so_is_what_only_a_disk_has);
	tcase_add_test(t, secrets_change);
	tcase_add_test(t, a_late_reader_walks);
	tcase_add_loop_test(t, what_was_lost_is_taken_back, 0, 2);
	tcase_add_test(t, a_walk_has_what_stays);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failures = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failures ? 1 : 0;
}
