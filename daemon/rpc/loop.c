/* The rpc thread: what is posted, what arrives, what is overdue. See rpc/engine.h. */
#include "daemon/block/lock.h"
#include "daemon/block/quota.h"
#include "daemon/call/lease.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/engine.h"
#include "daemon/rpc/handler.h"
#include "daemon/rpc/peers.h"
#include "daemon/rpc/server.h"
#include "store/status.h"

#include <grpc/byte_buffer.h>
#include <grpc/support/time.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define DEADLINE_MOST_US 3600000000ull /* whatever a client asks for */

/* ---- the pool and what is posted ---- */

/* Posts calls of a method until it has as many as it should, or the pool is empty. */
static void post(struct rpc_server *s, uint32_t method)
{
	const bool unserved = method < rpc_methods_count && !s->registered[method];

	while (!unserved && !s->shut_down && s->posted[method] < posts_wanted(method)) {
		struct wire_call *w = s->pool;
		grpc_call_error e;

		if (!w) {
			s->starved++;
			return;
		}
		s->pool = w->next;
		w->method = method;
		w->call = NULL;
		w->received = NULL;
		set_state(w, CALL_POSTED);
		if (method < rpc_methods_count)
			e = grpc_server_request_registered_call(
				s->server, s->registered[method], &w->call, &w->deadline, &w->metadata, NULL, s->queue, s->queue,
				tag_of(w, OP_NEW));
		else
			e = grpc_server_request_call(s->server, &w->call, &w->details, &w->metadata, s->queue, s->queue,
						     tag_of(w, OP_NEW));
		if (e != GRPC_CALL_OK) {
			w->next = s->pool;
			s->pool = w;
			return;
		}
		s->posted[method]++;
	}
}

static void give_to_pool(struct wire_call *w)
{
	struct rpc_server *s = w->server;

	w->next = s->pool;
	s->pool = w;
	if (s->starved) {
		s->starved = 0;
		for (uint32_t m = 0; m <= rpc_methods_count; m++)
			post(s, m);
	}
}

/* ---- shares ---- */

/* Takes the shares of its caller that the call needs. If one is not to be had, *w says why. */
static enum status quota_of(struct wire_call *w)
{
	const char *why = "its connection has ended";
	char refusal[RPC_REFUSAL_MAX];
	enum status s = STATUS_CANCELLED;

	w->counted = w->stream = w->endless = w->reading = w->unasked = false;
	w->reply_bytes = 0;
	w->connection = rpc_step_connection(w);
	w->holder = rpc_peers_holder(w->server->peers, w->connection, refusal);
	if (!w->holder)
		return rpc_fail(&w->c, s, "%s", why);
	if (refusal[0])
		return rpc_fail(&w->c, STATUS_EXHAUSTED, "%s", refusal);
	s = quota_take(w->holder, QUOTA_CALLS, 1, &why);
	w->counted = !s;
	if (!s && is_stream(w))
		w->stream = !(s = quota_take(w->holder, QUOTA_STREAMS, 1, &why));
	if (!s && is_endless(w))
		w->endless = !(s = quota_take(w->holder, QUOTA_LASTING, 1, &why));
	return s ? rpc_fail(&w->c, s, "%s", why) : STATUS_OK;
}

static void quota_drop(struct wire_call *w)
{
	if (w->counted)
		quota_give(w->holder, QUOTA_CALLS, 1);
	if (w->stream)
		quota_give(w->holder, QUOTA_STREAMS, 1);
	if (w->endless)
		quota_give(w->holder, QUOTA_LASTING, 1);
	if (w->reply_bytes)
		quota_give(w->holder, QUOTA_REPLY_BYTES, w->reply_bytes);
	quota_leave(w->holder);
	w->holder = NULL;
}

