/* Extend on the GPU against float64: scores and sums of a plain kernel in double precision over the
 * values that the CPU decodes and the new tokens as they are.
 *
 * Blocks come from the CPU's encoder; what no token fills is left at 0xff, which as a scale is a NaN,
 * and so are outputs and workspace before a run. `extend small` runs few small cases, for
 * compute-sanitizer, `extend least` those over one head, `extend dims` those of other head dims than 128, where they
 * are built, in small sizes; `extend all FORMAT [DATA]` those whose keys have that format, of that kind of data.
 */
#include "kernels/cuda/machine.cuh"
#include "kernels/half.h"
#include "tests/gpu/extend_refusals.h"
#include "tests/gpu/gpu.h"

namespace
{

/* MIXED: some are sharp; EDGE: as large as is not sharp yet; GROWING, RISING: scores do, along the sequence, and RISING is not sharp. */
enum data { PLAIN, SHARP, MIXED, EDGE, WIDE, GROWING, RISING, TINY };
const char *const data_names[] = {"plain", "sharp", "mixed", "edge", "wide", "growing", "rising", "tiny"};
enum { LAYERS = 2, LAYER = 1, RANGES = 3 };

struct lengths {
	uint32_t prefix, own;
};

struct test_case {
	enum kv_format k, v;
	case_dims d;
	uint32_t heads, group, block_tokens;
	enum data data;
	enum kv_dtype q_dtype, own_dtype, out_dtype;
	std::vector<lengths> sequences;
	uint32_t window = 0;
	float softcap = 0;
	bool sinks = false, alibi = false, alibi_sqrt = false, tree = false, ranges = false, no_blocks = false;
	bool layout_window = false; /* the window is the layout's, and the call's a longer one */
};

/* Values of 16-bit elements; x becomes what they hold. */
std::vector<uint16_t> halves_of(enum kv_dtype t, std::vector<float> &x)
{
	std::vector<uint16_t> h(x.size());

	for (size_t i = 0; i < x.size(); i++) {
		h[i] = t == KV_DTYPE_F16 ? kv_half_from(x[i]) : kv_bf16_from(x[i]);
		x[i] = t == KV_DTYPE_F16 ? kv_half_to(h[i]) : kv_bf16_to(h[i]);
	}
	return h;
}

/* What the reference needs of a query: where its tokens' K and V are. */
struct reference_args {
	const float *q, *k, *v; /* [row][dim]; [token of all sequences, prefix first][head][dim] */
	const uint32_t *first, *position, *end,
		*own; /* [query]: the first of its sequence's tokens, its position, its sequence's length and prefix */
	const int32_t *ranges; /* [query][RANGES][2] */
	const float *tree_bias; /* [query][stride] */
	const float *sinks, *alibi;
	double *out, *lse;
	uint32_t dk, dv, heads, group, window, tree_stride;
	double scale, softcap;
	bool alibi_sqrt;
};

__device__ bool visible(const reference_args &a, uint32_t query, uint32_t p, uint32_t j)
{
	if (j <= p && (!a.window || p - j < a.window))
		return true;
	for (uint32_t i = 0; a.ranges && i < RANGES; i++) {
		const int64_t low = a.ranges[(query * RANGES + i) * 2], high = a.ranges[(query * RANGES + i) * 2 + 1];

		if (low <= p && p <= high && low <= j && j <= high)
			return true;
	}
	return false;
}

/* A block a (query, query head), scores in shared memory. */
__global__ void reference_kernel(reference_args a)
{
	DYNAMIC_SHARED(double, s, 16);
	__shared__ double top, total;
	const uint32_t q_heads = a.heads * a.group, query = blockIdx.x / q_heads,
		       h = blockIdx.x % q_heads;
	const uint32_t p = a.position[query], n = a.end[query], head = h / a.group;
	const size_t from = a.first[query];
	const float *q = a.q + (size_t)blockIdx.x * a.dk;

	for (uint32_t j = threadIdx.x; j < n; j += blockDim.x) {
		const float *k = a.k + ((from + j) * a.heads + head) * a.dk;
		double x = 0;

		for (uint32_t i = 0; i < a.dk; i++)
			x += (double)q[i] * k[i];
		x *= a.scale;
		if (a.softcap > 0)
			x = a.softcap * tanh(x / a.softcap);
		if (a.alibi)
			x -= a.alibi[h] * (a.alibi_sqrt ? sqrt(fabs((double)p - j)) : fabs((double)p - j));
		if (a.tree_bias && j >= a.own[query])
			x += a.tree_bias[query * a.tree_stride + j - a.own[query]];
		s[j] = visible(a, query, p, j) ? x : -INFINITY;
	}
	__syncthreads();
	if (threadIdx.x == 0) {
		top = a.sinks ? a.sinks[h] : -INFINITY;
		for (uint32_t j = 0; j < n; j++)
			top = fmax(top, s[j]);
	}
	__syncthreads();
	for (uint32_t j = threadIdx.x; j < n; j += blockDim.x)
		s[j] = exp(s[j] - top);
	__syncthreads();
	if (threadIdx.x == 0) {
		total = a.sinks ? exp(a.sinks[h] - top) : 0;
		for (uint32_t j = 0; j < n; j++)
			total += s[j];
		a.lse[blockIdx.x] = top + log(total);
	}
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < a.dv; i += blockDim.x) {
		double x = 0;

		for (uint32_t j = 0; j < n; j++)
			x += s[j] * a.v[((from + j) * a.heads + head) * a.dv + i];
		a.out[(size_t)blockIdx.x * a.dv + i] = x / total;
	}
}

