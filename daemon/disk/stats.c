/* The disks' rows of Stats. */
#include "daemon/disk/stats.h"

#include "daemon/block/disk_class.h"
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/disk/place.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "store/catalog/catalog.h"
#include "store/ring/ring.h"
#include "store/slab/disk.h"

#include <stdio.h>
#include <string.h>

#define DISK_UNUSABLE "unusable"

struct disk_row {
	char labels[64], health[160], io[96];
	struct disk_view v;
	uint64_t blocks, unverified;
	uint32_t sizes;
	bool small;
	uint64_t slabs_lost, blocks_lost;
	uint32_t spilling, loading;
};

struct row {
	const char *name;
	double (*value)(const struct disk_row *r);
	bool counter;
	const char *help;
};

#define VALUE(id, expression)                                                                                \
	static double id(const struct disk_row *r)                                                           \
	{                                                                                                    \
		return (double)(expression);                                                                 \
	}
VALUE(blocks, r->blocks)
VALUE(unverified, r->unverified)
VALUE(slots, r->v.slots)
VALUE(slots_used, r->v.slots_used)
VALUE(budget, r->v.budget_bytes)
VALUE(slab_bytes, r->v.slab_bytes_used)
VALUE(slabs, r->v.slabs)
VALUE(slabs_damaged, r->v.slabs_damaged)
VALUE(sizes, r->sizes)
VALUE(small, r->small)
VALUE(slabs_lost, r->slabs_lost)
VALUE(blocks_lost, r->blocks_lost)
VALUE(direct, r->v.direct)
VALUE(corrupt, r->v.corrupt)
VALUE(refused_slow, r->v.refused_slow)
VALUE(full_events, r->v.full_events)
VALUE(reads, r->v.ring.reads)
VALUE(writes, r->v.ring.writes)
VALUE(syncs, r->v.ring.syncs)
VALUE(read_bytes, r->v.ring.read_bytes)
VALUE(write_bytes, r->v.ring.write_bytes)
VALUE(failures, r->v.ring.failures)
VALUE(waiting, r->v.ring.waiting)
VALUE(under_way, r->v.ring.under_way)
VALUE(oldest, r->v.ring.oldest_us / 1e6)
VALUE(submits, r->v.ring.submits)
VALUE(cpu, r->v.ring.cpu_us / 1e6)
VALUE(registered, r->v.ring.buffers)
VALUE(unregistered, r->v.ring.buffers_refused)
VALUE(spilling, r->spilling)
VALUE(loading, r->loading)

/* Rows of one name stand next to each other. */
static const struct row rows[] = {
	{ "terrace_disk_blocks", blocks, false, "blocks on the disk" },
	{ "terrace_disk_doubted_blocks", unverified, false,
	    "of these, left by a crash and not read since" },
	{ "terrace_disk_slots", slots, false, "slots in all slabs" },
	{ "terrace_disk_slots_used", slots_used, false, "slots in use" },
	{ "terrace_disk_budget_bytes", budget, false, "bytes that slabs may take" },
	{ "terrace_disk_slab_bytes", slab_bytes, false, "bytes of slab files" },
	{ "terrace_disk_slabs", slabs, false, "slab files" },
	{ "terrace_disk_slabs_damaged", slabs_damaged, false, "slab files with a damaged header, left alone" },
	{ "terrace_disk_block_sizes", sizes, false, "sizes of blocks that have a slab file on the disk, or want one" },
	{ "terrace_disk_small", small, false, "1 if the disk has not room for a slab file of each of these sizes" },
	{ "terrace_disk_lost_slabs", slabs_lost, false, "slab files that the catalog named at the start, and that were missing or damaged" },
	{ "terrace_disk_lost_blocks", blocks_lost, false, "blocks that the catalog named in them" },
	{ "terrace_disk_direct", direct, false, "1 if O_DIRECT is in use" },
	{ "terrace_disk_corrupt_total", corrupt, true, "blocks whose bytes proved wrong" },
	{ "terrace_disk_refused_slow_total", refused_slow, true, "transfers refused because the disk was slow" },
	{ "terrace_disk_full_events_total", full_events, true, "times that the file system was full" },
	{ "terrace_disk_reads_total", reads, true, "reads" },
	{ "terrace_disk_writes_total", writes, true, "writes" },
	{ "terrace_disk_syncs_total", syncs, true, "syncs" },
	{ "terrace_disk_read_bytes_total", read_bytes, true, "bytes read" },
	{ "terrace_disk_write_bytes_total", write_bytes, true, "bytes written" },
	{ "terrace_disk_failures_total", failures, true, "transfers that failed" },
	{ "terrace_disk_waiting", waiting, false, "transfers that wait" },
	{ "terrace_disk_under_way", under_way, false, "transfers that the kernel has" },
	{ "terrace_disk_oldest_seconds", oldest, false, "age of the oldest of them" },
	{ "terrace_disk_submits_total", submits, true, "system calls that submitted transfers" },
	{ "terrace_disk_cpu_seconds_total", cpu, true, "CPU time of the disk's threads" },
	{ "terrace_disk_buffers", registered, false, "extents registered with the disk's ring" },
	{ "terrace_disk_buffers_refused_total", unregistered, true, "registrations that the kernel refused" },
	{ "terrace_disk_spills_under_way", spilling, false, "blocks being written" },
	{ "terrace_disk_loads_under_way", loading, false, "blocks being read" },
};

