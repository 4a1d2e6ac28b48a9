/* The index: (tenant, layout, key) -> block, in memory, the truth at run time.
 *
 * A lock-free hash table (liburcu's cds_lfht), hashed by XXH3 of the three (seeded anew in each run) and comparing all
 * three in full. It is intrusive: the owner embeds struct index_record in its own struct, allocates it and gets it back
 * through a free function after a grace period. Readers never lock and never wait. Pinning is one compare-and-swap on a
 * word whose top bit says *dead*: a record that is dead cannot be pinned any more, and one that is pinned cannot be
 * freed.
 *
 *     insert -> live -> index_kill -> dead -> index_remove -> index_reclaim -> free
 *
 * A dead record may still be in the table when a live one of the same ident is inserted: finds skip it. The thread that
 * killed the record removes it, and only then may a thread reclaim it: otherwise the grace period would not cover a
 * reader that comes between reclaim and remove. A thread that kills a record which other threads may unpin at the same
 * time holds a pin of its own: kill, remove, unpin. The last unpin, of whichever thread, then reclaims. (Under a lock
 * that covers kill, remove and unpin no pin is needed.)
 *
 * The pin word. A second bit beside the count, LEAVING, is reserved for pins that are taken without the owner's lock. A
 * thread that pins adds one if neither bit is set, and reads the owner's places only then: they do not change while a
 * pin is held. A thread that evicts, moves or cuts sets LEAVING by exchanging a word of exactly 0, or does without that
 * record; it then clears the bit, or sets DEAD. Only a delete sets DEAD whatever the count is (index_kill). So the
 * owner may run no code of a tier at a first pin or a last unpin of a live record: what depends on pins is counted by
 * the owner, in plain fields, until the lock is gone from that path, and by a walk when it is wanted after that.
 *
 * Threads: any thread that has called index_thread_enter(); a reader brackets its finds with index_read_lock/unlock
 * (they nest). Inserts and removals may race with everything.
 */
#ifndef TERRACE_STORE_INDEX_H
#define TERRACE_STORE_INDEX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <urcu/urcu-memb.h>
#include <urcu/rculfhash.h>

#include "store/status.h"

#define INDEX_DEAD 0x80000000u

/* The name to find. The key stays the caller's. */
struct index_ident {
	uint64_t layout_id;
	uint32_t tenant;               /* the daemon's number for it */
	uint8_t key_bytes;             /* 1 .. INDEX_KEY_MAX */
	const uint8_t *key;
};

enum {
	INDEX_KEY_MAX = 64,
	INDEX_KEY_INLINE = 32, /* a key of at most so many bytes lies in its record; a longer one lies, as a whole, in */
	INDEX_KEY_TAIL = INDEX_KEY_MAX, /* so many bytes right behind the owner's struct */
};

/* The ident of a record. Few engines have long keys, so a record has no room for them: it is one of a million. */
struct index_name {
	uint64_t layout_id;
	uint32_t tenant;
	uint8_t key_bytes;
	uint8_t inline_key[INDEX_KEY_INLINE]; /* the key, or the first bytes of a long one; bytes behind its end are not looked
					 at */
};

/* Of a list that the owner keeps. */
struct index_link {
	struct index_link *prev, *next;
};

struct index_record {
	struct cds_lfht_node node;
	union {
		struct index_link link; /* the owner's, until index_reclaim */
		struct {
			void (*free_record)(struct index_record *); /* set by index_reclaim */
			struct rcu_head rcu;
		};
	};
	struct index_name name;        /* not changed after index_insert */
	_Atomic uint32_t pins;         /* pins | INDEX_DEAD */
	uint32_t word;                 /* the owner's: it takes no room that the record would not have */
};

_Static_assert(sizeof(struct index_record) <= 96, "one a block");

struct index;

/* How many bytes the owner allocates for a record with a key of so many bytes, if its struct takes owner_bytes. */
static inline size_t index_record_bytes(size_t owner_bytes, uint32_t key_bytes)
{
	return owner_bytes + (key_bytes > INDEX_KEY_INLINE ? INDEX_KEY_TAIL : 0);
}

