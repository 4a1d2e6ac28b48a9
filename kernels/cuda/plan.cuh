/* The plan of an attention step: which CTA reads which atoms of which row, and where partial results
 * meet.
 *
 * A *row* is (sequence, KV head, tile of query columns); a *segment* is a run of atoms of one row that
 * one CTA reads. The grid is fixed (what fits the device at once); every CTA walks a list of segments. A
 * row that is one segment is written out at once; otherwise every part goes to a slot of the CTA, and the
 * CTA that comes last (a counter a row) merges them.
 */
#ifndef TERRACE_KERNELS_CUDA_PLAN_CUH
#define TERRACE_KERNELS_CUDA_PLAN_CUH

#include <stdint.h>

#include "kernels/cuda/cuda_kernels.h"

constexpr uint32_t ATTEND_SEQUENCES_MAX = 4096; /* the plan keeps them in shared memory */
constexpr uint32_t NO_SEGMENT = 0xffffffffu;

/* Two 16-byte loads. */
struct alignas(16) segment {
	uint32_t sequence;
	uint32_t head, tile;
	uint32_t first_atom, atoms;
	uint32_t tokens;      /* of the sequence */
	uint16_t part, parts; /* of the row; part i is done by the CTA i after that of part 0 */
	uint32_t next;        /* of this CTA, or NO_SEGMENT */
};

/* What is where in the workspace. Segment c is the first of CTA c (its atoms and parts are 0 if it has
 * none), the others follow in any order. Slot 2c + 1 is for a row whose part 0 is CTA c's, 2c for one
 * that began in an earlier CTA. */
struct attend_plan {
	uint32_t rows, ctas, columns, tiles, tile_columns;
	size_t segments_at, arrived_at, partials_at, sums_at, bytes;
};

/* The largest number of query columns a CTA takes at once: 4 or 8. */
static inline uint32_t tile_columns_of(uint32_t columns)
{
	return columns <= 4 ? 4 : 8;
}

/* CTAs that a multiprocessor holds at once, and warps of a CTA: what the registers allow. */
static inline constexpr uint32_t ctas_per_sm(uint32_t head_dim, uint32_t tile_columns)
{
	return head_dim <= 128 && tile_columns == 4 ? 2 : 1;
}

static inline constexpr uint32_t warps_per_cta(uint32_t head_dim, uint32_t tile_columns)
{
	return ctas_per_sm(head_dim, tile_columns) == 2 || head_dim * tile_columns > 1024 ||
			       head_dim > 192
		       ? 8
		       : 12;
}

/* INVALID or UNSUPPORTED if the shape is so. */
enum status attend_plan_of(const struct kv_cuda_attend *a, struct attend_plan *plan);

#endif
