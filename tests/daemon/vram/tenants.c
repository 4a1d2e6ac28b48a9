/* GPU memory of two tenants: what is kept for each, what each may take, what goes from one to the other and when, and
 * that neither is told anything of the other's. */
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/views.h"
#include "daemon/call/delete.h"
#include "daemon/call/lease.h"
#include "daemon/call/faults.h"
#include "daemon/call/stats.h"
#include "daemon/session/attachment.h"
#include "daemon/session/offer.h"
#include "daemon/session/open.h"
#include "daemon/session/retire.h"
#include "daemon/vram/stats.h"
#include "daemon/vram/state.h"
#include "store/arena/arena.h"
#include "store/host/extent.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BETA = 2, GPU_SLOTS = 56, EXTENTS = 8, ALL = GPU_SLOTS + VR_EXTENT_SLOTS }; /* with the reserve */
#define EXTENT ((uint64_t)SIM_GRANULARITY)
#define PINS (UINT64_MAX / 4)

struct two {
	struct vram_rig a, b;          /* of the same cache; a's is `default` */
	struct cache_tenant_options tenants[2];
	struct rig_disks disks;
};

/* What each tenant has of the GPU's eight extents: its own, and what it may take. */
struct shares {
	uint64_t own[2], most[2];
};

static void two_open(struct two *t, const struct shares *s, const struct vram_rig_options *with)
{
	struct vram_rig_options o = *with;

	for (int i = 0; i < 2; i++)
		t->tenants[i] = (struct cache_tenant_options){
			.name = i ? "beta" : "default", .number = i ? BETA : 1, .pinned_bytes_max = PINS,
			.gpu_bytes = s->own[i] * EXTENT, .gpu_bytes_max = s->most[i] * EXTENT,
		};
	o.tenants = t->tenants;
	o.tenant_count = 2;
	vr_open(&t->a, &o);
	vr_join_tenant(&t->b, &t->a, BETA);
}

static void two_close(struct two *t)
{
	rig_quiet(&t->a.r);
	rig_check_accounting(t->a.r.c);
	munmap(t->b.progress_page, EXTENT_PAGE_BYTES);
	vr_close(&t->a);
}

static const struct vram_rig_options plain = { .gpus = 1, .gpu_slots = GPU_SLOTS, .host_slots = 512 };

static uint64_t has(const struct two *t, uint32_t tenant)
{
	return arena_tenant_bytes(t->a.r.c->vram->gpu[0]->arena, tenant) / EXTENT;
}

static uint64_t count(const struct two *t, enum counter which)
{
	return atomic_load(&t->a.r.c->counters[which]);
}

/* Blocks of v's that are on the GPU: what a put there has left, once nothing moves. */
static uint32_t on_gpu(struct vram_rig *v, uint64_t first, uint32_t n)
{
	uint32_t there = 0;

	rig_quiet(&v->r);
	for (uint32_t i = 0; i < n; i++)
		there += !strncmp(vr_tier(v, first + i), "gpu", 3);
	return there;
}

/* Puts one block after the other, while downloads make room. */
static uint32_t put(struct vram_rig *v, uint64_t first, uint32_t n)
{
	uint32_t stored = 0;

	for (uint32_t i = 0; i < n; i++) {
		stored += vr_put(v, 0, first + i, 1);
		rig_quiet(&v->r);
	}
	return stored;
}

/* Some seconds, in which b puts a block each second, or nothing. How many it could store. */
static uint32_t pass(struct two *t, uint32_t seconds, bool wants)
{
	static uint64_t next = 10000;
	uint32_t stored = 0;

	for (uint32_t i = 0; i < seconds; i++) {
		t->a.r.now = t->b.r.now = t->a.r.now + 1100 * 1000;
		rig_tick(t->a.r.c, t->a.r.now);
		if (wants)
			stored += put(&t->b, next++, 1);
		for (uint32_t j = 0; j < 4; j++)
			rig_tick(t->a.r.c, t->a.r.now);
		rig_quiet(&t->a.r);
	}
	return stored;
}

/* ---- what is kept, and what may be taken ---- */

