/* What the tile kernels of encode_tile.cu and decode_tile.cu share: a warp takes a tile, two atoms of one side,
 * and passes codes between atoms and rows (codec_row.cuh).
 */
#ifndef TERRACE_KERNELS_CUDA_CODEC_TILE_CUH
#define TERRACE_KERNELS_CUDA_CODEC_TILE_CUH

#include "kernels/cuda/codec.cuh"
#include "kernels/cuda/codec_row.cuh"

constexpr uint32_t TILE_TOKENS_MIN = 512; /* fewer tokens do not fill the device by tiles */

/* Rows of D codes of BITS bits in shared memory. */
template <int D, int BITS> struct row_shape {
	static constexpr uint32_t BYTES = D * BITS / 8, PITCH = (BYTES + 15) / 16 * 16 + 16;
	static constexpr uint32_t W = BITS == 3 ? 2 : BITS, PLANES = BITS == 3 ? 2 : 1;
	static constexpr uint32_t SECOND_AT = KV_ATOM_TOKENS * D * 2 / 8; /* tq3's plane of signs, in an atom */
};

/* N words at a 4-byte aligned address, by the widest loads and stores that `from` (0: 16-byte aligned) and N
 * allow. */
template <uint32_t N> DEVICE void move_words(uint32_t *to, const uint32_t *from)
{
#pragma unroll
	for (uint32_t i = 0; i < N;) {
		if (N % 4 == 0) {
			*(uint4 *)(to + i) = *(const uint4 *)(from + i);
			i += 4;
		} else if (N % 2 == 0) {
			*(uint2 *)(to + i) = *(const uint2 *)(from + i);
			i += 2;
		} else {
			to[i] = from[i];
			i++;
		}
	}
}

/* A lane's N words of an atom's plane: vectors of 16 bytes, and what is left (places.h). */
template <uint32_t N> DEVICE uint32_t lane_word_at(uint32_t lane, uint32_t i)
{
	constexpr uint32_t WHOLE = N / 4 * 4;

	if (N >= 4 && i / 4 != N / 4)
		return i / 4 * 512 + lane * 16 + i % 4 * 4;
	return WHOLE * 128 + lane * (N - WHOLE) * 4 + (i - WHOLE) * 4;
}

template <uint32_t N> DEVICE void store_lane_words(uint8_t *plane, uint32_t lane, const uint32_t (&w)[N])
{
#pragma unroll
	for (uint32_t i = 0; i + 4 <= N; i += 4)
		*(uint4 *)(plane + lane_word_at<N>(lane, i)) = make_uint4(w[i], w[i + 1], w[i + 2], w[i + 3]);
	if constexpr (N % 4 == 2)
		*(uint2 *)(plane + lane_word_at<N>(lane, N - 2)) = make_uint2(w[N - 2], w[N - 1]);
	if constexpr (N % 2 == 1)
#pragma unroll
		for (uint32_t i = N / 4 * 4; i < N; i++)
			*(uint32_t *)(plane + lane_word_at<N>(lane, i)) = w[i];
}

template <uint32_t N> DEVICE void load_lane_words(const uint8_t *plane, uint32_t lane, uint32_t (&w)[N])
{
#pragma unroll
	for (uint32_t i = 0; i + 4 <= N; i += 4) {
		const uint4 v = *(const uint4 *)(plane + lane_word_at<N>(lane, i));

		w[i] = v.x;
		w[i + 1] = v.y;
		w[i + 2] = v.z;
		w[i + 3] = v.w;
	}
	if constexpr (N % 4 == 2) {
		const uint2 v = *(const uint2 *)(plane + lane_word_at<N>(lane, N - 2));

		w[N - 2] = v.x;
		w[N - 1] = v.y;
	}
	if constexpr (N % 2 == 1)
#pragma unroll
		for (uint32_t i = N / 4 * 4; i < N; i++)
			w[i] = *(const uint32_t *)(plane + lane_word_at<N>(lane, i));
}

/* Two floats as fp16, saturated, or as bf16, which no packed value passes. */
template <bool F16> DEVICE uint32_t pack_two(float a, float b)
{
	if (F16) {
		const __half2 h = saturated(__floats2half2_rn(a, b));

		return *(const uint32_t *)&h;
	}
	const __nv_bfloat162 h = __floats2bfloat162_rn(a, b);

	return *(const uint32_t *)&h;
}

