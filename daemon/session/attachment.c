/* Attachments: processes that joined a session and borrow extents. Each is a number that no other gets, which is also
 * the byte it locks in the extents lent to it (store/host/extent.h): asking the kernel for that lock tells whether
 * anything of the process, or of what it forked, can still touch them. For a GPU's memory, the file that is lent and
 * locked is the extent's hold. GPU work of the process, also on host memory, may outlive its last mapping by a little:
 * so the process must also have exited, unless it said that it has unmapped the extent.
 */
#include "daemon/session/attachment.h"

#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/session/retire.h"
#include "daemon/session/session.h"
#include "daemon/vram/progress.h"
#include "daemon/vram/state.h"
#include "daemon/vram/vram.h"
#include "store/arena/arena.h"
#include "store/host/extent.h"
#include "store/status.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {ATTACHMENT_NUMBER_MAX = 0x7fffffff };

struct attachment *attachment_find(struct cache *c, uint64_t number)
{
	struct attachment *a = c->attachment_hash[number % ATTACHMENT_BUCKETS];

	while (a && a->number != number)
		a = a->hash_next;
	return a;
}

const char *attachment_problem(struct cache *c, const struct session *s, uint64_t number)
{
	const struct attachment *a = attachment_find(c, number);

	if (!a || a->gone || a->session != s)
		return "not a live attachment of this session: attach over the fd socket first";
	return NULL;
}

bool cache_token_is_of(struct cache *c, uint32_t tenant, const uint8_t token[CACHE_TOKEN_BYTES])
{
	const struct session *s;

	cache_lock(c);
	s = session_with_token(c, token);
	if (s && s->tenant != tenant_of_number(c, tenant))
		s = NULL;
	cache_unlock(c);
	return s;
}

enum status cache_attach(struct cache *c, const uint8_t token[CACHE_TOKEN_BYTES], pid_t pid, uint64_t now_us,
			 uint64_t *attachment, uint64_t *session, const char **why)
{
	struct attachment *a = calloc(1, sizeof(*a));
	enum status status = STATUS_EXHAUSTED;
	struct session *s;

	*why = "no memory";
	if (!a)
		return status;
	cache_lock(c);
	s = session_with_token(c, token);
	now_us = cache_time(c, now_us);
	if (!s) {
		*why = "no session has this token";
		status = STATUS_DENIED;
	} else if (s->attachment_count == ATTACHMENTS_MAX || c->last_attachment == ATTACHMENT_NUMBER_MAX) {
		*why = "too many attachments";
	} else {
		struct attachment **bucket;

		*a = (struct attachment){ .session = s, .number = ++c->last_attachment, .pid = pid,
					  .pidfd = -1 };
		bucket = &c->attachment_hash[a->number % ATTACHMENT_BUCKETS];
		a->hash_next = *bucket;
		*bucket = a;
		a->next = s->attachments;
		s->attachments = a;
		s->attachment_count++;
		s->attached++;
		s->last_call_us = now_us;
		*attachment = a->number;
		*session = s->handle;
		status = STATUS_OK;
	}
	cache_unlock(c);
	if (status)
		free(a);
	return status;
}

void attachment_free(struct cache *c, struct attachment *a)
{
	struct attachment **at = &a->session->attachments;

	while (*at != a)
		at = &(*at)->next;
	*at = a->next;
	at = &c->attachment_hash[a->number % ATTACHMENT_BUCKETS];
	while (*at != a)
		at = &(*at)->hash_next;
	*at = a->hash_next;
	a->session->attachment_count--;
	if (!a->gone)
		a->session->attached--;
	if (a->pidfd >= 0)
		close(a->pidfd);
	if (a->progress_page)
		progress_page_let_go(c, a->progress_page);
	free(a->lent);
	free(a->written);
	offers_free(a->offers);
	free(a);
}

/* The index of the first lent extent whose id is not below that of the extent. */
static uint32_t lent_place(const struct attachment *a, uint32_t extent)
{
	uint32_t from = 0, to = a->lent_count;

	while (from < to) {
		const uint32_t middle = (from + to) / 2;

		if (a->lent[middle].extent < extent)
			from = middle + 1;
		else
			to = middle;
	}
	return from;
}

static struct lent *lent_find(const struct attachment *a, uint32_t extent)
{
	const uint32_t i = lent_place(a, extent);

	return i < a->lent_count && a->lent[i].extent == extent ? &a->lent[i] : NULL;
}

uint32_t attachment_writable(const struct attachment *a)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < a->lent_count; i++)
		n += a->lent[i].writes;
	return n;
}

