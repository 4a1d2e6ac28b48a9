/* Turns rows of codes back into vectors, for decode_tile.cu. Rotated formats use the integer tensor cores. Codes are
 * whole numbers of 8 bits (those of codebooks a half more, which is added up separately), and the rotation is +1 and
 * -1. So m16n8k32's sums are exact, and one multiplication by scale / D completes them. A lane's part of a row is
 * operand A without a change; the order of the dims in it is the order of operand B's rows.
 */
#ifndef TERRACE_KERNELS_CUDA_DECODE_LANE_CUH
#define TERRACE_KERNELS_CUDA_DECODE_LANE_CUH

#include "kernels/cuda/codec_tile.cuh"

constexpr uint32_t MAGIC_BITS = 0x4b400000; /* 1.5 * 2^23: an integer added to it is the float 1.5 * 2^23 + integer */
constexpr float MAGIC = 0x1.8p23f;

/* Head dims and formats whose rows are made of whole words for operand A. */
template <int D, int FORMAT>
constexpr bool operand_suits = D == 128 || (D == 64 && (FORMAT == KV_INT4_PTH || FORMAT == KV_TQ4));

/* Words of a lane's part of one row: the plane of codes, and tq3's signs. */
template <int D, int FORMAT> struct operand {
	static constexpr uint32_t BITS = format_bits(FORMAT), W = BITS == 3 ? 2 : BITS, WORDS = D * W / 128;
	static constexpr uint32_t FIELDS = 8 / W, REGISTERS = D / 16;
	alignas(16) uint32_t word[WORDS];
	uint32_t signs;

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
			for (uint32_t i = 0; i < WORDS; i++)
#pragma unroll
				for (uint32_t odd = 0; odd < 2; odd++) {
					uint32_t index = word[i] >> (2 * odd) & 0x33333333;

					if (FORMAT == KV_TQ3 && SIDE == KV_SIDE_K) /* the sign is an index's third
										    * bit */
						index |= (signs >> (4 * i + odd) & 0x05050505) * 0x14 & 0x44444444; /* bits 0 and 2 to 2 and 6 */
					sort_values(index, a[FIELDS * i + odd], a[FIELDS * i + odd + 2]);
					if (FORMAT == KV_TQ3 && SIDE == KV_SIDE_V) {
						a[FIELDS * i + odd] ^= sign_bytes(i, odd);
						a[FIELDS * i + odd + 2] ^= sign_bytes(i, odd + 2);
					}
				}
		}
	}

	/* Values by table look-up: of the low nibbles of a word's bytes, and of the high ones. tq2's index is a code;
	 * tq3's is a magnitude, of K with the sign above it. */
	DEVICE static void sort_values(uint32_t index, uint32_t &low, uint32_t &high)
	{
		const uint32_t few = FORMAT == KV_TQ2 ? 35 | 118 << 8 | 220 << 16 | 137u << 24 : 12 | 38 << 8 | 68 << 16 | 109 << 24,
			       first = permute(few, ~few, index), second = permute(few, ~few, index >> 16);

		low = permute(first, second, 0x6420);
		high = permute(first, second, 0x7531);
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

	/* tq3's signs of V's dims of register (i, q): a byte of a word holds two dims 32 apart at bits q and q + 4. */
	DEVICE uint32_t sign_bytes(uint32_t i, uint32_t q) const
	{
		return permute(0x0000ff00, 0, signs >> (16 * i + q) & 0x1111);
	}
};

/* The rotation's matrix on rows of operand A: within 32 dims by products, across the D / 32 steps of 32 dims by
 * additions and subtractions. What dims those are goes by the order of operand A: bits of a dim are those of the step,
 * and otherwise of the row of operand B (k = register % 2, the lane's t, byte) as of its column (tile, the lane's g; in
 * the result the lane's t and the register). Columns are so numbered that a lane's results are 8 dims in a row. */
