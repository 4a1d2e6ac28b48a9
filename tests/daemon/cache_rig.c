/* See daemon/cache_rig.h. */
#include "tests/daemon/cache_rig.h"
#include "tests/store/arena/inside.h"
#include "tests/store/index_records.h"

#include "daemon/block/block.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/ends.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/quota.h"
#include "daemon/block/unwritten.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/cache.h"
#include "daemon/call/commit.h"
#include "daemon/call/lease.h"
#include "daemon/call/lookup.h"
#include "daemon/call/reserve.h"
#include "daemon/call/stats.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/disk/tier.h"
#include "daemon/session/attachment.h"
#include "daemon/session/grants.h"
#include "daemon/session/lease.h"
#include "daemon/session/reservation.h"
#include "daemon/session/open.h"
#include "daemon/session/session.h"
#include "daemon/vram/transfer_table.h"
#include "daemon/vram/queue.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "kernels/behind.h"
#include "kernels/format.h"
#include "store/arena/arena.h"
#include "store/device.h"
#include "store/index.h"
#include "store/slot.h"
#include "store/status.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>

enum { OPENED_US = 1000000, TENANTS = 128 }; /* TENANTS: at most, with GPUs */

struct kv_layout rig_layout_other(uint32_t n)
{
	struct kv_layout l = rig_layout(n, 0);

	l.layers = 8;
	return l;
}

struct kv_layout rig_layout(uint32_t n, uint32_t window)
{
	return (struct kv_layout){
		.fingerprint = { 1 }, .first_layer = n, .layers = 1, .heads = 1, .total_heads = 1,
		.head_dim_k = 64, .head_dim_v = 64, .block_tokens = RIG_TOKENS, .k_format = KV_TQ2,
		.v_format = KV_TQ2, .window = window, .rotation_version = KV_ROTATION_VERSION,
		.codebook_version = KV_CODEBOOK_VERSION, .layout_version = KV_LAYOUT_VERSION,
	};
}

/* With granules of RIG_GRANULE bytes a span has one slot, and all memory but the reserve (store/arena/arena.h) is slots. */
uint64_t rig_host_bytes(uint32_t slots, uint32_t slot_bytes)
{
	const uint64_t granules = (uint64_t)slots * slot_bytes / RIG_GRANULE;
	uint64_t reserve = 1;

	while ((granules + reserve) / 64 > reserve)
		reserve++;
	return (granules + reserve) * RIG_GRANULE;
}

struct cache_options rig_options(uint32_t slots)
{
	return (struct cache_options){
		.host_bytes = rig_host_bytes(slots, RIG_SLOT_BYTES), .granule_bytes = RIG_GRANULE,
		.extent_bytes = (slots + 7) / 8 * RIG_SLOT_BYTES, .policy = "lru",
		.pinned_bytes_max = UINT64_MAX / 4, .sessions_max = 64, .leases_max = 256,
		.open_blocks_max = 8, .session_idle_ms = 1000, .lease_ttl_ms = 1000,
		.reservation_ttl_ms = 1000, .watch_queue = 64,
	};
}

static void session_over(struct rig *r, uint32_t tenant, const struct kv_layout *l, uint32_t layouts)
{
	uint64_t session;

	ck_assert_int_eq(cache_session_open(r->c, &(struct cache_open_call){ .tenant = "", .layouts = l,
			.layout_count = layouts, .engine = "test", .now_us = r->now, .identity = tenant }, &r->s,
			 &r->why), STATUS_OK);
	ck_assert_int_eq(cache_attach(r->c, r->s.token, 1, r->now, &r->attachment, &session, &r->why),
			 STATUS_OK);
	ck_assert_uint_eq(session, r->s.id);
}

static void open_session(struct rig *r, uint32_t layouts)
{
	struct kv_layout l[CACHE_LAYOUTS_MAX];

	for (uint32_t i = 0; i < layouts; i++)
		l[i] = rig_layout(i, 0);
	session_over(r, 0, l, layouts);
}

