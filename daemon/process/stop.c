/* See process/stop.h.
 *
 * A thread that is in a driver, or in the kernel with a disk, cannot be ended. So each wait has the bound stop_timeout.
 * After the first wait that reaches it, something hangs: nothing that the hanging thread may come back to is freed.
 * Only the other workers are waited for, a short time, so that a worker that uses a disk returns before the disk is
 * closed.
 */
#include "daemon/process/stop.h"

#include "daemon/block/lock.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/cache.h"
#include "daemon/call/settle.h"
#include "daemon/disk/stats.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/process/log.h"
#include "daemon/process/part.h"
#include "daemon/threads/pool.h"

#include <time.h>

enum { GRACE_US = 2000000, LOOK_US = 50000 };

static uint64_t timeout_us(const struct daemon *d)
{
	return d->config->stop_timeout_ms * 1000;
}

void stop_drain(const struct daemon *d, const sigset_t *signals)
{
	const uint64_t until = daemon_now_us() + d->config->drain_timeout_ms * 1000;
	struct cache_load load;

	cache_drain(d->cache, true);
	cache_load(d->cache, &load);
	log_info("draining", LOG_NUM("sessions", load.sessions), LOG_NUM("leases", load.leases),
		 LOG_NUM("reservations", load.reservations));
	while ((load.leases || load.reservations || load.hands_on) && daemon_now_us() < until) {
		const int s = sigtimedwait(signals, NULL, &(struct timespec){ .tv_nsec = LOOK_US * 1000 });

		if (s == SIGTERM || s == SIGINT)
			break;
		cache_load(d->cache, &load);
	}
	if (load.leases || load.reservations)
		log_warn("not_drained", LOG_NUM("leases", load.leases), LOG_NUM("reservations", load.reservations),
			 LOG_TEXT("reason", daemon_now_us() < until ? "a second signal" : "drain_timeout is over"));
}

static void calls_stop(const struct daemon *d, uint64_t grace_us)
{
	for (uint32_t i = 0; i < d->part_count; i++)
		if (d->parts[i].ops->calls_stop)
			d->parts[i].ops->calls_stop(d->parts[i].part, grace_us);
}

/* Waits for each part's calls, LOOK_US at most. True: all have ended. */
static bool calls_ended(const struct daemon *d)
{
	bool ended = true;

	for (uint32_t i = 0; i < d->part_count; i++)
		if (d->parts[i].ops->calls_wait)
			ended &= d->parts[i].ops->calls_wait(d->parts[i].part, LOOK_US);
	return ended;
}

/* Cancels the calls and waits for their end. False: a call has not ended though it was cancelled: a worker is in it. */
static bool calls_end(const struct daemon *d, const sigset_t *signals)
{
	uint64_t until = daemon_now_us() + GRACE_US + timeout_us(d);

	calls_stop(d, GRACE_US);
	while (!calls_ended(d)) {
		const int s = sigtimedwait(signals, NULL, &(struct timespec){ .tv_sec = 0 });

		if (daemon_now_us() >= until) {
			log_error("left_behind", LOG_TEXT("what", "calls"), LOG_TEXT("reason", "a worker does not come back from one"));
			return false;
		}
		if (s != SIGTERM && s != SIGINT)
			continue;
		calls_stop(d, 0);
		if (until > daemon_now_us() + timeout_us(d))
			until = daemon_now_us() + timeout_us(d);
	}
	return true;
}

/* Ends the threads of the parts that use workers, or of those that do not. True: all have ended. */
static bool threads_end(const struct daemon *d, bool use_workers, uint64_t wait_us)
{
	bool ended = true;

	for (uint32_t i = 0; i < d->part_count; i++) {
		const struct part_ops *ops = d->parts[i].ops;

		if (!ops->threads_stop || ops->uses_workers != use_workers ||
		    ops->threads_stop(d->parts[i].part, wait_us))
			continue;
		ended = false;
		if (ops->hangs)
			log_error("left_behind", LOG_TEXT("what", ops->name), LOG_TEXT("reason", ops->hangs));
	}
	return ended;
}

/* Ends the threads of parts that use workers, then the workers. ended: what was asked to end before has ended. */
static bool workers_end(const struct daemon *d, bool ended)
{
	struct workers_view v;

	ended = threads_end(d, true, ended ? timeout_us(d) : 0) && ended;
	if (workers_stop(d->workers, ended ? timeout_us(d) : GRACE_US))
		return true;
	workers_look(d->workers, &v);
	log_error("left_behind", LOG_TEXT("what", "workers"), LOG_NUM("running", v.running), LOG_NUM("queued", v.queued),
		  LOG_TEXT("reason", "a GPU's driver does not answer, or a disk"));
	return false;
}

static void settle(const struct daemon *d)
{
	const struct cache_wait none = { .outstanding = 0 };
	char problem[CACHE_CATALOG_WHY_MAX];
	struct cache_catalog_state catalog;
	struct cache_unsettled left;

	if (!cache_settle(d->cache, d->config->drain_timeout_ms * 1000, &left)) {
		cache_durable_problem(d->cache, &none, problem, sizeof problem);
		log_warn("not_settled", LOG_NUM("blocks", left.blocks), LOG_TEXT("disks", problem),
			 LOG_TEXT("reason", left.no_place ? "the disks have no place for them, or have failed: they were in memory only, and are gone" :
							    "drain_timeout is over, or what GPUs alone have did not come down: they are gone"));
	}
	if (cache_catalog(d->cache, &catalog) && catalog.failing)
		log_warn("catalog_not_written", LOG_TEXT("reason", catalog.why),
			 LOG_TEXT("remedy", "the next start finds the blocks by the headers on the disks, which takes longer"));
}

static void parts_destroy(struct daemon *d)
{
	while (d->part_count) {
		d->part_count--;
		d->parts[d->part_count].ops->destroy(d->parts[d->part_count].part);
	}
	workers_destroy(d->workers);
}

bool stop_daemon(struct daemon *d, bool served, const sigset_t *signals)
{
	bool ended = true;

	if (served) {
		ended = calls_end(d, signals);
		settle(d);
	}
	ended = workers_end(d, ended) && ended;
	ended = threads_end(d, false, timeout_us(d)) && ended;
	if (ended)
		parts_destroy(d);
	if (!ended && !cache_leave(d->cache)) /* other threads are inside the cache, and may free what this would
					       * read */
		log_error("left_behind", LOG_TEXT("what", "cache"), LOG_TEXT("reason", cache_left(d->cache)));
	cache_thread_leave();
	if (ended && !cache_destroy(d->cache)) {
		log_error("left_behind", LOG_TEXT("what", "cache"), LOG_TEXT("reason", cache_left(d->cache)));
		ended = false;
	}
	return ended;
}
