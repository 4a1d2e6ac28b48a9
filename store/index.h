/* The index: (tenant, layout, key) -> block, in memory. At run time it is the authority on which blocks exist.
 *
 * It is a lock-free hash table (liburcu's cds_lfht). It hashes the three with XXH3, seeded anew in each run, and
 * compares all three in full. It is intrusive: the owner embeds struct index_record in its own struct and allocates it.
 * The owner gets it back through a free function after a grace period. Readers never lock and never wait. Pinning is
 * one compare-and-swap on a word whose top bit means *dead*: a dead record cannot be pinned any more, and a pinned one
 * cannot be freed.
 *
 *     insert -> live -> index_kill -> dead -> index_remove -> index_reclaim -> free
 *
 * A dead record may still be in the table when a live one of the same ident is inserted: finds skip the dead one. The
 * thread that killed the record removes it. Only after the removal may a thread reclaim it: otherwise the grace period
 * would not cover a reader that comes between reclaim and remove. A thread must hold a pin of its own when it kills a
 * record that other threads may unpin at the same time. Its order is: kill, remove, unpin. The thread whose unpin is
 * the last then reclaims the record. (Under a lock that covers kill, remove and unpin no such pin is needed.)
 *
 * Threads: any thread that has called index_thread_enter(). A reader brackets its finds with index_read_lock/unlock
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

/* The name of a record, for a search. The key stays the caller's. */
struct index_ident {
	uint64_t layout_id;
	uint32_t tenant;               /* the daemon's number for it */
	uint8_t key_bytes;             /* 1 .. INDEX_KEY_MAX */
	const uint8_t *key;
};

enum {
	INDEX_KEY_MAX = 64,
	INDEX_KEY_INLINE = 32, /* up to this length a key lies inside its record */
	INDEX_KEY_TAIL = INDEX_KEY_MAX, /* bytes behind the owner's struct, where a longer key lies as a whole */
};

/* The ident inside a record. Few engines have long keys, and there are millions of records: so a record has no room for
 * a long key. */
struct index_name {
	uint64_t layout_id;
	uint32_t tenant;
	uint8_t key_bytes;
	uint8_t inline_key[INDEX_KEY_INLINE]; /* the key, or the first bytes of a long one; bytes behind a short key's
					       * end are not looked at */
};

/* A link of a list that the owner keeps. */
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
	uint32_t word;                 /* free for the owner's use; without it these bytes would be padding */
};

_Static_assert(sizeof(struct index_record) <= 96, "one a block");

struct index;

/* How many bytes the owner allocates for a record whose key has key_bytes, if the owner's struct takes owner_bytes. */
static inline size_t index_record_bytes(size_t owner_bytes, uint32_t key_bytes)
{
	return owner_bytes + (key_bytes > INDEX_KEY_INLINE ? INDEX_KEY_TAIL : 0);
}

/* Writes the ident into a record, before the record is inserted. The record has room for the key
 * (index_record_bytes). */
void index_name_set(struct index_record *r, size_t owner_bytes, const struct index_ident *ident);

/* The key of a record, in one piece. */
static inline const uint8_t *index_key(const struct index_record *r, size_t owner_bytes)
{
	return r->name.key_bytes <= INDEX_KEY_INLINE ? r->name.inline_key : (const uint8_t *)r + owner_bytes;
}

/* owner_bytes: the size of the owner's struct, which begins with the record. blocks_hint: the number of blocks to
 * expect, 0 if unknown; 16 bytes are taken for each of them at once. The table grows by itself while it is used, on a
 * thread of its own. EXHAUSTED: no memory or no thread. */
enum status index_create(size_t owner_bytes, uint64_t blocks_hint, struct index **out);
/* No reader may be left. The remaining records, live and dead, are handed to `free_record`, on liburcu's thread, before
 * this returns. NULL index allowed. The calling thread has called index_thread_enter and is in no read section. */
void index_destroy(struct index *x, void (*free_record)(struct index_record *));

void index_read_lock(void);
void index_read_unlock(void);

/* Inserts a live record; the caller has set its name and pins. Call inside a read section. EXISTS: a live record of
 * that ident is there. *existing (may be NULL) then points at it, valid while the caller stays in its read section; the
 * new record stays the caller's. Of several simultaneous inserts of one ident exactly one succeeds. */
enum status index_insert(struct index *x, struct index_record *r, struct index_record **existing);

/* The live record of the ident, or NULL. Valid inside the caller's read section. */
struct index_record *index_find(struct index *x, const struct index_ident *ident);

/* index_find for `n` idents that share tenant and layout. Their keys have key_bytes each (1 .. INDEX_KEY_MAX) and lie
 * back to back; out[i] is NULL for a miss. The records are prefetched, so that a batch costs less than n finds. */
void index_find_many(struct index *x, uint32_t tenant, uint64_t layout_id, const uint8_t *keys,
		     uint32_t key_bytes, uint32_t n, struct index_record **out);

/* The place of a walk over all records; zeroed at the beginning. */
struct index_walk {
	uint64_t place;                /* below 2^63, in the order of the hashes, which does not change */
	uint32_t told;                 /* so many live records of that place were returned already */
};

/* The next live record, or NULL at the end; valid inside the caller's read section. A record that is live during the
 * whole walk is found once. A record that is inserted meanwhile may be found or not. A walk may pause for any time;
 * struct index_walk is all that it needs to go on. */
struct index_record *index_walk_next(struct index *x, struct index_walk *w);

/* For a caller that keeps only a number: the place at which a later walk begins, behind the last record found;
 * UINT64_MAX: the walk is at its end. Other records with the same place as the last record are skipped. Of 2^32 records
 * about two share a place. */
static inline uint64_t index_walk_behind(const struct index_walk *w)
{
	return !w->told ? w->place : w->place < INT64_MAX ? w->place + 1 : UINT64_MAX;
}

/* Takes a pin. False if the record is dead (or has 2^31 - 1 pins). On success *first (may be NULL) says whether this
 * pin is the only one. */
bool index_pin(struct index_record *r, bool *first);

/* Gives a pin back and returns the word after it. 0: that was the last pin of a live record. INDEX_DEAD: that was the
 * last pin of a dead record, which the caller then reclaims. */
uint32_t index_unpin(struct index_record *r);

/* Kills a record, whatever its number of pins, and returns the word before. If INDEX_DEAD is set in it, the record was
 * dead already. Otherwise the caller removes the record, and reclaims it if it had no pins. The file's head says which
 * pin the caller must hold. */
uint32_t index_kill(struct index_record *r);

/* Takes a dead record out of the table. Finds that began before may still see it until their read section ends. Called
 * once for a record. */
void index_remove(struct index *x, struct index_record *r);

/* Calls free_record(r), on liburcu's thread, after all read sections that are open now have ended. The record has been
 * removed, or was never inserted. */
void index_reclaim(struct index_record *r, void (*free_record)(struct index_record *));
/* Waits until all records reclaimed so far are freed. Not in a read section. */
void index_barrier(void);

#endif
