/* See local/socket.h.
 *
 * A connection is HELLO-less at first and is closed after HELLO_US if it stays so. Every packet is answered at once,
 * without waiting: a peer that does not read its answers until its socket buffer is full is disconnected. An offer,
 * which the peer has not asked for, is dropped if its socket does not take it.
 *
 * The tick is the local socket's; the chores that it finds go to workers, one lot of a kind at a time, so that no
 * connection waits for the kernel. Without descriptors to accept with, the listener rests until the next tick.
 */
#include "daemon/local/socket.h"

#include "daemon/block/lock.h"
#include "daemon/block/peer.h"
#include "daemon/block/quota.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/cache.h"
#include "daemon/call/lease.h"
#include "daemon/disk/tier.h"
#include "daemon/local/lend.h"
#include "daemon/local/local_calls.h"
#include "daemon/process/daemon.h"
#include "daemon/process/local_socket.h"
#include "daemon/process/log.h"
#include "daemon/process/log_unwritten.h"
#include "daemon/process/part.h"
#include "daemon/process/rights.h"
#include "daemon/session/attachment.h"
#include "daemon/session/end.h"
#include "daemon/session/offer.h"
#include "daemon/session/retire.h"
#include "daemon/session/open.h"
#include "daemon/threads/deadline.h"
#include "daemon/threads/pool.h"
#include "daemon/vram/progress.h"
#include "proto/fdsock.h"
#include "store/device.h"
#include "store/status.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
	TICK_MS = 50,
	HELLO_US = 2000000,
	BACKLOG = 64,
	EVENTS = 64,
	PACKETS_A_TURN = 64,       /* of one connection, before others get theirs */
	OFFERS_A_TURN = 4,         /* packets, of one tier to one connection: a few KiB of what its socket holds */
	REFUSED_MAX = 32,          /* connections that are kept to be told why they are refused; more are closed without a word */
};

enum watched { WATCH_STOP, WATCH_TICK, WATCH_NEWS, WATCH_LISTENER, WATCH_SOCKET, WATCH_PROCESS };

struct connection {
	struct connection *prev, *next;
	int fd, pidfd;
	pid_t pid;
	uint64_t accepted_us, attachment, session; /* attachment 0: no HELLO yet; session: its handle */
	uint64_t session_number;     /* its public number, for logs */
	uint32_t tenant;             /* of its process: struct who */
	struct quota_holder *holder; /* its process */
	uint16_t version;            /* that it speaks; 0: it has not said anything */
	bool refused;                /* it has no share left: to be told so in answer to its HELLO */
	bool gone;                 /* to be freed after this round of events */
	bool known;                /* the cache has the pidfd, too */
	bool listens;              /* it may be asked for extents (LISTEN) */
	uint32_t prefetched;       /* tiers of which it is offered extents, a bit each: GPUs by number, then host memory */
	struct watch_key {
		enum watched what;
		struct connection *c;
	} socket_key, process_key;
};

/* Chores of a kind, one lot at a time. */
struct lot {
	struct work work;
	struct fd_socket *fd_socket;
	void (*run)(struct cache *c);
	bool under_way;            /* under the local socket's lock, as is: */
	bool again;                /* some came up while they were */
};
enum { LOTS = 2 };                 /* memory's; disks', one of which may hang */

struct fd_socket {
	const struct daemon *daemon;
	struct local_socket local; /* its descriptor is `listener` too */
	int epoll, listener, timer, stop, news;
	uint32_t connections_max;
	pthread_t thread;
	bool thread_started, stopping;
	struct watch_key stop_key, tick_key, news_key, listener_key;
	struct connection all;     /* ring; its links alone are used */
	uint32_t count, refused_count; /* the second: of those that are to be told so */

	struct fd_socket_lender lender;
	struct lot lots[LOTS];
	bool resting;              /* the listener is not watched */
	struct log_again full, not_accepted, unwatched;

	pthread_mutex_t lock;      /* what follows */
	pthread_cond_t chores_done;

	atomic_bool offering;          /* the client has asked for offers */
	atomic_uint connections;
	atomic_ullong packets, refused, releases, offers;
};

_Static_assert(CACHE_EXTENT_PROGRESS_PAGE == FDSOCK_EXTENT_PROGRESS_PAGE, "the local socket hands the number on");
_Static_assert((int)PROGRESS_PAGE_SUMMED == (int)FDSOCK_PROGRESS_PAGE_SUMMED &&
	       (int)PROGRESS_PAGE_FAILED == (int)FDSOCK_PROGRESS_PAGE_FAILED,
	       "clients read the words that the daemon writes");
