/* See daemon/vram/rig.h. */
#include "tests/daemon/vram/rig.h"

#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/rate.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/call/commit.h"
#include "daemon/call/explain.h"
#include "daemon/call/faults.h"
#include "daemon/call/inspect.h"
#include "daemon/call/lease.h"
#include "daemon/call/lookup.h"
#include "daemon/call/reserve.h"
#include "daemon/call/warm.h"
#include "daemon/disk/state.h"
#include "daemon/session/attachment.h"
#include "daemon/session/open.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "daemon/vram/vram.h"
#include "kernels/format.h"
#include "proto/fdsock.h"
#include "store/arena/arena.h"
#include "store/host/extent.h"
#include "store/ring/ring.h"
#include "store/status.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <time.h>
#include <unistd.h>

struct kv_layout vr_layout(uint32_t n)
{
	return (struct kv_layout){
		.fingerprint = { 2 }, .first_layer = n, .layers = VR_LAYERS, .heads = 1, .total_heads = 1,
		.head_dim_k = 64, .head_dim_v = 64, .block_tokens = 256,
		.k_format = n < VR_SMALL ? KV_F16 : KV_FP8, .v_format = n < VR_SMALL ? KV_F16 : KV_FP8,
		.rotation_version = KV_ROTATION_VERSION, .codebook_version = KV_CODEBOOK_VERSION,
		.layout_version = KV_LAYOUT_VERSION,
	};
}

void vr_disks_make(struct rig_disks *d, uint32_t disks, uint32_t slots)
{
	rig_disks_make(d, NULL, disks, (slots + 16) * (VR_SLOT_BYTES / RIG_SLOT_BYTES + 1));
}

static void set_number(const char *name, uint64_t n)
{
	char text[32];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)n);
	setenv(name, text, 1);
}

