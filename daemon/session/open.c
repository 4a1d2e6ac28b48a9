/* Opening a session, and what its public calls need of it: see open.h. A session's slot is chosen here;
 * session.h says how lookups read it without the lock. */
#include "daemon/session/open.h"

#include "daemon/block/grid.h"
#include "daemon/block/handle.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/quota.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/session/budget.h"
#include "daemon/session/grants.h"
#include "daemon/session/session.h"
#include "kernels/format.h"
#include "store/status.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/random.h>

static void shape_write(struct session *s, const struct grid *g)
{
	for (uint32_t i = 0; !grid_is_plain(g) && i < g->layouts; i++)
		atomic_store_explicit(&s->rule[i], grid_rule_pack(&g->rule[i]), memory_order_release);
	atomic_store_explicit(&s->shape,
			      grid_is_plain(g) ? 0 : (uint64_t)g->unit << 8 | (uint64_t)g->chained << 7 | g->main,
			      memory_order_release);
}

static void view_fill(struct session *s, struct cache_session_view *out)
{
	memset(out, 0, sizeof(*out));
	out->id = s->handle;
	out->number = s->number;
	memcpy(out->token, s->token, sizeof(out->token));
	out->layouts = session_layouts(s);
	out->unit = (uint32_t)(atomic_load_explicit(&s->shape, memory_order_relaxed) >> 8);
	for (uint32_t i = 0; i < out->layouts; i++) {
		const struct layout_pool *p = session_pool(s, i);

		out->layout_id[i] = p->layout_id;
		out->block_bytes[i] = p->geometry.block_bytes;
		out->slot_bytes[i] = p->geometry.need_bytes;
		out->layout[i] = p->layout;
		out->rule[i] = atomic_load_explicit(&s->rule[i], memory_order_relaxed);
	}
}

/* Whether the two layouts are versions of one opaque format. Their bytes differ, so a session that stores both would
 * need two blocks a key. */
static bool is_other_version(const struct kv_layout *a, const struct kv_layout *b)
{
	struct kv_layout as_b = *a;
	const char *end_a = strrchr(a->opaque_name, '/'), *end_b = strrchr(b->opaque_name, '/');

	if (!kv_is_opaque(a) || !kv_is_opaque(b) || end_a - a->opaque_name != end_b - b->opaque_name ||
	    memcmp(a->opaque_name, b->opaque_name, (size_t)(end_a - a->opaque_name)))
		return false;
	as_b.opaque_bytes = b->opaque_bytes; /* a version may have another size */
	memcpy(as_b.opaque_name, b->opaque_name, sizeof(as_b.opaque_name));
	return kv_layout_id(&as_b) == kv_layout_id(b);
}

static const char *layouts_problem(const struct kv_layout *l, uint32_t n)
{
	uint64_t ids[CACHE_LAYOUTS_MAX];

	if (n == 0 || n > CACHE_LAYOUTS_MAX)
		return "a session has 1 to 64 layouts";
	for (uint32_t i = 0; i < n; i++) {
		const char *problem = kv_layout_problem(&l[i]);

		if (problem)
			return problem;
		ids[i] = kv_layout_id(&l[i]);
		for (uint32_t j = 0; j < i; j++)
			if (ids[j] == ids[i])
				return "a layout is listed twice";
			else if (is_other_version(&l[i], &l[j]))
				return "two layouts of the session differ by opaque_name's version alone: list the "
				       "version that the engine writes, and open another session for the other one";
	}
	return NULL;
}

static const char *open_problem(const struct cache_open_call *q, struct grid *grid)
{
	const char *problem = layouts_problem(q->layouts, q->layout_count);

	if (!problem)
		problem = grid_make(grid, q->unit, q->layouts, q->layout_count, q->wishes);
	if (!problem && q->unchained && grid->chained)
		problem = "unchained_keys: a block that covers several keys is named by the last of them, which must "
			  "stand for all before it: chain the keys, or let each layout's block have the unit's tokens";
	return problem;
}

static struct session *session_slot(struct cache *c)
{
	for (uint32_t i = 0; i < c->options.sessions_max; i++) {
		uint32_t slot = (c->session_hint + i) % c->options.sessions_max;

		if (c->sessions[slot].state == SESSION_FREE) {
			c->session_hint = slot + 1;
			return &c->sessions[slot];
		}
	}
	return NULL;
}

/* Opens a session in a free slot of the table, which there is. */
static enum status session_start(struct cache *c, struct layout_pool *const *pools, const struct grid *grid,
				 const struct cache_open_call *q, struct session **out, const char **why)
{
	const uint32_t n = q->layout_count;
	struct session *s = session_slot(c);

	session_reset(s);
	*why = "no random numbers from the kernel";
	if (getrandom(s->token, sizeof(s->token), 0) == sizeof(s->token))
		s->handle = handle_places_give(&c->grants->session_places, &c->grants->random,
					       (uint32_t)(s - c->sessions));
	if (!s->handle) {
		session_reset(s);
		return STATUS_INTERNAL;
	}
	for (uint32_t i = 0; i < n; i++)
		atomic_store_explicit(&s->pool[i], pools[i], memory_order_release);
	shape_write(s, grid);
	atomic_store_explicit(&s->layouts, n, memory_order_release);
	strncpy(s->engine, q->engine, CACHE_ENGINE_MAX);
	s->tokens_a_second = q->tokens_a_second;
	s->local = q->local;
	s->state = SESSION_OPEN;
	s->number = ++c->last_session;
	s->last_call_us = c->now_us;
	c->open_sessions++;
	atomic_store_explicit(&s->id, s->handle, memory_order_release);
	cache_count(c, COUNTER_SESSIONS, 1);
	*out = s;
	return STATUS_OK;
}

