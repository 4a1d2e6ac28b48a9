/* Leases, synchronous and asynchronous, and their one-way end. */
#include "client/call/lease.h"

#include "client/session/connect.h"
#include "client/driver/gpu.h"
#include "client/gpu/progress.h"
#include "client/memory/attachment.h"
#include "client/session/session.h"
#include "client/value/clock.h"
#include "client/value/keys.h"
#include "client/value/layout.h"
#include "client/call/op.h"
#include "client/call/unanswered.h"
#include "client/value/status.h"
#include "client/transport/decode.h"
#include "kernels/format.h"

#include <stdlib.h>

enum { RETURN_TIMEOUT_US = 2000000 };

/* ---- giving back
 * -------------------------------------------------------------------------------------------------- */

static void return_done(void *arg, enum terrace_status status)
{
	(void)status; /* the daemon is gone, or has forgotten the session: so is the lease */
	client_view_drop(arg);
}

void client_lease_return(struct client_view *view, uint64_t id)
{
	Terrace__V1__ReleaseRequest request = TERRACE__V1__RELEASE_REQUEST__INIT;
	struct client_rpc_call *call;
	struct client_words words;

	if (view->attachment && client_fds_release(view->attachment, id))
		return;
	client_words_keep(&words);
	request.session = view->id;
	request.leases = &id;
	request.n_leases = 1;
	client_view_hold(view);
	if (!client_rpc_start(view->client->rpc,
			      &(struct client_job){
				      .method = CLIENT_RELEASE,
				      .deadline_us = client_deadline_us(RETURN_TIMEOUT_US),
				      .first = {.message = &request.base, .last = true},
				      .arg = view,
			      },
			      return_done, &call))
		return;
	client_view_drop(view);
	client_words_back(&words);
}

void terrace_release(struct terrace_lease *lease)
{
	if (!lease || client_forked(lease->generation))
		return;
	client_progress_page_forget(&lease->view->attachment->progress_page, &lease->promise);
	client_lease_return(lease->view, lease->id);
	client_fds_listen(lease->view->attachment);
	client_places_fini(&lease->places);
	client_view_drop(lease->view);
	free(lease);
}

/* ---- the reply
 * ---------------------------------------------------------------------------------------------------- */

enum terrace_status client_lease_create(struct client_view *view, uint64_t id, const struct client_placing *placing,
					struct terrace_lease **out)
{
	struct terrace_lease *lease = calloc(1, sizeof(*lease));
	enum terrace_status status;

	if (lease)
		status = client_places_init(&lease->places, placing);
	else
		status = client_fail(TERRACE_EXHAUSTED, "no memory for a lease");
	if (status) {
		client_lease_return(view, id);
		free(lease);
		return status;
	}
	lease->view = view;
	client_view_hold(view);
	lease->generation = view->client->generation;
	lease->id = id;
	*out = lease;
	return TERRACE_OK;
}

/* Reads which copies are still to come, if the reply says that some are. */
static enum terrace_status promise_read(const struct client_leasing *g, const Terrace__V1__LeaseReply *reply)
{
	struct client_promise *p = &g->lease->promise;

	if (!reply->progress_page_layers)
		return TERRACE_OK;
	if (g->gpu < 0 || reply->progress_page_layers > KV_LAYERS_MAX)
		return client_fail(TERRACE_INTERNAL, "the daemon promises %u layers on a GPU",
		    reply->progress_page_layers);
	p->word = reply->progress_page_word;
	p->base = reply->progress_page_base;
	p->layers = reply->progress_page_layers;
	p->summed = reply->progress_page_summed;
	return client_progress_page_promise(g->view->attachment, (uint32_t)g->gpu, p);
}

static enum terrace_status reply_read(struct client_leasing *g, const Terrace__V1__LeaseReply *reply)
{
	enum terrace_status status = client_epoch_check(g->view, reply->epoch);

