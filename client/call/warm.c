/* Warm, synchronous and asynchronous. */
#include "client/call/warm.h"

#include "client/session/connect.h"
#include "client/memory/lent.h"
#include "client/session/session.h"
#include "client/value/keys.h"
#include "client/value/layout.h"
#include "client/call/op.h"
#include "client/value/status.h"
#include "client/transport/decode.h"
#include "terrace.pb-c.h"

#include <stdlib.h>

static enum terrace_status reply_read(struct client_warming *g, const Terrace__V1__WarmReply *reply)
{
	enum terrace_status status = client_epoch_check(g->view, reply->epoch);

	if (status)
		return status;
	if (reply->blocks > g->count)
		return client_fail(TERRACE_INTERNAL, "the daemon warmed %u of %u keys", reply->blocks, g->count);
	g->blocks = reply->blocks;
	return TERRACE_OK;
}

enum terrace_status client_warm_read(struct client_warming *warming, const struct client_message *message)
{
	Terrace__V1__WarmReply *reply;
	struct client_arena arena;
	enum terrace_status status;

	client_arena_init(&arena);
	reply = client_wire_unpack(&arena, &terrace__v1__warm_reply__descriptor, message);
	status = reply ? reply_read(warming, reply) : TERRACE_INTERNAL;
	client_arena_fini(&arena);
	return status;
}

struct warm_op {
	struct terrace_op op;
	struct client_warming warming;
};

static enum terrace_status sync_take(void *arg, const struct client_message *message)
{
	return client_warm_read(arg, message);
}

static enum terrace_status async_take(void *arg, const struct client_message *message)
{
	return client_warm_read(&((struct warm_op *)arg)->warming, message);
}

/* Checks what a warm is asked with, and takes the options over. NULL: the defaults. */
static enum terrace_status warm_check(struct terrace_session *session, const struct terrace_keys *keys,
				      const struct terrace_warm_options *options, struct terrace_warm_options *o)
{
	enum terrace_status status = client_session_check(session);

	*o = (struct terrace_warm_options)TERRACE_WARM_OPTIONS_INIT;
	if (!status)
		status = client_keys_check(keys);
	if (!status && options && !client_options_copy(o, sizeof(*o), options, sizeof(*o)))
		status = client_fail(TERRACE_INVALID, "the options' size is not set: begin them with TERRACE_WARM_OPTIONS_INIT");
	if (!status && o->gpu >= 0 && !session->view->lent->gpu_count)
		status = client_fail(TERRACE_UNSUPPORTED, "the daemon lends no GPU's memory: "
				     "it was started without --gpus, or has lost them (terracectl status)");
	if (!status && (o->gpu < -1 || o->gpu >= (int32_t)session->view->lent->gpu_count))
		status = client_fail(TERRACE_INVALID, "the daemon lends %u GPUs, and none of number %d: "
				     "terrace_session_gpu_of tells them", session->view->lent->gpu_count,
				     o->gpu);
	return status;
}

struct warm_request {
	Terrace__V1__WarmRequest request;
	Terrace__V1__Keys names;
};

static const ProtobufCMessage *request_fill(struct warm_request *r, const struct client_view *view,
					    const struct terrace_keys *keys, const struct terrace_warm_options *o)
{
	client_keys_message_from(keys, o->first_position, &r->names);
	terrace__v1__warm_request__init(&r->request);
	r->request.session = view->id;
	r->request.keys = &r->names;
	r->request.wait = o->wait;
	r->request.gpu = (uint32_t)(o->gpu + 1);
	return &r->request.base;
}

enum terrace_status terrace_warm_with(struct terrace_session *session, const struct terrace_keys *keys,
				      const struct terrace_warm_options *options, uint64_t timeout_us, uint32_t *blocks)
{
	struct terrace_warm_options o;
	enum terrace_status status = warm_check(session, keys, options, &o);
	struct client_warming warming;
	struct warm_request request;

	if (status)
		return client_fail_in(status, "warm");
	warming = (struct client_warming){.view = session->view, .count = keys->count};
	status = client_view_call(session->view, &(struct client_job){
							 .method = CLIENT_WARM,
							 .deadline_us = client_call_deadline(session->view->client, timeout_us),
							 .first = {.message = request_fill(&request, session->view, keys, &o),
								   .last = true},
							 .take = sync_take,
							 .arg = &warming,
						 });
	if (!status && blocks)
		*blocks = warming.blocks;
	return status;
}

enum terrace_status terrace_warm(struct terrace_session *session, const struct terrace_keys *keys, bool wait,
				 uint64_t timeout_us, uint32_t *blocks)
{
	struct terrace_warm_options o = TERRACE_WARM_OPTIONS_INIT;

	o.wait = wait;
	return terrace_warm_with(session, keys, &o, timeout_us, blocks);
}

static void warm_dispose(struct terrace_op *op)
{
	free(op);
}

enum terrace_status terrace_warm_with_async(struct terrace_session *session, const struct terrace_keys *keys,
					    const struct terrace_warm_options *options, uint64_t timeout_us,
					    const struct terrace_completion *completion, struct terrace_op **op)
{
	struct terrace_warm_options options_taken;
	enum terrace_status status = warm_check(session, keys, options, &options_taken);
	struct warm_request request;
	struct warm_op *o;

	if (!status && !op)
		status = client_fail(TERRACE_INVALID, "the pointer for the operation is NULL");
	if (status)
		return client_fail_in(status, "warm");
	o = calloc(1, sizeof(*o));
	if (!o)
		return client_fail(TERRACE_EXHAUSTED, "warm: no memory");
	client_op_init(&o->op, CLIENT_OP_WARM, session->view, completion, warm_dispose);
	o->warming = (struct client_warming){.view = session->view, .count = keys->count};
	return client_op_start(&o->op, &(struct client_job){
					       .method = CLIENT_WARM,
					       .deadline_us = client_call_deadline(session->view->client, timeout_us),
					       .first = {.message = request_fill(&request, session->view, keys, &options_taken),
							 .last = true},
					       .take = async_take,
					       .arg = o,
				       }, op);
}

enum terrace_status terrace_warm_async(struct terrace_session *session, const struct terrace_keys *keys, bool wait,
				       uint64_t timeout_us, const struct terrace_completion *completion,
				       struct terrace_op **op)
{
	struct terrace_warm_options o = TERRACE_WARM_OPTIONS_INIT;

	o.wait = wait;
	return terrace_warm_with_async(session, keys, &o, timeout_us, completion, op);
}

enum terrace_status terrace_warm_finish(struct terrace_op *op, uint32_t *blocks)
{
	struct warm_op *o = (struct warm_op *)op;
	bool ended;
	enum terrace_status status = client_op_await(op, CLIENT_OP_WARM, &ended);

	if (!ended)
		return status;
	if (!status && blocks)
		*blocks = o->warming.blocks;
	client_op_end(op);
	return status;
}
