/* How sessions end, and when what they held is free again. */
#ifndef TERRACE_DAEMON_SESSION_END_H
#define TERRACE_DAEMON_SESSION_END_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct cache;
struct session;

/* Closes a session. Its leases and reservations may still be released and aborted. */
enum status cache_session_close(struct cache *c, uint64_t session, uint64_t now_us, const char **why);
/* The attachment's process has exited, or its socket was closed. An unknown attachment, or a second call, is ignored.
 * True: its session had no other attachment, and has ended with it; its leases and reservations held *held_bytes (may
 * be NULL). */
bool cache_attach_gone(struct cache *c, uint64_t attachment, uint64_t now_us, uint64_t *held_bytes);
/* Ends the session for its clients. The session may be freed upon return. */
void session_detach(struct cache *c, struct session *s);
/* Frees what a detached session holds if no process can touch it any more, and then the session. Counts *probes
 * down. */
void session_detached_try(struct cache *c, struct session *s, uint32_t *probes);
void sessions_tick(struct cache *c, uint64_t now_us);
void sessions_free(struct cache *c);

#endif