static bool lent_grow(struct attachment *a)
{
	const uint32_t cap = a->lent_cap ? 2 * a->lent_cap : 8;
	struct lent *lent;

	if (a->lent_count < a->lent_cap)
		return true;
	lent = a->lent_count < LENT_MAX ? realloc(a->lent, cap * sizeof(*lent)) : NULL;
	if (!lent)
		return false;
	a->lent = lent;
	a->lent_cap = cap;
	return true;
}

static enum status lent_add(struct attachment *a, uint32_t extent, bool write)
{
	struct lent *l = lent_find(a, extent);
	uint32_t i;

	if (!l) {
		if (!lent_grow(a))
			return STATUS_EXHAUSTED;
		i = lent_place(a, extent);
		l = &a->lent[i];
		memmove(l + 1, l, (a->lent_count++ - i) * sizeof(*l));
		*l = (struct lent){ .extent = extent };
	}
	if (a->asked == extent) /* it has mapped it again */
		a->asked = 0;
	l->told = false;
	l->writes |= write;
	return STATUS_OK;
}

static void lent_remove(struct attachment *a, struct lent *l)
{
	memmove(l, l + 1, (size_t)(a->lent + --a->lent_count - l) * sizeof(*l));
}

/* The arena that has the extent: a GPU's, or that of host memory. */
static struct arena *arena_of(const struct cache *c, uint32_t extent)
{
	const struct gpu *g = vram_gpu_of_extent(c, extent);

	return g && g->arena ? g->arena : c->host;
}

/* The shared file that is lent for an extent, and whose locks are probed. */
static struct extent *lent_extent(const struct cache *c, uint32_t extent)
{
	return arena_extent(arena_of(c, extent), extent);
}

/* Whether the attachment's process lives. A process that cannot be watched counts as living. */
static bool process_lives(const struct attachment *a)
{
	struct pollfd p = { .fd = a->pidfd, .events = POLLIN };

	return poll(&p, 1, 0) <= 0;
}

enum held { HELD_NOT, HELD, HELD_UNKNOWN };

/* Whether the process still maps the extent. With the lock. HELD_UNKNOWN: extents are being made or unmapped just now;
 * ask again later. */
static enum held extent_is_held(struct cache *c, struct lent *l, uint32_t number)
{
	const struct extent *e;
	enum held held = HELD;

	if (pthread_mutex_trylock(&c->extents))
		return HELD_UNKNOWN;
	e = lent_extent(c, l->extent);
	if (!e || !extent_held(e, number))
		held = HELD_NOT;
	l->writes = l->writes && held && extent_written(e, number);
	pthread_mutex_unlock(&c->extents);
	return held;
}

/* Whether something keeps the lent extent: its lock, or the process, whose GPU may still be copying, unless it has said
 * that it has unmapped the extent. */
static bool lent_holds(struct cache *c, const struct attachment *a, struct lent *l)
{
	/* The process first: with 256 processes an extent has 512 locks, which the kernel walks at each question. */
	return (!l->told && !a->host_only && process_lives(a)) || extent_is_held(c, l, a->number);
}

/* Called when the process says that it has unmapped the extent, or never had it. */
static void lent_told(struct cache *c, struct attachment *a, uint32_t extent)
{
	struct lent *l = a->lending ? NULL : lent_find(a, extent);

	enum held held;

	if (!l)
		return;
	held = extent_is_held(c, l, a->number);
	l->told = held != HELD; /* else it has another mapping of it, and will say so of that, too */
	if (!held)
		lent_remove(a, l);
}

/* Notes that the process says that it has unmapped everything. The kernel is asked once the process is gone. */
static void all_told(struct attachment *a)
{
	for (uint32_t i = 0; !a->lending && i < a->lent_count; i++)
		a->lent[i].told = true;
}

bool attachment_holds(struct cache *c, struct attachment *a, uint32_t *probes)
{
	if (a->lending || a->boarding) /* the thread that lends looks at it again */
		return true;
	while (a->lent_count) {
		if (*probes == 0)
			return true;
		--*probes;
		if (lent_holds(c, a, &a->lent[a->lent_count - 1]))
			return true;
		a->lent_count--;
	}
	return false;
}

bool attachment_lent(const struct attachment *a, uint32_t extent)
{
	return lent_find(a, extent);
}

bool attachments_lent(const struct cache *c, uint32_t extent, bool deaf)
{
	for (uint32_t i = 0; i < ATTACHMENT_BUCKETS; i++)
		for (const struct attachment *a = c->attachment_hash[i]; a; a = a->hash_next)
			if (!(deaf && a->listens) && lent_find(a, extent))
				return true;
	return false;
}

