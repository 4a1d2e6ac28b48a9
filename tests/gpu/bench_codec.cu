/* How fast vectors get into packed blocks and out of them, blocks from place to place, and parts merged. Shares are
 * of the best plain copy in the same run, in bytes read and written. */
#include "tests/gpu/bench.h"

/* Whose tokens they are: pages of one prefill; or the newest of so many sequences, each somewhere in a page of its own. */
enum tokens_of { OF_A_PREFILL, OF_SEQUENCES };

/* Encode and decode of `tokens` tokens of 8 heads, or of a latent with a rope part, of a prefill also to the rows of an
 * engine's own pages; pages are shuffled. */
static void run_codec(uint32_t tokens, enum tokens_of whose, enum kv_format f, enum kv_format rope, enum kv_dtype dtype,
		      double ceiling, cudaStream_t stream)
{
	const bool mla = rope != KV_NONE;
	const uint32_t heads = mla ? 1 : 8, d = mla ? KV_LATENT_DIM : 128,
		       blocks = whose == OF_SEQUENCES ? tokens : (tokens + 15) / 16;
	struct kv_layout l = layout_of(f, mla ? KV_NONE : f, d, 1, heads, 16);
	struct kv_geometry g;
	random_source r(3);
	std::vector<uint64_t> table(blocks);
	std::vector<int64_t> slots(tokens);

	l.rope_dim = mla ? KV_ROPE_DIM : 0;
	l.rope_format = rope;
	kv_geometry_of(&l, &g);
	device_array<uint8_t> bytes(blocks * g.block_bytes);
	device_array<__half> k((size_t)tokens * heads * kv_key_dims(&l)), v(k.count);
	struct kv_cuda_codec c = {};

	for (uint32_t i = 0; i < blocks; i++)
		table[i] = (uint64_t)(uintptr_t)bytes.data + i * g.block_bytes;
	for (uint32_t i = blocks; i > 1; i--)
		std::swap(table[i - 1], table[r.next() % i]);
	for (uint32_t i = 0; i < tokens; i++)
		slots[i] = whose == OF_SEQUENCES ? 16 * i + (int64_t)(r.next() % 16) : i;
	std::vector<int64_t> rows(tokens);

	for (uint32_t i = 0; i < tokens; i++)
		rows[i] = (int64_t)((table[i / 16] - (uintptr_t)bytes.data) / g.block_bytes) * 16 + i % 16;
	device_array<uint64_t> table_device(table);
	device_array<int64_t> slots_device(slots), rows_device(rows);

	fill_with_halves(k.data, k.count, stream);
	fill_with_halves(v.data, v.count, stream);
	c.layout = &l;
	c.geometry = &g;
	c.tokens = tokens;
	c.slots = slots_device.data;
	c.blocks = table_device.data;
	c.block_count = blocks;
	c.k = k.data;
	c.v = v.data;
	c.k_stride = c.v_stride = heads * kv_key_dims(&l);
	c.dtype = dtype;
	const double moved = (mla ? 1 : 2) * 2.0 * k.count + (double)tokens / 16 * heads * g.atom_bytes;

	static const char *const ways[] = {"encode", "decode", "decode to rows"};

	for (int way = 0; way < (whose == OF_SEQUENCES ? 2 : 3); way++) {
		c.rows = way == 2 ? rows_device.data : nullptr;
		double us = time_graph(stream,
				       [&] {
					       for (int i = 0; i < 4; i++)
						       must(way ? kv_cuda_decode(&c, stream) : kv_cuda_encode(&c, stream));
				       }) /
			    4;

		printf("{\"bench\":\"%s\",\"format\":\"%s\",%s%s%s\"dtype\":\"%s\",\"tokens\":%u,\"of\":\"%s\","
		       "\"kv_heads\":%u,"
		       "\"head_dim\":%u,\"us\":%.2f,\"bytes\":%.0f,"
		       "\"gbs\":%.0f,\"copy_share\":%.3f}\n",
		       ways[way], kv_format_info(f)->name, mla ? "\"rope\":\"" : "",
		       mla ? kv_format_info(rope)->name : "", mla ? "\"," : "",
		       dtype == KV_DTYPE_F16 ? "fp16" : "bf16", tokens, whose == OF_SEQUENCES ? "sequences" : "a prefill", heads, d, us, moved,
		       moved / us / 1e3, moved / us / 1e3 / ceiling);
	}
}

