/* Sessions, and the detached sessions they leave.
 *
 * A session is a slot of a fixed table. Lookups read its list of pools without the lock: `id` is cleared
 * before the slot is reused and set after the list is written, so a list read between two equal ids is that
 * session's; pools live as long as the cache.
 *
 * When a session has ended, what it held may still be mapped by its processes: it stays in its slot as a
 * detached session until none of its attachments holds an extent.
 */
#include "daemon/session/session.h"

#include "daemon/block/grid.h"
#include "daemon/block/handle.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/session/grants.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

struct session *session_at(struct cache *c, uint64_t handle)
{
	const uint32_t slot = handle_place_slot(&c->grants->session_places, handle);

	return slot == HANDLE_NO_SLOT ? NULL : &c->sessions[slot];
}

struct session *session_find(struct cache *c, uint64_t handle)
{
	struct session *s = session_at(c, handle);

	return s && s->state != SESSION_FREE && s->handle == handle ? s : NULL;
}

struct session *session_get(struct cache *c, uint64_t handle, const char **why)
{
	struct session *s = session_find(c, handle);

	if (s && s->state == SESSION_OPEN)
		return s;
	*why = "no such session: it was never opened, or it has ended";
	return NULL;
}

struct session *session_call(struct cache *c, uint64_t id, uint64_t now_us, const char **why)
{
	struct session *s = session_get(c, id, why);

	now_us = cache_time(c, now_us);
	if (s)
		s->last_call_us = now_us;
	return s;
}

uint32_t session_gpus(struct cache *c, uint64_t id)
{
	const char *why;
	const struct session *s = session_get(c, id, &why);

	return s ? s->gpus : 0;
}

/* Looks at every byte of every token, so that the time tells nothing of them. */
struct session *session_with_token(struct cache *c, const uint8_t token[CACHE_TOKEN_BYTES])
{
	struct session *found = NULL;

	for (uint32_t i = 0; i < c->options.sessions_max; i++) {
		struct session *s = &c->sessions[i];
		uint8_t difference = 0;

		for (int j = 0; j < CACHE_TOKEN_BYTES; j++)
			difference |= s->token[j] ^ token[j];
		if (s->state == SESSION_OPEN && !difference)
			found = s;
	}
	return found;
}

/* Copies the session's grid, on any thread. session_shape says when the copy is good. */
static void shape_read(struct session *s, uint32_t layouts, struct grid *out)
{
	const uint64_t shape = atomic_load_explicit(&s->shape, memory_order_acquire);

	out->unit = (uint32_t)(shape >> 8);
	if (!out->unit)
		return;
	out->main = shape & 0x7f;
	out->layouts = layouts;
	for (uint32_t i = 0; i < layouts; i++)
		out->rule[i] = grid_rule_unpack(atomic_load_explicit(&s->rule[i], memory_order_acquire));
	out->chained = shape >> 7 & 1;
}

/* Zeroes everything after the last atomic field. */
void session_reset(struct session *s)
{
	memset(&s->state, 0, sizeof(*s) - offsetof(struct session, state));
}

uint32_t session_pools(struct cache *c, uint64_t id, struct layout_pool **pools)
{
	struct session *s = session_at(c, id);
	uint32_t n;

	if (!id || !s || atomic_load_explicit(&s->id, memory_order_acquire) != id)
		return 0;
	n = atomic_load_explicit(&s->layouts, memory_order_acquire);
	for (uint32_t i = 0; i < n; i++)
		pools[i] = atomic_load_explicit(&s->pool[i], memory_order_acquire);
	if (atomic_load_explicit(&s->id, memory_order_acquire) != id)
		return 0;
	if (!atomic_load_explicit(&s->called, memory_order_relaxed))
		atomic_store_explicit(&s->called, true, memory_order_relaxed);
	return n;
}

uint32_t session_shape(struct cache *c, uint64_t id, struct layout_pool **pools, struct grid *grid)
{
	const uint32_t n = session_pools(c, id, pools);
	struct session *s = n ? session_at(c, id) : NULL;

	if (!s)
		return 0;
	shape_read(s, n, grid);
	return atomic_load_explicit(&s->id, memory_order_acquire) == id ? n : 0;
}
