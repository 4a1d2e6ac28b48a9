/* The blocks of a request hit or miss together. So a request's leads are summed before they are squared: a long chain
 * counts once. A followed block hits if all followed blocks before it in the chain hit.
 *
 * The accesses of a request are collected until the request is over. Then, as an owner does it: room is made for its
 * blocks from the chain's head on, while the request's own blocks are pinned; and its blocks are used and inserted, the
 * deepest first.
 */
#include "eviction/duel.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "eviction/hash.h"
#include "eviction/lru.h"
#include "eviction/s3fifo.h"
#include "eviction/sieve.h"

enum {
	CAPACITY_MAX = 1024,
	SCAN_MAX = 2 * CAPACITY_MAX,
	TOLD_MAX = 256,           /* followed blocks of a request; a longer one comes in parts, the deepest first */
	EVENTS_DUE = 512,
	EVENTS_MIN = 16384,       /* followed accesses after which the sums are halved; or */
	EVENTS_TURNOVERS = 8,     /* as many times the capacity, if that is more */
	STUCK_HITS = 128,         /* hits of the shadow, after which the cache must have had a part of them */
	STUCK_PART = 4,           /* that part: a fourth */
};

#define SURE 3.0f                 /* standard deviations */
#define WORTH_IT 0.02f            /* share of the hits: a smaller lead is not worth a change */

struct entry {
	uint64_t id;
	uint32_t next;            /* the next in the bucket, or the next free one; 0: none */
	bool pinned;              /* the request that is served has it */
	struct policy_node node[DUEL_ROWS];
};

struct duel {
	const struct policy_ops *ops[DUEL_ROWS];
	struct policy *policy[DUEL_ROWS];
	uint32_t used[DUEL_ROWS], capacity, most; /* most: of the capacity */
	uint64_t mask;            /* bits of the hash: a block is followed if they are 0 */
	struct entry *entries;    /* entry 0 is unused */
	uint32_t *buckets, buckets_mask, free_entry;
	struct duel_standing standing;
	uint32_t unseen;          /* events since the last choice */
	struct policy_event told[TOLD_MAX]; /* the accesses of a request so far, the deepest block first */
	float told_cost[TOLD_MAX];
	bool told_live[TOLD_MAX];
	uint32_t told_at[TOLD_MAX]; /* the numbers of their entries */
	uint32_t told_count;
	float hits[DUEL_ROWS];    /* what the request's hits save, by policy */
	uint32_t blocks[DUEL_ROWS], live; /* since the last check for a stuck hand: blocks that hit, by shadow; blocks
					   * that the real cache had */
	bool full;                /* all shadows have been full once; before that they do not differ */
};

static bool fixed_create(struct duel *d)
{
	static const struct policy_ops *const rows[DUEL_ROWS] = { NULL, &policy_lru, &policy_s3fifo, &policy_sieve };

	for (int r = DUEL_LRU; r < DUEL_ROWS; r++) {
		d->ops[r] = rows[r];
		d->policy[r] = rows[r]->create(d->capacity);
		if (!d->policy[r])
			return false;
	}
	return true;
}

struct duel *duel_create(uint64_t capacity, const struct policy_ops *own, struct policy *own_policy)
{
	struct duel *d = calloc(1, sizeof(*d));
	uint32_t entries;

	if (!d)
		return NULL;
	while (capacity / (d->mask + 1) > CAPACITY_MAX)
		d->mask = 2 * d->mask + 1;
	d->capacity = d->most = (uint32_t)(capacity / (d->mask + 1));
	d->ops[DUEL_OWN] = own;
	d->policy[DUEL_OWN] = own_policy;
	entries = DUEL_ROWS * d->capacity + TOLD_MAX;
	for (d->buckets_mask = 15; d->buckets_mask < entries; d->buckets_mask = 2 * d->buckets_mask + 1)
		;
	d->entries = calloc((size_t)entries + 1, sizeof(d->entries[0]));
	d->buckets = calloc((size_t)d->buckets_mask + 1, sizeof(d->buckets[0]));
	if (!d->entries || !d->buckets || !fixed_create(d)) {
		duel_destroy(d);
		return NULL;
	}
	d->free_entry = 1;
	for (uint32_t i = 1; i < entries; i++)
		d->entries[i].next = i + 1;
	return d;
}

