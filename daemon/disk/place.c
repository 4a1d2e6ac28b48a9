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
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "eviction/policy.h"
#include "store/crash_point.h"
#include "store/slab/disk.h"
#include "store/status.h"

enum {
	DISPLACE_SCAN = 256,
	DISPLACE_SCAN_DEEP = 8192,     /* when all of those are in memory too; after one that found little, after: */
	DISPLACE_DEEP_US = 50 * 1000,
	FULL_AGAIN_US = 1000 * 1000,   /* the chores are asked again after so long */
	WANTED_US_MAX = 2000 * 1000,   /* they hang, with a disk */
	SLOW_US_MAX = 5000 * 1000,
	WANTS_US = 60 * 1000 * 1000,   /* a class that got no slab counts as in want of one for so long */
	OLDER_US_LEAST = 10 * 1000 * 1000, /* a slab that is taken has been idle so much longer, */
	OLDER_PERCENT = 125,           /* and so much of the own block's time */
	PLAIN_SCAN = 64,               /* of the coldest, for one that was not flushed */
	UNPROMISED_LOOKS = 16,         /* slab maps that a search looks at, if nothing of the first may go */
	GIVEN_LOOKS = 64,              /* the same of the slab maps of which one is to be given up */
};

/* ---- what a tenant may take ---- */

/* For which tenant's block others may go. NULL tenant: there is no table. own: only blocks of the tenant itself. */
struct asker {
	const struct tenant *tenant;
	bool own;
};

static uint64_t lacks(const struct tenant *t)
{
	return t->disk_own > t->disk_bytes ? t->disk_own - t->disk_bytes : 0;
}

/* Bytes of all disks that no tenant has, and that are not kept for another tenant's share. */
static uint64_t spare_for(const struct cache *c, const struct tenant *t)
{
	uint64_t all = 0, gone = 0;

	for (uint32_t i = 0; i < c->tier->unit_count; i++)
		all += c->tier->units[i].failed ? 0 : c->tier->units[i].options->bytes;
	for (uint32_t i = 0; i < c->tenant_count; i++)
		gone += c->tenants[i].disk_bytes + (&c->tenants[i] == t ? 0 : lacks(&c->tenants[i]));
	return all > gone ? all - gone : 0;
}

/* For a block that is to go to a disk, or from slot to slot. All writes under way count as the tenant's. */
static struct asker asker_of(const struct cache *c, const struct block *b)
{
	const struct tenant *t = b->pool->tenant;
	const uint64_t need = b->pool->geometry.need_bytes;
	const uint64_t slot = need + need / 16; /* of the largest class that it joins */
	uint64_t coming = slot;

	if (!c->options.tenant_count)
		return (struct asker){ .tenant = NULL };
	if (b->slab_map) /* it only moves */
		return (struct asker){ .tenant = t };
	for (uint32_t i = 0; i < c->tier->unit_count; i++)
		coming += c->tier->units[i].spilling * slot;
	return (struct asker){
		.tenant = t,
		.own = (t->disk_max && t->disk_bytes + coming > t->disk_max) ||
		       (t->disk_bytes + coming > t->disk_own && spare_for(c, t) < coming),
	};
}

/* Whether the block, which is on a disk, may be displaced. NULL asker: for any tenant. */
static bool asker_may(const struct asker *a, const struct block *b)
{
	const struct tenant *t = b->pool->tenant;

	if (!a || !a->tenant || a->tenant == t)
		return true;
	return !a->own && t->disk_bytes > t->disk_own;
}

/* ---- room ---- */

