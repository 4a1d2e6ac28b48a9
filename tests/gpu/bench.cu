/* How fast attention reads packed blocks: `bench [FORMAT [SHAPE]]` prints one JSON object a line.
 *
 * First the read ceiling (a float32 sum over 4 GiB), then every shape as a graph of 12 launches over
 * three sets of blocks, so that the L2 cache serves none; median over replays. Blocks hold random codes
 * and scales of usual size; every length and page is in its own random place. `settled` is
 * kv_cuda_attend's promise.
 */
#include "tests/gpu/gpu.h"

#include <cuda_fp16.h>
#include <algorithm>
#include <numeric>

enum { SETS = 3, ROUNDS = 4, REPLAYS = 21 };

struct bench_shape {
	const char *name;
	uint32_t q_heads, heads, d, block_tokens;
	std::vector<uint32_t> tokens;
};

__device__ uint32_t mix(uint32_t x)
{
	x ^= x >> 16;
	x *= 0x7feb352d;
	x ^= x >> 15;
	x *= 0x846ca68b;
	return x ^ x >> 16;
}

/* Random codes, and scales as of normal vectors of unit variance. */
__global__ void fill_atoms(uint8_t *bytes, size_t atoms, uint32_t codes, uint32_t scales, uint32_t d,
			   uint32_t seed)
{
	uint32_t part = codes + scales;

	for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < atoms * 2 * part / 4;
	     i += (size_t)gridDim.x * blockDim.x) {
		uint32_t in_part = (uint32_t)(i * 4 % part), r = mix((uint32_t)i * 2654435761u + seed);
		float std = sqrtf((float)d);

		if (in_part >= codes && scales == 32) {
			__half2 h = __floats2half2_rn(std / 41.86f * (0.7f + (r & 0xffff) / 110000.0f),
						      std / 41.86f * (0.7f + (r >> 16) / 110000.0f));

			r = *(uint32_t *)&h;
		} else if (in_part >= codes) {
			r = (__float_as_uint(std * 5.5f / 15 * (0.7f + (r & 0xffff) / 110000.0f)) &
			     ~15u) |
			    (6 + r % 4);
		}
		((uint32_t *)bytes)[i] = r;
	}
}

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

static double median(std::vector<float> &v)
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

struct fixture {
	const bench_shape &shape;
	struct kv_layout layout;
	struct kv_geometry geometry;
	size_t bytes;
	std::vector<device_array<uint8_t> *> blocks;
	std::vector<device_array<uint64_t> *> tables;
	device_array<uint32_t> tokens;
	device_array<__half> q;
	device_array<__half> out;
	device_array<float> lse;
	device_array<uint8_t> *workspace;
	struct kv_cuda_attend a;

	fixture(const bench_shape &s, enum kv_format f, cudaStream_t stream)
	    : shape(s), tokens(s.tokens), q(s.tokens.size() * s.q_heads * s.d), out(q.count),
	      lse(q.count / s.d), a()
	{
		layout = layout_of(f, s.d, 1, s.heads, s.block_tokens);
		kv_geometry_of(&layout, &geometry);
		uint32_t count = 0, longest = 0;
		size_t atoms = 0;

		for (uint32_t t : s.tokens) {
			count += (t + s.block_tokens - 1) / s.block_tokens;
			longest = std::max(longest, (t + s.block_tokens - 1) / s.block_tokens);
			atoms += (t + KV_ATOM_TOKENS - 1) / KV_ATOM_TOKENS;
		}
		bytes = atoms * s.heads * geometry.atom_bytes;
		fill_halves<<<256, 256, 0, stream>>>(q.data, q.count);
		for (int i = 0; i < SETS; i++)
			add_set(i, count, longest, stream);
		a.layout = &layout;
		a.geometry = &geometry;
		a.sequences = (uint32_t)s.tokens.size();
		a.queries = 1;
		a.q_heads = s.q_heads;
		a.scale = 1 / sqrtf((float)s.d);
		a.q = q.data;
		a.q_dtype = a.out_dtype = KV_DTYPE_F16;
		a.blocks_stride = longest;
		a.kv_tokens = tokens.data;
		a.out = out.data;
		a.lse = lse.data;
		workspace = new device_array<uint8_t>(kv_cuda_attend_workspace(&a));
		a.workspace = workspace->data;
		a.workspace_bytes = workspace->count;
		CUDA(cudaStreamSynchronize(stream));
	}

