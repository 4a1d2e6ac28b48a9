/* Who makes place for whom on a GPU: as memory/evict.c does it for host memory, but that here a block has somewhere to go. A victim that is
 * elsewhere too just goes; one that is on this GPU alone goes down first, and who wanted its slot waits for that. What cannot go down, for
 * lack of a slot of host memory, is dropped. Where nothing may go, copies that are coming may, when they have come: who needs a slot waits for them.
 *
 * A few slots are free before anybody asks, for what just goes went for them when lists had ended: a lease begins its copies so much sooner.
 * So that there mostly is a victim that just goes, what is put on a GPU is copied down at once, or, of a session that does not want that,
 * when less than spill_share of the GPU's slots are free or clean. Until then, and while disks write, nothing goes for it in memory that is nowhere
 * else; and never what a GPU alone has beside.
 */
#include "daemon/vram/evict.h"

#include "daemon/block/block.h"
#include "daemon/block/counters.h"
#include "daemon/block/lock.h"
#include "daemon/block/observer.h"
#include "daemon/block/values.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/spill.h"
#include "daemon/memory/drain.h"
#include "daemon/memory/evict.h"
#include "daemon/vram/copy_queue.h"
#include "daemon/vram/fetch.h"
#include "daemon/vram/placement.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "daemon/vram/transfer.h"
#include "eviction/policy.h"
#include "store/host/host.h"
#include "store/status.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

enum {
	VICTIM_SCAN = 256,
	PICK_AHEAD = 16,
	VICTIM_ROUNDS = 64,
	WALK_MAX = 2048,               /* nodes looked at for so many victims */
	DOWNS_AT_ONCE = 64,            /* begun by one that needs a slot */
	KEPT_SHARE = 64,               /* of a layout's slots one in so many is kept free, */
	KEPT_MAX = 1024,               /* and no more; */
	KEPT_A_HOLD = 128,             /* of these so many are made at a time, */
	KEPT_HOLDS = KEPT_MAX / KEPT_A_HOLD, /* so often at a list's end: others may take them as fast */
	DOWNS_MAX = 512,               /* under way, a GPU: the pump begins no more */
	THROUGH_TRIES = 8,             /* that found no host memory, in one go */
	BALANCE_EVERY_US = 100 * 1000,
	COLDER_FACTOR = 4,
	COLDER_MIN_US = 10 * 1000 * 1000,
	SWEEP_SLOTS = 4096,
	DRAIN_STUCK_US = 5 * 1000 * 1000,
	WAIT_MS = 20,
};

static struct vram_slot *slot_of_node(const struct policy_node *n)
{
	return (struct vram_slot *)((char *)n - offsetof(struct vram_slot, node));
}

bool vram_clean(const struct vram_slot *s)
{
	const struct block *b = s->block;

	if (b->shelf || rack_serves(b))
		return true;
	for (const struct vram_slot *o = b->vram; o; o = o->next)
		if (o != s && o->state == VRAM_READY && !o->shelf->pool->gpu->lost)
			return true;
	return false;
}

/* What a search met and passed over: of the arrays, what the counts say. */
struct met {
	struct cache *cache;
	struct vram_slot *pinned[VICTIM_SCAN], *dirty[VICTIM_SCAN];
	uint32_t pinned_count, dirty_count;
};

static bool may_go(const struct policy_node *n, void *arg)
{
	struct vram_slot *s = slot_of_node(n);
	struct met *met = arg;

	if (vram_slot_pins(s) == 0 && vram_clean(s))
		return true;
	if (vram_slot_pins(s) == 0 && met->dirty_count < VICTIM_SCAN)
		met->dirty[met->dirty_count++] = s;
	else if (vram_slot_pins(s) && !vram_falling(met->cache, s->block) && met->pinned_count < VICTIM_SCAN)
		met->pinned[met->pinned_count++] = s;
	return false;
}

