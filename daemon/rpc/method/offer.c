/* Offer: another member is about to drop blocks, and has lent them (call/offer.h). The first step begins to read what
 * there is free memory for; the last one says what is here. */
#include "daemon/block/key.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/source.h"
#include "daemon/call/loan.h"
#include "daemon/call/offer.h"
#include "daemon/peers/peers.h"
#include "daemon/peers/source.h"
#include "daemon/process/daemon.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "daemon/rpc/reply.h"
#include "store/index.h"
#include "store/slot.h"
#include "store/status.h"

#include <string.h>

/* What is wrong with the request; NULL: nothing. */
static const char *problem(const Terrace__V1__OfferRequest *q)
{
	size_t n = 0;

	if (q->node.len != DIRECTORY_NODE_BYTES)
		return "node: it has 16 bytes";
	if (!q->loan || q->hold_ms > LOAN_US_MAX / 1000)
		return "loan, hold_ms: a loan of at most 30 s";
	for (size_t i = 0; i < q->n_offers; i++) {
		const Terrace__V1__OfferKeys *k = q->offers[i];

		if (k->key_bytes < 1 || k->key_bytes > SLOT_KEY_MAX || k->keys.len % k->key_bytes)
			return "offers: key_bytes is 1 to 64, and keys a multiple of it";
		if (k->n_segments != k->keys.len / k->key_bytes)
			return "offers: each key has a segment";
		n += k->n_segments;
	}
	return n < 1 || n > OFFER_BLOCKS_MAX ? "offers: 1 to 64 keys" : NULL;
}

static enum status keys_read(struct rpc_call *c, const Terrace__V1__OfferRequest *q, uint32_t tenant,
			     struct run_key *out, uint32_t *count)
{
	*count = 0;
	for (size_t i = 0; i < q->n_offers; i++) {
		const Terrace__V1__OfferKeys *k = q->offers[i];
		struct layout_pool *pool;
		const char *why;
		const enum status s =
			cache_offered_layout(rpc_cache(c), tenant, k->layout.data, k->layout.len, &pool, &why);

		if (s)
			return rpc_fail_why(c, s, why);
		for (size_t at = 0; at < k->n_segments; at++) {
			struct run_key *to = &out[(*count)++];

			*to = (struct run_key){ .pool = pool, .segment = k->segments[at] };
			block_ident(pool, k->keys.data + at * k->key_bytes, k->key_bytes, &to->name);
		}
	}
	return STATUS_OK;
}

/* Begins, or goes on. BUSY: it has been put aside. */
static enum status take(struct rpc_call *c, const Terrace__V1__OfferRequest *q, uint32_t tenant,
			const struct key_run *run, bool *taken)
{
	struct cache_wait *w = rpc_wait(c);
	struct directory_run from = { .epoch = q->epoch };

	memcpy(from.node, q->node.data, sizeof from.node);
	const struct peer_lent lent = { &from, tenant_of_number(rpc_cache(c), tenant)->name, q->loan,
					q->hold_ms * 1000ull };

	if (!w->stage && cache_draining(rpc_cache(c))) {
		c->step.offered = STATUS_EXHAUSTED;
		return STATUS_OK;
	}
	if (!w->stage)
		peer_source_lent(peers_source(c->daemon->peers), &lent, run); /* if not, nothing is known of them */
	return cache_offered_take(rpc_cache(c), run, c->now_us, w, taken, &c->step.offered);
}

static enum status offer_reply(struct rpc_call *c, const bool *taken, uint32_t count, ProtobufCMessage **reply)
{
	Terrace__V1__OfferReply *r = rpc_take(c, sizeof *r);
	const size_t bytes = (count + 7) / 8;
	uint8_t *bits = rpc_take_zero(c, bytes, 1);
	const enum status s = c->step.offered;

	if (!r || !bits)
		return rpc_too_big(c);
	terrace__v1__offer_reply__init(r);
	for (uint32_t i = 0; i < count; i++)
		bits[i / 8] |= (uint8_t)(taken[i] << i % 8);
	r->epoch = cache_epoch(rpc_cache(c));
	r->taken = (ProtobufCBinaryData){ bytes, bits };
	r->result = s == STATUS_OK	  ? TERRACE__V1__OFFER_RESULT__OFFER_TAKEN :
		    s == STATUS_EXHAUSTED ? TERRACE__V1__OFFER_RESULT__OFFER_NO_ROOM :
		    s == STATUS_BUSY	  ? TERRACE__V1__OFFER_RESULT__OFFER_BUSY :
					    TERRACE__V1__OFFER_RESULT__OFFER_UNWANTED;
	*reply = &r->base;
	return STATUS_OK;
}

enum status rpc_offer(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__OfferRequest *q = (const Terrace__V1__OfferRequest *)request;
	struct run_key key[OFFER_BLOCKS_MAX];
	struct key_run run = { 0, key };
	bool taken[OFFER_BLOCKS_MAX] = { false };
	uint32_t tenant;
	enum status s = rpc_peer_tenant(c, q->tenant, &tenant);

	if (s)
		return s;
	if (!c->daemon->peers)
		return rpc_no_directory(c);
	if (problem(q))
		return rpc_fail(c, STATUS_INVALID, "%s", problem(q));
	s = keys_read(c, q, tenant, key, &run.count);
	if (s)
		return s;
	if (take(c, q, tenant, &run, taken) == STATUS_BUSY)
		return rpc_wait_busy(c);
	return offer_reply(c, taken, run.count, reply);
}
