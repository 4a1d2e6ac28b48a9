/* What the kernels of extend share: the arguments, the sizes of an instance, and the order of things in tiles.
 *
 * A *row* is (query, query head of a KV head). A *row tile* is ROWS rows of one sequence. A *unit* is (row tile, KV
 * head). A *step* is one tile of TOKENS tokens, of the prefix or of the new tokens, against one unit. All steps of all
 * units are numbered on one line (row tiles in order, heads inside, steps inside), which is cut into equal stretches
 * for the CTAs. A CTA's share of one unit is a *part*, with a slot of the workspace.
 *
 * A unit is *fine* if its scores may be so large that errors of fp16 operands would show. Fine units are on a line of
 * their own, for a kernel whose keys are the codes' values, exact in fp16. There the tokens' scales are applied to
 * scores in float32, and rotated queries and new keys are sums of two halves.
 */
#ifndef TERRACE_KERNELS_CUDA_EXTEND_SHAPE_CUH
#define TERRACE_KERNELS_CUDA_EXTEND_SHAPE_CUH

#include "kernels/cuda/arguments.cuh"
#include "kernels/cuda/codec.cuh"
#include "kernels/cuda/device.cuh"

constexpr uint32_t EXTEND_PART_MIN = 4; /* steps: a cut nearer to a unit's end moves there */
constexpr uint32_t BOUND_PARTS = 32; /* one a lane */
constexpr uint32_t NO_TOKENS = 0xffffffffu;
constexpr float NEVER_SEEN = -1e30f; /* exponent of a row that has seen nothing */

/* A unit on a line. Row tile i of sequence s has the entries (query_starts[s] * group / ROWS + s + i) * heads + head;
 * those in between, and those of the other line, have no steps. */
struct alignas(16) extend_tile {
	uint32_t begin; /* of its first step on the line */
	uint32_t sequence;
	uint32_t first_row; /* in the sequence */
	uint32_t steps;
	uint32_t rank; /* of units with steps on the line */
	float reach;   /* what none of its scores passes in magnitude, in powers of 2 */
};

struct extend_args {
	const uint64_t *blocks;
	const uint32_t *prefix_tokens, *query_starts;
	const void *q, *k, *v;
	size_t k_stride, v_stride;
	void *out;
	float *lse;
	uint32_t *bounds;      /* [sequence][head][BOUNDS][BOUND_PARTS]: bits of floats, each of a part of the tokens */
	extend_tile *lines[2]; /* [fine][unit]; one more than there are, for the line's length */
	uint32_t *cuts[2];     /* [fine][CTA]: where it begins on its line; one more than there are */
	uint8_t *q_images, *k_images, *v_images;
	uint8_t *q_rests, *k_fine, *v_fine; /* of fine units: what queries' halves leave; new tokens */
	float *q_units; /* [unit][row]: what a row's scores are to be multiplied by, in powers of 2 */
	float *partials;
	float2 *sums; /* {exponent, sum} a row of a part */
	uint64_t layer_at;
	uint32_t chunk_bytes, block_atoms, block_magic, blocks_stride;
	uint32_t sequences, tile_count, units, slots, heads, q_heads, group, ctas;
	float fine_from; /* a unit is fine if the lengths of its queries and keys multiply to more */
	float reach;     /* of a score, for what the lengths of its query and key multiply to; in powers of 2 */
	bool bounded;    /* no feature adds to scores, and keys' lengths are known */
	enum kv_dtype q_dtype, own_dtype, out_dtype;
	enum kv_format k_format, v_format;
	float scale_log2, softcap_log2;
	const float *sinks, *alibi, *out_scale;
	bool alibi_sqrt, plain;
	uint32_t window; /* NO_TOKENS: none */
	/* Of the portable kernel alone, which `ALL` stands for; so are soft caps over SOFT_CAP_ROUGH. */
	const float *tree_bias;
	const int32_t *ranges;
	uint32_t tree_stride, ranges_max;
};

/* Two atoms of the prefix, 32 tokens, are 32 rows of a K tile and 32 columns of a V tile, in an order in
 * which a lane of the decoder has eight columns of V side by side: column 8 t + 4 atom + i. Places i = 0
 * .. 3 are tokens 2t, 2t + 1, 2t + 8, 2t + 9, or 2t, 2t + 8, 2t + 1, 2t + 9 where V's codes are crossed.
 * New tokens take the same order. */
