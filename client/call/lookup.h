/* Lookup: the reply's decoder, declared here so that tests reach it. */
#ifndef TERRACE_CLIENT_CALL_LOOKUP_H
#define TERRACE_CLIENT_CALL_LOOKUP_H

#include "client/include/terrace.h"

struct client_message;

struct client_lookup {
	struct client_view *view;
	uint32_t count;  /* keys asked for */
	uint32_t prefix; /* the answer */
	uint8_t *states; /* [count][layouts], the place for the states; NULL: not wanted */
};

/* Reads a LookupReply. */
enum terrace_status client_lookup_read(struct client_lookup *lookup, const struct client_message *message);

#endif