struct world {
	const test_case &c;
	struct kv_layout layout;
	struct kv_geometry geometry;
	random_source r;
	std::vector<uint32_t> starts, prefixes, first, position, end, own_at;
	std::vector<int32_t> ranges, ranges_of_query;
	uint32_t tree_stride = 1;
	std::vector<uint64_t> table;
	std::vector<float> q, k, v, sinks, slopes, tree_bias;
	float out_scale = 0.01f; /* of E4M3 outputs, none of which saturates */
	std::vector<uint8_t> host;
	uint32_t stride = 1, longest = 1;
	device_array<uint8_t> *bytes;

	explicit world(const test_case &tc)
	    : c(tc), r(tc.d.k * 31 + tc.heads * 7 + tc.group + tc.sequences[0].prefix + tc.k * 1000)
	{
		layout = layout_of(c.k, c.v, c.d, LAYERS, c.heads, c.block_tokens);
		layout.window = c.layout_window ? c.window : 0;
		kv_geometry_of(&layout, &geometry);
		starts.push_back(0);
		uint32_t blocks = 0;

		for (const lengths &s : c.sequences) {
			const uint32_t n = (s.prefix + c.block_tokens - 1) / c.block_tokens;

			blocks += n;
			stride = n + 1 > stride ? n + 1 : stride;
			longest = s.prefix + s.own > longest ? s.prefix + s.own : longest;
			starts.push_back(starts.back() + s.own);
			prefixes.push_back(s.prefix);
		}
		host.assign(blocks * geometry.block_bytes + 1, 0xff);
		bytes = new device_array<uint8_t>(host.size());
		table.assign(c.sequences.size() * stride, 0xdead0000beef0000);
		q.resize((size_t)starts.back() * c.heads * c.group * c.d.k);
		for (float &x : q)
			x = r.bell();
		fill(blocks);
		for (uint32_t h = 0; h < c.heads * c.group; h++) {
			sinks.push_back(h % 3 == 2 ? -INFINITY : 2 * r.bell());
			slopes.push_back(exp2f(-1.0f - h % 8));
		}
		make_tree_and_ranges();
	}

	~world()
	{
		delete bytes;
	}

	/* A tree that masks about a third of what is not a token itself; ranges: one that reaches past the end, one that begins in the
	 * prefix, and none. */
	void make_tree_and_ranges()
	{
		for (const lengths &s : c.sequences) {
			const int32_t prefix = (int32_t)s.prefix, own = (int32_t)s.own;

			tree_stride = s.own > tree_stride ? s.own : tree_stride;
			ranges.insert(ranges.end(), {prefix + own / 2, prefix + own + 5, prefix - prefix / 3, prefix + own / 5, 1, 0});
			for (uint32_t i = 0; i < s.own; i++)
				ranges_of_query.insert(ranges_of_query.end(), ranges.end() - 2 * RANGES, ranges.end());
		}
		for (size_t i = 0; i < position.size(); i++)
			for (uint32_t j = 0; j < tree_stride; j++)
				tree_bias.push_back(own_at[i] + j != position[i] && r.next() % 3 == 0 ? -INFINITY : r.bell());
	}

	/* The first token that a query of the sequence sees, if there is one; those before it have values a thousand times as long, and blocks of
	 * nothing else no address. */
	uint32_t first_seen(const lengths &s) const
	{
		if (s.own == 0)
			return s.prefix + c.block_tokens;
		const uint32_t first = c.window && s.prefix + 1 > c.window ? s.prefix + 1 - c.window : 0;

		return c.ranges && s.prefix - s.prefix / 3 < first ? s.prefix - s.prefix / 3 : first;
	}

	uint32_t dim_of(enum kv_side side) const
	{
		return side == KV_SIDE_K ? c.d.k : c.d.v;
	}

