/* Leases. The search comes first and takes no lock. Then follows the admission step, in one hold of the lock: live
 * blocks count as present, the prefix is computed, the tenant's bound is checked, and the blocks are pinned. So two
 * leases never hold half each and wait for each other.
 *
 * If some of the prefix is on disk only, a first step pins what memory has of it and begins the loads, both for the
 * call's wait. The step that finds everything in memory admits the lease.
 *
 * On a GPU a block has its *place* when its copy is there, or is in the upload queue. The lease then need not wait for
 * the bytes: its holder waits, layer by layer, at the word of its progress page. A block without a place gets one like
 * a block on disk comes to memory; a step that may not wait any more takes only what has a free slot at once.
 *
 * A lease tells the policies its request and its uses. That does not change the answer, and takes a fifth of the
 * admission's time (with `graph` half). With `deferred`, a lease on a GPU tells it after the reply is on its way
 * (cache_leases_notify), but before the lease ends, before its first copy counts as ready, and before another lease
 * tells its own. Until then the blocks are pinned, so that no policy is asked about them.
 */
#include "daemon/call/lease.h"

#include "daemon/advice/graph.h"
#include "daemon/advice/request.h"
#include "daemon/block/block.h"
#include "daemon/block/grid.h"
#include "daemon/block/handle.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/quota.h"
#include "daemon/block/slot_at.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/call/admission.h"
#include "daemon/call/arrival.h"
#include "daemon/exports/exports.h"
#include "daemon/session/attachment.h"
#include "daemon/session/budget.h"
#include "daemon/session/grants.h"
#include "daemon/session/lease.h"
#include "daemon/session/reservation.h"
#include "daemon/session/session.h"
#include "daemon/vram/copy_queue.h"
#include "daemon/vram/placement.h"
#include "daemon/vram/progress.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "store/index.h"
#include "store/ring/ring.h"
#include "store/slot.h"
#include "store/status.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

void deferred_notify(struct cache *c)
{
	const uint32_t count = atomic_load_explicit(&c->deferred_count, memory_order_relaxed);

	if (!count)
		return;
	atomic_store_explicit(&c->deferred_count, 0, memory_order_relaxed);
	index_read_lock();
	advice_read(c, READ_A_CALL);
	for (uint32_t i = 0; i < count; i++) {
		lease_use(c, c->deferred[i]);
		graph_feed_lease(c, c->deferred[i]->session, c->deferred[i]);
	}
	index_read_unlock();
}

void cache_leases_notify(struct cache *c)
{
	vram_call_replied(c);
	if (!atomic_load_explicit(&c->deferred_count, memory_order_relaxed))
		return;
	cache_lock(c);
	deferred_notify(c);
	cache_unlock(c);
}

/* Whether a live block can be leased, or, with `wait`, brought to where it can. */
static bool usable(const struct block *b, bool wait, const struct vram_want *want)
{
	if (b->span)
		return !want->gpu || want->may_begin || wait || vram_placed(b, want);
	if (want->gpu && vram_placed(b, want))
		return true;
	return wait && (b->slab_map || vram_ready(b) || (want->gpu && vram_slot_on(b, want->gpu)));
}

uint32_t admit_prefix(const struct admission *a, uint32_t keys, bool wait, struct lease *l)
{
	const struct grid *grid = a->keys->grid;
	struct grid_run cells;
	struct prefix_run run;
	struct prefix p;

	prefix_begin(&p, keys);
	for (uint32_t j = 0; j < a->layouts; j++) {
		if (grid)
			grid_run_begin(&cells, &grid->rule[j], a->keys->first);
		else
			prefix_layout(&run, a->pools[j]);
		for (uint32_t i = 0; i < keys; i++) {
			struct block **b = &l->block[(size_t)i * a->layouts + j];

			if (*b && (!block_live(*b) || !usable(*b, wait, &a->want)))
				*b = NULL;
			if (grid)
				grid_run_feed(&p, &cells, *b, cell_falls_short(cells.rule, *b));
			else
				prefix_feed(&p, &run, *b);
		}
	}
	return prefix_longest(&p);
}

