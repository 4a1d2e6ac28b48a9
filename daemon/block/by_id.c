/* The table of published blocks by id: a bucket is a list, and the number of buckets stays. */
#include "daemon/block/by_id.h"

#include "daemon/block/block.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/observer.h"
#include "daemon/block/options.h"
#include "store/index.h"

#include <stdlib.h>

enum {
	BYTES_A_BUCKET = 256 * 1024,   /* blocks are seldom smaller than this */
	BUCKETS_MIN = 1 << 12,
	BUCKETS_MAX = 1 << 22,
};

uint64_t block_id(const struct index_ident *ident)
{
	return policy_id(key_name_of(ident->tenant, ident->key, ident->key_bytes), ident->layout_id);
}

static uint64_t buckets_for(const struct cache_options *o)
{
	uint64_t bytes = o->host_bytes, n = BUCKETS_MIN;

	for (uint32_t i = 0; i < o->disk_count; i++)
		bytes += o->disks[i].bytes;
	while (n < bytes / BYTES_A_BUCKET && n < BUCKETS_MAX)
		n *= 2;
	return n;
}

bool by_id_create(struct cache *c)
{
	c->by_id_mask = buckets_for(&c->options) - 1;
	c->by_id = calloc(c->by_id_mask + 1, sizeof(*c->by_id));
	return c->by_id;
}

void by_id_destroy(struct cache *c)
{
	free(c->by_id);
	c->by_id = NULL;
}

static struct block **bucket_of(const struct cache *c, uint64_t id)
{
	return &c->by_id[key_mix(0, id) & c->by_id_mask];
}

void by_id_add(struct cache *c, struct block *b)
{
	struct block **bucket = bucket_of(c, b->node.id);

	b->id_next = *bucket;
	*bucket = b;
	observe_listed(c, b, true);
}

void by_id_remove(struct cache *c, struct block *b)
{
	struct block **at = bucket_of(c, b->node.id);

	while (*at != b)
		at = &(*at)->id_next;
	*at = b->id_next;
	if (!b->span)
		observe_prefetch_ended(c, b, COUNTER_PREFETCH_WASTED);
	observe_listed(c, b, false);
}

struct block *by_id_find(const struct cache *c, uint64_t id)
{
	struct block *b = *bucket_of(c, id);

	while (b && b->node.id != id)
		b = b->id_next;
	return b;
}