__host__ __device__ constexpr bool format_crossed(int v_format)
{
	return format_codes(v_format) == KV_CODES_FLOAT || format_codes(v_format) == KV_CODES_CODEBOOK;
}

__host__ __device__ constexpr uint32_t token_of_column(bool crossed, uint32_t column)
{
	return (column & ~31u) + 16 * (column / 4 % 2) + column / 8 % 4 * 2 +
	       (crossed ? column / 2 % 2 + 8 * (column % 2) : column % 2 + 8 * (column / 2 % 2));
}

/* Where dim `dim` of V stands among the rows of a V tile, and the dim at a row. */
__host__ __device__ constexpr uint32_t v_row(uint32_t dim)
{
	return (dim & ~7u) + (dim % 8 / 2) + dim % 2 * 4;
}

__host__ __device__ constexpr uint32_t v_dim(uint32_t row)
{
	return (row & ~7u) + row % 4 * 2 + row / 4 % 2;
}

/* Chunk (of 8) that lane column t's word `word` fills in a panel of K; so that a quarter warp's stores
 * meet all banks. */
__host__ __device__ constexpr uint32_t k_chunk(bool crossed, bool half_panel, uint32_t t, uint32_t word)
{
	return half_panel ? t : crossed ? t % 2 + word * 2 + t / 2 * 4 : 2 * t + word;
}

/* Where dim `dim` of K stands in a row of a K tile. Inside a panel of 64, bits of dim become chunk and
 * place in a way that the order of codes in an atom gives (extend_decode.cuh). */
__host__ __device__ constexpr uint32_t k_place_of(int k_format, bool crossed, uint32_t d, uint32_t dim)
{
	const uint32_t panel = dim / 64, in = dim % 64, bits = format_bits(k_format);
	const bool half = d % 64 && panel == d / 64;
	uint32_t t = in / 4 % 4, word = 0, place = 0;

	if (bits == 16) { /* words of two dims: a chunk is two vectors of 16 dims */
		t = in / 2 % 4;
		word = in / 32;
		place = in / 8 % 4 * 2 + in % 2;
	} else if (bits == 8) {
		word = in / 32;
		place = in / 16 % 2 * 4 + in % 4;
	} else {
		/* nibble 2e + hi of a word; a full panel's words hold groups 0 2, 1 3, a half one's 0 1
		 */
		const uint32_t group = in / 16, hi = half || bits != 4 ? group % 2 : group / 2,
			       nibble = in % 4 * 2 + hi;

		word = half ? 0 : bits != 4 ? group / 2 : group % 2;
		place = k_format == KV_INT4_PTH ? nibble % 4 * 2 + nibble / 4 : nibble;
	}
	return panel * 64 + k_chunk(crossed, half, t, word) * 8 + place;
}

/* Byte of element (row, place) of a matrix of panels of `rows` rows. */
__host__ __device__ constexpr uint32_t panel_byte(uint32_t rows, uint32_t row, uint32_t place)
{
	return place / 64 * rows * 128 + row * 128 + ((place / 8 % 8) ^ (row % 8)) * 16 + place % 8 * 2;
}

constexpr uint32_t EXTEND_PRODUCERS = 4,
		   EXTEND_GROUPS = 2; /* decoding warps; warpgroups of 128 that multiply */
constexpr uint32_t EXTEND_THREADS = 32 * EXTEND_PRODUCERS + 128 * EXTEND_GROUPS;
constexpr uint32_t EXTEND_SHARED = 227 * 1024 - 384; /* less the barriers and parts */

/* What there is to know about the magnitudes of a sequence and head: the largest that tiles of K could hold; of keys
 * the root of the mean square, about, or, unrotated, the largest magnitude; what no key's length passes; the largest
 * that tiles of V could hold; the length of the longest query. */
enum extend_bound { BOUND_K, BOUND_KEYS, BOUND_LONGEST, BOUND_V, BOUND_QUERIES, BOUNDS };

/* Keys whose values fp16 holds as they are need no fine kernel. */
__host__ __device__ constexpr bool format_fine(int k_format)
{
	return format_bits(k_format) < 16;
}

