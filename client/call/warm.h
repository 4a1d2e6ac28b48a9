/* Warm: the reply's decoder, declared here so that tests reach it. */
#ifndef TERRACE_CLIENT_CALL_WARM_H
#define TERRACE_CLIENT_CALL_WARM_H

#include "client/include/terrace.h"

struct client_message;

struct client_warming {
	const struct client_view *view;
	uint32_t count;  /* keys asked for */
	uint32_t blocks; /* the answer */
};

/* Reads a WarmReply. */
enum terrace_status client_warm_read(struct client_warming *warming, const struct client_message *message);

#endif
