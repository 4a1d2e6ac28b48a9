/* How fast attention reads packed blocks: every shape as a graph of 12 launches over three sets of
 * blocks, so that the L2 cache serves none. Blocks hold random codes and scales of usual size; every
 * length and page is in its own random place. `settled` is kv_cuda_attend's promise. Bytes are those
 * stored of what is read. Each figure is taken after a rest, for at 700 W clocks fall, and what is measured later would be the
 * slower one.
 */
#include "tests/gpu/bench.h"

#include <chrono>
#include <numeric>
#include <string>
#include <thread>

enum { SETS = 3, ROUNDS = 4, REST_MS = 60 };

struct bench_shape {
	const char *name;
	uint32_t q_heads, heads;
	case_dims d;
	uint32_t block_tokens;
	std::vector<uint32_t> tokens;
	uint32_t queries = 1; /* a sequence */
};

/* What fill_atoms wants to know of a side. */
struct side_of_atom {
	enum kv_format format;
	uint32_t codes_at, codes, scales_at, scales;
	float scale; /* of a normal vector of unit variance */
};

/* Random codes, and scales as of normal vectors; 16-bit codes are normal numbers. */
__global__ void fill_atoms(uint8_t *bytes, size_t atoms, uint32_t atom_bytes, side_of_atom k,
			   side_of_atom v, uint32_t seed)
{
	for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < atoms * atom_bytes / 4;
	     i += (size_t)gridDim.x * blockDim.x) {
		const uint32_t at = (uint32_t)(i * 4 % atom_bytes), r = mix((uint32_t)i * 2654435761u + seed);
		const side_of_atom &s = at < v.codes_at ? k : v;
		const float a = 0.7f + (r & 0xffff) / 110000.0f, b = 0.7f + (r >> 16) / 110000.0f;
		const __half2 scales = __floats2half2_rn(s.scale * a, s.scale * b);
		uint32_t word = r;

		if (s.format == KV_F16)
			word = r & 0xbbffbbff; /* below 1 */
		else if (s.format == KV_BF16)
			word = (r & 0x80ff80ff) | 0x3f003f00;
		else if (s.format == KV_FP8 && at < s.scales_at)
			word = r & 0xf7f7f7f7; /* no NaN */
		else if (at >= s.scales_at && s.format == KV_INT4_PTH)
			word = (__float_as_uint(s.scale * a) & ~15u) | (6 + r % 4);
		else if (at >= s.scales_at)
			word = *(const uint32_t *)&scales;
		((uint32_t *)bytes)[i] = word;
	}
}

static float usual_scale(enum kv_format f, uint32_t d)
{
	const float length = sqrtf((float)d);

	switch (f) {
	case KV_FP8:
		return 3 / 448.0f;
	case KV_INT4_PTH:
		return length * 5.5f / 15;
	case KV_TQ4:
		return length / 41.86f;
	case KV_TQ3:
		return length / 50.9f;
	case KV_TQ2:
		return length / 78.45f;
	default:
		return 1;
	}
}

