/* The end of a segment: adds up the warps' sums, then the parts of a row; a finished column is rotated back and
 * written.
 */
#ifndef TERRACE_KERNELS_CUDA_ATTEND_FINISH_CUH
#define TERRACE_KERNELS_CUDA_ATTEND_FINISH_CUH

#include "kernels/cuda/attend_shape.cuh"
#include "kernels/cuda/attend_weigh.cuh"
#include "kernels/cuda/hadamard.cuh"

/* {max, sum} of two partial results together; *fa and *fb are what their values are to be multiplied by.
 */
DEVICE float2 join(float2 a, float2 b, float *fa, float *fb)
{
	float max = fmaxf(a.x, b.x);

	*fa = exp2_fast(a.x - max);
	*fb = exp2_fast(b.x - max);
	return {max, a.y * *fa + b.y * *fb};
}

/* A column's sink, asked for before it is wanted. */
DEVICE float sink_of(const attend_args &a, const segment &s, uint32_t column, uint32_t tile_columns)
{
	return a.features.sinks ? a.features.sinks[column_head(a, s, column, tile_columns)] : 0;
}

/* Writes a finished column, by one warp: x has weighted sums, `total` its {max, sum}. */
template <class V, int D>
DEVICE void write_column(const attend_args &a, size_t row, float *x, float2 total, float sink, uint32_t lane)
{
	/* H is orthogonal up to D, and codes stand for rotated vectors. A sum that is NaN is not one of nothing: the
	 * row is NaN. */
	float factor = total.y == 0 ? 0 : 1 / (total.y * (V::ROTATED ? D : 1));

	if (a.features.sinks) {
		float of_values, of_sink;
		const float values = total.y * (V::ROTATED ? D : 1);

		total = join(total, {sink * 1.44269504f, 1}, &of_values, &of_sink);
		factor = total.y == 0 || values == 0 ? 0 : of_values / (total.y * (V::ROTATED ? D : 1));
	}
	if (a.out_dtype == KV_DTYPE_E4M3 && a.features.out_scale)
		factor /= *a.features.out_scale;
	if constexpr (V::ROTATED)
		hadamard<D, true>(x, lane);
	else
		__syncwarp();
#pragma unroll
	for (uint32_t dim = lane; dim < D; dim += 32) {
		float v = factor == 0 ? 0 : x[dim] * factor;

		store_element(a.out_dtype, a.out, row * D + dim, V::ROTATED && rotation_negative(dim) ? -v : v);
	}
	if (lane == 0 && a.lse)
		a.lse[row] = total.y == 0 ? -INFINITY : (total.x + log2f(total.y)) * 0.693147181f;
}

/* {max, sum} of a warp's column. */
template <class S> DEVICE float2 &stat(float *results, uint32_t warp, uint32_t column)
{
	return *(float2 *)&results[(warp % S::MEETING * S::COLUMNS + column + 1) * S::STRIDE - 8 +
				   2 * (warp / S::MEETING)];
}

/* The warps' results meet in shared memory, first half of the warps by half, then all: afterwards the
 * first MEETING warps' results and stats are there, the others' in them. */
template <class S>
DEVICE void meet(column (&c)[S::TILES], typename S::V::sum_type (&o)[S::TILES][S::DV / 16][4],
		 float *results)
{
	using V = typename S::V;
	constexpr int D = S::DV, TILES = S::TILES;
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
	const bool upper = warp >= S::MEETING;
	float value[TILES][D / 16][2];

	__syncthreads(); /* the queries were handed out here */
#pragma unroll
	for (int n = 0; n < TILES; n++) {
		int64_t weights = c[n].weights;

#pragma unroll
		for (int i = 4; i < 32; i *= 2) {
			weights += __shfl_xor_sync(ALL_LANES, weights, i);
			c[n].sum += __shfl_xor_sync(ALL_LANES, c[n].sum, i);
		}
		if (g == 0 && upper)
			stat<S>(results, warp, 4 * n + t) = {c[n].max, c[n].sum};
#pragma unroll
		for (int j = 0; j < D / 16; j++) {
#pragma unroll
			for (int r = 0; r < 2; r++) {
				if constexpr (V::INTEGER)
					value[n][j][r] = V::template output<TILES>(o[n][j][2 * r] +
									   256 * (int64_t)o[n][j][2 * r + 1],
								   weights, r) *
							 WEIGHT_STEP;
				else
					value[n][j][r] = V::output(o[n][j][2 * r], o[n][j][2 * r + 1]);
				if (upper)
					results[((warp - S::MEETING) * S::COLUMNS + 4 * n + t) *
							S::STRIDE +
						V::template output_dim<TILES>(j, r, g)] = value[n][j][r];
			}
		}
	}
	__syncthreads();
	if (!upper) {
#pragma unroll
		for (int n = 0; n < TILES; n++) {
			float mine, other;
			const float2 total =
				join({c[n].max, c[n].sum}, stat<S>(results, warp + S::MEETING, 4 * n + t),
				     &mine, &other);

			if (g == 0)
				stat<S>(results, warp, 4 * n + t) = total;
#pragma unroll
			for (int j = 0; j < D / 16; j++) {
#pragma unroll
				for (int r = 0; r < 2; r++) {
					float *at = &results[(warp * S::COLUMNS + 4 * n + t) * S::STRIDE +
							     V::template output_dim<TILES>(j, r, g)];

					*at = mine * value[n][j][r] + other * *at;
				}
			}
		}
	}
	__syncthreads();
}