_Static_assert((int)DEVICES_MAX <= (int)FDSOCK_PROGRESS_PAGE_WORDS &&
    FDSOCK_PROGRESS_PAGE_WORDS * sizeof(uint32_t) <= 4096, "a word a GPU, on one page");

/* ---- packets ---- */

/* Whether the library of the version before sends packets of that type. */
static bool said_before(uint16_t type)
{
	return type == FDSOCK_HELLO || type == FDSOCK_MAP || type == FDSOCK_UNMAPPED || type == FDSOCK_RELEASE;
}

static int release_type(const void *packet, size_t n)
{
	uint32_t count;

	if (n < offsetof(struct fdsock_release, leases))
		return 0;
	memcpy(&count, (const char *)packet + offsetof(struct fdsock_release, count), sizeof count);
	return count <= FDSOCK_LEASES_MAX && n == offsetof(struct fdsock_release, leases) + count * sizeof(uint64_t) ?
		       FDSOCK_RELEASE : 0;
}

int fd_socket_packet_type(const void *packet, size_t n)
{
	struct fdsock_head h;

	if (n < sizeof h)
		return 0;
	memcpy(&h, packet, sizeof h);
	if (h.magic != FDSOCK_MAGIC)
		return 0;
	if (h.version != FDSOCK_VERSION && !(h.version == FDSOCK_VERSION_BEFORE && said_before(h.type)))
		return 0;
	switch (h.type) {
	case FDSOCK_HELLO:
	case FDSOCK_CALLER:
		return n == sizeof(struct fdsock_hello) ? h.type : 0;
	case FDSOCK_MAP:
		return n == sizeof(struct fdsock_map) ? h.type : 0;
	case FDSOCK_UNMAPPED:
		return n == sizeof(struct fdsock_unmapped) ? h.type : 0;
	case FDSOCK_PREMAP:
		return n == sizeof(struct fdsock_premap) ? h.type : 0;
	case FDSOCK_LISTEN:
		return n == sizeof h ? h.type : 0;
	case FDSOCK_RELEASE:
		return release_type(packet, n);
	default:
		return 0;
	}
}

/* ---- connections ---- */

static bool watch(struct fd_socket *d, int fd, struct watch_key *key, enum watched what, struct connection *c)
{
	struct epoll_event e = { .events = EPOLLIN, .data.ptr = key };

	key->what = what;
	key->c = c;
	return !epoll_ctl(d->epoll, EPOLL_CTL_ADD, fd, &e);
}

/* Ends an attachment. The memory stays until the events of this round, which may name it, are done. */
static void hang_up(struct fd_socket *d, struct connection *c, const char *reason)
{
	if (c->gone)
		return;
	c->gone = true;
	/* The cache may still hold the pidfd, and a worker the socket. As long as one of them is open, the kernel would
	 * report its events with this key. */
	epoll_ctl(d->epoll, EPOLL_CTL_DEL, c->fd, NULL);
	close(c->fd);
	epoll_ctl(d->epoll, EPOLL_CTL_DEL, c->pidfd, NULL);
	close(c->pidfd);
	if (c->attachment) {
		uint64_t held = 0;
		const bool last = cache_attach_gone(d->daemon->cache, c->attachment, daemon_now_us(), &held);

		log_info("detached", LOG_NUM("pid", c->pid), LOG_NUM("session", c->session_number), LOG_TEXT("reason", reason));
		if (last)
			log_info("session_closed", LOG_NUM("session", c->session_number), LOG_TEXT("reason", "its last process is gone"), LOG_NUM("held_bytes", held));
	} else {
		log_debug("fd_socket_closed", LOG_NUM("pid", c->pid), LOG_TEXT("reason", reason));
	}
}

static void on_readable(struct fd_socket *d, struct connection *c);

static void connection_free(struct fd_socket *d, struct connection *c)
{
	c->prev->next = c->next;
	c->next->prev = c->prev;
	if (!c->refused)
		quota_give(c->holder, QUOTA_ATTACHMENTS, 1);
	quota_leave(c->holder);
	d->count -= !c->refused;
	d->refused_count -= c->refused;
	free(c);
}

