/* What the parts of the benchmark share. */
#ifndef TERRACE_TESTS_GPU_BENCH_H
#define TERRACE_TESTS_GPU_BENCH_H

#include <algorithm>

#include <cuda_fp16.h>

#include "tests/gpu/gpu.h"

enum { REPLAYS = 21 };

/* Parts of the benchmark: they print one JSON object a line. `ceiling`: bytes a nanosecond that a sum reads,
 * of the same run; the other arguments are the program's, each NULL if it was not given. */
void bench_attend(const char *format, const char *shape, double ceiling, cudaStream_t stream);
void bench_codec(const char *format, double ceiling, cudaStream_t stream);
void bench_repack(cudaStream_t stream);
void bench_extend(const char *format, const char *shape, cudaStream_t stream);
void bench_device(cudaStream_t stream);
void bench_sums(cudaStream_t stream);

/* Gigabytes a second that the best of some copies within the device moves one way (bench_codec.cu). */
double device_copy_rate(cudaStream_t stream);

/* n halves of a normal distribution. */
void fill_with_halves(__half *x, size_t n, cudaStream_t stream);

static inline __device__ uint32_t mix(uint32_t x)
{
	x ^= x >> 16;
	x *= 0x7feb352d;
	x ^= x >> 15;
	x *= 0x846ca68b;
	return x ^ x >> 16;
}

static inline double median(std::vector<float> &v)
{
	std::sort(v.begin(), v.end());
	return v[v.size() / 2];
}

/* Microseconds a replay of what `body` enqueues. */
template <class Body> static double time_graph(cudaStream_t stream, Body body)
{
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	cudaEvent_t begin, end;
	std::vector<float> times;

	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	body();
	CUDA(cudaStreamEndCapture(stream, &graph));
	CUDA(cudaGraphInstantiate(&exec, graph, 0));
	CUDA(cudaEventCreate(&begin));
	CUDA(cudaEventCreate(&end));
	for (int i = 0; i < REPLAYS + 3; i++) {
		float ms;

		CUDA(cudaEventRecord(begin, stream));
		CUDA(cudaGraphLaunch(exec, stream));
		CUDA(cudaEventRecord(end, stream));
		CUDA(cudaEventSynchronize(end));
		CUDA(cudaEventElapsedTime(&ms, begin, end));
		if (i >= 3)
			times.push_back(ms * 1000);
	}
	CUDA(cudaGraphExecDestroy(exec));
	CUDA(cudaGraphDestroy(graph));
	return median(times);
}

static inline void must(enum status s)
{
	if (s != STATUS_OK) {
		fprintf(stderr, "status %d: %s\n", s, cudaGetErrorString(cudaGetLastError()));
		exit(1);
	}
}

#endif
