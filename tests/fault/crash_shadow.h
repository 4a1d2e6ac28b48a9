/* What a killed cache had promised: memory that its process shares with the one that starts it, and that outlives it.
 *
 * A key's versions count its puts. A put is noted before its bytes are written; a delete raises `floor` when it has been acknowledged;
 * a flush notes what lay under the key when it was acknowledged. One writer: the process that lives now.
 */
#ifndef TERRACE_TESTS_FAULT_CRASH_SHADOW_H
#define TERRACE_TESTS_FAULT_CRASH_SHADOW_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
	CRASH_CLASSES = 2,             /* sessions; their blocks differ in size */
	CRASH_LAYOUTS = 2,             /* at most, a session */
	CRASH_KEYS = 96,               /* a class */
	CRASH_SITES_MAX = 512,
};

struct crash_key {
	uint32_t next;                 /* version of the last put that was begun */
	uint32_t floor;                /* older versions are deleted */
	uint32_t current[CRASH_LAYOUTS]; /* what lies there, 0: not known */
	bool flushed[CRASH_LAYOUTS];
	uint64_t deleted_in;           /* seed of the life that last had a delete acknowledged */
	uint32_t flushed_version[CRASH_LAYOUTS]; /* at least; 0: not known */
};

enum crash_phase { CRASH_OPENING, CRASH_CHECKING, CRASH_WORKING, CRASH_ENDING };

struct crash_shadow {
	struct crash_key key[CRASH_CLASSES][CRASH_KEYS];
	_Atomic int phase;
	char failure[256];
	uint64_t grow_acked;           /* records of the catalog that was made to grow */
	/* For the summary: */
	uint64_t blocks_checked, flushes_checked, deletes_checked, puts, flushes, deletes, reopened_ms_max;
	uint64_t odd_deletes, odd_flushes; /* that were not acknowledged */
	_Atomic uint32_t passed[CRASH_SITES_MAX];
};

/* The key's bytes: 16 of them. */
void crash_key_bytes(uint32_t class, uint32_t key, uint8_t out[16]);
/* The bytes of a version of a block. */
void crash_fill(uint8_t *at, uint64_t bytes, uint32_t class, uint32_t key, uint32_t layout, uint32_t version);
/* Which version that is; 0: the bytes are none of this block's. */
uint32_t crash_version(const uint8_t *at, uint64_t bytes, uint32_t class, uint32_t key, uint32_t layout);

/* A small generator, so that a seed gives the same run on every machine. */
struct crash_random {
	uint64_t state;
};
uint32_t crash_below(struct crash_random *r, uint32_t n); /* 0 .. n - 1 */

#endif
