/* Delete. Older clients do not know answers about a part of the keys, and take any answer for the whole. */
#include "daemon/block/values.h"
#include "daemon/call/delete.h"
#include "daemon/disk/stats.h"
#include "daemon/peers/forget.h"
#include "daemon/process/daemon.h"
#include "daemon/process/diskless.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "daemon/rpc/reply.h"
#include "daemon/session/open.h"
#include "store/clock.h"
#include "store/status.h"

#include <stdatomic.h>

enum { LOOK_AGAIN_US = 1000 };
#define DELETED_HERE "the blocks are gone from this node, but "
#define AGAIN ": delete them again later"

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

/* Refuses the names as an owner, in the same step as the delete begins. */
static void names_refuse(struct rpc_call *c, const struct cache_forget_call *q)
{
	if (c->daemon->peers && !c->step.removed.refused)
		rpc_refuse_names(c, q);
	c->step.removed.refused = true;
}

/* Tells the other members of the cluster, once the blocks are gone here. BUSY: they are being told. Whether a key was
 * there is this node's answer alone. */
static enum status others_forget(struct rpc_call *c, const Terrace__V1__DeleteRequest *q,
				 const struct cache_forget_call *call, enum status *statuses)
{
	const struct cache_keys *keys = call->keys;
	struct peers_forgotten f;

	if (!c->daemon->peers)
		return STATUS_OK;
	if (!c->step.removed.told)
		c->step.removed.number =
			peers_forget(c->daemon->peers, call, clock_us() + (c->deadline_us - c->now_us) * 8 / 10);
	c->step.removed.told = true;
	peers_forget_look(c->daemon->peers, c->step.removed.number, &f);
	if (f.state == FORGET_GOES_ON && !rpc_wait(c)->last) {
		c->resume_us = c->now_us + LOOK_AGAIN_US;
		rpc_arena_rewind(&c->arena);
		return STATUS_BUSY;
	}
	if (f.state == FORGET_CONFIRMED)
		return STATUS_OK;
	for (uint32_t i = 0; i < keys->count; i++)
		statuses[i] = STATUS_DEADLINE;
	if (f.state == FORGET_GOES_ON)
		rpc_fail(c, STATUS_DEADLINE, DELETED_HERE "not all members of the cluster have answered in time" AGAIN);
	else if (!f.members)
		rpc_fail(c, STATUS_DEADLINE, DELETED_HERE "too many deletes are under way to tell other members" AGAIN);
	else
		rpc_fail(c, STATUS_DEADLINE, DELETED_HERE "%u members of the cluster have not confirmed (%s: %s)" AGAIN,
			 f.members, f.member, f.why);
	return q->in_part ? STATUS_OK : STATUS_DEADLINE;
}

enum status rpc_delete(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__DeleteRequest *q = (const Terrace__V1__DeleteRequest *)request;
	uint64_t ids[CACHE_LAYOUTS_MAX];
	struct cache_keys keys;
	const char *why = NULL, *tenant;
	enum status s = rpc_keys(c, q->keys, false, &keys);

	if (s != STATUS_OK)
		return s;
	const struct cache_forget_call call = {
		.tenant = cache_session_tenant(rpc_cache(c), q->session),
		.layout_ids = ids,
		.layouts = cache_session_layout_ids(rpc_cache(c), q->session, 0, ids, &tenant),
		.keys = &keys,
	};

	if (!c->step.removed.statuses) { /* of the first step: they hold for those that follow */
		if (rpc_removes_on_worker(c, (uint64_t)keys.count * call.layouts))
			return STATUS_BUSY;
		c->step.removed.statuses = rpc_take_zero(c, keys.count, sizeof *c->step.removed.statuses);
		rpc_arena_keep(&c->arena);
	}
	enum status *const statuses = c->step.removed.statuses;
	Terrace__V1__DeleteReply *r = rpc_take(c, sizeof *r);
	Terrace__V1__Status *status = rpc_take(c, keys.count * sizeof *status);

	if (!r || !statuses || !status)
		return rpc_too_big(c);
	if (c->daemon->diskless)
		atomic_store_explicit(&c->daemon->diskless->deleted, true, memory_order_relaxed);
	if (!c->step.removed.told)
		s = cache_delete(rpc_cache(c), q->session, &keys, statuses, rpc_wait(c), &why);
	if (s == STATUS_OK || s == STATUS_BUSY)
		names_refuse(c, &call);
	if (s == STATUS_BUSY && !c->wait.last)
		return rpc_wait_busy(c);
	if (s == STATUS_BUSY || (s == STATUS_OK && !q->in_part && is_in_part(statuses, keys.count)))
		return rpc_fail(c, STATUS_DEADLINE, "the disks did not answer in time: until they do, a restart may bring blocks back");
	if (s != STATUS_OK)
		return not_done(c, s, why);
	s = others_forget(c, q, &call, statuses);
	if (s != STATUS_OK)
		return s;
	terrace__v1__delete_reply__init(r);
	r->n_status = keys.count;
	r->reason = rpc_words(c, c->why[0] ? c->why : NULL);
	r->status = status;
	for (uint32_t i = 0; i < keys.count; i++)
		status[i] = (Terrace__V1__Status)statuses[i];
	*reply = &r->base;
	return STATUS_OK;
}
