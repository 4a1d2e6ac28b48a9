/* Merges partial attentions over disjoint tokens by log-sum-exp: as kv_merge (kernels/attend.h), for any number of
 * parts at once. An infinite lse is an empty part's; a NaN makes the row NaN. A thread takes 8 elements of a row (one
 * where the row is no multiple of 8) of every part in turn, so that loads are 16 bytes wide. Each thread of a row
 * computes the row's weights itself, which costs less than to pass them round.
 */
#include "kernels/cuda/arguments.cuh"
#include "kernels/cuda/device.cuh"

namespace
{

constexpr uint32_t MERGE_THREADS = 256;

struct merge_args {
	const void *out[KV_CUDA_MERGE_PARTS];
	const float *lse[KV_CUDA_MERGE_PARTS];
	void *merged;
	float *merged_lse;
	enum kv_dtype in_dtype, out_dtype;
	uint32_t parts, rows, d;
};

template <uint32_t N> struct elements {
	float x[N];
};

template <uint32_t N> DEVICE elements<N> load_elements(enum kv_dtype dtype, const void *p, size_t at)
{
	elements<N> e;

	if constexpr (N == 1) {
		e.x[0] = load_element(dtype, p, at);
	} else if (dtype == KV_DTYPE_F32) {
#pragma unroll
		for (uint32_t i = 0; i < N; i += 4)
			*(float4 *)&e.x[i] = *(const float4 *)((const float *)p + at + i);
	} else {
		const uint4 piece = *(const uint4 *)((const uint16_t *)p + at);

#pragma unroll
		for (uint32_t i = 0; i < N; i++)
			e.x[i] = load_element(dtype, &piece, i);
	}
	return e;
}

template <uint32_t N> DEVICE void store_elements(enum kv_dtype dtype, void *p, size_t at, const elements<N> &e)
{
	if constexpr (N == 1) {
		store_element(dtype, p, at, e.x[0]);
	} else if (dtype == KV_DTYPE_F32) {
#pragma unroll
		for (uint32_t i = 0; i < N; i += 4)
			*(float4 *)((float *)p + at + i) = *(const float4 *)&e.x[i];
	} else {
		uint4 piece;

#pragma unroll
		for (uint32_t i = 0; i < N; i++)
			store_element(dtype, &piece, i, e.x[i]);
		*(uint4 *)((uint16_t *)p + at) = piece;
	}
}

/* False of a part that has seen nothing: its lse is infinite, and its elements may be anything. A NaN is no such
 * mark. */
DEVICE bool part_counts(float lse)
{
	return fabsf(lse) != INFINITY;
}

/* The largest lse of the parts that count, which may be none, nor numbers. */
DEVICE float largest_lse(const merge_args &a, size_t row)
{
	float max = -INFINITY;

	for (uint32_t p = 0; p < a.parts; p++)
		if (part_counts(a.lse[p][row]))
			max = fmaxf(max, a.lse[p][row]);
	return max;
}

/* An element is read by the thread that writes it, so that merged may be part 0's own memory. A row's lse is read by
 * many threads, so that the merged one is left to merge_lse_kernel. */
template <uint32_t N> __global__ void __launch_bounds__(MERGE_THREADS) merge_kernel(const merge_args a)
{
	const size_t at = ((size_t)blockIdx.x * MERGE_THREADS + threadIdx.x) * N;

	if (at >= (size_t)a.rows * a.d)
		return;
	const size_t row = at / a.d;
	const float max = largest_lse(a, row);
	float total = 0;
	elements<N> sum = {};

	for (uint32_t p = 0; p < a.parts; p++) {
		const float lse = a.lse[p][row];

		if (!part_counts(lse))
			continue;
		const float weight = expf(lse - max);
		const elements<N> e = load_elements<N>(a.in_dtype, a.out[p], at);

		total += weight;
#pragma unroll
		for (uint32_t i = 0; i < N; i++)
			sum.x[i] += weight * e.x[i];
	}
	const float share = total == 0 ? 0 : 1 / total; /* of a NaN a NaN */

#pragma unroll
	for (uint32_t i = 0; i < N; i++)
		sum.x[i] *= share;
	store_elements<N>(a.out_dtype, a.merged, at, sum);
}

__global__ void __launch_bounds__(MERGE_THREADS) merge_lse_kernel(const merge_args a)
{
	const uint32_t row = blockIdx.x * MERGE_THREADS + threadIdx.x;
	float total = 0;

	if (row >= a.rows)
		return;
	const float max = largest_lse(a, row);

	for (uint32_t p = 0; p < a.parts; p++)
		total += part_counts(a.lse[p][row]) ? expf(a.lse[p][row] - max) : 0;
	a.merged_lse[row] = total == 0 ? -INFINITY : max + logf(total);
}

bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
	return (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

/* True if results lie on no part, or on all of the first. */
bool apart(const struct kv_cuda_merge *m)
{
	const size_t elements = (size_t)m->rows * m->d, from = elements * kv_dtype_bytes(m->in_dtype),
		     to = elements * kv_dtype_bytes(m->out_dtype), lse = (size_t)m->rows * sizeof(float);

	for (uint32_t p = 0; p < m->parts; p++) {
		const bool in_place = p == 0 && m->merged == m->out[0] && m->in_dtype == m->out_dtype;

		if (!in_place && overlap(m->merged, to, m->out[p], from))
			return false;
		if (m->merged_lse && !(p == 0 && m->merged_lse == m->lse[0]) && overlap(m->merged_lse, lse, m->lse[p], lse))
			return false;
	}
	return true;
}

/* True if the parts are there and aligned to their elements. */
bool parts_sound(const struct kv_cuda_merge *m)
{
	const size_t in = kv_dtype_bytes(m->in_dtype);

	for (uint32_t p = 0; p < m->parts; p++)
		if (!m->out[p] || !m->lse[p] || !aligned_to(in, {m->out[p]}) || !aligned_to(4, {m->lse[p]}))
			return false;
	return aligned_to(kv_dtype_bytes(m->out_dtype), {m->merged}) && aligned_to(4, {m->merged_lse}) && apart(m);
}

/* True if rows may be taken 8 elements at a time. */
bool by_eights(const struct kv_cuda_merge *m)
{
	uintptr_t all = (uintptr_t)m->merged;

	for (uint32_t p = 0; p < m->parts; p++)
		all |= (uintptr_t)m->out[p];
	return m->d % 8 == 0 && all % 16 == 0;
}

} // namespace

extern "C" enum status kv_cuda_merge(const struct kv_cuda_merge *m, cudaStream_t stream)
{
	if (m->parts < 1 || m->parts > KV_CUDA_MERGE_PARTS || m->d == 0 || !m->merged || !dtype_read(m->in_dtype) ||
	    !dtype_read(m->out_dtype) || !parts_sound(m) || (uint64_t)m->rows * m->d > (uint64_t)UINT32_MAX * MERGE_THREADS)
		return STATUS_INVALID;
	merge_args a = {};

	for (uint32_t p = 0; p < m->parts; p++) {
		a.out[p] = m->out[p];
		a.lse[p] = m->lse[p];
	}
	if (m->rows == 0)
		return STATUS_OK;
	a.merged = m->merged;
	a.merged_lse = m->merged_lse;
	a.in_dtype = m->in_dtype;
	a.out_dtype = m->out_dtype;
	a.parts = m->parts;
	a.rows = m->rows;
	a.d = m->d;
	const bool eights = by_eights(m);
	const size_t threads = (size_t)m->rows * m->d / (eights ? 8 : 1);
	const uint32_t grid = (uint32_t)((threads + MERGE_THREADS - 1) / MERGE_THREADS);

	if (grid > INT32_MAX)
		return STATUS_INVALID;
	if (eights)
		launch_kernel(merge_kernel<8>, grid, MERGE_THREADS, 0, stream, a);
	else
		launch_kernel(merge_kernel<1>, grid, MERGE_THREADS, 0, stream, a);
	if (m->merged_lse)
		launch_kernel(merge_lse_kernel, (m->rows - 1) / MERGE_THREADS + 1, MERGE_THREADS, 0, stream, a);
	return launched();
}
