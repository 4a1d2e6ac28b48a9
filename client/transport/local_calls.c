/* See transport/local_calls.h.
 *
 * A call that got no answer closes its connection. That tells the daemon to give back what it has granted, or may still
 * grant, to the call. So a connection in the pool has no answer under way. Slots of the pool are taken and left under
 * the lock. A slot's socket is closed under it too, so that a cancel cannot shut down another file with the same
 * number. All sessions of a client share one lock.
 */
#include "client/transport/local_calls.h"

#include "client/transport/grpc.h"
#include "client/value/clock.h"
#include "client/transport/packet.h"
#include "client/value/status.h"
#include "proto/adaptive_poll.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum {
	SLOTS = 16,              /* connections; more calls at a time go by gRPC */
	DIAL_US = 2000000,       /* for connecting and the daemon's welcome: at most, and at most half of the call's time */
	DIAL_AGAIN_US = 1000000, /* after one that failed */
	SLEEP_US = 100000,       /* the longest that a sleeping call does not look at the clock */
	WHY_MAX = 200,
};

enum slot_state { SLOT_EMPTY, SLOT_IDLE, SLOT_BUSY };

struct slot {
	enum slot_state state;
	int fd;          /* -1: not connected */
	uint8_t *packet; /* [FDSOCK_CALL_BYTES_MAX], from the first connection on */
};

struct client_local_calls {
	struct client_local_calls *next, **link;
	struct client_local_calls_list *list;
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	uint8_t token[16];
	uint64_t epoch, session, busy_poll_us;
	bool adapts;          /* it looks for answers for as long as they usually take */
	struct adaptive_poll usual[CLIENT_METHOD_COUNT];
	bool known;           /* the daemon has said that it knows local calls */
	/* Under the list's lock: */
	struct slot slots[SLOTS];
	bool closed, cancelled;
	bool off;             /* the daemon has refused this session, or knows no local calls */
	uint64_t dial_at_us;  /* not before */
};

static const struct {
	enum fdsock_method number; /* 0: not one of them */
	const char *name;
} methods[CLIENT_METHOD_COUNT] = {
	[CLIENT_LOOKUP] = {FDSOCK_LOOKUP, "Lookup"},    [CLIENT_LEASE] = {FDSOCK_LEASE, "Lease"},
	[CLIENT_RELEASE] = {FDSOCK_GIVE_BACK, "Release"}, [CLIENT_RESERVE] = {FDSOCK_RESERVE, "Reserve"},
	[CLIENT_COMMIT] = {FDSOCK_COMMIT, "Commit"},    [CLIENT_ABORT] = {FDSOCK_ABORT, "Abort"},
	[CLIENT_TOUCH] = {FDSOCK_TOUCH, "Touch"},       [CLIENT_REPORT] = {FDSOCK_REPORT, "Report"},
	[CLIENT_WARM] = {FDSOCK_WARM, "Warm"},
};

/* Whether this process may run on so many processors that one of them may look for answers. */
static bool has_processors(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) || CPU_COUNT(&set) >= ADAPTIVE_POLL_PROCESSORS; /* fails with more than it has room for */
}

/* ---- the list
 * ------------------------------------------------------------------------------------------------------ */

void client_local_list_init(struct client_local_calls_list *list)
{
	*list = (struct client_local_calls_list){.first = NULL};
	pthread_mutex_init(&list->lock, NULL);
	pthread_cond_init(&list->ended, NULL);
}

void client_local_list_fini(struct client_local_calls_list *list)
{
	pthread_cond_destroy(&list->ended);
	pthread_mutex_destroy(&list->lock);
}

struct client_local_calls *client_local_create(struct client_local_calls_list *list,
					       const struct client_local_options *o)
{
	struct client_local_calls *local = strlen(o->path) < sizeof(local->path) ? calloc(1, sizeof(*local)) : NULL;

	if (!local)
		return NULL;
	strcpy(local->path, o->path);
	memcpy(local->token, o->token, sizeof(local->token));
	local->epoch = o->epoch;
	local->session = o->session;
	local->known = o->known;
	local->busy_poll_us = o->busy_poll_us;
	local->adapts = o->adapts && !o->busy_poll_us && has_processors();
	for (int i = 0; i < SLOTS; i++)
		local->slots[i].fd = -1;
	local->list = list;
	pthread_mutex_lock(&list->lock);
	local->next = list->first;
	local->link = &list->first;
	if (local->next)
		local->next->link = &local->next;
	list->first = local;
	pthread_mutex_unlock(&list->lock);
	return local;
}

