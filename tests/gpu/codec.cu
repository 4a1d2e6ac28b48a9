/* Encode and decode on the GPU against the CPU's: every byte of the blocks the same, whatever the values;
 * decoded values to within the rounding of the rotation's last steps, or of their own 16 bits. Few tokens go a
 * warp a vector, many by tiles, so each case comes in both sizes; and many that fill atoms and many that do not, alone and together.
 * Into rows that the call names, far from each other in memory that has more, the same bytes.
 *
 *   codec [small|least|large|all] [DIM]     small: one head dim, for compute-sanitizer; least: of that one batch of sequences a format, and few
 *                                           tokens of formats that are mixed; large: many more vectors; DIM: this one alone
 */
#include "tests/gpu/gpu.h"

extern "C" {
#include "kernels/codec.h"
}

enum { LAYERS = 2, LAYER = 1, HEADS = 3, BLOCK_TOKENS = 48 };
enum { K_GAP = 8, V_GAP = 24 }; /* elements between one token's vectors and the next one's */

/* Whose tokens a call has: atoms in order and not (make_slots); single ones, an atom each; single ones before, between and behind
 * prefills that begin in the middle of an atom; all of some atoms, but far from each other in the call. */
enum batch { OF_ATOMS, OF_SEQUENCES, OF_BOTH, SPREAD, BATCHES };

static const char *const batch_name[] = {"atoms", "single", "both", "spread"};

static uint32_t blocks_for(uint32_t tokens, enum batch b)
{
	return (b == OF_SEQUENCES || b == OF_BOTH ? tokens / (BLOCK_TOKENS / KV_ATOM_TOKENS) : tokens / BLOCK_TOKENS) + 2;
}

/* Rotated it is -14 m, 16 m and -13 m beside zeros: to int4_pth steps of 2 m from the eighth on, so that the last is halfway between
 * codes 0 and 1, or (m = 17, 34, 35) next to that, by how 1 / 2 m is rounded. */
static void halfway(float *x, uint32_t d, float m)
{
	for (uint32_t i = 0; i < d; i++)
		x[i] = i == 3 ? -14 * m : i == 17 ? 16 * m : i == 40 ? -13 * m : 0;
	kv_unrotate(x, d);
}

/* Mostly bell-shaped; some vectors are tiny, huge, flat, zero, hold numbers that are none, or have few different ones, of
 * which codes are halfway between two. */
static std::vector<float> make_vectors(uint32_t tokens, uint32_t heads, uint32_t d, uint32_t gap, random_source &r)
{
	std::vector<float> all((size_t)tokens * (heads * d + gap), 77);

	for (size_t v = 0; v < (size_t)tokens * heads; v++) {
		float *x = &all[v * d + v / heads * gap];
		const uint64_t kind = r.next() % 16;
		const float size = kind == 0 ? 1e-3f : kind == 1 ? 3e4f : kind == 2 ? 0 : kind == 6 ? 1e6f : 1;

		for (uint32_t i = 0; i < d; i++)
			x[i] = kind == 3   ? 2.5f
				       : kind == 7 ? (float)(r.next() % 5) - 2
				       : kind == 8 ? (i == v % d ? 7.0f : 0)
				       : kind == 9 ? (i % 32 == v % 32 ? (float)(r.next() % 3) : 0)
						   : size * r.bell();
		if (kind == 10) {
			halfway(x, d, (float)(r.next() % 40));
			continue;
		}
		if (kind == 4)
			x[r.next() % d] = NAN;
		if (kind == 5)
			x[r.next() % d] = r.next() % 2 ? INFINITY : -INFINITY;
	}
	return all;
}

