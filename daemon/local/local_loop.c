/* The thread of local calls: packets, steps of calls, what is posted, what is overdue. See local/engine.h. */
#include "daemon/block/lock.h"
#include "daemon/block/quota.h"
#include "daemon/call/lease.h"
#include "daemon/local/engine.h"
#include "daemon/local/packet.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/process/log.h"
#include "daemon/process/machine.h"
#include "daemon/process/rights.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/handler.h"
#include "daemon/session/open.h"
#include "daemon/threads/pool.h"
#include "proto/adaptive_poll.h"
#include "store/status.h"

#include <errno.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define CALL_MOST_US 3600000000ull /* whatever a client asks for */

enum { EVENTS = 64, QUEUE_FULL_US = 10000, CALLER_WAKES_US = 100 };

static void on_wake(struct rpc_call *c)
{
	struct local_connection *k = (struct local_connection *)c;

	atomic_store_explicit(&k->woken, true, memory_order_release);
	local_post(k);
}

/* ---- the end of a call: by its owner ---- */

static void count_call(struct local_connection *k, enum status status)
{
	method_times_add(&k->local->stats[k->method], &k->local->times, &k->c.times, status, k->c.began_us);
	atomic_fetch_sub_explicit(&k->local->calls, 1, memory_order_relaxed);
}

static void undo(struct local_connection *k)
{
	if (k->granted)
		k->c.method->undo(&k->c, k->request, k->granted);
	k->granted = NULL;
}

/* Frees what the call has taken, once it is not needed any more. */
static void release_call(struct local_connection *k)
{
	if (k->calling)
		rpc_call_fini(&k->c);
	k->calling = false;
	k->granted = NULL;
	k->request = NULL;
}

static bool send_reply(struct local_connection *k, uint32_t status, const void *body, size_t bytes)
{
	struct fdsock_reply reply = { .head = { FDSOCK_MAGIC, FDSOCK_VERSION, FDSOCK_REPLY }, .status = status };
	struct iovec parts[] = { { &reply, sizeof reply }, { (void *)body, bytes } };
	const struct msghdr m = { .msg_iov = parts, .msg_iovlen = 2 };

	return sendmsg(k->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)(sizeof reply + bytes);
}

/* Whether the call's deadline is over. The caller's own clock has run out as well then. */
static bool too_late(const struct local_connection *k)
{
	return k->c.deadline_us <= daemon_now_us() || atomic_load_explicit(&k->c.cancelled, memory_order_relaxed);
}

/* Packs the reply and sends it, or says why there is none. What the call waited for may be thousands of blocks. They
 * stay pinned until no call waits for the reply, unless the reply grants something. */
static void answer(struct local_connection *k, enum status status, const ProtobufCMessage *reply)
{
	const bool grants = k->c.method->undo;
	uint8_t *body = NULL;
	size_t bytes = 0;

	if (grants)
		rpc_wait_end(&k->c);
	if (status == STATUS_OK && grants)
		k->granted = reply;
	if (k->granted && too_late(k))
		status = atomic_load_explicit(&k->c.cancelled, memory_order_relaxed) ? STATUS_CANCELLED : STATUS_DEADLINE;
	if (status == STATUS_CANCELLED && k->c.deadline_us <= daemon_now_us())
		status = STATUS_DEADLINE;
	if (status == STATUS_OK) {
		bytes = protobuf_c_message_get_packed_size(reply);
		body = rpc_take(&k->c, bytes);
		if (!body)
			status = rpc_too_big(&k->c);
		else
			protobuf_c_message_pack(reply, body);
	}
	if (status != STATUS_OK) {
		undo(k);
		if (!k->c.why[0])
			rpc_fail(&k->c, status, "%s", status_text(status));
		body = (uint8_t *)k->c.why;
		bytes = strlen(k->c.why);
	}
	count_call(k, status);
	k->broken = !send_reply(k, status, body, bytes);
	if (k->broken)
		undo(k);
	if (!grants)
		rpc_wait_end(&k->c);
}

/* ---- connections ---- */

static void unwatch_socket(struct local_connection *k)
{
	if (!k->unwatched)
		epoll_ctl(k->local->epoll, EPOLL_CTL_DEL, k->fd, NULL);
	k->unwatched = true;
}

