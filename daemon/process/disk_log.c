/* See process/disk_log.h. */
#include "daemon/process/disk_log.h"

#include "daemon/advice/trace.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/disk/stats.h"
#include "daemon/process/gpu_log.h"
#include "daemon/process/log.h"
#include "store/shortage.h"

#include <stdio.h>
#include <string.h>

/* Whether the disk is not in use since the start, which is logged once. */
static bool is_unusable(const struct cache_disk_state *d)
{
	return !*d->engine;
}

static void log_unusable(uint32_t i, const struct cache_disk_state *d)
{
	log_error("disk_unusable", LOG_NUM("disk", i), LOG_TEXT("folder", d->folder), LOG_TEXT("reason", d->why),
		  LOG_TEXT("effect", "the daemon goes on without the disk, degraded; its blocks are misses, and are given up if anything is deleted meanwhile"),
		  LOG_TEXT("remedy", d->remedy));
}

static void log_disk_found(uint32_t i, const struct cache_disk_state *d)
{
	if (is_unusable(d)) {
		log_unusable(i, d);
		return;
	}
	log_info("disk", LOG_NUM("disk", i), LOG_TEXT("folder", d->folder), LOG_TEXT("engine", d->engine),
		 LOG_TEXT("engine_reason", d->refusal), LOG_NUM("direct", d->direct), LOG_NUM("budget_bytes", d->budget_bytes),
		 LOG_NUM("slabs", d->slabs), LOG_NUM("slab_bytes", d->slab_bytes));
	if (d->wiped)
		log_warn("disk_wiped", LOG_NUM("disk", i), LOG_TEXT("folder", d->folder),
			 LOG_TEXT("reason", "it was given up in an earlier run, or left out of one, so its blocks were not to be trusted"));
	if (d->slabs_damaged)
		log_warn("disk_slabs_damaged", LOG_NUM("disk", i), LOG_TEXT("folder", d->folder), LOG_NUM("slabs", d->slabs_damaged));
}

static void log_health(uint32_t i, const struct cache_disk_state *d)
{
	if (!strcmp(d->health, "healthy"))
		log_info("disk_health", LOG_NUM("disk", i), LOG_TEXT("folder", d->folder), LOG_TEXT("health", d->health));
	else
		log_warn("disk_health", LOG_NUM("disk", i), LOG_TEXT("folder", d->folder), LOG_TEXT("health", d->health),
			 LOG_TEXT("reason", d->why));
}

static void look_at_health(struct disk_log *log, uint32_t i, const struct cache_disk_state *d)
{
	const bool healthy = !strcmp(d->health, "healthy");

	log->well[i] = healthy ? log->well[i] + 1 : 0;
	if (log->health[i] == d->health || (healthy && log->health[i] && log->well[i] < DISK_LOG_WELL))
		return;
	if (log->health[i] || !healthy)
		log_health(i, d);
	log->health[i] = d->health;
}

static void look_at_bytes(struct disk_log *log, uint32_t i, const struct cache_disk_state *d)
{
	if (d->corrupt != log->corrupt[i])
		log_warn("disk_corrupt", LOG_NUM("disk", i), LOG_TEXT("folder", d->folder), LOG_NUM("blocks", d->corrupt - log->corrupt[i]),
			 LOG_TEXT("remedy", "what no other tier has of them is a miss; after a crash some writes were cut off, else look for errors of the disk"));
	log->corrupt[i] = d->corrupt;
}

/* Logs a disk that is too small for a slab of each block size, once for each larger number of sizes; and at the start a
 * disk with room for few slabs. */
static void look_at_size(struct disk_log *log, uint32_t i, const struct cache_disk_state *d)
{
	const bool few = !log->begun && d->slabs_room < DISK_LOG_FEW_SLABS;

	if ((!d->small || d->sizes <= log->sizes[i]) && !few)
		return;
	log->sizes[i] = d->small ? d->sizes : 0;
	log_warn("disk_small", LOG_NUM("disk", i), LOG_TEXT("folder", d->folder),
		 LOG_NUM("budget_bytes", d->budget_bytes), LOG_NUM("slabs", d->slabs_room), LOG_NUM("sizes", d->sizes),
		 LOG_TEXT("reason", "the disk has room for so few slab files, and each holds blocks of one size: where "
				    "there are more sizes, blocks of one size go for those of another, flushed ones too"),
		 LOG_TEXT("remedy", "give it more bytes in disks: 1MiB at least for each layout of each model"));
}

static void look_at_disks(struct disk_log *log, struct cache *c)
{
	struct cache_disk_state disks[CACHE_DISKS_MAX];
	const uint32_t n = cache_disks(c, disks, CACHE_DISKS_MAX);

	for (uint32_t i = 0; i < n; i++) {
		if (!log->begun)
			log_disk_found(i, &disks[i]);
		if (is_unusable(&disks[i]))
			continue;
		look_at_health(log, i, &disks[i]);
		look_at_bytes(log, i, &disks[i]);
		look_at_size(log, i, &disks[i]);
	}
}

