/* Records and samples are array elements linked by number; nothing is allocated after memory_init().
 *
 * Samples form a ring by the time of their last access. For each age bucket a cursor is at the oldest sample that has
 * not outgrown the bucket, and moves on as time passes. So each survival is counted once, at a constant cost.
 */
#include "eviction/memory.h"

#include <stdlib.h>
#include <string.h>

#include "eviction/hash.h"
#include "eviction/table.h"

enum {
	REMEMBER = 11,            /* times the capacity: the live blocks, and ten times as many that left */
	RECORDS_MIN = 4096,
	RECORDS_MAX = 1 << 28,
	SAMPLES_MAX = (1 << 17) - 1,
	SAMPLE_LEAST = 4,         /* at most one block in so many is a sample: blocks of a request come back together */
	SAMPLE_ALL = 1 << 13,     /* with fewer records every block is a sample */
	HAND_STEPS = 64,
	LRU_STEPS = 64,           /* samples that leave the simulated LRU cache at a time after it has shrunk */
	ADVANCE_MAX = 1 << 16,    /* steps over samples and buckets in one call */
	PENDING_MS = 60 * 1000,
	AGE_MS_MAX = INT32_MAX,   /* 24 days; times are modulo twice that, */
	BEHIND_MS = 60 * 1000,    /* so far an access may be later than the time of the caller that asks */
};

_Static_assert(SAMPLES_MAX < 1 << 17, "record.sample");

bool memory_init(struct memory *m, uint64_t capacity)
{
	uint64_t records = capacity < RECORDS_MAX / REMEMBER ? capacity * REMEMBER : RECORDS_MAX;

	memset(m, 0, sizeof(*m));
	m->records_max = m->records_limit = records < RECORDS_MIN ? RECORDS_MIN : (uint32_t)records;
	m->buckets_count = (uint32_t)((uint64_t)m->records_max * 3 / 4);
	m->sample_every = m->records_max < SAMPLE_ALL ? 1 : SAMPLE_LEAST;
	while (m->records_max / m->sample_every > SAMPLES_MAX / 2)
		m->sample_every *= 2;
	m->samples_max = m->sample_every == 1 ? m->records_max : SAMPLES_MAX;
	m->lru_max = (uint32_t)(capacity / m->sample_every);
	m->records = table_take((uint64_t)m->records_max + 1, sizeof(m->records[0]));
	m->buckets = table_take(m->buckets_count, sizeof(m->buckets[0]));
	m->samples = table_take((uint64_t)m->samples_max + 1, sizeof(m->samples[0]));
	if (!m->records || !m->buckets || !m->samples) {
		memory_fini(m);
		return false;
	}
	m->free_sample = 1;
	for (uint32_t i = 1; i < m->samples_max; i++)
		m->samples[i].younger = i + 1;
	m->hand = 1;
	hazard_init(&m->hazard);
	return true;
}

void memory_fini(struct memory *m)
{
	table_give(m->records, (uint64_t)m->records_max + 1, sizeof(m->records[0]));
	table_give(m->buckets, m->buckets_count, sizeof(m->buckets[0]));
	table_give(m->samples, (uint64_t)m->samples_max + 1, sizeof(m->samples[0]));
	memset(m, 0, sizeof(*m));
}

void memory_resize(struct memory *m, uint64_t capacity)
{
	const uint64_t records = capacity < RECORDS_MAX / REMEMBER ? capacity * REMEMBER : RECORDS_MAX;

	m->records_limit = records < RECORDS_MIN ? RECORDS_MIN : records < m->records_max ? (uint32_t)records : m->records_max;
	m->lru_max = (uint32_t)(capacity / m->sample_every);
}

/* ---- samples ---- */

static void sample_unlink(struct memory *m, uint32_t i)
{
	struct sample *s = &m->samples[i];

	for (int b = 0; b < SURVIVAL_BUCKETS; b++)
		if (m->cursor[b] == i)
			m->cursor[b] = s->younger;
	if (s->in_lru) {
		if (m->lru_oldest == i)
			m->lru_oldest = s->younger;
		m->lru_count--;
		s->in_lru = false;
	}
	m->samples[s->older].younger = s->younger;
	m->samples[s->younger].older = s->older;
}

