/* Encode and decode on the GPU against the CPU's: every byte of the blocks the same, whatever the values;
 * decoded values to within the rounding of the rotation's last steps. `codec small` runs one head dim,
 * for compute-sanitizer.
 */
#include "tests/gpu/gpu.h"

enum { LAYERS = 2, LAYER = 1, HEADS = 3, BLOCK_TOKENS = 48, BLOCKS = 24, TOKENS = 1100 };

/* Mostly bell-shaped; some vectors are tiny, huge, flat, zero, or hold numbers that are none. */
static std::vector<float> make_vectors(uint32_t d, random_source &r)
{
	std::vector<float> x((size_t)TOKENS * HEADS * d);

	for (size_t v = 0; v < TOKENS * HEADS; v++) {
		const uint64_t kind = r.next() % 12;
		const float size = kind == 0 ? 1e-3f : kind == 1 ? 3e4f : kind == 2 ? 0 : 1;

		for (uint32_t i = 0; i < d; i++)
			x[v * d + i] = kind == 3 ? 2.5f : size * r.bell();
		if (kind == 4)
			x[v * d + r.next() % d] = NAN;
		if (kind == 5)
			x[v * d + r.next() % d] = r.next() % 2 ? INFINITY : -INFINITY;
	}
	return x;
}

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

/* Distinct slots. Atoms in random order, most of them filled in order; of every fifth the tokens are
 * shuffled among all such, and another fifth has tokens without a slot. */
static std::vector<int64_t> make_slots(random_source &r)
{
	std::vector<int64_t> atoms(BLOCKS * BLOCK_TOKENS / KV_ATOM_TOKENS), slots(TOKENS);
	std::vector<size_t> loose;

	for (size_t i = 0; i < atoms.size(); i++)
		atoms[i] = (int64_t)i;
	for (size_t i = atoms.size(); i > 1; i--)
		std::swap(atoms[i - 1], atoms[r.next() % i]);
	for (size_t i = 0; i < slots.size(); i++) {
		slots[i] = atoms[i / KV_ATOM_TOKENS] * KV_ATOM_TOKENS + (int64_t)(i % KV_ATOM_TOKENS);
		if (i / KV_ATOM_TOKENS % 5 == 0)
			loose.push_back(i);
	}
	for (size_t i = loose.size(); i > 1; i--)
		std::swap(slots[loose[i - 1]], slots[loose[r.next() % i]]);
	for (size_t i = 0; i < slots.size(); i++)
		if (i / KV_ATOM_TOKENS % 5 == 1)
			slots[i] = i % 7 == 3   ? -1
				   : i % 16 == 5 ? (int64_t)(BLOCKS * BLOCK_TOKENS + 5)
						 : slots[i];
	return slots;
}

/* What the CPU makes of the same call. */
static void encode_on_cpu(const struct kv_cuda_codec *c, const std::vector<int64_t> &slots,
			  const uint8_t *k, const uint8_t *v, std::vector<uint8_t> &blocks)
{
	for (uint32_t i = 0; i < TOKENS; i++) {
		if (slots[i] < 0 || slots[i] >= BLOCKS * BLOCK_TOKENS)
			continue;
		for (uint32_t head = 0; head < HEADS; head++) {
			uint8_t *block = &blocks[slots[i] / BLOCK_TOKENS * c->geometry->block_bytes];
			size_t bytes = kv_dtype_bytes(c->dtype);

			kv_encode(c->layout, c->geometry, block, LAYER, head, KV_SIDE_K,
				  slots[i] % BLOCK_TOKENS, 1,
				  k + (i * c->k_stride + head * c->layout->head_dim_k) * bytes, c->dtype,
				  c->k_stride);
			kv_encode(c->layout, c->geometry, block, LAYER, head, KV_SIDE_V,
				  slots[i] % BLOCK_TOKENS, 1,
				  v + (i * c->v_stride + head * c->layout->head_dim_v) * bytes, c->dtype,
				  c->v_stride);
		}
	}
}

/* The largest error of a vector, relative to its length; infinite where a skipped row was touched. */
static double decoded_error(const struct kv_cuda_codec *c, enum kv_side side,
			    const std::vector<int64_t> &slots, const std::vector<uint8_t> &blocks,
			    const std::vector<float> &got)
{
	const uint32_t d = side == KV_SIDE_K ? c->layout->head_dim_k : c->layout->head_dim_v;
	std::vector<float> want(d);
	double worst = 0;

	for (uint32_t i = 0; i < TOKENS; i++) {
		const bool skipped = slots[i] < 0 || slots[i] >= BLOCKS * BLOCK_TOKENS;

		for (uint32_t head = 0; head < HEADS; head++) {
			const float *x = &got[((size_t)i * HEADS + head) * d];
			double difference = 0, length = 0;

			if (!skipped)
				kv_decode(c->layout, c->geometry,
					  &blocks[slots[i] / BLOCK_TOKENS * c->geometry->block_bytes],
					  LAYER, head, side, slots[i] % BLOCK_TOKENS, 1, false,
					  want.data(), KV_DTYPE_F32, d);
			for (uint32_t j = 0; j < d; j++) {
				if (skipped && !isnan(x[j]))
					return INFINITY;
				difference += skipped ? 0 : pow(x[j] - want[j], 2);
				length += skipped ? 0 : pow(want[j], 2);
			}
			double error = length > 0 ? sqrt(difference / length) : sqrt(difference);

			if (!(error <= worst))
				worst = error;
		}
	}
	return worst;
}