constexpr uint32_t FINE_TOKENS = 64;

/* New tokens of a tile: where their keys are two halves, these are a row each. */
__host__ __device__ constexpr uint32_t extend_own_tokens(int k_format, uint32_t tokens, bool fine)
{
	return fine && format_rotated(k_format) ? tokens / 2 : tokens;
}

__host__ __device__ constexpr uint32_t side_bytes(int f, uint32_t d)
{
	return 2 * format_bits(f) * d + 16 * format_scale_bytes(f);
}

__host__ __device__ constexpr uint32_t larger_dim(uint32_t dk, uint32_t dv)
{
	return dk > dv ? dk : dv;
}

/* Rows of a unit: as many as a warpgroup's registers hold sums of, which are as wide as V, and shared memory queries of,
 * which are as wide as K. */
__host__ __device__ constexpr uint32_t extend_rows(uint32_t dk, uint32_t dv)
{
	return dk <= 192 && dv <= 128 ? 256 : 128;
}

__host__ __device__ constexpr uint32_t panels_of(uint32_t d)
{
	return (d + 63) / 64;
}

/* Bytes of a tile of `tokens` tokens. */
__host__ __device__ constexpr uint32_t k_tile_bytes(uint32_t d, uint32_t tokens)
{
	return panels_of(d) * tokens * 128;
}

__host__ __device__ constexpr uint32_t v_tile_bytes(uint32_t d, uint32_t tokens)
{
	return tokens / 64 * d * 128;
}

__host__ __device__ constexpr uint32_t q_image_bytes(uint32_t dk, uint32_t dv)
{
	return extend_rows(dk, dv) * panels_of(dk) * 128;
}

/* Passes over a unit's tokens, each with an equal share of its rows: two where both halves of all its queries leave no
 * room for tiles. */
__host__ __device__ constexpr uint32_t extend_passes(int fk, uint32_t dk, uint32_t dv, bool fine)
{
	return fine && format_rotated(fk) && q_image_bytes(dk, dv) > 64 * 1024 ? 2 : 1;
}

/* Bytes that one producer warp has in one stage of its ring: two atoms, or one side of them. */
__host__ __device__ constexpr uint32_t ring_bytes(int fk, int fv, uint32_t dk, uint32_t dv, uint32_t tokens)
{
	return tokens / 16 > EXTEND_PRODUCERS            ? 2 * (side_bytes(fk, dk) + side_bytes(fv, dv))
	       : side_bytes(fk, dk) > side_bytes(fv, dv) ? 2 * side_bytes(fk, dk)
							 : 2 * side_bytes(fv, dv);
}

__host__ __device__ constexpr uint32_t extend_bytes(int fk, int fv, uint32_t dk, uint32_t dv, uint32_t tokens,
						    uint32_t tile_stages, uint32_t ring_stages, bool fine = false)
{
	return (fine ? tile_stages * tokens * 4 : 0) +
	       (fine && format_rotated(fk) ? 2 : 1) * (q_image_bytes(dk, dv) / extend_passes(fk, dk, dv, fine)) +
	       tile_stages * (k_tile_bytes(dk, tokens) + v_tile_bytes(dv, tokens)) +
	       (tokens / 16 > EXTEND_PRODUCERS ? tokens / 32 : tokens / 16) * ring_stages *
		       ring_bytes(fk, fv, dk, dv, tokens);
}

__host__ __device__ constexpr uint32_t extend_tokens(int fk, int fv, uint32_t dk, uint32_t dv)
{
	return larger_dim(dk, dv) <= 128 && extend_bytes(fk, fv, dk, dv, 128, 2, 2) <= EXTEND_SHARED ? 128 : 64;
}

