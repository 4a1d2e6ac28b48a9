/* The conversation on the fd socket, and the table of mapped extents.
 *
 * One thread at a time talks (sends MAP and reads until the answer) or unmaps; the others that want something mapped wait for it with
 * their deadline, and then mostly find it done. One-way packets are sent without the conversation. A mapping that is of no
 * more use is marked, and goes when its last use ends. The lock is never held in a GPU's driver. Bytes from
 * the socket come from the daemon, yet are checked like anything from outside. */
#include "client/memory/attachment.h"

#include "client/memory/pages.h"
#include "client/value/clock.h"
#include "client/value/status.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LISTEN_PACKETS_MAX = 256 }; /* at a time, whatever the daemon goes on saying */

static void head_fill(struct fdsock_head *head, enum fdsock_type type)
{
	*head = (struct fdsock_head){FDSOCK_MAGIC, FDSOCK_VERSION, (uint16_t)type};
}

/* ---- the table; with the lock held -------------------------------------------------------------------------------- */

/* The first place that is not before such a mapping's. */
static uint32_t table_place(const struct client_attachment *a, uint32_t extent, bool writable)
{
	uint32_t from = 0, to = a->count;

	while (from < to) {
		const uint32_t middle = (from + to) / 2;
		const struct client_mapping *m = a->mappings[middle];

		if (m->extent < extent || (m->extent == extent && m->writable < writable))
			from = middle + 1;
		else
			to = middle;
	}
	return from;
}

struct client_mapping *client_fds_find(const struct client_attachment *a, uint32_t extent, bool writable)
{
	const uint32_t i = table_place(a, extent, writable);

	return i < a->count && a->mappings[i]->extent == extent && a->mappings[i]->writable == writable ? a->mappings[i] : NULL;
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

struct client_mapping *client_fds_add(struct client_attachment *a, const struct client_mapping *mapping)
{
	struct client_mapping *m = table_grow(a) ? malloc(sizeof(*m)) : NULL, **at;

	if (!m)
		return NULL;
	*m = *mapping;
	at = a->mappings + table_place(a, m->extent, m->writable);
	memmove(at + 1, at, (size_t)(a->mappings + a->count++ - at) * sizeof(*at));
	*at = m;
	return m;
}

static void table_remove(struct client_attachment *a, struct client_mapping *m)
{
	struct client_mapping **at = a->mappings + table_place(a, m->extent, m->writable);

	a->retiring -= m->retiring;
	memmove(at, at + 1, (size_t)(a->mappings + --a->count - at) * sizeof(*at));
	client_pages_destroy(m->pages);
	free(m->registered);
	free(m);
}

static struct fdsock_unmapped unmapped_of(uint32_t extent, bool writable)
{
	struct fdsock_unmapped told = {.extent = extent, .write = writable};

