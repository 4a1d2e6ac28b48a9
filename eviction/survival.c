/* A class is made of the two numbers that an eviction compares: the worth of a newcomer, and that of a block which has
 * been there for a while.
 */
#include "eviction/survival.h"

#include <math.h>
#include <string.h>

enum {
	LATER_BUCKET = 13,     /* ages from 34 to 47 s */
	LEVEL_LEAST = -40,     /* 2^-20 hits per second */
	SLOPE_LEAST = -8,
	TOLD_MAX = 50,         /* a small bound: the mean follows the model's present predictions */
};

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

void survival_worth(const float hazard[SURVIVAL_BUCKETS], float worth[SURVIVAL_BUCKETS])
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

static uint32_t step(float log, int least, int count)
{
	int at = (int)floorf(log) - least;

	return (uint32_t)(at < 0 ? 0 : at >= count ? count - 1 : at);
}

/* The mean over hits, not over blocks: blocks that come back often count more. */
float survival_cost(const struct survival *s, uint32_t class)
{
	return s->hits[class] > 0 ? s->saved[class] / s->hits[class] : 1;
}

uint32_t survival_class(struct survival *s, const float hazard[SURVIVAL_BUCKETS], float cost)
{
	float worth[SURVIVAL_BUCKETS], rate;
	uint32_t class;

	survival_worth(hazard, worth);
	class = step(2 * log2f(cost * worth[0]), LEVEL_LEAST, CLASS_LEVELS) * CLASS_SLOPES +
		step(3 * log2f(worth[LATER_BUCKET] / worth[0]), SLOPE_LEAST, CLASS_SLOPES);
	if (s->told[class] < TOLD_MAX)
		s->told[class]++;
	rate = 1 / (float)s->told[class];
	for (int b = 0; b < SURVIVAL_BUCKETS; b++)
		s->hazard[class][b] += rate * (hazard[b] - s->hazard[class][b]);
	s->hits[class] += rate * (worth[0] - s->hits[class]);
	s->saved[class] += rate * (cost * worth[0] - s->saved[class]);
	s->changed[class] = true;
	return class;
}

void survival_update(struct survival *s)
{
	for (int c = 0; c < CLASSES; c++) {
		if (!s->changed[c])
			continue;
		s->changed[c] = false;
		survival_worth(s->hazard[c], s->worth[c]);
		for (int b = 0; b < SURVIVAL_BUCKETS; b++)
			s->worth[c][b] *= survival_cost(s, (uint32_t)c); /* the factor is exactly 1 where all blocks
									  * cost the same */
	}
}
