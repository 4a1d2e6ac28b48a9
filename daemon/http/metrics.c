/* See http/metrics.h. The only file with libmicrohttpd.
 *
 * libmicrohttpd joins its own threads without a bound. So a thread of ours drives it, which sleeps on its epoll, on the
 * listener and on an eventfd. That thread accepts connections, since libmicrohttpd's limits know addresses but no
 * processes, and gives it those that have a place. At most one connection waits for a place, while another is cut for
 * it; the others wait in the kernel.
 *
 * libmicrohttpd has a time limit for idle connections, but none for slow ones. It also does not notice that a peer has
 * gone if the end came with the last bytes of half a request. So a connection whose time is over, or whose request will
 * not come, is shut down, which it notices.
 */
#include "daemon/http/metrics.h"

#include "daemon/block/lock.h"
#include "daemon/block/peer.h"
#include "daemon/block/quota.h"
#include "daemon/cache.h"
#include "daemon/http/metrics_text.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/process/local_socket.h"
#include "daemon/process/log.h"
#include "daemon/process/log_unwritten.h"
#include "daemon/process/part.h"
#include "daemon/process/socket_peer.h"
#include "daemon/process/stats.h"
#include "daemon/threads/deadline.h"
#include "store/status.h"

#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { REQUEST_BYTES = 8192, BACKLOG = 64, LOOK_MS = 100, NAP_MS = 10, HUNG_UP_US = 50000, SPARE = 8 };

enum phase { WAITING, SERVING, STOPPING };

struct guest {
	int fd; /* -1: none */
	struct cache_peer peer;
	struct quota_holder *holder;
	uint64_t until_us;
	bool begun;    /* libmicrohttpd has it, and will tell of its end */
	bool answered;
	bool cut;      /* it has been shut down */
};

struct metrics {
	const struct daemon *daemon;
	uint64_t life_us;
	struct MHD_Daemon *http;
	int listener, wake;
	uint16_t port;
	struct local_socket local; /* of a Unix address; its descriptor is the listener */
	_Atomic enum phase phase;
	pthread_t thread;
	bool thread_started;
	pthread_mutex_t lock;
	pthread_cond_t done_changed;
	bool done;
	/* the thread's */
	struct guest guests[METRICS_CONNECTIONS];
	uint32_t guest_count;
	uint64_t look_us;   /* when they are looked at next */
	struct guest waits; /* for a place */
	bool resting;       /* the listener is not listened to for a moment: there was no descriptor */
	struct log_again said;
};

static struct guest *guest_of(struct metrics *m, int fd)
{
	for (uint32_t i = 0; i < METRICS_CONNECTIONS; i++)
		if (m->guests[i].fd == fd)
			return &m->guests[i];
	return NULL;
}

static int fd_of(struct MHD_Connection *c)
{
	return MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
}

/* ---- answers ---- */

static enum MHD_Result answer(struct MHD_Connection *c, unsigned code, const char *type, char *text, size_t bytes,
			      enum MHD_ResponseMemoryMode owner)
{
	struct MHD_Response *r = MHD_create_response_from_buffer(bytes, text, owner);
	enum MHD_Result done;

	if (!r) {
		if (owner == MHD_RESPMEM_MUST_FREE)
			free(text);
		return MHD_NO;
	}
	MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	MHD_add_response_header(r, MHD_HTTP_HEADER_CONNECTION, "close");
	if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
		MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
	done = MHD_queue_response(c, code, r);
	MHD_destroy_response(r);
	return done;
}

static enum MHD_Result say(struct MHD_Connection *c, unsigned code, const char *text)
{
	return answer(c, code, "text/plain; charset=utf-8", (char *)text, strlen(text), MHD_RESPMEM_PERSISTENT);
}

static enum MHD_Result on_metrics(struct metrics *m, struct MHD_Connection *c)
{
	struct metrics_text t = { .count = 0 };
	size_t bytes;
	char *text;

	daemon_stats(m->daemon, daemon_now_us(), metrics_text_row, &t);
	text = metrics_text_make(&t, &bytes);
	metrics_text_fini(&t);
	if (!text)
		return say(c, MHD_HTTP_INTERNAL_SERVER_ERROR, "no memory for the metrics\n");
	return answer(c, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", text, bytes, MHD_RESPMEM_MUST_FREE);
}

static enum MHD_Result on_healthz(struct metrics *m, struct MHD_Connection *c)
{
	const char *state = daemon_state(m->daemon);