/* Charges the holder with a session and opens it. On OK the holder belongs to the session. */
static enum status session_of(struct cache *c, struct quota_holder *holder, const struct cache_open_call *q,
			      const struct grid *grid, struct cache_session_view *out, const char **why)
{
	struct tenant *t = tenant_of_number(c, q->identity);
	struct layout_pool *pools[CACHE_LAYOUTS_MAX];
	struct session *s;
	enum status status = quota_take(holder, QUOTA_SESSIONS, 1, why);

	cache_time(c, q->now_us);
	if (status)
		return status;
	for (uint32_t i = 0; i < q->layout_count && !status; i++)
		status = layout_pool_get(c, t, holder, &q->layouts[i], &pools[i], why);
	if (!status)
		status = session_start(c, pools, grid, q, &s, why);
	if (status) {
		quota_give(holder, QUOTA_SESSIONS, 1);
		return status;
	}
	s->holder = holder;
	s->tenant = t;
	t->active = true;
	view_fill(s, out);
	return STATUS_OK;
}

enum status cache_session_open(struct cache *c, const struct cache_open_call *q, struct cache_session_view *out,
			       const char **why)
{
	struct quota_holder *holder;
	enum status status;
	struct grid grid;

	const struct tenant *t = tenant_of_number(c, q->identity);

	*why = "tenant: it is not this caller's: leave it out, as the daemon knows the tenant by the user or "
	       "certificate";
	if (!t || (*q->tenant && strcmp(q->tenant, t->name)))
		return STATUS_DENIED;
	*why = open_problem(q, &grid);
	if (*why)
		return STATUS_INVALID;
	if (!fit_host(c, q->layouts, q->layout_count, why))
		return STATUS_INVALID;
	*why = "the daemon is draining";
	if (cache_draining(c))
		return STATUS_UNAVAILABLE;
	*why = "no memory for the session";
	holder = quota_join(c->quota, q->peer);
	if (!holder)
		return STATUS_EXHAUSTED;
	cache_lock(c);
	status = session_of(c, holder, q, &grid, out, why);
	cache_unlock(c);
	if (status)
		quota_leave(holder);
	return status;
}

enum status cache_session_by_token(struct cache *c, uint32_t tenant, const uint8_t token[CACHE_TOKEN_BYTES],
				   uint64_t now_us, struct cache_session_view *out, const char **why)
{
	struct session *s;

	cache_lock(c);
	s = session_with_token(c, token);
	if (s && s->tenant != tenant_of_number(c, tenant))
		s = NULL;
	now_us = cache_time(c, now_us);
	if (s) {
		s->last_call_us = now_us;
		view_fill(s, out);
	}
	cache_unlock(c);
	*why = "no session has this token";
	return s ? STATUS_OK : STATUS_NOT_FOUND;
}

enum status cache_session_write_back(struct cache *c, uint64_t session)
{
	const char *why;
	struct session *s;

	cache_lock(c);
	s = session_get(c, session, &why);
	if (s)
		s->write_back = true;
	cache_unlock(c);
	return s ? STATUS_OK : STATUS_NOT_FOUND;
}

uint32_t cache_session_tenant(struct cache *c, uint64_t session)
{
	struct session *s = session ? session_at(c, session) : NULL;
	uint32_t number;

	if (!s || atomic_load_explicit(&s->id, memory_order_acquire) != session)
		return 0;
	number = atomic_load_explicit(&s->pool[0], memory_order_acquire)->tenant->number;
	return atomic_load_explicit(&s->id, memory_order_acquire) == session ? number : 0;
}

uint64_t cache_session_number(struct cache *c, uint64_t session)
{
	const struct session *s;
	uint64_t number;

	cache_lock(c);
	s = session_find(c, session);
	number = s ? s->number : 0;
	cache_unlock(c);
	return number;
}

/* The open session with that public number; NULL: none. */
static struct session *session_of_number(struct cache *c, uint64_t number)
{
	for (uint32_t i = 0; i < c->options.sessions_max; i++)
		if (c->sessions[i].state == SESSION_OPEN && c->sessions[i].number == number)
			return &c->sessions[i];
	return NULL;
}

uint32_t cache_session_layout_ids(struct cache *c, uint64_t handle, uint64_t number, uint64_t ids[CACHE_LAYOUTS_MAX],
				  const char **tenant)
{
	const char *why;
	struct session *s;
	uint32_t n;

	cache_lock(c);
	s = handle ? session_get(c, handle, &why) : session_of_number(c, number);
	n = s ? session_layouts(s) : 0;
	for (uint32_t i = 0; i < n; i++)
		ids[i] = session_pool(s, i)->layout_id;
	if (n)
		*tenant = session_tenant(s)->name;
	cache_unlock(c);
	return n;
}

uint32_t cache_session_cells(struct cache *c, uint64_t session, const struct cache_keys *k, uint64_t *cells)
{
	struct layout_pool *pools[CACHE_LAYOUTS_MAX];
	struct grid grid;
	const uint32_t layouts = session_shape(c, session, pools, &grid);

	if (layouts)
		*cells = grid.unit ? grid_cells(&grid, k->first, k->count) : (uint64_t)k->count * layouts;
	return layouts;
}

uint32_t cache_session_layouts(struct cache *c, uint64_t session)
{
	struct layout_pool *pools[CACHE_LAYOUTS_MAX];

	return session_pools(c, session, pools);
}

uint32_t cache_idled(const struct cache *c, const uint64_t **sessions)
{
	*sessions = c->idled;
	return c->idled_count;
}
