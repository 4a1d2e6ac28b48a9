/* Notes, a queue, a table.
 *
 * Notes are what calls have said of keys: the segment and the position of those that are told of, and of each call's
 * last key, for the call that continues the chain. They are a table with one place for each hash, in which a newer note
 * replaces an older one: a lost note costs a block that is told of later.
 *
 * The queue has blocks that are too young to be told of, in the order of their ages. The table has, by the block's id,
 * what was told of it, so that it can be taken back.
 */
#include "daemon/exports/exports.h"

#include "daemon/block/block.h"
#include "daemon/block/by_id.h"
#include "daemon/block/grid.h"
#include "daemon/block/key.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/tier.h"
#include "daemon/directory/name.h"
#include "daemon/directory/outbox.h"
#include "daemon/directory/segment.h"
#include "store/index.h"

#include <stdlib.h>

enum { NOTES = 1 << 16, YOUNG_MAX = 1 << 16, TABLE_LEAST = 1 << 10, CHANGES_A_TAKE = 1024 };

struct note {
	uint64_t name;                 /* key_name_of(); 0: none */
	uint64_t segment;
	uint32_t position;
	bool told;                     /* its blocks are told of */
	uint32_t keys;                 /* of a lease whose last key it was, */
	uint64_t said;                 /* and by which all of them were told of: said_by(); 0: none */
};

struct young {
	uint64_t id, segment, due_us;
};

struct told {
	uint64_t id;                   /* 0: a free place */
	uint64_t segment;
	struct public_name name;
	uint32_t tenant;               /* its number */
	uint32_t version;              /* of the names, when that was last seen to be one of the block's */
};

struct exports {
	const struct names *names;
	struct note note[NOTES];
	struct young young[YOUNG_MAX];
	uint32_t young_first, young_count;
	struct told *told;             /* [mask + 1] */
	uint64_t mask, count;
	uint64_t removals;             /* rises with each that is taken from the table */
	uint64_t walk_at;              /* places before it have been walked; 0: no walk is under way */
	struct export_change change[EXPORT_CHANGES_MAX];
	uint32_t change_first, change_count;
	bool lost;
};

enum status exports_create(struct cache *c, const struct names *names)
{
	struct exports *e = calloc(1, sizeof(*e));

	if (e)
		e->told = calloc(TABLE_LEAST, sizeof(e->told[0]));
	if (!e || !e->told) {
		free(e);
		return STATUS_EXHAUSTED;
	}
	e->mask = TABLE_LEAST - 1;
	e->names = names;
	c->exports = e;
	return STATUS_OK;
}

void exports_destroy(struct cache *c)
{
	if (c->exports)
		free(c->exports->told);
	free(c->exports);
	c->exports = NULL;
}

/* ---- the table ---- */

static uint64_t place_of(const struct exports *e, uint64_t id)
{
	return (id * 0x9e3779b97f4a7c15ull >> 20) & e->mask;
}

static struct told *told_at(const struct exports *e, uint64_t id)
{
	uint64_t i = place_of(e, id);

	while (e->told[i].id && e->told[i].id != id)
		i = (i + 1) & e->mask;
	return &e->told[i];
}

static bool told_grow(struct exports *e)
{
	const uint64_t places = e->mask + 1;
	struct told *old = e->told, *more = calloc(2 * places, sizeof(*more));

	if (!more)
		return false;
	e->told = more;
	e->mask = 2 * places - 1;
	for (uint64_t i = 0; i < places; i++)
		if (old[i].id)
			*told_at(e, old[i].id) = old[i];
	e->lost |= e->walk_at > 0; /* all have moved: another walk is needed */
	free(old);
	return true;
}

static void change_add(struct exports *e, const struct told *t, bool removed);

/* Frees a place, and moves up what stands behind it because the place was taken. A walk that has not come to it yet
 * would miss what moves to where it has been: that is told of as a change. */
static void told_free(struct exports *e, struct told *t)
{
	uint64_t gap = (uint64_t)(t - e->told);

	for (uint64_t i = (gap + 1) & e->mask; e->told[i].id; i = (i + 1) & e->mask) {
		const uint64_t home = place_of(e, e->told[i].id);

		if (((i - home) & e->mask) < ((i - gap) & e->mask))
			continue;
		if (i >= e->walk_at && gap < e->walk_at)
			change_add(e, &e->told[i], false);
		e->told[gap] = e->told[i];
		gap = i;
	}
	e->told[gap].id = 0;
	e->count--;
	e->removals++;
}

/* ---- changes ---- */

static void change_add(struct exports *e, const struct told *t, bool removed)
{
	if (e->change_count == EXPORT_CHANGES_MAX) {
		e->lost = true;
		return;
	}
	e->change[(e->change_first + e->change_count++) % EXPORT_CHANGES_MAX] =
		(struct export_change){ t->name, t->segment, t->tenant, removed };
}

