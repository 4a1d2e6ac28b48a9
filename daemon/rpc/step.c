/* Steps of a call: run a handler, send, receive, finish, hand over. See rpc/engine.h. */
#include "daemon/block/peer.h"
#include "daemon/block/quota.h"
#include "daemon/process/daemon.h"
#include "daemon/process/log.h"
#include "daemon/process/rights.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/engine.h"
#include "daemon/rpc/handler.h"
#include "daemon/rpc/reply.h"
#include "daemon/rpc/peers.h"
#include "daemon/rpc/roles.h"
#include "daemon/rpc/server.h"
#include "daemon/threads/pool.h"
#include "store/status.h"

#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPANS_MAX = 1024 }; /* pieces of one received message */
enum { REPLY_COUNTED = 4096 }; /* bytes of a reply that counts */

/* The core refuses a batch only for a mistake of ours, after which the call would never end. */
static void start(grpc_call *call, const grpc_op *ops, size_t n, struct wire_call *w, enum call_op op)
{
	grpc_call_error e = grpc_call_start_batch(call, ops, n, tag_of(w, op), NULL);

	if (e != GRPC_CALL_OK) {
		log_error("grpc_batch_refused", LOG_NUM("error", e), LOG_NUM("op", op));
		abort();
	}
}

void rpc_step_start(struct wire_call *w, enum call_state state, const grpc_op *ops, size_t n, enum call_op op)
{
	grpc_call *call = w->call; /* from here on the call is no longer the caller's to look at */

	call_step_end(&w->c.times);
	set_state(w, state);
	start(call, ops, n, w, op);
}

void rpc_step_watch_close(struct wire_call *w)
{
	grpc_op op = { .op = GRPC_OP_RECV_CLOSE_ON_SERVER };

	op.data.recv_close_on_server.cancelled = &w->was_cancelled;
	w->close_begun = true;
	start(w->call, &op, 1, w, OP_CLOSE);
}

/* ---- the end of a call ---- */

void rpc_step_count(struct wire_call *w, enum status status)
{
	struct rpc_server *s = w->server;

	method_times_add(&s->stats[w->method], is_endless(w) ? NULL : &s->times, &w->c.times, status, w->c.began_us);
}

static grpc_byte_buffer *pack(const ProtobufCMessage *m)
{
	grpc_slice slice = grpc_slice_malloc(protobuf_c_message_get_packed_size(m));

	protobuf_c_message_pack(m, GRPC_SLICE_START_PTR(slice));
	grpc_byte_buffer *b = grpc_raw_byte_buffer_create(&slice, 1);

	grpc_slice_unref(slice);
	return b;
}

/* Whether a call's deadline is over; if so undoes what it was granted. The client's own deadline has passed too, so no
 * caller would receive the reply. */
static bool too_late(struct wire_call *w)
{
	if (w->c.deadline_us > daemon_now_us() && !is_cancelled(w))
		return false;
	w->c.method->undo(&w->c, w->request, w->granted);
	w->granted = NULL;
	return true;
}

/* Charges the caller with a large reply, which gRPC keeps until the client has read it. Small replies are bounded by
 * the number of calls. */
static enum status take_reply_bytes(struct wire_call *w, size_t bytes)
{
	const char *why;

	if (bytes < REPLY_COUNTED || !w->holder)
		return STATUS_OK;
	if (quota_take(w->holder, QUOTA_REPLY_BYTES, bytes, &why) == STATUS_OK) {
		w->reply_bytes = bytes;
		return STATUS_OK;
	}
	if (w->granted)
		w->c.method->undo(&w->c, w->request, w->granted);
	w->granted = NULL;
	return rpc_fail(&w->c, STATUS_EXHAUSTED, "%s", why);
}

/* Ends a call: metadata, reply and status in one batch, with CLOSE in it unless that is under way already. Called by
 * the call's owner, as the last thing that the owner does. It is one function because the batch's operations and the
 * memory they point at are filled together. */
