/* The connections that gRPC has: which process each is, and how many each may have (block/quota.h: QUOTA_RPC).
 *
 * gRPC does not report when it closes a connection. So each connection has a second descriptor here, which hangs up
 * when gRPC shuts the connection down. A connection is also cut by that descriptor: one whose output its peer has not
 * read for RPC_STALL_US while there were RPC_STALL_BYTES of it, since gRPC keeps in memory what it cannot write.
 *
 * A connection beyond the share is kept for RPC_REFUSED_US, if there are not many of these, so that its first call is
 * answered by RESOURCE_EXHAUSTED with the reason; then it is cut.
 *
 * A connection is cut, too, that goes on calling while its calls are refused, RPC_REFUSALS_A_SECOND times: each refusal
 * costs the thread that serves every other client some of its time. gRPC keeps some 8 KB for each call of a client that
 * does not acknowledge its bound of streams: two seconds after such a cut the allocator is told to give that back.
 *
 * Threads: add and look by the listener's; holder, peer, called_in_vain and stats by any; the others by main. */
#ifndef TERRACE_DAEMON_RPC_PEERS_H
#define TERRACE_DAEMON_RPC_PEERS_H

#include "daemon/block/stat_row.h"
#include "store/status.h"

#include <stdint.h>

struct cache_peer;
struct quota;
struct rpc_peers;

enum { RPC_STALL_US = 10 * 1000 * 1000, RPC_STALL_BYTES = 32 << 10 };
enum { RPC_REFUSED_US = 1000 * 1000, RPC_LOOK_US = 500 * 1000, RPC_REFUSAL_MAX = 200 };
enum { RPC_REFUSALS_A_SECOND = 256 };

/* Makes a table for at most `max` connections. EXHAUSTED, IO. */
enum status rpc_peers_create(struct quota *q, uint64_t max, struct rpc_peers **out);
/* NULL allowed. */
void rpc_peers_destroy(struct rpc_peers *p);

/* Adds a connection that gRPC is to be given now; peer: its other end. False: the caller closes it. */
bool rpc_peers_add(struct rpc_peers *p, int fd, const struct cache_peer *peer, uint64_t now_us);
/* A descriptor that can be read when a connection has ended. */
int rpc_peers_fd(const struct rpc_peers *p);
/* Forgets connections that have ended, and cuts those that stall or are refused. Returns when to call it again,
 * UINT64_MAX if there is no connection. */
uint64_t rpc_peers_look(struct rpc_peers *p, uint64_t now_us);

/* The holder of the connection that gRPC knows by this number, joined; NULL: it has ended. why[RPC_REFUSAL_MAX]: "", or
 * why each call of it is to be refused. When a connection has ended, a new one may have its number; its last calls then
 * count for the new one. */
struct quota_holder *rpc_peers_holder(struct rpc_peers *p, int fd, char *why);

/* The other end of the connection that gRPC knows by this number, as rpc_peers_add was told. If the connection has
 * ended, a peer that is not known. */
void rpc_peers_peer(struct rpc_peers *p, int fd, struct cache_peer *out);

/* Notes that a call of that connection has been refused because of its share. */
void rpc_peers_called_in_vain(struct rpc_peers *p, int fd, uint64_t now_us);

void rpc_peers_stats(struct rpc_peers *p, cache_stat_fn *emit, void *arg);

#endif