static void sweep(struct fd_socket *d, uint64_t now_us)
{
	for (struct connection *c = d->all.next, *next; c != &d->all; c = next) {
		next = c->next;
		if (!c->attachment && now_us - c->accepted_us > HELLO_US) {
			on_readable(d, c); /* it may be there, and we be late */
			if (!c->attachment)
				hang_up(d, c, "no hello");
		}
		if (!c->gone)
			continue;
		connection_free(d, c);
	}
	atomic_store_explicit(&d->connections, d->count, memory_order_relaxed);
}

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

/* The peer's process, pinned by a pidfd. It is the kernel's own pidfd, taken when the peer connected; before Linux 6.5
 * it is opened by number. The process may have died before that, and its number may have been given to another one.
 * Then mostly the dead process's socket has hung up. If it has not (another process has it too), the wrong process is
 * watched. Its death tells nothing on which memory depends: that is asked by locks (store/host/extent.h).
 *
 * The number is 0 for a process that the daemon's PID namespace does not show, as of another container. The kernel's
 * pidfd works all the same; without it such a process's end could not be seen, and errno is ENOTSUP. */
static int peer_process(int fd, pid_t *pid, struct cache_peer *peer)
{
	struct ucred cred;
	socklen_t n = sizeof cred;
	char byte;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n))
		return -1;
	int pidfd = -1;

	*peer = (struct cache_peer){ .user = { CACHE_PEER_UID, cred.uid }, .process = (uint64_t)cred.pid };
	n = sizeof pidfd;
	if (!getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &n)) {
		*pid = cred.pid;
		return pidfd;
	}
	if (errno == ENOPROTOOPT && cred.pid)
		pidfd = pidfd_open(cred.pid, 0);
	else if (errno == ENOPROTOOPT)
		errno = ENOTSUP;
	if (pidfd < 0)
		return -1;
	if (!recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT)) {
		close(pidfd);
		return -1;
	}
	*pid = cred.pid;
	return pidfd;
}

static void log_not_accepted(struct fd_socket *d, int error)
{
	const char *why = error == ENOTSUP ? "the engine is in a PID namespace that this daemon's does not show, and "
					     "before Linux 6.5 its end could not be seen: run the daemon in the "
					     "host's PID namespace; until then the engine works by stream"
					   : strerror(error);
	uint64_t held;

	if (log_again(&d->not_accepted, daemon_now_us(), &held))
		log_warn("fd_socket_accept", LOG_TEXT("reason", why), LOG_NUM("held_back", held));
}

/* One that has no share left is kept for a moment, if there are not many of these, so that its HELLO is answered by a
 * status. */
static bool admit(struct fd_socket *d, struct connection *c, const struct cache_peer *peer)
{
	const char *why = "no memory";
	uint64_t held;

	c->holder = quota_join(cache_quota(d->daemon->cache), peer);
	c->refused = !c->holder || quota_take(c->holder, QUOTA_ATTACHMENTS, 1, &why) != STATUS_OK;
	d->refused_count += c->refused;
	if (!c->refused)
		return true;
	atomic_fetch_add_explicit(&d->refused, 1, memory_order_relaxed);
	if (log_again(&d->full, daemon_now_us(), &held))
		log_warn("fd_socket_full", LOG_NUM("connections", d->count), LOG_NUM("pid", c->pid),
		    LOG_TEXT("reason", why), LOG_NUM("held_back", held));
	return c->holder && d->refused_count <= REFUSED_MAX;
}

static void accept_one(struct fd_socket *d, int fd)
{
	struct connection *c = calloc(1, sizeof *c);
	struct cache_peer peer;
	struct who who;

	if (!c) {
		atomic_fetch_add_explicit(&d->refused, 1, memory_order_relaxed);
		close(fd);
		return;
	}
	c->fd = fd;
	c->accepted_us = daemon_now_us();
	rights_identify(d->daemon->config, fd, &who);
	c->tenant = who.tenant;
	c->pidfd = peer_process(fd, &c->pid, &peer);
	peer.tenant = c->tenant;
	if (c->pidfd < 0 || !watch(d, c->pidfd, &c->process_key, WATCH_PROCESS, c) ||
	    !watch(d, fd, &c->socket_key, WATCH_SOCKET, c)) {
		const int error = errno;

		atomic_fetch_add_explicit(&d->refused, 1, memory_order_relaxed);
		if (error == EMFILE || error == ENFILE || error == ENOTSUP) /* else it is gone already */
			log_not_accepted(d, error);
		if (c->pidfd >= 0)
			close(c->pidfd);
		close(fd);
		free(c);
		return;
	}
	c->next = d->all.next;
	c->prev = &d->all;
	c->next->prev = c;
	d->all.next = c;
	if (!admit(d, c, &peer))
		hang_up(d, c, "no share left");
	d->count += !c->refused;
}