/* Sizes of one instance, and what is where in its shared memory. */
template <int FK, int FV, int DK, int DV, bool IS_FINE = false> struct extend_shape {
	static constexpr bool FINE = IS_FINE, TWO_HALVES = FINE && format_rotated(FK);
	static constexpr uint32_t ROWS = extend_rows(DK, DV), BLOCKS = ROWS / 128; /* of a warpgroup, 64 rows each */
	static constexpr uint32_t PASSES = extend_passes(FK, DK, DV, FINE), AT_ONCE = BLOCKS / PASSES; /* blocks of a pass */
	static constexpr uint32_t TOKENS = FINE ? FINE_TOKENS : extend_tokens(FK, FV, DK, DV), PANELS = panels_of(DK),
				  OWN_TOKENS = extend_own_tokens(FK, TOKENS, FINE);
	static constexpr bool CROSSED = format_crossed(FV);
	static constexpr uint32_t K_TILE = k_tile_bytes(DK, TOKENS), V_TILE = v_tile_bytes(DV, TOKENS);
	static constexpr uint32_t K_SIDE = side_bytes(FK, DK), V_SIDE = side_bytes(FV, DV);
	static constexpr uint32_t TILE_STAGES =
		extend_bytes(FK, FV, DK, DV, TOKENS, 2, 1, FINE) <= EXTEND_SHARED ? 2 : 1;
	static constexpr uint32_t RING_STAGES =
		extend_bytes(FK, FV, DK, DV, TOKENS, TILE_STAGES, 2, FINE) <= EXTEND_SHARED ? 2 : 1;
	static constexpr uint32_t RING = ring_bytes(FK, FV, DK, DV, TOKENS);
	static constexpr bool BOTH_SIDES =
		2 * (TOKENS / 32) > EXTEND_PRODUCERS; /* a producer warp decodes K and V */
	/* Weights that halves would not hold are noticed once they are made, in their sums: quicker where tiles are
	 * large, and wants a bound of scores, which is too high in fine units. */
	static constexpr bool LATE = !FINE && TOKENS > 64 && format_fine(FK);
	/* Of a thread that decodes, and of one that multiplies: on average 168. */
	static constexpr uint32_t PRODUCER_REGISTERS = TOKENS > 64 ? 56 : FINE && AT_ONCE > 1 ? 40 : 72,
				  CONSUMER_REGISTERS = (3 * 168 - PRODUCER_REGISTERS) / 2;
	static constexpr uint32_t PAIRS = TOKENS / 32, SIDE_WARPS = PAIRS;
	static constexpr uint32_t ACTIVE = BOTH_SIDES ? PAIRS : 2 * PAIRS; /* producer warps with work */
	static constexpr uint32_t QUERY_BLOCK = 64 * 128;                  /* a panel of 64 rows */
	static constexpr uint32_t QUERIES = q_image_bytes(DK, DV) / PASSES; /* bytes of a pass's */
	static constexpr uint32_t Q_AT = 0, Q_REST_AT = Q_AT + QUERIES, K_AT = Q_REST_AT + (TWO_HALVES ? QUERIES : 0),
				  V_AT = K_AT + TILE_STAGES * K_TILE,
				  RING_AT = V_AT + TILE_STAGES * V_TILE, SCALES_AT = RING_AT + ACTIVE * RING_STAGES * RING,
				  BARRIERS_AT = SCALES_AT + (FINE ? TILE_STAGES * TOKENS * 4 : 0);
	static constexpr uint32_t K_FULL = 0, K_EMPTY = 2, V_FULL = 4, V_EMPTY = 6, Q_FULL = 8,
				  Q_EMPTY = 9, RING_FULL = 10,
				  BARRIERS = RING_FULL + ACTIVE * RING_STAGES;
	static constexpr uint32_t PARTS_AT = (BARRIERS_AT + BARRIERS * 8 + 15) / 16 * 16;
	static constexpr uint32_t BYTES = PARTS_AT + EXTEND_GROUPS * 96;

	static_assert(BYTES <= 227 * 1024, "shared memory of a multiprocessor");
	static_assert(K_AT % 1024 == 0 && V_AT % 1024 == 0 && K_TILE % 1024 == 0 && V_TILE % 1024 == 0,
		      "swizzled rows come in groups of 1024 bytes");
};

/* The block of a sequence's that has an atom of it. */
DEVICE uint32_t block_of(const extend_args &a, uint32_t atom)
{
	return a.block_atoms == 1 ? atom : __umulhi(atom, a.block_magic);
}

/* The power of two that tiles are divided by, from a bound of their magnitudes: below 2^15 afterwards.
 */