static void devices_set(struct vram_rig *v, const struct vram_rig_options *o)
{
	strcpy(v->folder, "/tmp/terrace-test-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(v->folder));
	snprintf(v->hold, sizeof(v->hold), "%s/hold", v->folder);
	snprintf(v->lost, sizeof(v->lost), "%s/lost", v->folder);
	snprintf(v->sums, sizeof(v->sums), "%s/sums", v->folder);
	set_number("SIM_GPU_DEVICES", o->gpus);
	setenv("SIM_GPU_SUMS_HOLD_FILE", v->sums, 1);
	setenv("SIM_GPU_HOLD_FILE", v->hold, 1);
	setenv("SIM_GPU_LOST_FILE", v->lost, 1);
}

void vr_progress_page(struct vram_rig *v)
{
	struct cache_lent lent;
	void *at;

	ck_assert_int_eq(cache_attach_lend(v->r.c, v->r.attachment, CACHE_EXTENT_PROGRESS_PAGE, true, &lent),
	    STATUS_OK);
	ck_assert_int_eq(lent.device_fd, -1);
	at = mmap(NULL, lent.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, lent.fd, 0);
	ck_assert_ptr_ne(at, MAP_FAILED);
	close(lent.fd);
	v->progress_page = at;
}

void vr_disks_seem_slow(struct rig *r)
{
	cache_lock(r->c);
	for (uint32_t i = 0; r->c->tier && i < r->c->tier->unit_count; i++)
		rate_init(&r->c->tier->units[i].reads, 1e15);
	cache_unlock(r->c);
}

void vr_open(struct vram_rig *v, const struct vram_rig_options *o)
{
	static const uint32_t ordinals[VR_GPUS_MAX] = { 0, 1, 2, 3 };
	struct kv_layout layouts[CACHE_LAYOUTS_MAX];
	const uint32_t disks = o->disk_count ? o->disk_count : 1;
	struct cache_options c = o->disks ? rig_disk_options(o->disks, disks, 1) : rig_options(1);

	memset(v, 0, sizeof(*v));
	devices_set(v, o);
	c.host_bytes = rig_host_bytes(o->host_slots, VR_SLOT_BYTES);
	c.extent_bytes = (o->host_slots < 56 ? (o->host_slots + 7) / 8 : 7) * VR_SLOT_BYTES; /* on a GPU SIM_GRANULARITY */
	c.policy = o->policy ? o->policy : "lru";
	c.recompute_growth = o->recompute_growth;
	c.device_ops = o->ops ? o->ops : terrace_device_ops();
	c.gpus = ordinals;
	c.gpu_count = o->gpus;
	c.gpu_bytes = (uint64_t)(o->gpu_slots + VR_EXTENT_SLOTS) * VR_BLOCK_BYTES; /* a granule is the reserve */
	c.gpu_pinned_milli = o->gpu_pinned_milli ? o->gpu_pinned_milli : 2000;
	c.sum_threads = o->sum_threads;
	c.io_calls = o->io_calls;
	c.gpu_close_ms = o->gpu_close_ms;
	c.gpu_prefetch_bytes = o->gpu_prefetch_bytes;
	c.gpu_verify_up = !o->no_verify;
	c.gpu_patience_ms = o->gpu_patience_ms;
	c.gpu_poll_us = o->poll_us;
	c.tenants = o->tenants;
	c.tenant_count = o->tenant_count;
	if (o->gpu_prefetch_bytes)
		c.graph_nodes = 4096;
	if (o->disk_depth)
		c.disk_depth = o->disk_depth;
	if (o->spill_milli)
		c.spill_share_milli = o->spill_milli;
	for (uint32_t i = 0; i < (o->layouts ? o->layouts : 1); i++) {
		layouts[i] = o->own ? o->own[i] : vr_layout(o->mixed && i == 1 ? VR_SMALL : i);
		layouts[i].window = o->own ? o->own[i].window : o->window;
	}
	rig_open_layouts(&v->r, &c, layouts, o->layouts ? o->layouts : 1);
	if (!o->by_cost)
		vr_disks_seem_slow(&v->r);
	ck_assert(o->own || v->r.s.block_bytes[0] == VR_BLOCK_BYTES);
	if (o->write_back)
		ck_assert_int_eq(cache_session_write_back(v->r.c, v->r.s.id), STATUS_OK);
	cache_attach_watch(v->r.c, v->r.attachment, pidfd_open(getpid(), 0)); /* as the local socket does */
	if (!o->no_progress_page)
		vr_progress_page(v);
}

void vr_open_filled(struct vram_rig *v, const struct vram_rig_options *o, uint32_t blocks)
{
	vr_open(v, o);
	if (o->disks)
		rig_restored(&v->r);
	ck_assert_uint_eq(vr_put(v, CACHE_HOST, 0, blocks), blocks);
	ck_assert_uint_eq(vr_put(v, 0, VR_PLACED, 1), 1);
	rig_quiet(&v->r);
}

void vr_join(struct vram_rig *v, const struct vram_rig *of, uint32_t layout, const char *engine)
{
	const struct kv_layout l = vr_layout(layout);
	uint64_t session;

	*v = *of;
	ck_assert_int_eq(cache_session_open(v->r.c, &(struct cache_open_call){ .tenant = "", .layouts = &l,
			.layout_count = 1, .engine = engine, .now_us = v->r.now }, &v->r.s, &v->r.why),
			 STATUS_OK);
	ck_assert_int_eq(cache_attach(v->r.c, v->r.s.token, 1, v->r.now, &v->r.attachment, &session, &v->r.why), STATUS_OK);
}

void vr_join_tenant(struct vram_rig *v, struct vram_rig *of, uint32_t tenant)
{
	const struct kv_layout l = vr_layout(0);

	*v = *of;
	rig_join_tenant(&v->r, &of->r, tenant, &l, 1);
	cache_attach_watch(v->r.c, v->r.attachment, pidfd_open(getpid(), 0));
	vr_progress_page(v);
}

static void unlink_of(const char *path, uint32_t gpu)
{
	char name[128];

	snprintf(name, sizeof(name), "%s.%u", path, gpu);
	unlink(name);
}

void vr_close(struct vram_rig *v)
{
	for (uint32_t i = 0; i < VR_GPUS_MAX; i++) {
		vr_go(v, i);
		vr_sums_go(v, i);
	}
	rig_quiet(&v->r);
	rig_close(&v->r);
	if (v->progress_page)
		munmap(v->progress_page, EXTENT_PAGE_BYTES);
	for (uint32_t i = 0; i < VR_GPUS_MAX; i++)
		unlink_of(v->lost, i);
	rmdir(v->folder);
}

static void write_of(const char *path, uint32_t gpu, const char *text)
{
	char name[128], made[160];
	FILE *f;

	snprintf(name, sizeof(name), "%s.%u", path, gpu);
	snprintf(made, sizeof(made), "%s.new", name);
	f = fopen(made, "w");
	ck_assert_ptr_nonnull(f);
	fputs(text, f);
	fclose(f);
	ck_assert_int_eq(rename(made, name), 0);
}

void vr_hold(struct vram_rig *v, uint32_t gpu, uint32_t part)
{
	char text[16];

	snprintf(text, sizeof(text), "%u", part);
	write_of(v->hold, gpu, text);
}

void vr_go(struct vram_rig *v, uint32_t gpu)
{
	unlink_of(v->hold, gpu);
}

void vr_sums_hold(struct vram_rig *v, uint32_t gpu)
{
	write_of(v->sums, gpu, "");
}

void vr_sums_go(struct vram_rig *v, uint32_t gpu)
{
	unlink_of(v->sums, gpu);
}

void vr_lose(struct vram_rig *v, uint32_t gpu)
{
	write_of(v->lost, gpu, "");
}

bool vr_on_gpu(const struct cache_place *p, uint32_t gpu)
{
	return p->extent >> VRAM_EXTENT_BITS == gpu + 1;
}

uint8_t *vr_bytes(struct vram_rig *v, const struct cache_place *p)
{
	const struct gpu *g = vram_gpu_of_extent(v->r.c, p->extent);
	struct arena_device_extent e;

	if (!g)
		return rig_block(&v->r, p);
	ck_assert_int_eq(arena_extent_device(g->arena, p->extent, &e), STATUS_OK);
	close(e.fd);
	return sim_at(e.address + p->offset);
}

enum status vr_reserve(struct vram_rig *v, int32_t gpu, uint64_t first, uint32_t count, enum status *statuses, uint64_t *ids,
		       struct cache_place *places)
{
	const struct cache_on on = { .attachment = v->r.attachment, .gpu = gpu };
	struct cache_keys k = rig_keys(first, count);
	enum status s = cache_reserve(v->r.c, &(struct cache_reserve_call){ .session = v->r.s.id, .keys = &k,
			.on = &on, .may_grow = true, .now_us = v->r.now, .statuses = statuses,
			.reservations = ids, .places = places, .places_max = count * v->r.s.layouts },
				      &v->r.why);

	free((void *)k.bytes);
	return s;
}

enum status vr_commit(struct vram_rig *v, const uint64_t *ids, uint32_t count, enum status *statuses)
{
	struct cache_commit_item *item = calloc(count, sizeof(*item));
	enum status s;

	for (uint32_t i = 0; i < count; i++)
		item[i].reservation = ids[i];
	s = cache_commit(v->r.c, &(struct cache_commit_call){ .session = v->r.s.id, .items = item,
							      .count = count, .now_us = v->r.now, .unix_ms = 1,
							      .statuses = statuses }, NULL, &v->r.why);
	free(item);
	return s;
}

uint32_t vr_put(struct vram_rig *v, int32_t gpu, uint64_t first, uint32_t count)
{
	uint32_t layouts = v->r.s.layouts, stored = 0;

	for (uint64_t n = first; n < first + count; n++) {
		struct cache_place p[CACHE_LAYOUTS_MAX];
		enum status st;
		uint64_t id;

		ck_assert_int_eq(vr_reserve(v, gpu, n, 1, &st, &id, p), STATUS_OK);
		if (st)
			continue;
		for (uint32_t l = 0; l < layouts; l++)
			if (p[l].extent != (uint32_t)CACHE_EXTENT_NONE)
				rig_fill(vr_bytes(v, &p[l]), v->r.s.block_bytes[l], n, l);
		ck_assert_int_eq(vr_commit(v, &id, 1, &st), STATUS_OK);
		stored += st == STATUS_OK;
	}
	return stored;
}

struct vr_wait {
	struct cache_wait wait;
	sem_t ready;
	struct timespec began;
};

static void ready(void *arg)
{
	sem_post(arg);
}

static void wait_open(struct vr_wait *w)
{
	memset(w, 0, sizeof(*w));
	sem_init(&w->ready, 0, 0);
	w->wait = (struct cache_wait){ .ready = ready, .arg = &w->ready };
	clock_gettime(CLOCK_MONOTONIC, &w->began);
}

static void background(struct vram_rig *v, const struct timespec *began)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	ck_assert_msg(now.tv_sec - began->tv_sec < 60, "a minute has passed");
	if (!v->r.served)
		rig_tick(v->r.c, v->r.now);
	nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
}

