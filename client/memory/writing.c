/* Reserved slots are writable, and what was reserved is not for long (memory/pages.h).
 *
 * call/write_rest.c has an attachment's mappings to be written looked at every half second, as long as there is one. A
 * mapping that had no writable page for ten seconds is unmapped: the kernel then tells the daemon that this process
 * cannot write there any more. Without a thread for it, pages are closed with the reservation that opened them.
 *
 * The attachment's lock guards pages. A mapping in use is mapped while the attachment is not closed. */
#include "client/memory/attachment.h"

#include "client/value/status.h"

/* Looks that find no page writable, before the mapping goes: to have it again costs a page fault a page. */
enum { RESTS_MAX = 20 };

/* ---- the look; with the lock ---- */

/* Mappings in the table may have been unmapped, and wait for the daemon to be told. */
static void mapping_tend(struct client_attachment *a, struct client_mapping *m)
{
	if (client_pages_rest(m->pages, CLIENT_REST_A_SECOND) || m->uses)
		m->rests = 0;
	else if (m->rests++ == RESTS_MAX)
		client_fds_retire(a, m);
}

/* True: there are writable mappings. */
static bool tend(struct client_attachment *a)
{
	bool any = false;

	for (uint32_t i = 0; i < a->count; i++) {
		struct client_mapping *m = a->mappings[i];

		if (!m->pages || !m->base || m->retiring)
			continue;
		mapping_tend(a, m);
		any = true;
	}
	client_fds_sweep(a);
	return any;
}

bool client_fds_tend(struct client_attachment *a, bool *closed)
{
	bool more;

	pthread_mutex_lock(&a->lock);
	*closed = a->closed;
	more = !a->closed && tend(a);
	a->tends = more;
	pthread_mutex_unlock(&a->lock);
	return more;
}

/* ---- the others' ---- */

enum terrace_status client_fds_write_begin(struct client_attachment *a, const struct client_run *slots)
{
	struct client_mapping *m = slots->mapping;
	enum terrace_status status = TERRACE_OK;

	if (!m->guarded)
		return TERRACE_OK;
	pthread_mutex_lock(&a->lock);
	if (a->closed)
		status = client_fail(TERRACE_CANCELLED, "the session is closed: open another one");
	else if (!m->pages && !(m->pages = client_pages_create(m->base, m->bytes, m->page_bytes)))
		status = client_fail(TERRACE_EXHAUSTED, "no memory to keep another mapping of the daemon's memory");
	if (!status)
		status = client_pages_open(m->pages, slots->offset, slots->bytes);
	if (!status)
		m->rests = 0;
	pthread_mutex_unlock(&a->lock);
	return status;
}

void client_fds_write_end(struct client_attachment *a, const struct client_run *slots)
{
	struct client_mapping *m = slots->mapping;

	if (!m->guarded)
		return;
	pthread_mutex_lock(&a->lock);
	if (!a->closed) { /* else it is gone already */
		client_pages_leave(m->pages, slots->offset, slots->bytes);
		if (!a->tends)
			client_pages_rest(m->pages, CLIENT_REST_NOW);
	}
	pthread_mutex_unlock(&a->lock);
}
