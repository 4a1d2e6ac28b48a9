/* Which copy is evicted for another on a GPU. It works as memory/evict.c does for host memory, but a victim can be
 * downloaded. A victim that has another copy is evicted at once. A victim that is on this GPU alone is downloaded
 * first, and the transfer that wants its slot waits. If there is no slot of host memory for it, it is dropped. If
 * nothing can be evicted, transfers wait for uploads under way, which can be evicted when they have come.
 *
 * Classes of slots share a GPU's memory by spans: daemon/vram/trade.c.
 *
 * A few slots are kept free, by evicting clean copies when batches end, so that a lease can begin its copies sooner. To
 * have clean victims, a block put on a GPU is downloaded at once; in a session that does not want that, when less than
 * spill_share of the GPU's slots are free or clean. Until then, and while disks write, such a download evicts no block
 * in memory without another copy, and never one whose only other copy is on a GPU.
 */
#include "daemon/vram/evict.h"

#include "daemon/block/block.h"
#include "daemon/block/counters.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/observer.h"
#include "daemon/block/policy_room.h"
#include "daemon/block/tier.h"
#include "daemon/block/unwritten.h"
#include "daemon/block/values.h"
#include "daemon/block/wait.h"
#include "daemon/threads/await.h"
#include "daemon/vram/copy_queue.h"
#include "daemon/vram/fetch.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "daemon/vram/trade.h"
#include "eviction/policy.h"
#include "store/arena/arena.h"
#include "store/status.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

enum {
	VICTIM_SCAN = 256,
	PICK_HINT_DISTANCE = 16,
	VICTIM_ROUNDS = 64,
	WALK_MAX = 2048,               /* nodes looked at for so many victims */
	DOWNS_AT_ONCE = 64,            /* begun by one that needs a slot */
	KEPT_SHARE = 64,               /* of a class's slots one in so many is kept free, */
	KEPT_MAX = 1024,               /* and no more; */
	KEPT_A_HOLD = 128,             /* of these so many are made at a time, */
	KEPT_HOLDS = KEPT_MAX / KEPT_A_HOLD, /* so often at a list's end: others may take them as fast */
	DOWNS_MAX = 512,               /* under way, a GPU: the pump begins no more */
	WRITE_THROUGH_TRIES = 8,       /* that found no host memory, in one go */
	EVICTIONS_MAX = 4096,          /* for one slot */
	WINDOWS_MAX = 4,               /* that are tried for one slot */
	WAIT_MS = 20,
	SETTLE_BLOCKS = 4096,          /* looked at in one hold of the lock */
	BRING_US_MAX = 10 * 1000 * 1000,
	BRING_SPARE_US = 100 * 1000,
	BRING_PAUSE_NS = 2 * 1000 * 1000,
};

static struct vram_slot *slot_of_node(const struct policy_node *n)
{
	return (struct vram_slot *)((char *)n - offsetof(struct vram_slot, node));
}

bool vram_clean(const struct vram_slot *s)
{
	const struct block *b = s->block;

	if (b->span || slab_map_serves(b))
		return true;
	for (const struct vram_slot *o = b->vram; o; o = o->next)
		if (o != s && o->state == VRAM_READY && !o->pool->gpu->lost)
			return true;
	return false;
}

/* What a search for a victim met and passed over. The counts say how much of the arrays is filled. */
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
	else if (vram_slot_pins(s) && !s->sum_due && !vram_downloading(met->cache, s->block) &&
		 met->pinned_count < VICTIM_SCAN)
		met->pinned[met->pinned_count++] = s;
	return false;
}

/* The copy to evict that costs least; NULL: there is none. Copies that are pinned for long drift to the cold end. The
 * policy is told that they are in use, so that they are out of the way. */
static struct vram_slot *victim(struct cache *c, struct vram_class *k, struct met *met)
{
	met->pinned_count = met->dirty_count = 0;
	for (uint32_t i = 0; i < VICTIM_ROUNDS && k->evictable; i++) {
		struct policy_node *n;

		met->cache = c;
		met->pinned_count = met->dirty_count = 0;
		n = c->policy->victim(k->policy, may_go, met, VICTIM_SCAN);
		if (n)
			return slot_of_node(n);
		if (!met->pinned_count)
			return NULL;
		while (met->pinned_count) {
			struct vram_slot *s = met->pinned[--met->pinned_count];
			const struct policy_event e = { .now_us = c->now_us, .id = s->node.id, .tokens = s->block->tokens };

			c->policy->use(k->policy, &s->node, &e);
		}
	}
	return NULL;
}

