/* The arithmetic of vLLM's per-token-head INT4, to the bit of what its kernels do on an NVIDIA GPU (1 / scale there is
 * the approximate reciprocal of the hardware, and product and zero point are added with one rounding).
 *
 * scale = max((max - min) * (1/15), 1e-6), zero point = round(-min / scale) in 0 .. 15, code = round(x / scale + zero
 * point) in 0 .. 15, halves up. The scale's bits carry the zero point in the four low ones:
 *     bits = (bits of scale & ~15) | zero point,      x = (code - zero point) * float(bits & ~15)
 * A zero point outside 0 .. 15 is clamped: a vector whose rotated elements all have one sign, and are far from 0, is
 * stored badly. That is part of the format. The codes are chosen with the whole scale, and read back with the masked
 * one. A vector whose rotated elements are all equal has no range, and decodes to within 15e-6 of zero.
 */
#ifndef TERRACE_KERNELS_INT4_H
#define TERRACE_KERNELS_INT4_H

#include <stdint.h>

/* Quantises x[d], finite and on the grid of fp16 or of bf16. */
void kv_int4_quantise(uint32_t d, const float *x, uint16_t *codes, uint32_t *bits);

/* 1 / s as the GPU computes it, for a positive float whose reciprocal is normal as well. */
float kv_int4_reciprocal(float s);

#endif
