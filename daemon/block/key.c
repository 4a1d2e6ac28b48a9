/* Keys and idents. A prefix over several layouts is a bit for each length that is usable in all layouts fed so far. */
#include "daemon/block/key.h"

#include "daemon/block/block.h"
#include "daemon/block/grid.h"
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "store/index.h"
#include "store/slot.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

uint64_t key_mix(uint64_t h, uint64_t word)
{
	h = (h ^ word) * 0x9e3779b97f4a7c15ull;
	return h ^ h >> 29;
}

uint64_t key_name(const uint8_t *key, uint32_t key_bytes)
{
	uint64_t h = key_bytes, word;

	for (; key_bytes >= 8; key += 8, key_bytes -= 8) {
		memcpy(&word, key, 8);
		h = key_mix(h, word);
	}
	word = 0;
	memcpy(&word, key, key_bytes);
	h = key_mix(h, word);
	return h ? h : 1;
}

uint64_t key_name_of(uint32_t tenant, const uint8_t *key, uint32_t key_bytes)
{
	const uint64_t name = key_name(key, key_bytes), h = tenant > 1 ? key_mix(name, tenant) : name;

	return h ? h : 1;
}

void block_ident(const struct layout_pool *p, const uint8_t *key, uint32_t key_bytes, struct index_ident *out)
{
	*out = (struct index_ident){
		.layout_id = p->layout_id, .tenant = p->tenant->number, .key_bytes = key_bytes, .key = key
	};
}

void block_slot_ident(const struct layout_pool *p, const uint8_t *key, uint8_t key_bytes, struct slot_ident *out)
{
	*out = (struct slot_ident){
		.tenant = p->tenant->name, .layout_id = p->layout_id, .key = key, .key_bytes = key_bytes,
		.block_bytes = p->geometry.block_bytes, .layer_bytes = p->geometry.piece_bytes,
		.layers = p->geometry.pieces,
	};
}

static uint64_t word_at(const uint8_t *key)
{
	uint64_t word;

	memcpy(&word, key, sizeof(word));
	return word;
}

static uint64_t two_words(uint64_t h, const uint8_t *key)
{
	return key_mix(key_mix(h, word_at(key)), word_at(key + 8));
}

uint64_t ident_hash(const struct index_ident *ident, uint64_t seed)
{
	uint64_t h = seed ^ ident->layout_id ^ ident->key_bytes;

	const uint8_t *key = ident->key;
	uint32_t n = ident->key_bytes;
	uint64_t rest = 0;

	/* The common sizes without a loop. */
	if (n == 32) {
		h = two_words(h, key);
		key += 16;
		n = 16;
	}
	if (n == 16)
		return two_words(h, key);
	for (; n >= 8; key += 8, n -= 8)
		h = key_mix(h, word_at(key));
	if (n == 0)
		return h;
	memcpy(&rest, key, n);
	return key_mix(h, rest);
}

bool ident_equal(const struct index_ident *a, const struct index_ident *b)
{
	return a->layout_id == b->layout_id && a->tenant == b->tenant && a->key_bytes == b->key_bytes &&
	       !memcmp(a->key, b->key, a->key_bytes);
}

const char *cache_keys_problem(const struct cache_keys *k, uint32_t layouts)
{
	if (k->key_bytes == 0 || k->key_bytes > SLOT_KEY_MAX)
		return "a key has 1 to 64 bytes";
	_Static_assert(SLOT_KEY_MAX == 64 && (int)INDEX_KEY_MAX == (int)SLOT_KEY_MAX, "the words say so");
	if (k->count > CACHE_KEYS_MAX)
		return "at most 4096 keys a call";
	if (k->first > GRID_FIRST_MAX)
		return "the position of the first key is at most 2147483648";
	if ((k->grid ? grid_cells(k->grid, k->first, k->count) : (uint64_t)k->count * layouts) > CACHE_BLOCKS_MAX)
		return "the keys have more than 32768 blocks in the session's layouts: ask for fewer keys a call";
	_Static_assert(CACHE_BLOCKS_MAX == 32768 && GRID_FIRST_MAX == 2147483648u, "the words say so");
	return NULL;
}

struct cache_keys keys_on(const struct cache_keys *k, const struct grid *g)
{
	return (struct cache_keys){ k->bytes, k->count, k->key_bytes, k->first, g && !grid_is_plain(g) ? g : NULL };
}

void prefix_begin(struct prefix *p, uint32_t count)
{
	p->count = p->limit = count;
	memset(p->valid, 0xff, (count / 64 + 1) * sizeof(p->valid[0]));
}

