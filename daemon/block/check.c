/* Whether a copy in memory is still what was committed.
 *
 * Engines may have that memory mapped writable, and may write to it by mistake at any time after the commit: to the
 * block, or to the header with the layers' checksums in front of it. So the daemon keeps the CRC of each header itself
 * (block_header_crc). Code that reads a block from memory copies the header, compares the copy with that CRC, and
 * compares the bytes with the checksums in the copy. How much is read, and of which block, is never taken from the
 * slot.
 *
 * A block whose copy is damaged is counted by its finder, noted for the log, and removed from all tiers: it becomes a
 * miss. Copies that a lease holds, damaged or sound, stay as they are until the lease ends.
 */
#include "daemon/block/check.h"

#include "daemon/block/block.h"
#include "daemon/block/counters.h"
#include "daemon/block/lock.h"
#include "daemon/block/slot_at.h"
#include "daemon/block/views.h"

#include <stdlib.h>
#include <string.h>

struct damage_notes {
	struct cache_damage at[DAMAGES_MAX];
	uint32_t first, count;
	uint64_t untold;               /* damages that there was no room to note */
};

static const uint8_t *bytes_of(const struct block *b)
{
	return block_slot_at(b) + SLOT_HEADER_BYTES;
}

bool memory_header(const struct block *b, struct slot_header *h)
{
	memcpy(h, block_slot_at(b), sizeof(*h));
	return slot_header_is(h, block_header_crc(b));
}

bool memory_sound(const struct block *b, struct slot_header *h)
{
	return memory_header(b, h) && !slot_block_check(h, bytes_of(b));
}

bool memory_copy(const struct block *b, struct slot_header *h, uint8_t *to, uint32_t *crc32c)
{
	if (!memory_header(b, h) || slot_block_copy(h, bytes_of(b), to))
		return false;
	*crc32c = slot_block_crc(h);
	return true;
}

bool damage_notes_create(struct cache *c)
{
	c->damages = calloc(1, sizeof(*c->damages));
	return c->damages;
}

void damage_notes_destroy(struct cache *c)
{
	free(c->damages);
	c->damages = NULL;
}

/* Notes a damaged copy for the log. If there is no room, the oldest notes stay: the first damages say most. */
static void note(struct cache *c, const struct block *b, const char *finder)
{
	struct damage_notes *d = c->damages;
	struct cache_damage *n = &d->at[(d->first + d->count) % DAMAGES_MAX];

	if (d->count == DAMAGES_MAX) {
		d->untold++;
		return;
	}
	*n = (struct cache_damage){ .layout_id = b->record.name.layout_id,
				    .key_bytes = block_key_bytes(b),
				    .finder = finder };
	memcpy(n->key, block_key(b), n->key_bytes);
	d->count++;
}

void memory_damaged(struct cache *c, struct block *b, enum counter finder)
{
	static const struct {
		enum counter counter;
		const char *word;
	} finders[] = {
		{ COUNTER_MEMORY_WRONG_GET, "get" }, { COUNTER_MEMORY_WRONG_SPILL, "spill" },
		{ COUNTER_MEMORY_WRONG_VERIFY, "verify" }, { COUNTER_MEMORY_WRONG_GPU, "gpu" },
	};
	const char *word = "";

	for (size_t i = 0; i < sizeof(finders) / sizeof(finders[0]); i++)
		if (finders[i].counter == finder)
			word = finders[i].word;
	cache_count(c, COUNTER_CORRUPT, 1);
	cache_count(c, finder, 1);
	note(c, b, word);
	block_remove(c, b, CACHE_REASON_CORRUPT);
}

bool cache_damage_next(struct cache *c, struct cache_damage *out, uint64_t *untold)
{
	struct damage_notes *d = c->damages;
	bool any;

	cache_lock(c);
	any = d->count;
	*untold = any ? 0 : d->untold;
	if (any) {
		*out = d->at[d->first];
		d->first = (d->first + 1) % DAMAGES_MAX;
		d->count--;
	} else {
		d->untold = 0;
	}
	cache_unlock(c);
	return any;
}
