/* See advice/unusable.h.
 *
 * A block that has left is looked at with all that the graph has behind it, as far as something of it is still there:
 * a walk. If each longer prefix needs the block, all of the walk is unusable; else the walk is looked through from its
 * ends for prefixes that are still usable. If none is left, not even the one that ends with the block, blocks before it
 * are unusable too, up to the first that a usable prefix ends with or needs.
 */
#include "daemon/advice/unusable.h"

#include "daemon/advice/advice.h"
#include "daemon/advice/request.h"
#include "daemon/block/block.h"
#include "daemon/block/by_id.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "eviction/graph_edges.h"

#include <stdlib.h>
#include <string.h>

enum {
	NOTES = 1 << 13,               /* blocks that came or left and were not looked at yet; a power of two */
	WALK = 256,                    /* names of one walk, and of one way back */
	LOOKS = 4096,                  /* for one note; then the rest is left to later notes, or nothing is flagged */
	LOOKS_A_HOLD = 256,            /* of the cache's lock: some 0.1 ms */
	LOOKS_A_PASS = 1 << 16,        /* some ms; the note that exceeds it is the last */
};

#define FAMILY_US (3600ull * 1000 * 1000) /* without a request for so long a family is no more */

enum kind {
	LEFT_PART,                     /* a block has left that some longer prefix may not need */
	LEFT_FULL,                     /* a full block */
	BEHIND,                        /* all behind that name is unusable */
	CAME,
};

struct note {
	uint64_t name;
	uint32_t pool;                 /* number of its layout */
	enum kind kind;
};

/* Names behind one, that one included. */
struct walk {
	uint32_t count, open;          /* open: from this one on, what is behind was not looked at */
	bool whole;                    /* it has all that is there */
	uint64_t name[WALK];
	uint32_t before[WALK];         /* in this walk */
	uint32_t gap[WALK];            /* names in a row, up to this one, without a block of the main layout */
	bool usable[WALK];
};

struct unusable {
	struct note note[NOTES];
	uint32_t first, count;
	bool flags;                    /* there may be unusable blocks */
	struct walk walk, side;
	const struct graph_edges *graph;
	struct family family;          /* that is looked at: a copy, as the lock is left in between */
	uint32_t looks, held;          /* in the index: for one note, in this hold of the lock */
};

struct unusable *unusable_create(void)
{
	return calloc(1, sizeof(struct unusable));
}

void unusable_destroy(struct unusable *u)
{
	free(u);
}

/* ---- families ---- */

/* The layout with the smallest blocks of those whose blocks a prefix needs all. */
static uint32_t main_of(const struct grid *g)
{
	uint32_t best = 0;

	for (uint32_t l = 1; l < g->layouts; l++) {
		const struct grid_rule *a = &g->rule[l], *b = &g->rule[best];

		if (a->need == GRID_ALL && (b->need != GRID_ALL || a->units < b->units))
			best = l;
	}
	return best;
}

/* A request of a plain session has no rules: its layouts' windows give them. */
static void family_make(struct family *f, const struct request *r)
{
	struct kv_layout layouts[CACHE_LAYOUTS_MAX];

	*f = (struct family){ .layouts = r->layouts, .grid = r->grid };
	for (uint32_t l = 0; l < r->layouts; l++) {
		f->pool[l] = r->pool[l];
		layouts[l] = r->pool[l]->layout;
	}
	if (!r->grid.unit && grid_make(&f->grid, 0, layouts, r->layouts, NULL))
		f->layouts = 0;
	f->grid.unit = request_unit(r);
	f->grid.main = main_of(&f->grid);
}

static bool is_same(const struct family *a, const struct family *b)
{
	if (a->layouts != b->layouts || a->grid.unit != b->grid.unit)
		return false;
	for (uint32_t l = 0; l < a->layouts; l++)
		if (a->pool[l] != b->pool[l] || grid_rule_pack(&a->grid.rule[l]) != grid_rule_pack(&b->grid.rule[l]))
			return false;
	return true;
}

void families_note(struct cache *c, const struct request *r)
{
	struct families *all = &c->advice->families;
	struct family *at = &all->at[0];

	family_make(&all->wish, r);
	for (uint32_t i = 0; i < FAMILIES_MAX && !is_same(at, &all->wish); i++)
		if (is_same(&all->at[i], &all->wish) || all->at[i].used_us < at->used_us)
			at = &all->at[i];
	*at = all->wish;
	at->used_us = c->now_us;
}

static bool is_used(const struct cache *c, const struct family *f)
{
	return f->used_us && c->now_us - f->used_us < FAMILY_US;
}

