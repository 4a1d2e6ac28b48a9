/* See attend_invariant.h. */
#include "tests/gpu/attend_invariant.h"

#include "tests/gpu/attend_graph.h"
#include "tests/gpu/attend_world.h"

namespace
{

constexpr uint32_t SPLIT = 512;

/* Of each sequence of a batch. */
struct results {
	std::vector<std::vector<uint8_t>> out;
	std::vector<std::vector<float>> lse;
};

/* Rows `of` of an array of rows of `each` elements. */
template <class T> std::vector<T> rows_of(const std::vector<T> &all, size_t each, const std::vector<uint32_t> &of)
{
	std::vector<T> some;

	for (uint32_t i : of)
		some.insert(some.end(), all.begin() + i * each, all.begin() + (i + 1) * each);
	return some;
}

template <class T> device_array<T> copied(const std::vector<T> &x)
{
	return device_array<T>(x.empty() ? std::vector<T>(1) : x);
}

/* Attention of some of the world's sequences, any of them any number of times. */
bool run_batch(const world &w, const std::vector<uint8_t> &q, const std::vector<uint32_t> &of, uint32_t split,
	       results *r)
{
	const test_case &c = w.c;
	const size_t rows = c.queries * c.heads * c.group, bytes = rows * c.d.v * kv_dtype_bytes(c.out_dtype);
	struct kv_cuda_attend a;

	w.shape(&a);
	const auto queries = copied(rows_of(q, rows * c.d.k * kv_dtype_bytes(c.q_dtype), of));
	const auto table = copied(rows_of(w.table, w.stride, of));
	const auto tokens = copied(rows_of(c.tokens, 1, of));
	const auto tree = copied(rows_of(w.tree_bias, c.queries * c.queries, of));
	const auto ranges = copied(rows_of(w.ranges, 2 * world::RANGES, of));
	device_array<uint8_t> out(of.size() * bytes);
	device_array<float> lse(of.size() * rows);

	a.sequences = (uint32_t)of.size();
	a.q = queries.data;
	a.blocks = table.data;
	a.kv_tokens = tokens.data;
	a.features.tree_bias = a.features.tree_bias ? tree.data : nullptr;
	a.features.ranges = a.features.ranges ? ranges.data : nullptr;
	a.split_tokens = split;
	a.out = out.data;
	a.lse = lse.data;
	device_array<uint8_t> workspace(workspace_of(kv_cuda_attend_workspace, a));

	a.workspace = workspace.data;
	a.workspace_bytes = workspace.count;
	out.poison();
	lse.poison();
	workspace.poison();
	if (!expect_ok(kv_cuda_attend_plan(&a, nullptr), "plan") || !expect_ok(kv_cuda_attend_run(&a, nullptr), "run"))
		return false;
	CUDA(cudaDeviceSynchronize());
	const std::vector<uint8_t> all = out.get();
	const std::vector<float> all_lse = lse.get();

	*r = {};
	for (uint32_t i = 0; i < of.size(); i++) {
		r->out.push_back(rows_of(all, bytes, {i}));
		r->lse.push_back(rows_of(all_lse, rows, {i}));
	}
	return true;
}

bool same_bits(const results &a, size_t i, const results &b, size_t j)
{
	return a.out[i] == b.out[j] && memcmp(a.lse[i].data(), b.lse[j].data(), a.lse[i].size() * sizeof(float)) == 0;
}

/* What `batches` random batches have that each sequence alone has not. */
bool count_different(const world &w, const std::vector<uint8_t> &q, uint32_t split, uint32_t batches, uint32_t most,
		     results *alone, uint32_t *different)
{
	const uint32_t pool = (uint32_t)w.c.tokens.size();
	random_source r(batches + w.c.group);

	*alone = {};
	*different = 0;
	for (uint32_t i = 0; i < pool; i++) {
		results one;

		if (!run_batch(w, q, {i}, split, &one))
			return false;
		alone->out.push_back(one.out[0]);
		alone->lse.push_back(one.lse[0]);
	}
	for (uint32_t batch = 0; batch < batches; batch++) {
		std::vector<uint32_t> of(1 + r.next() % most);
		results got;

		for (uint32_t &i : of)
			i = (uint32_t)(r.next() % pool);
		if (!run_batch(w, q, of, split, &got))
			return false;
		for (size_t i = 0; i < of.size(); i++)
			*different += !same_bits(got, i, *alone, of[i]);
	}
	return true;
}

/* *others: grows by the sequences that have other bits without split_tokens. */
bool run_invariant_case(const test_case &c, uint32_t batches, uint32_t most, uint32_t *others)
{
	const world w(c);
	std::vector<float> numbers = w.q;
	const std::vector<uint8_t> q = elements_of(c.q_dtype, numbers);
	uint32_t fixed = 0, free = 0;
	std::vector<uint8_t> out;
	std::vector<float> lse;
	double lse_error = 0;
	results alone, other;
	bool ok = count_different(w, q, SPLIT, batches, most, &alone, &fixed) &&
		  count_different(w, q, 0, batches < 8 ? batches : 8, most, &other, &free);

	for (size_t i = 0; i < alone.out.size(); i++) {
		out.insert(out.end(), alone.out[i].begin(), alone.out[i].end());
		lse.insert(lse.end(), alone.lse[i].begin(), alone.lse[i].end());
	}
	const double error = ok ? w.check(floats_of(c.out_dtype, out), lse, &lse_error) : NAN;

	*others += free;
	ok = ok && fixed == 0 && error <= 2e-3 && lse_error <= 2e-3;
	printf("%-4s %8s/%-8s heads %u x %2u queries %u: %u batches, %u sequences differ in them from themselves "
	       "alone, %u where the split follows the batch; out %.1e lse %.1e%s\n",
	       ok ? "ok" : "BAD", kv_format_info(c.k)->name, kv_format_info(c.v)->name, c.heads, c.group, c.queries,
	       batches, fixed, free, error, lse_error, c.features.window ? " with features" : "");
	fflush(stdout);
	return ok;
}

} // namespace