	if (!strcmp(state, "draining"))
		return say(c, MHD_HTTP_SERVICE_UNAVAILABLE, "draining\n");
	return say(c, MHD_HTTP_OK, !strcmp(state, "degraded") ? "degraded\n" : "serving\n");
}

static const struct page {
	const char *path;
	enum MHD_Result (*get)(struct metrics *m, struct MHD_Connection *c);
} pages[] = { { "/metrics", on_metrics }, { "/healthz", on_healthz } };

/* Answers a request, before a body has come. No page has one to read. */
static enum MHD_Result on_request(void *arg, struct MHD_Connection *c, const char *url, const char *method, const char *version,
				  const char *body, size_t *body_bytes, void **state)
{
	struct guest *g = guest_of(arg, fd_of(c));

	(void)version;
	(void)body;
	(void)body_bytes;
	(void)state;
	if (g)
		g->answered = true;
	for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
		if (strcmp(url, pages[i].path) != 0)
			continue;
		if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
			return say(c, MHD_HTTP_METHOD_NOT_ALLOWED, "GET or HEAD\n");
		return pages[i].get(arg, c);
	}
	return say(c, MHD_HTTP_NOT_FOUND, "there are /metrics and /healthz\n");
}

/* ---- connections ---- */

static void guest_ends(struct metrics *m, struct guest *g)
{
	quota_give(g->holder, QUOTA_METRICS, 1);
	quota_leave(g->holder);
	*g = (struct guest){ .fd = -1 };
	m->guest_count--;
}

static void on_connection(void *arg, struct MHD_Connection *c, void **socket_state, enum MHD_ConnectionNotificationCode what)
{
	const bool begins = what == MHD_CONNECTION_NOTIFY_STARTED;
	struct metrics *m = arg;
	struct guest *g = guest_of(m, fd_of(c));

	(void)socket_state;
	if (!g)
		return;
	if (begins)
		g->begun = true;
	else
		guest_ends(m, g);
}

/* For a guest that has asked nothing and closed its end: gives it little time, since what came before the end must
 * still be read. */
static void look_if_hung_up(struct guest *g, uint64_t now_us)
{
	struct pollfd p = { .fd = g->answered ? -1 : g->fd, .events = POLLRDHUP };

	if (poll(&p, 1, 0) > 0 && g->until_us > now_us + HUNG_UP_US)
		g->until_us = now_us + HUNG_UP_US;
}

static void guest_cut(struct guest *g)
{
	shutdown(g->fd, SHUT_RDWR);
	g->cut = true;
}

static void guests_cut(struct metrics *m)
{
	const uint64_t now_us = daemon_now_us();

	if (now_us < m->look_us)
		return;
	m->look_us = now_us + LOOK_MS * 1000 / 2;
	for (struct guest *g = m->guests; g < m->guests + METRICS_CONNECTIONS; g++) {
		if (g->fd < 0)
			continue;
		look_if_hung_up(g, now_us);
		if (now_us >= g->until_us)
			guest_cut(g);
	}
}

/* ---- arriving guests ---- */

/* The connection of that user (NULL: of all) that has been open longest. It may be one that is being cut. */
static struct guest *oldest(struct metrics *m, const struct cache_peer *peer)
{
	struct guest *first = NULL;

	for (struct guest *g = m->guests; g < m->guests + METRICS_CONNECTIONS; g++)
		if (g->fd >= 0 && (!peer || !memcmp(g->peer.user, peer->user, sizeof peer->user)) && (!first || g->until_us < first->until_us))
			first = g;
	return first;
}

static bool is_cutting(const struct metrics *m)
{
	for (const struct guest *g = m->guests; g < m->guests + METRICS_CONNECTIONS; g++)
		if (g->fd >= 0 && g->cut)
			return true;
	return false;
}

/* For one that has no place: its user's oldest leaves, or, if that user has none, the oldest of all. */
static void make_place(struct metrics *m, const char *why)
{
	struct guest *g = oldest(m, &m->waits.peer);
	uint64_t held;

	if (log_again(&m->said, daemon_now_us(), &held))
		log_warn("metrics_cut", LOG_TEXT("reason", why), LOG_NUM("held_back", held));
	if (!g)
		g = oldest(m, NULL);
	if (g)
		guest_cut(g);
}

/* Hands the waiting connection to libmicrohttpd, which closes the descriptor even if it does not take the
 * connection. */
static void begin(struct metrics *m)
{
	struct guest *g = guest_of(m, -1);
	struct sockaddr_storage at = { .ss_family = AF_UNSPEC };
	socklen_t n = sizeof at;

	getpeername(m->waits.fd, (struct sockaddr *)&at, &n);
	*g = m->waits;
	m->waits.fd = -1;
	m->guest_count++;
	if (MHD_add_connection(m->http, g->fd, (struct sockaddr *)&at, n) != MHD_YES)
		guest_ends(m, g);
}