	if (status)
		return status;
	status = client_status_of_wire((int)reply->status);
	if (status == TERRACE_MISS)
		return client_fail(status, "lease: not in the cache");
	if (status)
		return client_fail(status, "lease: %s", *reply->why ? reply->why : terrace_status_text(status));
	if (!reply->lease)
		return client_fail(TERRACE_INTERNAL, "the daemon gave a lease without a number");
	if (reply->blocks < 1 || reply->blocks > g->count ||
	    (g->mode == TERRACE_LEASE_ALL && reply->blocks != g->count)) {
		client_lease_return(g->view, reply->lease);
		return client_fail(TERRACE_INTERNAL, "the daemon leased %u of %u keys", reply->blocks, g->count);
	}
	status = client_lease_create(g->view, reply->lease,
				     &(struct client_placing){.view = g->view,
							      .reply = reply->places,
							      .keys = reply->blocks,
							      .first = g->first,
							      .gpu = g->gpu,
							      .host_too = g->gpu_or_host,
							      .deadline_us = g->deadline_us},
				     &g->lease);
	if (!status)
		status = promise_read(g, reply);
	if (status && g->lease) {
		terrace_release(g->lease);
		g->lease = NULL;
	}
	return status;
}

enum terrace_status client_lease_read(struct client_leasing *leasing, const struct client_message *message)
{
	Terrace__V1__LeaseReply *reply;
	struct client_arena arena;
	enum terrace_status status;

	leasing->call = 0;
	client_arena_init(&arena);
	reply = client_wire_unpack(&arena, &terrace__v1__lease_reply__descriptor, message);
	status = reply ? reply_read(leasing, reply) : TERRACE_INTERNAL;
	client_arena_fini(&arena);
	return status;
}

/* ---- the calls
 * ---------------------------------------------------------------------------------------------------- */

struct lease_op {
	struct terrace_op op;
	struct client_leasing leasing;
};

static enum terrace_status sync_take(void *arg, const struct client_message *message)
{
	return client_lease_read(arg, message);
}

/* Asks the driver whether the GPU is lost, which takes as long as the call is on its way. */
static void gpu_ask(void *arg)
{
	const struct client_leasing *g = arg;

	if (g->device)
		client_gpu_lost_at_once(g->device);
}

static enum terrace_status async_take(void *arg, const struct client_message *message)
{
	return client_lease_read(&((struct lease_op *)arg)->leasing, message);
}

/* Checks a lease's arguments, and takes the options over. options NULL: the defaults. */
static enum terrace_status lease_check(struct terrace_session *session, const struct terrace_keys *keys,
				       const struct terrace_lease_options *options, const void *place,
				       struct terrace_lease_options *o)
{
	enum terrace_status status = client_session_check(session);

	*o = (struct terrace_lease_options)TERRACE_LEASE_OPTIONS_INIT;
	if (!status)
		status = client_keys_check(keys);
	if (!status && options && !client_options_copy(o, sizeof(*o), options, sizeof(*o)))
		status = client_fail(TERRACE_INVALID, "the options' size is not set: begin them with TERRACE_LEASE_OPTIONS_INIT");
	if (!status && !place)
		status = client_fail(TERRACE_INVALID, "the pointer for the result is NULL");
	if (!status && o->mode != TERRACE_LEASE_PREFIX && o->mode != TERRACE_LEASE_ALL)
		status = client_fail(TERRACE_INVALID, "mode %d is not one of enum terrace_lease_mode", (int)o->mode);
	if (!status && o->gpu < -1)
		status = client_fail(TERRACE_INVALID, "gpu %d: none has that number: "
				     "give one of terrace_session_gpu_of, or -1 for host memory", o->gpu);
	if (!status)
		status = client_borrow_check(session->view);
	return status;
}

struct lease_request {
	Terrace__V1__LeaseRequest request;
	Terrace__V1__Keys names;
};

