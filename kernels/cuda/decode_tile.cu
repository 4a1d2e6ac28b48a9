/* The fast path of decode.cu for fp8 and 16 bits: one CTA a multiprocessor, each of whose warps walks tiles of two
 * atoms. Codes are loaded by asynchronous copies, one tile ahead, and their addresses two tiles ahead. As rows
 * (codec_tile.cuh) they pass through the lanes, and leave shared memory in whole rows.
 */
#include "kernels/cuda/decode_tile.cuh"

#include <cuda_fp8.h>

#include "kernels/cuda/codec_loose.cuh"

namespace
{

struct decode_launch {
	codec_args args;
	codec_side sides[2];
	tile_units units;
	uint32_t first, tiles;
};

/* Shared memory of a warp: codes of two tiles as their atoms have them, rows of codes and (fp8: in their place)
 * rows of elements. */
template <int D, int FORMAT> struct decode_shape {
	static constexpr uint32_t BITS = format_bits(FORMAT), CODES = KV_ATOM_TOKENS * D * BITS / 8,
				  PITCH = row_shape<D, BITS>::PITCH, OUT_PITCH = 2 * D + 16;
	static constexpr uint32_t ROWS = BITS == 16 ? 0 : 32 * PITCH, OUT = 32 * OUT_PITCH, ROWS_AT = 4 * CODES;
	static constexpr uint32_t BYTES = ROWS_AT + (OUT > ROWS ? OUT : ROWS);
	static constexpr uint32_t WARPS = BITS == 16 ? 8 : 12, SHARED = WARPS * BYTES;
};

/* Where a lane's token has its codes. */
struct tile_source {
	uint64_t block; /* address; as loaded, so that nothing waits for it before it is needed */
	uint64_t at;    /* of the atom, in the block */
	uint32_t token, head, side, in_atom, whole, placed; /* whole, placed: of the tile, by atoms and lanes */
};

DEVICE int64_t slot_of(const decode_launch &l, uint32_t tile, uint32_t lane)
{
	if (tile >= l.tiles)
		return -1;
	const tile_lane t = tile_lane_of(l.args, l.units, l.first, tile, lane);

	return t.there ? l.args.slots[t.token] : -1;
}

DEVICE tile_source source_of(const decode_launch &l, uint32_t tile, int64_t slot, uint32_t lane)
{
	const codec_args &a = l.args;
	const tile_lane t = tile_lane_of(a, l.units, l.first, tile, lane);
	const bool placed = slot >= 0 && slot < (int64_t)a.block_count * a.block_tokens;
	tile_source s = {0, 0, t.token, t.head, l.first + (tile >= l.units.tiles), 0, 0, 0};

	s.placed = __ballot_sync(ALL_LANES, placed);
	s.whole = whole_atoms(slot, placed, lane);
	if (placed) {
		const uint32_t atoms = a.block_tokens / KV_ATOM_TOKENS, atom = (uint32_t)(slot / KV_ATOM_TOKENS);

		s.block = a.blocks[atom / atoms];
		s.in_atom = (uint32_t)slot % KV_ATOM_TOKENS;
		s.at = a.layer_at + (uint64_t)t.head * a.chunk_bytes + (uint64_t)(atom % atoms) * a.atom_bytes;
	}
	return s;
}

/* Asks for the codes of a tile's whole atoms. */
template <int D, int FORMAT>
DEVICE void fetch_codes(const decode_launch &l, const tile_source &s, uint32_t lane, uint32_t to)
{
	constexpr uint32_t CODES = decode_shape<D, FORMAT>::CODES;

#pragma unroll
	for (uint32_t half = 0; half < 2; half++) {
		const uint64_t from = __shfl_sync(ALL_LANES, s.block + s.at, half * KV_ATOM_TOKENS) +
				      l.sides[s.side].codes_at;

		if (!(s.whole >> half & 1))
			continue;
#pragma unroll
		for (uint32_t at = 0; at < CODES; at += 512)
			if (CODES % 512 == 0 || at + lane * 16 < CODES)
				async_load_16(to + half * CODES + at + lane * 16, from + at + lane * 16);
	}
}

/* Sixteen of the tile's tokens. */
DEVICE loose_tokens loose_half(const tile_source &s, uint32_t half)
{
	return {s.block + s.at, s.in_atom, s.placed, half * KV_ATOM_TOKENS};
}

template <int D, int FORMAT, enum kv_side SIDE>
DEVICE void codes_to_rows(const tile_source &s, uint32_t codes_at, const uint8_t *codes, uint32_t lane, uint8_t *rows)
{
	using shape = row_shape<D, format_bits(FORMAT)>;

#pragma unroll 1
	for (uint32_t half = 0; half < 2; half++)
		if (s.whole >> half & 1)
			whole_plane<plane_row<D, shape::W, SIDE>, SIDE>::load(rows + half * KV_ATOM_TOKENS * shape::PITCH, shape::PITCH, lane,
									      codes + half * decode_shape<D, FORMAT>::CODES);
		else if (s.placed >> half * KV_ATOM_TOKENS & 0xffff)
			load_loose<D, format_bits(FORMAT), SIDE>(loose_half(s, half), codes_at, rows, lane);
}

template <int FORMAT> DEVICE uint32_t load_scale(const codec_side &side, const tile_source &s, bool placed)
{
	const uint8_t *scales = (const uint8_t *)(s.block + s.at) + side.scales_at;

	if (!placed || format_scale_bytes(FORMAT) == 0)
		return 0;
	return format_scale_bytes(FORMAT) == 2 ? ((const uint16_t *)scales)[scale_entry(s.in_atom)]
					       : ((const uint32_t *)scales)[scale_entry(s.in_atom)];
}

/* Sixteen rows of elements, those of the tokens from lane `first` on, to rows that the call names. */
template <int D>
DEVICE void store_to_rows(const decode_launch &l, const tile_source &s, uint32_t first, uint32_t lane, const uint8_t *rows)
{
	constexpr uint32_t PIECES = D / 8;
	const codec_side &side = l.sides[s.side];
	const int64_t own = s.placed >> lane & 1 ? l.args.rows[s.token] : -1;
	const uint32_t head = __shfl_sync(ALL_LANES, s.head, first);

#pragma unroll 4
	for (uint32_t i = 0; i < PIECES / 2; i++) {
		const uint32_t piece = i * 32 + lane, r = first + piece / PIECES, column = piece % PIECES * 16;
		const int64_t row = __shfl_sync(ALL_LANES, own, r);

		if (row >= 0)
			__stcs((uint4 *)((uint8_t *)side.vectors + (row * side.stride + head * D) * 2 + column),
			       *(const uint4 *)(rows + r * (2 * D + 16) + column));
	}
}

/* Rows of elements, of all lanes' tokens, to where the call wants them. */
template <int D>
DEVICE void store_vectors(const decode_launch &l, const tile_source &s, uint32_t lane, const uint8_t *rows)
{
	constexpr uint32_t PIECES = D / 8;
	const codec_side &side = l.sides[s.side];

#pragma unroll 1
	for (uint32_t half = 0; half < 2; half++) {
		if (l.args.rows) {
			store_to_rows<D>(l, s, half * KV_ATOM_TOKENS, lane, rows);
			continue;
		}
		const uint32_t token = __shfl_sync(ALL_LANES, s.token, half * KV_ATOM_TOKENS),
			       head = __shfl_sync(ALL_LANES, s.head, half * KV_ATOM_TOKENS);
		const bool all = (s.placed >> half * KV_ATOM_TOKENS & 0xffff) == 0xffff;
		uint8_t *to = (uint8_t *)side.vectors + (token * side.stride + head * D) * 2;

#pragma unroll
		for (uint32_t i = 0; i < PIECES / 2; i++) {
			const uint32_t piece = i * 32 + lane, r = piece / PIECES, column = piece % PIECES * 16;
			const uint32_t row = half * KV_ATOM_TOKENS + r;

			if (all || s.placed >> row & 1)
				__stcs((uint4 *)(to + r * side.stride * 2 + column),
				       *(const uint4 *)(rows + row * (2 * D + 16) + column));
		}
	}
}

/* fp8: a lane a row. The row of elements takes the place of rows of codes. */
template <int D, enum kv_side SIDE, bool F16>
DEVICE void widen_row(const uint8_t *row, float scale, uint8_t *out)
{
	using P = plane_row<D, 8, SIDE>;
	__align__(16) uint32_t word[D / 4];
	uint32_t value[D]; /* bits of fp16 */

	move_words<D / 4>(word, (const uint32_t *)row);
	__syncwarp();
#pragma unroll
	for (uint32_t j = 0; j < D; j += 2) {
		const __half2_raw two = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(word[j / 4] >> (j % 4 * 8)),
								   __NV_E4M3);

		value[P::dim_of(j, 0)] = two.x;
		value[P::dim_of(j + 1, 0)] = two.y;
	}
#pragma unroll
	for (uint32_t i = 0; i < D / 8; i++) {
		uint32_t piece[4];

#pragma unroll
		for (uint32_t k = 0; k < 4; k++)
			piece[k] = pack_two<F16>(
				__half2float(__ushort_as_half((uint16_t)value[8 * i + 2 * k])) * scale,
				__half2float(__ushort_as_half((uint16_t)value[8 * i + 2 * k + 1])) * scale);
		((uint4 *)out)[i] = make_uint4(piece[0], piece[1], piece[2], piece[3]);
	}
}