/* Closes a slot's connection. With the lock held. */
static void slot_close(struct slot *slot)
{
	if (slot->fd >= 0) {
		shutdown(slot->fd, SHUT_RDWR); /* a forked child may have it open, too */
		close(slot->fd);
	}
	slot->fd = -1;
	slot->state = SLOT_EMPTY;
}

/* Closes the pool's idle connections, and lets no call begin. With the lock held. */
static void local_end(struct client_local_calls *local)
{
	local->closed = true;
	for (int i = 0; i < SLOTS; i++)
		if (local->slots[i].state == SLOT_IDLE)
			slot_close(&local->slots[i]);
}

void client_local_close(struct client_local_calls *local)
{
	if (!local)
		return;
	pthread_mutex_lock(&local->list->lock);
	local_end(local);
	pthread_mutex_unlock(&local->list->lock);
}

void client_local_list_cancel(struct client_local_calls_list *list)
{
	pthread_mutex_lock(&list->lock);
	for (struct client_local_calls *local = list->first; local; local = local->next) {
		local_end(local);
		local->cancelled = true;
		for (int i = 0; i < SLOTS; i++)
			if (local->slots[i].fd >= 0)
				shutdown(local->slots[i].fd, SHUT_RDWR);
	}
	while (list->busy)
		pthread_cond_wait(&list->ended, &list->lock);
	pthread_mutex_unlock(&list->lock);
}

void client_local_destroy(struct client_local_calls *local)
{
	if (!local)
		return;
	pthread_mutex_lock(&local->list->lock);
	*local->link = local->next;
	if (local->next)
		local->next->link = local->link;
	local_end(local);
	pthread_mutex_unlock(&local->list->lock);
	for (int i = 0; i < SLOTS; i++)
		free(local->slots[i].packet);
	free(local);
}

/* ---- connections
 * --------------------------------------------------------------------------------------------------- */

static struct fdsock_head head_of(enum fdsock_type type)
{
	return (struct fdsock_head){FDSOCK_MAGIC, FDSOCK_VERSION, (uint16_t)type};
}

/* Sends the session's token and waits until the daemon agrees. *never: asking again is useless. */
static enum terrace_status greet(const struct client_local_calls *local, int fd, uint64_t deadline_us, bool *never)
{
	struct fdsock_hello caller = {.head = head_of(FDSOCK_CALLER)};
	struct client_packet answer;
	const struct fdsock_welcome *welcome = &answer.body.welcome;
	enum terrace_status status;

	memcpy(caller.token, local->token, sizeof(caller.token));
	if (!client_packet_send(fd, &caller, sizeof(caller)))
		return TERRACE_UNAVAILABLE;
	status = client_packet_receive(fd, deadline_us, &answer);
	*never = status == TERRACE_UNAVAILABLE && !local->known; /* a daemon that does not know the packet hangs up */
	if (status)
		return status;
	client_packet_fini(&answer);
	*never = welcome->head.type != FDSOCK_WELCOME ||
		 (welcome->status ? welcome->status != TERRACE_EXHAUSTED
				  : welcome->epoch != local->epoch || welcome->session != local->session);
	return *never || welcome->status ? TERRACE_UNAVAILABLE : TERRACE_OK;
}

/* Makes reads of the socket sleep, but not for long. */
static bool settle(int fd)
{
	const struct timeval sleep = {.tv_usec = SLEEP_US};

	return !fcntl(fd, F_SETFL, 0) && !setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &sleep, sizeof(sleep));
}

/* Makes a connected socket; -1: there is none. The error text stays as it was, since the call then goes by gRPC. */
static int dial(const struct client_local_calls *local, uint64_t deadline_us, bool *never)
{
	const uint64_t now = client_now_us(), half_us = deadline_us > now ? (deadline_us - now) / 2 : 0;
	struct client_words words;
	int fd;

	client_words_keep(&words);
	deadline_us = now + (half_us < DIAL_US ? half_us : DIAL_US);
	if (client_packet_connect(local->path, deadline_us, &fd)) {
		fd = -1;
	} else if (greet(local, fd, deadline_us, never) || !settle(fd)) {
		close(fd);
		fd = -1;
	}
	client_words_back(&words);
	return fd;
}

