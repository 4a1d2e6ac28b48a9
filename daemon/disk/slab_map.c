/* Slab maps: whose block is in which slot of which slab, what of it was flushed, and when it was used last. Which slot
 * a block gets, and what leaves a full disk, is decided in disk/place.c. */
#include "daemon/disk/slab_map.h"

#include "daemon/block/block.h"
#include "daemon/block/by_id.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/lock.h"
#include "daemon/block/observer.h"
#include "daemon/block/policy_room.h"
#include "daemon/block/tier.h"
#include "daemon/block/unwritten.h"
#include "daemon/disk/open.h"
#include "daemon/disk/state.h"
#include "eviction/policy.h"
#include "store/class_rule.h"
#include "store/crash_point.h"
#include "store/slab/disk.h"

#include <stdlib.h>

static struct slab_map **bucket_of(struct unit *u, uint32_t slab)
{
	return &u->slab_map_hash[slab % SLAB_MAP_BUCKETS];
}

struct slab_map *slab_map_find(struct unit *u, uint32_t slab)
{
	struct slab_map *r = *bucket_of(u, slab);

	while (r && r->slab != slab)
		r = r->hash_next;
	return r;
}

struct disk_class *class_get(struct cache *c, struct unit *u, uint64_t slot_bytes)
{
	struct disk_class *k = u->classes;

	while (k && k->slot_bytes != slot_bytes)
		k = k->next;
	if (k)
		return k;
	k = calloc(1, sizeof(*k));
	if (!k)
		return NULL;
	k->policy_room = u->options->bytes / slot_bytes;
	k->policy = policy_create(c->tier->policy, k->policy_room, c->options.recompute_growth);
	if (!k->policy) {
		free(k);
		return NULL;
	}
	observe_policy_made(c, &(struct learner){ 'd', u->id, slot_bytes, c->tier->policy, k->policy });
	k->unit = u;
	k->failed = u->failed;
	k->slot_bytes = slot_bytes;
	k->next = u->classes;
	u->classes = k;
	return k;
}

struct disk_class *class_joined(const struct unit *u, uint64_t need_bytes)
{
	struct disk_class *k, *found = NULL;
	uint64_t best = 0;
	uint32_t count = 0;

	for (k = u->classes; k; k = k->next)
		count++;
	for (k = u->classes; k; k = k->next) {
		const uint64_t better = class_rule_better(best, k->slot_bytes, need_bytes, count >= CLASS_RULE_MOST);

		if (better != best)
			found = k;
		best = better;
	}
	return found;
}

struct disk_class *class_for(struct cache *c, struct unit *u, uint64_t need_bytes)
{
	struct disk_class *k = class_joined(u, need_bytes);

	return k ? k : class_get(c, u, need_bytes);
}

/* Numbers of slabs rise, so a new one mostly goes last. */
static void slab_map_order(struct unit *u, struct slab_map *r)
{
	struct slab_map **at = &u->slab_maps;

	if (u->last_slab_map && u->last_slab_map->slab < r->slab)
		at = &u->last_slab_map->slab_next;
	while (*at && (*at)->slab < r->slab)
		at = &(*at)->slab_next;
	r->slab_next = *at;
	*at = r;
	if (!r->slab_next)
		u->last_slab_map = r;
}

static void slab_map_unorder(struct unit *u, struct slab_map *r)
{
	struct slab_map **at = &u->slab_maps, *before = NULL;

	while (*at != r) {
		before = *at;
		at = &before->slab_next;
	}
	*at = r->slab_next;
	if (u->last_slab_map == r)
		u->last_slab_map = before;
}

struct slab_map *slab_map_get(struct cache *c, struct unit *u, uint32_t slab)
{
	struct slab_map *r = slab_map_find(u, slab), **at;
	struct disk_slab_view v;
	struct disk_class *k;

	if (r)
		return r;
	if (!slab || !disk_slab_next(u->disk, slab - 1, &v) || v.slab != slab || v.slots >= SLAB_MAP_SLOTS_MAX)
		return NULL;
	k = class_get(c, u, v.slot_bytes);
	r = k ? calloc(1, sizeof(*r) + v.slots * sizeof(r->at[0])) : NULL;
	if (!r)
		return NULL;
	r->class = k;
	r->slab = slab;
	r->slots = v.slots;
	k->slots += v.slots;
	for (at = &k->slab_maps; *at && (*at)->slab < slab;)
		at = &(*at)->next;
	r->next = *at;
	*at = r;
	r->hash_next = *bucket_of(u, slab);
	*bucket_of(u, slab) = r;
	slab_map_order(u, r);
	return r;
}