/* Two bf16 as fp16, or two fp16 as bf16. */
template <bool F16> DEVICE uint32_t convert_two(uint32_t two)
{
	const __half2 h = *(const __half2 *)&two;

	return F16 ? pack_two<true>(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000))
		   : pack_two<false>(__low2float(h), __high2float(h));
}

/* Bytes 0 .. 3 of four words to words of byte 0, byte 1, ... of all four. */
DEVICE void transpose_bytes(uint32_t (&w)[4])
{
	const uint32_t ab = permute(w[0], w[1], 0x5140), AB = permute(w[0], w[1], 0x7362),
		       cd = permute(w[2], w[3], 0x5140), CD = permute(w[2], w[3], 0x7362);

	w[0] = permute(ab, cd, 0x5410);
	w[1] = permute(ab, cd, 0x7632);
	w[2] = permute(AB, CD, 0x5410);
	w[3] = permute(AB, CD, 0x7632);
}

/* Tokens of a V word's bytes, for the lane's t. */
DEVICE uint32_t v_token(uint32_t t, uint32_t byte)
{
	return 2 * t + byte % 2 * 8 + byte / 2;
}

/* One plane of a whole atom between rows (in shared memory, `pitch` apart) and the atom; P::FAST. */
template <class P, enum kv_side SIDE> struct whole_plane {
	static constexpr uint32_t N = P::LANE_BYTES / 4, HALF = N / 2;

	DEVICE static void store(const uint8_t *rows, uint32_t pitch, uint32_t lane, uint8_t *plane)
	{
		const uint32_t g = lane / 4, t = lane % 4;
		uint32_t out[N];

		if constexpr (SIDE == KV_SIDE_K) {
			__align__(16) uint32_t a[HALF], b[HALF];

			move_words<HALF>(a, (const uint32_t *)(rows + g * pitch + t * HALF * 4));
			move_words<HALF>(b, (const uint32_t *)(rows + (g + 8) * pitch + t * HALF * 4));
#pragma unroll
			for (uint32_t i = 0; i < HALF; i++) {
				out[2 * i] = a[i];
				out[2 * i + 1] = b[i];
			}
		} else if constexpr (P::WORDS == 2) {
			uint32_t v[4];

#pragma unroll
			for (uint32_t i = 0; i < 4; i++)
				v[i] = *(const uint16_t *)(rows + v_token(t, i) * pitch + g * 2);
			transpose_bytes(v);
			out[0] = v[0];
			out[1] = v[1];
		} else {
			__align__(16) uint32_t v[4][N / 4];

#pragma unroll
			for (uint32_t i = 0; i < 4; i++)
				move_words<N / 4>(v[i], (const uint32_t *)(rows + v_token(t, i) * pitch + g * N));
#pragma unroll
			for (uint32_t w = 0; w < N / 4; w++) {
				uint32_t four[4] = {v[0][w], v[1][w], v[2][w], v[3][w]};

				transpose_bytes(four);
#pragma unroll
				for (uint32_t i = 0; i < 4; i++)
					out[4 * w + i] = four[i];
			}
		}
		store_lane_words<N>(plane, lane, out);
	}

	DEVICE static void load(uint8_t *rows, uint32_t pitch, uint32_t lane, const uint8_t *plane)
	{
		const uint32_t g = lane / 4, t = lane % 4;
		uint32_t in[N];

		load_lane_words<N>(plane, lane, in);
		if constexpr (SIDE == KV_SIDE_K) {
			__align__(16) uint32_t a[HALF], b[HALF];

#pragma unroll
			for (uint32_t i = 0; i < HALF; i++) {
				a[i] = in[2 * i];
				b[i] = in[2 * i + 1];
			}
			move_words<HALF>((uint32_t *)(rows + g * pitch + t * HALF * 4), a);
			move_words<HALF>((uint32_t *)(rows + (g + 8) * pitch + t * HALF * 4), b);
		} else if constexpr (P::WORDS == 2) {
			uint32_t v[4] = {in[0], in[1], 0, 0};

			transpose_bytes(v);
#pragma unroll
			for (uint32_t i = 0; i < 4; i++)
				*(uint16_t *)(rows + v_token(t, i) * pitch + g * 2) = (uint16_t)v[i];
		} else {
			__align__(16) uint32_t v[4][N / 4];

#pragma unroll
			for (uint32_t w = 0; w < N / 4; w++) {
				uint32_t four[4] = {in[4 * w], in[4 * w + 1], in[4 * w + 2], in[4 * w + 3]};

				transpose_bytes(four);
#pragma unroll
				for (uint32_t i = 0; i < 4; i++)
					v[i][w] = four[i];
			}
#pragma unroll
			for (uint32_t i = 0; i < 4; i++)
				move_words<N / 4>((uint32_t *)(rows + v_token(t, i) * pitch + g * N), v[i]);
		}
	}
};