	size_t rows() const
	{
		return q.size() / c.d.k;
	}

	/* One vector of the case's kind of data, the last `own` ones rounded to their type. */
	void make(std::vector<float> &x, enum kv_side side, uint32_t token, uint32_t head, const lengths &s,
		  const float *query)
	{
		float size = 1, along = 0;

		if (c.data == WIDE)
			size = exp2f((float)(r.next() % 22) - 21);
		if (c.data == TINY)
			size = side ? 1e-3f : 1;
		if ((c.data == SHARP || (c.data == MIXED && (head + s.own) % 2)) && side == KV_SIDE_K)
			size = 4;
		if (c.data == EDGE && side == KV_SIDE_K)
			size = 1.5f;
		if ((c.data == GROWING || c.data == RISING) && side == KV_SIDE_K)
			along = (c.data == GROWING ? 3.0f : 1.1f) * (float)token / (float)(s.prefix + s.own);
		if (token < first_seen(s))
			size = 1000;
		x.resize(dim_of(side));
		for (uint32_t i = 0; i < x.size(); i++)
			x[i] = size * r.bell() + (along > 0 ? along * query[i] : 0);
		if (token >= s.prefix)
			halves_of(c.own_dtype, x);
	}

	void fill(uint32_t blocks)
	{
		std::vector<uint32_t> order(blocks);
		std::vector<float> x;
		uint32_t next = 0, tokens = 0;

		for (uint32_t i = 0; i < blocks; i++)
			order[i] = i;
		for (uint32_t i = blocks; i > 1; i--)
			std::swap(order[i - 1], order[r.next() % i]);
		for (size_t i = 0; i < c.sequences.size(); i++) {
			const lengths &s = c.sequences[i];
			const uint32_t base = next, all = s.prefix + s.own;

			for (uint32_t b = 0; b < (s.prefix + c.block_tokens - 1) / c.block_tokens; b++, next++)
				if (b >= first_seen(s) / c.block_tokens)
					table[i * stride + b] = (uint64_t)(uintptr_t)bytes->data + order[next] * geometry.block_bytes;
			k.resize((size_t)(tokens + all) * c.heads * c.d.k);
			v.resize((size_t)(tokens + all) * c.heads * c.d.v);
			for (uint32_t side = 0; side < 2; side++)
				for (uint32_t t = 0; t < all; t++)
					for (uint32_t h = 0; h < c.heads; h++) {
						const enum kv_side of = (enum kv_side)side;
						float *to = &(side ? v : k)[((size_t)(tokens + t) * c.heads + h) * dim_of(of)];
						const float *query =
							&q[((size_t)starts[i] * c.heads + h) * c.group * c.d.k];

						make(x, of, t, h, s, s.own ? query : q.data());
						memcpy(to, x.data(), x.size() * 4);
						if (t < s.prefix)
							pack(&host[order[base + t / c.block_tokens] *
								   geometry.block_bytes],
							     of, h, t, to);
					}
			for (uint32_t j = 0; j < s.own; j++) {
				first.push_back(tokens);
				position.push_back(s.prefix + j);
				end.push_back(s.prefix + s.own);
				own_at.push_back(s.prefix);
			}
			tokens += all;
		}
		bytes->set(host);
	}

	void pack(uint8_t *block, enum kv_side side, uint32_t h, uint32_t t, float *x)
	{
		kv_encode(&layout, &geometry, block, LAYER, h, side, t % c.block_tokens, 1, x,
			  KV_DTYPE_F32, dim_of(side));
		kv_decode(&layout, &geometry, block, LAYER, h, side, t % c.block_tokens, 1, false, x,
			  KV_DTYPE_F32, dim_of(side));
	}

	/* The new tokens' part of k or v, [token][heads][dim] and 8 elements more a token. */
	std::vector<uint16_t> own_of(enum kv_side side) const
	{
		const std::vector<float> &from = side == KV_SIDE_K ? k : v;
		const size_t each = c.heads * dim_of(side);
		std::vector<float> x;

		for (size_t i = 0; i < position.size(); i++) {
			const float *at = &from[(first[i] + position[i]) * each];

			x.insert(x.end(), at, at + each);
			x.insert(x.end(), 8, NAN);
		}
		return halves_of(c.own_dtype, x);
	}

