/* Promises that leases wait for; see gpu/progress.h. */
#include "client/gpu/progress.h"

#include "client/driver/gpu.h"
#include "client/gpu/stream_thread.h"
#include "client/memory/attachment.h"
#include "client/value/clock.h"
#include "client/value/status.h"
#include "proto/fdsock.h"

enum { PROMISE_WAIT_US = 30 * 1000000 }; /* what copies may take: all of a GPU's memory is filled from the host in a few seconds */

enum terrace_status client_progress_page_open(struct client_attachment *a, uint32_t g, uint64_t deadline_us)
{
	struct client_mapping *m;
	enum terrace_status status;
	bool first;

	pthread_mutex_lock(&a->progress_page.lock);
	m = a->progress_page.mapping;
	pthread_mutex_unlock(&a->progress_page.lock);
	if (!m) {
		status = client_fds_map(a, FDSOCK_EXTENT_PROGRESS_PAGE, true, deadline_us, &m);
		if (status)
			return client_fail_in(status, "the progress page");
		if (m->gpu != FDSOCK_NO_GPU || m->bytes < FDSOCK_PROGRESS_PAGE_WORDS * sizeof(uint32_t)) {
			client_fds_unmap(a, m);
			return client_fail(TERRACE_INTERNAL, "the daemon's progress page is no page of host memory: "
					   "daemon and library are of different versions");
		}
		pthread_mutex_lock(&a->progress_page.lock);
		first = !a->progress_page.mapping;
		a->progress_page.mapping = m;
		pthread_mutex_unlock(&a->progress_page.lock);
		if (!first)
			client_fds_unmap(a, m); /* another thread was faster: one use is enough */
	}
	return client_fds_register(a, m, g, deadline_us);
}

/* ---- promises ---- */

enum terrace_status client_progress_page_promise(struct client_attachment *a, uint32_t g, struct client_promise *p)
{
	struct client_progress_page *b = &a->progress_page;
	enum terrace_status status = client_lent_gpu(&a->memory, g, &p->gpu);

	if (status)
		return status;
	if (p->word >= (p->summed ? FDSOCK_PROGRESS_PAGE_SUMMED : FDSOCK_PROGRESS_PAGE_FAILED))
		return client_fail(TERRACE_INTERNAL, "the daemon's progress page has no word %u: "
				   "daemon and library are of different versions", p->word);
	p->until_us = client_deadline_us(PROMISE_WAIT_US);
	pthread_mutex_lock(&b->lock);
	if (b->closed) {
		pthread_mutex_unlock(&b->lock);
		return client_fail(TERRACE_CANCELLED, "the session is closed: open another one");
	}
	if (client_progress_page_reached(b, p)) {
		pthread_mutex_unlock(&b->lock);
		return TERRACE_OK;
	}
	/* With the lock: no other promise relies on a watch that does not come about. */
	status = b->watched ? TERRACE_OK : client_after_watch(a, client_progress_page_watch);
	if (!status)
		client_promise_link(b, p);
	pthread_mutex_unlock(&b->lock);
	return status;
}

struct look {
	uint64_t now;
	bool gone; /* the daemon */
};

static enum terrace_status broken_by(const struct client_promise *p, void *arg)
{
	const struct look *l = arg;

	if (l->gone)
		return TERRACE_STALE;
	return l->now > p->until_us || client_gpu_was_lost(p->gpu) ? TERRACE_UNAVAILABLE : TERRACE_OK;
}

/* Looks which promises are kept or broken. False: no promise is left. With the lock. */
static bool promises_look(struct client_progress_page *b, bool gone)
{
	struct look l = {client_now_us(), gone};

	return client_progress_page_look(b, broken_by, &l);
}

bool client_progress_page_watch(struct client_attachment *a)
{
	bool gone = client_fds_gone(a), more;
	struct client_progress_page *b = &a->progress_page;

	pthread_mutex_lock(&b->lock);
	more = promises_look(b, gone);
	b->watched = more;
	pthread_mutex_unlock(&b->lock);
	return more;
}

enum terrace_status client_progress_page_state(struct client_attachment *a, struct client_promise *p)
{
	enum terrace_status broken;
	bool listed, gone;

	if (!p->layers)
		return TERRACE_OK;
	gone = client_fds_gone(a);
	pthread_mutex_lock(&a->progress_page.lock);
	promises_look(&a->progress_page, gone);
	broken = (enum terrace_status)atomic_load(&p->broken);
	listed = p->link; /* what is off the list was kept, or the session is closed */
	pthread_mutex_unlock(&a->progress_page.lock);
	switch (broken) {
	case TERRACE_OK:
		return listed ? client_fail(TERRACE_BUSY, "copies to the GPU are under way: wait for them, or ask again") : TERRACE_OK;
	case TERRACE_STALE:
		return client_fail(broken, "the daemon ended before the copies to the GPU were complete: open the session and lease again");
	case TERRACE_CANCELLED:
		return client_fail(broken, "the session was closed before the copies to the GPU were complete: release leases first");
	default:
		return client_fail(broken, "the GPU was lost, or its copies failed, were wrong or took too long: "
				   "compute those blocks (the daemon's log says which it was)");
	}
}
