/* The gRPC server: one polling thread that turns completions into steps of calls. The sockets are rpc/listen.c's.
 *
 * Threads: rpc_server_create by main; wake and defer by any thread; everything else inside by the rpc thread, or by the
 * worker that owns the call.
 */
#ifndef TERRACE_DAEMON_RPC_SERVER_H
#define TERRACE_DAEMON_RPC_SERVER_H

#include <stdatomic.h>
#include <stddef.h>

#include "store/status.h"

struct daemon;
struct part_ops;
struct rpc_call;
struct rpc_server;

/* Binds, registers every method and starts the thread. The daemon's cache, config and workers must be there; before
 * its first call runs the server becomes d->rpc, and d has it in its list of parts. Block signals before. IO: an
 * address could not be bound; why[size] has a sentence. */
enum status rpc_server_create(struct daemon *d, char *why, size_t size);

/* The port that `listen` got (for port 0), or 0. */
int rpc_server_port(const struct rpc_server *s);

/* Stop, end and figures (process/part.h) of a struct rpc_server, which rpc_server_create lists. A stop ends watches
 * at once. Figures: counts of calls by method and status, and times. */
extern const struct part_ops rpc_part;

/* Makes the rpc thread call a waiting stream's next again. Cheap while one wake is under way already. Must
 * not be called once the stream's close has returned. */
void rpc_server_wake(struct rpc_call *c);

/* Runs item->run(item) on the rpc thread, soon. For callbacks of gRPC that may come on any thread. server
 * NULL (tests): at once. */
struct rpc_deferred {
	struct rpc_deferred *next;
	void (*run)(struct rpc_deferred *item);
};
void rpc_server_defer(struct rpc_server *s, struct rpc_deferred *item);

#endif
