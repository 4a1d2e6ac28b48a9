/* This file alone chooses where the bytes of a block come from; sources and tiers bring them.
 *
 * A transfer that brings the block already is joined. Else a source is chosen for a run of names at a time, by the
 * sources' estimates: how long the queue is, and how fast the device has been. When the next run of a long list is
 * chosen for, the run before is in a queue already. So two sources that have the same blocks share them in proportion
 * to their speeds.
 *
 * Computing the tokens anew also has a cost that could be compared, but the daemon cannot ask for it: an engine would
 * have to say how fast it computes. block_source() would compare that cost, for the end of a run.
 *
 * A run that comes from a source which fills reserved slots gets its slots here, in the order of the run. A block that
 * memory has no slot for now is given to its tier, where it waits for one.
 */
#include "daemon/call/source.h"

#include "daemon/block/block.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/source.h"
#include "daemon/block/tier.h"
#include "daemon/block/wait.h"
#include "eviction/policy.h"
#include "store/ring/ring.h"
#include "store/status.h"

#include <stdlib.h>

enum {
	/* Costs that differ by less count as equal: estimates leave out the time to wake a thread, and averages
	 * vary. */
	SAVES_US = 100,
	SAVES_PART = 4,                /* a quarter */
};

/* ---- the choice ---- */

static bool saves(uint64_t us, uint64_t least)
{
	return us + SAVES_US < least && us < least - least / SAVES_PART;
}

/* The source of `which` that brings the names in `of` soonest; of equals the first. */
static uint32_t cheapest(struct cache *c, const struct key_run *of, uint32_t which)
{
	uint64_t least = UINT64_MAX;
	uint32_t best = (uint32_t)__builtin_ctz(which);

	for (uint32_t s = 0; s < c->source_count; s++) {
		struct source_cost cost;

		if (!(which >> s & 1) || !c->sources[s]->ops->estimate(c, c->sources[s], of, &cost))
			continue;
		if (least != UINT64_MAX && !saves(cost.last_us, least))
			continue;
		least = cost.last_us;
		best = s;
	}
	return best;
}

/* Chooses one source for the names of the run that exactly the sources in `which` have. */
static void choose(struct cache *c, const struct key_run *run, const uint8_t *has, uint8_t which, uint8_t *from)
{
	struct run_key key[SOURCE_RUN];
	struct key_run of = { .key = key };
	uint32_t best;

	for (uint32_t i = 0; i < run->count; i++)
		if (has[i] == which)
			key[of.count++] = run->key[i];
	best = cheapest(c, &of, which);
	for (uint32_t i = 0; i < run->count; i++)
		if (has[i] == which)
			from[i] = (uint8_t)best;
}

void block_source(struct cache *c, const struct key_run *run, uint32_t without, uint8_t *from)
{
	uint8_t has[SOURCE_RUN] = { 0 }, word[SOURCE_RUN];

	_Static_assert(SOURCES_MAX <= 8, "a bit each in a byte");
	for (uint32_t s = 0; s < c->source_count; s++) {
		if (without >> s & 1)
			continue;
		c->sources[s]->ops->known(c, c->sources[s], run, word);
		for (uint32_t i = 0; i < run->count; i++)
			has[i] |= (uint8_t)((word[i] == SOURCE_HAS) << s);
	}
	for (uint32_t i = 0; i < run->count; i++)
		from[i] = SOURCE_NONE;
	for (uint32_t i = 0; i < run->count; i++) {
		if (from[i] != SOURCE_NONE || !has[i])
			continue;
		if (has[i] & (has[i] - 1))
			choose(c, run, has, has[i], from);
		else
			from[i] = (uint8_t)__builtin_ctz(has[i]);
	}
}

/* ---- one block ---- */

/* The tier whose copies the source brings. */
static const struct tier_ops *tier_of(const struct cache *c, uint32_t from)
{
	return c->tiers[c->sources[from]->tier];
}