static void wait_some(struct vram_rig *v, struct vr_wait *w)
{
	do
		background(v, &w->began);
	while (!w->wait.poll && sem_trywait(&w->ready));
}

static void wait_close(struct vram_rig *v, struct vr_wait *w)
{
	cache_wait_end(v->r.c, &w->wait);
	sem_destroy(&w->ready);
}

enum status vr_lease(struct vram_rig *v, int32_t gpu, uint64_t first, uint32_t count, bool all, bool or_host,
		     struct cache_place *places, struct cache_leased *out)
{
	const struct cache_on on = { .attachment = v->r.attachment, .gpu = gpu, .or_host = or_host };
	struct cache_keys k = rig_keys(first, count);
	struct vr_wait w;
	enum status s;

	wait_open(&w);
	while ((s = cache_lease(v->r.c, &(struct cache_lease_call){ .session = v->r.s.id, .keys = &k,
			.all = all, .on = &on, .now_us = v->r.now, .places = places,
			.places_max = count * v->r.s.layouts }, out, &w.wait, &v->r.why)) == STATUS_BUSY)
		wait_some(v, &w);
	wait_close(v, &w);
	free((void *)k.bytes);
	return s;
}

uint32_t vr_warm(struct vram_rig *v, int32_t gpu, uint64_t first, uint32_t count)
{
	struct cache_keys k = rig_keys(first, count);
	uint32_t blocks = 0;
	struct vr_wait w;
	enum status s;

	wait_open(&w);
	while ((s = cache_warm(v->r.c, &(struct cache_warm_call){ .session = v->r.s.id, .keys = &k, .gpu = gpu,
			.now_us = v->r.now }, &w.wait, &blocks, &v->r.why)) == STATUS_BUSY)
		wait_some(v, &w);
	/* A GPU may be found lost meanwhile. */
	ck_assert(s == STATUS_OK || (s == STATUS_UNAVAILABLE && cache_degraded(v->r.c)));
	wait_close(v, &w);
	free((void *)k.bytes);
	return s ? 0 : blocks;
}

