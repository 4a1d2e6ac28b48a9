/* Requests, from the calls that make them to the parts that are told them. See advice/advice.h. */
#include "daemon/advice/request.h"

#include "daemon/advice/advice.h"
#include "daemon/advice/eviction_log.h"
#include "daemon/advice/graph.h"
#include "daemon/advice/mailbox.h"
#include "daemon/advice/policy_store.h"
#include "daemon/advice/prefetch.h"
#include "daemon/advice/trace.h"
#include "daemon/advice/unusable.h"
#include "daemon/block/block.h"
#include "daemon/block/by_id.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/session/session.h"
#include "daemon/vram/state.h"
#include "eviction/policy.h"
#include "eviction/table.h"

#include <stdlib.h>
#include <string.h>

enum {
	MAIL_WORDS = 1 << 17,
	HEAD_WORDS = 5,                /* of a letter: then pools, then rules if there is a grid, then names */
	EXPECTED_US = 30 * 1000 * 1000,
};

bool advice_create(struct cache *c)
{
	struct advice *a = c->advice = calloc(1, sizeof(*a));

	if (!a)
		return false;
	prefetch_init(&a->prefetch);
	a->eviction_log = table_take(EVICTION_LOG_SETS, sizeof(*a->eviction_log));
	return a->eviction_log && mailbox_init(&a->mail, MAIL_WORDS);
}

bool advice_stop(struct cache *c)
{
	struct cache_trace_result result;
	const char *why;
	bool ended;

	if (!c->advice)
		return true;
	ended = advisor_stop(c);
	cache_trace_stop(c, &result, &why);
	return ended;
}

void advice_destroy(struct cache *c)
{
	if (!c->advice)
		return;
	advisor_destroy(c);
	mailbox_fini(&c->advice->mail);
	policy_state_free(c);
	table_give(c->advice->eviction_log, EVICTION_LOG_SETS, sizeof(*c->advice->eviction_log));
	free(c->advice);
	c->advice = NULL;
}

/* ---- letters ---- */

void advice_ask(struct cache *c, const struct asking *q, struct layout_pool *const *pools, uint32_t layouts,
		const struct cache_keys *k)
{
	struct mailbox *m = &c->advice->mail;
	const uint32_t names = HEAD_WORDS + (k->grid ? 2 : 1) * layouts;
	struct letter l;

	if (!k->count || !mailbox_begin(m, names + k->count, &l))
		return;
	letter_write(m, &l, 0, q->session);
	letter_write(m, &l, 1, (uint64_t)k->count << 32 | q->present);
	letter_write(m, &l, 2, (uint64_t)layouts << 32 | (uint64_t)q->turn << 16 | (uint64_t)q->hint << 8 | q->kind);
	letter_write(m, &l, 3, (uint64_t)q->ttl_s << 8 | q->priority);
	letter_write(m, &l, 4, k->grid ? (uint64_t)k->first << 32 | k->grid->unit : 0);
	for (uint32_t i = 0; i < layouts; i++)
		letter_write(m, &l, HEAD_WORDS + i, (uintptr_t)pools[i]);
	for (uint32_t i = 0; k->grid && i < layouts; i++)
		letter_write(m, &l, HEAD_WORDS + layouts + i, grid_rule_pack(&k->grid->rule[i]));
	for (uint32_t i = 0; i < k->count; i++)
		letter_write(m, &l, names + i,
			     key_name_of(pools[0]->tenant->number, k->bytes + (size_t)i * k->key_bytes, k->key_bytes));
	mailbox_send(m, &l);
}

static void letter_parse(const struct mailbox *m, const struct letter *l, struct request *r)
{
	uint64_t counts = letter_read(m, l, 1), rest = letter_read(m, l, 2);

	r->session = letter_read(m, l, 0);
	r->count = (uint32_t)(counts >> 32);
	r->present = (uint32_t)counts;
	r->layouts = (uint32_t)(rest >> 32);
	r->turn = (uint16_t)(rest >> 16);
	r->hint = (uint8_t)(rest >> 8);
	r->kind = (enum request_kind)(rest & 0xff);
	r->ttl_s = (uint32_t)(letter_read(m, l, 3) >> 8);
	r->priority = (uint8_t)letter_read(m, l, 3);
	r->conversation = 0;
	for (uint32_t i = 0; i < r->layouts; i++)
		r->pool[i] = (struct layout_pool *)(uintptr_t)letter_read(m, l, HEAD_WORDS + i);
	const uint64_t shape = letter_read(m, l, 4);

	r->first = (uint32_t)(shape >> 32);
	r->grid.unit = (uint32_t)shape;
	r->grid.layouts = r->layouts;
	for (uint32_t i = 0; r->grid.unit && i < r->layouts; i++)
		r->grid.rule[i] = grid_rule_unpack(letter_read(m, l, HEAD_WORDS + r->layouts + i));
	const uint32_t names = HEAD_WORDS + (r->grid.unit ? 2 : 1) * r->layouts;

	for (uint32_t i = 0; i < r->count; i++)
		r->name[i] = letter_read(m, l, names + i);
	r->whole = key_mix(r->session, r->name[r->count - 1]);
	r->part = r->present ? key_mix(r->session, r->name[r->present - 1]) : 0;
}

