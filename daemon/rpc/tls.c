/* See rpc/tls.h. One thread has all connections. Each direction of a connection has a buffer, and the descriptor that
 * the buffer is for is read only while there is room in it: a client that does not read stops gRPC's writes, which
 * rpc/peers.c looks at. */
#include "daemon/rpc/tls.h"

#include "daemon/process/config_values.h"
#include "daemon/process/daemon.h"
#include "daemon/process/log.h"
#include "daemon/process/log_unwritten.h"
#include "daemon/process/tenants.h"
#include "daemon/rpc/tls_records.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	BUFFER = RPC_TLS_PLAIN_BYTES,
	PAIR_BUFFER = 1024 * 1024, /* asked for; the kernel gives twice net.core.wmem_max at most */
	TURNS = 16,
	EVENTS = 64,
	LOOK_US = 1000 * 1000,
	IDLE_LOOK_US = 60 * 1000 * 1000,
	END_US = 1000 * 1000,
	LATE_US = 200 * 1000,
	ADDRESS_MAX = 64
};
enum state { HANDSHAKE, RUNNING, OVER };

struct buffer {
	uint32_t at, end; /* what is in it: [at, end) */
	uint8_t bytes[BUFFER];
};

struct connection;
struct side {
	struct connection *of;
	int fd;
	uint32_t asked; /* of the epoll */
};

struct connection {
	struct connection *prev, *next;
	struct side tcp, plain;
	SSL *ssl;
	enum state state;
	bool again; /* its turns were used up: bytes may wait inside OpenSSL, of which the kernel knows nothing */
	bool plain_ended; /* gRPC has closed its end */
	uint64_t until_us; /* of a handshake; of a running one, once gRPC has closed its end */
	struct cache_peer peer;
	struct buffer *in, *out; /* of a running one: for gRPC; for the client */
	struct rpc_tls_records records; /* of a running one */
};

struct rpc_tls {
	struct tls_files files;
	const struct tenants *tenants; /* NULL: no table */
	const char *peers;
	struct tls_judge judge;
	SSL_CTX *context; /* the thread's, as what follows */
	struct tls_stamp stamp;
	uint64_t looked_us, late_us;
	struct log_again refused_said, stale_said;
	struct connection fresh, running, over; /* rings: handshakes, the newest first; connections in use; those to be
						 * freed. Links alone are used */
	uint32_t handshakes;
	struct rpc_tls_pool pool;
	bool again;
	int events, wake;

	pthread_t thread;
	bool thread_started;
	int ready_told;
	pthread_mutex_t lock; /* what follows */
	struct connection *taken; /* by next: from the listener */
	uint32_t taken_count;
	struct rpc_tls_ready ready[RPC_TLS_HANDSHAKES_MAX];
	uint32_t ready_count;
	bool stopping;

	atomic_ullong done, refused, late, reloads, reload_failures;
	atomic_uint open, shaking;
	_Atomic int64_t expires;
};

/* ---- certificates ---- */

static int choose_http2(SSL *ssl, const unsigned char **out, unsigned char *n, const unsigned char *in,
			unsigned int in_n, void *arg)
{
	static const unsigned char wanted[] = "\x02h2";

	(void)ssl;
	(void)arg;
	return SSL_select_next_proto((unsigned char **)(uintptr_t)out, n, wanted, sizeof wanted - 1, in, in_n) ==
			       OPENSSL_NPN_NEGOTIATED
		       ? SSL_TLSEXT_ERR_OK
		       : SSL_TLSEXT_ERR_ALERT_FATAL;
}

static SSL_CTX *context_of(struct rpc_tls *t, char why[TLS_WORDS_MAX])
{
	SSL_CTX *context = tls_context(&t->files, true, why);
	char stale[TLS_WORDS_MAX];
	int64_t until;

	if (!context)
		return NULL;
	SSL_CTX_set_alpn_select_cb(context, choose_http2, NULL);
	if (!tls_context_judge(context, &t->judge)) {
		snprintf(why, TLS_WORDS_MAX, "no memory for TLS");
		tls_context_free(context);
		return NULL;
	}
	if (!tls_context_in_time(context, t->files.cert, &until, stale))
		log_warn("tls_certificate", LOG_TEXT("reason", stale));
	atomic_store_explicit(&t->expires, until, memory_order_relaxed);
	return context;
}

