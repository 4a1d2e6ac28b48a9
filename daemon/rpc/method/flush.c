/* Flush: durable before the answer. */
#include "daemon/block/views.h"
#include "daemon/rpc/methods.h"
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/call/faults.h"
#include "daemon/call/flush.h"
#include "daemon/disk/stats.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/reply.h"
#include "store/status.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The status and sentence of a flush that cannot go on, or is out of time. No status of a key says that. */
static enum status not_done(struct rpc_call *c, enum status s, const char *why)
{
	if (s == STATUS_BUSY && c->wait.unverified)
		return rpc_fail(c, STATUS_DEADLINE, "all is durable but %" PRIu64 " blocks that a crash left, which are not all read yet; that goes on",
				c->wait.unverified);
	if (s == STATUS_BUSY)
		return rpc_fail(c, STATUS_DEADLINE, "the blocks were not all durable in time; what was begun goes on");
	return rpc_fail_why(c, s, why);
}

/* Why everything is UNAVAILABLE: what the cache says, and which disk it is about. "": there is no memory for it. */
static char *reason_without_disk(struct rpc_call *c, const char *why)
{
	struct cache_fault *fault = rpc_take(c, sizeof *fault);
	const bool disk = fault && cache_faults(rpc_cache(c), fault, 1) && !strncmp(fault->text, "disk", 4);
	char *text = fault ? rpc_take(c, sizeof *fault + strlen(why) + 3) : NULL;

	if (!text)
		return (char *)protobuf_c_empty_string;
	sprintf(text, "%s%s%s", why, disk ? ": " : "", disk ? fault->text : "");
	return rpc_text(text);
}

/* Whether the status is a flush's own outcome. Other statuses say that the call made no sense. */
static bool is_outcome(enum status s)
{
	return s == STATUS_OK || s == STATUS_EXHAUSTED || s == STATUS_IO || s == STATUS_UNAVAILABLE;
}

static bool is_failed(enum status s)
{
	return s != STATUS_OK && s != STATUS_MISS;
}

/* What keeps blocks from being durable. "": nothing to be told, or no memory for it. */
static char *reason(struct rpc_call *c, enum status s, const char *why, const Terrace__V1__FlushReply *r)
{
	char *text;

	if (s == STATUS_UNAVAILABLE)
		return reason_without_disk(c, why);
	text = rpc_take(c, RPC_WHY_MAX);
	for (size_t i = 0; text && i < r->n_status; i++) {
		if (!is_failed((enum status)r->status[i]))
			continue;
		cache_durable_problem(rpc_cache(c), &c->wait, text, RPC_WHY_MAX);
		return rpc_text(text);
	}
	return (char *)protobuf_c_empty_string;
}

enum status rpc_flush(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__FlushRequest *q = (const Terrace__V1__FlushRequest *)request;
	Terrace__V1__FlushReply *r = rpc_take(c, sizeof *r);
	struct cache_keys keys;
	const char *why = NULL;
	enum status s = q->keys ? rpc_keys(c, q->keys, false, &keys) : STATUS_OK;

	if (s != STATUS_OK)
		return s;
	const uint32_t count = q->keys ? keys.count : 1;
	enum status *statuses = rpc_take_zero(c, count, sizeof *statuses);
	Terrace__V1__Status *status = rpc_take(c, count * sizeof *status);

	if (!r || !statuses || !status)
		return rpc_too_big(c);
	s = cache_flush(rpc_cache(c), q->session, q->keys ? &keys : NULL, c->now_us, rpc_wait(c), statuses, &why);
	if (s == STATUS_BUSY && !c->wait.last)
		return rpc_wait_busy(c);
	if (!is_outcome(s))
		return not_done(c, s, why);
	terrace__v1__flush_reply__init(r);
	r->epoch = cache_epoch(rpc_cache(c));
	r->n_status = count;
	r->status = status;
	for (uint32_t i = 0; i < count; i++)
		status[i] = (Terrace__V1__Status)(s == STATUS_OK ? statuses[i] : s);
	r->reason = reason(c, s, why, r);
	*reply = &r->base;
	return STATUS_OK;
}
