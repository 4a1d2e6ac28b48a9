/* See process/memory_log.h. */
#include "daemon/process/memory_log.h"

#include "daemon/block/check.h"
#include "daemon/block/views.h"
#include "daemon/process/log.h"
#include "store/slot.h"

#include <inttypes.h>
#include <stdio.h>

#define CAUSE "an engine, or another process with the memory mapped writable, wrote to it after the commit; if none can have: faulty memory"

static void log_one(const struct cache_damage *d)
{
	char layout[17], key[2 * SLOT_KEY_MAX + 1] = "";

	snprintf(layout, sizeof layout, "%016" PRIx64, d->layout_id);
	for (uint32_t i = 0; i < d->key_bytes; i++)
		snprintf(key + 2 * (size_t)i, 3, "%02x", d->key[i]);
	log_error("block_written_over", LOG_TEXT("tier", "host"), LOG_TEXT("layout", layout), LOG_TEXT("found_by", d->finder),
		  LOG_TEXT("cause", CAUSE), LOG_TEXT("remedy", "the block was removed from all tiers, and is a miss; the key is logged at level debug"));
	log_debug("block_written_over_key", LOG_TEXT("layout", layout), LOG_TEXT("key", key));
}

void memory_log_look(struct cache *c)
{
	struct cache_damage d;
	uint64_t untold;

	while (cache_damage_next(c, &d, &untold))
		log_one(&d);
	if (untold)
		log_error("blocks_written_over", LOG_TEXT("tier", "host"), LOG_NUM("blocks", untold), LOG_TEXT("cause", CAUSE));
}