static uint32_t block_names(const struct exports *e, const struct block *b, struct public_name out[NAMES_SECRETS])
{
	const uint32_t tenant = names_tenant(e->names, b->pool->tenant->number);

	if (tenant == NAMES_NO_TENANT)
		return 0;
	return names_of(e->names, tenant, b->pool->layout_id, block_key(b), block_key_bytes(b), out);
}

/* Tells of a block, unless that was done under a name that it still has. */
static void tell(struct exports *e, const struct block *b, uint64_t segment)
{
	const uint32_t version = (uint32_t)names_version(e->names);
	struct public_name name[NAMES_SECRETS];
	struct told *t = told_at(e, b->node.id);
	uint32_t n;

	if (t->id && t->version == version)
		return;
	n = block_names(e, b, name);
	for (uint32_t i = 0; t->id && i < n; i++)
		if (public_name_equal(&t->name, &name[i])) {
			t->version = version;
			return;
		}
	if (t->id) { /* the secret of its name was dropped */
		change_add(e, t, true);
		told_free(e, t);
	}
	if (!n || e->count == EXPORTS_MAX || (e->count * 4 > e->mask * 3 && !told_grow(e)))
		return;
	t = told_at(e, b->node.id);
	*t = (struct told){ b->node.id, segment, name[0], b->pool->tenant->number, version };
	e->count++;
	change_add(e, t, false);
}

void exports_tell(struct cache *c, const struct block *b, uint64_t segment)
{
	if (c->exports)
		tell(c->exports, b, segment);
}

uint64_t exports_segment_of(const struct cache *c, const struct block *b)
{
	const struct exports *e = c->exports;
	const uint64_t name = e ? key_name_of(b->pool->tenant->number, block_key(b), block_key_bytes(b)) : 0;
	const struct told *t = e ? told_at(e, b->node.id) : NULL;
	const struct note *n = e ? &e->note[name % NOTES] : NULL;

	if (t && t->id)
		return t->segment;
	return n && n->name == name ? n->segment : 0;
}

void exports_removed(struct cache *c, const struct block *b, enum cache_reason reason)
{
	struct exports *e = c->exports;
	struct told *t = e ? told_at(e, b->node.id) : NULL;

	(void)reason;
	if (!t || !t->id)
		return;
	change_add(e, t, true);
	told_free(e, t);
}

/* ---- what is old enough ---- */

/* Tells of the oldest of the young blocks, if it is still there. */
static void young_next(struct cache *c, struct exports *e)
{
	const struct young *y = &e->young[e->young_first];
	struct block *b = by_id_find(c, y->id);

	if (b && block_live(b))
		tell(e, b, y->segment);
	e->young_first = (e->young_first + 1) % YOUNG_MAX;
	e->young_count--;
}

void exports_stored(struct cache *c, const struct block *b)
{
	struct exports *e = c->exports;
	const struct note *n;
	uint64_t name;

	if (!e)
		return;
	name = key_name_of(b->pool->tenant->number, block_key(b), block_key_bytes(b));
	n = &e->note[name % NOTES];
	if (n->name != name || !n->told)
		return;
	if (e->young_count == YOUNG_MAX)
		young_next(c, e);
	e->young[(e->young_first + e->young_count++) % YOUNG_MAX] =
		(struct young){ b->node.id, n->segment, c->now_us + EXPORT_AGE_US };
}

/* ---- what calls say ---- */

bool exports_told(const struct grid *grid, uint64_t position)
{
	if (!grid)
		return (position + 1) % EXPORT_EVERY == 0;
	for (uint32_t l = 0; l < grid->layouts; l++) {
		const struct grid_rule *r = &grid->rule[l];
		const bool state = r->need <= 1; /* the last block alone */

		if (grid_has_cell(r, position) && state)
			return true;
		if (grid_is_full(r, position) && (position + 1) / r->units % EXPORT_EVERY == 0)
			return true;
	}
	return false;
}

uint32_t exports_segment(const struct names *n, uint32_t tenant, const uint8_t *key, uint32_t key_bytes,
			 uint64_t out[NAMES_SECRETS])
{
	const uint32_t index = names_tenant(n, tenant);
	struct public_name name[NAMES_SECRETS];
	const uint32_t count = index == NAMES_NO_TENANT ? 0 : names_of(n, index, 0, key, key_bytes, name);

	for (uint32_t i = 0; i < count; i++)
		out[i] = name[i].word[0];
	return count;
}