static enum eviction_reason eviction_reason_of(enum counter why)
{
	return why == COUNTER_EVICTED_GPU_FULL || why == COUNTER_EVICTED_GPU_TENANT ? EVICTION_FULL :
	       why == COUNTER_EVICTED_GPU_TRADE ? EVICTION_TRADE :
	       why == COUNTER_EVICTED_GPU_LOST	? EVICTION_LOST : EVICTION_SHED;
}

void vram_evict(struct cache *c, struct vram_slot *s, enum counter why)
{
	struct block *b = s->block;
	const bool clean = vram_clean(s);

	s->span->class->evicted++;
	cache_count(c, why, clean || !s->pool->gpu->lost); /* else all that it has on lost ones are, as it is removed */
	observe_left(c, b->node.id, &s->node, EVICTION_GPU, eviction_reason_of(why));
	if (clean) {
		vram_detach(s);
		observe_moved(c, b);
		return;
	}
	cache_count(c, COUNTER_DROPPED, 1);
	block_remove(c, b, CACHE_REASON_EVICTED);
}

/* ---- what begins to go down ---- */

static enum status go_down(struct cache *c, struct block *b, enum take_effort effort, struct cache_wait *w)
{
	return c->tiers[TIER_GPU]->fetch(c, b, &(struct fetch_how){ .effort = effort }, w);
}

enum status vram_down(struct cache *c, struct block *b, bool spare, struct cache_wait *w)
{
	return go_down(c, b, spare ? TAKE_SPARE : TAKE_ANY, w);
}

enum status vram_write_through(struct cache *c, struct block *b, bool spare, struct cache_wait *w)
{
	return go_down(c, b, spare ? TAKE_BELOW_SPARE : TAKE_BELOW, w);
}

/* ---- slots ---- */

/* Begins to download the dirty blocks that a search met, until memory has no place for one, as it then has none for the
 * others. True: some of the tenant's are on their way. */
static bool send_down(struct cache *c, const struct gpu_accounting *of, bool spare, const struct met *met)
{
	uint32_t begun = 0;

	while (begun < met->dirty_count && begun < DOWNS_AT_ONCE && vram_down(c, met->dirty[begun]->block, spare, NULL) == STATUS_OK)
		begun++;
	return begun || of->downs;
}

static void growth_refused(struct cache *c, struct vram_class *k)
{
	k->grow_refused = c->room_epoch;
	memory_lack_note(c, &k->gpu->lacks, k->arena);
}

/* Whether the completion thread need not be asked for an extent: it was refused one since room last came free, or the
 * budget has plainly none for the tenant. Of one that it has been asked for and makes, the budget knows already. */
static bool cannot_grow(struct cache *c, struct vram_class *k)
{
	if (k->wanted || k->gpu->making)
		return false;
	if (k->grow_refused != c->room_epoch && arena_class_unused(k->arena) < arena_granule_bytes(k->gpu->arena))
		growth_refused(c, k);
	return k->grow_refused == c->room_epoch;
}

static void want_growth(struct vram_class *k)
{
	k->wanted = true;
	vram_completion_wake(k->gpu);
}

/* Takes a free slot, or one of a new span. After a new span, has the completion thread preallocate, so that no caller
 * need wait for the next span either. */
static bool take_free(struct cache *c, struct vram_class *k, bool reserve, struct arena_slot *out)
{
	bool cut;

	if (arena_take(k->arena, reserve, out, &cut))
		return false;
	if (cut && !k->gpu->preallocate && k->gpu->preallocate_refused != c->room_epoch) {
		k->gpu->preallocate = true;
		vram_completion_wake(k->gpu);
	}
	return true;
}

/* Takes a slot by evicting clean copies of the class. Not each eviction makes room: one from a span that is being
 * emptied makes none. */
static bool take_evicting(struct cache *c, struct vram_class *k, struct met *met, struct arena_slot *out)
{
	struct vram_slot *s;

	for (int tries = 0; tries < EVICTIONS_MAX && (s = victim(c, k, met)); tries++) {
		vram_evict(c, s, COUNTER_EVICTED_GPU_FULL);
		if (take_free(c, k, false, out))
			return true;
	}
	return false;
}

