#include "tests/gpu/attend_graph.h"

#include "kernels/cuda/machine.cuh"

enum { LAYERS = 36, STEPS = 1000, HEADS = 2, GROUP = 4, DIM = 128, BLOCK_TOKENS = 64 };

static const uint32_t FIRST[] = {1, 7, 300}, GROWTH[] = {1, 2, 5};
enum { SEQUENCES = 3, ROW = HEADS * GROUP * DIM, OUT = SEQUENCES * ROW };

__global__ void count_differences(const uint32_t *a, const uint32_t *b, size_t n, uint32_t *differences)
{
	for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
	     i += (size_t)gridDim.x * blockDim.x)
		if (a[i] != b[i])
			atomicAdd(differences, 1);
}

/* A step on the device: blocks of random tokens, all layers of the same bytes but one query a layer. */
struct decode {
	struct kv_layout layout;
	struct kv_geometry geometry;
	device_array<uint8_t> *blocks, *workspaces[2]; /* the graph's, and the eager runs' */
	device_array<uint64_t> *table;
	device_array<uint32_t> tokens;
	device_array<float> q;
	struct kv_cuda_attend a;

	explicit decode(enum kv_format f) : tokens(SEQUENCES), q((size_t)LAYERS * OUT), a()
	{
		random_source r(5);
		uint32_t stride = 1 + (FIRST[2] + STEPS * GROWTH[2]) / BLOCK_TOKENS;
		std::vector<float> query(q.count), x(DIM);

		layout = layout_of(f, DIM, LAYERS, HEADS, BLOCK_TOKENS);
		kv_geometry_of(&layout, &geometry);
		for (float &v : query)
			v = r.bell();
		q.set(query);

		std::vector<uint8_t> bytes(SEQUENCES * stride * geometry.block_bytes, 0xff);
		std::vector<uint64_t> addresses(SEQUENCES * stride);

		blocks = new device_array<uint8_t>(bytes.size());
		for (size_t b = 0; b < addresses.size(); b++) {
			uint8_t *block = &bytes[b * geometry.block_bytes];

			for (uint32_t i = 0; i < 2 * HEADS * BLOCK_TOKENS; i++) {
				for (float &v : x)
					v = r.bell();
				kv_encode(&layout, &geometry, block, 0, i / 2 % HEADS, (enum kv_side)(i % 2),
					  i / 2 / HEADS, 1, x.data(), KV_DTYPE_F32, DIM);
			}
			for (int layer = 1; layer < LAYERS; layer++)
				memcpy(block + layer * geometry.layer_bytes, block, geometry.layer_bytes);
			addresses[b] = (uint64_t)(uintptr_t)blocks->data + b * geometry.block_bytes;
		}
		blocks->set(bytes);
		table = new device_array<uint64_t>(addresses);
		a.layout = &layout;
		a.geometry = &geometry;
		a.sequences = SEQUENCES;
		a.queries = 1;
		a.q_heads = HEADS * GROUP;
		a.scale = 1 / sqrtf(DIM);
		a.blocks = table->data;
		a.blocks_stride = stride;
		a.kv_tokens = tokens.data;
		for (device_array<uint8_t> *&w : workspaces)
			w = new device_array<uint8_t>(workspace_of(kv_cuda_attend_workspace, a));
	}

	~decode()
	{
		delete blocks;
		for (device_array<uint8_t> *w : workspaces)
			delete w;
		delete table;
	}

	bool enqueue(float *out, bool eager, cudaStream_t stream)
	{
		a.workspace = workspaces[eager]->data;
		a.workspace_bytes = workspaces[eager]->count;
		bool ok = expect_ok(kv_cuda_attend_plan(&a, stream), "plan");

		for (int layer = 0; layer < LAYERS && ok; layer++) {
			a.layer = layer;
			a.q = q.data + (size_t)layer * OUT;
			a.out = out + (size_t)layer * OUT;
			a.settled = !eager && layer >= 1;
			ok = expect_ok(kv_cuda_attend_run(&a, stream), "run");
		}
		return ok;
	}
};

bool run_growing_graph(enum kv_format f)
{
	decode d(f);
	device_array<float> out((size_t)LAYERS * OUT), again((size_t)LAYERS * OUT);
	device_array<uint32_t> differences(std::vector<uint32_t>{0});
	cudaStream_t stream;
	bool ok = true;

	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	captured_graph graph(stream, [&] { ok = d.enqueue(out.data, false, stream); });
	for (uint32_t step = 0; step < STEPS && ok; step++) {
		std::vector<uint32_t> tokens;

		for (int i = 0; i < SEQUENCES; i++)
			tokens.push_back(FIRST[i] + step * GROWTH[i]);
		d.tokens.set(tokens);
		if (step % 100 == 0) {
			out.poison();
			again.poison();
		}
		CUDA(cudaDeviceSynchronize());
		graph.launch(stream);
		ok = d.enqueue(again.data, true, stream);
		launch_kernel(count_differences, 64, 256, 0, stream, (const uint32_t *)out.data, (const uint32_t *)again.data, out.count,
			      differences.data);
		CUDA(cudaStreamSynchronize(stream));
	}

	const float last = out.get().back();

	ok = ok && differences.get()[0] == 0 && last == last;
	printf("%-4s %s: a graph of %d layers replayed for %d steps with growing lengths, %u differences\n",
	       ok ? "ok" : "BAD", kv_format_info(f)->name, LAYERS, STEPS, differences.get()[0]);
	CUDA(cudaStreamDestroy(stream));
	return ok;
}
