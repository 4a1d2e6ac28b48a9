/* Watching: the decoder of an event. */
#ifndef TERRACE_CLIENT_CALL_WATCH_H
#define TERRACE_CLIENT_CALL_WATCH_H

#include "client/include/terrace.h"

struct client_message;

/* Reads a WatchEvent; its layout must be below `layouts`. */
enum terrace_status client_watch_read(uint32_t layouts, struct terrace_watch_event *event,
				      const struct client_message *message);

#endif