static void nobody_waits(void *arg)
{
	(void)arg;
}

void vr_warm_begin(struct vram_rig *v, int32_t gpu, uint64_t first, uint32_t count)
{
	struct cache_wait w = { .ready = nobody_waits };
	struct cache_keys k = rig_keys(first, count);
	uint32_t blocks;

	ck_assert_int_eq(cache_warm(v->r.c, &(struct cache_warm_call){ .session = v->r.s.id, .keys = &k,
			.gpu = gpu, .now_us = v->r.now }, &w, &blocks, &v->r.why), STATUS_BUSY);
	cache_wait_end(v->r.c, &w);
	free((void *)k.bytes);
}

bool vr_layer_there(const struct vram_rig *v, const struct cache_leased *l, uint32_t layer)
{
	const uint32_t value = l->progress_page_base + layer + 1;

	return (int32_t)(atomic_load(&v->progress_page[l->progress_page_word]) - value) >= 0 &&
	       (!l->progress_page_summed ||
	       (int32_t)(atomic_load(&v->progress_page[l->progress_page_word + FDSOCK_PROGRESS_PAGE_SUMMED]) - value) >= 0);
}

void vr_count(void *arg)
{
	atomic_fetch_add((_Atomic int *)arg, 1);
}

void vr_await_called(struct vram_rig *v, const _Atomic int *called, int times)
{
	RIG_AWAIT((rig_tick(v->r.c, v->r.now), atomic_load(called) >= times));
}

void vr_wait_layers(const struct vram_rig *v, const struct cache_leased *l)
{
	if (!l->progress_page_layers)
		return;
	for (int i = 0; !vr_layer_there(v, l, l->progress_page_layers - 1); i++) {
		ck_assert_msg(i < 300000, "a minute has passed");
		nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
	}
}

bool vr_matches(struct vram_rig *v, const struct cache_place *p, uint64_t n, uint32_t layout)
{
	return rig_matches(vr_bytes(v, p), v->r.s.block_bytes[layout], n, layout);
}

