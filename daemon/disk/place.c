/* Where a block goes on the disks. The rule is in the header.
 *
 * A search looks at the disks twice: for room, then for a victim. It never waits: work that takes long (making a slab,
 * giving one up) is left to the chores, and the caller tries again.
 *
 * Each block of a full disk asks whether a slab without a flushed block exists, so the answer "none" is kept
 * (tier->all_promised). It is forgotten when it may have changed: when an unflushed block comes to a slab map without a
 * flushed one, and when the flushed block leaves by which a slab map was known.
 */
#include "daemon/disk/place.h"

#include "daemon/block/block.h"
#include "daemon/block/by_id.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/disk/durable.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/disk/transfer.h"
#include "eviction/departures.h"
#include "eviction/policy.h"
#include "store/class_rule.h"
#include "store/crash_point.h"
#include "store/slab/disk.h"
#include "store/status.h"

#include <stdlib.h>

enum {
	DISPLACE_SCAN = 256,
	DISPLACE_SCAN_DEEP = 8192,     /* when none of those may go; after one that found little, after: */
	DISPLACE_DEEP_US = 50 * 1000,
	FULL_AGAIN_US = 1000 * 1000,   /* the chores are asked again after so long */
	WANTED_US_MAX = 2000 * 1000,   /* they hang, with a disk */
	SLOW_US_MAX = 5000 * 1000,
	WANTS_US = 60 * 1000 * 1000,   /* a class that got no slab counts as in want of one for so long */
	OLDER_US_LEAST = 10 * 1000 * 1000, /* a slab that is taken has been idle so much longer, */
	OLDER_PERCENT = 125,           /* and so much of the own block's time */
	LEAVING_SCAN = 2048,
	PLAIN_SCAN = 64,               /* of the coldest, for one that was not flushed */
	UNPROMISED_LOOKS = 16,         /* slab maps that a search looks at, if nothing of the first may go */
	GIVES_MOST = 8,                /* blocks that a search lets go, besides the one whose place it takes */
	GIVEN_LOOKS = 64,              /* the same of the slab maps of which one is to be given up */
};

/* ---- what a tenant may take ---- */

/* For which tenant's block others may go. */
struct asker {
	const struct tenant *tenant;   /* NULL: there is no table */
	bool own;                      /* only blocks of the tenant itself */
	uint64_t over;                 /* own: bytes that the block would be beyond the tenant's cap */
	bool never;                    /* own: there were no room even if all of the tenant's blocks went */
};

/* With what is on its way. */
static uint64_t has(const struct tenant *t)
{
	return t->disk_bytes + t->disk_coming;
}

static uint64_t lacks(const struct tenant *t)
{
	return t->disk_own > has(t) ? t->disk_own - has(t) : 0;
}

/* Bytes of all disks that no tenant has, and that are not kept for another tenant's share. */
static uint64_t spare_for(const struct cache *c, const struct tenant *t)
{
	uint64_t all = 0, gone = 0;

	for (uint32_t i = 0; i < c->tier->unit_count; i++)
		all += c->tier->units[i].failed ? 0 : c->tier->units[i].options->bytes;
	for (uint32_t i = 0; i < c->tenant_count; i++)
		gone += has(&c->tenants[i]) + (&c->tenants[i] == t ? 0 : lacks(&c->tenants[i]));
	return all > gone ? all - gone : 0;
}

/* The largest slot that a block of that need may get: disks differ in their classes. */
static uint64_t slot_for(const struct cache *c, uint64_t need_bytes)
{
	uint64_t most = need_bytes;

	for (uint32_t i = 0; i < c->tier->unit_count; i++) {
		const struct disk_class *k = class_joined(&c->tier->units[i], need_bytes);

		most = k && !k->failed && k->slot_bytes > most ? k->slot_bytes : most;
	}
	return most;
}

/* For a block that is to go to a disk, or from slot to slot. It looks at all tenants and classes: once a search. */
static struct asker asker_of(const struct cache *c, const struct block *b)
{
	struct asker a = { .tenant = NULL };
	uint64_t slot, spare;

	if (!c->options.tenant_count)
		return a;
	a.tenant = b->pool->tenant;
	if (b->slab_map) /* it only moves */
		return a;
	slot = slot_for(c, b->pool->geometry.need_bytes);
	if (a.tenant->disk_max && has(a.tenant) + slot > a.tenant->disk_max)
		a.over = has(a.tenant) + slot - a.tenant->disk_max;
	spare = spare_for(c, a.tenant);
	a.own = a.over || (has(a.tenant) + slot > a.tenant->disk_own && spare < slot);
	a.never = a.own && (slot > has(a.tenant) + spare || (a.over && slot > a.tenant->disk_max));
	return a;
}