	head_fill(&told.head, FDSOCK_UNMAPPED);
	return told;
}

static bool unmapped_tell(struct client_attachment *a, uint32_t extent, bool writable)
{
	const struct fdsock_unmapped told = unmapped_of(extent, writable);

	return client_packet_send(a->socket, &told, sizeof(told));
}

bool client_fds_tell(struct client_attachment *a, const struct client_mapping *m)
{
	return unmapped_tell(a, m->extent, m->writable);
}

/* ---- what is of no more use; with the lock held --------------------------------------------------------------------- */

bool client_fds_of_driver(const struct client_mapping *m)
{
	return m->gpu != FDSOCK_NO_GPU || m->registered;
}

static bool is_over(const struct client_mapping *m)
{
	return m->retiring && !m->uses;
}

/* The next that is over and that this thread may unmap, or tell of. */
static struct client_mapping *sweep_next(struct client_attachment *a, bool by_driver)
{
	for (uint32_t i = 0; i < a->count && a->retiring && !a->closed; i++)
		if (is_over(a->mappings[i]) &&
		    (by_driver || !a->mappings[i]->base || !client_fds_of_driver(a->mappings[i])))
			return a->mappings[i];
	return NULL;
}

/* With the turn to talk: the lock is let go meanwhile. A mapping stays in the table until the daemon could be told, except that on a broken
 * socket there may be nobody to tell. False: the socket is full, the rest is for later. */
static bool turn_sweep(struct client_attachment *a, bool by_driver)
{
	struct client_mapping *m;

	while ((m = sweep_next(a, by_driver)) != NULL) {
		struct client_mapping dropped = *m;

		m->base = NULL;
		if (dropped.base) {
			pthread_mutex_unlock(&a->lock);
			client_mapping_drop(&a->memory, &dropped);
			pthread_mutex_lock(&a->lock);
		}
		if (!client_fds_tell(a, m) && !a->broken)
			return false;
		table_remove(a, m);
	}
	return true;
}

static bool sweeping_run(struct client_errand *errand);

/* What only a driver can unmap is an errand; without a thread for it, it is done here. */
static void sweep_ask(struct client_attachment *a)
{
	struct client_mapping *m = NULL;

	for (uint32_t i = 0; i < a->count && a->retiring && !m && !a->closed && !a->sweep_asked; i++)
		if (is_over(a->mappings[i]) && a->mappings[i]->base && client_fds_of_driver(a->mappings[i]))
			m = a->mappings[i];
	if (!m)
		return;
	client_fds_hold(a);
	a->sweep_asked = true;
	a->sweeping.run = sweeping_run;
	if (!client_errand_start(&a->sweeping))
		return;
	a->sweep_asked = false;
	atomic_fetch_sub_explicit(&a->references, 1, memory_order_relaxed); /* the caller has one */
	a->talking = true;
	turn_sweep(a, true);
	a->talking = false;
	pthread_cond_broadcast(&a->idle);
}

void client_fds_talk_end(struct client_attachment *a, bool broken)
{
	a->broken |= broken;
	turn_sweep(a, false);
	a->talking = false;
	pthread_cond_broadcast(&a->idle);
	sweep_ask(a);
	client_fds_end(a);
}

bool client_fds_unswept(const struct client_attachment *a)
{
	bool over = false;

	for (uint32_t i = 0; i < a->count && a->retiring && !a->closed && !over; i++)
		over = is_over(a->mappings[i]);
	return over;
}

void client_fds_sweep(struct client_attachment *a)
{
	if (a->talking || !client_fds_unswept(a))
		return;
	a->talking = true;
	client_fds_talk_end(a, false);
}

/* A daemon that reads nothing is tried again by and by, which keeps the lock free for others. */
static bool sweeping_run(struct client_errand *errand)
{
	struct client_attachment *a = (struct client_attachment *)((char *)errand - offsetof(struct client_attachment, sweeping));
	bool over = true;

	pthread_mutex_lock(&a->lock);
	a->sweep_asked = false;
	if (!a->talking && !a->closed) {
		a->talking = true;
		over = turn_sweep(a, true);
		a->sweep_asked = !over;
		a->talking = false;
		pthread_cond_broadcast(&a->idle);
		client_fds_end(a);
	}
	pthread_mutex_unlock(&a->lock);
	if (over)
		client_fds_drop(a);
	return over;
}

void client_fds_retire(struct client_attachment *a, struct client_mapping *m)
{
	a->retiring += !m->retiring;
	m->retiring = true;
}

/* ---- incoming packets --------------------------------------------------------------------------------------------- */

/* A packet that answers no question: OFFER, or the late answer to a MAP whose asker had given up. */
static void packet_unasked(struct client_attachment *a, struct client_packet *p)
{
	if (p->body.head.type == FDSOCK_OFFER) {
		client_fds_offered(a, &p->body.offer);
	} else if (p->body.head.type == FDSOCK_EXTENT && p->descriptors[0] >= 0) {
		client_packet_fini(p);
		if (!client_fds_find(a, p->body.extent.extent, p->body.extent.write))
			unmapped_tell(a, p->body.extent.extent, p->body.extent.write);
	}
	client_packet_fini(p);
}

void client_fds_hear(struct client_attachment *a)
{
	struct client_packet packet;
	enum terrace_status status = TERRACE_OK;
	struct client_words words;

	client_words_keep(&words); /* nobody has asked */
	for (int i = 0; !status && i < LISTEN_PACKETS_MAX; i++) {
		status = client_packet_receive(a->socket, 0, &packet);
		if (!status)
			packet_unasked(a, &packet);
	}
	if (status && status != TERRACE_DEADLINE) {
		client_words_back(&words);
		a->broken = true;
	}
}

void client_fds_hear_out(struct client_attachment *a)
{
	struct client_packet packet;
	struct client_words words;

	client_words_keep(&words); /* whoever ends it may be on its way out with a failure of its own */
	while (a->socket >= 0 && !client_packet_receive(a->socket, 0, &packet))
		packet_unasked(a, &packet);
	client_words_back(&words);
}

void client_fds_listen(struct client_attachment *a)
{
	if (a->ahead.hears && !client_errands_busy())
		return;
	pthread_mutex_lock(&a->lock);
	if (!a->talking && !a->broken && !a->closed) {
		client_fds_hear(a);
		client_fds_sweep(a);
	}
	pthread_mutex_unlock(&a->lock);
}

enum terrace_status client_fds_hear_one(struct client_attachment *a, uint64_t deadline_us)
{
	struct client_packet packet;
	enum terrace_status status = client_packet_receive(a->socket, deadline_us, &packet);

