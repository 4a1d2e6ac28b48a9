/* Lookups, and the rule of prefixes.
 *
 * A prefix of p blocks is usable in a layout when the blocks are present that the next token attends to: all p of them,
 * or, with a sliding window of w tokens (the next token itself included), those that cover the last w - 1 tokens before
 * it. The answer is the longest p usable in every layout.
 *
 * A lookup takes no lock: it copies the session's pools, searches in a read section, and reads of a record only whether
 * it is there, and in which tiers.
 */
#include "daemon/call/lookup.h"

#include "daemon/advice/graph.h"
#include "daemon/advice/request.h"
#include "daemon/block/block.h"
#include "daemon/block/grid.h"
#include "daemon/block/key.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/source.h"
#include "daemon/block/values.h"
#include "daemon/call/admission.h"
#include "daemon/call/arrival.h"
#include "daemon/directory/segment.h"
#include "daemon/exports/exports.h"
#include "daemon/session/lease.h"
#include "daemon/session/session.h"
#include "eviction/policy.h"
#include "store/slot.h"

#include <stdlib.h>
#include <string.h>

enum { STATE_NO_CELL = 4 };

static uint8_t state_of(struct index_record *r)
{
	uint8_t where = atomic_load_explicit(&block_of(r)->where, memory_order_relaxed);

	return where & BLOCK_IN_MEMORY ? 1 : where & BLOCK_ON_GPU ? 3 : 2;
}

/* Looks up one layout. Without states, it searches no further than the answer needs. */
static void lookup_layout(struct cache *c, const struct layout_pool *pool, const struct cache_keys *k,
			  struct prefix *p, uint8_t *states, uint32_t stride)
{
	struct index_record *found[FIND_BATCH];
	struct prefix_run run;

	prefix_layout(&run, pool);
	for (uint32_t at = 0; at < (states ? k->count : p->limit); at += FIND_BATCH) {
		uint32_t left = (states ? k->count : p->limit) - at,
			 n = left < FIND_BATCH ? left : FIND_BATCH;

		index_find_many(c->index, pool->tenant->number, pool->layout_id,
				k->bytes + (size_t)at * k->key_bytes, k->key_bytes, n, found);
		for (uint32_t i = 0; i < n; i++) {
			prefix_feed(p, &run, found[i] ? block_of(found[i]) : NULL);
			if (states)
				states[(size_t)(at + i) * stride] = found[i] ? state_of(found[i]) : 0;
		}
	}
}

/* Looks up layout l of a session with a grid. Without states, it searches no further than the answer needs. */
static void lookup_cells(struct cache *c, const struct layout_pool *pool, uint32_t l, const struct cache_keys *k,
			 struct prefix *p, uint8_t *states)
{
	struct cache_keys asked = *k;
	const struct grid_rule *rule = &k->grid->rule[l];
	const uint32_t layouts = k->grid->layouts;
	struct index_record *found[FIND_BATCH];
	uint8_t bytes[FIND_BATCH * SLOT_KEY_MAX];
	uint32_t index[FIND_BATCH];
	struct grid_run run;

	asked.count = states ? k->count : p->limit;
	grid_run_begin(&run, rule, k->first);
	for (uint32_t i = 0; states && i < k->count; i++)
		states[(size_t)i * layouts + l] = grid_has_cell(rule, (uint64_t)k->first + i) ? 0 : STATE_NO_CELL;
	for (uint32_t at = 0; at < asked.count;) {
		uint32_t n = cells_gather(&asked, rule, &at, bytes, index);

		if (n)
			index_find_many(c->index, pool->tenant->number, pool->layout_id, bytes, k->key_bytes, n, found);
		for (uint32_t i = 0; i < n; i++) {
			const bool there = found[i] && cell_fits(k, l, index[i], block_of(found[i]));

			while (run.at < index[i])
				grid_run_feed(p, &run, false, false);
			grid_run_feed(p, &run, there, there && cell_falls_short(rule, block_of(found[i])));
			if (states && there)
				states[(size_t)index[i] * layouts + l] = state_of(found[i]);
		}
	}
	while (run.at < asked.count)
		grid_run_feed(p, &run, false, false);
}

/* Of the first `prefix` keys: up to the last that has a block in the layout that stands for the chain. */
static uint32_t chain_end(const struct cache_keys *k, uint32_t prefix)
{
	const struct grid_rule *rule = &k->grid->rule[k->grid->main];

	while (prefix && !grid_has_cell(rule, (uint64_t)k->first + prefix - 1))
		prefix--;
	return prefix;
}

/* In a read section: the turn of the prefix's last block, 0 if not known; and whether that block is on a disk alone.
 * Ends of chains leave memory first. */
