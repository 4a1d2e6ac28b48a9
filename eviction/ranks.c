/* See ranks.h. */
#include "eviction/ranks.h"

#include <string.h>

enum {
	LEVELS = 256,                  /* levels of worth, eight an octave */
	LEVEL_LEAST = (127 - 26) << 3, /* 2^-26 hits per second */
};

/* The level of a pair. A float's exponent and first mantissa bits are about its logarithm in eighths of an octave. */
static uint32_t level_of(const struct survival *s, uint32_t pair, bool by_age)
{
	float worth = ranks_worth(s, pair);
	uint32_t bits;

	if (by_age)
		return SURVIVAL_BUCKETS - 1 - pair % SURVIVAL_BUCKETS;
	memcpy(&bits, &worth, sizeof(bits));
	bits >>= 23 - 3;
	return bits < LEVEL_LEAST ? 0 : bits - LEVEL_LEAST < LEVELS ? bits - LEVEL_LEAST : LEVELS - 1;
}

/* A counting sort by level. */
void ranks_make(struct ranks *r, const struct survival *s, const uint16_t *classes, uint32_t count, bool by_age)
{
	uint32_t start[LEVELS + 1] = { 0 };
	uint8_t level[RANKS_PAIRS];

	for (uint32_t c = 0; c < count; c++)
		for (uint32_t i = ranks_pair(classes[c], 0); i < ranks_pair(classes[c] + 1u, 0); i++) {
			level[i] = (uint8_t)level_of(s, i, by_age);
			start[level[i] + 1]++;
		}
	for (uint32_t l = 0; l < LEVELS; l++)
		start[l + 1] += start[l];
	for (uint32_t b = SURVIVAL_BUCKETS; b-- > 0;)
		for (uint32_t c = 0; c < count; c++) {
			uint32_t i = ranks_pair(classes[c], b), at = start[level[i]]++;

			r->rank_of[i] = (uint16_t)at;
			r->pair_at[at] = (uint16_t)i;
		}
	r->count = count * SURVIVAL_BUCKETS;
	r->by_age = by_age;
}

bool ranked_init(struct ranked *r, uint64_t capacity, const struct ranks *ranks)
{
	r->ranks = ranks;
	memset(r->filled, 0, sizeof(r->filled));
	return lines_init(&r->lines, capacity);
}

void ranked_fini(struct ranked *r)
{
	lines_fini(&r->lines);
}

static void filled_set(struct ranked *r, uint32_t pair, bool filled)
{
	const uint32_t rank = r->ranks->rank_of[pair];
	const uint64_t bit = (uint64_t)1 << rank % 64;

	if (filled)
		r->filled[rank / 64] |= bit;
	else
		r->filled[rank / 64] &= ~bit;
}

void ranked_refill(struct ranked *r)
{
	memset(r->filled, 0, sizeof(r->filled));
	for (uint32_t c = 0; c < CLASSES; c++)
		for (uint32_t left = r->lines.line[c].filled; left; left &= left - 1)
			filled_set(r, ranks_pair(c, (uint32_t)__builtin_ctz(left)), true);
}

uint32_t ranked_pair(const struct ranked *r, const struct policy_node *n)
{
	return ranks_pair(lines_class(n), lines_bucket(&r->lines, n));
}

void ranked_push(struct ranked *r, struct policy_node *n, uint32_t class)
{
	lines_push(&r->lines, n, class);
	filled_set(r, ranks_pair(class, 0), true);
}

void ranked_insert(struct ranked *r, struct policy_node *n, uint32_t class, uint64_t used_us)
{
	filled_set(r, ranks_pair(class, lines_insert(&r->lines, n, class, used_us)), true);
}

/* The oldest node of a pair for which `may` is true. */
static struct policy_node *front(struct ranked *r, uint32_t pair, bool (*may)(const struct policy_node *, void *), void *arg, uint32_t *scan)
{
	struct policy_node *n = lines_front(&r->lines, pair / SURVIVAL_BUCKETS, pair % SURVIVAL_BUCKETS);

	if (!n)
		filled_set(r, pair, false);
	for (; n && *scan > 0; n = lines_next(&r->lines, n)) {
		--*scan;
		if (may(n, arg))
			return n;
	}
	return NULL;
}

