/* What extend makes in the workspace before it multiplies: a bound of the magnitudes of each sequence and head, the
 * line of steps, and the queries and the new tokens' K and V as the tiles that products read. Where the prefix is
 * rotated, these are rotated too: a rotation keeps products, and both kinds of tokens add to one sum.
 */
#include "kernels/cuda/extend_rotate.cuh"

namespace
{

constexpr uint32_t THREADS = 256, WARPS = THREADS / 32;

constexpr uint32_t BOUND_KINDS = 3; /* what a block finds bounds of: keys, values, queries */

/* What is read at a time: loads of a lane that wait for none of each other. */
constexpr uint32_t AT_ONCE = 4;

/* {largest scale, largest magnitude of a value} of one side of the prefix tokens first, first + step, ... below end. */
DEVICE float2 largest_scale(const extend_args &a, uint32_t sequence, uint32_t head, uint32_t format,
			    uint32_t scales_at, uint32_t atom_bytes, uint32_t first, uint32_t step,
			    uint32_t end)
{
	const uint64_t *table = a.blocks + (size_t)sequence * a.blocks_stride;
	float2 largest = {0, 0};

	for (uint32_t token = first; token < end; token += AT_ONCE * step) {
		uint64_t block[AT_ONCE];
		uint32_t atom[AT_ONCE], bits[AT_ONCE] = {};

#pragma unroll
		for (uint32_t i = 0; i < AT_ONCE; i++) {
			const uint32_t here = (token + i * step) / KV_ATOM_TOKENS, index = block_of(a, here);

			atom[i] = here - index * a.block_atoms;
			if (token + i * step < end)
				block[i] = table[index];
		}
#pragma unroll
		for (uint32_t i = 0; i < AT_ONCE; i++) {
			const uint32_t entry = scale_entry((token + i * step) % KV_ATOM_TOKENS);

			if (token + i * step >= end)
				continue;
			const uint8_t *scales = (const uint8_t *)(block[i] + a.layer_at + (uint64_t)head * a.chunk_bytes +
								  atom[i] * atom_bytes + scales_at);

			bits[i] = format == KV_INT4_PTH ? ((const uint32_t *)scales)[entry] : ((const uint16_t *)scales)[entry];
		}
#pragma unroll
		for (uint32_t i = 0; i < AT_ONCE; i++) {
			const uint32_t zero = bits[i] & 15;
			const float scale = fabsf(format == KV_INT4_PTH ? __uint_as_float(bits[i] & ~15u)
									: __half2float(__ushort_as_half((uint16_t)bits[i])));

			largest.x = fmaxf(largest.x, scale);
			largest.y = fmaxf(largest.y, scale * (format == KV_INT4_PTH ? (float)max(zero, 15 - zero)
										    : magnitude_max(format)));
		}
	}
	return largest;
}

/* The largest scale of what the queries of a sequence see of this part of its prefix, and of the tokens that come with
 * that in an atom, whose values are masked, but must not be infinite. */
template <int DK, int DV>
DEVICE float2 prefix_scale(const extend_args &a, uint32_t sequence, uint32_t head, uint32_t part, bool v)
{
	const uint32_t format = v ? a.v_format : a.k_format, prefix = a.prefix_tokens[sequence];
	const uint32_t scales_at = 2 * format_bits(format) * (v ? DV : DK) + (v ? side_bytes(a.k_format, DK) : 0),
		       atom_bytes = side_bytes(a.k_format, DK) + side_bytes(a.v_format, DV);
	const uint32_t end = prefix + a.query_starts[sequence + 1] - a.query_starts[sequence];
	uint32_t first_seen = prefix + 1 > a.window ? prefix + 1 - a.window : 0, last_seen = end;

	if (format_scale_bytes(format) == 0 || end == prefix)
		return {0, 0};
	see_ranges(a, sequence, prefix, end - 1, end, &first_seen, &last_seen);
	first_seen -= first_seen % KV_ATOM_TOKENS;
	return largest_scale(a, sequence, head, format, scales_at, atom_bytes, first_seen + part * THREADS + threadIdx.x,
			     BOUND_PARTS * THREADS, prefix);
}

/* An element as encode stores it: NaN as 0, what passes the largest fp16, infinities too, as that. */
DEVICE float as_stored(float x)
{
	return x == x ? fminf(fmaxf(x, -KV_FINITE_MAX), KV_FINITE_MAX) : 0;
}

/* {largest magnitude, greatest length} of vectors `rows` of a sequence's head, at(row); a warp a row. */
template <int D, class At>
DEVICE float2 extent(enum kv_dtype dtype, const void *x, uint32_t rows, uint32_t part, At at)
{
	constexpr uint32_t STEP = BOUND_PARTS * WARPS;
	const uint32_t lane = threadIdx.x % 32;
	float2 e = {0, 0};

	for (uint32_t row = part * WARPS + threadIdx.x / 32; row < rows; row += AT_ONCE * STEP) {
		raw_elements<D> raw[AT_ONCE];

		/* Past the end the last again. */
		load_raw<D>(dtype, x, lane, raw, [&](uint32_t i) { return at(min(row + i * STEP, rows - 1)); });
#pragma unroll
		for (uint32_t i = 0; i < AT_ONCE; i++) {
			float y[D / 32], sum = 0;

			elements_of<D>(dtype, raw[i], y);
#pragma unroll
			for (int k = 0; k < D / 32; k++) {
				y[k] = as_stored(y[k]);
				sum += y[k] * y[k];
				e.x = fmaxf(e.x, fabsf(y[k]));
			}
			e.y = fmaxf(e.y, sum_of_warp(sum));
		}
	}
	return {max_of_warp(e.x), sqrtf(e.y)};
}

template <int D> DEVICE float2 extent_of_own(const extend_args &a, bool v, uint32_t sequence, uint32_t head, uint32_t part)
{
	const uint32_t first = a.query_starts[sequence], n = a.query_starts[sequence + 1] - first;
	const size_t stride = v ? a.v_stride : a.k_stride;

	return extent<D>(a.own_dtype, v ? a.v : a.k, n, part, [&](uint32_t row) { return (first + row) * stride + head * D; });
}

template <int D> DEVICE float longest_query(const extend_args &a, uint32_t sequence, uint32_t head, uint32_t part)
{
	const uint32_t first = a.query_starts[sequence], rows = (a.query_starts[sequence + 1] - first) * a.group;

	return extent<D>(a.q_dtype, a.q, rows, part, [&](uint32_t row) {
		       return ((size_t)(first + row / a.group) * a.q_heads + head * a.group + row % a.group) * D;
	       }).y;
}

/* What is found of keys or values at once: BOUND_K, BOUND_KEYS, BOUND_LONGEST; or BOUND_V and no more. Rotated,
 * unnormalised, a vector has no dim above sqrt(d) times its length; its dims are much alike. */
template <int D, int DK, int DV>
DEVICE void tile_bounds(const extend_args &a, uint32_t sequence, uint32_t head, uint32_t part, bool v, float (&found)[3])
{
	const uint32_t format = v ? a.v_format : a.k_format;
	const bool rotated = format_rotated(format);
	const float root = sqrtf((float)D);
	const float2 prefix = prefix_scale<DK, DV>(a, sequence, head, part, v),
		     own = extent_of_own<D>(a, v, sequence, head, part);

	found[0] = fmaxf(prefix.y, rotated ? 1.001f * root * own.y : own.x);
	found[1] = rotated ? fmaxf(magnitude_mean(format) * prefix.x, own.y) / root : fmaxf(prefix.y, own.x);
	found[2] = fmaxf(rotated ? prefix.y : root * prefix.y, own.y);
}

/* bounds[sequence][head][which][part]. */
template <int DK, int DV>
__global__ void __launch_bounds__(THREADS) bounds_kernel(const __grid_constant__ extend_args a)
{
	__shared__ float of_warp[WARPS][3];
	const uint32_t part = blockIdx.x, kind = blockIdx.y % BOUND_KINDS, head = blockIdx.y / BOUND_KINDS, sequence = blockIdx.z;
	const uint32_t first = kind == 0 ? BOUND_K : kind == 1 ? BOUND_V : BOUND_QUERIES, count = kind == 0 ? 3 : 1;
	float found[3] = {};

	if (first == BOUND_QUERIES)
		found[0] = longest_query<DK>(a, sequence, head, part);
	else if (DK != DV && first == BOUND_V)
		tile_bounds<DV, DK, DV>(a, sequence, head, part, true, found);
	else
		tile_bounds<DK, DK, DV>(a, sequence, head, part, first == BOUND_V, found);
#pragma unroll
	for (uint32_t i = 0; i < 3; i++) {
		found[i] = max_of_warp(found[i]);
		if (threadIdx.x % 32 == 0)
			of_warp[threadIdx.x / 32][i] = found[i];
	}
	__syncthreads();
	if (threadIdx.x < count) {
		float largest = 0;

		for (uint32_t i = 0; i < WARPS; i++)
			largest = fmaxf(largest, of_warp[i][threadIdx.x]);
		a.bounds[((size_t)(sequence * a.heads + head) * BOUNDS + first + threadIdx.x) * BOUND_PARTS + part] =
			__float_as_uint(fminf(largest, 1e38f));
	}
}

/* Row tile i of the launch: what a unit's entry says of it. */
DEVICE extend_tile row_tile(const extend_args &a, uint32_t i, uint32_t rows)
{
	uint32_t lo = 0, hi = a.sequences;
	extend_tile t = {};

	while (hi - lo > 1) {
		const uint32_t middle = (lo + hi) / 2;

		if (a.query_starts[middle] * a.group / rows + middle <= i)
			lo = middle;
		else
			hi = middle;
	}
	t.sequence = lo;
	t.first_row = (i - (a.query_starts[lo] * a.group / rows + lo)) * rows;
	return t;
}

/* Rows of the tile's sequence from the tile on. */
DEVICE uint32_t rows_left(const extend_args &a, const extend_tile &t)
{
	const uint32_t rows = (a.query_starts[t.sequence + 1] - a.query_starts[t.sequence]) * a.group;

	return rows > t.first_row ? rows - t.first_row : 0;
}

/* The sums of x and y over the block's threads up to this one; `all`: over all. */
DEVICE uint2 sums_to_here(uint2 x, uint2 *all)
{
	__shared__ uint2 of_warp[WARPS];
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

#pragma unroll
	for (uint32_t h = 1; h < 32; h *= 2) {
		const uint32_t a = __shfl_up_sync(ALL_LANES, x.x, h), b = __shfl_up_sync(ALL_LANES, x.y, h);

		x.x += lane >= h ? a : 0;
		x.y += lane >= h ? b : 0;
	}
	__syncthreads();
	if (lane == 31)
		of_warp[warp] = x;
	__syncthreads();
	*all = {0, 0};
	for (uint32_t w = 0; w < WARPS; w++) {
		x.x += w < warp ? of_warp[w].x : 0;
		x.y += w < warp ? of_warp[w].y : 0;
		all->x += of_warp[w].x;
		all->y += of_warp[w].y;
	}
	return x;
}

/* Where CTAs begin on a line: by the threads that wrote its units, for those that begin in one of theirs. */
DEVICE void cut_line(const extend_args &a, bool fine, uint32_t length)
{
	const uint32_t ctas = ctas_of(a, length);

	for (uint32_t i = threadIdx.x; i < a.units; i += THREADS) {
		const extend_tile t = a.lines[fine][i];

		if (t.steps == 0)
			continue;
		for (uint32_t cta = (uint32_t)(((uint64_t)t.begin * ctas + length - 1) / length);; cta++) {
			const uint32_t x = even_cut(length, ctas, cta);

			if (x >= t.begin + t.steps)
				break;
			a.cuts[fine][cta] = moved_cut(t, x);
		}
	}
	for (uint32_t cta = ctas + threadIdx.x; cta <= a.ctas; cta += THREADS)
		a.cuts[fine][cta] = length;
}

/* By one block, for a line, and where CTAs begin on it. */
DEVICE void lay_out_line(const extend_args &a, bool fine, uint32_t rows, uint32_t tokens, uint32_t own_tokens)
{
	uint2 before = {0, 0};

	for (uint32_t from = 0; from < a.units; from += THREADS) {
		const uint32_t i = from + threadIdx.x;
		extend_tile t = {};
		uint2 all;

		if (i < a.units) {
			t = row_tile(a, i / a.heads, rows);
			t.reach = reach_of(a, t.sequence, i % a.heads);
			if (rows_left(a, t) > 0 && is_fine(a, t.sequence, i % a.heads) == fine) {
				const extend_span s = span_of<true>(a, t.sequence, t.first_row, rows, tokens, own_tokens);

				t.steps = s.prefix_steps + s.own_steps;
			}
		}
		const uint32_t one = t.steps > 0;
		const uint2 sum = sums_to_here({t.steps, one}, &all);

		t.begin = before.x + sum.x - t.steps;
		t.rank = before.y + sum.y - one;
		if (i < a.units)
			a.lines[fine][i] = t;
		before.x += all.x;
		before.y += all.y;
	}
	if (threadIdx.x == 0)
		a.lines[fine][a.units] = {before.x, 0, 0, 0, before.y, 0};
	cut_line(a, fine, before.x);
}

/* What is the same for all vectors that a lane has a part of: found once, for it takes longer than the rest. */
template <int D> struct vector_order {
	static constexpr int E = D / 32;
	uint32_t negative = 0;         /* a bit for each of the lane's elements that rotation begins by negating */
	uint32_t places[(E + 3) / 4] = {}; /* a byte for each: where it stands in a row of queries or keys */

	DEVICE vector_order(const extend_args &a, uint32_t lane, bool rotated)
	{
		const bool crossed = format_crossed(a.v_format);

#pragma unroll
		for (int e = 0; e < E; e++) {
			negative |= (uint32_t)(rotated && rotation_negative(lane * E + e)) << e;
			places[e / 4] |= k_place_of(a.k_format, crossed, D, lane * E + e) << (e % 4 * 8);
		}
	}

	DEVICE uint32_t place(int e) const
	{
		return places[e / 4] >> (e % 4 * 8) & 0xff;
	}
};

template <int D> DEVICE void rotate(const vector_order<D> &order, float *room, uint32_t lane, float (&x)[D / 32])
{
	constexpr int E = D / 32;

#pragma unroll
	for (int e = 0; e < E; e++)
		x[e] = __uint_as_float(__float_as_uint(x[e]) ^ (order.negative >> e & 1) << 31);
	rotate_registers<D, false>(x, room, lane);
}

DEVICE __half half_within(float x)
{
	return __float2half_rn(fminf(fmaxf(x, -KV_FINITE_MAX), KV_FINITE_MAX));
}

/* A vector of queries or keys, or what its halves leave of it (REST), becomes row `row` of a panel of `rows` rows at
 * `image`. */
template <int D, bool REST = false>
DEVICE void write_row(const vector_order<D> &order, const float (&x)[D / 32], float factor, float *room,
		      uint8_t *image, uint32_t rows, uint32_t row, uint32_t lane)
{
	constexpr int E = D / 32;
	__half *halves = (__half *)room;

	if (D % 64 && lane < 32)
		halves[D / 64 * 64 + 32 + lane] = __half(0.0f);
	__syncwarp();
#pragma unroll
	for (int e = 0; e < E; e++) {
		const float y = x[e] * factor;
		const __half half = half_within(y);

		halves[order.place(e)] =
			REST ? half_within(y - __half2float(half)) : half;
	}
	__syncwarp();
	for (uint32_t chunk = lane; chunk < panels_of(D) * 8; chunk += 32)
		*(uint4 *)(image + panel_byte(rows, row, chunk * 8)) = ((const uint4 *)halves)[chunk];
	__syncwarp();
}

/* 64 rows of a unit's queries. */
template <int D, uint32_t ROWS> DEVICE void prepare_queries(const extend_args &a, uint32_t block, float *room)
{
	constexpr uint32_t EACH = ROWS / 64, IMAGE = ROWS * panels_of(D) * 128;
	const uint32_t unit = block / EACH, in_unit = block % EACH * 64, head = unit % a.heads;
	const extend_tile t = row_tile(a, unit / a.heads, ROWS);
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, left = rows_left(a, t);
	const size_t image = (size_t)unit * IMAGE + in_unit * panels_of(D) * 128;

	if (left == 0)
		return;
	const uint32_t first = a.query_starts[t.sequence];
	const bool rotated = format_rotated(a.k_format), rests = rotated && is_fine(a, t.sequence, head);
	const float factor = fabsf(a.scale_log2) * side_unit(a, t.sequence, head, KV_SIDE_K);
	const vector_order<D> order(a, lane, rotated);

	for (uint32_t i = warp; i < 64; i += WARPS * AT_ONCE) {
		raw_elements<D> raw[AT_ONCE];

		/* Past the end the last again, as anything may be there. */
		load_raw<D>(a.q_dtype, a.q, lane, raw, [&](uint32_t j) {
			const uint32_t row = t.first_row + min(in_unit + i + j * WARPS, left - 1);

			return ((size_t)(first + row / a.group) * a.q_heads + head * a.group + row % a.group) * D;
		});
#pragma unroll
		for (uint32_t j = 0; j < AT_ONCE; j++) {
			float x[D / 32];
			uint32_t largest = 0;

			elements_of<D>(a.q_dtype, raw[j], x);
			if (rotated)
				rotate<D>(order, room, lane, x);
#pragma unroll
			for (int e = 0; e < D / 32; e++)
				largest = max(largest, __float_as_uint(x[e]) & 0x7fffffff); /* as integers infinity and NaN are above all */
			largest = max_of_warp(largest);
			/* Magnitudes end up below 2. */
			const uint32_t exponent = min(max(largest >> 23, 2), 252);
			const float unit_q = __uint_as_float(exponent << 23),
				    inverse = copysignf(__uint_as_float((254 - exponent) << 23), a.scale_log2);

			write_row<D>(order, x, inverse, room, a.q_images + image, 64, i + j * WARPS, lane);
			if (rests)
				write_row<D, true>(order, x, inverse, room, a.q_rests + image, 64, i + j * WARPS, lane);
			if (lane == 0) /* of a query that is not finite NaN, and so are its scores */
				a.q_units[(size_t)unit * ROWS + in_unit + i + j * WARPS] =
					largest < 0x7f800000 ? fminf(fmaxf(factor * unit_q, 1e-30f), 1e30f) : NAN;
		}
	}
}

DEVICE uint32_t pair_of(const __half *x)
{
	return __half_as_ushort(x[0]) | (uint32_t)__half_as_ushort(x[1]) << 16;
}

/* A tile of K or V of new tokens: `tokens` columns for tokens from `from` on of the n at `first`; where `halves`, the
 * columns of the upper half are what the halves of the lower half's keys leave, and of V nothing. */
template <int D>
DEVICE void prepare_tile(const extend_args &a, bool v, uint32_t head, uint32_t first, uint32_t from, uint32_t n, uint32_t tokens,
			 bool halves, float inverse, float *room, uint8_t *tile, uint8_t *to)
{
	constexpr int E = D / 32;
	const bool crossed = format_crossed(a.v_format), rotated = format_rotated(v ? a.v_format : a.k_format);
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, columns = halves ? tokens / 2 : tokens;
	const vector_order<D> order(a, lane, rotated);

	for (uint32_t i = warp * AT_ONCE; i < tokens; i += WARPS * AT_ONCE) {
		const auto token = [&](uint32_t j) {
			const uint32_t column = i + j;

			return from + token_of_column(crossed, column < columns ? column : column - columns);
		};
		raw_elements<D> raw[AT_ONCE];
		__half side_by_side[E][AT_ONCE];

		load_raw<D>(a.own_dtype, v ? a.v : a.k, lane, raw, [&](uint32_t j) {
			return (size_t)(first + min(token(j), n - 1)) * (v ? a.v_stride : a.k_stride) + head * D;
		});
#pragma unroll
		for (uint32_t j = 0; j < AT_ONCE; j++) {
			const uint32_t column = i + j;
			const bool present = token(j) < n && !(v && column >= columns);
			float x[E];

			elements_of<D>(a.own_dtype, raw[j], x);
#pragma unroll
			for (int e = 0; e < E; e++)
				x[e] = present ? as_stored(x[e]) : 0;
			if (rotated)
				rotate<D>(order, room, lane, x);
			if (v)
#pragma unroll
				for (int e = 0; e < E; e++)
					side_by_side[e][j] = half_within(x[e] * inverse);
			else if (column >= columns)
				write_row<D, true>(order, x, inverse, room, to, tokens, column, lane);
			else
				write_row<D>(order, x, inverse, room, to, tokens, column, lane);
		}
		if (v)
#pragma unroll
			for (int e = 0; e < E; e++)
				*(uint2 *)(tile + panel_byte(D, v_row(lane * E + e), i)) = {pair_of(side_by_side[e]),
											      pair_of(side_by_side[e] + 2)};
	}
	if (!v)
		return;
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < v_tile_bytes(D, tokens) / 16; i += THREADS)
		((uint4 *)to)[i] = ((const uint4 *)tile)[i];
	__syncthreads();
}

