/* Where a block's copy in memory lies. */
#ifndef TERRACE_DAEMON_BLOCK_SLOT_AT_H
#define TERRACE_DAEMON_BLOCK_SLOT_AT_H

#include <stdint.h>

#include "daemon/block/block.h"
#include "daemon/block/memory_class.h"

static inline uint8_t *block_slot_at(const struct block *b)
{
	return b->span->base + b->index * b->span->stride;
}

#endif
