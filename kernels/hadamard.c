/* The randomized Hadamard rotation: x <- H (signs * x), H of order d, unnormalised.
 *
 * Powers of two use Sylvester's matrix; 96 and 192 use H12 (x) Sylvester of order 8 and 16, H12
 * being Paley's first construction over the integers mod 11, so that no head dim is padded. The
 * signs of every head dim are the first d of one fixed sequence of 256: that of vLLM's round 0, so
 * that int4_pth rotates exactly as vLLM does.
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
};

int kv_rotation_sign(uint32_t d, uint32_t i)
{
	(void)d; /* every head dim uses the start of the one sequence */
	return negative[i / 64] >> (i % 64) & 1 ? -1 : 1;
}

KV_CLONES void kv_rotation_flips(uint32_t d, uint32_t *flips)
{
	for (uint32_t word = 0; word < d / 32; word++) {
		uint32_t bits = (uint32_t)(negative[word / 2] >> (word % 2 * 32));

		for (uint32_t i = 0; i < 32; i++)
			flips[32 * word + i] = bits >> i << 31;
	}
}

/* d is a multiple of 32. */
KV_INLINE void flip_signs(float *x, uint32_t d)
{
	for (uint32_t word = 0; word < d / 32; word++) {
		uint32_t bits = (uint32_t)(negative[word / 2] >> (word % 2 * 32));

		for (uint32_t i = 0; i < 32; i++)
			x[32 * word + i] =
				float_of_bits(float_bits(x[32 * word + i]) ^ (bits >> i << 31));
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

/* The same stage for neighbours: y[i] and y[i + d/2] from x[2i] and x[2i + 1], which vectorises;
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

/* x, 12 rows of m, by H12 (its transpose when `transposed`) over the rows, then Sylvester within
 * each row. */
KV_INLINE void twelve(float *x, uint32_t m, bool transposed)
{
	float y[192];

	for (uint32_t i = 0; i < 12; i++) {
		memset(y + i * m, 0, m * sizeof(*y));
		for (uint32_t j = 0; j < 12; j++) {
			float sign = (transposed ? kv_h12[j] >> i : kv_h12[i] >> j) & 1 ? -1.0f : 1.0f;

			for (uint32_t k = 0; k < m; k++)
				y[i * m + k] += sign * x[j * m + k];
		}
	}
	for (uint32_t h = 1; h < m; h *= 2)
		stage(y, 12 * m, h);
	memcpy(x, y, 12 * m * sizeof(*x));
}

KV_INLINE void transform(float *x, uint32_t d, bool transposed)
{
	switch (d) { /* constants, so that the loops unroll */
	case 96:
		twelve(x, 8, transposed);
		break;
	case 192:
		twelve(x, 16, transposed);
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
