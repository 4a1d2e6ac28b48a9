/* What kernels/cuda/machine.cuh has, on a CPU. Copies that are asynchronous there are done here as late as they may be: when somebody
 * waits for them. */
#ifndef TERRACE_KERNELS_CUDA_MACHINE_CUH
#define TERRACE_KERNELS_CUDA_MACHINE_CUH

#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <stdint.h>

extern "C" {
#include "kernels/int4.h"
}
#include "tests/cuda_cpu/product.h"

#define DEVICE inline

#if __CUDA_ARCH__ < 900
#define TERRACE_CUDA_BULK 0
#else
#define TERRACE_CUDA_BULK 1
#endif

#define DYNAMIC_SHARED(type, name, alignment) type *const name = (type *)cuda_cpu::shared_memory()

template <class... P, class... A>
static void launch_kernel(void (*kernel)(P...), dim3 grid, uint32_t threads, size_t shared, cudaStream_t stream, const A &...args)
{
	cuda_cpu_launch_with(kernel, grid, dim3(threads), shared, stream, args...);
}

DEVICE uint32_t shared_address(const void *p)
{
	return cuda_cpu::address_of(p);
}

DEVICE uint32_t choose_bits(uint32_t mask, uint32_t ones, uint32_t zeros)
{
	return (mask & ones) | (~mask & zeros);
}

DEVICE uint32_t minus_one()
{
	return 0xffffffff;
}

DEVICE uint32_t complement(uint32_t x, uint32_t minus_one)
{
	return x * minus_one + minus_one;
}

/* With what the instructions leave above. */
DEVICE uint32_t upper_half(uint32_t x)
{
	return x >> 16;
}

DEVICE uint32_t upper_half_complement(uint32_t x)
{
	return (uint32_t)(-1 - (int16_t)(x >> 16));
}

DEVICE uint32_t load_global_2(const uint16_t *p)
{
	return *p;
}

DEVICE uint32_t opaque(uint32_t x)
{
	return x;
}

template <class T> DEVICE T load_shared(uint32_t at)
{
	T x;

	memcpy(&x, cuda_cpu::memory_at(at, sizeof(T), sizeof(T)), sizeof(T));
	return x;
}

DEVICE uint4 load_shared_16(uint32_t at)
{
	return load_shared<uint4>(at);
}

DEVICE uint2 load_shared_8(uint32_t at)
{
	return load_shared<uint2>(at);
}

DEVICE uint32_t load_shared_4(uint32_t at)
{
	return load_shared<uint32_t>(at);
}

DEVICE uint32_t load_shared_2(uint32_t at)
{
	return load_shared<uint16_t>(at);
}

DEVICE uint32_t load_shared_1(uint32_t at)
{
	return load_shared<uint8_t>(at);
}

DEVICE void store_shared_16(uint32_t at, uint4 v)
{
	memcpy(cuda_cpu::memory_at(at, 16, 16), &v, 16);
}

DEVICE void store_shared_8(uint32_t at, uint2 v)
{
	memcpy(cuda_cpu::memory_at(at, 8, 8), &v, 8);
}

DEVICE void store_shared_4(uint32_t at, uint32_t v)
{
	memcpy(cuda_cpu::memory_at(at, 4, 4), &v, 4);
}

DEVICE uint32_t count_shared(uint32_t at)
{
	const uint32_t was = load_shared<uint32_t>(at);

	store_shared_4(at, was + 1);
	return was;
}

template <uint32_t TIMES> DEVICE uint64_t add_times(uint64_t a, uint32_t b)
{
	return a + (uint64_t)b * TIMES;
}

DEVICE uint32_t same_in_all(uint32_t x)
{
	return __shfl_sync(0xffffffff, x, 0);
}