/* Keys with a rope part: latents, and behind each in the gap a rope part like one. */
static std::vector<float> make_keys(uint32_t tokens, uint32_t gap, random_source &r)
{
	const uint32_t pitch = KV_KEY_DIM_MAX + gap;
	std::vector<float> keys = make_vectors(tokens, 1, KV_LATENT_DIM, KV_ROPE_DIM + gap, r),
			   ropes = make_vectors(tokens, 1, KV_ROPE_DIM, 0, r);

	for (uint32_t i = 0; i < tokens; i++)
		memcpy(&keys[i * pitch + KV_LATENT_DIM], &ropes[i * KV_ROPE_DIM], KV_ROPE_DIM * sizeof(float));
	return keys;
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
static std::vector<int64_t> make_slots(uint32_t tokens, const std::vector<int64_t> &atoms, random_source &r)
{
	std::vector<int64_t> slots(tokens);
	std::vector<size_t> loose;

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
				   : i % 16 == 5 ? (int64_t)atoms.size() * KV_ATOM_TOKENS + 5
						 : slots[i];
	return slots;
}

/* Pieces of 1 token and of 1 to 400, each in atoms of its own, from any place of the first on. */
static std::vector<int64_t> make_pieces(uint32_t tokens, const std::vector<int64_t> &atoms, random_source &r)
{
	std::vector<int64_t> slots;
	size_t next = 0;

	while (slots.size() < tokens) {
		const uint32_t left = tokens - (uint32_t)slots.size(), wanted = r.next() % 3 == 0 ? 1 + (uint32_t)(r.next() % 400) : 1,
			       at = (uint32_t)(r.next() % KV_ATOM_TOKENS), count = wanted < left ? wanted : left;

		for (uint32_t i = at; i < at + count; i++)
			slots.push_back(atoms[next + i / KV_ATOM_TOKENS] * KV_ATOM_TOKENS + i % KV_ATOM_TOKENS);
		next += (at + count - 1) / KV_ATOM_TOKENS + 1;
	}
	return slots;
}

/* Slots of a batch; about every fiftieth token of all but atoms has none. */
static std::vector<int64_t> batch_slots(enum batch b, uint32_t tokens, random_source &r)
{
	std::vector<int64_t> atoms(blocks_for(tokens, b) * BLOCK_TOKENS / KV_ATOM_TOKENS), slots(tokens);
	const uint32_t of_spread = (tokens - 1) / KV_ATOM_TOKENS + 1;

	for (size_t i = 0; i < atoms.size(); i++)
		atoms[i] = (int64_t)i;
	for (size_t i = atoms.size(); i > 1; i--)
		std::swap(atoms[i - 1], atoms[r.next() % i]);
	if (b == OF_ATOMS)
		return make_slots(tokens, atoms, r);
	if (b == OF_BOTH)
		slots = make_pieces(tokens, atoms, r);
	for (uint32_t i = 0; i < tokens; i++) {
		if (b == OF_SEQUENCES)
			slots[i] = atoms[i] * KV_ATOM_TOKENS + (int64_t)(r.next() % KV_ATOM_TOKENS);
		if (b == SPREAD)
			slots[i] = atoms[i % of_spread] * KV_ATOM_TOKENS + i / of_spread;
		if (r.next() % 50 == 0)
			slots[i] = -1;
	}
	return slots;
}

/* What the CPU makes of the same call. */
static void encode_on_cpu(const struct kv_cuda_codec *c, const std::vector<int64_t> &slots,
			  const uint8_t *k, const uint8_t *v, std::vector<uint8_t> &blocks)
{
	for (uint32_t i = 0; i < c->tokens; i++) {
		if (slots[i] < 0 || slots[i] >= (int64_t)c->block_count * BLOCK_TOKENS)
			continue;
		for (uint32_t head = 0; head < c->layout->heads; head++) {
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
			kv_encode(c->layout, c->geometry, block, LAYER, head, KV_SIDE_ROPE,
				  slots[i] % BLOCK_TOKENS, 1, k + (i * c->k_stride + c->layout->head_dim_k) * bytes,
				  c->dtype, c->k_stride);
		}
	}
}

static float element(enum kv_dtype t, const uint8_t *p, size_t i)
{
	if (t == KV_DTYPE_F32)
		return ((const float *)p)[i];
	return t == KV_DTYPE_F16 ? kv_half_to(((const uint16_t *)p)[i]) : kv_bf16_to(((const uint16_t *)p)[i]);
}

/* The largest error of a vector against the CPU's, relative to its length; infinite where a skipped row was
 * touched. */
static double decoded_error(const struct kv_cuda_codec *c, enum kv_side side,
			    const std::vector<int64_t> &slots, const std::vector<uint8_t> &blocks,
			    const std::vector<uint8_t> &got)
{
	const uint32_t d = kv_part_of(c->layout, c->geometry, side).d, heads = c->layout->heads,
		       pitch = side == KV_SIDE_V ? d : kv_key_dims(c->layout),
		       at = side == KV_SIDE_ROPE ? pitch - d : 0;
	const size_t bytes = kv_dtype_bytes(c->dtype);
	std::vector<uint8_t> want(d * bytes);
	double worst = 0;

	for (uint32_t i = 0; i < c->tokens; i++) {
		const bool skipped = slots[i] < 0 || slots[i] >= (int64_t)c->block_count * BLOCK_TOKENS;

		for (uint32_t head = 0; head < heads; head++) {
			const uint8_t *x = &got[(((size_t)i * heads + head) * pitch + at) * bytes];
			double difference = 0, length = 0;

			if (!skipped)
				kv_decode(c->layout, c->geometry,
					  &blocks[slots[i] / BLOCK_TOKENS * c->geometry->block_bytes],
					  LAYER, head, side, slots[i] % BLOCK_TOKENS, 1, false,
					  want.data(), c->dtype, d);
			for (uint32_t j = 0; j < d; j++) {
				const float was = element(c->dtype, x, j), right = element(c->dtype, want.data(), j);

				if (skipped && !isnan(was))
					return INFINITY;
				if (skipped)
					continue;
				if (isinf(was) || isinf(right)) /* what does not fit saturates */
					return INFINITY;
				length += pow(right, 2);
				difference += pow(was - right, 2);
			}
			double error = length > 0 ? sqrt(difference / length) : sqrt(difference);

			if (!(error <= worst) && !isnan(worst))
				worst = error;
		}
	}
	return worst;
}

/* Decodes the blocks on the GPU as `dtype`; true if both sides are the CPU's. */
static bool check_decode(struct kv_cuda_codec c, enum kv_dtype dtype, const std::vector<int64_t> &slots,
			 const std::vector<uint8_t> &blocks, double *error)
{
	const double allowed = dtype == KV_DTYPE_F32 ? 1e-6 : dtype == KV_DTYPE_F16 ? 1e-3 : 8e-3;
	const uint32_t heads = c.layout->heads;
	const size_t count = (size_t)c.tokens * heads * kv_dtype_bytes(dtype);
	device_array<uint8_t> k(count * kv_key_dims(c.layout)), v(count * c.layout->head_dim_v);

	c.k = k.data;
	c.v = v.data;
	c.k_stride = heads * kv_key_dims(c.layout);
	c.v_stride = heads * c.layout->head_dim_v;
	c.dtype = dtype;
	const bool ok = kv_cuda_decode(&c, nullptr) == STATUS_OK;

	CUDA(cudaDeviceSynchronize());
	*error = decoded_error(&c, KV_SIDE_K, slots, blocks, k.get());
	if (c.layout->v_format != KV_NONE)
		*error = fmax(*error, decoded_error(&c, KV_SIDE_V, slots, blocks, v.get()));
	if (c.layout->rope_dim)
		*error = fmax(*error, decoded_error(&c, KV_SIDE_ROPE, slots, blocks, k.get()));
	return ok && *error < allowed;
}

/* Rows of a cache with room for more tokens, in any order; every eleventh token or so has none. */
static std::vector<int64_t> make_rows(uint32_t tokens, uint32_t room, random_source &r)
{
	std::vector<int64_t> rows(room);

	for (uint32_t i = 0; i < room; i++)
		rows[i] = i;
	for (size_t i = room; i > 1; i--)
		std::swap(rows[i - 1], rows[r.next() % i]);
	rows.resize(tokens);
	for (int64_t &row : rows)
		if (r.next() % 11 == 0)
			row = -1;
	return rows;
}

/* What tokens decoded one after the other look like in their rows, everything else poisoned. */
static std::vector<uint8_t> spread_rows(const std::vector<uint8_t> &dense, const std::vector<int64_t> &rows, uint32_t room, size_t row_bytes,
					size_t stride_bytes)
{
	std::vector<uint8_t> spread(room * stride_bytes, 0xff);

	for (size_t i = 0; i < rows.size(); i++)
		if (rows[i] >= 0)
			memcpy(&spread[rows[i] * stride_bytes], &dense[i * row_bytes], row_bytes);
	return spread;
}

/* Decodes the blocks as `dtype` to rows one after the other, which others have checked, and to rows that the call names; true if the bytes
 * are the same. */
static bool check_rows(struct kv_cuda_codec c, enum kv_dtype dtype, random_source &r)
{
	const uint32_t room = c.tokens + c.tokens / 4 + 3;
	const size_t bytes = kv_dtype_bytes(dtype), k_bytes = c.layout->heads * kv_key_dims(c.layout) * bytes,
		     v_bytes = c.layout->heads * c.layout->head_dim_v * bytes,
		     k_pitch = k_bytes + K_GAP * bytes, v_pitch = v_bytes + V_GAP * bytes;
	const std::vector<int64_t> rows = make_rows(c.tokens, room, r);
	const device_array<int64_t> rows_device(rows);
	device_array<uint8_t> k(c.tokens * k_bytes), v(c.tokens * v_bytes), k_rows(room * k_pitch), v_rows(room * v_pitch);

	c.k = k.data;
	c.v = v.data;
	c.k_stride = k_bytes / bytes;
	c.v_stride = v_bytes / bytes;
	c.dtype = dtype;
	bool ok = kv_cuda_decode(&c, nullptr) == STATUS_OK;

	c.k = k_rows.data;
	c.v = v_rows.data;
	c.k_stride = k_pitch / bytes;
	c.v_stride = v_pitch / bytes;
	c.rows = rows_device.data;
	ok = kv_cuda_decode(&c, nullptr) == STATUS_OK && ok;
	CUDA(cudaDeviceSynchronize());
	return ok && k_rows.get() == spread_rows(k.get(), rows, room, k_bytes, k_pitch) &&
	       (c.layout->v_format == KV_NONE || v_rows.get() == spread_rows(v.get(), rows, room, v_bytes, v_pitch));
}

/* Of K and V. rounding: of int4_pth. rope: of a rope part. */
struct formats {
	enum kv_format k, v;
	enum kv_rounding rounding = KV_ROUND_F16;
	enum kv_format rope = KV_NONE;
};

static bool run_case(formats f, uint32_t d, uint32_t dv, enum kv_dtype dtype, uint32_t tokens, enum batch batch)
{
	const uint32_t heads = f.rope != KV_NONE ? 1 : HEADS;
	struct kv_layout l = layout_of(f.k, d, LAYERS, heads, BLOCK_TOKENS);
	const uint32_t odd = dtype == KV_DTYPE_F32, k_gap = K_GAP + odd, v_gap = V_GAP + odd; /* of 16 bits rows in pieces of 16 bytes */
	struct kv_geometry g;
	random_source r(d * 64 + f.k * 8 + dtype + tokens);
	std::vector<int64_t> slots = batch_slots(batch, tokens, r);
	std::vector<uint8_t> k = to_dtype(dtype, f.rope != KV_NONE ? make_keys(tokens, k_gap, r)
								   : make_vectors(tokens, heads, d, k_gap, r)),
			     v = to_dtype(dtype, make_vectors(tokens, heads, dv, v_gap, r));
	std::vector<uint64_t> table(blocks_for(tokens, batch));

	l.v_format = f.v;
	l.int4_rounding = f.rounding;
	l.rotation_version = kv_rotation_version(d, dv);
	l.head_dim_v = dv;
	l.rope_format = f.rope;
	l.rope_dim = f.rope != KV_NONE ? KV_ROPE_DIM : 0;
	kv_geometry_of(&l, &g);
	std::vector<uint8_t> want(table.size() * g.block_bytes, 0xa5);
	device_array<uint8_t> blocks(want), k_device(k), v_device(v);
	device_array<int64_t> slots_device(slots);
	struct kv_cuda_codec c = {};

	for (size_t i = 0; i < table.size(); i++)
		table[i] = (uint64_t)(uintptr_t)blocks.data + i * g.block_bytes;
	device_array<uint64_t> table_device(table);
	c.layout = &l;
	c.geometry = &g;
	c.layer = LAYER;
	c.tokens = tokens;
	c.slots = slots_device.data;
	c.blocks = table_device.data;
	c.block_count = (uint32_t)table.size();
	c.k = k_device.data;
	c.v = f.v == KV_NONE ? nullptr : v_device.data;
	c.k_stride = heads * kv_key_dims(&l) + k_gap;
	c.v_stride = heads * dv + v_gap;
	c.dtype = dtype;
	bool ok = kv_cuda_encode(&c, nullptr) == STATUS_OK;

	CUDA(cudaDeviceSynchronize());
	encode_on_cpu(&c, slots, k.data(), v.data(), want);
	const std::vector<uint8_t> got = blocks.get();
	size_t wrong = 0;
	double error = 0, error_16 = 0;

	for (size_t i = 0; i < got.size(); i++)
		wrong += got[i] != want[i];
	blocks.set(want);
	ok = check_decode(c, KV_DTYPE_F32, slots, want, &error) && ok;
	if (dtype != KV_DTYPE_F32)
		ok = check_decode(c, dtype, slots, want, &error_16) && ok;
	const bool to_rows = check_rows(c, dtype == KV_DTYPE_F16 ? KV_DTYPE_BF16 : dtype == KV_DTYPE_BF16 ? KV_DTYPE_F16 : dtype, r);

	ok = ok && wrong == 0 && to_rows;
	printf("%-4s %-8s %-8s%s%s%s d %3u, %3u from %s, %5u tokens, %-6s: %zu of %zu bytes differ; "
	       "decoded %.1e, in 16 bits %.1e%s\n",
	       ok ? "ok" : "BAD", kv_format_info(f.k)->name, kv_format_info(f.v)->name,
	       f.rounding == KV_ROUND_BF16 ? " (bf16)" : "", f.rope != KV_NONE ? " rope " : "",
	       f.rope != KV_NONE ? kv_format_info(f.rope)->name : "", d, dv,
	       dtype == KV_DTYPE_F16    ? "fp16"
	       : dtype == KV_DTYPE_BF16 ? "bf16"
					: "fp32",
	       tokens, batch_name[batch], wrong, got.size(), error, error_16, to_rows ? "" : "; ROWS DIFFER");
	fflush(stdout);
	return ok;
}

static bool refuses()
{
	struct kv_layout l = layout_of(KV_TQ4, 128, 2, 2, 16), bad;
	struct kv_geometry g;
	device_array<uint8_t> some(256);
	struct kv_cuda_codec good = {}, c;
	bool ok;
	const auto refused = [&] {
		return kv_cuda_encode(&c, nullptr) == STATUS_INVALID && kv_cuda_decode(&c, nullptr) == STATUS_INVALID;
	};

	kv_geometry_of(&l, &g);
	good.layout = &l;
	good.geometry = &g;
	good.tokens = 2;
	good.slots = (const int64_t *)some.data; /* each is -1 */
	good.blocks = (const uint64_t *)some.data;
	good.k = good.v = some.data;
	good.k_stride = good.v_stride = 256;
	c = good;
	ok = kv_cuda_encode(&c, nullptr) == STATUS_OK && kv_cuda_decode(&c, nullptr) == STATUS_OK;
	c.k_stride = 255;
	ok = ok && refused();
	c = good;
	c.v_stride = 0;
	ok = ok && refused();
	c.tokens = 1; /* whose stride is nobody's business */
	ok = ok && kv_cuda_encode(&c, nullptr) == STATUS_OK;
	c = good;
	c.v = some.data + 2; /* floats */
	ok = ok && refused();
	c = good;
	c.dtype = KV_DTYPE_E4M3;
	ok = ok && refused();
	c = good;
	c.rows = (const int64_t *)some.data; /* each is -1 */
	ok = ok && kv_cuda_decode(&c, nullptr) == STATUS_OK && kv_cuda_encode(&c, nullptr) == STATUS_INVALID;
	c.rows = (const int64_t *)(some.data + 4);
	ok = ok && refused();
	c = good;
	c.layer = 2;
	ok = ok && refused();
	c = good;
	c.tokens = UINT32_MAX;
	ok = ok && refused();
	c = good;
	bad = l;
	bad.heads = 0;
	c.layout = &bad;
	ok = ok && refused();
#if defined(TERRACE_CUDA_ALL) || defined(TERRACE_CUDA_CODEC_DIMS)
	struct kv_geometry latent_geometry;

	bad = layout_of(KV_TQ4, KV_NONE, KV_LATENT_DIM, 2, 1, 16); /* a sound one: a key has 576 elements */
	bad.rope_dim = KV_ROPE_DIM;
	bad.rope_format = KV_BF16;
	kv_geometry_of(&bad, &latent_geometry);
	c = good;
	c.layout = &bad;
	c.geometry = &latent_geometry;
	c.v = nullptr;
	c.v_stride = 0;
	c.k_stride = KV_KEY_DIM_MAX;
	ok = ok && kv_cuda_encode(&c, nullptr) == STATUS_OK && kv_cuda_decode(&c, nullptr) == STATUS_OK;
	c.k_stride = KV_KEY_DIM_MAX - 1;
	ok = ok && refused();
	c.k_stride = KV_KEY_DIM_MAX;
	bad.rope_dim = 32;
	ok = ok && refused();
#endif
#ifndef TERRACE_CUDA_ALL
	std::vector<uint8_t> bytes(g.block_bytes, 0xa5); /* K's side is not written when V's is refused */
	device_array<uint8_t> block(bytes);
	device_array<int64_t> slots(std::vector<int64_t>{0, 1});
	device_array<uint64_t> table(std::vector<uint64_t>{(uint64_t)(uintptr_t)block.data});
	device_array<uint8_t> vectors(4096);

	bad = l;
	bad.head_dim_v = 64;
	c = good;
	c.layout = &bad;
	c.slots = slots.data;
	c.blocks = table.data;
	c.block_count = 1;
	c.dtype = KV_DTYPE_F16;
	c.k = c.v = vectors.data;
	ok = ok && kv_cuda_encode(&c, nullptr) == STATUS_UNSUPPORTED;
	CUDA(cudaDeviceSynchronize());
	ok = ok && block.get() == bytes;
#endif
	CUDA(cudaDeviceSynchronize());
	printf("%-4s refusals\n", ok ? "ok" : "BAD");
	return ok;
}

int main(int argc, char **argv)
{
	const char *size = argc > 1 ? argv[1] : "";
	const bool least = strcmp(size, "least") == 0;
	bool small = least || strcmp(size, "small") == 0, large = strcmp(size, "large") == 0, ok = refuses();
	const formats mixed[] = {{KV_FP8, KV_TQ4}, {KV_FP8, KV_TQ3}, {KV_TQ4, KV_TQ3}};
	std::vector<uint32_t> dims = {128}, counts = {77, 1100};
#ifdef TERRACE_CUDA_ALL
	if (!small)
		dims = {64, 96, 128, 192, 256};
#endif
	if (small)
		counts = {20, 530};
	if (large)
		counts = {40000};
	if (argc > 2)
		dims = {(uint32_t)atoi(argv[2])};
	for (uint32_t d : dims)
		for (uint32_t n : counts) {
			for (int f = KV_F16; f < KV_FORMAT_COUNT; f++)
				for (enum kv_dtype t : {KV_DTYPE_F16, KV_DTYPE_BF16, KV_DTYPE_F32})
					if (!(small && t != KV_DTYPE_F16) && !(large && t == KV_DTYPE_F32))
						ok = run_case({(enum kv_format)f, (enum kv_format)f}, d, d, t, n,
							OF_ATOMS) && ok;
			for (const auto &f : mixed)
				ok = least && n != counts[0] ? ok : run_case(f, d, d, KV_DTYPE_F16, n, OF_ATOMS) && ok;
			for (enum kv_dtype t : {KV_DTYPE_BF16, KV_DTYPE_F32})
				if (!((small || large) && t == KV_DTYPE_F32))
					ok = run_case({KV_INT4_PTH, KV_INT4_PTH, KV_ROUND_BF16}, d, d, t, n, OF_ATOMS)
						&& ok;
		}
	for (uint32_t d : dims)
		for (int b = OF_SEQUENCES; b < BATCHES && !large; b++)
			for (uint32_t n : {512, 1025})
				for (int f = KV_F16; f < KV_FORMAT_COUNT; f++)
					if ((n == (small ? 512 : 1025) || (!small && b == OF_SEQUENCES)) && !(least && OF_SEQUENCES + f % 3 != b))
						ok = run_case({(enum kv_format)f, (enum kv_format)f}, d, d, n == 512
							? KV_DTYPE_F16 : KV_DTYPE_BF16, n,
							      (enum batch)b) &&
						     ok;
#if defined(TERRACE_CUDA_ALL) || defined(TERRACE_CUDA_CODEC_DIMS)
	/* Dims that are coded and not attended, a warp a vector however many there are. */
	for (uint32_t d : {80, 112, 512})
		for (int f = KV_F16; f < KV_FORMAT_COUNT && !large; f++) {
			const enum kv_dtype t = f % 3 ? KV_DTYPE_F16 : small ? KV_DTYPE_BF16 : KV_DTYPE_F32;

			ok = run_case({(enum kv_format)f, (enum kv_format)f}, d, d, t, least ? 20 : 77, OF_ATOMS) && ok;
			if (!least)
				ok = run_case({(enum kv_format)f, KV_TQ3}, d, d == 80 ? 112 : 128, t, 130, OF_BOTH)
					&& ok;
		}
#endif
#if defined(TERRACE_CUDA_ALL) || defined(TERRACE_CUDA_CODEC_DIMS)
	/* A latent and its rope part. */
	for (int f = KV_F16; f < KV_FORMAT_COUNT && !large; f++)
		for (enum kv_format rope : {KV_F16, KV_BF16, KV_FP8}) {
			const enum kv_dtype t = rope == KV_F16	     ? KV_DTYPE_F16
						: small || f % 2 ? KV_DTYPE_BF16
								 : KV_DTYPE_F32;
			const formats both = {(enum kv_format)f, KV_NONE, KV_ROUND_F16, rope};

			ok = run_case(both, KV_LATENT_DIM, KV_LATENT_DIM, t, least ? 20 : 77, OF_ATOMS) && ok;
			if (!least)
				ok = run_case(both, KV_LATENT_DIM, KV_LATENT_DIM, t, small ? 130 : 1100,
					      (enum batch)(OF_SEQUENCES + f % 3)) && ok;
		}
	if (!large)
		ok = run_case({KV_INT4_PTH, KV_NONE, KV_ROUND_BF16, KV_BF16}, KV_LATENT_DIM, KV_LATENT_DIM,
			      KV_DTYPE_BF16, 77, OF_ATOMS) && ok;
#endif
	/* V is a view of K; and of another head dim. */
	for (uint32_t n : {20, 530})
		ok = (n == 530 && least ? ok : run_case({KV_TQ4, KV_NONE}, 128, 64, KV_DTYPE_F16, n, OF_ATOMS)) && ok;
#ifdef TERRACE_CUDA_ALL
	for (int f = KV_F16; f < KV_FORMAT_COUNT && !large; f++)
		for (case_dims d : {case_dims(192, 128), case_dims(128, 64)})
			for (enum batch b : {OF_ATOMS, OF_BOTH})
				ok = run_case({(enum kv_format)f, (enum kv_format)f}, d.k, d.v,
					      f % 2 ? KV_DTYPE_F16 : KV_DTYPE_BF16, 530, b) && ok;
	for (uint32_t n : {20, 1100})
		ok = run_case({KV_FP8, KV_TQ4}, 192, 128, KV_DTYPE_BF16, n, OF_ATOMS) && run_case({KV_TQ4, KV_TQ4},
			64, 128, KV_DTYPE_F16, n, OF_ATOMS) && ok;
#endif
	printf("codec: %s\n", ok ? "all good" : "FAILED");
	return ok ? 0 : 1;
}