static void log_catalog_found(const struct cache_catalog_state *s)
{
	if (!strcmp(s->found, "damaged"))
		log_warn("catalog", LOG_TEXT("found", s->found), LOG_TEXT("reason", s->why), LOG_NUM("rebuilding", s->rebuilding));
	else
		log_info("catalog", LOG_TEXT("found", s->found), LOG_NUM("rebuilding", s->rebuilding));
	for (uint32_t i = 0; i < s->left_out_count && i < CACHE_LEFT_OUT_MAX; i++)
		log_warn("disk_left_out", LOG_TEXT("folder", s->left_out[i].folder), LOG_NUM("disks", s->left_out_count),
			 LOG_TEXT("reason", s->left_out[i].why),
			 LOG_TEXT("effect", "its blocks are given up, and it is wiped when it comes back"));
}

static void look_at_readers(struct disk_log *log, const struct cache_catalog_state *s)
{
	if (s->readers_cleared != log->readers_cleared)
		log_warn("catalog_readers_cleared", LOG_NUM("readers", s->readers_cleared - log->readers_cleared),
			 LOG_TEXT("reason", "processes that read the catalog have died in the middle of it; the pages that they kept are used again"));
	if (s->reader_pid && s->reader_grown_bytes && s->reader_pid != log->reader_pid) {
		log_warn("catalog_reader", LOG_NUM("pid", s->reader_pid), LOG_NUM("seconds", s->reader_us / 1000000),
			 LOG_NUM("grown_bytes", s->reader_grown_bytes),
			 LOG_TEXT("reason", "this process has read the catalog for so long, which grows with every change meanwhile: end it if it hangs"));
		log->reader_pid = s->reader_pid;
	}
	if (!s->reader_pid)
		log->reader_pid = 0;
	log->readers_cleared = s->readers_cleared;
}

static void log_slab_lost(struct cache *c, const struct cache_lost_slab *l)
{
	struct cache_disk_state disks[CACHE_DISKS_MAX];
	const uint32_t n = cache_disks(c, disks, CACHE_DISKS_MAX);
	char file[32];

	snprintf(file, sizeof file, "slab-%06u.trc", l->slab);
	log_warn("slab_lost", LOG_NUM("disk", l->disk), LOG_TEXT("folder", l->disk < n ? disks[l->disk].folder : ""), LOG_TEXT("file", file),
		 LOG_NUM("blocks", (int64_t)l->blocks), LOG_TEXT("reason", l->problem),
		 LOG_TEXT("effect", l->sure ? "so many blocks that were on the disk are misses" :
					      "so many blocks are misses, unless others have a copy: the run before did not end in order, and may have given the file up"),
		 LOG_TEXT("remedy", l->sure ? "find out what removed or changed the file: only the daemon is to write to the folder of a disk" : ""));
}

static void log_restored(struct cache *c, const struct cache_catalog_state *s)
{
	log_info("disks_restored", LOG_NUM("blocks", s->restored_blocks), LOG_NUM("ms", s->restored_us / 1000), LOG_NUM("lost_slabs", s->slabs_lost),
		 LOG_NUM("lost_blocks", s->blocks_lost), LOG_NUM("absent_blocks", s->blocks_absent));
	for (uint32_t i = 0; i < s->slabs_lost && i < CACHE_LOST_SLABS_MAX; i++)
		log_slab_lost(c, &s->lost[i]);
}

static void look_at_catalog(struct disk_log *log, struct cache *c, const struct cache_catalog_state *s)
{
	if (!log->begun)
		log_catalog_found(s);
	if (s->restored && !log->restored)
		log_restored(c, s);
	if (s->failing && !log->failing)
		log_error("catalog_failing", LOG_TEXT("reason", s->why));
	log->works = s->failing ? 0 : log->works + 1;
	if (log->failing && log->works == DISK_LOG_WELL)
		log_info("catalog_works_again");
	look_at_readers(log, s);
	log->restored = s->restored;
	log->failing = s->failing || (log->failing && log->works < DISK_LOG_WELL);
}

static void look_at_trace(struct disk_log *log, struct cache *c)
{
	const int error = cache_trace_error(c);
	char words[SHORTAGE_WORDS_MAX];

	if (error && error != log->trace_error)
		log_warn("trace_failing", LOG_TEXT("reason", shortage_words(error, words, sizeof words)),
			 LOG_TEXT("remedy", "the trace ends here: stop it, and start another when there is room"));
	log->trace_error = error;
}

void disk_log_look(struct disk_log *log, struct cache *c)
{
	struct cache_catalog_state catalog;

	gpu_log_look(&log->gpus, c);
	look_at_trace(log, c);
	if (!cache_catalog(c, &catalog))
		return;
	look_at_catalog(log, c, &catalog);
	look_at_disks(log, c);
	log->begun = true;
	log->looks++;
}