DEVICE uint32_t permute(uint32_t low, uint32_t high, uint32_t selector)
{
	const uint64_t both = (uint64_t)high << 32 | low;
	uint32_t r = 0;

	for (int i = 0; i < 4; i++) {
		const uint32_t pick = selector >> (4 * i) & 15, byte = both >> (8 * (pick & 7)) & 255;

		r |= (pick & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
	}
	return r;
}

/* Element e of row r of a matrix of which lane 4r + c gives elements 2c and 2c + 1. */
DEVICE uint32_t element_of(const cuda_cpu::exchange<uint32_t> &words, uint32_t row, uint32_t e)
{
	return words[row * 4 + e / 2] >> (e % 2 * 16) & 0xffff;
}

DEVICE uint32_t transpose_8x8(uint32_t x)
{
	const cuda_cpu::exchange<uint32_t> words("movmatrix", x);
	const uint32_t g = cuda_cpu::lane() / 4, t = cuda_cpu::lane() % 4;

	return element_of(words, 2 * t, g) | element_of(words, 2 * t + 1, g) << 16;
}

template <bool TRANSPOSED> DEVICE uint4 load_four_matrices(uint32_t row)
{
	const cuda_cpu::exchange<uint32_t> rows("ldmatrix", row);
	const uint32_t g = cuda_cpu::lane() / 4, t = cuda_cpu::lane() % 4;
	uint32_t word[4];

	for (uint32_t i = 0; i < 4; i++) {
		const auto element = [&](uint32_t r, uint32_t e) {
			return load_shared_2(rows[8 * i + r] + 2 * e) + 0 * load_shared_16(rows[8 * i + r]).x;
		};

		word[i] = TRANSPOSED ? element(2 * t, g) | element(2 * t + 1, g) << 16
				     : element(g, 2 * t) | element(g, 2 * t + 1) << 16;
	}
	return {word[0], word[1], word[2], word[3]};
}

template <bool TRANSPOSED> DEVICE void store_four_matrices(uint32_t row, uint4 v)
{
	const cuda_cpu::exchange<uint32_t> rows("stmatrix", row);
	const uint32_t g = cuda_cpu::lane() / 4, t = cuda_cpu::lane() % 4, word[4] = {v.x, v.y, v.z, v.w};

	for (uint32_t i = 0; i < 4; i++)
		for (uint32_t e = 0; e < 2; e++) {
			const uint32_t r = TRANSPOSED ? 2 * t + e : g, column = TRANSPOSED ? g : 2 * t + e;
			uint8_t *const to = (uint8_t *)cuda_cpu::memory_at(rows[8 * i + r], 16, 16);
			const uint16_t element = (uint16_t)(word[i] >> (16 * e));

			memcpy(to + 2 * column, &element, 2);
		}
	__syncwarp();
}

DEVICE uint32_t halves_of_e4m3(uint16_t two)
{
	const __half2_raw h = __nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3);

	return (uint32_t)h.x | (uint32_t)h.y << 16;
}

DEVICE uint32_t halves_of_e4m3(uint32_t w, int h)
{
	return halves_of_e4m3((uint16_t)(h ? w >> 16 : w));
}

/* To the bit, for numbers whose reciprocals are ordinary. */
DEVICE float reciprocal_fast(float x)
{
	return x >= 0x1p-125f && x <= 0x1p125f ? kv_int4_reciprocal(x) : 1 / x;
}

DEVICE float root_fast(float x)
{
	return sqrtf(x);
}

DEVICE float root_inverse_fast(float x)
{
	return (float)(1 / sqrt((double)x));
}

DEVICE float exp2_fast(float x)
{
	const float y = exp2f(x);

	return y < 0x1p-126f ? 0 : y;
}

#define MMA(kind, sum_type)                                                                                                             \
	DEVICE void mma_##kind(sum_type(&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)           \
	{                                                                                                                               \
		cuda_cpu::product_##kind("mma_" #kind, c, {{a0, a1, a2, a3}, {b0, b1}});                                                 \
	}
MMA(us, int32_t)
MMA(ss, int32_t)
MMA(uu, int32_t)
MMA(su, int32_t)
MMA(f16, float)
MMA(bf16, float)
#undef MMA