	~fixture()
	{
		for (int i = 0; i < SETS; i++) {
			delete blocks[i];
			delete tables[i];
		}
		delete workspace;
	}

	void add_set(int i, uint32_t count, uint32_t longest, cudaStream_t stream)
	{
		random_source r(i + 1);
		std::vector<uint32_t> order(count);
		std::vector<uint64_t> table(shape.tokens.size() * longest);
		size_t block = geometry.block_bytes, next = 0;

		blocks.push_back(new device_array<uint8_t>(count * block));
		fill_atoms<<<4096, 256, 0, stream>>>(blocks[i]->data, count * block / geometry.atom_bytes,
						     geometry.k_codes, geometry.k_scales, shape.d, i);
		std::iota(order.begin(), order.end(), 0);
		for (uint32_t j = count; j > 1; j--)
			std::swap(order[j - 1], order[r.next() % j]);
		for (size_t s = 0; s < shape.tokens.size(); s++)
			for (uint32_t j = 0;
			     j < (shape.tokens[s] + shape.block_tokens - 1) / shape.block_tokens; j++)
				table[s * longest + j] =
					(uint64_t)(uintptr_t)blocks[i]->data + order[next++] * block;
		tables.push_back(new device_array<uint64_t>(table));
	}
};

static void must(enum status s)
{
	if (s != STATUS_OK) {
		fprintf(stderr, "status %d: %s\n", s, cudaGetErrorString(cudaGetLastError()));
		exit(1);
	}
}

static void run_shape(const bench_shape &s, enum kv_format f, double ceiling, cudaStream_t stream)
{
	fixture x(s, f, stream);
	double plan_us = time_graph(stream, [&] { must(kv_cuda_attend_plan(&x.a, stream)); });

	for (int settled = 0; settled < 2; settled++) {
		x.a.settled = settled;
		double us = time_graph(stream,
				       [&] {
					       for (int i = 0; i < SETS * ROUNDS; i++) {
						       x.a.blocks = x.tables[i % SETS]->data;
						       must(kv_cuda_attend_run(&x.a, stream));
					       }
				       }) /
			    (SETS * ROUNDS);

		printf("{\"bench\":\"attend\",\"shape\":\"%s\",\"format\":\"%s\",\"sequences\":%zu,\"q_"
		       "heads\":%u,\"kv_heads\":%u,"
		       "\"tokens\":%u,\"head_dim\":%u,\"block_tokens\":%u,\"settled\":%s,\"us\":%.2f,"
		       "\"plan_us\":%.1f,\"bytes\":%zu,"
		       "\"gbs\":%.0f,\"ceiling_share\":%.3f}\n",
		       s.name, f == KV_TQ4 ? "tq4" : "int4_pth", s.tokens.size(), s.q_heads, s.heads,
		       s.tokens[0], s.d, s.block_tokens, settled ? "true" : "false", us, plan_us, x.bytes,
		       x.bytes / us / 1e3, x.bytes / us / 1e3 / ceiling);
		fflush(stdout);
	}
}

/* Encode and decode of `tokens` tokens of 8 heads, at random slots of whole pages as a prefill has them
 * (pages shuffled). */