static void look_at_files(struct rpc_tls *t, uint64_t now_us)
{
	char why[TLS_WORDS_MAX];
	struct tls_stamp stamp;
	SSL_CTX *context;
	uint64_t held;

	if (now_us < t->looked_us + LOOK_US)
		return;
	t->looked_us = now_us;
	tls_stamp_take(&t->files, &stamp);
	if (!memcmp(&stamp, &t->stamp, sizeof stamp))
		return;
	context = context_of(t, why);
	if (!context) {
		atomic_fetch_add_explicit(&t->reload_failures, 1, memory_order_relaxed);
		if (log_again(&t->stale_said, now_us, &held))
			log_warn("tls_reload_failed", LOG_TEXT("reason", why),
				 LOG_TEXT("used", "the certificates as they were before"), LOG_NUM("held_back", held));
		return;
	}
	tls_context_free(t->context);
	t->context = context;
	t->stamp = stamp;
	atomic_fetch_add_explicit(&t->reloads, 1, memory_order_relaxed);
	log_info("tls_reloaded", LOG_TEXT("certificate", t->files.cert));
}

/* ---- one connection ---- */

static void link_up(struct connection *ring, struct connection *k)
{
	k->next = ring->next;
	k->prev = ring;
	ring->next->prev = k;
	ring->next = k;
}

static void unlink_it(struct connection *k)
{
	k->prev->next = k->next;
	k->next->prev = k->prev;
}

/* Events of this turn may still name it: it is freed behind them. */
static void end(struct rpc_tls *t, struct connection *k)
{
	if (k->state == OVER)
		return;
	if (k->state == HANDSHAKE) {
		t->handshakes--;
	} else {
		ERR_clear_error();
		SSL_shutdown(k->ssl); /* says it, if there is room */
		ERR_clear_error();
		rpc_tls_records_send(&k->records);
		atomic_fetch_sub_explicit(&t->open, 1, memory_order_relaxed);
	}
	atomic_store_explicit(&t->shaking, t->handshakes, memory_order_relaxed);
	k->state = OVER;
	SSL_free(k->ssl);
	rpc_tls_records_fini(&k->records);
	close(k->tcp.fd);
	if (k->plain.fd >= 0)
		close(k->plain.fd);
	unlink_it(k);
	link_up(&t->over, k);
}

static void free_over(struct rpc_tls *t)
{
	while (t->over.next != &t->over) {
		struct connection *k = t->over.next;

		unlink_it(k);
		free(k->in);
		free(k->out);
		free(k);
	}
}

static void ask(struct rpc_tls *t, struct side *s, uint32_t events)
{
	struct epoll_event e = { .events = events, .data.ptr = s };

	if (s->asked == events)
		return;
	s->asked = events;
	epoll_ctl(t->events, EPOLL_CTL_MOD, s->fd, &e);
}

/* gRPC's end is closed, or the connection was cut (rpc/peers.h): the kernel would tell that again and again, however
 * few events are asked for. A client that does not read has this long to take the rest. */
static void forget_plain(struct rpc_tls *t, struct connection *k)
{
	if (k->until_us != UINT64_MAX)
		return;
	k->until_us = daemon_now_us() + RPC_TLS_HANDSHAKE_US;
	epoll_ctl(t->events, EPOLL_CTL_DEL, k->plain.fd, NULL);
}

static void address_text(int fd, char out[ADDRESS_MAX])
{
	struct sockaddr_storage at = { .ss_family = AF_UNSPEC };
	socklen_t n = sizeof at;
	char host[INET6_ADDRSTRLEN] = "?";

	getpeername(fd, (struct sockaddr *)&at, &n);
	if (at.ss_family == AF_INET)
		inet_ntop(AF_INET, &((struct sockaddr_in *)&at)->sin_addr, host, sizeof host);
	else if (at.ss_family == AF_INET6)
		inet_ntop(AF_INET6, &((struct sockaddr_in6 *)&at)->sin6_addr, host, sizeof host);
	snprintf(out, ADDRESS_MAX, "%s", host);
}

