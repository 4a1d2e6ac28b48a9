/* TLS of `listen`: the handshakes, and a thread that carries the bytes between a client's TLS connection and a socket
 * pair, whose other end gRPC has.
 *
 * gRPC (1.51) takes a connected descriptor without TLS alone, and its own listeners cannot be used (rpc/listen.h). With
 * a socket pair a connection has a number, a holder of shares and an end as every other one has, and what the
 * certificate says is known before gRPC has the connection.
 *
 * Certificates are read anew when their files change, and are used from the next handshake on; connections stay. Files
 * that do not fit each other, as amid a change, leave the old ones in use, and are looked at again a second later.
 *
 * Threads: take, next and fd by the listener's; create and destroy by main; stats by any.
 */
#ifndef TERRACE_DAEMON_RPC_TLS_H
#define TERRACE_DAEMON_RPC_TLS_H

#include "daemon/block/counters.h"
#include "daemon/block/peer.h"
#include "daemon/process/rights.h"
#include "proto/tls.h"
#include "store/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rpc_tls;
struct tenants;

enum { RPC_TLS_HANDSHAKES_MAX = 256, RPC_TLS_HANDSHAKE_US = 10 * 1000 * 1000 };

/* The paths and the table must live as long as the object. */
struct rpc_tls_options {
	struct tls_files files;
	const struct tenants *tenants; /* NULL: each client with a certificate is an engine */
};
/* INVALID: a file is wrong; EXHAUSTED, INTERNAL: no memory, no thread. why[size] has the sentence. Block signals
 * before. */
enum status rpc_tls_create(const struct rpc_tls_options *o, struct rpc_tls **out, char *why, size_t size);
/* Carries for a second what gRPC's closed connections still have to say, then closes all. NULL is fine. */
void rpc_tls_destroy(struct rpc_tls *t);

/* A connected, non-blocking TCP socket, which is the object's from now on. Of more than RPC_TLS_HANDSHAKES_MAX under
 * way it is closed. */
void rpc_tls_take(struct rpc_tls *t, int fd, const struct cache_peer *peer);
/* A descriptor that can be read when a handshake is over. */
int rpc_tls_fd(const struct rpc_tls *t);
/* The next one that is: the socket for gRPC, which is the caller's from now on, and whose connection it is. False:
 * there is none. */
struct rpc_tls_ready {
	int fd;
	struct cache_peer peer;
	struct who who; /* by its certificate */
};
bool rpc_tls_next(struct rpc_tls *t, struct rpc_tls_ready *out);

void rpc_tls_stats(struct rpc_tls *t, cache_stat_fn *emit, void *arg);

#endif
