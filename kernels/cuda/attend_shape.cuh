/* What the parts of the attention kernel share: its arguments, the sizes of an instance, and a lane's view of a column.
 */
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
	uint32_t parts_max; /* the plan's */
	enum kv_dtype q_dtype, out_dtype;
	float scale_log2; /* with a soft cap times 2 log2(e) over that in powers of 2 */
	bool settled;
	struct kv_attend_features features; /* `window` is the plan's */
	float cap;       /* the soft cap in powers of 2 */
	float cap_twice; /* -2 cap */
	bool cap_is_large;
};

/* Launches the kernel for K's and V's format, for any head dims built; one .cu a pair of formats. */
template <template <int> class K, template <int> class V>
enum status attend_launch(const attend_args &args, const attend_plan &plan, head_dims d,
			  cudaStream_t stream);

/* What is found out of a column once a segment. */
struct alignas(16) told_column {
	float unit; /* of the query's numbers, in powers of 2 (cap_scores) */
	float query_term;
	float slope;       /* of ALiBi, in powers of 2 a token; this and all below but `to` for features only */
	uint32_t from, to; /* tokens that the column sees */
	int32_t position;
	uint32_t bias_row; /* where in tree_bias its row begins */
	uint32_t padding;
};

static_assert(sizeof(told_column) == 32 && sizeof(segment) == 32, "read as two vectors each");

/* Sizes of one instance, and what is where in its shared memory. */
template <class KEYS, class VALUES, int TILE_COUNT> struct shape {
	typedef KEYS K;
	typedef VALUES V;
	static constexpr uint32_t TILES = TILE_COUNT, DK = K::D, DV = V::D;
	static constexpr uint32_t K_CODES = 2 * K::BITS * DK, K_SCALES = 16 * K::SCALE_BYTES,
				  V_CODES = 2 * V::BITS * DV, V_SCALES = 16 * V::SCALE_BYTES;
	static constexpr uint32_t V_AT = K_CODES + K_SCALES, ATOM = V_AT + V_CODES + V_SCALES;
	static constexpr attend_sizes SIZES =
		attend_sizes_of(ATOM, V::INTEGER, V::ZEROS || (V::INTEGER && K::ELEMENTS == 2), DK, DV, 4 * TILES,
				!TERRACE_CUDA_BULK);
	static constexpr uint32_t COLUMNS = SIZES.columns, CTAS = SIZES.ctas_per_sm, WARPS = SIZES.warps,
				  STEP = SIZES.step_atoms, STAGES = SIZES.stages, MEETING = SIZES.meeting,
				  STRIDE = SIZES.row_stride;
	static constexpr uint32_t ATOM_STRIDE = attend_atom_stride(ATOM), STAGE = STEP * ATOM_STRIDE;
	static constexpr uint32_t PLANE = DK / K::ELEMENTS; /* words of a query's high or low parts */
	static constexpr uint32_t QUERY = PLANE / 4;       /* of it a lane's */
	static constexpr bool QUERY_SHARED = TILES > 1 && K::ELEMENTS == 4 && QUERY % 4 == 0;
	typedef std::conditional_t<QUERY_SHARED, query_in_shared<QUERY>, uint32_t[TILES][QUERY]> query_type;

	static_assert(STAGES >= 2, "a ring needs two stages");
	/* While a segment is read this is where its results will meet: its queries' words, then what warps are told of
	 * it. */
	static constexpr uint32_t WORDS_AT = SIZES.results_at, TOLD_AT = WORDS_AT + COLUMNS * 2 * PLANE * 4;

	static_assert(COLUMNS * (2 * PLANE * 4 + sizeof(told_column)) + sizeof(segment) <= COLUMNS * MEETING * STRIDE * 4,
		      "queries are handed out where results will meet");
};

/* What a lane keeps of one query column (column t of a tile), over its tokens g and g + 8 of every atom.
 */
struct column {
	float unit, query_term; /* as the column was told */
	float slope;            /* likewise, for features only */
	float max;              /* log2 of the weights' unit */
	float sum;              /* of the weights, without V's scale */
	float carried;          /* what rounding took from the last weights */
	uint32_t weights;       /* their sum as integers, or that of weights times zero points */
};

/* The segment that a CTA's warps read, and a column of it. Both stay in shared memory and are read again by the few
 * steps that want more of them than `column` has: registers are what all others want. */
DEVICE segment told_segment(uint32_t told)
{
	const uint4 a = load_shared_16(told), b = load_shared_16(told + 16);

	return {a.x, a.y, a.z, a.w, b.x, b.y, (uint16_t)b.z, (uint16_t)(b.z >> 16), b.w};
}

DEVICE told_column told_of_column(uint32_t told, uint32_t column)
{
	const uint32_t at = told + sizeof(segment) + column * sizeof(told_column);
	const uint4 a = load_shared_16(at), b = load_shared_16(at + 16);

	return {__uint_as_float(a.x), __uint_as_float(a.y), __uint_as_float(a.z), a.w, b.x, (int32_t)b.y, b.z, b.w};
}

/* The number of a segment's row. */
DEVICE uint32_t row_number(const attend_args &a, const segment &s)
{
	return (s.sequence * a.heads + s.head) * a.tiles + s.tile;
}

/* The slot of a part of a row, for the CTA that has segment s of it (attend_plan). */
DEVICE uint32_t slot_of(const attend_args &a, const segment &s, uint32_t part)
{
	return a.parts_max ? row_number(a, s) * a.parts_max + part : 2 * (blockIdx.x - s.part + part) + (part == 0);
}

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