/* The layout's number in the family; f->layouts: it has none. */
static uint32_t number_in(const struct family *f, const struct layout_pool *p)
{
	uint32_t l = 0;

	while (l < f->layouts && f->pool[l] != p)
		l++;
	return l;
}

static bool blocks_all(const struct family *f, uint32_t layout)
{
	return layout < f->layouts && f->grid.rule[layout].need == GRID_ALL;
}

/* Whether some other family has blocks of that layout, and may use those that this one cannot. missing: what each
 * prefix of a family that has it needs; NULL: nothing is known. */
static bool is_used_beside(const struct cache *c, const struct family *f, const struct layout_pool *p,
			   const struct layout_pool *missing)
{
	for (uint32_t i = 0; i < FAMILIES_MAX; i++) {
		const struct family *g = &c->advice->families.at[i];

		if (is_used(c, g) && number_in(g, p) < g->layouts && !is_same(g, f) &&
		    !(missing && blocks_all(g, number_in(g, missing))))
			return true;
	}
	return false;
}

/* ---- what is there ---- */

/* Each look may leave the lock and take it again before it looks. So no block is kept over another look. What changes
 * meanwhile comes with a note of its own. */
static struct block *find(struct cache *c, struct unusable *u, const struct layout_pool *p, uint64_t name)
{
	if (u->held++ >= LOOKS_A_HOLD) {
		cache_unlock(c);
		cache_lock(c);
		u->held = 1;
	}
	u->looks++;
	return by_id_find(c, policy_id(name, p->layout_id));
}

/* Whether the family has a block of that name; flagged: those that are unusable count, too. */
static bool has_any(struct cache *c, struct unusable *u, const struct family *f, uint64_t name, bool flagged)
{
	for (uint32_t l = 0; l < f->layouts; l++) {
		const struct block *b = find(c, u, f->pool[l], name);

		if (b && (flagged || !b->unusable))
			return true;
	}
	return false;
}

static bool has_main(struct cache *c, struct unusable *u, const struct family *f, uint64_t name, bool flagged)
{
	const struct block *b = find(c, u, f->pool[f->grid.main], name);

	return b && (flagged || !b->unusable);
}

/* How many names back from the last one of its prefix the first block stands that the prefix needs of the layout. */
static uint64_t needed_back(const struct family *f, uint32_t layout, const struct block *b, uint32_t *remainder)
{
	const struct grid_rule *r = &f->grid.rule[layout];
	const uint32_t full = b->pool->layout.block_tokens;
	const bool falls_short = r->units == 1 && b->tokens < grid_least(r);
	struct grid_need need;

	*remainder = r->units == 1 || b->tokens >= full ? 0 : b->tokens / f->grid.unit;
	/* Far from the chain's beginning, and where a block of the layout begins. */
	grid_need(r, (uint64_t)r->units << 32, *remainder ? *remainder : r->units, falls_short, &need);
	return need.end - need.from;
}

/* Whether all full blocks are there that a prefix needs of a layout before its last block. */
static bool has_before(struct cache *c, struct unusable *u, const struct layout_pool *p, uint64_t name,
		       uint64_t back, uint32_t remainder, uint32_t units, bool flagged)
{
	uint32_t next = remainder ? remainder : units;

	for (uint64_t at = 1; at < back && at <= WALK; at++) {
		const struct block *b;

		name = graph_edges_before(u->graph, name);
		if (!name) /* the chain's beginning, or it is forgotten */
			return true;
		if (at != next)
			continue;
		next += units;
		b = find(c, u, p, name);
		if (!b || (b->unusable && !flagged))
			return false;
	}
	return true;
}

/* Whether the prefix that ends with that name is usable. Where a rule needs all blocks, and one that is missing would
 * have flagged those behind it, only the last one is looked at. */
static bool is_usable(struct cache *c, struct unusable *u, const struct family *f, uint64_t name, bool flagged)
{
	for (uint32_t l = 0; l < f->layouts; l++) {
		const struct grid_rule *r = &f->grid.rule[l];
		const struct block *b;
		uint32_t remainder;
		uint64_t back;

		if (!r->need)
			continue;
		if (u->looks > LOOKS)
			return true;
		b = find(c, u, f->pool[l], name);
		if (!b || (b->unusable && !flagged))
			return false;
		if (r->need == GRID_ALL && !flagged)
			continue;
		back = needed_back(f, l, b, &remainder);
		if (!has_before(c, u, f->pool[l], name, back, remainder, r->units, flagged))
			return false;
	}
	return true;
}

/* ---- walks ---- */

