/* Decode of many layers in one graph, replayed with nothing from the host but the launches: a step advances
 * the lengths and slots on the device, plans, and in each layer makes K, V and queries of the new tokens,
 * encodes, attends and folds the outputs into a sum of the step and layer. The same steps enqueued one by
 * one, in memory of their own, must leave the same sums and the same blocks.
 */
#include "tests/gpu/attend_graph.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>

#include <cuda_fp16.h>

extern "C" {
#include "kernels/attend.h"
}
#include "kernels/cuda/machine.cuh"

namespace
{

typedef unsigned long long sum_t; /* what atomicAdd takes */

enum { SEQUENCES = DECODE_SEQUENCES, HEADS = 2, GROUP = 4, DIM = 128, BLOCK_TOKENS = 64, VECTOR = HEADS * DIM };

__device__ uint32_t mixed(uint32_t x)
{
	x ^= x >> 16;
	x *= 0x7feb352d;
	x ^= x >> 15;
	x *= 0x846ca68b;
	return x ^ x >> 16;
}

/* The next step: its tokens are counted, and get the next slots of their sequences. */
__global__ void advance(decode_growth g, uint32_t blocks_stride, uint32_t *step, uint32_t *tokens, int64_t *slots)
{
	uint32_t next = 0;

	if (threadIdx.x != 0)
		return;
	*step += 1;
	for (uint32_t s = 0; s < SEQUENCES; s++)
		for (uint32_t i = 0; i < g.by[s]; i++) {
			const uint32_t token = tokens[s]++;

			slots[next++] = (int64_t)(s * blocks_stride + token / BLOCK_TOKENS) * BLOCK_TOKENS + token % BLOCK_TOKENS;
		}
}

/* Bell-shaped numbers that the step and the layer alone decide: sums of four uniforms of unit variance. */
__global__ void make_vectors(__half *x, uint32_t n, uint32_t layer, const uint32_t *step)
{
	const uint32_t seed = mixed(*step * 64 + layer + 1);

	for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
		const uint32_t a = mixed(seed + i), b = mixed(a);
		const float sum = (float)(a & 0xffff) + (float)(a >> 16) + (float)(b & 0xffff) + (float)(b >> 16);

		x[i] = __float2half((sum - 131070.0f) / 65536.0f * 1.7320508f);
	}
}

/* Folds a layer's outputs, to the bit and by their places, into its sum of this step; counts what is no
 * number, and leaves nothing but that behind, so that the next layer has to write all of it. */
__global__ void fold(float *x, uint32_t n, const uint32_t *step, uint32_t layers, uint32_t layer, sum_t *sums,
		     uint32_t *unwritten)
{
	sum_t sum = 0;
	uint32_t none = 0;

	for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
		const uint32_t a = mixed(__float_as_uint(x[i]) ^ mixed(i + 1));

		sum += (sum_t)a << 32 | mixed(a + i);
		none += x[i] != x[i];
		x[i] = __uint_as_float(0xffffffff);
	}
	atomicAdd(&sums[(size_t)(*step - 1) * layers + layer], sum);
	if (none)
		atomicAdd(unwritten, none);
}

uint32_t sum_of(const uint32_t (&n)[SEQUENCES])
{
	uint32_t sum = 0;

	for (uint32_t x : n)
		sum += x;
	return sum;
}

/* Sequences of all layers in device memory, and the step that goes over them. */
struct decoding {
	const decode_case c;
	const uint32_t fresh, rows; /* new tokens of a step; rows of q and of the outputs */
	struct kv_layout layout;
	struct kv_geometry geometry;
	uint32_t stride;
	std::unique_ptr<device_array<uint8_t>> blocks, workspace;
	std::unique_ptr<device_array<uint64_t>> table;
	device_array<uint32_t> step, tokens, unwritten;
	device_array<int64_t> slots;
	device_array<__half> vectors; /* a layer's queries, then K, then V of the new tokens */
	device_array<float> outputs;  /* a layer's, then their logarithms */
	device_array<sum_t> sums;
	struct kv_cuda_attend a;
	struct kv_cuda_codec e;

