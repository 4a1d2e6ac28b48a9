/* What the tests of the fd local socket share: a local socket before a real cache, and peers by hand. */
#ifndef TERRACE_TESTS_DAEMON_LOCAL_SOCKET_RIG_H
#define TERRACE_TESTS_DAEMON_LOCAL_SOCKET_RIG_H

#include "daemon/local/socket.h"
#include "proto/fdsock.h"
#include "tests/shell.h"

struct device_ops;

enum { NET_S = 30 }; /* ends a wait for what does not come */
enum { FD_SOCKET_CONNECTIONS = 6, FD_SOCKET_SHARE = 4 }; /* that there may be; of these one process's */

extern struct shell shell;
extern struct fd_socket *fd_socket;

/* ops: NULL, or of the GPU that the cache has. */
void fd_socket_rig_open(const struct device_ops *ops);
void fd_socket_rig_close(void);

#define HEAD(kind) { FDSOCK_MAGIC, FDSOCK_VERSION, kind }
/* What the library of the release before says. */
#define HEAD_BEFORE(kind) { FDSOCK_MAGIC, FDSOCK_VERSION_BEFORE, kind }

int dial(void);
/* Receives one packet: its bytes, 0 at the end of the connection. got: descriptors that came along, or -1: two of them. */
ssize_t hear_two(int fd, void *packet, size_t size, int *got);
/* The same with one at most. got may be NULL. */
ssize_t hear(int fd, void *packet, size_t size, int *got);
/* Says HELLO: the socket. The status is in w. */
int greet_any(struct fdsock_welcome *w);
/* The same, and is welcome. */
int greet(struct fdsock_welcome *w);

double stat_of(const char *name);
/* Waits until it has that value. */
void until(const char *name, double value);

#endif