static void disk_read_row(struct cache *c, uint32_t i, struct disk_row *r)
{
	struct unit *u = &c->tier->units[i];
	uint64_t needed;

	*r = (struct disk_row){ .blocks = 0 };
	disk_look(u->disk, &r->v);
	cache_lock(c);
	r->sizes = place_classes(c, u, r->v.slab_bytes, &needed);
	r->small = needed > r->v.budget_bytes;
	for (const struct disk_class *k = u->classes; k; k = k->next)
		r->blocks += k->blocks;
	r->unverified = u->unverified;
	r->slabs_lost = u->slabs_lost;
	r->blocks_lost = u->blocks_lost;
	r->spilling = u->spilling;
	r->loading = u->loading;
	cache_unlock(c);
	snprintf(r->labels, sizeof(r->labels), "disk=%u", u->configured);
	snprintf(r->health, sizeof(r->health), "disk=%u,health=%s", u->configured, disk_health_name(r->v.health));
	snprintf(r->io, sizeof(r->io), "disk=%u,engine=%s", u->configured, r->v.ring.engine == RING_URING ? "io_uring" : "threads");
}

static void stats_catalog(struct cache *c, cache_stat_fn *emit, void *arg)
{
	struct catalog_view v;
	uint64_t restored, us, absent, scanned = 0;
	bool done;

	catalog_look(c->tier->catalog, &v);
	cache_lock(c);
	done = c->tier->restored;
	restored = c->tier->restored_blocks;
	us = c->tier->restored_us;
	absent = c->tier->found.blocks_absent;
	for (uint32_t i = 0; done && i < c->tier->unit_count; i++)
		scanned += c->tier->scan || c->tier->units[i].scan;
	cache_unlock(c);
	emit(arg, "terrace_catalog_failed", "", v.failed != STATUS_OK, false, "1 while commits fail");
	emit(arg, "terrace_catalog_full", "", v.failed == STATUS_EXHAUSTED, false,
	     "1 while they fail for want of room: the file system of data_dir, a quota or a limit is full");
	emit(arg, "terrace_catalog_records", "", v.records[CATALOG_BLOCKS], false, "blocks in the catalog");
	emit(arg, "terrace_catalog_queued_bytes", "", v.queued_bytes, false, "changes that wait for a commit");
	emit(arg, "terrace_catalog_batches_total", "", v.batches, true, "commits");
	emit(arg, "terrace_catalog_changes_total", "", v.changes, true, "changes committed");
	emit(arg, "terrace_catalog_commit_seconds_max", "", v.commit_us_max / 1e6, false, "longest commit");
	emit(arg, "terrace_catalog_map_bytes", "", v.map_bytes, false, "size of the map");
	emit(arg, "terrace_catalog_used_bytes", "", v.used_bytes, false, "of it in use");
	emit(arg, "terrace_catalog_readers_cleared_total", "", v.readers_cleared, true,
	     "readers of the catalog in other processes that died, and whose pages were kept from reuse");
	emit(arg, "terrace_catalog_reader_seconds", "", v.reader_us / 1e6, false,
	     "for how long a reader in another process has kept changed pages from reuse, once it is ten minutes; 0: none does");
	emit(arg, "terrace_restored", "", done, false, "1 when all that earlier runs left is taken up");
	emit(arg, "terrace_restored_blocks", "", restored, false, "blocks taken up");
	emit(arg, "terrace_restore_absent_blocks", "", absent, false, "blocks that the catalog named on disks that are not in use");
	emit(arg, "terrace_restore_seconds", "", us / 1e6, false, "how long that took");
	emit(arg, "terrace_restore_scanned_disks", "", scanned, false, "disks whose headers were all read for it, as after a crash");
}

/* Emits the health of disks that could not be used at the start. They have no other rows. */
static void stats_out(struct cache *c, cache_stat_fn *emit, void *arg)
{
	for (uint32_t i = 0; i < c->tier->out_count; i++) {
		char labels[64];

		snprintf(labels, sizeof(labels), "disk=%u,health=" DISK_UNUSABLE, c->tier->out[i].configured);
		emit(arg, "terrace_disk_health_info", labels, 1, false, "the disk's health");
	}
}

void tier_stats(struct cache *c, cache_stat_fn *emit, void *arg)
{
	struct disk_row r[CACHE_DISKS_MAX];
	uint32_t n = c->tier->unit_count;

	for (uint32_t i = 0; i < n; i++)
		disk_read_row(c, i, &r[i]);
	for (uint32_t i = 0; i < n; i++)
		emit(arg, "terrace_disk_health_info", r[i].health, 1, false, "the disk's health");
	stats_out(c, emit, arg);
	for (uint32_t i = 0; i < n; i++)
		emit(arg, "terrace_disk_engine_info", r[i].io, 1, false, "how the disk is read and written");
	for (size_t k = 0; k < sizeof(rows) / sizeof(rows[0]); k++)
		for (uint32_t i = 0; i < n; i++)
			emit(arg, rows[k].name, r[i].labels, rows[k].value(&r[i]), rows[k].counter, rows[k].help);
	stats_catalog(c, emit, arg);
}

