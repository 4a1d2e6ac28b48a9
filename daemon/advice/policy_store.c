/* Keeps what policies have learned, and where conversations ended, over restarts. They are kept as pieces of bytes
 * (policy_ops.keep) in the catalog's table of edges. Some pieces are written in each pass, round after round; at an
 * orderly stop all of them are written anew, before the rest of the graph.
 *
 *     piece  'c', owner 1, where 8, what 8, number 4          version 1, 0 3, ~0 4, unix ms 8, the piece
 *
 * Owners: 'm' a class of slots of memory (0, its stride), 'g' on a GPU (its number, layout), 'd' a disk's slots of a
 * size (disk, bytes), 'k' the conversations. Numbers in keys are big-endian. Pieces that do not exist any more are
 * dropped at the end of their owner's round; pieces of an owner that was missing for a month are dropped at a start.
 * All pieces are read at the start. A policy gets its pieces when it is made, before it is told anything else. Pieces
 * that it refuses are skipped, and learned again.
 */
#include "daemon/advice/policy_store.h"

#include "daemon/advice/advice.h"
#include "daemon/advice/catalog_key.h"
#include "daemon/advice/graph.h"
#include "daemon/advice/request.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/observer.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "eviction/policy.h"
#include "store/catalog/catalog.h"
#include "store/clock.h"
#include "store/status.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
	VERSION = 1,
	KEY = 22, OWNER = 18, HEAD = 16, /* of KEY what is before the number; of a record before the piece */
	CONVERSATION_VERSION = 1, CONVERSATION_HEAD = 4, CONVERSATION_BYTES = 16,
};
#define ROUND_US (30 * 1000 * 1000ull)
#define MONTH_MS (30ull * 24 * 3600 * 1000)

_Static_assert(HEAD + POLICY_PIECE_MAX <= CATALOG_VALUE_MAX, "a piece is a record");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are written as they lie in memory");

static void key_of(const struct learner *l, uint32_t number, uint8_t key[KEY])
{
	key[0] = 'c';
	key[1] = (uint8_t)l->whom;
	put_be(key + 2, l->where, 8);
	put_be(key + 10, l->what, 8);
	put_be(key + 18, number, 4);
}

/* ---- conversations ---- */

static size_t conversations_keep(const struct advice *a, uint64_t *cursor, uint8_t out[POLICY_PIECE_MAX])
{
	uint16_t head[2] = { CONVERSATION_VERSION, 0 };
	size_t at = CONVERSATION_HEAD;

	for (; *cursor < CONVERSATIONS && at + CONVERSATION_BYTES <= POLICY_PIECE_MAX; ++*cursor) {
		const struct conversation *v = &a->conversation[*cursor];
		const uint64_t words[2] = { v->tail, (uint64_t)v->number << 16 | v->turn };

		if (!v->tail)
			continue;
		memcpy(out + at, words, sizeof(words));
		at += sizeof(words);
		head[1]++;
	}
	memcpy(out, head, sizeof(head));
	return head[1] ? at : 0;
}

static void conversations_recall(struct advice *a, const uint8_t *bytes, size_t size)
{
	uint16_t head[2];
	uint64_t words[2];

	if (size < CONVERSATION_HEAD)
		return;
	memcpy(head, bytes, sizeof(head));
	if (head[0] != CONVERSATION_VERSION || size != CONVERSATION_HEAD + (size_t)head[1] * CONVERSATION_BYTES)
		return;
	for (size_t at = CONVERSATION_HEAD; at < size; at += CONVERSATION_BYTES) {
		memcpy(words, bytes + at, sizeof(words));
		if (!words[0])
			continue;
		a->conversation[words[0] % CONVERSATIONS] = (struct conversation){ words[0], words[1] >> 16, words[1] & UINT16_MAX };
		if (words[1] >> 16 > a->conversations)
			a->conversations = words[1] >> 16;
	}
}

/* ---- the owners of pieces ---- */

static bool learner_of_disk(struct cache *c, uint32_t *n, struct learner *out)
{
	for (uint32_t i = 0; i < c->tier->unit_count; i++)
		for (const struct disk_class *k = c->tier->units[i].classes; k; k = k->next)
			if (!(*n)--) {
				*out = (struct learner){ 'd', c->tier->units[i].id, k->slot_bytes, c->tier->policy, k->policy };
				return true;
			}
	return false;
}

