/* The cache as a whole: birth, death, the tick, and what all its files share.
 *
 * One mutex guards everything that changes; the other parts are in the folders beside this file, one concern each. A
 * tick does small steps of work that no call waits for: it ages sessions and leases, and checks whether detached
 * sessions' memory is still mapped. Work that may take long, taking pages and emptying spans for another class, is left
 * to cache_chores, which does it without the mutex.
 */
#include "daemon/cache.h"

#include "daemon/advice/advice.h"
#include "daemon/advice/eviction_log.h"
#include "daemon/advice/graph.h"
#include "daemon/advice/policy_store.h"
#include "daemon/advice/prefetch.h"
#include "daemon/advice/prefetch_gpu.h"
#include "daemon/advice/request.h"
#include "daemon/block/aging.h"
#include "daemon/block/block.h"
#include "daemon/block/by_id.h"
#include "daemon/block/check.h"
#include "daemon/block/ends.h"
#include "daemon/block/handle.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/observer.h"
#include "daemon/block/options.h"
#include "daemon/block/quota.h"
#include "daemon/block/source.h"
#include "daemon/block/tier.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/arrival.h"
#include "daemon/call/deleted.h"
#include "daemon/call/lease.h"
#include "daemon/call/loan.h"
#include "daemon/call/source.h"
#include "daemon/disk/load.h"
#include "daemon/disk/tier.h"
#include "daemon/exports/exports.h"
#include "daemon/memory/evict.h"
#include "daemon/memory/grow.h"
#include "daemon/memory/tier.h"
#include "daemon/memory/trade.h"
#include "daemon/session/retire.h"
#include "daemon/session/end.h"
#include "daemon/session/grants.h"
#include "daemon/session/lease.h"
#include "daemon/session/offer.h"
#include "daemon/session/reservation.h"
#include "daemon/session/session.h"
#include "daemon/session/watch.h"
#include "daemon/threads/checksum_pool.h"
#include "daemon/threads/deadline.h"
#include "daemon/vram/fetch.h"
#include "daemon/vram/source.h"
#include "daemon/vram/stop.h"
#include "daemon/vram/transfer.h"
#include "daemon/vram/vram.h"
#include "eviction/policy.h"
#include "store/arena/arena.h"
#include "store/device.h"
#include "store/index.h"
#include "store/short_lock.h"
#include "store/status.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static const char *options_problem(const struct cache_options *o)
{
	if (o->sessions_max == 0 || o->sessions_max > HANDLES_MAX)
		return "sessions_max must be 1 to 1048576";
	if (o->leases_max == 0 || o->leases_max > HANDLES_MAX)
		return "leases_max must be 1 to 1048576";
	if (o->watch_queue == 0 || o->watch_queue > 1 << 20)
		return "watch_queue must be 1 to 1048576";
	if (o->host_bytes == 0)
		return "host_bytes must not be 0";
	if (o->graph_nodes == 1 || o->graph_nodes > 1 << 26)
		return "graph_nodes must be 0, or 2 to 67108864";
	if (o->disk_count && !o->disks)
		return "disk_count without disks";
	if (o->gpu_count && (!o->gpus || !o->device_ops))
		return "gpu_count without GPUs";
	if (!o->policy || !policy_find(o->policy))
		return "unknown eviction policy";
	return NULL;
}

/* Which module observes which events. */
static const struct observers observers = {
	.stored = { watch_stored, exports_stored, deleted_stored },
	.moved = { watch_moved },
	.removed = { watch_removed, exports_removed },
	.listed = { advisor_block },
	.left = { eviction_log_note },
	.soon = { eviction_log_hint },
	.came_back = { eviction_log_forget },
	.prefetch_ended = { prefetch_end },
	.gpu_prefetch_ended = { vram_prefetch_end },
	.copies_failed = { leases_copies_failed },
	.load_ended = { vram_host_came },
	.memory_spare = { vram_memory_spares },
	.copies_ended = { vram_prefetch_pump },
	.extent_added = { offers_tell },
	.requests_due = { advice_read },
	.uses_due = { deferred_notify },
	.policy_made = { policy_state_recall },
};

/* Which tiers there are, and what chooses among them. */
static void tiers_register(struct cache *c)
{
	c->tiers[TIER_MEMORY] = &memory_tier;
	c->tiers[TIER_DISK] = c->options.disk_count ? &disk_tier : NULL;
	c->tiers[TIER_GPU] = c->options.gpu_count ? &gpu_tier : NULL;
	c->fetch = source_fetch;
}

/* Where blocks come from, by rising cost as long as nothing is known: a bus is faster than a disk. */
static void sources_register(struct cache *c)
{
	if (c->vram)
		source_add(c, &gpus_source);
	if (c->tier)
		source_add(c, &disks_source);
}

static bool random_bytes(void *out, size_t bytes)
{
	return getrandom(out, bytes, 0) == (ssize_t)bytes;
}

