/* The fast path of encode.cu (head dims up to 128): one CTA a multiprocessor, each of whose warps walks tiles of 32
 * vectors. While a lane rotates and quantises the vector in its registers, the warp's next tile is loaded into shared
 * memory. Codes go back there as rows, and from there to whole atoms in 16-byte pieces; tokens that do not fill an atom
 * go one by one (codec_loose.cuh). A few vectors in a thousand are left to encode_vector.
 */
#include "kernels/cuda/encode_tile.cuh"

#include "kernels/cuda/codec_loose.cuh"
#include "kernels/cuda/encode_lane.cuh"

namespace
{

constexpr uint32_t WARPS = 12; /* with 168 registers a lane */

/* A row of 16-bit elements, 16 bytes more than it needs for the banks' sake; two tiles a warp. */
template <int D> constexpr uint32_t IN_PITCH = 2 * D + 16;
template <int D> constexpr uint32_t TILE_BYTES = 32 * IN_PITCH<D>;
template <int D> constexpr uint32_t SHARED_BYTES = WARPS * 2 * TILE_BYTES<D>;

struct encode_launch {
	codec_args args;
	codec_side sides[2];
	tile_units units;
	uint32_t first, tiles; /* side of the first tile; tiles of all sides */
};

/* Asks for a tile's rows; tokens past the last are left out. */
template <int D>
DEVICE void fetch_rows(const encode_launch &l, uint32_t tile, uint32_t lane, uint32_t to)
{
	constexpr uint32_t PIECES = D / 8;
	const uint32_t second = tile >= l.units.tiles;
	const codec_side &s = l.sides[l.first + second];
	const uint64_t pitch = s.stride * 2;
	uint32_t unit = (tile - second * l.units.tiles) * l.units.atoms, atom = unit / l.args.heads, head = unit % l.args.heads;

#pragma unroll
	for (uint32_t half = 0; half < 2; half++) {
		const uint32_t token = atom * KV_ATOM_TOKENS,
			       there = half >= l.units.atoms || unit >= l.units.units ? 0 : min(l.args.tokens - token, KV_ATOM_TOKENS);
		const uint64_t from = (uint64_t)((const uint16_t *)s.vectors + token * s.stride + head * D);

		if (there == KV_ATOM_TOKENS && 32 % PIECES == 0) {
			uint64_t at = from + lane / PIECES * pitch + lane % PIECES * 16;

#pragma unroll
			for (uint32_t r = 0; r < KV_ATOM_TOKENS; r += 32 / PIECES) {
				async_load_16(to + (half * KV_ATOM_TOKENS + r + lane / PIECES) * IN_PITCH<D> +
						      lane % PIECES * 16,
					      at);
				at += 32 / PIECES * pitch;
			}
		} else {
#pragma unroll 1
			for (uint32_t piece = lane; piece < there * PIECES; piece += 32) {
				const uint32_t r = piece / PIECES, column = piece % PIECES * 16;

				async_load_16(to + (half * KV_ATOM_TOKENS + r) * IN_PITCH<D> + column,
					      from + r * pitch + column);
			}
		}
		unit++;
		head++;
		if (head == l.args.heads) {
			head = 0;
			atom++;
		}
	}
	async_close_group();
}

struct tile_target {
	uint8_t *atom; /* of the lane's token, NULL if it has none */
	uint32_t in_atom, whole;
};

/* Sixteen of the tile's tokens. */
DEVICE loose_tokens loose_half(const tile_target &t, uint32_t half)
{
	return {(uint64_t)t.atom, t.in_atom, __ballot_sync(ALL_LANES, t.atom != nullptr), half * KV_ATOM_TOKENS};
}

/* The row's words to shared memory, all rows to their atoms. */
template <int D, int BITS, enum kv_side SIDE>
DEVICE void store_rows(const tile_target &t, const codec_side &s, uint32_t lane, const uint32_t *words, uint8_t *rows)
{
	using shape = row_shape<D, BITS>;
	using first = plane_row<D, shape::W, SIDE>;
	using second = plane_row<D, 1, SIDE>;

	move_words<shape::BYTES / 4>((uint32_t *)(rows + lane * shape::PITCH), words);
	__syncwarp();
#pragma unroll 1
	for (uint32_t half = 0; half < 2; half++) {
		uint8_t *codes = (uint8_t *)__shfl_sync(ALL_LANES, (uint64_t)t.atom, half * KV_ATOM_TOKENS) + s.codes_at;
		const uint8_t *const own = rows + half * KV_ATOM_TOKENS * shape::PITCH;

		if constexpr (first::FAST && (shape::PLANES == 1 || second::FAST))
			if (t.whole >> half & 1) {
				whole_plane<first, SIDE>::store(own, shape::PITCH, lane, codes);
				if constexpr (shape::PLANES == 2)
					whole_plane<second, SIDE>::store(own + first::BYTES, shape::PITCH, lane,
									 codes + shape::SECOND_AT);
				continue;
			}
		store_loose<D, BITS, SIDE>(loose_half(t, half), s.codes_at, rows, lane);
	}
}

template <int FORMAT> DEVICE void store_scale(const tile_target &t, const codec_side &s, uint32_t scale)
{
	if (!t.atom)
		return;
	if (format_scale_bytes(FORMAT) == 2)
		((uint16_t *)(t.atom + s.scales_at))[scale_entry(t.in_atom)] = (uint16_t)scale;
	if (format_scale_bytes(FORMAT) == 4)
		((uint32_t *)(t.atom + s.scales_at))[scale_entry(t.in_atom)] = scale;
}

/* The vectors of some lanes once more, each by the whole warp. */
template <int D, int FORMAT>
__device__ __noinline__ void encode_again(const encode_launch &l, uint32_t tile, uint32_t side, uint32_t which,
					  uint32_t lane, uint8_t *shared)
{
	for (; which; which &= which - 1) {
		const tile_lane t = tile_lane_of(l.args, l.units, l.first, tile, __ffs((int)which) - 1);
		const uint32_t vector = t.token * l.args.heads + t.head;

		__syncwarp(); /* the stores before and these are in order */
		if (side == KV_SIDE_K)
			encode_vector<D, FORMAT, KV_SIDE_K>(l.args, l.sides[side], vector, lane, (float *)shared,
							    shared + D * sizeof(float));
		else
			encode_vector<D, FORMAT, KV_SIDE_V>(l.args, l.sides[side], vector, lane, (float *)shared,
							    shared + D * sizeof(float));
	}
}

/* One tile of rows in shared memory, both sides in one function for the arithmetic's sake. */
template <int D, int FORMAT, bool BF16>
DEVICE void encode_tile(const encode_launch &l, uint32_t tile, const tile_target &t, uint32_t side, uint32_t lane,
			uint8_t *shared)
{
	constexpr int BITS = format_bits(FORMAT);
	__align__(16) uint32_t words[row_shape<D, BITS>::BYTES / 4];
	const codec_side &s = l.sides[side];
	const uint8_t *row = shared + lane * IN_PITCH<D>;
	float x[D];
	const float largest = load_clean_row(l.args.dtype, row, x);
	uint32_t scale, again = 0;

	if constexpr (format_rotated(FORMAT)) {
#pragma unroll
		for (int i = 0; i < D; i++)
			x[i] = rotation_negative(i) ? -x[i] : x[i];
		hadamard_lane(x);
	}
	if constexpr (FORMAT == KV_INT4_PTH) {
		lane_int4<D, BF16> q;

		q.quantise(x);
		scale = q.scale;
		if (side == KV_SIDE_K)
			q.template pack<KV_SIDE_K>(words);
		else
			q.template pack<KV_SIDE_V>(words);
	} else if constexpr (FORMAT == KV_FP8) {
		lane_fp8<D> q;

		q.quantise(largest);
		scale = q.scale;
		if (side == KV_SIDE_K)
			q.template pack<KV_SIDE_K>(x, words);
		else
			q.template pack<KV_SIDE_V>(x, words);
	} else {
		lane_codebook<D, FORMAT> q;

		q.measure(x, largest);
		scale = codebook_scale(q.length, side == KV_SIDE_K ? q.template pack<KV_SIDE_K>(x, largest, words)
								    : q.template pack<KV_SIDE_V>(x, largest, words));
		again = __ballot_sync(ALL_LANES, q.doubtful && t.atom);
	}
	store_scale<FORMAT>(t, s, scale);
	__syncwarp(); /* every lane has its row */
	if (side == KV_SIDE_K)
		store_rows<D, BITS, KV_SIDE_K>(t, s, lane, words, shared);
	else
		store_rows<D, BITS, KV_SIDE_V>(t, s, lane, words, shared);
	if (format_codes(FORMAT) == KV_CODES_CODEBOOK && again)
		encode_again<D, FORMAT>(l, tile, side, again, lane, shared);
}

/* 16-bit formats: the rows are the codes, or are of the other type, but for what is not finite or becomes so. */
template <int D, int FORMAT> DEVICE void convert_row(enum kv_dtype dtype, uint8_t *row)
{
	constexpr bool F16 = FORMAT == KV_F16;
	constexpr uint32_t EXPONENT = F16 ? 0x7c007c00 : 0x7f807f80;
	const bool same = dtype == (F16 ? KV_DTYPE_F16 : KV_DTYPE_BF16);

#pragma unroll
	for (int i = 0; i < D / 8; i++) {
		uint4 piece = ((const uint4 *)row)[i];
		uint32_t *words = &piece.x, made[4], odd = 0;

#pragma unroll
		for (int j = 0; j < 4; j++) {
			made[j] = same ? words[j] : convert_two<F16>(words[j]);
			odd |= __vcmpeq2(made[j] & EXPONENT, EXPONENT);
		}
		if (odd)
#pragma unroll
			for (int j = 0; j < 4; j++) {
				uint32_t code[2];

#pragma unroll
				for (int k = 0; k < 2; k++) {
					const float v = clean(load_element(dtype, &words[j], k), limit_of(FORMAT));

					code[k] = F16 ? __half_as_ushort(__float2half_rn(v))
						      : __bfloat16_as_ushort(__float2bfloat16_rn(v));
				}
				made[j] = code[0] | code[1] << 16;
			}
		if (odd || !same)
			((uint4 *)row)[i] = make_uint4(made[0], made[1], made[2], made[3]);
	}
}

template <int D, enum kv_side SIDE>
DEVICE void store_raw(const tile_target &t, const codec_side &s, uint32_t lane, const uint8_t *rows)
{
	for (uint32_t half = 0; half < 2; half++) {
		uint8_t *atom = (uint8_t *)__shfl_sync(ALL_LANES, (uint64_t)t.atom, half * KV_ATOM_TOKENS);
		const uint32_t from = shared_address(rows) + half * KV_ATOM_TOKENS * IN_PITCH<D> +
				      matrix_row_at<SIDE>(lane, IN_PITCH<D>);

		if (t.whole >> half & 1) {
#pragma unroll
			for (uint32_t m = 0; m < D / 16; m++)
				*(uint4 *)(atom + s.codes_at + m * 512 + lane * 16) = load_matrices<SIDE>(from + m * 32);
			continue;
		}
#pragma unroll 1
		for (uint32_t pass = 0; pass < LOOSE_PASSES; pass++) {
			const loose_token one = loose_token_of(loose_half(t, half), pass, lane);

			loose_raw<D, SIDE>::store(one, rows + one.row * IN_PITCH<D>, one.atom + s.codes_at, lane);
		}
	}
}

template <int D, int FORMAT>
DEVICE void encode_raw(const encode_launch &l, const tile_target &t, uint32_t side, uint32_t lane, uint8_t *shared)
{
	convert_row<D, FORMAT>(l.args.dtype, shared + lane * IN_PITCH<D>);
	__syncwarp();
	if (side == KV_SIDE_K)
		store_raw<D, KV_SIDE_K>(t, l.sides[side], lane, shared);
	else
		store_raw<D, KV_SIDE_V>(t, l.sides[side], lane, shared);
}

DEVICE int64_t slot_of(const encode_launch &l, uint32_t tile, uint32_t lane)
{
	const tile_lane t = tile_lane_of(l.args, l.units, l.first, tile, lane);

	return t.there ? l.args.slots[t.token] : -1;
}

/* BF16: int4_pth's rotated vectors are rounded to that. */
template <int D, int FORMAT, bool BF16>
__global__ void __launch_bounds__(32 * WARPS, 1) encode_tiles_kernel(const __grid_constant__ encode_launch l)
{
	DYNAMIC_SHARED(uint8_t, shared, 16);
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, step = gridDim.x * WARPS;
	uint8_t *const mine = shared + warp * 2 * TILE_BYTES<D>;
	uint32_t tile = warp * gridDim.x + blockIdx.x, buffer = 0;
	int64_t slot = -1, next_slot = -1;

	begin_after_previous();
	if (tile < l.tiles) {
		slot = slot_of(l, tile, lane);
		fetch_rows<D>(l, tile, lane, shared_address(mine));
	}
	for (uint32_t first = 0; first < l.tiles; first += step, tile += step, slot = next_slot, buffer ^= 1) {
		if (format_codes(FORMAT) == KV_CODES_CODEBOOK)
			__syncthreads(); /* codebooks' code is longer than the caches for it: fetch it once for all */
		if (tile >= l.tiles)
			continue;
		const tile_lane at = tile_lane_of(l.args, l.units, l.first, tile, lane);
		const uint32_t side = l.first + (tile >= l.units.tiles); /* the same for all lanes */
		const bool placed = slot >= 0 && slot < (int64_t)l.args.block_count * l.args.block_tokens;
		tile_target t = {nullptr, 0, whole_atoms(slot, placed, lane)};

		if (placed)
			t.atom = atom_at(l.args, slot, at.head, &t.in_atom);
		next_slot = -1;
		if (tile + step < l.tiles) {
			next_slot = slot_of(l, tile + step, lane);
			fetch_rows<D>(l, tile + step, lane, shared_address(mine + (buffer ^ 1) * TILE_BYTES<D>));
			async_wait<1>();
		} else {
			async_wait<0>();
		}
		__syncwarp();
		if constexpr (format_bits(FORMAT) == 16)
			encode_raw<D, FORMAT>(l, t, side, lane, mine + buffer * TILE_BYTES<D>);
		else
			encode_tile<D, FORMAT, BF16>(l, tile, t, side, lane, mine + buffer * TILE_BYTES<D>);
		__syncwarp(); /* the buffer is free for the tile after next */
	}
}

template <int D, int FORMAT, bool BF16 = false> bool launch(const codec_work &w)
{
	static_assert(D * sizeof(float) + D <= TILE_BYTES<D>,
		      "a vector by itself fits the tile's memory");
	const uint32_t sms = multiprocessors();
	encode_launch l = {w.args, {w.sides[0], w.sides[1]}, tile_units_of(w, 0), w.first, 0};

	l.tiles = l.units.tiles * w.count;
	if (!sms || cudaFuncSetAttribute(encode_tiles_kernel<D, FORMAT, BF16>,
		cudaFuncAttributeMaxDynamicSharedMemorySize,
					 SHARED_BYTES<D>) != cudaSuccess) {
		cudaGetLastError(); /* the device has too little; the other kernel's launch is not to be blamed for
				     * it */
		return false;
	}
	launch_early(encode_tiles_kernel<D, FORMAT, BF16>, l.tiles < sms ? l.tiles : sms, 32 * WARPS, SHARED_BYTES<D>,
		w.stream, l);
	return true;
}

template <int D> bool launch_format(enum kv_format f, const codec_work &w)
{
	switch (f) {
	case KV_F16:
		return launch<D, KV_F16>(w);
	case KV_BF16:
		return launch<D, KV_BF16>(w);
	case KV_FP8:
		return launch<D, KV_FP8>(w);
	default:
		break;
	}
	if constexpr (D == 128) {
		return encode_atoms(f, w);
	} else {
		switch (f) {
		case KV_INT4_PTH:
			return w.args.rounding == KV_ROUND_BF16 ? launch<D, KV_INT4_PTH, true>(w) : launch<D,
				KV_INT4_PTH>(w);
		case KV_TQ4:
			return launch<D, KV_TQ4>(w);
		case KV_TQ3:
			return launch<D, KV_TQ3>(w);
		case KV_TQ2:
			return launch<D, KV_TQ2>(w);
		default:
			return false;
		}
	}
}

} // namespace

bool encode_tiles(uint32_t d, enum kv_format f, const codec_work &w)
{
	if (!tile_suits(w))
		return false;
	switch (d) {
	case 128:
		return launch_format<128>(f, w);
#ifdef TERRACE_CUDA_ALL
	case 64:
		return launch_format<64>(f, w);
	case 96:
		return launch_format<96>(f, w);
#endif
	default:
		return false;
	}
}
