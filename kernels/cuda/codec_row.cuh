/* A *row*: the bytes that one token has in a plane of an atom, one after the other, in an order that suits whole atoms
 * best. For K they are ordered by t, the lane's place in its group of four, then as the lane has them; for V by g, the
 * lane's group. The functions are the inverse of kernels/places.h, which is the definition.
 */
#ifndef TERRACE_KERNELS_CUDA_CODEC_ROW_CUH
#define TERRACE_KERNELS_CUDA_CODEC_ROW_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/places.h"

/* The order of one plane of W bits a code in a row, and where its bytes stand in the atom (places.h). */
template <int D, int W, enum kv_side SIDE> struct plane_row {
	static constexpr uint32_t BYTES = D * W / 8, FIELDS = W < 8 ? 8 / W : 1;
	static constexpr uint32_t LANE_BYTES = D * W / 16 & ~1u, PAIRS = LANE_BYTES / 8,
				  PART = LANE_BYTES % 8 / 2, /* K: a token's odd bytes of a lane */
		WORDS = D * W / 64;                          /* V: a lane's words, a byte of each is a token's */
	/* what the token has behind those, in dim order */
	static constexpr uint32_t LEFT = SIDE == KV_SIDE_K ? BYTES - 2 * LANE_BYTES : BYTES - 8 * WORDS;
	/* whole atoms go by words */
	static constexpr bool FAST = LEFT == 0 && (SIDE == KV_SIDE_K ? PART == 0 : WORDS % 4 == 0 || WORDS == 2);

	/* The dim whose code is field q of byte j. */
	__host__ __device__ static constexpr uint32_t dim_of(uint32_t j, uint32_t q)
	{
		if constexpr (SIDE == KV_SIDE_K) {
			if constexpr (LEFT > 0)
				if (j >= 2 * LANE_BYTES)
					return D - LEFT * FIELDS + (j - 2 * LANE_BYTES) * FIELDS + q;
			const uint32_t t = j / (LANE_BYTES / 2), k = j % (LANE_BYTES / 2), pair = k / 4;

			if (pair + 1 > PAIRS) {
				const uint32_t i = (k - PAIRS * 4) * FIELDS + q;

				return (PAIRS * FIELDS + i / 4) * 16 + 4 * t + i % 4;
			}
			if constexpr (W == 4 && PAIRS > 0)
				if ((pair | 1) < PAIRS)
					return (pair / 2 * 4 + q * 2 + pair % 2) * 16 + 4 * t + k % 4;
			return (pair * FIELDS + q) * 16 + 4 * t + k % 4;
		} else {
			if (j >= 8 * WORDS)
				return WORDS * FIELDS * 8 + (j - 8 * WORDS) * FIELDS + q;
			return (j % WORDS * FIELDS + q) * 8 + j / WORDS;
		}
	}

	/* Offset in the plane of byte j of a token. */
	DEVICE static uint32_t at(uint32_t token, uint32_t j)
	{
		if constexpr (SIDE == KV_SIDE_K) {
			if constexpr (LEFT > 0)
				if (j >= 2 * LANE_BYTES)
					return LANE_BYTES * 32 + token * LEFT + j - 2 * LANE_BYTES;
			const uint32_t t = j / (LANE_BYTES / 2), k = j % (LANE_BYTES / 2);
			uint32_t byte = PAIRS * 8 + token / 8 * PART + k - PAIRS * 4;

			if constexpr (PAIRS > 0)
				if (k < PAIRS * 4)
					byte = k / 4 * 8 + token / 8 * 4 + k % 4;
			return lane_byte_at(LANE_BYTES, token % 8 * 4 + t, byte);
		} else {
			if (j >= 8 * WORDS)
				return WORDS * 4 * 32 + token * LEFT + j - 8 * WORDS;
			return lane_byte_at(WORDS * 4, j / WORDS * 4 + token % 8 / 2,
					    j % WORDS * 4 + token % 2 * 2 + token / 8);
		}
	}
};

#endif
