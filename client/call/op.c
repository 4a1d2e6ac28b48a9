/* Operations: their life from start to finish.
 *
 *     RUNNING --(the call is done)--> TELLING --(the eventfd is written, the callback has returned)--> DONE
 *
 * The first step makes terrace_op_done true. terrace_op_finish waits for the second step: after it the callback is not
 * running, and its argument may be freed. If finish is called inside the callback, it does not wait for that callback.
 * The eventfd too may be closed after finish.
 */
#include "client/call/op.h"

#include "client/session/connect.h"
#include "client/session/session.h"
#include "client/transport/grpc.h"
#include "client/value/inside.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static void op_drop(struct terrace_op *op)
{
	struct client_view *view = op->view;

	if (atomic_fetch_sub_explicit(&op->references, 1, memory_order_acq_rel) != 1)
		return;
	pthread_cond_destroy(&op->changed);
	pthread_mutex_destroy(&op->lock);
	op->dispose(op);
	client_view_drop(view);
}

void client_op_init(struct terrace_op *op, enum client_op_kind kind, struct client_view *view,
		    const struct terrace_completion *completion, void (*dispose)(struct terrace_op *op))
{
	atomic_init(&op->references, 1);
	atomic_init(&op->state, CLIENT_OP_RUNNING);
	op->generation = view->client->generation;
	op->kind = kind;
	op->view = view;
	op->completion = completion ? *completion : (struct terrace_completion){.eventfd = -1};
	op->dispose = dispose;
	pthread_mutex_init(&op->lock, NULL);
	pthread_cond_init(&op->changed, NULL);
	client_view_hold(view);
}

static void op_state(struct terrace_op *op, enum client_op_state state)
{
	pthread_mutex_lock(&op->lock);
	atomic_store_explicit(&op->state, (int)state, memory_order_release);
	pthread_cond_broadcast(&op->changed);
	pthread_mutex_unlock(&op->lock);
}

static void eventfd_add(int eventfd)
{
	const uint64_t one = 1;

	while (eventfd >= 0 && write(eventfd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

/* On the background thread, or on that of gpu/stream_thread.h. A full or closed eventfd is the caller's affair. */
static void op_done(void *arg, enum terrace_status status)
{
	struct terrace_op *op = arg;

	op->status = client_view_status(status);
	if (status)
		strcpy(op->error, terrace_error());
	pthread_mutex_lock(&op->lock);
	op->call = NULL;
	pthread_mutex_unlock(&op->lock);
	op_state(op, CLIENT_OP_TELLING);
	eventfd_add(op->completion.eventfd);
	if (op->completion.done)
		op->completion.done(op, op->completion.arg);
	op_state(op, CLIENT_OP_DONE);
	op_drop(op);
}

enum terrace_status client_op_start(struct terrace_op *op, const struct client_job *job, struct terrace_op **out)
{
	enum terrace_status status;

	atomic_fetch_add_explicit(&op->references, 1, memory_order_relaxed);
	*out = op; /* now: the callback may read it, end the operation, and free the place */
	status = client_rpc_start(op->view->client->rpc, job, op_done, &op->call);
	if (!status)
		return TERRACE_OK;
	*out = NULL;
	op_drop(op);
	op_drop(op);
	return status;
}

void client_op_defer(struct terrace_op *op, struct terrace_op **out)
{
	atomic_fetch_add_explicit(&op->references, 1, memory_order_relaxed);
	*out = op;
}

/* The lock keeps the call's end from being noted before its beginning. */
void client_op_launch(struct terrace_op *op, const struct client_job *job)
{
	enum terrace_status status = TERRACE_CANCELLED;

	pthread_mutex_lock(&op->lock);
	if (atomic_load(&op->cancelled))
		client_fail(status, "the operation was cancelled before it began");
	else
		status = client_rpc_start(op->view->client->rpc, job, op_done, &op->call);
	pthread_mutex_unlock(&op->lock);
	if (status)
		op_done(op, status);
}

void client_op_complete(struct terrace_op *op, enum terrace_status status)
{
	op_done(op, status);
}

enum terrace_status client_op_await(struct terrace_op *op, enum client_op_kind kind, bool *ended)
{
	enum terrace_status status;
	bool inside;

	*ended = false;
	if (!op || op->kind != kind)
		return client_fail(TERRACE_INVALID, "finish: not an operation of this kind: each has a finish of its own");
	status = client_process_check(op->generation);
	if (status)
		return status;
	inside = client_rpc_in_background(op->view->client->rpc) || client_after_inside();
	pthread_mutex_lock(&op->lock);
	if (inside && atomic_load_explicit(&op->state, memory_order_relaxed) == CLIENT_OP_RUNNING) {
		pthread_mutex_unlock(&op->lock);
		return client_fail(TERRACE_PRECONDITION, "finish: a callback would wait for itself: "
				   "call it when the operation is complete");
	}
	/* The call ends at its deadline at the latest. */
	while (!inside && atomic_load_explicit(&op->state, memory_order_relaxed) != CLIENT_OP_DONE)
		pthread_cond_wait(&op->changed, &op->lock);
	pthread_mutex_unlock(&op->lock);
	*ended = true;
	if (op->status)
		client_fail(op->status, "%s", op->error);
	return op->status;
}

void client_op_end(struct terrace_op *op)
{
	op_drop(op);
}

bool terrace_op_done(const struct terrace_op *op)
{
	return atomic_load_explicit(&op->state, memory_order_acquire) != CLIENT_OP_RUNNING;
}

void terrace_op_cancel(struct terrace_op *op)
{
	if (!op || client_forked(op->generation))
		return;
	pthread_mutex_lock(&op->lock);
	atomic_store(&op->cancelled, true);
	if (op->call)
		client_rpc_cancel(op->call);
	pthread_mutex_unlock(&op->lock);
}
