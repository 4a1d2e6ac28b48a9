/* See process/stop.h.
 *
 * Nobody can end a thread that is in a driver, or in the kernel with a disk. So each wait ends by stop_timeout. When the first has ended so
 * it is known that something hangs: nothing that its thread may come back to is freed, and the other workers alone are waited for, a
 * short time: who is at work with a disk is to be back before it is closed.
 */
#include "daemon/process/stop.h"

#include "daemon/block/lock.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/cache.h"
#include "daemon/disk/stats.h"
#include "daemon/disk/tier.h"
#include "daemon/http/metrics.h"
#include "daemon/local/local_calls.h"
#include "daemon/local/socket.h"
#include "daemon/process/config.h"
#include "daemon/process/daemon.h"
#include "daemon/process/log.h"
#include "daemon/rpc/server.h"
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
	while ((load.leases || load.reservations) && daemon_now_us() < until) {
		const int s = sigtimedwait(signals, NULL, &(struct timespec){ .tv_nsec = LOOK_US * 1000 });

		if (s == SIGTERM || s == SIGINT)
			break;
		cache_load(d->cache, &load);
	}
	if (load.leases || load.reservations)
		log_warn("not_drained", LOG_NUM("leases", load.leases), LOG_NUM("reservations", load.reservations),
			 LOG_TEXT("reason", daemon_now_us() < until ? "a second signal" : "drain_timeout is over"));
}

/* False: a call has not ended though it was cancelled: a worker is in it. */
static bool calls_end(const struct daemon *d, const sigset_t *signals)
{
	uint64_t until = daemon_now_us() + GRACE_US + timeout_us(d);

	near_stop(d->near, GRACE_US);
	rpc_server_stop(d->rpc, GRACE_US);
	while (!rpc_server_wait(d->rpc, LOOK_US) || !near_wait(d->near, LOOK_US)) {
		const int s = sigtimedwait(signals, NULL, &(struct timespec){ .tv_sec = 0 });

		if (daemon_now_us() >= until) {
			log_error("left_behind", LOG_TEXT("what", "calls"), LOG_TEXT("reason", "a worker does not come back from one"));
			return false;
		}
		if (s != SIGTERM && s != SIGINT)
			continue;
		near_stop(d->near, 0);
		rpc_server_stop(d->rpc, 0);
		if (until > daemon_now_us() + timeout_us(d))
			until = daemon_now_us() + timeout_us(d);
	}
	return true;
}

/* The door first: it may have a worker do something yet. ended: what was asked before has. */
static bool workers_end(const struct daemon *d, bool ended)
{
	struct workers_view v;

	ended = door_stop(d->door, ended ? timeout_us(d) : 0) && ended;
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

bool stop_daemon(struct daemon *d, bool served, const sigset_t *signals)
{
	bool ended = true;

	if (served) {
		ended = calls_end(d, signals);
		settle(d);
	}
	ended = workers_end(d, ended) && ended;
	if (!metrics_stop(d->metrics, timeout_us(d))) {
		log_error("left_behind", LOG_TEXT("what", "metrics"), LOG_TEXT("reason", "an answer to /metrics does not end"));
		ended = false;
	}
	if (ended) {
		metrics_destroy(d->metrics);
		rpc_server_destroy(d->rpc);
		door_destroy(d->door);
		near_destroy(d->near);
		workers_destroy(d->workers);
	}
	if (!ended && !cache_leave(d->cache)) /* others are inside, who may free what it reads */
		log_error("left_behind", LOG_TEXT("what", "cache"), LOG_TEXT("reason", cache_left(d->cache)));
	cache_thread_leave();
	if (ended && !cache_destroy(d->cache)) {
		log_error("left_behind", LOG_TEXT("what", "cache"), LOG_TEXT("reason", cache_left(d->cache)));
		ended = false;
	}
	return ended;
}