/* Without a gpu_bytes_max a tenant takes its own bytes alone, though others use nothing. */
START_TEST(nothing_is_borrowed_unless_configured)
{
	struct two t;

	two_open(&t, &(struct shares){ .own = { 3, 2 } }, &plain);
	ck_assert_uint_eq(put(&t.a, 0, ALL), ALL); /* older ones go down for newer ones */
	ck_assert_uint_eq(has(&t, 1), 3);
	ck_assert_uint_le(on_gpu(&t.a, 0, ALL), 3 * VR_EXTENT_SLOTS);
	ck_assert_uint_eq(vr_read_all(&t.a, CACHE_HOST, 0, ALL), ALL);
	ck_assert_uint_eq(put(&t.b, 0, 8), 8);
	ck_assert_uint_le(has(&t, BETA), 2);
	two_close(&t);
}
END_TEST

/* A tenant that has no part of a GPU is told so, and how to get one. */
START_TEST(a_tenant_without_a_part_is_refused)
{
	struct cache_leased leased;
	struct cache_place place;
	enum status status;
	uint64_t id;
	struct two t;

	two_open(&t, &(struct shares){ .own = { 8, 0 } }, &plain);
	ck_assert_int_eq(vr_reserve(&t.b, 0, 1, 1, &status, &id, &place), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(t.b.r.why, "raise the tenant's gpu_bytes_max"));
	ck_assert_uint_eq(vr_put(&t.b, CACHE_HOST, 1, 1), 1);
	ck_assert_int_eq(vr_lease(&t.b, 0, 1, 1, true, false, &place, &leased), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(t.b.r.why, "gpu_bytes_max"));
	ck_assert_uint_eq(vr_put(&t.a, 0, 1, 1), 1);
	two_close(&t);
}
END_TEST

/* What is kept for b is there, though a could use it, puts without end and leases what it has. */
START_TEST(own_bytes_are_there_whatever_the_other_does)
{
	struct cache_leased leased[GPU_SLOTS];
	struct cache_place place;
	uint32_t n = 0;
	struct two t;

	two_open(&t, &(struct shares){ .own = { 0, 3 }, .most = { 8, 0 } }, &plain);
	put(&t.a, 0, ALL);
	ck_assert_uint_eq(has(&t, 1), 5);
	for (uint32_t i = 0; i < GPU_SLOTS; i++)
		n += vr_lease(&t.a, 0, i, 1, true, true, &place, &leased[n]) == STATUS_OK;
	ck_assert_uint_ge(n, 4 * VR_EXTENT_SLOTS);
	for (uint32_t i = 0; i < 2 * VR_EXTENT_SLOTS; i++)
		ck_assert_uint_eq(vr_put(&t.b, 0, i, 1), 1);
	ck_assert_uint_eq(on_gpu(&t.b, 0, 2 * VR_EXTENT_SLOTS), 2 * VR_EXTENT_SLOTS);
	ck_assert_uint_eq(has(&t, BETA), 3);
	for (uint32_t i = 0; i < n; i++)
		vr_release(&t.a, &leased[i]);
	ck_assert_uint_eq(vr_read_all(&t.a, 0, 0, 2 * VR_EXTENT_SLOTS), 2 * VR_EXTENT_SLOTS);
	two_close(&t);
}
END_TEST

/* What a's leases hold bounds a's, not b's: each may hold a share of its own part. */
START_TEST(leases_are_bounded_by_tenant)
{
	struct vram_rig_options o = plain;
	struct cache_leased leased[4 * VR_EXTENT_SLOTS], other;
	struct cache_place place;
	uint32_t n = 0;
	struct two t;

	o.gpu_pinned_milli = 500;
	two_open(&t, &(struct shares){ .own = { 4, 4 } }, &o);
	ck_assert_uint_eq(put(&t.a, 0, 3 * VR_EXTENT_SLOTS), 3 * VR_EXTENT_SLOTS);
	ck_assert_uint_eq(put(&t.b, 0, VR_EXTENT_SLOTS), VR_EXTENT_SLOTS);
	while (n < 3 * VR_EXTENT_SLOTS && !vr_lease(&t.a, 0, n, 1, true, false, &place, &leased[n]))
		n++;
	ck_assert_uint_ge(n, 2 * VR_EXTENT_SLOTS - 2); /* half of its four */
	ck_assert_uint_le(n, 2 * VR_EXTENT_SLOTS);
	ck_assert_int_eq(vr_lease(&t.b, 0, 0, 1, true, false, &place, &other), STATUS_OK);
	ck_assert(vr_on_gpu(&place, 0));
	vr_release(&t.b, &other);
	while (n)
		vr_release(&t.a, &leased[--n]);
	two_close(&t);
}
END_TEST

