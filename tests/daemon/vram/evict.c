/* Who makes place on a GPU, and when: memory that goes from one layout to another for what is leased there, and slots that are free before
 * anybody asks. */
#include "daemon/block/block.h"
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/session/open.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/transfer_table.h"
#include "daemon/vram/state.h"
#include "daemon/vram/transfer.h"
#include "eviction/policy.h"
#include "tests/daemon/vram/rig.h"

static double trades(struct vram_rig *v)
{
	return rig_stat(&v->r, "terrace_span_trades_total", "tier=gpu");
}

/* Leases eight of each in turn, a second apart, until so much memory has changed hands; false: it never did. */
static bool lease_until_traded(struct vram_rig *w, uint32_t sets, double times)
{
	struct cache_place p[8];
	struct cache_leased l;

	for (uint32_t i = 0; i < 200 && trades(w) < times; i++) {
		w->r.now += 1100000;
		rig_tick(w->r.c, w->r.now);
		if (vr_lease(w, 0, 8ull * (i % sets), 8, true, false, p, &l) == STATUS_OK)
			vr_release(w, &l);
		rig_quiet(&w->r);
	}
	return trades(w) >= times;
}

/* Nothing is ever put there: what makes place for a whole lease asks for others' memory as who makes place for one block does. alone: but
 * for one block, which the GPU alone has. It is the coldest, and stays as long as others can go. */
static void leases_get_memory(bool alone)
{
	struct vram_rig v, w;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 32, .host_slots = 128 });
	vr_join(&w, &v, VR_SMALL, "other");
	if (alone) {
		ck_assert_int_eq(cache_session_write_back(w.r.c, w.r.s.id), STATUS_OK);
		ck_assert_uint_eq(vr_put(&w, 0, 1000, 1), 1);
		ck_assert_str_eq(vr_tier(&w, 1000), "gpu");
	}
	w.r.now = v.r.now += 1100000;
	ck_assert_uint_eq(vr_put(&v, 0, 0, 32), 32);
	rig_quiet(&v.r);
	ck_assert_uint_eq(vr_put(&w, CACHE_HOST, 0, 64), 64);
	ck_assert(lease_until_traded(&w, 8, 3));
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 32), 32);
	rig_check_accounting(v.r.c);
	v.r.now = w.r.now;
	vr_close(&v);
}

START_TEST(leases_get_memory_of_a_colder_layout)
{
	leases_get_memory(false);
}
END_TEST

START_TEST(a_cold_block_that_stays_keeps_no_memory_away)
{
	leases_get_memory(true);
}
END_TEST

/* Layouts that are leased in turns keep what they have: none is colder than another by a quarter, and nothing is traded to and fro. */
START_TEST(what_is_used_alike_is_not_traded)
{
	struct cache_place p[16];
	struct cache_leased l;
	struct vram_rig v, w;
	double before;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 64, .host_slots = 256 });
	vr_join(&w, &v, VR_SMALL, "other");
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 48), 48);
	ck_assert_uint_eq(vr_put(&w, CACHE_HOST, 0, 96), 96);
	before = 0;
	for (uint32_t i = 0; i < 120; i++) {
		struct vram_rig *to = i % 2 ? &w : &v;
		const uint32_t each = i % 2 ? 16 : 8;

		v.r.now = w.r.now += 1100000;
		rig_tick(v.r.c, v.r.now);
		if (vr_lease(to, 0, (uint64_t)(i / 2 % 6) * each, each, true, false, p, &l) == STATUS_OK)
			vr_release(to, &l);
		rig_quiet(&v.r);
		if (i == 60)
			before = trades(&v);
	}
	ck_assert_double_le(trades(&v), before + 2);
	rig_check_accounting(v.r.c);
	vr_close(&v);
}
END_TEST

/* A GPU's layouts share it, too: each policy hears what the others leave. */
START_TEST(policies_are_told_what_others_leave)
{
	struct vram_rig v, w;
	uint64_t room[2];

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 64, .host_slots = 96, .policy = "graph" });
	ck_assert_uint_eq(vr_put(&v, 0, 0, 16), 16);
	rig_quiet(&v.r);
	vr_join(&w, &v, VR_SMALL, "other");
	vr_put(&w, 0, 0, 6 * VR_SMALL_SLOTS);
	rig_quiet(&w.r);
	rig_tick(w.r.c, w.r.now += 2000 * 1000);
	cache_lock(w.r.c);
	for (uint32_t i = 0; i < 2; i++)
		room[i] = w.r.c->vram->gpu[0]->pools[i]->class->policy_room;
	cache_unlock(w.r.c);
	ck_assert_uint_ge(room[0], 16);
	ck_assert_uint_le(room[0], 24);
	ck_assert_uint_ge(room[1], 5 * VR_SMALL_SLOTS);
	ck_assert_uint_le(room[1], 6 * VR_SMALL_SLOTS);
	v.r.now = w.r.now;
	vr_close(&v);
}
END_TEST

