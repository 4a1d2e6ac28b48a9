/* Offers: blocks that memory is about to drop go to another member of the cluster, which has room (call/offer.c).
 *
 * The holder gathers the coldest blocks of which there is no other copy, lends them (call/loan.h), and tells one member
 * (peers/spill.h). That member reads what it has free memory for. The holder then marks these blocks BLOCK_AT_PEER:
 * they are not offered again until they have been used, and their eviction drops nothing. An offer never keeps memory
 * from being used: when a block would be dropped, offers are withdrawn first, the oldest first. */
#ifndef TERRACE_DAEMON_CALL_OFFER_H
#define TERRACE_DAEMON_CALL_OFFER_H

#include <stdbool.h>
#include <stdint.h>

#include "store/index.h"
#include "store/slot.h"
#include "store/status.h"

struct block;
struct cache;
struct cache_wait;
struct key_run;
struct layout_pool;
struct memory_class;

enum {
	OFFER_BLOCKS_MAX = 64,         /* of one offer */
	OFFERS_MAX = 2,                /* at a time; their blocks are fewer than a search for a victim passes */
	OFFER_HELD_US = 60 * 1000 * 1000, /* so long a member's block keeps its place, unless it is read back */
	OFFER_SHARE = 16,              /* at most this part (1/16) of host memory is offered at a time */
};

/* ---- the holder ---- */

struct offer_block {
	uint64_t id, generation;       /* of the block */
	uint64_t segment;              /* as exports_segment_of says; 0: not known */
	const struct layout_pool *pool;
	bool left;                     /* it left before it was lent; its number in the loan stays */
	struct index_ident name;       /* its key is: */
	uint8_t key[SLOT_KEY_MAX];
};

/* Blocks of one tenant, and as far as known of one segment of a chain. */
struct offer {
	uint32_t tenant;               /* its number */
	uint64_t segment;              /* 0: not known */
	uint64_t loan, bytes;          /* of the loan */
	uint32_t count;
	struct offer_block block[OFFER_BLOCKS_MAX];
};

/* Gathers the next offer, in the order in which the blocks would be evicted, and lends its blocks for hold_us. False:
 * nothing is to be offered now. Without the lock. */
bool cache_offer_begin(struct cache *c, uint64_t hold_us, uint64_t now_us, struct offer *out);
/* Blocks of memory, those that were used last first, for a daemon that drains. */
struct hot_list {
	struct hot_block {
		uint64_t id, used_us;
	} *of;                         /* [count], malloc */
	uint32_t count, at;            /* at: those before it were offered, or left out */
	uint64_t segment, used_us;     /* of the blocks that were used then; 0: not known */
};
/* False: no memory. Without the lock, which it takes for parts of the table. */
bool cache_hot_blocks(struct cache *c, struct hot_list *out);
/* As cache_offer_begin, of the list's next blocks, whatever other tier has them too. */
bool cache_offer_hot(struct cache *c, struct hot_list *hot, uint64_t hold_us, uint64_t now_us, struct offer *out);
struct offer_answer {
	uint8_t taken[OFFER_BLOCKS_MAX / 8]; /* a bit a block, as in OfferReply */
	uint32_t taken_bytes;
	bool had_room;                 /* what was not taken was not wanted */
};
/* Ends the loan, and marks what was taken. Returns how many blocks were. Without the lock. */
uint32_t cache_offer_end(struct cache *c, const struct offer *o, const struct offer_answer *a);

/* ---- the member that takes ---- */

/* Bytes of memory that have been given to other members' blocks. */
uint64_t cache_offered_held(struct cache *c);

/* The layout of these bytes (block/layout_bytes.h), made if it is new to the tenant. INVALID; EXHAUSTED. Without the
 * lock. */
enum status cache_offered_layout(struct cache *c, uint32_t tenant, const uint8_t *bytes, uint64_t n,
				 struct layout_pool **out, const char **why);
/* Begins to take what is offered, and at its end says in taken[i] whether the block is here. BUSY: w waits; call again
 * at its end. Else *result is why not more was taken: as arrivals_pull has it. Without the lock. */
enum status cache_offered_take(struct cache *c, const struct key_run *run, uint64_t now_us, struct cache_wait *w,
			       bool *taken, enum status *result);

/* ---- for call/arrival.c, with the lock ---- */

/* Whether memory is free for a block that another member offers, or can be made, and such blocks, of which so many
 * bytes are coming, have not got their share. An older one of them may be evicted for it. */
bool offer_has_room(struct cache *c, const struct layout_pool *p, uint64_t coming);
/* A block that another member would have dropped has been published: until it is used here it is the first to be
 * evicted, and goes to no disk. Other members are told of it at once, if its segment is known. */
void offer_enter(struct cache *c, struct block *b, uint64_t position, uint64_t segment);

#endif