static bool learner_of_gpu(struct cache *c, uint32_t *n, struct learner *out)
{
	for (uint32_t g = 0; c->vram && g < c->vram->count; g++)
		for (const struct vram_class *k = c->vram->gpu[g]->classes; k; k = k->next)
			if (!(*n)--) {
				*out = (struct learner){ 'g', g, k->stride, c->policy, k->policy };
				return true;
			}
	return false;
}

/* Finds the n-th learner, in an order in which new ones may come between others. False: there are no more. */
static bool learner_at(struct cache *c, uint32_t n, struct learner *out)
{
	if (n < c->class_count) {
		*out = (struct learner){ 'm', 0, c->classes[n]->stride, c->policy, c->classes[n]->policy };
		return true;
	}
	n -= c->class_count;
	if (n == 0) {
		*out = (struct learner){ .whom = 'k' };
		return true;
	}
	n--;
	return learner_of_disk(c, &n, out) || learner_of_gpu(c, &n, out);
}

/* ---- out ---- */

/* Writes the learner's next piece to out; 0: it has no more. */
static size_t piece_of(struct cache *c, const struct learner *l, uint64_t *cursor, uint8_t *out)
{
	if (l->whom == 'k')
		return conversations_keep(c->advice, cursor, out);
	return l->ops->keep ? l->ops->keep(l->policy, cursor, out) : 0;
}

/* Deletes the pieces that an earlier round had beyond those of this one, from k->number on. If the catalog's queue is
 * full, the next call goes on there. */
static enum status drop_rest(struct catalog *catalog, const struct learner *l, struct learning *k)
{
	uint8_t key[KEY], value[CATALOG_VALUE_MAX];
	enum status s;

	for (;; k->number++) {
		size_t bytes = sizeof(value);

		key_of(l, k->number, key);
		s = catalog_get(catalog, CATALOG_EDGES, key, sizeof(key), value, &bytes);
		if (s == STATUS_MISS)
			return STATUS_OK;
		if (s == STATUS_OK || s == STATUS_CORRUPT)
			s = catalog_drop(catalog, CATALOG_EDGES, key, sizeof(key));
		if (s)
			return s;
	}
}

/* Learners are told by number, and a new class's moves those behind it on: whose pieces are under way begins again
 * then. */
static bool learner_next(struct cache *c, struct learning *k, struct learner *l)
{
	if (!learner_at(c, k->at, l))
		return false;
	if (k->whom != l->whom || k->where != l->where || k->what != l->what) {
		k->number = 0;
		k->cursor = 0;
	}
	k->whom = l->whom;
	k->where = l->where;
	k->what = l->what;
	return true;
}

/* Saves one piece. OK: the round is over. BUSY: there are more. Otherwise the catalog did not take it. */
static enum status keep_piece(struct cache *c, struct advisor *a, struct learning *k)
{
	uint8_t key[KEY], value[HEAD + POLICY_PIECE_MAX] = { VERSION };
	const uint32_t round = UINT32_MAX; /* of the graph's rounds: none */
	const uint64_t ms = clock_unix_ms();
	uint64_t before = 0;
	struct learner l;
	size_t bytes = 0;
	enum status s;

	cache_lock(c);
	k->on = learner_next(c, k, &l);
	if (k->on) {
		before = k->cursor;
		bytes = piece_of(c, &l, &k->cursor, value + HEAD);
	}
	cache_unlock(c);
	if (!k->on)
		return STATUS_OK;
	if (!bytes) {
		s = drop_rest(c->tier->catalog, &l, k);
		if (s)
			return s;
		k->at++;
		k->whom = 0;
		return STATUS_BUSY;
	}
	key_of(&l, k->number, key);
	memcpy(value + 4, &round, 4);
	memcpy(value + 8, &ms, 8);
	s = catalog_put(c->tier->catalog, CATALOG_EDGES, key, sizeof(key), value, HEAD + bytes);
	if (s) {
		k->cursor = before;
		return s;
	}
	k->number++;
	atomic_fetch_add(&a->pieces, 1);
	return STATUS_BUSY;
}

void policy_state_anew(struct advisor *a)
{
	a->learning = (struct learning){ .on = true, .round_us = a->latest_us };
}