	void reference(std::vector<double> &out, std::vector<double> &lse) const
	{
		device_array<float> qd(q), kd(k), vd(v), sd(sinks), ad(slopes), td(tree_bias);
		device_array<uint32_t> fd(first), pd(position), ed(end), nd(own_at);
		device_array<int32_t> rd(ranges_of_query);
		device_array<double> od(rows() * c.d.v), ld(rows());
		reference_args a = {qd.data,
				    kd.data,
				    vd.data,
				    fd.data,
				    pd.data,
				    ed.data,
				    nd.data,
				    c.ranges ? rd.data : nullptr,
				    c.tree ? td.data : nullptr,
				    c.sinks ? sd.data : nullptr,
				    c.alibi ? ad.data : nullptr,
				    od.data,
				    ld.data,
				    c.d.k,
				    c.d.v,
				    c.heads,
				    c.group,
				    c.window,
				    tree_stride,
				    1 / sqrt((double)c.d.k),
				    c.softcap,
				    c.alibi_sqrt};

		CUDA(cudaFuncSetAttribute(reference_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
					  (int)(longest * 8)));
		launch_kernel(reference_kernel, (uint32_t)ld.count, 256, longest * 8, nullptr, a);
		CUDA(cudaGetLastError());
		CUDA(cudaDeviceSynchronize());
		out = od.get();
		lse = ld.get();
	}
};

struct errors {
	double worst, mean, lse;
};

errors compare(const std::vector<double> &want, const std::vector<double> &lse_want,
	       const std::vector<uint8_t> &got, const std::vector<float> &lse, enum kv_dtype t,
	       uint32_t d, float out_scale)
{
	errors e = {};

	for (size_t row = 0; row < lse.size(); row++) {
		double difference = 0, length = 0;

		for (size_t i = row * d; i < (row + 1) * d; i++) {
			float x;
			uint16_t h = 0;

			if (t == KV_DTYPE_F16 || t == KV_DTYPE_BF16)
				memcpy(&h, &got[2 * i], 2);
			if (t == KV_DTYPE_F32)
				memcpy(&x, &got[4 * i], 4);
			else if (t == KV_DTYPE_E4M3)
				x = kv_e4m3_to(got[i]) * out_scale;
			else
				x = t == KV_DTYPE_F16 ? kv_half_to(h) : kv_bf16_to(h);
			difference += pow(x - want[i], 2);
			length += want[i] * want[i];
		}
		const double error = sqrt(difference / length), off = fabs(lse[row] - lse_want[row]);

		if (!(error <= e.worst) && !isnan(e.worst))
			e.worst = error;
		if (!(off <= e.lse) && !isnan(e.lse))
			e.lse = off;
		e.mean += error / (double)lse.size();
	}
	return e;
}

bool expect_ok(enum status s, const char *what)
{
	if (s != STATUS_OK)
		fprintf(stderr, "%s: status %d (%s)\n", what, s, cudaGetErrorString(cudaGetLastError()));
	return s == STATUS_OK;
}

/* A case's call, with all that it points at. */
struct prepared {
	const test_case &c;
	device_array<uint16_t> k, v, q16;
	device_array<float> q32, lse, sinks, slopes, tree_bias, out_scale;
	device_array<uint32_t> starts, prefixes;
	device_array<int32_t> ranges;
	device_array<uint64_t> table;
	device_array<uint8_t> out;
	struct kv_cuda_extend e = {};

	/* w.q becomes what the call's elements hold. */
	explicit prepared(world &w)
	    : c(w.c), k(w.own_of(KV_SIDE_K)), v(w.own_of(KV_SIDE_V)), q16(halves_of(c.q_dtype == KV_DTYPE_F32 ? KV_DTYPE_F16 : c.q_dtype, w.q)), q32(w.q),
	      lse(w.rows()), sinks(w.sinks), slopes(w.slopes), tree_bias(w.tree_bias), out_scale(std::vector<float>{w.out_scale}),
	      starts(w.starts), prefixes(w.prefixes), ranges(w.ranges), table(w.table), out(w.rows() * c.d.v * 4)
	{
		e.layout = &w.layout;
		e.geometry = &w.geometry;
		e.layer = LAYER;
		e.sequences = (uint32_t)c.sequences.size();
		e.total_queries = w.starts.back();
		e.q_heads = c.heads * c.group;
		e.scale = 1 / sqrtf((float)c.d.k);
		e.query_starts = starts.data;
		e.prefix_tokens = prefixes.data;
		e.q = c.q_dtype == KV_DTYPE_F32 ? (void *)q32.data : q16.data;
		e.q_dtype = c.q_dtype;
		e.k = k.data;
		e.v = v.data;
		e.k_stride = c.heads * c.d.k + 8;
		e.v_stride = c.heads * c.d.v + 8;
		e.own_dtype = c.own_dtype;
		e.blocks = c.no_blocks ? nullptr : table.data;
		e.blocks_stride = c.no_blocks ? 0 : w.stride;
		e.features.out_scale = out_scale.data; /* looked at for E4M3 alone */
		e.features.window = c.layout_window ? c.window + 100 : c.window;
		e.features.softcap = c.softcap;
		e.features.sinks = c.sinks ? sinks.data : nullptr;
		e.features.alibi = c.alibi ? slopes.data : nullptr;
		e.features.alibi_sqrt = c.alibi_sqrt;
		e.features.tree_bias = c.tree ? tree_bias.data : nullptr;
		e.tree_stride = w.tree_stride;
		e.features.ranges = c.ranges ? ranges.data : nullptr;
		e.features.ranges_max = c.ranges ? RANGES : 0;
		e.out = out.data;
		e.out_dtype = c.out_dtype;
		e.lse = lse.data;
	}

