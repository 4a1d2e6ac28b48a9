/* Rows of codes back to vectors, for decode_tile.cu. Rotated formats by the integer tensor cores: codes are whole
 * numbers of 8 bits (codebooks: a half more, which is added up apart), the rotation is +1 and -1, so that
 * m16n8k32's sums are exact, and one multiplication by scale / D ends it. A lane's part of a row is operand A as it
 * stands; the order of the dims in it is the order of operand B's rows.
 */
#ifndef TERRACE_KERNELS_CUDA_DECODE_LANE_CUH
#define TERRACE_KERNELS_CUDA_DECODE_LANE_CUH

#include "kernels/cuda/codec_tile.cuh"

constexpr uint32_t MAGIC_BITS = 0x4b400000; /* 1.5 * 2^23: an integer added to it is the float 1.5 * 2^23 + integer */
constexpr float MAGIC = 0x1.8p23f;

/* Head dims and formats whose rows are made of whole words for operand A. */
template <int D, int FORMAT>
constexpr bool operand_suits = D == 128 || (D == 64 && (FORMAT == KV_INT4_PTH || FORMAT == KV_TQ4));

/* Bytes of 0 or 1 to bytes of 0 or 255. */
DEVICE uint32_t widen_bits(uint32_t x)
{
	return x * 255;
}

/* Words of a lane's part of one row: the plane of codes, and tq3's signs. */
template <int D, int FORMAT> struct operand {
	static constexpr uint32_t BITS = format_bits(FORMAT), W = BITS == 3 ? 2 : BITS, WORDS = D * W / 128;
	static constexpr uint32_t FIELDS = 8 / W, REGISTERS = D / 16;
	uint32_t word[WORDS], signs;

	template <enum kv_side SIDE> DEVICE void load(const uint8_t *row, uint32_t t)
	{
		move_words<WORDS>(word, (const uint32_t *)(row + t * WORDS * 4));
		if (BITS == 3)
			signs = *(const uint32_t *)(row + D * 2 / 8 + t * 4);
	}

	/* Four codes' integers for register r: of K the dims of group r; of V field r % FIELDS of word r / FIELDS.
	 * 4 bits are made two registers at once. */
	template <enum kv_side SIDE> DEVICE void values(uint32_t (&a)[REGISTERS]) const
	{
		if constexpr (BITS == 4) {
#pragma unroll
			for (uint32_t i = 0; i < WORDS; i++) {
				const uint32_t low = SIDE == KV_SIDE_K ? i / 2 * 4 + i % 2 : 2 * i,
					       high = SIDE == KV_SIDE_K ? low + 2 : low + 1;

				if (FORMAT == KV_TQ4)
					codebook_values(word[i], a[low], a[high]);
				else {
					a[low] = word[i] & 0x0f0f0f0f;
					a[high] = word[i] >> 4 & 0x0f0f0f0f;
				}
			}
		} else {
#pragma unroll
			for (uint32_t r = 0; r < REGISTERS; r++) {
				const uint32_t i = r / FIELDS, q = r % FIELDS, field = word[i] >> (2 * q);

				if (FORMAT == KV_TQ2)
					a[r] = (0x23232323 + (field & 0x01010101) * 83) ^
					       widen_bits(field >> 1 & 0x01010101);
				else
					a[r] = (0x0c0c0c0c + (field & 0x01010101) * 26 +
						(field >> 1 & 0x01010101) * 56 +
						(field & field >> 1 & 0x01010101) * 15) ^
					       sign_bytes<SIDE>(i, q);
			}
		}
	}

	/* tq4: magnitudes and replicated signs by table look-up, in the order of the nibbles; then sorted. */
	DEVICE static void codebook_values(uint32_t w, uint32_t &low, uint32_t &high)
	{
		const uint32_t few = 5 | 16 << 8 | 27 << 16 | 39 << 24, many = 52 | 67 << 8 | 86 << 16 | 114 << 24;
		const uint32_t index = w & 0x77777777, up = w << 4;
		const uint32_t first = permute(few, many, index) ^ permute(up, w, 0xd9c8),
			       second = permute(few, many, index >> 16) ^ permute(up, w, 0xfbea);

		low = permute(first, second, 0x6420);
		high = permute(first, second, 0x7531);
	}

	/* tq3's signs of the dims of register (i, q). */
	template <enum kv_side SIDE> DEVICE uint32_t sign_bytes(uint32_t i, uint32_t q) const
	{
		if (SIDE == KV_SIDE_K)
			return widen_bits(signs >> (4 * i + q) & 0x01010101);
		/* a byte of a word holds two dims 32 apart at bits q and q + 4 */
		return permute(0x0000ff00, 0, signs >> (16 * i + q) & 0x1111);
	}
};

/* Operand B: +1 or -1 as an even or odd number of bits is set in both dim and column. The column of lane (g, t) is
 * 8 * tile + g; the rows are the dims of register r and the lane's t. */
template <int D, int BITS, enum kv_side SIDE> struct rotation_operand {
	static constexpr uint32_t V_PARTS = D * (BITS == 3 ? 2 : BITS) / 256; /* words of a row that share g' */
	uint32_t (&base)[8]; /* kept by the caller from tile to tile */

	DEVICE static bool odd(uint32_t x)
	{
		return __popc(x) & 1;
	}

	DEVICE void init(uint32_t lane)
	{
		const uint32_t g = lane / 4, t = lane % 4;

#pragma unroll
		for (uint32_t i = 0; i < 8; i++) {
			base[i] = 0;
#pragma unroll
			for (uint32_t e = 0; e < 4; e++) {
				const bool minus = SIDE == KV_SIDE_K
							   ? odd((4 * t + e) & (8 * (i & 1) + g))
							   : odd((2 * t + i / 4) & g) ^ odd(e & i % 4);

				base[i] |= (minus ? 0xffu : 1u) << (8 * e);
			}
		}
	}

	/* For register r and column tile n, both known when compiled. */
	DEVICE uint32_t word(uint32_t r, uint32_t n) const
	{
		constexpr uint32_t FIELDS = BITS == 4 ? 2 : 4;
		const uint32_t i = r / FIELDS, q = r % FIELDS;

		if (SIDE == KV_SIDE_K)
			return base[n & 1] ^ (odd(r & n >> 1) ? 0xfefefefe : 0);
		if (BITS == 4) /* dim = 64 (i % parts) + 16 e + 8 q + 2 t + i / parts */
			return base[i / V_PARTS * 4 + (n >> 1 & 3)] ^
			       (((q & n) ^ (i % V_PARTS & n >> 3)) & 1 ? 0xfefefefe : 0);
		return base[i * 4 + (n >> 2 & 3)] ^ (odd(q & n) ? 0xfefefefe : 0); /* 32 e + 8 q + 2 t + i */
	}
};

/* The two elements of a lane in output tile n, of dims 8 n + 2 t and the next, as the signs that they get. */
template <int D> DEVICE void sign_masks(uint32_t t, uint32_t (&mask)[D / 8])
{
#pragma unroll
	for (uint32_t n = 0; n < D / 8; n++) {
		const uint32_t first = 8 * n + 2 * t;

		mask[n] = (rotation_negative(first) ? 0x8000u : 0) | (rotation_negative(first + 1) ? 0x80000000u : 0);
	}
}

template <bool F16> DEVICE uint32_t pack_two(float a, float b)
{
	if (F16) {
		const __half2 h = __floats2half2_rn(a, b);

		return *(const uint32_t *)&h;
	}
	const __nv_bfloat162 h = __floats2bfloat162_rn(a, b);

	return *(const uint32_t *)&h;
}

#endif