/* Fetches from the cheapest source that can bring the block and is not in `without`. If memory has no place within the
 * effort, no other source is tried. Blocks that the index knows come from its tiers; a source by name only brings new
 * blocks. */
static enum status fetch_without(struct cache *c, struct block *b, const struct fetch_how *how, struct cache_wait *w,
				 uint32_t without)
{
	const struct run_key key = { b->pool, block_name(b), b };
	const struct key_run run = { 1, &key };
	enum status s = STATUS_UNAVAILABLE;
	uint8_t from;

	for (;; without |= 1u << from) {
		block_source(c, &run, without | c->sources_by_name, &from);
		if (from == SOURCE_NONE)
			return s;
		s = tier_of(c, from)->fetch(c, b, how, w);
		if (s == STATUS_OK || s == STATUS_BUSY)
			return s;
	}
}

/* A bit for each source that is a GPU. */
static uint32_t gpus(const struct cache *c)
{
	uint32_t of = 0;

	for (uint32_t s = 0; s < c->source_count; s++)
		of |= (uint32_t)(c->sources[s]->tier == TIER_GPU) << s;
	return of;
}

static bool comes_down(struct cache *c, const struct block *b)
{
	return b->vram && c->tiers[TIER_GPU]->in_flight(c, b);
}

enum status source_fetch(struct cache *c, struct block *b, const struct fetch_how *how, struct cache_wait *w)
{
	bool not_gpu = how->not_gpu;

	if (b->moving)
		return c->tiers[TIER_DISK]->fetch(c, b, how, w);
	if (b->span)
		return STATUS_OK;
	if (comes_down(c, b)) {
		const enum status s = c->tiers[TIER_GPU]->fetch(c, b, how, w);

		if (s == STATUS_OK || s == STATUS_BUSY || !b->slab_map)
			return s;
		not_gpu = true;
	}
	return fetch_without(c, b, how, w, not_gpu ? gpus(c) : 0);
}

enum status source_bring(struct cache *c, struct block *b, enum ring_priority priority, struct cache_wait *w)
{
	return source_fetch(c, b, &(struct fetch_how){ .priority = priority }, w);
}

/* ---- a run of blocks, into slots that are reserved for it ---- */

/* A part of a call's blocks. */
struct bringing {
	struct cache *cache;
	struct cache_wait *wait;
	enum ring_priority priority;
	uint32_t shed;                 /* blocks that do not come */
};

static void slot_give(struct fetch_piece *p)
{
	span_held(p->slot.span, -1);
	memory_slot_give(&p->slot);
}

static void piece_ended(struct cache *c, struct fetch *f, uint32_t i, enum status s)
{
	struct fetch_piece *p = &f->piece[i];

	if (s || !block_live(p->key.block)) {
		slot_give(p);
		return;
	}
	span_held(p->slot.span, -1);
	block_arrive(c, p->key.block, &p->slot, p->position);
}

static void fetch_ended(struct cache *c, struct fetch *f)
{
	(void)c;
	free(f);
}

/* Reserves a slot for the block, and a link that waits for it. EXHAUSTED: memory has none now. */
static enum status piece_reserve(const struct bringing *by, const struct run_key *k, struct fetch_piece *p)
{
	const struct policy_event e = {
		.now_us = by->cache->now_us,
		.id = k->block->node.id,
		.tokens = k->block->tokens,
		.role = k->block->role,
	};
	const struct tier_ops *memory = by->cache->tiers[TIER_MEMORY];
	enum status s;

	k->block->not_admitted = memory->refuses(by->cache, k->pool, &e);
	s = memory->take(by->cache, k->pool->class, TAKE_ANY, &p->slot);
	if (s) {
		room_wants(by->cache); /* the tier asks again, and waits for room */
		return STATUS_EXHAUSTED;
	}
	p->key = *k;
	p->links = wait_link(by->cache, by->wait, k->block);
	if (p->links)
		return STATUS_OK;
	slot_give(p);
	return STATUS_EXHAUSTED;
}

