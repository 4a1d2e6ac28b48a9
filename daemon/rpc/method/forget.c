/* Forget: another member of the cluster has deleted blocks. As an owner of their segments this daemon also refuses
 * their names for a while, so that they are not found at a holder that has not heard of it. */
#include "daemon/block/values.h"
#include "daemon/call/delete.h"
#include "daemon/directory/hints.h"
#include "daemon/directory/table.h"
#include "daemon/names/names.h"
#include "daemon/peers/peers.h"
#include "daemon/process/daemon.h"
#include "daemon/process/diskless.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "daemon/rpc/reply.h"
#include "daemon/secrets/secrets.h"
#include "store/clock.h"
#include "store/status.h"

#include <stdatomic.h>

/* That many take a millisecond or less: longer work would keep other calls waiting. */
enum { NAMES_HERE = 1024 };

bool rpc_removes_on_worker(struct rpc_call *c, uint64_t names)
{
	if (c->worker || names <= NAMES_HERE)
		return false;
	rpc_arena_rewind(&c->arena);
	c->resume_us = 0;
	return true;
}

void rpc_refuse_names(struct rpc_call *c, const struct cache_forget_call *q)
{
	const struct names *names = secrets_names(c->daemon->secrets);
	const uint32_t tenant = names_tenant(names, q->tenant);
	struct public_name name[NAMES_SECRETS];

	for (uint32_t l = 0; l < q->layouts && tenant != NAMES_NO_TENANT; l++)
		for (uint32_t i = 0; i < q->keys->count; i++) {
			const uint8_t *key = q->keys->bytes + (size_t)i * q->keys->key_bytes;
			const uint32_t n = names_of(names, tenant, q->layout_ids[l], key, q->keys->key_bytes, name);

			directory_refuse(peers_directory(c->daemon->peers), q->tenant, name, n, clock_us(), NULL);
			for (uint32_t j = 0; j < n; j++)
				hints_forget(peers_hints(c->daemon->peers), q->tenant, &name[j]);
		}
}

enum status rpc_forget(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__ForgetRequest *q = (const Terrace__V1__ForgetRequest *)request;
	struct cache_forget_call call = { .layout_ids = q->layouts, .layouts = (uint32_t)q->n_layouts };
	struct cache_keys keys;
	const char *why = NULL;
	enum status s = rpc_peer_tenant(c, q->tenant, &call.tenant);

	if (s == STATUS_OK)
		s = rpc_keys(c, q->keys, false, &keys);
	if (s != STATUS_OK)
		return s;
	if (!c->daemon->peers)
		return rpc_no_directory(c);
	if (!q->n_layouts || q->n_layouts > CACHE_LAYOUTS_MAX)
		return rpc_fail(c, STATUS_INVALID, "layouts: %zu ids, 1 to %d are possible", q->n_layouts,
				CACHE_LAYOUTS_MAX);
	if (!c->step.removed.statuses) { /* of the first step: they hold for those that follow */
		if (rpc_removes_on_worker(c, (uint64_t)keys.count * q->n_layouts))
			return STATUS_BUSY;
		c->step.removed.statuses = rpc_take_zero(c, keys.count, sizeof *c->step.removed.statuses);
		rpc_arena_keep(&c->arena);
	}
	Terrace__V1__ForgetReply *r = rpc_take(c, sizeof *r);

	if (!r || !c->step.removed.statuses)
		return rpc_too_big(c);
	call.keys = &keys;
	if (c->daemon->diskless)
		atomic_store_explicit(&c->daemon->diskless->deleted, true, memory_order_relaxed);
	if (!c->step.removed.refused)
		rpc_refuse_names(c, &call);
	c->step.removed.refused = true;
	s = cache_forget(rpc_cache(c), &call, c->step.removed.statuses, rpc_wait(c), &why);
	if (s == STATUS_BUSY && !c->wait.last)
		return rpc_wait_busy(c);
	if (s != STATUS_OK)
		return s == STATUS_BUSY ? rpc_fail(c, STATUS_DEADLINE, "the disks did not answer in time")
					: rpc_fail_why(c, s, why);
	terrace__v1__forget_reply__init(r);
	for (uint32_t i = 0; i < keys.count; i++)
		r->blocks += c->step.removed.statuses[i] == STATUS_OK;
	*reply = &r->base;
	return STATUS_OK;
}