/* 8 x 8 matrices of 16-bit elements between rows in shared memory and the order of operand A (K) or of its
 * transpose (V): the 16-bit formats' words. */
template <enum kv_side SIDE> DEVICE uint4 load_matrices(uint32_t row)
{
	return load_four_matrices<SIDE == KV_SIDE_V>(row);
}

template <enum kv_side SIDE> DEVICE void store_matrices(uint32_t row, uint4 v)
{
	store_four_matrices<SIDE == KV_SIDE_V>(row, v);
}

/* Offset of the row that this lane names to the two above, for the four matrices of 16 tokens x 16 dims whose
 * words are r = 0 .. 3 (places.h): K by tokens, then dims; V by dims, then tokens. */
template <enum kv_side SIDE> DEVICE uint32_t matrix_row_at(uint32_t lane, uint32_t pitch)
{
	const uint32_t r = lane / 8, low = r % 2 * 8, high = r / 2 * 8;

	return SIDE == KV_SIDE_K ? (low + lane % 8) * pitch + high * 2 : (high + lane % 8) * pitch + low * 2;
}

/* A warp's share of a launch: tile i is two atoms of tokens, heads next to each other, of one side; or one, where that
 * is no more than `warps` have work for. */
struct tile_units {
	uint32_t units, atoms, tiles; /* of a side; of a tile; of a side */
};

static inline tile_units tile_units_of(const codec_work &w, uint32_t warps)
{
	const uint32_t units = ((w.args.tokens - 1) / KV_ATOM_TOKENS + 1) * w.args.heads,
		       atoms = (uint64_t)units * w.count <= warps ? 1 : 2;

	return {units, atoms, (units + atoms - 1) / atoms};
}

/* A lane's place: its token, head and side, whatever its slot. */
struct tile_lane {
	uint32_t token, head, side;
	bool there; /* the token is one of the call's */
};

DEVICE tile_lane tile_lane_of(const codec_args &a, const tile_units &u, uint32_t first, uint32_t tile, uint32_t lane)
{
	const uint32_t side = tile >= u.tiles, half = lane / KV_ATOM_TOKENS,
		       unit = (tile - side * u.tiles) * u.atoms + half, atom = unit / a.heads,
		       token = atom * KV_ATOM_TOKENS + lane % KV_ATOM_TOKENS;

	return {token, unit - atom * a.heads, first + side, half < u.atoms && unit < u.units && token < a.tokens};
}

/* Which of the tile's atoms are whole: all 16 tokens there, in order. Bit 0 and 1. */
DEVICE uint32_t whole_atoms(int64_t slot, bool placed, uint32_t lane)
{
	const int64_t first = __shfl_sync(ALL_LANES, slot, lane & 16);
	const uint32_t in_order = __ballot_sync(
		ALL_LANES, placed && first % KV_ATOM_TOKENS == 0 && slot == first + lane % KV_ATOM_TOKENS);

	return ((in_order & 0xffff) == 0xffff) | ((in_order >> 16) == 0xffff) << 1;
}

/* True if the tile kernels may take this call: 16-bit elements in 16-byte pieces, bytes of two rows in 32 bits. */
static inline bool tile_suits(const codec_work &w)
{
	bool suits = (w.args.dtype == KV_DTYPE_F16 || w.args.dtype == KV_DTYPE_BF16) &&
		     w.args.tokens >= TILE_TOKENS_MIN;

	for (uint32_t i = w.first; i < w.first + w.count; i++)
		suits = suits && (uintptr_t)w.sides[i].vectors % 16 == 0 && w.sides[i].stride % 8 == 0 && w.sides[i].stride < 1u << 30;
	return suits;
}

/* Multiprocessors of the current device; 0 if CUDA does not say. */
static inline uint32_t multiprocessors()
{
	int device = 0, count = 0;

	if (cudaGetDevice(&device) != cudaSuccess ||
	    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
		return 0;
	return (uint32_t)count;
}

#endif
