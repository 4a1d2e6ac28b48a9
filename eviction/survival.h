/* Ages and classes. A class is a set of blocks that are taken to come back alike: those whose worth when
 * they are used, and half a minute later, is about the same by the model of reuse. What a class is worth at an age
 * follows from the mean of what the model said of its blocks, and of what a hit of them saves.
 */
#ifndef TERRACE_EVICTION_SURVIVAL_H
#define TERRACE_EVICTION_SURVIVAL_H

#include <stdbool.h>
#include <stdint.h>

/* Ages in half octaves from 2^19 us (about half a second) on; the last bucket is open. */
enum { SURVIVAL_BUCKETS = 32, SURVIVAL_FIRST_LOG = 19 };

enum {
	CLASS_LEVELS = 40,   /* of worth at age 0, two an octave */
	CLASS_SLOPES = 12,   /* of the later worth as a share of that, three an octave */
	CLASSES = CLASS_LEVELS * CLASS_SLOPES,
};

struct survival {
	float hazard[CLASSES][SURVIVAL_BUCKETS];
	float worth[CLASSES][SURVIVAL_BUCKETS];
	float hits[CLASSES], saved[CLASSES]; /* of those predictions: hits per second at age 0, and what they save; means */
	uint32_t told[CLASSES];   /* predictions that went into hazard, up to a maximum */
	bool changed[CLASSES];
};

void survival_init(struct survival *s);

/* The bucket of an age, and the age at which a bucket ends (UINT64_MAX for the last). */
uint32_t survival_bucket(uint64_t age_us);
uint64_t survival_end_us(uint32_t bucket);

/* The greatest expected number of hits per second of keeping, over all times at which one may stop waiting (Gittins'
 * index of a job whose length is the time to the next use), at each age. */
void survival_worth(const float hazard[SURVIVAL_BUCKETS], float worth[SURVIVAL_BUCKETS]);

/* The class of blocks of which the model says this, and a hit of which saves so much; it moves the class's means. */
uint32_t survival_class(struct survival *s, const float hazard[SURVIVAL_BUCKETS], float cost);

/* What a hit of the class saves, in the mean. */
float survival_cost(const struct survival *s, uint32_t class);

/* Brings worth[][] up to date. */
void survival_update(struct survival *s);

#endif