/* Bytes a nanosecond of a copy, counted once; `kind` says between which memories. */
static double plain_copy(void *to, const void *from, size_t bytes, cudaStream_t stream)
{
	return (double)bytes / 1e3 /
	       time_graph(stream, [&] { CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream)); });
}

/* `count` blocks from shuffled places to shuffled places. */
static void run_copy(const char *way, uint8_t *to, uint8_t *from, size_t total, uint64_t block_bytes, uint32_t ctas,
		     double plain, cudaStream_t stream)
{
	const uint32_t count = (uint32_t)(total / block_bytes);
	random_source r(5);
	std::vector<uint64_t> from_list(count), to_list(count);
	struct kv_cuda_copy c = {};

	for (uint32_t i = 0; i < count; i++) {
		from_list[i] = (uint64_t)(uintptr_t)from + i * block_bytes;
		to_list[i] = (uint64_t)(uintptr_t)to + i * block_bytes;
	}
	for (uint32_t i = count; i > 1; i--) {
		std::swap(from_list[i - 1], from_list[r.next() % i]);
		std::swap(to_list[i - 1], to_list[r.next() % i]);
	}
	device_array<uint64_t> from_device(from_list), to_device(to_list);

	c.count = count;
	c.from = from_device.data;
	c.to = to_device.data;
	c.block_bytes = block_bytes;
	c.ctas = ctas;
	const double us = time_graph(stream, [&] { must(kv_cuda_copy(&c, stream)); });
	const double gbs = (double)count * block_bytes / us / 1e3;

	printf("{\"bench\":\"copy\",\"way\":\"%s\",\"block_bytes\":%llu,\"blocks\":%u,\"ctas\":%u,\"us\":%.1f,"
	       "\"gbs\":%.2f,\"plain_gbs\":%.2f,\"share\":%.3f}\n",
	       way, (unsigned long long)block_bytes, count, ctas, us, gbs, plain, gbs / plain);
	fflush(stdout);
}

static void run_copies(cudaStream_t stream, double device_copy)
{
	const size_t on_device = (size_t)1 << 30, on_host = (size_t)64 << 20;
	device_array<uint8_t> a(on_device), b(on_device);
	uint8_t *host = nullptr, *mapped = nullptr;

	CUDA(cudaHostAlloc((void **)&host, on_host, cudaHostAllocMapped));
	CUDA(cudaHostGetDevicePointer((void **)&mapped, host, 0));
	memset(host, 0x3c, on_host);
	for (uint64_t bytes : {4096, 16384, 65536, 1 << 20})
		run_copy("device", b.data, a.data, on_device, bytes, 0, device_copy, stream);
	const double down = plain_copy(host, a.data, on_host, stream), up = plain_copy(a.data, host, on_host, stream);

	for (uint64_t bytes : {4096, 16384, 65536, 1 << 20})
		for (uint32_t ctas : {4, 16, 0}) {
			run_copy("host to device", a.data, mapped, on_host, bytes, ctas, up, stream);
			run_copy("device to host", mapped, a.data, on_host, bytes, ctas, down, stream);
		}
	CUDA(cudaFreeHost(host));
}

