/* Which process and user, or which address, has connected to a socket: what shares (block/quota.h) go by. */
#ifndef TERRACE_DAEMON_PROCESS_SOCKET_PEER_H
#define TERRACE_DAEMON_PROCESS_SOCKET_PEER_H

struct cache_peer;

/* Tells who the other end of a connected socket is. Of a Unix socket *out is the peer's user and process, of TCP its
 * address as the user; all zeros if the peer has left. Any thread. */
void socket_peer(int fd, struct cache_peer *out);

#endif