/* ---- from one to the other ---- */

/* A slot that was never written has zeroes. */
static void check_unwritten(struct two *t, uint64_t key)
{
	static const uint8_t zeroes[VR_BLOCK_BYTES];
	struct cache_place place;
	enum status status;
	uint64_t id;

	ck_assert_int_eq(vr_reserve(&t->b, 0, key, 1, &status, &id, &place), STATUS_OK);
	ck_assert_int_eq(status, STATUS_OK);
	ck_assert_int_eq(memcmp(vr_bytes(&t->b, &place), zeroes, sizeof(zeroes)), 0);
	ck_assert_int_eq(vr_commit(&t->b, &id, 1, &status), STATUS_OK);
}

/* a has borrowed all; b gets as much as a keeps, in new and zeroed memory, and a's blocks are not lost for it. */
START_TEST(what_is_borrowed_goes_to_the_tenant_that_lacks_it)
{
	struct two t;

	two_open(&t, &(struct shares){ .most = { 8, 8 } }, &plain);
	ck_assert_uint_eq(put(&t.a, 0, ALL), ALL);
	ck_assert_uint_eq(has(&t, 1), 7); /* and one is its reserve */
	ck_assert(!retire_wants(t.a.r.c));
	for (uint32_t i = 0; i < 40; i++) {
		pass(&t, 1, false);
		if (i < 2 * VR_EXTENT_SLOTS)
			check_unwritten(&t, 5000 + i);
		else
			pass(&t, 1, true);
	}
	ck_assert_uint_eq(has(&t, 1), 4);
	ck_assert_uint_eq(has(&t, BETA), 4);
	ck_assert_uint_eq(count(&t, COUNTER_EXTENTS_MOVED), 3);
	ck_assert_uint_gt(count(&t, COUNTER_EVICTED_GPU_TENANT), 0);
	ck_assert_uint_eq(count(&t, COUNTER_DROPPED), 0);
	ck_assert_uint_eq(vr_read_all(&t.a, CACHE_HOST, 0, ALL), ALL);
	ck_assert(!retire_wants(t.a.r.c) || !pass(&t, 5, false));
	ck_assert(!retire_wants(t.a.r.c));
	two_close(&t);
}
END_TEST

/* A block that the GPU alone has is downloaded before its extent goes, or the extent waits for that. */
START_TEST(what_the_gpu_alone_has_goes_down_first)
{
	struct vram_rig_options o = plain;
	struct two t;

	o.write_back = true;
	two_open(&t, &(struct shares){ .most = { 8, 8 } }, &o);
	for (uint32_t i = 0; i < GPU_SLOTS; i++)
		ck_assert_uint_eq(vr_put(&t.a, 0, i, 1), 1);
	pass(&t, 30, true);
	ck_assert_uint_ge(count(&t, COUNTER_EXTENTS_MOVED), 3);
	ck_assert_uint_eq(count(&t, COUNTER_DROPPED), 0);
	ck_assert_uint_eq(vr_read_all(&t.a, CACHE_HOST, 0, GPU_SLOTS), GPU_SLOTS);
	two_close(&t);
}
END_TEST

/* Has the process map the holds of all of a's extents, as an engine does. */
static uint32_t map_all(struct two *t, void **at)
{
	uint32_t ids[EXTENTS], n = arena_extents(t->a.r.c->vram->gpu[0]->arena, 1, 0, ids, EXTENTS);

	for (uint32_t i = 0; i < n; i++) {
		struct cache_lent lent;

		ck_assert_int_eq(cache_attach_lend(t->a.r.c, t->a.r.attachment, ids[i], false, &lent), STATUS_OK);
		at[i] = mmap(NULL, EXTENT_PAGE_BYTES, PROT_READ, MAP_SHARED, lent.fd, 0);
		ck_assert_ptr_ne(at[i], MAP_FAILED);
		close(lent.fd);
		close(lent.device_fd);
	}
	return n;
}

static double row(struct two *t, uint32_t tenant, const char *name);

/* A stopped engine is asked, does not answer, and keeps what it has mapped; what is kept for b is there all the
 * same. An engine that answers gives one back. */