/* Names a record that has room for the key, before it is inserted. */
void index_name_set(struct index_record *r, size_t owner_bytes, const struct index_ident *ident);

/* The key of a record, in one piece. */
static inline const uint8_t *index_key(const struct index_record *r, size_t owner_bytes)
{
	return r->name.key_bytes <= INDEX_KEY_INLINE ? r->name.inline_key : (const uint8_t *)r + owner_bytes;
}

/* owner_bytes: the size of the struct that begins with each record. blocks_hint: how many blocks to expect, 0 if
 * unknown: 16 bytes are taken for each at once. The table grows by itself, on a thread of its own, while it is used.
 * EXHAUSTED: no memory or no thread. */
enum status index_create(size_t owner_bytes, uint64_t blocks_hint, struct index **out);
/* No reader may be left; remaining records, live and dead, are handed to `free_record` before it
 * returns (on liburcu's thread). NULL index allowed. The calling thread has entered and is in no
 * read section. */
void index_destroy(struct index *x, void (*free_record)(struct index_record *));

void index_read_lock(void);
void index_read_unlock(void);

/* Inserts a live record whose name and pins the caller set. EXISTS: a live record of that ident is
 * there, *existing (may be NULL) is it, valid while the caller stays in its read section; the new
 * one is still the caller's. Of several inserts of one ident at a time exactly one wins. Call
 * inside a read section. */
enum status index_insert(struct index *x, struct index_record *r, struct index_record **existing);

/* The live record, or NULL; valid inside the caller's read section. */
struct index_record *index_find(struct index *x, const struct index_ident *ident);

/* The same for `n` idents that share tenant and layout, keys of key_bytes (1 .. INDEX_KEY_MAX) back
 * to back; out[i] is NULL for a miss. Fetches ahead, so that a batch costs less than n finds. */
void index_find_many(struct index *x, uint32_t tenant, uint64_t layout_id, const uint8_t *keys,
		     uint32_t key_bytes, uint32_t n, struct index_record **out);

/* A walk over all records; zeroed: at the beginning. */
struct index_walk {
	uint64_t place;                /* below 2^63: in the order of the hashes, which stays */
	uint32_t told;                 /* of the live records of that place, so many */
};

/* The next live record, or NULL at the end; valid inside the caller's read section. A record that is live from the
 * walk's beginning to its end is found once. One that is inserted meanwhile is found or not. A walk may pause for any
 * time, and needs nothing but its place to go on. */
struct index_record *index_walk_next(struct index *x, struct index_walk *w);

/* For a walk that is to go on from a number alone: the place behind the last record that was found, where one may
 * begin; UINT64_MAX: there is none. What shares the place with that record is passed over: with 2^32 records two or
 * so do. */
static inline uint64_t index_walk_behind(const struct index_walk *w)
{
	return !w->told ? w->place : w->place < INT64_MAX ? w->place + 1 : UINT64_MAX;
}

/* Takes a pin. False if the record is dead (or has 2^31 - 1 pins). *first (may be NULL), written on
 * success: this pin was the first. */
bool index_pin(struct index_record *r, bool *first);

/* Gives a pin back; returns the word after it: 0 is the last pin of a live record, INDEX_DEAD the
 * last of a dead one (the caller then frees it). */
uint32_t index_unpin(struct index_record *r);

/* Kills a record whatever its pins. Returns the word before: if it was dead already
 * INDEX_DEAD is set; else the caller removes it, and reclaims it if there were no pins. See above
 * for the pin to hold. */
uint32_t index_kill(struct index_record *r);

/* Takes a dead record out of the table; finds that began before may still see it until their read
 * section ends. Once a record. */
void index_remove(struct index *x, struct index_record *r);

/* Calls free_record(r) after every reader of now is gone, on liburcu's own thread. The record has
 * been removed, or was never inserted. */
void index_reclaim(struct index_record *r, void (*free_record)(struct index_record *));
/* Waits for all reclaims so far. Not in a read section. */
void index_barrier(void);

#endif
