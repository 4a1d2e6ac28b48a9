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

/* Embedded as the first member of each kind's struct, which holds arguments and results. Two references: the user's, ended
 * by finish, and the call's, ended after the callback. */
struct terrace_op {
	atomic_uint references;
	unsigned generation;
	enum client_op_kind kind;
	struct client_view *view; /* with a reference */
	struct terrace_completion completion;
	void (*dispose)(struct terrace_op *op); /* frees the struct, and results that nobody has taken */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	atomic_int state;             /* enum client_op_state; written under the lock */
	struct client_rpc_call *call; /* while running */
	atomic_bool cancelled;        /* the user has asked for its end */
	enum terrace_status status;
	char error[CLIENT_ERROR_MAX];
};

/* Prepares an op in zeroed memory of malloc's, whose end dispose() is. */
void client_op_init(struct terrace_op *op, enum client_op_kind kind, struct client_view *view,
		    const struct terrace_completion *completion, void (*dispose)(struct terrace_op *op));

/* Starts the call; job->arg is the op. *out is set before it can complete. On failure the op is disposed of, *out is NULL and nothing
 * will be told. */
enum terrace_status client_op_start(struct terrace_op *op, const struct client_job *job, struct terrace_op **out);

/* The same in two steps, for a call that has to wait for something: the first sets *out; the second, later and on another thread, starts
 * the call, or completes the op as it fails; the third completes it without a call. One of the two is called, once. */
void client_op_defer(struct terrace_op *op, struct terrace_op **out);
void client_op_launch(struct terrace_op *op, const struct client_job *job);
void client_op_complete(struct terrace_op *op, enum terrace_status status);

/* Waits until the op is done and its callback, unless that is the caller, has returned. Gives the op's status and error text;
 * then the results may be read, and client_op_end ends it. TERRACE_INVALID (wrong kind), TERRACE_PRECONDITION (forked; or on
 * the callback thread while not done): *ended false, the op is untouched. */
enum terrace_status client_op_await(struct terrace_op *op, enum client_op_kind kind, bool *ended);
void client_op_end(struct terrace_op *op);

#endif
