/* See rpc/listen.h. A connection that cannot be accepted for want of a descriptor or memory waits in the kernel; the
 * next try is after REST_MS. An accepted connection is given to gRPC with its first byte, mostly at once: gRPC (1.51)
 * has no bound for a handed-over connection's first message but its keepalive. If more than SILENT_MAX connections are
 * silent, the oldest is closed.
 */
#include "daemon/rpc/listen.h"

#include "daemon/block/peer.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/process/local_socket.h"
#include "daemon/process/log.h"
#include "daemon/process/log_unwritten.h"
#include "daemon/process/socket_peer.h"
#include "daemon/rpc/peers.h"
#include "daemon/rpc/roles.h"
#include "daemon/rpc/tls.h"
#include "store/status.h"

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
#include <unistd.h>

enum { REST_MS = 50, ACCEPTS_A_TURN = 64, SILENT_MAX = 256 };
enum { LOCAL, TCP, LISTENERS };
enum {
	WATCH_STOP,
	WATCH_PEERS,
	WATCH_TLS,
	WATCH_LISTENERS,
	WATCH_SILENT = WATCH_LISTENERS + LISTENERS,
	WATCHED_MAX = WATCH_SILENT + SILENT_MAX
};

struct rpc_listener {
	int fd[LISTENERS], stop;       /* -1: none */
	struct local_socket local;     /* its descriptor is fd[LOCAL] too */
	int port;
	struct rpc_peers *peers;
	struct rpc_roles *roles;
	struct rpc_tls *tls;           /* NULL: none */
	uint64_t peers_us;             /* when they are to be looked at */
	void (*take)(void *arg, int fd);
	void *arg;
	pthread_t thread;
	bool thread_started;
	uint64_t silent_us;            /* that they may say nothing */
	struct pollfd watched[WATCHED_MAX];
	uint64_t until_us[SILENT_MAX]; /* of watched[WATCH_SILENT ...], the oldest first */
	uint32_t silent;
	struct log_again failed;
	atomic_ullong accepted, accepts_failed, silent_closed;
};

/* ---- the thread ---- */

static void accept_failed(struct rpc_listener *l, int error)
{
	uint64_t held;

	atomic_fetch_add_explicit(&l->accepts_failed, 1, memory_order_relaxed);
	if (log_again(&l->failed, daemon_now_us(), &held))
		log_warn("rpc_accept", LOG_TEXT("reason", strerror(error)), LOG_NUM("held_back", held));
}

/* Hands the connection to gRPC. Closes it if there is no descriptor for it, or rpc_peers_add refuses it. */
static void admit(struct rpc_listener *l, int fd, const struct cache_peer *peer, const struct who *who)
{
	struct cache_peer of = *peer;

	of.tenant = who->tenant;
	fd = rpc_roles_settle(l->roles, fd, who);
	if (fd < 0)
		accept_failed(l, errno);
	else if (rpc_peers_add(l->peers, fd, &of, daemon_now_us()))
		l->take(l->arg, fd);
	else
		close(fd);
	l->peers_us = 0; /* there may be one more to look at */
}

/* Looks at a connection that has not been handed over. False: it has sent nothing yet. True: it is with gRPC or in its
 * handshake, or closed, as its client has left or may have no connection more. */
static bool hand_over(struct rpc_listener *l, int fd)
{
	struct cache_peer peer;
	struct who who;
	char first;
	const ssize_t n = recv(fd, &first, sizeof first, MSG_PEEK | MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	socket_peer(fd, &peer);
	if (n <= 0)
		close(fd);
	else if (l->tls && peer.user[0] != CACHE_PEER_UID)
		rpc_tls_take(l->tls, fd, &peer);
	else {
		rights_identify(l->roles->config, fd, &who);
		admit(l, fd, &peer, &who);
	}
	return true;
}

/* Closes the n oldest connections that have sent nothing. */
static void close_silent(struct rpc_listener *l, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		close(l->watched[WATCH_SILENT + i].fd);
	l->silent -= n;
	memmove(&l->watched[WATCH_SILENT], &l->watched[WATCH_SILENT + n], l->silent * sizeof l->watched[0]);
	memmove(&l->until_us[0], &l->until_us[n], l->silent * sizeof l->until_us[0]);
}

static void wait_for_byte(struct rpc_listener *l, int fd)
{
	if (l->silent == SILENT_MAX) {
		close_silent(l, 1);
		atomic_fetch_add_explicit(&l->silent_closed, 1, memory_order_relaxed);
	}
	l->watched[WATCH_SILENT + l->silent] = (struct pollfd){ .fd = fd, .events = POLLIN };
	l->until_us[l->silent++] = daemon_now_us() + l->silent_us;
}

/* Goes through the connections that have not sent a byte yet. One that has sent something, or whose client has left, is
 * handed over or closed; one whose time is up is closed. */
static void look_at_silent(struct rpc_listener *l)
{
	const uint64_t now_us = daemon_now_us();
	uint32_t left = 0, late = 0;

	for (uint32_t i = 0; i < l->silent; i++) {
		const struct pollfd p = l->watched[WATCH_SILENT + i];

		if (p.revents && hand_over(l, p.fd))
			continue;
		l->watched[WATCH_SILENT + left] = p;
		l->until_us[left++] = l->until_us[i];
	}
	l->silent = left;
	while (late < left && l->until_us[late] <= now_us)
		late++;
	close_silent(l, late);
	atomic_fetch_add_explicit(&l->silent_closed, late, memory_order_relaxed);
}

/* How long the thread may sleep, in milliseconds; -1: until something comes. */
static int rest_ms(const struct rpc_listener *l, bool resting)
{
	const uint64_t now_us = daemon_now_us(), silent = l->silent ? l->until_us[0] : UINT64_MAX;
	const uint64_t first = silent < l->peers_us ? silent : l->peers_us;
	const uint64_t ms = first <= now_us ? 0 : (first - now_us + 999) / 1000;

	return resting && ms > REST_MS ? REST_MS : first != UINT64_MAX ? (int)ms : -1;
}

/* Accepts some connections. False: no descriptor is left for the others, which wait for a while. */
static bool accept_some(struct rpc_listener *l, int listener)
{
	const int on = 1;

	for (int i = 0; i < ACCEPTS_A_TURN; i++) {
		const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd >= 0) {
			if (listener == l->fd[TCP])
				setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
			atomic_fetch_add_explicit(&l->accepted, 1, memory_order_relaxed);
			if (!hand_over(l, fd))
				wait_for_byte(l, fd);
		} else if (errno == EAGAIN) {
			return true;
		} else if (errno != EINTR && errno != ECONNABORTED) {
			accept_failed(l, errno);
			return false;
		}
	}
	return true;
}

