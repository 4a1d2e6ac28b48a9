/* See rpc_listen.h. Who cannot be accepted for want of a descriptor or of memory waits in the kernel, and is asked for again after REST_MS. */
#include "daemon/rpc_listen.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/config.h"
#include "daemon/daemon.h"
#include "daemon/log.h"

enum { REST_MS = 50, ACCEPTS_A_TURN = 64 };
enum { LOCAL, TCP, LISTENERS };

struct rpc_listener {
	int fd[LISTENERS], stop;       /* -1: none */
	struct sockaddr_un at;         /* of the local one; "": not bound */
	int port;
	void (*take)(void *arg, int fd);
	void *arg;
	pthread_t thread;
	bool thread_started;
	struct log_again failed;
	atomic_ullong accepted, accepts_failed;
};

/* ---- the thread ---- */

/* False: those that wait are to be left waiting for a while. */
static bool accept_some(struct rpc_listener *l, int listener)
{
	const int on = 1;
	uint64_t held;

	for (int i = 0; i < ACCEPTS_A_TURN; i++) {
		const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd >= 0) {
			if (listener == l->fd[TCP])
				setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
			atomic_fetch_add_explicit(&l->accepted, 1, memory_order_relaxed);
			l->take(l->arg, fd);
		} else if (errno == EAGAIN) {
			return true;
		} else if (errno != EINTR && errno != ECONNABORTED) {
			const int error = errno;

			atomic_fetch_add_explicit(&l->accepts_failed, 1, memory_order_relaxed);
			if (log_again(&l->failed, daemon_now_us(), &held))
				log_warn("rpc_accept", LOG_TEXT("reason", strerror(error)), LOG_NUM("held_back", held));
			return false;
		}
	}
	return true;
}

static void *listen_main(void *arg)
{
	struct rpc_listener *l = arg;
	struct pollfd p[1 + LISTENERS] = { { .fd = l->stop, .events = POLLIN } };
	bool resting = false;

	for (int i = 0; i < LISTENERS; i++)
		p[1 + i] = (struct pollfd){ .fd = l->fd[i], .events = POLLIN };
	while (!(p[0].revents & POLLIN)) {
		bool all = true;

		poll(p, resting ? 1 : 1 + LISTENERS, resting ? REST_MS : -1);
		for (int i = 0; i < LISTENERS && !resting; i++)
			all &= !p[1 + i].revents || accept_some(l, l->fd[i]);
		resting = !all;
	}
	return NULL;
}

/* ---- the outside ---- */

static bool bind_local(struct rpc_listener *l, const struct config *c)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };

	errno = ENAMETOOLONG;
	if (strlen(c->socket) >= sizeof at.sun_path)
		return false;
	strcpy(at.sun_path, c->socket);
	l->fd[LOCAL] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* The umask gives it its mode from its first moment. */
	const mode_t mask = umask(~(mode_t)c->socket_mode & 0777);
	const bool bound = l->fd[LOCAL] >= 0 && !bind(l->fd[LOCAL], (const struct sockaddr *)&at, sizeof at);

	umask(mask);
	if (bound)
		l->at = at;
	return bound && !listen(l->fd[LOCAL], SOMAXCONN);
}

static bool bind_tcp(struct rpc_listener *l, const struct config *c)
{
	struct sockaddr_storage got = { .ss_family = AF_UNSPEC };
	socklen_t n = sizeof got;
	struct config_socket at;
	const int on = 1;

	errno = EINVAL;
	if (!config_listen(c->listen, &at))
		return false;
	l->fd[TCP] = socket(at.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (l->fd[TCP] < 0 || setsockopt(l->fd[TCP], SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ||
	    bind(l->fd[TCP], (const struct sockaddr *)&at.address, at.bytes) || listen(l->fd[TCP], SOMAXCONN) ||
	    getsockname(l->fd[TCP], (struct sockaddr *)&got, &n))
		return false;
	l->port = ntohs(got.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&got)->sin6_port : ((struct sockaddr_in *)&got)->sin_port);
	return true;
}

enum status rpc_listen_create(const struct config *c, struct rpc_listener **out, char *why, size_t size)
{
	struct rpc_listener *l = calloc(1, sizeof *l);
	const char *failed = NULL;

	if (!l) {
		snprintf(why, size, "no memory");
		return STATUS_EXHAUSTED;
	}
	l->fd[LOCAL] = l->fd[TCP] = -1;
	l->stop = eventfd(0, EFD_CLOEXEC);
	if (l->stop < 0 || !bind_local(l, c))
		failed = c->socket;
	else if (c->listen[0] && !bind_tcp(l, c))
		failed = c->listen;
	if (failed) {
		snprintf(why, size, "cannot listen on %s: %s", failed, strerror(errno));
		rpc_listen_destroy(l);
		return STATUS_IO;
	}
	*out = l;
	return STATUS_OK;
}

enum status rpc_listen_start(struct rpc_listener *l, void (*take)(void *arg, int fd), void *arg)
{
	l->take = take;
	l->arg = arg;
	l->thread_started = !pthread_create(&l->thread, NULL, listen_main, l);
	return l->thread_started ? STATUS_OK : STATUS_INTERNAL;
}

void rpc_listen_stop(struct rpc_listener *l)
{
	const uint64_t one = 1;

	if (!l)
		return;
	if (l->thread_started) {
		if (write(l->stop, &one, sizeof one) != sizeof one)
			log_error("rpc_listen_stop", LOG_NUM("errno", errno));
		pthread_join(l->thread, NULL);
	}
	l->thread_started = false;
	for (int i = 0; i < LISTENERS; i++) {
		if (l->fd[i] >= 0)
			close(l->fd[i]);
		l->fd[i] = -1;
	}
	if (l->at.sun_path[0])
		unlink(l->at.sun_path);
	l->at.sun_path[0] = 0;
}

void rpc_listen_destroy(struct rpc_listener *l)
{
	if (!l)
		return;
	rpc_listen_stop(l);
	if (l->stop >= 0)
		close(l->stop);
	free(l);
}

int rpc_listen_port(const struct rpc_listener *l)
{
	return l->port;
}

void rpc_listen_stats(const struct rpc_listener *l, cache_stat_fn *emit, void *arg)
{
	emit(arg, "terrace_rpc_accepted_total", "", (double)atomic_load_explicit(&l->accepted, memory_order_relaxed), true,
	     "connections of gRPC's clients");
	emit(arg, "terrace_rpc_accepts_failed_total", "", (double)atomic_load_explicit(&l->accepts_failed, memory_order_relaxed), true,
	     "times that none could be accepted, for want of descriptors or memory; they wait");
}
