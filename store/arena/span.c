/* Granules and spans of an arena: which granules are free, where a span can be cut, and the windows and claims by which
 * memory changes from one class to another. See arena.h.
 *
 * A granule is free when its pages are there, no span has it, no class has claimed it, and its extent is not retired.
 * Free granules are counted in the extent and in its tenant. An extent also keeps an upper bound of its longest run of
 * free granules. So an extent that is full or fragmented is skipped without a look at its granules. */
#include "store/arena/arena.h"

#include <stdlib.h>

#include "store/arena/private.h"

enum { RESERVE_PART = 64 };

/* ---- granules ---- */

static bool is_free(const struct arena_extent *e, uint32_t granule)
{
	return granule < e->ready && !e->at_granule[granule].span && !e->at_granule[granule].claim && !e->retired;
}

static void granule_set(struct arena_extent *e, uint32_t granule, struct span *s, struct arena_class *claim)
{
	const bool was = is_free(e, granule);
	int change;

	e->at_granule[granule] = (struct granule){ s, claim };
	change = is_free(e, granule) - was;
	e->free += (uint32_t)change;
	e->tenant->free += (uint64_t)(int64_t)change;
}

/* Raises the bound after granules from `granule` on have become free. */
static void run_grown(struct arena_extent *e, uint32_t granule)
{
	uint32_t first = granule, end = granule;

	while (first > 0 && is_free(e, first - 1))
		first--;
	while (end < e->ready && is_free(e, end))
		end++;
	if (end - first > e->run_most)
		e->run_most = end - first;
}

void arena_granules_free(struct arena_extent *e, uint32_t granule, uint32_t n)
{
	for (uint32_t i = granule; i < granule + n; i++)
		granule_set(e, i, NULL, e->at_granule[i].claim);
	for (uint32_t i = granule; i < granule + n; i++)
		if (is_free(e, i) && (i == granule || !is_free(e, i - 1)))
			run_grown(e, i);
}

void arena_granules_use(struct arena_extent *e, uint32_t granule, uint32_t n, struct span *s)
{
	for (uint32_t i = granule; i < granule + n; i++)
		granule_set(e, i, s, e->at_granule[i].claim);
}

void arena_granules_ready(struct arena_extent *e, uint32_t ready)
{
	const uint32_t from = e->ready;

	e->ready = ready;
	e->free += ready - from;
	e->tenant->free += ready - from;
	e->tenant->unready -= ready - from;
	run_grown(e, from);
}

void arena_granules_retire(struct arena_extent *e, bool retired)
{
	const uint64_t unready = e->granules - e->ready;

	e->tenant->free -= e->free;
	e->free = 0;
	e->run_most = 0;
	e->retired = retired;
	if (retired) {
		e->tenant->unready -= unready;
		return;
	}
	e->tenant->unready += unready;
	for (uint32_t i = 0; i < e->ready; i++)
		e->free += is_free(e, i);
	e->tenant->free += e->free;
	e->run_most = e->free;
}

/* ---- where a span can be cut ---- */

uint64_t arena_has(const struct arena_tenant *t)
{
	return (t->granules + t->coming) * t->arena->granule_bytes;
}

uint64_t arena_room(const struct arena_tenant *t)
{
	const struct arena *a = t->arena;
	const uint64_t has = arena_has(t);
	uint64_t left = a->options.budget_bytes - a->taken_bytes, kept = 0;

	for (const struct arena_tenant *o = a->tenants; o; o = o->next)
		if (o != t && o->own_bytes > arena_has(o))
			kept += o->own_bytes - arena_has(o);
	left = left > kept ? left - kept : 0;
	if (t->most_bytes)
		left = min_u64(left, t->most_bytes > has ? t->most_bytes - has : 0);
	return left;
}

uint64_t arena_unmade(const struct arena_tenant *t)
{
	return t->arena->refused ? 0 : arena_room(t) / t->arena->granule_bytes;
}

uint64_t arena_left(const struct arena_tenant *t)
{
	return t->free + t->unready + t->coming + arena_unmade(t);
}

uint64_t arena_reserve_of(const struct arena_tenant *t)
{
	return max_u64((t->granules + t->coming + arena_unmade(t)) / RESERVE_PART, 1);
}

/* How many free granules may be taken; reserve: of the reserve, too. It looks at all tenants: once a search. */
static uint64_t spare_of(const struct arena_tenant *t, bool reserve)
{
	uint64_t left, kept;

	if (reserve)
		return UINT64_MAX;
	left = arena_left(t);
	kept = arena_reserve_of(t);
	return left > kept ? left - kept : 0;
}

/* The smallest run of at least n free granules of the extent, if it is smaller than *length. */
static bool run_in(struct arena_extent *e, uint32_t n, uint32_t *granule, uint32_t *length)
{
	uint32_t most = 0, run;
	bool found = false;

	for (uint32_t i = 0; i < e->ready; i += run ? run : 1) {
		run = 0;
		while (is_free(e, i + run))
			run++;
		if (run > most)
			most = run;
		if (run >= n && run < *length) {
			*granule = i;
			*length = run;
			found = true;
		}
		if (*length == n)
			return found;
	}
	e->run_most = most;
	return found;
}