void attachments_unask(struct cache *c)
{
	for (uint32_t i = 0; i < ATTACHMENT_BUCKETS; i++)
		for (struct attachment *a = c->attachment_hash[i]; a; a = a->hash_next)
			a->asked = 0;
}

bool attachments_have(struct cache *c, uint32_t extent)
{
	bool have = false;

	for (uint32_t i = 0; i < ATTACHMENT_BUCKETS && !have; i++)
		for (struct attachment *a = c->attachment_hash[i]; a && !have; a = a->hash_next) {
			struct lent *l = lent_find(a, extent);

			have = l && (a->lending || lent_holds(c, a, l));
			if (l && !have)
				lent_remove(a, l);
		}
	return have;
}

static enum status still_open(const struct attachment *a)
{
	return !a || a->gone || a->session->state != SESSION_OPEN ? STATUS_DENIED : STATUS_OK;
}

/* The count of slots that the process may write in that extent; NULL: none. Starts where the last search ended, as the
 * next reservation mostly lies in the extent of the last one. */
static struct written *written_find(struct attachment *a, uint32_t extent)
{
	for (uint32_t i = 0; i < a->written_count; i++) {
		const uint32_t at = (a->written_at + i) % a->written_count;

		if (a->written[at].extent != extent)
			continue;
		a->written_at = at;
		return &a->written[at];
	}
	return NULL;
}

static struct written *written_add(struct attachment *a, uint32_t extent)
{
	if (a->written_count == a->written_cap) {
		const uint32_t cap = a->written_cap ? 2 * a->written_cap : 8;
		struct written *more = realloc(a->written, cap * sizeof(*more));

		if (!more)
			return NULL;
		a->written = more;
		a->written_cap = cap;
	}
	a->written_at = a->written_count++;
	a->written[a->written_at] = (struct written){ extent, 0 };
	return &a->written[a->written_at];
}

bool attachment_writes(struct attachment *a, uint32_t extent, bool more)
{
	struct written *w = written_find(a, extent);

	if (!w && more)
		w = written_add(a, extent);
	if (!w)
		return false;
	w->slots += more ? 1 : -1u;
	if (!w->slots)
		*w = a->written[--a->written_count];
	return true;
}

/* Whether the session may have the extent: OK for any extent of its tenant. NOT_FOUND: no such extent, or another
 * tenant's, of which nothing is told. */
static enum status may_map(const struct cache *c, struct session *s, uint32_t extent)
{
	uint32_t tenant;

	if (!arena_extent_owner(arena_of(c, extent), extent, &tenant) || retire_is_final(c, extent))
		return STATUS_NOT_FOUND;
	return tenant == session_tenant(s)->number ? STATUS_OK
						   : STATUS_NOT_FOUND; /* of another tenant's nothing is told */
}

/* Whether this attachment may have the extent now. If so, notes that it has it. Memory of a GPU has one form only,
 * which may be written. */
static enum status map_begin(struct cache *c, uint64_t attachment, uint32_t extent, bool write)
{
	struct attachment *a = attachment_find(c, attachment);
	const struct gpu *g = vram_gpu_of_extent(c, extent);
	enum status s;

	if (still_open(a))
		return STATUS_DENIED;
	s = may_map(c, a->session, extent);
	if (s)
		return s;
	if (g && a->host_only)
		return STATUS_UNSUPPORTED;
	if (g && g->lost)
		return STATUS_UNAVAILABLE;
	if (write && !g && !written_find(a, extent))
		return STATUS_PRECONDITION;
	if (a->pidfd < 0) /* the end of its work there would not be seen */
		return STATUS_EXHAUSTED;
	s = lent_add(a, extent, write);
	if (!s)
		a->lending++;
	return s;
}

/* Adds the descriptor of a GPU's memory to that of the hold. */
static enum status lend_memory(struct arena *arena, uint32_t extent, struct cache_lent *out)
{
	struct arena_device_extent e;
	enum status s = arena_extent_device(arena, extent, &e);

	if (s) {
		close(out->fd);
		return s;
	}
	out->device_fd = e.fd;
	out->bytes = e.bytes;
	out->at = e.at;
	out->range_bytes = e.range_bytes;
	return STATUS_OK;
}

static enum status map_lend(struct cache *c, uint32_t number, uint32_t extent, bool write, struct cache_lent *out)
{
	const struct gpu *g = vram_gpu_of_extent(c, extent);
	enum status s = STATUS_NOT_FOUND;
	struct extent *e;
	uint32_t tenant;