static int64_t free_slots(struct vram_rig *v)
{
	int64_t n;

	cache_lock(v->r.c);
	n = (int64_t)vram_room_free(v->r.c->vram->gpu[0]->classes);
	cache_unlock(v->r.c);
	return n;
}

static double evicted(struct vram_rig *v)
{
	return rig_stat(&v->r, "terrace_evictions_total", "tier=gpu,reason=full");
}

/* Of 192 slots three are free when nothing is on its way, on a GPU that is full: a lease finds them, and no block goes for it before its copies
 * have come. */
START_TEST(slots_are_free_before_a_lease)
{
	struct cache_place p[3];
	struct cache_leased l;
	struct vram_rig v;
	double before;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 192, .host_slots = 256 });
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 1000, 8), 8);
	for (uint64_t n = 0; n < 192; n += 32, rig_quiet(&v.r))
		ck_assert_uint_eq(vr_put(&v, 0, n, 32), 32);
	ck_assert_int_eq(free_slots(&v), 3);
	before = evicted(&v);
	ck_assert_double_eq(before, 3);
	vr_hold(&v, 0, 0);
	ck_assert_int_eq(vr_lease(&v, 0, 1000, 3, true, false, p, &l), STATUS_OK);
	ck_assert_int_eq(free_slots(&v), 0);
	ck_assert_double_eq(evicted(&v), before);
	vr_go(&v, 0);
	rig_quiet(&v.r);
	ck_assert_int_eq(free_slots(&v), 3);
	ck_assert_double_eq(evicted(&v), before + 3);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_dropped_blocks_total", ""), 0);
	vr_release(&v, &l);
	vr_close(&v);
}
END_TEST

/* Nothing goes down, or is dropped, for slots that nobody has asked for. */
START_TEST(none_are_where_all_is_dirty)
{
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 128, .host_slots = 64, .write_back = true, .spill_milli = 1 });
	for (uint64_t n = 0; n < 128; n += 32, rig_quiet(&v.r))
		ck_assert_uint_eq(vr_put(&v, 0, n, 32), 32);
	ck_assert_int_eq(free_slots(&v), 0);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_dropped_blocks_total", ""), 0);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 128), 128);
	vr_close(&v);
}
END_TEST

static const struct policy_ops *policy;
static uint32_t walks;

/* One at a time is found, and every other time none. */
static bool find_one(struct policy *p, bool (*visit)(const struct policy_node *, void *), void *arg, uint32_t max)
{
	(void)max;
	return walks++ % 2 == 0 && policy->walk(p, visit, arg, 1);
}

static struct policy_node *find_none(struct policy *p, bool (*may)(const struct policy_node *, void *), void *arg, uint32_t max)
{
	(void)p;
	(void)may;
	(void)arg;
	(void)max;
	return NULL;
}

/* Eight holds of the lock make all that may be kept, and where it goes as fast as it is made the next list's end goes on. */
START_TEST(a_lists_end_keeps_free_for_a_while)
{
	enum { HOLDS = 8, WANTED = 20 };
	struct policy_ops slow;
	struct vram_class *k;
	struct vram_rig v;
	uint64_t slots;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 64, .host_slots = 96 });
	for (uint64_t n = 0; n < 64; n += 32, rig_quiet(&v.r))
		ck_assert_uint_eq(vr_put(&v, 0, n, 32), 32);
	cache_lock(v.r.c);
	k = v.r.c->vram->gpu[0]->classes;
	ck_assert_uint_eq(vram_room_free(k), 1);
	policy = v.r.c->policy;
	slow = *policy;
	slow.walk = find_one;
	slow.victim = find_none;
	slots = k->slots;
	v.r.c->policy = &slow;
	k->slots += (WANTED - 1) * slots;
	vram_room_keep(v.r.c, k->gpu);
	ck_assert_uint_eq(vram_room_free(k), 1 + HOLDS);
	vram_room_keep(v.r.c, k->gpu);
	ck_assert_uint_eq(vram_room_free(k), 1 + 2 * HOLDS);
	vram_room_keep(v.r.c, k->gpu);
	ck_assert_uint_ge(vram_room_free(k), WANTED - 1); /* of the slots of spans, of which there are less now */
	ck_assert_uint_le(vram_room_free(k), WANTED);
	v.r.c->policy = policy;
	k->slots -= (WANTED - 1) * slots;
	cache_unlock(v.r.c);
	vr_close(&v);
}
END_TEST

