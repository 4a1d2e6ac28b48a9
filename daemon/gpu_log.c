/* See gpu_log.h. */
#include "daemon/gpu_log.h"

#include "daemon/log.h"

void gpu_log_look(struct gpu_log *log, struct cache *c)
{
	struct cache_gpu_view gpus[DEVICES_MAX];
	const uint32_t n = cache_gpus(c, gpus, DEVICES_MAX);

	for (uint32_t i = 0; i < n; i++) {
		if (!log->begun && !gpus[i].lost)
			log_info("gpu", LOG_NUM("gpu", i), LOG_NUM("ordinal", gpus[i].ordinal), LOG_TEXT("name", gpus[i].name),
				 LOG_NUM("budget_bytes", gpus[i].bytes));
		if (gpus[i].lost && !log->lost[i])
			log_error("gpu_lost", LOG_NUM("gpu", i), LOG_NUM("ordinal", gpus[i].ordinal), LOG_TEXT("name", gpus[i].name),
				  LOG_TEXT("reason", gpus[i].why),
				  LOG_TEXT("remedy", "the other tiers go on; a restart of the daemon takes the GPU back"));
		log->lost[i] = gpus[i].lost;
	}
	log->begun = true;
}