/* Takes a slot by dropping the dirty copies that a search met. No other tier has their blocks. */
static bool take_shedding(struct cache *c, struct vram_class *k, const struct met *met, struct arena_slot *out)
{
	for (uint32_t i = 0; i < met->dirty_count; i++) {
		vram_evict(c, met->dirty[i], COUNTER_EVICTED_GPU_SHED);
		if (take_free(c, k, false, out))
			return true;
	}
	return false;
}

/* Downloads the dirty blocks of the class that were met. A block that cannot be downloaded is dropped for a caller that
 * needs the slot. */
static enum status take_dirty(struct cache *c, struct vram_pool *vp, enum vram_need need, const struct met *met,
			      struct arena_slot *out)
{
	const bool spare = need == NEED_SPARE || need == NEED_SOON;
	struct vram_class *k = vp->class;
	struct gpu *g = k->gpu;

	if (send_down(c, k->accounting, spare, met))
		return STATUS_BUSY;
	if (spare && met->dirty_count && (vram_memory_comes_free(g) || tiers_hurry(c, vp->pool)))
		return STATUS_BUSY;
	if (need == NEED_SPARE) /* what leases hold does not make room */
		return STATUS_EXHAUSTED;
	if (spare && send_down(c, k->accounting, false, met))
		return STATUS_BUSY;
	if (take_shedding(c, k, met, out))
		return STATUS_OK;
	return (need == NEED_NOW || need == NEED_SOON) && k->coming ? STATUS_BUSY : STATUS_EXHAUSTED;
}

/* Takes a slot for a class that has nothing to evict: another class's memory becomes its own. */
static bool take_over(struct cache *c, struct vram_class *k, enum vram_need need, struct arena_slot *out)
{
	for (int tries = 0; tries < WINDOWS_MAX && vram_trade_force(c, k, need == NEED_NOW); tries++) {
		if (take_free(c, k, false, out))
			return true;
		if (vram_trading(k))
			break; /* else that one cannot be emptied */
	}
	return false;
}

static enum status room_take(struct cache *c, struct vram_pool *vp, enum vram_need need, struct arena_slot *out)
{
	struct vram_class *k = vp->class;
	struct met met;

	if (k->gpu->lost || c->vram->stopping)
		return STATUS_UNAVAILABLE;
	if (take_free(c, k, false, out))
		return STATUS_OK;
	if (!cannot_grow(c, k)) {
		want_growth(k);
		return STATUS_BUSY;
	}
	if (!k->spans && take_free(c, k, true, out)) /* the reserve is for it */
		return STATUS_OK;
	vram_trade(c, k);
	if (take_free(c, k, false, out))
		return STATUS_OK;
	met.dirty_count = 0;
	if (take_evicting(c, k, &met, out))
		return STATUS_OK;
	if (!met.dirty_count && k->sums_due) /* what they pin may go in a moment */
		return STATUS_BUSY;
	if (!met.dirty_count && !k->accounting->downs && take_over(c, k, need, out))
		return STATUS_OK;
	if (vram_trading(k))
		return STATUS_BUSY;
	return take_dirty(c, vp, need, &met, out);
}

enum status vram_slot_take(struct cache *c, struct vram_pool *vp, const struct vram_slot_want *w,
			   struct vram_slot **out)
{
	struct arena_slot slot;
	const enum status s = room_take(c, vp, w->need, &slot);

	if (s)
		return s;
	*out = vram_attach(w->block, vp, &slot, w->reserved ? VRAM_RESERVED : VRAM_COMING);
	if (*out)
		return STATUS_OK;
	arena_give(&slot, NULL);
	return STATUS_EXHAUSTED;
}

/* How many slots of the class are kept free. */
static uint64_t kept(const struct vram_class *k)
{
	return k->slots / KEPT_SHARE < KEPT_MAX ? k->slots / KEPT_SHARE : KEPT_MAX;
}

struct cold {
	const struct cache *cache;
	uint64_t idle_us;
};

