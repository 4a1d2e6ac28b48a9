/* A block that a source by name brings is stored like a put by the daemon itself: a slot is reserved, the source writes
 * it, the bytes are checked, and the block is published.
 *
 *     asked --end: the calls look again--> (known) --> fetched --came--> checked --> published, or its slot given back
 *
 * A name is under way once: a second call that wants it joins the first (arrival_find). Unlike a reservation, an
 * arrival does not make the key pending: if an engine puts the same name meanwhile, the arrival is dropped. It is also
 * dropped if the name is deleted meanwhile.
 *
 * Bytes from a source are not trusted. The header is compared with the name that was asked for and with the layout's
 * own sizes before anything in it is used, then every layer with its sum; both without the lock, on a thread for
 * checksums or on the source's own. Then the header is sealed anew, with the slot's generation.
 *
 * Until a piece's end, only the source touches the piece's slot. So a batch that takes too long, or that no call waits
 * for, is cancelled and then ends like any other.
 */
#include "daemon/call/arrival.h"
#include "daemon/call/arrival_steps.h"

#include "daemon/block/block.h"
#include "daemon/block/by_id.h"
#include "daemon/block/key.h"
#include "daemon/block/layout_bytes.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/slot_at.h"
#include "daemon/block/source.h"
#include "daemon/block/tier.h"
#include "daemon/block/wait.h"
#include "daemon/call/deleted.h"
#include "daemon/call/offer.h"
#include "daemon/session/reservation.h"
#include "daemon/threads/checksum_pool.h"
#include "daemon/threads/deadline.h"
#include "daemon/threads/pool.h"
#include "eviction/policy.h"
#include "store/clock.h"
#include "store/index.h"
#include "store/slot.h"
#include "store/status.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 512, STOP_US = ARRIVAL_US + 2 * 1000 * 1000 };

/* One name under way. */
struct arrival {
	struct arrival *next;          /* of the bucket */
	struct batch *batch;
	struct index_ident ident;      /* its key is: */
	uint8_t key[INDEX_KEY_MAX];
	struct layout_pool *pool;
	struct cache_wait_link *links; /* of the calls that wait for it, by transfer_next */
	/* unpublished, its slot is being filled; NULL: the source is being asked for the name */
	struct block *block;
	struct work check;
	enum status status;            /* how it ended */
	uint64_t position;             /* of its first token */
	uint64_t segment;              /* of what another member offers */
	bool forgotten;                /* deleted meanwhile */
};

enum arrival_kind {
	ARRIVAL_ASKED,                 /* by a call, which waits */
	ARRIVAL_PREFETCH,              /* wanted also if no call waits for it */
	ARRIVAL_OFFERED,               /* by another member; its call waits */
};

/* Names that were given to a source together. */
struct batch {
	struct batch *next, *prev;
	struct cache *cache;
	struct source *source;
	struct source_ask *ask;        /* one of the two */
	struct fetch *fetch;
	struct run_key *key;           /* of the ask: [count] */
	uint64_t deadline_us;
	uint32_t count, left;          /* names; pieces that have not ended */
	enum arrival_kind kind;
	struct arrival name[];
};

/* Names that are to come ahead, and that memory had no room for yet: a tick tries again. */
struct rest {
	struct rest *next;
	struct source *source;
	uint64_t deadline_us;
	uint32_t count;
	struct {
		struct run_key of;
		uint8_t bytes[INDEX_KEY_MAX]; /* of its key */
	} name[];
};

struct arrivals {
	struct arrival *bucket[BUCKETS];
	struct rest *rests;
	uint32_t rest_names;           /* of them, at most ARRIVALS_MAX: a tick looks for all */
	struct batch *batches;
	struct memory_class *waiting_for_memory; /* had no slot */
	struct cache_wait_link *waiting; /* of calls that wait for that memory alone, by transfer_next */
	uint32_t names;
	uint64_t bytes;                /* of slots that sources write */
	uint64_t offered_bytes;        /* of these: of what other members offer */
	pthread_cond_t none;           /* the last batch has ended */
};

struct arrivals *arrivals_get(struct cache *c)
{
	if (c->arrivals)
		return c->arrivals;
	c->arrivals = calloc(1, sizeof(*c->arrivals));
	if (c->arrivals)
		deadline_cond_init(&c->arrivals->none);
	return c->arrivals;
}

