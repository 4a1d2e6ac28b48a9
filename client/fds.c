/* The conversation on the fd socket, and the table of mapped extents.
 *
 * One thread at a time talks (sends MAP and reads until the answer); the others that want something mapped wait for it with
 * their deadline, and then mostly find it done. One-way packets are sent without the conversation. RETIRE comes at any time:
 * whoever reads the socket marks the mapping, which goes when its last use ends. Bytes from the socket come from the daemon,
 * yet are checked like anything from outside. */
#include "client/fds.h"

#include "client/after.h"
#include "client/clock.h"
#include "client/status.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	LISTEN_PACKETS_MAX = 256,      /* at a time, whatever the daemon goes on saying */
	CLOSE_WAIT_US = 10 * 1000000, /* for streams that hold memory */
};

static void head_fill(struct fdsock_head *head, enum fdsock_type type)
{
	*head = (struct fdsock_head){FDSOCK_MAGIC, FDSOCK_VERSION, (uint16_t)type};
}

/* ---- the table; with the lock held -------------------------------------------------------------------------------- */

static struct client_mapping *mapping_find(struct client_attachment *a, uint32_t extent, bool writable)
{
	for (uint32_t i = 0; i < a->count; i++)
		if (a->mappings[i]->extent == extent && a->mappings[i]->writable == writable)
			return a->mappings[i];
	return NULL;
}

static bool table_grow(struct client_attachment *a)
{
	uint32_t capacity = a->capacity ? a->capacity * 2 : 16;
	struct client_mapping **mappings;

	if (a->count < a->capacity)
		return true;
	if (capacity > CLIENT_MAPPINGS_MAX)
		return false;
	mappings = realloc(a->mappings, capacity * sizeof(struct client_mapping *));
	if (!mappings)
		return false;
	a->mappings = mappings;
	a->capacity = capacity;
	return true;
}

/* Takes over the mapped memory. */
static struct client_mapping *table_add(struct client_attachment *a, const struct client_mapping *mapping)
{
	struct client_mapping *m = table_grow(a) ? malloc(sizeof(*m)) : NULL;

	if (!m)
		return NULL;
	*m = *mapping;
	a->mappings[a->count++] = m;
	return m;
}

static bool unmapped_tell(struct client_attachment *a, uint32_t extent, bool writable)
{
	struct fdsock_unmapped told = {.extent = extent, .write = writable};

	head_fill(&told.head, FDSOCK_UNMAPPED);
	return client_packet_send(a->socket, &told, sizeof(told));
}

/* Unmaps what the daemon wants back and nobody uses. A mapping stays in the table until the daemon could be told, except
 * that a broken socket has nobody to tell. */
static void table_sweep(struct client_attachment *a)
{
	for (uint32_t i = 0; i < a->count; i++) {
		struct client_mapping *m = a->mappings[i];

		if (!m->retiring || m->uses)
			continue;
		if (m->base)
			client_mapping_drop(&a->memory, m);
		m->base = NULL;
		if (!a->broken && !unmapped_tell(a, m->extent, m->writable))
			return; /* the socket is full: later */
		free(m->registered);
		free(m);
		a->mappings[i--] = a->mappings[--a->count];
	}
}

static void retire(struct client_attachment *a, uint32_t extent)
{
	for (uint32_t i = 0; i < a->count; i++)
		if (a->mappings[i]->extent == extent)
			a->mappings[i]->retiring = true;
}

/* ---- incoming packets --------------------------------------------------------------------------------------------- */

/* A packet that answers no question: RETIRE, or the late answer to a MAP whose asker had given up. */
static void packet_unasked(struct client_attachment *a, struct client_packet *p)
{
	if (p->body.head.type == FDSOCK_RETIRE) {
		retire(a, p->body.unmapped.extent);
	} else if (p->body.head.type == FDSOCK_EXTENT && p->descriptors[0] >= 0) {
		client_packet_fini(p);
		if (!mapping_find(a, p->body.extent.extent, p->body.extent.write))
			unmapped_tell(a, p->body.extent.extent, p->body.extent.write);
	}
	client_packet_fini(p);
}