	/* Its outputs. */
	std::vector<uint8_t> get_out() const
	{
		std::vector<uint8_t> all = out.get();

		all.resize(out.count / 4 * kv_dtype_bytes(e.out_dtype));
		return all;
	}
};

/* Runs a case twice, the second time from a graph; both must agree to the bit. */
bool run_case(const test_case &c)
{
	world w(c);
	prepared p(w);
	struct kv_cuda_extend &e = p.e;
	cudaStream_t stream;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	std::vector<uint8_t> got;
	std::vector<double> want, lse_want;
	bool ok = true;
	device_array<uint8_t> workspace(workspace_of(kv_cuda_extend_workspace, e));

	e.workspace = workspace.data;
	e.workspace_bytes = workspace.count;
	w.reference(want, lse_want);
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	for (int run = 0; run < 2 && ok; run++) {
		p.out.poison();
		p.lse.poison();
		if (run == 0) {
			ok = expect_ok(kv_cuda_extend_run(&e, stream), "run");
		} else {
			CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
			ok = expect_ok(kv_cuda_extend_run(&e, stream), "run in a graph");
			CUDA(cudaStreamEndCapture(stream, &graph));
			CUDA(cudaGraphInstantiate(&exec, graph, 0));
			CUDA(cudaGraphLaunch(exec, stream));
			CUDA(cudaStreamSynchronize(stream));
			CUDA(cudaGraphExecDestroy(exec));
			CUDA(cudaGraphDestroy(graph));
		}
		CUDA(cudaStreamSynchronize(stream));
		if (run == 0)
			got = p.get_out();
		else if (got != p.get_out()) {
			fprintf(stderr, "the graph's result differs\n");
			ok = false;
		}
	}
	const errors x = compare(want, lse_want, got, p.lse.get(), c.out_dtype, c.d.v, w.out_scale);

	const double allowed = c.out_dtype == KV_DTYPE_E4M3 ? 4e-2 : c.out_dtype == KV_DTYPE_BF16 ? 4e-3 : 2e-3;

	ok = ok && x.worst <= allowed && x.lse <= 2e-3;
	printf("%-4s %s/%s d %u/%u heads %u x %u block %u %s%s%s%s%s%s%s%s%s sequences %zu %u+%u..: out %.1e (mean "
	       "%.1e) lse %.1e\n",
	       ok ? "ok" : "BAD", kv_format_info(c.k)->name, kv_format_info(c.v)->name, c.d.k, c.d.v, c.heads,
	       c.group, c.block_tokens, data_names[c.data], c.window ? " window" : "",
	       c.softcap > 0 ? " softcap" : "", c.sinks ? " sinks" : "", c.alibi ? " alibi" : "",
	       c.tree ? " tree" : "", c.ranges ? " ranges" : "", c.out_dtype == KV_DTYPE_E4M3 ? " e4m3" : "",
	       c.no_blocks ? " no-blocks" : "",
	       c.sequences.size(), c.sequences[0].prefix, c.sequences[0].own, x.worst, x.mean, x.lse);
	fflush(stdout);
	CUDA(cudaStreamDestroy(stream));
	return ok;
}

/* Outputs of type t of a call as it is now. */
std::vector<uint8_t> outputs_of(prepared &p, enum kv_dtype t)
{
	p.e.out_dtype = t;
	p.out.poison();
	p.lse.poison();
	device_array<uint8_t> workspace(workspace_of(kv_cuda_extend_workspace, p.e));

	p.e.workspace = workspace.data;
	p.e.workspace_bytes = workspace.count;
	if (!expect_ok(kv_cuda_extend_run(&p.e, nullptr), "run"))
		exit(1);
	CUDA(cudaDeviceSynchronize());
	return p.get_out();
}

