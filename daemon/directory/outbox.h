/* What this member, as a holder, has to tell the owners of its blocks' segments.
 *
 * The outbox knows each published name, its segment, and what each of the two owners has been told of it: present,
 * absent, or not known (a message is under way, or its answer was lost). What is wanted and what was told differ:
 * that is to be told. So an addition that is taken back in time costs no message, a message that is lost is made
 * again, and a daemon that was started again is told all. The caller decides what is published (every 16th position,
 * after 10 s), and takes a name back some seconds before its block is dropped, while it is merely cold: that costs a
 * miss, but a name that is taken back too late is a wrong answer.
 *
 * Messages. An owner gets one when an addition has waited for it for OUTBOX_WAIT_US or a removal for
 * OUTBOX_REMOVE_WAIT_US, or OUTBOX_BATCH changes have gathered; at most one at a time, and all owners together get
 * at most `messages_a_second`. Removals are told sooner because an answer is wrong until then, and an addition that
 * comes late is a miss. A message that failed is tried again after 0.25 s, then 0.5 s, up to 16 s. A digest follows
 * each OUTBOX_DIGEST_US, sooner if an owner's count is not the outbox's (`digest_wanted`), and the buckets that
 * differ are sent whole.
 *
 * Members. After outbox_members each segment's owners are computed anew, OUTBOX_SEGMENTS_A_SECOND or as many more as
 * OUTBOX_SPREAD_US asks for, and at once for a segment in which something changes. New owners are told. A former owner
 * keeps what it has until the digest that follows (an asker with the list before finds it there).
 *
 * Memory: 36 bytes a name and 52 a segment, bounded by `names_max`, allocated by outbox_create.
 *
 * Threads: any. One mutex, held for one call; the longest is outbox_members (one pass over the members) and a digest
 * (one owner's names). The caller that sends messages is one thread or more; each message is ended once. */
#ifndef TERRACE_DAEMON_DIRECTORY_OUTBOX_H
#define TERRACE_DAEMON_DIRECTORY_OUTBOX_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/directory/digest.h"
#include "daemon/directory/name.h"
#include "daemon/directory/owners.h"
#include "store/status.h"

enum {
	OUTBOX_BATCH = 64,           /* so many changes for one owner do not wait */
	OUTBOX_MESSAGE_MAX = 4096,   /* changes in one message */
	OUTBOX_SEGMENTS_A_SECOND = 100, /* after a new list, at least */
	OUTBOX_DIGESTS_A_SECOND = 17, /* to all owners together: with more than 1,020 they come less often */
};
#define OUTBOX_WAIT_US 1000000ull
#define OUTBOX_REMOVE_WAIT_US 200000ull
#define OUTBOX_RETRY_US 250000ull
#define OUTBOX_RETRY_MAX_US 16000000ull
#define OUTBOX_SPREAD_US 10000000ull
#define OUTBOX_DIGEST_US 60000000ull
#define OUTBOX_DIGEST_SOONEST_US 5000000ull /* since the last one to that owner */

struct outbox;

struct outbox_options {
	uint8_t self[DIRECTORY_NODE_BYTES]; /* messages to it are not counted as messages */
	uint32_t names_max;          /* published names, those that are being taken back among them; at most 2^26 */
	uint32_t messages_a_second;  /* to all owners together, digests among them */
	uint64_t seed;               /* spreads digests in time; any number */
};

/* EXHAUSTED: no memory. INVALID: names_max. */
enum status outbox_create(const struct outbox_options *options, struct outbox **out);
void outbox_destroy(struct outbox *o);

/* Takes the owners of a new list of members (holds them). */
void outbox_members(struct outbox *o, struct owners *owners, uint64_t now_us);

/* A block is (again) to be found here. OK also if it was published already. EXHAUSTED: names_max, counted; the block is
 * not found by others. `change->remove` is not looked at. */
enum status outbox_add(struct outbox *o, const struct directory_change *change, uint64_t now_us);
/* A block is here no more. A name that was not published is passed over. */
void outbox_remove(struct outbox *o, const struct public_name *name, uint64_t now_us);

/* Takes back all names, for a caller that has lost changes and adds what is here again. Of a name that is added before
 * the next outbox_next, no owner is told. */
void outbox_remove_all(struct outbox *o, uint64_t now_us);

enum outbox_kind { OUTBOX_PUBLISH, OUTBOX_DIGEST, OUTBOX_REPLACE };

/* A message to one owner, which may be this member itself: it is then applied to its own table without a call. The
 * struct is large: the caller keeps some of them for good. */
struct outbox_message {
	enum outbox_kind kind;
	struct directory_run to;
	uint64_t sequence;           /* rises over all messages */
	uint32_t peer;               /* outbox.c's */
	uint32_t told;               /* PUBLISH: names that the owner then has */
	bool part;                   /* REPLACE: not all names of the buckets fitted */
	uint32_t count;              /* PUBLISH, REPLACE: changes, those of one segment next to each other */
	struct directory_change changes[OUTBOX_MESSAGE_MAX];
	union {
		struct digest digest;    /* DIGEST */
		struct digest_set set;   /* REPLACE */
	};
};

struct outbox_reply {
	enum status status;          /* of the call, or of the owner's table */
	bool digest_wanted;          /* PUBLISH, REPLACE */
	const uint32_t *refused;     /* PUBLISH, REPLACE: of changes of deleted names; not told again */
	uint32_t refused_count;
	const struct digest_set *differ; /* DIGEST */
};

/* Makes the next message that is due. False: none is now. The caller asks until then, about each 100 ms. */
bool outbox_next(struct outbox *o, uint64_t now_us, struct outbox_message *out);
/* Ends a message: OK only if the owner has answered so. Call it once for each message, in any order. */
void outbox_end(struct outbox *o, const struct outbox_message *m, const struct outbox_reply *reply, uint64_t now_us);

/* All owners may have forgotten what they were told, as this member was none for a while: each gets a digest now. */
void outbox_check(struct outbox *o, uint64_t now_us);
/* An owner answers again: what it did not take is told it now. */
void outbox_retry(struct outbox *o, const struct directory_run *owner);

struct outbox_counts {
	uint64_t names, segments;    /* now; names that are being taken back among them */
	uint64_t bytes;              /* as allocated */
	uint64_t waiting;            /* (name, owner) pairs of which something has to be told */
	uint64_t turned_away;        /* since outbox_create, as below: additions for want of room */
	uint64_t messages, failed, changes; /* of all kinds; not OK; changes in those that were OK */
	uint64_t digests, replaced;  /* messages of these kinds */
	uint64_t moved;              /* (segment, owner) pairs that a new list of members changed */
};

void outbox_counts(struct outbox *o, struct outbox_counts *out);

#endif