bool run_invariant(enum kv_format k, enum kv_format v, uint32_t batches, uint32_t most)
{
	const enum kv_dtype h = KV_DTYPE_F16, f = KV_DTYPE_F32;
	const std::vector<uint32_t> few = {17, 2047, 900, 1300},
				    many = {17, 5000, 0, 511, 512, 767, 768, 1024, 1500, 1, 3000, 4095, 2047, 9000};
	const std::vector<uint32_t> &tokens = batches < 100 ? few : many;
	/* ALiBi has a case of its own: it hides what comes in from far behind the queries. */
	const feature_set all = {1100, 30, true, false, false, true, true, false},
			  window = {1100, 0, false, false, false, false, false, false},
			  slopes = {1100, 0, false, true, false, false, false, false};
	uint32_t others = 0;
	bool ok = true;

	for (const test_case &c : {test_case{k, v, 128, 2, 4, 1, 16, PLAIN, h, f, tokens, {}, 0},
				   test_case{k, v, 128, 1, 4, 3, 48, PLAIN, h, f, tokens, all, 0},
				   test_case{k, v, 128, 1, 4, 1, 16, PLAIN, h, f, tokens, window, 0},
				   test_case{k, v, 128, 1, 4, 2, 80, PLAIN, h, f, tokens, slopes, 0},
				   test_case{k, v, 128, 1, 8, 1, 32, PLAIN, h, f, tokens, {}, 0},
				   test_case{k, v, 128, 1, 16, 1, 16, PLAIN, h, f, tokens, {}, 0}})
		ok = run_invariant_case(c, (batches + 5) / 6, most, &others) && ok;
	return ok && (batches < 100 || others > 0);
}