static void accept_all(struct fd_socket *d)
{
	for (int i = 0; i < BACKLOG; i++) {
		int fd = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd >= 0)
			accept_one(d, fd);
		else if (errno == EAGAIN)
			return;
		else if (errno != EINTR && errno != ECONNABORTED) {
			/* The listener stays readable, and would keep the thread busy for nothing. */
			const int error = errno;

			d->resting = !epoll_ctl(d->epoll, EPOLL_CTL_DEL, d->listener, NULL);
			log_not_accepted(d, error);
			return;
		}
	}
}

/* ---- requests; each returns false to hang up ---- */

static void attach_old(struct fd_socket *d, const struct connection *c)
{
	cache_attach_host_only(d->daemon->cache, c->attachment);
	log_warn("old_library", LOG_NUM("pid", c->pid), LOG_NUM("session", c->session_number),
		 LOG_TEXT("reason", "its libterrace is of the release before: it has host memory alone, "
			  "and all of it writable: link the engine with the libterrace of this daemon"));
}

static bool on_hello(struct fd_socket *d, struct connection *c, const struct fdsock_hello *m)
{
	const bool old = c->version == FDSOCK_VERSION_BEFORE;
	struct fdsock_welcome w = { .head = fd_socket_head(c->version, FDSOCK_WELCOME),
				    .knows = old ? 0 : FDSOCK_KNOWS_PREMAP | FDSOCK_KNOWS_CALLER |
						     (cache_asks_back(d->daemon->cache) ? FDSOCK_KNOWS_LISTEN : 0) };
	static const uint8_t nones[CACHE_TOKEN_BYTES]; /* what another tenant's token is answered like */
	const char *why = NULL;
	enum status s;

	if (c->attachment)
		return false;
	s = STATUS_EXHAUSTED;
	why = "this process or user has as many connections as it may have";
	if (!c->refused)
		s = cache_attach(d->daemon->cache,
				 cache_token_is_of(d->daemon->cache, c->tenant, m->token) ? m->token : nones, c->pid,
				 daemon_now_us(), &w.attachment, &w.session, &why);
	w.status = s;
	w.epoch = cache_epoch(d->daemon->cache);
	if (s == STATUS_OK) {
		c->attachment = w.attachment;
		c->session = w.session;
		c->session_number = cache_session_number(d->daemon->cache, w.session);
		if (old)
			attach_old(d, c);
		log_info("attached", LOG_NUM("pid", c->pid), LOG_NUM("session", c->session_number));
	} else {
		w.attachment = w.session = 0;
		log_info("attach_refused", LOG_NUM("pid", c->pid), LOG_TEXT("reason", why ? why : status_text(s)));
	}
	return !fd_socket_send(c->fd, &w, sizeof w, NULL, 0) && s == STATUS_OK;
}

/* The connection becomes one for local calls: no longer the local socket's. */
static void give_away(struct fd_socket *d, struct connection *c, const struct cache_session_view *session)
{
	c->gone = true;
	epoll_ctl(d->epoll, EPOLL_CTL_DEL, c->fd, NULL);
	epoll_ctl(d->epoll, EPOLL_CTL_DEL, c->pidfd, NULL);
	log_debug("caller", LOG_NUM("pid", c->pid), LOG_NUM("session", session->number));
	local_take(d->daemon->local, c->fd, c->pidfd, c->holder, session->id);
}

static bool on_caller(struct fd_socket *d, struct connection *c, const struct fdsock_hello *m)
{
	struct fdsock_welcome w = { .head = fd_socket_head(FDSOCK_VERSION, FDSOCK_WELCOME), .status = STATUS_DENIED };
	struct cache_session_view session;
	const char *why;

	if (c->attachment)
		return false;
	w.epoch = cache_epoch(d->daemon->cache);
	if (cache_session_by_token(d->daemon->cache, c->tenant, m->token, daemon_now_us(), &session, &why) ==
	    STATUS_OK) {
		w.status = c->refused ? STATUS_EXHAUSTED : local_admit(d->daemon->local, c->holder);
		w.session = session.id;
	}
	if (fd_socket_send(c->fd, &w, sizeof w, NULL, 0) || w.status != STATUS_OK) {
		if (w.status == STATUS_OK)
			quota_give(c->holder, QUOTA_LOCAL, 1);
		return false;
	}
	give_away(d, c, &session);
	return true;
}

