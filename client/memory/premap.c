/* Maps extents before a lease names them, since a GPU's driver takes long for each.
 *
 * The daemon offers its extents (proto/fdsock.h), but only those of GPUs that this process has begun to use. The thread
 * of tasks asks for one after the other. It has the turn to talk for that, as a lease would, but it imports or
 * registers without the turn. So a thread that needs another extent meanwhile goes ahead, and a thread that needs this
 * extent waits for it. The thread rests between extents, and leaves the turn to threads that wait for it.
 *
 * The daemon offers an extent as soon as it is made, and may ask for one that is to go to another tenant. So a process
 * that maps ahead, or whose daemon has several tenants, reads the socket at all times, while other processes read it
 * only when they lease: the same thread waits for the socket. When the daemon has ended,
 * mappings that are not in use are unmapped.
 *
 * If an extent cannot be mapped, it is left, with all extents offered so far, to the leases that name it. A driver
 * without memory is asked again when there is a new offer. If the daemon has not answered in time, the extent is asked
 * for again, once a second.
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
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum {
	PREMAP_MAX = 4096,     /* mappings of an attachment beyond which nothing is mapped ahead */
	ASK_US = 200 * 1000,   /* for the daemon's answer to MAP; the turn is kept for it */
	AGAIN_US = 1000 * 1000, /* after one that did not come */
	SLICE_US = 2 * 1000,   /* then the thread rests, some milliseconds */
	LISTEN_US = 20 * 1000, /* one wait for offers by client_fds_use_await: other threads may need the turn */
};

static const uint64_t of_each_gpu = (1ull << DEVICES_MAX) - 1;

/* ---- offers; with the lock
 * ----------------------------------------------------------------------------------------- */

static bool offers_grow(struct client_premap *h)
{
	const uint32_t capacity = h->capacity ? 2 * h->capacity : 64;
	struct client_offer *offers;

	if (h->count < h->capacity)
		return true;
	offers = capacity <= CLIENT_OFFERS_MAX ? realloc(h->offers, capacity * sizeof(*offers)) : NULL;
	if (!offers)
		return false;
	h->offers = offers;
	h->capacity = capacity;
	return true;
}

static void offers_take(struct client_attachment *a, const struct fdsock_offer *o)
{
	struct client_premap *h = &a->premap;
	const uint32_t tier = o->gpu == FDSOCK_NO_GPU ? DEVICES_MAX : o->gpu;

	if (tier > DEVICES_MAX || (o->gpu == DEVICES_MAX) || !(h->asked >> tier & 1))
		return; /* of what was not asked for, which this process may not even have opened */
	for (uint32_t i = 0; i < o->count; i++)
		if (o->extents[i] != FDSOCK_EXTENT_PROGRESS_PAGE && o->extents[i] != FDSOCK_EXTENT_NONE &&
		    offers_grow(h))
			h->offers[h->count++] = (struct client_offer){o->extents[i], tier};
	if (!o->more)
		h->answered |= 1u << tier;
	if (o->count) /* a thread that waits for the socket does not see what another thread has read */
		client_driver_tasks_wake();
}

/* The daemon wants it for another tenant: it is unmapped when it is not in use, and mapped ahead no more. */
static void retire_extent(struct client_attachment *a, uint32_t extent)
{
	client_fds_offer_end(a, extent);
	for (uint32_t i = 0; i < a->count; i++)
		if (a->mappings[i]->extent == extent)
			client_fds_retire(a, a->mappings[i]);
}

void client_fds_offer_end(struct client_attachment *a, uint32_t extent)
{
	struct client_premap *h = &a->premap;

	for (uint32_t i = 0; i < h->count;) {
		if (h->offers[i].extent != extent) {
			i++;
			continue;
		}
		memmove(h->offers + i, h->offers + i + 1, (--h->count - i) * sizeof(h->offers[0]));
		h->next -= i < h->next;
	}
}

/* ---- what is to be done; with the lock
 * ----------------------------------------------------------------------------- */

struct work {
	struct client_offer offer;
	bool writable;
	struct client_mapping *mapping; /* to be registered with `gpu`; NULL: the extent is to be mapped */
	uint32_t gpu;
	uint64_t ask_until_us;
};

