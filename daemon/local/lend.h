/* How the local socket answers, and what it lends: descriptors of extents, and progress pages. */
#ifndef TERRACE_DAEMON_LOCAL_LEND_H
#define TERRACE_DAEMON_LOCAL_LEND_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "proto/fdsock.h"

struct workers;

struct fd_socket_lender {
	struct cache *cache;
	struct workers *workers;
	pthread_mutex_t lock;      /* guards what follows */
	pthread_cond_t ended;
	uint32_t progress_pages;   /* that workers have been asked to lend */
	atomic_ullong descriptors; /* handed out */
};

void fd_socket_lender_init(struct fd_socket_lender *l, struct cache *c, struct workers *w);
/* Waits for the progress pages that are being lent; no new one may be asked for. False: one is not done by then
 * (threads/deadline.h). */
bool fd_socket_lender_ends(struct fd_socket_lender *l, const struct timespec *until);
/* After fd_socket_lender_ends. */
void fd_socket_lender_fini(struct fd_socket_lender *l);

struct fdsock_head fd_socket_head(uint16_t version, enum fdsock_type type);
/* Sends a packet with `fds` descriptors, at most 2, without waiting, as the peer may not read. 0, or an errno: EPIPE if
 * the peer has closed its socket for reading, or has gone; recv() tells which. */
int fd_socket_send(int to, const void *packet, size_t n, const int *fd, uint32_t fds);
/* Answers a MAP. The answer with a progress page comes later, from a worker, since GPUs' drivers may take long. Returns
 * as fd_socket_send; if the answer could not be sent, nothing is lent. */
int fd_socket_lend(struct fd_socket_lender *l, int to, uint64_t attachment, const struct fdsock_map *m);

#endif
