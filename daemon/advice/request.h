/* Requests: what a prompt asked for. The policies are told it once, however many calls it took. */
#ifndef TERRACE_DAEMON_ADVICE_REQUEST_H
#define TERRACE_DAEMON_ADVICE_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/grid.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/values.h"

struct cache;

enum request_kind { REQUEST_LOOKUP, REQUEST_LEASE, REQUEST_REPORT };

/* The end of each conversation: an open table without chains; later entries displace earlier ones. */
enum { CONVERSATIONS = 1 << 15 };

enum { READ_A_CALL = 8192, READ_A_TICK = 16384 };

#define READ_ALL UINT32_MAX

/* A request that has been read. */
struct request {
	enum request_kind kind;
	uint8_t hint;                  /* enum policy_hint */
	uint8_t priority;              /* enum policy_priority */
	uint32_t ttl_s;                /* 0: not said */
	uint16_t turn;                 /* 0: not known */
	uint32_t count, present;       /* keys; keys of the prefix that was present (lookups) */
	uint32_t layouts;
	uint64_t session;
	uint32_t first;                /* position of the first key; of a session with a grid */
	struct grid grid;              /* unit 0: of a plain session */
	uint64_t conversation;         /* a number for each chain that goes on */
	/* a number for all its keys in that session; for the keys of the prefix that was present, 0: none was */
	uint64_t whole, part;
	struct layout_pool *pool[CACHE_LAYOUTS_MAX];
	uint64_t name[CACHE_KEYS_MAX];
};

struct conversation {
	uint64_t tail;                 /* the last key's name */
	uint64_t number : 48, turn : 16;
};

/* What a call says of its request; the members are those of struct request. */
struct asking {
	enum request_kind kind;
	uint64_t session;
	uint32_t present, ttl_s;
	uint16_t turn;
	uint8_t hint, priority;
};

/* Without the lock. create before everything else; false: no memory. stop ends its threads; false: one is in the catalog, and has not come back
 * within disk_close_ms. destroy comes after everything else. */
bool advice_create(struct cache *c);
bool advice_stop(struct cache *c);
void advice_destroy(struct cache *c);
/* Any thread, with or without the lock: sends a message. */
void advice_ask(struct cache *c, const struct asking *q, struct layout_pool *const *pools, uint32_t layouts,
		const struct cache_keys *k);
/* Reads messages of at most `keys` keys together, but at least one. In a read section of the index. */
void advice_read(struct cache *c, uint32_t keys);

/* Tokens of a key. */
static inline uint32_t request_unit(const struct request *r)
{
	return r->grid.unit ? r->grid.unit : r->pool[0]->layout.block_tokens;
}

#endif