static struct arrival **bucket_of(struct arrivals *all, const struct index_ident *ident)
{
	return &all->bucket[ident_hash(ident, 0) % BUCKETS];
}

static struct arrival *arrival_find(struct arrivals *all, const struct index_ident *ident)
{
	struct arrival *n = *bucket_of(all, ident);

	while (n && !ident_equal(&n->ident, ident))
		n = n->next;
	return n;
}

static void arrival_enter(struct batch *b, struct arrival *n, const struct run_key *key)
{
	struct arrival **bucket = bucket_of(b->cache->arrivals, &key->name);

	n->batch = b;
	n->ident = key->name;
	memcpy(n->key, key->name.key, key->name.key_bytes);
	n->ident.key = n->key;
	n->pool = key->pool;
	n->segment = key->segment;
	n->next = *bucket;
	*bucket = n;
	b->cache->arrivals->names++;
}

static void arrival_leave(struct arrival *n)
{
	struct arrivals *all = n->batch->cache->arrivals;
	struct arrival **at = bucket_of(all, &n->ident);

	while (*at != n)
		at = &(*at)->next;
	*at = n->next;
	all->names--;
	if (n->block)
		all->bytes -= n->pool->geometry.need_bytes;
	if (n->block && n->batch->kind == ARRIVAL_OFFERED)
		all->offered_bytes -= n->pool->geometry.need_bytes;
}

/* w NULL: no call waits. False: no memory for the link; the call goes on without the arrival. */
static bool arrival_join(struct cache *c, struct arrival *n, struct cache_wait *w)
{
	struct cache_wait_link *l = w ? wait_link(c, w, NULL) : NULL;

	if (!w)
		return true;
	if (!l)
		return false;
	l->transfer_next = n->links;
	n->links = l;
	return true;
}

/* Tells the waiting calls. b: the block that is there now, which the calls pin; NULL: none. */
static void arrival_tell(struct cache *c, struct arrival *n, struct block *b, enum status s)
{
	for (struct cache_wait_link *l = n->links, *next; l; l = next) {
		next = l->transfer_next;
		if (b && l->wait) {
			block_pin(b);
			l->pinned = b;
		}
		wait_link_done(c, l, s);
	}
	n->links = NULL;
}

/* Nothing was begun for the call that has just joined: undoes the join without an event, as the call answers that
 * itself. */
static void arrival_undo(struct arrival *n)
{
	for (struct cache_wait_link *l = n->links; l; l = l->transfer_next) {
		l->done = true;
		l->wait->outstanding--;
		l->wait->shed++;
	}
	n->links = NULL;
}

static struct batch *batch_create(struct cache *c, struct source *s, uint32_t count)
{
	struct batch *b = calloc(1, sizeof(*b) + count * sizeof(b->name[0]));

	if (!b)
		return NULL;
	b->cache = c;
	b->source = s;
	b->deadline_us = clock_us() + ARRIVAL_US;
	return b;
}

static void batch_free(struct batch *b)
{
	free(b->ask);
	free(b->fetch);
	free(b->key);
	free(b);
}

static void batch_enter(struct batch *b)
{
	struct arrivals *all = b->cache->arrivals;

	b->next = all->batches;
	if (b->next)
		b->next->prev = b;
	all->batches = b;
}

static void batch_leave(struct batch *b)
{
	struct arrivals *all = b->cache->arrivals;

	if (b->prev)
		b->prev->next = b->next;
	else
		all->batches = b->next;
	if (b->next)
		b->next->prev = b->prev;
	if (!all->batches)
		pthread_cond_broadcast(&all->none);
	batch_free(b);
}

/* ---- asks ---- */

static struct batch *batch_of_ask(struct cache *c, const struct source_ask *a)
{
	struct batch *b = c->arrivals->batches;

	while (b->ask != a)
		b = b->next;
	return b;
}

static bool is_wanted(const struct batch *b)
{
	for (uint32_t i = 0; i < b->count; i++)
		for (const struct cache_wait_link *l = b->name[i].links; l; l = l->transfer_next)
			if (l->wait)
				return true;
	return false;
}