	*out = (struct cache_lent){ .fd = -1, .device_fd = -1, .gpu = g ? (int32_t)g->number : CACHE_HOST };
	pthread_mutex_lock(&c->extents);
	e = lent_extent(c, extent);
	if (e) {
		s = extent_lend(e, number, write, &out->fd);
		out->bytes = e->bytes;
		out->page_bytes = e->page_bytes;
	}
	if (!s && g)
		s = lend_memory(g->arena, extent, out);
	pthread_mutex_unlock(&c->extents);
	if (!s && arena_extent_owner(arena_of(c, extent), extent, &tenant))
		out->range_id = tenant; /* each GPU has one range a tenant */
	return s;
}

static void lent_close(const struct cache_lent *l)
{
	close(l->fd);
	if (l->device_fd >= 0)
		close(l->device_fd);
}

/* Lends the attachment its own progress page, which is made at the first request. The page is made and lent without the
 * lock, so the attachment is held by `boarding` and looked at again each time the lock is taken. */
static enum status progress_page_lend(struct cache *c, uint64_t attachment, struct cache_lent *out)
{
	struct attachment *a;
	struct progress_page *progress_page, *spare = NULL;
	enum status s;

	if (!c->vram)
		return STATUS_NOT_FOUND;
	cache_lock(c);
	a = attachment_find(c, attachment);
	s = still_open(a);
	if (!s && a->host_only)
		s = STATUS_UNSUPPORTED;
	if (!s)
		a->boarding++;
	progress_page = s ? NULL : a->progress_page;
	cache_unlock(c);
	if (s)
		return s;
	if (!progress_page)
		spare = progress_page_create(c);
	cache_lock(c);
	if (!a->progress_page && spare) {
		a->progress_page = spare;
		spare = NULL;
	}
	progress_page = a->progress_page;
	cache_unlock(c);
	if (spare)
		progress_page_destroy(c, spare);
	*out = (struct cache_lent){ .fd = -1, .device_fd = -1, .gpu = CACHE_HOST };
	s = progress_page ? extent_lend(&progress_page->page, (uint32_t)attachment, true, &out->fd) : STATUS_EXHAUSTED;
	cache_lock(c);
	a->boarding--;
	if (still_open(a) && !s) {
		lent_close(out);
		s = STATUS_DENIED;
	}
	if (!s) {
		out->bytes = progress_page->page.bytes;
		out->page_bytes = progress_page->page.page_bytes;
	}
	cache_unlock(c);
	return s;
}

enum status cache_attach_lend(struct cache *c, uint64_t attachment, uint32_t extent, bool write, struct cache_lent *out)
{
	struct attachment *a;
	struct cache_lent lent;
	enum status s;

	if (extent == CACHE_EXTENT_PROGRESS_PAGE)
		return progress_page_lend(c, attachment, out);
	cache_lock(c);
	s = map_begin(c, attachment, extent, write);
	cache_unlock(c);
	if (s)
		return s;
	s = map_lend(c, (uint32_t)attachment, extent, write, &lent);
	cache_lock(c);
	a = attachment_find(c, attachment); /* `lending` has kept it */
	a->lending--;
	if (still_open(a) && !s) {
		lent_close(&lent);
		s = STATUS_DENIED;
	}
	if (s) /* no process will say that it unmapped the extent */
		lent_told(c, a, extent);
	cache_unlock(c);
	if (!s)
		*out = lent;
	return s;
}

void cache_attach_watch(struct cache *c, uint64_t attachment, int pidfd)
{
	struct attachment *a;

	cache_lock(c);
	a = attachment_find(c, attachment);
	if (a && a->pidfd < 0) {
		a->pidfd = pidfd;
		pidfd = -1;
	}
	cache_unlock(c);
	if (pidfd >= 0)
		close(pidfd);
}

void cache_attach_host_only(struct cache *c, uint64_t attachment)
{
	struct attachment *a;

	cache_lock(c);
	a = attachment_find(c, attachment);
	if (a)
		a->host_only = true;
	cache_unlock(c);
}

void cache_attach_unmapped(struct cache *c, uint64_t attachment, uint32_t extent)
{
	struct attachment *a;

	cache_lock(c);
	a = attachment_find(c, attachment);
	if (a && extent == (uint32_t)CACHE_EXTENT_NONE)
		all_told(a);
	else if (a)
		lent_told(c, a, extent);
	cache_unlock(c);
}

void offers_free(struct offers *o)
{
	free(o);
}
