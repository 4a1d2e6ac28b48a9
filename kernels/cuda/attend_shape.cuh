/* What the pieces of the attention kernel share: its arguments, the sizes of an instance, a lane's view
 * of a column. */
#ifndef TERRACE_KERNELS_CUDA_ATTEND_SHAPE_CUH
#define TERRACE_KERNELS_CUDA_ATTEND_SHAPE_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/plan.cuh"

constexpr uint32_t STEP_ATOMS = 2;
constexpr float NEVER = -1e30f; /* the unit of a column that has seen nothing */

struct attend_args {
	const uint64_t *blocks;
	const void *q;
	void *out;
	float *lse;
	const segment *segments;
	uint32_t *arrived;
	float *partials;
	float2 *sums;
	uint64_t layer_at;
	uint32_t chunk_bytes, block_atoms, block_magic, blocks_stride;
	uint32_t heads, q_heads, group, queries, columns, tiles;
	enum kv_dtype q_dtype, out_dtype;
	float scale_log2;
	bool settled;
};

/* Sizes of one instance, and what is where in its shared memory. */
template <class F, int D, int TILES> struct shape {
	static constexpr uint32_t COLUMNS = 4 * TILES;
	static constexpr uint32_t CTAS = ctas_per_sm(D, COLUMNS), WARPS = warps_per_cta(D, COLUMNS),
				  THREADS = 32 * WARPS;
	static constexpr uint32_t CODES = 8 * D, SCALES = 16 * F::SCALE_BYTES;
	static constexpr uint32_t ATOM = 2 * (CODES + SCALES);
	/* Floats between columns of a warp's results: 8 more against bank conflicts, in which {max, sum}
	 * stand. */
	static constexpr uint32_t STRIDE = D + 8;
	static constexpr uint32_t MEETING =
		WARPS / 2; /* warps whose results are in shared memory at a time */
	static constexpr uint32_t ROWS_BYTES = COLUMNS * D * 4,
				  RESULTS_BYTES = MEETING * COLUMNS * STRIDE * 4;
	/* 228 KiB a multiprocessor, 1 KiB of it reserved a CTA, and the CTA's static 128 B. */
	static constexpr uint32_t BUDGET =
		(CTAS == 2 ? 113 : 227) * 1024 - 128 - ROWS_BYTES - RESULTS_BYTES;
	static constexpr uint32_t FIT = BUDGET / (WARPS * (STEP_ATOMS * ATOM + 8));
	static constexpr uint32_t STAGES = FIT > 6 ? 6 : FIT;
	static constexpr uint32_t RING = STAGES * STEP_ATOMS * ATOM;
	static constexpr uint32_t ROWS_AT = WARPS * RING, RESULTS_AT = ROWS_AT + ROWS_BYTES;
	static constexpr uint32_t BARRIERS_AT = RESULTS_AT + RESULTS_BYTES;
	static constexpr uint32_t BYTES = BARRIERS_AT + WARPS * STAGES * 8;

	static_assert(STAGES >= 2, "a ring needs two stages");
	static_assert(COLUMNS * (2 * D + sizeof(float2)) <= RESULTS_BYTES,
		      "queries are handed out where results will meet");
};

/* What a lane keeps of one query column (column t of a tile), over its tokens g and g + 8 of every atom.
 */
struct column {
	float unit; /* of the query's integers times K's scale, in powers of 2 */
	float query_sum;
	uint32_t limit;   /* tokens that the column sees */
	float max;        /* log2 of the weights' unit */
	float sum;        /* of the weights, without V's scale */
	float carried;    /* what rounding took from the last weight */
	uint32_t weights; /* F::weigh over all weights */
};

/* Which query and head a column is, as an index of rows of q, out and lse; false for a column past the
 * last. */
DEVICE bool column_row(const attend_args &a, const segment &s, uint32_t column, uint32_t tile_columns,
		       size_t *row, uint32_t *query)
{
	uint32_t i = s.tile * tile_columns + column;

	*query = i / a.group;
	*row = ((size_t)s.sequence * a.queries + *query) * a.q_heads + s.head * a.group + i % a.group;
	return i < a.columns;
}

#endif