	explicit decoding(const decode_case &dc)
	    : c(dc), fresh(sum_of(c.grown.by)), rows(SEQUENCES * c.queries * HEADS * GROUP),
	      layout(layout_of(c.k, c.v, DIM, c.layers, HEADS, BLOCK_TOKENS)), stride(1), step(std::vector<uint32_t>{0}),
	      tokens(std::vector<uint32_t>(c.grown.first, c.grown.first + SEQUENCES)), unwritten(std::vector<uint32_t>{0}),
	      slots(std::max(fresh, sum_of(c.grown.first))), vectors(rows * DIM + 2 * slots.count * VECTOR),
	      outputs((size_t)rows * (DIM + 1)), sums(std::vector<sum_t>((size_t)c.steps * c.layers, 0)), a(), e()
	{
		kv_geometry_of(&layout, &geometry);
		for (uint32_t s = 0; s < SEQUENCES; s++)
			stride = std::max(stride, 1 + length(s, c.steps) / BLOCK_TOKENS);
		make_blocks();
		make_calls();
	}

	uint32_t length(uint32_t sequence, uint32_t steps) const
	{
		return c.grown.first[sequence] + steps * c.grown.by[sequence];
	}

	/* Sequence s has the blocks s * stride .. of the table. */
	int64_t slot(uint32_t sequence, uint32_t token) const
	{
		return (int64_t)sequence * stride * BLOCK_TOKENS + token;
	}

	void make_blocks()
	{
		std::vector<uint64_t> addresses(SEQUENCES * stride);
		std::vector<int64_t> first;

		blocks.reset(new device_array<uint8_t>(addresses.size() * geometry.block_bytes));
		for (size_t b = 0; b < addresses.size(); b++)
			addresses[b] = (uint64_t)(uintptr_t)blocks->data + b * geometry.block_bytes;
		table.reset(new device_array<uint64_t>(addresses));
		for (uint32_t s = 0; s < SEQUENCES; s++)
			for (uint32_t i = 0; i < c.grown.first[s]; i++)
				first.push_back(slot(s, i));
		first.resize(slots.count, -1);
		slots.set(first);
	}

	void make_calls()
	{
		a.layout = e.layout = &layout;
		a.geometry = e.geometry = &geometry;
		a.sequences = SEQUENCES;
		a.queries = c.queries;
		a.q_heads = HEADS * GROUP;
		a.scale = 1 / sqrtf(DIM);
		a.q = vectors.data;
		a.q_dtype = e.dtype = KV_DTYPE_F16;
		a.blocks = e.blocks = table->data;
		a.blocks_stride = stride;
		a.kv_tokens = tokens.data;
		a.out = outputs.data;
		a.out_dtype = KV_DTYPE_F32;
		a.lse = outputs.data + (size_t)rows * DIM;
		workspace.reset(new device_array<uint8_t>(workspace_of(kv_cuda_attend_workspace, a)));
		a.workspace = workspace->data;
		a.workspace_bytes = workspace->count;
		e.slots = slots.data;
		e.block_count = SEQUENCES * stride;
		e.k_stride = e.v_stride = VECTOR;
	}

	/* K and V of so many tokens of a layer, and its queries. */
	bool encode(uint32_t layer, uint32_t count, cudaStream_t stream)
	{
		__half *k = vectors.data + (size_t)rows * DIM;

		launch_kernel(make_vectors, 16, 128, 0, stream, vectors.data, rows * DIM + 2 * count * VECTOR, layer,
			      (const uint32_t *)step.data);
		e.layer = layer;
		e.tokens = count;
		e.k = k;
		e.v = k + (size_t)count * VECTOR;
		return expect_ok(kv_cuda_encode(&e, stream), "encode");
	}