/* The cache lends a GPU's memory only to a process whose end it can see. Without a descriptor for that the next MAP
 * tries again. */
static void make_known(struct fd_socket *d, struct connection *c)
{
	int pidfd = c->known ? -1 : fcntl(c->pidfd, F_DUPFD_CLOEXEC, 0);
	uint64_t held;

	if (pidfd >= 0) {
		cache_attach_watch(d->daemon->cache, c->attachment, pidfd);
		c->known = true;
	} else if (!c->known && log_again(&d->unwatched, daemon_now_us(), &held)) {
		log_warn("process_unwatched", LOG_NUM("pid", c->pid), LOG_NUM("session", c->session_number), LOG_TEXT("reason", strerror(errno)),
			 LOG_NUM("held_back", held));
	}
}

/* An engine that closes reads no more, but has something to say yet: what it unmaps. */
static bool is_deaf(int error)
{
	return error && error != EPIPE;
}

static bool on_map(struct fd_socket *d, struct connection *c, const struct fdsock_map *m)
{
	make_known(d, c);
	return !is_deaf(fd_socket_lend(&d->lender, c->fd, c->attachment, m));
}

/* The cache's number of a GPU of a packet; CACHE_HOST for host memory. A number that is no GPU's becomes DEVICES_MAX,
 * which the cache refuses. */
static int32_t tier_of(uint32_t gpu)
{
	return gpu == FDSOCK_NO_GPU ? CACHE_HOST : gpu < DEVICES_MAX ? (int32_t)gpu : DEVICES_MAX;
}

/* `answer`: also if there is nothing to be offered. */
static bool offer(struct fd_socket *d, struct connection *c, uint32_t gpu, bool answer)
{
	struct fdsock_offer m = { .head = fd_socket_head(FDSOCK_VERSION, FDSOCK_OFFER), .gpu = gpu, .more = 1 };
	const int32_t tier = tier_of(gpu);
	int error = 0;

	for (int i = 0; i < OFFERS_A_TURN && m.more && !error; i++) {
		bool more;

		m.count = cache_attach_offers(d->daemon->cache, c->attachment, tier, m.extents, FDSOCK_OFFERS_MAX, &more);
		m.more = more;
		if (m.count || (answer && i == 0))
			error = fd_socket_send(c->fd, &m, offsetof(struct fdsock_offer,
			    extents) + m.count * sizeof(m.extents[0]), NULL, 0);
		atomic_fetch_add_explicit(&d->offers, error ? 0 : m.count, memory_order_relaxed);
	}
	return !is_deaf(error);
}

static bool on_prefetch(struct fd_socket *d, struct connection *c, const struct fdsock_premap *m)
{
	const int32_t tier = tier_of(m->gpu);

	if (cache_attach_premap(d->daemon->cache, c->attachment, tier) == STATUS_OK)
		c->prefetched |= 1u << (tier < 0 ? DEVICES_MAX : tier);
	d->offering = true;
	return offer(d, c, m->gpu, true);
}

/* Asks for the extent that the cache wants back, if the client has it. */
static bool ask_back(const struct fd_socket *d, const struct connection *c)
{
	struct fdsock_retire m = { .head = fd_socket_head(FDSOCK_VERSION, FDSOCK_RETIRE),
				   .extent = cache_attach_asked(d->daemon->cache, c->attachment) };

	const int error = m.extent ? fd_socket_send(c->fd, &m, sizeof m, NULL, 0) : 0;

	if (error)
		cache_attach_ask_again(d->daemon->cache, c->attachment);
	return !is_deaf(error);
}

static bool on_listen(struct fd_socket *d, struct connection *c)
{
	cache_attach_listens(d->daemon->cache, c->attachment);
	c->listens = true;
	d->offering = true;
	return ask_back(d, c);
}