/* Gives the waiting connection a place if there is one. True: none waits any more. */
static bool place(struct metrics *m)
{
	const char *why = "all places are taken";

	if (m->waits.fd < 0)
		return true;
	if (is_cutting(m))
		return false;
	if (m->guest_count < METRICS_CONNECTIONS && quota_take(m->waits.holder, QUOTA_METRICS, 1, &why) == STATUS_OK) {
		begin(m);
		return true;
	}
	make_place(m, why);
	return false;
}

/* Accepts one connection, which then waits for a place. False: there was none to accept. */
static bool accept_one(struct metrics *m)
{
	const int fd = accept4(m->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	m->resting = fd < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED;
	if (fd < 0)
		return false;
	m->waits = (struct guest){ .fd = fd, .until_us = daemon_now_us() + m->life_us };
	socket_peer(fd, &m->waits.peer);
	m->waits.holder = quota_join(cache_quota(m->daemon->cache), &m->waits.peer);
	if (m->waits.holder)
		return true;
	close(fd);
	m->waits.fd = -1;
	return false;
}

/* Frees the places of connections that libmicrohttpd has closed without ever having begun them. */
static void forget_unbegun(struct metrics *m)
{
	for (struct guest *g = m->guests; g < m->guests + METRICS_CONNECTIONS; g++)
		if (g->fd >= 0 && !g->begun)
			guest_ends(m, g);
}

/* ---- the thread ---- */

/* How long the thread may sleep: not at all if libmicrohttpd has work, or a waiting connection may have a place now. */
static int wait_ms(struct metrics *m)
{
	MHD_UNSIGNED_LONG_LONG own;

	if ((m->waits.fd >= 0 && !is_cutting(m)) || (MHD_get_timeout(m->http, &own) == MHD_YES && !own))
		return 0;
	if (m->resting)
		return NAP_MS;
	return m->guest_count || m->waits.fd >= 0 ? LOOK_MS : -1;
}

/* One round: gives places to waiting guests, and cuts guests off where there are too many. */
static void run(struct metrics *m)
{
	m->resting = false;
	for (int i = 0; i < BACKLOG && place(m) && accept_one(m); i++)
		;
	MHD_run(m->http);
	forget_unbegun(m);
	guests_cut(m);
}

static void serve(struct metrics *m)
{
	const union MHD_DaemonInfo *info = MHD_get_daemon_info(m->http, MHD_DAEMON_INFO_EPOLL_FD);
	struct pollfd p[] = { { .fd = m->wake, .events = POLLIN }, { .fd = info->epoll_fd, .events = POLLIN }, { .events = POLLIN } };
	enum phase phase;
	uint64_t pokes;

	while ((phase = atomic_load(&m->phase)) != STOPPING) {
		const bool begun = phase == SERVING;

		p[2].fd = m->resting || m->waits.fd >= 0 ? -1 : m->listener;
		poll(p, begun ? 3 : 1, begun ? wait_ms(m) : -1);
		if (read(m->wake, &pokes, sizeof pokes) == sizeof pokes || !begun)
			continue;
		run(m);
	}
}

static void *metrics_main(void *arg)
{
	struct metrics *m = arg;

	cache_thread_enter();
	serve(m);
	MHD_stop_daemon(m->http); /* cuts what is left */
	if (m->waits.fd >= 0) {
		close(m->waits.fd);
		quota_leave(m->waits.holder);
	}
	close(m->listener);
	m->listener = -1;
	cache_thread_leave();
	pthread_mutex_lock(&m->lock);
	m->done = true;
	pthread_cond_signal(&m->done_changed);
	pthread_mutex_unlock(&m->lock);
	return NULL;
}

static void enter_phase(struct metrics *m, enum phase phase)
{
	const uint64_t one = 1;

	atomic_store(&m->phase, phase);
	if (write(m->wake, &one, sizeof one) != sizeof one)
		log_error("metrics_wake", LOG_NUM("errno", errno));
}

/* ---- the outside ---- */

static uint16_t port_of(int fd)
{
	struct sockaddr_storage at = { .ss_family = AF_UNSPEC };
	socklen_t n = sizeof at;

	getsockname(fd, (struct sockaddr *)&at, &n);
	return at.ss_family == AF_INET	? ntohs(((struct sockaddr_in *)&at)->sin_port) :
	       at.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&at)->sin6_port) :
					  0;
}

