/* Reserving slots and giving them back. */
#include "client/reserve.h"

#include "client/block_info.h"
#include "client/clock.h"
#include "client/op.h"
#include "client/status.h"
#include "client/wire.h"

#include <stdlib.h>
#include <string.h>

enum { ABORT_TIMEOUT_US = 1000000 };

/* ---- the handle --------------------------------------------------------------------------------------------------- */

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
		return client_fail(TERRACE_INVALID, "no reservation given");
	return client_process_check(r->generation);
}

static enum terrace_status abort_take(void *arg, const struct client_message *message)
{
	(void)arg;
	(void)message;
	return TERRACE_OK;
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
		.take = abort_take,
		.arg = r->view,
	};

	/* The ids of keys that got a slot, moved to the front. */
	for (uint32_t i = 0; i < r->count; i++)
		if (r->ids[i])
			r->ids[request.n_reservations++] = r->ids[i];
	if (!request.n_reservations)
		return;
	request.session = r->view->id;
	request.reservations = r->ids;
	if (wait) {
		client_rpc_call(r->view->client->rpc, &job);
		return;
	}
	client_view_hold(r->view);
	if (client_rpc_start(r->view->client->rpc, &job, abort_done, &call))
		client_view_drop(r->view);
}

void terrace_abort(struct terrace_reservation *reservation)
{
	if (!reservation || client_forked(reservation->generation))
		return;
	client_reservation_abort(reservation, true);
	client_reservation_free(reservation);
}

uint32_t terrace_reservation_count(const struct terrace_reservation *reservation)
{
	return reservation->count;
}

void *terrace_reservation_block(const struct terrace_reservation *reservation, uint32_t i, uint32_t l)
{
	return client_forked(reservation->generation) ? NULL : client_places_block(&reservation->places, i, l);
}

/* ---- the reply ---------------------------------------------------------------------------------------------------- */

/* Takes statuses and numbers over; wanted[i] tells which keys have a slot. */
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
	status = slots_read(r, reply, wanted);
	if (!status)
		status = client_places_init(&r->places, g->view, reply->places, g->count, wanted, false, true,
					    g->deadline_us);
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

	client_arena_init(&arena);
	reply = client_wire_unpack(&arena, &terrace__v1__reserve_reply__descriptor, message);
	status = reply ? reply_read(reserving, reply, &arena) : TERRACE_INTERNAL;
	client_arena_fini(&arena);
	return status;
}

/* ---- the calls ---------------------------------------------------------------------------------------------------- */

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

static enum terrace_status request_init(struct reserve_request *r, const struct client_view *view,
					const struct terrace_keys *keys, const struct terrace_block_info *info)
{
	enum terrace_status status =
		client_infos_init(&r->infos, view, info, keys ? keys->count : 1, keys ? keys->key_bytes : 0);

	if (status)
		return status;
	terrace__v1__reserve_request__init(&r->request);
	if (keys) {
		terrace__v1__keys__init(&r->names);
		r->names.key_bytes = keys->key_bytes;
		r->names.keys = CLIENT_BINARY(keys->bytes, (size_t)keys->count * keys->key_bytes);
		r->request.keys = &r->names;
	}
	r->request.session = view->id;
	r->request.attachment = view->attachment->id;
	r->request.open = !keys;
	r->request.info = r->infos.pointers;
	r->request.n_info = r->infos.count;
	return TERRACE_OK;
}

static enum terrace_status reserve_check(struct terrace_session *session, const struct terrace_keys *keys,
					 const void *place)
{
	enum terrace_status status = client_session_check(session);

	if (!status)
		status = client_keys_check(keys);
	if (!status && !place)
		status = client_fail(TERRACE_INVALID, "no place for the result");
	if (!status)
		status = client_borrow_check(session->view);
	return status;
}

static enum terrace_status reserve_run(struct client_reserving *reserving, const struct reserve_request *request)
{
	client_fds_listen(reserving->view->attachment);
	return client_view_call(reserving->view, &(struct client_job){
							 .method = CLIENT_RESERVE,
							 .deadline_us = reserving->deadline_us,
							 .first = {.message = &request->request.base, .last = true},
							 .take = sync_take,
							 .arg = reserving,
						 });
}

