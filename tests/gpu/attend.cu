/* Attention from packed blocks on the GPU against a float64 reference on the values that the CPU decodes.
 *
 * Blocks come from the CPU's encoder; what no token fills is left at 0xff, which as a scale is a NaN, and
 * so are all outputs and the workspace before a run. `attend small` runs few small cases, for
 * compute-sanitizer.
 */
#include "tests/gpu/gpu.h"

enum data { PLAIN, GROWING, WIDE, SINK, ZEROS, SHARP };
static const char *const data_names[] = {"plain", "growing", "wide", "sink", "zeros", "sharp"};

struct test_case {
	enum kv_format format;
	uint32_t d, heads, group, queries, block_tokens;
	enum data data;
	enum kv_dtype q_dtype, out_dtype;
	std::vector<uint32_t> tokens;
};

static uint16_t half_of(enum kv_dtype t, float x)
{
	return t == KV_DTYPE_F16 ? kv_half_from(x) : kv_bf16_from(x);
}

static float float_of(enum kv_dtype t, uint16_t h)
{
	return t == KV_DTYPE_F16 ? kv_half_to(h) : kv_bf16_to(h);
}

static std::vector<uint8_t> elements_of(enum kv_dtype t, std::vector<float> &x)
{
	std::vector<uint8_t> bytes(x.size() * kv_dtype_bytes(t));

	for (size_t i = 0; i < x.size(); i++) {
		if (t == KV_DTYPE_F32) {
			memcpy(&bytes[4 * i], &x[i], 4);
		} else {
			uint16_t h = half_of(t, x[i]);

			memcpy(&bytes[2 * i], &h, 2);
			x[i] = float_of(t, h);
		}
	}
	return bytes;
}

static std::vector<float> floats_of(enum kv_dtype t, const std::vector<uint8_t> &bytes)
{
	std::vector<float> x(bytes.size() / kv_dtype_bytes(t));

	for (size_t i = 0; i < x.size(); i++) {
		uint16_t h;

		memcpy(&h, &bytes[2 * i], 2);
		if (t == KV_DTYPE_F32)
			memcpy(&x[i], &bytes[4 * i], 4);
		else
			x[i] = float_of(t, h);
	}
	return x;
}

/* A case made real: blocks on the device and the decoded values on the host. */
struct world {
	const test_case &c;
	struct kv_layout layout;
	struct kv_geometry geometry;
	std::vector<float> q;
	std::vector<std::vector<float>> k, v; /* [sequence * heads + head][token][d], decoded */
	std::vector<uint64_t> table;
	uint32_t stride;
	device_array<uint8_t> *bytes, *q_device;
	device_array<uint64_t> *table_device;
	device_array<uint32_t> *tokens_device;

	explicit world(const test_case &c);
	~world();
	void fill_head(std::vector<uint8_t> &host, const std::vector<uint32_t> &blocks, uint32_t sequence,
		       uint32_t head, random_source &r);
	void shape(struct kv_cuda_attend *a) const;
	double check(const std::vector<float> &out, const std::vector<float> &lse,
		     double *lse_error) const;
};

enum { LAYERS = 2, LAYER = 1 };

/* One vector of the case's kind of data. `query` is what growing and sunk keys lie along. */
static void make_vector(const test_case &c, enum kv_side side, uint32_t token, uint32_t tokens,
			const float *query, random_source &r, std::vector<float> &x)
{
	float size = 1, along = 0, offset = 0;

	if (c.data == WIDE)
		size = exp2f((float)(r.next() % 22) - 16);
	if (c.data == SHARP && side == KV_SIDE_K)
		size = 6;
	if (c.data == GROWING && side == KV_SIDE_K)
		along = 3.0f * (float)token / (float)tokens;
	if (c.data == SINK) {
		along = side == KV_SIDE_K && token == 3 ? 1.2f : 0;
		offset = side == KV_SIDE_V ? 0.5f : 0;
	}
	for (uint32_t i = 0; i < c.d; i++)
		x[i] = c.data == ZEROS && side == KV_SIDE_V
			       ? 0
			       : size * (r.bell() + offset) + along * query[i];
}

