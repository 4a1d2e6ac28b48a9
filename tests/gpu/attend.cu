/* Attention from packed blocks on the GPU against float64 on the values that the CPU decodes. Outputs are
 * poisoned before every run, the workspace before the first. Cases run on a few threads, each with its own stream.
 *
 *   attend [small|least|dims|graph] [FORMAT[/FORMAT]]
 *       small: few small cases on one thread, for compute-sanitizer; least: of those every other one, shorter, and shorter
 *       graphs; dims: the other head dims alone, in small sizes, where they are built; graph: the graphs of decode alone, and
 *       what a step takes as JSON
 */
#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "tests/gpu/attend_graph.h"
#include "tests/gpu/attend_invariant.h"
#include "tests/gpu/attend_numbers.h"
#include "tests/gpu/attend_plans.h"
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
	char features[160];

	snprintf(features, sizeof(features), "%s%s%s%s%s%s%s%s%s%s%s", f.window ? " window" : "",
		 c.layout_window ? " layout-window" : "", f.softcap > 0 ? " softcap" : "", f.sinks ? " sinks" : "",
		 f.alibi ? f.alibi_sqrt ? " alibi-sqrt" : " alibi" : "", f.tree ? " tree" : "",
		 f.ranges ? " ranges" : "", f.out_scale ? " out-scale" : "",
		 c.out_dtype == KV_DTYPE_E4M3 ? " e4m3" : "", c.no_lse ? " no-lse" : "", c.scattered ? " scattered" : "");
	printf("%-4s %8s/%-8s d %3u/%-3u heads %u x %2u queries %2u block %3u %-7s sequences %2zu tokens %6u..: out "
	       "%.1e lse %.1e%s\n",
	       ok ? "ok" : "BAD", kv_format_info(c.k)->name, kv_format_info(c.v)->name, c.d.k, c.d.v, c.heads, c.group,
	       c.queries, c.block_tokens, data_names[c.data], c.tokens.size(), c.tokens[0], error, lse_error,
	       features);
	fflush(stdout);
}

