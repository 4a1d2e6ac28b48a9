/* The conversation on the fd socket: extents are asked for and mapped.
 *
 * One thread at a time talks (memory/turn.h). Other threads that need a mapping wait for it until their deadline, and
 * mostly find it made. One-way packets are sent without the turn. The lock is never held in a GPU's driver. Bytes from
 * the socket come from the daemon, but are checked like bytes from any other source.
 */
#include "client/memory/attachment.h"

#include "client/memory/hear.h"
#include "client/memory/table.h"
#include "client/memory/turn.h"
#include "client/transport/packet.h"
#include "client/value/clock.h"
#include "client/value/status.h"
#include "proto/fdsock.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>

/* Asks for an extent and waits for the answer. Without the lock, but for packets that answer no request. */
static enum terrace_status extent_ask(struct client_attachment *a, uint32_t extent, bool writable,
				      uint64_t deadline_us, struct client_packet *answer)
{
	struct fdsock_map map = {.extent = extent, .write = writable};
	enum terrace_status status;

	map.head = client_packet_head(FDSOCK_MAP);
	status = client_packet_send_until(a->socket, &map, sizeof(map), deadline_us);
	while (!status) {
		status = client_packet_receive(a->socket, deadline_us, answer);
		if (status)
			break;
		if (answer->body.head.type == FDSOCK_EXTENT && answer->body.extent.extent == extent &&
		    answer->body.extent.write == (uint32_t)writable)
			return TERRACE_OK;
		pthread_mutex_lock(&a->lock);
		client_fds_take(a, answer);
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
		client_table_tell(a, e->extent, e->write);
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
			client_table_tell(a, extent, writable);
		}
	}
	client_packet_fini(&answer);
	return status;
}

/* Tells the daemon that a memory is unmapped, of which it has not heard. With the lock held and the turn to talk. */
static enum terrace_status untold_tell(struct client_attachment *a, struct client_mapping *m, uint64_t deadline_us, bool *broken)
{
	const struct fdsock_unmapped told = client_unmapped_of(m->extent, m->writable);
	enum terrace_status status;

	pthread_mutex_unlock(&a->lock);
	status = client_packet_send_until(a->socket, &told, sizeof(told), deadline_us);
	pthread_mutex_lock(&a->lock);
	*broken = status && status != TERRACE_DEADLINE;
	if (!status)
		client_table_remove(a, m);
	return status;
}

/* Maps an extent. *broken: the socket cannot be used any more. With the lock held and the turn to talk. */
static enum terrace_status mapping_make(struct client_attachment *a, uint32_t extent, bool writable,
					uint64_t deadline_us, struct client_mapping **out, bool *broken)
{
	struct client_mapping made, *untold;
	enum terrace_status status = TERRACE_OK;

	client_fds_sweep_here(a);
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
	client_table_tell(a, extent, writable);
	return a->closed ? client_fail(TERRACE_CANCELLED, "the session is closed: open another one")
			 : client_fail(TERRACE_EXHAUSTED, "no memory to keep another mapping of the daemon's memory");
}

/* Waits while the mapping is being imported ahead, which may fail. The mapping may be gone afterwards. With the lock
 * held. */
static enum terrace_status coming_await(struct client_attachment *a, uint32_t extent, bool writable, uint64_t deadline_us)
{
	struct timespec until = client_time_of(deadline_us);
	const struct client_mapping *m;

	while (!a->closed && (m = client_fds_find(a, extent, writable)) && m->coming)
		if (pthread_cond_timedwait(&a->idle, &a->lock, &until) == ETIMEDOUT)
			return client_fail(TERRACE_DEADLINE, "the GPU's driver took all of the call's time to map an extent: give it more");
	return TERRACE_OK;
}

/* Finds the mapping, or makes it, and counts one use. With the lock held. */
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

/* Registers a mapping with GPU g. With the lock held and the turn to talk. */
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

/* Takes the turn to talk, once no other thread registers the mapping. With the lock held. */
static enum terrace_status register_begin(struct client_attachment *a, const struct client_mapping *m, uint64_t deadline_us)
{
	enum terrace_status status;

	do {
		if (!client_fds_await_down(a, &m->registering, deadline_us))
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

	release.head = client_packet_head(FDSOCK_RELEASE);
	pthread_mutex_lock(&a->lock);
	sent = !a->closed && !a->broken && client_packet_send(a->socket, &release, bytes);
	pthread_mutex_unlock(&a->lock);
	return sent;
}

bool client_fds_ask_offers(struct client_attachment *a, uint32_t tier)
{
	struct fdsock_premap premap = {.gpu = tier == DEVICES_MAX ? FDSOCK_NO_GPU : tier};

	premap.head = client_packet_head(FDSOCK_PREMAP);
	return client_packet_send(a->socket, &premap, sizeof(premap));
}

void client_fds_listen(struct client_attachment *a)
{
	if (a->premap.hears && !client_driver_tasks_busy())
		return;
	pthread_mutex_lock(&a->lock);
	if (!a->talking && !a->broken && !a->closed) {
		client_fds_hear(a);
		client_fds_sweep(a);
	}
	pthread_mutex_unlock(&a->lock);
}
