/* The way from the threads that serve requests to the one that owns the graph: a bounded ring of events without
 * a lock. Any thread posts, one takes. What does not fit is dropped and counted: the graph is advice.
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
	GRAPH_MAIL_LIVE,    /* ids[0] came */
	GRAPH_MAIL_GONE,    /* ids[0] left */
};

struct graph_mail_event {
	uint64_t now_us, session; /* of a block that came or left: the poster's word, which the taker gets back */
	uint64_t ids[GRAPH_MAIL_IDS];
	float weight;       /* of a pair */
	uint8_t kind, type, count;
	bool goes_on;       /* of a request: the rest follows, beginning with the last of these */
};

struct graph_mail;

/* Room for `events`, a power of two from 2 to 2^24, 72 bytes each, taken now. NULL: no memory, or no such number. */
struct graph_mail *graph_mail_create(uint32_t events);
/* After the last post. NULL allowed. */
void graph_mail_destroy(struct graph_mail *m);

/* Any thread. False: full; of a chain, what was posted stays. Arguments as of graph_edges.h. */
bool graph_mail_request(struct graph_mail *m, uint64_t now_us, uint64_t session, const uint64_t *ids, uint32_t count);
bool graph_mail_post(struct graph_mail *m, const struct graph_mail_event *e);

/* The owner of the graph. False: empty. Events of two threads may come out of order by a little. */
bool graph_mail_take(struct graph_mail *m, struct graph_mail_event *out);

/* Any thread. */
uint64_t graph_mail_dropped(const struct graph_mail *m);

#endif