/* The chores could not make one, or hang. */
static bool slab_in_vain(const struct cache *c, const struct disk_class *k)
{
	return (k->full && c->now_us - k->full_us <= FULL_AGAIN_US) ||
	       (k->wanted && c->now_us - k->wanted_us > WANTED_US_MAX);
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
static bool has_depth(const struct cache *c, const struct spot_search *s, const struct unit *u)
{
	return s->priority != RING_IDLE || 4 * u->spilling < 3 * c->options.disk_depth;
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

static bool gather_cold(const struct policy_node *n, void *arg)
{
	struct disk_class *k = arg;

	if (k->cold_count < CLASS_COLD && may_displace(n, NULL))
		k->cold[k->cold_count++] = n->id;
	return k->cold_count == CLASS_COLD;
}

/* The coldest block of the class that may be displaced. Where many of the coldest are in memory too, a longer search
 * finds some for later. */
static struct block *coldest_of(struct cache *c, struct disk_class *k, struct asker *a)
{
	const struct policy_ops *p = c->tier->policy;
	const struct policy_node *n = p->victim(k->policy, may_displace, a, DISPLACE_SCAN);

	if (n)
		return block_of_slab_map_node(n);
	if (k->cold_at == k->cold_count &&
	    (k->cold_count >= CLASS_COLD / 8 || c->now_us - k->cold_us >= DISPLACE_DEEP_US)) {
		k->cold_us = c->now_us;
		k->cold_at = k->cold_count = 0;
		policy_look(p, k->policy, gather_cold, k, DISPLACE_SCAN_DEEP);
	}
	for (; k->cold_at < k->cold_count; k->cold_at++) {
		struct block *b = by_id_find(c, k->cold[k->cold_at]);

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

static void spot_of(struct block *victim, struct spot *out)
{
	struct slab_map *r = victim->slab_map;

	*out = (struct spot){ .unit = r->class->unit, .slab_map = r, .slot = victim->slab_map_slot, .victim = victim };
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
};

static bool is_wished(const struct slab_map_wish *w, const struct slab_map *r)
{
	if (!r->blocks || r->leaving || (w->unpromised && r->promised))
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

/* The same of those that can be given up now. */
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
 * nothing of them may go now; EXHAUSTED: there are none. own_may: false where the policy found nothing in the own
 * class, since all that was cold was in memory too: then nothing else of it goes for a block that memory has. */
static enum status find_unpromised(struct cache *c, const struct spot_search *s, struct disk_class *wants, bool own_may,
				   struct spot *out)
{
	struct asker a = asker_of(c, s->block);
	const struct slab_map_wish w = { .need_bytes = s->block->pool->geometry.need_bytes, .unpromised = true };
	struct slab_map *r = c->tier->all_promised ? NULL : oldest_after(c, &w, 0);

	if (!r) {
		c->tier->all_promised = true;
		return STATUS_EXHAUSTED;
	}
	for (int i = 0; r && i < UNPROMISED_LOOKS; i++, r = oldest_after(c, &w, r->newest)) {
		const bool own = r->class == class_joined(r->class->unit, w.need_bytes);
		const bool asked = own && own_may && is_asked(s, r->class->unit);
		struct block *victim = asked ? victim_in(r, block_flushed(s->block), &a) : NULL;

		if (victim) {
			spot_of(victim, out);
			return STATUS_OK;
		}
		if (!own && s->grow && !slab_in_vain(c, wants)) {
			slab_want(c, wants, true);
			return STATUS_MISS;
		}
	}
	return STATUS_BUSY;
}

/* ---- 3 and 4 ---- */

/* The coldest over all disks that are asked. *wants: the class of one of them. *limited: one has no depth now. */
static struct block *find_coldest(struct cache *c, const struct spot_search *s, struct disk_class **wants,
				  bool *limited)
{
	struct asker a = asker_of(c, s->block);
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
			coldest = colder(coldest, coldest_of(c, k, &a));
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

static enum status find_victim(struct cache *c, const struct spot_search *s, struct spot *out)
{
	struct asker a = asker_of(c, s->block);
	struct disk_class *wants;
	struct block *coldest, *plain;
	enum status status;
	bool limited;

	coldest = find_coldest(c, s, &wants, &limited);
	if (!wants)
		return s->slow ? STATUS_BUSY : STATUS_EXHAUSTED;
	if (!coldest || block_flushed(coldest)) {
		status = find_unpromised(c, s, wants, coldest || block_flushed(s->block), out);
		if (status == STATUS_OK || status == STATUS_MISS)
			return status;
		if (status == STATUS_BUSY && !block_flushed(s->block))
			return STATUS_EXHAUSTED; /* memory has it: no flushed block goes for it */
		plain = coldest ? plain_beside(c, coldest, &a) : NULL;
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

/* For a tenant that gets no more room: the place of its own coldest block. */
static enum status find_own(struct cache *c, const struct spot_search *s, struct asker *a, struct spot *out)
{
	struct disk_class *wants;
	bool limited;
	struct block *coldest = find_coldest(c, s, &wants, &limited);
	struct block *plain = coldest && block_flushed(coldest) ? plain_beside(c, coldest, a) : NULL;

	if (!coldest)
		return limited || s->slow ? STATUS_BUSY : STATUS_EXHAUSTED;
	return coldest_goes(plain ? plain : coldest, out);
}

enum status spot_find(struct cache *c, struct spot_search *s, struct spot *out)
{
	struct asker a = asker_of(c, s->block);

	if (a.own)
		return find_own(c, s, &a, out);

	const enum status room = find_room(c, s, out);

	return room == STATUS_EXHAUSTED ? find_victim(c, s, out) : room;
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
static bool unit_denies(struct cache *c, struct unit *u, const struct block *b, const struct policy_event *e)
{
	struct disk_class *k = class_joined(u, b->pool->geometry.need_bytes);
	struct asker a = asker_of(c, b);
	const struct policy_node *n;
	uint64_t free_slots;

	if (a.own || !k || !k->full || room_of(c, k, true, &free_slots) != DISK_ROOM_NONE)
		return false;
	if (!slab_in_vain(c, k)) /* until the chores have found a slab it is as full as it was */
		slab_want(c, k, true);
	n = c->tier->policy->victim(k->policy, may_displace, &a, DISPLACE_SCAN);
	return n && (b->unusable || !c->tier->policy->admit(k->policy, e, n));
}

bool spot_denied(struct cache *c, const struct block *b)
{
	const struct policy_event e = {
		.now_us = c->now_us, .id = b->node.id, .tokens = b->tokens, .role = b->role,
		.moved = true, /* a spill is no access */
	};
	bool denied = false;

	for (uint32_t i = 0; (b->unusable || c->tier->policy->admit) && i < c->tier->unit_count; i++) {
		struct unit *u = &c->tier->units[i];

		if (u->failed)
			continue;
		if (!unit_denies(c, u, b, &e))
			return false;
		denied = true;
	}
	return denied;
}

/* ---- slabs that are given up for another class ---- */

/* All of the slab map has been idle for much longer than the block. */
static bool slab_map_older(const struct cache *c, const struct slab_map *r, const struct block *own)
{
	const uint64_t idle = c->now_us - r->newest_us, own_idle = c->now_us - node_of(own)->last_use_us;

	return idle > own_idle + OLDER_US_LEAST && idle / OLDER_PERCENT > own_idle / 100;
}

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
	return r && (!own || slab_map_older(c, r, own)) ? r : NULL;
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

bool disk_most_of(const struct cache *c, uint32_t i, struct disk_most *out)
{
	if (!c->tier || i >= c->tier->unit_count)
		return false;
	const struct unit *u = &c->tier->units[i];

	*out = (struct disk_most){ (uint32_t)u->configured, u->options->bytes - DISK_SLAB_HEADER_BYTES };
	return true;
}
