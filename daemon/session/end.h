/* How sessions end, and when what they held is free again. */
#ifndef TERRACE_DAEMON_SESSION_END_H
#define TERRACE_DAEMON_SESSION_END_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct cache;
struct session;

/* Its leases and reservations may still be released and aborted. */
enum status cache_session_close(struct cache *c, uint64_t session, uint64_t now_us, const char **why);
/* Its process has exited, or its socket was closed. Unknown ones, and those told of before, are ignored. True: its session had no other, and
 * has ended with it, while its leases and reservations held *held_bytes (may be NULL). */
bool cache_attach_gone(struct cache *c, uint64_t attachment, uint64_t now_us, uint64_t *held_bytes);
/* Ends it for its clients. It may be gone upon return. */
void session_detach(struct cache *c, struct session *s);
/* Frees what a detached session holds if nobody can touch it any more, and then the detached session. *probes is
 * counted down. */
void session_detached_try(struct cache *c, struct session *s, uint32_t *probes);
void sessions_tick(struct cache *c, uint64_t now_us);
void sessions_free(struct cache *c);

#endif