static void open_cache(struct rig *r, const struct cache_options *o, uint64_t now_us)
{
	memset(r, 0, sizeof(*r));
	r->now = now_us;
	cache_thread_enter();
	ck_assert_msg(cache_create(o, r->now, &r->c, &r->why) == STATUS_OK, "%s", r->why);
}

void rig_open_at(struct rig *r, const struct cache_options *o, uint32_t layouts, uint64_t now_us)
{
	open_cache(r, o, now_us);
	open_session(r, layouts);
}

void rig_open(struct rig *r, const struct cache_options *o, uint32_t layouts)
{
	rig_open_at(r, o, layouts, OPENED_US);
}

void rig_open_layouts(struct rig *r, const struct cache_options *o, const struct kv_layout *layouts, uint32_t count)
{
	open_cache(r, o, OPENED_US);
	session_over(r, 0, layouts, count);
}

void rig_join(struct rig *to, struct rig *from, uint32_t layouts)
{
	*to = (struct rig){ .c = from->c, .now = from->now };
	open_session(to, layouts);
}

void rig_join_layouts(struct rig *to, struct rig *from, const struct kv_layout *layouts, uint32_t count)
{
	*to = (struct rig){ .c = from->c, .now = from->now };
	session_over(to, 0, layouts, count);
}

void rig_join_tenant(struct rig *to, struct rig *from, uint32_t tenant, const struct kv_layout *layouts,
		     uint32_t count)
{
	*to = (struct rig){ .c = from->c, .now = from->now };
	session_over(to, tenant, layouts, count);
}

union one_fd {
	char bytes[CMSG_SPACE(sizeof(int))];
	struct cmsghdr head;
};

void rig_fd_send(int to, int fd)
{
	char byte = 0;
	struct iovec iov = { &byte, 1 };
	union one_fd control = { .head = { CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS } };
	const struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)
	};

	memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
	ck_assert_int_eq(sendmsg(to, &m, 0), 1);
}

int rig_fd_take(int from)
{
	char byte;
	struct iovec iov = { &byte, 1 };
	union one_fd control;
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
			    .msg_controllen = sizeof(control) };
	int fd = -1;

	if (recvmsg(from, &m, 0) == 1 && CMSG_FIRSTHDR(&m))
		memcpy(&fd, CMSG_DATA(&control.head), sizeof(fd));
	return fd;
}

void rig_watch(struct rig *r, pid_t pid)
{
	const int pidfd = pidfd_open(pid, 0);

	ck_assert_int_ge(pidfd, 0);
	cache_attach_watch(r->c, r->attachment, pidfd);
}

void rig_close(struct rig *r)
{
	rig_check_accounting(r->c);
	cache_destroy(r->c);
	cache_thread_leave();
}

void rig_key(uint8_t *key, uint64_t n)
{
	uint64_t mixed = (n + 1) * 0x9e3779b97f4a7c15ull;

	memcpy(key, &n, 8);
	memcpy(key + 8, &mixed, 8);
}

struct cache_keys rig_keys(uint64_t first, uint32_t count)
{
	uint8_t *bytes = malloc((size_t)count * RIG_KEY_BYTES + 1);

	ck_assert_ptr_nonnull(bytes);
	for (uint32_t i = 0; i < count; i++)
		rig_key(bytes + (size_t)i * RIG_KEY_BYTES, first + i);
	return (struct cache_keys){ bytes, count, RIG_KEY_BYTES };
}

uint8_t *rig_block(struct rig *r, const struct cache_place *p)
{
	struct memory_extent *e;

	cache_lock(r->c);
	e = memory_extent_find(r->c, p->extent);
	cache_unlock(r->c);
	ck_assert_ptr_nonnull(e);
	return e->base + p->offset + SLOT_HEADER_BYTES;
}

