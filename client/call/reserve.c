/* Reserves slots and gives them back. */
#include "client/call/reserve.h"

#include "client/session/connect.h"
#include "client/driver/driver_thread.h"
#include "client/memory/attachment.h"
#include "client/memory/pages.h"
#include "client/session/session.h"
#include "client/call/block_info.h"
#include "client/value/clock.h"
#include "client/value/keys.h"
#include "client/value/layout.h"
#include "client/call/op.h"
#include "client/call/unanswered.h"
#include "client/value/status.h"
#include "client/transport/decode.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ABORT_TIMEOUT_US = 1000000 };

/* ---- the handle
 * --------------------------------------------------------------------------------------------------- */

static struct terrace_reservation *reservation_create(struct client_view *view, uint32_t count, bool open)
{
	struct terrace_reservation *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->view = view;
	client_view_hold(view);
	r->generation = view->client->generation;
	r->open = open;
	r->count = count;
	r->ids = calloc(count, sizeof(*r->ids));
	r->statuses = calloc(count, sizeof(*r->statuses));
	if (r->ids && r->statuses)
		return r;
	client_reservation_free(r);
	return NULL;
}

void client_reservation_free(struct terrace_reservation *r)
{
	client_places_fini(&r->places);
	client_view_drop(r->view);
	free(r->ids);
	free(r->statuses);
	free(r);
}

enum terrace_status client_reservation_check(const struct terrace_reservation *r)
{
	if (!r)
		return client_fail(TERRACE_INVALID, "the reservation is NULL");
	return client_process_check(r->generation);
}

static void abort_done(void *arg, enum terrace_status status)
{
	(void)status; /* a daemon that did not hear frees the slots when the session ends */
	client_view_drop(arg);
}

void client_reservation_abort(struct terrace_reservation *r, bool wait)
{
	Terrace__V1__AbortRequest request = TERRACE__V1__ABORT_REQUEST__INIT;
	struct client_rpc_call *call;
	struct client_job job = {
		.method = CLIENT_ABORT,
		.deadline_us = client_deadline_us(ABORT_TIMEOUT_US),
		.first = {.message = &request.base, .last = true},
		.arg = r->view,
	};
	struct client_words words;

	/* The ids of keys that got a slot, moved to the front. */
	for (uint32_t i = 0; i < r->count; i++)
		if (r->ids[i])
			r->ids[request.n_reservations++] = r->ids[i];
	if (!request.n_reservations)
		return;
	request.session = r->view->id;
	request.reservations = r->ids;
	client_words_keep(&words);
	if (wait) {
		client_view_call(r->view, &job);
	} else {
		client_view_hold(r->view);
		if (client_rpc_start(r->view->client->rpc, &job, abort_done, &call))
			client_view_drop(r->view);
	}
	client_words_back(&words);
}

void terrace_abort(struct terrace_reservation *reservation)
{
	if (!reservation || client_forked(reservation->generation))
		return;
	client_reservation_abort(reservation, true);
	client_reservation_free(reservation);
}

enum terrace_status terrace_reservation_addresses(const struct terrace_reservation *r, uint32_t l, uint64_t *addresses)
{
	enum terrace_status status = client_reservation_check(r);

	if (!status)
		status = client_places_addresses(&r->places, l, addresses);
	return status ? client_fail_in(status, "reservation") : TERRACE_OK;
}

uint32_t terrace_reservation_count(const struct terrace_reservation *reservation)
{
	return reservation->count;
}

void *terrace_reservation_block(const struct terrace_reservation *reservation, uint32_t i, uint32_t l)
{
	return client_forked(reservation->generation) ? NULL : client_places_block(&reservation->places, i, l);
}

/* ---- writable pages: a task (driver/driver_thread.h); a driver's call that lasts delays it ---- */

/* Runs the task that closes unused pages. The task has no reference to the attachment: if the attachment's close finds
 * `tends` set, it leaves the task one. */
static bool tending_run(struct client_driver_task *task)
{
	struct client_attachment *a = (struct client_attachment *)((char *)task -
								   offsetof(struct client_attachment, tending));
	bool closed;

	if (client_now_us() < task->until_us)
		return false;
	task->fd = CLIENT_DRIVER_TASK_LATER;
	task->until_us = client_deadline_us(CLIENT_REST_US);
	if (client_places_tend(a, &closed))
		return false;
	if (closed)
		client_fds_drop(a);
	return true;
}

