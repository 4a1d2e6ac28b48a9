/* Keys, idents and prefixes: how a call's keys become blocks. */
#ifndef TERRACE_DAEMON_BLOCK_KEY_H
#define TERRACE_DAEMON_BLOCK_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/block/values.h"

struct block;
struct cache;
struct grid_rule;
struct index_ident;
struct layout_pool;
struct slot_ident;

enum { CHUNK_KEYS = 64 }; /* keys handled in one hold of the lock */

enum { FIND_BATCH = 128 };

/* The longest prefix over several layouts: bit p of `valid` says whether p blocks are usable in all layouts
 * fed so far. */
struct prefix {
	uint32_t count;
	uint32_t limit;                /* no longer prefix is possible */
	uint64_t valid[CACHE_KEYS_MAX / 64 + 1];
};

struct prefix_run {
	uint32_t need;                 /* blocks before the end that this layout wants, */
	uint32_t least;                /* and one more if the last one has fewer valid tokens than this */
	uint32_t at, run;
};

/* `count` of the keys, from number `from` on. */
static inline struct cache_keys keys_slice(const struct cache_keys *k, uint32_t from, uint32_t count)
{
	return (struct cache_keys){ k->bytes + (size_t)from * k->key_bytes, count, k->key_bytes, k->first + from,
				    k->grid };
}

/* A copy of k that has the session's grid g; g NULL: it has none. */
struct cache_keys keys_on(const struct cache_keys *k, const struct grid *g);

/* What is wrong with the keys of a call over that many layouts; NULL: nothing. Without the lock. */
const char *cache_keys_problem(const struct cache_keys *k, uint32_t layouts);
/* Makes an ident, which points to the caller's key. */
void block_ident(const struct layout_pool *p, const uint8_t *key, uint32_t key_bytes, struct index_ident *out);
/* Makes the ident that the header of such a block's slot has, from the caller's key and the pool's tenant. Any
 * thread. */
void block_slot_ident(const struct layout_pool *p, const uint8_t *key, uint8_t key_bytes, struct slot_ident *out);
uint64_t ident_hash(const struct index_ident *ident, uint64_t seed);
bool ident_equal(const struct index_ident *a, const struct index_ident *b);
void prefix_begin(struct prefix *p, uint32_t count);
void prefix_layout(struct prefix_run *r, const struct layout_pool *pool);
/* b: of the next key; NULL: absent. */
void prefix_feed(struct prefix *p, struct prefix_run *r, const struct block *b);
/* Blocks that a prefix needs whose last one is b; NULL: it is not known, and taken to be full. */
uint32_t prefix_need(const struct prefix_run *r, const struct block *b);
uint32_t prefix_longest(const struct prefix *p);
/* The turn of a request that follows a block of that turn; 0: not known. */
uint16_t turn_after(uint16_t turn, bool goes_on);
/* Gathers a layout's cells among the keys from *at on, up to FIND_BATCH: their keys into bytes[], their numbers among
 * the keys into index[]. Returns how many; *at is then behind the last key looked at. */
uint32_t cells_gather(const struct cache_keys *k, const struct grid_rule *rule, uint32_t *at, uint8_t *bytes,
		      uint32_t *index);
/* Whether the block can be the one of key number i in that layout. Where a block covers several keys, its tokens reveal
 * a call that gives wrong positions. */
bool cell_fits(const struct cache_keys *k, uint32_t layout, uint32_t i, const struct block *b);
/* A block of a layout with a window, in a session of one unit a block, has so few valid tokens that a prefix that ends
 * with it needs one block more. b may be NULL. */
bool cell_falls_short(const struct grid_rule *rule, const struct block *b);
/* Without the lock, in a read section: found[key * layouts + layout] = the block or NULL. */
void blocks_find(struct cache *c, struct layout_pool *const *pools, uint32_t layouts, const struct cache_keys *k,
		 struct block **found);
uint64_t key_mix(uint64_t h, uint64_t word);
uint64_t key_name(const uint8_t *key, uint32_t key_bytes);
/* The name of a key of that tenant: the tenant's number is mixed into key_name(), but for `default`. */
uint64_t key_name_of(uint32_t tenant, const uint8_t *key, uint32_t key_bytes);

/* The first of the first `n` blocks that a layout with this need uses. */
static inline uint32_t prefix_first(uint32_t n, uint32_t need)
{
	return n > need ? n - need : 0;
}

#endif
