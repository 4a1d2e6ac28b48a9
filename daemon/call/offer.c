/* See call/offer.h. What is gathered is copied, so that nothing of it is used after the lock has been left: a block may
 * leave at any time before it is lent, and then is not lent. */
#include "daemon/call/offer.h"

#include "daemon/block/block.h"
#include "daemon/block/by_id.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/layout_bytes.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/peer.h"
#include "daemon/block/quota.h"
#include "daemon/block/source.h"
#include "daemon/block/wait.h"
#include "daemon/call/arrival.h"
#include "daemon/call/loan.h"
#include "daemon/disk/state.h"
#include "daemon/exports/exports.h"
#include "daemon/memory/evict.h"
#include "eviction/policy.h"
#include "kernels/format.h"
#include "store/arena/arena.h"
#include "store/index.h"
#include "store/status.h"

#include <stdlib.h>
#include <string.h>

enum {
	LOOK = 2048,                   /* blocks of a class that are looked at */
	BUCKETS_A_LOCK = 4096,
	HOT_MAX = 1 << 20,
	HOT_LOOK = 1024,
};

/* ---- the holder ---- */

/* Blocks of one class while they are gathered. */
struct gather {
	struct cache *cache;
	struct offer *offer;
	uint64_t bytes_max;
	bool disks;                    /* a disk takes blocks */
	bool full;
};

static bool disks_take(const struct cache *c)
{
	for (uint32_t i = 0; c->tier && i < c->tier->unit_count; i++)
		if (!c->tier->units[i].failed)
			return true;
	return false;
}

/* Whether the block would be lost with its copy in memory, and may be offered. Another member's block is not passed on:
 * it could go round for ever. */
static bool is_offerable(const struct gather *g, const struct block *b)
{
	return b->span && block_live(b) && !block_pins(b) && !b->moving && !block_elsewhere(b) && !b->slab_map &&
	       !block_is(b, BLOCK_AT_PEER | BLOCK_FOR_PEER | BLOCK_UNWANTED) && (!g->disks || b->no_spill);
}

/* Takes the block, which goes where the blocks of that segment go (0: not known), into the offer, unless it is full, or
 * of another segment. Other members are told of few blocks: told is the segment of such a one. */
static void take_in(struct gather *g, const struct block *b, uint64_t segment, uint64_t told)
{
	struct offer *o = g->offer;
	struct offer_block *to = &o->block[o->count];

	if (b->pool->geometry.need_bytes > g->cache->options.host_bytes / OFFER_SHARE)
		return; /* no offer ever has room for it */
	g->full = o->bytes + b->pool->geometry.need_bytes > g->bytes_max ||
		  (o->segment && segment && o->segment != segment);
	if (g->full)
		return;
	*to = (struct offer_block){ .id = b->node.id, .generation = b->generation, .segment = told, .pool = b->pool };
	to->name = block_name(b);
	memcpy(to->key, to->name.key, to->name.key_bytes);
	to->name.key = to->key;
	o->segment = o->segment ? o->segment : segment;
	o->bytes += b->pool->geometry.need_bytes;
	g->full = ++o->count == OFFER_BLOCKS_MAX;
}

/* True ends the walk. */
static bool gather_one(const struct policy_node *n, void *arg)
{
	struct gather *g = arg;
	const struct block *b = block_of_node(n);

	if (!g->full && is_offerable(g, b)) {
		const uint64_t segment = exports_segment_of(g->cache, b);

		take_in(g, b, segment, segment);
	}
	return g->full;
}

/* How many of the class's coldest blocks are to have another copy, as disk/spill.c has it. */
static uint32_t cold_wanted(const struct cache *c, const struct memory_class *k)
{
	const uint64_t blocks = memory_class_sums(k).blocks;
	struct arena_class_usage u;

	arena_class_usage(k->arena, &u);
	const uint64_t room = u.room - (blocks < u.room ? blocks : u.room);
	const uint64_t wanted = u.room * c->options.spill_share_milli / 1000;
	const uint64_t n = room < wanted ? wanted - room : 0;

	return n < LOOK ? (uint32_t)n : LOOK;
}

static void gather_cold(struct gather *g, struct memory_class *k)
{
	const uint32_t wanted = cold_wanted(g->cache, k);
	uint32_t looked = 0;

	for (const struct policy_node *n = k->not_admitted; n && looked < wanted && !gather_one(n, g); n = n->next)
		looked++;
	if (!g->full && looked < wanted)
		policy_look(g->cache->policy, k->policy, gather_one, g, wanted - looked);
}

/* A class is of one tenant: the offer is of the first class that has something. */
static void gather(struct gather *g)
{
	struct cache *c = g->cache;

	for (uint32_t i = 0; i < c->class_count && !g->offer->count; i++) {
		gather_cold(g, c->classes[i]);
		if (g->offer->count)
			g->offer->tenant = g->offer->block[0].pool->tenant->number;
	}
}