/* Sets the quotas' bounds of what the cache itself has. A GPU's bound is set once its budget is known. */
static void quota_bounds(struct cache *c)
{
	quota_bound(c->quota, QUOTA_SESSIONS, c->options.sessions_max);
	quota_bound(c->quota, QUOTA_LAYOUTS, POOLS_MAX);
	quota_bound(c->quota, QUOTA_LEASES, c->options.leases_max);
	quota_bound(c->quota, QUOTA_RESERVATIONS, RESERVATIONS_MAX);
	quota_bound(c->quota, QUOTA_WATCHES, WATCHES_MAX);
	quota_bound(c->quota, QUOTA_PINNED, c->options.pinned_bytes_max);
	quota_bound(c->quota, QUOTA_COPIES, CACHE_READ_BYTES_MAX);
	quota_bound(c->quota, QUOTA_LOANED, c->options.host_bytes / LOAN_SHARE);
}

struct quota *cache_quota(const struct cache *c)
{
	return c->quota;
}

/* Makes the parts in the order in which they need each other; long because there are many. *why is set before each step
 * that cannot set it itself. After a failure cache_destroy frees what was made, so there is no cleanup here. */
static enum status create_parts(struct cache *c, const char **why)
{
	const struct cache_options *o = &c->options;
	struct arena_options host = { .budget_bytes = o->host_bytes, .extent_bytes = o->extent_bytes, .granule_bytes = o->granule_bytes,
				      .huge_pages = o->huge_pages,
				      .tenants = o->tenant_count, .whole_extents = o->gpu_count > 0 };
	uint64_t random[2];
	enum status s;

	*why = "no random numbers from the kernel";
	if (!random_bytes(random, sizeof(random)))
		return STATUS_INTERNAL;
	c->epoch = random[0] ? random[0] : 1;
	c->pending_key_seed = random[1];

	*why = "no memory for the cache's tables: set a smaller host_bytes, sessions_max or leases_max";
	c->sessions = calloc(o->sessions_max, sizeof(*c->sessions));
	if (!c->sessions)
		return STATUS_EXHAUSTED;
	c->quota = quota_create();
	if (!c->quota || quota_tenants(c->quota, o->tenants, o->tenant_count) || !damage_notes_create(c) ||
	    !by_id_create(c))
		return STATUS_EXHAUSTED;
	quota_bounds(c);
	c->grants = calloc(1, sizeof(*c->grants));
	if (!c->grants)
		return STATUS_EXHAUSTED;
	s = handle_places_init(&c->grants->session_places, o->sessions_max);
	if (!s)
		s = handles_init(&c->grants->leases, o->leases_max);
	if (!s)
		s = handles_init(&c->grants->reservations, RESERVATIONS_MAX);
	if (!s)
		s = advice_create(c) ? STATUS_OK : STATUS_EXHAUSTED;
	if (!s)
		s = advisor_create(c, why);
	if (!s)
		s = index_create(sizeof(struct block), 1 << 16, &c->index);
	if (s)
		return s;
	*why = "no thread for the ends of transfers: raise the limit of threads (ulimit -u, TasksMax, pids.max)";
	if ((o->disk_count || o->gpu_count) && !ends_create(c))
		return STATUS_EXHAUSTED;
	if (o->disk_count) {
		s = tier_create(c, why);
		if (s)
			return s;
		host.first_generation = tier_first_generation(c);
		policy_state_load(c);
	}
	*why = "no threads for checksums: raise the limit of threads (ulimit -u, TasksMax, pids.max)";
	if (o->sum_threads && (o->disk_count || o->gpu_count) && !sums_create(o->sum_threads, &c->sums))
		return STATUS_EXHAUSTED;
	*why = "host memory cannot be had: set a smaller host_bytes, or huge_pages = off";
	s = arena_create(&host, &c->host);
	for (uint32_t i = 0; !s && i < o->tenant_count; i++)
		s = arena_tenant_bounds(c->host, o->tenants[i].number, o->tenants[i].host_bytes,
					o->tenants[i].host_bytes_max);
	if (!s && o->gpu_count)
		s = vram_create(c, why);
	if (!s)
		sources_register(c);
	if (!s && c->vram && !vram_prefetch_create(c))
		s = STATUS_EXHAUSTED;
	if (!s && c->vram)
		s = vram_start(c, why);
	/* Takes the first memory before a disk is read, since a disk may hang. Memory that is not available now is
	 * asked for again later. */
	if (!s)
		room_preallocate(c);
	if (!s && c->tier)
		s = tier_start(c, why);
	if (!s)
		s = advisor_start(c, why);
	return s;
}

enum status cache_create(const struct cache_options *o, uint64_t now_us, struct cache **out, const char **why)
{
	struct cache *c;
	enum status s;

	*why = options_problem(o);
	if (*why)
		return STATUS_INVALID;
	*why = "no memory for the cache";
	c = calloc(1, sizeof(*c));
	if (!c)
		return STATUS_EXHAUSTED;
	c->options = *o;
	c->observers = &observers;
	tiers_register(c);
	c->policy = policy_find(o->policy);
	c->options.policy = c->policy->name;
	c->now_us = now_us;
	c->room_epoch = 1;
	c->room_epoch_us = now_us;
	short_lock_init(&c->lock);
	pthread_mutex_init(&c->extents, NULL);
	deadline_cond_init(&c->growth);
	s = tenants_make(c);
	if (!s)
		s = create_parts(c, why);
	if (!s && !retire_create(c))
		s = STATUS_EXHAUSTED;
	if (s) {
		cache_destroy(c);
		return s;
	}
	*out = c;
	return STATUS_OK;
}

