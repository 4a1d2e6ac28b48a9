/* Lookup, synchronous and asynchronous. */
#include "client/call/lookup.h"

#include "client/call/op.h"
#include "client/session/connect.h"
#include "client/session/session.h"
#include "client/value/keys.h"
#include "client/value/status.h"
#include "client/transport/decode.h"
#include "terrace.pb-c.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static enum terrace_status reply_read(struct client_lookup *lookup, const Terrace__V1__LookupReply *reply)
{
	size_t states = (size_t)lookup->count * lookup->view->layout_count;
	enum terrace_status status = client_epoch_check(lookup->view, reply->epoch);

	if (status)
		return status;
	if (reply->prefix > lookup->count)
		return client_fail(TERRACE_INTERNAL, "the daemon found %u of %u keys", reply->prefix, lookup->count);
	if (lookup->states && reply->states.len != states)
		return client_fail(TERRACE_INTERNAL, "the daemon gave %zu states, not %zu", reply->states.len, states);
	lookup->prefix = reply->prefix;
	atomic_store_explicit(&lookup->view->load_bytes_s, reply->load_bytes_s, memory_order_relaxed);
	if (lookup->states)
		memcpy(lookup->states, reply->states.data, states);
	return TERRACE_OK;
}

enum terrace_status client_lookup_read(struct client_lookup *lookup, const struct client_message *message)
{
	Terrace__V1__LookupReply *reply;
	struct client_arena arena;
	enum terrace_status status;

	client_arena_init(&arena);
	reply = client_wire_unpack(&arena, &terrace__v1__lookup_reply__descriptor, message);
	status = reply ? reply_read(lookup, reply) : TERRACE_INTERNAL;
	client_arena_fini(&arena);
	return status;
}

struct lookup_op {
	struct terrace_op op;
	struct client_lookup lookup;
};

static enum terrace_status sync_take(void *arg, const struct client_message *message)
{
	return client_lookup_read(arg, message);
}

static enum terrace_status async_take(void *arg, const struct client_message *message)
{
	return client_lookup_read(&((struct lookup_op *)arg)->lookup, message);
}

static void request_fill(Terrace__V1__LookupRequest *request, Terrace__V1__Keys *names, const struct client_view *view,
			 const struct terrace_keys *keys, uint32_t first_position, bool states)
{
	client_keys_message_from(keys, first_position, names);
	terrace__v1__lookup_request__init(request);
	request->session = view->id;
	request->keys = names;
	request->states = states;
}

enum terrace_status terrace_lookup_with(struct terrace_session *session, const struct terrace_keys *keys,
					const struct terrace_call_options *options, uint64_t timeout_us,
					uint32_t *prefix, uint8_t *states)
{
	Terrace__V1__LookupRequest request;
	Terrace__V1__Keys names;
	struct client_lookup lookup;
	uint32_t first = 0;
	enum terrace_status status = client_session_check(session);

	if (!status)
		status = client_keys_check(keys);
	if (!status)
		status = client_call_options(options, &first);
	if (!status && !prefix)
		status = client_fail(TERRACE_INVALID, "the pointer for the prefix is NULL");
	if (status)
		return client_fail_in(status, "lookup");
	lookup = (struct client_lookup){.view = session->view, .count = keys->count, .states = states};
	request_fill(&request, &names, session->view, keys, first, states != NULL);
	status = client_view_call(session->view, &(struct client_job){
							 .method = CLIENT_LOOKUP,
							 .deadline_us = client_call_deadline(session->view->client, timeout_us),
							 .first = {.message = &request.base, .last = true},
							 .take = sync_take,
							 .arg = &lookup,
						 });
	if (!status)
		*prefix = lookup.prefix;
	return status;
}

enum terrace_status terrace_lookup(struct terrace_session *session, const struct terrace_keys *keys,
				   uint64_t timeout_us, uint32_t *prefix, uint8_t *states)
{
	return terrace_lookup_with(session, keys, NULL, timeout_us, prefix, states);
}

static void lookup_dispose(struct terrace_op *op)
{
	struct lookup_op *o = (struct lookup_op *)op;

	free(o->lookup.states);
	free(o);
}

enum terrace_status terrace_lookup_with_async(struct terrace_session *session, const struct terrace_keys *keys,
					      const struct terrace_call_options *options, uint64_t timeout_us,
					      const struct terrace_completion *completion, struct terrace_op **op)
{
	Terrace__V1__LookupRequest request;
	Terrace__V1__Keys names;
	struct lookup_op *o;
	uint32_t first = 0;
	enum terrace_status status = client_session_check(session);

	if (!status)
		status = client_keys_check(keys);
	if (!status)
		status = client_call_options(options, &first);
	if (!status && !op)
		status = client_fail(TERRACE_INVALID, "the pointer for the operation is NULL");
	if (status)
		return client_fail_in(status, "lookup");
	o = calloc(1, sizeof(*o));
	if (!o)
		return client_fail(TERRACE_EXHAUSTED, "lookup: no memory");
	o->lookup.states = malloc((size_t)keys->count * session->view->layout_count);
	if (!o->lookup.states) {
		free(o);
		return client_fail(TERRACE_EXHAUSTED, "lookup: no memory");
	}
	client_op_init(&o->op, CLIENT_OP_LOOKUP, session->view, completion, lookup_dispose);
	o->lookup.view = session->view;
	o->lookup.count = keys->count;
	request_fill(&request, &names, session->view, keys, first, true);
	return client_op_start(&o->op, &(struct client_job){
					       .method = CLIENT_LOOKUP,
					       .deadline_us = client_call_deadline(session->view->client, timeout_us),
					       .first = {.message = &request.base, .last = true},
					       .take = async_take,
					       .arg = o,
				       }, op);
}

enum terrace_status terrace_lookup_async(struct terrace_session *session, const struct terrace_keys *keys,
					 uint64_t timeout_us, const struct terrace_completion *completion,
					 struct terrace_op **op)
{
	return terrace_lookup_with_async(session, keys, NULL, timeout_us, completion, op);
}

enum terrace_status terrace_lookup_finish(struct terrace_op *op, uint32_t *prefix, uint8_t *states)
{
	struct lookup_op *o = (struct lookup_op *)op;
	bool ended;
	enum terrace_status status = client_op_await(op, CLIENT_OP_LOOKUP, &ended);

	if (!ended)
		return status;
	if (!status && prefix)
		*prefix = o->lookup.prefix;
	if (!status && states)
		memcpy(states, o->lookup.states, (size_t)o->lookup.count * o->lookup.view->layout_count);
	client_op_end(op);
	return status;
}

enum terrace_status terrace_load_estimate(const struct terrace_session *session, const uint8_t *states, uint32_t count,
					  uint64_t *us)
{
	const struct client_view *view;
	enum terrace_status status = client_session_check(session);
	uint64_t bytes = 0, rate;

	if (!status && (!states || !us))
		status = client_fail(TERRACE_INVALID, "the pointer for the states or the estimate is NULL");
	if (status)
		return client_fail_in(status, "load estimate");
	view = session->view;
	rate = atomic_load_explicit(&view->load_bytes_s, memory_order_relaxed);
	for (size_t n = 0; n < (size_t)count * view->layout_count; n++)
		if (states[n] == TERRACE_STATE_DISK)
			bytes += view->layouts[n % view->layout_count].geometry.block_bytes;
	if (bytes && !rate)
		return TERRACE_MISS;
	*us = bytes ? (uint64_t)((double)bytes * 1e6 / (double)rate) : 0;
	return TERRACE_OK;
}
