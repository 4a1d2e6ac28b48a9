/* See advice/wish.h. A queue is an array that is searched from end to end: it is short. */
#include "daemon/advice/wish.h"

#include "daemon/advice/graph.h"
#include "daemon/advice/prefetch_outcome.h"
#include "daemon/advice/request.h"
#include "daemon/block/block.h"
#include "daemon/block/by_id.h"
#include "daemon/block/grid.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"

void wish_end(struct cache *c, struct wish *w)
{
	for (uint32_t i = 0; i < w->kept; i++) {
		struct block *b = by_id_find(c, w->keep[i]);

		if (b && b->wanted)
			b->wanted--;
	}
	w->count = w->begun = w->kept = 0;
}

void wish_drop(struct cache *c, const struct wish_queue *q, struct wish *w)
{
	cache_count(c, q->too_late, w->count - w->begun);
	wish_end(c, w);
}

static struct wish *wish_take(struct cache *c, struct wish_queue *q)
{
	struct wish *w = &q->wish[0];

	for (uint32_t i = 0; i < q->size; i++) {
		if (!q->wish[i].count)
			return &q->wish[i];
		if (q->wish[i].until_us < w->until_us)
			w = &q->wish[i];
	}
	wish_drop(c, q, w);
	return w;
}

struct wish *wish_begin(struct cache *c, struct wish_queue *q, const struct request *r, enum prefetch_kind kind)
{
	struct wish *w = wish_take(c, q);

	w->kind = kind;
	w->whole = r->whole;
	w->part = r->present ? r->part : r->whole;
	w->until_us = c->now_us + (kind == PREFETCH_ASKED ? PREFETCH_ASKED_US : q->expected_us);
	return w;
}

static struct block *named(struct cache *c, const struct request *r, uint32_t layout, uint64_t name)
{
	return by_id_find(c, policy_id(name, r->pool[layout]->layout_id));
}

static void add_named(struct cache *c, const struct request *r, struct wish *w, uint32_t layout, uint64_t name,
		      wish_add_fn *add)
{
	add(c, w, named(c, r, layout, name));
}

/* Calls `add` with the blocks that a Lease of the prefix that was found needs, in a session with a grid. */
static void fill_asked_cells(struct cache *c, const struct request *r, struct wish *w, wish_add_fn *add)
{
	struct grid_need need[CACHE_LAYOUTS_MAX];

	for (uint32_t p = 0; r->present && p < r->layouts; p++) {
		const struct block *last = named(c, r, p, r->name[r->present - 1]);

		grid_need(&r->grid.rule[p], r->first, r->present, cell_falls_short(&r->grid.rule[p], last), &need[p]);
	}
	for (uint32_t i = 0; i < r->present; i++)
		for (uint32_t p = 0; p < r->layouts; p++)
			if (grid_needs(&need[p], (uint64_t)r->first + i))
				add_named(c, r, w, p, r->name[i], add);
}

void wish_fill_asked(struct cache *c, const struct request *r, struct wish *w, wish_add_fn *add)
{
	if (r->grid.unit) {
		fill_asked_cells(c, r, w, add);
		return;
	}
	uint32_t first[CACHE_LAYOUTS_MAX];

	for (uint32_t p = 0; r->present && p < r->layouts; p++) {
		struct prefix_run run;

		prefix_layout(&run, r->pool[p]);
		first[p] = prefix_first(r->present, prefix_need(&run, named(c, r, p, r->name[r->present - 1])));
	}
	for (uint32_t i = 0; i < r->present; i++)
		for (uint32_t p = 0; p < r->layouts; p++)
			if (i >= first[p])
				add_named(c, r, w, p, r->name[i], add);
}

static bool asked_for(const struct request *r, uint64_t name)
{
	for (uint32_t i = 0; i < r->count; i++)
		if (r->name[i] == name)
			return true;
	return false;
}

static void fill_expected(struct cache *c, const struct request *r, struct wish *w, wish_add_fn *add)
{
	const struct advice_list *l = advisor_list(c, r);

	/* A sparse layout is left out: a prefix needs its blocks at the end alone, and where the end will be is not
	 * known. */
	for (uint32_t i = 0; l && i < l->count; i++)
		for (uint32_t p = 0; p < r->layouts && !asked_for(r, l->name[i]); p++)
			if (!r->grid.unit || !r->grid.rule[p].sparse)
				add_named(c, r, w, p, l->name[i], add);
}

void wish_fill(struct cache *c, const struct request *r, struct wish *w, wish_add_fn *add)
{
	if (w->kind == PREFETCH_ASKED)
		wish_fill_asked(c, r, w, add);
	else
		fill_expected(c, r, w, add);
}

void wish_grant(struct cache *c, struct wish *w, struct prefetch_outcome *outcome, uint32_t trial,
		enum counter unverified)
{
	const uint32_t most = w->count ? prefetch_outcome_grants(outcome, trial) : 0;

	if (w->count <= most)
		return;
	cache_count(c, unverified, w->count - most);
	w->count = most;
}

void wish_leased(struct cache *c, struct wish_queue *q, const struct request *r)
{
	for (uint32_t i = 0; i < q->size; i++) {
		struct wish *w = &q->wish[i];

		if (w->count && w->kind == PREFETCH_ASKED && (w->whole == r->whole || w->part == r->whole))
			wish_drop(c, q, w);
	}
}

bool wish_affords(const struct cache *c, struct wish_queue *q, uint64_t rate, uint64_t bytes)
{
	const uint64_t most = rate / 4 > bytes ? rate / 4 : bytes, passed = c->now_us - q->budget_us;

	/* What a second brings is more than may be saved. */
	q->budget_bytes += passed < 1000000 ? rate * passed / 1000000 : rate;
	q->budget_us = c->now_us;
	if (q->budget_bytes > most)
		q->budget_bytes = most;
	return q->budget_bytes >= bytes;
}