/* Frees a call of which nothing is under way any more. */
static void free_call(struct wire_call *w)
{
	struct rpc_server *s = w->server;

	w->prev->next = w->next;
	w->next->prev = w->prev;
	s->live_count--;
	quota_drop(w);
	atomic_store_explicit(&s->live_gauge, s->live_count, memory_order_relaxed);
	drop_buffer(&w->received);
	drop_buffer(&w->sent);
	grpc_slice_unref(w->why);
	grpc_call_unref(w->call);
	w->metadata.count = 0;
	rpc_call_fini(&w->c);
	give_to_pool(w);
}

static void free_if_over(struct wire_call *w)
{
	if (!w->finished || !w->closed || is_woken(w))
		return;
	if (w->granted && (w->was_cancelled || w->unsent))
		w->c.method->undo(&w->c, w->request, w->granted);
	if (w->uncounted)
		rpc_step_count(w, w->was_cancelled ? STATUS_CANCELLED : STATUS_INVALID);
	free_call(w);
}

/* ---- events, on the rpc thread ---- */

static uint64_t deadline_of(const struct wire_call *w, uint64_t now_us)
{
	uint64_t own = w->server->daemon->config->call_deadline_max_ms * 1000;

	if (is_endless(w))
		return UINT64_MAX; /* the core itself ends it at the client's deadline */
	if (!gpr_time_cmp(w->deadline, gpr_inf_future(w->deadline.clock_type)))
		return now_us + own;
	gpr_timespec left = gpr_time_sub(w->deadline, gpr_now(w->deadline.clock_type));

	if (left.tv_sec < 0)
		return now_us;
	if ((uint64_t)left.tv_sec >= DEADLINE_MOST_US / 1000000)
		return now_us + DEADLINE_MOST_US;
	return now_us + (uint64_t)left.tv_sec * 1000000 + (uint64_t)left.tv_nsec / 1000;
}

static void open_server_stream(struct wire_call *w)
{
	enum status s = rpc_step_unpack(w);

	drop_buffer(&w->received);
	if (s == STATUS_OK)
		s = w->c.method->out->open(&w->c, w->request);
	if (s != STATUS_OK) {
		rpc_step_finish(w, s, NULL);
		return;
	}
	w->opened = true;
	if (!is_endless(w)) {
		rpc_step_pump(w, false);
		return;
	}
	/* A watcher wants to know that it is watching, even if nothing happens. */
	grpc_op op = { .op = GRPC_OP_SEND_INITIAL_METADATA };

	w->metadata_sent = true;
	rpc_step_start(w, CALL_SENDING, &op, 1, OP_SEND);
}

static void open_client_stream(struct wire_call *w)
{
	enum status s = w->c.method->in->open(&w->c);

	w->opened = s == STATUS_OK;
	if (s == STATUS_OK)
		rpc_step_receive(w);
	else
		rpc_step_finish(w, s, NULL);
}

static bool is_stopping(struct rpc_server *s)
{
	pthread_mutex_lock(&s->lock);
	bool stopping = s->stopping;

	pthread_mutex_unlock(&s->lock);
	return stopping;
}

/* Begins to receive the request. If the caller has its share of requests being received already, this one waits: all
 * but a little of it stays with the client meanwhile. */
static void receive_request(struct wire_call *w)
{
	w->reading = quota_try(w->holder, QUOTA_READS, 1);
	w->unasked = !w->reading;
	if (w->reading) {
		rpc_step_receive(w);
		return;
	}
	if (!w->close_begun)
		rpc_step_watch_close(w);
	w->c.resume_us = daemon_now_us() + READ_AGAIN_US;
	rpc_step_put_aside(w, CALL_SLEEPING);
}

/* Goes on with a call whose request has come, or will not come. */
static void begin_received(struct wire_call *w)
{
	quota_give(w->holder, QUOTA_READS, 1);
	w->reading = false;
	w->c.resume_us = 0;
	if (w->c.method->kind == RPC_INLINE)
		rpc_step_inline(w);
	else if (w->c.method->out)
		open_server_stream(w);
	else
		rpc_step_hand_over(w, false);
}

