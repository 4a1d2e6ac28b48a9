/* The model of reuse. For a block that has reached some age without being asked for, it gives the chance that it is
 * asked for in the next bucket of age, from the block's features. It is a logistic regression over all features and
 * pairs of features, each with a weight for all ages and one for each octave of age. It is learned online, one event at
 * a time.
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

/* The weights of a step of a feature, or of a pair of steps of two features. */
#define HAZARD_SQUARES_FIRST 1.0f

struct hazard_cell {
	float any, any_squares;      /* weight at all ages, and the sum of the squares of its gradients */
	float at[HAZARD_OCTAVES], at_squares[HAZARD_OCTAVES]; /* the same for the ages of an octave */
};

struct hazard {
	struct hazard_cell cells[HAZARD_CELLS];
	float hits[SURVIVAL_BUCKETS], events[SURVIVAL_BUCKETS];
	float base[SURVIVAL_BUCKETS];     /* log odds of all blocks */
	float loss, base_loss;            /* logarithmic losses, of the model's predictions and of those by age alone;
					   * halved at times */
	uint16_t first[FEATURES];         /* the number of a feature's first step among the steps of all features */
	uint32_t seen;                    /* a bit for each feature: it was not 0 at least once */
};

void hazard_init(struct hazard *m);

/* Learns that `blocks` blocks (at least 1) with these features came back in the bucket of age, or outgrew it. Blocks of
 * one request come back together, so each has a weight of at most 1; `weight` is the sum. */
void hazard_learn(struct hazard *m, uint32_t features, uint32_t bucket, bool came, float weight, uint32_t blocks);

/* For each bucket of age: the share expected to come back in it, of those blocks that reach it. */
void hazard_predict(const struct hazard *m, uint32_t features, float out[SURVIVAL_BUCKETS]);

/* Whether predictions by features are better than those by age alone: whether their loss is at least a tenth
 * smaller. */
bool hazard_is_good(const struct hazard *m);

#endif