void rpc_step_finish(struct wire_call *w, enum status status, const ProtobufCMessage *reply)
{
	grpc_op ops[4] = { 0 };
	size_t n = 0;

	rpc_wait_end(&w->c);
	if (status == STATUS_OK && w->c.method && w->c.method->undo) {
		w->granted = reply;
		if (too_late(w))
			status = is_cancelled(w) ? STATUS_CANCELLED : STATUS_DEADLINE;
	}
	if (status == STATUS_OK && reply)
		status = take_reply_bytes(w, protobuf_c_message_get_packed_size(reply));
	if (status == STATUS_CANCELLED && atomic_load_explicit(&w->overdue, memory_order_relaxed))
		status = STATUS_DEADLINE;
	if (status != STATUS_OK && !w->c.why[0])
		rpc_fail(&w->c, status, "%s", status_text(status));
	w->uncounted = status == STATUS_INVALID;
	if (!w->uncounted)
		rpc_step_count(w, status);
	if (!w->metadata_sent)
		ops[n++].op = GRPC_OP_SEND_INITIAL_METADATA;
	if (status == STATUS_OK && reply) {
		drop_buffer(&w->sent);
		w->sent = pack(reply);
		if (!w->granted && !is_stream(w)) { /* the request is not needed any more, and its client may not read
						     * the reply for long */
			w->request = NULL;
			rpc_arena_reset(&w->c.arena);
		}
		ops[n].op = GRPC_OP_SEND_MESSAGE;
		ops[n++].data.send_message.send_message = w->sent;
	}
	ops[n].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
	ops[n].data.send_status_from_server.status = (grpc_status_code)rpc_grpc_status(status);
	if (status != STATUS_OK) {
		w->why = grpc_slice_from_copied_string(w->c.why);
		ops[n].data.send_status_from_server.status_details = &w->why;
		w->mark = (grpc_metadata){ .key = grpc_slice_from_static_string("terrace-status"),
					   .value = grpc_slice_from_static_string(status_name(status)) };
		ops[n].data.send_status_from_server.trailing_metadata_count = 1;
		ops[n].data.send_status_from_server.trailing_metadata = &w->mark;
	}
	n++;
	if (!w->close_begun) {
		ops[n].op = GRPC_OP_RECV_CLOSE_ON_SERVER;
		ops[n++].data.recv_close_on_server.cancelled = &w->was_cancelled;
	}
	rpc_step_start(w, CALL_FINISHING, ops, n, OP_FINAL);
}

void rpc_step_refuse(struct wire_call *w, enum status status)
{
	grpc_call *call = w->call;

	rpc_step_count(w, status);
	w->finished = true;
	set_state(w, CALL_FINISHING);
	rpc_step_watch_close(w);
	grpc_call_cancel_with_status(call, (grpc_status_code)rpc_grpc_status(status), w->c.why, NULL);
}

/* ---- unary calls ---- */

/* A received message as pieces; false: more of them than any honest message has. */
static bool spans_of(const grpc_byte_buffer *b, struct rpc_span *spans, size_t *n)
{
	const grpc_slice_buffer *slices = &b->data.raw.slice_buffer;

	if (slices->count > SPANS_MAX || b->data.raw.compression != GRPC_COMPRESS_NONE)
		return false;
	for (size_t i = 0; i < slices->count; i++)
		spans[i] = (struct rpc_span){ GRPC_SLICE_START_PTR(slices->slices[i]),
					      GRPC_SLICE_LENGTH(slices->slices[i]) };
	*n = slices->count;
	return true;
}

/* The request's bytes in one piece: in place if they came so, else gathered in the arena. */
static enum status gather(struct wire_call *w, const uint8_t **bytes, size_t *n)
{
	struct rpc_span spans[SPANS_MAX];
	size_t count = 0, total = 0;
	uint8_t *all;

	if (!w->received)
		return rpc_fail(&w->c, STATUS_INVALID, "the call has no request");
	if (!spans_of(w->received, spans, &count))
		return rpc_fail(&w->c, STATUS_INVALID, "the request came in too many pieces, or compressed");
	if (count <= 1) {
		*bytes = count ? spans[0].at : NULL;
		*n = count ? spans[0].bytes : 0;
		return STATUS_OK;
	}
	for (size_t i = 0; i < count; i++)
		total += spans[i].bytes;
	all = rpc_take(&w->c, total);
	if (!all)
		return rpc_too_big(&w->c);
	*bytes = all;
	*n = total;
	for (size_t i = 0; i < count; i++) {
		memcpy(all, spans[i].at, spans[i].bytes);
		all += spans[i].bytes;
	}
	return STATUS_OK;
}

enum status rpc_step_unpack(struct wire_call *w)
{
	const uint8_t *bytes;
	size_t n;
	enum status s = gather(w, &bytes, &n);

	if (s == STATUS_OK)
		s = rpc_call_unpack(&w->c, bytes, n, &w->request);
	return s;
}

void rpc_step_put_aside(struct wire_call *w, enum call_state state)
{
	grpc_call *call = w->call;

	call_step_end(&w->c.times);
	if (state_put_aside(w, state))
		start(call, NULL, 0, w, OP_WAKE);
}