static uint64_t word_of(uint64_t n, uint32_t layout, uint64_t i)
{
	uint64_t x = (n * 64 + layout) * 0x9e3779b97f4a7c15ull + i * 0xbf58476d1ce4e5b9ull;

	return x ^ x >> 31;
}

void rig_fill(uint8_t *block, uint64_t bytes, uint64_t n, uint32_t layout)
{
	for (uint64_t i = 0; i < bytes / 8; i++) {
		uint64_t w = word_of(n, layout, i);

		memcpy(block + i * 8, &w, 8);
	}
}

bool rig_matches(const uint8_t *block, uint64_t bytes, uint64_t n, uint32_t layout)
{
	for (uint64_t i = 0; i < bytes / 8; i++) {
		uint64_t w = word_of(n, layout, i);

		if (memcmp(block + i * 8, &w, 8))
			return false;
	}
	return true;
}

bool rig_matches_to(const uint8_t *block, uint64_t bytes, uint64_t n, uint32_t layout, uint32_t tokens)
{
	const struct kv_layout l = rig_layout(layout, 0);
	uint8_t want[RIG_SLOT_BYTES];
	struct kv_geometry g;

	kv_geometry_of(&l, &g);
	rig_fill(want, bytes, n, layout);
	kv_zero_behind(&l, &g, want, tokens);
	return memcmp(block, want, bytes) == 0;
}

uint32_t rig_put(struct rig *r, uint64_t first, uint32_t count)
{
	uint32_t layouts = r->s.layouts, items = 0, stored = 0;
	struct cache_keys k = rig_keys(first, count);
	enum status *st = calloc(count, sizeof(*st));
	uint64_t *id = calloc(count, sizeof(*id));
	struct cache_place *p = calloc((size_t)count * layouts, sizeof(*p));
	struct cache_commit_item *item = calloc(count, sizeof(*item));

	ck_assert_int_eq(cache_reserve(r->c, &(struct cache_reserve_call){ .session = r->s.id, .keys = &k,
			.on = &(struct cache_on){ .attachment = r->attachment, .gpu = CACHE_HOST },
			.may_grow = true, .now_us = r->now, .statuses = st, .reservations = id, .places = p,
			.places_max = count * layouts }, &r->why), STATUS_OK);
	for (uint32_t i = 0; i < count; i++) {
		for (uint32_t l = 0; l < layouts && st[i] == STATUS_OK; l++)
			if (p[i * layouts + l].extent != (uint32_t)CACHE_EXTENT_NONE)
				rig_fill(rig_block(r, &p[i * layouts + l]), r->s.block_bytes[l], first + i,
					 l);
		if (st[i] == STATUS_OK)
			item[items++].reservation = id[i];
	}
	ck_assert_int_eq(cache_commit(r->c, &(struct cache_commit_call){ .session = r->s.id, .items = item,
			.count = items, .now_us = r->now, .unix_ms = r->now / 1000 + 1, .statuses = st }, NULL,
				      &r->why), STATUS_OK);
	for (uint32_t i = 0; i < items; i++)
		stored += st[i] == STATUS_OK;
	free((void *)k.bytes);
	free(st);
	free(id);
	free(p);
	free(item);
	return stored;
}

uint32_t rig_prefix(struct rig *r, uint64_t first, uint32_t count)
{
	struct cache_keys k = rig_keys(first, count);
	uint32_t prefix = 0;

	ck_assert_int_eq(cache_lookup(r->c, r->s.id, &k, &prefix, NULL, 0, &r->why), STATUS_OK);
	free((void *)k.bytes);
	return prefix;
}

enum status rig_lease(struct rig *r, uint64_t first, uint32_t count, bool all, struct cache_place *places,
		      struct cache_leased *out)
{
	struct cache_keys k = rig_keys(first, count);
	enum status s = cache_lease(r->c, &(struct cache_lease_call){ .session = r->s.id, .keys = &k,
			.all = all, .on = &(struct cache_on){ .attachment = r->attachment, .gpu = CACHE_HOST },
			.now_us = r->now, .places = places, .places_max = count * r->s.layouts }, out, NULL,
				    &r->why);