static void tending_begin(struct client_attachment *a, const struct client_places *places)
{
	struct client_words words;

	if (!places->run_writable)
		return;
	pthread_mutex_lock(&a->lock);
	if (!a->tends && !a->closed) {
		client_words_keep(&words);
		a->tending.run = tending_run;
		a->tends = !client_driver_task_start(&a->tending);
		client_words_back(&words);
	}
	pthread_mutex_unlock(&a->lock);
}

/* ---- the reply
 * ---------------------------------------------------------------------------------------------------- */

/* Takes statuses and numbers over from the reply; wanted[i] tells whether key i has a slot. */
static enum terrace_status slots_read(struct terrace_reservation *r, const Terrace__V1__ReserveReply *reply,
				      uint8_t *wanted)
{
	if (reply->n_status != r->count || reply->n_reservation != r->count)
		return client_fail(TERRACE_INTERNAL, "the daemon answers %u keys with %zu statuses and %zu reservations",
				   r->count, reply->n_status, reply->n_reservation);
	for (uint32_t i = 0; i < r->count; i++) {
		r->statuses[i] = client_status_of_wire((int)reply->status[i]);
		r->ids[i] = reply->reservation[i];
	}
	for (uint32_t i = 0; i < r->count; i++) {
		wanted[i] = r->statuses[i] == TERRACE_OK;
		if (wanted[i] != (r->ids[i] != 0))
			return client_fail(TERRACE_INTERNAL, "the daemon's status and reservation of key %u disagree", i);
	}
	return TERRACE_OK;
}

static enum terrace_status reply_read(struct client_reserving *g, const Terrace__V1__ReserveReply *reply,
				      struct client_arena *arena)
{
	enum terrace_status status = client_epoch_check(g->view, reply->epoch);
	uint8_t *wanted = client_arena_take(arena, g->count);
	struct terrace_reservation *r;

	if (status)
		return status;
	r = reservation_create(g->view, g->count, g->open);
	if (!r || !wanted) {
		if (r)
			client_reservation_free(r);
		return client_fail(TERRACE_EXHAUSTED, "no memory for a reservation");
	}
	snprintf(r->why, sizeof(r->why), "%s", reply->why);
	status = slots_read(r, reply, wanted);
	if (!status)
		status = client_places_init(&r->places, &(struct client_placing){.view = g->view,
										 .reply = reply->places,
										 .keys = g->count,
										 .first = g->first,
										 .wanted = wanted,
										 .writable = true,
										 .gpu = g->gpu,
										 .deadline_us = g->deadline_us});
	tending_begin(g->view->attachment, &r->places);
	if (status) {
		client_reservation_abort(r, false);
		client_reservation_free(r);
		return status;
	}
	g->reservation = r;
	return TERRACE_OK;
}

enum terrace_status client_reserve_read(struct client_reserving *reserving, const struct client_message *message)
{
	Terrace__V1__ReserveReply *reply;
	struct client_arena arena;
	enum terrace_status status;

	reserving->call = 0;
	client_arena_init(&arena);
	reply = client_wire_unpack(&arena, &terrace__v1__reserve_reply__descriptor, message);
	status = reply ? reply_read(reserving, reply, &arena) : TERRACE_INTERNAL;
	client_arena_fini(&arena);
	return status;
}

/* ---- the calls
 * ---------------------------------------------------------------------------------------------------- */

struct reserve_op {
	struct terrace_op op;
	struct client_reserving reserving;
};

static enum terrace_status sync_take(void *arg, const struct client_message *message)
{
	return client_reserve_read(arg, message);
}

static enum terrace_status async_take(void *arg, const struct client_message *message)
{
	return client_reserve_read(&((struct reserve_op *)arg)->reserving, message);
}

/* A request under construction: keys are NULL for an open block. */
struct reserve_request {
	Terrace__V1__ReserveRequest request;
	Terrace__V1__Keys names;
	struct client_infos infos;
};