/* Queries that are not finite make their rows NaN, lse too, and no others. */
bool queries_stay_alone(const world &w, prepared &p)
{
	const uint32_t d = p.c.d.k; /* and of V */
	const size_t spoiled[] = {3, 10, w.q.size() / d - 1};
	const float with[] = {NAN, INFINITY, -INFINITY};
	const std::vector<uint8_t> usual = outputs_of(p, KV_DTYPE_F32);
	std::vector<float> q = w.q;
	bool ok = true;

	for (int i = 0; i < 3; i++)
		q[spoiled[i] * d + 7 + 40 * i] = with[i];
	p.q32.set(q);
	const std::vector<uint8_t> got = outputs_of(p, KV_DTYPE_F32);
	const std::vector<float> lse = p.lse.get();

	for (size_t row = 0; row < lse.size(); row++) {
		const float *x = (const float *)got.data() + row * d, *y = (const float *)usual.data() + row * d;
		double difference = 0, length = 0;
		bool nan = isnan(lse[row]);

		for (uint32_t i = 0; i < d; i++) {
			difference += pow(x[i] - y[i], 2);
			length += pow(y[i], 2);
			nan = nan && isnan(x[i]);
		}
		ok = ok && (row == spoiled[0] || row == spoiled[1] || row == spoiled[2] ? nan : difference <= 4e-6 * length);
	}
	p.q32.set(w.q);
	return ok;
}

/* A new token's K and V that are not finite count as terrace_encode stores them: the same bits as of 0 and 65504. */
bool new_tokens_are_cleaned(const world &w, prepared &p)
{
	const uint32_t pitch = p.c.d.k + 8, token = p.c.sequences[0].own / 2;
	const uint16_t odd[] = {0x7e00, 0x7c00, 0xfc00}, stored[] = {0, 0x7bff, 0xfbff};
	std::vector<uint8_t> got[2];

	for (int clean = 0; clean < 2; clean++) {
		std::vector<uint16_t> k = w.own_of(KV_SIDE_K), v = w.own_of(KV_SIDE_V);

		for (int i = 0; i < 3; i++) {
			k[token * pitch + 5 + 40 * i] = clean ? stored[i] : odd[i];
			v[(token + 1) * pitch + 9 + 40 * i] = clean ? stored[i] : odd[i];
		}
		p.k.set(k);
		p.v.set(v);
		got[clean] = outputs_of(p, KV_DTYPE_F32);
	}
	p.k.set(w.own_of(KV_SIDE_K));
	p.v.set(w.own_of(KV_SIDE_V));
	for (size_t i = 0; i < got[0].size() / 4; i++)
		if (!isfinite(((const float *)got[0].data())[i]))
			return false;
	return got[0] == got[1];
}

/* Values near the largest fp16, packed and new: halves are the floats saturated. */
bool values_saturate(world &w, prepared &p)
{
	const uint32_t prefix = p.c.sequences[0].prefix, size = p.c.block_tokens, d = p.c.d.v;
	std::vector<uint16_t> own(p.v.count);
	std::vector<float> v(d);
	bool ok = true, largest = false;

	for (uint32_t i = 0; i < d; i++)
		v[i] = (i % 3 ? 65504.0f : 65000.0f) * (i % 5 ? 1 : -1);
	for (uint32_t t = 0; t < prefix; t++)
		kv_encode(&w.layout, &w.geometry, &w.host[w.table[t / size] - (uint64_t)(uintptr_t)w.bytes->data], LAYER, 0, KV_SIDE_V, t % size, 1,
			  v.data(), KV_DTYPE_F32, d);
	w.bytes->set(w.host);
	for (size_t i = 0; i < own.size(); i++)
		own[i] = half_from_float(i % (d + 8) < d ? v[i % (d + 8)] : NAN);
	p.v.set(own);
	const std::vector<uint8_t> floats = outputs_of(p, KV_DTYPE_F32), halves = outputs_of(p, KV_DTYPE_F16), others = outputs_of(p, KV_DTYPE_BF16);

	for (size_t i = 0; i < halves.size() / 2; i++) {
		const float x = ((const float *)floats.data())[i];
		const uint16_t h = ((const uint16_t *)halves.data())[i];

		ok = ok && h == half_saturated(x) && ((const uint16_t *)others.data())[i] == bf16_saturated(x) && isfinite(x);
		largest = largest || (h & 0x7fff) == 0x7bff;
	}
	return ok && (largest || p.c.v == KV_INT4_PTH); /* which keeps the rotated vector in fp16: nothing so large comes back */
}

/* One head, one sequence. */
bool run_odd_numbers(enum kv_format k, enum kv_format v)
{
	const test_case c = {k, v, 128, 1, 2, 16, PLAIN, KV_DTYPE_F32, KV_DTYPE_F16, KV_DTYPE_F32, {{100, 40}}};
	world w(c);
	prepared p(w);
	const bool queries = queries_stay_alone(w, p), own = new_tokens_are_cleaned(w, p), values = values_saturate(w, p);

	printf("%-4s %s/%s odd numbers%s%s%s\n", queries && own && values ? "ok" : "BAD", kv_format_info(k)->name, kv_format_info(v)->name,
	       queries ? "" : ": queries", own ? "" : ": new tokens", values ? "" : ": values");
	fflush(stdout);
	return queries && own && values;
}