/* What is pinned for long drifts to the cold end: the policy is told that it is in use, and it is out of the way. */
static struct vram_slot *victim(struct cache *c, struct vram_pool *vp, struct met *met)
{
	for (uint32_t i = 0; i < VICTIM_ROUNDS && vp->evictable; i++) {
		struct policy_node *n;

		met->cache = c;
		met->pinned_count = met->dirty_count = 0;
		n = c->policy->victim(vp->policy, may_go, met, VICTIM_SCAN);
		if (n)
			return slot_of_node(n);
		if (!met->pinned_count)
			return NULL;
		while (met->pinned_count) {
			struct vram_slot *s = met->pinned[--met->pinned_count];
			const struct policy_event e = { .now_us = c->now_us, .id = s->node.id, .tokens = s->block->tokens };

			c->policy->use(vp->policy, &s->node, &e);
		}
	}
	return NULL;
}

static enum gone_reason gone_reason_of(enum counter why)
{
	return why == COUNTER_EVICTED_GPU_FULL	? GONE_FULL :
	       why == COUNTER_EVICTED_GPU_DRAIN ? GONE_DRAIN :
	       why == COUNTER_EVICTED_GPU_LOST	? GONE_LOST : GONE_SHED;
}

void vram_evict(struct cache *c, struct vram_slot *s, enum counter why)
{
	struct block *b = s->block;
	const bool clean = vram_clean(s);

	cache_count(c, why, clean || !s->shelf->pool->gpu->lost); /* else all that it has on lost ones are, as it is removed */
	observe_left(c, b->node.id, &s->node, GONE_GPU, gone_reason_of(why));
	if (clean) {
		vram_detach(s);
		observe_moved(c, b);
		return;
	}
	cache_count(c, COUNTER_DROPPED, 1);
	block_remove(c, b, CACHE_REASON_EVICTED);
}

/* ---- drains ---- */

static bool drain_in_progress(const struct cache *c, const struct gpu *g)
{
	for (uint32_t i = 0; i < g->drain_count; i++)
		if (c->now_us - g->drains[i].since_us < DRAIN_STUCK_US)
			return true;
	return g->drain_count == VRAM_DRAINS_MAX;
}

static void drain_begin(struct cache *c, struct gpu *g, struct vram_shelf *s)
{
	if (host_extent_drain(g->arena, s->extent))
		return;
	s->draining = true;
	s->pool->slots -= s->slots;
	s->pool->free_slots -= s->slots - s->taken;
	g->drains[g->drain_count++] = (struct drain){ .extent = s->extent, .since_us = c->now_us };
	cache_count(c, COUNTER_DRAINS, 1);
	vram_drain_step(c, g);
}

static bool any_unpinned(const struct policy_node *n, void *arg)
{
	(void)arg;
	return vram_slot_pins(slot_of_node(n)) == 0;
}

static const struct policy_node *coldest(const struct cache *c, const struct vram_pool *vp)
{
	return c->policy->victim(vp->policy, any_unpinned, NULL, VICTIM_SCAN);
}

static bool much_colder(const struct cache *c, const struct policy_node *other, const struct policy_node *own)
{
	uint64_t idle_other = c->now_us - other->last_use_us, idle_own = c->now_us - own->last_use_us;

	return idle_other > COLDER_FACTOR * idle_own && idle_other - idle_own > COLDER_MIN_US;
}

/* Of another layout: an empty one, else the one with the fewest slots that cannot be emptied, where what is coldest is much colder
 * than the own, if there is anything of that. */
static struct vram_shelf *shelf_to_drain(const struct cache *c, const struct vram_pool *vp)
{
	const struct policy_node *own = coldest(c, vp), *other;
	struct vram_shelf *best = NULL;

	for (uint32_t i = 0; i < c->pool_count; i++) {
		const struct vram_pool *o = vp->gpu->pools[i];

		if (!o || o == vp)
			continue;
		other = own ? coldest(c, o) : NULL;
		for (struct vram_shelf *s = o->shelves; s; s = s->next) {
			if (s->draining || (s->taken && (s->held == s->taken || (own && (!other || !much_colder(c, other, own))))))
				continue;
			if (!best || (s->taken == 0 && best->taken) || ((s->taken == 0) == (best->taken == 0) && s->held < best->held))
				best = s;
		}
	}
	return best;
}

