/* The randomized Hadamard rotation: x <- H (signs * x), H of order d, unnormalised.
 *
 * Powers of two use Sylvester's matrix. Others use a Hadamard matrix of Paley's (x) Sylvester's, so that no head dim is
 * padded and every entry of H is 1 or -1: 96 and 192 H12 (of the integers mod 11) with Sylvester's of order 8 and
 * 16, 80 H20 (mod 19) and 112 H28 (Paley's second construction, mod 13) with that of order 4. The signs of every
 * head dim are the first d of one fixed sequence of 512. Its first 256 are those of vLLM's round 0, so that int4_pth
 * rotates exactly as vLLM does; the others are splitmix64's first 256 bits.
 *
 * Rotation version 1 has the head dims 64, 96, 128, 192 and 256; version 2 adds 80, 112 and 512 (kv_rotation_version).
 */
#include "kernels/codec_lanes.h"

#include <assert.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/simd.h"

/* Bit i of the sequence is 1 where the sign is -1. */
static const uint64_t negative[KV_HEAD_DIM_MAX / 64] = {
	0x7f7fca4e9a8ca6f2,
	0x9480abc759bbc293,
	0x54503bbeb55b747e,
	0x05dfbc5fcdf467b7,
	0xe220a8397b1dcdaf,
	0x6e789e6aa1b965f4,
	0x06c45d188009454f,
	0xf88bb8a8724c81ec,
};

/* Hadamard's matrices of order 20 and 28: bit j of row i is 1 where H[i][j] is -1. */
static const uint32_t h20[20] = {
	0x00000, 0x9ea19, 0x3d433, 0x7a865, 0xf50c9, 0xea193, 0xd4327, 0xa864f, 0x50c9f, 0xa193d,
	0x4327b, 0x864f5, 0x0c9eb, 0x193d5, 0x327a9, 0x64f51, 0xc9ea1, 0x93d43, 0x27a87, 0x4f50d,
};

static const uint32_t h28[28] = {
	0x0000002, 0xaaaaaab, 0x30ff0c8, 0x9a55a6e, 0xc3fc320, 0x69569ba, 0x0ff0c8c,
	0xa55a6e6, 0x3fc3230, 0x9569b9a, 0xff0c8c0, 0x55a6e6a, 0xfc3230c, 0x569b9a6,
	0xf0c8c3c, 0x5a6e696, 0xc3230fc, 0x69b9a56, 0x0c8c3fc, 0xa6e6956, 0x3230ff0,
	0x9b9a55a, 0xc8c3fc0, 0x6e6956a, 0x230ff0c, 0xb9a55a6, 0x8c3fc30, 0xe69569a,
};

int kv_rotation_sign(uint32_t d, uint32_t i)
{
	(void)d; /* every head dim uses the start of the one sequence */
	return negative[i / 64] >> (i % 64) & 1 ? -1 : 1;
}

KV_CLONES void kv_rotation_flips(uint32_t d, uint32_t *flips)
{
	/* Of 80 and 112 dims 16 more, which are not looked at. */
	for (uint32_t word = 0; word < (d + 31) / 32; word++) {
		uint32_t bits = (uint32_t)(negative[word / 2] >> (word % 2 * 32));

		for (uint32_t i = 0; i < 32; i++)
			flips[32 * word + i] = bits >> i << 31;
	}
}

/* d is a multiple of 16. */
KV_INLINE void flip_signs(float *x, uint32_t d)
{
	for (uint32_t word = 0; word < d / 16; word++) {
		uint32_t bits = (uint32_t)(negative[word / 4] >> (word % 4 * 16));

		for (uint32_t i = 0; i < 16; i++)
			x[16 * word + i] =
				float_of_bits(float_bits(x[16 * word + i]) ^ (bits >> i << 31));
	}
}

/* One butterfly stage of a Sylvester matrix on d floats, between elements `h` apart. */
KV_INLINE void stage(float *x, uint32_t d, uint32_t h)
{
	for (uint32_t i = 0; i < d; i += 2 * h) {
		float *restrict a = x + i, *restrict b = x + i + h;

		for (uint32_t j = 0; j < h; j++) {
			float s = a[j] + b[j], t = a[j] - b[j];

			a[j] = s;
			b[j] = t;
		}
	}
}

/* One stage of the transform, for neighbours: y[i] and y[i + d/2] from x[2i] and x[2i + 1], which vectorises;
 * applied log2(d) times it is the whole transform, for the index has then been rotated all the way
 * round. */
KV_INLINE void stage_rotating(const float *restrict x, float *restrict y, uint32_t d)
{
	for (uint32_t i = 0; i < d / 2; i++) {
		float a = x[2 * i], b = x[2 * i + 1];

		y[i] = a + b;
		y[i + d / 2] = a - b;
	}
}

KV_INLINE void sylvester_pow2(float *x, uint32_t d)
{
	float y[KV_HEAD_DIM_MAX];
	uint32_t n = d;

	for (; n > 2; n >>= 2) {
		stage_rotating(x, y, d);
		stage_rotating(y, x, d);
	}
	if (n == 2) {
		stage_rotating(x, y, d);
		memcpy(x, y, d * sizeof(*x));
	}
}

KV_INLINE bool is_negative(uint32_t order, uint32_t i, uint32_t j)
{
	return (order == 12 ? kv_h12[i] : order == 20 ? h20[i] : h28[i]) >> j & 1;
}

/* x, `order` (12, 20 or 28) rows of m, by the Hadamard matrix of that order (its transpose when `transposed`) over the
 * rows, then Sylvester within each row. */
KV_INLINE void paley(float *x, uint32_t order, uint32_t m, bool transposed)
{
	float y[192];

	for (uint32_t i = 0; i < order; i++) {
		memset(y + i * m, 0, m * sizeof(*y));
		for (uint32_t j = 0; j < order; j++) {
			float sign = (transposed ? is_negative(order, j, i) : is_negative(order, i, j)) ? -1.0f : 1.0f;

			for (uint32_t k = 0; k < m; k++)
				y[i * m + k] += sign * x[j * m + k];
		}
	}
	for (uint32_t h = 1; h < m; h *= 2)
		stage(y, order * m, h);
	memcpy(x, y, order * m * sizeof(*x));
}

KV_INLINE void transform(float *x, uint32_t d, bool transposed)
{
	switch (d) { /* constants, so that the loops unroll */
	case 80:
		paley(x, 20, 4, transposed);
		break;
	case 96:
		paley(x, 12, 8, transposed);
		break;
	case 112:
		paley(x, 28, 4, transposed);
		break;
	case 192:
		paley(x, 12, 16, transposed);
		break;
	default:
		sylvester_pow2(x, d);
	}
}

KV_CLONES void kv_rotate(float *x, uint32_t d)
{
	assert(kv_head_dim_ok(d));
	flip_signs(x, d);
	transform(x, d, false);
}

KV_CLONES void kv_unrotate(float *x, uint32_t d)
{
	float scale = 1.0f / (float)d;

	assert(kv_head_dim_ok(d));
	transform(x, d, true);
	for (uint32_t i = 0; i < d; i++)
		x[i] *= scale;
	flip_signs(x, d);
}