/* Runs a step on the rpc thread. If it puts the call aside, asks to be told when the client is gone. */
static void step_here(struct wire_call *w)
{
	ProtobufCMessage *reply = NULL;
	enum status s = w->c.method->unary(&w->c, w->request, &reply);

	if (s != STATUS_BUSY) {
		rpc_step_finish(w, s, reply);
		return;
	}
	if (!w->close_begun)
		rpc_step_watch_close(w);
	if (w->c.resume_us)
		rpc_step_put_aside(w, CALL_SLEEPING);
	else
		rpc_step_hand_over(w, false);
}

void rpc_step_inline(struct wire_call *w)
{
	enum status s = rpc_step_unpack(w);

	if (s == STATUS_OK)
		step_here(w);
	else
		rpc_step_finish(w, s, NULL);
}

void rpc_step_again(struct wire_call *w)
{
	w->c.now_us = daemon_now_us();
	w->c.resume_us = 0;
	w->c.worker = false; /* its last step may have been one's */
	call_step_begin(&w->c.times, w->c.now_us);
	step_here(w);
}

void rpc_step_wake(struct rpc_call *c)
{
	struct wire_call *w = (struct wire_call *)c;

	atomic_store_explicit(&w->woken, true, memory_order_release);
	if (state_wake(w))
		start(w->call, NULL, 0, w, OP_WAKE);
}

/* gRPC names a connection that it was handed by its descriptor. */
int rpc_step_connection(struct wire_call *w)
{
	char *name = grpc_call_get_peer(w->call), *end = name;
	long fd = -1;

	if (name && !strncmp(name, "fd:", 3))
		fd = strtol(name + 3, &end, 10);
	if (fd < 0 || fd > INT_MAX || end == name + 3)
		fd = -1;
	gpr_free(name);
	return (int)fd;
}

/* The peer of the call's connection. After the client has ended, the number may belong to another connection. Then what
 * the call opens for it is ended, as no client learns of it. */
void rpc_step_peer(struct rpc_call *c, struct cache_peer *out)
{
	struct wire_call *w = (struct wire_call *)c;

	if (w->connection >= 0)
		rpc_peers_peer(w->server->peers, w->connection, out);
}

/* The client of the call. The role belongs to the connection's number for ever. The other fields are only for messages
 * to people; they are asked of the client that has the number now. */
void rpc_step_who(struct rpc_call *c, struct who *out)
{
	struct wire_call *w = (struct wire_call *)c;
	const struct rpc_roles *roles = &w->server->roles;
	const int fd = w->connection;

	*out = (struct who){ .certified = rpc_roles_certified(roles, fd), .tenant = w->c.tenant };
	if (!out->certified)
		rights_identify(roles->config, fd, out);
	out->tenant = w->c.tenant;
	out->role = fd < 0 ? ROLE_ENGINE : rpc_roles_role(roles, fd);
	rpc_roles_peer_of(roles, fd, out->peer_of);
}

bool rpc_step_unnamed(struct rpc_call *c)
{
	static const char core[] = "grpc-c/"; /* what the core adds behind a name, if there is one */
	const grpc_metadata_array *m = &((const struct wire_call *)c)->metadata;

	for (size_t i = 0; i < m->count; i++)
		if (!grpc_slice_str_cmp(m->metadata[i].key, "user-agent"))
			return GRPC_SLICE_LENGTH(m->metadata[i].value) >= sizeof core - 1 &&
			       !memcmp(GRPC_SLICE_START_PTR(m->metadata[i].value), core, sizeof core - 1);
	return false;
}

bool rpc_step_allowed(struct wire_call *w)
{
	struct rpc_server *s = w->server;
	uint64_t held;

	if (right_includes(rpc_roles_role(&s->roles, w->connection), s->needed[w->method]))
		return true;
	rpc_denied(&w->c, w->c.method->name);
	if (log_again(&s->denied, w->c.now_us, &held))
		log_warn("rpc_denied", LOG_TEXT("reason", w->c.why), LOG_NUM("held_back", held));
	return false;
}

static void work_unary(struct wire_call *w)
{
	ProtobufCMessage *reply = NULL;
	enum status s = w->request ? STATUS_OK : rpc_step_unpack(w);

	w->c.resume_us = 0;
	if (s == STATUS_OK)
		s = w->c.method->unary(&w->c, w->request, &reply);
	if (s == STATUS_BUSY && w->c.resume_us)
		rpc_step_put_aside(w, CALL_SLEEPING);
	else
		rpc_step_finish(w, s, reply);
}

/* ---- streams ---- */