static enum terrace_status request_init(struct reserve_request *r, const struct client_reserving *g,
					const struct terrace_keys *keys, const struct terrace_block_info *info)
{
	const struct client_view *view = g->view;
	enum terrace_status status =
		client_infos_init(&r->infos, view, info, keys ? keys->count : 1, keys ? keys->key_bytes : 0);

	if (status)
		return status;
	terrace__v1__reserve_request__init(&r->request);
	if (keys) {
		client_keys_message_from(keys, g->first, &r->names);
		r->request.n_cells = g->cells ? keys->count : 0;
		r->request.cells = (uint64_t *)(uintptr_t)g->cells;
		r->request.keys = &r->names;
	} else {
		r->request.n_cells = g->cells ? 1 : 0;
		r->request.cells = (uint64_t *)(uintptr_t)g->cells;
	}
	r->request.session = view->id;
	r->request.attachment = view->attachment->id;
	r->request.open = !keys;
	r->request.gpu = (uint32_t)(g->gpu + 1);
	r->request.call = g->call;
	r->request.info = r->infos.pointers;
	r->request.n_info = r->infos.count;
	return TERRACE_OK;
}

/* Checks a reserve's arguments. open: keys is NULL. */
static enum terrace_status reserve_check(struct terrace_session *session, const struct terrace_keys *keys, bool open,
					 const struct terrace_reserve_options *options, const void *place,
					 struct terrace_reserve_options *o)
{
	enum terrace_status status = client_session_check(session);

	*o = (struct terrace_reserve_options)TERRACE_RESERVE_OPTIONS_INIT;
	if (!status && !open)
		status = client_keys_check(keys);
	if (!status && options && !client_options_copy(o, sizeof(*o), options, sizeof(*o)))
		status = client_fail(TERRACE_INVALID, "the options' size is not set: begin them with TERRACE_RESERVE_OPTIONS_INIT");
	if (!status && !place)
		status = client_fail(TERRACE_INVALID, "the pointer for the result is NULL");
	if (!status && open && o->cells && !client_view_chained(session->view))
		status = client_fail(TERRACE_INVALID,
				     "cells are given: an open block has a slot in every layout, unless blocks cover "
				     "several keys");
	if (!status && open && o->first_position)
		status = client_fail(TERRACE_INVALID,
				     "first_position is given, which is of keys: an open block's place is its info's "
				     "position");
	if (!status && o->gpu < -1)
		status = client_fail(TERRACE_INVALID, "gpu %d: none has that number: "
				     "give one of terrace_session_gpu_of, or -1 for host memory", o->gpu);
	if (!status)
		status = client_borrow_check(session->view);
	return status;
}

/* Fills *g from checked arguments, and makes the GPU ready if the slots are on one. */
static enum terrace_status reserving_begin(struct client_reserving *g, struct client_view *view, uint32_t count,
					   bool open, const struct terrace_reserve_options *o, uint64_t timeout_us)
{
	enum terrace_status status;

	*g = (struct client_reserving){
		.view = view,
		.count = count,
		.first = o->first_position,
		.cells = o->cells,
		.open = open,
		.gpu = o->gpu,
		.deadline_us = client_call_deadline(view->client, timeout_us),
		.call = client_recall_number(view),
	};
	if (o->gpu < 0)
		return TERRACE_OK;
	status = client_view_use_gpu(g->view, (uint32_t)o->gpu, g->deadline_us);
	if (!status)
		client_fds_use(g->view->attachment, CLIENT_USE_RESERVE, (uint32_t)o->gpu);
	return status;
}

static enum terrace_status reserve_run(struct client_reserving *reserving, const struct reserve_request *request)
{
	enum terrace_status status;

	client_fds_listen(reserving->view->attachment);
	status = client_view_call(reserving->view, &(struct client_job){
							   .method = CLIENT_RESERVE,
							   .deadline_us = reserving->deadline_us,
							   .first = {.message = &request->request.base, .last = true},
							   .take = sync_take,
							   .arg = reserving,
						   });
	client_recall(reserving->view, reserving->call, status);
	return status;
}

/* Carries out a reserve call. keys NULL: for an open block. name: of the call, for messages. */
static enum terrace_status slots_run(struct client_view *view, const struct terrace_keys *keys, const struct terrace_block_info *info,
				     const struct terrace_reserve_options *o, uint64_t timeout_us, const char *name,
				     struct terrace_reservation **out)
{
	struct client_reserving reserving;
	struct reserve_request request;
	enum terrace_status status = reserving_begin(&reserving, view, keys ? keys->count : 1, !keys, o, timeout_us);

