/* How fast extend is: new tokens over a packed prefix of one sequence or several, as a graph of launches
 * over two sets of blocks. Blocks are encoded from normal vectors. tests/gpu/sdpa_extend.py times the
 * same shapes unpacked.
 */
#include "tests/gpu/bench.h"

#include <chrono>
#include <numeric>
#include <thread>

namespace
{

struct extend_shape_of_bench {
	const char *name;
	uint32_t q_heads, heads;
	case_dims d;
	uint32_t sequences, prefix, own;
	float sharpness = 1; /* of scores, which are about normal numbers otherwise */
};

enum { SETS = 2, BLOCK_TOKENS = 16 };

struct extend_fixture {
	struct kv_layout layout;
	struct kv_geometry geometry;
	std::vector<device_array<uint8_t> *> blocks;
	std::vector<device_array<uint64_t> *> tables;
	device_array<uint32_t> starts, prefixes;
	device_array<__half> q, out, k, v;
	device_array<float> lse;
	device_array<uint8_t> *workspace;
	struct kv_cuda_extend e;

	extend_fixture(const extend_shape_of_bench &s, enum kv_format fk, enum kv_format fv,
		       cudaStream_t stream)
	    : starts(s.sequences + 1), prefixes(s.sequences),
	      q((size_t)s.sequences * s.own * s.q_heads * s.d.k), out(q.count / s.d.k * s.d.v),
	      k(q.count / s.q_heads * s.heads), v(k.count / s.d.k * s.d.v), lse(q.count / s.d.k), e()
	{
		std::vector<uint32_t> first;

		layout = layout_of(fk, fv, s.d, 1, s.heads, BLOCK_TOKENS);
		kv_geometry_of(&layout, &geometry);
		for (uint32_t i = 0; i <= s.sequences; i++)
			first.push_back(i * s.own);
		starts.set(first);
		prefixes.set(std::vector<uint32_t>(s.sequences, s.prefix));
		fill_with_halves(q.data, q.count, stream);
		fill_with_halves(k.data, k.count, stream);
		fill_with_halves(v.data, v.count, stream);
		for (int i = 0; i < SETS; i++)
			add_set(s, i, stream);
		e.layout = &layout;
		e.geometry = &geometry;
		e.sequences = s.sequences;
		e.total_queries = s.sequences * s.own;
		e.q_heads = s.q_heads;
		e.scale = s.sharpness / sqrtf((float)s.d.k);
		e.query_starts = starts.data;
		e.prefix_tokens = prefixes.data;
		e.q = q.data;
		e.k = k.data;
		e.v = v.data;
		e.k_stride = s.heads * s.d.k;
		e.v_stride = s.heads * s.d.v;
		e.q_dtype = e.own_dtype = e.out_dtype = KV_DTYPE_F16;
		e.blocks_stride = s.prefix / BLOCK_TOKENS;
		e.out = out.data;
		e.lse = lse.data;
		workspace = new device_array<uint8_t>(workspace_of(kv_cuda_extend_workspace, e));
		e.workspace = workspace->data;
		e.workspace_bytes = workspace->count;
	}

	~extend_fixture()
	{
		for (int i = 0; i < SETS; i++) {
			delete blocks[i];
			delete tables[i];
		}
		delete workspace;
	}

