/* int4_pth on the GPU against what vLLM's kernels wrote (tests/data/golden_int4): the golden vectors encoded
 * by kv_cuda_encode and brought into vLLM's order give its codes, scales and zero points, but for less than
 * one in 10,000, and the CPU's bytes without exception; and its bytes, put into blocks, decode to what they
 * stand for. Few tokens go a warp a vector and many by tiles, so both are done.
 *
 *   golden [FOLDER]     where the data is, if not in tests/data/golden_int4
 */
#include <memory>
#include <string>

#include "tests/gpu/gpu.h"

extern "C" {
#include "kernels/codec.h"
}

enum { VECTORS = 376, HEADS = 4, TOKENS = VECTORS / 2 / HEADS, BLOCK_TOKENS = 16 };

/* FOLDER/NAME_D.bin, of exactly so many elements. */
template <class T>
static std::vector<T> read_golden(const std::string &folder, const char *name, uint32_t d, size_t count)
{
	const std::string path = folder + "/" + name + "_" + std::to_string(d) + ".bin";
	std::vector<T> data(count + 1);
	FILE *f = fopen(path.c_str(), "rb");

	if (!f) {
		perror(path.c_str());
		exit(1);
	}
	if (fread(data.data(), 1, (count + 1) * sizeof(T), f) != count * sizeof(T)) {
		fprintf(stderr, "%s: not of %zu bytes\n", path.c_str(), count * sizeof(T));
		exit(1);
	}
	fclose(f);
	data.resize(count);
	return data;
}

/* The golden tokens several times in a row, in blocks of one layer. */
struct golden {
	const uint32_t d, tokens;
	const size_t linear;           /* bytes of a vector as vLLM has it */
	const std::vector<uint16_t> x; /* fp16, [K, V][TOKENS][HEADS][d] */
	const std::vector<uint8_t> packed;
	struct kv_layout layout;
	struct kv_geometry geometry;
	std::vector<uint8_t> nothing; /* as many blocks as there are */
	std::vector<uint64_t> addresses;
	std::vector<int64_t> places;
	std::unique_ptr<device_array<uint8_t>> blocks;
	std::unique_ptr<device_array<uint64_t>> table;
	std::unique_ptr<device_array<int64_t>> slots;
	struct kv_cuda_codec call;

	golden(const std::string &folder, uint32_t dim, uint32_t copies)
	    : d(dim), tokens(copies * TOKENS), linear(kv_linear_bytes(KV_INT4_PTH, d)),
	      x(read_golden<uint16_t>(folder, "x", d, (size_t)VECTORS * d)),
	      packed(read_golden<uint8_t>(folder, "packed", d, VECTORS * linear)),
	      layout(layout_of(KV_INT4_PTH, d, 1, HEADS, BLOCK_TOKENS)), places(tokens), call()
	{
		kv_geometry_of(&layout, &geometry);
		addresses.resize(tokens / BLOCK_TOKENS + 1);
		nothing.assign(addresses.size() * geometry.block_bytes, 0xa5);
		blocks.reset(new device_array<uint8_t>(nothing));
		for (size_t i = 0; i < addresses.size(); i++)
			addresses[i] = (uint64_t)(uintptr_t)blocks->data + i * geometry.block_bytes;
		for (uint32_t i = 0; i < tokens; i++)
			places[i] = i;
		table.reset(new device_array<uint64_t>(addresses));
		slots.reset(new device_array<int64_t>(places));
		call.layout = &layout;
		call.geometry = &geometry;
		call.tokens = tokens;
		call.slots = slots->data;
		call.blocks = table->data;
		call.block_count = (uint32_t)addresses.size();
		call.k_stride = call.v_stride = (size_t)HEADS * d;
	}

	uint8_t *block(std::vector<uint8_t> &bytes, uint32_t token) const
	{
		return &bytes[token / BLOCK_TOKENS * geometry.block_bytes];
	}

	/* Which golden vector a token's is. */
	size_t vector(int side, uint32_t token, uint32_t head) const
	{
		return ((size_t)side * TOKENS + token % TOKENS) * HEADS + head;
	}

	template <class Body> void each_vector(Body body) const
	{
		for (int side = 0; side < 2; side++)
			for (uint32_t token = 0; token < tokens; token++)
				for (uint32_t head = 0; head < HEADS; head++)
					body((enum kv_side)side, token, head);
	}

	std::vector<uint16_t> side_of_x(int side) const
	{
		const size_t each = (size_t)TOKENS * HEADS * d;
		std::vector<uint16_t> all;

		for (uint32_t i = 0; i < tokens / TOKENS; i++)
			all.insert(all.end(), x.begin() + side * each, x.begin() + (side + 1) * each);
		return all;
	}
};

