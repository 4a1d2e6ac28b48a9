/* Accounting of copies on GPUs: which pins hold them; and queries of a block's copies. */
#include "daemon/block/gpu_class.h"

#include "daemon/block/block.h"
#include "store/arena/arena.h"
#include "store/index.h"

uint32_t vram_pins(const struct block *b)
{
	uint32_t n = 0;

	for (const struct vram_slot *s = b->vram; s; s = s->next)
		n += s->pins;
	return n;
}

uint32_t vram_slot_pins(const struct vram_slot *s)
{
	const struct block *b = s->block;

	return (block_memory_pins(b) & ~INDEX_DEAD) - b->memory_pins + s->pins;
}

void vram_slot_hold(struct vram_slot *s, bool on)
{
	const struct vram_class *k = s->span->class;

	arena_span_hold(s->span->place, on ? 1 : -1);
	k->accounting->held_bytes += on ? k->stride : -k->stride;
}

void vram_accounting(struct block *b, uint32_t all, bool on)
{
	for (struct vram_slot *s = b->vram; s; s = s->next) {
		const bool held = all + s->pins;

		if (held || s->state == VRAM_RESERVED)
			vram_slot_hold(s, on);
		if (!held && s->state == VRAM_READY)
			s->span->class->evictable += on ? 1 : -1ull;
	}
}

uint64_t vram_offset(const struct vram_slot *s)
{
	return s->span->place->offset + s->index * s->span->place->stride;
}

uint64_t vram_address(const struct vram_slot *s)
{
	return s->span->place->address + s->index * s->span->place->stride;
}

struct vram_slot *vram_slot_on(const struct block *b, const struct gpu *g)
{
	struct vram_slot *s = b->vram;

	while (s && s->pool->gpu != g)
		s = s->next;
	return s && !s->pool->lost ? s : NULL;
}

struct vram_slot *vram_slot_of(const struct block *b, const struct gpu *g)
{
	struct vram_slot *s = b->vram;

	while (s && s->pool->gpu != g)
		s = s->next;
	return s;
}

struct vram_slot *vram_ready(const struct block *b)
{
	struct vram_slot *s = b->vram;

	while (s && (s->state != VRAM_READY || s->pool->lost))
		s = s->next;
	return s;
}

bool vram_has_alone(const struct block *b)
{
	return b->vram && !b->span && !b->slab_map && vram_ready(b);
}