static const ProtobufCMessage *request_fill(struct lease_request *r, const struct client_leasing *g,
					    const struct terrace_keys *keys)
{
	client_keys_message_from(keys, g->first, &r->names);
	terrace__v1__lease_request__init(&r->request);
	r->request.session = g->view->id;
	r->request.keys = &r->names;
	r->request.mode = (Terrace__V1__LeaseMode)g->mode;
	r->request.attachment = g->view->attachment->id;
	r->request.gpu = (uint32_t)(g->gpu + 1);
	r->request.gpu_or_host = g->gpu_or_host;
	r->request.call = g->call;
	return &r->request.base;
}

/* Fills *g from checked arguments, and makes the GPU ready if the lease is on one. asked: asks now whether the GPU is
 * lost. */
static enum terrace_status leasing_begin(struct client_leasing *g, struct client_view *view,
					 const struct terrace_keys *keys, const struct terrace_lease_options *o,
					 uint64_t timeout_us, bool asked)
{
	enum terrace_status status;

	*g = (struct client_leasing){
		.view = view,
		.count = keys->count,
		.mode = o->mode,
		.first = o->first_position,
		.gpu = o->gpu,
		.gpu_or_host = o->gpu >= 0 && o->gpu_or_host,
		.deadline_us = client_call_deadline(view->client, timeout_us),
		.call = client_recall_number(view),
	};
	if (o->gpu < 0)
		return TERRACE_OK;
	status = asked ? client_view_use_gpu(g->view, (uint32_t)o->gpu, g->deadline_us)
		       : client_view_use_gpu_unasked(g->view, (uint32_t)o->gpu, g->deadline_us, &g->device);
	if (!status) {
		client_fds_use(g->view->attachment, CLIENT_USE_LEASE, (uint32_t)o->gpu);
		if (g->gpu_or_host)
			client_fds_use(g->view->attachment, CLIENT_USE_HOST, (uint32_t)o->gpu);
	}
	return status;
}

/* Refuses a lease that was granted on a GPU which this process has seen lost, and the daemon has not. */
static enum terrace_status lost_refuse(struct client_leasing *g, enum terrace_status status)
{
	if (status || !g->device || !client_gpu_was_lost(g->device))
		return status;
	terrace_release(g->lease);
	return client_fail(TERRACE_UNAVAILABLE, "lease: the GPU is lost: lease in host memory; a restart of the daemon takes the GPU back");
}

static enum terrace_status lease_run(struct client_view *view, const struct terrace_keys *keys, const struct terrace_lease_options *o,
				     uint64_t timeout_us, struct terrace_lease **out)
{
	struct client_leasing leasing;
	struct lease_request request;
	enum terrace_status status = leasing_begin(&leasing, view, keys, o, timeout_us, false);

	if (status)
		return client_fail_in(status, "lease");
	client_fds_listen(view->attachment);
	status = client_view_call(view, &(struct client_job){
						.method = CLIENT_LEASE,
						.deadline_us = leasing.deadline_us,
						.first = {.message = request_fill(&request, &leasing, keys), .last = true},
						.take = sync_take,
						.meanwhile = gpu_ask,
						.arg = &leasing,
					});
	client_recall(view, leasing.call, status);
	status = lost_refuse(&leasing, status);
	if (!status)
		*out = leasing.lease;
	return status;
}

enum terrace_status terrace_lease_with(struct terrace_session *session, const struct terrace_keys *keys,
				       const struct terrace_lease_options *options, uint64_t timeout_us,
				       struct terrace_lease **out)
{
	struct terrace_lease_options o;
	enum terrace_status status = lease_check(session, keys, options, out, &o);
	struct client_view *view;

	if (status)
		return client_fail_in(status, "lease");
	view = session->view;
	client_view_hold(view); /* a close of the session ends a wait for a mapping, and does not wait for what follows */
	status = lease_run(view, keys, &o, timeout_us, out);
	client_view_drop(view);
	return status;
}