constexpr enum kv_format pairs[][2] = {{KV_TQ4, KV_TQ4},   {KV_INT4_PTH, KV_INT4_PTH},
				       {KV_FP8, KV_FP8},   {KV_F16, KV_F16},
				       {KV_BF16, KV_BF16}, {KV_TQ3, KV_TQ3},
				       {KV_TQ2, KV_TQ2},   {KV_FP8, KV_TQ4},
				       {KV_FP8, KV_TQ3},   {KV_TQ4, KV_TQ3}};

/* The other head dims in small sizes: both lines of units, a window that begins within a tile, what only the portable
 * kernel does, and more rows than a tile has. */
std::vector<test_case> dim_cases(enum kv_format k, enum kv_format v)
{
	const enum kv_dtype h = KV_DTYPE_F16, b = KV_DTYPE_BF16, w = KV_DTYPE_F32;
	std::vector<test_case> t;

	for (case_dims d : other_attend_dims()) {
		t.push_back({k, v, d, 1, 4, 16, MIXED, h, h, w, {{230, 40}, {0, 3}, {33, 101}}});
		t.push_back({k, v, d, 2, 2, 48, PLAIN, b, b, b, {{150, 40}, {33, 90}, {0, 2}}, 64, 20.0f, true, true});
		t.push_back({k, v, d, 1, 4, 16, SHARP, w, h, h, {{150, 40}, {33, 9}}, 64, 0, false, true, false, true, true});
	}
	return t;
}