/* One a sequence, over its newest tokens. */
static std::vector<int32_t> image_ranges(const bench_shape &s)
{
	std::vector<int32_t> ranges;

	for (uint32_t t : s.tokens)
		ranges.insert(ranges.end(), {(int32_t)(t - std::min(t, 512u)), (int32_t)t - 1});
	return ranges;
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
	device_array<float> slopes, tree_bias, out_scale;
	device_array<int32_t> ranges;
	device_array<uint8_t> *workspace;
	struct kv_cuda_attend a;

	fixture(const bench_shape &s, enum kv_format k, enum kv_format v, cudaStream_t stream, uint32_t split = 0)
	    : shape(s), tokens(s.tokens), q(s.tokens.size() * s.queries * s.q_heads * s.d.k),
	      out(q.count / s.d.k * s.d.v), lse(q.count / s.d.k), slopes(std::vector<float>(s.q_heads, 1e-5f)),
	      tree_bias(std::vector<float>(s.tokens.size() * s.queries * s.queries, -0.5f)),
	      out_scale(std::vector<float>{0.01f}), ranges(image_ranges(s)), a()
	{
		layout = layout_of(k, v, s.d, 1, s.heads, s.block_tokens);
		kv_geometry_of(&layout, &geometry);
		uint32_t count = 0, longest = 0;
		size_t atoms = 0;

		for (uint32_t t : s.tokens) {
			count += (t + s.block_tokens - 1) / s.block_tokens;
			longest = std::max(longest, (t + s.block_tokens - 1) / s.block_tokens);
			atoms += (t + KV_ATOM_TOKENS - 1) / KV_ATOM_TOKENS;
		}
		bytes = atoms * s.heads * geometry.atom_bytes;
		fill_with_halves(q.data, q.count, stream);
		for (int i = 0; i < SETS; i++)
			add_set(i, count, longest, stream);
		a.layout = &layout;
		a.geometry = &geometry;
		a.sequences = (uint32_t)s.tokens.size();
		a.queries = s.queries;
		a.q_heads = s.q_heads;
		a.scale = 1 / sqrtf((float)s.d.k);
		a.q = q.data;
		a.q_dtype = a.out_dtype = KV_DTYPE_F16;
		a.blocks_stride = longest;
		a.kv_tokens = tokens.data;
		a.out = out.data;
		a.lse = lse.data;
		a.split_tokens = split;
		workspace = new device_array<uint8_t>(workspace_of(kv_cuda_attend_workspace, a));
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
		const size_t block = geometry.block_bytes;
		const side_of_atom k = {layout.k_format, geometry.k_codes_at, geometry.k_codes,
					geometry.k_scales_at, geometry.k_scales,
					usual_scale(layout.k_format, shape.d.k)},
				   v = {layout.v_format, geometry.v_codes_at, geometry.v_codes,
					geometry.v_scales_at, geometry.v_scales,
					usual_scale(layout.v_format, shape.d.v)};
		size_t next = 0;

		blocks.push_back(new device_array<uint8_t>(count * block));
		fill_atoms<<<4096, 256, 0, stream>>>(blocks[i]->data, count * block / geometry.atom_bytes,
						     geometry.atom_bytes, k, v, i);
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

	double time(cudaStream_t stream)
	{
		CUDA(cudaStreamSynchronize(stream));
		std::this_thread::sleep_for(std::chrono::milliseconds(REST_MS));
		return time_graph(stream,
				  [&] {
					  for (int i = 0; i < SETS * ROUNDS; i++) {
						  a.blocks = tables[i % SETS]->data;
						  must(kv_cuda_attend_run(&a, stream));
					  }
				  }) /
		       (SETS * ROUNDS);
	}
};

static std::string pair_name(enum kv_format k, enum kv_format v)
{
	std::string name = kv_format_info(k)->name;

	return k == v ? name : name + "/" + kv_format_info(v)->name;
}

static void print_line(const fixture &x, const char *mode, double us, double plan_us, double ceiling)
{
	const bench_shape &s = x.shape;

	printf("{\"bench\":\"attend\",\"shape\":\"%s\",\"format\":\"%s\",\"mode\":\"%s\",\"sequences\":%zu,"
	       "\"queries\":%u,\"q_heads\":%u,\"kv_heads\":%u,\"tokens\":%u,\"head_dim\":%u,\"head_dim_v\":%u,\"block_tokens\":%u,\"us\":%.2f,"
	       "\"plan_us\":%.1f,\"bytes\":%zu,\"gbs\":%.0f,\"ceiling_share\":%.3f}\n",
	       s.name, pair_name(x.layout.k_format, x.layout.v_format).c_str(), mode, s.tokens.size(),
	       s.queries, s.q_heads, s.heads, s.tokens[0], s.d.k, s.d.v, s.block_tokens, us, plan_us, x.bytes, x.bytes / us / 1e3,
	       x.bytes / us / 1e3 / ceiling);
	fflush(stdout);
}

struct feature_mode {
	const char *mode;
	struct kv_attend_features features;
	enum kv_dtype out_dtype;
};

/* Each by itself, with a window that holds everything, so that the bytes are the same; outputs of a byte; then
 * four together; then all of them. */
static std::vector<feature_mode> feature_modes(const fixture &x)
{
	const float *slopes = x.slopes.data, *tree = x.tree_bias.data;
	const int32_t *ranges = x.ranges.data;
	const uint32_t window = x.shape.tokens[0];
	const enum kv_dtype h = KV_DTYPE_F16, e = KV_DTYPE_E4M3;

	return {
		{"settled, window", {window, 0, nullptr, nullptr, false, nullptr, nullptr, 0, nullptr}, h},
		{"settled, soft cap", {0, 50, nullptr, nullptr, false, nullptr, nullptr, 0, nullptr}, h},
		{"settled, soft cap of 1000", {0, 1000, nullptr, nullptr, false, nullptr, nullptr, 0, nullptr}, h},
		{"settled, sinks", {0, 0, slopes, nullptr, false, nullptr, nullptr, 0, nullptr}, h},
		{"settled, ALiBi", {0, 0, nullptr, slopes, false, nullptr, nullptr, 0, nullptr}, h},
		{"settled, ALiBi by roots", {0, 0, nullptr, slopes, true, nullptr, nullptr, 0, nullptr}, h},
		{"settled, tree", {0, 0, nullptr, nullptr, false, tree, nullptr, 0, nullptr}, h},
		{"settled, ranges", {0, 0, nullptr, nullptr, false, nullptr, ranges, 1, nullptr}, h},
		{"settled, E4M3", {}, e},
		{"settled, window, soft cap, ALiBi, sinks",
		 {window, 50, slopes, slopes, false, nullptr, nullptr, 0, nullptr}, h},
		{"settled, everything", {window, 50, slopes, slopes, true, tree, ranges, 1, x.out_scale.data}, e},
	};
}

/* A line for each, and one for what they add to `settled`: the dearest alone, four, and all. */
static void run_features(fixture &x, double settled_us, double plan_us, double ceiling, cudaStream_t stream)
{
	const std::vector<feature_mode> modes = feature_modes(x);
	const size_t alone = modes.size() - 2;
	std::vector<double> added;

	for (const feature_mode &m : modes) {
		x.a.features = m.features;
		x.a.out_dtype = m.out_dtype;
		must(kv_cuda_attend_plan(&x.a, stream)); /* for this window and these ranges */
		const double us = x.time(stream);

		print_line(x, m.mode, us, plan_us, ceiling);
		added.push_back(us / settled_us - 1);
	}
	x.a.features = {};
	x.a.out_dtype = KV_DTYPE_F16;
	const size_t worst = (size_t)(std::max_element(added.begin(), added.begin() + alone) - added.begin());

	printf("{\"bench\":\"attend features\",\"shape\":\"%s\",\"format\":\"%s\",\"settled_us\":%.2f,\"dearest\":\"%s\","
	       "\"dearest_added\":%.3f,\"four_added\":%.3f,\"everything_added\":%.3f}\n",
	       x.shape.name, pair_name(x.layout.k_format, x.layout.v_format).c_str(), settled_us, modes[worst].mode,
	       added[worst], added[alone], added[alone + 1]);
	fflush(stdout);
}

/* Cut by tokens, whatever the batch: with a workspace of its own. Prints what that adds to `settled`. */
static void run_split(const bench_shape &s, enum kv_format k, enum kv_format v, uint32_t split, double settled_us,
		      double ceiling, cudaStream_t stream)
{
	fixture x(s, k, v, stream, split);
	const double plan_us = time_graph(stream, [&] { must(kv_cuda_attend_plan(&x.a, stream)); });
	char mode[48];

	x.a.settled = true;
	const double us = x.time(stream);

	snprintf(mode, sizeof(mode), "settled, split by %u tokens", split);
	print_line(x, mode, us, plan_us, ceiling);
	printf("{\"bench\":\"attend split\",\"shape\":\"%s\",\"format\":\"%s\",\"split_tokens\":%u,\"settled_us\":%.2f,"
	       "\"us\":%.2f,\"added\":%.3f}\n",
	       s.name, pair_name(k, v).c_str(), split, settled_us, us, us / settled_us - 1);
	fflush(stdout);
}

static void run_shape(const bench_shape &s, enum kv_format k, enum kv_format v, bool features,
		      double ceiling, cudaStream_t stream)
{
	fixture x(s, k, v, stream);
	const double plan_us = time_graph(stream, [&] { must(kv_cuda_attend_plan(&x.a, stream)); });

	print_line(x, "plain", x.time(stream), plan_us, ceiling);
	x.a.settled = true;
	const double settled_us = x.time(stream);

	print_line(x, "settled", settled_us, plan_us, ceiling);
	if (features)
		run_features(x, settled_us, plan_us, ceiling, stream);
	for (uint32_t split : {8192, 4096, 2048})
		if (k == v && (k == KV_TQ4 || k == KV_INT4_PTH || k == KV_FP8))
			run_split(s, k, v, split, settled_us, ceiling, stream);
}

static std::vector<uint32_t> ragged(uint32_t n)
{
	random_source r(7);
	std::vector<uint32_t> t(n);

	for (uint32_t &x : t)
		x = (uint32_t)(256 * exp((double)(r.next() >> 40) / (1 << 24) * log(128.0)));
	return t;
}

static const std::vector<bench_shape> shapes = {
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
	{"drafts of 4", 32, 8, 128, 16, std::vector<uint32_t>(32, 8192), 4},
#ifdef TERRACE_CUDA_ALL
	{"d 64", 32, 8, 64, 16, std::vector<uint32_t>(32, 16384)},
	{"d 96", 32, 8, 96, 16, std::vector<uint32_t>(32, 8192)},
	{"d 192", 32, 8, 192, 16, std::vector<uint32_t>(32, 8192)},
	{"d 256", 32, 8, 256, 16, std::vector<uint32_t>(32, 8192)},
	{"d 192/128", 32, 8, {192, 128}, 16, std::vector<uint32_t>(32, 8192)},
	{"d 128/64", 32, 8, {128, 64}, 16, std::vector<uint32_t>(32, 8192)},
#endif
};

/* Every shape with the two 4-bit formats; the main shape with all; that one and drafts with features too. */
void bench_attend(const char *format, const char *shape, double ceiling, cudaStream_t stream)
{
	for (const bench_shape &s : shapes)
		for (int k = KV_F16; k < KV_FORMAT_COUNT; k++)
			for (int v = KV_F16; v < KV_FORMAT_COUNT; v++) {
				const enum kv_format kf = (enum kv_format)k, vf = (enum kv_format)v;
				const bool main = &s == &shapes[0];

				if (!kv_cuda_attend_supported(kf, vf) || (shape && strcmp(shape, s.name)) ||
				    (format ? pair_name(kf, vf) != format
					    : !main && (k != v || (k != KV_TQ4 && k != KV_INT4_PTH))))
					continue;
				run_shape(s, kf, vf, main || s.queries > 1, ceiling, stream);
			}
}
