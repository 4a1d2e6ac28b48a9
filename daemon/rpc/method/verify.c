/* Verify: a scrub of memory, then of the disks, in slices on a worker, so that it neither holds one nor outruns its rate.
 *
 * A client's cursor is the core's, whose highest bit is free: set, it is a disk's. 0 is the beginning and, in an answer, the end.
 */
#include "daemon/block/views.h"
#include "daemon/call/inspect.h"
#include "daemon/disk/durable.h"
#include "daemon/disk/scrub.h"
#include "daemon/process/daemon.h"
#include "daemon/process/log.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "daemon/rpc/reply.h"
#include "store/status.h"

enum {
	STEP_BYTES = 16 << 20,
	SLICE_US = 50000,             /* on a worker at a time */
	SLICES_PER_SECOND = 20,
};
#define ON_DISKS (1ull << 63)

/* When the bytes that were read so far are within the rate. */
static uint64_t due_us(const struct rpc_call *c, uint64_t bytes_per_second)
{
	double seconds = bytes_per_second ? (double)c->step.verify.sum.bytes / (double)bytes_per_second : 0;

	return c->began_us + (seconds < 86400 ? (uint64_t)(seconds * 1e6) : 86400000000ull);
}

/* One step of the scrub of memory or of that of the disks. *cursor is the client's, which says which. */
static enum status verify_step(struct cache *cache, uint64_t *cursor, uint64_t bytes, struct cache_verified *sum)
{
	uint64_t at = *cursor & ~ON_DISKS;
	enum status s;

	if (*cursor & ON_DISKS) {
		s = cache_verify_disk_step(cache, &at, bytes, sum);
		*cursor = at == UINT64_MAX ? 0 : ON_DISKS | at;
	} else {
		s = cache_verify_step(cache, &at, bytes, sum);
		*cursor = at == UINT64_MAX ? ON_DISKS : at;
	}
	return s;
}

/* When the call stops: after nine tenths of its time, as the answer must still arrive. */
static uint64_t last_us(const struct rpc_call *c)
{
	return c->began_us + (c->deadline_us - c->began_us) / 10 * 9;
}

/* Until when this call goes on. A client that names no time waits for the end of the scrub. */
static uint64_t until_us(const struct rpc_call *c, uint64_t max_ms)
{
	if (!max_ms)
		return UINT64_MAX;
	return max_ms < (last_us(c) - c->began_us) / 1000 ? c->began_us + max_ms * 1000 : last_us(c);
}

static enum status verify_answer(struct rpc_call *c, uint64_t bytes_per_second, ProtobufCMessage **reply)
{
	const struct cache_verified *sum = &c->step.verify.sum;
	const uint64_t now = daemon_now_us(), due = due_us(c, bytes_per_second);
	Terrace__V1__VerifyReply *r = rpc_take(c, sizeof *r);

	if (!r)
		return rpc_too_big(c);
	terrace__v1__verify_reply__init(r);
	r->blocks = sum->blocks;
	r->bytes = sum->bytes;
	r->corrupt = sum->corrupt;
	r->unread = sum->unread;
	r->elapsed_ms = (now - c->began_us) / 1000;
	r->next = c->step.verify.cursor;
	r->wait_ms = r->next && due > now ? (due - now + 999) / 1000 : 0;
	r->total_blocks = cache_verify_blocks(rpc_cache(c));
	if (sum->corrupt)
		log_warn("verify_found_damage", LOG_NUM("blocks", sum->corrupt));
	if (sum->unread)
		log_warn("verify_passed_over", LOG_NUM("blocks", sum->unread));
	*reply = &r->base;
	return STATUS_OK;
}

enum status rpc_verify(struct rpc_call *c, const ProtobufCMessage *request, ProtobufCMessage **reply)
{
	const Terrace__V1__VerifyRequest *q = (const Terrace__V1__VerifyRequest *)request;
	const uint64_t rate = q->max_bytes_per_second, until = until_us(c, q->max_ms);
	const uint64_t bytes = rate && rate / SLICES_PER_SECOND < STEP_BYTES ? rate / SLICES_PER_SECOND + 1 : STEP_BYTES;
	uint64_t *cursor = &c->step.verify.cursor;

	if (!c->step.verify.begun && !c->step.verify.sum.blocks) {
		*cursor = q->from;
		if (q->rebuild && !q->from && !c->step.verify.renewed) {
			const enum status s = cache_catalog_renew(rpc_cache(c));

			if (s == STATUS_BUSY)
				return rpc_fail(c, STATUS_UNAVAILABLE, "the catalog is being made anew already, or what earlier "
								       "runs left is still being taken up: try again later");
			if (s != STATUS_OK)
				return rpc_fail(c, s, "there is no disk tier whose catalog could be made anew");
			c->step.verify.renewed = true;
			log_info("catalog_renewed", LOG_TEXT("reason", "asked for"));
		}
	}
	/* The end is 0, and so is the beginning: a call takes one step at least. */
	while (!c->step.verify.begun || *cursor) {
		const uint64_t now = daemon_now_us(), due = due_us(c, rate);
		enum status s;

		/* What was read beyond the rate the client waits for. */
		if (c->step.verify.begun && now >= until)
			break;
		if (due > now || now - c->now_us > SLICE_US) {
			c->resume_us = due < until ? due : until;
			return STATUS_BUSY;
		}
		c->step.verify.begun = true;
		s = verify_step(rpc_cache(c), cursor, bytes, &c->step.verify.sum);
		if (s != STATUS_OK)
			return rpc_fail_why(c, s, NULL);
	}
	return verify_answer(c, rate, reply);
}
