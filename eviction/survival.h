/* Ages and classes. A class is a set of blocks that are expected to come back alike: by the model of reuse their worth
 * at their use, and their worth half a minute later, are about the same. The worth of a class at an age follows from
 * the mean of the model's predictions for its blocks, and from what a hit of them saves.
 */
#ifndef TERRACE_EVICTION_SURVIVAL_H
#define TERRACE_EVICTION_SURVIVAL_H

#include <stdbool.h>
#include <stdint.h>

/* Ages in half octaves from 2^19 us (about half a second) on; the last bucket is open. */
enum { SURVIVAL_BUCKETS = 32, SURVIVAL_FIRST_LOG = 19 };

enum {
	CLASS_LEVELS = 40,   /* levels of the worth at age 0, two an octave */
	CLASS_SLOPES = 12,   /* levels of the later worth as a share of that, three an octave */
	CLASSES = CLASS_LEVELS * CLASS_SLOPES,
};

struct survival {
	float hazard[CLASSES][SURVIVAL_BUCKETS];
	float worth[CLASSES][SURVIVAL_BUCKETS];
	float hits[CLASSES], saved[CLASSES]; /* means of those predictions: hits per second at age 0, and what these
					      * save */
	uint32_t told[CLASSES];   /* predictions that went into hazard, up to a maximum */
	bool changed[CLASSES];
};

void survival_init(struct survival *s);

/* The bucket of an age, and the age at which a bucket ends (UINT64_MAX for the last). */
uint32_t survival_bucket(uint64_t age_us);
uint64_t survival_end_us(uint32_t bucket);

/* The worth at each age: the greatest expected number of hits per second of keeping, over all times at which one may
 * stop waiting (Gittins' index of a job whose length is the time to the next use). */
void survival_worth(const float hazard[SURVIVAL_BUCKETS], float worth[SURVIVAL_BUCKETS]);

/* The class of blocks with this prediction of the model, when a hit saves `cost`. It moves the class's means. */
uint32_t survival_class(struct survival *s, const float hazard[SURVIVAL_BUCKETS], float cost);

/* The mean of what a hit of the class saves. */
float survival_cost(const struct survival *s, uint32_t class);

/* Brings worth[][] up to date. */
void survival_update(struct survival *s);

#endif
