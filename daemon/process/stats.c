/* See process/stats.h. */
#include "daemon/process/stats.h"

#include "daemon/block/lock.h"
#include "daemon/call/faults.h"
#include "daemon/call/stats.h"
#include "daemon/process/daemon.h"
#include "daemon/process/log_unwritten.h"
#include "daemon/process/part.h"
#include "daemon/threads/pool.h"

#include <inttypes.h>
#include <stdio.h>

static void own_stats(const struct daemon *d, uint64_t now_us, cache_stat_fn *emit, void *arg)
{
	char epoch[32];

	snprintf(epoch, sizeof epoch, "epoch=%016" PRIx64, cache_epoch(d->cache));
	emit(arg, "terrace_build_info", "version=" TERRACE_VERSION, 1, false, "the daemon's version");
	emit(arg, "terrace_epoch_info", epoch, 1, false, "this run of the daemon, as its replies name it");
	emit(arg, "terrace_degraded", "", cache_faults(d->cache, NULL, 0), false,
	     "disks and GPUs of the configuration that are not in use: they could not be used at the start, or have failed");
	emit(arg, "terrace_uptime_seconds", "", (double)(now_us - d->started_us) / 1e6, false, "time since the start");
	emit(arg, "terrace_log_lines_lost_total", "", (double)log_lost(), true, "lines of the log that could not be written");
}

static void workers_stats(struct workers *workers, cache_stat_fn *emit, void *arg)
{
	struct workers_view v;

	if (!workers)
		return;
	workers_look(workers, &v);
	emit(arg, "terrace_worker_threads", "", v.threads, false, "worker threads");
	emit(arg, "terrace_worker_running", "", v.running, false, "worker threads at work");
	emit(arg, "terrace_worker_queued", "", v.queued, false, "steps of calls that wait for a worker");
	emit(arg, "terrace_worker_queue_max", "", v.queue_max, false, "bound of that queue");
	emit(arg, "terrace_worker_done_total", "", (double)v.done, true, "steps done by workers");
	emit(arg, "terrace_worker_refused_total", "", (double)v.refused, true, "steps refused because the queue was full");
}

void daemon_stats(const struct daemon *d, uint64_t now_us, cache_stat_fn *emit, void *arg)
{
	own_stats(d, now_us, emit, arg);
	cache_stats(d->cache, now_us, emit, arg);
	workers_stats(d->workers, emit, arg);
	for (uint32_t i = 0; i < d->part_count; i++)
		if (d->parts[i].ops->stats)
			d->parts[i].ops->stats(d->parts[i].part, emit, arg);
}

const char *daemon_state(const struct daemon *d)
{
	return cache_draining(d->cache) ? "draining" : cache_degraded(d->cache) ? "degraded" : "serving";
}