/* Drops the blocks that the first n keys do not need. For a session with a grid. */
static void trim_cells(const struct admission *a, uint32_t n, struct lease *l)
{
	struct grid_need need;

	for (uint32_t j = 0; n && j < a->layouts; j++) {
		const struct grid_rule *rule = &a->keys->grid->rule[j];

		grid_need(rule, a->keys->first, n, cell_falls_short(rule, l->block[(size_t)(n - 1) * a->layouts + j]), &need);
		for (uint32_t i = 0; i < n; i++)
			if (!grid_needs(&need, (uint64_t)a->keys->first + i))
				l->block[(size_t)i * a->layouts + j] = NULL;
	}
}

uint64_t admit_trim(const struct admission *a, uint32_t n, struct lease *l, uint64_t *gpu_bytes)
{
	const struct vram_want *want = &a->want;
	const uint32_t layouts = a->layouts;
	struct prefix_run run;
	uint64_t bytes = 0;
	uint32_t first;

	if (a->keys->grid)
		trim_cells(a, n, l);
	*gpu_bytes = 0;
	for (uint32_t j = 0; n && j < layouts; j++) {
		if (!a->keys->grid)
			prefix_layout(&run, a->pools[j]);
		first = a->keys->grid ? 0 : prefix_first(n, prefix_need(&run, l->block[(size_t)(n - 1) * layouts + j]));
		for (uint32_t i = 0; i < n; i++) {
			struct block **b = &l->block[(size_t)i * layouts + j];

			if (i < first)
				*b = NULL;
			if (*b && want->gpu)
				*gpu_bytes += vram_pin_bytes(*b, want->gpu);
			if (*b && (!want->gpu || (want->or_host && (*b)->span && !vram_place_gpu(*b, want))))
				bytes += block_pin_bytes(*b);
		}
	}
	return bytes;
}

/* Pins the blocks, writes their places, and packs l->block. */
static void admit_pin(uint32_t blocks, const struct vram_want *want, bool pinned, struct lease *l, struct cache_place *places)
{
	for (uint32_t i = 0; i < blocks; i++) {
		struct block *b = l->block[i];
		struct vram_slot *copy = b ? vram_place_slot(b, want) : NULL;

		if (!b) {
			place_none(&places[i]);
			continue;
		}
		lease_pin(l, b, copy, pinned);
		block_place_on(b, copy, &places[i]);
		if (copy && vram_used_coming(copy))
			lease_on_gpu(l)[l->count - 1] = LEASE_COMING;
	}
}

/* Gives back the room of the lease's record for blocks that are missing, which may be most. */
static struct lease *admit_shrink(struct lease *l)
{
	struct lease *smaller;

	memmove(&l->block[l->count], lease_on_gpu(l), l->count);
	l->room = l->count;
	smaller = realloc(l, sizeof(*l) + l->count * (sizeof(l->block[0]) + 1));
	return smaller ? smaller : l;
}

/* Puts a fence behind copies that are still under way, so that the progress page shows how far they are. False: no
 * memory. */
static bool tell_progress(struct admission *a, const struct lease *l, struct cache_leased *out)
{
	struct gpu *g = a->want.gpu;
	const struct cache_wait *w = a->wait;
	bool coming = false, marked = w && w->marked, overtakes = true;
	uint64_t from, to;
	uint32_t base;

	if (g)
		vram_tail(g, &from, &to);
	for (uint32_t i = 0; g && i < l->count; i++) {
		const struct vram_slot *s = vram_place_slot(l->block[i], &a->want);

		if (!s || s->state != VRAM_COMING)
			continue;
		coming = true;
		marked = marked && s->order <= w->marked;
		overtakes = overtakes && (s->order < from || s->order >= to);
	}
	if (!coming)
		return true;
	out->progress_page_layers = vram_layers_most(a->pools, a->layouts);
	if (marked)
		base = w->fence_base;
	else if (!vram_fence(g, a->want.progress_page, out->progress_page_layers, overtakes, &base))
		return false;
	out->progress_page_word = g->number;
	out->progress_page_base = base;
	out->progress_page_summed = a->cache->options.gpu_verify_up;
	return true;
}

