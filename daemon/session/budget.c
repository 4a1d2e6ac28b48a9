/* Whether a lease of so many bytes fits the share of memory that may be pinned, and whether one block of a layout fits
 * a tier at all. Each tier's limit has the same form, and one function (fits) compares them.
 */
#include "daemon/session/budget.h"

#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/quota.h"
#include "daemon/disk/place.h"
#include "daemon/session/session.h"
#include "daemon/vram/placement.h"
#include "daemon/vram/state.h"
#include "kernels/format.h"
#include "store/arena/arena.h"
#include "store/host/extent.h"
#include "store/status.h"

#include <inttypes.h>
#include <stdio.h>

enum { WORDS_MAX = 320 };

/* ---- pinned bytes ---- */

uint64_t pins_free(const struct cache *c, const struct tenant *t)
{
	/* Moves pin blocks too; that is not the tenant's doing. */
	const uint64_t max = t->pinned_bytes_max + c->moving_bytes + t->beside_bytes;
	const uint64_t used = t->pinned_bytes + t->reserved_bytes;

	return max > used ? max - used : 0;
}

uint32_t pins_wish(const struct cache *c, const struct tenant *t, uint64_t bytes, const struct gpu *g,
		   uint64_t gpu_bytes, struct quota_wish *w)
{
	w[0] = (struct quota_wish){ QUOTA_PINNED, bytes, pins_free(c, t), t->pinned_bytes_max };
	if (!g)
		return 1;
	w[1] = (struct quota_wish){ QUOTA_GPU_PINNED + g->number, gpu_bytes, pins_free_gpu(c, t, g),
				    pins_max_gpu(c, t, g) };
	return 2;
}

enum status pins_ask(struct cache *c, const struct session *s, uint64_t bytes, const struct gpu *g, uint64_t gpu_bytes, const char **why)
{
	struct quota_wish w[PINS_WISHES];

	return quota_ask_all(s->holder, w, pins_wish(c, session_tenant(s), bytes, g, gpu_bytes, w), why);
}

/* ---- whether one block fits ---- */

/* The most bytes that one block can have in a place. */
struct limit {
	const char *place;
	int number;                    /* of the GPU or disk; -1: none */
	const char *unit;              /* what it has to lie in */
	uint64_t most;
	const char *option;            /* that raises it; NULL: none does */
};

static _Thread_local char words[WORDS_MAX];

static void say(uint32_t layout, uint64_t need, const struct limit *l)
{
	static const char smaller[] = "give a block fewer tokens (an opaque one: fewer bytes), "
				      "or its layers to several layouts";
	char number[16] = "";

	if (l->number >= 0)
		snprintf(number, sizeof(number), " %d", l->number);
	snprintf(words, sizeof(words),
		 "layouts[%u]: a block takes %" PRIu64 " bytes of %s%s, and %s %" PRIu64 " at most: %s%s", layout, need,
		 l->place, number, l->unit, l->most, l->option ? "raise " : "",
		 l->option ? l->option : smaller);
}

static bool fits(uint32_t layout, uint64_t need, const struct limit *l, const char **why)
{
	if (need <= l->most)
		return true;
	say(layout, need, l);
	*why = words;
	return false;
}

/* The memory of the host, or of a GPU. An extent takes extent_bytes, but never more than all of it. */
struct memory {
	const char *place;
	int number;
	uint64_t bytes, extent, held;  /* all of it; of an extent; that leases and reservations may hold */
	const char *option, *both, *share; /* for more bytes; for more and larger extents; for more that may be held */
};

/* Whether a block of the layout can lie in that memory. charged: the bytes that a block counts for while it is leased
 * or reserved. */
static bool fits_memory(uint32_t layout, uint64_t need, uint64_t charged, const struct memory *m, const char **why)
{
	struct limit extent = { m->place, m->number, "an extent has", m->extent, "extent_bytes" };
	const struct limit held = { m->place, m->number, "leases and reservations may hold", m->held, m->share };

	if (need > EXTENT_BYTES_MAX)
		extent.option = NULL;
	else if (need > m->bytes)
		extent.option = m->extent < m->bytes ? m->both : m->option;
	return fits(layout, need, &extent, why) && fits(layout, charged, &held, why);
}

/* ---- places ---- */

bool fit_host(const struct cache *c, const struct kv_layout *layouts, uint32_t count, const char **why)
{
	const struct memory m = {
		.place = "host memory",
		.number = -1,
		.bytes = c->options.host_bytes,
		.extent = arena_extent_bytes(c->host),
		.held = c->options.pinned_bytes_max,
		.option = "host_bytes",
		.both = "host_bytes and extent_bytes",
		.share = "pinned_share or host_bytes",
	};
	struct kv_geometry g;

	for (uint32_t i = 0; i < count; i++) {
		kv_geometry_of(&layouts[i], &g);
		if (!fits_memory(i, g.need_bytes, g.need_bytes, &m, why))
			return false;
	}
	return true;
}

bool fit_gpu(const struct cache *c, const struct gpu *g, struct layout_pool *const *pools, uint32_t count,
	     const char **why)
{
	const struct tenant *t = pools[0]->tenant;
	const uint64_t bytes = gpu_accounting_of(g, t)->bytes_max, extent = g->arena ? arena_extent_bytes(g->arena) : 0;
	const bool table = c->options.tenant_count;
	const struct memory m = {
		.place = "GPU",
		.number = (int)g->number,
		.bytes = bytes,
		.extent = extent < bytes ? extent : bytes,
		.held = pins_max_gpu(c, t, g),
		.option = table ? "the tenant's gpu_bytes_max" : "gpu_bytes",
		.both = table ? "the tenant's gpu_bytes_max, and extent_bytes" : "gpu_bytes and extent_bytes",
		.share = table ? "pinned_share or the tenant's gpu_bytes_max" : "pinned_share or gpu_bytes",
	};

	for (uint32_t i = 0; g->arena && i < count; i++) {
		const struct kv_geometry *k = &pools[i]->geometry;

		if (!fits_memory(i, k->block_bytes, k->need_bytes, &m, why))
			return false;
	}
	return true;
}

static bool fit_disk(const struct disk_most *d, struct layout_pool *const *pools, uint32_t count, const char **why)
{
	const struct limit l = { "disk", (int)d->number, "a slab that takes all of it has", d->slot_bytes,
				 "its size in disks" };

	for (uint32_t i = 0; i < count; i++)
		if (!fits(i, pools[i]->geometry.need_bytes, &l, why))
			return false;
	return true;
}

void cache_unfit(struct cache *c, uint64_t session, void (*tell)(void *arg, const struct cache_unfit *u), void *arg)
{
	struct layout_pool *pools[CACHE_LAYOUTS_MAX];
	const uint32_t count = session_pools(c, session, pools);
	struct cache_unfit u = { .disk = -1 };
	struct disk_most disk;

	for (uint32_t i = 0; c->vram && i < c->vram->count; i++) {
		u.gpu = (int32_t)i;
		if (!fit_gpu(c, c->vram->gpu[i], pools, count, &u.why))
			tell(arg, &u);
	}
	u.gpu = -1;
	for (uint32_t i = 0; disk_most_of(c, i, &disk); i++) {
		u.disk = (int32_t)disk.number;
		if (!fit_disk(&disk, pools, count, &u.why))
			tell(arg, &u);
	}
}
