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

enum { HEADS = 4, BLOCK_TOKENS = 16 };

/* What vLLM was run with: the dtype of the model, in which it keeps rotated vectors. */
struct model {
	const char *name, *files; /* in the files' names */
	enum kv_dtype dtype;
	enum kv_rounding rounding;
	uint32_t vectors;
	uint32_t ties; /* so many of the first packed vectors are not of x */
};

static const model models[] = {
	{"fp16", "", KV_DTYPE_F16, KV_ROUND_F16, 376, 0},
	{"bf16", "_bf16", KV_DTYPE_BF16, KV_ROUND_BF16, 368, 4},
};

/* FOLDER/NAME[_bf16]_D.bin, of exactly so many elements. */
template <class T>
static std::vector<T> read_golden(const std::string &folder, const std::string &name, uint32_t d, size_t count)
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
	const model m;
	const uint32_t d, each, tokens; /* each: tokens of the data */
	const size_t linear;           /* bytes of a vector as vLLM has it */
	const std::vector<uint16_t> x; /* [K, V][each][HEADS][d] */
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

	golden(const std::string &folder, const model &of, uint32_t dim, uint32_t copies)
	    : m(of), d(dim), each(m.vectors / 2 / HEADS), tokens(copies * each), linear(kv_linear_bytes(KV_INT4_PTH,
	    	d)),
	      x(read_golden<uint16_t>(folder, std::string("x") + m.files, d, (size_t)m.vectors * d)),
	      packed(read_golden<uint8_t>(folder, std::string("packed") + m.files, d, m.vectors * linear)),
	      layout(layout_of(KV_INT4_PTH, d, 1, HEADS, BLOCK_TOKENS)), places(tokens), call()
	{
		layout.int4_rounding = m.rounding;
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
		return ((size_t)side * each + token % each) * HEADS + head;
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
		const size_t all_of = (size_t)each * HEADS * d;
		std::vector<uint16_t> all;

		for (uint32_t i = 0; i < tokens / each; i++)
			all.insert(all.end(), x.begin() + side * all_of, x.begin() + (side + 1) * all_of);
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
	c.dtype = g.m.dtype;
	bool ok = kv_cuda_encode(&c, nullptr) == STATUS_OK;

	CUDA(cudaDeviceSynchronize());
	std::vector<uint8_t> got = g.blocks->get(), cpu = g.nothing, out(g.linear);

	g.each_vector([&](enum kv_side side, uint32_t token, uint32_t head) {
		const uint8_t *want = &g.packed[g.vector(side, token, head) * g.linear];

		kv_encode(&g.layout, &g.geometry, g.block(cpu, token), 0, head, side, token % BLOCK_TOKENS, 1,
			  &g.x[g.vector(side, token, head) * g.d], g.m.dtype, g.d);
		kv_repack_out(&g.layout, &g.geometry, g.block(got, token), 0, head, side, token % BLOCK_TOKENS, 1,
			      out.data());
		for (uint32_t i = 0; g.vector(side, token, head) >= g.m.ties && i < g.d / 2; i++)
			codes += (size_t)((out[i] & 15) != (want[i] & 15)) + (out[i] >> 4 != want[i] >> 4);
		scales += g.vector(side, token, head) >= g.m.ties && memcmp(&out[g.d / 2], &want[g.d / 2], 4) != 0;
	});
	for (size_t i = 0; i < got.size(); i++)
		bytes += got[i] != cpu[i];
	const size_t vectors = (size_t)2 * g.tokens * HEADS;

	ok = ok && codes * 10000 < vectors * g.d && scales * 10000 < vectors && bytes == 0;
	printf("%-4s int4_pth of %s, d %3u, %4u tokens encoded: %zu of %zu codes and %zu of %zu scales with zero "
	       "points are "
	       "not vLLM's; %zu bytes are not the CPU's\n",
	       ok ? "ok" : "BAD", g.m.name, g.d, g.tokens, codes, vectors * g.d, scales, vectors, bytes);
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

	printf("%-4s int4_pth of %s, d %3u, %4u tokens of vLLM's bytes decoded: off by %.1e\n", ok ? "ok" : "BAD",
		g.m.name, g.d,
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

	for (const model &m : models)
		for (uint32_t d : dims)
			for (uint32_t copies : {1, 12}) {
				const golden g(folder, m, d, copies);

				ok = run_encode(g) && ok;
				ok = run_decode(g) && ok;
			}
	printf("golden: %s\n", ok ? "all good" : "FAILED");
	return ok ? 0 : 1;
}