template <int D, enum kv_side SIDE>
DEVICE void decode_fp8(const decode_launch &l, const tile_source &s, uint32_t scale_bits, uint32_t lane, uint8_t *rows)
{
	const float scale = __half2float(__ushort_as_half((uint16_t)scale_bits));
	const uint8_t *row = rows + lane * row_shape<D, 8>::PITCH;
	uint8_t *out = rows + lane * (2 * D + 16);

	if (l.args.dtype == KV_DTYPE_F16)
		widen_row<D, SIDE, true>(row, scale, out);
	else
		widen_row<D, SIDE, false>(row, scale, out);
	__syncwarp();
	store_vectors<D>(l, s, lane, rows);
}

/* 16 bits: the codes are the elements, or of the other type. */
template <int D, int FORMAT, enum kv_side SIDE>
DEVICE void decode_raw(const decode_launch &l, const tile_source &s, const uint8_t *codes, uint32_t lane, uint8_t *out)
{
	constexpr uint32_t CODES = decode_shape<D, FORMAT>::CODES, PITCH = 2 * D + 16;
	constexpr bool OTHER = FORMAT == KV_BF16; /* elements are fp16 then */
	const bool same = l.args.dtype == (FORMAT == KV_F16 ? KV_DTYPE_F16 : KV_DTYPE_BF16);

	for (uint32_t half = 0; half < 2; half++) {
		const uint32_t to = shared_address(out) + half * KV_ATOM_TOKENS * PITCH +
				    matrix_row_at<SIDE>(lane, PITCH);

		if (s.whole >> half & 1) {
#pragma unroll
			for (uint32_t m = 0; m < D / 16; m++) {
				uint4 v = *(const uint4 *)(codes + half * CODES + m * 512 + lane * 16);

				if (!same)
					v = make_uint4(convert_two<OTHER>(v.x), convert_two<OTHER>(v.y), convert_two<OTHER>(v.z),
						       convert_two<OTHER>(v.w));
				store_matrices<SIDE>(to + m * 32, v);
			}
			continue;
		}
		if (s.placed >> half * KV_ATOM_TOKENS & 0xffff)
			load_loose_raw<D, SIDE>(loose_half(s, half), l.sides[SIDE].codes_at, out, PITCH, lane,
						[same](uint32_t two) { return same ? two : convert_two<OTHER>(two); });
	}
	__syncwarp();
	store_vectors<D>(l, s, lane, out);
}

