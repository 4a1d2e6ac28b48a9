/* What is sound of a block whose copy in memory is not (block_succeed): its copies on GPUs become another block's, the heir's, as they are: in the
 * hands of leases, and being read. A move from one GPU to another reads nothing of memory, and goes on as the heir's. Who waited for a copy of
 * memory's gets one of the heir's. */
#include "daemon/vram/replace.h"

#include "daemon/block/block.h"
#include "daemon/block/lock.h"
#include "daemon/block/wait.h"
#include "daemon/memory/check.h"
#include "daemon/session/lease.h"
#include "daemon/session/session.h"
#include "daemon/vram/move_table.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "daemon/vram/transfer.h"
#include "store/device.h"

#include <pthread.h>

enum { WRONG_MAX = 3 }; /* finds of an up; then a miss */

/* The pins of one lease. */
static uint32_t lease_follow(struct lease *l, const struct vram_slot *s, struct block *b, struct block *heir)
{
	uint32_t pins = 0;

	for (uint32_t i = 0; l->gpu == s->pool->gpu && i < l->count; i++) {
		if (l->block[i] != b || !lease_on_gpu(l)[i])
			continue;
		l->block[i] = heir;
		block_pin_over(b, heir);
		pins++;
	}
	return pins;
}

/* Those of calls stay with the block that they are of. */
static void leases_follow(struct cache *c, struct vram_slot *s, struct block *b, struct block *heir)
{
	uint32_t pins = 0;

	for (uint32_t i = 0; s->pins && i < c->options.sessions_max; i++)
		for (struct lease *l = c->sessions[i].state == SESSION_FREE ? NULL : c->sessions[i].leases; l; l = l->next)
			pins += lease_follow(l, s, b, heir);
	vram_slot_unpin(s, s->pins - pins);
}

static void slot_follow(struct cache *c, struct vram_slot *s, struct block *heir)
{
	struct block *b = s->block;

	vram_unchain(s);
	leases_follow(c, s, b, heir);
	s->block = heir;
	s->next = heir->vram;
	heir->vram = s;
}

/* With its pin, who waits for it, and the slot that it fills, if it has one yet. The mover may be at its queue. */
static void move_follow(struct cache *c, struct vram_move *m, struct block *heir)
{
	struct vram_move **at = vram_moves_of(c, m->block);
	struct block *b = m->block;

	while (*at != m)
		at = &(*at)->hash_next;
	*at = m->hash_next;
	pthread_mutex_lock(&m->gpu->queue_lock);
	m->block = heir;
	pthread_mutex_unlock(&m->gpu->queue_lock);
	at = vram_moves_of(c, heir);
	m->hash_next = *at;
	*at = m;
	block_pin_over(b, heir);
	for (struct cache_wait_link *l = m->done; l; l = l->move_next)
		wait_link_over(l, heir);
	if (m->slot)
		slot_follow(c, m->slot, heir);
}

static void moves_follow(struct cache *c, struct block *b, struct block *heir)
{
	for (struct vram_move *m = *vram_moves_of(c, b), *next; m; m = next) {
		next = m->hash_next;
		if (m->block == b && m->way == DEVICE_ACROSS && m->from->state == VRAM_READY && !m->from->pool->gpu->lost)
			move_follow(c, m, heir);
	}
}

/* By one that has not followed. */
static bool is_moved(const struct cache *c, const struct vram_slot *s)
{
	const struct vram_move *m = *vram_moves_of(c, s->block);

	while (m && (m->block != s->block || (m->slot != s && m->from != s)))
		m = m->hash_next;
	return m;
}

void vram_hand_over(struct cache *c, struct block *b, struct block *heir)
{
	if (!vram_falling(c, b))
		moves_follow(c, b, heir);
	for (struct vram_slot *s = b->vram, *next; s; s = next) {
		next = s->next;
		if (s->state == VRAM_READY && !s->pool->gpu->lost && !is_moved(c, s))
			slot_follow(c, s, heir);
	}
}

/* Who waits for the end of a move that found memory's copy wrong waits for another's, of the block that has what is left: a few times, since it
 * may be the memory that is bad. */
static void wait_for_heir(struct cache *c, struct vram_move *m, struct block *heir)
{
	struct vram_move *up;

	if (!m->done || m->wrong >= WRONG_MAX || vram_up(c, m->gpu, heir, m->priority, NULL, true, false))
		return;
	up = vram_up_of(c, heir, m->gpu);
	if (!up)
		return;
	up->wrong = m->wrong;
	for (struct cache_wait_link *l; (l = m->done);) {
		m->done = l->move_next;
		wait_link_follow(l, heir);
		l->move_next = up->done;
		up->done = l;
	}
}

void vram_up_wrong(struct cache *c, struct vram_move *m)
{
	struct block *heir;

	if (!block_live(m->block))
		return;
	cache_count(c, COUNTER_GPU_UP_CORRUPT, 1);
	m->gpu->corrupt_up++;
	m->wrong++;
	m->found = true;
	heir = memory_damaged(c, m->block, COUNTER_MEMORY_WRONG_GPU);
	if (heir && !m->gpu->lost)
		wait_for_heir(c, m, heir);
}
