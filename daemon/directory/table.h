/* The entries that this member owns: which runs of which members have a block of this public name.
 *
 * An entry lives while its holder's run is in the list of members (directory_members), until the holder takes it back,
 * or until it gives way in a full table. For a new entry of a holder that has its fair share of the table, its own
 * oldest goes; for one of a holder that has less, the oldest of the holder with the most. So a flood of one holder
 * displaces no other's. Entries of a run that left are dead at once: no search finds them, and their room is taken back
 * some at a time, by directory_sweep and by additions.
 *
 * Messages of one holder are applied in the order of their sequence numbers: one that is not higher than the last is
 * STALE and changes nothing. So a digest or a bucket from before a removal never brings the removed name back.
 *
 * A deleted name is refused for some time (directory_refuse): nothing finds it, and additions of it are refused and
 * told.
 *
 * Memory: 64 bytes an entry, 56 a member, all of it allocated by directory_create; pages that were never used cost
 * nothing.
 *
 * Threads: any. One mutex guards the table; a call holds it for as long as it takes to walk its own arguments (and a
 * digest's for one holder's entries), but directory_members for one pass over the members. No call waits for anything
 * else. `now_us` is any clock that only goes on, the same for all calls. */
#ifndef TERRACE_DAEMON_DIRECTORY_TABLE_H
#define TERRACE_DAEMON_DIRECTORY_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/directory/digest.h"
#include "daemon/directory/name.h"
#include "store/status.h"

struct directory;

struct directory_options {
	uint64_t bytes_max;          /* of entries and their index; 4 KiB at least */
	uint64_t refused_us;         /* how long a deleted name is refused */
};

/* EXHAUSTED: no memory. INVALID: too few bytes. */
enum status directory_create(const struct directory_options *options, struct directory **out);
void directory_destroy(struct directory *d);

/* Takes a new list of members. Runs that are not in it are dead from here on. count: DIRECTORY_MEMBERS_MAX at most. */
void directory_members(struct directory *d, const struct directory_member *at, uint32_t count);

/* ---- what a holder tells ---- */

struct directory_sender {
	struct directory_run run;
	uint64_t sequence;
};

struct directory_published {
	uint32_t *refused;           /* the caller's, room for `count` indexes of changes; NULL: not wanted */
	uint32_t refused_count;
	bool digest_wanted;          /* the owner does not have as many names of this holder as the holder believes */
};

/* Applies changes in their order. An addition of what is there, and a removal of what is not, are right too. `told`:
 * how many names this owner has of that holder after these changes, as the holder believes. STALE: the sequence is not
 * higher than the last one, or the holder has a newer run. UNAVAILABLE: the holder is not in this table's list of
 * members (yet): to be told again later. Nothing is changed then. */
enum status directory_publish(struct directory *d, const struct directory_sender *from,
			      const struct directory_change *changes, uint32_t count, uint32_t told, uint64_t now_us,
			      struct directory_published *out);

/* Compares what is here of a holder with the holder's digest; *differ are the buckets that the holder is to send whole.
 * A full table does not ask for what it lacks. Statuses as of directory_publish; INVALID: not a digest. */
enum status directory_digest(struct directory *d, const struct directory_sender *from, const struct digest *theirs,
			     struct digest_set *differ);

struct directory_buckets {
	const struct digest_set *set;
	const struct directory_change *changes; /* additions; names of other buckets are left out */
	uint32_t count;
	bool part;                   /* not all names of the buckets */
};

/* Makes what is here of a holder in some buckets equal to the changes; of a part nothing is removed. Statuses as of
 * directory_publish; INVALID: not a set of buckets. */
enum status directory_replace(struct directory *d, const struct directory_sender *from,
			      const struct directory_buckets *b, uint64_t now_us, struct directory_published *out);

/* ---- who asks ---- */

struct directory_found {
	uint32_t count;              /* 0: none is known */
	uint32_t all;                /* of directory_refuse: holders, those without room in `at` among them */
	bool refused;                /* the name was deleted a short time ago */
	struct directory_run at[DIRECTORY_HOLDERS_MAX]; /* the one told last comes first */
};

/* out[i]: the holders of names[i] of that tenant. */
void directory_find(struct directory *d, uint32_t tenant, const struct public_name *names, uint32_t count,
		    uint64_t now_us, struct directory_found *out);

/* Forgets all holders of names and refuses the names for refused_us from now on. out[i] (NULL: not wanted): the holders
 * that each had, as directory_find gives them. `all` says how many there were. */
void directory_refuse(struct directory *d, uint32_t tenant, const struct public_name *names, uint32_t count,
		      uint64_t now_us, struct directory_found *out);

/* ---- upkeep ---- */

/* Takes back the room of at most `max` entries of dead runs and of refusals that have ended. False: none is left. */
bool directory_sweep(struct directory *d, uint32_t max, uint64_t now_us);

struct directory_counts {
	uint64_t entries, dead, refusals; /* now: in all (dead ones and refusals too), of dead runs, of deleted names */
	uint64_t capacity;                /* entries */
	uint64_t bytes;                   /* of all this, as allocated */
	uint64_t added, removed, refused; /* since directory_create, as below: additions that were refused */
	uint64_t dropped;                 /* for want of room */
	uint64_t stale, unknown;          /* messages that were out of order, or of a run that is no member */
	uint64_t digests, differing;      /* digests compared, and those that differed */
};

void directory_counts(struct directory *d, struct directory_counts *out);

#endif
