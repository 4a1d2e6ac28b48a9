/* Whether a lease of so many bytes still fits the share of memory that may be pinned. */
#include "daemon/session/budget.h"

#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/disk/state.h"
#include "daemon/session/session.h"
#include "daemon/vram/placement.h"
#include "daemon/vram/state.h"
#include "store/status.h"

#include <stdlib.h>
#include <string.h>

uint64_t pins_free(const struct cache *c)
{
	const struct tenant *t = &c->tenant;
	/* Moves pin blocks too; that is not the tenant's doing. */
	const uint64_t max = c->options.pinned_bytes_max + (c->tier ? c->tier->moving_bytes : 0) +
			     (c->vram ? c->vram->moving_bytes : 0) + t->beside_bytes;
	const uint64_t used = t->pinned_bytes + t->reserved_bytes;

	return max > used ? max - used : 0;
}

uint32_t pins_wish(const struct cache *c, uint64_t bytes, const struct gpu *g, uint64_t gpu_bytes,
		   struct quota_wish *w)
{
	w[0] = (struct quota_wish){ QUOTA_PINNED, bytes, pins_free(c) };
	if (!g)
		return 1;
	w[1] = (struct quota_wish){ QUOTA_GPU_PINNED + g->number, gpu_bytes, pins_free_gpu(c, g) };
	return 2;
}

enum status pins_ask(struct cache *c, const struct session *s, uint64_t bytes, const struct gpu *g, uint64_t gpu_bytes, const char **why)
{
	struct quota_wish w[PINS_WISHES];

	return quota_ask_all(s->holder, w, pins_wish(c, bytes, g, gpu_bytes, w), why);
}
