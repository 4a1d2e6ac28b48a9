/* Commit: the reply's decoder, in reach of tests, and what the calls share. */
#ifndef TERRACE_CLIENT_CALL_COMMIT_H
#define TERRACE_CLIENT_CALL_COMMIT_H

#include "client/call/op.h"
#include "terrace.pb-c.h"

struct client_message;

struct client_committing {
	struct terrace_reservation *reservation; /* its statuses are updated */
	uint32_t items;                          /* keys with a slot */
	bool want_lease;
	uint64_t deadline_us;
	uint64_t call;               /* with want_lease: its number, until there is a reply; then 0 */
	struct terrace_lease *lease; /* the answer; NULL: none */
};

struct client_commit_request {
	Terrace__V1__CommitRequest request;
	Terrace__V1__CommitItem *items;
	Terrace__V1__CommitItem **pointers;
};

/* An asynchronous commit. */
struct client_commit_op {
	struct terrace_op op;
	struct client_committing committing; /* its reservation NULL: another is to end it */
	struct client_commit_request request;
};

/* Reads a CommitReply. */
enum terrace_status client_commit_read(struct client_committing *committing, const struct client_message *message);

/* TERRACE_OK if the handle is of the right kind. Else it has been ended, but in a child of fork(). */
enum terrace_status client_commit_check(struct terrace_reservation *reservation, bool open);

/* Ends a handle whose commit came out so. A failed commit may yet have been carried out; to abort what is committed does nothing. */
void client_commit_end(struct terrace_reservation *reservation, enum terrace_status status);

/* An op that is to commit the reservation, and to end it, not started. TERRACE_EXHAUSTED: the handle is as it was. */
enum terrace_status client_commit_op_create(struct terrace_reservation *reservation, uint64_t deadline_us,
					    const struct terrace_completion *completion, struct client_commit_op **out);

/* The call that it is to make; it points into the op. */
struct client_job client_commit_op_job(struct client_commit_op *op);

#endif