static void send_offers(struct fd_socket *d)
{
	const bool asks = cache_asks_back(d->daemon->cache) && cache_asks_now(d->daemon->cache);

	for (struct connection *c = d->all.next; c != &d->all; c = c->next) {
		for (uint32_t t = 0; t <= DEVICES_MAX && c->prefetched >> t; t++)
			if (!c->gone && c->prefetched >> t & 1)
				offer(d, c, t < DEVICES_MAX ? t : FDSOCK_NO_GPU, false);
		if (asks && !c->gone && c->listens)
			ask_back(d, c);
	}
}

/* Called under the cache's lock when an extent has been made or is wanted back: wakes the thread, which tells clients. */
static void news(void *fd_socket)
{
	const uint64_t one = 1;
	const struct fd_socket *d = fd_socket;

	if (d->offering && write(d->news, &one, sizeof one) < 0)
		return; /* the tick looks, too */
}

static void on_news(struct fd_socket *d)
{
	uint64_t extents;

	if (read(d->news, &extents, sizeof extents) > 0)
		send_offers(d);
}

static bool on_release(struct fd_socket *d, struct connection *c, const struct fdsock_release *m)
{
	for (uint32_t i = 0; i < m->count; i++)
		cache_release(d->daemon->cache, c->session, m->leases[i]); /* one way: the client is not told of an
									    * unknown lease */
	atomic_fetch_add_explicit(&d->releases, m->count, memory_order_relaxed);
	return true;
}

union packet {
	struct fdsock_head head;
	struct fdsock_hello hello;
	struct fdsock_map map;
	struct fdsock_unmapped unmapped;
	struct fdsock_premap prefetched;
	struct fdsock_release release;
	char over[sizeof(struct fdsock_release) + 1]; /* so that a longer packet is seen as too long */
};

static const char *on_packet(struct fd_socket *d, struct connection *c, const union packet *p, size_t n)
{
	int type = fd_socket_packet_type(p, n);

	atomic_fetch_add_explicit(&d->packets, 1, memory_order_relaxed);
	if (!type || (c->version && c->version != p->head.version))
		return "malformed packet";
	c->version = p->head.version;
	if (type != FDSOCK_HELLO && type != FDSOCK_CALLER && !c->attachment)
		return "no hello first";
	switch (type) {
	case FDSOCK_HELLO: return on_hello(d, c, &p->hello) ? NULL : "hello refused";
	case FDSOCK_CALLER: return on_caller(d, c, &p->hello) ? NULL : "caller refused";
	case FDSOCK_MAP: return on_map(d, c, &p->map) ? NULL : "answers not read";
	case FDSOCK_PREMAP: return on_prefetch(d, c, &p->prefetched) ? NULL : "answers not read";
	case FDSOCK_LISTEN: return on_listen(d, c) ? NULL : "answers not read";
	case FDSOCK_RELEASE: return on_release(d, c, &p->release) ? NULL : "";
	default:
		cache_attach_unmapped(d->daemon->cache, c->attachment, p->unmapped.extent);
		return NULL;
	}
}

/* Descriptors that a peer sends us are never wanted: without room for control data the kernel drops them. */
static void on_readable(struct fd_socket *d, struct connection *c)
{
	union packet p;

	for (int i = 0; i < PACKETS_A_TURN && !c->gone; i++) {
		ssize_t n = recv(c->fd, &p, sizeof p, MSG_DONTWAIT);
		const char *reason = NULL;

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n <= 0)
			reason = "closed";
		else
			reason = on_packet(d, c, &p, (size_t)n);
		if (reason)
			hang_up(d, c, reason);
	}
}

/* ---- chores ---- */

static void run_chores(struct work *work)
{
	struct lot *lot = (struct lot *)work;
	struct fd_socket *d = lot->fd_socket;

	lot->run(d->daemon->cache);
	pthread_mutex_lock(&d->lock);
	lot->under_way = lot->again && workers_submit(d->daemon->workers, work) == STATUS_OK;
	lot->again = false;
	pthread_cond_signal(&d->chores_done);
	pthread_mutex_unlock(&d->lock);
}

/* If the workers have no room, the next tick asks again. From any thread, also under the cache's lock. */
static void start_chores(void *fd_socket)
{
	struct fd_socket *d = fd_socket;

	pthread_mutex_lock(&d->lock);
	for (struct lot *lot = d->lots; lot < d->lots + LOTS; lot++) {
		if (lot->under_way)
			lot->again = true;
		else
			lot->under_way = workers_submit(d->daemon->workers, &lot->work) == STATUS_OK;
	}
	pthread_mutex_unlock(&d->lock);
}

