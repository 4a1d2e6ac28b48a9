/* Leases: a pin on each block, recorded with the session, given up as one. */
#include "daemon/session/lease.h"

#include "daemon/block/aging.h"
#include "daemon/block/block.h"
#include "daemon/block/handle.h"
#include "daemon/block/lock.h"
#include "daemon/block/observer.h"
#include "daemon/block/quota.h"
#include "daemon/session/attachment.h"
#include "daemon/session/budget.h"
#include "daemon/session/grants.h"
#include "daemon/session/session.h"
#include "daemon/vram/progress.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "store/status.h"

#include <stdlib.h>
#include <string.h>

struct lease *lease_alloc(uint32_t blocks)
{
	struct lease *l = malloc(sizeof(*l) + blocks * (sizeof(l->block[0]) + 1));

	if (l)
		*l = (struct lease){ .room = blocks };
	return l;
}

enum status lease_ask(struct cache *c, const struct session *s, const struct quota_wish *pins, uint32_t count,
		      const char **why)
{
	struct quota_wish all[1 + PINS_WISHES] = {
		{ .thing = QUOTA_LEASES, .n = 1, .free = c->grants->leases.max - c->grants->leases.used }
	};

	memcpy(all + 1, pins, count * sizeof(*pins));
	return quota_ask_all(s->holder, all, 1 + count, why);
}

/* Charges the session's holder with the lease and its pins; on false gives them back. */
static void lease_charge(const struct lease *l, bool on)
{
	const struct quota_wish w[] = {
		{ .thing = QUOTA_LEASES, .n = 1 },
		{ .thing = QUOTA_PINNED, .n = l->bytes - l->gpu_bytes },
		{ .thing = QUOTA_GPU_PINNED + (l->gpu ? l->gpu->number : 0), .n = l->gpu ? l->gpu_bytes : 0 },
	};
	const uint32_t count = l->gpu ? 3 : 2;

	if (on)
		quota_add_all(l->session->holder, w, count);
	else
		quota_give_all(l->session->holder, w, count);
}

enum status lease_record(struct cache *c, struct session *s, struct lease *l, uint64_t now_us)
{
	l->handle = handles_give(&c->grants->leases, &c->grants->random, l);
	if (!l->handle)
		return STATUS_EXHAUSTED;
	l->session = s;
	l->prev = NULL;
	l->next = s->leases;
	if (s->leases)
		s->leases->prev = l;
	s->leases = l;
	for (uint32_t i = 0; i < l->count; i++) {
		const uint64_t bytes = block_pool(l->block[i])->geometry.need_bytes;

		l->bytes += bytes;
		l->gpu_slots += lease_on_gpu(l)[i] != LEASE_IN_MEMORY;
		l->gpu_bytes += lease_on_gpu(l)[i] ? bytes : 0;
	}
	s->held_slots += l->count;
	s->held_bytes += l->bytes;
	lease_charge(l, true);
	aging_add(&c->grants->lease_age, &l->aging, now_us);
	cache_count(c, COUNTER_LEASES, 1);
	cache_count(c, COUNTER_LEASED_BLOCKS, l->count);
	return STATUS_OK;
}

void lease_pin(struct lease *l, struct block *b, struct vram_slot *copy, bool pinned)
{
	if (pinned)
		block_pin_apart(b, copy);
	else
		block_pin_on(b, copy);
	if (copy)
		l->gpu = copy->pool->gpu;
	lease_on_gpu(l)[l->count] = copy ? LEASE_ON_GPU : LEASE_IN_MEMORY;
	l->block[l->count++] = b;
}

void lease_unpin(struct lease *l)
{
	for (uint32_t i = 0; i < l->count; i++)
		block_unpin_on(l->block[i], lease_on_gpu(l)[i] ? l->gpu : NULL);
	l->count = 0;
}

/* If this is called late, some blocks may have been removed meanwhile. */
void lease_use(struct cache *c, struct lease *l)
{
	for (uint32_t i = l->count; i > 0; i--)
		if (block_live(l->block[i - 1]))
			block_use_on(c, l->block[i - 1], lease_on_gpu(l)[i - 1] == LEASE_ON_GPU ? l->gpu : NULL);
}

void lease_end(struct cache *c, struct lease *l)
{
	struct session *s = l->session;

	observe_uses_due(c);
	if (l->prev)
		l->prev->next = l->next;
	else
		s->leases = l->next;
	if (l->next)
		l->next->prev = l->prev;
	s->held_slots -= l->count;
	s->held_bytes -= l->bytes;
	lease_charge(l, false);
	aging_remove(&c->grants->lease_age, &l->aging);
	handles_drop(&c->grants->leases, l->handle);
	lease_unpin(l);
	free(l);
}

/* The session's first lease that was granted to that call; NULL: none. */
struct lease *lease_of_call(const struct session *s, uint64_t call)
{
	struct lease *l = s->leases;

	while (l && l->call != call)
		l = l->next;
	return l;
}

/* Whether the lease was granted ahead of a copy to that GPU which has failed. */
static bool has_failed(struct lease *l, const struct gpu *g)
{
	for (uint32_t i = 0; l->gpu == g && i < l->count; i++) {
		const struct vram_slot *s = lease_on_gpu(l)[i] == LEASE_COMING ? vram_slot_of(l->block[i], g) : NULL;

		if (s && s->failed)
			return true;
	}
	return false;
}

/* If a lease of the session waits for a failed copy, fails the progress pages of all its processes. */
static void session_copies_failed(const struct session *s, const struct gpu *g)
{
	struct lease *l = s->leases;

	while (l && !has_failed(l, g))
		l = l->next;
	for (struct attachment *a = l ? s->attachments : NULL; a; a = a->next)
		if (a->progress_page)
			progress_page_fail(a->progress_page, g);
}

void leases_copies_failed(struct cache *c, const struct gpu *g)
{
	for (uint32_t i = 0; i < c->options.sessions_max; i++)
		if (c->sessions[i].state != SESSION_FREE)
			session_copies_failed(&c->sessions[i], g);
}