/* ---- what is one request ---- */

/* Whether the request was told already. A Lookup is expected to be followed by a Lease of all its keys or of those that
 * it found, or by the same Lookup again: these are one request, told at the first of them. */
static bool was_told(struct cache *c, const struct request *r)
{
	struct expected *e = &c->advice->expected;
	const uint64_t whole = r->whole;

	if (r->kind == REQUEST_REPORT)
		return false;
	for (uint32_t i = 0; i < EXPECTED_MAX; i++) {
		if (e->whole[i] != whole && e->part[i] != whole)
			continue;
		if (e->until_us[i] < c->now_us || (r->kind == REQUEST_LOOKUP && e->whole[i] != whole))
			continue;
		if (r->kind == REQUEST_LEASE)
			e->whole[i] = e->part[i] = 0;
		return true;
	}
	if (r->kind == REQUEST_LOOKUP) {
		uint32_t i = e->next++ % EXPECTED_MAX;

		e->whole[i] = whole;
		e->part[i] = r->part;
		e->until_us[i] = c->now_us + EXPECTED_US;
	}
	return false;
}

/* Finds the conversation that the request goes on with: the first that ends where a part of the request's chain does.
 * Sets the request's turn. */
static void converse(struct advice *a, struct request *r)
{
	struct conversation *last = &a->conversation[r->name[r->count - 1] % CONVERSATIONS];
	uint16_t turn = 1;

	for (uint32_t i = r->count; i-- > 0 && !r->conversation;) {
		struct conversation *v = &a->conversation[r->name[i] % CONVERSATIONS];

		if (v->tail != r->name[i])
			continue;
		r->conversation = v->number;
		turn = v->turn < UINT16_MAX ? v->turn + 1 : v->turn;
		if (r->kind == REQUEST_REPORT) { /* of the request before it */
			r->turn = r->turn ? r->turn : v->turn;
			return;
		}
		v->tail = 0;
	}
	if (r->kind == REQUEST_REPORT)
		return;
	if (!r->conversation)
		r->conversation = ++a->conversations;
	if (!r->turn)
		r->turn = turn;
	*last = (struct conversation){ r->name[r->count - 1], r->conversation, r->turn };
}

/* Fills in the roles (the authors) of blocks; they are known only of blocks that the cache has. */
static void roles_find(const struct cache *c, uint32_t count, const uint64_t *ids, uint8_t *roles)
{
	for (uint32_t i = 0; i < count; i++) {
		const struct block *b = by_id_find(c, ids[i]);

		roles[i] = b && b->role < POLICY_ROLES ? b->role : POLICY_ROLE_UNKNOWN;
	}
}

/* Whether a request asks for a key's block in a layout, in a session with a grid. It does where the layout has a full
 * block, and at the request's end, where the block may be partial. Of a sparse layout only the blocks that are there
 * are asked for: the others were never meant to be. */
static bool asks_for(struct cache *c, const struct request *r, uint32_t key, uint32_t layout)
{
	const struct grid_rule *rule = &r->grid.rule[layout];
	const uint64_t position = (uint64_t)r->first + key;

	if (!grid_is_full(rule, position) && (!rule->partial || key + 1 < r->count))
		return false;
	return !rule->sparse || by_id_find(c, policy_id(r->name[key], r->pool[layout]->layout_id));
}

/* The request as a policy hears it that has the blocks of these layouts (their numbers in the session): once, with the
 * blocks of a key side by side. A policy takes a block's place in the list for its depth, so each stands for its part
 * of the request's tokens. */
static struct policy_request request_of(struct cache *c, const struct request *r, const uint32_t *list,
					uint32_t layouts)
{
	const uint32_t unit = request_unit(r), most = CACHE_BLOCKS_MAX / layouts;
	const bool grid = r->grid.unit; /* a call's cells are few enough, whatever its keys */
	const uint32_t keys = grid || r->count < most ? r->count : most;
	struct advice *a = c->advice;
	uint32_t n = 0;

	for (uint32_t i = 0; i < keys; i++)
		for (uint32_t l = 0; l < layouts; l++)
			if (!grid || asks_for(c, r, i, list[l]))
				a->id[n++] = policy_id(r->name[i], r->pool[list[l]]->layout_id);
	roles_find(c, n, a->id, a->role);
	return (struct policy_request){
		.now_us = c->now_us,
		.session = r->conversation,
		.ids = a->id,
		.count = n,
		.tokens = r->count * unit,
		.block_tokens = !grid ? unit / layouts
				: n   ? (keys * unit + n - 1) / n
				      : unit,
		.turn = r->turn,
		.hint = r->hint,
		.priority = r->priority,
		.ttl_s = r->ttl_s,
		.roles = a->role,
	};
}