static void balance(struct cache *c, struct vram_pool *vp)
{
	struct gpu *g = vp->gpu;
	struct vram_shelf *s;

	if (drain_in_progress(c, g) || (vp->balance_us && c->now_us - vp->balance_us < BALANCE_EVERY_US))
		return;
	vp->balance_us = c->now_us;
	s = shelf_to_drain(c, vp);
	if (s)
		drain_begin(c, g, s);
}

/* True: memory has no place now, for others no more than for it. */
static bool drain_slot(struct cache *c, const struct drain *d, struct vram_slot *s, bool full)
{
	const bool may_wait = c->now_us - d->since_us < DRAIN_STUCK_US;
	enum status down;

	if (s->state != VRAM_READY || vram_slot_pins(s) || (full && !vram_clean(s)))
		return full;
	down = vram_clean(s) ? STATUS_MISS : may_wait ? vram_down_soon(c, s->block, NULL) : vram_down(c, s->block, false, NULL);
	if (down && down != STATUS_BUSY)
		vram_evict(c, s, COUNTER_EVICTED_GPU_DRAIN);
	return full || down == STATUS_BUSY;
}

void vram_drain_step(struct cache *c, struct gpu *g)
{
	for (uint32_t i = 0; i < g->drain_count; i++) {
		struct drain *d = &g->drains[i];
		struct vram_shelf *s = vram_shelf_find(g, d->extent);
		bool full = false;

		for (uint32_t n = 0; s && s->taken && n < SWEEP_SLOTS && n < s->slots; n++, d->sweep++)
			full = drain_slot(c, d, &s->at[d->sweep % s->slots], full);
		d->sweep = s ? d->sweep % s->slots : 0;
		room_drain_tell(c, d);
	}
}

bool vram_drained(const struct gpu *g)
{
	for (uint32_t i = 0; i < g->drain_count; i++) {
		const struct vram_shelf *s = vram_shelf_find(g, g->drains[i].extent);

		if (!s || s->taken == 0)
			return true;
	}
	return false;
}

void vram_drain_reap(struct cache *c, struct gpu *g)
{
	for (uint32_t i = 0; i < g->drain_count;) {
		struct vram_shelf *s = vram_shelf_find(g, g->drains[i].extent);

		if (host_extent(g->arena, g->drains[i].extent)) {
			i++;
			continue;
		}
		if (s)
			vram_shelf_free(s);
		c->room_epoch++;
		g->drains[i] = g->drains[--g->drain_count];
	}
}

/* ---- slots ---- */

/* Begins to bring down what a search met: until memory has no place for one, as it then has none for the others. True: some of it is on its way. */
static bool send_down(struct cache *c, struct gpu *g, bool spare, const struct met *met)
{
	uint32_t begun = 0;

	while (begun < met->dirty_count && begun < DOWNS_AT_ONCE && vram_down(c, met->dirty[begun]->block, spare, NULL) == STATUS_OK)
		begun++;
	return begun || g->downs;
}

/* Whether the keeper need not be asked for an extent: it was refused one since room last came free, or the budget has plainly none. Of one
 * that it has been asked for and makes, the budget knows already. */
static bool cannot_grow(const struct cache *c, struct vram_pool *vp)
{
	const uint64_t grain = vp->gpu->info.granularity, least = (vp->stride + grain - 1) / grain * grain;
	struct host_usage u;

	if (vp->wanted)
		return false;
	if (vp->grow_refused == c->room_epoch)
		return true;
	host_usage(vp->gpu->arena, &u);
	if (u.budget_bytes - u.extent_bytes < least)
		vp->grow_refused = c->room_epoch;
	return vp->grow_refused == c->room_epoch;
}

/* A pool that is being filled gets its next extent before it has no slot left, as in host memory: neither the daemon nor an engine that maps it
 * ahead makes a lease wait for its driver then. But not the last of the budget, which two pools could take from one another for nothing. */
