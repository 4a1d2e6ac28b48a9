/* See local/lend.h.
 *
 * A progress page is registered with every GPU before it is lent. The local socket's thread, which hears all engines
 * and ticks for the whole cache, does not wait for that: a worker lends it, and answers by a descriptor of its own for
 * the socket, so that the connection may end meanwhile. */
#include "daemon/local/lend.h"

#include "daemon/block/views.h"
#include "daemon/session/attachment.h"
#include "daemon/threads/deadline.h"
#include "daemon/threads/pool.h"
#include "store/status.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PROGRESS_PAGES_MAX = 16 }; /* at a time: the workers have other work */

struct progress_page_work {
	struct work work;          /* first */
	struct fd_socket_lender *lender;
	int to;                    /* its own */
	uint64_t attachment;
	struct fdsock_map map;
};

struct fdsock_head fd_socket_head(uint16_t version, enum fdsock_type type)
{
	return (struct fdsock_head){ FDSOCK_MAGIC, version, (uint16_t)type };
}

int fd_socket_send(int to, const void *packet, size_t n, const int *fd, uint32_t fds)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} control = { 0 };
	struct iovec iov = { (void *)packet, n };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t sent;

	if (fds) {
		m.msg_control = &control;
		m.msg_controllen = CMSG_SPACE(fds * sizeof(int));
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(fds * sizeof(int));
		memcpy(CMSG_DATA(&control.head), fd, fds * sizeof(int));
	}
	do
		sent = sendmsg(to, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	if (sent < 0)
		return errno;
	return sent == (ssize_t)n ? 0 : EIO;
}

static int answer(struct fd_socket_lender *l, int to, const struct fdsock_map *m, enum status s,
		  const struct cache_lent *lent)
{
	struct fdsock_extent e = { .head = fd_socket_head(m->head.version, FDSOCK_EXTENT), .extent = m->extent,
				   .write = m->write != 0, .gpu = FDSOCK_NO_GPU };
	const int fds[] = { lent->fd, lent->device_fd };
	const uint32_t count = s != STATUS_OK ? 0 : lent->device_fd < 0 ? 1 : 2;
	int error;

	e.status = s;
	if (s == STATUS_OK) {
		e.bytes = lent->bytes;
		e.page_bytes = lent->page_bytes;
		e.gpu = lent->gpu < 0 ? FDSOCK_NO_GPU : (uint32_t)lent->gpu;
		e.at = lent->at;
		e.range = lent->range_bytes;
		e.range_id = lent->range_id;
	}
	error = fd_socket_send(to, &e, sizeof e, fds, count);
	for (uint32_t i = 0; i < count; i++)
		close(fds[i]);
	atomic_fetch_add_explicit(&l->descriptors, error ? 0 : count, memory_order_relaxed);
	return error;
}

static const struct cache_lent none = { .fd = -1, .device_fd = -1 };

/* The kernel bounds the number of descriptors that are sent and not received yet, over all sockets of a user. So
 * clients that do not read their answers keep other clients of the user from theirs. */
static int lend(struct fd_socket_lender *l, int to, uint64_t attachment, const struct fdsock_map *m)
{
	struct cache_lent lent = { .fd = -1, .device_fd = -1 };
	enum status s = cache_attach_lend(l->cache, attachment, m->extent, m->write != 0, &lent);
	int error = answer(l, to, m, s, &lent);

	if (error && s == STATUS_OK)
		cache_attach_unmapped(l->cache, attachment, m->extent);
	return error == ETOOMANYREFS ? answer(l, to, m, STATUS_EXHAUSTED, &none) : error;
}

/* ---- progress pages ---- */

static void progress_page_ended(struct fd_socket_lender *l)
{
	pthread_mutex_lock(&l->lock);
	l->progress_pages--;
	pthread_cond_signal(&l->ended);
	pthread_mutex_unlock(&l->lock);
}

static void progress_page_run(struct work *work)
{
	struct progress_page_work *w = (struct progress_page_work *)work;
	struct fd_socket_lender *l = w->lender;
	const int error = lend(l, w->to, w->attachment, &w->map);

	if (error && error != EPIPE)
		shutdown(w->to, SHUT_RDWR); /* the peer does not read: the local socket will see it gone */
	close(w->to);
	free(w);
	progress_page_ended(l);
}

static bool progress_page_begin(struct fd_socket_lender *l)
{
	bool begun;

	pthread_mutex_lock(&l->lock);
	begun = l->progress_pages < PROGRESS_PAGES_MAX;
	l->progress_pages += begun;
	pthread_mutex_unlock(&l->lock);
	return begun;
}

/* Has a worker lend the progress page. False: none has room now. */
static bool progress_page_submit(struct fd_socket_lender *l, int to, uint64_t attachment, const struct fdsock_map *m)
{
	struct progress_page_work *w = malloc(sizeof(*w));

	if (!w)
		return false;
	*w = (struct progress_page_work){ { progress_page_run }, l, fcntl(to, F_DUPFD_CLOEXEC, 0), attachment, *m };
	if (w->to >= 0 && progress_page_begin(l)) {
		if (workers_submit(l->workers, &w->work) == STATUS_OK)
			return true;
		progress_page_ended(l);
	}
	if (w->to >= 0)
		close(w->to);
	free(w);
	return false;
}

int fd_socket_lend(struct fd_socket_lender *l, int to, uint64_t attachment, const struct fdsock_map *m)
{
	if (m->extent != FDSOCK_EXTENT_PROGRESS_PAGE)
		return lend(l, to, attachment, m);
	return progress_page_submit(l, to, attachment, m) ? 0 : answer(l, to, m, STATUS_EXHAUSTED, &none);
}

/* ---- birth and death ---- */

void fd_socket_lender_init(struct fd_socket_lender *l, struct cache *c, struct workers *w)
{
	l->cache = c;
	l->workers = w;
	l->progress_pages = 0;
	atomic_init(&l->descriptors, 0);
	pthread_mutex_init(&l->lock, NULL);
	deadline_cond_init(&l->ended);
}

bool fd_socket_lender_ends(struct fd_socket_lender *l, const struct timespec *until)
{
	bool ended;

	pthread_mutex_lock(&l->lock);
	while (l->progress_pages && !pthread_cond_timedwait(&l->ended, &l->lock, until))
		continue;
	ended = !l->progress_pages;
	pthread_mutex_unlock(&l->lock);
	return ended;
}

void fd_socket_lender_fini(struct fd_socket_lender *l)
{
	pthread_cond_destroy(&l->ended);
	pthread_mutex_destroy(&l->lock);
}