static bool is_cold(const struct policy_node *n, void *arg)
{
	const struct cold *cold = arg;
	const struct vram_slot *s = slot_of_node(n);

	return vram_slot_pins(s) == 0 && !s->prefetched && vram_clean(s) &&
	    cold->cache->now_us - n->last_use_us > cold->idle_us;
}

bool vram_room_spare(struct cache *c, struct vram_class *k, uint64_t idle_us)
{
	const uint64_t before = vram_room_free(k);
	struct cold cold = { c, idle_us };
	struct policy_node *n;

	if (before > kept(k))
		return true;
	if (!cannot_grow(c, k)) {
		if (before == 0)
			want_growth(k);
		return before > 0;
	}
	n = c->policy->victim(k->policy, is_cold, &cold, VICTIM_SCAN);
	if (n)
		vram_evict(c, slot_of_node(n), COUNTER_EVICTED_GPU_FULL);
	return n && vram_room_free(k) > 0;
}

/* Victims, in their order. What must be known of a victim is in its block, which is mostly in no processor's cache. So
 * the blocks of the last few that were met are prefetched. */
struct pick {
	struct vram_slot *slot[VICTIM_SCAN];
	uint64_t count, most;
	const struct cache *cache;
	struct vram_slot *met[PICK_HINT_DISTANCE];
	uint64_t looked, walked;
};

static void pick_look(struct pick *p)
{
	struct vram_slot *s = p->met[p->looked++ % PICK_HINT_DISTANCE];

	if (p->count == p->most || vram_slot_pins(s) || !vram_clean(s))
		return;
	observe_soon(p->cache, s->node.id, true);
	p->slot[p->count++] = s;
}

static bool pick_clean(const struct policy_node *n, void *arg)
{
	struct vram_slot *s = slot_of_node(n);
	struct pick *p = arg;

	block_hint(s->block);
	if (p->walked - p->looked == PICK_HINT_DISTANCE)
		pick_look(p);
	p->met[p->walked++ % PICK_HINT_DISTANCE] = s;
	return p->count == p->most;
}

/* Evicts the next victims, if the policy can tell its order; returns how many. A walk meets each pinned copy once,
 * where a search for each victim would meet it again. */
static uint64_t evict_next(struct cache *c, struct vram_class *k, uint64_t wanted)
{
	struct pick p;

	p.cache = c;
	p.count = p.looked = p.walked = 0;
	p.most = wanted < VICTIM_SCAN ? wanted : VICTIM_SCAN;
	if (!c->policy->walk || !c->policy->walk(k->policy, pick_clean, &p, WALK_MAX))
		return 0;
	while (p.looked < p.walked)
		pick_look(&p);
	for (uint64_t i = 0; i < p.count; i++)
		vram_evict(c, p.slot[i], COUNTER_EVICTED_GPU_FULL);
	return p.count;
}

static void gpu_rooms_tell(struct cache *c, const struct gpu *g)
{
	for (struct vram_class *k = g->classes; k; k = k->next) {
		struct arena_class_usage u;

		arena_class_usage(k->arena, &u);
		room_tell(c->policy, k->policy, u.room, &k->policy_room);
	}
}

void vram_rooms_tell(struct cache *c)
{
	for (uint32_t n = 0; n < c->vram->count; n++) {
		const struct gpu *g = c->vram->gpu[n];

		if (!g->lost) /* a GPU that could not be opened has no arena */
			gpu_rooms_tell(c, g);
	}
}

void vram_room_early(struct cache *c, struct vram_class *k, uint32_t slots)
{
	struct vram_slot *s;
	struct met met;
	uint64_t tries = 0, evicted = 1, has;

	if (k->gpu->lost || c->vram->stopping || vram_room_free(k) >= slots || !cannot_grow(c, k))
		return;
	vram_trade(c, k);
	while (evicted > 0 && tries < slots && (has = vram_room_free(k)) < slots) {
		evicted = evict_next(c, k, slots - has);
		tries += evicted;
	}
	for (; tries < slots && vram_room_free(k) < slots && (s = victim(c, k, &met)); tries++)
		vram_evict(c, s, COUNTER_EVICTED_GPU_FULL);
}

/* Frees some of the slots that are to be kept free. True: more are missing. Dirty and held copies are not searched
 * through for that at each list's end. */