static void sample_link(struct memory *m, uint32_t i)
{
	struct sample *s = &m->samples[i];

	s->older = m->samples[0].older;
	s->younger = 0;
	m->samples[s->older].younger = i;
	m->samples[0].older = i;
	for (int b = 0; b < SURVIVAL_BUCKETS; b++)
		if (!m->cursor[b])
			m->cursor[b] = i;
	s->in_lru = true;
	if (!m->lru_oldest)
		m->lru_oldest = i;
	m->lru_count++;
	for (int step = 0; m->lru_count > m->lru_max && step < LRU_STEPS; step++) {
		m->samples[m->lru_oldest].in_lru = false;
		m->lru_oldest = m->samples[m->lru_oldest].younger;
		m->lru_count--;
	}
}

static void sample_drop(struct memory *m, struct record *r)
{
	uint32_t i = r->sample;

	if (!i)
		return;
	sample_unlink(m, i);
	r->sample = 0;
	m->samples[i].younger = m->free_sample;
	m->free_sample = i;
}

/* Whether nearly every request holds the block, like the head of a system prompt. Such a block comes back at once,
 * whatever the request is like. If the model learned from it, it would expect the same of all blocks with these
 * features. */
static bool is_in_all(uint32_t features)
{
	return features_step(features, FEATURE_CHILDREN) + 1u == features_steps[FEATURE_CHILDREN] &&
	       features_step(features, FEATURE_USES) + 1u == features_steps[FEATURE_USES];
}

static void lesson_finish(struct memory *m)
{
	struct lesson *l = &m->lesson;

	if (l->blocks)
		hazard_learn(&m->hazard, l->features, l->bucket, l->came, l->weight, l->blocks);
	*l = (struct lesson){ 0 };
}

static void learn(struct memory *m, const struct sample *s, uint32_t bucket, bool came)
{
	struct lesson *l = &m->lesson;

	if (!s->teaches)
		return;
	if (l->features != s->features || l->bucket != bucket || l->came != came || l->since_us != s->since_us)
		lesson_finish(m);
	l->since_us = s->since_us;
	l->features = s->features;
	l->bucket = bucket;
	l->came = came;
	l->weight += s->weight;
	l->blocks++;
}

void memory_advance(struct memory *m, uint64_t now_us)
{
	uint32_t left = ADVANCE_MAX;

	for (uint32_t b = 0; b + 1 < SURVIVAL_BUCKETS; b++) {
		uint64_t end = survival_end_us(b);

		while (m->cursor[b] && now_us - m->samples[m->cursor[b]].since_us >= end) {
			if (left-- == 0)
				return;
			learn(m, &m->samples[m->cursor[b]], b, false);
			m->cursor[b] = m->samples[m->cursor[b]].younger;
		}
	}
}

/* ---- records ---- */

static uint32_t tag_of(uint64_t hash)
{
	return (uint32_t)(hash >> 32);
}

static uint32_t bucket_of(const struct memory *m, uint64_t hash)
{
	return (uint32_t)((hash & UINT32_MAX) * m->buckets_count >> 32);
}

struct record *memory_find(const struct memory *m, uint64_t id)
{
	uint64_t hash = hash_mix(id);
	uint32_t i = m->buckets[bucket_of(m, hash)];

	if (!i)
		return NULL;
	for (; !(i & MEMORY_LAST); i = m->records[i].next)
		if (m->records[i].tag == tag_of(hash))
			return &m->records[i];
	return NULL;
}

void memory_prefetch_bucket(const struct memory *m, uint64_t id)
{
	__builtin_prefetch(&m->buckets[bucket_of(m, hash_mix(id))]);
}

void memory_prefetch_record(const struct memory *m, uint64_t id)
{
	__builtin_prefetch(&m->records[m->buckets[bucket_of(m, hash_mix(id))]]);
}

void memory_prefetch(const struct memory *m, const uint64_t *ids, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		memory_prefetch_bucket(m, ids[i]);
	for (uint32_t i = 0; i < count; i++)
		memory_prefetch_record(m, ids[i]);
}

