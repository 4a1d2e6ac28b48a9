/* Checksums of blocks on the GPU: how fast the kernel is beside the device's own copy of the same bytes, and how long a list takes by the
 * table of store/device.h, from the call to its end, which is what a commit's sum takes. */
#include "tests/gpu/bench.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/sums.h"

namespace
{

constexpr uint64_t SUM_MEMORY = (uint64_t)1 << 30;
constexpr uint32_t SUM_ROUNDS = 21;

struct waited {
	pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
	bool over = false;
};

void end_sums(struct device_sums *s, enum status status)
{
	struct waited *w = (struct waited *)s->arg;

	if (status != STATUS_OK) {
		fprintf(stderr, "a list of checksums ended with status %d\n", status);
		exit(1);
	}
	pthread_mutex_lock(&w->mutex);
	w->over = true;
	pthread_cond_signal(&w->ended);
	pthread_mutex_unlock(&w->mutex);
}

double clock_us()
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

void check(enum status s, const char *what, const char *why)
{
	if (s == STATUS_OK)
		return;
	fprintf(stderr, "%s: %s\n", what, why);
	exit(1);
}

/* A device's table, with memory. */
struct sums_world {
	const struct device_ops *ops = kv_cuda_device_ops();
	struct device *device = nullptr;
	struct device_extent extent = {};
	uint64_t range = 0;
	int fd = -1;

	sums_world()
	{
		const char *why = "";

		check(ops->open(0, &device, &why), "open", why);
		check(ops->range_reserve(device, SUM_MEMORY, &range, &why), "range_reserve", why);
		check(ops->extent_make(device, range, SUM_MEMORY, &extent, &fd, &why), "extent_make", why);
	}
	sums_world(const sums_world &) = delete;
	sums_world &operator=(const sums_world &) = delete;
	~sums_world()
	{
		ops->close(device);
		::close(fd);
	}
};

/* Microseconds of what `body` puts into the stream, the median of some. */
template <class Body> double stream_us(cudaStream_t stream, Body body)
{
	cudaEvent_t begin, end;
	std::vector<float> times;

	CUDA(cudaEventCreate(&begin));
	CUDA(cudaEventCreate(&end));
	for (uint32_t i = 0; i < SUM_ROUNDS + 3; i++) {
		float ms;

		CUDA(cudaEventRecord(begin, stream));
		body();
		CUDA(cudaEventRecord(end, stream));
		CUDA(cudaEventSynchronize(end));
		CUDA(cudaEventElapsedTime(&ms, begin, end));
		if (i >= 3)
			times.push_back(ms * 1e3f);
	}
	CUDA(cudaEventDestroy(begin));
	CUDA(cudaEventDestroy(end));
	return median(times);
}

double op_us(const sums_world &w, const std::vector<uint64_t> &at, uint32_t layers, uint64_t layer_bytes)
{
	std::vector<uint32_t> sums(at.size() * layers);
	std::vector<float> times;
	struct waited end;
	const char *why = "";

	for (uint32_t i = 0; i < SUM_ROUNDS + 3; i++) {
		struct device_sums s = {};
		const double begin = clock_us();

		s.at = at.data();
		s.count = (uint32_t)at.size();
		s.parts = layers;
		s.part_bytes = layer_bytes;
		s.sums = sums.data();
		s.done = end_sums;
		s.arg = &end;
		end.over = false;
		check(w.ops->sums(w.device, &s, &why), "sums", why);
		pthread_mutex_lock(&end.mutex);
		while (!end.over)
			pthread_cond_wait(&end.ended, &end.mutex);
		pthread_mutex_unlock(&end.mutex);
		if (i >= 3)
			times.push_back((float)(clock_us() - begin));
	}
	return median(times);
}

void report(const sums_world &w, uint32_t blocks, uint32_t layers, uint64_t layer_bytes, cudaStream_t stream)
{
	const uint64_t block = layers * layer_bytes, bytes = blocks * block;
	std::vector<uint64_t> at;

	for (uint32_t i = 0; i < blocks; i++)
		at.push_back(w.range + i * block);
	device_array<uint64_t> list(at);
	device_array<uint32_t> sums(std::vector<uint32_t>(blocks * layers, 0));
	struct kv_cuda_sums s = {};

	s.at = list.data;
	s.count = blocks;
	s.parts = layers;
	s.part_bytes = layer_bytes;
	s.sums = sums.data;
	const double kernel = stream_us(stream, [&] {
		if (kv_cuda_sums(&s, stream) != STATUS_OK)
			exit(1);
	});
	const double copy = stream_us(stream, [&] {
		CUDA(cudaMemcpyAsync((void *)(w.range + SUM_MEMORY / 2), (void *)w.range, bytes, cudaMemcpyDeviceToDevice, stream));
	});

	printf("{\"bench\":\"sums\",\"blocks\":%u,\"layers\":%u,\"layer_bytes\":%llu,\"kernel_us\":%.1f,\"gbs\":%.0f,\"copy_us\":%.1f,"
	       "\"copy_gbs\":%.0f,\"ratio\":%.2f,\"op_us\":%.0f}\n",
	       blocks, layers, (unsigned long long)layer_bytes, kernel, (double)bytes / (kernel * 1e3), copy,
	       (double)bytes / (copy * 1e3), copy / kernel, op_us(w, at, layers, layer_bytes));
}

} // namespace

void bench_sums(cudaStream_t stream)
{
	sums_world w;

	report(w, 1, 32, 17408, stream);
	report(w, 16, 32, 17408, stream);
	report(w, 128, 32, 17408, stream);
	report(w, 512, 32, 17408, stream);
	report(w, 512, 32, 544, stream);
	report(w, 512, 32, 2176, stream);
	report(w, 64, 8, 1 << 20, stream);
}