/* One column's sum over the CTA's results, by one warp; returns its {max, sum}. */
template <class S>
DEVICE float2 add_column(float *results, uint32_t column, uint32_t lane, float (&x)[S::DV / 32])
{
	constexpr int D = S::DV;
	float2 total = {NEVER, 0};

#pragma unroll
	for (uint32_t w = 0; w < S::MEETING; w++)
		total.x = fmaxf(total.x, stat<S>(results, w, column).x);
#pragma unroll
	for (int i = 0; i < D / 32; i++)
		x[i] = 0;
#pragma unroll
	for (uint32_t w = 0; w < S::MEETING; w++) {
		const float2 part = stat<S>(results, w, column);
		const float factor = exp2_fast(part.x - total.x);

		total.y += factor * part.y;
#pragma unroll
		for (int i = 0; i < D / 32; i++)
			x[i] += factor * results[(w * S::COLUMNS + column) * S::STRIDE + lane + 32 * i];
	}
	return total;
}

/* How a warp shares out the D elements of a part: a lane's element i is at part_dim. */
template <int D> struct part_lanes {
	static constexpr int EACH = D / 32, VECTOR = D % 128 == 0 ? 4 : D % 64 == 0 ? 2 : 1;

	static DEVICE uint32_t dim(uint32_t lane, int i)
	{
		return i / VECTOR * 32 * VECTOR + lane * VECTOR + i % VECTOR;
	}

	static DEVICE void load(const float *from, uint32_t lane, float (&x)[EACH])
	{
#pragma unroll
		for (int i = 0; i < EACH; i += VECTOR) {
			const float *at = from + dim(lane, i);

			if constexpr (VECTOR == 4) {
				const float4 v = __ldcg((const float4 *)at);

				x[i] = v.x;
				x[i + 1] = v.y;
				x[i + 2] = v.z;
				x[i + 3] = v.w;
			} else if constexpr (VECTOR == 2) {
				const float2 v = __ldcg((const float2 *)at);

				x[i] = v.x;
				x[i + 1] = v.y;
			} else {
				x[i] = __ldcg(at);
			}
		}
	}
};

/* One column's sum over every GROUPS-th part of a row in the workspace, from part `group` on, by one
 * warp. All loads of a round are asked for before the first is waited for. */
template <class S, uint32_t GROUPS>
DEVICE float2 add_parts(const attend_args &a, const segment &s, uint32_t column, uint32_t group, uint32_t lane,
			float (&x)[S::DV / 32])
{
	constexpr int D = S::DV, EACH = D / 32;
	constexpr uint32_t ROUND = EACH <= 4 ? 36 / EACH : EACH < 16 ? 16 / EACH : 1;
	float2 total = {NEVER, 0};

#pragma unroll
	for (int i = 0; i < EACH; i++)
		x[i] = 0;
	for (uint32_t from = group; from < s.parts; from += ROUND * GROUPS) {
		const uint32_t mine = from + lane * GROUPS;
		float2 sum = {NEVER, 0};
		float part[ROUND][EACH];

		if (lane < ROUND && mine < s.parts)
			sum = __ldcg(&a.sums[slot_of(a, s, mine) * S::COLUMNS + column]);
#pragma unroll
		for (uint32_t j = 0; j < ROUND; j++) {
			const uint32_t p = from + j * GROUPS;

#pragma unroll
			for (int i = 0; i < EACH; i++)
				part[j][i] = 0;
			if (p < s.parts)
				part_lanes<D>::load(a.partials + ((size_t)slot_of(a, s, p) * S::COLUMNS + column) * D,
						    lane, part[j]);
		}
		float max = sum.x;

#pragma unroll
		for (int i = 1; i < 32; i *= 2)
			max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, i));
		max = fmaxf(max, total.x);
		const float factor = exp2_fast(sum.x - max), before = exp2_fast(total.x - max);

		sum.y *= factor;
#pragma unroll
		for (int i = 1; i < 32; i *= 2)
			sum.y += __shfl_xor_sync(ALL_LANES, sum.y, i);
		total = {max, total.y * before + sum.y};
