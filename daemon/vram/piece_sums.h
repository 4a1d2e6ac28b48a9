/* Checksums of blocks computed by a GPU: one for each checked piece (kernels/format.h), as in the header of the block's
 * slot in memory.
 *
 * A device sums parts of one size. Blocks whose last piece is short therefore need two lists: first the pieces before,
 * then the last ones.
 *
 * Threads: piece_sums_begin() on any, then the device's until done() begins, then the owner's.
 */
#ifndef TERRACE_DAEMON_VRAM_PIECE_SUMS_H
#define TERRACE_DAEMON_VRAM_PIECE_SUMS_H

#include <stddef.h>
#include <stdint.h>

#include "store/device.h"
#include "store/status.h"

struct kv_geometry;

struct piece_sums {
	struct device_sums list;       /* first; list.count blocks */
	const struct device_ops *ops;
	struct device *device;
	uint64_t *at;                  /* [list.count] where the blocks are; changed while it runs */
	uint32_t *sums;                /* of all blocks' whole pieces, then of the short ones */
	uint32_t whole;                /* pieces of a block that have whole_bytes */
	uint64_t whole_bytes, short_bytes; /* short_bytes 0: no piece is short */
	/* Once, as device_sums.done. */
	void (*done)(struct piece_sums *p, enum status s);
};

/* How many checksums a block has. */
uint32_t piece_sums_each(const struct kv_geometry *g);
/* Blocks of one shape; at: [count], sums: [count * piece_sums_each()], both the caller's until done() begins. */
void piece_sums_prepare(struct piece_sums *p, const struct kv_geometry *g, uint64_t *at, uint32_t count,
			uint32_t *sums);
/* As device_ops.sums: done() follows if this is OK. The caller has set ops, device and done. */
enum status piece_sums_begin(struct piece_sums *p, const char **why);

#endif