/* Tells a request once to a policy that several layouts may share, with the layouts of which it has the blocks. */
static void tell_one(struct cache *c, const struct request *r, const struct policy_ops *ops, struct policy *policy,
		     const uint32_t *list, uint32_t layouts)
{
	const struct policy_request q = request_of(c, r, list, layouts);

	if (q.count)
		ops->request(policy, &q);
}

static void tell_memory(struct cache *c, const struct request *r)
{
	uint32_t list[CACHE_LAYOUTS_MAX];

	for (uint32_t i = 0; i < c->class_count; i++) {
		uint32_t n = 0;

		for (uint32_t l = 0; l < r->layouts; l++)
			if (r->pool[l]->class == c->classes[i])
				list[n++] = l;
		if (n)
			tell_one(c, r, c->policy, c->classes[i]->policy, list, n);
	}
}

static void tell_disk(struct cache *c, const struct request *r, struct unit *u)
{
	uint32_t list[CACHE_LAYOUTS_MAX];

	for (struct disk_class *k = u->classes; k; k = k->next) {
		uint32_t n = 0;

		for (uint32_t l = 0; l < r->layouts; l++)
			if (class_joined(u, r->pool[l]->geometry.need_bytes) == k)
				list[n++] = l;
		if (n)
			tell_one(c, r, c->tier->policy, k->policy, list, n);
	}
}

/* The class of the layout's copies on the GPU; NULL: it has none there. */
static const struct vram_class *class_on(const struct gpu *g, const struct layout_pool *p)
{
	const struct vram_pool *vp = g->pools[p->number];

	return vp ? vp->class : NULL;
}

static void tell_gpu(struct cache *c, const struct request *r, const struct gpu *g)
{
	uint32_t list[CACHE_LAYOUTS_MAX];

	for (uint32_t i = 0; i < r->layouts; i++) {
		const struct vram_class *k = class_on(g, r->pool[i]);
		uint32_t n = 0, first = 0;

		while (first < i && class_on(g, r->pool[first]) != k)
			first++;
		for (uint32_t l = i; k && first == i && l < r->layouts; l++)
			if (class_on(g, r->pool[l]) == k)
				list[n++] = l;
		if (n)
			tell_one(c, r, c->policy, k->policy, list, n);
	}
}

/* Notes which of a layout's blocks are asked for. A block that a sparse layout lacks is not missed. */
static void note_asked(struct cache *c, uint32_t gpus, const struct request *r, uint32_t l)
{
	const uint64_t layout_id = r->pool[l]->layout_id;
	const bool grid = r->grid.unit;

	if (grid && r->grid.rule[l].sparse)
		return;
	for (uint32_t i = 0; i < r->count; i++)
		if (!grid || asks_for(c, r, i, l))
			eviction_log_asked(c, policy_id(r->name[i], layout_id), gpus);
}

static void tell_all(struct cache *c, const struct request *r)
{
	const uint32_t gpus = session_gpus(c, r->session);

	for (uint32_t i = 0; i < r->layouts && r->kind != REQUEST_REPORT; i++)
		note_asked(c, gpus, r, i);
	/* Of the GPUs those that the session works on: what others have is not asked for by that. */
	for (uint32_t i = 0; c->vram && c->policy->request && i < c->vram->count; i++)
		if ((gpus & 1u << i) && !c->vram->gpu[i]->lost)
			tell_gpu(c, r, c->vram->gpu[i]);
	if (c->policy->request)
		tell_memory(c, r);
	for (uint32_t i = 0; c->tier && c->tier->policy->request && i < c->tier->unit_count; i++)
		tell_disk(c, r, &c->tier->units[i]);
}

static void tell(struct cache *c, struct request *r)
{
	if (r->kind == REQUEST_LEASE)
		prefetch_leased(c, r);
	if (was_told(c, r)) {
		cache_count(c, COUNTER_REQUESTS_REPEATED, 1);
		return;
	}
	cache_count(c, r->kind == REQUEST_REPORT ? COUNTER_REQUESTS_HINTED : COUNTER_REQUESTS, 1);
	converse(c->advice, r);
	families_note(c, r);
	tell_all(c, r);
	if (c->advice->recorder)
		trace_note(c, r);
	if (c->advice->advisor) {
		advisor_request(c, r);
		prefetch_request(c, r);
	}
}

void advice_read(struct cache *c, uint32_t keys)
{
	struct mailbox *m = &c->advice->mail;
	uint32_t read = 0;
	struct letter l;

	while (read < keys && mailbox_next(m, &l)) {
		letter_parse(m, &l, &c->advice->request);
		mailbox_free(m, &l);
		read += c->advice->request.count * c->advice->request.layouts;
		tell(c, &c->advice->request);
	}
	prefetch_pump(c);
}