/* Whether the block, which is on a disk, may be displaced: not if its tenant had less than its share then. NULL asker:
 * for any tenant. */
static bool asker_may(const struct asker *a, const struct block *b)
{
	const struct tenant *t = b->pool->tenant;

	if (!a || !a->tenant || a->tenant == t)
		return true;
	return !a->own && t->disk_bytes >= t->disk_own + b->slab_map->class->slot_bytes;
}

/* ---- room ---- */

/* The chores could not make one, or hang. */
static bool slab_in_vain(const struct cache *c, const struct disk_class *k)
{
	return (k->full && c->now_us - k->full_us <= FULL_AGAIN_US) ||
	       (k->wanted && c->now_us - k->wanted_us > WANTED_US_MAX);
}

/* The chores could not make one, but have not tried for long: readers or transfers may have held each slab that could
 * have been given up. */
static bool slab_may_come(const struct cache *c, const struct disk_class *k)
{
	return k->full && c->now_us - k->vain_us <= WANTED_US_MAX;
}

/* Slabs that a class gets at once: a quarter more than it has. What it does not use is room for others. */
uint32_t place_slabs(const struct disk_class *k)
{
	uint32_t slab_maps = 0;

	for (const struct slab_map *r = k->slab_maps; r && slab_maps < 4 * DISK_SLABS_AT_ONCE; r = r->next)
		slab_maps++;
	return slab_maps < 8 ? 1 : slab_maps / 4;
}

/* With fewer free slots the next slabs are made already: half of what they have. A class of few slabs waits for its next. */
uint64_t place_slots(const struct disk_class *k)
{
	const uint32_t slabs = place_slabs(k);

	return slabs > 1 ? (uint64_t)slabs * k->slab_maps->slots / 2 : 0;
}

static bool few_left(const struct cache *c, const struct disk_class *k, uint64_t free_slots)
{
	if (k->wanted || (k->preallocate_us && c->now_us - k->preallocate_us <= FULL_AGAIN_US))
		return false;
	return free_slots < place_slots(k);
}

static enum disk_room room_of(const struct cache *c, const struct disk_class *k, bool grow, uint64_t *free_slots)
{
	const enum disk_room room = disk_room(k->unit->disk, k->slot_bytes, free_slots);

	return room == DISK_ROOM_SLAB && (!grow || slab_in_vain(c, k)) ? DISK_ROOM_NONE : room;
}

/* needed: now, not ahead of that. */
static void slab_want(struct cache *c, struct disk_class *k, bool needed)
{
	k->needed |= needed;
	if (!k->wanted) {
		k->wanted = true;
		k->wanted_us = c->now_us;
	}
	tier_wake(c);
}

static enum status take_free(struct cache *c, const struct disk_class *k, struct spot *out)
{
	struct unit *u = k->unit;
	struct disk_place place;
	enum status s = disk_slot_take(u->disk, k->slot_bytes, &place);
	struct slab_map *r;

	if (s)
		return s;
	r = slab_map_get(c, u, place.slab);
	if (!r) {
		disk_slot_give(u->disk, place);
		return STATUS_EXHAUSTED;
	}
	*out = (struct spot){ .unit = u, .slab_map = r, .slot = place.slot };
	return STATUS_OK;
}

static bool is_asked(const struct spot_search *s, const struct unit *u)
{
	return !u->failed && !(s->tried & 1u << u->number);
}

/* A quarter of the depth is for spills that a call waits for. */
bool place_depth(const struct cache *c, const struct unit *u)
{
	return 4 * u->spilling < 3 * c->options.disk_depth;
}

static bool has_depth(const struct cache *c, const struct spot_search *s, const struct unit *u)
{
	return s->priority != RING_IDLE || place_depth(c, u);
}

/* The rule's 1 and 2. OK; MISS: a slab is being made; BUSY: a disk has room, and no depth; EXHAUSTED: none has room;
 * UNAVAILABLE: none is sound. */
static enum status find_room(struct cache *c, const struct spot_search *s, struct spot *out)
{
	struct tier *t = c->tier;
	const uint32_t first = t->turn++;
	enum status worst = STATUS_UNAVAILABLE;

	for (uint32_t i = 0; i < t->unit_count; i++) {
		struct unit *u = &t->units[(first + i) % t->unit_count];
		struct disk_class *k = is_asked(s, u) ? class_for(c, u, s->block->pool->geometry.need_bytes) : NULL;
		enum disk_room room;
		uint64_t free_slots;

		if (worst == STATUS_UNAVAILABLE && !u->failed)
			worst = STATUS_EXHAUSTED;
		if (!k)
			continue;
		room = room_of(c, k, s->grow, &free_slots);
		if (room == DISK_ROOM_SLOT && s->grow && few_left(c, k, free_slots))
			slab_want(c, k, false);
		if (room == DISK_ROOM_SLOT && has_depth(c, s, u) && !take_free(c, k, out))
			return STATUS_OK;
		if (room == DISK_ROOM_SLOT && !has_depth(c, s, u))
			worst = worst == STATUS_MISS ? worst : STATUS_BUSY;
		if (room == DISK_ROOM_SLAB) {
			slab_want(c, k, true);
			worst = STATUS_MISS;
		}
	}
	return worst;
}