/* `tokens` new tokens: K's tiles, or V's; of what is fine they are smaller. */
template <int DK, int DV>
DEVICE void prepare_own(const extend_args &a, uint32_t block, uint32_t tokens, float *room,
			uint8_t *tile)
{
	const uint32_t index = block / 2 / a.heads, head = block / 2 % a.heads;
	const bool v = block % 2;
	uint32_t lo = 0, hi = a.sequences;

	while (hi - lo > 1) {
		const uint32_t middle = (lo + hi) / 2;

		if (a.query_starts[middle] / tokens + middle <= index)
			lo = middle;
		else
			hi = middle;
	}
	const uint32_t first = a.query_starts[lo], n = a.query_starts[lo + 1] - first,
		       from = (index - (first / tokens + lo)) * tokens;

	if (from >= n)
		return;
	const bool fine = is_fine(a, lo, head);
	const uint32_t columns = fine ? FINE_TOKENS : tokens, each = extend_own_tokens(a.k_format, columns, fine);
	const float inverse = 1 / side_unit(a, lo, head, v ? KV_SIDE_V : KV_SIDE_K);
	uint8_t *const images = v ? fine ? a.v_fine : a.v_images : fine ? a.k_fine : a.k_images;

	for (uint32_t here = from; here < min(from + tokens, n); here += each) {
		const size_t image = (size_t)(first / each + lo + here / each) * a.heads + head;

		if (DK != DV && v)
			prepare_tile<DV>(a, true, head, first, here, n, columns, each < columns, inverse, room, tile,
					 images + image * v_tile_bytes(DV, columns));
		else
			prepare_tile<DK>(a, v, head, first, here, n, columns, each < columns, inverse, room, tile,
					 images + image * (v ? v_tile_bytes(DK, columns) : k_tile_bytes(DK, columns)));
	}
}