std::vector<test_case> cases(bool small)
{
	const enum kv_dtype h = KV_DTYPE_F16, b = KV_DTYPE_BF16, w = KV_DTYPE_F32;
	std::vector<test_case> t;

	for (const auto &p : pairs) {
		const enum kv_format k = p[0], v = p[1];

		t.push_back({k,
			     v,
			     128,
			     2,
			     4,
			     16,
			     PLAIN,
			     h,
			     h,
			     w,
			     {{300, 70}, {0, 1}, {17, 130}, {64, 0}, {1, 5}}});
		t.push_back({k, v, 128, 1, 4, 16, PLAIN, h, h, w, {{150, 40}, {33, 90}, {0, 2}}, 64, 0, false, true, false, true, true});
		t.push_back({k, v, 128, 2, 4, 16, MIXED, h, h, w, {{230, 40}, {0, 3}, {33, 101}}});
		t.push_back({k, v, 128, 1, 4, 16, PLAIN, h, h, w, {{1000, 20}}}); /* fewer steps than a device has multiprocessors */
		if (k == v && (k == KV_INT4_PTH || k == KV_TQ4))
			t.push_back({k, v, 128, 1, 4, 16, RISING, h, h, w, {{600, 40}}});
		if (k == KV_INT4_PTH) { /* one for all */
			t.push_back({k, v, 128, 1, 2, 16, PLAIN, h, h, KV_DTYPE_E4M3, {{33, 9}}, 0, 3.0e38f, true});
			t.push_back({k, v, 128, 1, 2, 16, SHARP, h, h, w, {{0, 40}, {0, 3}}, 0, 1e5f, false, false, false, false, false, true});
			t.push_back({k, v, 128, 1, 2, 16, PLAIN, h, h, w, {{33, 9}}, 0, 1e-45f});
			t.push_back({k, v, 128, 1, 2, 16, PLAIN, h, h, w, {{150, 40}, {90, 9}}, 30, 0, false, false, false, false, false, false, true});
		}
		if (small)
			continue;
		t.push_back({k, v, 128, 2, 4, 32, PLAIN, h, b, w, {{2059, 301}}});
		t.push_back({k, v, 128, 1, 4, 16, WIDE, h, h, w, {{1000, 100}}});
		for (case_dims d : other_attend_dims())
			t.push_back({k, v, d, 2, 4, 16, MIXED, h, h, w, {{333, 70}, {1100, 201}, {0, 3}}});
		for (const test_case &c : dim_cases(k, v))
			t.push_back(c);
	}
	if (small)
		return t;
	for (enum kv_format f : {KV_TQ4, KV_INT4_PTH}) {
		for (uint32_t group : {1, 2, 3, 5, 7, 8, 12, 16})
			t.push_back({f, f, 128, 2, group, 16, PLAIN, h, h, w, {{515, 97}, {31, 260}}});
		for (enum data data : {SHARP, EDGE, GROWING, TINY})
			t.push_back({f, f, 128, 2, 4, 64, data, h, h, w, {{4000, 256}, {129, 300}}});
		t.push_back({f, f, 128, 8, 4, 16, PLAIN, h, h, w, {{6001, 512}}});
		t.push_back({f, f, 128, 1, 1, 16, PLAIN, h, h, w, {{20000, 33}}});
		t.push_back({f, f, 128, 2, 4, 48, PLAIN, b, b, b, {{777, 222}}});
		t.push_back({f, f, 128, 2, 4, 48, PLAIN, w, h, h, {{777, 222}}});
		t.push_back({f, f, 128, 2, 4, 16, PLAIN, h, h, w, {{900, 333}, {20, 150}}, 100});
		t.push_back({f, f, 128, 2, 4, 16, PLAIN, h, h, w, {{1900, 333}}, 700});
		for (float cap : {8.0f, 1000.0f, 30000.0f, 1e9f})
			t.push_back({f, f, 128, 2, 4, 16, SHARP, h, h, w, {{900, 333}}, 0, cap});
		t.push_back({f, f, 128, 2, 4, 16, PLAIN, h, h, KV_DTYPE_E4M3, {{900, 100}, {0, 33}}});
		t.push_back({f, f, 128, 2, 4, 16, PLAIN, h, h, w, {{900, 100}}, 0, 0, true});
		t.push_back({f, f, 128, 2, 4, 16, PLAIN, h, h, w, {{900, 100}}, 0, 0, false, true});
		t.push_back({f,
			     f,
			     128,
			     2,
			     4,
			     16,
			     PLAIN,
			     h,
			     h,
			     w,
			     {{900, 100}},
			     300,
			     20.0f,
			     true,
			     true,
			     true});
		t.push_back({f, f, 128, 2, 4, 16, PLAIN, h, h, w, {{900, 300}, {70, 33}}, 0, 0, false, false, false, true, false});
		t.push_back({f, f, 128, 2, 4, 16, MIXED, h, b, w, {{900, 301}, {70, 32}}, 200, 0, true, true, false, true, true});
		t.push_back({f, f, 128, 2, 4, 16, MIXED, h, b, w, {{900, 301}, {70, 32}}, 200, 9.0f, true, true});
		t.push_back({f, f, 128, 2, 4, 16, PLAIN, h, h, w, {{900, 300}, {5, 400}}, 0, 0, false, false, false, false, true});
		t.push_back({f, f, 128, 1, 3, 16, PLAIN, h, h, w, {{900, 300}, {70, 133}}, 100, 20.0f, true, true, true, true, true});
		t.push_back({f, f, 128, 2, 4, 16, PLAIN, h, h, w,
			     std::vector<lengths>(40, lengths{200, 9})});
		for (case_dims d : other_attend_dims()) {
			if (d.k == d.v)
				continue;
			for (enum data data : {SHARP, GROWING, TINY})
				t.push_back({f, f, d, 2, 4, 64, data, h, h, w, {{4000, 256}, {129, 300}}});
			for (uint32_t group : {1, 3, 16})
				t.push_back({f, f, d, 2, group, 16, MIXED, h, h, w, {{515, 97}, {31, 260}}});
			t.push_back({f, f, d, 2, 4, 16, MIXED, h, h, w, {{1900, 333}, {20, 150}}, 700});
			t.push_back({f, f, d, 2, 4, 16, MIXED, h, b, w, {{900, 301}, {70, 32}}, 200, 9.0f, true, true});
		}
	}
	return t;
}

std::vector<test_case> all_dim_cases()
{
	std::vector<test_case> t;

	for (const auto &p : pairs)
		for (const test_case &c : dim_cases(p[0], p[1]))
			t.push_back(c);
	return t;
}

} // namespace

int main(int argc, char **argv)
{
	const bool least = argc > 1 && strcmp(argv[1], "least") == 0;
	const bool dims = argc > 1 && strcmp(argv[1], "dims") == 0;
	const bool small = least || (argc > 1 && strcmp(argv[1], "small") == 0);
	bool ok = run_extend_refusals();

	for (const auto &f : pairs)
		if (!dims && (argc < 3 || (strcmp(argv[2], kv_format_info(f[0])->name) == 0 && argc < 4)))
			ok = run_odd_numbers(f[0], f[1]) && ok;
	for (test_case c : dims ? all_dim_cases() : cases(small)) {
		if (least)
			c.heads = 1;
		if ((argc < 3 || strcmp(argv[2], kv_format_info(c.k)->name) == 0) &&
		    (argc < 4 || strcmp(argv[3], data_names[c.data]) == 0))
			ok = run_case(c) && ok;
	}
	printf("extend: %s\n", ok ? "all good" : "FAILED");
	return ok ? 0 : 1;
}