static void rest_add(struct cache *c, struct source *s, const struct key_run *run, uint64_t deadline_us)
{
	struct rest *r = c->arrivals->rest_names + run->count > ARRIVALS_MAX ?
			  NULL : malloc(sizeof(*r) + run->count * sizeof(r->name[0]));

	if (!r)
		return;
	c->arrivals->rest_names += run->count;
	r->source = s;
	r->deadline_us = deadline_us;
	r->count = run->count;
	for (uint32_t i = 0; i < run->count; i++) {
		r->name[i].of = run->key[i];
		memcpy(r->name[i].bytes, run->key[i].name.key, run->key[i].name.key_bytes);
		r->name[i].of.name.key = r->name[i].bytes;
	}
	r->next = c->arrivals->rests;
	c->arrivals->rests = r;
}

/* Fetches what is to come ahead, up to the first name that the source lacks; all of the run is neither stored nor under
 * way. */
static void prefetch_begin(struct cache *c, struct source *s, struct key_run *run, uint64_t deadline_us)
{
	uint8_t word[ARRIVALS_A_CALL];
	uint32_t n = 0, come;

	s->ops->known(c, s, run, word);
	while (n < run->count && word[n] == SOURCE_HAS && !deleted_has(c, &run->key[n].name))
		n++;
	run->count = n;
	come = n ? arrival_fetch(c, s, run, NULL, true) : 0;
	run->key += come;
	run->count -= come;
	if (run->count && c->arrivals->waiting_for_memory)
		rest_add(c, s, run, deadline_us);
}

/* Tries again, with what still is to come. In a read section. */
static void rest_try(struct cache *c, struct rest *r)
{
	struct run_key key[ARRIVALS_A_CALL];
	struct key_run run = { 0, key };

	for (uint32_t i = 0; i < r->count; i++) {
		key[run.count] = r->name[i].of;
		if (!index_find(c->index, &key[run.count].name) && !arrival_find(c->arrivals, &key[run.count].name))
			run.count++;
	}
	if (run.count && clock_us() < r->deadline_us)
		prefetch_begin(c, r->source, &run, r->deadline_us);
}

static void rests_try(struct cache *c)
{
	struct rest *r = c->arrivals->rests;

	c->arrivals->rests = NULL;
	c->arrivals->rest_names = 0;
	for (struct rest *next; r; r = next) {
		next = r->next;
		rest_try(c, r);
		free(r);
	}
}

static void ask_ended(struct cache *c, struct source_ask *a, enum status s)
{
	struct batch *b = batch_of_ask(c, a);
	const bool goes_on = b->kind == ARRIVAL_PREFETCH && !s && !is_wanted(b);

	for (uint32_t i = 0; i < b->count; i++) {
		arrival_leave(&b->name[i]);
		arrival_tell(c, &b->name[i], NULL, STATUS_OK); /* the calls look what is known now */
	}
	if (goes_on)
		prefetch_begin(c, b->source, &(struct key_run){ b->count, b->key }, b->deadline_us);
	batch_leave(b);
}

/* Begins to ask the source for the names of the run, none of which is under way. False: nothing was asked. */
bool arrival_ask(struct cache *c, struct source *s, const struct key_run *run, struct cache_wait *w, bool ahead)
{
	struct batch *b = batch_create(c, s, run->count);

	if (!b)
		return false;
	b->kind = ahead ? ARRIVAL_PREFETCH : ARRIVAL_ASKED;
	b->ask = calloc(1, sizeof(*b->ask));
	b->key = malloc(run->count * sizeof(b->key[0]));
	if (!b->ask || !b->key) {
		batch_free(b);
		return false;
	}
	for (; b->count < run->count && arrival_join(c, &b->name[b->count], w); b->count++) {
		arrival_enter(b, &b->name[b->count], &run->key[b->count]);
		b->key[b->count] = run->key[b->count];
		b->key[b->count].name = b->name[b->count].ident;
	}
	*b->ask = (struct source_ask){ { b->count, b->key }, b->deadline_us, ask_ended };
	batch_enter(b);
	if (b->count && !s->ops->ask(c, s, b->ask))
		return true;
	for (uint32_t i = 0; i < b->count; i++)
		arrival_undo(&b->name[i]);
	ask_ended(c, b->ask, STATUS_UNAVAILABLE);
	return false;
}

/* ---- fetches ---- */

/* Without the lock: checks what came, and seals it as a block of this cache. */
static enum status arrival_judge(struct arrival *n)
{
	struct block *b = n->block;
	const struct layout_pool *p = n->pool;
	uint8_t layout[LAYOUT_BYTES_MAX], *at = block_slot_at(b);
	struct slot_ident ident;
	struct slot_header h;
	struct slot_info info;
	enum status s;

