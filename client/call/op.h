/* Asynchronous operations. */
#ifndef TERRACE_CLIENT_CALL_OP_H
#define TERRACE_CLIENT_CALL_OP_H

#include "client/value/status.h"

#include <pthread.h>
#include <stdatomic.h>

struct client_job;

enum client_op_kind { CLIENT_OP_LOOKUP, CLIENT_OP_LEASE, CLIENT_OP_RESERVE, CLIENT_OP_COMMIT, CLIENT_OP_PUT, CLIENT_OP_GET,
		      CLIENT_OP_WARM, CLIENT_OP_FLUSH };

enum client_op_state {
	CLIENT_OP_RUNNING,
	CLIENT_OP_TELLING, /* done; the callback is running */
	CLIENT_OP_DONE,
};

/* Embedded as the first member of each kind's struct, which holds arguments and results. It has two references: the
 * user's, ended by finish, and the call's, ended after the callback. */
struct terrace_op {
	atomic_uint references;
	unsigned generation;
	enum client_op_kind kind;
	struct client_view *view; /* with a reference */
	struct terrace_completion completion;
	void (*dispose)(struct terrace_op *op); /* frees the struct, and results that the user has not taken */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	atomic_int state;             /* enum client_op_state; written under the lock */
	struct client_rpc_call *call; /* while running */
	atomic_bool cancelled;        /* the user has asked for its end */
	enum terrace_status status;
	char error[CLIENT_ERROR_MAX];
};

/* Prepares an op in zeroed memory from malloc. dispose() frees that memory in the end. */
void client_op_init(struct terrace_op *op, enum client_op_kind kind, struct client_view *view,
		    const struct terrace_completion *completion, void (*dispose)(struct terrace_op *op));

/* Starts the call; job->arg is the op. *out is set before the op can complete. On failure the op is disposed of, *out
 * is NULL, and the completion is not signalled. */
enum terrace_status client_op_start(struct terrace_op *op, const struct client_job *job, struct terrace_op **out);

/* client_op_start in two steps, for a call that must wait for something. client_op_defer sets *out. Later, perhaps on
 * another thread, exactly one of the other two is called, once: client_op_launch starts the call, and completes the op
 * if that fails; client_op_complete completes the op without a call. */
void client_op_defer(struct terrace_op *op, struct terrace_op **out);
void client_op_launch(struct terrace_op *op, const struct client_job *job);
void client_op_complete(struct terrace_op *op, enum terrace_status status);

/* Waits until the op is done and its callback has returned (unless the callback is the caller). Returns the op's status
 * and sets its error text. Then the results may be read, and client_op_end ends the op. TERRACE_INVALID (wrong kind),
 * TERRACE_PRECONDITION (forked; or called on the callback thread while the op is not done): *ended is false, and the op
 * is unchanged. */
enum terrace_status client_op_await(struct terrace_op *op, enum client_op_kind kind, bool *ended);
void client_op_end(struct terrace_op *op);

#endif
