/* Commit: the reply's decoder, in reach of tests. */
#ifndef TERRACE_CLIENT_COMMIT_H
#define TERRACE_CLIENT_COMMIT_H

#include "client/lease.h"
#include "client/reserve.h"

struct client_committing {
	struct terrace_reservation *reservation; /* its statuses are updated */
	uint32_t items;                          /* keys with a slot */
	bool want_lease;
	uint64_t deadline_us;
	struct terrace_lease *lease; /* the answer; NULL: none */
};

/* Reads a CommitReply. */
enum terrace_status client_commit_read(struct client_committing *committing, const struct client_message *message);

#endif
