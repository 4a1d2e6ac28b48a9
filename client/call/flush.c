/* Flush, synchronous and asynchronous. */
#include "client/call/flush.h"

#include "client/call/op.h"
#include "client/session/connect.h"
#include "client/session/session.h"
#include "client/value/keys.h"
#include "client/value/status.h"
#include "client/transport/decode.h"
#include "terrace.pb-c.h"

#include <stdlib.h>
#include <string.h>

static const char *words(enum terrace_status status, const char *reason)
{
	return reason[0]		       ? reason :
	       status == TERRACE_UNAVAILABLE ? "the daemon has no disks, or no sound one" :
	       status == TERRACE_EXHAUSTED   ? "the disks have no place" :
					       terrace_status_text(status);
}

static enum terrace_status reply_read(struct client_flushing *g, const Terrace__V1__FlushReply *reply)
{
	enum terrace_status status = client_epoch_check(g->view, reply->epoch), failed = TERRACE_OK;

	if (status)
		return status;
	if (reply->n_status != g->count)
		return client_fail(TERRACE_INTERNAL, "the daemon answers %u keys with %zu statuses", g->count, reply->n_status);
	for (uint32_t i = 0; i < g->count; i++) {
		status = client_status_of_wire((int)reply->status[i]);
		if (g->statuses)
			g->statuses[i] = status;
		if (!failed && status != TERRACE_MISS)
			failed = status;
	}
	g->answered = true;
	return failed ? client_fail(failed, "flush: not every block is durable: %s", words(failed, reply->reason)) : TERRACE_OK;
}

enum terrace_status client_flush_read(struct client_flushing *flushing, const struct client_message *message)
{
	Terrace__V1__FlushReply *reply;
	struct client_arena arena;
	enum terrace_status status;

	client_arena_init(&arena);
	reply = client_wire_unpack(&arena, &terrace__v1__flush_reply__descriptor, message);
	status = reply ? reply_read(flushing, reply) : TERRACE_INTERNAL;
	client_arena_fini(&arena);
	return status;
}

struct flush_op {
	struct terrace_op op;
	struct client_flushing flushing;
	enum terrace_status statuses[];
};

static enum terrace_status sync_take(void *arg, const struct client_message *message)
{
	return client_flush_read(arg, message);
}

static enum terrace_status async_take(void *arg, const struct client_message *message)
{
	return client_flush_read(&((struct flush_op *)arg)->flushing, message);
}

/* Fills in a flush's request. keys NULL: it is to flush everything. */
static void request_fill(Terrace__V1__FlushRequest *request, Terrace__V1__Keys *names, const struct client_view *view,
			 const struct terrace_keys *keys)
{
	terrace__v1__flush_request__init(request);
	request->session = view->id;
	if (!keys)
		return;
	client_keys_message(keys, names);
	request->keys = names;
}

static uint32_t count_of(const struct terrace_keys *keys)
{
	return keys ? keys->count : 1;
}

enum terrace_status terrace_flush(struct terrace_session *session, const struct terrace_keys *keys, uint64_t timeout_us,
				  enum terrace_status *statuses)
{
	Terrace__V1__FlushRequest request;
	Terrace__V1__Keys names;
	struct client_flushing flushing;
	enum terrace_status status = client_session_check(session);

	if (!status && keys)
		status = client_keys_check(keys);
	if (status)
		return client_fail_in(status, "flush");
	flushing = (struct client_flushing){.view = session->view, .count = count_of(keys), .statuses = statuses};
	request_fill(&request, &names, session->view, keys);
	status = client_view_call(session->view, &(struct client_job){
							 .method = CLIENT_FLUSH,
							 .deadline_us = client_call_deadline(session->view->client, timeout_us),
							 .first = {.message = &request.base, .last = true},
							 .take = sync_take,
							 .arg = &flushing,
						 });
	if (status == TERRACE_DEADLINE && !flushing.answered)
		client_statuses_late(statuses, flushing.count);
	return status;
}

static void flush_dispose(struct terrace_op *op)
{
	free(op);
}

enum terrace_status terrace_flush_async(struct terrace_session *session, const struct terrace_keys *keys,
					uint64_t timeout_us, const struct terrace_completion *completion,
					struct terrace_op **op)
{
	Terrace__V1__FlushRequest request;
	Terrace__V1__Keys names;
	struct flush_op *o;
	enum terrace_status status = client_session_check(session);

	if (!status && keys)
		status = client_keys_check(keys);
	if (!status && !op)
		status = client_fail(TERRACE_INVALID, "the pointer for the operation is NULL");
	if (status)
		return client_fail_in(status, "flush");
	o = calloc(1, sizeof(*o) + count_of(keys) * sizeof(o->statuses[0]));
	if (!o)
		return client_fail(TERRACE_EXHAUSTED, "flush: no memory");
	client_op_init(&o->op, CLIENT_OP_FLUSH, session->view, completion, flush_dispose);
	o->flushing = (struct client_flushing){.view = session->view, .count = count_of(keys), .statuses = o->statuses};
	request_fill(&request, &names, session->view, keys);
	return client_op_start(&o->op, &(struct client_job){
					       .method = CLIENT_FLUSH,
					       .deadline_us = client_call_deadline(session->view->client, timeout_us),
					       .first = {.message = &request.base, .last = true},
					       .take = async_take,
					       .arg = o,
				       }, op);
}

enum terrace_status terrace_flush_finish(struct terrace_op *op, enum terrace_status *statuses)
{
	struct flush_op *o = (struct flush_op *)op;
	bool ended;
	enum terrace_status status = client_op_await(op, CLIENT_OP_FLUSH, &ended);

	if (!ended)
		return status;
	if (o->flushing.answered && statuses)
		memcpy(statuses, o->statuses, o->flushing.count * sizeof(*statuses));
	else if (status == TERRACE_DEADLINE)
		client_statuses_late(statuses, o->flushing.count);
	client_op_end(op);
	return status;
}