	memcpy(&h, at, sizeof(h));
	block_slot_ident(p, n->ident.key, n->ident.key_bytes, &ident);
	s = slot_header_match(&h, &ident, 0);
	if (s)
		return STATUS_CORRUPT; /* not what was asked for */
	info = (struct slot_info){
		.parent_bytes = h.parent_bytes,
		.role = h.role,
		.turn = h.turn,
		.tokens = h.tokens,
		.position = h.position,
	};
	if (!info.tokens || slot_info_problem(&info, p->layout.block_tokens, false))
		return STATUS_CORRUPT;
	memcpy(info.parent, h.parent, sizeof(info.parent));
	s = slot_block_check(&h, at + SLOT_HEADER_BYTES);
	if (s)
		return s;
	memset(at + SLOT_HEADER_BYTES + p->geometry.block_bytes, 0, -p->geometry.block_bytes % KV_SLOT_ALIGN);
	ident.layout = layout;
	ident.layout_bytes = layout_pack(&p->layout, layout);
	n->position = h.position;
	b->tokens = (uint16_t)h.tokens;
	b->role = h.role < POLICY_ROLES ? h.role : POLICY_ROLE_UNKNOWN;
	b->turn = h.turn < UINT16_MAX ? (uint16_t)h.turn : UINT16_MAX;
	block_header_keep(b, slot_seal_header(at, &ident, &info, b->generation, h.stored_unix_ms));
	return STATUS_OK;
}

/* Publishes what has arrived. In a read section. OK: a block of that name is stored; *out is this arrival's block if
 * that is the one, else NULL. */
static enum status arrival_publish(struct cache *c, struct arrival *n, struct block **out)
{
	enum status s = n->forgotten ? STATUS_CANCELLED : n->status;

	*out = NULL;
	if (!s)
		s = block_publish(c, n->block, c->now_us);
	if (s) {
		block_discard(c, n->block);
		return s == STATUS_EXISTS ? STATUS_OK : s;
	}
	*out = n->block;
	if (n->batch->kind == ARRIVAL_OFFERED)
		offer_enter(c, n->block, n->position, n->segment);
	else
		block_enter_policy(c, n->block, n->position);
	return STATUS_OK;
}

/* The one that was to send the block does not have it any more, or is gone. */
static bool is_not_there(enum status s)
{
	return s == STATUS_MISS || s == STATUS_NOT_FOUND || s == STATUS_UNAVAILABLE;
}

/* Ends an arrival, to whose slot nothing writes any more: publishes it, and tells the waiting calls. With the lock. */
static void arrival_end(struct cache *c, struct arrival *n)
{
	struct batch *b = n->batch;
	struct block *stored;
	enum status s;

	if (n->status == STATUS_CORRUPT) {
		cache_count(c, COUNTER_CORRUPT, 1);
		if (b->source->ops->wrong)
			b->source->ops->wrong(c, b->source, &n->ident);
	}
	arrival_leave(n);
	index_read_lock();
	s = arrival_publish(c, n, &stored);
	arrival_tell(c, n, stored, is_not_there(s) ? STATUS_OK : s); /* the calls look who else has it */
	index_read_unlock();
	if (--b->left == 0)
		batch_leave(b);
	tiers_pump(c);
}

static void arrival_check(struct work *w)
{
	struct arrival *n = (struct arrival *)((char *)w - offsetof(struct arrival, check));
	struct cache *c = n->batch->cache;

	n->status = arrival_judge(n);
	cache_lock(c);
	arrival_end(c, n);
	cache_unlock(c);
}

/* Called by the source when a piece has come. The source's thread has work of its own, so checksum threads check the
 * bytes, as long as they keep up. */
static void piece_came(struct fetch *f, uint32_t i, enum status s)
{
	struct arrival *n = f->piece[i].own;
	struct cache *c = n->batch->cache;

	n->status = s;
	n->check.run = arrival_check;
	if (s) {
		cache_lock(c);
		arrival_end(c, n);
		cache_unlock(c);
	} else if (!sums_submit(c->sums, &n->check)) {
		arrival_check(&n->check);
	}
}

/* Reserves a slot for a name of the batch, and a link by which the call waits. False: arrivals have their share of
 * memory, or there is no slot. */
