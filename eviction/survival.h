/* What a block of a class is worth keeping, by the time since its last use: learned from how many of
 * the class were asked for again at each age (a discrete survival curve).
 */
#ifndef TERRACE_EVICTION_SURVIVAL_H
#define TERRACE_EVICTION_SURVIVAL_H

#include <stdbool.h>
#include <stdint.h>

#include "eviction/class.h"

/* Ages in half octaves from 2^19 us (about half a second) on; the last bucket is open. */
enum { SURVIVAL_BUCKETS = 32, SURVIVAL_FIRST_LOG = 19 };

struct survival {
	float hits[CLASSES][SURVIVAL_BUCKETS];   /* asked for again at that age */
	float passes[CLASSES][SURVIVAL_BUCKETS]; /* grew older than that */
	float worth[CLASSES][SURVIVAL_BUCKETS];  /* computed by survival_update */
	float hazard[CLASS_KINDS][SURVIVAL_BUCKETS]; /* computed: the share of a kind that comes back at that age */
	bool changed[CLASSES];
	uint32_t updates;
	float events;
};

void survival_init(struct survival *s);

/* The bucket of an age, and the age at which a bucket ends (UINT64_MAX for the last). */
uint32_t survival_bucket(uint64_t age_us);
uint64_t survival_end_us(uint32_t bucket);

/* A block of the class came back at that age, or outgrew it. */
void survival_hit(struct survival *s, uint32_t class, uint32_t bucket);
void survival_pass(struct survival *s, uint32_t class, uint32_t bucket);

/* Computes worth[][]: the greatest expected number of hits per second of keeping, over all times at
 * which one may stop waiting (Gittins' index of a job whose length is the time to the next use).
 * Forgets slowly on the way. */
void survival_update(struct survival *s);

#endif