static bool keep_some(struct cache *c, struct vram_class *k)
{
	const uint64_t slots = kept(k), before = slots ? vram_room_free(k) : 0;
	uint64_t after;

	if (before >= slots || k->evictable < k->dirty + (slots - before))
		return false;
	vram_room_early(c, k, (uint32_t)(slots - before < KEPT_A_HOLD ? slots : before + KEPT_A_HOLD));
	after = vram_room_free(k);
	return after > before && after < slots;
}

void vram_room_keep(struct cache *c, struct gpu *g)
{
	for (struct vram_class *k = g->classes; k; k = k->next)
		for (uint32_t holds = 1; keep_some(c, k) && holds < KEPT_HOLDS; holds++) {
			cache_unlock(c);
			cache_lock(c);
		}
}

void vram_room_grow(struct cache *c, struct vram_class *k)
{
	struct arena_growth growth;
	enum status s = arena_prepare(k->arena, &growth);

	cache_lock(c);
	if (s)
		growth_refused(c, k);
	else if (growth.made)
		observe_extent_added(c);
	k->wanted = false;
	pthread_cond_broadcast(&c->vram->room);
	cache_unlock(c);
}

void vram_preallocate(struct cache *c, struct gpu *g)
{
	const struct tenant *t = tenant_wanting(c, g->arena);
	struct arena_growth growth = { .more = false };
	enum status s = t ? arena_preallocate(g->arena, t->number, &growth) : STATUS_OK;

	cache_lock(c);
	g->preallocate = !s && t && (growth.more || tenant_wanting(c, g->arena));
	if (s && s != STATUS_BUSY)
		g->preallocate_refused = c->room_epoch;
	if (!s && growth.made)
		observe_extent_added(c);
	pthread_cond_broadcast(&c->vram->room);
	cache_unlock(c);
}

bool vram_hand_over(struct cache *c, struct gpu *g, uint32_t extent, struct arena_class *to)
{
	struct arena_extent *gone;
	struct arena_growth growth;
	bool removed, made;

	pthread_mutex_lock(&c->extents);
	removed = !arena_extent_remove(g->arena, extent, &gone);
	pthread_mutex_unlock(&c->extents);
	if (!removed)
		return false;
	arena_extent_free(g->arena, gone);
	vram_came_back(c);
	/* Before another tenant can take those bytes. */
	made = !arena_extent_add(to, &growth);
	vram_came_back(c);
	cache_lock(c);
	if (made)
		observe_extent_added(c);
	c->room_epoch++; /* what was refused is worth asking for again */
	g->freed = true;
	vram_completion_wake(g);
	pthread_cond_broadcast(&c->vram->room);
	cache_unlock(c);
	return true;
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

	if (s->dirty && !s->write_through && p->count < p->most)
		p->slot[p->count++] = s;
	return false;
}

/* Queues the coldest dirty copies for download, as far as there are more of them than the class is to have. */
static void pick_write_through(struct cache *c, struct vram_class *k)
{
	struct pick p = { .count = 0 };
	struct arena_class_usage u;
	uint64_t wanted, ready;

	arena_class_usage(k->arena, &u);
	wanted = u.room * c->options.spill_share_milli / 1000;
	ready = u.room > k->dirty ? u.room - k->dirty : 0;
	k->pressed = wanted > ready;
	p.most = wanted > ready + k->write_through ? wanted - ready - k->write_through : 0;
	if (p.most > VICTIM_SCAN)
		p.most = VICTIM_SCAN;
	if (p.most)
		policy_look(c->policy, k->policy, pick_dirty, &p, 4 * VICTIM_SCAN);
	for (uint64_t i = 0; i < p.count; i++)
		vram_queue_write_through(p.slot[i]);
}

/* Downloads a dirty copy. While disks write, no block goes for it that only memory has. */
static enum status write_through(struct cache *c, const struct vram_slot *s)
{
	const enum status down = vram_write_through(c, s->block, c->tier, NULL);

	if (down != STATUS_BUSY || !c->tier || !s->span->class->pressed || tiers_hurry(c, s->pool->pool))
		return down;
	return vram_write_through(c, s->block, false, NULL);
}

