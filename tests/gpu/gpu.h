/* What the GPU tests share: failing with a word, device memory, and repeatable random numbers. */
#ifndef TERRACE_TESTS_GPU_GPU_H
#define TERRACE_TESTS_GPU_GPU_H

#include <cuda_runtime.h>
#include <math.h>
#include <shared_mutex>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_kernels.h"

/* Held while a thread calls CUDA, shared with others; a thread that captures a graph holds it alone, for calls
 * of other threads may end a capture. May be taken again by its holder. */
class device_use
{
	static std::shared_mutex &mutex()
	{
		static std::shared_mutex one;

		return one;
	}
	static int &depth()
	{
		static thread_local int held = 0;

		return held;
	}
	const bool alone;

      public:
	explicit device_use(bool by_itself = false) : alone(by_itself)
	{
		if (depth()++ == 0) {
			if (alone)
				mutex().lock();
			else
				mutex().lock_shared();
		}
	}
	device_use(const device_use &) = delete;
	device_use &operator=(const device_use &) = delete;
	~device_use()
	{
		if (--depth() == 0) {
			if (alone)
				mutex().unlock();
			else
				mutex().unlock_shared();
		}
	}
};

#define CUDA(call)                                                                                       \
	do {                                                                                             \
		const device_use cuda_use;                                                               \
		cudaError_t cuda_error = (call);                                                         \
		if (cuda_error != cudaSuccess) {                                                         \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                    \
				cudaGetErrorString(cuda_error));                                         \
			exit(1);                                                                         \
		}                                                                                        \
	} while (0)

/* Device memory, poisoned with 0xff (as floats and halves: NaN) unless it is given contents. */
template <class T> struct device_array {
	T *data = nullptr;
	size_t count = 0;

	explicit device_array(size_t n) : count(n)
	{
		CUDA(cudaMalloc(&data, n * sizeof(T) + 16));
		poison();
	}
	explicit device_array(const std::vector<T> &v) : device_array(v.size())
	{
		set(v);
	}
	device_array(const device_array &) = delete;
	device_array &operator=(const device_array &) = delete;
	~device_array()
	{
		const device_use use;

		cudaFree(data);
	}
	void poison()
	{
		CUDA(cudaMemset(data, 0xff, count * sizeof(T)));
		CUDA(cudaStreamSynchronize(nullptr)); /* streams that do not wait for the default one must
						       * not overtake it */
	}
	void set(const std::vector<T> &v)
	{
		CUDA(cudaMemcpy(data, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
	}
	std::vector<T> get() const
	{
		std::vector<T> v(count);

		CUDA(cudaMemcpy(v.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
		return v;
	}
};

/* Bytes of workspace of a call that is sound. */
template <class Call> static size_t workspace_of(enum status (*bytes_of)(const Call *, size_t *), const Call &call)
{
	size_t bytes = 0;
	const enum status s = bytes_of(&call, &bytes);

	if (s != STATUS_OK) {
		fprintf(stderr, "no workspace: status %d\n", s);
		exit(1);
	}
	return bytes;
}

/* Device memory, or pinned host memory mapped into the device. */
struct region {
	uint8_t *host = nullptr, *device = nullptr;
	size_t bytes;

	region(size_t n, bool on_host) : bytes(n)
	{
		if (on_host) {
			CUDA(cudaHostAlloc((void **)&host, n, cudaHostAllocMapped));
			CUDA(cudaHostGetDevicePointer((void **)&device, host, 0));
		} else {
			CUDA(cudaMalloc((void **)&device, n));
		}
	}
	region(const region &) = delete;
	region &operator=(const region &) = delete;
	~region()
	{
		const device_use use;

		if (host)
			cudaFreeHost(host);
		else
			cudaFree(device);
	}
	void set(const uint8_t *from)
	{
		CUDA(cudaMemcpy(device, from, bytes, cudaMemcpyDefault));
		CUDA(cudaStreamSynchronize(nullptr)); /* not the device: another thread may be capturing a graph */
	}
	void set(const std::vector<uint8_t> &v)
	{
		set(v.data());
	}
	std::vector<uint8_t> get() const
	{
		std::vector<uint8_t> v(bytes);

		CUDA(cudaMemcpy(v.data(), device, bytes, cudaMemcpyDefault));
		return v;
	}
};

/* xorshift64*, and a sum of four uniforms as a bell curve of unit variance. */
struct random_source {
	uint64_t state;

	explicit random_source(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15 + 1)
	{
	}
	uint64_t next()
	{
		state ^= state >> 12;
		state ^= state << 25;
		state ^= state >> 27;
		return state * 0x2545f4914f6cdd1d;
	}
	float bell()
	{
		uint64_t r = next();
		float sum = (float)(r & 0xffff) + (float)(r >> 16 & 0xffff) + (float)(r >> 32 & 0xffff) +
			    (float)(r >> 48);

		return (sum - 131070.0f) / 65536.0f * 1.7320508f;
	}
};

/* Head dims of a case: one number, or K's and V's. */
struct case_dims {
	uint32_t k, v;

	constexpr case_dims(uint32_t d) : k(d), v(d)
	{
	}
	constexpr case_dims(uint32_t dk, uint32_t dv) : k(dk), v(dv)
	{
	}
};

/* Those of attention besides 128, where they are built. */
static inline std::vector<case_dims> other_attend_dims()
{
#ifdef TERRACE_CUDA_ALL
	return {64, 96, 192, 256, {192, 128}, {128, 64}};
#else
	return {};
#endif
}

static inline struct kv_layout layout_of(enum kv_format k, enum kv_format v, case_dims d, uint32_t layers,
					 uint32_t heads, uint32_t block_tokens)
{
	struct kv_layout l = {};

	l.layers = layers;
	l.heads = l.total_heads = heads;
	l.head_dim_k = d.k;
	l.head_dim_v = d.v;
	l.block_tokens = block_tokens;
	l.k_format = k;
	l.v_format = v;
	l.rotation_version = kv_rotation_version(d.k, d.v);
	l.codebook_version = KV_CODEBOOK_VERSION;
	l.layout_version = KV_LAYOUT_VERSION;
	return l;
}

static inline struct kv_layout layout_of(enum kv_format f, uint32_t d, uint32_t layers, uint32_t heads,
					 uint32_t block_tokens)
{
	return layout_of(f, f, d, layers, heads, block_tokens);
}

#endif
