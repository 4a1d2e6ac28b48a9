/* Compact: slab files that the blocks do not need, or that are over the budget, a few a call. And Drain: no new work,
 * until all leases and reservations have ended. Both take several steps. */
#include "daemon/block/lock.h"
#include "daemon/block/views.h"
#include "daemon/rpc/methods.h"
#include "daemon/block/values.h"
#include "daemon/disk/compact.h"
#include "daemon/disk/stats.h"
#include "daemon/process/daemon.h"
#include "daemon/process/log.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/reply.h"
#include "store/status.h"

enum {
	SLICE_US = 500000,            /* on a worker at a time; a file takes as long as it takes */
	DRAIN_POLL_US = 20000,
	DRAIN_MARGIN_US = 100000,     /* before the call's own deadline: the answer must still arrive */
};

/* Finds the size to which a disk's files are to shrink. */
static enum status target(struct rpc_call *c, const Terrace__V1__CompactRequest *q, uint64_t *bytes)
{
	struct cache_disk_state disks[CACHE_DISKS_MAX];
	const uint32_t n = cache_disks(rpc_cache(c), disks, CACHE_DISKS_MAX);

	if (!n)
		return rpc_fail(c, STATUS_UNAVAILABLE, "there is no disk tier");
	if (q->disk >= n)
		return rpc_fail(c, STATUS_NOT_FOUND, "disk: no number %u, there are %u", q->disk, n);
	if (!*disks[q->disk].engine)
		return rpc_fail(c, STATUS_UNAVAILABLE, "disk %u is not in use: %s", q->disk, disks[q->disk].why);
	*bytes = q->max_bytes ? q->max_bytes : disks[q->disk].budget_bytes;
	return STATUS_OK;
}

enum status rpc_compact(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__CompactRequest *q = (const Terrace__V1__CompactRequest *)request;
	Terrace__V1__CompactReply *r = rpc_take(c, sizeof *r);
	uint64_t bytes = 0, freed;
	enum status s = target(c, q, &bytes);

	if (s != STATUS_OK)
		return s;
	if (!r)
		return rpc_too_big(c);
	terrace__v1__compact_reply__init(r);
	do {
		s = cache_compact_step(rpc_cache(c), q->disk, bytes, &freed);
		if (s == STATUS_OK) {
			r->slabs++;
			r->freed_bytes += freed;
		}
	} while (s == STATUS_OK && daemon_now_us() - c->now_us < SLICE_US);
	if (s != STATUS_OK && s != STATUS_MISS && s != STATUS_BUSY)
		return rpc_fail_why(c, s, NULL);
	r->more = s != STATUS_MISS;
	if (r->slabs)
		log_info("disk_compacted", LOG_NUM("disk", q->disk), LOG_NUM("slabs", r->slabs), LOG_NUM("freed_bytes", r->freed_bytes));
	*reply = &r->base;
	return STATUS_OK;
}

/* ---- Drain ---- */

enum status rpc_drain(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__DrainRequest *q = (const Terrace__V1__DrainRequest *)request;
	struct cache_load load;
	Terrace__V1__DrainReply *r;

	if (!c->step.drain.begun) {
		uint64_t wait = q->wait_ms < UINT64_MAX / 4000 ? q->wait_ms * 1000 : UINT64_MAX / 4;

		c->step.drain.begun = true;
		c->step.drain.until_us = c->now_us + (q->undo ? 0 : wait);
		if (c->step.drain.until_us > c->deadline_us - DRAIN_MARGIN_US)
			c->step.drain.until_us = c->deadline_us - DRAIN_MARGIN_US;
		cache_drain(rpc_cache(c), !q->undo);
		log_info(q->undo ? "drain_undone" : "drain_begun", LOG_NUM("wait_ms", q->wait_ms));
	}
	cache_load(rpc_cache(c), &load);
	bool drained = !q->undo && !load.leases && !load.reservations && !load.hands_on;

	if (!q->undo && !drained && c->now_us < c->step.drain.until_us) {
		c->resume_us = c->now_us + DRAIN_POLL_US;
		return STATUS_BUSY;
	}
	r = rpc_take(c, sizeof *r);
	if (!r)
		return rpc_too_big(c);
	terrace__v1__drain_reply__init(r);
	r->sessions = load.sessions;
	r->leases = load.leases;
	r->reservations = load.reservations;
	r->drained = drained;
	r->hands_on = load.hands_on;
	*reply = &r->base;
	return STATUS_OK;
}
