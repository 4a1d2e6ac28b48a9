/* Where a lease finds its blocks, with GPUs. */
#include "daemon/cache_tier.h"
#include "daemon/cache_vram.h"

/* Its slot there, if what the lease's holder knows is enough to use it. */
static const struct vram_slot *place_on(const struct block *b, const struct vram_want *want)
{
	const struct vram_slot *s = want->gpu && b->vram ? vram_slot_on(b, want->gpu) : NULL;

	if (s && (s->state == VRAM_READY || (s->state == VRAM_COMING && !s->across && want->board)))
		return s;
	return NULL;
}

bool vram_placed(const struct block *b, const struct vram_want *want)
{
	if (!want->gpu)
		return b->shelf;
	return place_on(b, want) || (want->or_host && b->shelf);
}

struct gpu *vram_place_gpu(const struct block *b, const struct vram_want *want)
{
	return place_on(b, want) ? want->gpu : NULL;
}

uint64_t vram_pin_bytes(const struct block *b, const struct gpu *g)
{
	const struct vram_slot *s = b->vram ? vram_slot_on(b, g) : NULL;

	return s && vram_slot_pins(s) ? 0 : b->pool->geometry.slot_bytes;
}

bool vram_leasable(const struct block *b, const struct gpu *g)
{
	const struct vram_slot *s = g && b->vram ? vram_slot_on(b, g) : NULL;

	return s && s->state == VRAM_READY;
}

void vram_order(struct pool *const *pools, uint32_t layouts, uint32_t *order)
{
	for (uint32_t i = 0; i < layouts; i++) {
		uint32_t at = i;

		for (; at && pools[order[at - 1]]->layout.layers > pools[i]->layout.layers; at--)
			order[at] = order[at - 1];
		order[at] = i;
	}
}

enum status block_fetch(struct cache *c, struct block *b, enum ring_priority priority, struct cache_wait *w)
{
	if (b->vram && (vram_ready(b) || vram_falling(c, b)) && vram_down(c, b, w) == STATUS_OK)
		return STATUS_OK;
	return b->rack ? load_begin(c, b, priority, w) : STATUS_UNAVAILABLE;
}