/* Makes a slot's connection, without the lock. */
static bool slot_connect(struct client_local_calls *local, struct slot *slot, uint64_t deadline_us)
{
	bool never = false, closed;
	int fd;

	if (!slot->packet)
		slot->packet = malloc(FDSOCK_CALL_BYTES_MAX);
	fd = slot->packet ? dial(local, deadline_us, &never) : -1;
	pthread_mutex_lock(&local->list->lock);
	slot->fd = fd;
	local->off |= never;
	if (fd < 0)
		local->dial_at_us = client_deadline_us(DIAL_AGAIN_US);
	closed = local->closed; /* a cancel did not see this socket */
	pthread_mutex_unlock(&local->list->lock);
	return fd >= 0 && !closed;
}

/* Ends a call's use of the slot. kept: the connection may serve another call. */
static void slot_leave(struct client_local_calls *local, struct slot *slot, bool kept)
{
	pthread_mutex_lock(&local->list->lock);
	slot->state = SLOT_IDLE;
	if (!kept || local->closed)
		slot_close(slot);
	local->list->busy--;
	if (local->cancelled)
		pthread_cond_broadcast(&local->list->ended);
	pthread_mutex_unlock(&local->list->lock);
}

/* A connected slot for a call, or NULL. */
static struct slot *slot_take(struct client_local_calls *local, uint64_t deadline_us)
{
	struct slot *slot = NULL, *empty = NULL;

	pthread_mutex_lock(&local->list->lock);
	for (int i = 0; i < SLOTS && !slot && !local->closed; i++) {
		if (local->slots[i].state == SLOT_IDLE)
			slot = &local->slots[i];
		else if (local->slots[i].state == SLOT_EMPTY && !empty)
			empty = &local->slots[i];
	}
	if (!slot && empty && !local->off && client_now_us() >= local->dial_at_us)
		slot = empty;
	if (slot) {
		slot->state = SLOT_BUSY;
		local->list->busy++;
	}
	pthread_mutex_unlock(&local->list->lock);
	if (!slot || slot->fd >= 0)
		return slot;
	if (slot_connect(local, slot, deadline_us))
		return slot;
	slot_leave(local, slot, false);
	return NULL;
}

/* ---- calls
 * --------------------------------------------------------------------------------------------------------- */

/* Turns a status of the daemon into the library's, as gRPC does (daemon/rpc/reply.c, status_of_code in
 * transport/grpc_call.c). */
static enum terrace_status status_read(uint32_t number)
{
	switch (number) {
	case TERRACE_MISS:
		return TERRACE_NOT_FOUND;
	case TERRACE_BUSY:
		return TERRACE_EXHAUSTED;
	case TERRACE_CANCELLED: /* by a daemon on its way out */
		return TERRACE_UNAVAILABLE;
	case TERRACE_STALE:
		return TERRACE_PRECONDITION;
	case TERRACE_CORRUPT:
	case TERRACE_IO:
		return TERRACE_INTERNAL;
	default:
		return client_packet_status(number);
	}
}

/* Sends the call. False, with errno: no part of it has reached the daemon. */
static bool call_send(const struct slot *slot, const struct client_job *job, size_t bytes, uint64_t left_us)
{
	const struct fdsock_call call = {
		.head = head_of(FDSOCK_CALL), .method = methods[job->method].number, .left_us = left_us};

	memcpy(slot->packet, &call, sizeof(call));
	protobuf_c_message_pack(job->first.message, slot->packet + sizeof(call));
	return send(slot->fd, slot->packet, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)bytes;
}

static ssize_t packet_look(const struct slot *slot, int flags)
{
	return recv(slot->fd, slot->packet, FDSOCK_CALL_BYTES_MAX, MSG_TRUNC | flags);
}

/* Waits for the reply. `usual`: how long calls of this kind take, by which it polls. Returns the reply's bytes; 0: the
 * daemon has hung up; -1 with errno; EAGAIN: none came in time. */
static ssize_t reply_await(const struct client_local_calls *local, const struct slot *slot, struct adaptive_poll *usual,
			   uint64_t deadline_us)
{
	const uint64_t began_us = client_now_us();
	const uint64_t poll_until_us = began_us + (local->busy_poll_us ? local->busy_poll_us : adaptive_poll_us(usual));
	struct pollfd ready = {.fd = slot->fd, .events = POLLIN};

	for (;;) {
		uint64_t now = client_now_us();
		const bool sleep = now >= poll_until_us && now + 2 * SLEEP_US < deadline_us;
		ssize_t got = packet_look(slot, sleep ? 0 : MSG_DONTWAIT);

		if (got >= 0 && local->adapts)
			adaptive_poll_learn(usual, client_now_us() - began_us);
		if (got >= 0 || (errno != EAGAIN && errno != EINTR))
			return got;
		if (now >= deadline_us) {
			errno = EAGAIN;
			return -1;
		}
		if (!sleep && now >= poll_until_us)
			poll(&ready, 1, client_left_ms(deadline_us));
		else if (!sleep && local->adapts)
			sched_yield();
	}
}

