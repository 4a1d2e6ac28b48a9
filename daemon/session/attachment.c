/* Attachments: processes that joined a session and borrow extents. Each is a number that no other gets,
 * which is also the byte it locks in the extents lent to it (store/host/extent.h): asking the kernel for that
 * lock tells whether anything of the process, or of what it forked, can still touch them. Of a GPU's memory it is the extent's hold that is
 * lent so; and as work on a GPU may outlive the process's last mapping by a little, the process must have exited too, unless it said
 * itself that it has unmapped the extent.
 */
#include "daemon/session/attachment.h"

#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/session/session.h"
#include "daemon/vram/progress.h"
#include "daemon/vram/state.h"
#include "daemon/vram/vram.h"
#include "store/arena/arena.h"
#include "store/host/extent.h"
#include "store/host/host.h"
#include "store/status.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {ATTACHMENT_NUMBER_MAX = 0x7fffffff };

#define LENT_TOLD (1u << 31) /* beside an extent's number, which is smaller: its process says that it has unmapped it */

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
	if (a->board)
		board_let_go(c, a->board);
	free(a->lent);
	free(a->written);
	offers_free(a->offers);
	free(a);
}

bool attachment_has_lent(const struct attachment *a, uint32_t extent)
{
	for (uint32_t i = 0; i < a->lent_count; i++)
		if ((a->lent[i] & ~LENT_TOLD) == extent)
			return true;
	return false;
}

static enum status lent_add(struct attachment *a, uint32_t extent)
{
	for (uint32_t i = 0; i < a->lent_count; i++)
		if ((a->lent[i] & ~LENT_TOLD) == extent) {
			a->lent[i] = extent;
			return STATUS_OK;
		}
	if (a->lent_count == LENT_MAX)
		return STATUS_EXHAUSTED;
	if (a->lent_count == a->lent_cap) {
		uint32_t cap = a->lent_cap ? 2 * a->lent_cap : 8;
		uint32_t *lent = realloc(a->lent, cap * sizeof(*lent));

		if (!lent)
			return STATUS_EXHAUSTED;
		a->lent = lent;
		a->lent_cap = cap;
	}
	a->lent[a->lent_count++] = extent;
	return STATUS_OK;
}

/* Of a GPU's extent its memory; NULL: it is none. */
static struct arena *arena_of(const struct cache *c, uint32_t extent)
{
	const struct gpu *g = vram_gpu_of_extent(c, extent);

	return g ? g->arena : NULL;
}

/* The extent, of a GPU's its hold; NULL: unknown. */
static struct extent *extent_of(const struct cache *c, uint32_t extent)
{
	struct arena *a = arena_of(c, extent);

	return a ? arena_extent(a, extent) : host_extent(c->host, extent);
}

/* layout_id: of host memory alone; a GPU's is the tenant's, for all layouts. */
static bool owner_of(const struct cache *c, uint32_t extent, uint32_t *tenant, uint64_t *layout_id, bool *draining)
{
	struct arena *a = arena_of(c, extent);

	*layout_id = 0;
	return a ? arena_extent_owner(a, extent, tenant, draining)
		 : host_extent_owner(c->host, extent, tenant, layout_id, draining);
}

/* One that is not known lives. */
static bool process_lives(const struct attachment *a)
{
	struct pollfd p = { .fd = a->pidfd, .events = POLLIN };

	return poll(&p, 1, 0) <= 0;
}

enum held { HELD_NOT, HELD, HELD_UNKNOWN };

/* With the lock. Unknown: extents are being made or unmapped just now; asked again later. */
static enum held extent_is_held(struct cache *c, uint32_t extent, uint32_t number)
{
	const struct extent *e;
	enum held held = HELD;

	if (pthread_mutex_trylock(&c->extents))
		return HELD_UNKNOWN;
	e = extent_of(c, extent);
	if (!e || !extent_held(e, number))
		held = HELD_NOT;
	pthread_mutex_unlock(&c->extents);
	return held;
}

/* What keeps an extent: the lock, or, of a GPU's, the process, unless it has said that it has unmapped it. */
static bool lent_holds(struct cache *c, const struct attachment *a, uint32_t *lent)
{
	const uint32_t extent = *lent & ~LENT_TOLD;
	enum held held = extent_is_held(c, extent, a->number);

	if (held == HELD)
		*lent = extent; /* it has another mapping of it, and will say so of that, too */
	return held || (vram_gpu_of_extent(c, extent) && !(*lent & LENT_TOLD) && process_lives(a));
}

/* The process has unmapped the extent, or never had it. */
static void lent_told(struct cache *c, struct attachment *a, uint32_t extent)
{
	for (uint32_t i = 0; !a->lending && i < a->lent_count; i++) {
		if ((a->lent[i] & ~LENT_TOLD) != extent)
			continue;
		a->lent[i] = extent | LENT_TOLD;
		if (!lent_holds(c, a, &a->lent[i]))
			a->lent[i] = a->lent[--a->lent_count];
		break;
	}
}