void client_fds_listen(struct client_attachment *a)
{
	struct client_packet packet;
	enum terrace_status status = TERRACE_OK;

	pthread_mutex_lock(&a->lock);
	if (!a->talking && !a->broken && !a->closed) {
		for (int i = 0; !status && i < LISTEN_PACKETS_MAX; i++) {
			status = client_packet_receive(a->socket, 0, &packet);
			if (!status)
				packet_unasked(a, &packet);
		}
		if (status && status != TERRACE_DEADLINE)
			a->broken = true;
		table_sweep(a);
	}
	pthread_mutex_unlock(&a->lock);
}

/* ---- mapping ------------------------------------------------------------------------------------------------------ */

static struct timespec time_of(uint64_t deadline_us)
{
	return (struct timespec){(time_t)(deadline_us / 1000000), (long)(deadline_us % 1000000) * 1000};
}

/* Waits for the turn to talk; the lock is held before and after. */
static enum terrace_status talk_begin(struct client_attachment *a, uint64_t deadline_us)
{
	struct timespec until = time_of(deadline_us);

	while (a->talking && !a->closed)
		if (pthread_cond_timedwait(&a->idle, &a->lock, &until) == ETIMEDOUT)
			return client_fail(TERRACE_DEADLINE, "another thread's mapping took all the time");
	if (a->closed)
		return client_fail(TERRACE_CANCELLED, "the session is closed");
	if (a->broken)
		return client_fail(TERRACE_UNAVAILABLE, "the daemon's fd socket is gone");
	a->talking = true;
	return TERRACE_OK;
}

static void talk_end(struct client_attachment *a, bool broken)
{
	a->talking = false;
	a->broken |= broken;
	pthread_cond_broadcast(&a->idle);
}

/* Sends MAP and reads until its answer is there. Without the lock, but for unasked packets. */
static enum terrace_status extent_ask(struct client_attachment *a, uint32_t extent, bool writable,
				      uint64_t deadline_us, struct client_packet *answer)
{
	struct fdsock_map map = {.extent = extent, .write = writable};
	enum terrace_status status;

	head_fill(&map.head, FDSOCK_MAP);
	if (!client_packet_send(a->socket, &map, sizeof(map)))
		return client_fail(TERRACE_UNAVAILABLE, "the daemon's fd socket takes nothing");
	for (;;) {
		status = client_packet_receive(a->socket, deadline_us, answer);
		if (status)
			return status;
		if (answer->body.head.type == FDSOCK_EXTENT && answer->body.extent.extent == extent &&
		    answer->body.extent.write == (uint32_t)writable)
			return TERRACE_OK;
		pthread_mutex_lock(&a->lock);
		packet_unasked(a, answer);
		pthread_mutex_unlock(&a->lock);
		/* What is there is read without waiting, so the clock has to be asked. */
		if (!client_left_ms(deadline_us))
			return client_fail(TERRACE_DEADLINE, "no answer on the fd socket");
	}
}

/* True if the extent of a packet would lie where another is imported already. */
static bool extent_overlaps(struct client_attachment *a, const struct fdsock_extent *e, bool writable)
{
	bool overlaps = false;

	pthread_mutex_lock(&a->lock);
	for (uint32_t i = 0; i < a->count && !overlaps; i++) {
		const struct client_mapping *m = a->mappings[i];

		overlaps = m->base && m->gpu == e->gpu && m->layout_id == e->layout_id && m->writable == writable &&
			   m->at < e->at + e->bytes && e->at < m->at + m->bytes;
	}
	pthread_mutex_unlock(&a->lock);
	return overlaps;
}

/* Asks for an extent and maps it whole; the descriptors are closed at once, since the mapping holds the memory. */
static enum terrace_status extent_map(struct client_attachment *a, uint32_t extent, bool writable, uint64_t deadline_us,
				      struct client_mapping *mapping, bool *broken)
{
	struct client_packet answer;
	enum terrace_status status = extent_ask(a, extent, writable, deadline_us, &answer);

	*broken = status && status != TERRACE_DEADLINE;
	if (status)
		return status;
	*mapping = (struct client_mapping){.extent = extent, .writable = writable};
	if (answer.body.extent.gpu != FDSOCK_NO_GPU && extent_overlaps(a, &answer.body.extent, writable))
		status = client_fail(TERRACE_INTERNAL, "extent %u: it lies where another is", extent);
	else
		status = client_mapping_make(&a->memory, &answer, mapping);
	client_packet_fini(&answer);
	if (status && !answer.body.extent.status)
		unmapped_tell(a, extent, writable);
	return status;
}