void vr_release(struct vram_rig *v, const struct cache_leased *l)
{
	ck_assert_int_eq(cache_release(v->r.c, v->r.s.id, l->lease), STATUS_OK);
}

uint32_t vr_read_all(struct vram_rig *v, int32_t gpu, uint64_t first, uint32_t count)
{
	struct cache_place places[CACHE_LAYOUTS_MAX];
	struct cache_leased leased;
	uint32_t found = 0;

	for (uint64_t n = first; n < first + count; n++) {
		if (vr_lease(v, gpu, n, 1, true, false, places, &leased))
			continue;
		found++;
		vr_wait_layers(v, &leased);
		for (uint32_t l = 0; l < v->r.s.layouts; l++) {
			ck_assert(gpu < 0 ? !vram_gpu_of_extent(v->r.c, places[l].extent) : vr_on_gpu(&places[l], (uint32_t)gpu));
			ck_assert_msg(vr_matches(v, &places[l], n, l), "block %u, layout %u", (unsigned)n, l);
		}
		vr_release(v, &leased);
	}
	return found;
}

const char *vr_tier(struct vram_rig *v, uint64_t n)
{
	const char *tenant = tenant_of_number(v->r.c, cache_session_tenant(v->r.c, v->r.s.id))->name;
	struct cache_explained e;
	uint8_t key[RIG_KEY_BYTES];
	uint32_t shown;

	rig_key(key, n);
	ck_assert_int_eq(cache_explain(v->r.c, &(struct cache_block_name){ .tenant = tenant, .key = key,
			.key_bytes = sizeof(key) }, v->r.now, &e, 1, &shown, &v->r.why), STATUS_OK);
	return shown ? e.tier : "";
}

uint8_t vr_state(struct vram_rig *v, uint64_t n)
{
	struct cache_keys k = rig_keys(n, 1);
	uint8_t states[CACHE_LAYOUTS_MAX];
	uint32_t prefix;

	ck_assert_int_eq(cache_lookup(v->r.c, v->r.s.id, &k, &prefix, states, sizeof(states), &v->r.why), STATUS_OK);
	free((void *)k.bytes);
	return states[0];
}

double vr_corrupt(struct vram_rig *v, const char *to)
{
	rig_quiet(&v->r);
	return rig_stat(&v->r, "terrace_gpu_corrupt_blocks_total", to);
}

void vr_flip(struct vram_rig *v, int32_t gpu, uint64_t n, uint32_t at)
{
	struct cache_place p;
	struct cache_leased l;

	ck_assert_int_eq(vr_lease(v, gpu, n, 1, true, false, &p, &l), STATUS_OK);
	vr_wait_layers(v, &l);
	ck_assert(vr_matches(v, &p, n, 0));
	rig_quiet(&v->r);
	vr_bytes(v, &p)[at] ^= 1;
	vr_release(v, &l);
}

void vr_push_out(struct vram_rig *v, uint32_t blocks)
{
	static uint64_t n = 1 << 20;

	for (uint32_t i = 0; i < blocks; i++) {
		vr_put(v, CACHE_HOST, n++, 1);
		rig_quiet(&v->r);
	}
}

void vr_sound(struct vram_rig *v)
{
	struct cache_verified sum = { .blocks = 0 };
	uint64_t cursor = 0;

	while (cursor != UINT64_MAX)
		ck_assert_int_eq(cache_verify_step(v->r.c, &cursor, UINT64_MAX, &sum), STATUS_OK);
	ck_assert_uint_eq(sum.corrupt, 0);
}

void vr_end(struct vram_rig *v, struct rig_disks *d)
{
	rig_quiet(&v->r);
	rig_check_accounting(v->r.c);
	vr_close(v);
	rig_disks_remove(d);
}

pthread_mutex_t vr_writes = PTHREAD_MUTEX_INITIALIZER;

static int wait_for_writes(void *arg, const struct ring_request *r, uint32_t *most)
{
	(void)arg;
	(void)most;
	if (r->op == RING_WRITE) {
		pthread_mutex_lock(&vr_writes);
		pthread_mutex_unlock(&vr_writes);
	}
	return 0;
}

const struct ring_calls vr_held_writes = { .fault = wait_for_writes };

void vr_gate_run(struct work *w)
{
	struct vr_gate *g = (struct vr_gate *)w;

	pthread_mutex_lock(&g->lock);
	pthread_mutex_unlock(&g->lock);
}
