/* Warm: blocks from disk to memory, or to a GPU, ahead of their use. */
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/call/warm.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "daemon/rpc/reply.h"
#include "store/status.h"

enum status rpc_warm(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__WarmRequest *q = (const Terrace__V1__WarmRequest *)request;
	Terrace__V1__WarmReply *r = rpc_take(c, sizeof *r);
	struct cache_keys keys;
	const char *why = NULL;
	uint32_t blocks = 0;
	int32_t gpu;
	enum status s = rpc_keys(c, q->keys, false, &keys);

	if (s == STATUS_OK)
		s = rpc_gpu(c, q->gpu, &gpu);
	if (s != STATUS_OK)
		return s;
	if (!r)
		return rpc_too_big(c);
	const struct cache_warm_call call = { .session = q->session, .keys = &keys, .gpu = gpu, .now_us = c->now_us };

	s = cache_warm(rpc_cache(c), &call, rpc_wait(c), &blocks, &why);
	if (s == STATUS_BUSY && q->wait)
		return rpc_wait_busy(c);
	if (s != STATUS_OK && s != STATUS_BUSY)
		return rpc_fail_why(c, s, why);
	terrace__v1__warm_reply__init(r);
	r->epoch = cache_epoch(rpc_cache(c));
	r->blocks = blocks;
	*reply = &r->base;
	return STATUS_OK;
}