/* With the lock held and the turn to talk, which it ends. */
static enum terrace_status mapping_make(struct client_attachment *a, uint32_t extent, bool writable,
					uint64_t deadline_us, struct client_mapping **out)
{
	struct client_mapping made;
	enum terrace_status status;
	bool broken = false;

	table_sweep(a);
	if (mapping_find(a, extent, writable)) {
		/* Unmapped, but the daemon has not heard so yet: it would not understand the question. */
		talk_end(a, false);
		return client_fail(TERRACE_UNAVAILABLE, "the daemon's fd socket takes nothing");
	}
	pthread_mutex_unlock(&a->lock);
	status = extent_map(a, extent, writable, deadline_us, &made, &broken);
	pthread_mutex_lock(&a->lock);
	talk_end(a, broken);
	if (status)
		return status;
	*out = a->closed ? NULL : table_add(a, &made);
	if (*out)
		return TERRACE_OK;
	client_mapping_drop(&a->memory, &made);
	unmapped_tell(a, extent, writable);
	return a->closed ? client_fail(TERRACE_CANCELLED, "the session is closed")
			 : client_fail(TERRACE_EXHAUSTED, "no room for another mapping");
}

enum terrace_status client_fds_map(struct client_attachment *a, uint32_t extent, bool writable, uint64_t deadline_us,
				   struct client_mapping **out)
{
	enum terrace_status status = TERRACE_OK;
	struct client_mapping *m;

	pthread_mutex_lock(&a->lock);
	m = a->closed ? NULL : mapping_find(a, extent, writable);
	if (!m || !m->base) {
		status = talk_begin(a, deadline_us);
		m = status ? NULL : mapping_find(a, extent, writable); /* another thread may have made it */
		if (m && m->base)
			talk_end(a, false);
		else if (!status)
			status = mapping_make(a, extent, writable, deadline_us, &m);
	}
	if (!status) {
		m->uses++;
		*out = m;
	}
	pthread_mutex_unlock(&a->lock);
	return status;
}

enum terrace_status client_fds_register(struct client_attachment *a, struct client_mapping *m, uint32_t g,
					uint64_t deadline_us)
{
	enum terrace_status status;

	pthread_mutex_lock(&a->lock);
	status = talk_begin(a, deadline_us);
	if (!status && !(m->registered && m->registered[g])) {
		pthread_mutex_unlock(&a->lock); /* it lasts; the mapping is in use, and the turn is ours */
		status = client_mapping_register(&a->memory, m, g);
		pthread_mutex_lock(&a->lock);
		talk_end(a, false);
	} else if (!status) {
		talk_end(a, false);
	}
	pthread_mutex_unlock(&a->lock);
	return status;
}

bool client_fds_stream_begin(struct client_attachment *a)
{
	bool open;

	pthread_mutex_lock(&a->lock);
	open = !a->closed;
	a->streams += open;
	pthread_mutex_unlock(&a->lock);
	return open;
}

void client_fds_stream_end(struct client_attachment *a)
{
	pthread_mutex_lock(&a->lock);
	a->streams--;
	pthread_cond_broadcast(&a->idle);
	pthread_mutex_unlock(&a->lock);
}

bool client_fds_gone(struct client_attachment *a)
{
	struct pollfd end = {.events = POLLRDHUP};
	bool gone;

	pthread_mutex_lock(&a->lock);
	end.fd = a->socket;
	gone = a->broken || a->closed || (poll(&end, 1, 0) > 0 && end.revents & (POLLRDHUP | POLLHUP | POLLERR));
	pthread_mutex_unlock(&a->lock);
	return gone;
}

void client_fds_unmap(struct client_attachment *a, struct client_mapping *m)
{
	pthread_mutex_lock(&a->lock);
	if (!a->closed) { /* else it is gone already */
		m->uses--;
		if (m->retiring && !m->uses)
			table_sweep(a);
	}
	pthread_mutex_unlock(&a->lock);
}

bool client_fds_release(struct client_attachment *a, uint64_t lease)
{
	struct fdsock_release release = {.count = 1, .leases = {lease}};
	size_t bytes = offsetof(struct fdsock_release, leases) + sizeof(release.leases[0]);
	bool sent;

	head_fill(&release.head, FDSOCK_RELEASE);
	pthread_mutex_lock(&a->lock);
	sent = !a->closed && !a->broken && client_packet_send(a->socket, &release, bytes);
	pthread_mutex_unlock(&a->lock);
	return sent;
}