static void refuse(struct rpc_tls *t, struct connection *k, const char *why)
{
	char address[ADDRESS_MAX];
	uint64_t held;

	atomic_fetch_add_explicit(&t->refused, 1, memory_order_relaxed);
	address_text(k->tcp.fd, address);
	if (log_again(&t->refused_said, daemon_now_us(), &held))
		log_warn("tls_refused", LOG_TEXT("client", address), LOG_TEXT("reason", why),
			 LOG_NUM("held_back", held));
	end(t, k);
}

static bool is_peer_of_all(const struct rpc_tls *t, const struct tls_names *names)
{
	for (uint32_t i = 0; i < names->count; i++)
		if (config_sans_have(t->peers, names->name[i]))
			return true;
	return false;
}

/* The tenant and the role that a certificate stands for. Without a table of tenants the role is a peer's or an
 * engine's. A name of the option `peers` counts before those of the table. */
static struct who who_of(const struct rpc_tls *t, const X509 *certificate)
{
	struct who who = { .certified = true, .role = ROLE_ENGINE };
	struct tls_names names;

	tls_names_of(certificate, &names);
	if (is_peer_of_all(t, &names)) {
		who.role = ROLE_PEER;
		who.tenant = t->tenants ? TENANT_DEFAULT : 0;
		memset(who.peer_of, 0xff, sizeof who.peer_of);
		return who;
	}
	if (!t->tenants)
		return who;
	who.tenant = tenants_of_names(t->tenants, &names, &who.role);
	if (who.role == ROLE_PEER)
		tenants_of_peer(t->tenants, &names, who.peer_of);
	if (!who.tenant)
		who = (struct who){ .certified = true, .role = ROLE_ENGINE, .tenant = WHO_NO_TENANT };
	return who;
}

/* Of a certificate that is sound: whether there is a tenant for its names. */
static bool judge(void *arg, const X509 *certificate)
{
	return who_of(arg, certificate).tenant != WHO_NO_TENANT;
}

/* gRPC and this thread wait for each other less often when more fits between them. OpenSSL, when it reads ahead, reads
 * a record in one call of the kernel, not in two; and it keeps its two buffers of 17 KiB, instead of a new one for each
 * record. All are for speed alone, so a failure is no matter. */
static void widen(const struct connection *k, const int pair[2])
{
	const int bytes = PAIR_BUFFER;

	for (int i = 0; i < 2; i++)
		setsockopt(pair[i], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
	SSL_set_read_ahead(k->ssl, 1);
	SSL_clear_mode(k->ssl, SSL_MODE_RELEASE_BUFFERS);
}

/* From its end on, a handshake's records are gathered. The handshake itself has sent all of its own by then. */
static bool gather_records(struct rpc_tls *t, struct connection *k)
{
	BIO *bio;

	k->records = (struct rpc_tls_records){ .pool = &t->pool, .fd = k->tcp.fd };
	bio = rpc_tls_records_bio(&k->records);
	if (bio)
		SSL_set0_wbio(k->ssl, bio);
	return bio;
}

/* The other end of the socket pair goes to the listener's thread, and so to gRPC. */
static bool hand_on(struct rpc_tls *t, struct connection *k)
{
	const struct who who = who_of(t, SSL_get0_peer_certificate(k->ssl));
	struct epoll_event e = { .events = EPOLLIN, .data.ptr = &k->plain };
	const uint64_t one = 1;
	int pair[2];
	bool kept;

	k->in = malloc(sizeof *k->in);
	k->out = malloc(sizeof *k->out);
	if (!k->in || !k->out || !gather_records(t, k) ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair))
		return false;
	widen(k, pair);
	k->in->at = k->in->end = k->out->at = k->out->end = 0;
	k->plain = (struct side){ .of = k, .fd = pair[0], .asked = EPOLLIN };
	pthread_mutex_lock(&t->lock);
	kept = t->ready_count < RPC_TLS_HANDSHAKES_MAX && !epoll_ctl(t->events, EPOLL_CTL_ADD, pair[0], &e);
	if (kept)
		t->ready[t->ready_count++] = (struct rpc_tls_ready){ .fd = pair[1], .peer = k->peer, .who = who };
	pthread_mutex_unlock(&t->lock);
	if (!kept) {
		close(pair[1]);
		return false;
	}
	t->handshakes--;
	atomic_store_explicit(&t->shaking, t->handshakes, memory_order_relaxed);
	unlink_it(k);
	link_up(&t->running, k);
	k->state = RUNNING;
	k->until_us = UINT64_MAX;
	atomic_fetch_add_explicit(&t->open, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&t->done, 1, memory_order_relaxed);
	return write(t->ready_told, &one, sizeof one) == sizeof one;
}

