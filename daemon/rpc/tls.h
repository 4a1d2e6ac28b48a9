/* TLS of `listen`: the handshakes, and a thread that carries the bytes between a client's TLS connection and a socket
 * pair, whose other end gRPC has.
 *
 * gRPC (1.51) takes a connected descriptor only without TLS, and its own listeners cannot be used (rpc/listen.h). With
 * a socket pair a connection has a number, a holder of quotas and an end like every other connection, and the
 * certificate is known before gRPC has the connection.
 *
 * Certificates are read again when their files change, and are used from the next handshake on; connections stay. If
 * the files do not fit each other, as in the middle of a change, the old ones stay in use, and the files are looked at
 * again a second later.
 *
 * Threads: the listener's thread calls take, next and fd; main calls create and destroy; any thread calls stats.
 */
#ifndef TERRACE_DAEMON_RPC_TLS_H
#define TERRACE_DAEMON_RPC_TLS_H

#include "daemon/block/stat_row.h"
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
	const struct tenants *tenants; /* NULL: each client with a certificate is an engine, or of `peers` */
	const char *peers; /* names of other daemons' certificates, separated by commas; empty: none */
};
/* INVALID: a file is wrong; EXHAUSTED, INTERNAL: no memory, no thread. why[size] has the sentence. Block signals
 * before. */
enum status rpc_tls_create(const struct rpc_tls_options *o, struct rpc_tls **out, char *why, size_t size);
/* Carries the last bytes of gRPC's closed connections, for a second at most, then closes all connections. NULL
 * allowed. */
void rpc_tls_destroy(struct rpc_tls *t);

/* Takes over a connected, non-blocking TCP socket. With RPC_TLS_HANDSHAKES_MAX handshakes under way, the oldest of them
 * is ended. The socket is closed if as many wait for the TLS thread to begin. */
void rpc_tls_take(struct rpc_tls *t, int fd, const struct cache_peer *peer);
/* A descriptor that becomes readable when a handshake is over. */
int rpc_tls_fd(const struct rpc_tls *t);
/* The next connection whose handshake is over: the socket for gRPC, which is the caller's from now on, and its client.
 * False: there is none. */
struct rpc_tls_ready {
	int fd;
	struct cache_peer peer;
	struct who who; /* from its certificate */
};
bool rpc_tls_next(struct rpc_tls *t, struct rpc_tls_ready *out);

void rpc_tls_stats(struct rpc_tls *t, cache_stat_fn *emit, void *arg);

#endif