/* Lends what was gathered. What has left meanwhile is not in the offer. */
static bool lend(struct cache *c, struct offer *o, uint64_t hold_us, uint64_t now_us)
{
	const struct cache_peer peer = { .tenant = o->tenant };
	struct index_ident name[OFFER_BLOCKS_MAX];
	bool lent[OFFER_BLOCKS_MAX];
	struct cache_loan loan;
	const char *why;

	for (uint32_t i = 0; i < o->count; i++)
		name[i] = o->block[i].name;
	const struct cache_loan_call q = {
		.peer = &peer, .name = name, .count = o->count, .hold_us = hold_us, .now_us = now_us, .offered = true
	};

	if (cache_lend(c, &q, &loan, lent, &why) || !loan.handle)
		return false;
	for (uint32_t i = 0; i < o->count; i++)
		if (!lent[i])
			o->block[i].left = true;
	o->loan = loan.handle;
	o->bytes = loan.bytes;
	return true;
}

/* Takes the lock, for gather_end. */
static void gather_begin(struct cache *c, struct gather *g, struct offer *out, uint64_t now_us)
{
	memset(out, 0, sizeof(*out));
	*g = (struct gather){ .cache = c, .offer = out };
	index_read_lock();
	cache_lock(c);
	cache_time(c, now_us);
	g->bytes_max = c->options.host_bytes / OFFER_SHARE;
	g->bytes_max -= c->offered_bytes < g->bytes_max ? c->offered_bytes : g->bytes_max;
	g->disks = disks_take(c);
}

static void gather_end(struct cache *c)
{
	cache_unlock(c);
	index_read_unlock();
}

bool cache_offer_begin(struct cache *c, uint64_t hold_us, uint64_t now_us, struct offer *out)
{
	struct gather g;

	gather_begin(c, &g, out, now_us);
	gather(&g);
	gather_end(c);
	return out->count && lend(c, out, hold_us, now_us);
}

/* ---- what a drain hands on ---- */

static bool is_handed_on(const struct block *b)
{
	return b->span && block_live(b) && !b->moving && !block_is(b, BLOCK_AT_PEER | BLOCK_FOR_PEER | BLOCK_UNWANTED);
}

static int hotter(const void *a, const void *b)
{
	const struct hot_block *x = a, *y = b;

	return (x->used_us < y->used_us) - (x->used_us > y->used_us);
}

/* Adds the blocks of some buckets. False: there is no room for them. With the lock. */
static bool hot_add(const struct cache *c, struct hot_list *out, uint32_t room, uint64_t from)
{
	for (uint64_t i = from; i < from + BUCKETS_A_LOCK && i <= c->by_id_mask; i++)
		for (const struct block *b = c->by_id[i]; b; b = b->id_next) {
			if (!is_handed_on(b))
				continue;
			if (out->count == room)
				return false;
			out->of[out->count++] = (struct hot_block){ b->node.id, b->node.last_use_us };
		}
	return true;
}

bool cache_hot_blocks(struct cache *c, struct hot_list *out)
{
	uint32_t room = 0;

	*out = (struct hot_list){ .of = NULL };
	for (uint64_t from = 0; from <= c->by_id_mask;) {
		const uint32_t had = out->count;
		struct hot_block *more;

		cache_lock(c);
		const bool fits = hot_add(c, out, room, from);

		cache_unlock(c);
		if (fits || room == HOT_MAX) {
			from += BUCKETS_A_LOCK;
			continue;
		}
		out->count = had; /* these buckets again */
		room = room ? 2 * room : BUCKETS_A_LOCK;
		more = realloc(out->of, room * sizeof(*more));
		if (!more) {
			free(out->of);
			*out = (struct hot_list){ .of = NULL };
			return false;
		}
		out->of = more;
	}
	if (out->count)
		qsort(out->of, out->count, sizeof(out->of[0]), hotter);
	return true;
}

/* Few blocks of a chain say where they belong. Those that were used at once are mostly of one chain, so what one of
 * them says holds for all. */
static uint64_t hot_segment(const struct cache *c, struct hot_list *hot, const struct block *b)
{
	const uint64_t own = exports_segment_of(c, b), used_us = hot->of[hot->at].used_us;
	uint32_t i = hot->at;

	if (own || used_us == hot->used_us)
		return own ? own : hot->segment;
	hot->used_us = used_us;
	hot->segment = 0;
	while (i && hot->at - i < HOT_LOOK && hot->of[i - 1].used_us == used_us)
		i--;
	for (; i < hot->count && i < hot->at + HOT_LOOK && hot->of[i].used_us == used_us && !hot->segment; i++) {
		const struct block *other = by_id_find(c, hot->of[i].id);

		hot->segment = other ? exports_segment_of(c, other) : 0;
	}
	return hot->segment;
}