	free((void *)k.bytes);
	return s;
}

struct wanted_stat {
	const char *name, *labels;
	double value;
	bool found;
};

static void stat_pick(void *arg, const char *name, const char *labels, double value, bool counter,
		      const char *help)
{
	struct wanted_stat *w = arg;

	ck_assert(*name && *help);
	(void)counter;
	if (!strcmp(name, w->name) && !strcmp(labels, w->labels)) {
		w->value = value;
		w->found = true;
	}
}

void rig_tick(struct cache *c, uint64_t now_us)
{
	if (!cache_tick(c, now_us))
		return;
	cache_disk_chores(c);
	cache_chores(c);
}

uint32_t rig_ends_arrived(const struct cache *c)
{
	uint32_t n = 0;

	for (const struct end *e = atomic_load(&c->ends->queue.arrived); e; e = e->next)
		n++;
	return n;
}

double rig_stat(struct rig *r, const char *name, const char *labels)
{
	struct wanted_stat w = { .name = name, .labels = labels };

	cache_stats(r->c, r->now, stat_pick, &w);
	ck_assert_msg(w.found, "no stat %s %s", name, labels);
	return w.value;
}

/* ---- accounting ---- */

struct accounting {
	struct arena *arena;
	uint64_t reserved, blocks, evictable;
	uint64_t lease_pins, block_pins, disk_only, gpu_only;
};

static void recount_span(const struct span_map *s, struct accounting *b)
{
	uint32_t present = 0;

	for (uint32_t i = 0; i < s->slots; i++) {
		const struct block *at = s->at[i];

		if (!at)
			continue;
		present++;
		ck_assert(block_live(at));
		ck_assert_uint_eq(at->index, i);
		ck_assert_ptr_eq(at->span, s);
		b->block_pins += block_pins(at);
		b->evictable += block_memory_pins(at) == 0;
		ck_assert_uint_le(at->memory_pins, block_pins(at));
	}
	ck_assert_uint_le(present, s->taken);
	ck_assert_uint_le(s->taken, s->slots);
	ck_assert_uint_le(s->place->held, s->taken);
	ck_assert_uint_eq(arena_span_taken(b->arena, s->place), s->taken);
	b->blocks += present;
}

static void recount_session(struct session *s, struct accounting *b)
{
	uint64_t slots = 0, bytes = 0, open = 0;

	for (const struct lease *l = s->leases; l; l = l->next) {
		slots += l->count;
		bytes += l->bytes;
		for (uint32_t i = 0; i < l->count; i++)
			b->lease_pins += block_live(l->block[i]);
	}
	for (const struct reservation *r = s->reservations; r; r = r->next) {
		slots += r->slots;
		bytes += r->bytes;
		open += r->open;
		b->reserved += r->gpu ? 0 : r->bytes;
	}
	ck_assert_uint_eq(s->held_slots, slots);
	ck_assert_uint_eq(s->held_bytes, bytes);
	ck_assert_uint_eq(s->open_blocks, open);
}

static uint64_t recount_unit(struct unit *u, struct accounting *b, uint64_t *unverified)
{
	uint64_t cursor = 0, on_disk = 0;
	uint32_t budget = UINT32_MAX;
	const struct block *at;

	while ((at = unit_next_block(u, &cursor, &budget))) {
		ck_assert(block_live(at));
		ck_assert_ptr_eq(at->slab_map->at[at->slab_map_slot].block, at);
		ck_assert(!at->unwritten);
		b->disk_only += !at->span;
		b->block_pins += at->span ? 0 : block_pins(at);
		*unverified += at->unverified;
		on_disk++;
	}
	return on_disk;
}

/* The list of what is on no disk has each such block of the layout once: what memory has of those, and what GPUs
 * have alone. */