enum terrace_status terrace_reserve(struct terrace_session *session, const struct terrace_keys *keys,
				    const struct terrace_block_info *info, uint64_t timeout_us,
				    enum terrace_status *statuses, struct terrace_reservation **out)
{
	enum terrace_status status = reserve_check(session, keys, out);
	struct client_reserving reserving;
	struct reserve_request request;

	if (!status)
		status = request_init(&request, session->view, keys, info);
	if (status)
		return client_fail_in(status, "reserve");
	reserving = (struct client_reserving){.view = session->view, .count = keys->count};
	reserving.deadline_us = client_call_deadline(session->view->client, timeout_us);
	status = reserve_run(&reserving, &request);
	client_infos_fini(&request.infos);
	if (status)
		return status;
	*out = reserving.reservation;
	if (statuses)
		memcpy(statuses, reserving.reservation->statuses, keys->count * sizeof(*statuses));
	return TERRACE_OK;
}

static void reserve_dispose(struct terrace_op *op)
{
	struct reserve_op *o = (struct reserve_op *)op;

	if (o->reserving.reservation) {
		client_reservation_abort(o->reserving.reservation, false);
		client_reservation_free(o->reserving.reservation);
	}
	free(o);
}

enum terrace_status terrace_reserve_async(struct terrace_session *session, const struct terrace_keys *keys,
					  const struct terrace_block_info *info, uint64_t timeout_us,
					  const struct terrace_completion *completion, struct terrace_op **op)
{
	enum terrace_status status = reserve_check(session, keys, op);
	struct reserve_request request;
	struct reserve_op *o;

	if (!status)
		status = request_init(&request, session->view, keys, info);
	if (status)
		return client_fail_in(status, "reserve");
	o = calloc(1, sizeof(*o));
	if (!o) {
		client_infos_fini(&request.infos);
		return client_fail(TERRACE_EXHAUSTED, "reserve: no memory");
	}
	client_op_init(&o->op, CLIENT_OP_RESERVE, session->view, completion, reserve_dispose);
	o->reserving = (struct client_reserving){.view = session->view, .count = keys->count};
	o->reserving.deadline_us = client_call_deadline(session->view->client, timeout_us);
	status = client_op_start(&o->op,
				 &(struct client_job){
					 .method = CLIENT_RESERVE,
					 .deadline_us = o->reserving.deadline_us,
					 .first = {.message = &request.request.base, .last = true},
					 .take = async_take,
					 .arg = o,
				 },
				 op);
	client_infos_fini(&request.infos);
	return status;
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
	if (!status && out) {
		*out = r;
		o->reserving.reservation = NULL;
	}
	client_op_end(op);
	return status;
}

enum terrace_status terrace_reserve_open(struct terrace_session *session, const struct terrace_block_info *info,
					 uint64_t timeout_us, struct terrace_reservation **out)
{
	static const struct terrace_block_info nothing = TERRACE_BLOCK_INFO_INIT;
	enum terrace_status status = client_session_check(session);
	struct client_reserving reserving;
	struct reserve_request request;

	if (!status && !out)
		status = client_fail(TERRACE_INVALID, "no place for the result");
	if (!status)
		status = client_borrow_check(session->view);
	/* The daemon counts open blocks by their infos. */
	if (!status)
		status = request_init(&request, session->view, NULL, info ? info : &nothing);
	if (status)
		return client_fail_in(status, "reserve_open");
	reserving = (struct client_reserving){.view = session->view, .count = 1, .open = true};
	reserving.deadline_us = client_call_deadline(session->view->client, timeout_us);
	status = reserve_run(&reserving, &request);
	client_infos_fini(&request.infos);
	if (status)
		return status;
	status = reserving.reservation->statuses[0];
	if (status) {
		client_reservation_free(reserving.reservation);
		return client_fail(status, "reserve_open: %s", terrace_status_text(status));
	}
	*out = reserving.reservation;
	return TERRACE_OK;
}
