/* What extend makes before it multiplies, in the workspace: a bound of the magnitudes of each sequence
 * and head, the line of steps, the queries and the new tokens' K and V as the tiles that products read.
 * Where the prefix is rotated, so are they: rotation keeps products, and both kinds of tokens add to one
 * sum.
 */
#include "kernels/cuda/extend_rotate.cuh"

namespace
{

constexpr uint32_t THREADS = 256, WARPS = THREADS / 32;

/* The largest scale of one side of the prefix tokens first, first + step, ... below end, as a float. */
DEVICE float largest_scale(const extend_args &a, uint32_t sequence, uint32_t head, uint32_t format,
			   uint32_t scales_at, uint32_t atom_bytes, uint32_t first, uint32_t step,
			   uint32_t end)
{
	float largest = 0;

	for (uint32_t token = first; token < end; token += step) {
		const uint32_t atom = token / KV_ATOM_TOKENS;
		const uint8_t *scales = (const uint8_t *)(a.blocks[(size_t)sequence * a.blocks_stride +
								   atom / a.block_atoms] +
							  a.layer_at + (uint64_t)head * a.chunk_bytes +
							  atom % a.block_atoms * atom_bytes + scales_at);
		const uint32_t entry = scale_entry(token % KV_ATOM_TOKENS);

		if (format == KV_INT4_PTH)
			largest =
				fmaxf(largest,
				      fabsf(__uint_as_float(((const uint32_t *)scales)[entry] & ~15u)));
		else
			largest = fmaxf(largest, fabsf(__half2float(((const __half *)scales)[entry])));
	}
	return largest;
}

DEVICE float largest_own(const extend_args &a, const void *x, size_t stride, uint32_t sequence,
			 uint32_t head, uint32_t d, uint32_t part)
{
	const uint32_t first = a.query_starts[sequence], n = a.query_starts[sequence + 1] - first;
	float largest = 0;

	for (uint32_t i = part * THREADS + threadIdx.x; i < n * d; i += BOUND_PARTS * THREADS)
		largest =
			fmaxf(largest, fabsf(load_element(a.own_dtype, x,
							  (first + i / d) * stride + head * d + i % d)));
	return largest;
}

/* bounds[sequence][head][side][part]. */
DEVICE void find_bound(const extend_args &a, uint32_t d, uint32_t atom_bytes)
{
	__shared__ float of_warp[WARPS];
	const uint32_t part = blockIdx.x, head = blockIdx.y / 2, side = blockIdx.y % 2,
		       sequence = blockIdx.z;
	const uint32_t format = side ? a.v_format : a.k_format, prefix = a.prefix_tokens[sequence];
	const uint32_t scales_at = 2 * format_bits(format) * d + (side ? side_bytes(a.k_format, d) : 0);
	const uint32_t end = prefix + a.query_starts[sequence + 1] - a.query_starts[sequence];
	uint32_t first_seen = prefix + 1 > a.window ? prefix + 1 - a.window : 0, last_seen = end;
	float largest = 0;

	if (end > prefix)
		see_ranges(a, sequence, prefix, end - 1, end, &first_seen, &last_seen);

	if (format_scale_bytes(format) > 0)
		largest = magnitude_max(format) *
			  largest_scale(a, sequence, head, format, scales_at, atom_bytes,
					first_seen + part * THREADS + threadIdx.x, BOUND_PARTS * THREADS,
					prefix);
	largest = fmaxf(largest, (format_rotated(format) ? (float)d : 1) *
					 largest_own(a, side ? a.v : a.k, side ? a.v_stride : a.k_stride,
						     sequence, head, d, part));
	largest = max_of_warp(largest);
	if (threadIdx.x % 32 == 0)
		of_warp[threadIdx.x / 32] = largest;
	__syncthreads();
	if (threadIdx.x == 0) {
		for (uint32_t i = 1; i < WARPS; i++)
			largest = fmaxf(largest, of_warp[i]);
		a.bounds[((size_t)(sequence * a.heads + head) * 2 + side) * BOUND_PARTS + part] =
			__float_as_uint(fminf(largest, 1e38f));
	}
}

/* Entry i of the line, but for its begin. */
DEVICE extend_tile tile_of_entry(const extend_args &a, uint32_t i, uint32_t rows, uint32_t tokens)
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
	if (t.first_row < (a.query_starts[lo + 1] - a.query_starts[lo]) * a.group) {
		const extend_span s = span_of<true>(a, lo, t.first_row, rows, tokens);

		t.steps = s.prefix_steps + s.own_steps;
	}
	return t;
}