/* Runs a case three times, the last time from a graph with the plan in it; all must agree to the bit. */
static bool run_case(const test_case &c)
{
	world w(c);
	const size_t rows = c.tokens.size() * c.queries * c.heads * c.group,
		     out_bytes = rows * c.d.v * kv_dtype_bytes(c.out_dtype);
	struct kv_cuda_attend a;
	cudaStream_t stream;
	std::vector<uint8_t> first;
	bool ok = true;

	w.shape(&a);
	device_array<uint8_t> workspace(workspace_of(kv_cuda_attend_workspace, a)), out(out_bytes);
	device_array<float> lse(rows);

	a.workspace = workspace.data;
	a.workspace_bytes = workspace.count;
	a.out = out.data;
	a.lse = c.no_lse ? nullptr : lse.data;
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	const auto launched = [&](enum status (*call)(const struct kv_cuda_attend *, cudaStream_t),
				  const char *what) {
		const device_use use;

		return expect_ok(call(&a, stream), what);
	};

	ok = launched(kv_cuda_attend_plan, "plan");
	for (int run = 0; run < 3 && ok; run++) {
		out.poison();
		lse.poison();
		if (run < 2) {
			ok = launched(kv_cuda_attend_run, "run");
		} else {
			captured_graph graph(stream, [&] {
				ok = launched(kv_cuda_attend_plan, "plan in a graph") && launched(kv_cuda_attend_run, "run in a graph");
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

/* A call that is refused for its workspace alone, and what makes it another one. */
struct refusal {
	const char *what;
	enum status plan, run;
	std::function<void(struct kv_cuda_attend &, struct kv_layout &, struct kv_geometry &)> spoil;
};

static const enum status EXHAUSTED = STATUS_EXHAUSTED, INVALID = STATUS_INVALID, UNSUPPORTED = STATUS_UNSUPPORTED;
#define SPOIL(what) [](struct kv_cuda_attend & a, struct kv_layout & l, struct kv_geometry & g) { (void)a; (void)l; (void)g; what; }

static const refusal refusals[] = {
	{"nothing", EXHAUSTED, EXHAUSTED, SPOIL((void)0)},
	{"no lengths", INVALID, EXHAUSTED, SPOIL(a.kv_tokens = nullptr)},
	{"lengths out of line", INVALID, EXHAUSTED, SPOIL(a.kv_tokens = (const uint32_t *)((uintptr_t)a.kv_tokens + 2))},
	{"no layout", INVALID, INVALID, SPOIL(a.layout = nullptr)},
	{"no heads", INVALID, INVALID, SPOIL(l.heads = 0)},
	{"no atoms", INVALID, INVALID, SPOIL(g.atoms = 0)},
	{"7 heads over 2", INVALID, INVALID, SPOIL(a.q_heads = 7)},
	{"no query heads", INVALID, INVALID, SPOIL(a.q_heads = 0)},
	{"query heads whose columns wrap", INVALID, INVALID, SPOIL((a.q_heads = 1u << 31, a.queries = 4))},
	{"17 queries", INVALID, INVALID, SPOIL(a.queries = 17)},
	{"no queries", INVALID, INVALID, SPOIL(a.queries = 0)},
	{"4097 sequences", INVALID, INVALID, SPOIL(a.sequences = 4097)},
	{"a negative cap", INVALID, INVALID, SPOIL(a.features.softcap = -1)},
	{"a cap that is none", INVALID, INVALID, SPOIL(a.features.softcap = NAN)},
	{"a cap without end", INVALID, INVALID, SPOIL(a.features.softcap = INFINITY)},
	{"the greatest cap", EXHAUSTED, EXHAUSTED, SPOIL(a.features.softcap = 3.4e38f)},
	{"ranges that are not there", INVALID, INVALID, SPOIL(a.features.ranges_max = 1)},
	{"65 ranges", INVALID, INVALID, SPOIL((a.features.ranges_max = 65, a.features.ranges = (const int32_t *)a.q))},
	{"sinks out of line", INVALID, INVALID, SPOIL(a.features.sinks = (const float *)((uintptr_t)a.q + 2))},
	{"a table of 2^33 atoms", INVALID, INVALID, SPOIL((a.sequences = 4096, a.blocks_stride = 1u << 20))},
	{"a table of 2^31 atoms", EXHAUSTED, EXHAUSTED, SPOIL((a.sequences = 4096, a.blocks_stride = 1u << 18))},
	{"a table longer than any sequence", EXHAUSTED, EXHAUSTED, SPOIL(a.blocks_stride = UINT32_MAX)},
	{"a split of 480 tokens", INVALID, INVALID, SPOIL(a.split_tokens = 480)},
	{"a split of 1040 tokens", INVALID, INVALID, SPOIL(a.split_tokens = 1040)},
	{"a split of 512 tokens", EXHAUSTED, EXHAUSTED, SPOIL((a.split_tokens = 512, a.blocks_stride = 1000))},
	{"a split into 2^16 parts", INVALID, INVALID, SPOIL((a.split_tokens = 512, a.blocks_stride = 1u << 21))},
	{"V of another format", UNSUPPORTED, UNSUPPORTED, SPOIL(l.v_format = KV_FP8)},
	{"V of another head dim", UNSUPPORTED, UNSUPPORTED, SPOIL(l.head_dim_v = 96)},
	{"keys shorter than values", UNSUPPORTED, UNSUPPORTED, SPOIL((l.head_dim_k = 64, l.head_dim_v = 128))},
	{"head dims that are coded alone", UNSUPPORTED, UNSUPPORTED, SPOIL((l.head_dim_k = l.head_dim_v = 80,
		l.rotation_version = 2))},
	{"a workspace out of line", INVALID, INVALID, SPOIL(a.workspace = (uint8_t *)a.workspace + 128)},
	{"no workspace", INVALID, INVALID, SPOIL(a.workspace = nullptr)},
	{"no queries' place", EXHAUSTED, INVALID, SPOIL(a.q = nullptr)},
	{"queries out of line", EXHAUSTED, INVALID, SPOIL(a.q = (const uint8_t *)a.q + 8)},
	{"outputs out of line", EXHAUSTED, INVALID, SPOIL(a.out = (uint8_t *)a.out + 8)},
	{"no blocks", EXHAUSTED, INVALID, SPOIL(a.blocks = nullptr)},
	{"blocks out of line", EXHAUSTED, INVALID, SPOIL(a.blocks = (const uint64_t *)((uintptr_t)a.blocks + 4))},
	{"logarithms out of line", EXHAUSTED, INVALID, SPOIL(a.lse = (float *)((uintptr_t)a.out + 2))},
	{"layer 1 of 1", EXHAUSTED, INVALID, SPOIL(a.layer = 1)},
	{"queries of E4M3", EXHAUSTED, INVALID, SPOIL(a.q_dtype = KV_DTYPE_E4M3)},
	{"outputs of no type", EXHAUSTED, INVALID, SPOIL(a.out_dtype = (enum kv_dtype)4)},
	{"a scale without end", EXHAUSTED, INVALID, SPOIL(a.scale = INFINITY)},
	{"a scale that is none", EXHAUSTED, INVALID, SPOIL(a.scale = NAN)},
};

/* The workspace is asked for as a plan is, without its pointers. */
static bool refused(const refusal &r, struct kv_cuda_attend a)
{
	struct kv_layout l = *a.layout;
	struct kv_geometry g = *a.geometry;
	size_t bytes = 7;

	a.layout = &l;
	a.geometry = &g;
	r.spoil(a, l, g);
	const enum status plan = kv_cuda_attend_plan(&a, nullptr), run = kv_cuda_attend_run(&a, nullptr),
			  shape = kv_cuda_attend_workspace(&a, &bytes);
	const bool ok = plan == r.plan && run == r.run && (shape == STATUS_OK ? bytes > 255 : bytes == 7) &&
			(shape == STATUS_OK || shape == plan) && (run != EXHAUSTED || shape == STATUS_OK);

	if (!ok)
		printf("BAD  %s: plan %d, run %d, workspace %d\n", r.what, plan, run, shape);
	return ok;
}

static bool run_refusals()
{
	struct kv_layout l = layout_of(KV_TQ4, 128, 1, 2, 16);
	struct kv_geometry g;
	struct kv_cuda_attend good = {};
	device_array<uint8_t> some(256);
	bool ok = true;
	unsigned supported = 0;

	kv_geometry_of(&l, &g);
	good.layout = &l;
	good.geometry = &g;
	good.sequences = 1;
	good.queries = 1;
	good.q_heads = 8;
	good.scale = 1;
	good.q = good.out = good.workspace = some.data;
	good.blocks = (const uint64_t *)some.data;
	good.kv_tokens = (const uint32_t *)some.data;
	good.workspace_bytes = 255;
	for (const refusal &r : refusals)
		ok = refused(r, good) && ok;
	for (int k = 0; k < KV_FORMAT_COUNT; k++)
		for (int v = 0; v < KV_FORMAT_COUNT; v++)
			supported += kv_cuda_attend_supported((enum kv_format)k, (enum kv_format)v);
	ok = ok && supported == sizeof(pairs) / sizeof(pairs[0]) && !kv_cuda_problem();
	printf("%-4s refusals\n", ok ? "ok" : "BAD");
	return ok;
}

static const feature_set all_features = {200, 30, true, true, false, true, true, false};
/* What most steps have a shorter way for. */
static const feature_set falling_features = {700, 0, true, true, false, true, false, false},
			 capped_features = {700, 30, true, true, false, false, false, false};

/* As of models whose layers have both; 128 is the smaller window. */
static const feature_set sinks_in_window = {128, 0, true, false, false, false, false, false};

static void add_features(std::vector<test_case> &t, pair_of_formats f, case_dims d)
{
	const enum kv_dtype h = KV_DTYPE_F16, w = KV_DTYPE_F32, e = KV_DTYPE_E4M3;
	const std::vector<uint32_t> tokens = {1000, 3, 4095, 17, 0, 640, 2};
	const feature_set each[] = {{1, 0, false, false, false, false, false, false},
				    {100, 0, false, false, false, false, false, false},
				    {0, 5, false, false, false, false, false, false},
				    {0, 1000, false, false, false, false, false, false},
				    {0, 3.0e38f, false, false, false, false, false, false},
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
		{f.k, f.v, 128, 1, 4, 2, 16, PLAIN, h, w, {900}, falling_features, 0},
		{f.k, f.v, 128, 1, 8, 1, 16, PLAIN, h, w, {900}, capped_features, 0},
		/* A row of it has its largest values where weights are smallest. */
		{f.k, f.v, 128, 1, 8, 1, 16, WIDE, h, w, {586}, {}, 0},
	};
}

/* What one pair of each kind of fragments shows for all. */
static std::vector<test_case> more_small_cases(pair_of_formats f)
{
	const enum kv_dtype h = KV_DTYPE_F16, w = KV_DTYPE_F32;
	const feature_set large_cap = {0, 1e5f, false, false, false, false, false, false},
			  huge_cap = {0, 3.0e38f, false, false, false, false, false, false},
			  least_cap = {0, 1e-45f, false, false, false, false, false, false};

	return {
		{f.k, f.v, 128, 1, 32, 1, 16, PLAIN, h, w, {333}, {}, 0},
		{f.k, f.v, 128, 2, 4, 1, 16, PLAIN, h, h, {400, 0, 77}, {}, 0, true, true},
		{f.k, f.v, 128, 1, 4, 1, 16, SHARP, h, w, {500}, large_cap, 0},
		/* Units of 16 columns that move, over weights that are small beside what tq4's codes are too large by. */
		{f.k, f.v, 128, 1, 16, 1, 16, SHARP, h, w, {4000}, {}, 0},
		{f.k, f.v, 128, 1, 4, 1, 16, PLAIN, h, w, {200}, huge_cap, 0},
		{f.k, f.v, 128, 1, 4, 1, 16, PLAIN, h, w, {200}, least_cap, 0},
		/* A window that begins in an odd atom, of blocks of one, three and four. */
		{f.k, f.v, 128, 1, 4, 1, 16, PLAIN, h, w, {177}, sinks_in_window, 0},
		{f.k, f.v, 128, 1, 4, 1, 48, PLAIN, h, w, {177}, sinks_in_window, 0},
		{f.k, f.v, 128, 1, 4, 1, 64, PLAIN, h, w, {177}, sinks_in_window, 0},
	};
}

/* Tiles of 4, 8 and 16 columns, of one atom's tokens and of several segments. */
static std::vector<test_case> dim_cases(pair_of_formats f)
{
	const enum kv_dtype h = KV_DTYPE_F16, b = KV_DTYPE_BF16, w = KV_DTYPE_F32;
	std::vector<test_case> t;

	for (case_dims d : other_attend_dims()) {
		t.push_back({f.k, f.v, d, 2, 4, 1, 16, PLAIN, h, w, {17, 15, 700, 0}, {}, 0});
		t.push_back({f.k, f.v, d, 1, 8, 1, 32, PLAIN, h, w, {100, 900}, {}, 0});
		t.push_back({f.k, f.v, d, 1, 16, 2, 16, PLAIN, b, w, {131, 900}, {}, 0, true, true});
		t.push_back({f.k, f.v, d, 1, 16, 1, 16, SHARP, h, h, {600}, {}, 0});
		t.push_back({f.k, f.v, d, 1, 4, 3, 16, PLAIN, h, w, {700, 3, 17}, all_features, 0});
		t.push_back({f.k, f.v, d, 1, 12, 1, 16, PLAIN, h, w, {500, 40}, all_features, 0});
		t.push_back({f.k, f.v, d, 1, 8, 1, 16, WIDE, h, w, {600}, {}, 0});
		t.push_back({f.k, f.v, d, 1, 20, 1, 128, PLAIN, h, w, {700, 131}, sinks_in_window, 300});
	}
	return t;
}

/* What most tokens are far away for: a cap, roots of distances, ranges of tens of thousands, and all but a window. */
static void add_long_features(std::vector<test_case> &t, pair_of_formats f)
{
	const feature_set each[] = {{0, 5, false, false, false, false, false, false},
				    {0, 1000, false, false, false, false, false, false},
				    {0, 0, false, true, true, false, false, false},
				    {4096, 0, false, false, false, false, true, false},
				    {0, 30, true, true, true, true, true, false}};

	for (const feature_set &s : each)
		t.push_back({f.k, f.v, 128, 1, 4, 2, 16, PLAIN, KV_DTYPE_F16, KV_DTYPE_F32, {131072}, s, 0});
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
	if (f.k == f.v && (f.k == KV_TQ4 || f.k == KV_INT4_PTH || f.k == KV_FP8))
		add_long_features(t, f);
	for (case_dims d : other_attend_dims()) {
		t.push_back({f.k, f.v, d, 1, 4, 1, 16, PLAIN, h, w, {131072}, {}, 0});
		t.push_back({f.k, f.v, d, 2, 4, 1, 16, PLAIN, h, w, {1, 17, 15, 16, 1000, 0, 4095}, {}, 0});
		t.push_back({f.k, f.v, d, 2, 8, 1, 32, PLAIN, h, w, {100, 2500}, {}, 0});
		t.push_back({f.k, f.v, d, 1, 16, 2, 16, PLAIN, b, w, {131, 2500}, {}, 0});
		t.push_back({f.k, f.v, d, 2, 4, 3, 16, PLAIN, h, w, {1000, 3, 4095, 17}, all_features, 0});
		t.push_back({f.k, f.v, d, 2, 8, 1, 16, WIDE, h, w, {9000}, {}, 0});
	}
	for (const test_case &c : dim_cases(f))
		t.push_back(c);
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

static std::string pair_name(enum kv_format k, enum kv_format v)
{
	std::string name = kv_format_info(k)->name;

	return k == v ? name : name + "/" + kv_format_info(v)->name;
}

/* One token at a time; drafts of four and of two, of which sequences keep as many as they like. */
static bool run_graphs(const char *only, bool small, bool least, bool rows)
{
	const decode_case decodes[] = {
		{KV_TQ4, KV_TQ4, 36, 1000, 1, {{1, 7, 300}, {1, 1, 1}}},
		{KV_INT4_PTH, KV_INT4_PTH, 36, 1000, 4, {{1, 7, 300}, {1, 2, 4}}},
		{KV_TQ4, KV_TQ3, 36, 1000, 2, {{1, 7, 300}, {2, 0, 2}}},
	};
	bool ok = true;

	for (decode_case c : decodes) {
		if (only && pair_name(c.k, c.v) != only)
			continue;
		if (small) {
			c.layers = least ? 2 : 3;
			c.steps = least ? 5 : 12;
		}
		ok = run_growing_graph(c, rows) && ok;
	}
	return ok;
}

static const uint32_t least_tokens = 1100;

static std::vector<test_case> chosen_cases(const char *only, bool small, bool least, bool dims)
{
	std::vector<test_case> cases;
	size_t turn = 0;

	for (pair_of_formats f : pairs) {
		if (only && pair_name(f.k, f.v) != only)
			continue;
		for (const test_case &c : small ? small_cases(f) : dims ? dim_cases(f) : cases_of(f))
			if (!least || turn++ % 2 == 0)
				cases.push_back(c);
		turn++; /* the next pair's are the others */
		if (!dims && (!small || (f.k == f.v && (f.k == KV_TQ4 || f.k == KV_FP8))))
			for (const test_case &c : more_small_cases(f))
				cases.push_back(c);
	}
	for (test_case &c : cases)
		for (auto &n : c.tokens)
			n = least ? std::min<uint32_t>(n, least_tokens) : n;
	/* The longest first, so that no thread is left with one at the end. */
	std::stable_sort(cases.begin(), cases.end(), [](const test_case &a, const test_case &b) {
		return a.tokens[0] * a.heads > b.tokens[0] * b.heads;
	});
	return cases;
}

int main(int argc, char **argv)
{
	const std::string size = argc > 1 ? argv[1] : "";
	const bool least = size == "least", small = least || size == "small", dims = size == "dims", graphs = size == "graph";
	const int words = 1 + (small || dims || graphs);
	const char *only = argc > words ? argv[words] : nullptr;
	bool ok = run_refusals();

	if (!dims && !graphs)
		ok = run_plans(small ? 60 : 1000) && ok;
	if (!dims)
		ok = run_graphs(only, small, least, graphs) && ok;
	for (pair_of_formats f : pairs)
		if (!dims && !graphs && (!only || pair_name(f.k, f.v) == only))
			ok = run_odd_numbers(f.k, f.v) && ok;
	for (pair_of_formats f : pairs)
		if (!dims && !graphs && (!only || pair_name(f.k, f.v) == only) &&
		    (!least || f.v == KV_TQ4 || f.v == KV_FP8))
			ok = run_invariant(f.k, f.v, least ? 8 : small ? 12 : 1000, small ? 5 : 40) && ok;
	const std::vector<test_case> cases = graphs ? std::vector<test_case>() : chosen_cases(only, small, least, dims);

	ok = run_cases(cases, small ? 1 : std::min(12u, std::max(1u, std::thread::hardware_concurrency()))) && ok;
	printf("attend: %s, %zu cases\n", ok ? "all good" : "FAILED", cases.size());
	return ok ? 0 : 1;
}