/* ---- asynchronous copies of a thread, in groups ---- */

typedef std::vector<std::vector<cuda_cpu::late_copy>> cuda_cpu_groups;

DEVICE void cuda_cpu_ask(cuda_cpu_groups &groups, const cuda_cpu::late_copy &copy)
{
	if (groups.empty())
		groups.emplace_back();
	groups.back().push_back(copy);
}

DEVICE void cuda_cpu_close(cuda_cpu_groups &groups)
{
	if (groups.empty())
		groups.emplace_back();
	groups.emplace_back();
}

/* The oldest groups are done until OPEN closed ones are left; the last is not closed. */
DEVICE void cuda_cpu_finish(cuda_cpu_groups &groups, size_t open)
{
	while (groups.size() > open + 1) {
		for (const cuda_cpu::late_copy &c : groups.front())
			memcpy(c.to, c.from, c.bytes);
		groups.erase(groups.begin());
	}
}

DEVICE void forget_shared(uint32_t at, uint32_t bytes)
{
	memset(cuda_cpu::memory_at(at, bytes, 1), 0xff, bytes);
}

DEVICE void async_load_16(uint32_t to, uint64_t from)
{
	if (from % 16)
		cuda_cpu::fail("copies 16 bytes from %llx", (unsigned long long)from);
	cuda_cpu_ask(cuda_cpu::now->loads, {(uint8_t *)cuda_cpu::memory_at(to, 16, 16), (const uint8_t *)from, 16});
}

DEVICE void async_close_group()
{
	cuda_cpu_close(cuda_cpu::now->loads);
}

template <int OPEN> DEVICE void async_wait()
{
	cuda_cpu_finish(cuda_cpu::now->loads, OPEN);
}

#if TERRACE_CUDA_BULK
DEVICE void barrier_init(uint32_t barrier)
{
	cuda_cpu::barrier_begin(barrier, 1);
}

DEVICE void barrier_init_fence()
{
}

DEVICE void barrier_expect(uint32_t barrier, uint32_t bytes)
{
	cuda_cpu::barrier_arrive(barrier, bytes);
}

DEVICE void barrier_wait(uint32_t barrier, uint32_t parity)
{
	cuda_cpu::barrier_wait(barrier, parity);
}

DEVICE void cuda_cpu_bulk(uint64_t address, uint32_t bytes)
{
	if (address % 16 || bytes % 16 || bytes == 0)
		cuda_cpu::fail("copies %u bytes from or to %llx in bulk", bytes, (unsigned long long)address);
}

DEVICE bool elected()
{
	return cuda_cpu::lane() == 0;
}

DEVICE void bulk_load(uint32_t to, uint64_t from, uint32_t bytes, uint32_t barrier)
{
	cuda_cpu_bulk(from, bytes);
	cuda_cpu::copy_for_barrier({(uint8_t *)cuda_cpu::memory_at(to, bytes, 16), (const uint8_t *)from, bytes}, barrier);
}

DEVICE void bulk_store(uint64_t to, uint32_t from, uint32_t bytes)
{
	cuda_cpu_bulk(to, bytes);
	cuda_cpu_ask(cuda_cpu::now->stores, {(uint8_t *)to, (const uint8_t *)cuda_cpu::memory_at(from, bytes, 16), bytes});
}

DEVICE void bulk_close_group()
{
	cuda_cpu_close(cuda_cpu::now->stores);
}

template <int OPEN> DEVICE void bulk_wait_read()
{
	cuda_cpu_finish(cuda_cpu::now->stores, OPEN);
}

template <int OPEN> DEVICE void bulk_wait_written()
{
	cuda_cpu_finish(cuda_cpu::now->stores, OPEN);
}

DEVICE void bulk_wait_all()
{
	cuda_cpu_finish(cuda_cpu::now->stores, 0);
}
#endif

/* A kernel begins when the one before it has ended. */
DEVICE void wait_for_previous_kernel()
{
}

DEVICE void let_next_kernel_start()
{
}

#endif