	void add_set(const extend_shape_of_bench &s, int i, cudaStream_t stream)
	{
		const uint32_t tokens = s.sequences * s.prefix, count = tokens / BLOCK_TOKENS;
		random_source r(i + 1);
		std::vector<uint32_t> order(count);
		std::vector<uint64_t> table(count);
		std::vector<int64_t> slots(tokens);
		device_array<__half> x((size_t)tokens * s.heads * s.d.k), y((size_t)tokens * s.heads * s.d.v);
		struct kv_cuda_codec c = {};

		blocks.push_back(new device_array<uint8_t>(count * geometry.block_bytes));
		std::iota(order.begin(), order.end(), 0);
		std::iota(slots.begin(), slots.end(), 0);
		for (uint32_t j = count; j > 1; j--)
			std::swap(order[j - 1], order[r.next() % j]);
		for (uint32_t j = 0; j < count; j++)
			table[j] =
				(uint64_t)(uintptr_t)blocks[i]->data + order[j] * geometry.block_bytes;
		tables.push_back(new device_array<uint64_t>(table));
		device_array<int64_t> slots_device(slots);

		fill_with_halves(x.data, x.count, stream);
		fill_with_halves(y.data, y.count, stream);
		c.layout = &layout;
		c.geometry = &geometry;
		c.tokens = tokens;
		c.slots = slots_device.data;
		c.blocks = tables[i]->data;
		c.block_count = count;
		c.k = x.data;
		c.v = y.data;
		c.k_stride = s.heads * s.d.k;
		c.v_stride = s.heads * s.d.v;
		c.dtype = KV_DTYPE_F16;
		must(kv_cuda_encode(&c, stream));
		CUDA(cudaStreamSynchronize(stream));
	}
};

void run_shape(const extend_shape_of_bench &s, enum kv_format fk, enum kv_format fv, cudaStream_t stream)
{
	extend_fixture x(s, fk, fv, stream);

	/* What ran right before costs several percent. */
	CUDA(cudaStreamSynchronize(stream));
	std::this_thread::sleep_for(std::chrono::milliseconds(200));
	const double us = time_graph(stream,
				     [&] {
					     for (int i = 0; i < 2 * SETS; i++) {
						     x.e.blocks = x.tables[i % SETS]->data;
						     must(kv_cuda_extend_run(&x.e, stream));
					     }
				     }) /
			  (2 * SETS);
	const double seen = (double)s.own * s.prefix + (double)s.own * (s.own + 1) / 2;

	printf("{\"bench\":\"extend\",\"shape\":\"%s\",\"k\":\"%s\",\"v\":\"%s\",\"sequences\":%u,\"q_"
	       "heads\":%u,"
	       "\"kv_heads\":%u,\"head_dim\":%u,\"head_dim_v\":%u,\"prefix\":%u,\"new\":%u,\"us\":%.1f,\"tflops\":%.1f}\n",
	       s.name, kv_format_info(fk)->name, kv_format_info(fv)->name, s.sequences, s.q_heads,
	       s.heads, s.d.k, s.d.v, s.prefix, s.own, us, 2 * seen * (s.d.k + s.d.v) * s.q_heads * s.sequences / us / 1e6);
	fflush(stdout);
}

} // namespace

void bench_extend(const char *format, const char *shape, cudaStream_t stream)
{
	const std::vector<extend_shape_of_bench> shapes = {
		{"512 over 32k", 32, 8, 128, 1, 32768, 512},
		{"2048 over 32k", 32, 8, 128, 1, 32768, 2048},
		{"8 x 256 over 8k", 32, 8, 128, 8, 8192, 256},
		{"2048 over 8k", 32, 8, 128, 1, 8192, 2048},
		{"512 over 32k, sharp", 32, 8, 128, 1, 32768, 512, 4},
		{"2048 over 32k, sharp", 32, 8, 128, 1, 32768, 2048, 4},
#ifdef TERRACE_CUDA_ALL
		{"d 64", 32, 8, 64, 1, 32768, 1024},
		{"d 96", 32, 8, 96, 1, 32768, 1024},
		{"d 192", 32, 8, 192, 1, 32768, 1024},
		{"d 256", 32, 8, 256, 1, 32768, 1024},
		{"d 192/128", 32, 8, {192, 128}, 1, 32768, 1024},
		{"d 192/128, sharp", 32, 8, {192, 128}, 1, 32768, 1024, 4},
		{"d 192/128, 32 new", 32, 8, {192, 128}, 1, 32768, 32},
		{"d 128/64", 32, 8, {128, 64}, 1, 32768, 1024},
#endif
	};
	const enum kv_format pairs[][2] = {
		{KV_TQ4, KV_TQ4}, {KV_INT4_PTH, KV_INT4_PTH}, {KV_FP8, KV_FP8}, {KV_F16, KV_F16}, {KV_BF16, KV_BF16},
		{KV_TQ3, KV_TQ3}, {KV_TQ2, KV_TQ2}, {KV_FP8, KV_TQ4}, {KV_FP8, KV_TQ3}, {KV_TQ4, KV_TQ3}};

	for (size_t i = 0; i < shapes.size(); i++)
		for (size_t j = 0; j < sizeof(pairs) / sizeof(pairs[0]); j++)
			if ((i <= 1 || j < 2) &&
			    (!format || strcmp(format, kv_format_info(pairs[j][0])->name) == 0) &&
			    (!shape || strcmp(shape, shapes[i].name) == 0))
				run_shape(shapes[i], pairs[j][0], pairs[j][1], stream);
}
