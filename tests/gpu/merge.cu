/* The merge of partial attentions on the GPU against float64: every element and lse of a poisoned output, rows
 * without tokens, marked by either infinity, parts whose unused rows hold NaN, logarithms that are NaN, in place, odd sizes.
 * `merge small` is for compute-sanitizer. */
#include "tests/gpu/gpu.h"

constexpr uint32_t PARTS_MAX = 5;

static std::vector<uint8_t> to_dtype(enum kv_dtype t, const std::vector<float> &x)
{
	std::vector<uint8_t> bytes(x.size() * kv_dtype_bytes(t));

	for (size_t i = 0; i < x.size(); i++) {
		uint16_t h = t == KV_DTYPE_F16 ? kv_half_from(x[i]) : kv_bf16_from(x[i]);

		memcpy(&bytes[i * kv_dtype_bytes(t)], t == KV_DTYPE_F32 ? (const void *)&x[i] : &h,
		       kv_dtype_bytes(t));
	}
	return bytes;
}

static float element(enum kv_dtype t, const std::vector<uint8_t> &p, size_t i)
{
	if (t == KV_DTYPE_F32)
		return ((const float *)p.data())[i];
	return t == KV_DTYPE_F16 ? kv_half_to(((const uint16_t *)p.data())[i])
				 : kv_bf16_to(((const uint16_t *)p.data())[i]);
}

struct part {
	std::vector<float> lse;
	std::vector<uint8_t> out;
};

static bool counts(float lse)
{
	return fabsf(lse) != INFINITY;
}

/* One row in three has no tokens in a part, one in nine in any; of one in nine a part may have a NaN for its logarithm. */
static part make_part(uint32_t rows, uint32_t d, enum kv_dtype t, random_source &r)
{
	std::vector<float> x((size_t)rows * d), lse(rows);

	for (uint32_t i = 0; i < rows; i++) {
		const bool empty = i % 9 == 4 || r.next() % 3 == 0;

		lse[i] = empty ? (r.next() % 2 ? INFINITY : -INFINITY) : i % 9 == 7 && r.next() % 2 ? NAN : 20 * r.bell();
		for (uint32_t j = 0; j < d; j++)
			x[(size_t)i * d + j] = empty ? NAN : r.bell();
	}
	return {lse, to_dtype(t, x)};
}

static double row_error(const std::vector<part> &parts, uint32_t row, uint32_t d, enum kv_dtype in,
			enum kv_dtype out, const std::vector<uint8_t> &got, const std::vector<float> &got_lse)
{
	double max = -INFINITY, total = 0, difference = 0, length = 0;

	for (const part &p : parts)
		if (counts(p.lse[row]))
			max = fmax(max, p.lse[row]);
	for (const part &p : parts)
		total += counts(p.lse[row]) ? exp(p.lse[row] - max) : 0;
	if (isnan(total)) {
		bool all = isnan(got_lse[row]);

		for (uint32_t j = 0; j < d; j++)
			all = all && isnan(element(out, got, (size_t)row * d + j));
		return all ? 0 : INFINITY;
	}
	for (uint32_t j = 0; j < d; j++) {
		double want = 0, size = 0; /* terms may cancel each other */

		for (const part &p : parts)
			if (counts(p.lse[row])) {
				const double term = exp(p.lse[row] - max) / total * element(in, p.out, (size_t)row * d + j);

				want += term;
				size += fabs(term);
			}
		difference += pow(element(out, got, (size_t)row * d + j) - want, 2);
		length += size * size;
	}
	if (max == -INFINITY)
		return difference == 0 && got_lse[row] == -INFINITY ? 0 : INFINITY;
	const double lse_error = fabs(got_lse[row] - (max + log(total))) / fmax(1, fabs(max));

	return fmax(sqrt(difference / (length + 1e-30)), lse_error);
}

