/* Local calls: a session's hot calls over the fd socket (proto/fdsock.h) instead of gRPC, which takes several times as
 * long.
 *
 * One opening of a session has a few connections, made as calls need them and kept; each call has one to itself. Calls
 * that cannot be local go by gRPC, and the caller sees no difference: calls of other methods, asynchronous calls,
 * messages that are too long for a packet, and all calls with a daemon that does not know local calls or has no room
 * for another connection.
 *
 * Any thread, but in no child of the process.
 */
#ifndef TERRACE_CLIENT_TRANSPORT_LOCAL_CALLS_H
#define TERRACE_CLIENT_TRANSPORT_LOCAL_CALLS_H

#include "client/include/terrace.h"

#include <pthread.h>

struct client_job;
struct client_local_calls;

/* The local calls of a client: what terrace_disconnect must end. */
struct client_local_calls_list {
	pthread_mutex_t lock; /* guards all that follows, and the pools */
	pthread_cond_t ended; /* a call has ended, after a cancel */
	struct client_local_calls *first;
	uint32_t busy;        /* calls under way */
};
void client_local_list_init(struct client_local_calls_list *list);
/* Ends all calls under way with TERRACE_CANCELLED, and waits for them. */
void client_local_list_cancel(struct client_local_calls_list *list);
void client_local_list_fini(struct client_local_calls_list *list);

/* The session of the calls, and how they wait. */
struct client_local_options {
	const char *path;              /* the path of the daemon's fd_socket */
	const uint8_t *token;          /* [16], of the session */
	uint64_t epoch, session;       /* at this boot of the daemon */
	/* The daemon has said that it knows local calls. Otherwise it shows that it does not by closing the
	 * connection. */
	bool known;
	uint64_t busy_poll_us;         /* how long a call polls for its answer before it sleeps; 0: as `adapts` says */
	/* A call polls as long as calls of its kind have lately taken, .2 ms at most (proto/adaptive_poll.h); otherwise
	 * it sleeps at once. */
	bool adapts;
};

/* Makes the pool; makes no connection yet. NULL: no memory, or the path is too long; then all calls go by gRPC. */
struct client_local_calls *client_local_create(struct client_local_calls_list *list,
					       const struct client_local_options *o);

/* Carries a call out. True: *status is its result, as client_rpc_call's. False: it was not sent, and must be made by
 * gRPC. A call that may have reached the daemon is never made twice. Clears job->meanwhile when that function was
 * called. */
bool client_local_call(struct client_local_calls *local, struct client_job *job, enum terrace_status *status);

/* Closes the pool: calls go by gRPC from now on, and calls under way go on. NULL is allowed. */
void client_local_close(struct client_local_calls *local);
/* Frees the pool. No call may be under way. NULL is allowed. */
void client_local_destroy(struct client_local_calls *local);

#endif
