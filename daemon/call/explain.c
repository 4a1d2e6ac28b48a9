/* Why a block is where it is: for operators. A block in memory has a rank among the victims, and a rival: the block
 * that would be evicted now. A block that left is in the eviction log for a while (advice/eviction_log.c). Each copy in
 * each tier is explained the same way, by the tier's own policy. */
#include "daemon/call/explain.h"

#include "daemon/advice/eviction_log.h"
#include "daemon/block/block.h"
#include "daemon/block/by_id.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "daemon/vram/transfer.h"
#include "eviction/policy.h"
#include "store/index.h"
#include "store/status.h"

#include <stdatomic.h>
#include <string.h>

struct search {
	const struct policy_node *node;
	uint32_t before;               /* evictable nodes seen before it */
	bool found;
};

static bool count_before(const struct policy_node *n, void *arg)
{
	struct search *s = arg;

	s->found |= n == s->node;
	s->before += !s->found && block_memory_pins(block_of_node(n)) == 0;
	return s->found;
}

static bool note_first(const struct policy_node *n, void *first)
{
	*(const struct policy_node **)first = block_memory_pins(block_of_node(n)) == 0 ? n : NULL;
	return *(const struct policy_node **)first;
}

static void explain_rank(struct cache *c, const struct block *b, struct cache_explained *out)
{
	struct search s = { .node = &b->node };

	out->not_admitted = b->not_admitted;
	if (b->not_admitted || b->prefetched || !c->policy->walk ||
	    !c->policy->walk(b->pool->class->policy, count_before, &s, CACHE_RANK_MAX))
		return;
	out->rank = s.before;
	out->ranked = s.found;
}

static void explain_rival(struct cache *c, const struct layout_pool *p, struct cache_explained *out)
{
	const struct policy_node *n = p->class->not_admitted;
	const struct block *b;

	if (!n && c->policy->walk)
		c->policy->walk(p->class->policy, note_first, &n, CACHE_RANK_MAX);
	if (!n)
		return;
	b = block_of_node(n);
	out->rival_bytes = block_key_bytes(b);
	memcpy(out->rival, block_key(b), out->rival_bytes);
	out->rival_idle_ms = (c->now_us - n->last_use_us) / 1000;
	out->rival_uses = n->uses;
}

static void explain_there(struct cache *c, const struct block *b, struct cache_explained *out)
{
	const struct policy_node *n = block_node(b);

	out->tier = block_tier(b);
	out->uses = n->uses;
	out->idle_ms = (c->now_us - n->last_use_us) / 1000;
	out->age_ms = (c->now_us - b->stored_us) / 1000;
	out->pins = block_pins(b) & ~INDEX_DEAD;
	out->turn = atomic_load_explicit(&((struct block *)b)->turn, memory_order_relaxed);
	out->prefetched = b->prefetched;
	out->no_spill = b->no_spill;
	if (b->span)
		explain_rank(c, b, out);
}

/* ---- tier by tier ---- */

/* How a policy judges one node, and what it would give up before it. */
struct judged {
	const struct policy_ops *ops;
	struct policy *policy;
	const struct block *(*block_of)(const struct policy_node *n);
	bool (*may)(const struct policy_node *n);
	const struct policy_node *node;
	const struct policy_node *first; /* that may go */
	uint32_t before;               /* that may go, met before the node */
	bool found;
};

static const struct block *block_of_slab_map_node(const struct policy_node *n)
{
	return ((const struct slab_map_slot *)((const char *)n - offsetof(struct slab_map_slot, node)))->block;
}

static bool may_leave_memory(const struct policy_node *n)
{
	return block_memory_pins(block_of_node(n)) == 0;
}

static bool may_leave_disk(const struct policy_node *n)
{
	const struct block *b = block_of_slab_map_node(n);

	return block_pins(b) == 0 && !b->moving && !b->span;
}

static const struct vram_slot *slot_of_node(const struct policy_node *n)
{
	return (const struct vram_slot *)((const char *)n - offsetof(struct vram_slot, node));
}

static const struct block *block_of_vram_node(const struct policy_node *n)
{
	return slot_of_node(n)->block;
}

static bool may_leave_gpu(const struct policy_node *n)
{
	return vram_slot_pins(slot_of_node(n)) == 0 && vram_clean(slot_of_node(n));
}

/* Why a copy stays for now, whatever its rank. */
static const char *kept_word(bool pinned, bool moving, bool only)
{
	return moving ? "moving" : pinned ? "pinned" : only ? "only" : "";
}

static bool count_judged(const struct policy_node *n, void *arg)
{
	struct judged *j = arg;
	const bool may = j->may(n);

	j->found |= n == j->node;
	j->before += !j->found && may;
	if (may && !j->first)
		j->first = n;
	return j->found && j->first;
}

static void tier_rival(const struct judged *j, struct cache_explained_tier *out)
{
	struct policy_explained seen;

	if (!j->first)
		return;
	out->rival_bytes = block_key_bytes(j->block_of(j->first));
	memcpy(out->rival, block_key(j->block_of(j->first)), out->rival_bytes);
	if (j->ops->explain) {
		j->ops->explain(j->policy, j->first, &seen);
		out->rival_score = seen.score;
	}
}

static void tier_score(const struct judged *j, struct cache_explained_tier *out)
{
	struct policy_explained seen;

	if (!j->ops->explain)
		return;
	j->ops->explain(j->policy, j->node, &seen);
	out->scored = true;
	out->score = seen.score;
	out->unit = seen.unit;
	for (; out->features < seen.features && out->features < CACHE_FEATURES_MAX; out->features++) {
		out->feature[out->features].name = seen.feature[out->features].name;
		out->feature[out->features].value = seen.feature[out->features].value;
	}
}

