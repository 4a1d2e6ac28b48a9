/* Near calls: engines on this machine call the hot methods over the fd socket (proto/fdsock.h), and a thread of its own carries them out,
 * by the handlers of rpc/call.h.
 *
 * The door accepts a connection, sees that its CALLER's token is a session's, and hands it over. From then on it belongs to the near
 * thread. Calls that are put aside wait there, those that want a worker go to one, which sends the reply itself.
 *
 * Threads: create, stop and destroy by main; take by the door's; stats by any.
 */
#ifndef TERRACE_DAEMON_LOCAL_LOCAL_CALLS_H
#define TERRACE_DAEMON_LOCAL_LOCAL_CALLS_H

#include <sys/types.h>

#include "daemon/block/values.h"
#include "store/status.h"

struct daemon;
struct near;
struct quota_holder;

/* The daemon's cache, config and workers must be there. Block signals before. IO, EXHAUSTED, INTERNAL: why[size] has a sentence. */
enum status near_create(const struct daemon *d, struct near **out, char *why, size_t size);

/* Takes a place for one more connection (connections_max, apart from the door's own) of that holder's share (block/quota.h: QUOTA_NEAR): near_take has
 * it, or the caller gives it back. EXHAUSTED: there is none, or near_stop was called. NULL is fine: EXHAUSTED. */
enum status near_admit(struct near *n, struct quota_holder *holder);
/* Has the socket and the pidfd of its peer, closes both in the end, and gives the place back. Of a session; a CALL that names another is
 * refused. */
void near_take(struct near *n, int fd, int pidfd, struct quota_holder *holder, uint64_t session);

/* Refuses new connections and calls, waits up to grace_us for calls under way, then ends them. May be called again with less grace, from
 * the same thread. Returns at once; near_wait says when it is over. NULL is fine. */
void near_stop(struct near *n, uint64_t grace_us);
/* True once every call has ended and the thread is about to exit; waits at most wait_us for that. NULL is fine. */
bool near_wait(struct near *n, uint64_t wait_us);
/* Stops without grace, however long that takes, and frees; after the door's end and the workers'. NULL is fine. */
void near_destroy(struct near *n);

/* Counts of connections, and of calls by method and status as the gRPC server's. NULL is fine. */
void near_stats(struct near *n, cache_stat_fn *emit, void *arg);

#endif