	if (status)
		return status;
	pthread_mutex_lock(&a->lock);
	packet_unasked(a, &packet);
	pthread_mutex_unlock(&a->lock);
	return TERRACE_OK;
}

/* ---- mapping ------------------------------------------------------------------------------------------------------ */

/* Waits until the flag, which is the lock's, is down, or the deadline. */
static bool await_down(struct client_attachment *a, const bool *flag, uint64_t deadline_us)
{
	struct timespec until = client_time_of(deadline_us);
	int waited = 0;

	a->waiting++;
	while (*flag && !a->closed && waited != ETIMEDOUT)
		waited = pthread_cond_timedwait(&a->idle, &a->lock, &until);
	a->waiting--;
	return !*flag || a->closed;
}

enum terrace_status client_fds_talk_begin(struct client_attachment *a, uint64_t deadline_us)
{
	if (!await_down(a, &a->talking, deadline_us))
		return client_fail(TERRACE_DEADLINE, "another thread's mapping took all of the call's time: give it more");
	if (a->closed)
		return client_fail(TERRACE_CANCELLED, "the session is closed: open another one");
	if (a->broken)
		return client_fail(TERRACE_UNAVAILABLE, "the daemon's fd socket is closed: "
				   "the daemon has restarted or is stopping: open the session again (terrace_session_reopen)");
	a->talking = true;
	return TERRACE_OK;
}

/* Without the lock, but for unasked packets. */
static enum terrace_status extent_ask(struct client_attachment *a, uint32_t extent, bool writable,
				      uint64_t deadline_us, struct client_packet *answer)
{
	struct fdsock_map map = {.extent = extent, .write = writable};
	enum terrace_status status;

	head_fill(&map.head, FDSOCK_MAP);
	status = client_packet_send_until(a->socket, &map, sizeof(map), deadline_us);
	while (!status) {
		status = client_packet_receive(a->socket, deadline_us, answer);
		if (status)
			break;
		if (answer->body.head.type == FDSOCK_EXTENT && answer->body.extent.extent == extent &&
		    answer->body.extent.write == (uint32_t)writable)
			return TERRACE_OK;
		pthread_mutex_lock(&a->lock);
		packet_unasked(a, answer);
		pthread_mutex_unlock(&a->lock);
		/* What is there is read without waiting, so the clock has to be asked. */
		if (!client_left_ms(deadline_us))
			status = client_fail(TERRACE_DEADLINE, "the daemon's fd socket did not answer in the call's time: "
					     "give it more, or see if the daemon is busy (terracectl status)");
	}
	return status;
}

/* True if the extent of a packet would lie where another is imported already. */
static bool extent_overlaps(struct client_attachment *a, const struct fdsock_extent *e, bool writable)
{
	bool overlaps = false;

	pthread_mutex_lock(&a->lock);
	for (uint32_t i = 0; i < a->count && !overlaps; i++) {
		const struct client_mapping *m = a->mappings[i];

		overlaps = m->base && m->gpu == e->gpu && m->range_id == e->range_id && m->writable == writable &&
			   m->at < e->at + e->bytes && e->at < m->at + m->bytes;
	}
	pthread_mutex_unlock(&a->lock);
	return overlaps;
}

enum terrace_status client_fds_ask(struct client_attachment *a, uint32_t extent, bool writable, uint64_t deadline_us,
				   struct client_packet *answer, bool *broken)
{
	enum terrace_status status = extent_ask(a, extent, writable, deadline_us, answer);

