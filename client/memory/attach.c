/* Begins an attachment: connects the socket and greets the daemon. */
#include "client/memory/attachment.h"

#include "client/memory/progress_page.h"
#include "client/transport/packet.h"
#include "client/value/status.h"
#include "proto/fdsock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static enum terrace_status hello(struct client_attachment *a, const uint8_t token[16], uint64_t epoch, uint64_t session,
				 uint64_t deadline_us)
{
	struct fdsock_hello greeting = {0};
	struct client_packet answer;
	const struct fdsock_welcome *welcome = &answer.body.welcome;
	enum terrace_status status;

	greeting.head = client_packet_head(FDSOCK_HELLO);
	memcpy(greeting.token, token, sizeof(greeting.token));
	if (!client_packet_send(a->socket, &greeting, sizeof(greeting)))
		return client_fail(TERRACE_UNAVAILABLE, "the daemon's fd socket took nothing in the call's time: "
				   "give it more, or see if the daemon is busy (terracectl status)");
	status = client_packet_receive(a->socket, deadline_us, &answer);
	if (status == TERRACE_UNAVAILABLE)
		return client_fail(status, "the daemon has closed the fd socket: it is stopping, "
				   "or older than this library: start the terraced that belongs to it");
	if (status)
		return status;
	client_packet_fini(&answer);
	if (welcome->head.type != FDSOCK_WELCOME)
		return client_fail(TERRACE_INTERNAL, "the daemon's first packet is of type %u: "
				   "daemon and library are of different versions", welcome->head.type);
	if (welcome->status)
		return client_fail(client_packet_status(welcome->status), "the daemon refuses to attach this process: %s",
				   welcome->status == TERRACE_EXHAUSTED ? "this process, its user, or all together hold as many connections to fd_socket as they may "
									  "(terracectl stat terrace_quota): close some, or raise connections_max"
									: "the session has ended: open it again");
	if (welcome->epoch != epoch || welcome->session != session)
		return client_fail(TERRACE_STALE, "the fd socket is that of another daemon or session: "
				   "open the session again (terrace_session_reopen)");
	a->id = welcome->attachment;
	a->knows_callers = welcome->knows & FDSOCK_KNOWS_CALLER;
	a->premap.known = welcome->knows & FDSOCK_KNOWS_PREMAP;
	if (welcome->knows & FDSOCK_KNOWS_LISTEN)
		client_fds_hear_always(a);
	return TERRACE_OK;
}

static void locks_init(struct client_attachment *a)
{
	pthread_condattr_t attributes;

	pthread_mutex_init(&a->lock, NULL);
	client_progress_page_init(&a->progress_page);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&a->idle, &attributes);
	pthread_condattr_destroy(&attributes);
}

enum terrace_status client_fds_open(const char *path, const uint8_t token[16], uint64_t epoch, uint64_t session,
				    const struct client_lent *lent, uint64_t deadline_us,
				    struct client_attachment **out)
{
	struct client_attachment *a = calloc(1, sizeof(*a));
	enum terrace_status status;

	if (!a)
		return client_fail(TERRACE_EXHAUSTED, "no memory to attach");
	locks_init(a);
	atomic_init(&a->references, 1);
	a->memory.lent = *lent;
	a->close_wait_us = CLIENT_CLOSE_WAIT_US;
	status = client_packet_connect(path, deadline_us, &a->socket);
	if (status) {
		a->socket = -1;
		a->broken = true;
	} else {
		status = hello(a, token, epoch, session, deadline_us);
	}
	if (status)
		client_fds_drop(a);
	else
		*out = a;
	return status;
}
