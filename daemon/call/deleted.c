/* A table with one place for each hash. A lost entry costs that a deleted block may come back from a member that has
 * not heard of the delete. */
#include "daemon/call/deleted.h"

#include "daemon/block/block.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "store/index.h"

#include <stdlib.h>

struct deleted {
	uint64_t name, until_us;       /* a hash of the name; 0: none */
};

static struct deleted *place_of(const struct cache *c, const struct index_ident *name, uint64_t *hash)
{
	*hash = ident_hash(name, c->pending_key_seed) | 1;
	return &c->deleted[(*hash >> 1) % DELETED_MAX];
}

void deleted_add(struct cache *c, const struct index_ident *name)
{
	struct deleted *at;
	uint64_t hash;

	if (!c->deleted)
		c->deleted = calloc(DELETED_MAX, sizeof(c->deleted[0]));
	if (!c->deleted)
		return;
	at = place_of(c, name, &hash);
	*at = (struct deleted){ hash, c->now_us + DELETED_US };
}

bool deleted_has(const struct cache *c, const struct index_ident *name)
{
	const struct deleted *at;
	uint64_t hash;

	if (!c->deleted)
		return false;
	at = place_of(c, name, &hash);
	return at->name == hash && at->until_us > c->now_us;
}

void deleted_stored(struct cache *c, const struct block *b)
{
	const struct index_ident name = block_name(b);
	struct deleted *at;
	uint64_t hash;

	if (!c->deleted)
		return;
	at = place_of(c, &name, &hash);
	if (at->name == hash)
		at->name = 0;
}

void deleted_destroy(struct cache *c)
{
	free(c->deleted);
	c->deleted = NULL;
}