enum status policy_state_keep(struct cache *c, struct advisor *a, uint32_t pieces)
{
	struct learning *k = &a->learning;
	enum status s = STATUS_BUSY;

	if (!c->tier || !c->tier->catalog || !a->loaded)
		return STATUS_OK;
	if (!k->on && a->latest_us - k->round_us < ROUND_US)
		return STATUS_OK;
	if (!k->on)
		policy_state_anew(a);
	for (; pieces && s == STATUS_BUSY; pieces--)
		s = keep_piece(c, a, k);
	return s;
}

/* ---- in ---- */

static void take_up(struct cache *c, const struct learner *l, const uint8_t *value, size_t bytes)
{
	uint64_t ms, now_ms = clock_unix_ms();

	if (bytes < HEAD || value[0] != VERSION)
		return;
	memcpy(&ms, value + 8, 8);
	if (l->whom == 'k')
		conversations_recall(c->advice, value + HEAD, bytes - HEAD);
	else
		l->ops->recall(l->policy, c->now_us, now_ms > ms && now_ms - ms < MONTH_MS ? (now_ms - ms) * 1000 : 0, value + HEAD, bytes - HEAD);
}

/* A piece that an earlier run has left. */
struct policy_state {
	uint8_t key[KEY];
	uint32_t bytes;
	uint8_t *value;                /* NULL: it was taken up */
};

struct loading {
	struct advice *a;
	size_t room;
};

/* Loads a piece that an earlier run has left. For lack of memory the rest is learned again. */
static bool load_piece(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
	struct loading *x = arg;
	struct advice *a = x->a;
	struct policy_state *p;

	if (*(const uint8_t *)key != 'c')
		return false;
	if (key_bytes != KEY)
		return true;
	if (a->policy_state_count == x->room) {
		const size_t room = x->room ? 2 * x->room : 256;
		struct policy_state *more = realloc(a->policy_state, room * sizeof(*more));

		if (!more)
			return false;
		a->policy_state = more;
		x->room = room;
	}
	p = &a->policy_state[a->policy_state_count];
	*p = (struct policy_state){ .bytes = (uint32_t)value_bytes, .value = malloc(value_bytes + 1) };
	if (!p->value)
		return false;
	memcpy(p->key, key, KEY);
	memcpy(p->value, value, value_bytes);
	a->policy_state_count++;
	return true;
}

void policy_state_load(struct cache *c)
{
	struct loading x = { .a = c->advice };

	if (c->advice->advisor)
		catalog_walk_from(c->tier->catalog, CATALOG_EDGES, "c", 1, load_piece, &x, NULL);
}

void policy_state_free(struct cache *c)
{
	for (size_t i = 0; i < c->advice->policy_state_count; i++)
		free(c->advice->policy_state[i].value);
	free(c->advice->policy_state);
}

/* The index of the first piece whose key is not below this key. */
static size_t policy_state_place(const struct advice *a, const uint8_t key[KEY])
{
	size_t low = 0, high = a->policy_state_count;

	while (low < high) {
		const size_t middle = low + (high - low) / 2;

		if (memcmp(a->policy_state[middle].key, key, KEY) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static void recall_all(struct cache *c, const struct learner *l)
{
	struct advice *a = c->advice;
	uint8_t key[KEY];

	key_of(l, 0, key);
	for (size_t i = policy_state_place(a, key); i < a->policy_state_count &&
	    !memcmp(a->policy_state[i].key, key, OWNER); i++) {
		struct policy_state *p = &a->policy_state[i];

		if (p->value)
			take_up(c, l, p->value, p->bytes);
		free(p->value);
		p->value = NULL;
	}
}

void policy_state_recall(struct cache *c, const struct learner *l)
{
	if (c->advice->advisor && l->ops->recall)
		recall_all(c, l);
}

void policy_state_conversations(struct cache *c)
{
	const struct learner l = { .whom = 'k' };

	recall_all(c, &l);
}

bool policy_state_is_old(const uint8_t *key, size_t key_bytes, const uint8_t *value, size_t value_bytes)
{
	uint64_t ms;

	if (key_bytes != KEY || key[0] != 'c' || value_bytes < HEAD)
		return false;
	memcpy(&ms, value + 8, 8);
	return clock_unix_ms() > ms + MONTH_MS;
}
