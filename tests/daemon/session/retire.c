/* Memory that one tenant has borrowed, and another one lacks: what it waits for, and what ends the wait. */
#include "daemon/block/lock.h"
#include "daemon/call/lease.h"
#include "daemon/session/attachment.h"
#include "daemon/session/open.h"
#include "daemon/session/retire.h"
#include "store/arena/arena.h"
#include "tests/daemon/cache_rig.h"

#include <check.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SLOTS = 64, ALL = 64, BETA = 2 };

static const struct cache_tenant_options tenants[] = {
	{ .name = "default", .number = 1, .pinned_bytes_max = UINT64_MAX / 4 },
	{ .name = "beta", .number = BETA, .pinned_bytes_max = UINT64_MAX / 4 },
};

struct two {
	struct rig a, b;               /* of the same cache; a's is `default` */
	uint32_t stored;               /* blocks of a's */
};

/* a has all memory, and b wants some. */
static void two_begin(struct two *t)
{
	struct cache_options o = rig_options(SLOTS);
	struct kv_layout l = rig_layout(0, 0);
	uint64_t session;

	o.host_bytes = SLOTS / 8 * o.extent_bytes; /* whole extents alone */
	o.tenants = tenants;
	o.tenant_count = 2;
	rig_open(&t->a, &o, 1);
	t->b = t->a;
	const struct cache_open_call q = { .identity = BETA, .tenant = "", .layouts = &l, .layout_count = 1,
					   .engine = "beta", .now_us = t->a.now };

	ck_assert_int_eq(cache_session_open(t->a.c, &q, &t->b.s, &t->b.why), STATUS_OK);
	ck_assert_int_eq(cache_attach(t->a.c, t->b.s.token, 2, t->a.now, &t->b.attachment, &session, &t->b.why),
			 STATUS_OK);
	rig_watch(&t->a, getpid());
	t->stored = rig_put(&t->a, 0, ALL);
	ck_assert_uint_gt(arena_tenant_bytes(t->a.c->host, 1), 0);
	ck_assert_uint_eq(arena_tenant_bytes(t->a.c->host, 1), t->a.c->options.host_bytes);
}

/* Some seconds, in which b wants memory each second or not. How many blocks b could store. */
static uint32_t pass(struct two *t, uint32_t seconds, bool wants)
{
	uint32_t stored = 0;

	for (uint32_t i = 0; i < seconds; i++) {
		t->a.now = t->b.now = t->a.now + 1100 * 1000;
		if (wants)
			stored += rig_put(&t->b, 1000 + stored, 1);
		for (uint32_t j = 0; j < 4; j++)
			rig_tick(t->a.c, t->a.now);
	}
	return stored;
}

static uint64_t count(struct two *t, enum counter which)
{
	return atomic_load(&t->a.c->counters[which]);
}

START_TEST(memory_goes_to_the_tenant_that_lacks_it)
{
	struct two t;

	two_begin(&t);
	ck_assert(!retire_wants(t.a.c));
	ck_assert_uint_gt(pass(&t, 8, true), 2);
	ck_assert_uint_gt(count(&t, COUNTER_EXTENTS_MOVED), 0);
	ck_assert_uint_eq(count(&t, COUNTER_EXTENTS_KEPT), 0);
	ck_assert_uint_gt(arena_tenant_bytes(t.a.c->host, BETA), 0);
	rig_check_accounting(t.a.c);
	rig_close(&t.a);
}
END_TEST

/* No call wants memory any more: nothing more is taken. */
START_TEST(only_while_it_lacks)
{
	uint64_t moved;
	struct two t;

	two_begin(&t);
	pass(&t, 2, true);
	pass(&t, 5, false);
	moved = count(&t, COUNTER_EXTENTS_MOVED);
	pass(&t, 10, false);
	ck_assert_uint_eq(count(&t, COUNTER_EXTENTS_MOVED), moved);
	ck_assert(!retire_wants(t.a.c));
	rig_close(&t.a);
}
END_TEST

/* Maps all extents of a's, as an engine does. */
static uint32_t map_all(struct two *t, void **at, int *fds)
{
	uint32_t ids[64], n = arena_extents(t->a.c->host, 1, 0, ids, 64);

	for (uint32_t i = 0; i < n; i++) {
		struct cache_lent lent;

		ck_assert_int_eq(cache_attach_lend(t->a.c, t->a.attachment, ids[i], false, &lent), STATUS_OK);
		fds[i] = lent.fd;
		at[i] = mmap(NULL, lent.bytes, PROT_READ, MAP_SHARED, lent.fd, 0);
		ck_assert_ptr_ne(at[i], MAP_FAILED);
	}
	return n;
}

/* An engine that cannot be asked keeps what it has mapped, and its blocks. */
START_TEST(what_a_deaf_engine_has_mapped_stays)
{
	void *at[64];
	int fds[64];
	struct two t;

	two_begin(&t);
	map_all(&t, at, fds);
	ck_assert_uint_eq(pass(&t, 30, true), 0);
	ck_assert_uint_eq(count(&t, COUNTER_EXTENTS_MOVED) + count(&t, COUNTER_EXTENTS_KEPT), 0);
	ck_assert_uint_eq(count(&t, COUNTER_EVICTED_TENANT), 0);
	rig_close(&t.a);
}
END_TEST