/* ---- victims ---- */

static struct block *block_of_slab_map_node(const struct policy_node *n)
{
	return ((const struct slab_map_slot *)((const char *)n - offsetof(struct slab_map_slot, node)))->block;
}

static const struct policy_node *node_of(const struct block *b)
{
	return &b->slab_map->at[b->slab_map_slot].node;
}

/* A block that a reader or a transfer holds stays. */
static bool is_held(const struct block *b)
{
	return block_pins(b) || b->moving || b->slab_map->leaving;
}

/* So does the copy of one that memory or a GPU has: it would only have to be written again. arg: a struct asker, or
 * NULL. */
static bool may_displace(const struct policy_node *n, void *arg)
{
	const struct block *b = block_of_slab_map_node(n);

	return !is_held(b) && !b->span && !b->vram && asker_may(arg, b);
}

/* But a block that is being flushed takes the place of a copy that was not: memory keeps that block. */
static bool may_displace_copy(const struct asker *a, const struct block *b)
{
	return !is_held(b) && !block_flushed(b) && (!b->vram || b->span) && asker_may(a, b);
}

/* The class's list for that asker; NULL: no memory. */
static struct class_cold *cold_for(struct disk_class *k, const struct asker *a)
{
	const struct tenant *tenant = a ? a->tenant : NULL;
	const bool own = a && a->own;
	struct class_cold *l = k->cold;

	while (l && (l->tenant != tenant || l->own != own))
		l = l->next;
	if (l)
		return l;
	l = calloc(1, sizeof(*l));
	if (!l)
		return NULL;
	*l = (struct class_cold){ .next = k->cold, .tenant = tenant, .own = own };
	k->cold = l;
	return l;
}

struct cold_search {
	struct class_cold *list;
	struct asker *asker;
};

static bool gather_cold(const struct policy_node *n, void *arg)
{
	struct cold_search *s = arg;

	if (s->list->count < CLASS_COLD && may_displace(n, s->asker))
		s->list->id[s->list->count++] = n->id;
	return s->list->count == CLASS_COLD;
}

/* Into a list in the order of use, of which the last is left out if it is full. used: of the list's blocks. */
static void cold_insert(struct class_cold *l, uint64_t used[CLASS_COLD], const struct policy_node *n)
{
	uint32_t at = l->count;

	for (; at > 0 && (int64_t)(n->last_use_us - used[at - 1]) < 0; at--)
		if (at < CLASS_COLD) {
			used[at] = used[at - 1];
			l->id[at] = l->id[at - 1];
		}
	if (at == CLASS_COLD)
		return;
	used[at] = n->last_use_us;
	l->id[at] = n->id;
	l->count += l->count < CLASS_COLD;
}

/* Whose blocks may be displaced for the asker, by slab_map_tenant(). */
static uint64_t tenants_for(const struct cache *c, const struct disk_class *k, const struct asker *a)
{
	uint64_t bits = slab_map_tenant(c, a->tenant);

	for (uint32_t i = 0; i < c->tenant_count && !a->own; i++)
		if (c->tenants[i].disk_bytes >= c->tenants[i].disk_own + k->slot_bytes)
			bits |= slab_map_tenant(c, &c->tenants[i]);
	return bits;
}

/* From the list's slot on; true: to the end of the slab map. */
static bool gather_in(struct cache *c, struct slab_map *r, const struct cold_search *s, uint64_t used[CLASS_COLD],
		      uint32_t *budget)
{
	const bool whole = !s->list->slot;
	uint64_t tenants = 0;

	for (; s->list->slot < r->slots && *budget; s->list->slot++, --*budget) {
		const struct block *b = r->at[s->list->slot].block;

		tenants |= b ? slab_map_tenant(c, b->pool->tenant) : 0;
		if (b && may_displace(node_of(b), s->asker))
			cold_insert(s->list, used, node_of(b));
	}
	if (s->list->slot < r->slots)
		return false;
	r->tenants = whole ? tenants : r->tenants;
	s->list->slot = 0;
	return true;
}

/* The coldest blocks of a class may all be of another tenant's share, however deep a search goes: it would meet them
 * each time. A walk over the slabs goes on where the last one ended, and once round at most. It passes those over that
 * have no block which may be displaced for the asker, and so meets some soon. The coldest of these come first. */
