/* What is on a disk in time, and what memory and disks then give up: what is used least, whatever has come back from a disk since. */
#include "daemon/block/block.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/call/lookup.h"
#include "daemon/disk/state.h"
#include "daemon/session/attachment.h"
#include "daemon/session/open.h"
#include "eviction/policy.h"
#include "kernels/format.h"
#include "store/ring/ring.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { HOST = 64, SPILL_MILLI = 250 };

/* lru, but this disk gives no place for others while it is told to. */
static struct policy_ops fake;
static bool refuse;

static bool admit(struct policy *p, const struct policy_event *e, const struct policy_node *v)
{
	(void)p;
	(void)e;
	(void)v;
	return !refuse;
}

static void open_by(struct rig *r, struct rig_disks *d, uint32_t disk, const char *policy)
{
	struct cache_options o;

	rig_disks_make(d, NULL, 1, disk);
	o = rig_disk_options(d, 1, HOST);
	o.spill_share_milli = SPILL_MILLI;
	o.policy = policy;
	rig_open(r, &o, 1);
	rig_restored(r);
	fake = *policy_find("lru");
	fake.admit = admit;
	refuse = false;
	r->c->tier->policy = &fake;
}

static void open_on(struct rig *r, struct rig_disks *d, uint32_t disk)
{
	open_by(r, d, disk, "lru");
}

static void close_on(struct rig *r, struct rig_disks *d)
{
	rig_check_accounting(r->c);
	rig_close(r);
	rig_disks_remove(d);
}

static void put_slowly(struct rig *r, uint64_t first, uint32_t count)
{
	for (uint32_t i = 0; i < count; i += 8) {
		r->now += 100000;
		ck_assert_uint_eq(rig_put(r, first + i, 8), 8);
		rig_quiet(r);
	}
}

/* How many of them are there; in memory, if it is to be there. */
static uint32_t there(struct rig *r, uint64_t first, uint32_t count, bool memory)
{
	struct cache_keys k = rig_keys(first, count);
	uint8_t *states = calloc(count, 1);
	uint32_t prefix, n = 0;

	ck_assert_int_eq(cache_lookup(r->c, r->s.id, &k, &prefix, states, count, &r->why), STATUS_OK);
	for (uint32_t i = 0; i < count; i++)
		n += memory ? states[i] == 1 : states[i] != 0;
	free(states);
	free((void *)k.bytes);
	return n;
}

static uint32_t in_memory(struct rig *r, uint64_t first, uint32_t count)
{
	return there(r, first, count, true);
}

struct coldest {
	uint32_t looked, clean;
};

static bool count_clean(const struct policy_node *n, void *arg)
{
	struct coldest *o = arg;

	o->looked++;
	o->clean += block_of_node(n)->slab_map != NULL;
	return false;
}

/* What came back from the disk is clean, and more than the share. */
START_TEST(the_coldest_are_clean)
{
	const uint32_t wanted = HOST * SPILL_MILLI / 1000;
	struct coldest o = { 0 };
	struct rig_disks d;
	struct rig r;

	open_on(&r, &d, 1024);
	put_slowly(&r, 0, 2 * HOST);
	r.now += 100000;
	ck_assert_uint_eq(rig_read_all(&r, 0, 2 * wanted), 2 * wanted);
	r.now += 100000;
	rig_quiet(&r);
	cache_lock(r.c);
	r.c->policy->victim(r.c->classes[0]->policy, count_clean, &o, wanted);
	cache_unlock(r.c);
	ck_assert_uint_eq(o.looked, wanted);
	ck_assert_uint_eq(o.clean, wanted);
	put_slowly(&r, 1000, wanted);
	ck_assert_uint_eq(in_memory(&r, 0, 2 * wanted), 2 * wanted);
	ck_assert_double_eq(rig_stat(&r, "terrace_evictions_total", "tier=host,reason=shed"), 0);
	close_on(&r, &d);
}
END_TEST

/* To see what is cold is no passing of a hand: nobody has used anything, and the oldest go first. */
START_TEST(a_look_transfers_no_hand)
{
	struct rig_disks d;
	struct rig r;

	open_by(&r, &d, 1024, "sieve");
	put_slowly(&r, 0, HOST);
	ck_assert_uint_eq(in_memory(&r, 0, HOST), HOST);
	put_slowly(&r, 1000, HOST / 2);
	ck_assert_uint_eq(in_memory(&r, HOST / 2, HOST / 2), HOST / 2);
	ck_assert_uint_eq(there(&r, 0, HOST, false), HOST);
	close_on(&r, &d);
}
END_TEST