static void grow_ahead(struct cache *c, struct vram_pool *vp)
{
	const uint32_t slots = vp->shelves ? vp->shelves->slots : 0;
	struct host_usage u;

	if (vp->wanted || vp->free_slots > slots / 4 || slots < 4 || vp->gpu->drain_count || vp->grow_refused == c->room_epoch ||
	    vp->ahead_refused == c->room_epoch)
		return;
	host_usage(vp->gpu->arena, &u);
	if (u.budget_bytes - u.extent_bytes < 2 * slots * vp->stride) {
		vp->ahead_refused = c->room_epoch;
		return;
	}
	vp->wanted = slots / 4 + 1;
	vram_keeper_wake(vp->gpu);
}

enum status vram_room_take(struct cache *c, struct vram_pool *vp, enum vram_need need, struct host_slot *out)
{
	const bool spare = need == NEED_SPARE || need == NEED_SOON;
	struct gpu *g = vp->gpu;
	struct met met;
	struct vram_slot *s;

	met.dirty_count = 0;
	if (g->lost || c->vram->stopping)
		return STATUS_UNAVAILABLE;
	if (vp->free_slots > 0) {
		grow_ahead(c, vp);
		return host_slot_try(vp->arena, out) ? STATUS_EXHAUSTED : STATUS_OK;
	}
	if (!cannot_grow(c, vp)) {
		vp->wanted = vp->wanted ? vp->wanted : 1;
		vram_keeper_wake(g);
		return STATUS_BUSY;
	}
	balance(c, vp);
	/* The slot of a victim in a draining extent does not come back to the pool: take the next. */
	for (int tries = 0; tries < SWEEP_SLOTS && (s = victim(c, vp, &met)); tries++) {
		vram_evict(c, s, COUNTER_EVICTED_GPU_FULL);
		if (vp->free_slots > 0)
			return host_slot_try(vp->arena, out) ? STATUS_EXHAUSTED : STATUS_OK;
	}
	if (send_down(c, g, spare, &met))
		return STATUS_BUSY;
	if (spare && met.dirty_count && (vram_memory_comes_free(g) || spill_hurry(c, vp->pool)))
		return STATUS_BUSY;
	if (need == NEED_SPARE) /* what leases hold does not make room */
		return STATUS_EXHAUSTED;
	if (spare && send_down(c, g, false, &met))
		return STATUS_BUSY;
	for (uint32_t i = 0; i < met.dirty_count; i++) {
		vram_evict(c, met.dirty[i], COUNTER_EVICTED_GPU_SHED);
		if (vp->free_slots > 0)
			return host_slot_try(vp->arena, out) ? STATUS_EXHAUSTED : STATUS_OK;
	}
	return (need == NEED_NOW || need == NEED_SOON) && vp->coming ? STATUS_BUSY : STATUS_EXHAUSTED;
}

/* Slots that it keeps free. */
static int64_t kept(const struct vram_pool *vp)
{
	return (int64_t)(vp->slots / KEPT_SHARE < KEPT_MAX ? vp->slots / KEPT_SHARE : KEPT_MAX);
}

struct cold {
	const struct cache *cache;
	uint64_t idle_us;
};

static bool is_cold(const struct policy_node *n, void *arg)
{
	const struct cold *cold = arg;
	const struct vram_slot *s = slot_of_node(n);

	return vram_slot_pins(s) == 0 && !s->ahead && vram_clean(s) && cold->cache->now_us - n->last_use_us > cold->idle_us;
}

bool vram_room_spare(struct cache *c, struct vram_pool *vp, uint64_t idle_us)
{
	struct cold cold = { c, idle_us };
	struct policy_node *n;

	if (vp->free_slots > kept(vp))
		return true;
	if (!cannot_grow(c, vp)) {
		if (vp->free_slots > 0)
			return true;
		vp->wanted = vp->wanted ? vp->wanted : 1;
		vram_keeper_wake(vp->gpu);
		return false;
	}
	n = c->policy->victim(vp->policy, is_cold, &cold, VICTIM_SCAN);
	if (n)
		vram_evict(c, slot_of_node(n), COUNTER_EVICTED_GPU_FULL);
	return n && vp->free_slots > 0;
}

