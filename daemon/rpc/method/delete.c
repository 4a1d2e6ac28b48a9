/* Delete. Older clients do not know answers about a part of the keys, and take any answer for the whole. */
#include "daemon/block/values.h"
#include "daemon/call/delete.h"
#include "daemon/disk/stats.h"
#include "daemon/process/daemon.h"
#include "daemon/process/diskless.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "daemon/rpc/reply.h"
#include "store/status.h"

#include <stdatomic.h>

static bool is_in_part(const enum status *statuses, uint32_t count)
{
	uint32_t i = 0;

	while (i < count && statuses[i] != STATUS_DEADLINE)
		i++;
	return i < count;
}

/* The status and sentence of a delete whose blocks are out of sight, but not known to be gone for good. */
static enum status not_done(struct rpc_call *c, enum status s, const char *why)
{
	char problem[RPC_WHY_MAX] = "";

	if (s == STATUS_IO)
		cache_durable_problem(rpc_cache(c), &c->wait, problem, sizeof problem);
	return problem[0] ? rpc_fail(c, s, "the blocks are out of sight, but a restart may bring them back: %s", problem) : rpc_fail_why(c, s, why);
}

enum status rpc_delete(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__DeleteRequest *q = (const Terrace__V1__DeleteRequest *)request;
	struct cache_keys keys;
	const char *why = NULL;
	enum status s = rpc_keys(c, q->keys, false, &keys);

	if (s != STATUS_OK)
		return s;
	if (!c->step.statuses) { /* of the first step: they hold for those that follow */
		c->step.statuses = rpc_take_zero(c, keys.count, sizeof *c->step.statuses);
		rpc_arena_keep(&c->arena);
	}
	enum status *const statuses = c->step.statuses;
	Terrace__V1__DeleteReply *r = rpc_take(c, sizeof *r);
	Terrace__V1__Status *status = rpc_take(c, keys.count * sizeof *status);

	if (!r || !statuses || !status)
		return rpc_too_big(c);
	if (c->daemon->diskless)
		atomic_store_explicit(&c->daemon->diskless->deleted, true, memory_order_relaxed);
	s = cache_delete(rpc_cache(c), q->session, &keys, statuses, rpc_wait(c), &why);
	if (s == STATUS_BUSY && !c->wait.last)
		return rpc_wait_busy(c);
	if (s == STATUS_BUSY || (s == STATUS_OK && !q->in_part && is_in_part(statuses, keys.count)))
		return rpc_fail(c, STATUS_DEADLINE, "the disks did not answer in time: until they do, a restart may bring blocks back");
	if (s != STATUS_OK)
		return not_done(c, s, why);
	terrace__v1__delete_reply__init(r);
	r->n_status = keys.count;
	r->status = status;
	for (uint32_t i = 0; i < keys.count; i++)
		status[i] = (Terrace__V1__Status)statuses[i];
	*reply = &r->base;
	return STATUS_OK;
}
