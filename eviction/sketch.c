/* See sketch.h. */
#include "eviction/sketch.h"

#include <stdlib.h>
#include <string.h>

#include "eviction/hash.h"

enum {
	BANDS = 4,
	WAYS = 4,
	BUCKETS_MIN = 64,
	BUCKETS_MAX = 1 << 16,     /* a band has only so many values */
	LEARNED_MIN = 32,
	LEARNED_MAX = 1024,        /* a vector has at least such a part of the weight in the mean */
};

struct entry {
	uint64_t id, bits;         /* id 0: free */
};

struct bucket {
	_Alignas(64) struct entry way[WAYS]; /* one cache line */
};

_Static_assert(sizeof(struct bucket) == 64, "a cache line");

struct mean {
	uint64_t kind, seen_at;
	uint32_t learned;          /* 0: free */
	float v[SKETCH_BITS];
};

struct sketches {
	uint32_t mask;
	uint64_t clock;            /* vectors seen */
	struct mean mean[SKETCH_MEANS];
	struct bucket *bucket[BANDS];
};

struct sketches *sketches_create(uint32_t blocks)
{
	struct sketches *s = calloc(1, sizeof(*s));
	uint32_t buckets = BUCKETS_MIN;

	if (!s)
		return NULL;
	while (buckets < BUCKETS_MAX && buckets * WAYS < blocks)
		buckets *= 2;
	s->mask = buckets - 1;
	for (uint32_t i = 0; i < BANDS; i++) {
		s->bucket[i] = aligned_alloc(_Alignof(struct bucket), buckets * sizeof(s->bucket[i][0]));
		if (!s->bucket[i]) {
			sketches_destroy(s);
			return NULL;
		}
		/* Takes the pages now: sketches are spread over the whole table, so page faults would otherwise go on
		 * for minutes at a few a second. */
		memset(s->bucket[i], 0, buckets * sizeof(s->bucket[i][0]));
	}
	return s;
}

void sketches_destroy(struct sketches *s)
{
	if (!s)
		return;
	for (uint32_t i = 0; i < BANDS; i++)
		free(s->bucket[i]);
	free(s);
}

static struct mean *mean_of(struct sketches *s, uint64_t kind)
{
	struct mean *oldest = &s->mean[0];

	for (uint32_t i = 0; i < SKETCH_MEANS; i++) {
		struct mean *m = &s->mean[i];

		if (m->learned && m->kind == kind)
			return m;
		if (m->seen_at < oldest->seen_at)
			oldest = m;
	}
	*oldest = (struct mean){ .kind = kind };
	return oldest;
}

uint64_t sketches_bits(struct sketches *s, uint64_t kind, const int8_t v[SKETCH_BITS])
{
	struct mean *m = mean_of(s, kind);
	const float step = 1.0f / (float)(m->learned + 1);
	uint64_t bits = 0;

	for (uint32_t i = 0; i < SKETCH_BITS; i++) {
		bits |= (uint64_t)((float)v[i] > m->v[i]) << i;
		m->v[i] += step * ((float)v[i] - m->v[i]);
	}
	m->seen_at = ++s->clock;
	bits = m->learned < LEARNED_MIN ? 0 : bits ? bits : 1;
	m->learned += m->learned < LEARNED_MAX;
	return bits;
}

static struct bucket *bucket_of(struct sketches *s, uint32_t band, uint64_t bits)
{
	return &s->bucket[band][hash_mix(bits >> 16 * band & 0xffff) & s->mask];
}

static uint32_t near_add(const struct entry *e, uint64_t id, uint64_t bits, struct sketch_near *out, uint32_t found, uint32_t max)
{
	const uint32_t distance = (uint32_t)__builtin_popcountll(e->bits ^ bits);

	if (!e->id || e->id == id || distance > SKETCH_NEAR || found == max)
		return found;
	for (uint32_t i = 0; i < found; i++)
		if (out[i].id == e->id)
			return found;
	out[found] = (struct sketch_near){ e->id, distance };
	return found + 1;
}

/* Puts the newest entry first, and drops an older one of the same id. */
static void bucket_push(struct bucket *b, uint64_t id, uint64_t bits)
{
	uint32_t at = 0;

	while (at < WAYS - 1 && b->way[at].id != id)
		at++;
	memmove(&b->way[1], &b->way[0], at * sizeof(b->way[0]));
	b->way[0] = (struct entry){ id, bits };
}

uint32_t sketches_add(struct sketches *s, uint64_t id, uint64_t bits, struct sketch_near *out, uint32_t max)
{
	uint32_t found = 0;

	for (uint32_t band = 0; band < BANDS; band++) {
		struct bucket *b = bucket_of(s, band, bits);

		for (uint32_t i = 0; i < WAYS; i++)
			found = near_add(&b->way[i], id, bits, out, found, max);
		bucket_push(b, id, bits);
	}
	return found;
}
