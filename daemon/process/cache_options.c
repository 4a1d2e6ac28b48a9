/* See process/cache_options.h. */
#include "daemon/process/cache_options.h"

#include "daemon/block/options.h"
#include "daemon/process/catalog_child.h"
#include "daemon/process/config.h"

#include <stdio.h>

#ifdef TERRACE_SANITIZED /* AddressSanitizer is to see what else is left */
enum { LEAVES_RECORDS = 0 };
#else
enum { LEAVES_RECORDS = 1 };
#endif

static void tenants_config(const struct config *c, struct cache_config *out)
{
	const struct tenants *t = c->tenants;

	for (uint32_t i = 0; t && i < t->count; i++) {
		const struct tenant_entry *e = &t->of[i];
		const uint64_t most =
			e->host_bytes_max && e->host_bytes_max < c->host_bytes ? e->host_bytes_max : c->host_bytes;

		out->tenants[i] = (struct cache_tenant_options){
			.name = e->name,
			.number = e->number,
			.host_bytes = e->host_bytes,
			.host_bytes_max = e->host_bytes_max,
			.gpu_bytes = e->gpu_bytes,
			.gpu_bytes_max = e->gpu_bytes_max,
			.disk_bytes = e->disk_bytes,
			.disk_bytes_max = e->disk_bytes_max,
			.calls_max = e->calls_max,
			.pinned_bytes_max =
				e->pinned_bytes_max ? e->pinned_bytes_max : most / 1000 * c->pinned_share_milli,
		};
	}
	out->options.tenants = out->tenants;
	out->options.tenant_count = t ? t->count : 0;
	out->options.tenant_rows = t ? (uint32_t)c->tenant_metrics : 0;
}

/* Long because of the table: one row an option of the cache. */
void cache_config(const struct config *c, struct cache_config *out)
{
	const char *problem;
	uint32_t n = config_disks(c->disks, out->named, &problem);

	for (uint32_t i = 0; i < n; i++)
		out->disks[i] = (struct cache_disk_options){ out->named[i].folder, out->named[i].bytes };
	snprintf(out->catalog, sizeof out->catalog, "%s/catalog", c->data_dir);
	out->options = (struct cache_options){
		.host_bytes = c->host_bytes,
		.extent_bytes = c->extent_bytes,
		.sum_threads = (uint32_t)c->sum_threads,
		.huge_pages = c->huge_pages == CONFIG_HUGE_AUTO,
		.policy = c->policy,
		.pinned_bytes_max = c->host_bytes / 1000 * c->pinned_share_milli,
		.sessions_max = (uint32_t)c->sessions_max,
		.leases_max = (uint32_t)c->leases_max,
		.open_blocks_max = (uint32_t)c->open_blocks_max,
		.session_idle_ms = (uint32_t)c->session_idle_ms,
		.lease_ttl_ms = (uint32_t)c->lease_ttl_ms,
		.reservation_ttl_ms = (uint32_t)c->reservation_ttl_ms,
		.watch_queue = (uint32_t)c->watch_queue,
		.leaves_records = LEAVES_RECORDS,
		.graph_nodes = c->graph_nodes == 1 ? 2 : (uint32_t)c->graph_nodes,
		.advisor_ms = (uint32_t)c->advisor_every_ms,
		.prefetch_bytes = c->prefetch_bytes,
		.disks = out->disks,
		.disk_count = n,
		.disks_required = (enum cache_disks_required)c->require_disks,
		.catalog_folder = out->catalog,
		.catalog_child = CATALOG_CHILD_PROGRAM,
		.rebuild = c->catalog == CONFIG_CATALOG_REBUILD,
		.slab_bytes = c->slab_bytes,
		.disk_depth = (uint32_t)c->disk_depth,
		.disk_slow_ms = (uint32_t)c->disk_slow_ms,
		.peer_room_milli = (uint32_t)c->peer_room_milli,
		.spill_share_milli = (uint32_t)c->spill_share_milli,
		.disk_policy = c->disk_policy,
		.recompute_growth = (uint32_t)c->recompute_growth,
		.io = (enum cache_io)c->disk_io,
		.gpus = out->gpus,
		.gpu_bytes = c->gpu_bytes,
		.gpu_prefetch_bytes = c->gpu_prefetch_bytes,
		.gpu_verify_up = c->gpu_verify_up == CONFIG_VERIFY_ON,
		.gpu_poll_us = c->busy_poll_ms * 1000,
		.gpu_pinned_milli = (uint32_t)c->pinned_share_milli,
		.gpu_close_ms = (uint32_t)c->stop_timeout_ms,
	};
	tenants_config(c, out);
}