static uint16_t turn_of(struct cache *c, struct layout_pool *const *pools, const struct cache_keys *k, uint32_t prefix,
			bool *on_disk)
{
	const struct layout_pool *pool = pools[k->grid ? k->grid->main : 0];
	struct index_record *found = NULL;

	if (k->grid)
		prefix = chain_end(k, prefix);
	if (prefix)
		index_find_many(c->index, pool->tenant->number, pool->layout_id,
				k->bytes + (size_t)(prefix - 1) * k->key_bytes, k->key_bytes, 1, &found);
	*on_disk = found && block_is(block_of(found), BLOCK_ON_DISK) &&
		   !block_is(block_of(found), BLOCK_IN_MEMORY | BLOCK_ON_GPU);
	return found ? atomic_load_explicit(&block_of(found)->turn, memory_order_relaxed) : 0;
}

enum status cache_lookup(struct cache *c, uint64_t session, const struct cache_keys *keys, uint32_t *prefix,
			 uint8_t *states, uint32_t states_max, const char **why)
{
	struct layout_pool *pools[CACHE_LAYOUTS_MAX];
	struct grid grid;
	uint32_t layouts = session_shape(c, session, pools, &grid);
	const struct cache_keys with_grid = keys_on(keys, layouts ? &grid : NULL), *k = &with_grid;
	struct prefix p;
	bool on_disk;
	uint16_t turn;

	*why = "no such session: it was never opened, or it has ended";
	if (!layouts)
		return STATUS_NOT_FOUND;
	*why = cache_keys_problem(k, layouts);
	if (*why)
		return STATUS_INVALID;
	*why = "no room for the states";
	if (states && (uint64_t)k->count * layouts > states_max)
		return STATUS_INVALID;
	prefix_begin(&p, k->count);
	index_read_lock();
	for (uint32_t l = 0; l < layouts; l++)
		if (k->grid)
			lookup_cells(c, pools[l], l, k, &p, states);
		else
			lookup_layout(c, pools[l], k, &p, states ? states + l : NULL, layouts);
	*prefix = prefix_longest(&p);
	turn = turn_of(c, pools, k, *prefix, &on_disk);
	index_read_unlock();
	const struct asking q = { .kind = REQUEST_LOOKUP, .session = session, .present = *prefix,
				  .turn = turn_after(turn, *prefix < k->count) };

	advice_ask(c, &q, pools, layouts, k);
	if (on_disk)
		advisor_wake(c);
	cache_count(c, COUNTER_LOOKUPS, 1);
	cache_count(c, COUNTER_LOOKUP_KEYS, k->count);
	cache_count(c, COUNTER_LOOKUP_HITS, *prefix);
	return STATUS_OK;
}

/* Whether other members may have blocks behind the prefix: the first and the last of those that members are told of are
 * looked for in what the sources know. Without the lock, so that a lookup of what no member has costs little. */
static bool may_be_elsewhere(struct cache *c, struct layout_pool *const *pools, const struct cache_keys *k,
			     uint32_t prefix)
{
	const uint32_t l = k->grid ? k->grid->main : 0;
	struct run_key key[2];
	struct key_run run = { 0, key };
	uint8_t word[2];

	for (uint32_t i = prefix; i < k->count; i++) {
		const uint64_t position = (uint64_t)k->first + i, begins = segment_first(segment_of(position));
		struct run_key *at = &key[run.count ? 1 : 0];

		if (!exports_told(k->grid, position) || begins < k->first)
			continue;
		*at = (struct run_key){ .pool = pools[l], .told = true,
					.segment_key = k->bytes + (begins - k->first) * k->key_bytes };
		block_ident(pools[l], k->bytes + (size_t)i * k->key_bytes, k->key_bytes, &at->name);
		run.count = run.count ? 2 : 1;
	}
	for (uint32_t s = 0; run.count && s < c->source_count; s++) {
		if (!(c->sources_by_name >> s & 1))
			continue;
		c->sources[s]->ops->known(c, c->sources[s], &run, word);
		for (uint32_t i = 0; i < run.count; i++)
			if (word[i] != SOURCE_NOT)
				return true;
	}
	return false;
}

bool cache_lookup_asks(struct cache *c, uint64_t session, const struct cache_keys *keys, uint32_t prefix,
		       uint64_t now_us)
{
	struct layout_pool *pools[CACHE_LAYOUTS_MAX];
	struct grid grid;
	uint32_t layouts = session_shape(c, session, pools, &grid);
	const struct cache_keys with_grid = keys_on(keys, layouts ? &grid : NULL);
	struct admission a = { .cache = c, .pools = pools, .layouts = layouts, .keys = &with_grid };
	const struct session *s;
	struct lease *none;
	bool asks = false;

	if (!layouts || !may_be_elsewhere(c, pools, &with_grid, prefix))
		return false;
	none = lease_alloc(keys->count * layouts);
	if (!none)
		return false;
	index_read_lock();
	blocks_find(c, pools, layouts, &with_grid, none->block);
	cache_lock(c);
	cache_time(c, now_us);
	s = session_find(c, session);
	if (s && !s->local)
		asks = arrivals_ask(&a, none);
	cache_unlock(c);
	index_read_unlock();
	free(none);
	return asks;
}