/* A chain while its keys are gone through. */
struct walk {
	const struct export_chain *chain;
	uint32_t tenant;
	uint64_t first;                /* position of the call's first key */
	uint64_t segment;              /* of the key at hand, */
	bool known;                    /* if it is known */
	uint64_t begins, ends;         /* positions of the segment: its first key, and the first behind it */
};

static const uint8_t *key_at(const struct export_chain *q, uint64_t i)
{
	return q->keys->bytes + i * q->keys->key_bytes;
}

/* The note of the key before the call's first one; NULL: there is none. */
static const struct note *note_before(const struct exports *e, const struct walk *w)
{
	const struct export_chain *q = w->chain;
	const struct note *n;
	uint64_t name;

	if (!q->parent)
		return NULL;
	name = key_name_of(w->tenant, q->parent, q->parent_bytes);
	n = &e->note[name % NOTES];
	return n->name == name ? n : NULL;
}

static void segment_enter(const struct exports *e, struct walk *w, uint64_t position)
{
	uint64_t names[NAMES_SECRETS];

	w->begins = segment_first(segment_of(position));
	w->ends = segment_first(segment_of(position) + 1);
	w->known = w->begins >= w->first && exports_segment(e->names, w->tenant, key_at(w->chain, w->begins - w->first),
							    w->chain->keys->key_bytes, names);
	if (w->known)
		w->segment = names[0];
}

/* A note of one of the call's first keys, of which one is told of; *at: which key. NULL: there is none. */
static const struct note *note_inside(const struct exports *e, const struct walk *w, uint64_t *at)
{
	for (*at = 0; *at < w->chain->keys->count && *at < EXPORT_EVERY; (*at)++) {
		const uint64_t name = key_name_of(w->tenant, key_at(w->chain, *at), w->chain->keys->key_bytes);
		const struct note *n = &e->note[name % NOTES];

		if (n->name == name && n->position >= *at)
			return n;
	}
	return NULL;
}

/* Finds where the call's first key lies. False: inside a chain, but it is not known where. */
static bool walk_begin(const struct exports *e, struct walk *w)
{
	const bool inside = w->first || w->chain->parent;
	const struct note *by = inside ? note_before(e, w) : NULL;
	uint64_t at = 0, first = by ? by->position + 1ull : 0;

	if (inside && !by) {
		by = note_inside(e, w, &at);
		first = by ? by->position - at : 0;
	}
	if (!w->first && inside && !by)
		return false;
	w->first = w->first ? w->first : first;
	segment_enter(e, w, w->first);
	if (!w->known && by && first == w->first && by->position >= w->begins && by->position < w->ends) {
		w->segment = by->segment;
		w->known = true;
	}
	return true;
}

static void note_key(struct exports *e, const struct walk *w, uint64_t i, bool told)
{
	const uint64_t name = key_name_of(w->tenant, key_at(w->chain, i), w->chain->keys->key_bytes);

	e->note[name % NOTES] = (struct note){ .name = name, .segment = w->segment,
					       .position = (uint32_t)(w->first + i), .told = told };
}

/* A lease has used the blocks of that key: they are told of at once. */
static void used(struct exports *e, const struct walk *w, uint64_t i)
{
	const struct export_chain *q = w->chain;

	for (uint32_t l = 0; l < q->layouts; l++) {
		const struct block *b = q->used[i * q->layouts + l];

		if (b && block_live(b))
			tell(e, b, w->segment);
	}
}

/* Of what is told of these layouts' blocks now: another number when names have changed, or any block was taken back. */
static uint64_t said_by(const struct exports *e, const struct export_chain *q)
{
	uint64_t said = names_version(e->names) ^ e->removals << 20;

	for (uint32_t l = 0; l < q->layouts; l++)
		said = (said ^ q->pools[l]->number) * 0x9e3779b97f4a7c15ull;
	return said | 1;
}

/* The place for a note of the call's last key. Keys name prefixes, so it names the whole chain. */
static struct note *note_last(struct exports *e, const struct walk *w, uint64_t *name)
{
	const struct export_chain *q = w->chain;

	*name = key_name_of(w->tenant, key_at(q, q->keys->count - 1), q->keys->key_bytes);
	return &e->note[*name % NOTES];
}

/* Whether a lease of the same chain, of as many keys at least, has told of its blocks, and none was taken back. */
static bool is_said(struct exports *e, const struct walk *w)
{
	uint64_t name;
	const struct note *n = note_last(e, w, &name);

	return w->chain->used && n->name == name && n->keys >= w->chain->keys->count && n->said == said_by(e, w->chain);
}

static void note_said(struct exports *e, const struct walk *w)
{
	uint64_t name;
	struct note *n = note_last(e, w, &name);

	if (!w->chain->used || n->name != name)
		return;
	n->keys = w->chain->keys->count;
	n->said = said_by(e, w->chain);
}