/* Whether the caller has ended without reading the last reply. Its end of the socket may live on in a child of its
 * process. */
static bool is_unread(const struct local_connection *k)
{
	int left = 0;
	char byte;

	if (!ioctl(k->fd, SIOCOUTQ, &left) && left > 0)
		return true;
	return recv(k->fd, &byte, sizeof byte, MSG_DONTWAIT) < 0 && errno == ECONNRESET;
}

/* Ends a connection whose call no worker has. The memory stays until the events of this round, which may name it, are done. */
static void close_connection(struct local_connection *k)
{
	if (k->state == LOCAL_WAITING) {
		rpc_wait_end(&k->c);
		count_call(k, STATUS_CANCELLED);
	}
	release_call(k);
	unwatch_socket(k);
	close(k->fd);
	epoll_ctl(k->local->epoll, EPOLL_CTL_DEL, k->pidfd, NULL);
	close(k->pidfd);
	k->gone = true;
	k->local->sweep = true;
}

/* Ends the connection of a caller that is gone or has broken the rules. While a worker has its call, the worker's end
 * closes it. */
static void hang_up(struct local_connection *k, bool unread)
{
	if (k->state != LOCAL_WORKING) {
		if (k->granted && (unread || is_unread(k)))
			undo(k);
		close_connection(k);
		return;
	}
	atomic_store_explicit(&k->c.cancelled, true, memory_order_relaxed);
	k->hung_up = true;
	unwatch_socket(k);
}

static void to_idle(struct local_connection *k)
{
	k->state = LOCAL_IDLE;
	k->local->slept_for |= daemon_now_us() - k->c.began_us > ADAPTIVE_POLL_US_MAX;
	if (!k->granted)
		release_call(k);
	if (k->hung_up)
		hang_up(k, false);
	else if (k->broken || atomic_load_explicit(&k->local->stopping, memory_order_relaxed))
		close_connection(k);
}

static void take_up(struct local_calls *n, struct local_connection *k)
{
	if (atomic_load(&n->stopping) || !local_watch(n, k->pidfd, EPOLLIN, &k->process_key, LOCAL_PROCESS, k) ||
	    !local_watch(n, k->fd, EPOLLIN, &k->socket_key, LOCAL_SOCKET, k)) {
		k->unwatched = true;
		close_connection(k);
	} else {
		k->state = LOCAL_IDLE;
	}
	k->next = n->all.next;
	k->prev = &n->all;
	k->next->prev = k;
	n->all.next = k;
}

static void sweep(struct local_calls *n)
{
	if (!n->sweep)
		return;
	n->sweep = false;
	for (struct local_connection *k = n->all.next, *next; k != &n->all; k = next) {
		next = k->next;
		if (!k->gone)
			continue;
		if (atomic_load_explicit(&k->workers, memory_order_acquire) || atomic_load_explicit(&k->posted, memory_order_acquire)) {
			n->sweep = true; /* a worker is at it, or it is still on the list */
			continue;
		}
		k->prev->next = k->next;
		k->next->prev = k->prev;
		local_free(k);
	}
}

/* ---- steps ---- */

static void wait_until(struct local_connection *k, uint64_t resume_us)
{
	const uint64_t due = resume_us < k->c.deadline_us ? resume_us : k->c.deadline_us;

	k->state = LOCAL_WAITING;
	k->c.resume_us = resume_us;
	if (due < k->local->due_us)
		k->local->due_us = due;
}

static void finish(struct local_connection *k, enum status status, const ProtobufCMessage *reply)
{
	answer(k, status, reply);
	to_idle(k);
}

/* Hands the call to a worker. may_wait: the call has begun, and waits for room in the queue. A new call is refused. */
static void hand_over(struct local_connection *k, bool may_wait)
{
	const char *why = "";
	enum status s;

	k->state = LOCAL_WORKING;
	if (k->c.deadline_us < k->local->due_us)
		k->local->due_us = k->c.deadline_us;
	call_step_queued(&k->c.times);
	atomic_fetch_add_explicit(&k->workers, 1, memory_order_relaxed);
	s = quota_submit(k->local->daemon->workers, &k->work, k->holder, &why);
	if (s == STATUS_OK)
		return;
	atomic_fetch_sub_explicit(&k->workers, 1, memory_order_relaxed);
	k->state = LOCAL_WAITING;
	if (may_wait && s == STATUS_EXHAUSTED) {
		wait_until(k, daemon_now_us() + QUEUE_FULL_US);
		return;
	}
	rpc_fail(&k->c, s, "%s", why);
	finish(k, s, NULL);
}