static bool chores_under_way(const struct fd_socket *d)
{
	bool is = false;

	for (int i = 0; i < LOTS; i++)
		is |= d->lots[i].under_way;
	return is;
}

static bool chores_end(struct fd_socket *d, const struct timespec *until)
{
	bool ended;

	pthread_mutex_lock(&d->lock);
	while (chores_under_way(d) && !pthread_cond_timedwait(&d->chores_done, &d->lock, until))
		continue;
	ended = !chores_under_way(d);
	pthread_mutex_unlock(&d->lock);
	return ended;
}

/* ---- the thread ---- */

static void log_idled(const struct fd_socket *d)
{
	const uint64_t *sessions;
	const uint32_t count = cache_idled(d->daemon->cache, &sessions);

	for (uint32_t i = 0; i < count; i++)
		log_info("session_closed", LOG_NUM("session", sessions[i]), LOG_TEXT("reason", "no process and no call for session_idle"));
}

static void on_tick(struct fd_socket *d)
{
	uint64_t expired;

	if (read(d->timer, &expired, sizeof expired) < 0)
		return;
	if (cache_tick(d->daemon->cache, daemon_now_us()))
		start_chores(d);
	log_idled(d);
	send_offers(d);
	if (d->resting)
		d->resting = !watch(d, d->listener, &d->listener_key, WATCH_LISTENER, NULL);
}

static void on_watched(struct fd_socket *d, const struct watch_key *key)
{
	switch (key->what) {
	case WATCH_STOP:
		d->stopping = true;
		break;
	case WATCH_TICK:
		on_tick(d);
		break;
	case WATCH_NEWS:
		on_news(d);
		break;
	case WATCH_LISTENER:
		accept_all(d);
		break;
	case WATCH_SOCKET:
		on_readable(d, key->c);
		break;
	case WATCH_PROCESS:
		hang_up(d, key->c, "process exited");
	}
}

static void *fd_socket_main(void *arg)
{
	struct fd_socket *d = arg;
	struct epoll_event events[EVENTS];

	cache_thread_enter();
	while (!d->stopping) {
		int n = epoll_wait(d->epoll, events, EVENTS, -1); /* the timer is the bound */

		for (int i = 0; i < n; i++) {
			struct watch_key *key = events[i].data.ptr;

			if (!key->c || !key->c->gone)
				on_watched(d, key);
		}
		sweep(d, daemon_now_us());
	}
	for (struct connection *c = d->all.next; c != &d->all; c = c->next)
		hang_up(d, c, "shutting down");
	sweep(d, daemon_now_us());
	cache_thread_leave();
	return NULL;
}

/* ---- the outside ---- */

static enum status listen_at(struct fd_socket *d, const char *path, unsigned mode, char *why, size_t size)
{
	const enum status s = local_socket_open(&d->local, path, SOCK_SEQPACKET, mode, BACKLOG, why, size);

	d->listener = d->local.fd;
	if (s || watch(d, d->listener, &d->listener_key, WATCH_LISTENER, NULL))
		return s;
	snprintf(why, size, "cannot watch %s: %s", path, strerror(errno));
	return STATUS_IO;
}

static bool start_clock(struct fd_socket *d)
{
	struct itimerspec every = { { 0, TICK_MS * 1000000l }, { 0, TICK_MS * 1000000l } };

	d->epoll = epoll_create1(EPOLL_CLOEXEC);
	d->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	d->stop = eventfd(0, EFD_CLOEXEC);
	d->news = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return d->epoll >= 0 && d->timer >= 0 && d->stop >= 0 && d->news >= 0 && !timerfd_settime(d->timer, 0, &every, NULL) &&
	       watch(d, d->timer, &d->tick_key, WATCH_TICK, NULL) && watch(d, d->stop, &d->stop_key, WATCH_STOP, NULL) &&
	       watch(d, d->news, &d->news_key, WATCH_NEWS, NULL);
}

/* The cache calls it no more. */
static void callbacks_end(struct cache *c)
{
	cache_on_extent(c, NULL, NULL);
	cache_on_chores(c, NULL, NULL);
}

enum status fd_socket_create(const struct daemon *daemon, const char *path, unsigned mode, uint32_t connections_max,
			struct fd_socket **out, char *why, size_t size)
{
	struct fd_socket *d = calloc(1, sizeof *d);
	enum status s = STATUS_OK;