static bool arrival_reserve(struct batch *b, const struct run_key *key, struct cache_wait *w)
{
	struct arrivals *all = b->cache->arrivals;
	struct arrival *n = &b->name[b->count];
	struct fetch_piece *p = &b->fetch->piece[b->count];
	const struct policy_event e = {
		.now_us = b->cache->now_us,
		.id = block_id(&key->name),
		.tokens = key->pool->layout.block_tokens,
	};
	const uint64_t bytes = key->pool->geometry.need_bytes;

	if (b->kind == ARRIVAL_OFFERED && !offer_has_room(b->cache, key->pool, all->offered_bytes))
		return false;
	if (all->names == ARRIVALS_MAX || all->bytes + bytes > b->cache->options.host_bytes / ARRIVALS_SHARE)
		return false;
	if (block_create(b->cache, key->pool, &e, key->name.key_bytes, &n->block)) {
		all->waiting_for_memory = room_wants(b->cache);
		if (all->waiting_for_memory)
			tier_wake(b->cache);
		return false;
	}
	if (!arrival_join(b->cache, n, w)) {
		block_discard(b->cache, n->block);
		return false;
	}
	block_name_set(n->block, &key->name);
	all->bytes += bytes;
	all->offered_bytes += b->kind == ARRIVAL_OFFERED ? bytes : 0;
	arrival_enter(b, n, key);
	p->key = (struct run_key){ key->pool, n->ident, NULL };
	p->slot = (struct memory_slot){ n->block->span, n->block->index, block_slot_at(n->block), n->block->take };
	p->own = n;
	b->count++;
	return true;
}

/* Returns how many pieces were begun; the others end here. An end needs the lock, so the batch exists until its last
 * piece. */
static uint32_t pieces_begun(struct cache *c, struct batch *b, enum status status)
{
	const uint32_t count = b->count;
	uint32_t come = 0;

	for (uint32_t i = 0; i < count; i++) {
		const enum status begun = status ? status : b->fetch->piece[i].begun;

		come += !begun;
		if (!begun)
			continue;
		b->name[i].status = begun;
		arrival_undo(&b->name[i]);
		arrival_end(c, &b->name[i]); /* the end of the last piece may free the batch */
	}
	return come;
}

/* Fetches these names from that source, as many as there is room for. Returns how many come. */
static uint32_t fetch_begin(struct cache *c, struct source *s, const struct key_run *run, struct cache_wait *w,
			    enum arrival_kind kind)
{
	struct batch *b = batch_create(c, s, run->count);
	enum status status = STATUS_EXHAUSTED;

	if (!b)
		return 0;
	b->kind = kind;
	b->fetch = calloc(1, sizeof(*b->fetch) + run->count * sizeof(b->fetch->piece[0]));
	for (uint32_t i = 0; b->fetch && i < run->count && arrival_reserve(b, &run->key[i], w);)
		i++;
	if (!b->count) {
		batch_free(b);
		return 0;
	}
	b->fetch->source = s;
	b->fetch->deadline_us = b->deadline_us;
	b->fetch->piece_came = piece_came;
	b->fetch->count = b->left = b->count;
	batch_enter(b);
	status = s->ops->fetch(c, s, b->fetch);
	return pieces_begun(c, b, status);
}

uint32_t arrival_fetch(struct cache *c, struct source *s, const struct key_run *run, struct cache_wait *w, bool ahead)
{
	return fetch_begin(c, s, run, w, ahead ? ARRIVAL_PREFETCH : ARRIVAL_ASKED);
}

/* ---- for lack.c (call/arrival_steps.h) ---- */

bool arrivals_join(struct cache *c, const struct index_ident *name, struct cache_wait *w, bool *comes)
{
	struct arrival *under_way = arrival_find(c->arrivals, name);

	if (under_way)
		*comes |= arrival_join(c, under_way, w);
	return under_way;
}

uint32_t arrivals_room(const struct cache *c)
{
	return ARRIVALS_MAX - c->arrivals->names;
}

bool arrivals_lack_memory(const struct cache *c)
{
	return c->arrivals->waiting_for_memory;
}

bool arrivals_await_memory(struct cache *c, struct cache_wait *w)
{
	struct cache_wait_link *l = w && c->arrivals->waiting_for_memory ? wait_link(c, w, NULL) : NULL;

	if (!l)
		return false;
	l->transfer_next = c->arrivals->waiting;
	c->arrivals->waiting = l;
	return true;
}