static void step(struct local_connection *k)
{
	ProtobufCMessage *reply = NULL;
	enum status s;

	k->c.resume_us = 0;
	k->c.worker = false;
	s = k->c.method->unary(&k->c, k->request, &reply);
	if (s != STATUS_BUSY)
		finish(k, s, reply);
	else if (k->c.resume_us)
		wait_until(k, k->c.resume_us);
	else
		hand_over(k, false);
}

/* On a worker. */
void local_work(struct work *work)
{
	struct local_connection *k = (struct local_connection *)((char *)work - offsetof(struct local_connection,
	    work));
	ProtobufCMessage *reply = NULL;
	enum status s = STATUS_CANCELLED;

	k->c.now_us = daemon_now_us();
	k->c.worker = true;
	call_step_begin(&k->c.times, k->c.now_us);
	k->c.resume_us = 0;
	if (!atomic_load_explicit(&k->c.cancelled, memory_order_relaxed))
		s = k->c.method->unary(&k->c, k->request, &reply);
	k->asleep = s == STATUS_BUSY && k->c.resume_us;
	call_step_end(&k->c.times);
	if (!k->asleep) {
		atomic_store_explicit(&k->answering, true, memory_order_release);
		answer(k, s, reply);
	}
	atomic_store_explicit(&k->returned, true, memory_order_release);
	local_post(k);
	/* A wake may have had the thread look at `returned` before that, and k be gone: this is the last touch. */
	atomic_fetch_sub_explicit(&k->workers, 1, memory_order_release);
}

static void resume(struct local_connection *k, uint64_t now_us)
{
	k->c.now_us = now_us;
	if (k->c.method->kind == RPC_INLINE) {
		call_step_begin(&k->c.times, now_us);
		step(k);
	} else {
		hand_over(k, true);
	}
}

/* ---- packets ---- */

/* Gives the caller the role of an engine, whatever process it is: the methods that are called locally are for
 * engines. */
static void engine_calls(struct rpc_call *c, struct who *out)
{
	(void)c;
	*out = (struct who){ .role = ROLE_ENGINE };
}

static void begin(struct local_connection *k, const struct local_asked *asked, uint64_t now_us)
{
	struct local_calls *n = k->local;
	uint64_t left = asked->left_us ? asked->left_us : n->daemon->config->call_deadline_max_ms * 1000;
	enum status s;

	if (asked->method == FDSOCK_LEASE)
		cache_lease_announce(n->daemon->cache);
	rpc_call_init(&k->c, n->daemon, n->methods[asked->method], now_us, now_us + (left < CALL_MOST_US ? left : CALL_MOST_US));
	k->c.wake = on_wake;
	k->c.who = engine_calls;
	k->calling = true;
	k->method = asked->method;
	k->asleep = k->broken = false;
	atomic_store_explicit(&k->woken, false, memory_order_relaxed);
	atomic_store_explicit(&k->answering, false, memory_order_relaxed);
	atomic_store_explicit(&k->returned, false, memory_order_relaxed);
	atomic_fetch_add_explicit(&n->calls, 1, memory_order_relaxed);
	s = rpc_call_unpack(&k->c, asked->request, asked->bytes, &k->request);
	if (s == STATUS_OK && local_call_session(k->c.method, k->request) != k->session)
		s = rpc_fail(&k->c, STATUS_DENIED, "session: the connection is another's");
	if (s == STATUS_OK && atomic_load(&n->stopping))
		s = rpc_fail(&k->c, STATUS_UNAVAILABLE, "shutting down");
	if (s != STATUS_OK) {
		finish(k, s, NULL);
	} else if (local_call_reply_most(n->daemon->cache, asked->method, k->request) > k->room) {
		atomic_fetch_add_explicit(&n->by_grpc, 1, memory_order_relaxed);
		atomic_fetch_sub_explicit(&n->calls, 1, memory_order_relaxed);
		k->broken = !send_reply(k, FDSOCK_BY_GRPC, NULL, 0);
		to_idle(k);
	} else if (k->c.method->kind == RPC_INLINE) {
		step(k);
	} else {
		hand_over(k, false);
	}
}