static void recount_unwritten(struct layout_pool *p)
{
	struct unwritten_walk w = { .list = NULL };
	uint64_t listed = 0, in_memory = 0;
	uint32_t budget = UINT32_MAX;
	const struct block *at;

	unwritten_walk_begin(&w, p);
	while ((at = unwritten_walk_next(&w, &budget))) {
		ck_assert(at->unwritten && block_live(at) && !at->slab_map && at->pool == p);
		listed += at->span != NULL;
	}
	unwritten_walk_end(&w);
	for (const struct span_map *s = p->class->spans; s; s = s->next)
		for (uint32_t k = 0; k < s->slots; k++)
			in_memory += s->at[k] && s->at[k]->pool == p && !s->at[k]->slab_map;
	ck_assert_uint_eq(listed, in_memory);
}

static void recount_slab_maps(struct cache *c, struct accounting *b)
{
	uint64_t on_disk = 0, unverified = 0, of_pools = 0;

	for (uint32_t i = 0; c->tier && i < c->tier->unit_count; i++)
		on_disk += recount_unit(&c->tier->units[i], b, &unverified);
	for (uint32_t i = 0; i < c->pool_count; i++) {
		const struct layout_pool *p = c->pools[i];
		uint64_t count = 0;

		for (const struct span_map *s = p->class->spans; s; s = s->next)
			for (uint32_t k = 0; k < s->slots; k++)
				count += c->tier && s->at[k] && s->at[k]->pool == p && !s->at[k]->slab_map &&
				    !s->at[k]->moving;
		ck_assert_uint_eq(count, p->dirty);
		on_disk -= p->disk_blocks;
		of_pools += p->unverified;
		recount_unwritten(c->pools[i]);
	}
	ck_assert_uint_eq(on_disk, 0);
	ck_assert_uint_eq(of_pools, unverified);
	for (uint32_t i = 0; c->tier && i < c->tier->unit_count; i++)
		unverified -= c->tier->units[i].unverified;
	ck_assert_uint_eq(unverified, 0);
}

/* ---- on GPUs ---- */

static bool on_chain(const struct vram_slot *s)
{
	const struct vram_slot *at = s->block->vram;

	while (at && at != s)
		at = at->next;
	return at;
}

struct vram_accounting {
	uint64_t taken, held, lent, blocks, evictable, dirty, write_through;
};

static void recount_slot(const struct vram_slot *s, struct vram_accounting *v, struct accounting *b)
{
	const struct block *at = s->block;

	ck_assert_int_eq(at != NULL, s->state != VRAM_FREE);
	if (!at)
		return;
	v->taken++;
	v->held += s->state == VRAM_RESERVED || vram_slot_pins(s);
	v->lent += s->state == VRAM_RESERVED || s->pins;
	v->dirty += s->dirty;
	ck_assert(on_chain(s));
	ck_assert_int_eq(block_live(at), s->state != VRAM_DEAD);
	ck_assert_int_eq(s->dirty, s->state == VRAM_READY && !at->span && !at->slab_map && vram_ready(at) == s);
	if (s->state != VRAM_READY)
		return;
	v->blocks++;
	v->evictable += vram_slot_pins(s) == 0;
	if (at->span || at->slab_map || vram_ready(at) != s)
		return;
	b->gpu_only++;
	b->block_pins += block_pins(at);
}

static void recount_vram_span(const struct vram_class *k, const struct vram_span *s, struct vram_accounting *v,
			      struct accounting *b)
{
	const struct vram_accounting before = *v;

	ck_assert_ptr_eq(s->class, k);
	ck_assert_ptr_eq(s->place->owner, s);
	ck_assert_ptr_eq(s->place->class, k->arena);
	for (uint32_t i = 0; i < s->place->slots; i++) {
		recount_slot(&s->at[i], v, b);
		v->write_through += s->at[i].write_through;
	}
	ck_assert_uint_eq(v->taken - before.taken, s->taken);
	ck_assert_uint_eq(arena_span_taken(k->gpu->arena, s->place), s->taken);
	ck_assert_uint_eq(v->held - before.held, atomic_load(&s->place->held));
}

