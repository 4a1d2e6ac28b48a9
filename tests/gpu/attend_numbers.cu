/* See attend_numbers.h. */
#include "tests/gpu/attend_numbers.h"

#include "kernels/half.h"
#include "tests/gpu/attend_graph.h"
#include "tests/gpu/attend_world.h"

namespace
{

/* One sequence that every query sees something of, one of which the first query sees nothing. */
enum { NUMBERS_SEQUENCES = 2, QUERIES = 2, NUMBERS_HEADS = 2, NUMBERS_GROUP = 4, D = 128, TOKENS = 300, SPOILED_TOKEN = 150 /* within all windows */ };

struct outputs {
	std::vector<uint8_t> out;
	std::vector<float> lse;

	bool all_nan(enum kv_dtype t, size_t row) const
	{
		const std::vector<float> x = floats_of(t, out);
		bool all = isnan(lse[row]);

		for (size_t i = row * D; i < (row + 1) * D; i++)
			all = all && isnan(x[i]);
		return all;
	}
	/* Nothing was seen. */
	bool empty(size_t row) const
	{
		bool all = lse[row] == -INFINITY;

		for (size_t i = row * D; i < (row + 1) * D; i++)
			all = all && ((const float *)out.data())[i] == 0;
		return all;
	}
};

size_t row_of(uint32_t sequence, uint32_t query, uint32_t head)
{
	return (sequence * QUERIES + query) * NUMBERS_HEADS * NUMBERS_GROUP + head;
}

/* Attention over a world as it is now, into outputs of type t. */
outputs run(const world &w, enum kv_dtype t)
{
	const size_t rows = (size_t)NUMBERS_SEQUENCES * QUERIES * NUMBERS_HEADS * NUMBERS_GROUP;
	struct kv_cuda_attend a;

	w.shape(&a);
	a.out_dtype = t;
	device_array<uint8_t> workspace(workspace_of(kv_cuda_attend_workspace, a)), out(rows * D * kv_dtype_bytes(t));
	device_array<float> lse(rows);

	a.workspace = workspace.data;
	a.workspace_bytes = workspace.count;
	a.out = out.data;
	a.lse = lse.data;
	{
		const device_use use;

		if (!expect_ok(kv_cuda_attend_plan(&a, nullptr), "plan") || !expect_ok(kv_cuda_attend_run(&a, nullptr), "run"))
			exit(1);
	}
	CUDA(cudaStreamSynchronize(nullptr));
	return {out.get(), lse.get()};
}

/* Rows that have nothing to do with what was changed: the same but for roundings, which a neighbour's units may move. */
bool alike(const outputs &a, const outputs &b, size_t row)
{
	const float *x = (const float *)a.out.data() + row * D, *y = (const float *)b.out.data() + row * D;
	double difference = 0, length = 0;

	for (int i = 0; i < D; i++) {
		difference += pow(x[i] - y[i], 2);
		length += pow(y[i], 2);
	}
	return difference <= 1e-6 * length && (a.lse[row] == b.lse[row] || fabsf(a.lse[row] - b.lse[row]) < 1e-3f);
}

/* A block of sequence 0, changed on the host. */
template <class Change> void change_block(const world &w, uint32_t block, Change change)
{
	std::vector<uint8_t> bytes(w.geometry.block_bytes);
	void *at = (void *)(uintptr_t)w.table[block];

	CUDA(cudaMemcpy(bytes.data(), at, bytes.size(), cudaMemcpyDefault));
	change(bytes.data());
	CUDA(cudaMemcpy(at, bytes.data(), bytes.size(), cudaMemcpyDefault));
	CUDA(cudaStreamSynchronize(nullptr));
}

/* A NaN of each kind in one element of a query each, and in one of a query that sees nothing. */
bool queries_stay_alone(const world &w, const outputs &usual)
{
	const size_t spoiled[] = {row_of(0, 0, 1), row_of(0, 1, 3), row_of(0, 1, 6), row_of(1, 0, 2)};
	const float with[] = {NAN, INFINITY, -INFINITY, NAN};
	std::vector<float> q = w.q;
	bool ok = true;

	for (int i = 0; i < 4; i++)
		q[spoiled[i] * D + 5 + 30 * i] = with[i];
	w.q_device->set(elements_of(KV_DTYPE_F32, q));
	const outputs got = run(w, KV_DTYPE_F32);

	for (size_t row = 0; row < got.lse.size(); row++)
		ok = ok && (row == spoiled[3]                                                              ? w.c.features.sinks || got.empty(row)
			    : row == spoiled[0] || row == spoiled[1] || row == spoiled[2] ? got.all_nan(KV_DTYPE_F32, row)
											  : alike(got, usual, row));
	const outputs bytes = run(w, KV_DTYPE_E4M3);

	ok = ok && bytes.all_nan(KV_DTYPE_E4M3, spoiled[0]);
	q = w.q;
	w.q_device->set(elements_of(KV_DTYPE_F32, q));
	return ok;
}

/* A key of KV head 0 that is no number, by its scale, or an element where there is none: then nothing of head 1 is NaN, and of head 0 what
 * sees the key. */
bool keys_spoil_rows(const world &w, const outputs &usual)
{
	const uint32_t size = w.c.block_tokens, block = SPOILED_TOKEN / size, token = SPOILED_TOKEN % size;
	std::vector<uint8_t> before;
	bool ok = true;

	change_block(w, block, [&](uint8_t *bytes) {
		uint8_t *atom = bytes + kv_atom_at(&w.geometry, world::LAYER, 0, token);
		const uint16_t nan = 0x7fff;
		const uint32_t wide = 0x7fffff00;

		before.assign(bytes, bytes + w.geometry.block_bytes);
		if (kv_format_info(w.c.k)->scale_bytes == 0) {
			struct kv_place p[2];

			kv_code_places(w.c.k, KV_SIDE_K, D, token % KV_ATOM_TOKENS, 77, p);
			atom[p[0].byte] = 0xff;
			atom[p[1].byte] = 0x7f;
		} else {
			uint8_t *scale = atom + w.geometry.k_scales_at + kv_scale_at(w.c.k, token % KV_ATOM_TOKENS);

			memcpy(scale, kv_format_info(w.c.k)->scale_bytes == 2 ? (const void *)&nan : &wide, kv_format_info(w.c.k)->scale_bytes);
		}
	});
	const outputs got = run(w, KV_DTYPE_F32);

	for (size_t row = 0; row < got.lse.size(); row++) {
		const bool sees = row < row_of(1, 0, 0) && row % (NUMBERS_HEADS * NUMBERS_GROUP) < NUMBERS_GROUP;

		ok = ok && (sees ? got.all_nan(KV_DTYPE_F32, row) : alike(got, usual, row) || got.empty(row));
	}
	change_block(w, block, [&](uint8_t *bytes) { memcpy(bytes, before.data(), before.size()); });
	return ok;
}

/* All values of sequence 0 near the largest fp16: halves are the floats saturated. The last check: values stay as they are. */
bool values_saturate(const world &w)
{
	const uint32_t size = w.c.block_tokens;
	bool ok = true, largest = false;

	for (uint32_t block = w.c.features.window ? (TOKENS - w.c.features.window) / size : 0; block * size < TOKENS; block++)
		change_block(w, block, [&](uint8_t *bytes) {
			float v[D];

			for (int i = 0; i < D; i++)
				v[i] = (i % 3 ? 65504.0f : 65000.0f) * (i % 5 ? 1 : -1);
			for (uint32_t t = 0; t < size && block * size + t < TOKENS; t++)
				for (uint32_t head = 0; head < NUMBERS_HEADS; head++)
					kv_encode(&w.layout, &w.geometry, bytes, world::LAYER, head, KV_SIDE_V, t, 1, v, KV_DTYPE_F32, D);
		});
	const outputs floats = run(w, KV_DTYPE_F32), halves = run(w, KV_DTYPE_F16), others = run(w, KV_DTYPE_BF16);

	for (size_t i = 0; i < halves.out.size() / 2; i++) {
		const float x = ((const float *)floats.out.data())[i];
		const uint16_t h = ((const uint16_t *)halves.out.data())[i];

		ok = ok && h == half_saturated(x) && ((const uint16_t *)others.out.data())[i] == bf16_saturated(x);
		largest = largest || (h & 0x7fff) == 0x7bff;
	}
	/* int4_pth keeps the rotated vector in fp16: nothing so large comes back. Of what a sink takes part in it does not either. */
	return ok && (largest || w.c.v == KV_INT4_PTH || w.c.features.sinks);
}

} // namespace

bool run_odd_numbers(enum kv_format k, enum kv_format v)
{
	const feature_set each[] = {{}, {200, 30, true, true, false, true, true, false}};
	bool ok = true;

	for (const feature_set &features : each) {
		const test_case c = {k, v, D, NUMBERS_HEADS, NUMBERS_GROUP, QUERIES, 32, PLAIN, KV_DTYPE_F32, KV_DTYPE_F32, {TOKENS, 1}, features, 0};
		const world w(c);
		const outputs usual = run(w, KV_DTYPE_F32);
		const bool queries = queries_stay_alone(w, usual), keys = keys_spoil_rows(w, usual), values = values_saturate(w);

		printf("%-4s %8s/%-8s odd numbers%s%s%s%s\n", queries && keys && values ? "ok" : "BAD", kv_format_info(k)->name,
		       kv_format_info(v)->name, features.window ? ", features" : "", queries ? "" : ": queries", keys ? "" : ": keys",
		       values ? "" : ": values");
		ok = ok && queries && keys && values;
	}
	fflush(stdout);
	return ok;
}