static void gather_walk(struct cache *c, struct disk_class *k, const struct cold_search *s)
{
	const uint64_t tenants = tenants_for(c, k, s->asker);
	uint32_t budget = DISPLACE_SCAN_DEEP;
	struct class_cold *l = s->list;
	struct slab_map *r = k->slab_maps;
	const struct slab_map *first;
	uint64_t used[CLASS_COLD];

	while (r && r->slab < l->slab)
		r = r->next;
	if (!r || r->slab != l->slab)
		l->slot = 0;
	first = r = r ? r : k->slab_maps;
	for (bool round = !r; !round && budget; round = r == first) {
		l->slab = r->slab;
		if ((r->tenants & tenants) && !gather_in(c, r, s, used, &budget))
			return;
		l->slot = 0;
		r = r->next ? r->next : k->slab_maps;
	}
	l->slab = r ? r->slab : 0;
}

static void gather(struct cache *c, struct disk_class *k, struct class_cold *l, struct asker *a)
{
	struct cold_search s = { l, a };

	l->us = c->now_us;
	l->at = l->count = 0;
	policy_look(c->tier->policy, k->policy, gather_cold, &s, DISPLACE_SCAN_DEEP);
	if (!l->count && l->tenant)
		gather_walk(c, k, &s);
}

/* The coldest block of the class that may be displaced. Where many of the coldest are in memory too, or of other
 * tenants' shares, a longer search finds some for later. */
static struct block *coldest_of(struct cache *c, struct disk_class *k, struct asker *a)
{
	const struct policy_ops *p = c->tier->policy;
	const struct policy_node *n = p->victim(k->policy, may_displace, a, DISPLACE_SCAN);
	struct class_cold *l = n ? NULL : cold_for(k, a);

	if (n)
		return block_of_slab_map_node(n);
	if (l && l->at == l->count && (l->count >= CLASS_COLD / 8 || c->now_us - l->us >= DISPLACE_DEEP_US))
		gather(c, k, l, a);
	for (; l && l->at < l->count; l->at++) {
		struct block *b = by_id_find(c, l->id[l->at]);

		if (b && b->slab_map && b->slab_map->class == k && may_displace(node_of(b), a))
			return b;
	}
	return NULL;
}

static bool may_displace_plain(const struct policy_node *n, void *arg)
{
	return may_displace(n, arg) && !block_flushed(block_of_slab_map_node(n));
}

/* The coldest of the block's class and disk that was not flushed, if there is one among the coldest. */
static struct block *plain_beside(struct cache *c, const struct block *flushed, struct asker *a)
{
	struct policy *p = flushed->slab_map->class->policy;
	const struct policy_node *n = c->tier->policy->victim(p, may_displace_plain, a, PLAIN_SCAN);

	return n ? block_of_slab_map_node(n) : NULL;
}

/* Of two blocks on disks the one that was used earlier; either may be NULL. */
static struct block *colder(struct block *a, struct block *b)
{
	if (!a || !b)
		return a ? a : b;
	return (int64_t)(node_of(b)->last_use_us - node_of(a)->last_use_us) < 0 ? b : a;
}

/* What was used last then has been idle for so much longer than the block, and a quarter longer. */
static bool much_older(const struct cache *c, uint64_t used_us, uint64_t least_us, const struct block *than)
{
	const uint64_t idle = c->now_us - used_us, than_idle = c->now_us - node_of(than)->last_use_us;

	return idle > than_idle + least_us && idle / OLDER_PERCENT > than_idle / 100;
}

static void spot_of(struct block *victim, struct spot *out)
{
	struct slab_map *r = victim->slab_map;

	*out = (struct spot){ .unit = r->class->unit, .slab_map = r, .slot = victim->slab_map_slot, .victim = victim };
}

/* Whether any block of the slab map is the asker's to take, at some time. If not, whose blocks are there is known
 * anew: the next search passes the slab over. */
static bool has_any_for(const struct cache *c, struct slab_map *r, const struct asker *a)
{
	uint64_t tenants = 0;

	for (uint32_t i = 0; i < r->slots && a->tenant; i++) {
		const struct block *b = r->at[i].block;

		if (b && asker_may(a, b))
			return true;
		tenants |= b ? slab_map_tenant(c, b->pool->tenant) : 0;
	}
	r->tenants = a->tenant ? tenants : r->tenants;
	return !a->tenant;
}

/* The next block of the slab map that may be displaced. They take turns: a walk from the beginning would meet what came
 * last. copies: of those that memory has, too. */
static struct block *victim_in(struct slab_map *r, bool copies, struct asker *a)
{
	for (uint32_t i = 0; i < r->slots; i++) {
		const uint32_t slot = (r->hand + i) % r->slots;
		struct block *b = r->at[slot].block;

		if (b && (may_displace(&r->at[slot].node, a) || (copies && may_displace_copy(a, b)))) {
			r->hand = slot + 1;
			return b;
		}
	}
	return NULL;
}