static void refuse_for_room(struct rpc_tls *t, struct connection *k)
{
	refuse(t, k, "no memory or descriptor for its connection: raise the limit of open files (ulimit -n)");
}

static void shake(struct rpc_tls *t, struct connection *k)
{
	char why[TLS_WORDS_MAX];
	int n, error;

	ERR_clear_error();
	n = SSL_accept(k->ssl);
	if (n == 1) {
		if (!hand_on(t, k))
			refuse_for_room(t, k);
		return;
	}
	error = SSL_get_error(k->ssl, n);
	if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
		ask(t, &k->tcp, error == SSL_ERROR_WANT_READ ? EPOLLIN : EPOLLOUT);
		return;
	}
	tls_failure(k->ssl, t->files.ca, why);
	refuse(t, k, why);
}

/* From the client into the buffer. False: the connection is over. */
static bool fill_in(struct connection *k)
{
	struct buffer *b = k->in;

	b->at = b->end = 0;
	while (b->end < BUFFER) {
		const int n = SSL_read(k->ssl, b->bytes + b->end, (int)(BUFFER - b->end));

		if (n <= 0)
			return b->end || SSL_get_error(k->ssl, n) == SSL_ERROR_WANT_READ;
		b->end += (uint32_t)n;
	}
	return true;
}

/* gRPC's end is closed, or was cut: what came from it is all that goes out, within the time of a handshake. */
static bool is_hung_up(const struct connection *k)
{
	return k->until_us != UINT64_MAX;
}

/* False: gRPC's end takes nothing more. *stopped: not now. */
static bool drain_in(struct connection *k, bool *stopped)
{
	struct buffer *b = k->in;

	while (b->at < b->end) {
		const ssize_t n = send(k->plain.fd, b->bytes + b->at, b->end - b->at, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			*stopped = true;
			return errno == EAGAIN;
		}
		b->at += (uint32_t)n;
	}
	return true;
}

static bool carry_in(struct connection *k)
{
	bool stopped = false;

	for (int i = 0; i < TURNS; i++) {
		if (!drain_in(k, &stopped))
			return is_hung_up(k); /* what gRPC had to say still goes out */
		if (stopped)
			return true;
		if (!fill_in(k))
			return false;
		if (k->in->at == k->in->end)
			return true;
	}
	k->again = true;
	return true;
}

static bool fill_out(struct connection *k)
{
	struct buffer *b = k->out;
	ssize_t n;

	do
		n = read(k->plain.fd, b->bytes, BUFFER);
	while (n < 0 && errno == EINTR);
	b->at = 0;
	b->end = n > 0 ? (uint32_t)n : 0;
	k->plain_ended |= !n || (n < 0 && errno != EAGAIN);
	return b->end;
}

/* From the buffer into records. False: the connection is broken. */
static bool encrypt(struct connection *k)
{
	struct buffer *b = k->out;

	while (b->at < b->end) {
		const int n = SSL_write(k->ssl, b->bytes + b->at, (int)(b->end - b->at));
		const int error = n > 0 ? SSL_ERROR_NONE : SSL_get_error(k->ssl, n);

		if (n <= 0)
			return error == SSL_ERROR_WANT_WRITE || error == SSL_ERROR_WANT_READ;
		b->at += (uint32_t)n;
	}
	return true;
}