static bool work_on_gpu(const struct client_attachment *a, uint64_t uses, struct work *w)
{
	static const enum client_use of[2] = {CLIENT_USE_LEASE, CLIENT_USE_RESERVE};

	for (int i = 0; i < 2; i++) {
		w->writable = i;
		if (uses & CLIENT_USE_BIT(of[i], w->offer.tier) && !client_fds_find(a, w->offer.extent, w->writable))
			return true;
	}
	return false;
}

/* A bit for each GPU that reads host memory. */
static uint32_t host_readers(uint64_t uses)
{
	return (uint32_t)(uses >> (CLIENT_USE_HOST * DEVICES_MAX) & of_each_gpu);
}

static bool work_on_host(const struct client_attachment *a, uint64_t uses, struct work *w)
{
	uint32_t with = host_readers(uses);
	struct client_mapping *m = with ? client_fds_find(a, w->offer.extent, false) : NULL;

	if (!m)
		return with;
	with &= ~m->ready;
	if (!with || !m->base || m->retiring || m->registering)
		return false;
	w->mapping = m;
	w->gpu = (uint32_t)__builtin_ctz(with);
	return true;
}

/* Finds the next extent to map or register. False: there is none. */
static bool work_next(struct client_attachment *a, struct work *w)
{
	struct client_premap *h = &a->premap;
	const uint64_t uses = h->uses;

	for (; h->next < h->count && a->count < PREMAP_MAX; h->next++) {
		*w = (struct work){.offer = h->offers[h->next]};
		if (w->offer.tier < DEVICES_MAX ? work_on_gpu(a, uses, w) : work_on_host(a, uses, w))
			return true;
	}
	return false;
}

/* ---- doing it; with the lock, which is let go meanwhile
 * ------------------------------------------------------------- */

static void apart_begin(struct client_attachment *a, struct client_mapping *m)
{
	m->uses++;
	a->premap.apart++;
}

static void apart_end(struct client_attachment *a, struct client_mapping *m)
{
	m->uses--;
	a->premap.apart--;
	pthread_cond_broadcast(&a->idle);
	client_fds_sweep(a);
	client_fds_end(a);
}

static enum terrace_status register_apart(struct client_attachment *a, const struct work *w)
{
	struct client_mapping *m = w->mapping;
	enum terrace_status status;

	apart_begin(a, m);
	m->registering = true;
	pthread_mutex_unlock(&a->lock);
	status = client_mapping_register(&a->memory, m, w->gpu);
	pthread_mutex_lock(&a->lock);
	m->registering = false;
	if (!status)
		m->ready |= 1u << w->gpu;
	if (host_readers(a->premap.uses) & ~m->ready)
		a->premap.next = 0; /* a search meanwhile has passed over this mapping */
	apart_end(a, m);
	return status;
}

/* Without the lock, with the turn: asks for the extent, and looks at what comes. *refused: the daemon does not
 * give it. */
static enum terrace_status extent_get(struct client_attachment *a, const struct work *w, struct client_packet *answer,
				      struct client_mapping *made, bool *refused, bool *broken)
{
	enum terrace_status status = client_fds_ask(a, w->offer.extent, w->writable, w->ask_until_us, answer, broken);
	const struct fdsock_extent *e = &answer->body.extent;

	if (status)
		return status;
	*refused = e->status;
	if (!e->status && e->gpu != (w->offer.tier < DEVICES_MAX ? w->offer.tier : FDSOCK_NO_GPU)) {
		client_fds_tell(a, &(struct client_mapping){.extent = e->extent, .writable = e->write});
		status = client_fail(TERRACE_INTERNAL, "extent %u: it is not where the daemon offered it: "
				     "a mistake of the daemon's", e->extent);
	} else {
		status = client_fds_prepare(a, answer, made);
	}
	if (status)
		client_packet_fini(answer);
	return status;
}

/* Adds a mapping to the table, in use and `coming`. NULL: that failed, and the daemon has been told. */
static struct client_mapping *coming_add(struct client_attachment *a, struct client_mapping *made)
{
	struct client_mapping *m;