/* ---- slabs that may go ---- */

/* The unit's slab maps, then those of the others. */
static struct slab_map *next_slab_map(const struct tier *t, const struct unit *only, const struct slab_map *r,
				      uint32_t *unit)
{
	r = r ? r->slab_next : NULL;
	while (!r && *unit < t->unit_count) {
		const struct unit *u = &t->units[(*unit)++];

		if (!u->failed && (!only || u == only))
			r = u->slab_maps;
	}
	return (struct slab_map *)r;
}

/* What is looked for among the slab maps of all disks. */
struct slab_map_wish {
	const struct unit *only;       /* NULL: on any */
	uint64_t need_bytes;           /* blocks of that need ... */
	bool foreign;                  /* ... do not go to its class */
	bool unpromised;               /* no block of it was flushed */
	const struct taker *takers;    /* by unit: something of it may go for the asker; NULL: or not */
	bool others;                   /* ... or it is of another class */
};

/* What of a unit may go for an asker's block. */
struct taker {
	const struct disk_class *class; /* the block's; NULL: it does not exist yet */
	uint64_t tenants;              /* whose blocks of that class, by slab_map_tenant() */
};

static void takers_of(const struct cache *c, const struct asker *a, uint64_t need_bytes, struct taker *out)
{
	for (uint32_t i = 0; i < c->tier->unit_count; i++) {
		const struct disk_class *k = class_joined(&c->tier->units[i], need_bytes);

		out[i] = (struct taker){ k, k && a->tenant ? tenants_for(c, k, a) : UINT64_MAX };
	}
}

static bool may_give(const struct slab_map_wish *w, const struct slab_map *r)
{
	const struct taker *of = w->takers ? &w->takers[r->class->unit->number] : NULL;

	return !of || (of->class == r->class ? r->tenants & of->tenants : w->others);
}

static bool is_wished(const struct slab_map_wish *w, const struct slab_map *r)
{
	if (!r->blocks || r->leaving || (w->unpromised && r->promised) || !may_give(w, r))
		return false;
	return !w->foreign || r->class != class_joined(r->class->unit, w->need_bytes);
}

/* The slab map whose newest use is the oldest, of those whose newest use is after `after`; NULL: no more. */
static struct slab_map *oldest_after(struct cache *c, const struct slab_map_wish *w, uint64_t after)
{
	const struct tier *t = c->tier;
	struct slab_map *oldest;

	do {
		uint32_t unit = 0;

		oldest = NULL;
		for (struct slab_map *r = next_slab_map(t, w->only, NULL, &unit); r;
		    r = next_slab_map(t, w->only, r, &unit))
			if (r->newest > after && (!oldest || r->newest < oldest->newest) && is_wished(w, r))
				oldest = r;
	} while (oldest && w->unpromised && slab_map_promised(oldest));
	return oldest;
}

/* The oldest slab map that the wish names and that is idle now. NULL: none of the first few is. */
static struct slab_map *oldest_idle(struct cache *c, const struct slab_map_wish *w)
{
	struct slab_map *r = oldest_after(c, w, 0);

	for (int i = 0; r && !slab_map_idle(r); i++)
		r = i < GIVEN_LOOKS ? oldest_after(c, w, r->newest) : NULL;
	return r;
}

static bool has_unpromised(struct cache *c, const struct slab_map_wish *w)
{
	return !c->tier->all_promised && oldest_after(c, w, 0);
}

/* The rule's 4. OK; MISS: a slab of another class is being given up; BUSY: there are slabs without a flushed block, and
 * nothing of them may go now; EXHAUSTED: there are none of which anything may go for the asker. own_may: false where
 * the policy found nothing in the own class, since all that was cold was in memory too: then nothing else of it goes
 * for a block that memory has. wants: the class that another slab could be made for; NULL: none is. */
static enum status find_unpromised(struct cache *c, const struct spot_search *s, struct asker *a,
				   struct disk_class *wants, bool own_may, struct spot *out)
{
	const uint64_t need_bytes = s->block->pool->geometry.need_bytes;
	const struct slab_map_wish any = { .unpromised = true };
	struct taker takers[CACHE_DISKS_MAX];
	const struct slab_map_wish w = { .unpromised = true, .takers = takers, .others = wants };
	struct slab_map *r;
	bool later = false;