#pragma unroll
		for (int i = 0; i < EACH; i++)
			x[i] *= before;
#pragma unroll
		for (uint32_t j = 0; j < ROUND; j++) {
			const float w = __shfl_sync(ALL_LANES, factor, j);

#pragma unroll
			for (int i = 0; i < EACH; i++)
				x[i] += w * part[j][i];
		}
	}
	return total;
}

/* The last CTA of a row adds up its parts from the workspace and writes the row. A column is a warp's, or
 * that of as many warps as there are for one. */
template <class S> DEVICE void merge_parts(const attend_args &a, const segment &s, uint8_t *shared)
{
	constexpr int D = S::DV;
	constexpr uint32_t GROUPS = S::WARPS / S::COLUMNS > 1 ? S::WARPS / S::COLUMNS : 1;
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / S::COLUMNS;
	float *results = (float *)(shared + S::SIZES.results_at), *rows = (float *)(shared + S::SIZES.rows_at);

	for (uint32_t from = 0; from < S::COLUMNS; from += S::WARPS) {
		const uint32_t column = GROUPS > 1 ? warp % S::COLUMNS : from + warp;
		const float sink = sink_of(a, s, column, S::COLUMNS);
		float2 total;
		float x[D / 32];
		uint32_t query;
		size_t row;

		if (group < GROUPS && column < S::COLUMNS)
			total = add_parts<S, GROUPS>(a, s, column, group, lane, x);
		if (GROUPS > 1) {
			if (group > 0 && group < GROUPS) {
				for (int i = 0; i < D / 32; i++)
					results[warp * S::STRIDE + part_lanes<D>::dim(lane, i)] = x[i];
				if (lane == 0)
					stat<S>(results, group, column) = total;
			}
			__syncthreads();
		}
		if (group > 0 || column >= S::COLUMNS || !column_row(a, s, column, S::COLUMNS, &row, &query))
			return;
#pragma unroll
		for (uint32_t other = 1; other < GROUPS; other++) {
			const uint32_t w = other * S::COLUMNS + column;
			float mine, theirs;

			total = join(total, stat<S>(results, other, column), &mine, &theirs);
#pragma unroll
			for (int i = 0; i < D / 32; i++)
				x[i] = mine * x[i] + theirs * results[w * S::STRIDE + part_lanes<D>::dim(lane, i)];
		}
#pragma unroll
		for (int i = 0; i < D / 32; i++)
			rows[column * D + part_lanes<D>::dim(lane, i)] = x[i];
		write_column<typename S::V, D>(a, row, rows + column * D, total, sink, lane);
	}
}

/* True for the CTA that is the last of the row's to get here; all that the others wrote is then visible
 * to it. */
DEVICE bool arrive_last(uint32_t *arrived, uint32_t parts)
{
	__shared__ bool last;

	__syncthreads();
	if (threadIdx.x == 0) {
		__threadfence(); /* what a barrier has shown to this thread is in it */
		last = atomicAdd(arrived, 1) + 1 == parts;
		if (last)
			*arrived = 0; /* for the next layer */
		__threadfence();
	}
	__syncthreads();
	return last;
}

/* What the warps have summed up becomes the row's output, or a part of it. */
template <class S>
DEVICE void finish_segment(const attend_args &a, const segment &s, column (&c)[S::TILES],
			   typename S::V::sum_type (&o)[S::TILES][S::DV / 16][4], uint8_t *shared)
{
	constexpr int D = S::DV;
	const uint32_t lane = threadIdx.x % 32, slot = slot_of(a, s, s.part);
	float *results = (float *)(shared + S::SIZES.results_at), *rows = (float *)(shared + S::SIZES.rows_at);
	uint32_t query;
	size_t row;

	const float first_sink = sink_of(a, s, threadIdx.x / 32, S::COLUMNS);

	meet<S>(c, o, results);
	for (uint32_t i = threadIdx.x / 32; i < S::COLUMNS; i += S::WARPS) {
		const float sink = i < S::WARPS ? first_sink : sink_of(a, s, i, S::COLUMNS);

		if (!column_row(a, s, i, S::COLUMNS, &row, &query))
			break;
		float x[D / 32], *to = s.parts == 1 ? rows + i * D
						    : a.partials + ((size_t)slot * S::COLUMNS + i) * D;
		const float2 total = add_column<S>(results, i, lane, x);

#pragma unroll
		for (int k = 0; k < D / 32; k++)
			to[lane + 32 * k] = x[k];
		if (s.parts == 1)
			write_column<typename S::V, D>(a, row, rows + i * D, total, sink, lane);
		else if (lane == 0)
			a.sums[slot * S::COLUMNS + i] = total;
	}
	if (s.parts > 1 &&
	    arrive_last(&a.arrived[row_number(a, s)], s.parts))
		merge_parts<S>(a, s, shared);
}

#endif