/* Begins to bring one block from that source's tier, which takes the slot itself; SOURCE_NONE: from any tier not in
 * `without`. A block that one call wants twice joins the first transfer. */
static void bring_one(struct bringing *by, struct block *b, uint32_t from, uint32_t without)
{
	const struct fetch_how how = { .priority = by->priority };
	enum status s = STATUS_UNAVAILABLE;

	if (block_live(b) && b->moving)
		s = source_fetch(by->cache, b, &how, by->wait);
	else if (block_live(b) && from != SOURCE_NONE)
		s = tier_of(by->cache, from)->fetch(by->cache, b, &how, by->wait);
	if (block_live(b) && s != STATUS_OK && s != STATUS_BUSY)
		s = fetch_without(by->cache, b, &how, by->wait, without);
	by->shed += s != STATUS_OK;
}

/* Takes back slot and link of a piece that the source did not begin, and begins to bring the block from another
 * source. */
static void piece_refused(struct bringing *by, struct fetch_piece *p, uint32_t from)
{
	slot_give(p);
	p->links->done = true;
	by->wait->outstanding--;
	bring_one(by, p->key.block, SOURCE_NONE, 1u << from);
}

/* Reserves slots for the blocks, all of which come from that source, and begins to fetch them. */
static void bring_reserved(struct bringing *by, uint32_t n, const struct run_key *key, uint32_t from)
{
	struct source *s = by->cache->sources[from];
	struct fetch *f = calloc(1, sizeof(*f) + n * sizeof(f->piece[0]));
	uint32_t at = 0, begun = 0;

	if (!f) {
		by->shed += n;
		return;
	}
	*f = (struct fetch){ .source = s, .priority = by->priority, .piece_ended = piece_ended, .ended = fetch_ended };
	while (at < n && block_live(key[at].block) && !piece_reserve(by, &key[at], &f->piece[at]))
		at++;
	f->count = at;
	if (at)
		s->ops->fetch(by->cache, s, f);
	for (uint32_t i = 0; i < at; i++) {
		begun += !f->piece[i].begun;
		if (f->piece[i].begun)
			piece_refused(by, &f->piece[i], from);
	}
	if (!begun)
		free(f);
	for (; at < n; at++) /* memory has no slot for these now: their tier waits for one */
		bring_one(by, key[at].block, from, 1u << from);
}

static void run_begin(struct bringing *by, const struct key_run *run)
{
	struct run_key key[SOURCE_RUN];
	uint8_t from[SOURCE_RUN];

	block_source(by->cache, run, by->cache->sources_by_name, from);
	for (uint32_t s = 0; s < by->cache->source_count; s++) {
		uint32_t n = 0;

		for (uint32_t i = 0; i < run->count; i++)
			if (from[i] == s)
				key[n++] = run->key[i];
		if (n && by->cache->sources[s]->ops->fetch)
			bring_reserved(by, n, key, s);
		for (uint32_t i = 0; i < n && !by->cache->sources[s]->ops->fetch; i++)
			bring_one(by, key[i].block, s, 1u << s);
	}
	for (uint32_t i = 0; i < run->count; i++)
		by->shed += from[i] == SOURCE_NONE;
}

uint32_t source_bring_run(struct cache *c, uint32_t n, struct block *const *block, enum ring_priority priority,
			  struct cache_wait *w)
{
	struct bringing by = { .cache = c, .wait = w, .priority = priority };
	struct run_key key[SOURCE_RUN];
	struct key_run run = { .key = key };

	for (uint32_t i = 0; i < n; i++) {
		struct block *b = block[i];

		if (!b || b->span)
			continue;
		if (b->moving || comes_down(c, b)) {
			by.shed += source_bring(c, b, priority, w) != STATUS_OK;
			continue;
		}
		key[run.count++] = (struct run_key){ b->pool, block_name(b), b };
		if (run.count < SOURCE_RUN)
			continue;
		run_begin(&by, &run);
		run.count = 0;
	}
	run_begin(&by, &run);
	return by.shed;
}