/* ---- opening and closing ------------------------------------------------------------------------------------------ */

static enum terrace_status hello(struct client_attachment *a, const uint8_t token[16], uint64_t epoch, uint64_t session,
				 uint64_t deadline_us)
{
	struct fdsock_hello greeting = {0};
	struct client_packet answer;
	const struct fdsock_welcome *welcome = &answer.body.welcome;
	enum terrace_status status;

	head_fill(&greeting.head, FDSOCK_HELLO);
	memcpy(greeting.token, token, sizeof(greeting.token));
	if (!client_packet_send(a->socket, &greeting, sizeof(greeting)))
		return client_fail(TERRACE_UNAVAILABLE, "the daemon's fd socket takes nothing");
	status = client_packet_receive(a->socket, deadline_us, &answer);
	if (status)
		return status;
	client_packet_fini(&answer);
	if (welcome->head.type != FDSOCK_WELCOME)
		return client_fail(TERRACE_INTERNAL, "the daemon's first packet is of type %u", welcome->head.type);
	if (welcome->status)
		return client_fail(client_packet_status(welcome->status), "the daemon refuses to attach this process");
	if (welcome->epoch != epoch || welcome->session != session)
		return client_fail(TERRACE_STALE, "the fd socket speaks for another session or epoch");
	a->id = welcome->attachment;
	return TERRACE_OK;
}

static void locks_init(struct client_attachment *a)
{
	pthread_condattr_t attributes;

	pthread_mutex_init(&a->lock, NULL);
	client_board_init(&a->board);
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

/* Of a GPU's memory the daemon waits for the word, or for the end of the process. */
static void memory_drop(struct client_attachment *a)
{
	for (uint32_t i = 0; i < a->count && !a->dropped; i++)
		if (a->mappings[i]->base && !(a->mappings[i]->extent == FDSOCK_EXTENT_BOARD && a->board_stays))
			client_mapping_drop(&a->memory, a->mappings[i]);
	for (uint32_t i = 0; i < a->count && !a->dropped && a->socket >= 0; i++)
		if (a->mappings[i]->gpu != FDSOCK_NO_GPU && !unmapped_tell(a, a->mappings[i]->extent, a->mappings[i]->writable))
			break;
	a->dropped = true;
	client_lent_memory_fini(&a->memory);
}

/* With the lock. The thread that ends the streams' waits does not wait for itself. */
static void streams_wait(struct client_attachment *a)
{
	struct timespec until = time_of(client_deadline_us(CLOSE_WAIT_US));

	while (a->streams && !client_after_inside())
		if (pthread_cond_timedwait(&a->idle, &a->lock, &until) == ETIMEDOUT)
			return;
}

/* The table stays until the last reference goes: a thread that is making a lease may be reading it. */
void client_fds_close(struct client_attachment *a)
{
	pthread_mutex_lock(&a->lock);
	if (a->closed) {
		pthread_mutex_unlock(&a->lock);
		return;
	}
	a->closed = true;
	if (a->socket >= 0)
		shutdown(a->socket, SHUT_RD); /* wakes the thread that talks; the daemon is still told what is unmapped */
	while (a->talking)
		pthread_cond_wait(&a->idle, &a->lock);
	a->board_stays = client_board_close(&a->board);
	streams_wait(a);
	if (!a->streams)
		memory_drop(a);
	if (a->socket >= 0)
		close(a->socket);
	a->socket = -1;
	pthread_mutex_unlock(&a->lock);
}

void client_fds_hold(struct client_attachment *a)
{
	atomic_fetch_add_explicit(&a->references, 1, memory_order_relaxed);
}

void client_fds_drop(struct client_attachment *a)
{
	if (atomic_fetch_sub_explicit(&a->references, 1, memory_order_acq_rel) != 1)
		return;
	client_fds_close(a);
	memory_drop(a); /* what a stream had held, if anything */
	for (uint32_t i = 0; i < a->count; i++) {
		free(a->mappings[i]->registered);
		free(a->mappings[i]);
	}
	free(a->mappings);
	client_board_fini(&a->board);
	pthread_cond_destroy(&a->idle);
	pthread_mutex_destroy(&a->lock);
	free(a);
}