DEVICE float unit_of(uint32_t bound_bits)
{
	const uint32_t exponent = bound_bits >> 23;

	if (exponent == 0)
		return 1;
	return __uint_as_float((exponent < 34 ? 20 : exponent - 14) << 23);
}

/* The largest magnitude of a code's value. */
__host__ __device__ constexpr float magnitude_max(int f)
{
	return f == KV_FP8        ? 448
	       : f == KV_INT4_PTH ? 15
	       : f == KV_TQ4      ? 114.5f
	       : f == KV_TQ3      ? 109.5f
	       : f == KV_TQ2      ? 118.5f
				  : 0;
}

/* The root of the mean square of codes' values, as long as vectors are much like normal numbers. */
__host__ __device__ constexpr float magnitude_mean(int f)
{
	return f == KV_INT4_PTH ? 3.2f : f == KV_TQ4 ? 42 : f == KV_TQ3 ? 51 : f == KV_TQ2 ? 78 : 0;
}

DEVICE const uint32_t *bounds_of(const extend_args &a, uint32_t sequence, uint32_t head, enum extend_bound which)
{
	return a.bounds + ((size_t)(sequence * a.heads + head) * BOUNDS + which) * BOUND_PARTS;
}

/* By all lanes of a warp. */
DEVICE uint32_t bound_bits(const extend_args &a, uint32_t sequence, uint32_t head, enum extend_bound which)
{
	uint32_t bound = bounds_of(a, sequence, head, which)[threadIdx.x % 32];

#pragma unroll
	for (int i = 1; i < 32; i *= 2)
		bound = max(bound, __shfl_xor_sync(ALL_LANES, bound, i));
	return bound;
}

/* By all lanes of a warp. */
DEVICE float side_unit(const extend_args &a, uint32_t sequence, uint32_t head, enum kv_side side)
{
	if (format_bits(side == KV_SIDE_K ? a.k_format : a.v_format) == 16)
		return 1; /* raw values stay as they are */
	return unit_of(bound_bits(a, sequence, head, side == KV_SIDE_K ? BOUND_K : BOUND_V));
}

/* The largest of a bound's parts, by one thread. */
DEVICE float largest_bound(const extend_args &a, uint32_t sequence, uint32_t head, enum extend_bound which)
{
	const uint4 *parts = (const uint4 *)bounds_of(a, sequence, head, which);
	uint4 bounds[BOUND_PARTS / 4]; /* of which none waits for another */
	uint32_t largest = 0;

#pragma unroll
	for (uint32_t i = 0; i < BOUND_PARTS / 4; i++)
		bounds[i] = parts[i];
#pragma unroll
	for (uint32_t i = 0; i < BOUND_PARTS / 4; i++)
		largest = max(max(max(largest, bounds[i].x), max(bounds[i].y, bounds[i].z)), bounds[i].w);
	return __uint_as_float(largest);
}

/* Whether a sequence's units of a head are fine. */
DEVICE bool is_fine(const extend_args &a, uint32_t sequence, uint32_t head)
{
	return format_fine(a.k_format) &&
	       largest_bound(a, sequence, head, BOUND_QUERIES) * largest_bound(a, sequence, head, BOUND_KEYS) > a.fine_from;
}

/* What no score of a sequence's head passes in magnitude, in powers of 2; infinite where nothing is known. */
DEVICE float reach_of(const extend_args &a, uint32_t sequence, uint32_t head)
{
	return a.bounded ? a.reach * largest_bound(a, sequence, head, BOUND_QUERIES) * largest_bound(a, sequence, head, BOUND_LONGEST)
			 : INFINITY;
}

/* Which tokens a unit's queries see, in tiles. */
struct extend_span {
	uint32_t prefix, own;              /* tokens of the prefix, new tokens of the sequence */
	uint32_t first_query;              /* of the row tile */
	uint32_t first_atom;               /* of the prefix, that one of its queries sees: there may be no address of
					    * those before it */
	uint32_t first_tile, prefix_steps; /* of the prefix */
	uint32_t first_own, own_steps;
};

/* Widens [*from, *to], the positions that positions `first` to `last` see, by the ranges that hold one of them; a
 * sequence ends at `end`. */