START_TEST(what_an_engine_has_mapped_stays)
{
	void *at[EXTENTS];
	uint32_t n, extent;
	struct two t;

	two_open(&t, &(struct shares){ .own = { 0, 1 }, .most = { 8, 8 } }, &plain);
	put(&t.a, 0, ALL);
	n = map_all(&t, at);
	ck_assert_uint_eq(n, 7);
	cache_attach_listens(t.a.r.c, t.a.r.attachment);
	ck_assert_uint_gt(pass(&t, 40, true), 30); /* in its own extent */
	ck_assert_uint_eq(has(&t, BETA), 1);
	ck_assert_uint_eq(count(&t, COUNTER_EXTENTS_MOVED), 0);
	ck_assert_uint_gt(count(&t, COUNTER_EXTENTS_KEPT), 5);
	ck_assert_uint_eq(count(&t, COUNTER_EVICTED_GPU_TENANT), 0);
	ck_assert(row(&t, 1, "terrace_tenant_gpu_lent_bytes") == 7 * EXTENT);
	while (!retire_extent(t.a.r.c))
		pass(&t, 1, true);
	extent = retire_extent(t.a.r.c);
	ck_assert_int_eq(extent >> VRAM_EXTENT_BITS, 1);
	ck_assert_uint_eq(cache_attach_asked(t.a.r.c, t.a.r.attachment), extent);
	ck_assert_uint_eq(cache_attach_asked(t.a.r.c, t.b.r.attachment), 0);
	for (uint32_t i = 0; i < n; i++)
		munmap(at[i], EXTENT_PAGE_BYTES);
	cache_attach_unmapped(t.a.r.c, t.a.r.attachment, extent);
	pass(&t, 4, true);
	ck_assert_uint_ge(count(&t, COUNTER_EXTENTS_MOVED), 1);
	ck_assert_ptr_null(arena_extent(t.a.r.c->vram->gpu[0]->arena, extent));
	two_close(&t);
}
END_TEST

/* Leased blocks keep their extents, and what they are read by. */
START_TEST(what_is_leased_stays)
{
	struct cache_leased leased[ALL];
	struct cache_place place[ALL];
	uint32_t n = 0, key[ALL];
	struct two t;

	two_open(&t, &(struct shares){ .most = { 8, 8 } }, &plain);
	put(&t.a, 0, ALL);
	for (uint32_t i = 0; i < ALL; i++) {
		key[n] = i;
		if (strncmp(vr_tier(&t.a, i), "gpu", 3) != 0)
			continue;
		ck_assert_int_eq(vr_lease(&t.a, 0, i, 1, true, false, &place[n], &leased[n]), STATUS_OK);
		n++;
	}
	pass(&t, 20, true);
	for (uint32_t i = 0; i < n; i++)
		ck_assert(vr_matches(&t.a, &place[i], key[i], 0));
	ck_assert_uint_le(count(&t, COUNTER_EXTENTS_MOVED), 1); /* which held none */
	for (uint32_t i = 0; i < n; i++)
		vr_release(&t.a, &leased[i]);
	pass(&t, 20, true);
	ck_assert_uint_ge(count(&t, COUNTER_EXTENTS_MOVED), 3);
	two_close(&t);
}
END_TEST

/* A GPU that is lost meanwhile ends it. */
START_TEST(a_lost_gpu_ends_it)
{
	void *at[EXTENTS];
	struct two t;
	uint32_t n;

	two_open(&t, &(struct shares){ .most = { 8, 8 } }, &plain);
	put(&t.a, 0, ALL);
	n = map_all(&t, at);
	cache_attach_listens(t.a.r.c, t.a.r.attachment);
	while (!retire_extent(t.a.r.c))
		pass(&t, 1, true);
	vr_lose(&t.a, 0);
	RIG_AWAIT((rig_tick(t.a.r.c, t.a.r.now), cache_degraded(t.a.r.c)));
	pass(&t, 3, false);
	ck_assert_uint_eq(retire_extent(t.a.r.c), 0);
	ck_assert(!retire_wants(t.a.r.c));
	for (uint32_t i = 0; i < n; i++)
		munmap(at[i], EXTENT_PAGE_BYTES);
	two_close(&t);
}
END_TEST

