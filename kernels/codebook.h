/* The codebooks of tq4, tq3 and tq2 (KV_CODEBOOK_VERSION 1), and the choice of codes by them.
 *
 * A code is sign << (bits - 1) | magnitude index; its value is +-(m + 0.5), m an integer byte, so
 * that a GPU takes the values as int8 (m, or its complement for the negative ones) and adds the
 * half afterwards. The scale of a vector multiplies these values directly: rotated x = scale *
 * value.
 */
#ifndef TERRACE_KERNELS_CODEBOOK_H
#define TERRACE_KERNELS_CODEBOOK_H

#include "kernels/format.h"

enum { KV_MAGNITUDES_MAX = 8 };

struct kv_codebook {
	uint32_t magnitudes; /* 2, 4 or 8 */
	float per_unit;      /* grid steps in one standard deviation */
	float magnitude[KV_MAGNITUDES_MAX];
	float values[2 * KV_MAGNITUDES_MAX];
};

/* The codebook of a tq format; NULL for a format that has none. */
const struct kv_codebook *kv_codebook(enum kv_format f);

/* The values of all 1 << code_bits codes of a tq format, by code. */
const float *kv_codebook_values(enum kv_format f);

/* Quantises x[d], rotated and finite: codes[d], and the scale ||x|| / ||values of the codes||, so
 * that the decoded vector has x's own length. A zero vector gives code 0 everywhere and scale 0. */
void kv_codebook_quantise(enum kv_format f, uint32_t d, const float *x, uint16_t *codes, float *scale);

#endif