	if (c->tier->all_promised)
		return STATUS_EXHAUSTED;
	takers_of(c, a, need_bytes, takers);
	r = oldest_after(c, &w, 0);
	if (!r)
		c->tier->all_promised = !oldest_after(c, &any, 0);
	for (int i = 0; r && i < UNPROMISED_LOOKS; i++, r = oldest_after(c, &w, r->newest)) {
		const bool own = r->class == takers[r->class->unit->number].class;
		const bool asked = own && own_may && is_asked(s, r->class->unit);
		struct block *victim = asked ? victim_in(r, block_flushed(s->block), a) : NULL;

		if (victim) {
			spot_of(victim, out);
			return STATUS_OK;
		}
		if (!own && s->grow && !slab_in_vain(c, wants)) {
			slab_want(c, wants, true);
			return STATUS_MISS;
		}
		later |= !own || has_any_for(c, r, a);
	}
	return later || r ? STATUS_BUSY : STATUS_EXHAUSTED; /* r: there are more than were looked at */
}

/* ---- 3 and 4 ---- */

/* The coldest over all disks that are asked. *wants: the class of one of them. *limited: one has no depth now. */
static struct block *find_coldest(struct cache *c, const struct spot_search *s, struct asker *a,
				  struct disk_class **wants, bool *limited)
{
	struct block *coldest = NULL;

	*wants = NULL;
	*limited = false;
	for (uint32_t i = 0; i < c->tier->unit_count; i++) {
		struct unit *u = &c->tier->units[i];
		struct disk_class *k = is_asked(s, u) ? class_for(c, u, s->block->pool->geometry.need_bytes) : NULL;

		if (!k)
			continue;
		*wants = *wants ? *wants : k;
		if (has_depth(c, s, u))
			coldest = colder(coldest, coldest_of(c, k, a));
		else
			*limited = true;
	}
	return coldest;
}

static enum status coldest_goes(struct block *coldest, struct spot *out)
{
	CRASH_POINT("slab_map_victim");
	spot_of(coldest, out);
	return STATUS_OK;
}

static enum status find_victim(struct cache *c, const struct spot_search *s, struct asker *a, struct spot *out)
{
	struct disk_class *wants;
	struct block *coldest, *plain;
	enum status status;
	bool limited;

	coldest = find_coldest(c, s, a, &wants, &limited);
	if (!wants)
		return s->slow ? STATUS_BUSY : STATUS_EXHAUSTED;
	if (!coldest || block_flushed(coldest)) {
		status = find_unpromised(c, s, a, wants, coldest || block_flushed(s->block), out);
		if (status == STATUS_OK || status == STATUS_MISS)
			return status;
		if (status == STATUS_BUSY && !block_flushed(s->block))
			return STATUS_EXHAUSTED; /* memory has it: no flushed block goes for it */
		plain = coldest ? plain_beside(c, coldest, a) : NULL;
		if (status == STATUS_BUSY && !plain && s->grow && slab_may_come(c, wants))
			return STATUS_BUSY;
		coldest = plain ? plain : s->slow ? NULL : coldest;
	}
	if (!coldest && (limited || s->slow))
		return STATUS_BUSY;
	/* Another class may have a slab that has been idle for longer: the chores look, once a second. */
	if (s->grow && !slab_in_vain(c, wants)) {
		slab_want(c, wants, true);
		if (!coldest)
			return STATUS_MISS;
	}
	return coldest ? coldest_goes(coldest, out) : STATUS_EXHAUSTED;
}

/* ---- a tenant's own block for its own ---- */

/* The coldest block that was not flushed, and the coldest of all. */
struct choice {
	struct block *plain, *any;
};

static void choose(struct cache *c, struct disk_class *k, struct asker *a, struct choice *o)
{
	struct block *b = coldest_of(c, k, a);

	o->any = colder(o->any, b);
	o->plain = colder(o->plain, b && block_flushed(b) ? plain_beside(c, b, a) : b);
}

/* Whether blocks of the tenant may be in the class. */
static bool may_be_in(const struct cache *c, const struct tenant *t, const struct disk_class *k)
{
	for (uint32_t i = 0; i < c->pool_count; i++) {
		const struct layout_pool *p = c->pools[i];

		if (p->tenant == t && p->disk_blocks && p->geometry.need_bytes <= k->slot_bytes &&
		    (class_rule_joins(k->slot_bytes, p->geometry.need_bytes) ||
		     class_joined(k->unit, p->geometry.need_bytes) == k))
			return true;
	}
	return false;
}

/* What may go, of the block's class on each disk, and of the others. *limited: one disk has no depth now. */
static void choose_own(struct cache *c, const struct spot_search *s, struct asker *a, struct choice *same,
		       struct choice *other, bool *limited)
{
	for (uint32_t i = 0; i < c->tier->unit_count; i++) {
		struct unit *u = &c->tier->units[i];
		const struct disk_class *mine = class_joined(u, s->block->pool->geometry.need_bytes);

		if (!is_asked(s, u))
			continue;
		*limited |= !has_depth(c, s, u);
		for (struct disk_class *k = u->classes; k; k = k->next) {
			if (k == mine && has_depth(c, s, u))
				choose(c, k, a, same);
			else if (k != mine && may_be_in(c, a->tenant, k))
				choose(c, k, a, other);
		}
	}
}