/* Reads an answer. *by_grpc: gRPC is to be asked instead. */
static enum terrace_status reply_read(const struct slot *slot, size_t bytes, const struct client_job *job, bool *by_grpc)
{
	const char *name = methods[job->method].name;
	struct fdsock_reply reply;
	struct client_segment body = {slot->packet + sizeof(reply), bytes - sizeof(reply)};

	if (bytes >= sizeof(reply))
		memcpy(&reply, slot->packet, sizeof(reply));
	if (bytes < sizeof(reply) || bytes > FDSOCK_CALL_BYTES_MAX || reply.head.magic != FDSOCK_MAGIC ||
	    reply.head.version != FDSOCK_VERSION || reply.head.type != FDSOCK_REPLY)
		return client_fail(TERRACE_INTERNAL, "%s: the daemon's fd socket sent garbage (%zu bytes): "
				   "is it of another version?", name, bytes);
	*by_grpc = reply.status == FDSOCK_BY_GRPC;
	if (*by_grpc)
		return TERRACE_OK;
	if (reply.status)
		return client_fail(status_read(reply.status), "%s: %.*s", name, (int)(body.size < WHY_MAX ? body.size : WHY_MAX),
				   (const char *)body.data);
	return job->take ? job->take(job->arg, &(struct client_message){&body, 1, body.size}) : TERRACE_OK;
}

static enum terrace_status no_reply(struct client_local_calls *local, ssize_t got, const struct client_job *job)
{
	const char *name = methods[job->method].name;
	bool cancelled;

	if (got < 0 && errno == EAGAIN)
		return client_fail(TERRACE_DEADLINE, "%s: the daemon did not answer in the call's time: "
				   "give it more, or see if the daemon is busy (terracectl status)", name);
	pthread_mutex_lock(&local->list->lock);
	cancelled = local->cancelled;
	pthread_mutex_unlock(&local->list->lock);
	return cancelled ? client_fail(TERRACE_CANCELLED, "%s: the client is disconnected: connect another one", name)
			 : client_fail(TERRACE_UNAVAILABLE, "%s: the daemon has closed the connection: "
				       "it has restarted or is stopping: try again, and open sessions again (terrace_session_reopen)", name);
}

/* Sends the call over a connected slot. NULL: none took it. This finds out connections that a daemon has closed
 * meanwhile. */
static struct slot *call_begin(struct client_local_calls *local, const struct client_job *job, size_t bytes)
{
	for (int i = 0; i <= SLOTS; i++) {
		const uint64_t now = client_now_us();
		struct slot *slot = now < job->deadline_us ? slot_take(local, job->deadline_us) : NULL;
		bool stale;

		if (!slot || call_send(slot, job, bytes, job->deadline_us - now))
			return slot;
		stale = errno == EPIPE || errno == ECONNRESET;
		slot_leave(local, slot, false);
		if (!stale)
			break;
	}
	return NULL;
}

bool client_local_call(struct client_local_calls *local, struct client_job *job, enum terrace_status *status)
{
	bool by_grpc = false, answered;
	struct slot *slot;
	size_t bytes;
	ssize_t got;

	if (!methods[job->method].number)
		return false;
	bytes = sizeof(struct fdsock_call) + protobuf_c_message_get_packed_size(job->first.message);
	slot = bytes <= FDSOCK_CALL_BYTES_MAX ? call_begin(local, job, bytes) : NULL;
	if (!slot)
		return false;
	if (job->meanwhile)
		job->meanwhile(job->arg);
	job->meanwhile = NULL;
	got = reply_await(local, slot, &local->usual[job->method], job->deadline_us);
	answered = got > 0;
	*status = answered ? reply_read(slot, (size_t)got, job, &by_grpc) : no_reply(local, got, job);
	slot_leave(local, slot, answered && (*status != TERRACE_INTERNAL || by_grpc));
	return !by_grpc;
}
