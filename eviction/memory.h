/* What the graph remembers of blocks, of those in the cache (live) and of those that left it. Records are found by id
 * and bounded in number. Records of blocks that are not live and were not touched for long are forgotten first.
 *
 * Some blocks, chosen by a hash, are *samples*, whose every access and age is followed. From them the model of reuse
 * learns, and they tell what an LRU cache of the same size would hold.
 */
#ifndef TERRACE_EVICTION_MEMORY_H
#define TERRACE_EVICTION_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "eviction/hazard.h"
#include "eviction/policy.h"

struct record {
	uint32_t tag;         /* half of the id's hash; with the bucket it gives nearly all of the hash */
	uint32_t last_ms;     /* of its last access, modulo 2^32 */
	uint32_t next;        /* the next in the bucket; MEMORY_LAST and the bucket's number: none */
	uint32_t sample : 17; /* number of its sample; 0: none */
	uint32_t class : 9;
	bool live : 1;        /* in the cache */
	bool spared : 1;      /* it stayed, or would have stayed, because another block was refused */
	bool refused : 1;     /* it is that other block */
	bool touched : 1;     /* accessed since the hand passed it */
	bool pending : 1;     /* accessed, and not inserted or used since: see memory_is_pending() */
	bool again : 1;       /* not live: it may return as one of s3fifo's ghosts; after an access: it did return so */
	uint8_t uses;
	uint8_t children : 2, turn : 4; /* at most RECORD_CHILDREN_MAX, RECORD_TURN_MAX */
	uint8_t hint : 2;     /* enum policy_hint of the last request that contained it */
	uint8_t pace[2];      /* features_pace() of its chain: after POLICY_HINT_TOOL, and after POLICY_HINT_TURN */
};

enum { RECORD_CHILDREN_MAX = 3, RECORD_TURN_MAX = 15 };

_Static_assert(sizeof(struct record) == 20, "one a remembered block");
_Static_assert(CLASSES <= 1 << 9, "record.class");
_Static_assert((int)POLICY_HINTS <= 4, "record.hint");

struct sample {
	uint64_t since_us;    /* its last access, modulo 2^64: an access in an earlier run may be before the clock's
			       * 0 */
	uint32_t older, younger;
	uint32_t features;
	float weight;         /* the weight of what the model learns from it */
	bool in_lru;          /* an LRU cache would hold it */
	bool teaches;         /* the model learns from it */
};

/* Collects what consecutive samples of one request with the same features teach, so that the model learns it at
 * once. */
struct lesson {
	uint64_t since_us;
	uint32_t features, bucket;
	uint32_t blocks;      /* 0: none */
	float weight;
	bool came;
};

struct memory {
	struct record *records;      /* record 0 is unused */
	uint32_t *buckets;           /* the first record of each bucket, 0: none */
	uint32_t buckets_count, records_max, records_used, hand;
	uint32_t records_limit;      /* so many records at most, for the cache's present capacity */
	struct sample *samples;      /* sample 0 is the head of the ring by age */
	uint32_t samples_max, free_sample;
	uint32_t sample_every;       /* a power of two */
	uint32_t cursor[SURVIVAL_BUCKETS]; /* the oldest sample that has not outgrown the bucket; 0: all have */
	uint32_t lru_oldest, lru_count, lru_max; /* the LRU cache of the samples */
	uint32_t recalled;           /* samples of an earlier run that are not in the ring yet, linked by `younger` */
	struct lesson lesson;        /* what the model has not learned yet */
	struct hazard hazard;
};

#define MEMORY_LAST 0x80000000u

struct memory_access {
	bool sampled, lru_hit;       /* an LRU cache of the same size would have hit; known of samples only */
};

/* Takes all memory, for a cache of `capacity` blocks. False: no memory. memory_fini accepts zeroed memory. */
bool memory_init(struct memory *m, uint64_t capacity);
void memory_fini(struct memory *m);
/* The cache has room for `capacity` blocks now. Records stay; new ones replace old ones if there are more than the new
 * capacity allows. */
void memory_resize(struct memory *m, uint64_t capacity);

/* Prefetches what memory_find() of the ids will read, of all ids together. For one id in two steps:
 * memory_prefetch_record reads what memory_prefetch_bucket has prefetched. */
void memory_prefetch(const struct memory *m, const uint64_t *ids, uint32_t count);
void memory_prefetch_bucket(const struct memory *m, uint64_t id);
void memory_prefetch_record(const struct memory *m, uint64_t id);
/* The record of an id, or NULL. */
struct record *memory_find(const struct memory *m, uint64_t id);
/* Makes the record of an id that has none; forgets another record if it must. Never NULL. */
struct record *memory_make(struct memory *m, uint64_t id);

/* Notes an access to the block, which has these features from now on. The record is pending until the caller clears
 * that. */
struct memory_access memory_access(struct memory *m, struct record *r, uint64_t id, uint32_t features,
				   float weight, uint64_t now_us);

/* Whether an insert or use at now_us belongs to the access that was counted last: that access was less than a minute
 * ago, and no insert or use has followed it yet. (A request is noted when it arrives; its blocks are read and put
 * later.) */
bool memory_is_pending(const struct record *r, uint64_t now_us);

/* What is kept of a record for the next run. */
enum memory_flag { MEMORY_SAMPLED = 1, MEMORY_SPARED = 2, MEMORY_REFUSED = 4, MEMORY_TOUCHED = 8, MEMORY_AGAIN = 16, MEMORY_FLAGS = 32 };
struct memory_kept {
	uint32_t tag, bucket, age_ms;
	uint16_t class;
	uint8_t uses, children, turn, hint, pace[2];
	uint8_t flags;           /* enum memory_flag */
	uint32_t features;       /* a sample's features; else 0 */
	float weight;
};
/* Fills *out from the record that was made `back` records before the last one. False: there is no such record, or it
 * was never accessed. */
bool memory_keep(const struct memory *m, uint32_t back, uint64_t now_us, struct memory_kept *out);
/* Makes a record from *kept, idle_us later, unless the block has one or there is no room. The caller guarantees that
 * the bucket is less than buckets_count, and that the class and the features are valid. */
void memory_recall(struct memory *m, const struct memory_kept *kept, uint64_t now_us, uint64_t idle_us);

/* Called when all records are recalled, before the first access: puts their samples into the ring by age. Ages that a
 * sample had reached before do not teach the model again. */
void memory_settle(struct memory *m, uint64_t now_us);

/* Teaches the model which samples have outgrown their bucket of age up to now. After a pause there may be too many for
 * one call; the next calls do the rest. */
void memory_advance(struct memory *m, uint64_t now_us);

/* The time since the record's last access: an age bucket of survival.h + 1. */
uint8_t memory_gap(const struct record *r, uint64_t now_us);

#endif