DEVICE void lay_out_line(const extend_args &a, uint32_t rows, uint32_t tokens)
{
	__shared__ uint32_t of_warp[WARPS];
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	uint32_t before = 0;

	for (uint32_t from = 0; from < a.tile_count; from += THREADS) {
		const uint32_t i = from + threadIdx.x;
		extend_tile t = {};
		uint32_t sum, all = 0;

		if (i < a.tile_count)
			t = tile_of_entry(a, i, rows, tokens);
		sum = t.steps * a.heads;
#pragma unroll
		for (uint32_t h = 1; h < 32; h *= 2) {
			const uint32_t other = __shfl_up_sync(ALL_LANES, sum, h);

			sum += lane >= h ? other : 0;
		}
		__syncthreads();
		if (lane == 31)
			of_warp[warp] = sum;
		__syncthreads();
		for (uint32_t w = 0; w < WARPS; w++) {
			sum += w < warp ? of_warp[w] : 0;
			all += of_warp[w];
		}
		t.begin = before + sum - t.steps * a.heads;
		if (i < a.tile_count)
			a.tiles[i] = t;
		before += all;
	}
	if (threadIdx.x == 0)
		a.tiles[a.tile_count] = {before, 0, 0, 0};
}

__global__ void __launch_bounds__(THREADS)
	bounds_kernel(const __grid_constant__ extend_args a, uint32_t d, uint32_t atom_bytes,
		      uint32_t rows, uint32_t tokens)
{
	if (blockIdx.x < BOUND_PARTS)
		find_bound(a, d, atom_bytes);
	else if (blockIdx.y == 0 && blockIdx.z == 0)
		lay_out_line(a, rows, tokens);
}

/* Loads a vector and rotates it if so, times `factor`. */
template <int D>
DEVICE void load_rotated(enum kv_dtype dtype, const void *p, size_t at, bool present, bool rotated,
			 float *room, uint32_t lane, float (&x)[D / 32])
{
	constexpr int E = D / 32;

#pragma unroll
	for (int e = 0; e < E; e++)
		x[e] = 0;
	if (present)
		load_vector<D>(dtype, p, at, lane, x);
	if (!rotated)
		return;
#pragma unroll
	for (int e = 0; e < E; e++)
		x[e] = rotation_negative(lane * E + e) ? -x[e] : x[e];
	rotate_registers<D, false>(x, room, lane);
}

DEVICE __half half_within(float x)
{
	return __float2half_rn(fminf(fmaxf(x, -KV_FINITE_MAX), KV_FINITE_MAX));
}

/* A vector of queries or keys becomes row `row` of a panel of `rows` rows at `image`. */
template <int D>
DEVICE void write_row(const extend_args &a, const float (&x)[D / 32], float factor, float *room,
		      uint8_t *image, uint32_t rows, uint32_t row, uint32_t lane)
{
	constexpr int E = D / 32;
	__half *halves = (__half *)room;
	const bool crossed = format_crossed(a.v_format);

	if (D % 64 && lane < 32)
		halves[D / 64 * 64 + 32 + lane] = __half(0.0f);
	__syncwarp();
#pragma unroll
	for (int e = 0; e < E; e++)
		halves[k_place_of(a.k_format, crossed, D, lane * E + e)] = half_within(x[e] * factor);
	__syncwarp();
	for (uint32_t chunk = lane; chunk < panels_of(D) * 8; chunk += 32)
		*(uint4 *)(image + panel_byte(rows, row, chunk * 8)) = ((const uint4 *)halves)[chunk];
	__syncwarp();
}

/* 64 rows of a unit's queries. */
template <int D> DEVICE void prepare_queries(const extend_args &a, uint32_t block, float *room)
{
	constexpr uint32_t ROWS = extend_rows(D), EACH = ROWS / 64;
	const uint32_t unit = block / EACH, in_unit = block % EACH * 64, head = unit % a.heads;
	const extend_tile t = a.tiles[unit / a.heads];
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	uint8_t *image = a.q_images + (size_t)unit * q_image_bytes(D) + in_unit * panels_of(D) * 128;

	if (t.steps == 0)
		return;
	const uint32_t first = a.query_starts[t.sequence],
		       rows = (a.query_starts[t.sequence + 1] - first) * a.group;
	const bool rotated = format_rotated(a.k_format);
	const float k_unit = side_unit(a, t.sequence, head, KV_SIDE_K);

	for (uint32_t i = warp; i < 64; i += WARPS) {
		const uint32_t row = t.first_row + in_unit + i;
		const size_t at =
			(size_t)(first + row / a.group) * a.q_heads + head * a.group + row % a.group;
		float x[D / 32], largest = 0;

		load_rotated<D>(a.q_dtype, a.q, at * D, row < rows, rotated, room, lane, x);
#pragma unroll
		for (int e = 0; e < D / 32; e++)
			largest = fmaxf(largest, fabsf(x[e]));
		largest = max_of_warp(largest);
		/* Magnitudes end up below 2. */
		const uint32_t exponent = min(max(__float_as_uint(largest) >> 23, 2), 252);
		const float unit_q = __uint_as_float(exponent << 23),
			    inverse = __uint_as_float((254 - exponent) << 23);

		write_row<D>(a, x, a.scale_log2 < 0 ? -inverse : inverse, room, image, 64, i, lane);
		if (lane == 0)
			a.q_units[(size_t)unit * ROWS + in_unit + i] =
				fminf(fmaxf(fabsf(a.scale_log2) * unit_q * k_unit, 1e-30f), 1e30f);
	}
}