/* in: the policy knows the node. */
static void explain_tier(struct cache *c, struct judged *j, const char *tier, const char *kept, bool in, struct cache_explained *into)
{
	struct cache_explained_tier *out = &into->at[into->tiers++];

	*out = (struct cache_explained_tier){ .tier = tier, .policy = j->ops->name, .uses = j->node->uses, .unit = "", .kept = kept,
					      .idle_ms = (c->now_us - j->node->last_use_us) / 1000 };
	if (in)
		tier_score(j, out);
	if (!j->ops->walk || !j->ops->walk(j->policy, count_judged, j, CACHE_RANK_MAX))
		return;
	tier_rival(j, out);
	out->ranked = j->found;
	out->rank = j->found ? j->before : 0;
}

static void explain_on_gpu(struct cache *c, const struct vram_slot *s, struct cache_explained *out)
{
	const struct vram_class *k = s->span->class;
	struct judged gpu = { .ops = c->policy, .policy = k->policy, .block_of = block_of_vram_node, .may = may_leave_gpu,
			      .node = &s->node };

	if (s->state != VRAM_READY || k->gpu->lost)
		return;
	explain_tier(c, &gpu, "gpu", kept_word(vram_slot_pins(s), vram_downloading(c, s->block), !vram_clean(s)), true,
	    out);
	out->at[out->tiers - 1].gpu = k->gpu->number;
}

static void explain_tiers(struct cache *c, const struct block *b, struct cache_explained *out)
{
	struct judged memory = { .ops = c->policy, .policy = b->pool->class->policy, .block_of = block_of_node, .may = may_leave_memory,
				 .node = &b->node };

	for (const struct vram_slot *s = b->vram; s; s = s->next)
		explain_on_gpu(c, s, out);
	if (b->span)
		explain_tier(c, &memory, "host", kept_word(block_memory_pins(b), b->moving, false), !b->not_admitted &&
		    !b->prefetched, out);
	if (b->slab_map) {
		struct judged disk = { .ops = c->tier->policy, .policy = b->slab_map->class->policy,
				       .block_of = block_of_slab_map_node,
				       .may = may_leave_disk, .node = &b->slab_map->at[b->slab_map_slot].node };

		explain_tier(c, &disk, "disk", kept_word(block_pins(b), b->moving, b->span || b->vram), true, out);
	}
}

/* The later of the block's last evictions from a GPU and from the tiers below. */
static const struct eviction_log_entry *eviction_last(const struct cache *c, uint64_t id)
{
	const struct eviction_log_entry *below = eviction_log_find(c, id, false), *gpu = eviction_log_find(c, id, true);

	return !gpu || (below && below->when_us > gpu->when_us) ? below : gpu;
}

static void explain_eviction(struct cache *c, const struct eviction_log_entry *g, struct cache_explained *out)
{
	static const char *const tiers[EVICTION_TIERS] = { "host", "disk", "gpu" };

	out->left = tiers[g->tier];
	out->left_reason = eviction_reason_word((enum eviction_reason)g->reason);
	out->left_ms_ago = (c->now_us - g->when_us) / 1000;
	out->left_idle_ms = g->idle_ms;
	out->left_uses = g->uses;
	out->regretted = g->regretted;
}

static bool explain_pool(struct cache *c, struct layout_pool *p, const uint8_t *key, uint32_t key_bytes,
			 struct cache_explained *out)
{
	const struct index_record *found;
	struct index_ident ident;
	const struct eviction_log_entry *g;

	block_ident(p, key, key_bytes, &ident);
	found = index_find(c->index, &ident);
	g = eviction_last(c, block_id(&ident));
	if (!found && !g)
		return false;
	*out = (struct cache_explained){ .layout_id = p->layout_id, .tier = "", .left = "", .left_reason = "", .policy = c->policy->name,
					 .id = block_id(&ident), .tenant = p->tenant->name,
					 .tenant_number = p->tenant->number };
	if (found) {
		explain_there(c, block_of((struct index_record *)found), out);
		explain_tiers(c, block_of((struct index_record *)found), out);
	}
	if (g)
		explain_eviction(c, g, out);
	explain_rival(c, p, out);
	return true;
}

enum status cache_explain(struct cache *c, const struct cache_block_name *name, uint64_t now_us,
			  struct cache_explained *out, uint32_t max, uint32_t *n, const char **why)
{
	const struct cache_keys one = { name->key, 1, name->key_bytes };
	uint32_t shown = 0;

	const struct tenant *t = *name->tenant ? tenant_of_name(c, name->tenant) : NULL;

	*why = "unknown tenant: there is none of that name";
	if (*name->tenant && !t)
		return STATUS_DENIED;
	*why = cache_keys_problem(&one, 1);
	if (*why)
		return STATUS_INVALID;
	index_read_lock();
	cache_lock(c);
	cache_time(c, now_us);
	for (uint32_t i = 0; i < c->pool_count && shown < max; i++)
		if ((!t || c->pools[i]->tenant == t) &&
		    (!name->layout_id || c->pools[i]->layout_id == name->layout_id))
			shown += explain_pool(c, c->pools[i], name->key, name->key_bytes, &out[shown]);
	cache_unlock(c);
	index_read_unlock();
	*n = shown;
	return STATUS_OK;
}
