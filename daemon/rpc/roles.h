/* The role and the tenant of each gRPC connection, by the number of its descriptor, which is all that gRPC (1.51) says
 * about a call's connection. A call may be checked after its connection was closed and the number given to another one.
 * So a number keeps its role and tenant for ever. A connection that gets a number of another role or tenant is moved to
 * another number.
 */
#ifndef TERRACE_DAEMON_RPC_ROLES_H
#define TERRACE_DAEMON_RPC_ROLES_H

#include <stdatomic.h>
#include <stdint.h>

#include "daemon/process/rights.h"
#include "store/status.h"

struct rpc_roles {
	const struct config *config;
	_Atomic uint64_t
		*kind; /* [count] by number: what rpc/roles.c makes of role, tenant and certificate; 0: none yet */
	uint32_t count;
	/* the least number that no connection has had yet, like all above it; the listener's thread's */
	int fresh;
	/* sets of tenants of peers, by the number that a kind has; the listener's thread adds to them */
	uint64_t (*peer_of)[WHO_TENANT_WORDS];
	uint32_t peer_sets;
};

/* Makes the table for all descriptor numbers that the process may have, by RLIMIT_NOFILE. EXHAUSTED: no memory. */
enum status rpc_roles_init(struct rpc_roles *p, const struct config *c);
void rpc_roles_fini(struct rpc_roles *p);
/* Settles the role and tenant of an accepted connection, whose client is `who`. Returns the descriptor with which the
 * connection goes on, perhaps another one. -1: the connection was closed, for want of a descriptor, or of room for
 * one more set of a peer's tenants (errno). One thread. */
int rpc_roles_settle(struct rpc_roles *p, int fd, const struct who *who);
enum { RPC_PEER_SETS_MAX = 4096 };
/* The role of a number that rpc_roles_settle has returned. Any thread. */
enum role rpc_roles_role(const struct rpc_roles *p, int number);
/* The tenant of a number, as in struct who; and whether a certificate identifies its client. */
uint32_t rpc_roles_tenant(const struct rpc_roles *p, int number);
bool rpc_roles_certified(const struct rpc_roles *p, int number);
/* The tenants of a peer's number, as in struct who; of other numbers none. */
void rpc_roles_peer_of(const struct rpc_roles *p, int number, uint64_t out[WHO_TENANT_WORDS]);

#endif
