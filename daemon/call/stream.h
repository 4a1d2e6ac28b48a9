/* Put and Get by stream: the daemon itself writes and reads the slots, for clients that map nothing. */
#ifndef TERRACE_DAEMON_CALL_STREAM_H
#define TERRACE_DAEMON_CALL_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct block;
struct cache;
struct cache_read;
struct cache_wait;
struct cache_write;
struct quota_holder;
struct slot_header;
struct slot_info;

/* Which block is put or read. */
struct cache_stream_call {
	uint64_t session;
	uint32_t layout;               /* index into the session's layouts */
	const uint8_t *key;
	uint32_t key_bytes;
	uint64_t position;             /* of a put: the key's position, in units; ignored where a block has one key */
	const struct slot_info *info;  /* of a put; NULL, or tokens 0: all tokens of the key */
	uint64_t now_us;
};

/* Begins a put by stream: reserves a slot, which the caller fills and ends by cache_write_end. EXISTS, BUSY, EXHAUSTED,
 * INVALID, UNAVAILABLE, NOT_FOUND. */
enum status cache_write_begin(struct cache *c, const struct cache_stream_call *q, struct cache_write *out,
			      const char **why);
/* Publishes (OK or EXISTS), or with `whole` false gives the slot back (CANCELLED). It must be called for each write,
 * also after the session has ended. NOT_FOUND: no such write of that session. */
enum status cache_write_end(struct cache *c, uint64_t session, const struct cache_write *w, bool whole,
			    uint64_t now_us, uint64_t unix_ms);
/* Publishes a block that has been written whole and whose CRC-32C the caller knows (OK or EXISTS). CORRUPT: the
 * commit's checksum differs from that, and the slot is given back. NOT_FOUND: no such write of that session. */
enum status cache_write_end_summed(struct cache *c, uint64_t session, const struct cache_write *w, uint32_t crc32c, uint64_t now_us,
				   uint64_t unix_ms);
/* Begins a Get: pins the block in memory. BUSY: w waits for a transfer that brings the block; call again at its end.
 * MISS: there is no such block. EXHAUSTED: too much would be pinned. */
enum status cache_read_begin(struct cache *c, const struct cache_stream_call *q, struct cache_read *out,
			     struct cache_wait *w, const char **why);
/* Copies the block to `to`, and ends the pin. OK: `to` has what was committed, even if engines write to the slot
 * meanwhile; *crc32c is its checksum. CORRUPT: the slot was written to after the commit, and the copy in memory is
 * dropped: a new read gets the block from another tier, or a miss. Takes long: not on the rpc thread. */
enum status cache_read_copy(struct cache *c, struct cache_read *r, uint8_t *to, uint32_t *crc32c);
/* Compares the block with its checksums where it lies, for a reader that compares it again when it has it: engines may
 * write to the slot later. OK: h is the slot's header, which has the checksums and the block's name; the block stays
 * pinned until the read's end. CORRUPT, and how long it takes: as cache_read_copy. */
enum status cache_read_check(struct cache *c, struct cache_read *r, struct slot_header *h);
/* Pins a live block for a read that the holder is charged for, or has it brought to memory: OK, BUSY, EXHAUSTED, MISS
 * as cache_read_begin. With the lock, in a read section. */
enum status read_block(struct cache *c, struct block *b, struct quota_holder *holder, struct cache_read *out,
		       struct cache_wait *w, const char **why);
/* Ends a read: its pin, unless that has ended, and what its holder was charged for the copy. */
void cache_read_end(struct cache *c, struct cache_read *r);

#endif