/* Host memory goes from tenant to tenant with GPUs too, which forget the extent. */
START_TEST(host_memory_goes_too)
{
	struct vram_rig_options o = plain;
	uint32_t stored = 0;
	struct two t;

	o.host_slots = 64;
	two_open(&t, &(struct shares){ .own = { 4, 4 } }, &o);
	ck_assert_uint_eq(vr_put(&t.a, CACHE_HOST, 0, 56), 56);
	rig_quiet(&t.a.r);
	ck_assert_uint_eq(put(&t.a, 1000, VR_EXTENT_SLOTS), VR_EXTENT_SLOTS);
	for (uint32_t i = 0; i < 20; i++) {
		stored += vr_put(&t.b, CACHE_HOST, i, 1);
		pass(&t, 1, false);
	}
	ck_assert_uint_gt(stored, 6);
	ck_assert_uint_gt(count(&t, COUNTER_EXTENTS_MOVED), 0);
	ck_assert_uint_gt(arena_tenant_bytes(t.a.r.c->host, BETA), 0);
	/* And its blocks go up from there. */
	ck_assert_uint_gt(vr_read_all(&t.b, 0, 0, 20), 6);
	two_close(&t);
}
END_TEST

/* ---- what is told ---- */

START_TEST(nothing_of_the_other_is_lent_or_offered)
{
	uint32_t ids[EXTENTS], offered[EXTENTS], n, told;
	struct cache_lent lent;
	bool more;
	struct two t;

	two_open(&t, &(struct shares){ .own = { 4, 4 } }, &plain);
	ck_assert_uint_eq(put(&t.a, 0, 16), 16);
	ck_assert_int_eq(cache_attach_premap(t.a.r.c, t.b.r.attachment, 0), STATUS_OK);
	told = cache_attach_offers(t.a.r.c, t.b.r.attachment, 0, offered, EXTENTS, &more);
	n = arena_extents(t.a.r.c->vram->gpu[0]->arena, 1, 0, ids, EXTENTS);
	ck_assert_uint_ge(n, 2);
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t j = 0; j < told; j++)
			ck_assert_uint_ne(ids[i], offered[j]);
		ck_assert_int_eq(cache_attach_lend(t.a.r.c, t.b.r.attachment, ids[i], false, &lent), STATUS_NOT_FOUND);
		ck_assert_int_eq(cache_attach_lend(t.a.r.c, t.b.r.attachment, ids[i], true, &lent), STATUS_NOT_FOUND);
	}
	/* The answer is that of an extent that there is not. */
	ck_assert_int_eq(cache_attach_lend(t.a.r.c, t.b.r.attachment, (1 << VRAM_EXTENT_BITS) + 99, false, &lent),
			 STATUS_NOT_FOUND);
	/* The same keys are two blocks, and neither is seen by the other tenant. */
	ck_assert_uint_eq(vr_read_all(&t.b, 0, 0, 16), 0);
	ck_assert_str_eq(vr_tier(&t.a, 3), "gpu+host");
	two_close(&t);
}
END_TEST

struct rows {
	const char *name;              /* of this one alone; NULL: of all */
	char text[8192];
	double value;
};

static void rows_add(void *arg, const char *name, const char *labels, double value, bool counter, const char *help)
{
	struct rows *r = arg;
	const size_t n = strlen(r->text);

	(void)counter;
	(void)help;
	ck_assert_str_eq(labels, "");
	snprintf(r->text + n, sizeof(r->text) - n, "%s %.0f\n", name, value);
	if (r->name && !strcmp(r->name, name))
		r->value = value;
}

static double row(struct two *t, uint32_t tenant, const char *name)
{
	struct rows r = { .name = name, .value = -1 };

	cache_tenant_stats(t->a.r.c, tenant, rows_add, &r);
	ck_assert_msg(r.value >= 0, "no row %s", name);
	return r.value;
}

static bool is_preallocated(struct two *t)
{
	const struct gpu *g = t->a.r.c->vram->gpu[0];
	bool is;

	cache_lock(t->a.r.c);
	is = !g->preallocate && !g->making && !tenant_wanting(t->a.r.c, g->arena);
	cache_unlock(t->a.r.c);
	return is;
}