/* Goes on with a connection when a worker has returned from its call. */
static void collect(struct local_calls *n, struct local_connection *k)
{
	if (k->asleep && !k->hung_up) {
		wait_until(k, k->c.resume_us);
		if (atomic_load_explicit(&k->woken, memory_order_acquire))
			local_post(k);
	} else if (k->asleep) {
		k->state = LOCAL_WAITING;
		close_connection(k);
	} else {
		to_idle(k);
	}
	if (k->unwatched && !k->gone)
		k->unwatched = !local_watch(n, k->fd, EPOLLIN, &k->socket_key, LOCAL_SOCKET, k);
	if (k->unwatched && !k->gone) /* it would never be heard again */
		hang_up(k, false);
}

/* Descriptors that a peer sends us are never wanted: without room for control data the kernel drops them. */
static void on_readable(struct local_connection *k, uint64_t now_us)
{
	struct local_calls *n = k->local;
	struct local_asked asked;
	ssize_t got;

	if (k->state == LOCAL_WORKING && atomic_exchange_explicit(&k->returned, false, memory_order_acq_rel))
		collect(n, k);
	if (k->gone)
		return;
	if (k->state == LOCAL_WORKING && atomic_load_explicit(&k->answering, memory_order_acquire)) {
		unwatch_socket(k); /* the caller has its reply, and goes on: when the worker is back */
		return;
	}
	if (k->state != LOCAL_IDLE) { /* one at a time: it is gone, or has spoken out of turn */
		hang_up(k, false);
		return;
	}
	got = recv(k->fd, n->packet, FDSOCK_CALL_BYTES_MAX, MSG_DONTWAIT | MSG_TRUNC);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0) {
		hang_up(k, got < 0 && errno == ECONNRESET);
		return;
	}
	release_call(k); /* the reply before this packet was read */
	if (local_call_read(n->packet, (size_t)got, &asked)) {
		begin(k, &asked, now_us);
	} else {
		log_debug("local_call_breach", LOG_NUM("session", cache_session_number(n->daemon->cache, k->session)));
		hang_up(k, false);
	}
}

static void on_posted(struct local_calls *n, struct local_connection *k, uint64_t now_us)
{
	if (k->gone)
		return;
	if (k->state == LOCAL_NEW)
		take_up(n, k);
	else if (k->state == LOCAL_WORKING && atomic_exchange_explicit(&k->returned, false, memory_order_acq_rel))
		collect(n, k);
	else if (k->state == LOCAL_WAITING && atomic_exchange_explicit(&k->woken, false, memory_order_acq_rel))
		resume(k, now_us);
}

static void run_posted(struct local_calls *n, uint64_t now_us)
{
	struct local_connection *k = atomic_exchange_explicit(&n->posted, NULL, memory_order_acquire);

	while (k) {
		struct local_connection *next = k->next_posted;

		/* From here on it may be posted anew, and what was posted before is seen. */
		atomic_exchange_explicit(&k->posted, false, memory_order_acq_rel);
		on_posted(n, k, now_us);
		k = next;
	}
}

/* ---- the thread ---- */

static void look_at(struct local_connection *k, uint64_t now_us, bool stopping, bool cancel)
{
	switch (k->state) {
	case LOCAL_IDLE:
		if (stopping)
			close_connection(k);
		break;
	case LOCAL_WAITING:
		if (cancel)
			finish(k, rpc_fail(&k->c, STATUS_UNAVAILABLE, "shutting down"), NULL);
		else if (k->c.deadline_us <= now_us)
			finish(k, STATUS_DEADLINE, NULL);
		else if (k->c.resume_us <= now_us)
			resume(k, now_us);
		else
			wait_until(k, k->c.resume_us);
		break;
	case LOCAL_WORKING:
		if (cancel || k->c.deadline_us <= now_us)
			atomic_store_explicit(&k->c.cancelled, true, memory_order_relaxed);
		else if (k->c.deadline_us < k->local->due_us)
			k->local->due_us = k->c.deadline_us;
		break;
	default:
		break;
	}
}

