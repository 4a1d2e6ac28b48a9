/* See process/gpu_log.h. */
#include "daemon/process/gpu_log.h"

#include "daemon/block/views.h"
#include "daemon/process/log.h"
#include "daemon/vram/stats.h"
#include "store/device.h"

static void log_corrupt(uint32_t gpu, const char *way, uint64_t *known, uint64_t now)
{
	if (now != *known)
		log_error("gpu_copy_corrupt", LOG_NUM("gpu", gpu), LOG_TEXT("way", way), LOG_NUM("copies", now - *known),
			  LOG_TEXT("remedy", "the blocks were taken from where else they were, or are misses; look for errors of the GPU, its bus or memory"));
	*known = now;
}

/* Logs at the start a GPU that is not lost. */
static void log_found(uint32_t gpu, const struct cache_gpu_view *g)
{
	log_info("gpu", LOG_NUM("gpu", gpu), LOG_NUM("ordinal", g->ordinal), LOG_TEXT("name", g->name), LOG_NUM("budget_bytes", g->bytes));
	if (*g->no_kernel)
		log_warn("gpu_no_copy_kernel", LOG_NUM("gpu", gpu), LOG_NUM("ordinal", g->ordinal), LOG_TEXT("name", g->name),
			 LOG_TEXT("reason", g->no_kernel),
			 LOG_TEXT("remedy", "copies of small blocks are slower, by copy engines alone; when the reason is mended, restart the daemon"));
}

/* Logs that the GPU computes no checksums of commits. Once a GPU, whatever the reasons. */
static void log_unsummed(uint32_t gpu, const struct cache_gpu_view *g, bool *told)
{
	if (*told || g->lost || !*g->unsummed_why)
		return;
	log_warn("gpu_commit_unsummed", LOG_NUM("gpu", gpu), LOG_NUM("ordinal", g->ordinal), LOG_TEXT("name", g->name),
		 LOG_NUM("blocks", g->unsummed), LOG_TEXT("reason", g->unsummed_why),
		 LOG_TEXT("remedy",
			  "what is written to a block there between its commit and its first way down is not found; "
			  "terrace_gpu_commit_sums_total counts such blocks; "
			  "when the reason is mended, restart the daemon"));
	*told = true;
}

void gpu_log_look(struct gpu_log *log, struct cache *c)
{
	struct cache_gpu_view gpus[DEVICES_MAX];
	const uint32_t n = cache_gpus(c, gpus, DEVICES_MAX);

	for (uint32_t i = 0; i < n; i++) {
		if (!log->begun && !gpus[i].lost)
			log_found(i, &gpus[i]);
		if (gpus[i].lost && !log->lost[i])
			log_error("gpu_lost", LOG_NUM("gpu", i), LOG_NUM("ordinal", gpus[i].ordinal), LOG_TEXT("name", gpus[i].name),
				  LOG_TEXT("reason", gpus[i].why),
				  LOG_TEXT("remedy", log->begun ? "the other tiers go on; a restart of the daemon takes the GPU back" :
						     "the other tiers go on; when the reason is mended, or the GPU left out of gpus, restart the daemon"));
		log->lost[i] = gpus[i].lost;
		log_unsummed(i, &gpus[i], &log->unsummed[i]);
		log_corrupt(i, "up", &log->corrupt_up[i], gpus[i].corrupt_up);
		log_corrupt(i, "down", &log->corrupt_down[i], gpus[i].corrupt_down);
	}
	log->begun = true;
}