/* One that does not answer, as it is stopped, is asked for each, a second long. It keeps its blocks as well. */
START_TEST(what_is_mapped_stays)
{
	const uint32_t asked_for = 5;
	uint32_t n, extent;
	void *at[64];
	int fds[64];
	struct two t;

	two_begin(&t);
	cache_attach_listens(t.a.c, t.a.attachment);
	cache_attach_listens(t.a.c, t.b.attachment);
	n = map_all(&t, at, fds);
	ck_assert_uint_eq(pass(&t, 1, true), 0);
	extent = retire_extent(t.a.c);
	ck_assert_uint_ne(extent, 0);
	ck_assert_uint_eq(cache_attach_asked(t.a.c, t.b.attachment), 0); /* which has it not */
	ck_assert_uint_eq(cache_attach_asked(t.a.c, t.a.attachment), extent);
	ck_assert_uint_eq(cache_attach_asked(t.a.c, t.a.attachment), 0);
	cache_attach_ask_again(t.a.c, t.a.attachment); /* its socket was full */
	ck_assert_uint_eq(cache_attach_asked(t.a.c, t.a.attachment), extent);
	while (count(&t, COUNTER_EXTENTS_KEPT) < asked_for)
		ck_assert_uint_eq(pass(&t, 1, true), 0);
	ck_assert_uint_eq(count(&t, COUNTER_EXTENTS_MOVED), 0);
	ck_assert_uint_eq(count(&t, COUNTER_EVICTED_TENANT), 0);
	ck_assert_uint_eq(rig_prefix(&t.a, 0, t.stored), t.stored);
	/* When it has unmapped one, that one goes. */
	while (!retire_extent(t.a.c))
		pass(&t, 1, true);
	extent = retire_extent(t.a.c);
	ck_assert_uint_eq(cache_attach_asked(t.a.c, t.a.attachment), extent);
	for (uint32_t i = 0; i < n; i++) {
		munmap(at[i], arena_extent_bytes(t.a.c->host));
		close(fds[i]);
	}
	cache_attach_unmapped(t.a.c, t.a.attachment, extent);
	ck_assert_uint_gt(pass(&t, 4, true), 0);
	ck_assert_uint_ge(count(&t, COUNTER_EXTENTS_MOVED), 1);
	ck_assert_ptr_null(arena_extent(t.a.c->host, extent));
	rig_check_accounting(t.a.c);
	rig_close(&t.a);
}
END_TEST

/* It maps the extent again, for a block that is still there: it is asked again. */
START_TEST(an_engine_that_maps_it_again_is_asked_again)
{
	struct cache_lent lent;
	void *at[64];
	int fds[64];
	struct two t;
	uint32_t n;

	two_begin(&t);
	cache_attach_listens(t.a.c, t.a.attachment);
	n = map_all(&t, at, fds);
	pass(&t, 1, true);
	ck_assert_uint_ne(retire_extent(t.a.c), 0);
	ck_assert_uint_eq(cache_attach_asked(t.a.c, t.a.attachment), retire_extent(t.a.c));
	ck_assert_uint_eq(cache_attach_asked(t.a.c, t.a.attachment), 0);
	ck_assert_int_eq(cache_attach_lend(t.a.c, t.a.attachment, retire_extent(t.a.c), false, &lent), STATUS_OK);
	close(lent.fd);
	ck_assert_uint_eq(cache_attach_asked(t.a.c, t.a.attachment), retire_extent(t.a.c));
	for (uint32_t i = 0; i < n; i++) {
		munmap(at[i], arena_extent_bytes(t.a.c->host));
		close(fds[i]);
	}
	rig_close(&t.a);
}
END_TEST

/* While the daemon drains, and before it stops, nothing is taken from a tenant. */
START_TEST(a_drain_ends_it)
{
	struct two t;

	two_begin(&t);
	cache_drain(t.a.c, true);
	pass(&t, 1, false);
	cache_drain(t.a.c, false);
	ck_assert_uint_eq(pass(&t, 0, true), 0);
	rig_put(&t.b, 1000, 1);
	cache_drain(t.a.c, true);
	pass(&t, 5, false);
	ck_assert_uint_eq(count(&t, COUNTER_EVICTED_TENANT), 0);
	ck_assert_uint_eq(retire_extent(t.a.c), 0);
	rig_close(&t.a);
}
END_TEST

/* A lease that is granted while the extent is being emptied keeps its blocks, and the extent, until its end. */
START_TEST(what_is_leased_stays)
{
	struct cache_place places[ALL];
	struct cache_leased leased[ALL];
	uint32_t n = 0, key_of[ALL + 1];
	struct two t;

	two_begin(&t);
	for (uint32_t i = 0; i < ALL; i++) {
		key_of[n] = i;
		n += rig_lease(&t.a, i, 1, true, &places[n], &leased[n]) == STATUS_OK;
	}
	ck_assert_uint_gt(n, SLOTS / 2);
	ck_assert_uint_eq(pass(&t, 20, true), 0); /* every extent has some */
	ck_assert_uint_eq(count(&t, COUNTER_EXTENTS_MOVED), 0);
	for (uint32_t i = 0; i < n; i++)
		ck_assert(rig_matches(rig_block(&t.a, &places[i]), t.a.s.block_bytes[0], key_of[i], 0));
	for (uint32_t i = 0; i < n; i++)
		cache_release(t.a.c, t.a.s.id, leased[i].lease);
	ck_assert_uint_gt(pass(&t, 6, true), 0);
	rig_check_accounting(t.a.c);
	rig_close(&t.a);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { memory_goes_to_the_tenant_that_lacks_it,
				       only_while_it_lacks,
				       what_a_deaf_engine_has_mapped_stays,
				       what_is_mapped_stays,
				       an_engine_that_maps_it_again_is_asked_again,
				       a_drain_ends_it,
				       what_is_leased_stays };

	return rig_main("cache_retire", tests, sizeof(tests) / sizeof(tests[0]));
}