bool arena_run_find(const struct arena_class *k, uint32_t n, bool reserve, struct arena_extent **extent,
		    uint32_t *granule)
{
	const struct arena *a = k->arena;
	uint32_t length = UINT32_MAX;

	if (k->tenant->free < n || spare_of(k->tenant, reserve) < n)
		return false;
	for (uint32_t i = 0; i < a->extent_count && length > n; i++) {
		struct arena_extent *e = a->extents[i];

		if (e->tenant != k->tenant || e->free < n || e->run_most < n)
			continue;
		if (run_in(e, n, granule, &length))
			*extent = e;
	}
	return length < UINT32_MAX;
}

/* ---- spans of a class ---- */

/* A span is added at the end, because the spans before it are used up first. */
void arena_span_list(struct span *s)
{
	struct arena_class *k = s->public.class;

	s->prev = k->last;
	s->next = NULL;
	if (k->last)
		k->last->next = s;
	else
		k->first = s;
	k->last = s;
	s->listed = true;
}

void arena_span_unlist(struct span *s)
{
	struct arena_class *k = s->public.class;

	if (s->prev)
		s->prev->next = s->next;
	else
		k->first = s->next;
	if (s->next)
		s->next->prev = s->prev;
	else
		k->last = s->prev;
	s->prev = s->next = NULL;
	s->listed = false;
}

void arena_span_closed(struct span *s, bool closed)
{
	if (s->closed == closed)
		return;
	s->closed = closed;
	if (closed) {
		s->public.class->slots -= s->public.slots;
		if (s->listed)
			arena_span_unlist(s);
	} else {
		s->public.class->slots += s->public.slots;
		if (s->used < s->public.slots)
			arena_span_list(s);
	}
}

/* ---- windows ---- */

static bool may_go(const struct span *s, const struct arena_class *k)
{
	return s->public.class != k && !s->closed && atomic_load_explicit(&s->public.held, memory_order_relaxed) == 0;
}

/* Describes the window that begins at `granule`: the spans in it, their newest use, and its free granules. False:
 * something in it cannot be moved; *next is then the first granule behind that. */
static bool window_at(const struct arena_class *k, const struct arena_extent *e, uint32_t granule,
		      struct arena_window *out, uint32_t *free, uint32_t *next)
{
	const uint32_t end = granule + k->span_granules;
	struct arena_window w = { e->memory.extent.id, granule, k->span_granules, 0, 0 };

	*free = 0;
	for (uint32_t i = granule; i < end; i = *next) {
		const struct granule *g = &e->at_granule[i];
		const struct span *s = g->span;
		uint32_t newest;

		*next = s ? s->public.granule + s->public.granules : i + 1;
		if (g->claim || (s && !may_go(s, k)))
			return false;
		*free += s ? 0 : 1;
		newest = s ? atomic_load_explicit(&s->public.newest, memory_order_relaxed) : 0;
		w.spans += s ? 1 : 0;
		w.newest = newest > w.newest ? newest : w.newest;
	}
	*out = w;
	return true;
}

static bool colder(const struct arena_window *w, const struct arena_window *than)
{
	return than->granules == 0 || w->newest < than->newest || (w->newest == than->newest && w->spans < than->spans);
}

/* As window_at, but also false if the window has more than `spare` free granules, and for a window without any span:
 * free granules need no window. */
static bool window_good(const struct arena_class *k, const struct arena_extent *e, uint32_t granule, uint64_t spare,
			struct arena_window *out, uint32_t *next)
{
	uint32_t free;

	if (!window_at(k, e, granule, out, &free, next))
		return false;
	*next = granule; /* nothing in it is immovable */
	return out->spans > 0 && free <= spare;
}

/* The next granule where a window may begin. Windows begin where spans begin: a window that began inside a span would
 * empty that span as well, and reach further. */
static uint32_t place_after(const struct arena_extent *e, uint32_t granule)
{
	const struct span *s = e->at_granule[granule].span;

	return s ? s->public.granule + s->public.granules : granule + 1;
}

static void coldest_in(const struct arena_class *k, const struct arena_extent *e, uint64_t spare,
		       struct arena_window *best)
{
	struct arena_window w;
	uint32_t next, stays;

	for (uint32_t i = 0; i + k->span_granules <= e->ready; i = next) {
		const bool good = window_good(k, e, i, spare, &w, &stays);

		if (good && colder(&w, best))
			*best = w;
		next = place_after(e, i);
		if (!good && stays > next)
			next = stays; /* every window that begins before `stays` contains the immovable granule */
	}
}

/* The best window of earlier searches, looked at again. */
static void coldest_known(struct arena_class *k, uint64_t spare, struct arena_window *best)
{
	const struct arena_extent *e = k->coldest.granules ? arena_extent_find(k->arena, k->coldest.extent) : NULL;
	uint32_t next;

	if (!e || !window_good(k, e, k->coldest.granule, spare, best, &next))
		best->granules = 0;
}

