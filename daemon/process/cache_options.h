/* The cache's options, out of the configuration. */
#ifndef TERRACE_DAEMON_PROCESS_CACHE_OPTIONS_H
#define TERRACE_DAEMON_PROCESS_CACHE_OPTIONS_H

#include "daemon/block/options.h"
#include "daemon/process/config.h"
#include "daemon/process/tenants.h"

/* The options of the cache. `options` points into the rest of the struct, and into the configuration. */
struct cache_config {
	uint32_t gpus[CONFIG_GPUS_MAX];
	struct cache_options options;
	struct cache_disk_options disks[CONFIG_DISKS_MAX];
	struct config_disk named[CONFIG_DISKS_MAX];
	char catalog[CONFIG_TEXT_MAX + 16];
	struct cache_tenant_options tenants[TENANTS_MAX];
};
void cache_config(const struct config *c, struct cache_config *out);

#endif
