/* Commit: the reply's decoder, declared here so that tests reach it, and what the calls share. */
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
	uint64_t call;               /* with want_lease: the call's number, until there is a reply; then 0 */
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
	struct client_committing committing; /* reservation NULL: other code ends the reservation */
	struct client_commit_request request;
};

/* Reads a CommitReply. */
enum terrace_status client_commit_read(struct client_committing *committing, const struct client_message *message);

/* TERRACE_OK if the handle is of the right kind. Otherwise the handle was ended, except in a child of fork(). */
enum terrace_status client_commit_check(struct terrace_reservation *reservation, bool open);

/* Ends a handle after its commit ended with `status`. A failed commit may have been carried out all the same; an abort
 * of committed slots does nothing. */
void client_commit_end(struct terrace_reservation *reservation, enum terrace_status status);

/* Makes an op that commits the reservation and ends it; the op is not started. TERRACE_EXHAUSTED: the handle is
 * unchanged. */
enum terrace_status client_commit_op_create(struct terrace_reservation *reservation, uint64_t deadline_us,
					    const struct terrace_completion *completion, struct client_commit_op **out);

/* The call that the op makes. It points into the op. */
struct client_job client_commit_op_job(struct client_commit_op *op);

#endif