void exports_named(struct cache *c, const struct export_chain *chain)
{
	struct exports *e = c->exports;
	struct walk w = { .chain = chain, .first = chain->keys->first };
	bool all = true;

	if (!e || !chain->keys->count)
		return;
	w.tenant = chain->pools[0]->tenant->number;
	if (is_said(e, &w) || !walk_begin(e, &w))
		return;
	for (uint64_t i = 0; i < chain->keys->count; i++) {
		const bool last = i + 1 == chain->keys->count;
		const uint64_t position = w.first + i;

		if (position == w.ends)
			segment_enter(e, &w, position);
		const bool told = exports_told(chain->keys->grid, position);

		all &= w.known;
		if (w.known && (told || last))
			note_key(e, &w, i, told);
		if (w.known && told && chain->used)
			used(e, &w, i);
	}
	if (all)
		note_said(e, &w);
}

/* ---- what is about to go ---- */

static void take_back(void *arg, const struct block *b)
{
	struct exports *e = arg;
	struct told *t = told_at(e, b->node.id);

	if (!t->id)
		return;
	change_add(e, t, true);
	told_free(e, t);
}

/* The lock is left after each class, as each may have many blocks that are about to go. */
static void cool_tier(struct cache *c, const struct tier_ops *tier, uint64_t now_us)
{
	bool more = true;

	for (uint32_t at = 0; more; at++) {
		cache_lock(c);
		cache_time(c, now_us);
		more = tier->leaving(c, at, take_back, c->exports);
		cache_unlock(c);
	}
}

void exports_cool(struct cache *c, uint64_t now_us)
{
	for (int i = 0; i < TIER_KINDS; i++)
		if (c->tiers[i] && c->tiers[i]->leaving)
			cool_tier(c, c->tiers[i], now_us);
}

/* ---- the reader ---- */

uint32_t exports_take(struct cache *c, uint64_t now_us, struct export_change *out, uint32_t max, bool *lost)
{
	struct exports *e = c->exports;
	uint32_t n = 0;

	index_read_lock();
	cache_lock(c);
	cache_time(c, now_us);
	for (uint32_t i = 0; i < max && e->young_count && e->young[e->young_first].due_us <= c->now_us; i++)
		young_next(c, e);
	for (; n < max && e->change_count; n++, e->change_count--) {
		out[n] = e->change[e->change_first];
		e->change_first = (e->change_first + 1) % EXPORT_CHANGES_MAX;
	}
	*lost = e->lost && !e->change_count;
	if (*lost)
		e->lost = false;
	cache_unlock(c);
	index_read_unlock();
	return n;
}

uint32_t exports_walk(struct cache *c, uint64_t *at, struct export_change *out, uint32_t max)
{
	struct exports *e = c->exports;
	uint32_t n = 0;

	cache_lock(c);
	for (; *at <= e->mask && n < max; (*at)++) {
		const struct told *t = &e->told[*at];

		if (t->id)
			out[n++] = (struct export_change){ t->name, t->segment, t->tenant, false };
	}
	e->walk_at = n ? *at : 0;
	cache_unlock(c);
	return n;
}

static void tell_outbox(struct outbox *o, const struct export_change *from, uint64_t now_us)
{
	const struct directory_change change = { .name = from->name, .segment = from->segment,
						 .tenant = from->tenant, .remove = from->removed };

	if (from->removed)
		outbox_remove(o, &from->name, now_us);
	else
		outbox_add(o, &change, now_us);
}

/* What was dropped may be removals, so all that is told is taken back first. Of that no message is made, as the caller
 * makes none meanwhile. */
static void tell_all(struct cache *c, struct outbox *o, struct export_change *room, uint64_t now_us)
{
	uint64_t at = 0;
	uint32_t n;

	outbox_remove_all(o, now_us);
	while ((n = exports_walk(c, &at, room, CHANGES_A_TAKE)) > 0)
		for (uint32_t i = 0; i < n; i++)
			tell_outbox(o, &room[i], now_us);
}

bool exports_publish(struct cache *c, uint64_t now_us, struct outbox *o, uint64_t outbox_us)
{
	struct export_change changes[CHANGES_A_TAKE];
	bool lost = false, any_lost = false;
	uint32_t n;

	exports_cool(c, now_us);
	do {
		n = exports_take(c, now_us, changes, CHANGES_A_TAKE, &lost);
		any_lost |= lost;
		for (uint32_t i = 0; i < n; i++)
			tell_outbox(o, &changes[i], outbox_us);
	} while (n == CHANGES_A_TAKE);
	if (any_lost)
		tell_all(c, o, changes, outbox_us);
	return !any_lost;
}
