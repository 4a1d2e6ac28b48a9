/* What the graph remembers of blocks, live and gone: records found by id, bounded, what is
 * gone and long untouched forgotten first. Of some of them, chosen by a hash, it follows the fate closely:
 * the samples from which the model of reuse learns, and which tell what an LRU cache of the same
 * size would have held.
 */
#ifndef TERRACE_EVICTION_MEMORY_H
#define TERRACE_EVICTION_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "eviction/hazard.h"
#include "eviction/policy.h"

struct record {
	uint32_t tag;         /* of the id; with the bucket it is in, nearly all of a hash of it */
	uint32_t last_ms;     /* of its last access, modulo 2^32 */
	uint32_t next;        /* in the bucket; MEMORY_LAST and the bucket's number: none */
	uint32_t sample : 17; /* 0: none */
	uint32_t class : 9;
	bool live : 1;        /* in the cache */
	bool spared : 1;      /* kept, or it would have been, by refusing another */
	bool refused : 1;     /* that other */
	bool touched : 1;     /* accessed since the hand passed */
	bool pending : 1;     /* accessed, and not inserted or used since: see memory_is_pending() */
	bool again : 1;       /* of what is gone: it may come back as one of s3fifo's ghosts; of the last access: it did */
	uint8_t uses;
	uint8_t children : 2, turn : 4; /* at most RECORD_CHILDREN_MAX, RECORD_TURN_MAX */
	uint8_t hint : 2;     /* enum policy_hint, of the last request that it was in */
	uint8_t pace[2];      /* of the chain, features_pace(): after POLICY_HINT_TOOL, and _TURN */
};

enum { RECORD_CHILDREN_MAX = 3, RECORD_TURN_MAX = 15 };

_Static_assert(sizeof(struct record) == 20, "one a remembered block");
_Static_assert(CLASSES <= 1 << 9, "record.class");
_Static_assert((int)POLICY_HINTS <= 4, "record.hint");

struct sample {
	uint64_t since_us;    /* its last access; one of an earlier run may be before the clock's 0: modulo 2^64 */
	uint32_t older, younger;
	uint32_t features;
	float weight;         /* of what it tells */
	bool in_lru;          /* an LRU cache would hold it */
	bool teaches;         /* the model learns from it */
};

/* What samples of one request with the same features told in a row. */
struct lesson {
	uint64_t since_us;
	uint32_t features, bucket;
	uint32_t blocks;      /* 0: none */
	float weight;
	bool came;
};

struct memory {
	struct record *records;      /* 0 is nobody's */
	uint32_t *buckets;           /* the first record, 0: none */
	uint32_t buckets_count, records_max, records_used, hand;
	uint32_t records_limit;      /* so many at most, for the room that the cache has now */
	struct sample *samples;      /* 0 heads the ring by age */
	uint32_t samples_max, free_sample;
	uint32_t sample_every;       /* a power of two */
	uint32_t cursor[SURVIVAL_BUCKETS]; /* the oldest sample that has not outgrown the bucket; 0: all have */
	uint32_t lru_oldest, lru_count, lru_max; /* the LRU cache of the samples */
	uint32_t recalled;           /* samples of an earlier run that have no place in the ring yet, linked by younger */
	struct lesson lesson;        /* that the model has not been told yet */
	struct hazard hazard;
};

#define MEMORY_LAST 0x80000000u

struct memory_access {
	bool sampled, lru_hit;       /* an LRU cache of the same size would have had it; known of samples only */
};

/* For a cache of `capacity` blocks; everything is taken now. False: no memory. fini accepts zeroed memory. */
bool memory_init(struct memory *m, uint64_t capacity);
void memory_fini(struct memory *m);
/* The cache has room for so many blocks now: what is remembered stays, and gives way where it is more than goes with that. */
void memory_resize(struct memory *m, uint64_t capacity);

/* Has what memory_find() of the ids will read brought near, all at once. Or of one id in two steps: the second reads what the first
 * has brought. */
void memory_prefetch(const struct memory *m, const uint64_t *ids, uint32_t count);
void memory_prefetch_bucket(const struct memory *m, uint64_t id);
void memory_prefetch_record(const struct memory *m, uint64_t id);
/* The record of an id, or NULL. */
struct record *memory_find(const struct memory *m, uint64_t id);
/* The record of an id that has none: makes one, forgetting another if it must. Never NULL. */
struct record *memory_make(struct memory *m, uint64_t id);

/* The block was accessed, and has these features from now on; it is pending until the caller says otherwise. */
struct memory_access memory_access(struct memory *m, struct record *r, uint64_t id, uint32_t features,
				   float weight, uint64_t now_us);

/* Whether the event at now_us belongs to the access that was counted last: that one was less than a minute ago, and nothing has
 * come of it yet. A request is told when it arrives; its blocks are read and put when there is time for it. */
bool memory_is_pending(const struct record *r, uint64_t now_us);

/* What is kept of a record for a restart. */
enum memory_flag { MEMORY_SAMPLED = 1, MEMORY_SPARED = 2, MEMORY_REFUSED = 4, MEMORY_TOUCHED = 8, MEMORY_AGAIN = 16, MEMORY_FLAGS = 32 };
struct memory_kept {
	uint32_t tag, bucket, age_ms;
	uint16_t class;
	uint8_t uses, children, turn, hint, pace[2];
	uint8_t flags;           /* enum memory_flag */
	uint32_t features;       /* of what is a sample; else 0 */
	float weight;
};
/* Of the record that was made `back` records before the last; false: there is none, or it was never accessed. */
bool memory_keep(const struct memory *m, uint32_t back, uint64_t now_us, struct memory_kept *out);
/* Makes a record of it, idle_us later, unless there is one or no room. The bucket is less than buckets_count, and the class and the features are
 * the owner's. */
void memory_recall(struct memory *m, const struct memory_kept *kept, uint64_t now_us, uint64_t idle_us);

/* When all is recalled, before the first access: samples take their places. Whatever outgrew an age before tells nothing again. */
void memory_settle(struct memory *m, uint64_t now_us);

/* Counts what outgrew its bucket up to now; what is too much for one call, as after a pause, is left to the next ones. */
void memory_advance(struct memory *m, uint64_t now_us);

/* The time since the record's last access, an age bucket of survival.h + 1. */
uint8_t memory_gap(const struct record *r, uint64_t now_us);

#endif