static struct policy_node *find_counted(struct policy *p, bool (*may)(const struct policy_node *, void *), void *arg, uint32_t max)
{
	walks++;
	return policy->victim(p, may, arg, max);
}

/* True: the lock is the caller's. */
static bool lock_with_downs(struct vram_rig *v, uint32_t downs)
{
	rig_tick(v->r.c, v->r.now += 50000);
	cache_lock(v->r.c);
	if (v->r.c->vram->gpu[0]->downs == downs)
		return true;
	cache_unlock(v->r.c);
	return false;
}

/* Moves of two layouts in turn, for a GPU that is full of what it alone has, while memory takes some of it and then no more: what has no place for one
 * of a layout has none for those behind it, whoever stands between them. */
START_TEST(what_is_full_is_asked_once)
{
	enum { WAITING = 16, MEMORY_MORE = 8, GPU_EACH = 40 };
	struct policy_ops counted;
	struct vram_rig v, w;
	struct gpu *g;
	struct cache_place p[WAITING];
	struct cache_leased l, k;
	uint32_t waiting = 0;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 2 * GPU_EACH, .host_slots = 2 * WAITING + MEMORY_MORE, .write_back = true, .spill_milli = 1 });
	vr_join(&w, &v, 7, "other");
	ck_assert_int_eq(cache_session_write_back(v.r.c, w.r.s.id), STATUS_OK);
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 1000, WAITING), WAITING);
	ck_assert_uint_eq(vr_put(&w, CACHE_HOST, 1000, WAITING), WAITING);
	for (uint64_t n = 0; n < GPU_EACH; n += 8, rig_quiet(&v.r)) {
		ck_assert_uint_eq(vr_put(&v, 0, n, 8), 8);
		ck_assert_uint_eq(vr_put(&w, 0, n, 8), 8);
	}
	ck_assert_int_eq(vr_lease(&v, CACHE_HOST, 1000, WAITING, true, false, p, &l), STATUS_OK);
	ck_assert_int_eq(vr_lease(&w, CACHE_HOST, 1000, WAITING, true, false, p, &k), STATUS_OK);
	vr_hold(&v, 0, 0);
	for (uint64_t n = 1000; n < 1000 + WAITING; n++) {
		vr_warm_begin(&v, 0, n, 1);
		vr_warm_begin(&w, 0, n, 1);
	}
	g = v.r.c->vram->gpu[0];
	RIG_AWAIT(lock_with_downs(&v, MEMORY_MORE)); /* the others have found no memory */
	for (const struct vram_transfer *m = g->waiting; m; m = m->next)
		ck_assert_uint_eq(m->block->pool->number, waiting++ % 2);
	ck_assert_uint_eq(waiting, 2 * WAITING);
	ck_assert(g->classes->evictable);
	policy = v.r.c->policy;
	counted = *policy;
	counted.victim = find_counted;
	v.r.c->policy = &counted;
	walks = 0;
	vram_feed(v.r.c, g);
	v.r.c->policy = policy;
	ck_assert_uint_gt(walks, 0);
	ck_assert_uint_lt(walks, WAITING); /* some looks of one of each layout */
	cache_unlock(v.r.c);
	vr_go(&v, 0);
	rig_quiet(&v.r);
	vr_release(&v, &l);
	vr_release(&w, &k);
	vr_close(&v);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { leases_get_memory_of_a_colder_layout, a_cold_block_that_stays_keeps_no_memory_away, what_is_used_alike_is_not_traded, policies_are_told_what_others_leave, slots_are_free_before_a_lease,
				       none_are_where_all_is_dirty, a_lists_end_keeps_free_for_a_while, what_is_full_is_asked_once };

	return rig_main("cache_vram_room", tests, sizeof(tests) / sizeof(tests[0]));
}
