/* What the graph remembers of blocks, live and gone: records found by id, bounded, the longest
 * untouched gone block forgotten first. Of some of them, chosen by a hash, it follows the fate closely:
 * the samples from which the survival curves are learned, and which tell what an LRU cache of the same
 * size would have held.
 */
#ifndef TERRACE_EVICTION_MEMORY_H
#define TERRACE_EVICTION_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "eviction/survival.h"

enum {
	RECORD_LIVE = 1,
	RECORD_SPARED = 2,   /* kept, or it would have been, by refusing another */
	RECORD_REFUSED = 4,  /* that other */
};

struct record {
	uint64_t id;
	uint32_t last_ms;    /* of its last access, modulo 2^32 */
	uint32_t bucket_next;
	uint32_t older, younger;
	uint32_t sample : 24; /* 0: none */
	uint32_t class : 8;
	uint8_t uses, children, turn, flags;
};

_Static_assert(sizeof(struct record) == 32, "one a remembered block");

struct sample {
	uint64_t since_us;   /* its last access */
	uint32_t older, younger;
	uint8_t class;
	bool in_lru;         /* an LRU cache would hold it */
};

struct memory {
	struct record *records;      /* 0 heads the ring by age */
	uint32_t *buckets;
	uint32_t mask, records_max, records_used;
	struct sample *samples;      /* 0 heads the ring by age */
	uint32_t samples_max, free_sample;
	uint32_t sample_every;       /* a power of two */
	uint32_t cursor[SURVIVAL_BUCKETS]; /* the oldest sample that has not outgrown the bucket; 0: all have */
	uint32_t lru_oldest, lru_count, lru_max; /* the LRU cache of the samples */
	struct survival survival;
};

struct memory_access {
	bool sampled, lru_hit;       /* an LRU cache of the same size would have had it; known of samples only */
};

/* For a cache of `capacity` blocks; everything is taken now. False: no memory. fini accepts zeroed memory. */
bool memory_init(struct memory *m, uint64_t capacity);
void memory_fini(struct memory *m);

/* The record of an id, or NULL. */
struct record *memory_find(const struct memory *m, uint64_t id);
/* The record of an id that has none: makes one, forgetting another if it must. Never NULL. */
struct record *memory_make(struct memory *m, uint64_t id);

/* The block was accessed, and is of this class from now on. */
struct memory_access memory_access(struct memory *m, struct record *r, uint32_t class, uint64_t now_us);

/* Counts what outgrew its bucket up to now. */
void memory_advance(struct memory *m, uint64_t now_us);

#endif