void slab_map_free(struct cache *c, struct slab_map *r)
{
	struct slab_map **at = &r->class->slab_maps;

	(void)c;
	r->class->slots -= r->slots;
	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	at = bucket_of(r->class->unit, r->slab);
	while (*at != r)
		at = &(*at)->hash_next;
	*at = r->hash_next;
	slab_map_unorder(r->class->unit, r);
	free(r);
}

void slab_maps_free(struct cache *c, struct unit *u)
{
	struct disk_class *k, *next;

	for (k = u->classes; k; k = next) {
		next = k->next;
		while (k->slab_maps)
			slab_map_free(c, k->slab_maps);
		c->tier->policy->destroy(k->policy);
		for (struct class_cold *l = k->cold, *after; l; l = after) {
			after = l->next;
			free(l);
		}
		free(k->departures);
		free(k);
	}
	u->classes = NULL;
}

bool slab_map_idle(const struct slab_map *r)
{
	for (uint32_t i = 0; i < r->slots && r->transfers == 0; i++)
		if (r->at[i].block && (block_pins(r->at[i].block) || r->at[i].block->moving))
			return false;
	return r->transfers == 0;
}

static struct slab_map_slot *slot_of(const struct block *b)
{
	return &b->slab_map->at[b->slab_map_slot];
}

static void slab_map_used(struct cache *c, const struct block *b)
{
	b->slab_map->newest = ++c->tier->uses;
	b->slab_map->newest_us = slot_of(b)->node.last_use_us;
}

void slab_map_unusable(struct cache *c, struct block *b, bool is)
{
	if (b->slab_map)
		policy_demote(c->tier->policy, b->slab_map->class->policy, &slot_of(b)->node, is);
}

/* position: of its first token. */
static void policy_tell(struct cache *c, const struct block *b, uint64_t position)
{
	const struct policy_event e = {
		.now_us = c->now_us, .id = b->node.id, .tokens = b->tokens, .role = b->role,
		.position = position / b->pool->layout.block_tokens, .moved = true,
	};

	c->tier->policy->insert(b->slab_map->class->policy, &slot_of(b)->node, &e);
	if (b->unusable)
		policy_demote(c->tier->policy, b->slab_map->class->policy, &slot_of(b)->node, true);
	slab_map_used(c, b);
}

void slab_map_renew(struct cache *c, struct block *b, uint64_t position)
{
	c->tier->policy->remove(b->slab_map->class->policy, &slot_of(b)->node);
	policy_tell(c, b, position);
}

bool block_flushed(const struct block *b)
{
	return b->flushed || b->generation <= b->pool->flushed_generation;
}

void slab_map_promise(struct slab_map *r, uint32_t slot)
{
	if (r->promised)
		return;
	r->promised = true;
	r->promised_slot = slot;
}

/* From the last slot on: of a slab's blocks the first are displaced first, and what was found is to last. */
bool slab_map_promised(struct slab_map *r)
{
	for (uint32_t i = r->slots; i > 0 && !r->promised; i--)
		if (r->at[i - 1].block && block_flushed(r->at[i - 1].block))
			slab_map_promise(r, i - 1);
	return r->promised;
}

uint64_t slab_map_tenant(const struct cache *c, const struct tenant *t)
{
	return 1ull << (t - c->tenants) % 64;
}

void slab_map_attach(struct cache *c, struct slab_map *r, uint32_t slot, struct block *b, uint64_t position)
{
	block_no_spill(b, false);
	CRASH_POINT("slab_map_attach");
	b->slab_map = r;
	b->slab_map_slot = slot;
	b->slab_map_known = false;
	r->at[slot].block = b;
	r->blocks++;
	r->tenants |= slab_map_tenant(c, b->pool->tenant);
	r->class->blocks++;
	if (block_flushed(b))
		slab_map_promise(r, slot);
	else if (!r->promised)
		c->tier->all_promised = false;
	if (b->generation > c->tier->attached_generation)
		c->tier->attached_generation = b->generation;
	b->pool->disk_blocks++;
	b->pool->tenant->disk_bytes += r->class->slot_bytes;
	where_set(b, BLOCK_ON_DISK, true);
	unwritten_set(b, false);
	tiers_copies_changed(c, b, TIER_DISK, true);
	policy_tell(c, b, position);
}

enum status block_adopt(struct cache *c, struct block *b, struct slab_map *slab_map, uint32_t slot, uint64_t position)
{
	const struct index_ident name = block_name(b);
	enum status s;