/* Leaves in l the blocks that a lease of the first n keys uses, the longest prefix. */
static enum status admit_find(struct admission *a, const struct session *s, uint32_t n, struct lease *l,
			      const char **why)
{
	struct cache *c = a->cache;
	struct quota_wish pins[PINS_WISHES];
	uint64_t bytes, gpu_bytes;
	enum status status;

	*why = a->all ? "not every key is present" : "no prefix is present";
	if (n == 0 || (a->all && n < a->keys->count)) {
		cache_count(c, COUNTER_LEASE_MISSES, 1);
		return STATUS_MISS;
	}
	bytes = admit_trim(a, n, l, &gpu_bytes);
	status = lease_ask(c, s, pins, pins_wish(c, session_tenant(s), bytes, a->want.gpu, gpu_bytes, pins), why);
	if (status)
		cache_count(c, COUNTER_LEASE_EXHAUSTED, 1);
	return status;
}

/* A plain session's call may begin inside a chain without saying so. Its first block in memory has in its header where
 * it lies, if the call that stored it said so. Engines can write the header: it only decides under which segment their
 * own tenant's blocks are told of. */
static void lease_begins(const struct admission *a, const struct lease *l, struct cache_keys *keys,
			 struct slot_info *info)
{
	uint32_t cell = 0;

	while (cell < keys->count * a->layouts && !(l->block[cell] && l->block[cell]->span))
		cell++;
	if (cell == keys->count * a->layouts)
		return;
	const struct slot_header *h = (const struct slot_header *)block_slot_at(l->block[cell]);
	const uint64_t first = h->position / a->pools[0]->layout.block_tokens, key = cell / a->layouts;

	if (first > key && first < UINT32_MAX)
		keys->first = (uint32_t)(first - key);
	info->parent_bytes = h->parent_bytes;
	if (key || info->parent_bytes > SLOT_KEY_MAX)
		info->parent_bytes = 0;
	memcpy(info->parent, h->parent, info->parent_bytes);
}

/* Other members are told of what a lease of the first n keys uses: of l->block as admit_find leaves it. */
static void lease_exports(const struct admission *a, uint32_t n, const struct lease *l)
{
	struct cache_keys keys = keys_slice(a->keys, 0, n);
	struct slot_info info = { .parent_bytes = 0 };

	if (!keys.grid && !keys.first)
		lease_begins(a, l, &keys, &info);
	exports_named(a->cache, &(struct export_chain){ .pools = a->pools,
							.layouts = a->layouts,
							.keys = &keys,
							.parent = info.parent_bytes ? info.parent : NULL,
							.parent_bytes = info.parent_bytes,
							.used = l->block });
}

/* *lp may move; with OK it is recorded, and no longer the caller's. */
static enum status admit(struct admission *a, struct session *s, struct lease **lp, struct cache_place *places,
			 struct cache_leased *out, const char **why)
{
	struct cache *c = a->cache;
	const bool wait = (c->tier || c->vram || c->sources_by_name) && wait_wanted(a->wait);
	struct lease *l = *lp;
	uint32_t fit = a->keys->count, n = admit_prefix(a, fit, wait, l);
	enum status status = STATUS_BUSY;
	bool comes = false;