/* One tile of new tokens: K's, or V's. */
template <int D>
DEVICE void prepare_own(const extend_args &a, uint32_t block, uint32_t tokens, float *room,
			uint8_t *tile)
{
	constexpr int E = D / 32;
	const uint32_t image = block / 2, head = image % a.heads, index = image / a.heads;
	const bool v = block % 2, crossed = format_crossed(a.v_format);
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
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
	const float inverse = 1 / side_unit(a, lo, head, v ? KV_SIDE_V : KV_SIDE_K);
	const bool rotated = format_rotated(v ? a.v_format : a.k_format);

	for (uint32_t column = warp; column < tokens; column += WARPS) {
		const uint32_t token = from + token_of_column(crossed, column);
		float x[E];

		load_rotated<D>(a.own_dtype, v ? a.v : a.k,
				(size_t)(first + token) * (v ? a.v_stride : a.k_stride) + head * D,
				token < n, rotated, room, lane, x);
		if (!v)
			write_row<D>(a, x, inverse, room,
				     a.k_images + (size_t)image * k_tile_bytes(D, tokens), tokens,
				     column, lane);
		else
#pragma unroll
			for (int e = 0; e < E; e++)
				*(__half *)(tile + panel_byte(D, v_row(lane * E + e), column)) =
					half_within(x[e] * inverse);
	}
	if (!v)
		return;
	__syncthreads();
	uint4 *to = (uint4 *)(a.v_images + (size_t)image * v_tile_bytes(D, tokens));

	for (uint32_t i = threadIdx.x; i < v_tile_bytes(D, tokens) / 16; i += THREADS)
		to[i] = ((const uint4 *)tile)[i];
}

template <int D>
__global__ void __launch_bounds__(THREADS)
	images_kernel(const __grid_constant__ extend_args a, uint32_t query_blocks, uint32_t tokens)
{
	constexpr uint32_t ROOM = panels_of(D) * 64;
	__shared__ __align__(16) float rooms[WARPS][ROOM];
	__shared__ __align__(16) uint8_t tile[v_tile_bytes(D, D <= 128 ? 128 : 64)];

	if (blockIdx.x < query_blocks)
		prepare_queries<D>(a, blockIdx.x, rooms[threadIdx.x / 32]);
	else
		prepare_own<D>(a, blockIdx.x - query_blocks, tokens, rooms[threadIdx.x / 32], tile);
}

template <int D>
enum status launch_images(const extend_args &a, uint32_t tokens, uint32_t own_tiles, cudaStream_t stream)
{
	const uint32_t queries = a.tile_count * a.heads * (extend_rows(D) / 64);

	launch_kernel(images_kernel<D>, queries + own_tiles * a.heads * 2, THREADS, 0, stream, a, queries, tokens);
	return cudaGetLastError() == cudaSuccess ? STATUS_OK : STATUS_INTERNAL;
}

} // namespace

enum status extend_prepare(const extend_args &a, uint32_t d, uint32_t rows, uint32_t tokens,
			   uint32_t own_tiles, cudaStream_t stream)
{
	const uint32_t atom_bytes = side_bytes(a.k_format, d) + side_bytes(a.v_format, d);

	launch_kernel(bounds_kernel, dim3(BOUND_PARTS + 1, 2 * a.heads, a.sequences), THREADS, 0, stream, a, d, atom_bytes, rows,
		      tokens);
	if (cudaGetLastError() != cudaSuccess)
		return STATUS_INTERNAL;
	switch (d) {
	case 128:
		return launch_images<128>(a, tokens, own_tiles, stream);
#ifdef TERRACE_CUDA_ALL
	case 64:
		return launch_images<64>(a, tokens, own_tiles, stream);
	case 96:
		return launch_images<96>(a, tokens, own_tiles, stream);
	case 192:
		return launch_images<192>(a, tokens, own_tiles, stream);
	case 256:
		return launch_images<256>(a, tokens, own_tiles, stream);
#endif
	default:
		return STATUS_UNSUPPORTED;
	}
}