void prefix_layout(struct prefix_run *r, const struct layout_pool *pool)
{
	uint32_t tokens = pool->layout.block_tokens, window = pool->layout.window;

	*r = (struct prefix_run){ .need = UINT32_MAX };
	if (!window)
		return;
	r->need = (window - 1) / tokens + ((window - 1) % tokens != 0);
	r->least = r->need ? window - 1 - (r->need - 1) * tokens : 0;
}

uint32_t prefix_need(const struct prefix_run *r, const struct block *b)
{
	return r->need + (r->least && b && b->tokens < r->least);
}

/* Few prefixes end where the run is exactly as long as needed: no other block's tokens are read. */
void prefix_feed(struct prefix *p, struct prefix_run *r, const struct block *b)
{
	r->at++;
	r->run = b ? r->run + 1 : 0;
	if (r->run < r->at && (r->run < r->need || (r->run == r->need && r->run < prefix_need(r, b)))) {
		p->valid[r->at / 64] &= ~(1ull << r->at % 64);
		if (r->need == UINT32_MAX && r->at <= p->limit)
			p->limit = r->at - 1;
	}
}

uint32_t prefix_longest(const struct prefix *p)
{
	uint32_t n = p->limit;

	while (n && !(p->valid[n / 64] >> n % 64 & 1))
		n--;
	return n;
}

uint16_t turn_after(uint16_t turn, bool goes_on)
{
	return turn && goes_on && turn < UINT16_MAX ? turn + 1 : turn;
}

uint32_t cells_gather(const struct cache_keys *k, const struct grid_rule *rule, uint32_t *at, uint8_t *bytes,
		      uint32_t *index)
{
	const uint64_t first = k->first;
	uint32_t i = *at, n = 0;

	if (!rule->partial) /* up to the next full one */
		i += (uint32_t)(rule->units - 1 - (first + i) % rule->units);
	for (; i < k->count && n < FIND_BATCH; i += rule->partial ? 1 : rule->units) {
		memcpy(bytes + (size_t)n * k->key_bytes, k->bytes + (size_t)i * k->key_bytes, k->key_bytes);
		index[n++] = i;
	}
	*at = i < k->count ? i : k->count;
	return n;
}

bool cell_fits(const struct cache_keys *k, uint32_t layout, uint32_t i, const struct block *b)
{
	const struct grid *g = k->grid;

	return !g->chained || b->tokens == grid_units_at(&g->rule[layout], (uint64_t)k->first + i) * g->unit;
}

bool cell_falls_short(const struct grid_rule *rule, const struct block *b)
{
	return b && grid_least(rule) > 1 && b->tokens < grid_least(rule);
}

static void cells_find(struct cache *c, const struct layout_pool *pool, uint32_t l, const struct cache_keys *k,
		       struct block **found)
{
	struct index_record *records[FIND_BATCH];
	uint8_t bytes[FIND_BATCH * SLOT_KEY_MAX];
	const uint32_t layouts = k->grid->layouts;
	uint32_t index[FIND_BATCH], n;

	for (uint32_t i = 0; i < k->count; i++)
		found[(size_t)i * layouts + l] = NULL;
	for (uint32_t at = 0; at < k->count;) {
		n = cells_gather(k, &k->grid->rule[l], &at, bytes, index);
		if (n)
			index_find_many(c->index, pool->tenant->number, pool->layout_id, bytes, k->key_bytes, n,
					records);
		for (uint32_t i = 0; i < n; i++) {
			struct block *b = records[i] ? block_of(records[i]) : NULL;

			if (b && cell_fits(k, l, index[i], b))
				block_hint(found[(size_t)index[i] * layouts + l] = b);
		}
	}
}

void blocks_find(struct cache *c, struct layout_pool *const *pools, uint32_t layouts, const struct cache_keys *k,
		 struct block **found)
{
	struct index_record *records[FIND_BATCH];

	for (uint32_t l = 0; k->grid && l < layouts; l++)
		cells_find(c, pools[l], l, k, found);
	if (k->grid)
		return;

	for (uint32_t l = 0; l < layouts; l++)
		for (uint32_t at = 0; at < k->count; at += FIND_BATCH) {
			uint32_t n = k->count - at < FIND_BATCH ? k->count - at : FIND_BATCH;

			index_find_many(c->index, pools[l]->tenant->number, pools[l]->layout_id,
					k->bytes + (size_t)at * k->key_bytes, k->key_bytes, n, records);
			for (uint32_t i = 0; i < n; i++) {
				struct block *b = records[i] ? block_of(records[i]) : NULL;

				found[(size_t)(at + i) * layouts + l] = b;
				if (b)
					block_hint(b);
			}
		}
}