	b->node.id = block_id(&name);
	where_set(b, BLOCK_ON_DISK, true);
	s = index_insert(c->index, &b->record, NULL);
	if (s)
		return s;
	by_id_add(c, b);
	CRASH_POINT("block_adopt");
	slab_map_attach(c, slab_map, slot, b, position);
	observe_stored(c, b);
	return STATUS_OK;
}

void slab_map_unverified(struct block *b, bool is)
{
	const uint64_t one = is ? 1 : -1ull;

	if (b->unverified == is)
		return;
	b->unverified = is;
	b->pool->unverified += one;
	b->slab_map->class->unit->unverified += one;
}

void slab_map_detach(struct cache *c, struct block *b)
{
	struct slab_map *r = b->slab_map;

	slab_map_unverified(b, false);
	c->tier->policy->remove(r->class->policy, &slot_of(b)->node);
	CRASH_POINT("slab_map_detach");
	slot_of(b)->block = NULL;
	if (r->promised && r->promised_slot == b->slab_map_slot)
		r->promised = c->tier->all_promised = false;
	r->blocks--;
	r->class->blocks--;
	b->pool->disk_blocks--;
	b->pool->tenant->disk_bytes -= r->class->slot_bytes;
	b->slab_map = NULL;
	where_set(b, BLOCK_ON_DISK, false);
	unwritten_set(b, block_live(b));
	tiers_copies_changed(c, b, TIER_DISK, false);
	if (b->span && block_live(b) && !b->moving)
		b->pool->dirty++;
}

void slab_map_use(struct cache *c, struct block *b)
{
	struct policy_node *n = &slot_of(b)->node;
	const struct policy_event e = { .now_us = c->now_us, .id = n->id, .tokens = b->tokens, .role = b->role };

	c->tier->policy->use(b->slab_map->class->policy, n, &e);
	slab_map_used(c, b);
}

void slab_map_rooms_tell(struct cache *c)
{
	for (uint32_t i = 0; i < c->tier->unit_count; i++) {
		struct unit *u = &c->tier->units[i];
		struct disk_view v;
		uint64_t unused;

		disk_look(u->disk, &v);
		unused = v.budget_bytes > v.slab_bytes_used ? v.budget_bytes - v.slab_bytes_used : 0;
		for (struct disk_class *k = u->classes; k; k = k->next)
			room_tell(c->tier->policy, k->policy, k->slots + unused / k->slot_bytes, &k->policy_room);
	}
}

void slab_maps_prune(struct cache *c, struct unit *u)
{
	struct disk_slab_view v;

	for (struct slab_map *r = u->slab_maps, *next; r; r = next) {
		next = r->slab_next;
		if (r->blocks || r->transfers || r->leaving)
			continue;
		if (!disk_slab_next(u->disk, r->slab - 1, &v) || v.slab != r->slab)
			slab_map_free(c, r);
	}
}

/* ---- failure ---- */

/* An error that is not the disk's fault (a lack of memory) failed the request alone: its slots are sound, and would not
 * be wiped before they are used again. */
void unit_failed(struct cache *c, struct unit *u)
{
	struct disk_view v;

	disk_look(u->disk, &v);
	if (u->failed || v.health != DISK_QUARANTINED)
		return;
	u->failed = true;
	for (struct disk_class *k = u->classes; k; k = k->next)
		k->failed = true;
	u->banned = unit_ban(c->tier, u);
}

void unit_sweep_anew(struct unit *u)
{
	u->sweep = 0;
	u->swept = false;
}

/* ---- walks ---- */

static struct slab_map *slab_map_from(struct unit *u, uint32_t slab)
{
	struct slab_map *r = slab_map_find(u, slab);

	for (r = r ? r : u->slab_maps; r && r->slab < slab;)
		r = r->slab_next;
	return r;
}

struct block *unit_next_block(struct unit *u, uint64_t *cursor, uint32_t *budget)
{
	uint32_t slab = (uint32_t)(*cursor >> SLAB_MAP_CURSOR_BITS), slot = *cursor & (SLAB_MAP_SLOTS_MAX - 1);
	struct slab_map *r = slab_map_from(u, slab);

	if (r && r->slab != slab)
		slot = 0;
	for (; r; r = r->slab_next, slot = 0) {
		for (; slot < r->slots; slot++) {
			*cursor = slab_map_cursor(u->number, r->slab, slot);
			if (!*budget)
				return NULL;
			--*budget;
			if (r->at[slot].block) {
				++*cursor;
				return r->at[slot].block;
			}
		}
	}
	return NULL;
}
