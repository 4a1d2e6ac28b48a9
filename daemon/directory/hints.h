/* What this member, as an asker, has learnt from owners of late, and whom it avoids.
 *
 * An answer is kept for HINTS_KEPT_US, "none has it" too; a question that is under way is known as such, so that it is
 * asked once. The table is bounded: the oldest of the four answers that share a set gives way.
 *
 * Avoided members. A member that failed to answer, to lease or to send what it had is avoided for 1 s, after each
 * further failure in a row for twice as long, for 60 s at most. That is by node and epoch and does not look at the
 * list of members, as a list that cannot be renewed still has members that died. A new run of a member is not avoided.
 *
 * Threads: any; one mutex, held for one name or one member at a time. */
#ifndef TERRACE_DAEMON_DIRECTORY_HINTS_H
#define TERRACE_DAEMON_DIRECTORY_HINTS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/directory/name.h"
#include "store/status.h"

#define HINTS_KEPT_US 1000000ull
#define HINTS_AVOIDED_US 1000000ull
#define HINTS_AVOIDED_MAX_US 60000000ull

struct hints;

/* answers: how many are kept, 128 bytes each, rounded up to a power of two. EXHAUSTED: no memory. */
enum status hints_create(uint32_t answers, struct hints **out);
void hints_destroy(struct hints *h);

enum hint { HINT_UNKNOWN, HINT_ASKING, HINT_NONE, HINT_HELD };

struct hint_holders {
	uint32_t count;
	struct directory_run at[DIRECTORY_HOLDERS_MAX]; /* in the owner's order */
};

/* HELD: *out are the holders but those that are avoided. NONE: there is none, or all are avoided. UNKNOWN: ask. */
enum hint hints_find(struct hints *h, uint32_t tenant, const struct public_name *name, uint64_t now_us,
		     struct hint_holders *out);
/* A question is under way, until its answer or until_us. False: it already was, or an answer is known: ask not. */
bool hints_ask(struct hints *h, uint32_t tenant, const struct public_name *name, uint64_t now_us, uint64_t until_us);
/* An owner's answer, without this member itself, which may have dropped the block just now; count 0: none. */
void hints_answer(struct hints *h, uint32_t tenant, const struct public_name *name, const struct directory_run *holders,
		  uint32_t count, uint64_t now_us);
/* A holder turned out not to have the block, or gave no answer: the answer no longer names it. */
void hints_wrong(struct hints *h, uint32_t tenant, const struct public_name *name, const struct directory_run *holder);
/* A name that was deleted, or a question that failed: nothing is known of it. */
void hints_forget(struct hints *h, uint32_t tenant, const struct public_name *name);

void hints_failed(struct hints *h, const struct directory_run *run, uint64_t now_us);
void hints_worked(struct hints *h, const struct directory_run *run);
/* Whether a member is avoided now: not to be asked, and not to be named as a holder. */
bool hints_avoided(struct hints *h, const struct directory_run *run, uint64_t now_us);

struct hints_counts {
	uint64_t found, none, unknown; /* of hints_find, since hints_create */
	uint64_t displaced;            /* answers younger than HINTS_KEPT_US that gave way */
	uint64_t avoided;              /* members now */
};

void hints_counts(struct hints *h, uint64_t now_us, struct hints_counts *out);

#endif
