/* See process/socket_peer.h. */
#include "daemon/process/socket_peer.h"

#include "daemon/block/peer.h"


#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

void socket_peer(int fd, struct cache_peer *out)
{
	struct sockaddr_storage at = { .ss_family = AF_UNSPEC };
	socklen_t n = sizeof at, size = sizeof(struct ucred);
	struct ucred who;

	*out = (struct cache_peer){ .process = 0 };
	if (getpeername(fd, (struct sockaddr *)&at, &n))
		return;
	if (at.ss_family == AF_UNIX && !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size))
		*out = (struct cache_peer){ .user = { CACHE_PEER_UID, who.uid }, .process = (uint64_t)who.pid };
	else if (at.ss_family == AF_INET)
		out->user[1] = 0xffffull << 32 | ntohl(((struct sockaddr_in *)&at)->sin_addr.s_addr);
	else if (at.ss_family == AF_INET6)
		memcpy(out->user, &((struct sockaddr_in6 *)&at)->sin6_addr, sizeof out->user);
}