/* What no disk is to have goes in its turn, and nothing that is on one in its place. */
START_TEST(what_no_disk_wants_goes_in_its_turn)
{
	struct rig_disks d;
	struct rig r;

	open_on(&r, &d, 128);
	put_slowly(&r, 0, 256); /* the disk is full */
	refuse = true;
	put_slowly(&r, 1000, HOST);
	ck_assert_double_gt(rig_stat(&r, "terrace_refused_blocks_total", "tier=disk"), 0);
	r.now += 100000;
	ck_assert_uint_eq(rig_read_all(&r, 256 - HOST - 16, 16), 16);
	rig_quiet(&r);
	put_slowly(&r, 2000, 16);
	ck_assert_uint_eq(in_memory(&r, 256 - HOST - 16, 16), 16);
	ck_assert_double_eq(rig_stat(&r, "terrace_evictions_total", "tier=host,reason=shed"), 0);
	close_on(&r, &d);
}
END_TEST

static double moved_to_disk(struct rig *r)
{
	return rig_stat(r, "terrace_moved_bytes_total", "from=host,to=disk") / r->s.block_bytes[0];
}

/* A full disk gives up what memory has too for what is flushed: that leaves it, and is counted. */
START_TEST(what_memory_has_too_is_counted_out)
{
	enum status statuses[8];
	struct rig_disks d;
	struct rig r;
	double left;

	open_on(&r, &d, 24);
	r.c->options.spill_share_milli = 1000;
	put_slowly(&r, 0, HOST - 16);
	ck_assert_int_eq(rig_flush(&r, HOST - 24, 8, statuses), STATUS_OK);
	rig_quiet(&r);
	left = moved_to_disk(&r) - rig_stat(&r, "terrace_blocks", "tier=disk");
	ck_assert_double_gt(left, 0);
	ck_assert_double_eq(rig_stat(&r, "terrace_evictions_total", "tier=disk,reason=full"), left);
	close_on(&r, &d);
}
END_TEST

/* Two sets in memory: one is on disk already, and used last; the other is spilled for its place, later than that. */
START_TEST(the_disk_gives_up_what_memory_gave_up_first)
{
	enum status statuses[32];
	struct rig_disks d;
	struct rig r;

	open_on(&r, &d, 128);
	put_slowly(&r, 0, 32);
	put_slowly(&r, 100, 32);
	ck_assert_int_eq(rig_flush(&r, 100, 32, statuses), STATUS_OK);
	r.now += 100000;
	ck_assert_uint_eq(rig_read_all(&r, 100, 32), 32);
	put_slowly(&r, 200, HOST);
	ck_assert_uint_eq(rig_prefix(&r, 0, 32) + rig_prefix(&r, 100, 32), 64);
	ck_assert_uint_eq(in_memory(&r, 0, 32) + in_memory(&r, 100, 32), 0);
	put_slowly(&r, 300, 24);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	ck_assert_double_gt(rig_stat(&r, "terrace_evictions_total", "tier=disk,reason=full"), 8);
	ck_assert_uint_eq(there(&r, 100, 32, false), 32);
	ck_assert_uint_lt(there(&r, 0, 32, false), 24);
	close_on(&r, &d);
}
END_TEST

enum { ONE = 24, OTHER = 8 };

static struct {
	uint64_t layout_id[ONE + OTHER];
	_Atomic uint32_t count;
} written;

static int note(void *arg, const struct ring_request *q, uint32_t *most)
{
	const struct slot_header *h = q->at;
	uint32_t n;

	(void)arg;
	(void)most;
	if (q->op != RING_WRITE)
		return 0;
	n = atomic_fetch_add(&written.count, 1);
	if (n < ONE + OTHER)
		written.layout_id[n] = h->layout_id;
	return 0;
}

/* A disk takes of each class in turn, whoever has most for it. */
START_TEST(layouts_take_turns)
{
	static const struct ring_calls calls = { .fault = note };
	const struct kv_layout l = rig_layout_other(40);
	struct rig other = { .why = NULL };
	uint64_t session, others = 0;
	struct cache_options o;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, 128);
	o = rig_disk_options(&d, 1, HOST);
	o.disk_depth = 1;
	o.io_calls = &calls;
	o.spill_share_milli = 1000;
	rig_open(&r, &o, 1);
	rig_restored(&r);
	other.c = r.c;
	other.now = r.now;
	ck_assert_int_eq(cache_session_open(r.c, &(struct cache_open_call){ .tenant = "", .layouts = &l,
			.layout_count = 1, .engine = "", .now_us = r.now }, &other.s, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_attach(r.c, other.s.token, 1, r.now, &other.attachment, &session, &r.why), STATUS_OK);
	ck_assert_uint_eq(rig_put(&r, 0, ONE), ONE);
	ck_assert_uint_eq(rig_put(&other, 0, OTHER), OTHER);
	rig_quiet(&r);
	ck_assert_uint_eq(written.count, ONE + OTHER);
	for (uint32_t i = 0; i < 2 * OTHER + 1; i++)
		others += written.layout_id[i] == other.s.layout_id[0];
	ck_assert_uint_ge(others, OTHER - 1);
	close_on(&r, &d);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { the_coldest_are_clean, a_look_transfers_no_hand,
				       what_no_disk_wants_goes_in_its_turn, what_memory_has_too_is_counted_out,
				       the_disk_gives_up_what_memory_gave_up_first, layouts_take_turns };

	return rig_main("cache_spill", tests, sizeof(tests) / sizeof(tests[0]));
}
