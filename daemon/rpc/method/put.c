/* Put by borrow: Reserve, Commit, Abort. */
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/commit.h"
#include "daemon/call/lease.h"
#include "daemon/call/reserve.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "daemon/rpc/reply.h"
#include "kernels/format.h"
#include "store/clock.h"
#include "store/slot.h"
#include "store/status.h"

#include <string.h>

/* How often a Reserve leaves its thread while it waits for pages that are being taken. After that it waits on a
 * worker. */
enum { COMES_MAX = 256 };

/* The infos of a Reserve: one a key, or none (*out is NULL then, but for open blocks, which they count). */
static enum status reserve_infos(struct rpc_call *c, const Terrace__V1__ReserveRequest *q, uint32_t count,
				 struct slot_info **out)
{
	struct slot_info *info = NULL;

	if (q->n_info && q->n_info != count)
		return rpc_fail(c, STATUS_INVALID, "info: %zu entries for %u keys", q->n_info, count);
	if (q->n_cells && q->n_cells != count)
		return rpc_fail(c, STATUS_INVALID, "cells: %zu entries for %u keys", q->n_cells, count);
	if (q->n_info) {
		info = rpc_take(c, count * sizeof *info);
		if (!info)
			return rpc_too_big(c);
	}
	for (uint32_t i = 0; i < q->n_info; i++) {
		enum status s = rpc_info(c, "info", i, q->info[i], &info[i]);

		if (s != STATUS_OK)
			return s;
	}
	*out = info;
	return STATUS_OK;
}

/* Four steps in a row: checks, memory, the cache's call, the reply. All memory of the reply is taken before the call,
 * because nothing may fail once slots are taken. */
enum status rpc_reserve(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__ReserveRequest *q = (const Terrace__V1__ReserveRequest *)request;
	uint64_t again_us = 0;
	struct cache_on on = { .attachment = q->attachment,
			       .call = q->call,
			       .again_us = c->step.comes < COMES_MAX ? &again_us : NULL };
	struct cache_keys keys = { 0 };
	struct slot_info *info = NULL;
	uint32_t layouts = 0, n;
	const char *why = NULL;
	enum status s;

	if (q->open && (!q->n_info || q->n_info > CACHE_KEYS_MAX))
		return rpc_fail(c, STATUS_INVALID, "info: %zu entries, open blocks need 1 to %d", q->n_info,
				CACHE_KEYS_MAX);
	if (q->open)
		keys.count = (uint32_t)q->n_info;
	else if ((s = rpc_keys(c, q->keys, false, &keys)) != STATUS_OK)
		return s;
	if ((s = rpc_gpu(c, q->gpu, &on.gpu)) != STATUS_OK ||
	    (s = rpc_session_layouts(c, q->session, &keys, &layouts)) != STATUS_OK ||
	    (s = reserve_infos(c, q, keys.count, &info)) != STATUS_OK)
		return s;
	n = keys.count * layouts;

	Terrace__V1__ReserveReply *r = rpc_take(c, sizeof *r);
	enum status *statuses = rpc_take_zero(c, keys.count, sizeof *statuses);
	uint64_t *reservations = rpc_take_zero(c, keys.count, sizeof *reservations);
	struct cache_place *places = rpc_take(c, n * sizeof *places);

	if (!r || !statuses || !reservations || !places)
		return rpc_too_big(c);
	for (uint32_t i = 0; i < n; i++)
		places[i] = (struct cache_place){ .extent = (uint32_t)CACHE_EXTENT_NONE };
	terrace__v1__reserve_reply__init(r);
	r->status = rpc_take(c, keys.count * sizeof *r->status); /* memory first, as said above */
	r->places = rpc_places(c, NULL, n);
	if (!r->status || !r->places)
		return rpc_too_big(c);
	const struct cache_reserve_call call = {
		.session = q->session,
		.keys = &keys,
		.info = info,
		.cells = q->n_cells ? q->cells : NULL,
		.open = q->open,
		.on = &on,
		.may_grow = c->worker,
		.now_us = c->now_us,
		.statuses = statuses,
		.reservations = reservations,
		.places = places,
		.places_max = n,
	};

	s = cache_reserve(rpc_cache(c), &call, &why);
	if (s == STATUS_BUSY && again_us) {
		c->step.comes++;
		c->resume_us = c->now_us + again_us;
		rpc_arena_rewind(&c->arena);
		return s;
	}
	if (s != STATUS_OK)
		return rpc_fail_why(c, s, why);
	r->epoch = cache_epoch(rpc_cache(c));
	r->n_status = keys.count;
	r->n_reservation = keys.count;
	r->reservation = reservations;
	r->ttl_ms = c->daemon->config->reservation_ttl_ms;
	for (uint32_t i = 0; i < keys.count; i++)
		r->status[i] = (Terrace__V1__Status)statuses[i];
	rpc_places_fill(r->places, places, n);
	r->why = rpc_words(c, why);
	*reply = &r->base;
	return STATUS_OK;
}

void rpc_reserve_undo(struct rpc_call *c, const ProtobufCMessage *request, const ProtobufCMessage *reply)
{
	const Terrace__V1__ReserveRequest *q = (const Terrace__V1__ReserveRequest *)request;
	const Terrace__V1__ReserveReply *r = (const Terrace__V1__ReserveReply *)reply;

	for (size_t i = 0; i < r->n_reservation; i++)
		if (r->reservation[i])
			cache_abort(rpc_cache(c), q->session, r->reservation[i]);
}