static void look(struct local_calls *n, uint64_t now_us)
{
	const bool stopping = atomic_load(&n->stopping);
	const uint64_t cancel_at = atomic_load(&n->cancel_at_us);

	n->due_us = stopping && cancel_at > now_us ? cancel_at : UINT64_MAX;
	for (struct local_connection *k = n->all.next; k != &n->all; k = k->next)
		if (!k->gone)
			look_at(k, now_us, stopping, stopping && cancel_at <= now_us);
}

static int wait_ms(const struct local_calls *n, uint64_t poll_until_us)
{
	const uint64_t now = daemon_now_us();
	uint64_t ms;

	if (now < poll_until_us || n->due_us <= now)
		return 0;
	if (n->sweep) /* a worker that is about to end sends no event */
		return 1;
	if (n->due_us == UINT64_MAX)
		return -1;
	ms = (n->due_us - now + 999) / 1000;
	return ms < 1000000 ? (int)ms : 1000000;
}

/* How long the thread looks for what comes next. Whose answer has taken long has slept, and must wake up before it can ask for more: what it has
 * waited for, mostly. */
static uint64_t looks_us(struct local_calls *n, const struct adaptive_poll *usual)
{
	const uint64_t us = adaptive_poll_us(usual);
	const bool wakes = n->slept_for;

	n->slept_for = false;
	return wakes && us < CALLER_WAKES_US ? CALLER_WAKES_US : us;
}

static bool is_posted(struct local_calls *n)
{
	return atomic_load_explicit(&n->posted, memory_order_relaxed);
}

static int await_events(struct local_calls *n, struct epoll_event *events, int ms)
{
	int count;

	if (!ms)
		return epoll_wait(n->epoll, events, EVENTS, 0);
	atomic_store(&n->sleeps, true);
	count = epoll_wait(n->epoll, events, EVENTS, atomic_load(&n->posted) ? 0 : ms);
	atomic_store_explicit(&n->sleeps, false, memory_order_relaxed);
	return count;
}

static void on_event(const struct local_key *key, uint64_t now_us)
{
	if (key->what == LOCAL_SOCKET && !key->k->gone)
		on_readable(key->k, now_us);
	else if (key->what == LOCAL_PROCESS && !key->k->gone) {
		epoll_ctl(key->k->local->epoll, EPOLL_CTL_DEL, key->k->pidfd, NULL);
		hang_up(key->k, false);
	}
}

/* The loop of the local socket's thread: wait, run what was posted, serve events, look at deadlines. It is one function
 * because each round hands the same few times to the next. */
void *local_main(void *arg)
{
	struct local_calls *n = arg;
	const uint64_t poll_us = n->daemon->config->busy_poll_ms * 1000;
	const bool adapts = n->daemon->config->adaptive_poll && !poll_us && machine_processors("") >= ADAPTIVE_POLL_PROCESSORS;
	struct epoll_event events[EVENTS];
	struct adaptive_poll usual = { 0 };
	uint64_t poll_until_us = 0, waits_since_us = daemon_now_us();

	cache_thread_enter();
	while (!atomic_load(&n->stopping) || n->all.next != &n->all || atomic_load(&n->posted)) {
		const int count = await_events(n, events, wait_ms(n, poll_until_us));
		const uint64_t now = daemon_now_us();
		const bool news = count > 0 || is_posted(n);

		if (news) {
			poll_until_us = now + poll_us;
			cache_called(n->daemon->cache);
			if (adapts)
				adaptive_poll_learn(&usual, now - waits_since_us);
		} else if (adapts && now < poll_until_us) {
			sched_yield();
		}
		if (is_posted(n)) /* first: the next call of a connection may be among the events */
			run_posted(n, now);
		for (int i = 0; i < count; i++)
			on_event(events[i].data.ptr, now);
		if (is_posted(n))
			run_posted(n, now);
		if (now >= n->due_us || atomic_load_explicit(&n->stopping, memory_order_relaxed))
			look(n, now);
		cache_leases_notify(n->daemon->cache); /* their replies are on their way */
		sweep(n);
		if (adapts && news) {
			waits_since_us = daemon_now_us();
			poll_until_us = waits_since_us + looks_us(n, &usual);
		}
	}
	cache_thread_leave();
	pthread_mutex_lock(&n->lock);
	n->done = true;
	pthread_cond_broadcast(&n->done_changed);
	pthread_mutex_unlock(&n->lock);
	return NULL;
}
