/* Records and samples are array elements linked by number; nothing is allocated after memory_init().
 *
 * Samples form a ring by the time of their last access. For each age bucket a cursor stands at the
 * oldest sample that has not outgrown it, and moves on as time passes: that counts each survival once,
 * at a constant cost.
 */
#include "eviction/memory.h"

#include <stdlib.h>
#include <string.h>

#include "eviction/hash.h"

enum {
	REMEMBER = 11,            /* times the capacity: what is live, and ten times as many ghosts */
	RECORDS_MIN = 4096,
	RECORDS_MAX = 1 << 28,
	SAMPLES_MAX = 1 << 17,
};

bool memory_init(struct memory *m, uint64_t capacity)
{
	uint64_t records = capacity < RECORDS_MAX / REMEMBER ? capacity * REMEMBER : RECORDS_MAX;
	uint32_t buckets = 1;

	memset(m, 0, sizeof(*m));
	m->records_max = records < RECORDS_MIN ? RECORDS_MIN : (uint32_t)records;
	while (buckets < m->records_max)
		buckets *= 2;
	m->sample_every = 1;
	while (m->records_max / m->sample_every > SAMPLES_MAX / 2)
		m->sample_every *= 2;
	m->samples_max = m->sample_every == 1 ? m->records_max : SAMPLES_MAX;
	m->lru_max = (uint32_t)(capacity / m->sample_every);
	m->mask = buckets - 1;
	m->records = calloc((uint64_t)m->records_max + 1, sizeof(m->records[0]));
	m->buckets = calloc(buckets, sizeof(m->buckets[0]));
	m->samples = calloc((uint64_t)m->samples_max + 1, sizeof(m->samples[0]));
	if (!m->records || !m->buckets || !m->samples) {
		memory_fini(m);
		return false;
	}
	m->free_sample = 1;
	for (uint32_t i = 1; i < m->samples_max; i++)
		m->samples[i].younger = i + 1;
	survival_init(&m->survival);
	return true;
}

void memory_fini(struct memory *m)
{
	free(m->records);
	free(m->buckets);
	free(m->samples);
	memset(m, 0, sizeof(*m));
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
	while (m->lru_count > m->lru_max) {
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

void memory_advance(struct memory *m, uint64_t now_us)
{
	for (uint32_t b = 0; b + 1 < SURVIVAL_BUCKETS; b++) {
		uint64_t end = survival_end_us(b);

		while (m->cursor[b] && now_us - m->samples[m->cursor[b]].since_us >= end) {
			survival_pass(&m->survival, m->samples[m->cursor[b]].class, b);
			m->cursor[b] = m->samples[m->cursor[b]].younger;
		}
	}
}

/* ---- records ---- */

static void record_unlink(struct memory *m, struct record *r)
{
	m->records[r->older].younger = r->younger;
	m->records[r->younger].older = r->older;
}

static void record_link(struct memory *m, struct record *r)
{
	uint32_t i = (uint32_t)(r - m->records);

	r->older = m->records[0].older;
	r->younger = 0;
	m->records[r->older].younger = i;
	m->records[0].older = i;
}

struct record *memory_find(const struct memory *m, uint64_t id)
{
	uint32_t i = m->buckets[hash_mix(id) & m->mask];

	while (i && m->records[i].id != id)
		i = m->records[i].bucket_next;
	return i ? &m->records[i] : NULL;
}

/* Takes the oldest that is gone, or whatever is oldest if all the oldest are live. */
static struct record *forget(struct memory *m)
{
	struct record *r = &m->records[m->records[0].younger];
	uint32_t *at;

	for (int tries = 0; tries < 64 && (r->flags & RECORD_LIVE); tries++) {
		record_unlink(m, r);
		record_link(m, r);
		r = &m->records[m->records[0].younger];
	}
	sample_drop(m, r);
	record_unlink(m, r);
	at = &m->buckets[hash_mix(r->id) & m->mask];
	while (&m->records[*at] != r)
		at = &m->records[*at].bucket_next;
	*at = r->bucket_next;
	return r;
}

struct record *memory_make(struct memory *m, uint64_t id)
{
	struct record *r = m->records_used < m->records_max ? &m->records[++m->records_used] : forget(m);
	uint32_t *bucket = &m->buckets[hash_mix(id) & m->mask];

	*r = (struct record){ .id = id, .bucket_next = *bucket };
	*bucket = (uint32_t)(r - m->records);
	record_link(m, r);
	return r;
}

static bool to_sample(const struct memory *m, uint64_t id)
{
	return (hash_mix(id) >> 40 & (m->sample_every - 1)) == 0;
}

struct memory_access memory_access(struct memory *m, struct record *r, uint32_t class, uint64_t now_us)
{
	struct memory_access out = { .sampled = r->sample != 0 };
	struct sample *s;

	record_unlink(m, r);
	record_link(m, r);
	r->last_ms = (uint32_t)(now_us / 1000);
	r->class = (uint8_t)class;
	if (r->sample) {
		s = &m->samples[r->sample];
		out.lru_hit = s->in_lru;
		survival_hit(&m->survival, s->class, survival_bucket(now_us - s->since_us));
		sample_unlink(m, r->sample);
	} else if (m->free_sample && to_sample(m, r->id)) {
		r->sample = m->free_sample;
		s = &m->samples[r->sample];
		m->free_sample = s->younger;
	} else {
		return out;
	}
	s->since_us = now_us;
	s->class = (uint8_t)class;
	sample_link(m, r->sample);
	return out;
}
