/* Attention from packed blocks on the GPU against float64 on the values that the CPU decodes. Outputs and
 * workspace are poisoned before every run. Cases run on a few threads, each with its own stream.
 *
 *   attend [small] [FORMAT[/FORMAT]]     small: few small cases on one thread, for compute-sanitizer
 */
#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

#include "tests/gpu/attend_graph.h"
#include "tests/gpu/attend_world.h"

static const char *const data_names[] = {"plain", "growing", "wide", "sink", "zeros", "sharp"};

struct pair_of_formats {
	enum kv_format k, v;
};

static const pair_of_formats pairs[] = {{KV_TQ4, KV_TQ4},   {KV_INT4_PTH, KV_INT4_PTH}, {KV_TQ3, KV_TQ3},
					{KV_TQ2, KV_TQ2},   {KV_FP8, KV_FP8},           {KV_F16, KV_F16},
					{KV_BF16, KV_BF16}, {KV_FP8, KV_TQ4},           {KV_FP8, KV_TQ3},
					{KV_TQ4, KV_TQ3}};

static double allowed_error(enum kv_dtype out)
{
	return out == KV_DTYPE_E4M3 ? 4e-2 : out == KV_DTYPE_BF16 ? 4e-3 : 2e-3;
}

static void report(bool ok, const test_case &c, double error, double lse_error)
{
	const feature_set &f = c.features;
	char features[128];

	snprintf(features, sizeof(features), "%s%s%s%s%s%s%s%s%s", f.window ? " window" : "",
		 c.layout_window ? " layout-window" : "", f.softcap > 0 ? " softcap" : "", f.sinks ? " sinks" : "",
		 f.alibi ? f.alibi_sqrt ? " alibi-sqrt" : " alibi" : "", f.tree ? " tree" : "",
		 f.ranges ? " ranges" : "", f.out_scale ? " out-scale" : "",
		 c.out_dtype == KV_DTYPE_E4M3 ? " e4m3" : "");
	printf("%-4s %8s/%-8s d %3u heads %u x %2u queries %2u block %3u %-7s sequences %2zu tokens %6u..: out "
	       "%.1e lse %.1e%s\n",
	       ok ? "ok" : "BAD", kv_format_info(c.k)->name, kv_format_info(c.v)->name, c.d, c.heads, c.group,
	       c.queries, c.block_tokens, data_names[c.data], c.tokens.size(), c.tokens[0], error, lse_error,
	       features);
	fflush(stdout);
}