void world::fill_head(std::vector<uint8_t> &host, const std::vector<uint32_t> &blocks, uint32_t sequence,
		      uint32_t head, random_source &r)
{
	const uint32_t tokens = c.tokens[sequence], d = c.d;
	const float *query = &q[((size_t)sequence * c.queries * c.heads + head) * c.group * d];
	std::vector<float> x(d);

	for (int side = 0; side < 2; side++) {
		std::vector<float> &out =
			side ? v[sequence * c.heads + head] : k[sequence * c.heads + head];

		out.resize((size_t)tokens * d);
		for (uint32_t i = 0; i < tokens; i++) {
			uint8_t *block = &host[blocks[i / c.block_tokens] * geometry.block_bytes];

			make_vector(c, (enum kv_side)side, i, tokens, query, r, x);
			kv_encode(&layout, &geometry, block, LAYER, head, (enum kv_side)side,
				  i % c.block_tokens, 1, x.data(), KV_DTYPE_F32, d);
			kv_decode(&layout, &geometry, block, LAYER, head, (enum kv_side)side,
				  i % c.block_tokens, 1, false, &out[(size_t)i * d], KV_DTYPE_F32, d);
		}
	}
}

world::world(const test_case &tc) : c(tc)
{
	random_source r(c.d * 131 + c.heads * 17 + c.group + c.tokens[0]);
	uint32_t sequences = (uint32_t)c.tokens.size(), blocks = 0;

	layout = layout_of(c.format, c.d, LAYERS, c.heads, c.block_tokens);
	if (kv_layout_problem(&layout)) {
		fprintf(stderr, "%s\n", kv_layout_problem(&layout));
		exit(1);
	}
	kv_geometry_of(&layout, &geometry);
	stride = 1;
	for (uint32_t t : c.tokens) {
		uint32_t n = (t + c.block_tokens - 1) / c.block_tokens;

		blocks += n;
		stride = n + 1 > stride ? n + 1 : stride;
	}
	q.resize((size_t)sequences * c.queries * c.heads * c.group * c.d);
	for (float &x : q)
		x = r.bell();
	q_device = new device_array<uint8_t>(elements_of(c.q_dtype, q));
	k.resize(sequences * c.heads);
	v.resize(sequences * c.heads);

	std::vector<uint8_t> host(blocks * geometry.block_bytes + 1, 0xff);
	std::vector<uint32_t> order(blocks);

	for (uint32_t i = 0; i < blocks; i++)
		order[i] = i;
	for (uint32_t i = blocks; i > 1; i--)
		std::swap(order[i - 1], order[r.next() % i]);
	bytes = new device_array<uint8_t>(host.size());
	table.assign((size_t)sequences * stride, 0xdead0000beef0000);
	for (uint32_t s = 0, next = 0; s < sequences; s++) {
		std::vector<uint32_t> mine;

		for (uint32_t i = 0; i < (c.tokens[s] + c.block_tokens - 1) / c.block_tokens; i++) {
			mine.push_back(order[next++]);
			table[(size_t)s * stride + i] =
				(uint64_t)(uintptr_t)bytes->data + mine[i] * geometry.block_bytes;
		}
		for (uint32_t head = 0; head < c.heads; head++)
			fill_head(host, mine, s, head, r);
	}
	bytes->set(host);
	table_device = new device_array<uint64_t>(table);
	tokens_device = new device_array<uint32_t>(c.tokens);
}

world::~world()
{
	delete bytes;
	delete q_device;
	delete table_device;
	delete tokens_device;
}

void world::shape(struct kv_cuda_attend *a) const
{
	*a = {};
	a->layout = &layout;
	a->geometry = &geometry;
	a->layer = LAYER;
	a->sequences = (uint32_t)c.tokens.size();
	a->queries = c.queries;
	a->q_heads = c.heads * c.group;
	a->scale = 1.0f / sqrtf((float)c.d);
	a->q = q_device->data;
	a->q_dtype = c.q_dtype;
	a->blocks = table_device->data;
	a->blocks_stride = stride;
	a->kv_tokens = tokens_device->data;
	a->out_dtype = c.out_dtype;
}