static bool carry_out(struct connection *k)
{
	struct buffer *b = k->out;

	for (int i = 0; i < TURNS; i++) {
		if (!rpc_tls_records_send(&k->records))
			return false;
		if (rpc_tls_records_wait(&k->records))
			return true;
		if (b->at == b->end && (k->plain_ended || !fill_out(k)))
			return !k->plain_ended;
		if (!encrypt(k))
			return false;
	}
	k->again = true;
	return true;
}

static void carry(struct rpc_tls *t, struct connection *k)
{
	k->again = false;
	ERR_clear_error();
	if (!carry_out(k) || !carry_in(k) || !rpc_tls_records_send(&k->records)) {
		end(t, k);
		return;
	}
	t->again |= k->again;
	const bool in = k->in->at < k->in->end, waits = rpc_tls_records_wait(&k->records),
		   out = waits || k->out->at < k->out->end;

	ask(t, &k->tcp, (in ? 0 : EPOLLIN) | (waits ? EPOLLOUT : 0));
	if (k->plain_ended)
		forget_plain(t, k);
	else if (!is_hung_up(k))
		ask(t, &k->plain, (in ? EPOLLOUT : 0) | (out ? 0 : EPOLLIN));
}

static void step(struct rpc_tls *t, struct connection *k)
{
	if (k->state == HANDSHAKE)
		shake(t, k);
	else if (k->state == RUNNING)
		carry(t, k);
}

/* The kernel tells of an end that has hung up again and again. What a gone client sent last need not come to gRPC. */
static void side_step(struct rpc_tls *t, const struct side *s, uint32_t events)
{
	struct connection *k = s->of;
	const bool gone = events & (EPOLLHUP | EPOLLERR), client = s == &k->tcp;

	if (gone && !client && k->state == RUNNING)
		forget_plain(t, k);
	step(t, k);
	if (gone && client && k->state == RUNNING && k->in->at < k->in->end)
		end(t, k);
}

/* ---- the thread ---- */

static void end_oldest(struct rpc_tls *t)
{
	atomic_fetch_add_explicit(&t->late, 1, memory_order_relaxed);
	end(t, t->fresh.prev);
}

/* With as many handshakes as there may be, the oldest makes room: clients that open connections and say nothing cannot
 * keep others out, as a handshake that goes on takes a fraction of the time that these have. */
static void begin(struct rpc_tls *t, struct connection *k)
{
	struct epoll_event e = { .events = EPOLLIN, .data.ptr = &k->tcp };

	if (t->handshakes == RPC_TLS_HANDSHAKES_MAX)
		end_oldest(t);
	k->ssl = SSL_new(t->context);
	k->until_us = daemon_now_us() + RPC_TLS_HANDSHAKE_US;
	k->tcp.asked = EPOLLIN;
	t->handshakes++;
	atomic_store_explicit(&t->shaking, t->handshakes, memory_order_relaxed);
	link_up(&t->fresh, k);
	if (!k->ssl || SSL_set_fd(k->ssl, k->tcp.fd) != 1 || epoll_ctl(t->events, EPOLL_CTL_ADD, k->tcp.fd, &e)) {
		refuse_for_room(t, k);
		return;
	}
	SSL_set_accept_state(k->ssl);
	shake(t, k);
}

/* Those that came since, the oldest first. */
static struct connection *taken_of(struct rpc_tls *t, bool *stopping)
{
	struct connection *newest, *oldest = NULL;

	pthread_mutex_lock(&t->lock);
	newest = t->taken;
	t->taken = NULL;
	t->taken_count = 0;
	*stopping = t->stopping;
	pthread_mutex_unlock(&t->lock);
	while (newest) {
		struct connection *k = newest;

		newest = k->next;
		k->next = oldest;
		oldest = k;
	}
	return oldest;
}

/* Returns whether the thread is to stop. */
static bool take_new(struct rpc_tls *t)
{
	bool stopping;
	struct connection *first = taken_of(t, &stopping);

	if (first)
		look_at_files(t, daemon_now_us());
	while (first) {
		struct connection *k = first;

		first = k->next;
		if (!stopping) {
			begin(t, k);
			continue;
		}
		atomic_fetch_add_explicit(&t->late, 1, memory_order_relaxed);
		close(k->tcp.fd);
		free(k);
	}
	return stopping;
}

