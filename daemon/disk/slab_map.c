/* Racks: whose block is in which slot of which slab, and who leaves a disk that is full.
 *
 * A slot of a disk is found for a spill in this order: a free one; one of a new slab, which the chores make, since that takes
 * the file system its time; the slot of the coldest block of the same size on that disk. That block's header is overwritten by
 * the spill itself, so displacing costs no write of its own.
 *
 * Slabs go from one size to another when a size has none, and when what another one would give up has been idle much longer (rack_colder):
 * else a disk that one model has filled would be closed to the next.
 */
#include "daemon/disk/slab_map.h"

#include "daemon/advice/policy_store.h"
#include "daemon/block/block.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/disk/state.h"
#include "daemon/memory/evict.h"
#include "daemon/vram/slot_map.h"
#include "eviction/policy.h"
#include "store/crash_point.h"
#include "store/slab/disk.h"
#include "store/status.h"

#include <stdlib.h>

enum {
	DISPLACE_SCAN = 256,
	DISPLACE_SCAN_DEEP = 8192,     /* when all of those are in memory too; after one that found little, not before: */
	DISPLACE_DEEP_US = 50 * 1000,
	FULL_AGAIN_US = 1000 * 1000,   /* budget may have come free meanwhile */
};

static struct rack **bucket_of(struct unit *u, uint32_t slab)
{
	return &u->rack_hash[slab % RACK_BUCKETS];
}

struct rack *rack_find(struct unit *u, uint32_t slab)
{
	struct rack *r = *bucket_of(u, slab);

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
	learned_recall(c, &(struct learner){ 'd', u->id, slot_bytes, c->tier->policy, k->policy });
	k->unit = u;
	k->slot_bytes = slot_bytes;
	k->next = u->classes;
	u->classes = k;
	return k;
}

struct rack *rack_get(struct cache *c, struct unit *u, uint32_t slab)
{
	struct rack *r = rack_find(u, slab), **at;
	struct disk_slab_view v;
	struct disk_class *k;

	if (r)
		return r;
	if (!slab || !disk_slab_next(u->disk, slab - 1, &v) || v.slab != slab || v.slots >= RACK_SLOTS_MAX)
		return NULL;
	k = class_get(c, u, v.slot_bytes);
	r = k ? calloc(1, sizeof(*r) + v.slots * sizeof(r->at[0])) : NULL;
	if (!r)
		return NULL;
	r->class = k;
	r->slab = slab;
	r->slots = v.slots;
	k->slots += v.slots;
	for (at = &k->racks; *at && (*at)->slab < slab;)
		at = &(*at)->next;
	r->next = *at;
	*at = r;
	r->hash_next = *bucket_of(u, slab);
	*bucket_of(u, slab) = r;
	return r;
}

void rack_free(struct cache *c, struct rack *r)
{
	struct rack **at = &r->class->racks;

	(void)c;
	r->class->slots -= r->slots;
	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	at = bucket_of(r->class->unit, r->slab);
	while (*at != r)
		at = &(*at)->hash_next;
	*at = r->hash_next;
	free(r);
}

void racks_free(struct cache *c, struct unit *u)
{
	struct disk_class *k, *next;

	for (k = u->classes; k; k = next) {
		next = k->next;
		while (k->racks)
			rack_free(c, k->racks);
		c->tier->policy->destroy(k->policy);
		free(k);
	}
	u->classes = NULL;
}

static struct rack_slot *slot_of(const struct block *b)
{
	return &b->rack->at[b->rack_slot];
}

static const struct block *block_of_rack_node(const struct policy_node *n)
{
	return ((const struct rack_slot *)((const char *)n - offsetof(struct rack_slot, node)))->block;
}

/* position: of its first token. */
static void policy_tell(struct cache *c, const struct block *b, uint64_t position)
{
	const struct policy_event e = {
		.now_us = c->now_us, .id = b->node.id, .tokens = b->tokens, .role = b->role,
		.position = position / b->pool->layout.block_tokens, .moved = true,
	};

	c->tier->policy->insert(b->rack->class->policy, &slot_of(b)->node, &e);
}

void rack_renew(struct cache *c, struct block *b, uint64_t position)
{
	c->tier->policy->remove(b->rack->class->policy, &slot_of(b)->node);
	policy_tell(c, b, position);
}