	if (!status)
		status = request_init(&request, &reserving, keys, info);
	if (status)
		return client_fail_in(status, name);
	status = reserve_run(&reserving, &request);
	client_infos_fini(&request.infos);
	if (!status)
		*out = reserving.reservation;
	return status;
}

/* Carries out a reserve call in a session that another thread may close meanwhile. Closing ends a wait for a mapping,
 * and does not wait for the rest of the call. */
static enum terrace_status slots_reserve(struct terrace_session *session, const struct terrace_keys *keys,
					 const struct terrace_block_info *info, const struct terrace_reserve_options *o,
					 uint64_t timeout_us, const char *name, struct terrace_reservation **out)
{
	struct client_view *view = session->view;
	enum terrace_status status;

	client_view_hold(view);
	status = slots_run(view, keys, info, o, timeout_us, name, out);
	client_view_drop(view);
	return status;
}

/* Sets the error text of a call that was carried out, if keys got no slot: why. */
static void refusal_say(const struct terrace_reservation *r)
{
	for (uint32_t i = 0; i < r->count; i++)
		if (r->statuses[i] == TERRACE_EXHAUSTED) {
			client_fail(TERRACE_EXHAUSTED, "reserve: key %u and those after it: %s", i,
				    *r->why ? r->why : terrace_status_text(TERRACE_EXHAUSTED));
			return;
		}
}

enum terrace_status terrace_reserve_with(struct terrace_session *session, const struct terrace_keys *keys,
					 const struct terrace_block_info *info, const struct terrace_reserve_options *options,
					 uint64_t timeout_us, enum terrace_status *statuses, struct terrace_reservation **out)
{
	struct terrace_reserve_options o;
	enum terrace_status status = reserve_check(session, keys, false, options, out, &o);
	struct terrace_reservation *r;

	if (status)
		return client_fail_in(status, "reserve");
	status = slots_reserve(session, keys, info, &o, timeout_us, "reserve", &r);
	if (status)
		return status;
	*out = r;
	if (statuses)
		memcpy(statuses, r->statuses, r->count * sizeof(*statuses));
	refusal_say(r);
	return TERRACE_OK;
}

enum terrace_status terrace_reserve(struct terrace_session *session, const struct terrace_keys *keys,
				    const struct terrace_block_info *info, uint64_t timeout_us,
				    enum terrace_status *statuses, struct terrace_reservation **out)
{
	return terrace_reserve_with(session, keys, info, NULL, timeout_us, statuses, out);
}

static void reserve_dispose(struct terrace_op *op)
{
	struct reserve_op *o = (struct reserve_op *)op;

	client_recall(o->reserving.view, o->reserving.call, op->status);
	if (o->reserving.reservation) {
		client_reservation_abort(o->reserving.reservation, false);
		client_reservation_free(o->reserving.reservation);
	}
	free(o);
}

static enum terrace_status reserve_start(struct client_view *view, const struct terrace_keys *keys, const struct terrace_block_info *info,
					 const struct terrace_reserve_options *o, uint64_t timeout_us,
					 const struct terrace_completion *completion, struct terrace_op **op)
{
	struct reserve_op *r = calloc(1, sizeof(*r));
	enum terrace_status status = r ? reserving_begin(&r->reserving, view, keys->count, false, o, timeout_us)
				       : client_fail(TERRACE_EXHAUSTED, "no memory");
	struct reserve_request request;

	if (!status)
		status = request_init(&request, &r->reserving, keys, info);
	if (status) {
		free(r);
		return client_fail_in(status, "reserve");
	}
	client_op_init(&r->op, CLIENT_OP_RESERVE, view, completion, reserve_dispose);
	status = client_op_start(&r->op,
				 &(struct client_job){
					 .method = CLIENT_RESERVE,
					 .deadline_us = r->reserving.deadline_us,
					 .first = {.message = &request.request.base, .last = true},
					 .take = async_take,
					 .arg = r,
				 },
				 op);
	client_infos_fini(&request.infos);
	return status;
}

