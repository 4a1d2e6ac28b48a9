/* Publishes reserved slots. The handle ends with the call: slots that could not be committed are aborted. */
#include "client/call/commit.h"

#include "client/call/lease.h"
#include "client/call/reserve.h"
#include "client/call/unanswered.h"
#include "client/session/connect.h"
#include "client/memory/attachment.h"
#include "client/call/places.h"
#include "client/session/session.h"
#include "client/value/keys.h"
#include "client/value/status.h"
#include "client/transport/decode.h"
#include "health.pb-c.h"

#include <stdlib.h>
#include <string.h>

/* ---- the reply
 * ---------------------------------------------------------------------------------------------------- */

/* Takes the statuses over: the reply has one an item, and the reservation one a key. `stored` says which items are
 * stored now. */
static void statuses_read(struct terrace_reservation *r, const Terrace__V1__CommitReply *reply, uint8_t *stored)
{
	for (uint32_t key = 0, item = 0; key < r->count; key++) {
		if (!r->ids[key])
			continue;
		r->statuses[key] = client_status_of_wire((int)reply->status[item]);
		stored[item++] = r->statuses[key] == TERRACE_OK || r->statuses[key] == TERRACE_EXISTS;
	}
}

/* Turns a lease over items into one over the reservation's keys. */
static enum terrace_status lease_spread(struct terrace_lease *lease, const struct terrace_reservation *r)
{
	struct client_places *p = &lease->places;
	const size_t entries = (size_t)r->count * p->layouts;
	void **blocks = calloc(entries, sizeof(*blocks));
	uint64_t *addresses = p->addresses ? calloc(entries, sizeof(*addresses)) : NULL;
	uint32_t *tokens = calloc(r->count, sizeof(*tokens));

	if (!blocks || !tokens || (p->addresses && !addresses)) {
		free(blocks);
		free(addresses);
		free(tokens);
		return client_fail(TERRACE_EXHAUSTED, "no memory for a lease");
	}
	for (uint32_t key = 0, item = 0; key < r->count; key++) {
		if (!r->ids[key])
			continue;
		memcpy(blocks + (size_t)key * p->layouts, p->blocks + (size_t)item * p->layouts,
		       p->layouts * sizeof(*blocks));
		if (addresses)
			memcpy(addresses + (size_t)key * p->layouts, p->addresses + (size_t)item * p->layouts,
			       p->layouts * sizeof(*addresses));
		tokens[key] = p->tokens[item++];
	}
	free(p->blocks);
	free(p->addresses);
	free(p->tokens);
	p->blocks = blocks;
	p->addresses = addresses;
	p->tokens = tokens;
	p->keys = r->count;
	return TERRACE_OK;
}

static enum terrace_status lease_read(struct client_committing *g, const Terrace__V1__CommitReply *reply,
				      const uint8_t *stored)
{
	struct terrace_reservation *r = g->reservation;
	/* A block that another process put first may lie in host memory. */
	const struct client_placing placing = {.view = r->view,
					       .reply = reply->places,
					       .keys = g->items,
					       .first = r->places.first,
					       .wanted = stored,
					       .sparse = true,
					       .gpu = r->places.gpu,
					       .host_too = true,
					       .deadline_us = g->deadline_us};
	enum terrace_status status;
	struct client_words words;

	client_words_keep(&words);
	if (placing.gpu >= 0)
		client_fds_use(r->view->attachment, CLIENT_USE_LEASE, (uint32_t)placing.gpu);
	status = client_lease_create(r->view, reply->lease, &placing, &g->lease);
	if (!status && g->items != r->count)
		status = lease_spread(g->lease, r);
	if (status && g->lease) {
		terrace_release(g->lease);
		g->lease = NULL;
	}
	if (status == TERRACE_INTERNAL)
		return status;
	client_words_back(&words); /* the blocks are stored; that this process could not map them is no failure of the commit */
	return TERRACE_OK;
}

static enum terrace_status reply_read(struct client_committing *g, const Terrace__V1__CommitReply *reply,
				      struct client_arena *arena)
{
	struct terrace_reservation *r = g->reservation;
	enum terrace_status status = client_epoch_check(r->view, reply->epoch);
	uint8_t *stored = client_arena_take(arena, g->items);

	if (status)
		return status;
	if (!stored)
		return client_fail(TERRACE_EXHAUSTED, "no memory for a commit's answer");
	if (reply->n_status != g->items)
		return client_fail(TERRACE_INTERNAL, "the daemon answers %u commits with %zu statuses", g->items,
				   reply->n_status);
	statuses_read(r, reply, stored);
	return g->want_lease && reply->lease ? lease_read(g, reply, stored) : TERRACE_OK;
}

enum terrace_status client_commit_read(struct client_committing *committing, const struct client_message *message)
{
	Terrace__V1__CommitReply *reply;
	struct client_arena arena;
	enum terrace_status status;