static void bucket_unlink(struct memory *m, uint32_t number)
{
	uint32_t end = m->records[number].next, *at;

	while (!(end & MEMORY_LAST))
		end = m->records[end].next;
	at = &m->buckets[end & ~MEMORY_LAST];
	if (*at == number && m->records[number].next & MEMORY_LAST) {
		*at = 0;
		return;
	}
	while (*at != number)
		at = &m->records[*at].next;
	*at = m->records[number].next;
}

/* Forgets a record that is not live and was not touched since the hand passed it last. After HAND_STEPS steps it
 * forgets whatever record the hand is at. Returns the number of the freed record. */
static uint32_t forget(struct memory *m)
{
	struct record *r;
	uint32_t number;

	for (int step = 0;; step++) {
		number = m->hand;
		m->hand = m->hand < m->records_used ? m->hand + 1 : 1;
		r = &m->records[number];
		if ((!r->live && !r->touched) || step == HAND_STEPS)
			break;
		r->touched = false;
	}
	sample_drop(m, r);
	bucket_unlink(m, number);
	return number;
}

struct record *memory_make(struct memory *m, uint64_t id)
{
	uint32_t number = m->records_used < m->records_limit ? ++m->records_used : forget(m);
	uint64_t hash = hash_mix(id);
	const uint32_t at = bucket_of(m, hash);
	uint32_t *bucket = &m->buckets[at];
	struct record *r = &m->records[number];

	*r = (struct record){ .tag = tag_of(hash),
			      .next = *bucket ? *bucket : MEMORY_LAST | at };
	*bucket = number;
	return r;
}

static uint8_t flags_of(const struct record *r)
{
	return (uint8_t)((r->sample ? MEMORY_SAMPLED : 0) | (r->spared ? MEMORY_SPARED : 0) | (r->refused ? MEMORY_REFUSED : 0) |
			 (r->touched ? MEMORY_TOUCHED : 0) | (r->again ? MEMORY_AGAIN : 0));
}

static uint32_t age_of(uint64_t now_us, uint32_t last_ms)
{
	const uint32_t age_ms = (uint32_t)(now_us / 1000) - last_ms;

	return age_ms > UINT32_MAX - BEHIND_MS ? 0 : age_ms > AGE_MS_MAX ? AGE_MS_MAX : age_ms;
}

bool memory_keep(const struct memory *m, uint32_t back, uint64_t now_us, struct memory_kept *out)
{
	const uint32_t last = m->hand + m->records_used - 1; /* until a record is forgotten the hand is at the first
							      * one */
	const struct record *r;
	uint32_t end;

	if (back >= m->records_used)
		return false;
	r = &m->records[(last - back - 1) % m->records_used + 1];
	if (!r->uses)
		return false;
	for (end = r->next; !(end & MEMORY_LAST);)
		end = m->records[end].next;
	*out = (struct memory_kept){ .tag = r->tag, .bucket = end & ~MEMORY_LAST, .age_ms = age_of(now_us, r->last_ms), .class = r->class,
				     .uses = r->uses, .children = r->children, .turn = r->turn, .hint = r->hint, .pace = { r->pace[0], r->pace[1] }, .flags = flags_of(r) };
	if (r->sample) {
		out->features = m->samples[r->sample].features;
		out->weight = m->samples[r->sample].weight;
	}
	return true;
}

static bool is_sample(const struct memory *m, uint32_t tag)
{
	return (tag >> 8 & (m->sample_every - 1)) == 0;
}

/* Makes a sample of a recalled record. It is in no order yet: records come in the order in which they were made. */
static void sample_recall(struct memory *m, struct record *r, const struct memory_kept *kept, uint64_t used_us)
{
	const uint32_t i = m->free_sample;

	if (!i || !is_sample(m, r->tag))
		return;
	m->free_sample = m->samples[i].younger;
	m->samples[i] = (struct sample){ .since_us = used_us, .younger = m->recalled, .features = kept->features, .weight = kept->weight,
					 .teaches = !is_in_all(kept->features) };
	m->recalled = i;
	r->sample = i;
}

