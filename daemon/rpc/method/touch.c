/* Touch and Report: what an engine used and knows. */
#include "daemon/block/values.h"
#include "daemon/call/lookup.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "daemon/rpc/reply.h"
#include "store/status.h"

enum status rpc_touch(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__TouchRequest *q = (const Terrace__V1__TouchRequest *)request;
	Terrace__V1__TouchReply *r = rpc_take(c, sizeof *r);
	struct cache_keys keys;
	uint32_t found = 0;
	const char *why = NULL;
	enum status s = rpc_keys(c, q->keys, true, &keys);

	if (s != STATUS_OK)
		return s;
	if (!r)
		return rpc_too_big(c);
	s = cache_touch(rpc_cache(c), q->session, &keys, c->now_us, &found, &why);
	if (s != STATUS_OK)
		return rpc_fail_why(c, s, why);
	terrace__v1__touch_reply__init(r);
	r->found = found;
	*reply = &r->base;
	return STATUS_OK;
}

enum status rpc_report(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__ReportRequest *q = (const Terrace__V1__ReportRequest *)request;
	Terrace__V1__ReportReply *r = rpc_take(c, sizeof *r);
	struct cache_keys keys;
	const char *why = NULL;
	enum status s = rpc_keys(c, q->keys, true, &keys);

	if (s != STATUS_OK)
		return s;
	if ((unsigned)q->event > TERRACE__V1__EVENT__EVENT_SESSION_END)
		return rpc_fail(c, STATUS_INVALID, "event: unknown event %d", (int)q->event);
	if (!r)
		return rpc_too_big(c);
	const struct cache_hint hint = {
		.event = (enum cache_event)q->event,
		.priority = q->priority,
		.ttl_ms = q->ttl_ms,
	};

	s = cache_report(rpc_cache(c), q->session, &keys, &hint, c->now_us, &why);
	if (s != STATUS_OK)
		return rpc_fail_why(c, s, why);
	terrace__v1__report_reply__init(r);
	*reply = &r->base;
	return STATUS_OK;
}
