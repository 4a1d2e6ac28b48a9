/* The mailbox from the threads that serve requests to the thread that owns the graph: a bounded ring of events without
 * a lock. Any thread posts, one thread takes. An event that finds no room is dropped and counted: the graph is only
 * advice.
 */
#ifndef TERRACE_EVICTION_GRAPH_MAIL_H
#define TERRACE_EVICTION_GRAPH_MAIL_H

#include <stdbool.h>
#include <stdint.h>

#include "eviction/graph_edges.h"

enum { GRAPH_MAIL_IDS = 5 };

enum graph_mail_kind {
	GRAPH_MAIL_REQUEST, /* part of a chain */
	GRAPH_MAIL_PAIR,    /* ids[0] to ids[1] */
	GRAPH_MAIL_LIVE,    /* ids[0] came into the cache */
	GRAPH_MAIL_GONE,    /* ids[0] left the cache */
};

struct graph_mail_event {
	uint64_t now_us, session; /* of a block that came or left: the poster's word, which the taker gets back */
	uint64_t ids[GRAPH_MAIL_IDS];
	float weight;       /* of a pair */
	uint8_t kind, type, count;
	bool goes_on;       /* of a request: the rest of the chain follows, beginning with the last of these ids */
};

struct graph_mail;

/* Makes a mailbox for `events` events, a power of two from 2 to 2^24; 72 bytes each, taken now. NULL: no memory, or
 * another number. */
struct graph_mail *graph_mail_create(uint32_t events);
/* After the last post. NULL allowed. */
void graph_mail_destroy(struct graph_mail *m);

/* Any thread. False: the mailbox is full; of a chain, the events posted before stay. Arguments as in graph_edges.h. */
bool graph_mail_request(struct graph_mail *m, uint64_t now_us, uint64_t session, const uint64_t *ids, uint32_t count);
bool graph_mail_post(struct graph_mail *m, const struct graph_mail_event *e);

/* For the thread that owns the graph. False: empty. Events of two threads may be slightly out of order. */
bool graph_mail_take(struct graph_mail *m, struct graph_mail_event *out);

/* Any thread. */
uint64_t graph_mail_dropped(const struct graph_mail *m);

#endif