/* Runs a case three times, the last time from a graph with the plan in it; all must agree to the bit. */
static bool run_case(const test_case &c)
{
	world w(c);
	const size_t rows = c.tokens.size() * c.queries * c.heads * c.group,
		     out_bytes = rows * c.d * kv_dtype_bytes(c.out_dtype);
	struct kv_cuda_attend a;
	cudaStream_t stream;
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
		if (run < 2) {
			ok = expect_ok(kv_cuda_attend_run(&a, stream), "run");
		} else {
			captured_graph graph(stream, [&] {
				ok = expect_ok(kv_cuda_attend_plan(&a, stream), "plan in a graph") &&
				     expect_ok(kv_cuda_attend_run(&a, stream), "run in a graph");
			});

			graph.launch(stream);
			CUDA(cudaStreamSynchronize(stream));
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

	ok = ok && error <= allowed_error(c.out_dtype) && lse_error <= 2e-3;
	report(ok, c, error, lse_error);
	CUDA(cudaStreamDestroy(stream));
	return ok;
}

static bool refuses(const struct kv_cuda_attend &a, enum status s)
{
	return kv_cuda_attend_run(&a, nullptr) == s && kv_cuda_attend_plan(&a, nullptr) == s;
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
	ok = ok && refuses(good, STATUS_INVALID); /* no lengths */

	struct kv_cuda_attend a = good;
	a.q_heads = 7;
	ok = ok && refuses(a, STATUS_INVALID) && kv_cuda_attend_workspace(&a) == 0;
	a = good;
	a.queries = 17;
	ok = ok && refuses(a, STATUS_INVALID);
	a = good;
	a.features.softcap = -1;
	ok = ok && refuses(a, STATUS_INVALID);
	a.features.softcap = NAN;
	ok = ok && refuses(a, STATUS_INVALID);
	a = good;
	a.features.ranges_max = 1;
	ok = ok && refuses(a, STATUS_INVALID);
	a = good;
	l.v_format = KV_FP8;
	ok = ok && refuses(a, STATUS_UNSUPPORTED);
	l.v_format = KV_TQ4;
	device_array<uint8_t> some(256);
	a.q = a.out = a.workspace = some.data;
	a.blocks = (const uint64_t *)some.data;
	a.kv_tokens = (const uint32_t *)some.data;
	a.workspace_bytes = 255;
	ok = ok && refuses(a, STATUS_EXHAUSTED);
	a.q_dtype = KV_DTYPE_E4M3;
	ok = ok && kv_cuda_attend_run(&a, nullptr) == STATUS_INVALID;
	a.q_dtype = KV_DTYPE_F32;
	a.layer = 1;
	ok = ok && kv_cuda_attend_run(&a, nullptr) == STATUS_INVALID;

	unsigned supported = 0;
	for (int k = 0; k < KV_FORMAT_COUNT; k++)
		for (int v = 0; v < KV_FORMAT_COUNT; v++)
			supported += kv_cuda_attend_supported((enum kv_format)k, (enum kv_format)v);
	ok = ok && supported == sizeof(pairs) / sizeof(pairs[0]);
	printf("%-4s refusals\n", ok ? "ok" : "BAD");
	return ok;
}

static const feature_set all_features = {200, 30, true, true, false, true, true, false};

static void add_features(std::vector<test_case> &t, pair_of_formats f, uint32_t d)
{
	const enum kv_dtype h = KV_DTYPE_F16, w = KV_DTYPE_F32, e = KV_DTYPE_E4M3;
	const std::vector<uint32_t> tokens = {1000, 3, 4095, 17, 0, 640, 2};
	const feature_set each[] = {{1, 0, false, false, false, false, false, false},
				    {100, 0, false, false, false, false, false, false},
				    {0, 5, false, false, false, false, false, false},
				    {0, 1000, false, false, false, false, false, false},
				    {0, 0, true, false, false, false, false, false},
				    {0, 0, false, true, false, false, false, false},
				    {0, 0, false, true, true, false, false, false},
				    {0, 0, false, false, false, true, false, false},
				    {0, 0, false, false, false, false, true, false},
				    {64, 0, false, true, false, false, true, false},
				    all_features};

	for (const feature_set &s : each)
		t.push_back({f.k, f.v, d, 2, 4, 3, 16, PLAIN, h, w, tokens, s, 0});
	t.push_back({f.k, f.v, d, 1, 16, 1, 64, PLAIN, h, w, tokens, all_features, 128});
	t.push_back({f.k, f.v, d, 2, 2, 16, 48, PLAIN, h, h, tokens, all_features, 0});
	t.push_back({f.k, f.v, d, 1, 4, 1, 16, PLAIN, h, w, {131072},
		     {4096, 0, true, false, false, false, false, false}, 0});
	t.push_back({f.k, f.v, d, 2, 4, 1, 16, PLAIN, h, e, {300, 4000}, {}, 0});
	t.push_back({f.k, f.v, d, 2, 4, 1, 16, PLAIN, h, e, {300, 4000},
		     {0, 0, false, false, false, false, false, true}, 0});
}

static std::vector<test_case> small_cases(pair_of_formats f)
{
	const enum kv_dtype h = KV_DTYPE_F16, b = KV_DTYPE_BF16, w = KV_DTYPE_F32;

	return {
		{f.k, f.v, 128, 2, 4, 1, 16, PLAIN, h, w, {1, 15, 16, 17, 0, 33}, {}, 0},
		{f.k, f.v, 128, 1, 4, 1, 32, PLAIN, h, w, {1100}, {}, 0},
		{f.k, f.v, 128, 1, 8, 2, 16, PLAIN, b, w, {700, 2, 1, 0, 95}, all_features, 0},
	};
}

static std::vector<test_case> cases_of(pair_of_formats f)
{
	const enum kv_dtype h = KV_DTYPE_F16, b = KV_DTYPE_BF16, w = KV_DTYPE_F32;
	std::vector<test_case> t = small_cases(f);

	t.push_back({f.k, f.v, 128, 1, 8, 2, 16, PLAIN, b, w, {700, 2, 1, 0, 95}, {}, 0});
	for (uint32_t group : {1, 2, 3, 5, 7, 8, 12, 16})
		t.push_back({f.k, f.v, 128, 2, group, 1, 16, PLAIN, h, w, {130, 4095}, {}, 0});
	for (uint32_t block : {48, 64, 112, 128})
		t.push_back({f.k, f.v, 128, 2, 4, 1, block, PLAIN, h, w, {4095, 517, 111}, {}, 0});
	for (uint32_t queries : {2, 3, 5, 16})
		t.push_back({f.k, f.v, 128, 2, 4, queries, 16, PLAIN, h, w, {3, 1500, 16}, {}, 0});
	for (enum data data : {GROWING, WIDE, SINK, ZEROS, SHARP}) {
		t.push_back({f.k, f.v, 128, 2, 4, 1, 16, data, h, w, {8192, 300}, {}, 0});
		t.push_back({f.k, f.v, 128, 1, 8, 1, 16, data, h, w, {40000}, {}, 0});
	}
	for (enum kv_dtype both : {h, b, w})
		for (uint32_t group : {4, 7, 12})
			t.push_back({f.k, f.v, 128, 2, group, 1, 64, PLAIN, both, both, {1000, 300}, {}, 0});
	t.push_back({f.k, f.v, 128, 1, 4, 1, 16, PLAIN, h, w, {131072}, {}, 0});
	t.push_back({f.k, f.v, 128, 4, 4, 1, 16, PLAIN, h, w, std::vector<uint32_t>(80, 200), {}, 0});
	t.push_back({f.k, f.v, 128, 4, 4, 1, 16, PLAIN, h, w,
		     {9000, 100, 3000, 17, 0, 5000, 1, 2, 3, 700, 12000, 64, 256, 33}, {}, 0});
	add_features(t, f, 128);
#ifdef TERRACE_CUDA_ALL
	for (uint32_t d : {64, 96, 192, 256}) {
		t.push_back({f.k, f.v, d, 2, 4, 1, 16, PLAIN, h, w, {1, 17, 15, 16, 1000, 0, 4095}, {}, 0});
		t.push_back({f.k, f.v, d, 2, 8, 1, 32, PLAIN, h, w, {100, 2500}, {}, 0});
		t.push_back({f.k, f.v, d, 1, 16, 2, 16, PLAIN, b, w, {131, 2500}, {}, 0});
		t.push_back({f.k, f.v, d, 2, 4, 3, 16, PLAIN, h, w, {1000, 3, 4095, 17}, all_features, 0});
		t.push_back({f.k, f.v, d, 2, 8, 1, 16, WIDE, h, w, {9000}, {}, 0});
	}
#endif
	return t;
}

/* True if all are good. */
static bool run_cases(const std::vector<test_case> &cases, unsigned threads)
{
	std::atomic<size_t> next(0);
	std::atomic<bool> ok(true);
	std::vector<std::thread> workers;

	for (unsigned i = 0; i < threads; i++)
		workers.emplace_back([&] {
			for (size_t j; (j = next++) < cases.size();)
				if (!run_case(cases[j]))
					ok = false;
		});
	for (std::thread &w : workers)
		w.join();
	return ok;
}

int main(int argc, char **argv)
{
	const bool small = argc > 1 && strcmp(argv[1], "small") == 0;
	const char *only = argc > 1 + small ? argv[1 + small] : nullptr;
	bool ok = run_refusals();
	std::vector<test_case> cases;

	for (pair_of_formats f : pairs) {
		std::string name = kv_format_info(f.k)->name;

		if (f.v != f.k)
			name += std::string("/") + kv_format_info(f.v)->name;
		if (only && name != only)
			continue;
		for (const test_case &c : small ? small_cases(f) : cases_of(f))
			cases.push_back(c);
		if (!small && (f.k == KV_TQ4 || f.k == KV_INT4_PTH) && f.k == f.v)
			ok = run_growing_graph(f.k) && ok;
	}
	/* The longest first, so that no thread is left with one at the end. */
	std::stable_sort(cases.begin(), cases.end(), [](const test_case &a, const test_case &b) {
		return a.tokens[0] * a.heads > b.tokens[0] * b.heads;
	});
	ok = run_cases(cases, small ? 1 : std::min(12u, std::max(1u, std::thread::hardware_concurrency()))) && ok;
	printf("attend: %s, %zu cases\n", ok ? "all good" : "FAILED", cases.size());
	return ok ? 0 : 1;
}