/* A use of the keys in every layout; *found counts the keys that some layout has. */
static enum status use_keys(struct cache *c, uint64_t session, const struct cache_keys *keys, uint64_t now_us,
			    uint32_t *found, const char **why)
{
	struct layout_pool *pools[CACHE_LAYOUTS_MAX];
	struct grid grid;
	uint32_t layouts = session_shape(c, session, pools, &grid), hits = 0;
	const struct cache_keys with_grid = keys_on(keys, layouts ? &grid : NULL), *k = &with_grid;
	struct grid_need need[CACHE_LAYOUTS_MAX];
	struct block *blocks[CACHE_LAYOUTS_MAX];

	*why = "no such session: it was never opened, or it has ended";
	if (!layouts)
		return STATUS_NOT_FOUND;
	*why = cache_keys_problem(k, layouts);
	if (*why)
		return STATUS_INVALID;
	index_read_lock();
	for (uint32_t i = k->count; i > 0; i--) {
		const struct cache_keys one = keys_slice(k, i - 1, 1);
		bool hit = false;

		blocks_find(c, pools, layouts, &one, blocks);
		for (uint32_t l = 0; i == k->count && k->grid && l < layouts; l++)
			grid_need(&grid.rule[l], k->first, k->count, cell_falls_short(&grid.rule[l], blocks[l]), &need[l]);
		cache_lock(c);
		cache_time(c, now_us);
		for (uint32_t l = 0; l < layouts; l++)
			if (blocks[l] && block_live(blocks[l]) && (!k->grid || grid_needs(&need[l], one.first))) {
				block_use(c, blocks[l]);
				hit = true;
			}
		cache_unlock(c);
		hits += hit;
	}
	index_read_unlock();
	cache_count(c, COUNTER_TOUCHED, hits);
	*found = hits;
	return STATUS_OK;
}

uint64_t cache_load_bytes_s(struct cache *c)
{
	return atomic_load_explicit(&c->load_bytes_s, memory_order_relaxed);
}

enum status cache_touch(struct cache *c, uint64_t session, const struct cache_keys *k, uint64_t now_us,
			uint32_t *found, const char **why)
{
	return use_keys(c, session, k, now_us, found, why);
}

enum status cache_report(struct cache *c, uint64_t session, const struct cache_keys *keys,
			 const struct cache_hint *hint, uint64_t now_us, const char **why)
{
	static const enum counter counters[] = { COUNTER_EVENT_NONE, COUNTER_EVENT_TURN_END,
						 COUNTER_EVENT_TOOL_CALL, COUNTER_EVENT_SESSION_END };
	static const enum policy_hint hints[] = { POLICY_HINT_NONE, POLICY_HINT_TURN, POLICY_HINT_TOOL, POLICY_HINT_END };
	const enum cache_event event = hint->event;
	const int32_t priority = hint->priority;
	const uint64_t ttl_ms = hint->ttl_ms;
	struct layout_pool *pools[CACHE_LAYOUTS_MAX];
	struct grid grid;
	uint32_t found, layouts = session_shape(c, session, pools, &grid);
	const struct cache_keys with_grid = keys_on(keys, layouts ? &grid : NULL), *k = &with_grid;
	enum status s;

	*why = "unknown event";
	if ((unsigned)event >= sizeof(counters) / sizeof(counters[0]))
		return STATUS_INVALID;
	/* The uses that follow are told as this report's. */
	if (layouts && !cache_keys_problem(k, layouts) && (event != CACHE_EVENT_NONE || priority || ttl_ms)) {
		const struct asking q = {
			.kind = REQUEST_REPORT, .session = session, .hint = hints[event],
			.ttl_s = ttl_ms / 1000 < UINT32_MAX ? (uint32_t)((ttl_ms + 999) / 1000) : UINT32_MAX,
			.priority = priority > 0 ? POLICY_PRIORITY_HIGH : priority < 0 ? POLICY_PRIORITY_LOW : POLICY_PRIORITY_NORMAL,
		};

		advice_ask(c, &q, pools, layouts, k);
		index_read_lock();
		cache_lock(c);
		cache_time(c, now_us);
		advice_read(c, READ_A_CALL);
		cache_unlock(c);
		index_read_unlock();
	}
	s = use_keys(c, session, k, now_us, &found, why);
	if (!s)
		cache_count(c, counters[event], 1);
	return s;
}
