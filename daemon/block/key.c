/* Keys and idents. A prefix over several layouts is a bit for each length that is usable in all layouts fed so far. */
#include "daemon/block/key.h"

#include "daemon/block/block.h"
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

void block_ident(const struct pool *p, const uint8_t *key, uint32_t key_bytes, struct index_ident *out)
{
	*out = (struct index_ident){
		.layout_id = p->layout_id, .tenant = p->tenant->number, .key_bytes = key_bytes, .key = key
	};
}

void block_slot_ident(const struct pool *p, const char *tenant, const uint8_t *key, uint8_t key_bytes, struct slot_ident *out)
{
	*out = (struct slot_ident){
		.tenant = tenant, .layout_id = p->layout_id, .key = key, .key_bytes = key_bytes,
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
	if ((uint64_t)k->count * layouts > CACHE_BLOCKS_MAX)
		return "at most 16384 blocks (keys times layouts) a call";
	return NULL;
}

void prefix_begin(struct prefix *p, uint32_t count)
{
	p->count = p->limit = count;
	memset(p->valid, 0xff, (count / 64 + 1) * sizeof(p->valid[0]));
}

void prefix_layout(struct prefix_run *r, const struct pool *pool)
{
	uint32_t tokens = pool->layout.block_tokens, window = pool->layout.window;

	*r = (struct prefix_run){ .need = UINT32_MAX };
	if (window)
		r->need = (window - 1) / tokens + ((window - 1) % tokens != 0);
}

void prefix_feed(struct prefix *p, struct prefix_run *r, bool present)
{
	r->at++;
	r->run = present ? r->run + 1 : 0;
	if (r->run < r->at && r->run < r->need) {
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

void blocks_find(struct cache *c, struct pool *const *pools, uint32_t layouts, const struct cache_keys *k,
		 struct block **found)
{
	struct index_record *records[FIND_BATCH];

	for (uint32_t l = 0; l < layouts; l++)
		for (uint32_t at = 0; at < k->count; at += FIND_BATCH) {
			uint32_t n = k->count - at < FIND_BATCH ? k->count - at : FIND_BATCH;

			index_find_many(c->index, pools[l]->tenant->number, pools[l]->layout_id,
					k->bytes + (size_t)at * k->key_bytes, k->key_bytes, n, records);
			for (uint32_t i = 0; i < n; i++) {
				struct block *b = records[i] ? block_of(records[i]) : NULL;

				found[(size_t)(at + i) * layouts + l] = b;
				if (b)
					block_fetch_ahead(b);
			}
		}
}