static bool run_case(uint32_t count, uint32_t rows, uint32_t d, enum kv_dtype in, enum kv_dtype out, bool in_place,
		     uint32_t shift)
{
	random_source r(count * 1000 + rows * 10 + d + in + out);
	std::vector<part> parts;
	std::vector<device_array<uint8_t> *> outs;
	std::vector<device_array<float> *> lses;
	struct kv_cuda_merge m = {};
	double worst = 0;

	for (uint32_t i = 0; i < count; i++) {
		parts.push_back(make_part(rows, d, in, r));
		outs.push_back(new device_array<uint8_t>(parts[i].out.size() + shift));
		CUDA(cudaMemcpy(outs[i]->data + shift, parts[i].out.data(), parts[i].out.size(),
				cudaMemcpyHostToDevice));
		lses.push_back(new device_array<float>(parts[i].lse));
		m.out[i] = outs[i]->data + shift;
		m.lse[i] = lses[i]->data;
	}
	device_array<uint8_t> merged((size_t)rows * d * kv_dtype_bytes(out) + shift);
	device_array<float> lse(rows);

	m.parts = count;
	m.rows = rows;
	m.d = d;
	m.in_dtype = in;
	m.out_dtype = out;
	m.merged = in_place ? outs[0]->data + shift : merged.data + shift;
	m.merged_lse = in_place ? lses[0]->data : lse.data;
	bool ok = kv_cuda_merge(&m, nullptr) == STATUS_OK;

	CUDA(cudaDeviceSynchronize());
	std::vector<uint8_t> got((size_t)rows * d * kv_dtype_bytes(out));
	const std::vector<float> got_lse = (in_place ? lses[0] : &lse)->get();

	CUDA(cudaMemcpy(got.data(), m.merged, got.size(), cudaMemcpyDeviceToHost));
	for (uint32_t i = 0; i < rows; i++) {
		const double e = row_error(parts, i, d, in, out, got, got_lse);

		if (!(e <= worst) && !isnan(worst))
			worst = e;
	}
	ok = ok && worst < (out == KV_DTYPE_F32 ? 1e-6 : out == KV_DTYPE_F16 ? 1e-3 : 8e-3);
	printf("%-4s merge of %u parts, %5u rows of %3u, dtypes %d to %d%s%s: error %.1e\n", ok ? "ok" : "BAD", count,
	       rows, d, in, out, in_place ? ", in place" : "", shift ? ", unaligned" : "", worst);
	for (uint32_t i = 0; i < count; i++) {
		delete outs[i];
		delete lses[i];
	}
	return ok;
}

static bool refuses()
{
	device_array<uint8_t> some(4096);
	struct kv_cuda_merge good = {}, m;
	bool ok = kv_cuda_merge(&good, nullptr) == STATUS_INVALID;
	const auto refused = [&] { return kv_cuda_merge(&m, nullptr) == STATUS_INVALID; };

	good.parts = 2;
	good.rows = 2;
	good.d = 32;
	good.out[0] = some.data;
	good.out[1] = some.data + 256;
	good.lse[0] = (const float *)(some.data + 512);
	good.lse[1] = (const float *)(some.data + 520);
	good.merged = some.data + 1024;
	good.merged_lse = (float *)(some.data + 2048);
	m = good;
	ok = ok && kv_cuda_merge(&m, nullptr) == STATUS_OK;
	m.parts = KV_CUDA_MERGE_PARTS + 1;
	ok = ok && refused();
	m = good;
	m.d = 0;
	ok = ok && refused();
	m = good;
	m.out_dtype = KV_DTYPE_E4M3;
	ok = ok && refused();
	m = good;
	m.merged = some.data; /* in place */
	ok = ok && kv_cuda_merge(&m, nullptr) == STATUS_OK;
	m.out_dtype = KV_DTYPE_F16;
	ok = ok && refused();
	m = good;
	m.merged = some.data + 256; /* the second part's place */
	ok = ok && refused();
	m = good;
	m.merged_lse = (float *)(some.data + 516);
	ok = ok && refused();
	m = good;
	m.merged = some.data + 1025;
	ok = ok && refused();
	CUDA(cudaDeviceSynchronize());
	printf("%-4s refusals\n", ok ? "ok" : "BAD");
	return ok;
}

int main(int argc, char **argv)
{
	const bool small = argc > 1 && strcmp(argv[1], "small") == 0;
	const enum kv_dtype types[] = {KV_DTYPE_F32, KV_DTYPE_F16, KV_DTYPE_BF16};
	bool ok = refuses();

	for (uint32_t count : {1u, 2u, PARTS_MAX})
		for (uint32_t rows : {1u, 37u, 4096u})
			for (uint32_t d : {1u, 17u, 96u, 128u}) {
				if (small && (rows > 37 || d > 96))
					continue;
				for (enum kv_dtype in : types)
					for (enum kv_dtype out : types)
						ok = run_case(count, rows, d, in, out, false, 0) && ok;
				ok = run_case(count, rows, d, KV_DTYPE_F32, KV_DTYPE_F32, true, 0) && ok;
				ok = run_case(count, rows, d, KV_DTYPE_F16, KV_DTYPE_F16, true, 2) && ok;
			}
	printf("merge: %s\n", ok ? "all good" : "FAILED");
	return ok ? 0 : 1;
}