	made->coming = made->gpu != FDSOCK_NO_GPU;
	m = a->closed ? NULL : client_fds_add(a, made);
	if (m) {
		apart_begin(a, m);
		return m;
	}
	client_mapping_forget(made);
	client_fds_tell(a, made);
	client_fail(a->closed ? TERRACE_CANCELLED : TERRACE_EXHAUSTED, "no memory to keep another mapping of the daemon's memory");
	return NULL;
}

static enum terrace_status map_apart(struct client_attachment *a, const struct work *w, bool *refused)
{
	struct client_mapping made, *m = NULL;
	struct client_packet answer;
	enum terrace_status status;
	bool broken = false;

	a->talking = true;
	pthread_mutex_unlock(&a->lock);
	status = extent_get(a, w, &answer, &made, refused, &broken);
	pthread_mutex_lock(&a->lock);
	if (!status) {
		m = coming_add(a, &made);
		if (!m) {
			status = a->closed ? TERRACE_CANCELLED : TERRACE_EXHAUSTED;
			client_packet_fini(&answer);
		}
	}
	client_fds_talk_end(a, broken);
	if (!m)
		return status;
	pthread_mutex_unlock(&a->lock);
	status = client_mapping_import(&a->memory, &answer, m);
	client_packet_fini(&answer);
	pthread_mutex_lock(&a->lock);
	m->coming = false;
	if (status) {
		client_mapping_forget(m);
		client_fds_retire(a, m);
	}
	apart_end(a, m);
	return status;
}

static uint64_t earlier(uint64_t one_us, uint64_t other_us)
{
	return one_us < other_us ? one_us : other_us;
}

/* Maps or registers one extent. False: there is nothing to be done, or not by this thread now. */
static bool step(struct client_attachment *a, uint64_t deadline_us)
{
	struct client_premap *h = &a->premap;
	enum terrace_status status;
	bool refused = false;
	struct work w;

	if (a->closed || a->broken || a->talking || a->waiting || client_now_us() < h->again_us || !work_next(a, &w))
		return false;
	w.ask_until_us = earlier(client_deadline_us(ASK_US), deadline_us);
	status = w.mapping ? register_apart(a, &w) : map_apart(a, &w, &refused);
	if (refused) {
		client_fds_offer_end(a, w.offer.extent);
	} else if (status == TERRACE_DEADLINE) { /* nothing else has one */
		h->again_us = client_deadline_us(AGAIN_US);
	} else if (status) {
		h->failed = status;
		h->next = h->count;
	}
	return true;
}

/* ---- the library's thread
 * ------------------------------------------------------------------------------------------ */

/* Unmaps all that leases do not use, as the daemon is gone and no lease can be made any more. */
static void retire_all(struct client_attachment *a)
{
	for (uint32_t i = 0; i < a->count; i++)
		client_fds_retire(a, a->mappings[i]);
	client_fds_sweep(a);
}

/* Sets when the thread looks again. While another thread has the turn, that thread reads the socket, but may leave
 * work: then soon. */
static void hearing_rest(struct client_attachment *a, struct client_driver_task *task)
{
	struct work w;
	const bool more = work_next(a, &w), due = more && client_now_us() >= a->premap.again_us;

	task->fd = a->talking || a->broken || client_fds_unswept(a) || due ? -1 : a->socket;
	task->until_us = more ? a->premap.again_us : 0;
}

static bool hearing_run(struct client_driver_task *task)
{
	struct client_attachment *a = (struct client_attachment *)((char *)task - offsetof(struct client_attachment,
	    premap.hearing));
	const uint64_t until = client_now_us() + SLICE_US;
	bool over, closed;

	pthread_mutex_lock(&a->lock);
	if (!a->talking && !a->broken && !a->closed) {
		client_fds_hear(a);
		client_fds_sweep(a);
	}
	while (step(a, UINT64_MAX) && client_now_us() < until)
		continue;
	if (a->broken && !a->talking && !a->closed)
		retire_all(a);
	closed = a->closed;
	over = closed || (a->broken && !a->talking);
	a->premap.hears = !over;
	hearing_rest(a, task);
	pthread_mutex_unlock(&a->lock);
	if (closed) /* else it may be gone: there is no reference */
		client_fds_drop(a);
	return over;
}