static void pump(struct cache *c, struct gpu *g)
{
	const struct vram_pool *full = NULL;

	for (struct vram_class *k = g->classes; k; k = k->next)
		if (k->dirty)
			pick_write_through(c, k);
	if (g->write_through && vram_clock_us() < g->write_through_us)
		return;
	for (uint32_t tries = 0; g->write_through && g->downs < DOWNS_MAX && tries < WRITE_THROUGH_TRIES;) {
		struct vram_slot *s = g->write_through;
		const struct vram_pool *vp = s->pool;
		const enum status down = vp == full ? STATUS_BUSY : write_through(c, s);

		if (!down && !s->write_through)
			continue;
		full = down == STATUS_BUSY ? vp : full;
		/* Behind the others, whose layout may have room. */
		vram_unqueue_write_through(s);
		vram_queue_write_through(s);
		tries++;
	}
}

void vram_pump(struct cache *c)
{
	for (uint32_t i = 0; c->vram && !c->vram->stopping && i < c->vram->count; i++)
		if (!c->vram->gpu[i]->lost)
			pump(c, c->vram->gpu[i]);
}

/* ---- for those that need it in host memory ---- */

void vram_settle(struct cache *c, struct layout_pool *p, uint32_t most)
{
	uint32_t budget = SETTLE_BLOCKS;
	bool round = false;

	while (most && budget) {
		struct block *b = unwritten_walk_next(&p->falls, &budget);
		enum status s = STATUS_OK;

		if (!b && (!budget || round))
			return;
		if (!b) {
			round = true;
			unwritten_walk_begin(&p->falls, p);
			continue;
		}
		if (vram_has_alone(b))
			s = vram_write_through(c, b, true, NULL);
		most -= vram_has_alone(b) && !s;
		if (s == STATUS_BUSY) { /* so is it for those behind it */
			unwritten_walk_back(&p->falls);
			return;
		}
	}
}

enum status vram_down_soon(struct cache *c, struct block *b, struct cache_wait *w)
{
	const enum status s = vram_write_through(c, b, c->tier, w);

	return s == STATUS_BUSY && !tiers_hurry(c, b->pool) ? vram_down(c, b, false, w) : s;
}

static void bring_ready(void *arg)
{
	await_answer(arg);
}

/* Begins to bring a block to host memory. OK: it is there, or on its way. BUSY: with `spare`, memory has no place now,
 * but will have one, as disks write. */
static enum status bring_block(struct cache *c, struct block *b, bool spare, struct cache_wait *w)
{
	enum status s = STATUS_UNAVAILABLE;

	cache_lock(c);
	if (b->span)
		s = STATUS_OK;
	else if (c->vram)
		s = spare ? vram_write_through(c, b, true, w) : vram_down(c, b, false, w);
	if (s == STATUS_BUSY && !tiers_hurry(c, b->pool))
		s = STATUS_EXHAUSTED;
	cache_unlock(c);
	return s;
}

bool vram_bring(struct cache *c, struct block *b, bool spare)
{
	const struct timespec pause = { .tv_nsec = BRING_PAUSE_NS };
	const uint64_t until_us = vram_clock_us() + BRING_SPARE_US;
	struct cache_wait w = { .ready = bring_ready };
	struct await came;
	enum status s;
	bool there;

	await_init(&came);
	w.arg = &came;
	while ((s = bring_block(c, b, spare, &w)) == STATUS_BUSY && vram_clock_us() < until_us)
		nanosleep(&pause, NULL);
	if (s == STATUS_OK && w.links)
		await_came(&came, BRING_US_MAX);
	cache_wait_end(c, &w);
	cache_lock(c);
	there = b->span;
	cache_unlock(c);
	await_fini(&came);
	return there;
}

/* ---- puts ---- */

enum status vram_block_create(struct cache *c, struct gpu *g, struct layout_pool *p, uint32_t key_bytes,
    struct block **out)
{
	struct vram_pool *vp = vram_pool_get(c, g, p);
	struct block *b = vp ? block_alloc(key_bytes) : NULL;
	const struct vram_slot_want want = { .block = b, .need = NEED_NOW, .reserved = true };
	struct vram_slot *taken;
	enum status s;

	if (!b)
		return STATUS_EXHAUSTED;
	b->pool = p;
	s = vram_slot_take(c, vp, &want, &taken);
	if (s) {
		free(b);
		return s;
	}
	b->generation = arena_generation(c->host) + c->generation_lift;
	*out = b;
	return STATUS_OK;
}