	/* The tokens before the first step. */
	bool prefill(cudaStream_t stream)
	{
		bool ok = true;

		for (uint32_t layer = 0; layer < c.layers && ok; layer++)
			ok = encode(layer, sum_of(c.grown.first), stream);
		return ok;
	}

	bool enqueue_step(bool settled, cudaStream_t stream)
	{
		launch_kernel(advance, 1, 32, 0, stream, c.grown, stride, step.data, tokens.data, slots.data);
		bool ok = expect_ok(kv_cuda_attend_plan(&a, stream), "plan");

		a.settled = settled;
		for (uint32_t layer = 0; layer < c.layers && ok; layer++) {
			a.layer = layer;
			ok = encode(layer, fresh, stream) && expect_ok(kv_cuda_attend_run(&a, stream), "run");
			launch_kernel(fold, 16, 128, 0, stream, outputs.data, (uint32_t)outputs.count, (const uint32_t *)step.data,
				      c.layers, layer, sums.data, unwritten.data);
		}
		return ok;
	}

	/* The largest relative error of a row of the last layer, attended once more, against the CPU's attention
	 * over `bytes`, the blocks. */
	double error_of_last(const std::vector<uint8_t> &bytes, cudaStream_t stream)
	{
		const std::vector<__half> q = vectors.get();
		const size_t each = (size_t)c.queries * HEADS * GROUP;
		double worst = 0;

		if (!expect_ok(kv_cuda_attend_run(&a, stream), "the last layer"))
			return INFINITY;
		CUDA(cudaStreamSynchronize(stream));
		const std::vector<float> got = outputs.get();

		for (uint32_t s = 0; s < SEQUENCES; s++) {
			const std::vector<float> want = cpu_attention(s, &q[s * each * DIM], bytes);

			for (size_t row = 0; row < each; row++)
				worst = std::max(worst, relative_error(&got[(s * each + row) * DIM], &want[row * DIM]));
		}
		return worst;
	}

	std::vector<float> cpu_attention(uint32_t sequence, const __half *q, const std::vector<uint8_t> &bytes) const
	{
		std::vector<const void *> mine(stride);
		std::vector<float> out((size_t)c.queries * HEADS * GROUP * DIM);
		struct kv_attend cpu = {};

		for (uint32_t b = 0; b < stride; b++)
			mine[b] = &bytes[(sequence * stride + b) * geometry.block_bytes];
		cpu.layout = &layout;
		cpu.geometry = &geometry;
		cpu.layer = c.layers - 1;
		cpu.queries = c.queries;
		cpu.q_heads = HEADS * GROUP;
		cpu.q = q;
		cpu.q_dtype = KV_DTYPE_F16;
		cpu.scale = a.scale;
		cpu.blocks = mine.data();
		cpu.kv_tokens = length(sequence, c.steps);
		cpu.causal = true;
		cpu.first_pos = (int64_t)cpu.kv_tokens - c.queries;
		cpu.out = out.data();
		cpu.out_dtype = KV_DTYPE_F32;

		std::vector<uint8_t> scratch(kv_attend_scratch(&cpu) + 63);
		const char *problem = kv_attend_run(&cpu, (void *)(((uintptr_t)scratch.data() + 63) & ~(uintptr_t)63));

		if (problem) {
			fprintf(stderr, "the CPU's attention: %s\n", problem);
			exit(1);
		}
		return out;
	}

	static double relative_error(const float *got, const float *want)
	{
		double difference = 0, length = 0;

		for (int i = 0; i < DIM; i++) {
			difference += pow((double)got[i] - want[i], 2);
			length += pow(want[i], 2);
		}
		return !(difference >= 0) ? INFINITY : sqrt(length > 0 ? difference / length : difference);
	}
};

template <class Body> double microseconds_of(Body body)
{
	const auto began = std::chrono::steady_clock::now();

	body();
	return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began).count();
}

