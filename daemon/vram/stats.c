/* The GPUs' rows of Stats, and the times of their copy batches. The times of each batch's stages are summed by its
 * kind: in the queue (only of a lease, from its admission on), being copied, and being checked after that. A lease
 * waits for the sum of the three.
 */
#include "daemon/vram/stats.h"

#include "daemon/block/lock.h"
#include "daemon/block/views.h"
#include "daemon/vram/transfer_table.h"
#include "daemon/vram/queue.h"
#include "daemon/vram/state.h"
#include "store/arena/arena.h"
#include "store/device.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* ---- what lists took ---- */

static struct list_times *times_of(const struct copy_batch *f)
{
	switch (f->copy.way) {
	case DEVICE_UP:
		return &f->gpu->times[f->fence ? LIST_LEASE : LIST_UP];
	case DEVICE_DOWN:
		return &f->gpu->times[LIST_DOWN];
	default:
		return &f->gpu->times[LIST_ACROSS];
	}
}

static void add(_Atomic uint64_t *sum, uint64_t more)
{
	atomic_fetch_add_explicit(sum, more, memory_order_relaxed);
}

void vram_times_add(const struct copy_batch *f)
{
	struct list_times *t = times_of(f);

	if (f->status || !f->transfers)
		return;
	add(&t->lists, 1);
	add(&t->bytes, f->copy.count * f->copy.parts * f->copy.part_bytes);
	add(&t->queued_us, f->fence ? f->begun_us - f->fence->enqueued_us : 0);
	add(&t->copied_us, f->copied_us - f->begun_us);
	add(&t->checked_us, vram_clock_us() - f->copied_us);
}

static const char *const list_names[LIST_KINDS] = { "lease", "up", "down", "across" };

struct times_row {
	const char *name, *labels, *help;
	size_t at;
	double unit;
	bool leases_only;
};

static void times_row(struct cache *c, const struct times_row *row, cache_stat_fn *emit, void *arg)
{
	for (uint32_t i = 0; i < c->vram->count; i++)
		for (uint32_t k = 0; k < LIST_KINDS; k++) {
			const struct list_times *t = &c->vram->gpu[i]->times[k];
			const _Atomic uint64_t *sum = (const _Atomic uint64_t *)((const char *)t + row->at);
			char labels[64];

			if (row->leases_only && k != LIST_LEASE)
				continue;
			snprintf(labels, sizeof(labels), "gpu=%u,list=%s%s", i, list_names[k], row->labels);
			emit(arg, row->name, labels, (double)atomic_load_explicit(sum, memory_order_relaxed) * row->unit, true, row->help);
		}
}

/* Emits the times of lists. The table keeps rows of one name next to each other. */
static void times_stats(struct cache *c, cache_stat_fn *emit, void *arg)
{
	static const char lists[] = "lists of blocks that were copied", bytes[] = "bytes of their blocks",
			  seconds[] = "seconds that they stood in the queue, were copied, were looked at after that";
	static const struct times_row row[] = {
		{ "terrace_gpu_lists_total", "", lists, offsetof(struct list_times, lists), 1, false },
		{ "terrace_gpu_list_bytes_total", "", bytes, offsetof(struct list_times, bytes), 1, false },
		{ "terrace_gpu_list_seconds_total", ",stage=queued", seconds, offsetof(struct list_times, queued_us), 1e-6, true },
		{ "terrace_gpu_list_seconds_total", ",stage=copied", seconds, offsetof(struct list_times, copied_us), 1e-6, false },
		{ "terrace_gpu_list_seconds_total", ",stage=checked", seconds, offsetof(struct list_times, checked_us), 1e-6, false },
	};

	for (size_t r = 0; r < sizeof(row) / sizeof(row[0]); r++)
		times_row(c, &row[r], emit, arg);
}

/* ---- what there is to tell ---- */

uint32_t cache_gpus(struct cache *c, struct cache_gpu_view *out, uint32_t max)
{
	uint32_t n = 0;

	if (!c->vram || !max)
		return c->vram ? c->vram->count : 0;
	cache_lock(c);
	for (; n < c->vram->count && n < max; n++) {
		const struct gpu *g = c->vram->gpu[n];

		out[n] = (struct cache_gpu_view){ .ordinal = c->options.gpus[n], .bytes = g->budget, .lost = g->lost,
						  .corrupt_up = g->corrupt_up, .corrupt_down = g->corrupt_down,
						  .unsummed = g->unsummed };
		memcpy(out[n].uuid, g->info.uuid, sizeof(out[n].uuid));
		snprintf(out[n].name, sizeof(out[n].name), "%.*s", (int)sizeof(out[n].name) - 1, g->info.name);
		snprintf(out[n].unsummed_why, sizeof(out[n].unsummed_why), "%s", g->unsummed_why);
		snprintf(out[n].why, sizeof(out[n].why), "%s", g->why);
		snprintf(out[n].no_kernel, sizeof(out[n].no_kernel), "%.*s", (int)sizeof(out[n].no_kernel) - 1, g->info.no_kernel);
	}
	cache_unlock(c);
	return n;
}

struct gpu_gauges {
	struct arena_usage use;
	uint64_t blocks, dirty, held_bytes, downs, lost;
};

static void gauges_read(struct cache *c, const struct gpu *g, struct gpu_gauges *out)
{
	*out = (struct gpu_gauges){ .downs = g->downs, .lost = g->lost };
	for (uint32_t i = 0; i < c->tenant_count; i++)
		out->held_bytes += g->accounting[i].held_bytes;
	for (uint32_t i = 0; i < c->pool_count; i++) {
		out->blocks += g->pools[i] ? g->pools[i]->blocks : 0;
		out->dirty += g->pools[i] ? g->pools[i]->dirty : 0;
	}
	if (g->arena)
		arena_usage(g->arena, &out->use);
}

void vram_stats(struct cache *c, cache_stat_fn *emit, void *arg)
{
	struct gpu_gauges g[DEVICES_MAX];
	const struct {
		const char *name, *help;
		size_t at;
	} row[] = {
#define ROW(name, field, help) { "terrace_gpu_" name, help, offsetof(struct gpu_gauges, field) }
		ROW("blocks", blocks, "blocks with a copy on this GPU"),
		ROW("dirty_blocks", dirty, "of these, that are nowhere else and not on their way down"),
		ROW("held_bytes", held_bytes, "bytes of its slots that are reserved, leased or being copied"),
		ROW("downs", downs, "blocks on their way down"),
		ROW("budget_bytes", use.budget_bytes, "memory of it that may be used"),
		ROW("extent_bytes", use.extent_bytes, "memory of it in extents"),
		ROW("slots", use.slots, "slots in all its extents"),
		ROW("slots_used", use.slots_used, "of these in use"),
		ROW("lost", lost, "1 if it is lost"),
#undef ROW
	};

	cache_lock(c);
	for (uint32_t i = 0; i < c->vram->count; i++)
		gauges_read(c, c->vram->gpu[i], &g[i]);
	cache_unlock(c);
	for (size_t r = 0; r < sizeof(row) / sizeof(row[0]); r++)
		for (uint32_t i = 0; i < c->vram->count; i++) {
			char labels[16];
			uint64_t value;

			snprintf(labels, sizeof(labels), "gpu=%u", i);
			memcpy(&value, (const char *)&g[i] + row[r].at, sizeof(value));
			emit(arg, row[r].name, labels, (double)value, false, row[r].help);
		}
	times_stats(c, emit, arg);
}
