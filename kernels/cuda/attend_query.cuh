/* The beginning of a segment: its queries, from memory to every warp's registers, or to where every warp reads them. */
#ifndef TERRACE_KERNELS_CUDA_ATTEND_QUERY_CUH
#define TERRACE_KERNELS_CUDA_ATTEND_QUERY_CUH

#include "kernels/cuda/attend_shape.cuh"
#include "kernels/cuda/hadamard.cuh"

/* A warp's query columns on their way from memory: in registers, element lane + 32k of column warp +
 * WARPS * i as bits of its type, or in shared memory as they are. They are asked for before the atoms of a
 * segment, which would keep them waiting. Columns' slopes, for FEATURES, come the same way. */
template <class S, bool FEATURES> struct query_bits {
	static constexpr uint32_t COLUMNS = (S::COLUMNS + S::WARPS - 1) / S::WARPS;
	static constexpr bool STAGED = attend_queries_staged(S::COLUMNS, S::STEP, !TERRACE_CUDA_BULK);

	uint32_t bits[STAGED ? 1 : COLUMNS][STAGED ? 1 : S::DK / 32];
	uint32_t staged; /* shared address of the warp's first column */
	float slope[COLUMNS]; /* of ALiBi, a column each */

	explicit DEVICE query_bits(const uint8_t *shared)
	{
		staged = shared_address(shared) + S::SIZES.queries_at + threadIdx.x / 32 * S::DK * 4;
	}

	DEVICE void fetch(const attend_args &a, const segment &s)
	{
#pragma unroll
		for (uint32_t i = 0; i < COLUMNS; i++) {
			const uint32_t column = threadIdx.x / 32 + i * S::WARPS;
			uint32_t query;
			size_t row;
			const bool present =
				column_row(a, s, column, S::COLUMNS, &row, &query) && column < S::COLUMNS;

			if constexpr (FEATURES)
				slope[i] = present && a.features.alibi
						   ? a.features.alibi[column_head(a, s, column, S::COLUMNS)]
						   : 0;
			if constexpr (STAGED)
				stage(a, i, row, present);
			else
				load(a, i, row, present);
		}
	}

	DEVICE void stage(const attend_args &a, uint32_t i, size_t row, bool present)
	{
		const uint32_t bytes = S::DK * (a.q_dtype == KV_DTYPE_F32 ? 4 : 2);
		const uint64_t from = (uint64_t)(uintptr_t)a.q + row * bytes;

		if (threadIdx.x / 32 + i * S::WARPS < S::COLUMNS)
#pragma unroll 1
			for (uint32_t at = threadIdx.x % 32 * 16; at < bytes; at += 512) {
				const uint32_t to = staged + i * S::WARPS * S::DK * 4 + at;

				if (present)
					async_load_16(to, from + at);
				else
					store_shared_16(to, {0, 0, 0, 0});
			}
		async_close_group();
	}

	DEVICE void load(const attend_args &a, uint32_t i, size_t row, bool present)
	{
		const size_t at = row * S::DK + threadIdx.x % 32;

		if (!present) {
#pragma unroll
			for (uint32_t k = 0; k < S::DK / 32; k++)
				bits[i][k] = 0;
		} else if (a.q_dtype == KV_DTYPE_F32) {
#pragma unroll
			for (uint32_t k = 0; k < S::DK / 32; k++)
				bits[i][k] = ((const uint32_t *)a.q)[at + 32 * k];
		} else {
#pragma unroll
			for (uint32_t k = 0; k < S::DK / 32; k++)
				bits[i][k] = load_global_2((const uint16_t *)a.q + at + 32 * k);
		}
	}

	/* Until they are there. */
	DEVICE void wait() const
	{
		if constexpr (STAGED) {
			async_wait<0>();
			__syncwarp();
		}
	}

	DEVICE uint32_t bits_of(const attend_args &a, uint32_t i, uint32_t k) const
	{
		if constexpr (STAGED) {
			const uint32_t column = staged + i * S::WARPS * S::DK * 4, at = threadIdx.x % 32 + 32 * k;

			return a.q_dtype == KV_DTYPE_F32 ? load_shared_4(column + at * 4)
							 : load_shared_2(column + at * 2);
		} else {
			return bits[i][k];
		}
	}

	DEVICE float element(const attend_args &a, uint32_t i, uint32_t k) const
	{
		const uint32_t x = bits_of(a, i, k);

		return a.q_dtype == KV_DTYPE_F16 ? __half2float(__ushort_as_half((unsigned short)x))
		       : a.q_dtype == KV_DTYPE_BF16 ? __uint_as_float(x << 16)
						    : __uint_as_float(x);
	}
};

/* Where word k of a column's high (plane 0) or low parts is handed out. */
template <class S> DEVICE uint32_t query_word_at(uint32_t column, uint32_t plane, uint32_t k)
{
	if constexpr (S::QUERY_SHARED)
		return ((column / 4 * (S::QUERY / 4) + k / 16) * 32 + 4 * (column % 4 * 2 + plane) + k % 4) * 4 + k / 4 % 4;
	else
		return (column * 2 + plane) * S::PLANE + k;
}

/* What a column sees under a window and ranges: one span, for each of them holds its own position. */
DEVICE void see_span(const attend_args &a, const segment &s, told_column &c)
{
	const struct kv_attend_features &f = a.features;
	int32_t from = 0, to = c.position + 1;

	if (f.window > 0)
		from = max(0, c.position - (int32_t)f.window + 1);
	for (uint32_t i = 0; i < f.ranges_max; i++) {
		const int32_t *range = f.ranges + 2 * ((size_t)s.sequence * f.ranges_max + i);
		const int32_t first = range[0], last = range[1];

		if (first <= c.position && c.position <= last) {
			from = min(from, max(first, 0));
			to = max(to, min(last, (int32_t)s.tokens - 1) + 1);
		}
	}
	c.from = (uint32_t)from;
	c.to = (uint32_t)max(to, 0);
}