/* Whether `a` goes before `b`, in one bucket of age. Equally old nodes are of one request: its end, which is worth
 * less, goes first. */
static bool older(const struct ranked *r, const struct survival *s, const struct policy_node *a, const struct policy_node *b)
{
	if (a->last_use_us != b->last_use_us)
		return (int64_t)(a->last_use_us - b->last_use_us) < 0;
	return ranks_worth(s, ranked_pair(r, a)) < ranks_worth(s, ranked_pair(r, b));
}

/* Takes pairs by rank. With an order by age, the pairs of one bucket rank one after the other, and the oldest of their
 * fronts is taken. */
struct policy_node *ranked_victim(struct ranked *r, const struct survival *s, bool (*may)(const struct policy_node *, void *), void *arg,
				  uint32_t scan_max)
{
	struct policy_node *best = NULL, *n;

	for (uint32_t word = 0; word * 64 < r->ranks->count; word++)
		for (uint64_t left = r->filled[word]; left; left &= left - 1) {
			uint32_t pair = r->ranks->pair_at[word * 64 + (uint32_t)__builtin_ctzll(left)];

			if (best && lines_bucket(&r->lines, best) != pair % SURVIVAL_BUCKETS)
				return best;
			n = front(r, pair, may, arg, &scan_max);
			if (n && !r->ranks->by_age)
				return n;
			if (n && (!best || older(r, s, n, best)))
				best = n;
		}
	return best;
}

/* The order in which ranked_victim takes fronts of one bucket. */
static bool goes_before(const struct ranked *r, const struct survival *s, const struct policy_node *a, const struct policy_node *b)
{
	if (older(r, s, a, b))
		return true;
	return !older(r, s, b, a) && r->ranks->rank_of[ranked_pair(r, a)] < r->ranks->rank_of[ranked_pair(r, b)];
}

/* Moves at[i] to its place in a heap whose first is the next to go. */
static void sink(const struct ranked *r, const struct survival *s, struct policy_node *at[], uint32_t count, uint32_t i)
{
	struct policy_node *n = at[i];

	for (uint32_t below = 2 * i + 1; below < count; i = below, below = 2 * i + 1) {
		below += below + 1 < count && goes_before(r, s, at[below + 1], at[below]);
		if (!goes_before(r, s, at[below], n))
			break;
		at[i] = at[below];
	}
	at[i] = n;
}

/* Visits the nodes of the pairs of one bucket. Each pair is a line, and the oldest of their fronts comes next. */
static bool merge(struct ranked *r, const struct survival *s, struct policy_node *at[], uint32_t count,
		  bool (*visit)(const struct policy_node *, void *), void *arg, uint32_t *left)
{
	for (uint32_t i = count / 2; i-- > 0;)
		sink(r, s, at, count, i);
	while (count > 0) {
		struct policy_node *next = lines_next(&r->lines, at[0]);

		if (*left == 0 || visit(at[0], arg))
			return true;
		--*left;
		at[0] = next ? next : at[--count];
		sink(r, s, at, count, 0);
	}
	return false;
}

void ranked_walk(struct ranked *r, const struct survival *s, bool (*visit)(const struct policy_node *, void *), void *arg, uint32_t max)
{
	struct policy_node *at[CLASSES], *n;
	uint32_t count = 0;

	for (uint32_t word = 0; word * 64 < r->ranks->count; word++)
		for (uint64_t left = r->filled[word]; left; left &= left - 1) {
			const uint32_t pair = r->ranks->pair_at[word * 64 + (uint32_t)__builtin_ctzll(left)];

			if (count && (!r->ranks->by_age || lines_bucket(&r->lines, at[0]) != pair % SURVIVAL_BUCKETS)) {
				if (merge(r, s, at, count, visit, arg, &max))
					return;
				count = 0;
			}
			n = lines_front(&r->lines, pair / SURVIVAL_BUCKETS, pair % SURVIVAL_BUCKETS);
			if (n)
				at[count++] = n;
		}
	merge(r, s, at, count, visit, arg, &max);
}