/* The block leaves its disk, and none takes its place now: the slot is free once it has a tombstone. */
static void give_way(struct cache *c, struct block *b)
{
	const struct index_ident name = block_name(b);

	cache_count(c, COUNTER_EVICTED_DISK, 1);
	cache_count(c, COUNTER_DROPPED, 1);
	catalog_untell(c, &name);
	tombstone_begin(c, b->slab_map, b->slab_map_slot, b->pool, &name, b->generation);
	block_remove(c, b, CACHE_REASON_EVICTED);
}

/* Which block of another class goes rather than `same`, the one of the block's class; NULL: none does. */
static struct block *goes_before(const struct cache *c, const struct choice *other, const struct block *same,
				 bool plain)
{
	struct block *b = plain ? other->plain : other->any;

	return b && (!same || much_older(c, node_of(b)->last_use_us, 0, same)) ? b : NULL;
}

/* For a tenant that gets no more room. OK: the place of its own coldest block. MISS: nothing of it may go in the
 * block's class, or a block of another class has been idle a quarter longer, or the tenant has more than its cap: then
 * blocks have left the disks, and *a is judged anew. */
static enum status own_step(struct cache *c, const struct spot_search *s, struct asker *a, bool last, struct spot *out)
{
	struct choice same = { 0 }, other = { 0 };
	struct block *mine, *goes;
	bool limited = false, plain;
	enum status status;

	choose_own(c, s, a, &same, &other, &limited);
	plain = same.plain || other.plain;
	mine = plain ? same.plain : same.any;
	if (!same.any && (limited || s->slow))
		return STATUS_BUSY;
	if (!plain && same.any) {
		status = find_unpromised(c, s, a, NULL, true, out);
		if (status == STATUS_OK)
			return status;
		if (status == STATUS_BUSY && !block_flushed(s->block))
			return STATUS_EXHAUSTED; /* memory has it: no flushed block goes for it */
	}
	goes = goes_before(c, &other, mine, plain);
	if (!goes && mine && (last || a->over <= mine->slab_map->class->slot_bytes))
		return coldest_goes(mine, out);
	goes = goes ? goes : mine;
	if (!goes)
		return STATUS_EXHAUSTED;
	give_way(c, goes);
	*a = asker_of(c, s->block);
	return STATUS_MISS;
}

/* Lets blocks of the tenant's go until it has room; a->own is false then. BUSY: some went, the rest is for later. */
static enum status find_own(struct cache *c, const struct spot_search *s, struct asker *a, struct spot *out)
{
	enum status status = a->never ? STATUS_EXHAUSTED : STATUS_MISS;

	for (int i = 1; status == STATUS_MISS && a->own && i <= GIVES_MOST; i++)
		status = own_step(c, s, a, i == GIVES_MOST, out);
	return status == STATUS_MISS ? STATUS_BUSY : status;
}

enum status spot_find(struct cache *c, struct spot_search *s, struct spot *out)
{
	struct asker a = asker_of(c, s->block);
	enum status status = a.own ? find_own(c, s, &a, out) : STATUS_BUSY;

	if (a.own)
		return status;
	status = find_room(c, s, out);
	return status == STATUS_EXHAUSTED ? find_victim(c, s, &a, out) : status;
}

void spot_refused(struct cache *c, struct spot_search *s, struct unit *u, enum status why)
{
	s->tried |= 1u << u->number;
	if (why != STATUS_BUSY)
		return;
	if (!u->slow_us)
		u->slow_us = c->now_us;
	s->slow |= c->now_us - u->slow_us <= SLOW_US_MAX;
}

/* True: this disk would have to give up another block, and its policy would not. */
static bool unit_denies(struct cache *c, struct unit *u, const struct block *b, const struct policy_event *e,
			struct asker *a)
{
	struct disk_class *k = class_joined(u, b->pool->geometry.need_bytes);
	const struct policy_node *n;
	uint64_t free_slots;

	if (a->own || !k || !k->full || room_of(c, k, true, &free_slots) != DISK_ROOM_NONE)
		return false;
	if (!slab_in_vain(c, k)) /* until the chores have found a slab it is as full as it was */
		slab_want(c, k, true);
	n = c->tier->policy->victim(k->policy, may_displace, a, DISPLACE_SCAN);
	return n && (b->unusable || !c->tier->policy->admit(k->policy, e, n));
}

