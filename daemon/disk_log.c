/* See disk_log.h. */
#include "daemon/disk_log.h"

#include <string.h>

#include "daemon/log.h"
#include "store/shortage.h"

static void log_disk_found(uint32_t i, const struct cache_disk_state *d)
{
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

static void look_at_disks(struct disk_log *log, struct cache *c)
{
	struct cache_disk_state disks[CACHE_DISKS_MAX];
	const uint32_t n = cache_disks(c, disks, CACHE_DISKS_MAX);

	for (uint32_t i = 0; i < n; i++) {
		if (!log->begun)
			log_disk_found(i, &disks[i]);
		look_at_health(log, i, &disks[i]);
		look_at_bytes(log, i, &disks[i]);
	}
}

static void log_catalog_found(const struct cache_catalog_state *s)
{
	if (!strcmp(s->found, "damaged"))
		log_warn("catalog", LOG_TEXT("found", s->found), LOG_TEXT("reason", s->why), LOG_NUM("rebuilding", s->rebuilding));
	else
		log_info("catalog", LOG_TEXT("found", s->found), LOG_NUM("rebuilding", s->rebuilding));
	if (s->left_out_count)
		log_warn("disk_left_out", LOG_TEXT("folder", s->left_out), LOG_NUM("disks", s->left_out_count),
			 LOG_TEXT("reason", "the run before had it, and disks does not name it now: its blocks are given up, and it is wiped when it comes back"));
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

static void look_at_catalog(struct disk_log *log, const struct cache_catalog_state *s)
{
	if (!log->begun)
		log_catalog_found(s);
	if (s->restored && !log->restored)
		log_info("disks_restored", LOG_NUM("blocks", s->restored_blocks), LOG_NUM("ms", s->restored_us / 1000));
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
	look_at_catalog(log, &catalog);
	look_at_disks(log, c);
	log->begun = true;
}