bool cache_offer_hot(struct cache *c, struct hot_list *hot, uint64_t hold_us, uint64_t now_us, struct offer *out)
{
	const uint32_t until = hot->count - hot->at < LOOK ? hot->count : hot->at + LOOK;
	struct gather g;

	gather_begin(c, &g, out, now_us);
	for (; hot->at < until; hot->at++) {
		const struct block *b = by_id_find(c, hot->of[hot->at].id);

		if (!b || !is_handed_on(b))
			continue;
		if (out->count && out->tenant != b->pool->tenant->number)
			break;
		out->tenant = b->pool->tenant->number;
		take_in(&g, b, hot_segment(c, hot, b), exports_segment_of(c, b));
		if (g.full)
			break;
	}
	hot->at += out->count == OFFER_BLOCKS_MAX; /* it has the last one too */
	gather_end(c);
	return out->count && lend(c, out, hold_us, now_us);
}

static bool is_taken(const struct offer_answer *a, uint32_t i)
{
	return i / 8 < a->taken_bytes && a->taken[i / 8] >> i % 8 & 1;
}

uint32_t cache_offer_end(struct cache *c, const struct offer *o, const struct offer_answer *a)
{
	const bool read = cache_loan_return(c, o->tenant, o->loan) == STATUS_OK; /* else it was withdrawn, or is over */
	uint32_t n = 0;

	cache_lock(c);
	for (uint32_t i = 0; i < o->count; i++) {
		struct block *b = o->block[i].left ? NULL : by_id_find(c, o->block[i].id);

		if (!b || !block_live(b) || b->generation != o->block[i].generation)
			continue;
		if (is_taken(a, i))
			where_set(b, BLOCK_AT_PEER, true);
		else if (read && a->had_room)
			where_set(b, BLOCK_UNWANTED, true);
		n += is_taken(a, i);
	}
	cache_unlock(c);
	return n;
}

/* ---- the member that takes ---- */

/* Whether memory can be made for the class. If all of it is in use, growing, which is tried anew each second, brings
 * nothing. */
static bool may_grow(const struct cache *c, const struct memory_class *k)
{
	struct arena_class_usage u;

	arena_class_usage(k->arena, &u);
	return k->grow_refused != c->room_epoch && u.slots < u.room;
}

/* Evicts another member's block for a newer one: the oldest, if it has had its time or has been read back. */
static bool held_gives_way(struct cache *c, const struct memory_class *k)
{
	uint32_t looked = 0;

	for (struct policy_node *n = k->not_admitted; n && looked < OFFER_BLOCKS_MAX; n = n->next, looked++) {
		struct block *b = (struct block *)block_of_node(n);

		if (!block_is(b, BLOCK_FOR_PEER) || block_pins(b) ||
		    (!n->uses && c->now_us - n->last_use_us < OFFER_HELD_US))
			continue;
		room_evict(c, b, COUNTER_EVICTED_FULL);
		return memory_class_has_room(k);
	}
	return false;
}

bool offer_has_room(struct cache *c, const struct layout_pool *p, uint64_t coming)
{
	const uint64_t most = c->options.host_bytes / 1000 * c->options.peer_room_milli;

	if (c->for_peer_bytes + coming + p->geometry.need_bytes > most ||
	    !(memory_class_has_room(p->class) || may_grow(c, p->class)))
		return held_gives_way(c, p->class);
	return true;
}

void offer_enter(struct cache *c, struct block *b, uint64_t position, uint64_t segment)
{
	b->not_admitted = true;
	where_set(b, BLOCK_FOR_PEER, true);
	c->for_peer_bytes += b->pool->geometry.need_bytes;
	block_enter_policy(c, b, position);
	block_no_spill(b, true);
	if (segment)
		exports_tell(c, b, segment);
}

uint64_t cache_offered_held(struct cache *c)
{
	cache_lock(c);
	const uint64_t bytes = c->for_peer_bytes;

	cache_unlock(c);
	return bytes;
}

enum status cache_offered_layout(struct cache *c, uint32_t tenant, const uint8_t *bytes, uint64_t n,
				 struct layout_pool **out, const char **why)
{
	struct tenant *t = tenant_of_number(c, tenant);
	struct quota_holder *h;
	struct kv_layout layout;
	enum status s;

	*why = "layout: it is none that this daemon knows";
	if (!t || !layout_unpack(bytes, n, &layout))
		return STATUS_INVALID;
	*why = "no memory";
	h = quota_join(c->quota, NULL);
	if (!h)
		return STATUS_EXHAUSTED;
	cache_lock(c);
	s = layout_pool_get(c, t, h, &layout, out, why);
	cache_unlock(c);
	quota_leave(h);
	return s;
}

enum status cache_offered_take(struct cache *c, const struct key_run *run, uint64_t now_us, struct cache_wait *w,
			       bool *taken, enum status *result)
{
	bool waits;

	index_read_lock();
	cache_lock(c);
	cache_time(c, now_us);
	if (!w->stage++)
		*result = arrivals_pull(c, run, w);
	waits = wait_goes_on(w);
	for (uint32_t i = 0; i < run->count && !waits; i++) {
		struct index_record *found = index_find(c->index, &run->key[i].name);

		taken[i] = found && block_live(block_of(found));
	}
	cache_unlock(c);
	index_read_unlock();
	return waits ? STATUS_BUSY : STATUS_OK;
}
