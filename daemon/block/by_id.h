/* Published blocks by the id that policies and the advice know them by. With the cache's lock. */
#ifndef TERRACE_DAEMON_BLOCK_BY_ID_H
#define TERRACE_DAEMON_BLOCK_BY_ID_H

#include <stdbool.h>
#include <stdint.h>

struct block;
struct cache;
struct index_ident;

/* The table of blocks by id. by_id_find returns any of several blocks with one id. The table's size follows the cache's
 * options. create: false: no memory. destroy: the table must be empty; twice is fine. */
bool by_id_create(struct cache *c);
void by_id_destroy(struct cache *c);
void by_id_add(struct cache *c, struct block *b);
void by_id_remove(struct cache *c, struct block *b);
struct block *by_id_find(const struct cache *c, uint64_t id);

/* The id of a block of that name (block/key.h: key_name) and layout. */
static inline uint64_t policy_id(uint64_t name, uint64_t layout_id)
{
	uint64_t id = name ^ layout_id * 0x9e3779b97f4a7c15ull;

	return id ? id : 1;
}
/* The id of the block with this ident: policy_id of its key's name and its layout. */
uint64_t block_id(const struct index_ident *ident);

#endif