/* Begins a call that has just come: resets the fields that the call before left, counts it, and then chooses the one of
 * six ways in which it goes on. The order of the checks decides what a client with several faults is told. */
static void begin(struct wire_call *w, uint64_t now_us)
{
	struct rpc_server *s = w->server;
	const struct rpc_method *m = w->method < rpc_methods_count ? &rpc_methods[w->method] : NULL;

	rpc_call_init(&w->c, s->daemon, m, now_us, 0);
	w->c.deadline_us = deadline_of(w, now_us);
	w->c.wake = rpc_step_wake;
	w->c.peer = rpc_step_peer;
	w->c.who = rpc_step_who;
	w->c.unnamed = rpc_step_unnamed;
	w->c.tenant = rpc_roles_tenant(&s->roles, rpc_step_connection(w));
	atomic_store_explicit(&w->woken, false, memory_order_relaxed);
	w->metadata_sent = w->close_begun = w->opened = w->closed = w->finished = false;
	atomic_store_explicit(&w->overdue, false, memory_order_relaxed);
	w->was_cancelled = 0;
	w->uncounted = false;
	w->request = NULL;
	w->granted = NULL;
	w->progress_us = now_us;
	w->why = grpc_empty_slice();
	w->next = s->live.next;
	w->prev = &s->live;
	w->next->prev = w;
	s->live.next = w;
	s->live_count++;
	const enum status refused = quota_of(w);

	atomic_store_explicit(&s->live_gauge, s->live_count, memory_order_relaxed);

	if (!m) {
		grpc_slice_unref(w->details.method);
		grpc_slice_unref(w->details.host);
	}
	if (refused) {
		rpc_peers_called_in_vain(s->peers, w->connection, now_us);
		rpc_step_refuse(w, refused);
	} else if (!m) {
		rpc_fail(&w->c, STATUS_UNSUPPORTED, "no such method");
		rpc_step_finish(w, STATUS_UNSUPPORTED, NULL);
	} else if (!rpc_step_allowed(w)) {
		rpc_step_finish(w, STATUS_DENIED, NULL);
	} else if (is_stream(w) && is_stopping(s)) {
		rpc_fail(&w->c, STATUS_UNAVAILABLE, "shutting down");
		rpc_step_finish(w, STATUS_UNAVAILABLE, NULL);
	} else {
		if (m->kind != RPC_INLINE)
			rpc_step_watch_close(w);
		if (m->in)
			open_client_stream(w);
		else
			receive_request(w);
	}
}

static void on_new(struct wire_call *w, bool ok, uint64_t now_us)
{
	struct rpc_server *s = w->server;

	s->posted[w->method]--;
	if (!ok) { /* shutting down */
		give_to_pool(w);
		return;
	}
	uint32_t method = w->method;

	if (method == rpc_methods_count)
		w->deadline = w->details.deadline;
	begin(w, now_us);
	post(s, method);
}

/* Ends a call that no thread owns at the moment, as it was cancelled. */
static void end_idle(struct wire_call *w, enum status status)
{
	enum call_state state = state_of(w);

	if (state == CALL_WAITING)
		rpc_step_finish(w, status, NULL);
	else if (state == CALL_SLEEPING && !is_woken(w))
		rpc_step_finish(w, status, NULL);
}

static void on_close(struct wire_call *w)
{
	w->closed = true;
	if (w->was_cancelled) {
		atomic_store_explicit(&w->c.cancelled, true, memory_order_relaxed);
		end_idle(w, STATUS_CANCELLED);
	}
	free_if_over(w);
}

/* Goes on with a call that was put aside. */
static void resume(struct wire_call *w)
{
	if (w->unasked)
		receive_request(w);
	else if (w->c.method->kind == RPC_INLINE)
		rpc_step_again(w);
	else
		rpc_step_hand_over(w, true);
}

