/* The sockets that clients of gRPC connect to, and the thread that accepts connections. gRPC's own listeners (1.51) are
 * not used: after a failed accept, for example for want of a descriptor, they accept no connection until the daemon is
 * restarted.
 *
 * Threads: main calls all functions, except rpc_listen_stats, which any thread may call. The listener's thread calls
 * `take`.
 */
#ifndef TERRACE_DAEMON_RPC_LISTEN_H
#define TERRACE_DAEMON_RPC_LISTEN_H

#include "daemon/block/stat_row.h"
#include "store/status.h"

#include <stddef.h>
#include <stdint.h>

struct config;
struct rpc_listener;
struct rpc_peers;
struct rpc_roles;
struct rpc_tls;

/* Binds `socket`, with socket_mode, and `listen`, and does not accept yet. BUSY: another daemon has the path. IO,
 * EXHAUSTED: why[size] has a sentence. */
enum status rpc_listen_create(const struct config *c, struct rpc_listener **out, char *why, size_t size);
/* Begins to accept. take gets each connection that has sent something, if `roles` has a number for it and `peers` has
 * room; the owner of take shuts the connection down and closes it in the end. A connection that sends nothing for
 * silent_us is closed. The caller has blocked signals before. */
enum { RPC_SILENT_US = 5 * 1000 * 1000 };
struct rpc_listen_parts {
	struct rpc_peers *peers;
	struct rpc_roles *roles;
	struct rpc_tls *tls;           /* through which connections to `listen` come; NULL: they speak no TLS */
};
enum status rpc_listen_start(struct rpc_listener *l, const struct rpc_listen_parts *parts, uint64_t silent_us,
			     void (*take)(void *arg, int fd), void *arg);
/* Stops accepting, and removes the socket; take is not called afterwards. May be called twice. NULL allowed. */
void rpc_listen_stop(struct rpc_listener *l);
/* Stops accepting, and frees the listener. NULL allowed. */
void rpc_listen_destroy(struct rpc_listener *l);

/* The port of `listen`; 0: it is off. */
int rpc_listen_port(const struct rpc_listener *l);

void rpc_listen_stats(const struct rpc_listener *l, cache_stat_fn *emit, void *arg);

#endif
