/* Ends an attachment: its memory is unmapped when nothing uses it any more, and the daemon is told.
 *
 * The daemon waits for that packet, or for the end of the process. So the socket stays open until the packet is sent,
 * however long the daemon does not read. A task does it: it tries again until the daemon has got the packet or has
 * ended.
 */
#include "client/memory/attachment.h"

#include "client/memory/progress_page.h"
#include "client/memory/hear.h"
#include "client/memory/pages.h"
#include "client/memory/table.h"
#include "client/value/clock.h"
#include "client/value/inside.h"
#include "proto/fdsock.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* Unmaps all memory, which no thread maps or uses any more. The table stays: a thread that is making a lease may be
 * reading it. Called without the lock. */
static void memory_drop(struct client_attachment *a)
{
	for (uint32_t i = 0; i < a->count; i++)
		if (a->mappings[i]->base && !(a->mappings[i]->extent == FDSOCK_EXTENT_PROGRESS_PAGE &&
		    a->progress_page_stays))
			client_mapping_drop(&a->memory, a->mappings[i]);
	client_lent_memory_fini(&a->memory);
}

/* What follows has the lock. */

static bool hung_up(int socket)
{
	struct pollfd end = {.fd = socket, .events = POLLOUT};

	return poll(&end, 1, 0) > 0 && end.revents & (POLLHUP | POLLERR);
}

/* Tells the daemon that everything is unmapped. True: it has been told, or it listens no more. */
static bool told(struct client_attachment *a)
{
	static const struct client_mapping everything = {.extent = FDSOCK_EXTENT_NONE};

	return a->socket < 0 || client_fds_tell(a, &everything) || hung_up(a->socket);
}

static void end_note(struct client_attachment *a)
{
	if (a->socket >= 0) {
		shutdown(a->socket, SHUT_RDWR); /* a forked child may have it open, too */
		close(a->socket);
	}
	a->socket = -1;
	a->ended = true;
}

static bool has_gpus(const struct client_attachment *a)
{
	bool has = a->memory.range_count > 0 || a->premap.hears; /* the task that reads the socket closes it */

	for (uint32_t i = 0; i < a->count; i++)
		has = has || client_fds_of_driver(a->mappings[i]);
	return has;
}

static bool unmapping_run(struct client_driver_task *task);

/* Begins to unmap on the library's thread. False: there is no such thread. */
static bool unmapping_begin(struct client_attachment *a)
{
	client_fds_hold(a);
	a->unmapping.run = unmapping_run;
	if (!client_driver_task_start(&a->unmapping))
		return true;
	atomic_fetch_sub_explicit(&a->references, 1, memory_order_relaxed); /* the caller has one */
	return false;
}

void client_fds_end(struct client_attachment *a)
{
	if (!a->closed || a->ending || a->talking || a->streams || a->premap.apart)
		return;
	a->ending = true;
	client_fds_hear_out(a);
	if (has_gpus(a) && unmapping_begin(a))
		return;
	pthread_mutex_unlock(&a->lock);
	memory_drop(a);
	pthread_mutex_lock(&a->lock);
	a->dropped = true;
	if (told(a) || !unmapping_begin(a))
		end_note(a);
}

static bool unmapping_run(struct client_driver_task *task)
{
	struct client_attachment *a = (struct client_attachment *)((char *)task - offsetof(struct client_attachment, unmapping));
	bool over;

	if (!a->dropped)
		memory_drop(a);
	pthread_mutex_lock(&a->lock);
	a->dropped = true;
	over = told(a);
	if (over)
		end_note(a);
	pthread_mutex_unlock(&a->lock);
	if (over)
		client_fds_drop(a);
	return over;
}

/* Marks the attachment as closed. With the lock. */
static void close_begin(struct client_attachment *a)
{
	a->closed = true;
	if (a->premap.hears)
		client_fds_hold(a); /* until it has heard of this */
	if (a->tends)
		client_fds_hold(a); /* until client_places_tend() has */
	if (a->socket >= 0)
		shutdown(a->socket, SHUT_RD); /* wakes the thread that talks; the daemon is still told what is unmapped */
	pthread_cond_broadcast(&a->idle);
	a->progress_page_stays = client_progress_page_close(&a->progress_page);
}

/* Closes the attachment once and waits for the end of its streams' waits. The thread that ends these does not wait for
 * itself. */
static void close_once(struct client_attachment *a, uint64_t wait_us)
{
	struct timespec until = client_time_of(client_deadline_us(wait_us));
	int waited = 0;

	pthread_mutex_lock(&a->lock);
	if (a->closed) {
		pthread_mutex_unlock(&a->lock);
		return;
	}
	close_begin(a);
	while ((a->talking || a->streams || a->premap.apart) && !client_after_inside() && waited != ETIMEDOUT)
		waited = pthread_cond_timedwait(&a->idle, &a->lock, &until);
	client_fds_end(a);
	pthread_mutex_unlock(&a->lock);
}

void client_fds_close(struct client_attachment *a)
{
	close_once(a, a->close_wait_us);
}

void client_fds_hold(struct client_attachment *a)
{
	atomic_fetch_add_explicit(&a->references, 1, memory_order_relaxed);
}

/* The last reference closes before it goes: while it is open the thread that hears has none, and may take one. After
 * that it has ended, or an task has it, or that thread. No call waits for that thread: one that releases a lease or
 * opens a session anew must not wait for a driver. */
void client_fds_drop(struct client_attachment *a)
{
	unsigned n = atomic_load(&a->references);
	bool closed = false;

	do {
		if (n == 1 && !closed) {
			close_once(a, 0);
			closed = true;
			n = atomic_load(&a->references);
		}
	} while (!atomic_compare_exchange_weak(&a->references, &n, n - 1));
	if (n != 1)
		return;
	for (uint32_t i = 0; i < a->count; i++) {
		client_pages_destroy(a->mappings[i]->pages);
		free(a->mappings[i]->registered);
		free(a->mappings[i]);
	}
	free(a->mappings);
	free(a->premap.offers);
	client_progress_page_fini(&a->progress_page);
	pthread_cond_destroy(&a->idle);
	pthread_mutex_destroy(&a->lock);
	free(a);
}
