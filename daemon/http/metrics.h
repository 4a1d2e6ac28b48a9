/* HTTP for monitoring: /metrics for Prometheus, with the rows of Admin.Stats, and /healthz, which says the same as
 * grpc.health.v1. It uses libmicrohttpd, in a thread of its own.
 *
 * There are METRICS_CONNECTIONS at a time, with a question each and life_us for question and answer. A connection
 * beyond its user's or process's share (block/quota.h: QUOTA_METRICS) takes the place of the oldest one of the same
 * user, so that a probe of /healthz is answered at once beside any number of slow connections.
 *
 * Threads: all of these by main. */
#ifndef TERRACE_DAEMON_HTTP_METRICS_H
#define TERRACE_DAEMON_HTTP_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/status.h"

struct daemon;
struct metrics;
struct part_ops;

enum { METRICS_CONNECTIONS = 64, METRICS_LIFE_US = 10000000 };

/* Listens at the configuration's metrics_address, which is not off, and does not answer yet. A Unix socket has the mode
 * of the others. Block signals before. life_us: of a connection. BUSY: another daemon has the path. IO, EXHAUSTED,
 * INTERNAL: why[size] has a sentence. */
enum status metrics_create(const struct daemon *d, uint64_t life_us, struct metrics **out, char *why, size_t size);

/* Begins to answer: all parts of the daemon are there. NULL is fine. */
void metrics_serve(struct metrics *m);

/* The port, of port 0 the one that it got; 0: a Unix socket. */
uint16_t metrics_port(const struct metrics *m);

/* Stop and end (process/part.h) of a struct metrics. It has no figures of its own. */
extern const struct part_ops metrics_part;

#endif
