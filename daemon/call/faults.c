/* What the cache works without, in words: the reasons of "degraded". */
#include "daemon/call/faults.h"

#include "daemon/block/lock.h"
#include "daemon/block/views.h"
#include "daemon/disk/state.h"
#include "daemon/vram/state.h"
#include "store/slab/disk.h"

#include <stdarg.h>
#include <stdio.h>

struct list {
	struct cache_fault *out;
	uint32_t count, max;
};

static void __attribute__((format(printf, 2, 3))) add(struct list *l, const char *format, ...)
{
	va_list args;

	if (l->count < l->max) {
		va_start(args, format);
		vsnprintf(l->out[l->count].text, sizeof(l->out[l->count].text), format, args);
		va_end(args);
	}
	l->count++;
}

static void add_gpus(const struct cache *c, struct list *l)
{
	for (uint32_t i = 0; c->vram && i < c->vram->count; i++)
		if (c->vram->gpu[i]->lost)
			add(l, "GPU %u is not in use: %s", c->options.gpus[i], c->vram->gpu[i]->why);
}

/* If the reason begins with the folder, the folder is not repeated. */
static void add_disks(const struct cache *c, struct list *l)
{
	const struct tier *t = c->tier;

	for (uint32_t i = 0; t && i < t->out_count; i++)
		add(l, "disk %u is not in use: %s", t->out[i].configured, t->out[i].why);
	for (uint32_t i = 0; t && i < t->unit_count; i++) {
		struct disk_view v;

		disk_look(t->units[i].disk, &v);
		if (v.health == DISK_QUARANTINED)
			add(l, "disk %u is not in use: %s: %s", t->units[i].configured, v.folder, v.why);
	}
}

uint32_t cache_faults(struct cache *c, struct cache_fault *out, uint32_t max)
{
	struct list l = { .out = out, .max = max };

	cache_lock(c);
	add_disks(c, &l);
	add_gpus(c, &l);
	cache_unlock(c);
	return l.count;
}

bool cache_degraded(struct cache *c)
{
	return cache_faults(c, NULL, 0) > 0;
}