/* ---- for logs and operators ---- */

static void state_of_unit(struct cache *c, uint32_t i, struct cache_disk_state *out)
{
	struct disk_row r;

	disk_read_row(c, i, &r);
	*out = (struct cache_disk_state){
		.folder = r.v.folder, .health = disk_health_name(r.v.health), .remedy = "",
		.engine = r.v.ring.engine == RING_URING ? "io_uring" : "threads", .direct = r.v.direct,
		.wiped = r.v.wiped, .blocks = r.blocks, .budget_bytes = r.v.budget_bytes,
		.slab_bytes = r.v.slab_bytes_used, .corrupt = r.v.corrupt, .slabs = r.v.slabs, .slabs_damaged = r.v.slabs_damaged,
		.slabs_room = (uint32_t)(r.v.budget_bytes / r.v.slab_bytes), .sizes = r.sizes, .small = r.small,
	};
	snprintf(out->why, sizeof(out->why), "%s", r.v.why);
	memcpy(out->shortage, r.v.shortage, sizeof(out->shortage));
	memcpy(out->refusal, r.v.refusal, sizeof(out->refusal));
}

static void state_of_out(const struct cache *c, const struct disk_out *o, struct cache_disk_state *out)
{
	*out = (struct cache_disk_state){ .folder = c->options.disks[o->configured].folder, .health = DISK_UNUSABLE, .engine = "", .remedy = o->remedy };
	memcpy(out->why, o->why, sizeof(out->why));
}

uint32_t cache_disks(struct cache *c, struct cache_disk_state *out, uint32_t max)
{
	const struct tier *t = c->tier;

	for (uint32_t i = 0; t && i < t->unit_count; i++)
		if (t->units[i].configured < max)
			state_of_unit(c, i, &out[t->units[i].configured]);
	for (uint32_t i = 0; t && i < t->out_count; i++)
		if (t->out[i].configured < max)
			state_of_out(c, &t->out[i], &out[t->out[i].configured]);
	return !t ? 0 : c->options.disk_count < max ? c->options.disk_count : max;
}

bool cache_catalog(struct cache *c, struct cache_catalog_state *out)
{
	static const char *const found[] = { [CATALOG_FOUND] = "sound", [CATALOG_FRESH] = "none", [CATALOG_DAMAGED] = "damaged" };
	const struct tier *t = c->tier;
	struct catalog_view v;

	if (!t)
		return false;
	catalog_look(t->catalog, &v);
	cache_lock(c);
	*out = t->found;
	out->found = found[t->catalog_state];
	out->rebuilding = t->rebuild;
	out->failing = v.failed != STATUS_OK;
	out->restored = t->restored;
	out->restored_blocks = t->restored_blocks;
	out->restored_us = t->restored_us;
	out->readers_cleared = v.readers_cleared;
	out->reader_pid = v.reader_pid;
	out->reader_us = v.reader_us;
	out->reader_grown_bytes = v.reader_grown_bytes;
	cache_unlock(c);
	snprintf(out->why, sizeof(out->why), "%s", out->failing ? v.why : t->catalog_why);
	return true;
}

_Static_assert((int)CACHE_CATALOG_WHY_MAX == (int)CATALOG_WHY_MAX, "a sentence is handed on whole");

/* Writes what is wrong with the first disk that takes nothing now. */
static void disk_problem(struct cache *c, char *text, size_t bytes)
{
	struct cache_disk_state disks[CACHE_DISKS_MAX];
	const uint32_t n = cache_disks(c, disks, CACHE_DISKS_MAX);
	uint32_t i = 0;

	while (i < n && !strcmp(disks[i].health, "healthy") && !disks[i].shortage[0] && !disks[i].small)
		i++;
	if (i == n)
		return;
	if (strcmp(disks[i].health, "healthy"))
		snprintf(text, bytes, "the disk %.200s is %s: %s", disks[i].folder, disks[i].health, disks[i].why);
	else if (disks[i].shortage[0])
		snprintf(text, bytes, "the disk %.200s is full: %s", disks[i].folder, disks[i].shortage);
	else
		snprintf(text, bytes,
			 "the disk %.200s has room for %u slab files and there are blocks of %u sizes, of which each needs "
			 "one: give it more bytes (disks)",
			 disks[i].folder, disks[i].slabs_room, disks[i].sizes);
}

void cache_durable_problem(struct cache *c, const struct cache_wait *w, char *text, size_t bytes)
{
	struct catalog_view v;

	text[0] = 0;
	if (!c->tier)
		return;
	if (!w->uncommitted) {
		disk_problem(c, text, bytes);
		return;
	}
	catalog_look(c->tier->catalog, &v);
	snprintf(text, bytes, "%s", v.failed ? v.why : "the catalog could not be written, and can be again: call again");
}
