/* Local calls: a session's hot calls over the fd socket (proto/fdsock.h) instead of by gRPC, which takes several times
 * as long on its way.
 *
 * A session's opening has a few connections, made as calls need them and kept; a call has one to itself. What cannot go near goes by
 * gRPC, and the caller sees no difference: calls of other methods, asynchronous ones, what is too long for a packet, and all of them
 * with a daemon that does not know local calls, or has no room for one more connection.
 *
 * Any thread, but in no child of the process. */
#ifndef TERRACE_CLIENT_TRANSPORT_LOCAL_CALLS_H
#define TERRACE_CLIENT_TRANSPORT_LOCAL_CALLS_H

#include "client/include/terrace.h"

#include <pthread.h>

struct client_job;
struct client_local_calls;

/* A connection's: all that its disconnect has to end. */
struct client_local_calls_list {
	pthread_mutex_t lock; /* guards all that follows, and the pools */
	pthread_cond_t ended; /* a call, after a cancel */
	struct client_local_calls *first;
	uint32_t busy;        /* calls under way */
};
void client_local_list_init(struct client_local_calls_list *list);
/* Ends all calls under way with TERRACE_CANCELLED, and waits for them. */
void client_local_list_cancel(struct client_local_calls_list *list);
void client_local_list_fini(struct client_local_calls_list *list);

/* Which session the calls are of, and how they wait. */
struct client_local_options {
	const char *path;              /* of the daemon's fd_socket */
	const uint8_t *token;          /* [16], of the session */
	uint64_t epoch, session;       /* at this boot of the daemon */
	/* The daemon has said that it knows local calls; else its hanging up says that it does not. */
	bool known;
	uint64_t busy_poll_us;         /* how long a call looks for its answer before it sleeps; 0: as `adapts` says */
	/* A call looks as long as calls of its kind have been taking, .2 ms at most (proto/adaptive_poll.h); else it
	 * sleeps at once. */
	bool adapts;
};

/* Connects nowhere yet. NULL: no memory, or too long a path; then all goes by gRPC. */
struct client_local_calls *client_local_create(struct client_local_calls_list *list,
					       const struct client_local_options *o);

/* Carries a call out. False: it was not; it is to be made by gRPC. True: *status is its end, as client_rpc_call's. A call that may have
 * reached the daemon is never made twice. Clears job->meanwhile when that has been done. */
bool client_local_call(struct client_local_calls *local, struct client_job *job, enum terrace_status *status);

/* From now on all goes by gRPC; calls under way go on. NULL is allowed. */
void client_local_close(struct client_local_calls *local);
/* With no call under way. NULL is allowed. */
void client_local_destroy(struct client_local_calls *local);

#endif