static void on_wake(struct wire_call *w, uint64_t now_us)
{
	switch (state_unwake(w)) {
	case CALL_WAITING:
		w->c.now_us = now_us;
		if (atomic_load_explicit(&w->woken, memory_order_acquire))
			rpc_step_pump(w, false);
		break;
	case CALL_SLEEPING:
		if (is_cancelled(w))
			rpc_step_finish(w, STATUS_CANCELLED, NULL);
		else if (atomic_exchange_explicit(&w->woken, false, memory_order_acq_rel) || w->c.resume_us <= now_us)
			resume(w);
		else if (w->server->tick_at_us > w->c.resume_us)
			w->server->tick_at_us = w->c.resume_us;
		break;
	case CALL_FINISHING:
		free_if_over(w);
		break;
	default:
		break;
	}
}

static void on_send(struct wire_call *w, bool ok, uint64_t now_us)
{
	drop_buffer(&w->sent);
	w->progress_us = now_us;
	w->c.now_us = now_us;
	if (ok)
		rpc_step_pump(w, false);
	else
		rpc_step_finish(w, STATUS_CANCELLED, NULL);
}

static void on_receive(struct wire_call *w, uint64_t now_us)
{
	w->progress_us = now_us;
	w->c.now_us = now_us;
	if (w->reading)
		begin_received(w);
	else if (is_cancelled(w))
		rpc_step_finish(w, STATUS_CANCELLED, NULL);
	else
		rpc_step_hand_over(w, true);
}

static void on_final(struct wire_call *w, bool sent)
{
	w->finished = true;
	w->unsent = !sent;
	if (!w->close_begun)
		w->closed = true;
	if (w->opened && w->c.method->out)
		w->c.method->out->close(&w->c);
	else if (w->opened)
		w->c.method->in->close(&w->c);
	free_if_over(w);
}

static void on_event(void *tag, bool ok, uint64_t now_us)
{
	enum call_op op = (uintptr_t)tag & OP_MASK;
	struct wire_call *w = (struct wire_call *)((uintptr_t)tag - op);

	(void)state_of(w); /* acquires what the thread that started this left */
	switch (op) {
	case OP_NEW: on_new(w, ok, now_us); break;
	case OP_CLOSE: on_close(w); break;
	case OP_RECV: on_receive(w, now_us); break;
	case OP_SEND: on_send(w, ok, now_us); break;
	case OP_FINAL: on_final(w, ok); break;
	case OP_WAKE: on_wake(w, now_us); break;
	default: break;
	}
}

/* ---- the thread ---- */

static void run_deferred(struct rpc_server *s)
{
	struct rpc_deferred *item = atomic_exchange_explicit(&s->deferred, NULL, memory_order_acquire);

	while (item) {
		struct rpc_deferred *next = item->next;

		item->run(item);
		item = next;
	}
}

/* Overdue: past its deadline, or a stream that has not moved for as long as a call may live. The core ends
 * what is under way; the rest goes the way of any cancelled call. */
static void check_overdue(struct wire_call *w, uint64_t now_us)
{
	uint64_t stall = w->server->daemon->config->call_deadline_max_ms * 1000;
	bool stalled = is_stream(w) && !is_endless(w) && now_us - w->progress_us > stall;

	if (atomic_load_explicit(&w->overdue, memory_order_relaxed) || (w->c.deadline_us > now_us && !stalled))
		return;
	atomic_store_explicit(&w->overdue, true, memory_order_relaxed);
	atomic_store_explicit(&w->c.cancelled, true, memory_order_relaxed);
	grpc_call_cancel_with_status(w->call, GRPC_STATUS_DEADLINE_EXCEEDED,
				     stalled ? "the stream has not moved for call_deadline_max" :
					       "the call's time is up: its own, or call_deadline_max",
				     NULL);
	end_idle(w, STATUS_DEADLINE);
}

