/* What the pieces of the attention kernel share: its arguments, the sizes of an instance, a lane's view
 * of a column. */
#ifndef TERRACE_KERNELS_CUDA_ATTEND_SHAPE_CUH
#define TERRACE_KERNELS_CUDA_ATTEND_SHAPE_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/plan.cuh"

#include <type_traits>

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
	float scale_log2; /* with a soft cap times 2 log2(e) over that in powers of 2 */
	bool settled;
	struct kv_attend_features features; /* `window` is the plan's */
	float cap;       /* the soft cap in powers of 2 */
	float cap_twice; /* -2 cap */
	bool cap_is_large;
};

/* Launches the kernel for K's and V's format, for any head dim built; one .cu a pair of formats. */
template <template <int> class K, template <int> class V>
enum status attend_launch(const attend_args &args, const attend_plan &plan, uint32_t head_dim,
			  cudaStream_t stream);

/* Sizes of one instance, and what is where in its shared memory. */
template <class KEYS, class VALUES, int TILE_COUNT> struct shape {
	typedef KEYS K;
	typedef VALUES V;
	static constexpr uint32_t TILES = TILE_COUNT, D = K::D;
	static constexpr uint32_t K_CODES = 2 * K::BITS * D, K_SCALES = 16 * K::SCALE_BYTES,
				  V_CODES = 2 * V::BITS * D, V_SCALES = 16 * V::SCALE_BYTES;
	static constexpr uint32_t V_AT = K_CODES + K_SCALES, ATOM = V_AT + V_CODES + V_SCALES;
	static constexpr attend_sizes SIZES =
		attend_sizes_of(ATOM, V::INTEGER, V::ZEROS || (V::INTEGER && K::ELEMENTS == 2), D, 4 * TILES,
				!TERRACE_CUDA_BULK);
	static constexpr uint32_t COLUMNS = SIZES.columns, CTAS = SIZES.ctas_per_sm, WARPS = SIZES.warps,
				  STEP = SIZES.step_atoms, STAGES = SIZES.stages, MEETING = SIZES.meeting,
				  STRIDE = SIZES.row_stride;
	static constexpr uint32_t ATOM_STRIDE = attend_atom_stride(ATOM), STAGE = STEP * ATOM_STRIDE;
	static constexpr uint32_t PLANE = D / K::ELEMENTS; /* words of a query's high or low parts */
	static constexpr uint32_t QUERY = PLANE / 4;       /* of it a lane's */
	static constexpr bool QUERY_SHARED = TILES > 1 && K::ELEMENTS == 4 && QUERY % 4 == 0;
	typedef std::conditional_t<QUERY_SHARED, query_in_shared<QUERY>, uint32_t[TILES][QUERY]> query_type;

	static_assert(STAGES >= 2, "a ring needs two stages");
	static_assert(2 * PLANE * 4 + 16 <= MEETING * STRIDE * 4,
		      "queries are handed out where results will meet");
};

/* What a lane keeps of one query column (column t of a tile), over its tokens g and g + 8 of every atom.
 */
struct column {
	float unit; /* of the query's numbers, in powers of 2 (cap_scores) */
	float query_term;
	uint32_t from, to; /* tokens that the column sees */
	float max;         /* log2 of the weights' unit */
	float sum;         /* of the weights, without V's scale */
	float carried;     /* what rounding took from the last weights */
	uint32_t weights;  /* their sum as integers, or that of weights times zero points */
	/* For features only. */
	int32_t position;
	float slope;       /* of ALiBi, in powers of 2 a token */
	uint32_t bias_row; /* where in tree_bias its row begins */
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

/* A column's query head: what slopes and sinks are listed by. */
DEVICE uint32_t column_head(const attend_args &a, const segment &s, uint32_t column, uint32_t tile_columns)
{
	return s.head * a.group + (s.tile * tile_columns + column) % a.group;
}

#endif
