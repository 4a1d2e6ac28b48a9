/* Publishes slots that a GPU writes: the commit is sent when the stream's work so far is done. While the GPU may still
 * write, no slot is given back. A commit that is late or cancelled fails; its slots are aborted when the stream has
 * reached that point after all.
 */
#include "client/call/commit.h"

#include "client/call/reserve.h"
#include "client/session/connect.h"
#include "client/driver/gpu.h"
#include "client/gpu/stream_thread.h"
#include "client/memory/attachment.h"
#include "client/memory/mapping.h"
#include "client/session/session.h"
#include "client/transport/grpc.h"
#include "client/value/status.h"

#include <stddef.h>
#include <stdlib.h>

struct waiting {
	struct client_after after;
	struct terrace_reservation *reservation;
	struct client_commit_op *op; /* NULL: it has completed without us */
};

static struct waiting *waiting_of(struct client_after *after)
{
	return (struct waiting *)((char *)after - offsetof(struct waiting, after));
}

static bool given_up(struct client_after *after)
{
	return atomic_load(&waiting_of(after)->op->op.cancelled);
}

static void late(struct client_after *after, enum terrace_status status)
{
	struct waiting *w = waiting_of(after);
	struct client_commit_op *op = w->op;

	w->op = NULL;
	op->committing.reservation = NULL;
	client_fail(status, "commit: the stream has not got so far in the call's time: commit again, or give it more");
	client_op_complete(&op->op, status);
}

static void run(struct client_after *after, bool lost)
{
	struct waiting *w = waiting_of(after);

	if (!w->op) {
		client_commit_end(w->reservation, TERRACE_CANCELLED);
	} else if (lost) {
		client_fail(TERRACE_UNAVAILABLE, "commit: the GPU is lost, and with it what was written there: "
			    "put the blocks into host memory");
		client_op_complete(&w->op->op, TERRACE_UNAVAILABLE);
	} else {
		struct client_job job = client_commit_op_job(w->op);

		client_op_launch(&w->op->op, &job);
	}
	free(w);
}

static enum terrace_status after_check(struct terrace_reservation *r, struct terrace_op **op, struct client_gpu **gpu)
{
	enum terrace_status status = client_reservation_check(r);

	if (!status && (r->open || !op))
		status = client_fail(TERRACE_INVALID, "the reservation is an open block, or the pointer for the operation is NULL");
	if (!status && r->places.gpu < 0)
		status = client_fail(TERRACE_PRECONDITION, "the reservation was not made for a GPU: set gpu in terrace_reserve_options");
	return status ? status : client_lent_gpu(&r->view->attachment->memory, (uint32_t)r->places.gpu, gpu);
}

enum terrace_status terrace_commit_after(struct terrace_reservation *r, void *stream, uint64_t timeout_us,
					 const struct terrace_completion *completion, struct terrace_op **op)
{
	struct client_gpu *gpu;
	enum terrace_status status = after_check(r, op, &gpu);
	struct waiting *w = status ? NULL : calloc(1, sizeof(*w));
	uint64_t deadline_us;

	if (!status && !w)
		status = client_fail(TERRACE_EXHAUSTED, "no memory");
	if (status)
		return client_fail_in(status, "commit");
	deadline_us = client_call_deadline(r->view->client, timeout_us);
	status = client_commit_op_create(r, deadline_us, completion, &w->op);
	if (status) {
		free(w);
		return client_fail_in(status, "commit");
	}
	w->reservation = r;
	w->after = (struct client_after){.late_us = deadline_us, .late = late, .given_up = given_up, .run = run};
	client_op_defer(&w->op->op, op);
	status = client_after_start(&w->after, r->view->attachment, gpu, stream);
	if (!status)
		return TERRACE_OK;
	/* Nothing has begun: the handle stays the caller's. */
	*op = NULL;
	w->op->committing.reservation = NULL;
	client_op_end(&w->op->op);
	client_op_end(&w->op->op);
	free(w);
	return client_fail_in(status, "commit");
}
