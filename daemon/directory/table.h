/* The entries that this member owns: which runs of which members have a block of this public name.
 *
 * An entry lives while its holder's run is in the list of members (table_members), until the holder takes it back, or
 * until the table is full and the entry is the one told longest ago. Entries of a run that left are dead at once: no
 * search finds them, and their room is taken back some at a time, by table_sweep and by additions.
 *
 * Messages of one holder are applied in the order of their sequence numbers: one that is not higher than the last is
 * STALE and changes nothing. So a digest or a bucket from before a removal never brings the removed name back.
 *
 * A deleted name is refused for some time (table_refuse): nothing finds it, and additions of it are refused and told.
 *
 * Memory: 52 bytes an entry, 56 a member, all of it allocated by table_create; pages that were never used cost nothing.
 *
 * Threads: any. One mutex guards the table; a call holds it for as long as it takes to walk its own arguments (and a
 * digest's for one holder's entries), but table_members for one pass over the members. No call waits for anything else.
 * `now_us` is any clock that only goes on, the same for all calls. */
#ifndef TERRACE_DAEMON_DIRECTORY_TABLE_H
#define TERRACE_DAEMON_DIRECTORY_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/directory/digest.h"
#include "daemon/directory/name.h"
#include "store/status.h"

struct table;

struct table_options {
	uint64_t bytes_max;          /* of entries and their index; 4 KiB at least */
	uint64_t refused_us;         /* how long a deleted name is refused */
};

/* EXHAUSTED: no memory. INVALID: too few bytes. */
enum status table_create(const struct table_options *options, struct table **out);
void table_destroy(struct table *t);

/* Takes a new list of members. Runs that are not in it are dead from here on. count: DIRECTORY_MEMBERS_MAX at most. */
void table_members(struct table *t, const struct directory_member *at, uint32_t count);

/* ---- what a holder tells ---- */

struct table_sender {
	struct directory_run run;
	uint64_t sequence;
};

struct table_published {
	uint32_t *refused;           /* the caller's, room for `count` indexes of changes; NULL: not wanted */
	uint32_t refused_count;
	bool digest_wanted;          /* the owner does not have as many names of this holder as the holder believes */
};

/* Applies changes in their order. An addition of what is there, and a removal of what is not, are right too. `told`: how
 * many names this owner has of that holder after these changes, as the holder believes.
 * STALE: the sequence is not higher than the last one, or the holder has a newer run. UNAVAILABLE: the holder is not in
 * this table's list of members (yet): to be told again later. Nothing is changed then. */
enum status table_publish(struct table *t, const struct table_sender *from, const struct directory_change *changes,
			  uint32_t count, uint32_t told, uint64_t now_us, struct table_published *out);

/* Compares what is here of a holder with the holder's digest; *differ are the buckets that the holder is to send whole.
 * A full table does not ask for what it lacks. Statuses as of table_publish; INVALID: not a digest. */
enum status table_digest(struct table *t, const struct table_sender *from, const struct digest *theirs,
			 struct digest_set *differ);

/* Makes what is here of a holder, in the buckets of `set`, equal to the changes (additions all). `part`: they are not
 * all of these buckets' names, so nothing is removed. Names that are not of these buckets are left out. Statuses as of
 * table_publish; INVALID: not a set of buckets. */
enum status table_replace(struct table *t, const struct table_sender *from, const struct digest_set *set, bool part,
			  const struct directory_change *changes, uint32_t count, uint64_t now_us,
			  struct table_published *out);

/* ---- who asks ---- */

struct table_found {
	uint32_t count;              /* 0: none is known */
	bool refused;                /* the name was deleted a short time ago */
	struct directory_run at[DIRECTORY_HOLDERS_MAX]; /* the one told last comes first */
};

/* out[i]: the holders of names[i] of that tenant. */
void table_find(struct table *t, uint32_t tenant, const struct public_name *names, uint32_t count, uint64_t now_us,
		struct table_found *out);

/* Forgets all holders of names and refuses the names for refused_us from now on. out[i] (NULL: not wanted): holders that
 * each had, four at most; *holders: how many entries there were in all. */
void table_refuse(struct table *t, uint32_t tenant, const struct public_name *names, uint32_t count, uint64_t now_us,
		  struct table_found *out, uint32_t *holders);

/* ---- upkeep ---- */

/* Takes back the room of at most `max` entries of dead runs and of refusals that have ended. False: there is no more. */
bool table_sweep(struct table *t, uint32_t max, uint64_t now_us);

struct table_counts {
	uint64_t entries, dead, refusals; /* now: in all (dead ones and refusals too), of dead runs, of deleted names */
	uint64_t capacity;                /* entries */
	uint64_t bytes;                   /* of all this, as allocated */
	uint64_t added, removed, refused; /* since table_create, as below: additions that were refused */
	uint64_t dropped;                 /* the oldest ones, for want of room */
	uint64_t stale, unknown;          /* messages that were out of order, or of a run that is no member */
	uint64_t digests, differing;      /* digests compared, and those that differed */
};

void table_counts(struct table *t, struct table_counts *out);

#endif