START_TEST(no_row_of_ones_own_tells_of_the_other)
{
	struct rows before = { .name = NULL }, after = { .name = NULL };
	struct cache_leased leased;
	struct cache_place place;
	struct two t;

	two_open(&t, &(struct shares){ .own = { 4, 4 }, .most = { 4, 8 } }, &plain);
	ck_assert_uint_eq(put(&t.b, 0, 10), 10);
	ck_assert(row(&t, BETA, "terrace_tenant_gpu_blocks") == 10);
	ck_assert(row(&t, BETA, "terrace_tenant_gpu_extent_bytes") >= 2 * EXTENT);
	ck_assert_int_eq(vr_lease(&t.b, 0, 0, 3, true, false, (struct cache_place[3]){ { 0 } }, &leased), STATUS_OK);
	ck_assert(row(&t, BETA, "terrace_tenant_gpu_pinned_bytes") == 3 * VR_BLOCK_BYTES);
	vr_release(&t.b, &leased);
	pass(&t, 2, false);
	RIG_AWAIT(is_preallocated(&t)); /* what is taken ahead for b is there */
	cache_tenant_stats(t.a.r.c, BETA, rows_add, &before);
	ck_assert_uint_gt(put(&t.a, 0, ALL), 0);
	ck_assert_int_eq(vr_lease(&t.a, 0, ALL - 1, 1, true, false, &place, &leased), STATUS_OK);
	cache_tenant_stats(t.a.r.c, BETA, rows_add, &after);
	ck_assert_str_eq(before.text, after.text);
	vr_release(&t.a, &leased);
	two_close(&t);
}
END_TEST

/* The tenants' own bytes are more than the GPU has: it is not used, and says why. */
START_TEST(a_gpu_too_small_for_them_is_not_used)
{
	struct cache_gpu_view view;
	struct cache_tenant_options tenants[] = {
		{ .name = "default", .number = 1, .pinned_bytes_max = PINS, .gpu_bytes = 5 * EXTENT },
		{ .name = "beta", .number = BETA, .pinned_bytes_max = PINS, .gpu_bytes = 4 * EXTENT },
	};
	struct vram_rig_options o = plain;
	struct vram_rig v;

	o.tenants = tenants;
	o.tenant_count = 2;
	vr_open(&v, &o);
	ck_assert_uint_eq(cache_gpus(v.r.c, &view, 1), 1);
	ck_assert(view.lost);
	ck_assert_ptr_nonnull(strstr(view.why, "gpu_bytes together"));
	vr_close(&v);
}
END_TEST

/* ---- all of it ---- */

enum { KEYS = 40, STEPS = 700, HELD = 4 };

struct model {
	struct two t;
	uint64_t version[2][KEYS];     /* what was stored last under the key; 0: nothing that is known of */
	struct { struct cache_leased l; struct cache_place p; uint64_t content; int of; } held[HELD];
	uint64_t checked;
};

/* Says whose block it is. */
static uint64_t content_of(int of, uint64_t key, uint64_t version)
{
	return (uint64_t)(of + 1) << 40 | version << 16 | key;
}

static void model_put(struct model *m, int of, uint64_t key, int32_t gpu)
{
	struct vram_rig *v = of ? &m->t.b : &m->t.a;
	static uint64_t version;
	struct cache_place p;
	enum status status;
	uint64_t id, at;

	ck_assert_int_eq(vr_reserve(v, gpu, key, 1, &status, &id, &p), STATUS_OK);
	if (status)
		return;
	/* What an earlier block left here was of the same tenant. */
	for (uint64_t k = 0; k < KEYS; k++)
		for (at = m->version[!of][k]; at; at = 0)
			ck_assert(!rig_matches(vr_bytes(v, &p), 64, content_of(!of, k, at), 0));
	rig_fill(vr_bytes(v, &p), v->r.s.block_bytes[0], content_of(of, key, ++version), 0);
	ck_assert_int_eq(vr_commit(v, &id, 1, &status), STATUS_OK);
	if (!status)
		m->version[of][key] = version;
}

static void model_lease(struct model *m, int of, uint64_t key, int32_t gpu)
{
	struct vram_rig *v = of ? &m->t.b : &m->t.a;
	const int h = rand() % HELD;
	struct cache_leased l;
	struct cache_place p;

	if (m->held[h].l.lease) {
		struct vram_rig *w = m->held[h].of ? &m->t.b : &m->t.a;

		ck_assert(rig_matches(vr_bytes(w, &m->held[h].p), w->r.s.block_bytes[0], m->held[h].content, 0));
		vr_release(w, &m->held[h].l);
		m->held[h].l.lease = 0;
		m->checked++;
	}
	if (vr_lease(v, gpu, key, 1, true, true, &p, &l))
		return;
	vr_wait_layers(v, &l);
	m->held[h].l = l;
	m->held[h].p = p;
	m->held[h].of = of;
	m->held[h].content = content_of(of, key, m->version[of][key]);
	ck_assert(rig_matches(vr_bytes(v, &p), v->r.s.block_bytes[0], m->held[h].content, 0));
}

