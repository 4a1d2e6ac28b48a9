/* What the tests of the daemon's shell share: a daemon around a real, small cache, and requests by hand. */
#ifndef TERRACE_TESTS_SHELL_H
#define TERRACE_TESTS_SHELL_H

#include <check.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/cache.h"
#include "daemon/call/stream.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/process/log.h"
#include "daemon/rpc/reply.h"
#include "daemon/session/open.h"
#include "kernels/format.h"
#include "store/device.h"
#include "terrace.pb-c.h"

struct shell {
	struct config config;
	struct daemon daemon;
	struct cache_session_view session;
	char folder[64];
};

static inline struct kv_layout shell_layout(uint8_t name)
{
	struct kv_layout l = {
		.layers = 2, .heads = 2, .total_heads = 2, .head_dim_k = 64, .head_dim_v = 64, .block_tokens = 16,
		.k_format = KV_TQ4, .v_format = KV_TQ4, .rotation_version = KV_ROTATION_VERSION,
		.codebook_version = KV_CODEBOOK_VERSION, .layout_version = KV_LAYOUT_VERSION,
	};

	memset(l.fingerprint, name, sizeof l.fingerprint);
	return l;
}

/* A cache of 16 MiB with one session of two layouts, and a folder for sockets; disk: not NULL: and for a disk of 8 MiB,
 * whose reads and writes go through it; ops: not NULL: and 32 MiB of its first GPU. */
static inline void shell_open_all(struct shell *s, const struct ring_calls *disk, const struct device_ops *ops)
{
	static const uint32_t first_gpu = 0;
	static char folder[80], catalog[80];
	static struct cache_disk_options disks; /* the cache goes on looking at it */

	struct cache_options o = {
		.host_bytes = 16 << 20, .extent_bytes = 1 << 20, .policy = "lru", .pinned_bytes_max = 12 << 20,
		.sessions_max = 64, .leases_max = 1024, .open_blocks_max = 64, .session_idle_ms = 600000,
		.lease_ttl_ms = 60000, .reservation_ttl_ms = 60000, .watch_queue = 64,
	};
	struct kv_layout layouts[2] = { shell_layout(1), shell_layout(2) };
	const char *why = "";

	memset(s, 0, sizeof *s);
	log_setup(LOG_ERROR, LOG_LOGFMT);
	config_defaults(&s->config);
	strcpy(s->folder, "/tmp/terrace-test-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(s->folder));
	snprintf(s->config.socket, sizeof s->config.socket, "%s/t.sock", s->folder);
	snprintf(s->config.fd_socket, sizeof s->config.fd_socket, "%s/t.fd", s->folder);
	s->config.listen[0] = 0;
	snprintf(folder, sizeof folder, "%s/disk", s->folder);
	snprintf(catalog, sizeof catalog, "%s/catalog", s->folder);
	disks = (struct cache_disk_options){ .folder = folder, .bytes = 8 << 20 };
	if (disk) {
		o.io_calls = disk;
		o.disks = &disks;
		o.disk_count = 1;
		o.catalog_folder = catalog;
		o.slab_bytes = 1 << 20;
		o.disk_depth = 8;
		o.disk_slow_ms = 60000;
		o.disk_policy = "lru";
		o.io = CACHE_IO_THREADS;
	}
	if (ops) {
		o.device_ops = ops;
		o.gpus = &first_gpu;
		o.gpu_count = 1;
		o.gpu_bytes = 32 << 20;
		o.gpu_pinned_milli = 750;
	}
	s->daemon.config = &s->config;
	s->daemon.started_us = daemon_now_us();
	cache_thread_enter();
	ck_assert_msg(cache_create(&o, daemon_now_us(), &s->daemon.cache, &why) == STATUS_OK, "%s", why);
	ck_assert_msg(cache_session_open(s->daemon.cache, &(struct cache_open_call){ .tenant = "",
			.layouts = layouts, .layout_count = 2, .engine = "test", .now_us = daemon_now_us() },
					 &s->session, &why) == STATUS_OK, "%s", why);
}

static inline void shell_open_with(struct shell *s, const struct ring_calls *disk)
{
	shell_open_all(s, disk, NULL);
}

static inline void shell_open(struct shell *s)
{
	shell_open_with(s, NULL);
}

static inline int shell_remove(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static inline void shell_close(struct shell *s)
{
	cache_thread_leave();
	cache_destroy(s->daemon.cache);
	nftw(s->folder, shell_remove, 8, FTW_DEPTH | FTW_PHYS);
}

/* Stores one block in both layouts through the stream path. */
static inline void shell_store(struct shell *s, const char *key)
{
	struct cache_write w;
	const char *why = "";

	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_int_eq(cache_write_begin(s->daemon.cache, &(struct cache_stream_call){
				.session = s->session.id, .layout = i, .key = (const uint8_t *)key,
				.key_bytes = (uint32_t)strlen(key), .now_us = daemon_now_us() }, &w, &why),
				 STATUS_OK);
		memset(w.block, key[0] + (int)i, w.block_bytes);
		ck_assert_int_eq(cache_write_end(s->daemon.cache, s->session.id, &w, true, daemon_now_us(), 1),
				 STATUS_OK);
	}
}

/* For stats of struct part_ops and its like: the value of one figure, which stays as it was if there is none of that name and labels. */
struct shell_stat {
	const char *name, *labels;
	double value;
};

static inline void shell_find_stat(void *arg, const char *name, const char *labels, double value, bool counter, const char *help)
{
	struct shell_stat *w = arg;

	(void)counter;
	ck_assert_ptr_nonnull(help);
	if (!strcmp(name, w->name) && !strcmp(labels, w->labels))
		w->value = value;
}

#endif