	*broken = status && status != TERRACE_DEADLINE;
	return status;
}

enum terrace_status client_fds_prepare(struct client_attachment *a, const struct client_packet *answer, struct client_mapping *mapping)
{
	const struct fdsock_extent *e = &answer->body.extent;
	enum terrace_status status;

	*mapping = (struct client_mapping){.extent = e->extent, .writable = e->write};
	if (e->gpu != FDSOCK_NO_GPU && extent_overlaps(a, e, e->write))
		status = client_fail(TERRACE_INTERNAL, "extent %u: the daemon says that it lies where another is: "
				     "a mistake of the daemon's", e->extent);
	else
		status = client_mapping_prepare(&a->memory, answer, mapping);
	if (status && !e->status)
		unmapped_tell(a, e->extent, e->write);
	return status;
}

/* Asks for an extent and maps it whole; the descriptors are closed at once, since the mapping holds the memory. */
static enum terrace_status extent_map(struct client_attachment *a, uint32_t extent, bool writable, uint64_t deadline_us,
				      struct client_mapping *mapping, bool *broken)
{
	struct client_packet answer;
	enum terrace_status status = client_fds_ask(a, extent, writable, deadline_us, &answer, broken);

	if (status)
		return status;
	status = client_fds_prepare(a, &answer, mapping);
	if (!status) {
		status = client_mapping_import(&a->memory, &answer, mapping);
		if (status) {
			client_mapping_forget(mapping);
			unmapped_tell(a, extent, writable);
		}
	}
	client_packet_fini(&answer);
	return status;
}

/* With the lock held and the turn to talk: says of what is unmapped that it is, which the daemon has not heard so far. */
static enum terrace_status untold_tell(struct client_attachment *a, struct client_mapping *m, uint64_t deadline_us, bool *broken)
{
	const struct fdsock_unmapped told = unmapped_of(m->extent, m->writable);
	enum terrace_status status;

	pthread_mutex_unlock(&a->lock);
	status = client_packet_send_until(a->socket, &told, sizeof(told), deadline_us);
	pthread_mutex_lock(&a->lock);
	*broken = status && status != TERRACE_DEADLINE;
	if (!status)
		table_remove(a, m);
	return status;
}

/* With the lock held and the turn to talk. *broken: the socket is of no more use. */
static enum terrace_status mapping_make(struct client_attachment *a, uint32_t extent, bool writable,
					uint64_t deadline_us, struct client_mapping **out, bool *broken)
{
	struct client_mapping made, *untold;
	enum terrace_status status = TERRACE_OK;

	turn_sweep(a, false);
	untold = client_fds_find(a, extent, writable);
	if (untold) /* the daemon would not understand the question */
		status = untold_tell(a, untold, deadline_us, broken);
	if (status)
		return status;
	pthread_mutex_unlock(&a->lock);
	status = extent_map(a, extent, writable, deadline_us, &made, broken);
	pthread_mutex_lock(&a->lock);
	if (status)
		return status;
	*out = a->closed ? NULL : client_fds_add(a, &made);
	if (*out)
		return TERRACE_OK;
	pthread_mutex_unlock(&a->lock);
	client_mapping_drop(&a->memory, &made);
	pthread_mutex_lock(&a->lock);
	unmapped_tell(a, extent, writable);
	return a->closed ? client_fail(TERRACE_CANCELLED, "the session is closed: open another one")
			 : client_fail(TERRACE_EXHAUSTED, "no memory to keep another mapping of the daemon's memory");
}

/* With the lock held: waits while it is being imported ahead, which may come to nothing. It may be gone after. */
static enum terrace_status coming_await(struct client_attachment *a, uint32_t extent, bool writable, uint64_t deadline_us)
{
	struct timespec until = client_time_of(deadline_us);
	const struct client_mapping *m;