void duel_destroy(struct duel *d)
{
	if (!d)
		return;
	for (int r = DUEL_LRU; r < DUEL_ROWS; r++)
		if (d->policy[r])
			d->ops[r]->destroy(d->policy[r]);
	free(d->entries);
	free(d->buckets);
	free(d);
}

void duel_resize(struct duel *d, uint64_t capacity)
{
	const uint64_t wanted = capacity / (d->mask + 1);

	d->capacity = wanted < d->most ? (wanted ? (uint32_t)wanted : 1) : d->most;
}

uint32_t duel_capacity(const struct duel *d)
{
	return d->capacity;
}

bool duel_follows(const struct duel *d, uint64_t id)
{
	return (hash_mix(id) >> 40 & d->mask) == 0;
}

/* ---- entries ---- */

static uint32_t *bucket_of(const struct duel *d, uint64_t id)
{
	return &d->buckets[hash_mix(id) & d->buckets_mask];
}

static struct entry *entry_find(struct duel *d, uint64_t id)
{
	uint32_t i = *bucket_of(d, id);

	while (i && d->entries[i].id != id)
		i = d->entries[i].next;
	return i ? &d->entries[i] : NULL;
}

static struct entry *entry_make(struct duel *d, uint64_t id)
{
	const uint32_t i = d->free_entry;
	uint32_t *bucket = bucket_of(d, id);

	d->free_entry = d->entries[i].next;
	d->entries[i] = (struct entry){ .id = id, .next = *bucket };
	*bucket = i;
	return &d->entries[i];
}

/* Frees the entry, unless a shadow or the request still has it. */
static void entry_drop(struct duel *d, struct entry *e)
{
	const uint32_t i = (uint32_t)(e - d->entries);
	uint32_t *at = bucket_of(d, e->id);

	for (int r = 0; r < DUEL_ROWS; r++)
		if (e->node[r].prev || e->pinned)
			return;
	while (*at != i)
		at = &d->entries[*at].next;
	*at = e->next;
	e->next = d->free_entry;
	d->free_entry = i;
}

/* ---- shadows ---- */

static struct entry *entry_of(const struct policy_node *n, int r)
{
	return (struct entry *)((char *)(uintptr_t)n - offsetof(struct entry, node) - (size_t)r * sizeof(*n));
}

static bool unpinned(const struct policy_node *n, void *row)
{
	return !entry_of(n, *(int *)row)->pinned;
}

/* Makes room for a block. False: no victim may go, or the policy does not admit the block. If the capacity has shrunk,
 * several victims go. */
static bool make_room(struct duel *d, int r, const struct policy_event *e)
{
	while (d->used[r] >= d->capacity) {
		struct policy_node *v = d->ops[r]->victim(d->policy[r], unpinned, &r, SCAN_MAX);

		if (!v || (d->ops[r]->admit && !d->ops[r]->admit(d->policy[r], e, v)))
			return false;
		d->ops[r]->remove(d->policy[r], v);
		d->used[r]--;
		entry_drop(d, entry_of(v, r));
	}
	return true;
}

/* Serves a request in one shadow. Returns what its hits save. */
static float row_request(struct duel *d, int r)
{
	uint32_t refused = 0;
	float saved = 0;

	for (uint32_t i = d->told_count; i-- > 0 && d->entries[d->told_at[i]].node[r].prev; d->blocks[r]++)
		saved += d->told_cost[i];
	for (uint32_t i = d->told_count; i-- > 0;) {
		if (d->entries[d->told_at[i]].node[r].prev)
			continue;
		if (!make_room(d, r, &d->told[i])) {
			refused = i + 1;
			break;
		}
		d->used[r]++;
	}
	for (uint32_t i = 0; i < d->told_count; i++) {
		struct policy_node *n = &d->entries[d->told_at[i]].node[r];

		if (n->prev)
			d->ops[r]->use(d->policy[r], n, &d->told[i]);
		else if (i >= refused)
			d->ops[r]->insert(d->policy[r], n, &d->told[i]);
	}
	return saved;
}

static void standing_halve(struct duel_standing *s)
{
	s->hits /= 2;
	s->events = 0;
	for (int a = 0; a < DUEL_ROWS; a++) {
		s->lead[a] /= 2;
		for (int b = 0; b < DUEL_ROWS; b++)
			s->variance[a][b] /= 2;
	}
}