	if (!d)
		return STATUS_EXHAUSTED;
	d->daemon = daemon;
	d->connections_max = connections_max;
	quota_bound(cache_quota(daemon->cache), QUOTA_ATTACHMENTS, connections_max);
	d->all.next = d->all.prev = &d->all;
	d->epoll = d->listener = d->timer = d->stop = d->news = -1;
	d->local = LOCAL_SOCKET_NONE;
	d->lots[0] = (struct lot){ .work.run = run_chores, .fd_socket = d, .run = cache_chores };
	d->lots[1] = (struct lot){ .work.run = run_chores, .fd_socket = d, .run = cache_disk_chores };
	fd_socket_lender_init(&d->lender, daemon->cache, daemon->workers);
	pthread_mutex_init(&d->lock, NULL);
	deadline_cond_init(&d->chores_done);
	if (!start_clock(d)) {
		snprintf(why, size, "cannot make the timer of fd_socket: %s: raise the limit of descriptors (LimitNOFILE)", strerror(errno));
		s = STATUS_IO;
	} else if (*path) {
		s = listen_at(d, path, mode, why, size);
	}
	if (s == STATUS_OK) {
		cache_on_chores(daemon->cache, start_chores, d);
		cache_on_extent(daemon->cache, news, d);
		if (pthread_create(&d->thread, NULL, fd_socket_main, d)) {
			callbacks_end(daemon->cache);
			snprintf(why, size, "cannot start the thread of fd_socket: raise the limit of threads (ulimit -u, TasksMax, pids.max)");
			s = STATUS_INTERNAL;
		}
	}
	d->thread_started = s == STATUS_OK;
	if (s == STATUS_OK)
		*out = d;
	else
		fd_socket_part.destroy(d);
	return s;
}

static void thread_end(struct fd_socket *d)
{
	uint64_t one = 1;

	if (write(d->stop, &one, sizeof one) != sizeof one)
		log_error("fd_socket_stop", LOG_NUM("errno", errno));
	pthread_join(d->thread, NULL);
	d->thread_started = false;
	callbacks_end(d->daemon->cache);
}

static void sockets_close(struct fd_socket *d)
{
	int *const fds[] = { &d->timer, &d->stop, &d->news, &d->epoll };

	local_socket_close(&d->local);
	d->listener = -1;
	for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
		if (*fds[i] >= 0)
			close(*fds[i]);
		*fds[i] = -1;
	}
}

static bool threads_stop(void *part, uint64_t wait_us)
{
	const struct timespec until = deadline_in(wait_us);
	struct fd_socket *d = part;

	if (d->thread_started)
		thread_end(d);
	sockets_close(d);
	return chores_end(d, &until) && fd_socket_lender_ends(&d->lender, &until);
}

static void destroy(void *part)
{
	struct fd_socket *d = part;

	threads_stop(d, UINT64_MAX);
	fd_socket_lender_fini(&d->lender);
	pthread_cond_destroy(&d->chores_done);
	pthread_mutex_destroy(&d->lock);
	free(d);
}

static void stats(void *part, cache_stat_fn *emit, void *arg)
{
	struct fd_socket *d = part;

	emit(arg, "terrace_fd_socket_connections", "", atomic_load(&d->connections), false,
	    "engine processes connected");
	emit(arg, "terrace_fd_socket_connections_max", "", d->connections_max, false, "bound of that");
	emit(arg, "terrace_fd_socket_packets_total", "", (double)atomic_load(&d->packets), true, "packets received");
	emit(arg, "terrace_fd_socket_refused_total", "", (double)atomic_load(&d->refused), true,
	     "connections refused because there were too many, or no descriptor for their process");
	emit(arg, "terrace_fd_socket_descriptors_total", "", (double)atomic_load(&d->lender.descriptors), true,
	     "memory descriptors handed out");
	emit(arg, "terrace_fd_socket_offers_total", "", (double)atomic_load(&d->offers), true,
	    "extents offered to engines that map ahead");
	emit(arg, "terrace_fd_socket_releases_total", "", (double)atomic_load(&d->releases), true, "leases given back");
}

const struct part_ops fd_socket_part = {
	.name = "fd_socket",
	.uses_workers = true,
	.threads_stop = threads_stop,
	.destroy = destroy,
	.stats = stats,
};
