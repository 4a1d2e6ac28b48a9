/* Attachments: processes that joined a session and borrow extents. Each is a number that no other gets,
 * which is also the byte it locks in the extents lent to it (store/extent.h): asking the kernel for that
 * lock tells whether anything of the process, or of what it forked, can still touch them.
 */
#include "daemon/cache_private.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROBES_AT_EXIT = 256, ATTACHMENT_NUMBER_MAX = 0x7fffffff };

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

		*a = (struct attachment){ .session = s, .number = ++c->last_attachment, .pid = pid };
		bucket = &c->attachment_hash[a->number % ATTACHMENT_BUCKETS];
		a->hash_next = *bucket;
		*bucket = a;
		a->next = s->attachments;
		s->attachments = a;
		s->attachment_count++;
		s->attached++;
		s->last_call_us = now_us;
		*attachment = a->number;
		*session = s->number;
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
	free(a->lent);
	free(a);
}

bool attachment_has_lent(const struct attachment *a, uint32_t extent)
{
	for (uint32_t i = 0; i < a->lent_count; i++)
		if (a->lent[i] == extent)
			return true;
	return false;
}

static enum status lent_add(struct attachment *a, uint32_t extent)
{
	if (attachment_has_lent(a, extent))
		return STATUS_OK;
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

/* With the lock. If a drained extent is being unmapped just now, the answer is "held": asked again later. */
static bool extent_is_held(struct cache *c, uint32_t extent, uint32_t number)
{
	const struct extent *e;
	bool held = true;

	if (pthread_mutex_trylock(&c->extents))
		return true;
	e = host_extent(c->host, extent);
	if (!e || !extent_held(e, number))
		held = false;
	pthread_mutex_unlock(&c->extents);
	return held;
}

bool attachment_holds(struct cache *c, struct attachment *a, uint32_t *probes)
{
	while (a->lent_count) {
		if (a->lending || *probes == 0)
			return true;
		--*probes;
		if (extent_is_held(c, a->lent[a->lent_count - 1], a->number))
			return true;
		a->lent_count--;
	}
	return false;
}

/* May this attachment have this extent? Notes that it has. */
static enum status map_begin(struct cache *c, uint64_t attachment, uint32_t extent)
{
	struct attachment *a = attachment_find(c, attachment);
	uint32_t tenant;
	uint64_t layout_id;
	bool draining, mine = false;
	enum status s;

	if (!a || a->gone || a->session->state != SESSION_OPEN)
		return STATUS_DENIED;
	if (!host_extent_owner(c->host, extent, &tenant, &layout_id, &draining))
		return STATUS_NOT_FOUND;
	for (uint32_t i = 0; i < session_layouts(a->session); i++)
		mine |= session_pool(a->session, i)->layout_id == layout_id;
	if (!mine || tenant != session_pool(a->session, 0)->tenant->number)
		return STATUS_DENIED;
	if (draining)
		return STATUS_NOT_FOUND;
	s = lent_add(a, extent);
	if (!s)
		a->lending++;
	return s;
}

static enum status map_lend(struct cache *c, uint32_t number, uint32_t extent, bool write, int *fd,
			    uint64_t *bytes, uint32_t *page_bytes)
{
	enum status s = STATUS_NOT_FOUND;
	struct extent *e;

	pthread_mutex_lock(&c->extents);
	e = host_extent(c->host, extent);
	if (e) {
		s = extent_lend(e, number, write, fd);
		*bytes = e->bytes;
		*page_bytes = e->page_bytes;
	}
	pthread_mutex_unlock(&c->extents);
	return s;
}

enum status cache_attach_map(struct cache *c, uint64_t attachment, uint32_t extent, bool write, int *fd,
			     uint64_t *bytes, uint32_t *page_bytes)
{
	struct attachment *a;
	enum status s;
	int lent = -1;

	cache_lock(c);
	s = map_begin(c, attachment, extent);
	cache_unlock(c);
	if (s)
		return s;
	s = map_lend(c, attachment, extent, write, &lent, bytes, page_bytes);

	cache_lock(c);
	/* `lending` kept it from being freed. */
	a = attachment_find(c, attachment);
	a->lending--;
	if (!s && (a->gone || a->session->state != SESSION_OPEN)) {
		close(lent);
		s = STATUS_DENIED;
	}
	cache_unlock(c);
	if (!s)
		*fd = lent;
	return s;
}

void cache_attach_unmapped(struct cache *c, uint64_t attachment, uint32_t extent)
{
	struct attachment *a;

	cache_lock(c);
	a = attachment_find(c, attachment);
	for (uint32_t i = 0; a && !a->lending && i < a->lent_count; i++)
		if (a->lent[i] == extent && !extent_is_held(c, extent, a->number)) {
			a->lent[i] = a->lent[--a->lent_count];
			break;
		}
	cache_unlock(c);
}

void cache_attach_gone(struct cache *c, uint64_t attachment, uint64_t now_us)
{
	uint32_t probes = PROBES_AT_EXIT;
	struct attachment *a;
	struct session *s;

	cache_lock(c);
	cache_time(c, now_us);
	a = attachment_find(c, attachment);
	if (a && !a->gone) {
		s = a->session;
		a->gone = true;
		s->attached--;
		if (s->state == SESSION_GHOST)
			session_ghost_try(c, s, &probes);
		else if (s->attached == 0)
			session_ghost(c, s);
		else if (!attachment_holds(c, a, &probes))
			attachment_free(c, a);
	}
	cache_unlock(c);
}
