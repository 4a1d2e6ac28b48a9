/* Vyukov's bounded queue: each cell has a turn, which says whether it is to be written or read next, so that posting
 * threads contend for one counter only.
 */
#include "eviction/graph_mail.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { EVENTS_MAX = 1 << 24 };

struct cell {
	_Atomic uint32_t turn;
	struct graph_mail_event event;
};

struct graph_mail {
	_Alignas(64) _Atomic uint32_t tail; /* next to be posted */
	_Atomic uint64_t dropped;
	_Alignas(64) uint32_t head;         /* next to be taken; the owner's */
	uint32_t mask;
	struct cell *cells;
};

struct graph_mail *graph_mail_create(uint32_t events)
{
	struct graph_mail *m;

	if (events < 2 || events > EVENTS_MAX || events & (events - 1))
		return NULL;
	m = aligned_alloc(_Alignof(struct graph_mail), sizeof(*m));
	if (!m)
		return NULL;
	*m = (struct graph_mail){ .mask = events - 1, .cells = calloc(events, sizeof(m->cells[0])) };
	if (!m->cells) {
		free(m);
		return NULL;
	}
	for (uint32_t i = 0; i < events; i++)
		atomic_init(&m->cells[i].turn, i);
	return m;
}

void graph_mail_destroy(struct graph_mail *m)
{
	if (!m)
		return;
	free(m->cells);
	free(m);
}

bool graph_mail_post(struct graph_mail *m, const struct graph_mail_event *e)
{
	uint32_t at = atomic_load_explicit(&m->tail, memory_order_relaxed);

	for (;;) {
		struct cell *c = &m->cells[at & m->mask];
		uint32_t turn = atomic_load_explicit(&c->turn, memory_order_acquire);

		if ((int32_t)(turn - at) < 0) {
			atomic_fetch_add_explicit(&m->dropped, 1, memory_order_relaxed);
			return false;
		}
		if (turn != at) {
			at = atomic_load_explicit(&m->tail, memory_order_relaxed);
		} else if (atomic_compare_exchange_weak_explicit(&m->tail, &at, at + 1, memory_order_relaxed,
								 memory_order_relaxed)) {
			c->event = *e;
			atomic_store_explicit(&c->turn, at + 1, memory_order_release);
			return true;
		}
	}
}

bool graph_mail_request(struct graph_mail *m, uint64_t now_us, uint64_t session, const uint64_t *ids, uint32_t count)
{
	uint32_t from = 0;

	while (from < count) {
		struct graph_mail_event e = { .now_us = now_us, .session = session, .kind = GRAPH_MAIL_REQUEST };
		uint32_t left = count - from;

		e.count = (uint8_t)(left < GRAPH_MAIL_IDS ? left : GRAPH_MAIL_IDS);
		e.goes_on = left > GRAPH_MAIL_IDS;
		for (uint32_t i = 0; i < e.count; i++)
			e.ids[i] = ids[from + i];
		if (!graph_mail_post(m, &e))
			return false;
		from += e.goes_on ? e.count - 1u : e.count;
	}
	return true;
}

bool graph_mail_take(struct graph_mail *m, struct graph_mail_event *out)
{
	struct cell *c = &m->cells[m->head & m->mask];

	if (atomic_load_explicit(&c->turn, memory_order_acquire) != m->head + 1)
		return false;
	*out = c->event;
	atomic_store_explicit(&c->turn, m->head + m->mask + 1, memory_order_release);
	m->head++;
	return true;
}

uint64_t graph_mail_dropped(const struct graph_mail *m)
{
	return atomic_load_explicit(&m->dropped, memory_order_relaxed);
}
