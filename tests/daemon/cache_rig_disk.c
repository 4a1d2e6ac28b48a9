/* The disk side of daemon/cache_rig.h. */
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/call/delete.h"
#include "daemon/call/flush.h"
#include "daemon/call/lease.h"
#include "daemon/call/warm.h"
#include "daemon/disk/spill.h"
#include "daemon/disk/state.h"
#include "daemon/disk/tier.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/state.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"
#include "tests/held_folder.h"

#include <ftw.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

void rig_disks_make(struct rig_disks *d, const char *base, uint32_t disks, uint32_t slots)
{
	const char *tmp = getenv("TMPDIR");

	memset(d, 0, sizeof(*d));
	ck_assert(held_folder_make(base ? base : tmp ? tmp : "/tmp", d->root, sizeof(d->root)));
	snprintf(d->catalog, sizeof(d->catalog), "%s/catalog", d->root);
	for (uint32_t i = 0; i < disks; i++) {
		snprintf(d->folder[i], sizeof(d->folder[i]), "%s/disk%u", d->root, i);
		d->disk[i] = (struct cache_disk_options){ d->folder[i], (uint64_t)(slots + 8) * RIG_SLOT_BYTES };
	}
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st;
	(void)kind;
	(void)at;
	return remove(path);
}

void rig_disks_remove(struct rig_disks *d)
{
	nftw(d->root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

struct cache_options rig_disk_options(const struct rig_disks *d, uint32_t disks, uint32_t host_slots)
{
	struct cache_options o = rig_options(host_slots);

	o.disks = d->disk;
	o.disk_count = disks;
	o.catalog_folder = d->catalog;
	o.slab_bytes = d->disk[0].bytes / 8;
	o.disk_depth = 16;
	o.disk_slow_ms = 60000; /* a busy machine is no slow disk */
	o.spill_share_milli = 500;
	o.disk_policy = "lru";
	return o;
}

static uint64_t clock_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* The background of the daemon, once. */
static void background(struct rig *r, uint64_t began_ms)
{
	ck_assert_msg(clock_ms() - began_ms < 60000, "a minute has passed");
	if (!r->served)
		rig_tick(r->c, r->now);
	nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
}

void rig_restored(struct rig *r)
{
	for (uint64_t began = clock_ms(); !cache_restored(r->c);)
		background(r, began);
}

static bool quiet(struct cache *c)
{
	bool is;

	cache_lock(c);
	spill_pump(c);
	vram_pump(c);
	is = !c->tier || (!c->tier->transfer_count && !tier_wants(c));
	is = is && (!c->vram || !c->vram->transfer_count);
	for (uint32_t i = 0; c->vram && i < c->vram->count; i++)
		is = is && (!c->vram->gpu[i]->lost || c->vram->gpu[i]->swept);
	cache_unlock(c);
	return is;
}

void rig_quiet(struct rig *r)
{
	for (uint64_t began = clock_ms(); !quiet(r->c);)
		background(r, began);
}

void rig_put_slowly(struct rig *r, uint64_t first, uint32_t count)
{
	for (uint32_t i = 0; i < count; i += 8) {
		ck_assert_uint_eq(rig_put(r, first + i, 8), 8);
		rig_quiet(r);
	}
}

struct rig_wait {
	struct cache_wait wait;
	sem_t ready;
	uint64_t began;
};

static void wait_ready(void *arg)
{
	sem_post(arg);
}

static void wait_open(struct rig_wait *w)
{
	memset(w, 0, sizeof(*w));
	sem_init(&w->ready, 0, 0);
	w->wait = (struct cache_wait){ .ready = wait_ready, .arg = &w->ready };
	w->began = clock_ms();
}

/* After BUSY: until the wait is ready, or is to be polled. */
static void wait_some(struct rig *r, struct rig_wait *w)
{
	do
		background(r, w->began);
	while (!w->wait.poll && sem_trywait(&w->ready));
}

static void wait_close(struct rig *r, struct rig_wait *w)
{
	cache_wait_end(r->c, &w->wait);
	sem_destroy(&w->ready);
}

static enum status lease_keys(struct rig *r, const struct cache_keys *k, bool all, struct cache_place *places,
			      struct cache_leased *out)
{
	struct rig_wait w;
	enum status s;

	wait_open(&w);
	while ((s = cache_lease(r->c, &(struct cache_lease_call){ .session = r->s.id, .keys = k, .all = all,
			.on = &(struct cache_on){ .attachment = r->attachment, .gpu = CACHE_HOST },
			.now_us = r->now, .places = places, .places_max = k->count * r->s.layouts }, out,
				&w.wait, &r->why)) == STATUS_BUSY)
		wait_some(r, &w);
	wait_close(r, &w);
	return s;
}

enum status rig_lease_wait(struct rig *r, uint64_t first, uint32_t count, bool all, struct cache_place *places,
			   struct cache_leased *out)
{
	struct cache_keys k = rig_keys(first, count);
	enum status s = lease_keys(r, &k, all, places, out);

	free((void *)k.bytes);
	return s;
}

enum status rig_lease_keys(struct rig *r, const struct cache_keys *k, struct cache_place *places, struct cache_leased *out)
{
	return lease_keys(r, k, false, places, out);
}

enum status rig_flush(struct rig *r, uint64_t first, uint32_t count, enum status *statuses)
{
	struct cache_keys k = rig_keys(first, count);
	struct rig_wait w;
	enum status s;

	wait_open(&w);
	while ((s = cache_flush(r->c, r->s.id, count ? &k : NULL, r->now, &w.wait, statuses, &r->why)) == STATUS_BUSY)
		wait_some(r, &w);
	wait_close(r, &w);
	free((void *)k.bytes);
	return s;
}

enum status rig_delete(struct rig *r, uint64_t first, uint32_t count, enum status *statuses)
{
	struct cache_keys k = rig_keys(first, count);
	struct rig_wait w;
	enum status s;

	wait_open(&w);
	while ((s = cache_delete(r->c, r->s.id, &k, statuses, &w.wait, &r->why)) == STATUS_BUSY)
		wait_some(r, &w);
	wait_close(r, &w);
	free((void *)k.bytes);
	return s;
}

uint32_t rig_warm(struct rig *r, uint64_t first, uint32_t count)
{
	struct cache_keys k = rig_keys(first, count);
	uint32_t blocks = 0;
	struct rig_wait w;
	enum status s;

	wait_open(&w);
	while ((s = cache_warm(r->c, &(struct cache_warm_call){ .session = r->s.id, .keys = &k,
								.gpu = CACHE_HOST, .now_us = r->now }, &w.wait,
			       &blocks, &r->why)) == STATUS_BUSY)
		wait_some(r, &w);
	ck_assert_int_eq(s, STATUS_OK);
	wait_close(r, &w);
	free((void *)k.bytes);
	return blocks;
}

uint32_t rig_read_all(struct rig *r, uint64_t first, uint32_t count)
{
	struct cache_place places[CACHE_LAYOUTS_MAX];
	struct cache_leased leased;
	uint32_t found = 0;

	for (uint64_t n = first; n < first + count; n++) {
		if (rig_lease_wait(r, n, 1, true, places, &leased))
			continue;
		found++;
		for (uint32_t l = 0; l < r->s.layouts; l++)
			ck_assert(rig_matches(rig_block(r, &places[l]), r->s.block_bytes[l], n, l));
		ck_assert_int_eq(cache_release(r->c, r->s.id, leased.lease), STATUS_OK);
	}
	return found;
}