/* Column `index` of a segment, but for its unit and term. */
template <bool FEATURES>
DEVICE told_column seen_by_column(const attend_args &a, const segment &s, uint32_t index, uint32_t tile_columns)
{
	told_column c = {};
	uint32_t query;
	size_t row;
	const bool present = column_row(a, s, index, tile_columns, &row, &query);
	const uint32_t unseen = present ? a.queries - 1 - query : 0;

	c.to = s.tokens > unseen ? s.tokens - unseen : 0;
	if constexpr (FEATURES) {
		c.position = (int32_t)(s.tokens - 1 - unseen);
		see_span(a, s, c);
		c.bias_row = (s.sequence * a.queries + (present ? query : 0)) * a.queries;
	}
	return c;
}

/* The warp's query column i, column `column` of the tile, by the warp: rotates it if K is rotated and leaves it as
 * operand B wants it; and what else is told of it. One that holds a NaN or an infinity is handed out as zeroes with a
 * unit of NaN, so that its scores are NaN. */
template <class S, bool FEATURES>
DEVICE void hand_out_query(const attend_args &a, const segment &s, const query_bits<S, FEATURES> &bits, uint32_t i,
			   uint32_t column, float *x, uint32_t *words, told_column *told, uint32_t lane)
{
	using K = typename S::K;
	uint32_t largest_bits = __float_as_uint(1e-20f);
	int32_t total = 0;

#pragma unroll
	for (uint32_t k = 0; k < S::DK / 32; k++) {
		const uint32_t dim = lane + 32 * k;
		const float v = bits.element(a, i, k);

		x[dim] = K::ROTATED && rotation_negative(dim) ? -v : v;
	}
	if constexpr (K::ROTATED)
		hadamard<S::DK, false>(x, lane);
	else
		__syncwarp();
#pragma unroll
	for (uint32_t dim = lane; dim < S::DK; dim += 32)
		largest_bits = max(largest_bits, __float_as_uint(x[dim]) & 0x7fffffff); /* as integers infinity and NaN
											 * are above all */
#pragma unroll
	for (int j = 1; j < 32; j *= 2)
		largest_bits = max(largest_bits, __shfl_xor_sync(ALL_LANES, largest_bits, j));
	const bool finite = largest_bits < 0x7f800000;
	const float unit = finite ? K::query_unit(__uint_as_float(largest_bits)) : NAN;

	/* Word of k step k / 8, register k / 4 % 2, lane column k % 4. */
	for (uint32_t k = lane; k < S::PLANE; k += 32) {
		float v[K::ELEMENTS];

#pragma unroll
		for (int e = 0; e < K::ELEMENTS; e++)
			v[e] = finite ? x[K::query_dim(k / 8, k / 4 % 2, k % 4, e)] * unit : 0;
		total += K::query_word(v, &words[query_word_at<S>(column, 0, k)], &words[query_word_at<S>(column, 1, k)]);
	}
#pragma unroll
	for (int j = 1; j < 32; j *= 2)
		total += __shfl_xor_sync(ALL_LANES, total, j);
	if (lane == 0) {
		told_column c = seen_by_column<FEATURES>(a, s, column, S::COLUMNS);

		c.unit = a.scale_log2 * K::template SCORE_UNIT<S::TILES> / unit;
		c.query_term = K::template query_term<S::TILES>(total, c.unit);
		c.slope = FEATURES ? bits.slope[i] * 1.44269504f : 0;
		*told = c;
	}
}

/* The segment and its queries, to every warp. Has one barrier; the one before it must be past all
 * use of rows and results. */
template <class S, bool FEATURES>
DEVICE void load_query(const attend_args &a, const segment &s, const query_bits<S, FEATURES> &bits, uint8_t *shared,
		       typename S::query_type &q, column (&c)[S::TILES])
{
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane % 4;
	uint32_t *words = (uint32_t *)(shared + S::WORDS_AT);
	segment *segment_told = (segment *)(shared + S::TOLD_AT);
	told_column *told = (told_column *)(segment_told + 1);

	if (threadIdx.x == 0)
		*segment_told = s;
	bits.wait();
#pragma unroll
	for (uint32_t i = 0; i < query_bits<S, FEATURES>::COLUMNS; i++) {
		const uint32_t column = warp + i * S::WARPS;

		if (column < S::COLUMNS)
			hand_out_query(a, s, bits, i, column,
				       (float *)(shared + S::SIZES.rows_at) + column * S::DK, words,
				       told + column, lane);
	}
	__syncthreads();
#pragma unroll
	for (uint32_t n = 0; n < S::TILES; n++) {
		if constexpr (!S::QUERY_SHARED)
#pragma unroll
			for (uint32_t k = 0; k < S::QUERY; k++)
				q[n][k] = words[query_word_at<S>(4 * n + lane / 8, lane / 4 % 2, t + 4 * k)];
		c[n] = {};
		c[n].unit = told[4 * n + t].unit;
		c[n].query_term = told[4 * n + t].query_term;
		c[n].slope = FEATURES ? told[4 * n + t].slope : 0;
		c[n].max = NEVER;
	}
	if constexpr (S::QUERY_SHARED)
		q.at = shared_address(words) + lane * 16;
}

#endif