void rack_attach(struct cache *c, struct rack *r, uint32_t slot, struct block *b, uint64_t position)
{
	block_unworthy(b, false);
	CRASH_POINT("rack_attach");
	b->rack = r;
	b->rack_slot = slot;
	b->rack_known = false;
	r->at[slot].block = b;
	r->blocks++;
	r->class->blocks++;
	b->pool->disk_blocks++;
	where_set(b, BLOCK_ON_DISK, true);
	if (b->vram)
		vram_sync(b);
	policy_tell(c, b, position);
}

void rack_doubt(struct block *b, bool is)
{
	const uint64_t one = is ? 1 : -1ull;

	if (b->doubted == is)
		return;
	b->doubted = is;
	b->pool->doubted += one;
	b->rack->class->unit->doubted += one;
}

void rack_detach(struct cache *c, struct block *b)
{
	struct rack *r = b->rack;

	rack_doubt(b, false);
	c->tier->policy->remove(r->class->policy, &slot_of(b)->node);
	CRASH_POINT("rack_detach");
	slot_of(b)->block = NULL;
	r->blocks--;
	r->class->blocks--;
	b->pool->disk_blocks--;
	b->rack = NULL;
	where_set(b, BLOCK_ON_DISK, false);
	if (b->vram)
		vram_sync(b);
	if (b->shelf && block_live(b) && !b->moving)
		b->pool->dirty++;
}

void rack_use(struct cache *c, struct block *b)
{
	struct policy_node *n = &slot_of(b)->node;
	const struct policy_event e = { .now_us = c->now_us, .id = n->id, .tokens = b->tokens, .role = b->role };

	c->tier->policy->use(b->rack->class->policy, n, &e);
}

/* A block that a reader or a move holds stays. So does the copy of one that memory has: it would only have to be written again, and
 * whoever flushed it takes it for durable. */
static bool may_displace(const struct policy_node *n, void *arg)
{
	const struct block *b = block_of_rack_node(n);

	(void)arg;
	return block_pins(b) == 0 && !b->moving && !b->shelf && !b->vram && !b->rack->leaving;
}

static bool gather_cold(const struct policy_node *n, void *arg)
{
	struct disk_class *k = arg;

	if (k->cold_count < CLASS_COLD && may_displace(n, NULL))
		k->cold[k->cold_count++] = n->id;
	return k->cold_count == CLASS_COLD;
}

/* The coldest block that may be displaced. Where many of the coldest are in memory too, a longer search finds some for later. */
static struct block *displaced_next(struct cache *c, struct disk_class *k)
{
	const struct policy_ops *p = c->tier->policy;
	const struct policy_node *n = p->victim(k->policy, may_displace, NULL, DISPLACE_SCAN);

	if (n)
		return (struct block *)block_of_rack_node(n);
	if (k->cold_at == k->cold_count && (k->cold_count >= CLASS_COLD / 8 || c->now_us - k->cold_us >= DISPLACE_DEEP_US)) {
		k->cold_us = c->now_us;
		k->cold_at = k->cold_count = 0;
		policy_look(p, k->policy, gather_cold, k, DISPLACE_SCAN_DEEP);
	}
	while (k->cold_at < k->cold_count) {
		struct block *b = by_id_find(c, k->cold[k->cold_at++]);

		if (b && b->rack && b->rack->class == k && may_displace(&slot_of(b)->node, NULL))
			return b;
	}
	return NULL;
}

struct rack *rack_colder(struct cache *c, const struct disk_class *mine)
{
	const struct policy_ops *p = c->tier->policy;
	const struct policy_node *own = p->victim(mine->policy, may_displace, NULL, DISPLACE_SCAN), *coldest = NULL;

	for (const struct disk_class *k = mine->unit->classes; k; k = k->next) {
		const struct policy_node *n = k == mine ? NULL : p->victim(k->policy, may_displace, NULL, DISPLACE_SCAN);

		if (n && (!coldest || (int64_t)(n->last_use_us - coldest->last_use_us) < 0))
			coldest = n;
	}
	return coldest && room_much_colder(c, coldest, own) ? block_of_rack_node(coldest)->rack : NULL;
}