/* Adds what is behind one name of the walk. */
static void walk_on(struct cache *c, struct unusable *u, const struct family *f, struct walk *w, bool flagged)
{
	const uint32_t from = w->open, units = f->grid.rule[f->grid.main].units;
	uint64_t after[EDGES_OF_NODE];
	bool all;
	const uint32_t n = graph_edges_after(u->graph, w->name[from], after, &all);

	w->whole &= all;
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t gap = has_main(c, u, f, after[i], flagged) ? 0 : w->gap[from] + 1;

		/* Behind a hole all was looked at when the hole came. */
		if (gap >= units && !has_any(c, u, f, after[i], flagged))
			continue;
		w->name[w->count] = after[i];
		w->before[w->count] = from;
		w->gap[w->count] = gap;
		w->usable[w->count++] = false;
	}
	w->open++;
}

/* flagged: unusable blocks are there, too. */
static void walk(struct cache *c, struct unusable *u, const struct family *f, uint64_t name, bool flagged,
		 struct walk *w)
{
	w->count = 1;
	w->open = 0;
	w->whole = true;
	w->name[0] = name;
	w->before[0] = w->gap[0] = 0;
	w->usable[0] = false;
	/* A note that was made of the rest of a walk must get on: one name at least. */
	while (w->open < w->count && w->count + EDGES_OF_NODE <= WALK && (!w->open || u->looks <= LOOKS))
		walk_on(c, u, f, w, flagged);
	w->whole &= w->open == w->count;
}

/* Finds out with which names usable prefixes end or go on: from the ends, as those behind tell of those before. */
static void walk_judge(struct cache *c, struct unusable *u, const struct family *f, struct walk *w, bool flagged)
{
	for (uint32_t i = w->count; i-- > 0;) {
		w->usable[i] = w->usable[i] || is_usable(c, u, f, w->name[i], flagged);
		w->usable[w->before[i]] |= w->usable[i];
	}
}

/* ---- flags ---- */

static void flag(struct cache *c, struct unusable *u, const struct family *f, uint64_t name, bool unusable,
		 const struct layout_pool *missing)
{
	for (uint32_t l = 0; l < f->layouts; l++) {
		struct block *b = find(c, u, f->pool[l], name);

		if (b && b->unusable != unusable && !(unusable && is_used_beside(c, f, f->pool[l], missing)))
			block_unusable(c, b, unusable);
	}
}

static void note_add(struct unusable *u, uint64_t name, uint32_t pool, enum kind kind)
{
	if (u->count < NOTES)
		u->note[(u->first + u->count++) % NOTES] = (struct note){ name, pool, kind };
}

/* The rest of a walk is left to later. */
static void walk_leave(struct unusable *u, const struct walk *w, uint32_t pool, enum kind kind)
{
	for (uint32_t i = w->open; i < w->count; i++)
		note_add(u, w->name[i], pool, kind);
}

static void flag_walk(struct cache *c, struct unusable *u, const struct family *f, const struct walk *w,
		      const struct layout_pool *missing)
{
	for (uint32_t i = 0; i < w->count; i++)
		if (!w->usable[i])
			flag(c, u, f, w->name[i], true, missing);
}

/* Whether a usable prefix goes on from `name` otherwise than by `except`, or may. What goes on there and is unusable is
 * flagged. */
static bool goes_on_beside(struct cache *c, struct unusable *u, const struct family *f, uint64_t name,
			   uint64_t except)
{
	uint64_t after[EDGES_OF_NODE];
	bool all;
	const uint32_t n = graph_edges_after(u->graph, name, after, &all);

	for (uint32_t i = 0; i < n && all; i++) {
		if (after[i] == except)
			continue;
		walk(c, u, f, after[i], false, &u->side);
		walk_judge(c, u, f, &u->side, false);
		if (!u->side.whole || u->looks > LOOKS || u->side.usable[0])
			return true;
		flag_walk(c, u, f, &u->side, NULL);
	}
	return !all;
}

/* No usable prefix ends with that name or goes on from it: what is before it, as far as none does there either. */
static void flag_before(struct cache *c, struct unusable *u, const struct family *f, uint64_t name)
{
	for (uint32_t i = 0; i < WALK; i++) {
		const uint64_t before = graph_edges_before(u->graph, name);
		const struct block *b = before ? find(c, u, f->pool[f->grid.main], before) : NULL;

		if (!before || (b && b->unusable) || is_usable(c, u, f, before, false) ||
		    goes_on_beside(c, u, f, before, name) || u->looks > LOOKS)
			return;
		flag(c, u, f, before, true, NULL);
		name = before;
	}
}