template <int D, int BITS, enum kv_side SIDE> struct rotation {
	static constexpr uint32_t W = BITS == 3 ? 2 : BITS, STEPS = D / 32, TILES = 4;
	static constexpr uint32_t PARTS = SIDE == KV_SIDE_K ? 1 : 2; /* of the tiles; a part makes whole pieces */

	/* The dims of a step's first register, byte and lane. */
	__host__ __device__ static constexpr uint32_t step_dim(uint32_t s)
	{
		if (SIDE == KV_SIDE_K)
			return 32 * s;
		if (W == 4)
			return D == 128 ? s % 2 * 64 + s / 2 : s;
		return s % 2 * 16 + s / 2;
	}

	__host__ __device__ static constexpr uint32_t row_dim(uint32_t k, uint32_t t, uint32_t byte)
	{
		return SIDE == KV_SIDE_K ? 16 * k + 4 * t + byte : 8 * k + 2 * t + (W == 4 ? 16 : 32) * byte;
	}

	__host__ __device__ static constexpr uint32_t column_dim(uint32_t tile, uint32_t column)
	{
		const uint32_t t = column / 2;

		if (SIDE == KV_SIDE_K)
			return column % 2 + 2 * tile + 8 * t;
		if (W == 4)
			return 2 * (column % 2) + 4 * (tile % 2) + 8 * t + 32 * (tile / 2);
		return 2 * (column % 2) + 4 * (tile % 2) + 8 * (t % 2) + 32 * (t / 2) + 64 * (tile / 2);
	}

	/* Where a lane's results begin in a row. */
	DEVICE static uint32_t lane_at(uint32_t t)
	{
		return column_dim(0, 2 * t);
	}

	/* Piece p of a lane, 8 dims, in the order in which the tiles are made. */
	__host__ __device__ static constexpr uint32_t piece_at(uint32_t p)
	{
		if (SIDE == KV_SIDE_K)
			return 32 * p;
		if (W == 4)
			return D == 128 ? p / 2 * 32 + p % 2 * 64 : p * 32;
		return p / 2 * 64 + p % 2 * 16;
	}

	struct element {
		uint32_t step, tile, column;
	};

	/* What makes dim i of piece p. */
	__host__ __device__ static constexpr element place(uint32_t p, uint32_t i)
	{
		for (uint32_t s = 0; s < STEPS; s++)
			for (uint32_t n = 0; n < TILES; n++)
				for (uint32_t c = 0; c < 2; c++)
					if (step_dim(s) + column_dim(n, c) == piece_at(p) + i)
						return {s, n, c};
		return {STEPS, TILES, 2};
	}

	/* Operand B of tile n: words 2 n and 2 n + 1. */
	DEVICE static void words(uint32_t lane, uint32_t (&word)[8])
	{
#pragma unroll
		for (uint32_t i = 0; i < 8; i++) {
			word[i] = 0;
#pragma unroll
			for (uint32_t byte = 0; byte < 4; byte++)
				word[i] |= (__popc(row_dim(i % 2, lane % 4, byte) & column_dim(i / 2, lane / 4)) & 1 ? 0xffu : 1u) << (8 * byte);
		}
	}

	/* The signs that pair i of a lane's elements gets, pieces one after the other. */
	DEVICE static uint32_t mask(uint32_t t, uint32_t i)
	{
		const uint32_t first = lane_at(t) + piece_at(i / 4) + i % 4 * 2;

		return (rotation_negative(first) ? 0x8000u : 0) | (rotation_negative(first + 1) ? 0x80000000u : 0);
	}

	/* Sums over the steps, each as the bits of the float MAGIC + the integer. */
	DEVICE static void across(int32_t (&c)[STEPS][4])
	{
#pragma unroll
		for (uint32_t h = 1; h < STEPS; h *= 2)
#pragma unroll
			for (uint32_t i = 0; i < STEPS / 2; i++) {
				const uint32_t at = i / h * 2 * h + i % h;
				const int32_t more = 2 * h < STEPS ? 0 : (int32_t)MAGIC_BITS;

#pragma unroll
				for (uint32_t k = 0; k < 4; k++) {
					const int32_t a = c[at][k], b = c[at + h][k];

					c[at][k] = a + b + more;
					c[at + h][k] = a - b + more;
				}
			}
	}
};

#endif