/* One row of the reference. */
static void reference_row(const float *q, const float *k, const float *v, uint32_t tokens, uint32_t d,
			  float scale, std::vector<double> &out, double *lse)
{
	std::vector<double> s(tokens);
	double top = -INFINITY, total = 0;

	out.assign(d, 0);
	for (uint32_t j = 0; j < tokens; j++) {
		double dot = 0;

		for (uint32_t i = 0; i < d; i++)
			dot += (double)q[i] * k[(size_t)j * d + i];
		s[j] = dot * scale;
		top = s[j] > top ? s[j] : top;
	}
	for (uint32_t j = 0; j < tokens; j++) {
		double p = exp(s[j] - top);

		total += p;
		for (uint32_t i = 0; i < d; i++)
			out[i] += p * v[(size_t)j * d + i];
	}
	for (uint32_t i = 0; i < d && tokens; i++)
		out[i] /= total;
	*lse = tokens ? top + log(total) : -INFINITY;
}

/* The largest relative error of a row, and the largest error of a logarithm. */
double world::check(const std::vector<float> &out, const std::vector<float> &lse, double *lse_error) const
{
	double worst = 0;
	std::vector<double> want;

	*lse_error = 0;
	for (size_t row = 0; row < lse.size(); row++) {
		uint32_t q_heads = c.heads * c.group, head = row % q_heads / c.group,
			 query = row / q_heads % c.queries;
		uint32_t sequence = (uint32_t)(row / q_heads / c.queries), tokens = c.tokens[sequence];
		uint32_t unseen = c.queries - 1 - query, seen = tokens > unseen ? tokens - unseen : 0;
		double lse_want, difference = 0, length = 0;

		reference_row(&q[row * c.d], k[sequence * c.heads + head].data(),
			      v[sequence * c.heads + head].data(), seen, c.d, 1.0f / sqrtf((float)c.d),
			      want, &lse_want);
		for (uint32_t i = 0; i < c.d; i++) {
			difference += pow(out[row * c.d + i] - want[i], 2);
			length += want[i] * want[i];
		}
		double error = length > 0 ? sqrt(difference / length) : sqrt(difference);
		double lse_off = seen ? fabs(lse[row] - lse_want) : lse[row] == -INFINITY ? 0 : INFINITY;

		if (!(error <= worst))
			worst = error;
		if (!(lse_off <= *lse_error))
			*lse_error = lse_off;
	}
	return worst;
}

static bool expect_ok(enum status s, const char *what)
{
	if (s != STATUS_OK)
		fprintf(stderr, "%s: status %d (%s)\n", what, s, cudaGetErrorString(cudaGetLastError()));
	return s == STATUS_OK;
}

/* Runs a case three times, the last time from a graph with the plan in it; all must agree to the bit. */
static bool run_case(const test_case &c)
{
	world w(c);
	size_t rows = c.tokens.size() * c.queries * c.heads * c.group,
	       out_bytes = rows * c.d * kv_dtype_bytes(c.out_dtype);
	struct kv_cuda_attend a;
	cudaStream_t stream;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	std::vector<uint8_t> first;
	bool ok = true;

	w.shape(&a);
	device_array<uint8_t> workspace(kv_cuda_attend_workspace(&a)), out(out_bytes);
	device_array<float> lse(rows);

	a.workspace = workspace.data;
	a.workspace_bytes = workspace.count;
	a.out = out.data;
	a.lse = lse.data;
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	ok = expect_ok(kv_cuda_attend_plan(&a, stream), "plan");
	for (int run = 0; run < 3 && ok; run++) {
		out.poison();
		lse.poison();
		CUDA(cudaDeviceSynchronize());
		if (run == 2) {
			CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
			ok = expect_ok(kv_cuda_attend_plan(&a, stream), "plan in a graph");
		}
		ok = ok && expect_ok(kv_cuda_attend_run(&a, stream), "run");
		if (run == 2) {
			CUDA(cudaStreamEndCapture(stream, &graph));
			CUDA(cudaGraphInstantiate(&exec, graph, 0));
			CUDA(cudaGraphLaunch(exec, stream));
		}
		CUDA(cudaStreamSynchronize(stream));
		std::vector<uint8_t> got = out.get();

		if (run == 0)
			first = got;
		else if (got != first) {
			fprintf(stderr, "run %d differs from run 0\n", run);
			ok = false;
		}
	}
	double lse_error, error = w.check(floats_of(c.out_dtype, first), lse.get(), &lse_error);
	double allowed = c.out_dtype == KV_DTYPE_BF16 ? 4e-3 : 2e-3;

	ok = ok && error <= allowed && lse_error <= 2e-3;
	printf("%-4s %-8s d %3u heads %u x %u queries %2u block %3u %-7s sequences %zu tokens %u..: out "
	       "%.1e lse %.1e\n",
	       ok ? "ok" : "BAD", c.format == KV_TQ4 ? "tq4" : "int4_pth", c.d, c.heads, c.group,
	       c.queries, c.block_tokens, data_names[c.data], c.tokens.size(), c.tokens[0], error,
	       lse_error);
	fflush(stdout);
	CUDA(cudaStreamDestroy(stream));
	return ok;
}

