/* The model of reuse: how likely a block that has not been asked for up to some age is asked for in the next
 * bucket of age, from its features. A logistic regression over all features and all pairs of them, with and
 * without the age, learned online, an event at a time.
 */
#ifndef TERRACE_EVICTION_HAZARD_H
#define TERRACE_EVICTION_HAZARD_H

#include <stdbool.h>
#include <stdint.h>

#include "eviction/features.h"
#include "eviction/survival.h"

enum {
	HAZARD_OCTAVES = SURVIVAL_BUCKETS / 2,
	HAZARD_CELLS = FEATURE_STEPS_ALL * (FEATURE_STEPS_ALL + 1) / 2,
};

/* A step of a feature, or two steps of two. */
#define HAZARD_SQUARES_FIRST 1.0f

struct hazard_cell {
	float any, any_squares;      /* weight at all ages, and the sum of the squares of its gradients */
	float at[HAZARD_OCTAVES], at_squares[HAZARD_OCTAVES]; /* the same of the ages of an octave */
};

struct hazard {
	struct hazard_cell cells[HAZARD_CELLS];
	float hits[SURVIVAL_BUCKETS], events[SURVIVAL_BUCKETS];
	float base[SURVIVAL_BUCKETS];     /* log odds of all blocks */
	float loss, base_loss;            /* logarithmic, of what it foretold, and of the age alone; halved at times */
	uint16_t first[FEATURES];         /* a feature's first step among all features' */
	uint32_t seen;                    /* bit a feature: it was something else than 0 once */
};

void hazard_init(struct hazard *m);

/* So many blocks with these features came back in the bucket of age together, or outgrew it; at least 1. Blocks that share
 * a fate, those of a request, have a lesser weight each, of at most 1; weight is the sum. */
void hazard_learn(struct hazard *m, uint32_t features, uint32_t bucket, bool came, float weight, uint32_t blocks);

/* The share expected to come back in each bucket of age, of those that reach it. */
void hazard_predict(const struct hazard *m, uint32_t features, float out[SURVIVAL_BUCKETS]);

/* Whether the features have told at least a tenth more than the age alone. */
bool hazard_is_good(const struct hazard *m);

#endif