static bool run_case(enum kv_format kf, enum kv_format vf, uint32_t d, enum kv_dtype dtype)
{
	struct kv_layout l = layout_of(kf, d, LAYERS, HEADS, BLOCK_TOKENS);
	struct kv_geometry g;
	random_source r(d * 64 + kf * 8 + dtype);
	std::vector<int64_t> slots = make_slots(r);
	std::vector<uint8_t> k = to_dtype(dtype, make_vectors(d, r)),
			     v = to_dtype(dtype, make_vectors(d, r));
	std::vector<uint64_t> table(BLOCKS);

	l.v_format = vf;
	kv_geometry_of(&l, &g);
	std::vector<uint8_t> want(BLOCKS * g.block_bytes, 0xa5);
	device_array<uint8_t> blocks(want), k_device(k), v_device(v);
	device_array<int64_t> slots_device(slots);
	struct kv_cuda_codec c = {};

	for (int i = 0; i < BLOCKS; i++)
		table[i] = (uint64_t)(uintptr_t)blocks.data + i * g.block_bytes;
	device_array<uint64_t> table_device(table);
	c.layout = &l;
	c.geometry = &g;
	c.layer = LAYER;
	c.tokens = TOKENS;
	c.slots = slots_device.data;
	c.blocks = table_device.data;
	c.block_count = BLOCKS;
	c.k = k_device.data;
	c.v = v_device.data;
	c.k_stride = c.v_stride = HEADS * d;
	c.dtype = dtype;
	bool ok = kv_cuda_encode(&c, nullptr) == STATUS_OK;

	CUDA(cudaDeviceSynchronize());
	encode_on_cpu(&c, slots, k.data(), v.data(), want);
	const std::vector<uint8_t> got = blocks.get();
	size_t wrong = 0;

	for (size_t i = 0; i < got.size(); i++)
		wrong += got[i] != want[i];

	device_array<float> k_out((size_t)TOKENS * HEADS * d), v_out((size_t)TOKENS * HEADS * d);

	blocks.set(want);
	c.k = k_out.data;
	c.v = v_out.data;
	c.dtype = KV_DTYPE_F32;
	ok = ok && kv_cuda_decode(&c, nullptr) == STATUS_OK;
	CUDA(cudaDeviceSynchronize());
	const double k_error = decoded_error(&c, KV_SIDE_K, slots, want, k_out.get());
	const double v_error = decoded_error(&c, KV_SIDE_V, slots, want, v_out.get());

	ok = ok && wrong == 0 && k_error < 1e-6 && v_error < 1e-6;
	printf("%-4s %-8s %-8s d %3u from %s: %zu of %zu bytes differ; decoded %.1e %.1e\n",
	       ok ? "ok" : "BAD", kv_format_info(kf)->name, kv_format_info(vf)->name, d,
	       dtype == KV_DTYPE_F16    ? "fp16"
	       : dtype == KV_DTYPE_BF16 ? "bf16"
					: "fp32",
	       wrong, got.size(), k_error, v_error);
	fflush(stdout);
	return ok;
}

int main(int argc, char **argv)
{
	bool small = argc > 1 && strcmp(argv[1], "small") == 0, ok = true;
#ifdef TERRACE_CUDA_ALL
	std::vector<uint32_t> dims = {64, 96, 128, 192, 256};
#else
	std::vector<uint32_t> dims = {128};
#endif
	if (small)
		dims = {128};
	for (uint32_t d : dims) {
		for (int f = KV_F16; f < KV_FORMAT_COUNT; f++)
			for (enum kv_dtype t : {KV_DTYPE_F16, KV_DTYPE_BF16, KV_DTYPE_F32})
				if (!small || t == KV_DTYPE_F16)
					ok = run_case((enum kv_format)f, (enum kv_format)f, d, t) && ok;
		ok = run_case(KV_FP8, KV_TQ4, d, KV_DTYPE_F16) && ok;
	}
	printf("codec: %s\n", ok ? "all good" : "FAILED");
	return ok ? 0 : 1;
}