static void run_codec(uint32_t tokens, enum kv_format f, double ceiling, cudaStream_t stream)
{
	const uint32_t heads = 8, d = 128, blocks = (tokens + 15) / 16;
	struct kv_layout l = layout_of(f, d, 1, heads, 16);
	struct kv_geometry g;
	random_source r(3);
	std::vector<uint64_t> table(blocks);
	std::vector<int64_t> slots(tokens);

	kv_geometry_of(&l, &g);
	device_array<uint8_t> bytes(blocks * g.block_bytes);
	device_array<__half> k((size_t)tokens * heads * d), v(k.count);
	struct kv_cuda_codec c = {};

	for (uint32_t i = 0; i < blocks; i++)
		table[i] = (uint64_t)(uintptr_t)bytes.data + i * g.block_bytes;
	for (uint32_t i = blocks; i > 1; i--)
		std::swap(table[i - 1], table[r.next() % i]);
	for (uint32_t i = 0; i < tokens; i++)
		slots[i] = i;
	device_array<uint64_t> table_device(table);
	device_array<int64_t> slots_device(slots);

	fill_halves<<<1024, 256, 0, stream>>>(k.data, k.count);
	fill_halves<<<1024, 256, 0, stream>>>(v.data, v.count);
	c.layout = &l;
	c.geometry = &g;
	c.tokens = tokens;
	c.slots = slots_device.data;
	c.blocks = table_device.data;
	c.block_count = blocks;
	c.k = k.data;
	c.v = v.data;
	c.k_stride = c.v_stride = heads * d;
	c.dtype = KV_DTYPE_F16;
	const double moved = 2.0 * k.count * 2 + (double)tokens / 16 * heads * g.atom_bytes;

	for (int decode = 0; decode < 2; decode++) {
		double us = time_graph(stream,
				       [&] {
					       for (int i = 0; i < 4; i++)
						       must(decode ? kv_cuda_decode(&c, stream)
								   : kv_cuda_encode(&c, stream));
				       }) /
			    4;

		printf("{\"bench\":\"%s\",\"format\":\"%s\",\"tokens\":%u,\"kv_heads\":%u,\"head_dim\":%"
		       "u,\"us\":%.2f,\"bytes\":%.0f,"
		       "\"gbs\":%.0f,\"ceiling_share\":%.3f}\n",
		       decode ? "decode" : "encode", kv_format_info(f)->name, tokens, heads, d, us, moved,
		       moved / us / 1e3, moved / us / 1e3 / ceiling);
	}
}

static std::vector<uint32_t> ragged(uint32_t n)
{
	random_source r(7);
	std::vector<uint32_t> t(n);

	for (uint32_t &x : t)
		x = (uint32_t)(256 * exp((double)(r.next() >> 40) / (1 << 24) * log(128.0)));
	return t;
}

int main(int argc, char **argv)
{
	std::vector<bench_shape> shapes = {
		{"main", 32, 8, 128, 16, std::vector<uint32_t>(32, 8192)},
		{"pages of 64", 32, 8, 128, 64, std::vector<uint32_t>(32, 8192)},
		{"four times", 32, 8, 128, 16, std::vector<uint32_t>(128, 8192)},
		{"16 x 16k", 32, 8, 128, 16, std::vector<uint32_t>(16, 16384)},
		{"8 x 32k", 64, 8, 128, 16, std::vector<uint32_t>(8, 32768)},
		{"64 x 4k", 32, 8, 128, 16, std::vector<uint32_t>(64, 4096)},
		{"MHA", 32, 32, 128, 16, std::vector<uint32_t>(32, 4096)},
		{"GQA 16", 64, 4, 128, 16, std::vector<uint32_t>(32, 8192)},
		{"one sequence", 32, 8, 128, 16, {65536}},
		{"ragged", 32, 8, 128, 16, ragged(64)},
#ifdef TERRACE_CUDA_ALL
		{"d 64", 32, 8, 64, 16, std::vector<uint32_t>(32, 16384)},
		{"d 96", 32, 8, 96, 16, std::vector<uint32_t>(32, 8192)},
		{"d 192", 32, 8, 192, 16, std::vector<uint32_t>(32, 8192)},
		{"d 256", 32, 8, 256, 16, std::vector<uint32_t>(32, 8192)},
#endif
	};
	cudaStream_t stream;

	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	double ceiling = read_ceiling(stream);

	for (const bench_shape &s : shapes)
		for (enum kv_format f : {KV_INT4_PTH, KV_TQ4})
			if ((argc < 2 || strcmp(argv[1], f == KV_TQ4 ? "tq4" : "int4_pth") == 0) &&
			    (argc < 3 || strcmp(argv[2], s.name) == 0))
				run_shape(s, f, ceiling, stream);
	for (enum kv_format f : {KV_INT4_PTH, KV_TQ4, KV_FP8}) {
		if (argc > 1)
			break;
		run_codec(32768, f, ceiling, stream);
		run_codec(256, f, ceiling, stream);
	}
	return 0;
}
