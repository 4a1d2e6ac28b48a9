/* Inline forms of the scalar conversions of kernels/codec.h, without branches so that loops over
 * them vectorise. Bit arithmetic and exact float operations only: the results are the same on every
 * machine. */
#ifndef TERRACE_KERNELS_HALF_H
#define TERRACE_KERNELS_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t float_bits(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

static inline float float_of_bits(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

/* The bits, without the sign, of a finite `magnitude` (float bits) in a format of `man` mantissa
 * bits and exponent bias `bias`, to nearest even; past the format's largest number the fields just
 * carry on. Below the smallest normal number 2^(1 - bias) the addition of `magic` = 2^(24 - bias -
 * man), whose last place is the format's smallest step, rounds. */
static inline uint32_t float_narrow(uint32_t magnitude, unsigned man, unsigned bias)
{
	unsigned drop = 23 - man;
	uint32_t magic = (127 + 24 - bias - man) << 23;
	uint32_t normal = ((magnitude + (1u << (drop - 1)) - 1 + (magnitude >> drop & 1)) >> drop) -
			  ((127 - bias) << man);
	uint32_t tiny = float_bits(float_of_bits(magnitude) + float_of_bits(magic)) - magic;

	return magnitude < (127 + 1 - bias) << 23 ? tiny : normal;
}

static inline uint16_t half_from_float(float f)
{
	uint32_t u = float_bits(f), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
	uint32_t h = float_narrow(magnitude, 10, 15);

	h = magnitude >= 0x47800000 ? 0x7c00 : h; /* 65536 and up; 65520 has carried there by itself */
	h = magnitude > 0x7f800000 ? 0x7e00 : h;
	return (uint16_t)(sign | h);
}

/* The half of a result: what passes the largest number, infinities too, is the largest number; NaN stays NaN. */
static inline uint16_t half_saturated(float f)
{
	uint16_t h = half_from_float(f);

	return (uint16_t)(h - ((h & 0x7fff) == 0x7c00));
}

static inline float float_from_half(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = (uint32_t)(h & 0x7fff) << 13;
	uint32_t finite = float_bits(float_of_bits(magnitude) * 0x1p112f);

	return float_of_bits(sign | (magnitude >= 0x7c00u << 13 ? 0x7f800000 | magnitude : finite));
}

static inline uint16_t bf16_from_float(float f)
{
	uint32_t u = float_bits(f);
	uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;

	return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? u >> 16 | 0x40 : rounded);
}

static inline uint16_t bf16_saturated(float f)
{
	uint16_t h = bf16_from_float(f);

	return (uint16_t)(h - ((h & 0x7fff) == 0x7f80));
}

static inline float float_from_bf16(uint16_t h)
{
	return float_of_bits((uint32_t)h << 16);
}

static inline uint8_t e4m3_from_float(float f)
{
	uint32_t u = float_bits(f), sign = u >> 24 & 0x80, magnitude = u & 0x7fffffff;
	uint32_t b = float_narrow(magnitude, 3, 7);

	b = magnitude >= 0x43e00000 ? 0x7e : b; /* 448 and up */
	return (uint8_t)(magnitude > 0x7f800000 ? 0x7f : sign | b);
}

static inline float float_from_e4m3(uint8_t b)
{
	uint32_t sign = (uint32_t)(b & 0x80) << 24, magnitude = (uint32_t)(b & 0x7f) << 20;
	uint32_t finite = float_bits(float_of_bits(magnitude) * 0x1p120f);

	return float_of_bits(sign | ((b & 0x7f) == 0x7f ? 0x7fc00000 : finite));
}

#endif
