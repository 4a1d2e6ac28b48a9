/* A daemon without sockets for fuzz targets: a small real cache with one session of two layouts. */
#ifndef TERRACE_TESTS_FUZZ_DAEMON_H
#define TERRACE_TESTS_FUZZ_DAEMON_H

#include <stdlib.h>
#include <string.h>

#include "daemon/block/grid.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/cache.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/process/log.h"
#include "daemon/session/open.h"
#include "kernels/format.h"

struct fuzz_daemon {
	struct config config;
	struct daemon daemon;
	struct cache_session_view session;
	struct cache_session_view units; /* a session with a grid: full attention of four units a block, and a state */
};

static inline void fuzz_daemon_close(struct fuzz_daemon *f)
{
	if (f->daemon.cache == NULL)
		return;
	cache_thread_leave();
	cache_destroy(f->daemon.cache);
	f->daemon.cache = NULL;
}

static inline void fuzz_daemon_open(struct fuzz_daemon *f)
{
	struct cache_options o = {
		.host_bytes = 16 << 20, .extent_bytes = 1 << 20, .policy = "lru", .pinned_bytes_max = 12 << 20,
		.sessions_max = 64, .leases_max = 1024, .open_blocks_max = 64, .session_idle_ms = 600000,
		.lease_ttl_ms = 60000, .reservation_ttl_ms = 60000, .watch_queue = 64,
	};
	struct kv_layout layouts[2] = {
		{ .layers = 2, .heads = 2, .total_heads = 2, .head_dim_k = 64, .head_dim_v = 64, .block_tokens = 16,
		  .k_format = KV_TQ4, .v_format = KV_TQ4, .rotation_version = KV_ROTATION_VERSION,
		  .codebook_version = KV_CODEBOOK_VERSION, .layout_version = KV_LAYOUT_VERSION },
	};
	const char *why;

	layouts[1] = layouts[0];
	layouts[1].k_format = KV_FP8;
	memset(f, 0, sizeof *f);
	log_setup(LOG_ERROR, LOG_LOGFMT);
	config_defaults(&f->config);
	f->daemon.config = &f->config;
	f->daemon.started_us = daemon_now_us();
	cache_thread_enter();
	if (cache_create(&o, daemon_now_us(), &f->daemon.cache, &why) != STATUS_OK ||
	    cache_session_open(f->daemon.cache, &(struct cache_open_call){ .tenant = "", .layouts = layouts,
			.layout_count = 2, .engine = "fuzz", .now_us = daemon_now_us() }, &f->session,
			       &why) != STATUS_OK)
		abort();
	const struct grid_wish wishes[2] = { { .partial = true }, { .last = 1, .partial = true, .sparse = true } };
	struct cache_open_call units = { .tenant = "", .layouts = layouts, .layout_count = 2, .unit = 16, .wishes = wishes,
					 .engine = "fuzz", .now_us = daemon_now_us() };

	layouts[0].block_tokens = 64;
	layouts[1].block_tokens = 32;
	if (cache_session_open(f->daemon.cache, &units, &f->units, &why) != STATUS_OK)
		abort();
}

#endif