enum terrace_status terrace_reserve_with_async(struct terrace_session *session, const struct terrace_keys *keys,
					       const struct terrace_block_info *info,
					       const struct terrace_reserve_options *options, uint64_t timeout_us,
					       const struct terrace_completion *completion, struct terrace_op **op)
{
	struct terrace_reserve_options o;
	enum terrace_status status = reserve_check(session, keys, false, options, op, &o);
	struct client_view *view;

	if (status)
		return client_fail_in(status, "reserve");
	view = session->view;
	client_view_hold(view);
	status = reserve_start(view, keys, info, &o, timeout_us, completion, op);
	client_view_drop(view);
	return status;
}

enum terrace_status terrace_reserve_async(struct terrace_session *session, const struct terrace_keys *keys,
					  const struct terrace_block_info *info, uint64_t timeout_us,
					  const struct terrace_completion *completion, struct terrace_op **op)
{
	return terrace_reserve_with_async(session, keys, info, NULL, timeout_us, completion, op);
}

enum terrace_status terrace_reserve_finish(struct terrace_op *op, enum terrace_status *statuses,
					   struct terrace_reservation **out)
{
	struct reserve_op *o = (struct reserve_op *)op;
	struct terrace_reservation *r;
	bool ended;
	enum terrace_status status = client_op_await(op, CLIENT_OP_RESERVE, &ended);

	if (!ended)
		return status;
	r = o->reserving.reservation;
	if (!status && statuses)
		memcpy(statuses, r->statuses, r->count * sizeof(*statuses));
	if (!status)
		refusal_say(r);
	if (!status && out) {
		*out = r;
		o->reserving.reservation = NULL;
	}
	client_op_end(op);
	return status;
}

/* Checks where an open block begins in a session whose blocks cover several keys: a block of each of its layouts must
 * begin there. */
static enum terrace_status open_place_check(const struct client_view *view, const struct terrace_block_info *in,
					    uint64_t cells)
{
	const uint64_t all = ~0ull >> (64 - view->layout_count);
	struct terrace_block_info info;

	if (!client_options_copy(&info, sizeof(info), in, sizeof(info)))
		return TERRACE_OK; /* the request says it */
	if (!cells || cells & ~all)
		return client_fail(TERRACE_INVALID,
				   "cells is %#llx: it has a bit for each layout that is to have a slot, of the "
				   "session's %u",
				   (unsigned long long)cells, view->layout_count);
	for (uint32_t l = 0; l < view->layout_count; l++) {
		const uint32_t tokens = view->layouts[l].layout.block_tokens;

		if (!(cells >> l & 1))
			continue;
		if (info.position % tokens)
			return client_fail(TERRACE_INVALID,
					   "info's position is %llu, where no block of layout %u begins: give a "
					   "multiple of its %u tokens, or other cells",
					   (unsigned long long)info.position, l, tokens);
		if (info.tokens > tokens)
			return client_fail(TERRACE_INVALID,
					   "info's tokens is %u, more than the %u of a block of layout %u", info.tokens,
					   tokens, l);
	}
	return TERRACE_OK;
}

enum terrace_status terrace_reserve_open_with(struct terrace_session *session, const struct terrace_block_info *info,
					      const struct terrace_reserve_options *options, uint64_t timeout_us,
					      struct terrace_reservation **out)
{
	static const struct terrace_block_info nothing = TERRACE_BLOCK_INFO_INIT;
	struct terrace_reserve_options o;
	enum terrace_status status = reserve_check(session, NULL, true, options, out, &o);
	struct terrace_reservation *r;
	uint64_t cells = 0;

	info = info ? info : &nothing;
	if (!status && client_view_chained(session->view)) {
		cells = o.cells ? *o.cells : ~0ull >> (64 - session->view->layout_count);
		status = open_place_check(session->view, info, cells);
	}
	if (status)
		return client_fail_in(status, "reserve_open");
	/* The daemon counts open blocks by their infos. */
	status = slots_reserve(session, NULL, info, &o, timeout_us, "reserve_open", &r);
	if (status)
		return status;
	status = r->statuses[0];
	if (status) {
		client_fail(status, "reserve_open: %s", *r->why ? r->why : terrace_status_text(status));
		client_reservation_free(r);
		return status;
	}
	r->open_first = info->position;
	r->open_cells = cells;
	*out = r;
	return TERRACE_OK;
}

enum terrace_status terrace_reserve_open(struct terrace_session *session, const struct terrace_block_info *info,
					 uint64_t timeout_us, struct terrace_reservation **out)
{
	return terrace_reserve_open_with(session, info, NULL, timeout_us, out);
}
