/* The end of extend: a warp for each row adds up the row's parts, and the result is rotated back. */
#include "kernels/cuda/extend_rotate.cuh"

namespace
{

constexpr uint32_t WARPS = 8, ROWS_EACH = 32, AT_ONCE = ROWS_EACH / WARPS; /* rows of a CTA; of a warp */

/* The CTA that has step x of a unit: as extend_prepare cuts the line, as far as that is the unit's. */
DEVICE uint32_t cta_of(uint32_t length, uint32_t ctas, const extend_tile &t, uint32_t x)
{
	const auto cut = [&](uint32_t cta) {
		const uint32_t even = even_cut(length, ctas, cta);

		return even <= t.begin ? t.begin : even >= t.begin + t.steps ? t.begin + t.steps : moved_cut(t, even);
	};
	uint32_t cta = (uint32_t)((uint64_t)x * ctas / length);

	while (cut(cta) > x)
		cta--;
	while (cut(cta + 1) <= x)
		cta++;
	return cta;
}

/* The parts of rows row, row + WARPS, ... together: x has the weighted sums, totals {exponent, sum}. */
template <int D, uint32_t ROWS>
DEVICE void add_parts(const extend_args &a, const extend_tile &t, bool fine, uint32_t first, uint32_t last, uint32_t row,
		      uint32_t lane, float (&x)[AT_ONCE][D / 32], float2 (&totals)[AT_ONCE])
{
	constexpr int E = D / 32;

#pragma unroll
	for (uint32_t i = 0; i < AT_ONCE; i++) {
		totals[i] = {NEVER_SEEN, 0};
#pragma unroll
		for (int e = 0; e < E; e++)
			x[i][e] = 0;
	}
	for (uint32_t cta = first; cta <= last; cta++) {
		const size_t at = (size_t)slot_of(a, fine, t, cta) * ROWS + row;
		float2 part[AT_ONCE];
		float y[AT_ONCE][E];

#pragma unroll
		for (uint32_t i = 0; i < AT_ONCE; i++) {
			part[i] = a.sums[at + i * WARPS];
#pragma unroll
			for (int e = 0; e < E; e++)
				y[i][e] = a.partials[(at + i * WARPS) * D + lane * E + e];
		}
#pragma unroll
		for (uint32_t i = 0; i < AT_ONCE; i++) {
			const float top = fmaxf(totals[i].x, part[i].x), before = exp2_fast(totals[i].x - top),
				    here = exp2_fast(part[i].x - top);

			totals[i] = {top, totals[i].y * before + here * part[i].y};
#pragma unroll
			for (int e = 0; e < E; e++)
				x[i][e] = x[i][e] * before + here * y[i][e];
		}
	}
}

/* A vector of results. */
template <int D> DEVICE void store_dims(enum kv_dtype dtype, void *out, size_t at, const float *from, uint32_t lane)
{
	if (dtype == KV_DTYPE_F16 || dtype == KV_DTYPE_BF16) {
#pragma unroll
		for (uint32_t i = 2 * lane; i < D; i += 64) {
			const __half2 halves = saturated(__floats2half2_rn(from[i], from[i + 1]));
			const __nv_bfloat162 others = saturated(__floats2bfloat162_rn(from[i], from[i + 1]));

			((uint32_t *)out)[(at + i) / 2] =
				dtype == KV_DTYPE_F16 ? *(const uint32_t *)&halves : *(const uint32_t *)&others;
		}
	} else {
#pragma unroll
		for (uint32_t i = lane; i < D; i += 32)
			store_element(dtype, out, at + i, from[i]);
	}
}

template <int D>
DEVICE void finish_row(const extend_args &a, const extend_tile &t, uint32_t kv_head, uint32_t in_unit, float unit_v, float *room,
		       uint32_t lane, float2 total, float (&x)[D / 32])
{
	constexpr int E = D / 32;
	const uint32_t row = t.first_row + in_unit, head = kv_head * a.group + row % a.group;
	const size_t at = (size_t)(a.query_starts[t.sequence] + row / a.group) * a.q_heads + head;
	const bool rotated = format_rotated(a.v_format);
	float factor = unit_v * (rotated ? 1.0f / D : 1);

	if (a.sinks) {
		const float sink = a.sinks[head] * 1.44269504f, top = fmaxf(sink, total.x);

		factor *= exp2_fast(total.x - top);
		total = {top, total.y * exp2_fast(total.x - top) + exp2_fast(sink - top)};
	}
	factor = total.y == 0 ? 0 : factor / total.y; /* a sum that is NaN is not one of nothing: the row is NaN */
	if (a.out_scale)
		factor /= *a.out_scale;
	if (rotated) /* the order of dims inside eight commutes with the rotation */
		rotate_registers<D, true>(x, room, lane);
#pragma unroll
	for (int e = 0; e < E; e++) {
		const uint32_t dim = v_dim(lane * E + e);

		room[dim] = rotated && rotation_negative(dim) ? -x[e] * factor : x[e] * factor;
	}
	__syncwarp();
	store_dims<D>(a.out_dtype, a.out, at * D, room, lane);
	__syncwarp();
	if (lane == 0 && a.lse)
		a.lse[at] = total.y == 0 ? -INFINITY : (total.x + log2f(total.y)) * 0.693147181f;
}

template <int D, uint32_t ROWS>
__global__ void __launch_bounds__(32 * WARPS) merge_kernel(const __grid_constant__ extend_args a)
{
	constexpr uint32_t EACH = ROWS / ROWS_EACH;
	__shared__ float rooms[WARPS][D];
	const uint32_t unit = blockIdx.x / EACH, from = blockIdx.x % EACH * ROWS_EACH, head = unit % a.heads,
		       lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const bool fine = a.lines[0][unit].steps == 0;
	const extend_tile t = a.lines[fine][unit];

	if (t.steps == 0)
		return;
	const uint32_t length = a.lines[fine][a.units].begin, ctas = ctas_of(a, length);
	const uint32_t rows =
		(a.query_starts[t.sequence + 1] - a.query_starts[t.sequence]) * a.group - t.first_row;
	const float unit_v = side_unit(a, t.sequence, head, KV_SIDE_V);
	float x[AT_ONCE][D / 32];
	float2 totals[AT_ONCE];

	if (from >= rows)
		return;
	add_parts<D, ROWS>(a, t, fine, cta_of(length, ctas, t, t.begin),
			   cta_of(length, ctas, t, t.begin + t.steps - 1), from + warp, lane, x, totals);
#pragma unroll
	for (uint32_t i = 0; i < AT_ONCE; i++)
		if (from + warp + i * WARPS < rows)
			finish_row<D>(a, t, head, from + warp + i * WARPS, unit_v, rooms[warp], lane, totals[i], x[i]);
}

template <int D, uint32_t ROWS> enum status launch_merge(const extend_args &a, cudaStream_t stream)
{
	launch_kernel(merge_kernel<D, ROWS>, a.units * (ROWS / ROWS_EACH), 32 * WARPS, 0, stream, a);
	return launched();
}

} // namespace

enum status extend_merge(const extend_args &a, head_dims d, cudaStream_t stream)
{
#define EXTEND_MERGE(DK, DV) \
	if (d.k == DK && d.v == DV) \
		return launch_merge<DV, extend_rows(DK, DV)>(a, stream);
	ATTEND_DIMS(EXTEND_MERGE)
#undef EXTEND_MERGE
	return STATUS_UNSUPPORTED;
}