static enum status take_free(struct cache *c, struct unit *u, uint64_t slot_bytes, struct rack **rack, uint32_t *slot)
{
	struct disk_place place;
	enum status s = disk_slot_take(u->disk, slot_bytes, &place);

	if (s)
		return s;
	*rack = rack_get(c, u, place.slab);
	if (!*rack) {
		disk_slot_give(u->disk, place);
		return STATUS_EXHAUSTED;
	}
	*slot = place.slot;
	return STATUS_OK;
}

enum status rack_take(struct cache *c, struct unit *u, uint64_t slot_bytes, bool grow, struct rack **rack, uint32_t *slot,
		      struct block **victim)
{
	struct disk_class *k = class_get(c, u, slot_bytes);
	enum status s;

	*victim = NULL;
	if (!k)
		return STATUS_EXHAUSTED;
	s = take_free(c, u, slot_bytes, rack, slot);
	if (s != STATUS_MISS)
		return s;
	if (grow && (!k->full || c->now_us - k->full_us > FULL_AGAIN_US)) {
		k->wanted = true;
		tier_wake(c);
		return STATUS_MISS;
	}
	*victim = displaced_next(c, k);
	if (!*victim)
		return STATUS_EXHAUSTED;
	CRASH_POINT("rack_victim");
	*rack = (*victim)->rack;
	*slot = (*victim)->rack_slot;
	return STATUS_OK;
}

/* True: this disk would have to give up another block, and its policy would not. */
static bool unit_refuses(struct cache *c, struct unit *u, const struct block *b, const struct policy_event *e)
{
	struct disk_class *k = u->classes;
	const struct policy_node *n;

	while (k && k->slot_bytes != b->pool->geometry.need_bytes)
		k = k->next;
	if (!k || !k->full || c->now_us - k->full_us > FULL_AGAIN_US)
		return false;
	for (const struct rack *r = k->racks; r; r = r->next)
		if (r->blocks + r->moves < r->slots)
			return false;
	n = c->tier->policy->victim(k->policy, may_displace, NULL, DISPLACE_SCAN);
	return n && !c->tier->policy->admit(k->policy, e, n);
}

bool rack_refuses(struct cache *c, const struct block *b)
{
	const struct policy_event e = {
		.now_us = c->now_us, .id = b->node.id, .tokens = b->tokens, .role = b->role, .moved = true, /* nobody asks for it by this */
	};
	bool refused = false;

	for (uint32_t i = 0; c->tier->policy->admit && i < c->tier->unit_count; i++) {
		struct unit *u = &c->tier->units[i];

		if (u->failed)
			continue;
		if (!unit_refuses(c, u, b, &e))
			return false;
		refused = true;
	}
	return refused;
}

void rack_rooms_tell(struct cache *c)
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

/* ---- walks ---- */

/* Racks of all classes by rising slab. */
static struct rack *rack_after(struct unit *u, uint64_t slab)
{
	struct rack *best = NULL;

	for (struct disk_class *k = u->classes; k; k = k->next)
		for (struct rack *r = k->racks; r; r = r->next)
			if (r->slab >= slab) {
				if (!best || r->slab < best->slab)
					best = r;
				break;
			}
	return best;
}

struct block *unit_next_block(struct unit *u, uint64_t *cursor, uint32_t *budget)
{
	uint32_t slab = (uint32_t)(*cursor >> RACK_CURSOR_BITS), slot = *cursor & (RACK_SLOTS_MAX - 1);
	struct rack *r = rack_after(u, slab);

	if (r && r->slab != slab)
		slot = 0;
	for (; r; r = rack_after(u, r->slab + 1ull), slot = 0) {
		for (; slot < r->slots; slot++) {
			*cursor = rack_cursor(u->number, r->slab, slot);
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

struct block *tier_next_block(struct cache *c, uint64_t *cursor, uint32_t *budget)
{
	for (uint32_t n = c->tier ? rack_cursor_unit(*cursor) : 0; c->tier && n < c->tier->unit_count; n++) {
		struct block *b;

		if (rack_cursor_unit(*cursor) != n)
			*cursor = rack_cursor(n, 0, 0);
		b = unit_next_block(&c->tier->units[n], cursor, budget);
		if (b || !*budget)
			return b;
	}
	return NULL;
}
