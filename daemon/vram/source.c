/* Which blocks the GPUs could download to memory, and when they would be there. Each GPU's downloads are timed by whole
 * copy batches, checksums included, since a block is in memory only when it has been summed. */
#include "daemon/vram/source.h"

#include "daemon/block/block.h"
#include "daemon/block/gpu_class.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/rate.h"
#include "daemon/block/source.h"
#include "daemon/vram/queue.h"
#include "daemon/vram/state.h"
#include "store/clock.h"
#include "store/device.h"

#include <stdlib.h>

enum { DOWN_US_PER_MIB = 65 }; /* of a GPU that has brought nothing down yet: 16 GB/s */

struct rate *gpu_rate_create(void)
{
	struct rate *r = calloc(1, sizeof(*r));

	if (r)
		rate_init(r, DOWN_US_PER_MIB);
	return r;
}

void vram_down_begun(struct gpu *g, const struct block *b)
{
	g->downs++;
	gpu_accounting_of(g, b->pool->tenant)->downs++;
	rate_begun(g->down_rate, b->pool->geometry.need_bytes, g->down_rate->queued ? 0 : clock_us());
}

void vram_down_over(struct gpu *g, const struct block *b)
{
	g->downs--;
	gpu_accounting_of(g, b->pool->tenant)->downs--;
	rate_over(g->down_rate, b->pool->geometry.need_bytes);
}

void vram_copy_batch_timed(const struct copy_batch *f)
{
	const uint64_t bytes = (uint64_t)f->copy.count * f->copy.parts * f->copy.part_bytes;

	if (f->copy.way == DEVICE_DOWN && !f->status && f->transfers)
		rate_came(f->gpu->down_rate, bytes, f->begun_us, clock_us());
}

static void known(struct cache *c, struct source *s, const struct key_run *run, uint8_t *word)
{
	(void)s;
	for (uint32_t i = 0; i < run->count; i++) {
		const struct block *b = run->key[i].block;

		word[i] = b && b->vram && vram_ready(b) && !c->vram->stopping ? SOURCE_HAS : SOURCE_NOT;
	}
}

static bool estimate(struct cache *c, struct source *s, const struct key_run *run, struct source_cost *out)
{
	const uint64_t now_us = clock_us();
	uint64_t bytes[DEVICES_MAX] = { 0 };

	(void)c;
	(void)s;
	*out = (struct source_cost){ .first_us = 0 };
	for (uint32_t i = 0; i < run->count; i++) {
		const struct block *b = run->key[i].block;
		const struct vram_slot *copy = b && b->vram ? vram_ready(b) : NULL;
		uint64_t us;

		if (!copy)
			return false;
		bytes[copy->pool->gpu->number] += b->pool->geometry.need_bytes;
		us = rate_us(copy->pool->gpu->down_rate, bytes[copy->pool->gpu->number], now_us);
		out->first_us = i ? out->first_us : us;
		out->last_us = us > out->last_us ? us : out->last_us;
	}
	return true;
}

/* A GPU that is lost says so itself (vram/lost.c). */
static const struct source_ops gpus_ops = {
	.name = "gpu",
	.known = known,
	.estimate = estimate,
};

struct source gpus_source = { .ops = &gpus_ops, .tier = TIER_GPU };
