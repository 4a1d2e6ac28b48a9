/* Cache.Lease and Cache.Release. */
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/lease.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "daemon/rpc/reply.h"
#include "daemon/vram/vram.h"
#include "store/status.h"

enum { CALLS_MAX = 16 }; /* each takes a look at all that the session holds */

/* Checks, memory, the cache's call, the reply. MISS and EXHAUSTED are answers of the reply, not failures of the call.
 * If the reply's places find no memory, the lease is given back. */
enum status rpc_lease(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__LeaseRequest *q = (const Terrace__V1__LeaseRequest *)request;
	Terrace__V1__LeaseReply *r = rpc_take(c, sizeof *r);
	struct cache_on on = { .attachment = q->attachment, .or_host = q->gpu_or_host, .call = q->call,
	    .deferred = true };
	struct cache_leased leased = { 0 };
	struct cache_place *places;
	struct cache_keys keys;
	uint32_t layouts;
	const char *why = NULL;
	enum status s = rpc_keys(c, q->keys, false, &keys);

	if (s != STATUS_OK)
		return s;
	s = rpc_gpu(c, q->gpu, &on.gpu);
	if (s != STATUS_OK)
		return s;
	if ((unsigned)q->mode > TERRACE__V1__LEASE_MODE__LEASE_ALL)
		return rpc_fail(c, STATUS_INVALID, "mode: unknown mode %d", (int)q->mode);
	s = rpc_session_layouts(c, q->session, &keys, &layouts);
	if (s != STATUS_OK)
		return s;
	places = rpc_take(c, (size_t)keys.count * layouts * sizeof *places);
	if (!r || !places)
		return rpc_too_big(c);
	terrace__v1__lease_reply__init(r);
	const struct cache_lease_call call = {
		.session = q->session,
		.keys = &keys,
		.all = q->mode == TERRACE__V1__LEASE_MODE__LEASE_ALL,
		.on = &on,
		.now_us = c->now_us,
		.places = places,
		.places_max = keys.count * layouts,
	};

	s = cache_lease(rpc_cache(c), &call, &leased, rpc_wait(c), &why);
	if (s == STATUS_BUSY)
		return rpc_wait_busy(c);
	if (s == STATUS_OK) {
		r->lease = leased.lease;
		r->blocks = leased.blocks;
		r->progress_page_word = leased.progress_page_word;
		r->progress_page_base = leased.progress_page_base;
		r->progress_page_layers = leased.progress_page_layers;
		r->progress_page_summed = leased.progress_page_summed;
		r->places = rpc_places(c, places, (size_t)leased.blocks * leased.layouts);
		if (!r->places) {
			cache_release(rpc_cache(c), q->session, leased.lease);
			return rpc_too_big(c);
		}
	} else if (s != STATUS_MISS && s != STATUS_EXHAUSTED) {
		return rpc_fail_why(c, s, why);
	}
	r->epoch = cache_epoch(rpc_cache(c));
	r->status = (Terrace__V1__Status)s;
	r->why = rpc_words(c, s == STATUS_EXHAUSTED ? why : NULL);
	r->ttl_ms = c->daemon->config->lease_ttl_ms;
	*reply = &r->base;
	return STATUS_OK;
}

void rpc_lease_undo(struct rpc_call *c, const ProtobufCMessage *request, const ProtobufCMessage *reply)
{
	const Terrace__V1__LeaseRequest *q = (const Terrace__V1__LeaseRequest *)request;
	const Terrace__V1__LeaseReply *r = (const Terrace__V1__LeaseReply *)reply;

	if (r->lease)
		cache_release(rpc_cache(c), q->session, r->lease);
}

enum status rpc_release(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__ReleaseRequest *q = (const Terrace__V1__ReleaseRequest *)request;
	Terrace__V1__ReleaseReply *r = rpc_take(c, sizeof *r);

	/* Session 0 is the core's word for a trusted caller: never the wire's. */
	if (!q->session)
		return rpc_fail(c, STATUS_NOT_FOUND, "session: unknown, or closed");
	if (q->n_leases > CACHE_KEYS_MAX || q->n_calls > CALLS_MAX)
		return rpc_fail(c, STATUS_INVALID, "leases: %zu given, at most %d a call; calls: %zu, at most %d", q->n_leases,
				CACHE_KEYS_MAX, q->n_calls, CALLS_MAX);
	Terrace__V1__Status *status = rpc_take(c, q->n_leases * sizeof *status);

	if (!r || !status)
		return rpc_too_big(c);
	for (size_t i = 0; i < q->n_leases; i++)
		status[i] = (Terrace__V1__Status)cache_release(rpc_cache(c), q->session, q->leases[i]);
	for (size_t i = 0; i < q->n_calls; i++)
		if (q->calls[i])
			cache_recall(rpc_cache(c), q->session, q->calls[i]);
	terrace__v1__release_reply__init(r);
	r->n_status = q->n_leases;
	r->status = status;
	*reply = &r->base;
	return STATUS_OK;
}