	committing->call = 0;
	client_arena_init(&arena);
	reply = client_wire_unpack(&arena, &terrace__v1__commit_reply__descriptor, message);
	status = reply ? reply_read(committing, reply, &arena) : TERRACE_INTERNAL;
	client_arena_fini(&arena);
	return status;
}

/* ---- the calls
 * ---------------------------------------------------------------------------------------------------- */

static enum terrace_status sync_take(void *arg, const struct client_message *message)
{
	return client_commit_read(arg, message);
}

static enum terrace_status async_take(void *arg, const struct client_message *message)
{
	return client_commit_read(&((struct client_commit_op *)arg)->committing, message);
}

static uint32_t slots_count(const struct terrace_reservation *r)
{
	uint32_t slots = 0;

	for (uint32_t i = 0; i < r->count; i++)
		slots += r->ids[i] != 0;
	return slots;
}

static void request_fini(struct client_commit_request *q)
{
	free(q->items);
	free(q->pointers);
}

static enum terrace_status request_init(struct client_commit_request *q, const struct terrace_reservation *r, uint32_t items,
					bool lease)
{
	uint32_t n = 0;

	q->items = calloc(items ? items : 1, sizeof(*q->items));
	q->pointers = calloc(items ? items : 1, sizeof(Terrace__V1__CommitItem *));
	if (!q->items || !q->pointers) {
		request_fini(q);
		return client_fail(TERRACE_EXHAUSTED, "commit: no memory");
	}
	for (uint32_t i = 0; i < r->count; i++) {
		if (!r->ids[i])
			continue;
		terrace__v1__commit_item__init(&q->items[n]);
		q->items[n].reservation = r->ids[i];
		q->pointers[n] = &q->items[n];
		n++;
	}
	terrace__v1__commit_request__init(&q->request);
	q->request.session = r->view->id;
	q->request.items = q->pointers;
	q->request.n_items = n;
	q->request.lease = lease;
	q->request.attachment = lease ? r->view->attachment->id : 0;
	return TERRACE_OK;
}

static struct client_job commit_job(const struct client_commit_request *q, uint64_t deadline_us,
				    enum terrace_status (*take)(void *, const struct client_message *), void *arg)
{
	return (struct client_job){
		.method = CLIENT_COMMIT,
		.deadline_us = deadline_us,
		.first = {.message = &q->request.base, .last = true},
		.take = take,
		.arg = arg,
	};
}

void client_commit_end(struct terrace_reservation *r, enum terrace_status status)
{
	if (status && status != TERRACE_STALE)
		client_reservation_abort(r, false);
	client_reservation_free(r);
}

enum terrace_status client_commit_check(struct terrace_reservation *r, bool open)
{
	enum terrace_status status = client_reservation_check(r);

	if (!status && r->open != open) {
		status = TERRACE_INVALID;
		client_commit_end(r, status);
		client_fail(status, "%s", open ? "the reservation is not an open block: it wants terrace_commit"
					       : "the reservation is an open block: it wants terrace_commit_open");
	}
	return status ? client_fail_in(status, "commit") : TERRACE_OK;
}

enum terrace_status terrace_commit(struct terrace_reservation *r, uint64_t timeout_us, enum terrace_status *statuses,
				   struct terrace_lease **lease)
{
	struct client_committing committing = {.reservation = r, .want_lease = lease != NULL};
	enum terrace_status status = client_commit_check(r, false);
	struct client_commit_request request;
	struct client_job job;

	if (status)
		return status;
	committing.items = slots_count(r);
	committing.deadline_us = client_call_deadline(r->view->client, timeout_us);
	status = request_init(&request, r, committing.items, committing.want_lease);
	if (!status) {
		if (committing.want_lease)
			request.request.call = committing.call = client_recall_number(r->view);
		job = commit_job(&request, committing.deadline_us, sync_take, &committing);
		if (committing.items)
			status = client_view_call(r->view, &job);
		client_recall(r->view, committing.call, status);
		request_fini(&request);
	}
	if (!status && statuses)
		memcpy(statuses, r->statuses, r->count * sizeof(*statuses));
	if (!status && lease)
		*lease = committing.lease;
	client_commit_end(r, status);
	return status;
}

/* With nothing to publish the daemon is asked nothing but whether it lives: the operation must complete like any
 * other. */
static struct client_job nothing_job(const Grpc__Health__V1__HealthCheckRequest *q, uint64_t deadline_us)
{
	return (struct client_job){
		.method = CLIENT_HEALTH_CHECK,
		.deadline_us = deadline_us,
		.first = {.message = &q->base, .last = true},
	};
}

static void commit_dispose(struct terrace_op *op)
{
	struct client_commit_op *o = (struct client_commit_op *)op;

	if (o->committing.reservation)
		client_commit_end(o->committing.reservation, op->status);
	request_fini(&o->request);
	free(o);
}