static bool run_encode(const golden &g)
{
	device_array<uint16_t> k(g.side_of_x(0)), v(g.side_of_x(1));
	struct kv_cuda_codec c = g.call;
	size_t codes = 0, scales = 0, bytes = 0;

	c.k = k.data;
	c.v = v.data;
	c.dtype = KV_DTYPE_F16;
	bool ok = kv_cuda_encode(&c, nullptr) == STATUS_OK;

	CUDA(cudaDeviceSynchronize());
	std::vector<uint8_t> got = g.blocks->get(), cpu = g.nothing, out(g.linear);

	g.each_vector([&](enum kv_side side, uint32_t token, uint32_t head) {
		const uint8_t *want = &g.packed[g.vector(side, token, head) * g.linear];

		kv_encode(&g.layout, &g.geometry, g.block(cpu, token), 0, head, side, token % BLOCK_TOKENS, 1,
			  &g.x[g.vector(side, token, head) * g.d], KV_DTYPE_F16, g.d);
		kv_repack_out(&g.layout, &g.geometry, g.block(got, token), 0, head, side, token % BLOCK_TOKENS, 1,
			      out.data());
		for (uint32_t i = 0; i < g.d / 2; i++)
			codes += (size_t)((out[i] & 15) != (want[i] & 15)) + (out[i] >> 4 != want[i] >> 4);
		scales += memcmp(&out[g.d / 2], &want[g.d / 2], 4) != 0;
	});
	for (size_t i = 0; i < got.size(); i++)
		bytes += got[i] != cpu[i];
	const size_t vectors = (size_t)2 * g.tokens * HEADS;

	ok = ok && codes * 10000 < vectors * g.d && scales * 10000 < vectors && bytes == 0;
	printf("%-4s int4_pth d %3u, %4u tokens encoded: %zu of %zu codes and %zu of %zu scales with zero points are "
	       "not vLLM's; %zu bytes are not the CPU's\n",
	       ok ? "ok" : "BAD", g.d, g.tokens, codes, vectors * g.d, scales, vectors, bytes);
	return ok;
}

/* What vLLM wrote, decoded. */
static bool run_decode(const golden &g)
{
	std::vector<uint8_t> bytes = g.nothing;
	device_array<float> k((size_t)g.tokens * HEADS * g.d), v(k.count);
	struct kv_cuda_codec c = g.call;
	std::vector<float> want(g.d);
	double worst = 0;

	g.each_vector([&](enum kv_side side, uint32_t token, uint32_t head) {
		kv_repack_in(&g.layout, &g.geometry, g.block(bytes, token), 0, head, side, token % BLOCK_TOKENS, 1,
			     &g.packed[g.vector(side, token, head) * g.linear]);
	});
	g.blocks->set(bytes);
	c.k = k.data;
	c.v = v.data;
	c.dtype = KV_DTYPE_F32;
	const bool ran = kv_cuda_decode(&c, nullptr) == STATUS_OK;

	CUDA(cudaDeviceSynchronize());
	const std::vector<float> got[] = {k.get(), v.get()};

	g.each_vector([&](enum kv_side side, uint32_t token, uint32_t head) {
		const float *mine = &got[side][((size_t)token * HEADS + head) * g.d];
		double difference = 0, length = 0;

		kv_linear_decode(KV_INT4_PTH, g.d, false, &g.packed[g.vector(side, token, head) * g.linear], want.data());
		for (uint32_t i = 0; i < g.d; i++) {
			difference += pow((double)mine[i] - want[i], 2);
			length += pow(want[i], 2);
		}
		const double error = length > 0 ? sqrt(difference / length) : sqrt(difference);

		if (!(error <= worst) && !isnan(worst))
			worst = error;
	});
	const bool ok = ran && worst < 1e-6;

	printf("%-4s int4_pth d %3u, %4u tokens of vLLM's bytes decoded: off by %.1e\n", ok ? "ok" : "BAD", g.d,
	       g.tokens, worst);
	return ok;
}

int main(int argc, char **argv)
{
	const std::string folder = argc > 1 ? argv[1] : "tests/data/golden_int4";
#ifdef TERRACE_CUDA_ALL
	const std::vector<uint32_t> dims = {64, 128, 256};
#else
	const std::vector<uint32_t> dims = {128};
#endif
	bool ok = true;

	for (uint32_t d : dims)
		for (uint32_t copies : {1, 12}) {
			const golden g(folder, d, copies);

			ok = run_encode(g) && ok;
			ok = run_decode(g) && ok;
		}
	printf("golden: %s\n", ok ? "all good" : "FAILED");
	return ok ? 0 : 1;
}
