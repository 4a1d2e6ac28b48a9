/* Whether a lease of so many bytes still fits the share of memory that may be pinned. */
#include "daemon/session/budget.h"

#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/quota.h"
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

enum status pins_ask(struct cache *c, const struct session *s, uint64_t bytes, const struct gpu *g, uint64_t gpu_bytes, const char **why)
{
	enum status status = quota_ask(s->holder, QUOTA_PINNED, bytes, pins_free(c), why);

	if (!status && g)
		status = quota_ask(s->holder, QUOTA_GPU_PINNED + g->number, gpu_bytes, pins_free_gpu(c, g), why);
	return status;
}