static void recount_class(const struct vram_class *k, uint64_t *taken, struct gpu_accounting *of, struct accounting *b)
{
	struct vram_accounting v = { .taken = 0 };
	uint64_t slots = 0;

	for (const struct vram_span *s = k->spans; s; s = s->next) {
		recount_vram_span(k, s, &v, b);
		slots += s->place->slots;
	}
	*taken += v.taken;
	of[k->accounting - k->gpu->accounting].held_bytes += v.held * k->stride;
	of[k->accounting - k->gpu->accounting].lent_bytes += v.lent * k->stride;
	ck_assert_uint_eq(v.taken, k->taken);
	ck_assert_uint_eq(v.blocks, k->blocks);
	ck_assert_uint_eq(v.evictable, k->evictable);
	ck_assert_uint_eq(v.dirty, k->dirty);
	ck_assert_uint_eq(v.write_through, k->write_through);
	ck_assert_uint_eq(k->coming, 0);
	ck_assert_uint_eq(slots, k->slots);
}

/* What layouts have of a class is what it has. */
static void recount_layouts(const struct cache *c, const struct gpu *g)
{
	for (const struct vram_class *k = g->classes; k; k = k->next) {
		uint64_t blocks = 0, dirty = 0;

		for (uint32_t i = 0; i < c->pool_count; i++) {
			const struct vram_pool *vp = g->pools[i];

			blocks += vp && vp->class == k ? vp->blocks : 0;
			dirty += vp && vp->class == k ? vp->dirty : 0;
		}
		ck_assert_uint_eq(blocks, k->blocks);
		ck_assert_uint_eq(dirty, k->dirty);
	}
}

/* Without moves. */
/* With the lock; submission threads still have what is queued. */
static void recount_queues(struct gpu *g)
{
	pthread_mutex_lock(&g->queue_lock);
	for (int way = 0; way < 3; way++) {
		uint32_t count = 0, fences = 0;

		for (const struct vram_transfer *m = g->queue[way].first; m; m = m->next, count++)
			fences += !m->block;
		ck_assert_uint_eq(g->queue[way].count, count);
		ck_assert_uint_eq(g->queue[way].fences, fences);
	}
	pthread_mutex_unlock(&g->queue_lock);
}

/* What each tenant has of the GPU. */
static void recount_tenants(const struct cache *c, const struct gpu *g, const struct gpu_accounting *of)
{
	for (uint32_t i = 0; i < c->tenant_count; i++) {
		const struct gpu_accounting *a = &g->accounting[i];

		ck_assert_uint_eq(of[i].held_bytes, a->held_bytes);
		ck_assert_uint_eq(of[i].lent_bytes, a->lent_bytes);
		ck_assert_uint_eq(a->downs, 0);
		ck_assert_uint_le(arena_tenant_bytes(g->arena, c->tenants[i].number), a->bytes_max);
		ck_assert_uint_eq(c->tenants[i].fetched_bytes, 0);
	}
}

static void recount_gpus(struct cache *c, struct accounting *b)
{
	struct gpu_accounting of[TENANTS];

	ck_assert_uint_le(c->tenant_count, TENANTS);
	for (uint32_t i = 0; c->vram && i < c->vram->count; i++) {
		const struct gpu *g = c->vram->gpu[i];
		struct arena_usage u;
		uint64_t taken = 0;

		if (!g->arena)
			continue;
		memset(of, 0, sizeof(of));
		for (const struct vram_class *k = g->classes; k; k = k->next)
			recount_class(k, &taken, of, b);
		recount_layouts(c, g);
		arena_usage(g->arena, &u);
		ck_assert_uint_eq(u.slots_used, taken);
		recount_tenants(c, g, of);
		ck_assert_uint_eq(g->downs, 0);
		ck_assert(!g->lost || g->swept || !g->completion_started);
	}
}