bool spot_denied(struct cache *c, const struct block *b)
{
	const struct policy_event e = {
		.now_us = c->now_us, .id = b->node.id, .tokens = b->tokens, .role = b->role,
		.moved = true, /* a spill is no access */
	};
	struct asker a = asker_of(c, b);
	bool denied = false;

	for (uint32_t i = 0; (b->unusable || c->tier->policy->admit) && i < c->tier->unit_count; i++) {
		struct unit *u = &c->tier->units[i];

		if (u->failed)
			continue;
		if (!unit_denies(c, u, b, &e, &a))
			return false;
		denied = true;
	}
	return denied;
}

/* ---- slabs that are given up for another class ---- */

/* The coldest block of the class, on any disk. */
static struct block *coldest_anywhere(struct cache *c, uint64_t need_bytes)
{
	struct block *coldest = NULL;

	for (uint32_t i = 0; i < c->tier->unit_count; i++) {
		struct unit *u = &c->tier->units[i];
		struct disk_class *k = u->failed ? NULL : class_joined(u, need_bytes);

		if (k)
			coldest = colder(coldest, coldest_of(c, k, NULL));
	}
	return coldest;
}

/* Which slab map goes for a class; only: that of the ones before. NULL: none. */
struct slab_map *place_slab_map(struct cache *c, uint64_t need_bytes, const struct unit *only)
{
	const struct slab_map_wish any = { .only = only, .need_bytes = need_bytes, .foreign = true };
	const struct slab_map_wish unpromised = { only, need_bytes, .foreign = true, .unpromised = true };
	const struct slab_map_wish all = { .unpromised = true };
	const struct block *own = coldest_anywhere(c, need_bytes);
	struct slab_map *r = oldest_idle(c, &unpromised);

	if (!r && has_unpromised(c, &all))
		return NULL; /* blocks that were not flushed go: in the own class, or soon in another */
	if (r && own && block_flushed(own))
		return r;
	r = r ? r : oldest_idle(c, &any);
	return r && (!own || much_older(c, r->newest_us, OLDER_US_LEAST, own)) ? r : NULL;
}

/* Another disk has room for blocks of the class. */
bool place_elsewhere(struct cache *c, const struct disk_class *mine)
{
	uint64_t free_slots;

	for (uint32_t i = 0; i < c->tier->unit_count; i++) {
		struct unit *u = &c->tier->units[i];
		struct disk_class *k = u == mine->unit || u->failed ? NULL : class_for(c, u, mine->slot_bytes);

		if (k && room_of(c, k, true, &free_slots) != DISK_ROOM_NONE)
			return true;
	}
	return false;
}

/* It has no slab, and had, or was to have, one lately. */
static bool class_wants(const struct cache *c, const struct disk_class *k)
{
	return k->wanted || (k->full && c->now_us - k->full_us <= WANTS_US) ||
	       (k->robbed_us && c->now_us - k->robbed_us <= WANTS_US);
}

uint32_t place_classes(const struct cache *c, const struct unit *u, uint64_t slab_bytes, uint64_t *bytes)
{
	uint32_t count = 0;

	*bytes = 0;
	for (const struct disk_class *k = u->classes; k; k = k->next) {
		const uint64_t least = DISK_SLAB_HEADER_BYTES + k->slot_bytes;

		if (!k->slab_maps && !class_wants(c, k))
			continue;
		*bytes += slab_bytes > least ? slab_bytes : least;
		count++;
	}
	return count;
}

/* ---- what is about to go ---- */

struct look {
	void (*visit)(void *arg, const struct block *b);
	void *arg;
	uint32_t left;                 /* victims that it has not met yet */
};

static bool look_at(const struct policy_node *n, void *arg)
{
	struct look *l = arg;

	if (!may_displace(n, NULL))
		return false;
	l->visit(l->arg, block_of_slab_map_node(n));
	return --l->left == 0;
}

static struct disk_class *class_at(const struct cache *c, uint32_t at)
{
	for (uint32_t i = 0; i < c->tier->unit_count; i++)
		for (struct disk_class *k = c->tier->units[i].classes; k; k = k->next)
			if (!at--)
				return k;
	return NULL;
}

bool place_leaving(struct cache *c, uint32_t at, void (*visit)(void *arg, const struct block *b), void *arg)
{
	struct disk_class *k = class_at(c, at);
	struct look l = { visit, arg, 0 };

	if (k && !k->departures)
		k->departures = calloc(1, sizeof(*k->departures));
	if (k && k->departures && !k->failed)
		l.left = departures_soon(k->departures, k->blocks, c->now_us);
	if (l.left)
		policy_look(c->tier->policy, k->policy, look_at, &l, LEAVING_SCAN);
	return k;
}

bool disk_most_of(const struct cache *c, uint32_t i, struct disk_most *out)
{
	if (!c->tier || i >= c->tier->unit_count)
		return false;
	const struct unit *u = &c->tier->units[i];

	*out = (struct disk_most){ (uint32_t)u->configured, u->options->bytes - DISK_SLAB_HEADER_BYTES };
	return true;
}