bool attachment_holds(struct cache *c, struct attachment *a, uint32_t *probes)
{
	if (a->lending || a->boarding) /* whoever lends comes back to it */
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

static enum status still_open(const struct attachment *a)
{
	return !a || a->gone || a->session->state != SESSION_OPEN ? STATUS_DENIED : STATUS_OK;
}

/* Reservations of a process lie in few extents at a time, and the next is mostly where the last one was. NULL: it has none there. */
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

/* May this attachment have this extent? Notes that it has. Memory of a GPU has one form only, which may be written. */
static enum status map_begin(struct cache *c, uint64_t attachment, uint32_t extent, bool write)
{
	struct attachment *a = attachment_find(c, attachment);
	const struct gpu *g = vram_gpu_of_extent(c, extent);
	uint32_t tenant;
	uint64_t layout_id;
	bool draining, mine = g != NULL;
	enum status s;

	if (still_open(a))
		return STATUS_DENIED;
	if (!owner_of(c, extent, &tenant, &layout_id, &draining))
		return STATUS_NOT_FOUND;
	if (g && g->lost)
		return STATUS_UNAVAILABLE;
	for (uint32_t i = 0; i < session_layouts(a->session); i++)
		mine |= session_pool(a->session, i)->layout_id == layout_id;
	if (!mine || tenant != session_pool(a->session, 0)->tenant->number)
		return STATUS_DENIED;
	if (draining)
		return STATUS_NOT_FOUND;
	if (write && !g && !written_find(a, extent))
		return STATUS_PRECONDITION;
	if (g && a->pidfd < 0) /* nobody would see the end of its work there */
		return STATUS_EXHAUSTED;
	s = lent_add(a, extent);
	if (!s)
		a->lending++;
	return s;
}

/* Of a GPU's: the memory, beside the hold. */
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
	uint32_t tenant;
	bool draining;
	struct extent *e;

	*out = (struct cache_lent){ .fd = -1, .device_fd = -1, .gpu = g ? (int32_t)g->number : CACHE_HOST };
	pthread_mutex_lock(&c->extents);
	e = extent_of(c, extent);
	if (e) {
		s = extent_lend(e, number, write, &out->fd);
		out->bytes = e->bytes;
		out->page_bytes = e->page_bytes;
	}
	if (!s && g)
		s = lend_memory(g->arena, extent, out);
	pthread_mutex_unlock(&c->extents);
	if (!s)
		owner_of(c, extent, &tenant, &out->layout_id, &draining);
	return s;
}

static void lent_close(const struct cache_lent *l)
{
	close(l->fd);
	if (l->device_fd >= 0)
		close(l->device_fd);
}

/* Its own page, made when it is first asked for. */
static enum status board_lend(struct cache *c, uint64_t attachment, struct cache_lent *out)
{
	struct attachment *a;
	struct board *board, *spare = NULL;
	enum status s;

	if (!c->vram)
		return STATUS_NOT_FOUND;
	cache_lock(c);
	a = attachment_find(c, attachment);
	s = still_open(a);
	if (!s)
		a->boarding++;
	board = s ? NULL : a->board;
	cache_unlock(c);
	if (s)
		return s;
	if (!board)
		spare = board_create(c);
	cache_lock(c);
	if (!a->board && spare) {
		a->board = spare;
		spare = NULL;
	}
	board = a->board;
	cache_unlock(c);
	if (spare)
		board_destroy(c, spare);
	*out = (struct cache_lent){ .fd = -1, .device_fd = -1, .gpu = CACHE_HOST };
	s = board ? extent_lend(&board->page, (uint32_t)attachment, true, &out->fd) : STATUS_EXHAUSTED;
	cache_lock(c);
	a->boarding--;
	if (still_open(a) && !s) {
		lent_close(out);
		s = STATUS_DENIED;
	}
	if (!s) {
		out->bytes = board->page.bytes;
		out->page_bytes = board->page.page_bytes;
	}
	cache_unlock(c);
	return s;
}

enum status cache_attach_lend(struct cache *c, uint64_t attachment, uint32_t extent, bool write, struct cache_lent *out)
{
	struct attachment *a;
	struct cache_lent lent;
	enum status s;

	if (extent == CACHE_EXTENT_BOARD)
		return board_lend(c, attachment, out);
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
	if (s) /* nor will it be unmapped by anybody */
		lent_told(c, a, extent);
	cache_unlock(c);
	if (!s)
		*out = lent;
	return s;
}

enum status cache_attach_map(struct cache *c, uint64_t attachment, uint32_t extent, bool write, int *fd,
			     uint64_t *bytes, uint32_t *page_bytes)
{
	struct cache_lent lent;
	enum status s = cache_attach_lend(c, attachment, extent, write, &lent);

	if (s)
		return s;
	if (lent.device_fd >= 0) { /* it needs both */
		lent_close(&lent);
		return STATUS_NOT_FOUND;
	}
	*fd = lent.fd;
	*bytes = lent.bytes;
	*page_bytes = lent.page_bytes;
	return STATUS_OK;
}

void cache_attach_watch(struct cache *c, uint64_t attachment, int pidfd)
{
	struct attachment *a;

	cache_lock(c);
	a = c->vram ? attachment_find(c, attachment) : NULL;
	if (a && a->pidfd < 0) {
		a->pidfd = pidfd;
		pidfd = -1;
	}
	cache_unlock(c);
	if (pidfd >= 0)
		close(pidfd);
}

void cache_attach_unmapped(struct cache *c, uint64_t attachment, uint32_t extent)
{
	struct attachment *a;

	cache_lock(c);
	a = attachment_find(c, attachment);
	if (a)
		lent_told(c, a, extent);
	cache_unlock(c);
}

void offers_free(struct offers *o)
{
	free(o);
}