static void send_message(struct wire_call *w, const struct rpc_out *out)
{
	grpc_op ops[2] = { 0 };
	grpc_slice slices[2];
	size_t n = 0, parts = 0;

	drop_buffer(&w->sent);
	slices[parts++] = grpc_slice_from_copied_buffer((const char *)out->head, out->head_bytes);
	if (out->body_bytes)
		slices[parts++] = grpc_slice_new_with_user_data((void *)out->body, out->body_bytes, out->release, out->arg);
	w->sent = grpc_raw_byte_buffer_create(slices, parts);
	for (size_t i = 0; i < parts; i++)
		grpc_slice_unref(slices[i]);
	if (!w->metadata_sent)
		ops[n++].op = GRPC_OP_SEND_INITIAL_METADATA;
	w->metadata_sent = true;
	ops[n].op = GRPC_OP_SEND_MESSAGE;
	ops[n++].data.send_message.send_message = w->sent;
	rpc_step_start(w, CALL_SENDING, ops, n, OP_SEND);
}

/* Gets and sends the next message of a server stream. */
void rpc_step_pump(struct wire_call *w, bool worker)
{
	struct rpc_out out = { 0 };
	enum status failure = STATUS_INTERNAL;

	if (is_cancelled(w)) {
		rpc_step_finish(w, STATUS_CANCELLED, NULL);
		return;
	}
	atomic_store_explicit(&w->woken, false, memory_order_relaxed); /* what it was woken for is seen now */
	if (!worker)
		call_step_begin(&w->c.times, w->c.now_us);
	switch (w->c.method->out->next(&w->c, worker, &out, &failure)) {
	case RPC_NEXT_MESSAGE:
		send_message(w, &out);
		return;
	case RPC_NEXT_WAIT:
		rpc_step_put_aside(w, CALL_WAITING);
		return;
	case RPC_NEXT_WORKER:
		rpc_step_hand_over(w, true);
		return;
	case RPC_NEXT_END:
		rpc_step_finish(w, STATUS_OK, NULL);
		return;
	case RPC_NEXT_FAIL:
		rpc_step_finish(w, failure, NULL);
	}
}

void rpc_step_receive(struct wire_call *w)
{
	grpc_op op = { .op = GRPC_OP_RECV_MESSAGE };

	op.data.recv_message.recv_message = &w->received;
	rpc_step_start(w, CALL_RECEIVING, &op, 1, OP_RECV);
}

static void work_message(struct wire_call *w)
{
	struct rpc_span spans[SPANS_MAX];
	ProtobufCMessage *reply = NULL;
	enum status s;
	size_t n;

	if (!w->received) {
		s = w->c.method->in->end(&w->c, &reply);
		rpc_step_finish(w, s, reply);
		return;
	}
	if (spans_of(w->received, spans, &n))
		s = w->c.method->in->message(&w->c, spans, n);
	else
		s = rpc_fail(&w->c, STATUS_INVALID, "the message came in too many pieces, or compressed");
	drop_buffer(&w->received);
	if (s == STATUS_OK)
		rpc_step_receive(w);
	else
		rpc_step_finish(w, s, NULL);
}

/* ---- workers ---- */

void rpc_step_work(struct work *work)
{
	struct wire_call *w = (struct wire_call *)((char *)work - offsetof(struct wire_call, work));

	w->c.now_us = daemon_now_us();
	w->c.worker = true;
	call_step_begin(&w->c.times, w->c.now_us);
	if (is_cancelled(w))
		rpc_step_finish(w, STATUS_CANCELLED, NULL);
	else if (w->c.method->out)
		rpc_step_pump(w, true);
	else if (w->c.method->in)
		work_message(w);
	else
		work_unary(w);
}

/* A call that has begun waits for room in the queue; a new one is refused. By the rpc thread, which owns
 * the call until then. */
void rpc_step_hand_over(struct wire_call *w, bool may_wait)
{
	const char *why = "";

	call_step_queued(&w->c.times);
	set_state(w, CALL_WORKING);
	enum status s = quota_submit(w->server->daemon->workers, &w->work, w->holder, &why);

	if (s == STATUS_OK)
		return;
	if (may_wait && s == STATUS_EXHAUSTED) {
		w->c.resume_us = daemon_now_us() + TICK_BUSY_US;
		rpc_step_put_aside(w, CALL_SLEEPING);
		return;
	}
	rpc_fail(&w->c, s, "%s", why);
	rpc_step_finish(w, s, NULL);
}

/* ---- what methods ask for (rpc/server.h) ---- */

void rpc_server_wake(struct rpc_call *c)
{
	rpc_step_wake(c);
}

void rpc_server_defer(struct rpc_server *s, struct rpc_deferred *item)
{
	if (!s) {
		item->run(item);
		return;
	}
	item->next = atomic_load_explicit(&s->deferred, memory_order_relaxed);
	while (!atomic_compare_exchange_weak_explicit(&s->deferred, &item->next, item, memory_order_release,
						      memory_order_relaxed))
		;
}