/* A captured graph, replayed while the lengths grow, against eager runs. */
static bool run_growing_graph(enum kv_format f)
{
	test_case c = {f, 128, 2, 4, 1, 16, PLAIN, KV_DTYPE_F16, KV_DTYPE_F32, {700, 40, 1300}};
	world w(c);
	struct kv_cuda_attend a;
	cudaStream_t stream;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	std::vector<uint32_t> tokens = {1, 7, 300};
	bool ok = true;

	w.shape(&a);
	device_array<uint8_t> workspace(kv_cuda_attend_workspace(&a));
	device_array<float> out(3 * 8 * 128), again(3 * 8 * 128);

	a.workspace = workspace.data;
	a.workspace_bytes = workspace.count;
	a.out = out.data;
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	ok = expect_ok(kv_cuda_attend_plan(&a, stream), "plan");
	for (int layer = 0; layer < 36; layer++) {
		a.settled = layer >= 2;
		ok = ok && expect_ok(kv_cuda_attend_run(&a, stream), "run");
	}
	CUDA(cudaStreamEndCapture(stream, &graph));
	CUDA(cudaGraphInstantiate(&exec, graph, 0));
	a.settled = false;
	for (int step = 0; step < 39 && ok; step++) {
		w.tokens_device->set(tokens);
		out.poison();
		again.poison();
		CUDA(cudaDeviceSynchronize());
		CUDA(cudaGraphLaunch(exec, stream));
		a.out = again.data;
		ok = expect_ok(kv_cuda_attend_plan(&a, stream), "plan") &&
		     expect_ok(kv_cuda_attend_run(&a, stream), "run");
		CUDA(cudaStreamSynchronize(stream));
		ok = ok && out.get() == again.get();
		tokens[0] += 17;
		tokens[1] += 1;
		tokens[2] += 23;
	}
	printf("%-4s graph of 36 layers replayed with growing lengths\n", ok ? "ok" : "BAD");
	CUDA(cudaStreamDestroy(stream));
	return ok;
}

static bool run_refusals()
{
	struct kv_layout l = layout_of(KV_TQ4, 128, 1, 2, 16);
	struct kv_geometry g;
	struct kv_cuda_attend good = {};
	bool ok = true;

	kv_geometry_of(&l, &g);
	good.layout = &l;
	good.geometry = &g;
	good.sequences = 1;
	good.queries = 1;
	good.q_heads = 8;
	ok = ok && kv_cuda_attend_workspace(&good) > 0;
	ok = ok && kv_cuda_attend_plan(&good, nullptr) == STATUS_INVALID; /* no lengths */
	ok = ok && kv_cuda_attend_run(&good, nullptr) == STATUS_INVALID;

	struct kv_cuda_attend a = good;
	a.q_heads = 7;
	ok = ok && kv_cuda_attend_run(&a, nullptr) == STATUS_INVALID && kv_cuda_attend_workspace(&a) == 0;
	a = good;
	a.queries = 17;
	ok = ok && kv_cuda_attend_run(&a, nullptr) == STATUS_INVALID;
	a = good;
	l.v_format = KV_TQ3;
	ok = ok && kv_cuda_attend_run(&a, nullptr) == STATUS_UNSUPPORTED;
	l.v_format = KV_TQ4;
	device_array<uint8_t> some(256);
	a.q = a.out = a.workspace = some.data;
	a.blocks = (const uint64_t *)some.data;
	a.kv_tokens = (const uint32_t *)some.data;
	a.workspace_bytes = 255;
	ok = ok && kv_cuda_attend_run(&a, nullptr) == STATUS_EXHAUSTED &&
	     kv_cuda_attend_plan(&a, nullptr) == STATUS_EXHAUSTED;
	a.layer = 1;
	ok = ok && kv_cuda_attend_run(&a, nullptr) == STATUS_INVALID;
	printf("%-4s refusals\n", ok ? "ok" : "BAD");
	return ok;
}

