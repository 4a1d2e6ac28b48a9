/* How fast the kernels are: `bench [attend|codec|repack|extend|device|sums [FORMAT [SHAPE]]]` prints one JSON object a line, the
 * read ceiling (a float32 sum over 4 GiB) first. Everything is timed as a graph, median over replays.
 */
#include "tests/gpu/bench.h"

__global__ void sum_floats(const float4 *x, size_t n, float *out)
{
	size_t stride = (size_t)gridDim.x * blockDim.x, i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
	float sum = 0;

	for (; i + 3 * stride < n; i += 4 * stride) {
		float4 a = x[i], b = x[i + stride], c = x[i + 2 * stride], d = x[i + 3 * stride];

		sum += a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w + c.x + c.y + c.z + c.w + d.x + d.y +
		       d.z + d.w;
	}
	for (; i < n; i += stride)
		sum += x[i].x + x[i].y + x[i].z + x[i].w;
	if (sum == 1.2345f)
		*out = sum;
}

__global__ void fill_floats(float *x, size_t n)
{
	for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
	     i += (size_t)gridDim.x * blockDim.x)
		x[i] = (float)(mix((uint32_t)i) & 0xffff);
}

__global__ void fill_halves(__half *x, size_t n)
{
	for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
	     i += (size_t)gridDim.x * blockDim.x) {
		uint32_t a = mix((uint32_t)i), b = mix(a);

		x[i] = __float2half(sqrtf(-2 * logf(((a >> 8) + 1) * 0x1p-24f)) *
				    cosf((b >> 8) * 0x1p-24f * 6.2831853f));
	}
}

void fill_with_halves(__half *x, size_t n, cudaStream_t stream)
{
	fill_halves<<<1024, 256, 0, stream>>>(x, n);
}

static double read_ceiling(cudaStream_t stream)
{
	size_t n = (size_t)1 << 30;
	device_array<float> x(n), out(1);
	double best = 0;

	fill_floats<<<2048, 256, 0, stream>>>(x.data, n);
	for (uint32_t grid = 2; grid <= 16; grid *= 2) {
		double us = time_graph(stream, [&] {
			sum_floats<<<132 * grid, 512, 0, stream>>>((const float4 *)x.data, n / 4,
								   out.data);
		});

		best = std::max(best, (double)n * 4 / us / 1e3);
	}
	printf("{\"bench\":\"ceiling\",\"read_gbs\":%.0f}\n", best);
	return best;
}

int main(int argc, char **argv)
{
	const char *part = argc > 1 ? argv[1] : nullptr, *format = argc > 2 ? argv[2] : nullptr,
		   *shape = argc > 3 ? argv[3] : nullptr;
	cudaStream_t stream;

	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	const double ceiling = read_ceiling(stream);

	if (!part || strcmp(part, "attend") == 0)
		bench_attend(format, shape, ceiling, stream);
	if (!part || strcmp(part, "codec") == 0)
		bench_codec(format, ceiling, stream);
	if (!part || strcmp(part, "repack") == 0)
		bench_repack(stream);
	if (!part || strcmp(part, "extend") == 0)
		bench_extend(format, shape, stream);
	if (!part || strcmp(part, "device") == 0)
		bench_device(stream);
	if (!part || strcmp(part, "sums") == 0)
		bench_sums(stream);
	return 0;
}
