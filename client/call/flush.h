/* Flush: the reply's decoder, declared here so that tests reach it. */
#ifndef TERRACE_CLIENT_CALL_FLUSH_H
#define TERRACE_CLIENT_CALL_FLUSH_H

#include "client/include/terrace.h"

struct client_message;

struct client_flushing {
	const struct client_view *view;
	uint32_t count;                /* statuses awaited: keys asked for, or 1 for everything */
	bool answered;                 /* statuses are written */
	enum terrace_status *statuses; /* [count], the place for the statuses; may be NULL */
};

/* Reads a FlushReply. TERRACE_OK: the blocks that exist are durable. TERRACE_EXHAUSTED, TERRACE_IO,
 * TERRACE_UNAVAILABLE: the first status that says otherwise. */
enum terrace_status client_flush_read(struct client_flushing *flushing, const struct client_message *message);

#endif