static void run_merge(uint32_t rows, uint32_t parts, double device_copy, cudaStream_t stream)
{
	const uint32_t d = 128;
	std::vector<device_array<__half> *> out;
	std::vector<device_array<float> *> lse;
	device_array<__half> merged((size_t)rows * d);
	device_array<float> merged_lse(rows);
	struct kv_cuda_merge m = {};

	for (uint32_t i = 0; i < parts; i++) {
		std::vector<float> l(rows);
		random_source r(i);

		for (float &x : l)
			x = r.bell();
		out.push_back(new device_array<__half>((size_t)rows * d));
		fill_with_halves(out[i]->data, out[i]->count, stream);
		lse.push_back(new device_array<float>(l));
		m.out[i] = out[i]->data;
		m.lse[i] = lse[i]->data;
	}
	m.parts = parts;
	m.rows = rows;
	m.d = d;
	m.in_dtype = m.out_dtype = KV_DTYPE_F16;
	m.merged = merged.data;
	m.merged_lse = merged_lse.data;
	const double us = time_graph(stream, [&] {
				  for (int i = 0; i < 4; i++)
					  must(kv_cuda_merge(&m, stream));
			  }) / 4;
	const double moved = (double)rows * (parts + 1) * (d * 2 + 4);

	printf("{\"bench\":\"merge\",\"parts\":%u,\"rows\":%u,\"d\":%u,\"us\":%.2f,\"gbs\":%.0f,\"copy_share\":%.3f}\n",
	       parts, rows, d, us, moved / us / 1e3, moved / us / 1e3 / (2 * device_copy));
	for (uint32_t i = 0; i < parts; i++) {
		delete out[i];
		delete lse[i];
	}
}

__global__ void copy_words(uint4 *to, const uint4 *from, size_t n)
{
	const size_t stride = (size_t)gridDim.x * blockDim.x;

	for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += 4 * stride) {
		uint4 x[4];

#pragma unroll
		for (int j = 0; j < 4; j++)
			if (i + j * stride < n)
				x[j] = from[i + j * stride];
#pragma unroll
		for (int j = 0; j < 4; j++)
			if (i + j * stride < n)
				to[i + j * stride] = x[j];
	}
}

double device_copy_rate(cudaStream_t stream)
{
	const size_t bytes = (size_t)1 << 30;
	device_array<uint8_t> a(bytes), b(bytes);

	fill_with_halves((__half *)a.data, bytes / 2, stream);
	double best = plain_copy(b.data, a.data, bytes, stream);

	for (uint32_t grid : {132 * 4, 132 * 16, 65536})
		best = std::max(best, (double)bytes / 1e3 / time_graph(stream, [&] {
						 copy_words<<<grid, 256, 0, stream>>>((uint4 *)b.data, (const uint4 *)a.data,
										      bytes / 16);
					 }));
	return best;
}

void bench_codec(const char *format, double, cudaStream_t stream)
{
	const double copy = device_copy_rate(stream);

	printf("{\"bench\":\"copy ceiling\",\"read_and_written_gbs\":%.0f}\n", 2 * copy);
	for (enum kv_format f : {KV_INT4_PTH, KV_TQ4, KV_FP8, KV_TQ3, KV_F16, KV_TQ2, KV_BF16}) {
		if (format && strcmp(format, kv_format_info(f)->name))
			continue;
		for (enum kv_dtype t : {KV_DTYPE_F16, KV_DTYPE_BF16})
			run_codec(32768, OF_A_PREFILL, f, KV_NONE, t, 2 * copy, stream);
		for (uint32_t n : {4096, 1024, 256})
			run_codec(n, OF_A_PREFILL, f, KV_NONE, KV_DTYPE_F16, 2 * copy, stream);
		for (uint32_t n : {32, 256, 1024})
			run_codec(n, OF_SEQUENCES, f, KV_NONE, KV_DTYPE_F16, 2 * copy, stream);
#ifdef TERRACE_CUDA_ALL
		run_codec(32768, OF_A_PREFILL, f, KV_BF16, KV_DTYPE_BF16, 2 * copy, stream);
		run_codec(32, OF_SEQUENCES, f, KV_BF16, KV_DTYPE_BF16, 2 * copy, stream);
#endif
	}
	if (format)
		return;
	run_copies(stream, copy);
	run_merge(32 * 32, 2, copy, stream);
	run_merge(1 << 20, 2, copy, stream);
	run_merge(1 << 18, 8, copy, stream);
}
