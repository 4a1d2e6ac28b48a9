/* The codecs sixteen lanes at a time, for up to 16 tokens (an atom's). They give the same bytes and the same floats, to
 * the bit, as kernels/codec.h's functions give one vector at a time. Compiled for AVX-512 and for AVX2 from
 * codec_lanes_body.h.
 */
#ifndef TERRACE_KERNELS_CODEC_LANES_H
#define TERRACE_KERNELS_CODEC_LANES_H

#include "kernels/codec.h"
#include "kernels/machine.h"

struct kv_codec_lanes {
	/* Both do nothing and return false for a format that they do not know.
	 *
	 * kv_prepare and kv_quantise of n vectors, `stride` elements apart: rows[n][d] of byte codes (16 bits:
	 * of halves), scales[n]. dtype is not E4M3. */
	bool (*quantise)(enum kv_format f, enum kv_rounding rounding, uint32_t d, uint32_t n, const void *src,
		enum kv_dtype dtype,
			 size_t stride, void *rows, uint32_t *scales);
	/* kv_dequantise, and with `unrotate` kv_unrotate, of the first `wide` dims (a multiple of 16). */
	bool (*dequantise)(enum kv_format f, uint32_t d, uint32_t n, const void *rows, const uint32_t *scales,
			   bool unrotate, uint32_t wide, void *dst, enum kv_dtype dtype, size_t stride);
};

extern const struct kv_codec_lanes kv_codec_lanes_avx2, kv_codec_lanes_avx512;

/* The best for this machine; NULL if it has neither. */
const struct kv_codec_lanes *kv_codec_lanes(void);

/* Hadamard's matrix of order 12: bit j of row i is 1 where H12[i][j] is -1. */
static const uint16_t kv_h12[12] = {
	0x000, 0x475, 0x8e9, 0x1d3, 0x3a5, 0x749, 0xe91, 0xd23, 0xa47, 0x48f, 0x91d, 0x23b,
};

/* Sign bits (bit 31 or nothing) of the rotation's first d dims, rounded up to a multiple of 32. */
void kv_rotation_flips(uint32_t d, uint32_t *flips);

#endif
