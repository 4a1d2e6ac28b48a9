/* The end of extend: the parts of each row meet, by a warp a row, and the result is rotated back. */
#include "kernels/cuda/extend_rotate.cuh"

namespace
{

constexpr uint32_t WARPS = 8, ROWS_EACH = 32; /* rows of a CTA */

/* The row's parts together: x has the weighted sums; returns {exponent, sum}. */
template <int D>
DEVICE float2 add_parts(const extend_args &a, uint32_t unit, uint32_t first, uint32_t last, uint32_t row,
			uint32_t lane, float (&x)[D / 32])
{
	constexpr uint32_t ROWS = extend_rows(D);
	constexpr int E = D / 32;
	float2 total = {NEVER_SEEN, 0};

#pragma unroll
	for (int e = 0; e < E; e++)
		x[e] = 0;
	for (uint32_t cta = first; cta <= last; cta++)
		total.x = fmaxf(total.x, a.sums[(size_t)(unit + cta) * ROWS + row].x);
	for (uint32_t cta = first; cta <= last; cta++) {
		const size_t at = (size_t)(unit + cta) * ROWS + row;
		const float2 part = a.sums[at];
		const float factor = exp2_fast(part.x - total.x);

		total.y += factor * part.y;
#pragma unroll
		for (int e = 0; e < E; e++)
			x[e] += factor * a.partials[at * D + lane * E + e];
	}
	return total;
}

template <int D>
DEVICE void merge_row(const extend_args &a, const extend_tile &t, uint32_t unit, uint32_t first,
		      uint32_t last, uint32_t in_unit, float unit_v, float *room, uint32_t lane)
{
	constexpr int E = D / 32;
	const uint32_t row = t.first_row + in_unit, head = unit % a.heads * a.group + row % a.group;
	const size_t at = (size_t)(a.query_starts[t.sequence] + row / a.group) * a.q_heads + head;
	const bool rotated = format_rotated(a.v_format);
	float x[E];
	float2 total = add_parts<D>(a, unit, first, last, in_unit, lane, x);
	float factor = unit_v * (rotated ? 1.0f / D : 1);

	if (a.sinks) {
		const float sink = a.sinks[head] * 1.44269504f, top = fmaxf(sink, total.x);

		factor *= exp2_fast(total.x - top);
		total = {top, total.y * exp2_fast(total.x - top) + exp2_fast(sink - top)};
	}
	factor = total.y > 0 ? factor / total.y : 0;
	if (a.out_scale)
		factor /= *a.out_scale;
	if (rotated) /* the order of dims inside eight commutes with the rotation */
		rotate_registers<D, true>(x, room, lane);
#pragma unroll
	for (int e = 0; e < E; e++) {
		const uint32_t dim = v_dim(lane * E + e);
		const float y = x[e] * factor;

		store_element(a.out_dtype, a.out, at * D + dim,
			      rotated && rotation_negative(dim) ? -y : y);
	}
	if (lane == 0 && a.lse)
		a.lse[at] = total.y > 0 ? (total.x + log2f(total.y)) * 0.693147181f : -INFINITY;
}

template <int D>
__global__ void __launch_bounds__(32 * WARPS) merge_kernel(const __grid_constant__ extend_args a)
{
	constexpr uint32_t ROWS = extend_rows(D), EACH = ROWS / ROWS_EACH;
	__shared__ float rooms[WARPS][D];
	__shared__ uint32_t first, last;
	const uint32_t unit = blockIdx.x / EACH, from = blockIdx.x % EACH * ROWS_EACH,
		       warp = threadIdx.x / 32;
	const extend_tile t = a.tiles[unit / a.heads];

	if (t.steps == 0)
		return;
	const uint32_t rows =
		(a.query_starts[t.sequence + 1] - a.query_starts[t.sequence]) * a.group - t.first_row;

	if (threadIdx.x == 0)
		first = cta_of(a, t.begin + unit % a.heads * t.steps);
	if (threadIdx.x == 32)
		last = cta_of(a, t.begin + unit % a.heads * t.steps + t.steps - 1);
	__syncthreads();
	const float unit_v = side_unit(a, t.sequence, unit % a.heads, KV_SIDE_V);

	for (uint32_t i = from + warp; i < min(from + ROWS_EACH, rows); i += WARPS)
		merge_row<D>(a, t, unit, first, last, i, unit_v, rooms[warp], threadIdx.x % 32);
}

template <int D> enum status launch_merge(const extend_args &a, cudaStream_t stream)
{
	launch_kernel(merge_kernel<D>, a.tile_count * a.heads * (extend_rows(D) / ROWS_EACH), 32 * WARPS, 0, stream, a);
	return cudaGetLastError() == cudaSuccess ? STATUS_OK : STATUS_INTERNAL;
}

} // namespace

enum status extend_merge(const extend_args &a, uint32_t d, cudaStream_t stream)
{
	switch (d) {
	case 128:
		return launch_merge<128>(a, stream);
#ifdef TERRACE_CUDA_ALL
	case 64:
		return launch_merge<64>(a, stream);
	case 96:
		return launch_merge<96>(a, stream);
	case 192:
		return launch_merge<192>(a, stream);
	case 256:
		return launch_merge<256>(a, stream);
#endif
	default:
		return STATUS_UNSUPPORTED;
	}
}