template <int D, int FORMAT, enum kv_side SIDE>
DEVICE void decode_tile(const decode_launch &l, const tile_source &s, uint32_t lane, const uint8_t *codes, uint8_t *rows)
{
	const uint32_t scale = load_scale<FORMAT>(l.sides[SIDE], s, s.placed >> lane & 1);

	if constexpr (format_bits(FORMAT) == 16) {
		decode_raw<D, FORMAT, SIDE>(l, s, codes, lane, rows);
	} else {
		codes_to_rows<D, FORMAT, SIDE>(s, l.sides[SIDE].codes_at, codes, lane, rows);
		__syncwarp();
		decode_fp8<D, SIDE>(l, s, scale, lane, rows);
	}
}

template <int D, int FORMAT>
__global__ void __launch_bounds__(32 * decode_shape<D, FORMAT>::WARPS, 1)
	decode_tiles_kernel(const __grid_constant__ decode_launch l)
{
	using shape = decode_shape<D, FORMAT>;
	DYNAMIC_SHARED(uint8_t, shared, 16);
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, step = gridDim.x * shape::WARPS;
	uint8_t *const mine = shared + warp * shape::BYTES;
	uint32_t tile = warp * gridDim.x + blockIdx.x, buffer = 0;

	begin_after_previous();
	if (tile >= l.tiles)
		return;
	tile_source now = source_of(l, tile, slot_of(l, tile, lane), lane), next;
	int64_t slot = slot_of(l, tile + step, lane);

	fetch_codes<D, FORMAT>(l, now, lane, shared_address(mine));
	async_close_group();
	next = source_of(l, min(tile + step, l.tiles - 1), slot, lane);
	slot = slot_of(l, tile + 2 * step, lane);
	for (; tile < l.tiles; tile += step, buffer ^= 1) {
		if (tile + step < l.tiles)
			fetch_codes<D, FORMAT>(l, next, lane,
					       shared_address(mine + (buffer ^ 1) * 2 * shape::CODES));
		async_close_group();
		const tile_source later = source_of(l, min(tile + 2 * step, l.tiles - 1), slot, lane);

		slot = slot_of(l, tile + 3 * step, lane);
		async_wait<1>();
		__syncwarp();
		if (now.side == KV_SIDE_K)
			decode_tile<D, FORMAT, KV_SIDE_K>(l, now, lane, mine + buffer * 2 * shape::CODES, mine + shape::ROWS_AT);
		else
			decode_tile<D, FORMAT, KV_SIDE_V>(l, now, lane, mine + buffer * 2 * shape::CODES, mine + shape::ROWS_AT);
		__syncwarp(); /* all of it is free again */
		now = next;
		next = later;
	}
}

template <int D, int FORMAT> bool launch(const codec_work &w)
{
	using shape = decode_shape<D, FORMAT>;
	const uint32_t sms = multiprocessors();
	decode_launch l = {w.args, {w.sides[0], w.sides[1]}, tile_units_of(w, sms * shape::WARPS), w.first, 0};

	l.tiles = l.units.tiles * w.count;
	if (!sms || cudaFuncSetAttribute(decode_tiles_kernel<D, FORMAT>, cudaFuncAttributeMaxDynamicSharedMemorySize, shape::SHARED) !=
			    cudaSuccess) {
		cudaGetLastError(); /* the device has too little; the other kernel's launch is not to be blamed for
				     * it */
		return false;
	}
	launch_early(decode_tiles_kernel<D, FORMAT>, l.tiles < sms ? l.tiles : sms, 32 * shape::WARPS, shape::SHARED, w.stream, l);
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
		return false;
	}
}

} // namespace

bool decode_tiles(uint32_t d, enum kv_format f, const codec_work &w)
{
	if (!tile_suits(w))
		return false;
	if (format_rotated(f))
		return decode_atoms(d, f, w);
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