static void model_release(struct model *m)
{
	for (int h = 0; h < HELD; h++) {
		if (m->held[h].l.lease)
			vr_release(m->held[h].of ? &m->t.b : &m->t.a, &m->held[h].l);
		m->held[h].l.lease = 0;
	}
}

static void model_delete(struct model *m, int of, uint64_t key)
{
	struct vram_rig *v = of ? &m->t.b : &m->t.a;
	enum status status;

	rig_delete(&v->r, key, 1, &status);
}

/* The caps hold, and what is kept for one is not taken by the other. */
static void model_check(struct model *m, const struct shares *s)
{
	uint64_t got[2] = { has(&m->t, 1), has(&m->t, BETA) };

	for (int i = 0; i < 2; i++) {
		ck_assert_uint_le(got[i], s->most[i] ? s->most[i] : s->own[i]);
		ck_assert_uint_le(got[i] + (s->own[!i] > got[!i] ? s->own[!i] : got[!i]), EXTENTS);
	}
}

static void model_step(struct model *m)
{
	const int of = rand() % 2;
	const uint64_t key = (uint64_t)rand() % KEYS;
	const int32_t gpu = rand() % 3 ? 0 : CACHE_HOST;

	switch (rand() % 8) {
	case 0: case 1: case 2:
		model_put(m, of, key, gpu);
		break;
	case 3: case 4: case 5:
		model_lease(m, of, key, gpu);
		break;
	case 6:
		model_delete(m, of, key);
		break;
	default:
		m->t.a.r.now = m->t.b.r.now = m->t.a.r.now + 300 * 1000;
		rig_tick(m->t.a.r.c, m->t.a.r.now);
	}
}

START_TEST(random_histories_of_two)
{
	static const struct shares rows[] = {
		{ { 4, 4 }, { 0, 0 } }, { { 1, 2 }, { 8, 3 } }, { { 0, 0 }, { 8, 8 } }, { { 0, 5 }, { 8, 0 } },
	};
	const struct shares *s = &rows[_i % 4];
	struct vram_rig_options o = plain;
	struct model *m = calloc(1, sizeof(*m));

	srand(7u + (unsigned)_i);
	o.host_slots = _i % 2 ? 512 : 72;
	vr_disks_make(&m->t.disks, 1, 256);
	o.disks = _i % 2 ? &m->t.disks : NULL;
	two_open(&m->t, s, &o);
	for (uint32_t i = 0; i < RIG_ROUNDS(STEPS); i++) {
		model_step(m);
		model_check(m, s);
	}
	model_release(m);
	ck_assert_uint_gt(m->checked, RIG_ROUNDS(STEPS) / 50);
	two_close(&m->t);
	if (o.disks) { /* a restart leaves every block with its tenant, and nothing on GPUs */
		two_open(&m->t, s, &o);
		rig_restored(&m->t.a.r);
		for (uint64_t key = 0; key < KEYS; key++)
			for (int of = 0; of < 2; of++)
				model_lease(m, of, key, s->own[of] || s->most[of] ? 0 : CACHE_HOST);
		model_release(m);
		two_close(&m->t);
	}
	rig_disks_remove(&m->t.disks);
	free(m);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { nothing_is_borrowed_unless_configured,
				       a_tenant_without_a_part_is_refused,
				       own_bytes_are_there_whatever_the_other_does,
				       leases_are_bounded_by_tenant,
				       what_is_borrowed_goes_to_the_tenant_that_lacks_it,
				       what_the_gpu_alone_has_goes_down_first,
				       what_an_engine_has_mapped_stays,
				       what_is_leased_stays,
				       a_lost_gpu_ends_it,
				       host_memory_goes_too,
				       nothing_of_the_other_is_lent_or_offered,
				       no_row_of_ones_own_tells_of_the_other,
				       a_gpu_too_small_for_them_is_not_used };
	Suite *suite = suite_create("cache_vram_tenants");
	TCase *tc = tcase_create("tenants");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 120);
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		tcase_add_test(tc, tests[i]);
	tcase_add_loop_test(tc, random_histories_of_two, 0, 8);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