static std::vector<test_case> cases_of(enum kv_format f, bool small)
{
	const enum kv_dtype h = KV_DTYPE_F16, b = KV_DTYPE_BF16, w = KV_DTYPE_F32;
	std::vector<test_case> t = {
		{f, 128, 2, 4, 1, 16, PLAIN, h, w, {1, 15, 16, 17, 0, 33}},
		{f, 128, 1, 4, 1, 32, PLAIN, h, w, {1100}},
		{f, 128, 1, 8, 2, 16, PLAIN, b, w, {700, 2, 1, 0, 95}},
	};

	if (small)
		return t;
	for (uint32_t group : {1, 2, 3, 5, 7, 8, 12, 16})
		t.push_back({f, 128, 2, group, 1, 16, PLAIN, h, w, {130, 4095}});
	for (uint32_t block : {48, 64, 112, 128})
		t.push_back({f, 128, 2, 4, 1, block, PLAIN, h, w, {4095, 517, 111}});
	for (uint32_t queries : {2, 3, 5, 16})
		t.push_back({f, 128, 2, 4, queries, 16, PLAIN, h, w, {3, 1500, 16}});
	for (enum data data : {GROWING, WIDE, SINK, ZEROS, SHARP}) {
		t.push_back({f, 128, 2, 4, 1, 16, data, h, w, {8192, 300}});
		t.push_back({f, 128, 1, 8, 1, 16, data, h, w, {40000}});
	}
	t.push_back({f, 128, 2, 4, 1, 64, PLAIN, h, h, {1000, 2000}});
	t.push_back({f, 128, 2, 4, 1, 64, PLAIN, b, b, {1000, 2000}});
	t.push_back({f, 128, 2, 4, 1, 64, PLAIN, w, w, {1000, 2000}});
	t.push_back({f, 128, 1, 4, 1, 16, PLAIN, h, w, {131072}});
	t.push_back({f, 128, 4, 4, 1, 16, PLAIN, h, w, std::vector<uint32_t>(80, 200)});
	t.push_back({f,
		     128,
		     4,
		     4,
		     1,
		     16,
		     PLAIN,
		     h,
		     w,
		     {9000, 100, 3000, 17, 0, 5000, 1, 2, 3, 700, 12000, 64, 256, 33}});
	return t;
}

int main(int argc, char **argv)
{
	bool small = argc > 1 && strcmp(argv[1], "small") == 0, ok = run_refusals();

	for (enum kv_format f : {KV_TQ4, KV_INT4_PTH}) {
		for (const test_case &c : cases_of(f, small))
			ok = run_case(c) && ok;
#ifdef TERRACE_CUDA_ALL
		for (uint32_t d : {64, 96, 192, 256}) {
			ok = run_case({f,
				       d,
				       2,
				       4,
				       1,
				       16,
				       PLAIN,
				       KV_DTYPE_F16,
				       KV_DTYPE_F32,
				       {1, 17, 1000, 0, 4095}}) &&
			     ok;
			ok = run_case({f,
				       d,
				       2,
				       8,
				       1,
				       32,
				       PLAIN,
				       KV_DTYPE_F16,
				       KV_DTYPE_F32,
				       {100, 2500}}) &&
			     ok;
		}
#endif
		if (!small)
			ok = run_growing_graph(f) && ok;
	}
	printf("attend: %s\n", ok ? "all good" : "FAILED");
	return ok ? 0 : 1;
}