static void tick(struct rpc_server *s, uint64_t now_us)
{
	bool draining = cache_draining(s->daemon->cache), changed = draining != s->was_draining, stopping, cancel;

	pthread_mutex_lock(&s->lock);
	stopping = s->stopping;
	cancel = stopping && now_us >= s->cancel_at_us;
	pthread_mutex_unlock(&s->lock);
	s->was_draining = draining;
	s->tick_at_us = now_us + TICK_US;
	s->quiet_ticks = stopping && !s->live_count ? s->quiet_ticks + 1 : 0;
	for (struct wire_call *w = s->live.next, *next; w != &s->live; w = next) {
		next = w->next;
		if (stopping && is_endless(w) && state_of(w) == CALL_WAITING) {
			rpc_fail(&w->c, STATUS_UNAVAILABLE, "shutting down");
			end_idle(w, STATUS_UNAVAILABLE);
		} else if (state_of(w) == CALL_WAITING && (changed || (w->c.resume_us && w->c.resume_us <= now_us))) {
			rpc_step_wake(&w->c);
		} else if (state_of(w) == CALL_SLEEPING && !is_woken(w)) {
			if (w->c.resume_us <= now_us)
				resume(w);
			else if (w->c.resume_us < s->tick_at_us)
				s->tick_at_us = w->c.resume_us;
		}
		check_overdue(w, now_us);
	}
	/* The core waits for its clients to hang up, and an idle one does not look: with no call left it is not waited
	 * for. */
	if (cancel || s->quiet_ticks > QUIET_TICKS)
		grpc_server_cancel_all_calls(s->server);
}

/* The next event, or GRPC_QUEUE_TIMEOUT after wait_us. Until poll_until_us the queue is polled: a sleeping thread wakes
 * up late. */
static grpc_event next_event(struct rpc_server *s, uint64_t wait_us, uint64_t poll_until_us)
{
	gpr_timespec until = gpr_inf_past(GPR_CLOCK_MONOTONIC); /* any later time is rounded up to the next millisecond */

	if (daemon_now_us() >= poll_until_us)
		until = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros((int64_t)wait_us, GPR_TIMESPAN));
	return grpc_completion_queue_next(s->queue, until, NULL);
}

void *rpc_loop_main(void *arg)
{
	struct rpc_server *s = arg;
	const uint64_t poll_us = s->daemon->config->busy_poll_ms * 1000;
	uint64_t poll_until_us = 0;

	cache_thread_enter();
	for (uint32_t m = 0; m <= rpc_methods_count; m++)
		post(s, m);
	while (!s->shut_down || s->live_count) {
		uint64_t now = daemon_now_us();
		grpc_event e = next_event(s, s->tick_at_us > now ? s->tick_at_us - now : 0, poll_until_us);

		now = daemon_now_us();
		if (e.type == GRPC_OP_COMPLETE) {
			poll_until_us = now + poll_us;
			cache_called(s->daemon->cache);
		}
		if (e.type == GRPC_OP_COMPLETE && e.tag == s)
			s->shut_down = true;
		else if (e.type == GRPC_OP_COMPLETE)
			on_event(e.tag, e.success, now);
		cache_leases_notify(s->daemon->cache); /* its reply is on its way */
		if (atomic_load_explicit(&s->deferred, memory_order_relaxed))
			run_deferred(s);
		if (now >= s->tick_at_us)
			tick(s, now);
	}
	grpc_server_destroy(s->server);
	grpc_completion_queue_shutdown(s->queue);
	for (grpc_event e; (e = grpc_completion_queue_next(s->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL)).type !=
			   GRPC_QUEUE_SHUTDOWN;)
		;
	run_deferred(s);
	cache_thread_leave();
	pthread_mutex_lock(&s->lock);
	s->done = true;
	pthread_cond_broadcast(&s->done_changed);
	pthread_mutex_unlock(&s->lock);
	return NULL;
}