/* Handshakes that last, and clients that do not read the rest. stopping: handshakes end at once. */
static void end_late(struct rpc_tls *t, uint64_t now_us, bool stopping)
{
	if (now_us < t->late_us + LATE_US && !stopping)
		return;
	t->late_us = now_us;
	while (t->handshakes && (stopping || t->fresh.prev->until_us <= now_us))
		end_oldest(t);
	for (struct connection *k = t->running.next, *next; k != &t->running; k = next) {
		next = k->next;
		if (k->until_us <= now_us)
			end(t, k);
	}
}

static void go_on(struct rpc_tls *t)
{
	t->again = false;
	for (struct connection *k = t->running.next, *next; k != &t->running; k = next) {
		next = k->next;
		if (k->again)
			step(t, k);
	}
}

static bool any(const struct rpc_tls *t)
{
	return t->handshakes || t->running.next != &t->running;
}

static void *tls_main(void *arg)
{
	struct rpc_tls *t = arg;
	struct epoll_event e[EVENTS];
	uint64_t until_us = UINT64_MAX, count;
	bool stopping = false;

	while (!stopping || (any(t) && daemon_now_us() < until_us)) {
		const int n = epoll_wait(t->events, e, EVENTS,
					 t->again   ? 0
					 : stopping ? 10
					 : any(t)   ? 1000
						    : IDLE_LOOK_US / 1000);

		for (int i = 0; i < n; i++) {
			const struct side *s = e[i].data.ptr;

			if (s)
				side_step(t, s, e[i].events);
			else if (read(t->wake, &count, sizeof count) == sizeof count && take_new(t) && !stopping) {
				stopping = true;
				until_us = daemon_now_us() + END_US;
			}
		}
		if (t->again)
			go_on(t);
		look_at_files(t, daemon_now_us());
		end_late(t, daemon_now_us(), stopping);
		free_over(t);
	}
	while (t->handshakes)
		end_oldest(t);
	while (t->running.next != &t->running)
		end(t, t->running.next);
	free_over(t);
	return NULL;
}

/* ---- the outside ---- */

static void wake(struct rpc_tls *t)
{
	const uint64_t one = 1;

	if (write(t->wake, &one, sizeof one) != sizeof one)
		log_error("tls_wake", LOG_NUM("errno", errno));
}

static enum status start(struct rpc_tls *t, char *why, size_t size)
{
	struct epoll_event e = { .events = EPOLLIN, .data.ptr = NULL };

	t->events = epoll_create1(EPOLL_CLOEXEC);
	t->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	t->ready_told = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (t->events < 0 || t->wake < 0 || t->ready_told < 0 || epoll_ctl(t->events, EPOLL_CTL_ADD, t->wake, &e)) {
		snprintf(why, size, "TLS: no descriptors: %s: raise the limit of open files (ulimit -n, LimitNOFILE)",
			 strerror(errno));
		return STATUS_EXHAUSTED;
	}
	t->thread_started = !pthread_create(&t->thread, NULL, tls_main, t);
	if (!t->thread_started)
		snprintf(why, size,
			 "TLS: cannot start its thread: raise the limit of threads (ulimit -u, TasksMax, pids.max)");
	return t->thread_started ? STATUS_OK : STATUS_INTERNAL;
}

enum status rpc_tls_create(const struct rpc_tls_options *o, struct rpc_tls **out, char *why, size_t size)
{
	struct rpc_tls *t = calloc(1, sizeof *t);
	char words[TLS_WORDS_MAX] = "no memory for TLS";
	enum status status = STATUS_INVALID;