static void *listen_main(void *arg)
{
	struct rpc_listener *l = arg;
	struct pollfd *p = l->watched;
	struct rpc_tls_ready ready;
	bool resting = false;

	p[WATCH_STOP] = (struct pollfd){ .fd = l->stop, .events = POLLIN };
	p[WATCH_PEERS] = (struct pollfd){ .fd = rpc_peers_fd(l->peers), .events = POLLIN };
	p[WATCH_TLS] = (struct pollfd){ .fd = l->tls ? rpc_tls_fd(l->tls) : -1, .events = POLLIN };
	while (!(p[WATCH_STOP].revents & POLLIN)) {
		bool all = true;

		for (int i = 0; i < LISTENERS; i++)
			p[WATCH_LISTENERS + i] = (struct pollfd){ .fd = resting ? -1 : l->fd[i], .events = POLLIN };
		poll(p, WATCH_SILENT + l->silent, rest_ms(l, resting));
		look_at_silent(l);
		while (p[WATCH_TLS].revents && rpc_tls_next(l->tls, &ready))
			admit(l, ready.fd, &ready.peer, &ready.who);
		if (p[WATCH_PEERS].revents || daemon_now_us() >= l->peers_us)
			l->peers_us = rpc_peers_look(l->peers, daemon_now_us());
		for (int i = 0; i < LISTENERS; i++)
			all &= !p[WATCH_LISTENERS + i].revents || accept_some(l, l->fd[i]);
		resting = !all;
	}
	close_silent(l, l->silent);
	return NULL;
}

/* ---- the outside ---- */

static bool bind_tcp(struct rpc_listener *l, const struct config *c)
{
	struct sockaddr_storage got = { .ss_family = AF_UNSPEC };
	socklen_t n = sizeof got;
	struct config_socket at;
	const int on = 1;

	errno = EINVAL;
	if (!config_listen(c, &at))
		return false;
	l->fd[TCP] = socket(at.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (l->fd[TCP] < 0 || setsockopt(l->fd[TCP], SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ||
	    bind(l->fd[TCP], (const struct sockaddr *)&at.address, at.bytes) || listen(l->fd[TCP], SOMAXCONN) ||
	    getsockname(l->fd[TCP], (struct sockaddr *)&got, &n))
		return false;
	l->port = ntohs(got.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&got)->sin6_port : ((struct sockaddr_in *)&got)->sin_port);
	return true;
}

static enum status no_listener(const char *at, char *why, size_t size)
{
	snprintf(why, size, "cannot listen on %s: %s: name another place with socket or listen", at, strerror(errno));
	return STATUS_IO;
}

enum status rpc_listen_create(const struct config *c, struct rpc_listener **out, char *why, size_t size)
{
	struct rpc_listener *l = calloc(1, sizeof *l);
	enum status status;

	if (!l) {
		snprintf(why, size, "no memory for connections");
		return STATUS_EXHAUSTED;
	}
	l->fd[LOCAL] = l->fd[TCP] = -1;
	l->local = LOCAL_SOCKET_NONE;
	l->stop = eventfd(0, EFD_CLOEXEC);
	status = l->stop < 0 ? no_listener(c->socket, why, size) :
			       local_socket_open(&l->local, c->socket, SOCK_STREAM, (unsigned)c->socket_mode, SOMAXCONN, why, size);
	l->fd[LOCAL] = l->local.fd;
	if (status == STATUS_OK && c->listen[0] && !bind_tcp(l, c))
		status = no_listener(c->listen, why, size);
	if (status) {
		rpc_listen_destroy(l);
		return status;
	}
	*out = l;
	return STATUS_OK;
}

enum status rpc_listen_start(struct rpc_listener *l, const struct rpc_listen_parts *parts, uint64_t silent_us,
			     void (*take)(void *arg, int fd), void *arg)
{
	l->peers = parts->peers;
	l->roles = parts->roles;
	l->tls = parts->tls;
	l->peers_us = UINT64_MAX;
	l->silent_us = silent_us;
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
	local_socket_close(&l->local);
	if (l->fd[TCP] >= 0)
		close(l->fd[TCP]);
	l->fd[LOCAL] = l->fd[TCP] = -1;
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
	emit(arg, "terrace_rpc_silent_closed_total", "", (double)atomic_load_explicit(&l->silent_closed, memory_order_relaxed), true,
	     "connections that were closed since they said nothing");
}