template <int DK, int DV>
__global__ void __launch_bounds__(THREADS, 4)
	images_kernel(const __grid_constant__ extend_args a, uint32_t query_blocks, uint32_t tokens)
{
	constexpr uint32_t ROWS = extend_rows(DK, DV), ROOM = panels_of(larger_dim(DK, DV)) * 64;
	__shared__ __align__(16) float rooms[WARPS][ROOM];
	__shared__ __align__(16) uint8_t tile[v_tile_bytes(DV, larger_dim(DK, DV) <= 128 ? 128 : 64)];

	if (blockIdx.x == 0)
		lay_out_line(a, false, ROWS, tokens, tokens);
	else if (blockIdx.x == 1)
		lay_out_line(a, true, ROWS, FINE_TOKENS, extend_own_tokens(a.k_format, FINE_TOKENS, true));
	else if (blockIdx.x < 2 + query_blocks)
		prepare_queries<DK, ROWS>(a, blockIdx.x - 2, rooms[threadIdx.x / 32]);
	else
		prepare_own<DK, DV>(a, blockIdx.x - 2 - query_blocks, tokens, rooms[threadIdx.x / 32], tile);
}

template <int DK, int DV>
enum status prepare(const extend_args &a, uint32_t tokens, uint32_t own_tiles, cudaStream_t stream)
{
	const uint32_t queries = a.units * (extend_rows(DK, DV) / 64);

	launch_kernel(bounds_kernel<DK, DV>, dim3(BOUND_PARTS, BOUND_KINDS * a.heads, a.sequences), THREADS, 0, stream, a);
	const enum status status = launched();

	if (status != STATUS_OK)
		return status;
	launch_kernel(images_kernel<DK, DV>, 2 + queries + own_tiles * a.heads * 2, THREADS, 0, stream, a, queries, tokens);
	return launched();
}

} // namespace

enum status extend_prepare(const extend_args &a, head_dims d, uint32_t tokens, uint32_t own_tiles, cudaStream_t stream)
{
#define EXTEND_PREPARE(DK, DV) \
	if (d.k == DK && d.v == DV) \
		return prepare<DK, DV>(a, tokens, own_tiles, stream);
	ATTEND_DIMS(EXTEND_PREPARE)
#undef EXTEND_PREPARE
	return STATUS_UNSUPPORTED;
}