	if (!t) {
		snprintf(why, size, "no memory for TLS");
		return STATUS_EXHAUSTED;
	}
	t->files = o->files;
	t->tenants = o->tenants;
	t->peers = o->peers;
	t->judge = (struct tls_judge){ judge, t };
	t->events = t->wake = t->ready_told = -1;
	t->fresh.next = t->fresh.prev = &t->fresh;
	t->running.next = t->running.prev = &t->running;
	t->over.next = t->over.prev = &t->over;
	pthread_mutex_init(&t->lock, NULL);
	tls_stamp_take(&t->files, &t->stamp);
	t->context = rpc_tls_pool_init(&t->pool) ? context_of(t, words) : NULL;
	if (!t->context)
		snprintf(why, size, "listen: %s", words);
	else
		status = start(t, why, size);
	if (status) {
		rpc_tls_destroy(t);
		return status;
	}
	*out = t;
	return STATUS_OK;
}

void rpc_tls_destroy(struct rpc_tls *t)
{
	struct rpc_tls_ready ready;

	if (!t)
		return;
	if (t->thread_started) {
		pthread_mutex_lock(&t->lock);
		t->stopping = true;
		pthread_mutex_unlock(&t->lock);
		wake(t);
		pthread_join(t->thread, NULL);
	}
	while (rpc_tls_next(t, &ready))
		close(ready.fd);
	tls_context_free(t->context);
	rpc_tls_pool_fini(&t->pool);
	const int fds[] = { t->events, t->wake, t->ready_told };

	for (int i = 0; i < 3; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

void rpc_tls_take(struct rpc_tls *t, int fd, const struct cache_peer *peer)
{
	struct connection *k = calloc(1, sizeof *k);
	bool kept = false;

	if (k) {
		k->tcp = (struct side){ .of = k, .fd = fd };
		k->plain = (struct side){ .of = k, .fd = -1 };
		k->peer = *peer;
		pthread_mutex_lock(&t->lock);
		kept = t->taken_count < RPC_TLS_HANDSHAKES_MAX;
		if (kept) {
			k->next = t->taken;
			t->taken = k;
			t->taken_count++;
		}
		pthread_mutex_unlock(&t->lock);
	}
	if (kept) {
		wake(t);
		return;
	}
	atomic_fetch_add_explicit(&t->late, 1, memory_order_relaxed);
	free(k);
	close(fd);
}

int rpc_tls_fd(const struct rpc_tls *t)
{
	return t->ready_told;
}

bool rpc_tls_next(struct rpc_tls *t, struct rpc_tls_ready *out)
{
	uint64_t count;
	bool taken;

	if (t->ready_told >= 0 && read(t->ready_told, &count, sizeof count) < 0 && errno != EAGAIN)
		return false;
	pthread_mutex_lock(&t->lock);
	taken = t->ready_count;
	if (taken)
		*out = t->ready[--t->ready_count];
	pthread_mutex_unlock(&t->lock);
	return taken;
}

void rpc_tls_stats(struct rpc_tls *t, cache_stat_fn *emit, void *arg)
{
	if (!t)
		return;
	emit(arg, "terrace_tls_connections", "", atomic_load_explicit(&t->open, memory_order_relaxed), false,
	     "connections over TLS");
	emit(arg, "terrace_tls_handshakes", "", atomic_load_explicit(&t->shaking, memory_order_relaxed), false,
	     "TLS handshakes under way");
	const struct {
		const char *labels;
		const atomic_ullong *n;
	} ends[] = { { "result=done", &t->done }, { "result=refused", &t->refused }, { "result=late", &t->late } };

	for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
		emit(arg, "terrace_tls_handshakes_total", ends[i].labels,
		     (double)atomic_load_explicit(ends[i].n, memory_order_relaxed), true,
		     "TLS handshakes that ended: done; refused for a certificate or for lack of room; late, for their "
		     "time or number");
	emit(arg, "terrace_tls_reloads_total", "result=done",
	     (double)atomic_load_explicit(&t->reloads, memory_order_relaxed), true,
	     "times that the certificates were read anew since their files had changed");
	emit(arg, "terrace_tls_reloads_total", "result=failed",
	     (double)atomic_load_explicit(&t->reload_failures, memory_order_relaxed), true,
	     "times that the certificates were read anew since their files had changed");
	emit(arg, "terrace_tls_certificate_expires_seconds", "",
	     (double)atomic_load_explicit(&t->expires, memory_order_relaxed), false,
	     "when the daemon's certificate ends, in seconds since 1970");
}