static void left(struct cache *c, struct unusable *u, const struct family *f, const struct note *n)
{
	const struct layout_pool *p = c->pools[n->pool];
	const bool all = n->kind != LEFT_PART && blocks_all(f, number_in(f, p));
	struct walk *w = &u->walk;

	if (n->kind == BEHIND && !all)
		return;
	walk(c, u, f, n->name, false, w);
	if (all)
		walk_leave(u, w, n->pool, BEHIND);
	else if (!w->whole)
		return;
	else
		walk_judge(c, u, f, w, false);
	if (!all && u->looks > LOOKS)
		return;
	flag_walk(c, u, f, w, all ? p : NULL);
	if (!w->usable[0] && n->kind != BEHIND)
		flag_before(c, u, f, n->name);
}

/* ---- what comes back ---- */

/* Whether there is a block of each layout of which a prefix needs all, up to that name, from the chain's beginning or
 * from a usable block on. */
static bool is_reached(struct cache *c, struct unusable *u, const struct family *f, uint64_t name)
{
	uint32_t gap[CACHE_LAYOUTS_MAX] = { 0 };

	for (; name && u->looks <= LOOKS; name = graph_edges_before(u->graph, name)) {
		for (uint32_t l = 0; l < f->layouts; l++) {
			gap[l] = find(c, u, f->pool[l], name) ? 0 : gap[l] + 1;
			if (blocks_all(f, l) && gap[l] >= f->grid.rule[l].units)
				return false;
		}
		if (has_main(c, u, f, name, false))
			return true;
	}
	return true;
}

static void unflag_before(struct cache *c, struct unusable *u, const struct family *f, const struct note *n)
{
	uint64_t name = n->name;

	for (uint32_t i = 0; i < WALK; i++) {
		const struct block *b;

		if (i && u->looks > LOOKS) {
			note_add(u, name, n->pool, CAME);
			return;
		}
		name = graph_edges_before(u->graph, name);
		b = name ? find(c, u, f->pool[f->grid.main], name) : NULL;
		if (!name || (b && !b->unusable))
			return;
		flag(c, u, f, name, false, NULL);
	}
}

static void came(struct cache *c, struct unusable *u, const struct family *f, const struct note *n)
{
	const uint64_t before = graph_edges_before(u->graph, n->name);
	struct walk *w = &u->walk;

	if (!blocks_all(f, f->grid.main) || (before && !is_reached(c, u, f, before)))
		return;
	walk(c, u, f, n->name, true, w);
	for (uint32_t i = w->open; i < w->count; i++)
		w->usable[i] = true; /* it may go on to a usable prefix */
	walk_judge(c, u, f, w, true);
	if (!w->usable[0])
		return;
	for (uint32_t i = w->count; i-- > 0;)
		if (w->usable[i])
			flag(c, u, f, w->name[i], false, NULL);
	unflag_before(c, u, f, n);
	walk_leave(u, w, n->pool, CAME);
}

/* ---- notes ---- */

uint64_t unusable_word(const struct block *b)
{
	return (uint64_t)b->pool->number << 1 | (b->tokens >= b->pool->layout.block_tokens);
}

void unusable_note(struct unusable *u, uint64_t name, uint64_t word, bool live)
{
	u->flags |= !live;
	if (u->flags)
		note_add(u, name, (uint32_t)(word >> 1), live ? CAME : word & 1 ? LEFT_FULL : LEFT_PART);
}

/* It may have come back since, or left again. */
static bool is_so(struct cache *c, struct unusable *u, const struct note *n)
{
	if (n->kind == CAME)
		return c->unusable_blocks;
	return n->kind == BEHIND || !find(c, u, c->pools[n->pool], n->name);
}

static void look_at(struct cache *c, struct unusable *u, const struct note *n)
{
	const struct family *f = &u->family;

	for (uint32_t i = 0; i < FAMILIES_MAX; i++) {
		const struct family *at = &c->advice->families.at[i];

		if (!is_used(c, at) || number_in(at, c->pools[n->pool]) == at->layouts)
			continue;
		u->family = *at;
		if (!is_so(c, u, n))
			return;
		if (n->kind == CAME)
			came(c, u, f, n);
		else if (blocks_all(f, f->grid.main))
			left(c, u, f, n);
	}
}

void unusable_pass(struct cache *c, struct unusable *u, const struct graph_edges *g)
{
	if (!u->count)
		return;
	u->graph = g;
	u->held = 0;
	cache_lock(c);
	for (uint32_t looks = 0; u->count && looks < LOOKS_A_PASS; looks += u->looks + 1) {
		const struct note n = u->note[u->first];

		u->first = (u->first + 1) % NOTES;
		u->count--;
		u->looks = 0;
		u->held++;
		look_at(c, u, &n);
	}
	u->flags = u->count || c->unusable_blocks;
	cache_unlock(c);
	u->graph = NULL;
}