static enum status commit_item(struct rpc_call *c, size_t i, const Terrace__V1__CommitItem *in,
			       struct cache_commit_item *out)
{
	struct cache_commit_item item = {
		.reservation = in->reservation,
		.tokens = in->tokens,
		.key_bytes = (uint8_t)in->key.len,
		.keep_open = in->keep_open,
	};

	if (in->key.len > SLOT_KEY_MAX)
		return rpc_fail(c, STATUS_INVALID, "items[%zu].key: %zu bytes, at most %d", i, in->key.len,
				SLOT_KEY_MAX);
	if (in->tokens > KV_OPAQUE_TOKENS_MAX)
		return rpc_fail(c, STATUS_INVALID, "items[%zu].tokens: %u, at most %d", i, in->tokens,
				KV_OPAQUE_TOKENS_MAX);
	if (in->key.len)
		memcpy(item.key, in->key.data, in->key.len);
	if (in->info) {
		struct slot_info *info = rpc_take(c, sizeof *info);

		if (!info)
			return rpc_too_big(c);
		enum status s = rpc_info(c, "items.info", i, in->info, info);

		if (s != STATUS_OK)
			return s;
		item.info = info;
	}
	*out = item;
	return STATUS_OK;
}

/* Four steps in a row: checks, memory, the cache's call, the reply. All memory of the reply is taken before the call,
 * because nothing may fail once blocks are published. */
enum status rpc_commit(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__CommitRequest *q = (const Terrace__V1__CommitRequest *)request;
	uint32_t layouts = 0, count = (uint32_t)q->n_items, n;
	struct cache_leased leased = { 0 };
	const char *why = NULL;
	enum status s;

	if (!q->n_items || q->n_items > CACHE_KEYS_MAX)
		return rpc_fail(c, STATUS_INVALID, "items: %zu given, must be 1 to %d", q->n_items, CACHE_KEYS_MAX);
	s = rpc_session_layouts(c, q->session, &(struct cache_keys){ .count = count }, &layouts);
	if (s != STATUS_OK)
		return s;
	n = q->lease ? count * layouts : 0;

	Terrace__V1__CommitReply *r = rpc_take(c, sizeof *r);
	struct cache_commit_item *items = rpc_take(c, count * sizeof *items);
	enum status *statuses = rpc_take_zero(c, count, sizeof *statuses);
	struct cache_place *places = rpc_take_zero(c, n, sizeof *places);

	if (!r || !items || !statuses || !places)
		return rpc_too_big(c);
	for (uint32_t i = 0; i < count; i++)
		if ((s = commit_item(c, i, q->items[i], &items[i])) != STATUS_OK)
			return s;
	for (uint32_t i = 0; i < n; i++)
		places[i].extent = (uint32_t)CACHE_EXTENT_NONE;
	terrace__v1__commit_reply__init(r);
	r->status = rpc_take(c, count * sizeof *r->status);
	r->places = n ? rpc_places(c, NULL, n) : NULL;
	if (!r->status || (n && !r->places))
		return rpc_too_big(c);
	const struct cache_on on = { .attachment = q->attachment, .gpu = CACHE_HOST, .call = q->call };
	const struct cache_commit_call call = {
		.session = q->session,
		.items = items,
		.count = count,
		.want_lease = q->lease,
		.on = &on,
		.now_us = c->now_us,
		.unix_ms = clock_unix_ms(),
		.statuses = statuses,
		.places = places,
		.places_max = n,
	};

	s = cache_commit(rpc_cache(c), &call, &leased, &why);
	if (s != STATUS_OK)
		return rpc_fail_why(c, s, why);
	r->epoch = cache_epoch(rpc_cache(c));
	r->n_status = count;
	r->lease = leased.lease;
	for (uint32_t i = 0; i < count; i++)
		r->status[i] = (Terrace__V1__Status)statuses[i];
	if (leased.lease)
		rpc_places_fill(r->places, places, n);
	else
		r->places = NULL;
	*reply = &r->base;
	return STATUS_OK;
}

/* Gives up the lease that a commit was granted for a client that is gone. What was committed stays. */
void rpc_commit_undo(struct rpc_call *c, const ProtobufCMessage *request, const ProtobufCMessage *reply)
{
	const Terrace__V1__CommitRequest *q = (const Terrace__V1__CommitRequest *)request;
	const Terrace__V1__CommitReply *r = (const Terrace__V1__CommitReply *)reply;

	if (r->lease)
		cache_release(rpc_cache(c), q->session, r->lease);
}

enum status rpc_abort(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__AbortRequest *q = (const Terrace__V1__AbortRequest *)request;
	Terrace__V1__AbortReply *r = rpc_take(c, sizeof *r);

	if (!q->session)
		return rpc_fail(c, STATUS_NOT_FOUND, "session: unknown, or closed");
	if (q->n_reservations > CACHE_KEYS_MAX)
		return rpc_fail(c, STATUS_INVALID, "reservations: %zu given, at most %d a call", q->n_reservations,
				CACHE_KEYS_MAX);
	Terrace__V1__Status *status = rpc_take(c, q->n_reservations * sizeof *status);

	if (!r || !status)
		return rpc_too_big(c);
	for (size_t i = 0; i < q->n_reservations; i++)
		status[i] = (Terrace__V1__Status)cache_abort(rpc_cache(c), q->session, q->reservations[i]);
	terrace__v1__abort_reply__init(r);
	r->n_status = q->n_reservations;
	r->status = status;
	*reply = &r->base;
	return STATUS_OK;
}
