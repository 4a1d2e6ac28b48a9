/* Delete, touch and report: the only decoder among them. */
#ifndef TERRACE_CLIENT_CALL_REPORT_H
#define TERRACE_CLIENT_CALL_REPORT_H

#include "client/include/terrace.h"

struct client_message;

struct client_deleting {
	uint32_t count;                /* keys asked for */
	enum terrace_status *statuses; /* [count], the place for the answer; may be NULL */
	bool answered;                 /* statuses are written */
};

/* Reads a DeleteReply. */
enum terrace_status client_delete_read(struct client_deleting *deleting, const struct client_message *message);

#endif