void memory_recall(struct memory *m, const struct memory_kept *kept, uint64_t now_us, uint64_t idle_us)
{
	const uint64_t whole_ms = idle_us / 1000 + kept->age_ms, age_ms = whole_ms < AGE_MS_MAX ? whole_ms : AGE_MS_MAX;
	struct record *r;
	uint32_t *bucket = &m->buckets[kept->bucket];

	for (uint32_t i = *bucket ? *bucket : MEMORY_LAST; !(i & MEMORY_LAST); i = m->records[i].next)
		if (m->records[i].tag == kept->tag)
			return;
	if (m->records_used == m->records_max)
		return;
	r = &m->records[++m->records_used];
	*r = (struct record){
		.tag = kept->tag, .last_ms = (uint32_t)(now_us / 1000) - (uint32_t)age_ms, .class = kept->class & ((1 << 9) - 1),
		.spared = kept->flags & MEMORY_SPARED, .refused = kept->flags & MEMORY_REFUSED, .touched = kept->flags & MEMORY_TOUCHED,
		.again = kept->flags & MEMORY_AGAIN, .uses = kept->uses, .children = kept->children & RECORD_CHILDREN_MAX, .turn = kept->turn & RECORD_TURN_MAX,
		.hint = kept->hint & 3, .pace = { kept->pace[0], kept->pace[1] },
		.next = *bucket ? *bucket : MEMORY_LAST | kept->bucket,
	};
	*bucket = m->records_used;
	if (kept->flags & MEMORY_SAMPLED)
		sample_recall(m, r, kept, now_us - age_ms * 1000);
}

/* Merges two lists by age, youngest last, into one. */
static uint32_t merged(struct memory *m, uint32_t a, uint32_t b)
{
	uint32_t first = 0, *end = &first;

	while (a && b) {
		uint32_t *from = (int64_t)(m->samples[b].since_us - m->samples[a].since_us) < 0 ? &b : &a;

		*end = *from;
		end = &m->samples[*from].younger;
		*from = *end;
	}
	*end = a ? a : b;
	return first;
}

/* A merge sort: list[n] is empty or has 2^n samples in order. */
static uint32_t sorted(struct memory *m, uint32_t unsorted)
{
	uint32_t list[32] = { 0 }, all = 0;

	while (unsorted) {
		uint32_t one = unsorted, n = 0;

		unsorted = m->samples[one].younger;
		m->samples[one].younger = 0;
		for (; list[n]; n++) {
			one = merged(m, list[n], one);
			list[n] = 0;
		}
		list[n] = one;
	}
	for (uint32_t n = 0; n < 32; n++)
		all = merged(m, list[n], all);
	return all;
}

void memory_settle(struct memory *m, uint64_t now_us)
{
	uint32_t i = sorted(m, m->recalled), younger;

	m->recalled = 0;
	for (; i; i = younger) {
		younger = m->samples[i].younger;
		sample_link(m, i);
	}
	for (uint32_t b = 0; b + 1 < SURVIVAL_BUCKETS; b++)
		while (m->cursor[b] && now_us - m->samples[m->cursor[b]].since_us >= survival_end_us(b))
			m->cursor[b] = m->samples[m->cursor[b]].younger;
}

struct memory_access memory_access(struct memory *m, struct record *r, uint64_t id, uint32_t features,
				   float weight, uint64_t now_us)
{
	struct memory_access out = { .sampled = r->sample != 0 };
	struct sample *s;

	r->touched = r->uses != 0;
	r->pending = true;
	r->last_ms = (uint32_t)(now_us / 1000);
	if (r->sample) {
		s = &m->samples[r->sample];
		out.lru_hit = s->in_lru;
		learn(m, s, survival_bucket(now_us - s->since_us), true);
		sample_unlink(m, r->sample);
	} else if (m->free_sample && is_sample(m, tag_of(hash_mix(id)))) {
		r->sample = m->free_sample;
		s = &m->samples[r->sample];
		m->free_sample = s->younger;
	} else {
		return out;
	}
	s->since_us = now_us;
	s->features = features;
	s->weight = weight;
	s->teaches = !is_in_all(features);
	sample_link(m, r->sample);
	return out;
}

bool memory_is_pending(const struct record *r, uint64_t now_us)
{
	return r->pending && (uint32_t)(now_us / 1000) - r->last_ms < PENDING_MS;
}

uint8_t memory_gap(const struct record *r, uint64_t now_us)
{
	const uint32_t ms = (uint32_t)(now_us / 1000) - r->last_ms;

	return (uint8_t)(survival_bucket((uint64_t)ms * 1000) + 1);
}