	if (wait && c->sources_by_name && !a->local && n < fit) {
		comes = arrivals_begin(a, l);
		n = admit_prefix(a, fit, wait, l); /* what comes may have taken slots of these blocks */
	}
	if (!comes || n)
		status = admit_find(a, s, n, l, why);
	while (!status && a->want.gpu && !wait && (fit = bring_now(a, n, l->block)) < n) {
		const struct cache_keys first = keys_slice(a->keys, 0, fit);

		blocks_find(c, a->pools, a->layouts, &first, l->block);
		n = admit_prefix(a, fit, wait, l);
		status = admit_find(a, s, n, l, why);
	}
	if (status)
		return status;
	if ((wait && bring_begin(a, n, l->block, RING_URGENT, !a->want.progress_page)) || comes)
		return STATUS_BUSY;
	*out = (struct cache_leased){ .blocks = n, .layouts = a->layouts };
	if (c->exports)
		lease_exports(a, n, l);
	admit_pin(n * a->layouts, &a->want, a->pinned, l, places);
	*why = "no memory for the lease";
	if (!tell_progress(a, l, out)) {
		lease_unpin(l);
		return STATUS_EXHAUSTED;
	}
	l = *lp = admit_shrink(l);
	*why = "no random numbers from the kernel for the lease's handle";
	if (lease_record(c, s, l, c->now_us)) { /* there is room: admit_find has looked */
		lease_unpin(l);
		return STATUS_EXHAUSTED;
	}
	out->lease = l->handle;
	if (a->deferred) {
		c->deferred[atomic_fetch_add_explicit(&c->deferred_count, 1, memory_order_relaxed)] = l;
	} else {
		lease_use(c, l);
		graph_feed_lease(c, s, l);
	}
	return STATUS_OK;
}

enum status admit_want(struct admission *admission, const struct cache_on *on, const char **why)
{
	struct vram_want *want = &admission->want;
	struct cache *c = admission->cache;
	const struct attachment *a;
	bool fits;

	*want = (struct vram_want){ .or_host = on->or_host, .may_begin = true };
	if (on->gpu < 0)
		return STATUS_OK;
	want->gpu = vram_gpu(c, (uint32_t)on->gpu);
	*why = "the daemon has no such GPU";
	if (!want->gpu)
		return STATUS_INVALID;
	*why = "the GPU is lost";
	if (want->gpu->lost && !on->or_host)
		return STATUS_UNAVAILABLE;
	fits = want->gpu->lost || fit_gpu(c, want->gpu, admission->pools, admission->layouts, why);
	if (!fits && !on->or_host)
		return STATUS_INVALID;
	a = attachment_find(c, on->attachment);
	if (a && a->progress_page && progress_page_tells(a->progress_page, want->gpu))
		want->progress_page = a->progress_page;
	if (want->gpu->lost || !fits)
		want->gpu = NULL;
	return STATUS_OK;
}

/* Tells the advice of the lease's request. Once a lease, at its first call. In a read section. */
static void lease_advise(struct cache *c, uint64_t session, struct layout_pool *const *pools, uint32_t layouts,
		      const struct cache_keys *k, struct block *const *found)
{
	const uint32_t l = k->grid ? k->grid->main : 0;
	uint32_t n = k->count;
	uint16_t turn;

	while (n && !found[(size_t)(n - 1) * layouts + l])
		n--;
	turn = n ? atomic_load_explicit(&found[(size_t)(n - 1) * layouts + l]->turn, memory_order_relaxed) : 0;
	const struct asking q = { .kind = REQUEST_LEASE, .session = session, .turn = turn_after(turn, n < k->count) };

	advice_ask(c, &q, pools, layouts, k);
}

void cache_lease_announce(struct cache *c)
{
	vram_lease_announce(c);
}

/* One path from the checks to the reply, whose steps share most of the locals. The checks come first. Then, in one read
 * section, the blocks are searched without the lock, and the lease is admitted under it. A repeated call (w->stage)
 * searches again, since blocks have moved meanwhile. */
enum status cache_lease(struct cache *c, const struct cache_lease_call *q, struct cache_leased *out,
			struct cache_wait *w, const char **why)
{
	const struct cache_on *on = q->on ? q->on : &cache_on_host;
	struct layout_pool *pools[CACHE_LAYOUTS_MAX];
	struct grid grid;
	uint32_t layouts = session_shape(c, q->session, pools, &grid);
	const struct cache_keys with_grid = keys_on(q->keys, layouts ? &grid : NULL), *k = &with_grid;
	struct admission a = {
		.cache = c,
		.pools = pools,
		.layouts = layouts,
		.keys = k,
		.wait = w,
		.all = q->all,
		.deferred = on->deferred && on->gpu >= 0,
	};
	enum status status = STATUS_NOT_FOUND;
	struct session *s;
	struct gpu *announced = NULL;
	struct lease *l;