/* What holders are charged with is what sessions hold. */
static void recount_quota(struct cache *c)
{
	uint64_t held = 0, charged = quota_used(c->quota, QUOTA_PINNED);

	for (uint32_t i = 0; i < c->options.sessions_max; i++)
		held += c->sessions[i].state != SESSION_FREE ? c->sessions[i].held_bytes : 0;
	for (int i = 0; i < DEVICES_MAX; i++)
		charged += quota_used(c->quota, QUOTA_GPU_PINNED + i);
	ck_assert_uint_eq(charged, held + c->read_bytes);
	ck_assert_uint_eq(quota_used(c->quota, QUOTA_SESSIONS), c->open_sessions + c->detached_sessions);
	ck_assert_uint_eq(quota_used(c->quota, QUOTA_LAYOUTS), c->pool_count);
	ck_assert_uint_eq(quota_used(c->quota, QUOTA_LEASES), c->grants->leases.used);
	ck_assert_uint_eq(quota_used(c->quota, QUOTA_RESERVATIONS), c->grants->reservations.used);
	ck_assert_uint_eq(quota_used(c->quota, QUOTA_WATCHES), c->watch_count);
}

/* What tenants are counted with on disks is what their blocks have there. */
static void recount_shares(struct cache *c)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; c->tier && i < c->tier->unit_count; i++)
		for (const struct disk_class *k = c->tier->units[i].classes; k; k = k->next)
			bytes += k->blocks * k->slot_bytes;
	for (uint32_t i = 0; i < c->tenant_count; i++) {
		bytes -= c->tenants[i].disk_bytes;
		if (!c->tier || !c->tier->transfer_count)
			ck_assert_uint_eq(c->tenants[i].disk_coming, 0);
	}
	ck_assert_uint_eq(bytes, 0);
}

void rig_check_accounting(struct cache *c)
{
	struct accounting b = { .arena = c->host };
	struct arena_usage u;
	uint64_t taken = 0, published = 0, reserved = 0;

	cache_lock(c);
	for (uint32_t i = 0; i < c->class_count; i++) {
		uint64_t evictable = b.evictable;

		published += memory_class_sums(c->classes[i]).blocks;
		for (const struct span_map *s = c->classes[i]->spans; s; s = s->next) {
			ck_assert_ptr_eq(s->class, c->classes[i]);
			ck_assert_ptr_eq(s->place->owner, s);
			recount_span(s, &b);
			taken += s->taken;
		}
		ck_assert_uint_eq(b.evictable - evictable, c->classes[i]->evictable);
	}
	for (uint32_t i = 0; i < c->options.sessions_max; i++)
		if (c->sessions[i].state != SESSION_FREE)
			recount_session(&c->sessions[i], &b);
	arena_usage(c->host, &u);
	ck_assert_uint_eq(u.slots_used, taken);
	ck_assert_uint_eq(b.blocks, published);
	recount_slab_maps(c, &b);
	for (uint32_t i = 0; c->vram && i < c->vram->count; i++)
		recount_queues(c->vram->gpu[i]);
	if (!c->vram || !c->vram->transfer_count) {
		recount_gpus(c, &b);
		ck_assert_uint_eq(index_records(c->index), published + b.disk_only + b.gpu_only);
	}
	for (uint32_t i = 0; i < c->tenant_count; i++)
		reserved += c->tenants[i].reserved_bytes;
	ck_assert_uint_eq(b.reserved, reserved);
	recount_shares(c);
	recount_quota(c);
	/* Nothing but leases pins while no call is under way and nothing moves. */
	if ((!c->tier || !c->tier->transfer_count) && (!c->vram || !c->vram->transfer_count))
		ck_assert_uint_eq(b.lease_pins, b.block_pins);
	cache_unlock(c);
}

int rig_main(const char *name, const TTest *const *tests, size_t count)
{
	Suite *suite = suite_create(name);
	TCase *tc = tcase_create(name);
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 120);
	for (size_t i = 0; i < count; i++)
		tcase_add_test(tc, tests[i]);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
