/* The peer of a connection. */
#ifndef TERRACE_DAEMON_BLOCK_PEER_H
#define TERRACE_DAEMON_BLOCK_PEER_H

#include <stdint.h>

#define CACHE_PEER_UID UINT64_MAX /* user[0]: no address begins so */

/* The peer of a connection, for its share of countable things (block/quota.h). */
struct cache_peer {
	uint64_t user[2];                /* an address of IPv6 or, with CACHE_PEER_UID, a uid; zeroes: not known */
	uint64_t process;                /* its pid; 0: not known */
	uint32_t tenant;                 /* its tenant's number; 0: there is no table of tenants */
};

#endif