/* Looks at extents from where the last search stopped; at all of them if nothing is found. */
static void coldest_search(struct arena_class *k, uint64_t spare, struct arena_window *best)
{
	const struct arena *a = k->arena;
	uint32_t place = arena_extent_place(a, k->search_extent), looked = 0;

	for (uint32_t i = 0; i < a->extent_count; i++, place++) {
		const struct arena_extent *e = a->extents[place % a->extent_count];

		if (looked >= ARENA_WINDOW_GRANULES && best->granules > 0)
			break;
		if (e->tenant != k->tenant)
			continue;
		coldest_in(k, e, spare, best);
		looked += e->ready;
	}
	k->search_extent = a->extent_count ? a->extents[place % a->extent_count]->memory.extent.id : 0;
}

enum status arena_window_find(struct arena_class *k, bool reserve, struct arena_window *out)
{
	struct arena_window best = { 0 };

	pthread_mutex_lock(&k->arena->mutex);
	if (k->tenant->spans > k->spans) { /* else no other class has a span */
		const uint64_t spare = spare_of(k->tenant, reserve);

		coldest_known(k, spare, &best);
		coldest_search(k, spare, &best);
	}
	k->coldest = best;
	pthread_mutex_unlock(&k->arena->mutex);
	if (best.granules == 0)
		return STATUS_MISS;
	*out = best;
	return STATUS_OK;
}

/* ---- claims ---- */

/* Closes or opens every span in the claim. */
static void claim_spans_close(const struct arena_class *k, const struct arena_extent *e, bool closed)
{
	const struct arena_window *w = &k->claim;

	for (uint32_t i = w->granule; i < w->granule + w->granules; i++) {
		struct span *s = e->at_granule[i].span;

		if (s && (i == w->granule || e->at_granule[i - 1].span != s))
			arena_span_closed(s, closed);
	}
}

static void claim_granules(struct arena_class *k, struct arena_extent *e, bool on)
{
	const struct arena_window *w = &k->claim;

	for (uint32_t i = w->granule; i < w->granule + w->granules; i++)
		granule_set(e, i, e->at_granule[i].span, on ? k : NULL);
	for (uint32_t i = w->granule; !on && i < w->granule + w->granules; i++)
		if (is_free(e, i) && (i == w->granule || !is_free(e, i - 1)))
			run_grown(e, i);
}

enum status arena_claim(struct arena_class *k, const struct arena_window *w)
{
	enum status s = STATUS_BUSY;
	struct arena_window now;
	struct arena_extent *e;
	uint32_t next;

	pthread_mutex_lock(&k->arena->mutex);
	e = arena_extent_find(k->arena, w->extent);
	if (e && e->tenant == k->tenant && k->claim.granules == 0 && w->granule < e->ready &&
	    k->span_granules <= e->ready - w->granule && window_good(k, e, w->granule, UINT64_MAX, &now, &next)) {
		k->claim = now;
		k->coldest.granules = 0;
		claim_spans_close(k, e, true);
		claim_granules(k, e, true);
		s = STATUS_OK;
	}
	pthread_mutex_unlock(&k->arena->mutex);
	return s;
}

/* Counts the spans that are left in the claim, and their newest use. */
static void claim_look(const struct arena_class *k, struct arena_window *out)
{
	const struct arena_extent *e = arena_extent_find(k->arena, k->claim.extent);

	*out = k->claim;
	out->spans = out->newest = 0;
	for (uint32_t i = out->granule; i < out->granule + out->granules; i++) {
		const struct span *s = e->at_granule[i].span;
		uint32_t newest;

		if (!s || (i > out->granule && e->at_granule[i - 1].span == s))
			continue;
		newest = atomic_load_explicit(&s->public.newest, memory_order_relaxed);
		out->spans++;
		out->newest = newest > out->newest ? newest : out->newest;
	}
}

bool arena_claimed(struct arena_class *k, struct arena_window *out)
{
	bool has;

	pthread_mutex_lock(&k->arena->mutex);
	has = k->claim.granules > 0;
	if (has)
		claim_look(k, out);
	pthread_mutex_unlock(&k->arena->mutex);
	return has;
}

bool arena_claim_free(const struct arena_class *k, struct arena_extent **extent, uint32_t *granule)
{
	struct arena_window left;

	claim_look(k, &left);
	if (left.spans > 0)
		return false;
	*extent = arena_extent_find(k->arena, left.extent);
	*granule = left.granule;
	return true;
}

void arena_claim_end(struct arena_class *k)
{
	struct arena_extent *e;

	if (k->claim.granules == 0)
		return;
	e = arena_extent_find(k->arena, k->claim.extent);
	claim_spans_close(k, e, false);
	claim_granules(k, e, false);
	k->claim.granules = 0;
}

void arena_unclaim(struct arena_class *k)
{
	pthread_mutex_lock(&k->arena->mutex);
	arena_claim_end(k);
	pthread_mutex_unlock(&k->arena->mutex);
}
