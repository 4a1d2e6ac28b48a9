/* Little is known of a class at any one age, so estimates lean on wider ones, in three steps: the
 * hazard (the share that comes back in a bucket of age) of all blocks; of a kind, as a multiple of
 * that; of a class, as a multiple of its kind's. A multiple is learned from all ages together. At ages
 * nobody has reached yet the hazard a bucket stays what it was: as buckets grow, worth falls with age,
 * and the order is that of LRU.
 */
#include "eviction/survival.h"

#include <string.h>

/* Blocks of a request share their fate: the weights, in blocks, are those of a few dozen requests. */
#define LEAN_CLASS 400.0f
#define LEAN_KIND 1000.0f
#define LEAN_MULTIPLE 30.0f    /* in expected hits */
#define HAZARD_FIRST 0.01f
#define HAZARD_MAX 0.95f
#define EVENTS_MAX 4e6f        /* then everything is halved */

enum { UPDATE_ALL_EVERY = 16 };

void survival_init(struct survival *s)
{
	memset(s, 0, sizeof(*s));
}

uint32_t survival_bucket(uint64_t age_us)
{
	uint32_t log, bucket;

	if (age_us >> SURVIVAL_FIRST_LOG == 0)
		return 0;
	log = 63 - (uint32_t)__builtin_clzll(age_us);
	bucket = 1 + 2 * (log - SURVIVAL_FIRST_LOG);
	if (bucket >= SURVIVAL_BUCKETS - 1)
		return SURVIVAL_BUCKETS - 1;
	return bucket + (age_us >= survival_end_us(bucket));
}

uint64_t survival_end_us(uint32_t bucket)
{
	uint64_t octave = (uint64_t)1 << (SURVIVAL_FIRST_LOG + bucket / 2);

	if (bucket >= SURVIVAL_BUCKETS - 1)
		return UINT64_MAX;
	return bucket % 2 ? octave / 181 * 256 : octave; /* 256 / 181 = sqrt(2) */
}

void survival_hit(struct survival *s, uint32_t class, uint32_t bucket)
{
	s->hits[class][bucket] += 1;
	s->changed[class] = true;
	s->events += 1;
}

void survival_pass(struct survival *s, uint32_t class, uint32_t bucket)
{
	s->passes[class][bucket] += 1;
	s->changed[class] = true;
	s->events += 1;
}

static void forget(struct survival *s)
{
	for (int c = 0; c < CLASSES; c++)
		for (int b = 0; b < SURVIVAL_BUCKETS; b++) {
			s->hits[c][b] /= 2;
			s->passes[c][b] /= 2;
		}
	s->events /= 2;
}

/* Adds up the classes [from, to). */
static void add_up(const struct survival *s, int from, int to, float *hits, float *events)
{
	memset(hits, 0, SURVIVAL_BUCKETS * sizeof(*hits));
	memset(events, 0, SURVIVAL_BUCKETS * sizeof(*events));
	for (int c = from; c < to; c++)
		for (int b = 0; b < SURVIVAL_BUCKETS; b++) {
			hits[b] += s->hits[c][b];
			events[b] += s->hits[c][b] + s->passes[c][b];
		}
}

/* out[b]: the hazard of what had these events, leaning on a multiple of `wide`. */
static void lean(const float *hits, const float *events, const float *wide, float weight, float *out)
{
	float came = LEAN_MULTIPLE, expected = LEAN_MULTIPLE, hazard;

	for (int b = 0; b < SURVIVAL_BUCKETS; b++) {
		came += hits[b];
		expected += events[b] * wide[b];
	}
	for (int b = 0; b < SURVIVAL_BUCKETS; b++) {
		hazard = (hits[b] + weight * came / expected * wide[b]) / (events[b] + weight);
		out[b] = hazard < HAZARD_MAX ? hazard : HAZARD_MAX;
	}
}

static void hazard_of_kinds(struct survival *s)
{
	float hits[SURVIVAL_BUCKETS], events[SURVIVAL_BUCKETS], all[SURVIVAL_BUCKETS];

	add_up(s, 0, CLASSES, hits, events);
	for (int b = 0; b < SURVIVAL_BUCKETS; b++) {
		float before = b ? all[b - 1] : HAZARD_FIRST;

		all[b] = (hits[b] + LEAN_KIND * before) / (events[b] + LEAN_KIND);
	}
	for (int k = 0; k < CLASS_KINDS; k++) {
		add_up(s, k * CLASS_GRADES, (k + 1) * CLASS_GRADES, hits, events);
		lean(hits, events, all, LEAN_KIND, s->hazard[k]);
	}
}

static void worth_of(const float *hazard, float *worth)
{
	float seconds[SURVIVAL_BUCKETS];

	for (uint32_t b = 0; b < SURVIVAL_BUCKETS; b++) {
		float from = b ? (float)survival_end_us(b - 1) : 0;
		float to = b < SURVIVAL_BUCKETS - 1 ? (float)survival_end_us(b) : 1.41f * from;

		seconds[b] = (1 - hazard[b] / 2) * (to - from) * 1e-6f;
	}
	for (int b = 0; b < SURVIVAL_BUCKETS; b++) {
		float alive = 1, hits = 0, waited = 0;

		worth[b] = 0;
		for (int k = b; k < SURVIVAL_BUCKETS; k++) {
			hits += alive * hazard[k];
			waited += alive * seconds[k];
			alive *= 1 - hazard[k];
			if (hits > worth[b] * waited)
				worth[b] = hits / waited;
		}
	}
}

void survival_update(struct survival *s)
{
	bool all = s->updates++ % UPDATE_ALL_EVERY == 0;

	if (s->events > EVENTS_MAX)
		forget(s);
	if (all)
		hazard_of_kinds(s);
	for (int c = 0; c < CLASSES; c++) {
		float hits[SURVIVAL_BUCKETS], events[SURVIVAL_BUCKETS], hazard[SURVIVAL_BUCKETS];

		if (!all && !s->changed[c])
			continue;
		s->changed[c] = false;
		add_up(s, c, c + 1, hits, events);
		lean(hits, events, s->hazard[c / CLASS_GRADES], LEAN_CLASS, hazard);
		worth_of(hazard, s->worth[c]);
	}
}