/* ---- the others'
 * --------------------------------------------------------------------------------------------------- */

/* Begins to hear offers. Without a thread for it, all works as with a daemon that makes no offers. With the lock. */
static bool hearing_begin(struct client_attachment *a)
{
	if (a->premap.hears)
		return true;
	a->premap.offered = offers_take;
	a->premap.asked_back = retire_extent;
	a->premap.hearing.run = hearing_run;
	a->premap.hears = !client_driver_task_start(&a->premap.hearing);
	return a->premap.hears;
}

void client_fds_hear_always(struct client_attachment *a)
{
	const struct fdsock_head listen = client_packet_head(FDSOCK_LISTEN);

	pthread_mutex_lock(&a->lock);
	if (hearing_begin(a))
		client_packet_send(a->socket, &listen, sizeof(listen));
	pthread_mutex_unlock(&a->lock);
}

void client_fds_use(struct client_attachment *a, enum client_use use, uint32_t g)
{
	const uint32_t tier = use == CLIENT_USE_HOST ? DEVICES_MAX : g;
	struct client_premap *h = &a->premap;

	if (!h->known || atomic_load_explicit(&h->uses, memory_order_relaxed) & CLIENT_USE_BIT(use, g))
		return;
	pthread_mutex_lock(&a->lock);
	if (!a->closed && !a->broken && hearing_begin(a) && (h->asked >> tier & 1 || client_fds_ask_offers(a, tier))) {
		h->asked |= 1u << tier;
		h->uses |= CLIENT_USE_BIT(use, g);
		h->next = 0;
		client_driver_tasks_wake(); /* there may be offers that are to be used so, too */
	}
	pthread_mutex_unlock(&a->lock);
}

/* Waits until something has changed, or for a while. With the lock. */
static void idle_await(struct client_attachment *a, uint64_t deadline_us)
{
	struct timespec until = client_time_of(earlier(client_deadline_us(LISTEN_US), deadline_us));

	pthread_cond_timedwait(&a->idle, &a->lock, &until);
}

/* Takes the turn and hears offers for a while. With the lock. */
static enum terrace_status offers_await(struct client_attachment *a, uint64_t deadline_us)
{
	const uint64_t soon_us = earlier(client_deadline_us(LISTEN_US), deadline_us);
	enum terrace_status status = client_fds_talk_begin(a, deadline_us);

	if (status)
		return status;
	pthread_mutex_unlock(&a->lock);
	status = client_fds_hear_one(a, soon_us);
	pthread_mutex_lock(&a->lock);
	client_fds_talk_end(a, status && status != TERRACE_DEADLINE);
	return status == TERRACE_DEADLINE && client_left_ms(deadline_us) ? TERRACE_OK : status;
}

enum terrace_status client_fds_use_await(struct client_attachment *a, uint64_t deadline_us)
{
	enum terrace_status status = TERRACE_OK;
	struct client_premap *h = &a->premap;
	struct client_words words;
	struct work w;

	client_words_keep(&words);
	pthread_mutex_lock(&a->lock);
	h->failed = TERRACE_OK;
	h->next = 0;
	while (!status && !h->failed) {
		if (a->closed)
			status = client_fail(TERRACE_CANCELLED, "the session is closed: open another one");
		else if (a->broken)
			status = client_fail(TERRACE_UNAVAILABLE, "the daemon's fd socket is closed: "
					     "the daemon has restarted or is stopping: open the session again (terrace_session_reopen)");
		else if (!h->hears)
			break;
		else if (h->asked & ~h->answered && !a->waiting)
			status = offers_await(a, deadline_us);
		else if (!client_left_ms(deadline_us))
			status = client_fail(TERRACE_DEADLINE, "not all memory of the daemon was mapped in the call's time: "
					     "give it more; leases map what is left");
		else if (step(a, deadline_us))
			continue;
		else if (h->apart || h->asked & ~h->answered || work_next(a, &w))
			idle_await(a, deadline_us);
		else
			break;
	}
	if (!status && h->failed)
		status = client_fail(h->failed, "memory of the daemon cannot be mapped: leases on it will say why");
	else if (!status)
		client_words_back(&words);
	pthread_mutex_unlock(&a->lock);
	return status;
}