	*why = "no such session: it was never opened, or it has ended";
	if (!layouts)
		return status;
	*why = cache_keys_problem(k, layouts);
	if (!*why && (uint64_t)k->count * layouts > q->places_max)
		*why = "no room for the places";
	if (*why)
		return STATUS_INVALID;
	*why = "the daemon is draining";
	if (cache_draining(c))
		return STATUS_UNAVAILABLE;
	*why = "no memory for the lease";
	l = lease_alloc(k->count * layouts);
	if (!l)
		return STATUS_EXHAUSTED;
	l->call = on->call;
	l->main = k->grid ? pools[grid.main] : NULL;
	index_read_lock();
	if (!w || !w->stage) {
		const struct vram_search search = { on->gpu, pools, layouts, k, l->block };

		announced = vram_find(c, &search);
		vram_lease_brings(c, on->gpu, announced);
		lease_advise(c, q->session, pools, layouts, k, l->block);
	} else {
		blocks_find(c, pools, layouts, k, l->block);
	}
	cache_lock(c);
	s = session_call(c, q->session, q->now_us, why);
	if (s) {
		session_on_gpu(s, on->gpu);
		a.local = s->local;
		a.tokens_a_second = s->tokens_a_second;
	}
	a.deferred &= atomic_load_explicit(&c->deferred_count, memory_order_relaxed) < LEASES_DEFERRED;
	if (!a.deferred) {
		deferred_notify(c);
		advice_read(c, READ_A_CALL);
	}
	if (s) {
		status = STATUS_PRECONDITION;
		*why = attachment_problem(c, s, on->attachment);
		if (!*why)
			status = admit_want(&a, on, why);
		if (!status)
			status = wait_goes_on(w) ? STATUS_BUSY : admit(&a, s, &l, q->places, out, why);
		/* If nothing is under way any more, no event would come to repeat the call. */
		while (status == STATUS_BUSY && !w->outstanding) {
			blocks_find(c, pools, layouts, k, l->block);
			status = admit(&a, s, &l, q->places, out, why);
		}
	}
	if (a.deferred && status)
		advice_read(c, READ_A_CALL);
	cache_unlock(c);
	vram_call_ended(announced);
	index_read_unlock();
	if (status)
		free(l);
	return status;
}

enum status cache_release(struct cache *c, uint64_t session, uint64_t lease)
{
	enum status status = STATUS_OK;
	struct lease *l;

	cache_lock(c);
	l = handles_find(&c->grants->leases, lease);
	if (!l || l->session->handle != session) {
		status = STATUS_NOT_FOUND;
	} else {
		atomic_store_explicit(&l->session->called, true, memory_order_relaxed);
		lease_end(c, l);
		cache_count(c, COUNTER_RELEASES, 1);
	}
	cache_unlock(c);
	return status;
}

static struct reservation *reservation_of_call(const struct session *s, uint64_t call)
{
	struct reservation *r = s->reservations;

	while (r && (r->call != call || r->committing))
		r = r->next;
	return r;
}

void cache_recall(struct cache *c, uint64_t session, uint64_t call)
{
	struct reservation *r;
	const char *why;
	struct session *s;
	struct lease *l;

	cache_lock(c);
	s = session_get(c, session, &why);
	while (s && (l = lease_of_call(s, call))) {
		lease_end(c, l);
		cache_count(c, COUNTER_RELEASES, 1);
	}
	while (s && (r = reservation_of_call(s, call))) {
		reservation_end(c, r);
		cache_count(c, COUNTER_ABORTS, 1);
	}
	cache_unlock(c);
}
