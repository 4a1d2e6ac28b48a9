/* Lend and EndLoan: what another member of the cluster may read here (call/loan.h). Fetch, which reads it, is in
 * get_stream.c. */
#include "daemon/block/lock.h"
#include "daemon/block/peer.h"
#include "daemon/call/loan.h"
#include "daemon/process/daemon.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "daemon/rpc/reply.h"
#include "store/index.h"
#include "store/slot.h"
#include "store/status.h"

enum { HOLD_STANDARD_MS = 2000 };

/* How many keys the request has; 0 and a failed call: something is wrong with it. */
static uint32_t names_count(struct rpc_call *c, const Terrace__V1__LendRequest *q)
{
	uint64_t n = 0;

	for (size_t i = 0; i < q->n_wants; i++) {
		const Terrace__V1__LayoutKeys *k = q->wants[i];

		if (k->key_bytes < 1 || k->key_bytes > SLOT_KEY_MAX || k->keys.len % k->key_bytes) {
			rpc_fail(c, STATUS_INVALID, "wants[%zu]: key_bytes is 1 to %d, and keys a multiple of it", i,
				 SLOT_KEY_MAX);
			return 0;
		}
		n += k->keys.len / k->key_bytes;
	}
	if (n < 1 || n > LOAN_KEYS_MAX) {
		rpc_fail(c, STATUS_INVALID, "wants: %llu keys; 1 to %d are possible", (unsigned long long)n,
			 LOAN_KEYS_MAX);
		return 0;
	}
	return (uint32_t)n;
}

static void names_fill(const Terrace__V1__LendRequest *q, uint32_t tenant, struct index_ident *name)
{
	for (size_t i = 0; i < q->n_wants; i++) {
		const Terrace__V1__LayoutKeys *k = q->wants[i];

		for (size_t at = 0; at < k->keys.len; at += k->key_bytes)
			*name++ =
				(struct index_ident){ k->layout_id, tenant, (uint8_t)k->key_bytes, k->keys.data + at };
	}
}

static enum status lend_reply(struct rpc_call *c, const struct cache_loan *loan, const bool *lent, uint32_t count,
			      uint32_t hold_ms, ProtobufCMessage **reply)
{
	Terrace__V1__LendReply *r = rpc_take(c, sizeof *r);
	const size_t bytes = (count + 7) / 8;
	uint8_t *bits = rpc_take_zero(c, bytes, 1);

	if (!r || !bits)
		return rpc_too_big(c);
	terrace__v1__lend_reply__init(r);
	for (uint32_t i = 0; i < count; i++)
		bits[i / 8] |= (uint8_t)(lent[i] << i % 8);
	r->epoch = cache_epoch(rpc_cache(c));
	r->loan = loan->handle;
	r->hold_ms = hold_ms;
	r->lent = (ProtobufCBinaryData){ bytes, bits };
	r->bytes = loan->bytes;
	*reply = &r->base;
	return STATUS_OK;
}

enum status rpc_lend(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__LendRequest *q = (const Terrace__V1__LendRequest *)request;
	const uint32_t hold_ms = q->hold_ms ? q->hold_ms : HOLD_STANDARD_MS;
	struct cache_peer peer = { .process = 0 };
	struct index_ident *name;
	struct cache_loan loan;
	const char *why = NULL;
	bool *lent;
	uint32_t n;
	enum status s;

	if (c->peer)
		c->peer(c, &peer);
	s = rpc_peer_tenant(c, q->tenant, &peer.tenant);
	if (s)
		return s;
	if (!c->daemon->peers)
		return rpc_no_directory(c);
	if (hold_ms > LOAN_US_MAX / 1000)
		return rpc_fail(c, STATUS_INVALID, "hold_ms: %u, at most %d", hold_ms, LOAN_US_MAX / 1000);
	n = names_count(c, q);
	if (!n)
		return STATUS_INVALID;
	name = rpc_take(c, n * sizeof name[0]);
	lent = rpc_take_zero(c, n, sizeof lent[0]);
	if (!name || !lent)
		return rpc_too_big(c);
	names_fill(q, peer.tenant, name);
	const struct cache_loan_call call = { &peer, name, n, hold_ms * 1000ull, c->now_us };

	s = cache_lend(rpc_cache(c), &call, &loan, lent, &why);
	if (s)
		return rpc_fail_why(c, s, why);
	s = lend_reply(c, &loan, lent, n, hold_ms, reply);
	if (s && loan.handle)
		cache_loan_return(rpc_cache(c), peer.tenant, loan.handle);
	return s;
}

void rpc_lend_undo(struct rpc_call *c, const ProtobufCMessage *request, const ProtobufCMessage *reply)
{
	const uint64_t loan = ((const Terrace__V1__LendReply *)reply)->loan;
	uint32_t tenant;

	if (loan && !rpc_peer_tenant(c, ((const Terrace__V1__LendRequest *)request)->tenant, &tenant))
		cache_loan_return(rpc_cache(c), tenant, loan);
}

enum status rpc_end_loan(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__EndLoanRequest *q = (const Terrace__V1__EndLoanRequest *)request;
	Terrace__V1__EndLoanReply *r = rpc_take(c, sizeof *r);
	uint32_t tenant;
	enum status s = rpc_peer_tenant(c, q->tenant, &tenant);

	if (s)
		return s;
	if (!r)
		return rpc_too_big(c);
	s = cache_loan_return(rpc_cache(c), tenant, q->loan);
	if (s)
		return rpc_fail(c, s, "loan: that tenant has no such loan; it may have ended");
	terrace__v1__end_loan_reply__init(r);
	*reply = &r->base;
	return STATUS_OK;
}