static bool is_left(struct cache *c, const char *what)
{
	c->left = what;
	return false;
}

static void grants_fini(struct grants *g)
{
	handle_places_fini(&g->session_places);
	handles_fini(&g->leases);
	handles_fini(&g->reservations);
}

/* Stops all parts first, then frees them. If a disk or a driver does not answer, the rest is left as it is: the kernel
 * may still write to that memory. Each part may be missing, since cache_create calls this after a failure too. */
bool cache_destroy(struct cache *c)
{
	bool advised, ended;

	if (!c)
		return true;
	advised = advice_stop(c);
	cache_lock(c);
	if (c->sessions)
		sessions_free(c);
	loans_end(c);
	cache_unlock(c);
	while (c->watches)
		cache_watch_close(c->watches);
	if (!arrivals_stop(c))
		return is_left(c, "a source of blocks does not answer");
	ended = !c->vram || vram_stop(c, true) || is_left(c, "a GPU's driver does not answer");
	if ((c->tier && !tier_stop(c, !advised)) || !advised)
		ended = is_left(c, "a disk does not answer, and the next start reads all headers");
	ends_destroy(c, ended);
	if (!ended)
		return false;
	retire_destroy(c);
	sums_destroy(c->sums);
	c->sums = NULL;
	if (c->index && !c->options.leaves_records)
		index_destroy(c->index, block_free_record);
	if (c->index)
		index_barrier();
	if (c->tier)
		tier_destroy(c);
	if (c->vram)
		vram_prefetch_destroy(c->vram);
	if (c->vram && !vram_destroy(c))
		return is_left(c, "a GPU's driver does not answer");
	pools_free(c);
	advice_destroy(c);
	by_id_destroy(c);
	if (c->host)
		arena_destroy(c->host);
	loans_destroy(c);
	exports_destroy(c);
	deleted_destroy(c);
	if (c->grants)
		grants_fini(c->grants);
	free(c->grants);
	free(c->sessions);
	damage_notes_destroy(c);
	quota_destroy(c->quota);
	tenants_unmake(c);
	pthread_mutex_destroy(&c->extents);
	pthread_cond_destroy(&c->growth);
	pthread_mutex_destroy(&c->lock);
	free(c);
	return true;
}

bool cache_leave(struct cache *c)
{
	const bool advised = advice_stop(c);

	if (c->vram)
		vram_stop(c, false);
	return !c->tier || tier_stop(c, !advised) || is_left(c, "a disk does not answer, and the next start reads all headers");
}

const char *cache_left(const struct cache *c)
{
	return c->left;
}

/* Draws random numbers for new handles until there are enough. Drawing takes ten microseconds, so it is done without
 * the lock. */
static void handles_restock(struct cache *c)
{
	uint64_t fresh[HANDLE_FRESH];
	bool wants = true;

	while (wants && random_bytes(fresh, sizeof(fresh))) {
		cache_lock(c);
		handle_source_add(&c->grants->random, fresh);
		wants = handle_source_wants(&c->grants->random);
		cache_unlock(c);
	}
	explicit_bzero(fresh, sizeof(fresh));
}

bool cache_tick(struct cache *c, uint64_t now_us)
{
	bool chores, handles;

	index_read_lock();
	cache_lock(c);
	now_us = cache_time(c, now_us);
	if (c->advice->advisor)
		atomic_store(&c->advice->advisor->now_us, now_us);
	advice_read(c, READ_A_TICK);
	sessions_tick(c, now_us);
	aging_tick(&c->grants->lease_age, now_us, c->options.lease_ttl_ms * 1000ull);
	aging_tick(&c->grants->reservation_age, now_us, c->options.reservation_ttl_ms * 1000ull);
	room_tick(c);
	arrivals_tick(c);
	loans_tick(c);
	if (c->vram)
		vram_tick(c);
	if (c->tier)
		tier_tick(c);
	chores = room_wants_preallocation(c) || c->trades || retire_wants(c) || tier_wants(c) || arrivals_want(c) ||
		 (c->vram && vram_wants(c));
	handles = handle_source_wants(&c->grants->random);
	cache_unlock(c);
	index_read_unlock();
	if (handles)
		handles_restock(c);
	return chores;
}

void cache_chores(struct cache *c)
{
	room_preallocate(c);
	trades_chores(c);
	retire_chores(c);
	arrivals_chores(c);
	if (c->vram)
		vram_chores(c);
	if (c->tier)
		tier_chores(c);
}

void cache_load(struct cache *c, struct cache_load *out)
{
	cache_lock(c);
	*out = (struct cache_load){ c->open_sessions, c->detached_sessions, c->grants->leases.used,
	    c->grants->reservations.used, cache_hands_on(c) };
	cache_unlock(c);
}
