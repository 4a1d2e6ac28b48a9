/* The pages by which streams wait for layers, and what is registered with the GPUs. A page's words are written by the
 * device, by the checksum threads, and, when copies fail, by the thread that finds that out. */
#include "daemon/vram/progress.h"

#include "daemon/block/lock.h"
#include "daemon/vram/transfer_table.h"
#include "daemon/vram/state.h"
#include "store/device.h"
#include "store/host/extent.h"
#include "store/status.h"

#include <stdatomic.h>
#include <stdlib.h>

static uint64_t register_with(struct cache *c, const struct gpu *g, void *memory, uint64_t bytes)
{
	const char *why = "";
	uint64_t address = 0;

	if (g->device && !c->vram->ops->lost(g->device) &&
	    c->vram->ops->host_register(g->device, memory, bytes, true, &address, &why))
		address = 0;
	vram_came_back(c);
	return address;
}

void vram_register(struct cache *c, const struct extent *e, uint64_t *address)
{
	for (uint32_t i = 0; i < DEVICES_MAX; i++)
		address[i] = 0;
	for (uint32_t i = 0; e && i < c->vram->count; i++)
		address[i] = register_with(c, c->vram->gpu[i], e->base, e->bytes);
}

void vram_unregister(struct cache *c, void *memory, const uint64_t *address)
{
	for (uint32_t i = 0; i < c->vram->count; i++)
		if (address[i] && c->vram->gpu[i]->device)
			c->vram->ops->host_unregister(c->vram->gpu[i]->device, memory);
	vram_came_back(c);
}

struct progress_page *progress_page_create(struct cache *c)
{
	struct progress_page *b = calloc(1, sizeof(*b));

	if (b && extent_open(&b->page, 0, EXTENT_PAGE_BYTES, false)) {
		free(b);
		b = NULL;
	}
	if (b)
		vram_register(c, &b->page, b->address);
	return b;
}

void progress_page_destroy(struct cache *c, struct progress_page *b)
{
	vram_unregister(c, b->page.base, b->address);
	extent_close(&b->page);
	free(b);
}

void progress_page_let_go(struct cache *c, struct progress_page *b)
{
	b->dead_next = c->vram->dead_progress_pages;
	c->vram->dead_progress_pages = b;
}

/* A list that still ends well may have set its word back: so the last fence that ends on a lost GPU does this once
 * more. */
void progress_page_fail(struct progress_page *b, const struct gpu *g)
{
	_Atomic uint32_t *word = (_Atomic uint32_t *)b->page.base;

	atomic_store_explicit(word + PROGRESS_PAGE_FAILED + g->number, 1, memory_order_release);
	atomic_store_explicit(word + PROGRESS_PAGE_SUMMED + g->number, b->next[g->number], memory_order_release);
	atomic_store_explicit(word + g->number, b->next[g->number], memory_order_release);
}

bool progress_page_copied(const struct progress_page *b, const struct gpu *g, uint32_t value)
{
	const _Atomic uint32_t *word = (const _Atomic uint32_t *)b->page.base + g->number;

	return (int32_t)(atomic_load_explicit(word, memory_order_relaxed) - value) >= 0;
}

void progress_page_summed(struct progress_page *b, const struct gpu *g, uint32_t value)
{
	_Atomic uint32_t *word = (_Atomic uint32_t *)b->page.base + PROGRESS_PAGE_SUMMED + g->number;
	uint32_t now = atomic_load_explicit(word, memory_order_relaxed);

	while ((int32_t)(value - now) > 0 && !atomic_compare_exchange_weak_explicit(word, &now, value, memory_order_release, memory_order_relaxed))
		continue;
}

bool progress_page_tells(const struct progress_page *b, const struct gpu *g)
{
	const _Atomic uint32_t *word = (const _Atomic uint32_t *)b->page.base;

	return b->address[g->number] && !atomic_load_explicit(word + PROGRESS_PAGE_FAILED + g->number,
	    memory_order_acquire);
}

void vram_fences_fail(struct gpu *g)
{
	for (struct vram_transfer *m = g->fences; m; m = m->hash_next)
		progress_page_fail(m->progress_page, g);
}
