/* The plan of an attention step: which CTA reads which atoms of which row, and where partial results are added up.
 *
 * A *row* is (sequence, KV head, tile of query columns). A *segment* is a run of atoms of one row that one CTA reads;
 * their number is even except at a row's end, since integer weights of V are taken for two atoms at a time. The grid is
 * fixed (what fits the device at once); every CTA walks a list of segments. A row that is one segment is written out at
 * once. Otherwise every part goes to a slot of its CTA, and the CTA that comes last (a counter a row) merges them.
 * Atoms that no query of a sequence sees, because of a window, are in no segment.
 *
 * With split_tokens the sequence alone decides where segments end. So every sum is of the same numbers in the same
 * order, whatever else is in the batch. A part then has a slot of its own, and any CTA may do it.
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
	uint16_t part, parts; /* of the row; without split_tokens part i is done by the CTA i after that of part 0 */
	uint32_t next;        /* of this CTA, or NO_SEGMENT */
};

/* The size of an instance of the kernel, and what is where in its shared memory: a ring a warp, then the
 * rest. */
struct attend_sizes {
	uint32_t step_atoms;                /* atoms a stage of the ring */
	uint32_t columns;                   /* query columns of a tile */
	uint32_t ctas_per_sm, warps, stages;
	uint32_t meeting;                   /* warps whose results are in shared memory at a time */
	uint32_t row_stride;                /* floats between columns of a warp's results */
	uint32_t rows_at, results_at, queries_at, barriers_at, bytes;
};

/* True if queries come through shared memory, since codes and sums take all registers (16-bit weights have steps
 * of one atom, and registers to spare). By the copies that carry blocks where the device is `portable`, so not
 * there. */
constexpr bool attend_queries_staged(uint32_t columns, uint32_t step_atoms, bool portable)
{
	return columns > 4 && step_atoms == 2 && !portable;
}

/* Bytes between atoms in a stage: bulk copies want to begin and end at lines of 128 bytes as the memory
 * they come from does (attend_feed.cuh). */
constexpr uint32_t attend_atom_stride(uint32_t atom_bytes)
{
	return (atom_bytes + 127) / 128 * 128;
}

/* Sizes with a given number of warps; `stages` is 0 or 1 if they do not fit. */
constexpr attend_sizes attend_sizes_with(uint32_t ctas, uint32_t warps, uint32_t budget,
					 uint32_t atom_bytes, uint32_t step_atoms, uint32_t dim_k,
					 uint32_t dim_v, uint32_t columns, bool portable)
{
	attend_sizes s = {};
	const uint32_t stage = step_atoms * attend_atom_stride(atom_bytes);

	s.step_atoms = step_atoms;
	s.columns = columns;
	s.ctas_per_sm = ctas;
	s.warps = warps;
	s.meeting = warps / 2;
	/* 8 floats more than a row against bank conflicts, in which {max, sum} stand. */
	s.row_stride = dim_v + 8;
	const uint32_t rows = columns * (dim_k > dim_v ? dim_k : dim_v) * 4, /* queries, later outputs */
		       results = s.meeting * columns * s.row_stride * 4,
		       queries = attend_queries_staged(columns, step_atoms, portable) ? columns * dim_k * 4 : 0,
		       rest = rows + results + queries + 128; /* and what is static */

	s.stages = budget <= rest ? 0 : (budget - rest) / (warps * (stage + 8));
	s.stages = s.stages > 6 ? 6 : s.stages;
	s.rows_at = warps * s.stages * stage;
	s.results_at = s.rows_at + rows;
	s.queries_at = s.results_at + results;
	s.barriers_at = s.queries_at + queries;
	s.bytes = s.barriers_at + warps * s.stages * 8;
	return s;
}

/* True if there are tiles of 16 columns: codes are then decoded once for all of them. Their sums take half of a
 * lane's registers, which leaves no room for longer vectors, or for queries as floats. */
constexpr bool wide_tiles(bool integer_k, bool integer_v, uint32_t dim_k, uint32_t dim_v)
{
	return integer_k && integer_v && dim_k <= 192 && dim_v <= 128;
}

/* True if a lane wants more than 168 registers: for the sums of so many columns and values' dims; for longer keys
 * beside 16 columns, or beside weights and queries that are floats. */
constexpr bool registers_short(bool integer_v, bool many_registers, uint32_t dim_k, uint32_t dim_v, uint32_t columns)
{
	return dim_v * columns > 1024 || dim_k > 192 || (many_registers && columns > 4) ||
	       (dim_k * columns > 1024 && (columns == 16 || !integer_v));
}

/* The most warps whose rings have two stages at least. 2 CTAs of 8 warps a multiprocessor where 128
 * registers a lane are enough; else one of up to 12 or, with more or longer columns, 8. 228 KiB a
 * multiprocessor, 1 KiB of it reserved a CTA; `portable`: what every device since compute capability
 * 8.0 has. */
constexpr attend_sizes attend_sizes_of(uint32_t atom_bytes, bool integer_v, bool many_registers,
				       uint32_t dim_k, uint32_t dim_v, uint32_t columns, bool portable)
{
	const uint32_t step = integer_v ? 2 : 1;
	const uint32_t most = registers_short(integer_v, many_registers, dim_k, dim_v, columns) ? 8 : 12;
	attend_sizes s = attend_sizes_with(2, 8, portable ? 0 : 113 * 1024, atom_bytes, step, dim_k,
					   dim_v, columns, portable);

	if (s.stages >= 2 && dim_v <= 128 && columns == 4)
		return s;
	for (uint32_t warps = most;; warps -= warps > 8 ? 4 : 2) {
		s = attend_sizes_with(1, warps, (portable ? 99 : 227) * 1024, atom_bytes, step, dim_k,
				      dim_v, columns, portable);
		if (s.stages >= 2 || warps == 2)
			return s;
	}
}

/* What is where in the workspace. Segment c is the first of CTA c (its atoms and parts are 0 if it has
 * none), the others follow in any order. Slot 2c + 1 is for a row whose part 0 is CTA c's, 2c for one
 * that began in an earlier CTA; with split_tokens slot r * parts_max + p is for part p of row r. */
struct attend_plan {
	uint32_t rows, ctas, columns, tiles;
	uint32_t parts_max; /* of a row, with split_tokens; else 0 */
	uint32_t window; /* the smaller of the layout's and the call's, 0 for none */
	bool portable;   /* the device runs the code without bulk copies */
	struct attend_sizes sizes;
	size_t segments_at, arrived_at, partials_at, sums_at, bytes;
};

/* INVALID or UNSUPPORTED if the shape is so; UNSUPPORTED also if the device has too little shared memory. */
enum status attend_plan_of(const struct kv_cuda_attend *a, struct attend_plan *plan);

#endif