/* Victims, in their order. What is to be known of one is in its block, mostly no cache's: the last few that were met are on their way there. */
struct pick {
	struct vram_slot *slot[VICTIM_SCAN];
	uint64_t count, most;
	const struct cache *cache;
	struct vram_slot *met[PICK_AHEAD];
	uint64_t looked, walked;
};

static void pick_look(struct pick *p)
{
	struct vram_slot *s = p->met[p->looked++ % PICK_AHEAD];

	if (p->count == p->most || vram_slot_pins(s) || !vram_clean(s))
		return;
	observe_soon(p->cache, s->node.id, true);
	p->slot[p->count++] = s;
}

static bool pick_clean(const struct policy_node *n, void *arg)
{
	struct vram_slot *s = slot_of_node(n);
	struct pick *p = arg;

	block_fetch_ahead(s->block);
	if (p->walked - p->looked == PICK_AHEAD)
		pick_look(p);
	p->met[p->walked++ % PICK_AHEAD] = s;
	return p->count == p->most;
}

/* Evicts the next of them, as a policy that can tell its order gives them: how many. What is pinned is met once by it, not by each. */
static uint64_t evict_next(struct cache *c, struct vram_pool *vp, uint32_t slots)
{
	const uint64_t wanted = (uint64_t)((int64_t)slots - vp->free_slots);
	struct pick p;

	p.cache = c;
	p.count = p.looked = p.walked = 0;
	p.most = wanted < VICTIM_SCAN ? wanted : VICTIM_SCAN;
	if (!c->policy->walk || !c->policy->walk(vp->policy, pick_clean, &p, WALK_MAX))
		return 0;
	while (p.looked < p.walked)
		pick_look(&p);
	for (uint64_t i = 0; i < p.count; i++)
		vram_evict(c, p.slot[i], COUNTER_EVICTED_GPU_FULL);
	return p.count;
}

static void gpu_rooms_tell(struct cache *c, const struct gpu *g, uint64_t unused)
{
	for (uint32_t i = 0; i < c->pool_count; i++) {
		struct vram_pool *vp = g->pools[i];

		if (vp)
			room_tell(c->policy, vp->policy, vp->slots + unused / vp->stride, &vp->policy_room);
	}
}

void vram_rooms_tell(struct cache *c)
{
	for (uint32_t n = 0; n < c->vram->count; n++) {
		const struct gpu *g = c->vram->gpu[n];

		if (!g->lost) /* a GPU that could not be opened has no arena */
			gpu_rooms_tell(c, g, host_unused(g->arena));
	}
}

void vram_room_ahead(struct cache *c, struct vram_pool *vp, uint32_t slots)
{
	struct vram_slot *s;
	struct met met;
	uint64_t tries = 0, evicted;

	if (vp->gpu->lost || c->vram->stopping || vp->free_slots >= (int64_t)slots || !cannot_grow(c, vp))
		return;
	balance(c, vp);
	while (vp->free_slots < (int64_t)slots && tries < slots && (evicted = evict_next(c, vp, slots)))
		tries += evicted;
	for (; vp->free_slots < (int64_t)slots && tries < slots && (s = victim(c, vp, &met)); tries++)
		vram_evict(c, s, COUNTER_EVICTED_GPU_FULL);
}

/* Some of what is missing. True: more is. What has nowhere else to go, or is held, is not looked through for it at each list's end. */
static bool keep_some(struct cache *c, struct vram_pool *vp)
{
	const int64_t slots = kept(vp), before = vp->free_slots;

	if (before >= slots || (int64_t)vp->evictable - (int64_t)vp->dirty < slots - before)
		return false;
	vram_room_ahead(c, vp, (uint32_t)(slots - before < KEPT_A_HOLD ? slots : before + KEPT_A_HOLD));
	return vp->free_slots > before && vp->free_slots < slots;
}