	while (!a->closed && (m = client_fds_find(a, extent, writable)) && m->coming)
		if (pthread_cond_timedwait(&a->idle, &a->lock, &until) == ETIMEDOUT)
			return client_fail(TERRACE_DEADLINE, "the GPU's driver took all of the call's time to map an extent: give it more");
	return TERRACE_OK;
}

/* With the lock held: finds it mapped, or maps it, and counts one use. */
static enum terrace_status mapping_want(struct client_attachment *a, uint32_t extent, bool writable,
					uint64_t deadline_us, struct client_mapping **out)
{
	bool broken = false, comes;
	enum terrace_status status;

	do {
		status = coming_await(a, extent, writable, deadline_us);
		if (!status)
			status = client_fds_talk_begin(a, deadline_us);
		if (status)
			return status;
		*out = client_fds_find(a, extent, writable); /* another thread may have made it */
		comes = *out && (*out)->coming;
		if (comes)
			client_fds_talk_end(a, false);
	} while (comes);
	if (!*out || !(*out)->base)
		status = mapping_make(a, extent, writable, deadline_us, out, &broken);
	if (!status)
		(*out)->uses++;
	client_fds_talk_end(a, broken);
	return status;
}

enum terrace_status client_fds_map(struct client_attachment *a, uint32_t extent, bool writable, uint64_t deadline_us,
				   struct client_mapping **out)
{
	enum terrace_status status = TERRACE_OK;
	struct client_mapping *m;

	pthread_mutex_lock(&a->lock);
	m = a->closed ? NULL : client_fds_find(a, extent, writable);
	if (m && m->base && !m->coming)
		m->uses++;
	else
		status = mapping_want(a, extent, writable, deadline_us, &m);
	if (!status)
		*out = m;
	pthread_mutex_unlock(&a->lock);
	return status;
}

/* With the lock held and the turn to talk. */
static enum terrace_status mapping_register(struct client_attachment *a, struct client_mapping *m, uint32_t g)
{
	enum terrace_status status;

	if (m->ready >> g & 1) /* another thread has done it */
		return TERRACE_OK;
	pthread_mutex_unlock(&a->lock); /* it lasts; the mapping is in use */
	status = client_mapping_register(&a->memory, m, g);
	pthread_mutex_lock(&a->lock);
	if (!status)
		m->ready |= 1u << g;
	return status;
}

/* With the lock held: the turn to talk, while nobody else registers the mapping. */
static enum terrace_status register_begin(struct client_attachment *a, const struct client_mapping *m, uint64_t deadline_us)
{
	enum terrace_status status;

	do {
		if (!await_down(a, &m->registering, deadline_us))
			return client_fail(TERRACE_DEADLINE, "the GPU's driver took all of the call's time to register memory: "
					   "give it more");
		status = client_fds_talk_begin(a, deadline_us);
		if (!status && m->registering)
			client_fds_talk_end(a, false);
	} while (!status && m->registering);
	return status;
}

enum terrace_status client_fds_register(struct client_attachment *a, struct client_mapping *m, uint32_t g,
					uint64_t deadline_us)
{
	enum terrace_status status = TERRACE_OK;

	pthread_mutex_lock(&a->lock);
	if (a->closed || !(m->ready >> g & 1)) {
		status = register_begin(a, m, deadline_us);
		if (!status) {
			status = mapping_register(a, m, g);
			client_fds_talk_end(a, false);
		}
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
	client_fds_end(a);
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
			client_fds_sweep(a);
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

bool client_fds_ask_offers(struct client_attachment *a, uint32_t tier)
{
	struct fdsock_ahead ahead = {.gpu = tier == DEVICES_MAX ? FDSOCK_NO_GPU : tier};

	head_fill(&ahead.head, FDSOCK_AHEAD);
	return client_packet_send(a->socket, &ahead, sizeof(ahead));
}

/* ---- opening ------------------------------------------------------------------------------------------------------- */

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
	a->ahead.known = welcome->knows & FDSOCK_KNOWS_AHEAD;
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
