/* Local calls: engines on this machine call the hot methods over the fd socket (proto/fdsock.h), and a thread carries
 * them out, with the handlers of rpc/call.h.
 *
 * The local socket accepts a connection, checks that its CALLER's token is a session's, and hands it over. From then on
 * it belongs to the thread of local calls. Calls that are put aside wait there, those that want a worker go to one,
 * which sends the reply itself.
 *
 * Threads: create by main; take by the local socket's.
 */
#ifndef TERRACE_DAEMON_LOCAL_LOCAL_CALLS_H
#define TERRACE_DAEMON_LOCAL_LOCAL_CALLS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "store/status.h"

struct daemon;
struct local_calls;
struct part_ops;
struct quota_holder;

/* The daemon's cache, config and workers must be there. Block signals before. IO, EXHAUSTED, INTERNAL: why[size] has a sentence. */
enum status local_create(const struct daemon *d, struct local_calls **out, char *why, size_t size);

/* Takes a place for one more connection (of connections_max, apart from the local socket's own) from that holder's
 * share (block/quota.h: QUOTA_LOCAL). The caller then calls local_take, or gives the place back. EXHAUSTED: there is
 * none, or calls_stop was called. n NULL: EXHAUSTED. */
enum status local_admit(struct local_calls *n, struct quota_holder *holder);
/* Takes over the socket and its peer's pidfd, closes both at the end, and gives the place back. The connection is the
 * session's: a CALL that names another session is refused. */
void local_take(struct local_calls *n, int fd, int pidfd, struct quota_holder *holder, uint64_t session);

/* Stop, end and figures (process/part.h) of a struct local_calls. It is destroyed after the local socket and the
 * workers have ended. Figures: counts of connections, and of calls by method and status as the gRPC server's. */
extern const struct part_ops local_part;

#endif