size_t differences(const std::vector<sum_t> &a, const std::vector<sum_t> &b)
{
	size_t n = 0;

	for (size_t i = 0; i < a.size(); i++)
		n += a[i] != b[i];
	return n;
}

size_t distinct(std::vector<sum_t> sums)
{
	std::sort(sums.begin(), sums.end());
	return (size_t)(std::unique(sums.begin(), sums.end()) - sums.begin());
}

/* What both ended with; the line, and with `row` the figures. */
bool compare(decoding &graph, decoding &eager, double graph_us, double eager_us, bool row, cudaStream_t stream)
{
	const decode_case &c = graph.c;
	const std::vector<sum_t> sums = graph.sums.get();
	const std::vector<uint8_t> bytes = graph.blocks->get();
	const bool same_blocks = bytes == eager.blocks->get();
	const size_t differ = differences(sums, eager.sums.get()), different = distinct(sums);
	const uint32_t unwritten = graph.unwritten.get()[0] + eager.unwritten.get()[0];
	bool ok = differ == 0 && different == sums.size() && unwritten == 0 && same_blocks;
	std::string name = kv_format_info(c.k)->name;

	for (uint32_t s = 0; s < SEQUENCES; s++)
		ok = ok && graph.tokens.get()[s] == graph.length(s, c.steps) && eager.tokens.get()[s] == graph.length(s, c.steps);
	const double error = graph.error_of_last(bytes, stream);

	ok = ok && error <= 2e-3;
	if (c.v != c.k)
		name += std::string("/") + kv_format_info(c.v)->name;
	const uint32_t longest = graph.length(SEQUENCES - 1, c.steps);

	printf("%-4s %s: %u layers in a graph, %u steps of %u queries, up to %u tokens: %zu of %zu sums differ, "
	       "%zu different ones, %u elements unwritten, blocks %s, last step off by %.1e\n",
	       ok ? "ok" : "BAD", name.c_str(), c.layers, c.steps, c.queries, longest, differ, sums.size(), different,
	       unwritten, same_blocks ? "the same" : "DIFFER", error);
	if (row)
		printf("{\"bench\":\"decode in a graph\",\"format\":\"%s\",\"layers\":%u,\"steps\":%u,\"sequences\":%d,"
		       "\"queries\":%u,\"q_heads\":%d,\"kv_heads\":%d,\"tokens_last\":%u,\"graph_us_a_step\":%.1f,"
		       "\"eager_us_a_step\":%.1f,\"sums\":%zu,\"sums_differ\":%zu,\"ok\":%s}\n",
		       name.c_str(), c.layers, c.steps, SEQUENCES, c.queries, HEADS * GROUP, HEADS, longest, graph_us,
		       eager_us, sums.size(), differ, ok ? "true" : "false");
	fflush(stdout);
	return ok;
}

} // namespace

bool run_growing_graph(const decode_case &c, bool row)
{
	decoding replayed(c), eager(c);
	cudaStream_t stream;
	bool ok;

	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	ok = replayed.prefill(stream) && eager.prefill(stream);
	captured_graph graph(stream, [&] { ok = ok && replayed.enqueue_step(true, stream); });
	CUDA(cudaStreamSynchronize(stream));
	const double graph_us = microseconds_of([&] {
		for (uint32_t i = 0; i < c.steps && ok; i++)
			graph.launch(stream);
		CUDA(cudaStreamSynchronize(stream));
	});
	const double eager_us = microseconds_of([&] {
		for (uint32_t i = 0; i < c.steps && ok; i++)
			ok = eager.enqueue_step(false, stream);
		CUDA(cudaStreamSynchronize(stream));
	});

	ok = ok && compare(replayed, eager, graph_us / c.steps, eager_us / c.steps, row, stream);
	CUDA(cudaStreamDestroy(stream));
	return ok;
}