enum terrace_status terrace_lease(struct terrace_session *session, const struct terrace_keys *keys,
				  enum terrace_lease_mode mode, uint64_t timeout_us, struct terrace_lease **out)
{
	struct terrace_lease_options o = TERRACE_LEASE_OPTIONS_INIT;

	o.mode = mode;
	return terrace_lease_with(session, keys, &o, timeout_us, out);
}

static void lease_dispose(struct terrace_op *op)
{
	struct lease_op *o = (struct lease_op *)op;

	client_recall(o->leasing.view, o->leasing.call, op->status);
	terrace_release(o->leasing.lease);
	free(o);
}

static enum terrace_status lease_start(struct client_view *view, const struct terrace_keys *keys, const struct terrace_lease_options *o,
				       uint64_t timeout_us, const struct terrace_completion *completion, struct terrace_op **op)
{
	struct lease_op *l = calloc(1, sizeof(*l));
	enum terrace_status status = l ? leasing_begin(&l->leasing, view, keys, o, timeout_us, true)
				       : client_fail(TERRACE_EXHAUSTED, "no memory");
	struct lease_request request;

	if (status) {
		free(l);
		return client_fail_in(status, "lease");
	}
	client_op_init(&l->op, CLIENT_OP_LEASE, view, completion, lease_dispose);
	return client_op_start(&l->op,
			       &(struct client_job){
				       .method = CLIENT_LEASE,
				       .deadline_us = l->leasing.deadline_us,
				       .first = {.message = request_fill(&request, &l->leasing, keys), .last = true},
				       .take = async_take,
				       .arg = l,
			       },
			       op);
}

enum terrace_status terrace_lease_with_async(struct terrace_session *session, const struct terrace_keys *keys,
					     const struct terrace_lease_options *options, uint64_t timeout_us,
					     const struct terrace_completion *completion, struct terrace_op **op)
{
	struct terrace_lease_options o;
	enum terrace_status status = lease_check(session, keys, options, op, &o);
	struct client_view *view;

	if (status)
		return client_fail_in(status, "lease");
	view = session->view;
	client_view_hold(view);
	status = lease_start(view, keys, &o, timeout_us, completion, op);
	client_view_drop(view);
	return status;
}

enum terrace_status terrace_lease_async(struct terrace_session *session, const struct terrace_keys *keys,
					enum terrace_lease_mode mode, uint64_t timeout_us,
					const struct terrace_completion *completion, struct terrace_op **op)
{
	struct terrace_lease_options o = TERRACE_LEASE_OPTIONS_INIT;

	o.mode = mode;
	return terrace_lease_with_async(session, keys, &o, timeout_us, completion, op);
}

enum terrace_status terrace_lease_finish(struct terrace_op *op, struct terrace_lease **lease)
{
	struct lease_op *o = (struct lease_op *)op;
	bool ended;
	enum terrace_status status = client_op_await(op, CLIENT_OP_LEASE, &ended);

	if (!ended)
		return status;
	if (!status && lease) {
		*lease = o->leasing.lease;
		o->leasing.lease = NULL;
	}
	client_op_end(op);
	return status;
}

uint32_t terrace_lease_count(const struct terrace_lease *lease)
{
	return lease->places.keys;
}

const void *terrace_lease_block(const struct terrace_lease *lease, uint32_t i, uint32_t l)
{
	return client_forked(lease->generation) ? NULL : client_places_block(&lease->places, i, l);
}

uint32_t terrace_lease_block_tokens(const struct terrace_lease *lease, uint32_t i, uint32_t l)
{
	return client_places_tokens(&lease->places, lease->view, i, l);
}

uint32_t terrace_lease_tokens(const struct terrace_lease *lease, uint32_t i)
{
	return i < lease->places.keys ? lease->places.tokens[i] : 0;
}
