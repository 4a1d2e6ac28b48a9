/* The gRPC server: one polling thread that turns completions into steps of calls. The sockets are rpc/listen.c's.
 *
 * Threads: rpc_server_create, _stop and _destroy by main; poke and defer by anybody; everything else inside
 * is the rpc thread's, or the worker's that owns a call at that moment.
 */
#ifndef TERRACE_DAEMON_RPC_SERVER_H
#define TERRACE_DAEMON_RPC_SERVER_H

#include <stdatomic.h>
#include <stddef.h>

#include "daemon/block/values.h"
#include "store/status.h"

struct daemon;
struct rpc_call;
struct rpc_server;

/* Binds, registers every method and starts the thread. The daemon's cache, config and workers must be
 * there; the server becomes d->rpc, before its first call runs. Block signals before. IO: an address could
 * not be bound; why[size] has a sentence. */
enum status rpc_server_create(struct daemon *d, char *why, size_t size);

/* The port that `listen` got (for port 0), or 0. */
int rpc_server_port(const struct rpc_server *s);

/* Refuses new calls, ends watches, waits up to grace_us for the others, then cancels them. May be called
 * again with less grace, from the same thread. Returns at once; rpc_server_wait says when it is over. */
void rpc_server_stop(struct rpc_server *s, uint64_t grace_us);
/* True once every call has ended and the thread is about to exit; waits at most wait_us for that. */
bool rpc_server_wait(struct rpc_server *s, uint64_t wait_us);
/* After rpc_server_wait said true, or was never started. NULL is fine. */
void rpc_server_destroy(struct rpc_server *s);

/* Makes the rpc thread call a waiting stream's next again. Cheap while one poke is under way already. Must
 * not be called once the stream's close has returned. */
void rpc_server_poke(struct rpc_call *c);

/* Runs item->run(item) on the rpc thread, soon. For callbacks of gRPC that may come on any thread. server
 * NULL (tests): at once. */
struct rpc_deferred {
	struct rpc_deferred *next;
	void (*run)(struct rpc_deferred *item);
};
void rpc_server_defer(struct rpc_server *s, struct rpc_deferred *item);

/* Counts of calls by method and status, and times. */
void rpc_server_stats(struct rpc_server *s, cache_stat_fn *emit, void *arg);

#endif