DEVICE void see_ranges(const extend_args &a, uint32_t sequence, uint32_t first, uint32_t last, uint32_t end, uint32_t *from,
		       uint32_t *to)
{
	for (uint32_t i = 0; i < a.ranges_max; i++) {
		const int32_t *range = a.ranges + 2 * ((size_t)sequence * a.ranges_max + i);
		const int32_t low = range[0], high = range[1];

		if (low > high || high < (int32_t)first || low > (int32_t)last)
			continue;
		*from = min(*from, (uint32_t)max(low, 0));
		*to = max(*to, min((uint32_t)high, end - 1));
	}
}

template <bool ALL = false>
DEVICE extend_span span_of(const extend_args &a, uint32_t sequence, uint32_t first_row, uint32_t rows,
			   uint32_t tokens, uint32_t own_tokens)
{
	extend_span s;
	uint32_t from, from_own, last_own;

	s.prefix = a.prefix_tokens[sequence];
	s.own = a.query_starts[sequence + 1] - a.query_starts[sequence];
	s.first_query = first_row / a.group;
	const uint32_t last_query = min((first_row + rows - 1) / a.group, s.own - 1);

	from = a.window > s.prefix + s.first_query ? 0 : s.prefix + s.first_query + 1 - a.window;
	last_own = last_query;
	if constexpr (ALL) {
		uint32_t to = s.prefix + last_query;

		see_ranges(a, sequence, s.prefix + s.first_query, to, s.prefix + s.own, &from, &to);
		last_own = to - s.prefix;
	}
	from_own = from > s.prefix ? from - s.prefix : 0;
	from = min(from, s.prefix);
	s.first_atom = from / KV_ATOM_TOKENS;
	s.first_tile = from / tokens;
	s.prefix_steps = from == s.prefix ? 0 : (s.prefix + tokens - 1) / tokens - s.first_tile;
	s.first_own = from_own / own_tokens;
	s.own_steps = last_own / own_tokens + 1 - s.first_own;
	return s;
}

DEVICE uint32_t tile_at(const extend_tile *line, uint32_t count, uint32_t x)
{
	uint32_t lo = 0, hi = count;

	while (hi - lo > 1) { /* the last whose begin is at most x */
		const uint32_t middle = (lo + hi) / 2;

		if (line[middle].begin <= x)
			lo = middle;
		else
			hi = middle;
	}
	return lo;
}

/* CTAs that have steps: on a line shorter than the CTAs are many, one each. Were more of them to share it, some in the
 * middle of a unit would have none, and no part there where the merge looks for one. */
DEVICE uint32_t ctas_of(const extend_args &a, uint32_t length)
{
	return min(a.ctas, length);
}

/* Where CTA `cta` of those that have steps begins on a line, but for the move. */
DEVICE uint32_t even_cut(uint32_t length, uint32_t ctas, uint32_t cta)
{
	return cta >= ctas ? length : (uint32_t)((uint64_t)length * cta / ctas);
}

/* The move of a cut at step x, which is the unit's: to its begin or end, to spare parts of a few steps. */
DEVICE uint32_t moved_cut(const extend_tile &t, uint32_t x)
{
	const uint32_t step = x - t.begin;

	return step < EXTEND_PART_MIN ? t.begin : t.steps - step < EXTEND_PART_MIN ? t.begin + t.steps : x;
}

/* Of the part that a CTA has of a unit: those of the two lines come from both ends. */
DEVICE uint32_t slot_of(const extend_args &a, bool fine, const extend_tile &t, uint32_t cta)
{
	return fine ? a.slots - 1 - (t.rank + cta) : t.rank + cta;
}

/* A launcher of the kernel for a pair of formats, instantiated in extend_*.cu; and of the portable one, in
 * extend_portable*.cu. */
template <int FK, int FV>
enum status extend_launch(const extend_args &a, head_dims d, cudaStream_t stream);
template <int FK, int FV>
enum status extend_portable(const extend_args &a, head_dims d, cudaStream_t stream);

/* Fills the workspace's bounds, line, queries and tiles of new tokens; adds up the parts
 * (extend_prepare.cu, extend_merge.cu). */
enum status extend_prepare(const extend_args &a, head_dims d, uint32_t tokens, uint32_t own_tiles, cudaStream_t stream);
enum status extend_merge(const extend_args &a, head_dims d, cudaStream_t stream);

#endif
