/* Who makes place on a GPU, and when: memory that goes from one layout to another for what is leased there, and slots that are free before
 * anybody asks. */
#include "daemon/block/block.h"
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/session/session.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/move_table.h"
#include "daemon/vram/state.h"
#include "daemon/vram/transfer.h"
#include "eviction/policy.h"
#include "tests/daemon/vram/rig.h"

/* Leases eight of each in turn, a second apart, until the GPU has drained so many extents; false: it never did. */
static bool lease_until_drained(struct vram_rig *w, uint32_t sets, double drains)
{
	struct cache_place p[8];
	struct cache_leased l;

	for (uint32_t i = 0; i < 200 && rig_stat(&w->r, "terrace_extent_drains_total", "") < drains; i++) {
		w->r.now += 1100000;
		rig_tick(w->r.c, w->r.now);
		if (vr_lease(w, 0, 8ull * (i % sets), 8, true, false, p, &l) == STATUS_OK)
			vr_release(w, &l);
		rig_quiet(&w->r);
	}
	return rig_stat(&w->r, "terrace_extent_drains_total", "") >= drains;
}

/* Nothing is ever put there: what makes place for a whole lease asks for others' memory as who makes place for one block does. */
START_TEST(leases_get_memory_of_a_colder_layout)
{
	struct vram_rig v, w;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 32, .host_slots = 96 });
	ck_assert_uint_eq(vr_put(&v, 0, 0, 32), 32);
	rig_quiet(&v.r);
	vr_join(&w, &v, 7, "other");
	ck_assert_uint_eq(vr_put(&w, CACHE_HOST, 0, 24), 24);
	ck_assert(lease_until_drained(&w, 3, 3));
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 32), 32);
	v.r.now = w.r.now;
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
	vr_join(&w, &v, 7, "other");
	vr_put(&w, 0, 0, 48);
	rig_quiet(&w.r);
	rig_tick(w.r.c, w.r.now += 2000 * 1000);
	cache_lock(w.r.c);
	for (uint32_t i = 0; i < 2; i++)
		room[i] = w.r.c->vram->gpu[0]->pools[i]->policy_room;
	cache_unlock(w.r.c);
	ck_assert_uint_ge(room[0], 16);
	ck_assert_uint_le(room[0], 24);
	ck_assert_uint_ge(room[1], 40);
	ck_assert_uint_le(room[1], 48);
	v.r.now = w.r.now;
	vr_close(&v);
}
END_TEST

static int64_t free_slots(struct vram_rig *v)
{
	int64_t n;

	cache_lock(v->r.c);
	n = v->r.c->vram->gpu[0]->pools[0]->free_slots;
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
	struct vram_pool *vp;
	struct vram_rig v;
	uint64_t slots;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 64, .host_slots = 96 });
	for (uint64_t n = 0; n < 64; n += 32, rig_quiet(&v.r))
		ck_assert_uint_eq(vr_put(&v, 0, n, 32), 32);
	cache_lock(v.r.c);
	vp = v.r.c->vram->gpu[0]->pools[0];
	ck_assert_int_eq(vp->free_slots, 1);
	policy = v.r.c->policy;
	slow = *policy;
	slow.walk = find_one;
	slow.victim = find_none;
	slots = vp->slots;
	v.r.c->policy = &slow;
	vp->slots = WANTED * slots;
	vram_room_keep(v.r.c, vp->gpu);
	ck_assert_int_eq(vp->free_slots, 1 + HOLDS);
	vram_room_keep(v.r.c, vp->gpu);
	ck_assert_int_eq(vp->free_slots, 1 + 2 * HOLDS);
	vram_room_keep(v.r.c, vp->gpu);
	ck_assert_int_eq(vp->free_slots, WANTED);
	v.r.c->policy = policy;
	vp->slots = slots;
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
	for (const struct vram_move *m = g->waiting; m; m = m->next)
		ck_assert_uint_eq(m->block->pool->number, waiting++ % 2);
	ck_assert_uint_eq(waiting, 2 * WAITING);
	ck_assert(g->pools[0]->evictable && g->pools[1]->evictable);
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
	const TTest *const tests[] = { leases_get_memory_of_a_colder_layout, policies_are_told_what_others_leave, slots_are_free_before_a_lease,
				       none_are_where_all_is_dirty, a_lists_end_keeps_free_for_a_while, what_is_full_is_asked_once };

	return rig_main("cache_vram_room", tests, sizeof(tests) / sizeof(tests[0]));
}
