/* A connection to a daemon. */
#ifndef TERRACE_CLIENT_SESSION_CONNECT_H
#define TERRACE_CLIENT_SESSION_CONNECT_H

#include "client/transport/local_calls.h"

#include <stdatomic.h>

/* Immutable after terrace_connect, except `references` (the connection's, each session's, each watch's) and
 * `locals`. */
struct terrace_client {
	atomic_uint references;
	unsigned generation; /* the generation of the process that made it (client_forked) */
	struct client_rpc *rpc;
	uint64_t timeout_us;
	uint64_t busy_poll_us;
	bool no_borrow, no_local_calls, no_adaptive_poll;
	struct client_local_calls_list locals;
};

void client_hold(struct terrace_client *client);
void client_drop(struct terrace_client *client);

/* True in a child of the process that made `generation`: nothing of the library may be touched there, not even locks. */
bool client_forked(unsigned generation);

/* TERRACE_OK, or TERRACE_PRECONDITION in a child. */
enum terrace_status client_process_check(unsigned generation);

/* The absolute deadline of a call with this timeout (0: the connection's). */
uint64_t client_call_deadline(const struct terrace_client *client, uint64_t timeout_us);

/* Waits for the connection and an answer of the daemon. TERRACE_UNAVAILABLE, TERRACE_DEADLINE. */
enum terrace_status client_await_daemon(struct terrace_client *client, uint64_t deadline_us);
/* Sleeps some milliseconds before a daemon that was UNAVAILABLE is asked again. False: there is no time left. */
bool client_ask_again(uint64_t deadline_us);

#endif