static enum status listen_at(struct metrics *m, const struct config *c, char *why, size_t size)
{
	struct config_socket at;
	const char *problem;
	const int on = 1;

	if (!config_metrics(c->metrics_address, &at, &problem)) {
		snprintf(why, size, "%s", problem ? problem : "no address");
		return STATUS_INVALID;
	}
	const int family = at.address.ss_family;
	const char *path = ((const struct sockaddr_un *)&at.address)->sun_path;

	if (family == AF_UNIX) {
		const enum status s = local_socket_open(&m->local, path, SOCK_STREAM, (unsigned)c->socket_mode, BACKLOG, why, size);

		m->listener = m->local.fd;
		m->local.fd = -1;
		return s;
	}
	m->listener = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (m->listener >= 0)
		setsockopt(m->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (m->listener < 0 || bind(m->listener, (const struct sockaddr *)&at.address, at.bytes) || listen(m->listener, BACKLOG)) {
		snprintf(why, size, "cannot listen on %s: %s: name another address with metrics_address", c->metrics_address, strerror(errno));
		return STATUS_IO;
	}
	m->port = port_of(m->listener);
	if (!at.loopback)
		log_warn("metrics_open", LOG_TEXT("address", c->metrics_address),
			 LOG_TEXT("reason", "all machines that reach it may read how the daemon does: there is no authentication"));
	return STATUS_OK;
}

static enum status http_create(struct metrics *m, char *why, size_t size)
{
	m->http = MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET, 0, NULL, NULL, on_request, m, MHD_OPTION_CONNECTION_LIMIT,
				   (unsigned)METRICS_CONNECTIONS + SPARE, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)REQUEST_BYTES,
				   MHD_OPTION_NOTIFY_CONNECTION, on_connection, m, MHD_OPTION_END);
	if (m->http)
		return STATUS_OK;
	snprintf(why, size, "cannot start HTTP: no memory or descriptors (LimitNOFILE)");
	return STATUS_INTERNAL;
}

enum status metrics_create(const struct daemon *d, uint64_t life_us, struct metrics **out, char *why, size_t size)
{
	struct metrics *m = calloc(1, sizeof *m);
	enum status s;

	if (!m) {
		snprintf(why, size, "no memory for metrics");
		return STATUS_EXHAUSTED;
	}
	m->daemon = d;
	m->life_us = life_us;
	for (uint32_t i = 0; i < METRICS_CONNECTIONS; i++)
		m->guests[i].fd = -1;
	m->waits.fd = -1;
	pthread_mutex_init(&m->lock, NULL);
	deadline_cond_init(&m->done_changed);
	m->listener = -1;
	m->local = LOCAL_SOCKET_NONE;
	m->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (m->wake < 0)
		snprintf(why, size, "cannot make an eventfd for metrics: %s: raise the limit of descriptors (LimitNOFILE)", strerror(errno));
	s = m->wake < 0 ? STATUS_IO : listen_at(m, d->config, why, size);
	if (s == STATUS_OK)
		s = http_create(m, why, size);
	if (s == STATUS_OK && pthread_create(&m->thread, NULL, metrics_main, m)) {
		snprintf(why, size, "cannot start the thread for HTTP: raise the limit of threads (ulimit -u, TasksMax, pids.max)");
		s = STATUS_INTERNAL;
	}
	m->thread_started = s == STATUS_OK;
	if (s == STATUS_OK)
		*out = m;
	else
		metrics_part.destroy(m);
	return s;
}

void metrics_serve(struct metrics *m)
{
	if (!m)
		return;
	quota_bound(cache_quota(m->daemon->cache), QUOTA_METRICS, METRICS_CONNECTIONS);
	enter_phase(m, SERVING);
}

uint16_t metrics_port(const struct metrics *m)
{
	return m ? m->port : 0;
}

static bool threads_stop(void *part, uint64_t wait_us)
{
	struct metrics *m = part;

	local_socket_remove(&m->local); /* before the listener is closed */
	enter_phase(m, STOPPING);
	return deadline_wait(&m->done_changed, &m->lock, &m->done, wait_us);
}

static void destroy(void *part)
{
	struct metrics *m = part;

	local_socket_remove(&m->local);
	if (m->thread_started)
		pthread_join(m->thread, NULL);
	else if (m->http)
		MHD_stop_daemon(m->http);
	if (m->listener >= 0)
		close(m->listener);
	if (m->wake >= 0)
		close(m->wake);
	pthread_cond_destroy(&m->done_changed);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

const struct part_ops metrics_part = {
	.name = "metrics",
	.hangs = "an answer to /metrics does not end",
	.threads_stop = threads_stop,
	.destroy = destroy,
};