static void count(struct duel *d)
{
	struct duel_standing *s = &d->standing;
	const uint32_t turnovers = EVENTS_TURNOVERS * d->capacity;
	bool halve = s->events >= (turnovers > EVENTS_MIN ? turnovers : EVENTS_MIN);

	for (int a = 0; a < DUEL_ROWS; a++) {
		s->lead[a] += d->hits[a] - d->hits[DUEL_OWN];
		for (int b = 0; b < DUEL_ROWS; b++)
			s->variance[a][b] += (d->hits[a] - d->hits[b]) * (d->hits[a] - d->hits[b]);
	}
	s->hits += d->hits[DUEL_OWN];
	if (halve)
		standing_halve(s);
}

static bool are_full(const struct duel *d)
{
	for (int r = 0; r < DUEL_ROWS; r++)
		if (d->used[r] < d->capacity)
			return false;
	return true;
}

/* Pins the request's blocks. An id that occurs twice counts once. */
static void pin(struct duel *d)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < d->told_count; i++) {
		struct entry *e = entry_find(d, d->told[i].id);

		if (e && e->pinned)
			continue;
		e = e ? e : entry_make(d, d->told[i].id);
		e->pinned = true;
		d->told[count] = d->told[i];
		d->told_cost[count] = d->told_cost[i];
		d->told_live[count] = d->told_live[i];
		d->told_at[count++] = (uint32_t)(e - d->entries);
	}
	d->told_count = count;
}

static void blocks_forget(struct duel *d)
{
	memset(d->blocks, 0, sizeof(d->blocks));
	d->live = 0;
}

static void request_finish(struct duel *d)
{
	pin(d);
	if (!d->full)
		blocks_forget(d);
	for (uint32_t i = d->told_count; i-- > 0 && d->told_live[i];)
		d->live++;
	for (int r = 0; r < DUEL_ROWS; r++)
		d->hits[r] = row_request(d, r);
	for (uint32_t i = 0; i < d->told_count; i++)
		d->entries[d->told_at[i]].pinned = false;
	for (uint32_t i = 0; i < d->told_count; i++)
		entry_drop(d, &d->entries[d->told_at[i]]);
	if (d->full) {
		d->standing.events += d->told_count;
		d->unseen += d->told_count;
		count(d);
	}
	d->full = d->full || are_full(d);
	d->told_count = 0;
}

void duel_request_end(struct duel *d)
{
	if (d->told_count)
		request_finish(d);
}

void duel_access(struct duel *d, const struct policy_event *e, float cost, bool live)
{
	if (d->told_count && (e->now_us != d->told[0].now_us || d->told_count == TOLD_MAX))
		request_finish(d);
	d->told_cost[d->told_count] = cost;
	d->told_live[d->told_count] = live;
	d->told[d->told_count++] = *e;
}

/* ---- the choice ---- */

static bool is_better(const struct duel_standing *s, enum duel_row a, enum duel_row b)
{
	const float lead = s->lead[a] - s->lead[b];

	return lead > SURE * sqrtf(s->variance[a][b]) && lead > WORTH_IT * (s->hits + s->lead[b]);
}

bool duel_is_due(const struct duel *d)
{
	return d->unseen >= EVENTS_DUE;
}

/* Drops the lead of sieve if the real cache's hand is stuck: the shadow's hits say nothing about the cache then. */
static void drop_if_stuck(struct duel *d, enum duel_row now)
{
	struct duel_standing *s = &d->standing;

	if (d->blocks[now] < STUCK_HITS)
		return;
	if (now == DUEL_SIEVE && d->live < d->blocks[now] / STUCK_PART)
		s->lead[now] = fminf(s->lead[now], 0);
	blocks_forget(d);
}

static enum duel_row choice(const struct duel *d, enum duel_row now, enum duel_row rest)
{
	const struct duel_standing *s = &d->standing;
	enum duel_row best = rest;

	for (enum duel_row r = DUEL_LRU; r < DUEL_ROWS; r++)
		if (s->lead[r] > s->lead[best])
			best = r;
	if (is_better(s, best, now))
		return best;
	return s->lead[now] > s->lead[rest] ? now : rest;
}

enum duel_row duel_choose(struct duel *d, enum duel_row now, enum duel_row rest)
{
	enum duel_row chosen;

	d->unseen = 0;
	drop_if_stuck(d, now);
	chosen = choice(d, now, rest);
	if (chosen != now)
		blocks_forget(d);
	return chosen;
}

const struct duel_standing *duel_standing(const struct duel *d)
{
	return &d->standing;
}

void duel_set_standing(struct duel *d, const struct duel_standing *s)
{
	d->standing = *s;
}