enum terrace_status client_commit_op_create(struct terrace_reservation *r, uint64_t deadline_us,
					    const struct terrace_completion *completion, struct client_commit_op **out)
{
	struct client_commit_op *o = calloc(1, sizeof(*o));
	enum terrace_status status = o ? request_init(&o->request, r, slots_count(r), false)
				       : client_fail(TERRACE_EXHAUSTED, "commit: no memory");

	if (status) {
		free(o);
		return status;
	}
	client_op_init(&o->op, CLIENT_OP_COMMIT, r->view, completion, commit_dispose);
	o->op.status = TERRACE_CANCELLED; /* until it is done: what dispose makes of a call that never began */
	o->committing = (struct client_committing){.reservation = r, .items = slots_count(r), .deadline_us = deadline_us};
	*out = o;
	return TERRACE_OK;
}

struct client_job client_commit_op_job(struct client_commit_op *o)
{
	static const Grpc__Health__V1__HealthCheckRequest nothing = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
	struct client_job job = o->committing.items
					? commit_job(&o->request, o->committing.deadline_us, async_take, o)
					: nothing_job(&nothing, o->committing.deadline_us);

	job.arg = o;
	return job;
}

enum terrace_status terrace_commit_async(struct terrace_reservation *r, uint64_t timeout_us,
					 const struct terrace_completion *completion, struct terrace_op **op)
{
	enum terrace_status status = client_commit_check(r, false);
	struct client_commit_op *o;
	struct client_job job;

	if (status)
		return status;
	if (!op) {
		client_commit_end(r, TERRACE_INVALID);
		return client_fail(TERRACE_INVALID, "commit: the pointer for the operation is NULL");
	}
	status = client_commit_op_create(r, client_call_deadline(r->view->client, timeout_us), completion, &o);
	if (status) {
		client_commit_end(r, status);
		return status;
	}
	job = client_commit_op_job(o);
	return client_op_start(&o->op, &job, op);
}

enum terrace_status terrace_commit_finish(struct terrace_op *op, enum terrace_status *statuses)
{
	struct client_commit_op *o = (struct client_commit_op *)op;
	bool ended;
	enum terrace_status status = client_op_await(op, CLIENT_OP_COMMIT, &ended);

	if (!ended)
		return status;
	if (!status && statuses)
		memcpy(statuses, o->committing.reservation->statuses,
		       o->committing.reservation->count * sizeof(*statuses));
	client_op_end(op);
	return status;
}

/* Checks the tokens of an open block in a session whose blocks cover several keys. */
static enum terrace_status open_cells_check(const struct terrace_reservation *r, uint32_t tokens)
{
	const uint32_t unit = client_view_unit(r->view);

	if (tokens < 1 || tokens % unit)
		return client_fail(TERRACE_INVALID,
				   "tokens is %u, no multiple of the session's unit of %u: a key names whole units",
				   tokens, unit);
	for (uint32_t l = 0; l < r->view->layout_count; l++) {
		const struct client_layout *layout = &r->view->layouts[l];
		const uint32_t whole = layout->layout.block_tokens;

		if (!(r->open_cells >> l & 1))
			continue;
		if (tokens > whole)
			return client_fail(TERRACE_INVALID,
					   "tokens is %u, more than the %u of a block of layout %u", tokens, whole, l);
		if (tokens != whole && !layout->partial)
			return client_fail(TERRACE_INVALID,
					   "tokens is %u, and layout %u has no partial blocks: give the %u of a whole "
					   "one",
					   tokens, l, whole);
	}
	return TERRACE_OK;
}

static enum terrace_status open_tokens_check(const struct terrace_reservation *r, uint32_t tokens)
{
	const uint32_t most = client_view_unit(r->view);

	if (client_view_chained(r->view))
		return open_cells_check(r, tokens);
	if (tokens < 1 || tokens > most)
		return client_fail(TERRACE_INVALID, "tokens is %u, not 1 to %u", tokens, most);
	return TERRACE_OK;
}

enum terrace_status terrace_commit_open(struct terrace_reservation *r, const uint8_t *key, uint32_t key_bytes,
					uint32_t tokens, uint64_t timeout_us)
{
	struct client_committing committing = {.reservation = r, .items = 1};
	enum terrace_status status = client_commit_check(r, true);
	struct client_commit_request request;
	struct client_job job;

	if (status)
		return status;
	status = client_keys_check(&(struct terrace_keys){key, 1, key_bytes});
	if (!status)
		status = open_tokens_check(r, tokens);
	if (status)
		client_fail_in(status, "commit_open");
	if (!status)
		status = request_init(&request, r, 1, false);
	if (!status) {
		request.items[0].tokens = tokens;
		request.items[0].key = CLIENT_BINARY(key, key_bytes);
		job = commit_job(&request, client_call_deadline(r->view->client, timeout_us), sync_take, &committing);
		status = client_view_call(r->view, &job);
		request_fini(&request);
	}
	if (!status && r->statuses[0])
		status = client_fail(r->statuses[0], "commit_open: %s", terrace_status_text(r->statuses[0]));
	client_commit_end(r, status);
	return status;
}