void vram_room_keep(struct cache *c, struct gpu *g)
{
	for (uint32_t i = 0; i < c->pool_count; i++)
		for (uint32_t holds = 1; g->pools[i] && keep_some(c, g->pools[i]) && holds < KEPT_HOLDS; holds++) {
			cache_unlock(c);
			cache_lock(c);
		}
}

void vram_room_grow(struct cache *c, struct vram_pool *vp)
{
	uint32_t extent, slots;
	enum status s;

	cache_lock(c);
	slots = vp->wanted;
	cache_unlock(c);
	s = host_pool_prepare(vp->arena, slots, &extent);
	cache_lock(c);
	if (s || !vram_shelf_get(vp, extent))
		vp->grow_refused = c->room_epoch;
	vp->wanted = 0;
	pthread_cond_broadcast(&c->vram->room);
	cache_unlock(c);
}

void vram_room_wait(struct cache *c)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += WAIT_MS * 1000000l;
	until.tv_sec += until.tv_nsec / 1000000000l;
	until.tv_nsec %= 1000000000l;
	cache_lock(c);
	while (pthread_cond_timedwait(&c->vram->room, &c->lock, &until) == EINTR)
		continue;
	cache_unlock(c);
}

/* ---- what goes down before it must ---- */

static bool pick_dirty(const struct policy_node *n, void *arg)
{
	struct vram_slot *s = slot_of_node(n);
	struct pick *p = arg;

	if (s->dirty && !s->through && p->count < p->most)
		p->slot[p->count++] = s;
	return false;
}

/* The coldest of what was written back and is too much. */
static void pick_through(struct cache *c, struct vram_pool *vp, const struct host_usage *u)
{
	const uint64_t total = vp->slots + (u->budget_bytes > u->extent_bytes ? (u->budget_bytes - u->extent_bytes) / vp->stride : 0);
	struct pick p = { .count = 0 };
	const uint64_t wanted = total * c->options.spill_share_milli / 1000, ready = total > vp->dirty ? total - vp->dirty : 0;

	vp->pressed = wanted > ready;
	p.most = wanted > ready + vp->through ? wanted - ready - vp->through : 0;
	if (p.most > VICTIM_SCAN)
		p.most = VICTIM_SCAN;
	if (p.most)
		policy_look(c->policy, vp->policy, pick_dirty, &p, 4 * VICTIM_SCAN);
	for (uint64_t i = 0; i < p.count; i++)
		vram_queue_through(p.slot[i]);
}

/* What memory has and no disk yet does not go for it while disks write. */
static enum status through(struct cache *c, const struct vram_slot *s)
{
	const struct vram_pool *vp = s->shelf->pool;
	const enum status down = vram_through(c, s->block, c->tier, NULL);

	return down == STATUS_BUSY && c->tier && vp->pressed && !spill_hurry(c, vp->pool) ? vram_through(c, s->block, false, NULL) : down;
}

static void pump(struct cache *c, struct gpu *g)
{
	const struct vram_pool *full = NULL;
	struct host_usage u;

	host_usage(g->arena, &u);
	for (uint32_t i = 0; i < c->pool_count; i++)
		if (g->pools[i] && g->pools[i]->dirty)
			pick_through(c, g->pools[i], &u);
	if (g->through && vram_clock_us() < g->through_us)
		return;
	for (uint32_t tries = 0; g->through && g->downs < DOWNS_MAX && tries < THROUGH_TRIES;) {
		struct vram_slot *s = g->through;
		const struct vram_pool *vp = s->shelf->pool;
		const enum status down = vp == full ? STATUS_BUSY : through(c, s);

		if (!down && !s->through)
			continue;
		full = down == STATUS_BUSY ? vp : full;
		/* Behind the others, whose layout may have room. */
		vram_unqueue_through(s);
		vram_queue_through(s);
		tries++;
	}
}

void vram_pump(struct cache *c)
{
	for (uint32_t i = 0; c->vram && !c->vram->stopping && i < c->vram->count; i++)
		if (!c->vram->gpu[i]->lost)
			pump(c, c->vram->gpu[i]);
}