/* Tells the calls that wait for memory alone. */
static void memory_tell(struct cache *c)
{
	struct cache_wait_link *l = c->arrivals->waiting;

	c->arrivals->waiting = NULL;
	for (struct cache_wait_link *next; l; l = next) {
		next = l->transfer_next;
		wait_link_done(c, l, STATUS_OK);
	}
}

/* ---- what another member offers ---- */

enum status arrivals_pull(struct cache *c, const struct key_run *run, struct cache_wait *w)
{
	struct run_key key[OFFER_BLOCKS_MAX];
	struct key_run lacks = { 0, key };
	uint8_t word[OFFER_BLOCKS_MAX];
	uint32_t pulls = 0, s, n = 0;

	for (const struct batch *b = arrivals_get(c) ? c->arrivals->batches : NULL; b; b = b->next)
		pulls += b->kind == ARRIVAL_OFFERED;
	if (!c->arrivals || pulls >= PULLS_MAX)
		return STATUS_BUSY;
	if (!c->sources_by_name)
		return STATUS_MISS;
	s = (uint32_t)__builtin_ctz(c->sources_by_name);
	for (uint32_t i = 0; i < run->count; i++)
		if (!index_find(c->index, &run->key[i].name) && !arrival_find(c->arrivals, &run->key[i].name) &&
		    !deleted_has(c, &run->key[i].name))
			key[lacks.count++] = run->key[i];
	c->sources[s]->ops->known(c, c->sources[s], &lacks, word);
	for (uint32_t i = 0; i < lacks.count; i++)
		if (word[i] == SOURCE_HAS)
			key[n++] = key[i];
	lacks.count = n;
	if (!n)
		return STATUS_MISS;
	if (!offer_has_room(c, key[0].pool, c->arrivals->offered_bytes))
		return STATUS_EXHAUSTED;
	const uint32_t come = fetch_begin(c, c->sources[s], &lacks, w, ARRIVAL_OFFERED);

	return come == n ? STATUS_OK : come ? STATUS_EXHAUSTED : STATUS_BUSY;
}

/* ---- given up ---- */

void arrivals_forget(struct cache *c, const struct index_ident *ident)
{
	struct arrival *n = c->arrivals ? arrival_find(c->arrivals, ident) : NULL;

	if (n)
		n->forgotten = true;
	if (c->sources_by_name)
		deleted_add(c, ident);
}

static void batch_cancel(struct batch *b)
{
	if (b->fetch)
		b->source->ops->cancel(b->cache, b->source, b->fetch);
}

void arrivals_tick(struct cache *c)
{
	const uint64_t now_us = clock_us();

	for (struct batch *b = c->arrivals ? c->arrivals->batches : NULL, *next; b; b = next) {
		next = b->next;
		if (now_us > b->deadline_us || (b->kind != ARRIVAL_PREFETCH && !is_wanted(b)))
			batch_cancel(b);
	}
	if (c->arrivals && c->arrivals->rests)
		rests_try(c);
}

bool arrivals_want(const struct cache *c)
{
	return c->arrivals && (c->arrivals->waiting_for_memory || c->arrivals->waiting);
}

void arrivals_chores(struct cache *c)
{
	struct memory_class *waiting_for_memory = NULL;

	cache_lock(c);
	if (c->arrivals) {
		waiting_for_memory = c->arrivals->waiting_for_memory;
		c->arrivals->waiting_for_memory = NULL;
	}
	cache_unlock(c);
	if (waiting_for_memory)
		c->tiers[TIER_MEMORY]->grow(c, waiting_for_memory, false);
	cache_lock(c);
	if (c->arrivals)
		memory_tell(c);
	cache_unlock(c);
}

bool arrivals_stop(struct cache *c)
{
	struct arrivals *all = c->arrivals;
	struct timespec until;
	bool ended = true;

	if (!all)
		return true;
	until = deadline_in(STOP_US);
	cache_lock(c);
	memory_tell(c);
	for (struct batch *b = all->batches, *next; b; b = next) {
		next = b->next;
		batch_cancel(b);
	}
	while (all->batches && ended)
		ended = !pthread_cond_timedwait(&all->none, &c->lock, &until);
	ended = !all->batches;
	cache_unlock(c);
	if (!ended)
		return false;
	for (struct rest *r = all->rests, *more; r; r = more) {
		more = r->next;
		free(r);
	}
	pthread_cond_destroy(&all->none);
	free(all);
	c->arrivals = NULL;
	return true;
}
