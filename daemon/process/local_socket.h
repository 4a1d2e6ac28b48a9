/* A Unix socket that listens at a path, from its binding to its removal.
 *
 * Of the daemons that use one path, each binds and removes in its turn (data_dir_lock_turn), and a path is removed
 * while its socket still answers: so a successor finds either a daemon that answers, or no path; and a daemon that
 * stops never removes what another one has bound since.
 *
 * One thread. */
#ifndef TERRACE_DAEMON_PROCESS_LOCAL_SOCKET_H
#define TERRACE_DAEMON_PROCESS_LOCAL_SOCKET_H

#include <stddef.h>
#include <sys/types.h>
#include <sys/un.h>

#include "store/status.h"

struct local_socket {
	int fd;         /* -1: none, or given away */
	char path[sizeof((struct sockaddr_un *)0)->sun_path]; /* "": none */
	dev_t device;   /* what was bound there */
	ino_t inode;
};
#define LOCAL_SOCKET_NONE ((struct local_socket){ .fd = -1 })

/* Listens at `path`, which has `mode` from its first moment; what stood there and is no daemon's any more is removed.
 * type: SOCK_STREAM or SOCK_SEQPACKET. BUSY, IO: as data_dir_lock_turn and data_dir_lock_socket, or it cannot be bound;
 * why[size] has a sentence, and *s is LOCAL_SOCKET_NONE. */
enum status local_socket_open(struct local_socket *s, const char *path, int type, unsigned mode, int backlog, char *why, size_t size);

/* Removes the path if it is still this socket's, which must be open and listening. Again: nothing. */
void local_socket_remove(struct local_socket *s);

/* Removes the path as local_socket_remove does, then closes the socket. Does nothing to LOCAL_SOCKET_NONE. */
void local_socket_close(struct local_socket *s);

#endif
