/* Encode and decode of K and V vectors: the clear CPU reference that every other codec is tested
 * against.
 *
 * Two levels. *Vector*: one head-dim vector to its codes (a uint16_t each, in dim order) and the
 * bits of its scale. *Chunk*: tokens of one (layer, head) in a block, in
 * the element order of kernels/format.h. All functions are pure, reentrant and allocate nothing.
 */
#ifndef TERRACE_KERNELS_CODEC_H
#define TERRACE_KERNELS_CODEC_H

#include "kernels/format.h"

#define KV_FINITE_MAX 65504.0f   /* the largest finite fp16 */
#define KV_BF16_MAX 0x1.fep127f  /* the largest finite bf16 */

/* Element types of unpacked vectors. Values are public (terrace.h) and never renumbered. */
enum kv_dtype {
	KV_DTYPE_F32 = 0,
	KV_DTYPE_F16 = 1,
	KV_DTYPE_BF16 = 2,
	KV_DTYPE_E4M3 = 3, /* a byte; saturates at 448 */
};

size_t kv_dtype_bytes(enum kv_dtype t);

/* Rotates in place: x <- H (signs * x), H the unnormalised Hadamard matrix of order d (Sylvester for powers of two, H12
 * (x) Sylvester for 96 and 192, H20 (x) Sylvester of order 4 for 80, H28 (x) that for 112). d is a legal head dim. */
void kv_rotate(float *x, uint32_t d);

/* The inverse of kv_rotate: x <- signs * (H^T x) / d. */
void kv_unrotate(float *x, uint32_t d);

/* The sign of dim i (+1 or -1) of the rotation. */
int kv_rotation_sign(uint32_t d, uint32_t i);

/* fp8: what a vector's largest element is as an E4M3 number: the largest there is; of 512 dims, whose largest is
 * further above the others, 256, with which the mean square error is nearest to that of 128 dims: on Gaussian vectors
 * 2.9 % more, where 448 makes 4.7 %. */
#define KV_FP8_TOP(d) ((d) > 256 ? 256.0f : 448.0f)

/* Quantises one vector of d floats, which the caller has prepared (kv_prepare) already: codes[d]
 * one value a dim (raw16: the 16 bits), *scale the scale's bits (fp16 in the low half, or fp32).
 * The scale is
 *   fp8       fp16, not below max|x| / KV_FP8_TOP(d):            x = e4m3(code) * scale
 *   int4_pth  fp32 with the zero point in its 4 low bits:        x = (code - zero) * float(bits & ~15)
 *   tq*       fp16, ||x|| / ||values||, times half-integers:     x = value(code) * scale   (codebook.h)
 * NaN is taken as 0. What is beyond +-KV_FINITE_MAX, infinities too, saturates there (bf16: at its own largest
 * number; tq* and int4_pth rounded to bf16: at 512 times KV_FINITE_MAX, for rotation makes values larger), so no
 * code is undefined and none decodes to a non-finite float. A zero vector has scale 0 and decodes to zeros
 * (int4_pth: scale 1e-6, as in vLLM). Vectors so short that their fp16 scale is subnormal (tq4: ||x||
 * below 2.6e-3 before the rotation) lose precision, and below 1.2e-6 become zeros. */
void kv_quantise(enum kv_format f, enum kv_rounding rounding, uint32_t d, const float *x, uint16_t *codes,
	uint32_t *scale);

/* What comes before kv_quantise: rotates x[d] to out[d] if the format wants it and `rotated` does
 * not say that it is done, after the same treatment of non-finite values; for int4_pth the rotated
 * vector is then rounded, to the dtype in which vLLM keeps it. */
void kv_prepare(enum kv_format f, enum kv_rounding rounding, uint32_t d, bool rotated, const float *x, float *out);

/* The inverse: x[d] in the rotated domain for rotated formats (unnormalised H: a rotated vector is
 * sqrt(d) times as long as the original). */
void kv_dequantise(enum kv_format f, uint32_t d, const uint16_t *codes, uint32_t scale, float *x);

/* Whole vectors in the linear byte form of `terracectl codec` and of vLLM: codes in dim order
 * (4-bit: low nibble = even dim; 2-bit: four a byte from the low bits; 3-bit: a stream of 3-bit
 * fields, low bits first; fp8 a byte; raw16 little-endian), then scale bytes. kv_linear_bytes is
 * the size of one vector. `rotated`: x is in the rotated domain on the unpacked side (no rotation
 * is done either way). */
size_t kv_linear_bytes(enum kv_format f, uint32_t d);
void kv_linear_pack(enum kv_format f, uint32_t d, const uint16_t *codes, uint32_t scale, uint8_t *out);
void kv_linear_unpack(enum kv_format f, uint32_t d, const uint8_t *in, uint16_t *codes, uint32_t *scale);
void kv_linear_encode(enum kv_format f, enum kv_rounding rounding, uint32_t d, bool rotated, const float *x,
	uint8_t *out);
void kv_linear_decode(enum kv_format f, uint32_t d, bool rotated, const uint8_t *in, float *x);

/* Encodes `n` tokens (first_token .. first_token + n - 1 of the block) of one side of (layer, head)
 * into `block`; the rope part of a key is a side of its own. src: n vectors of the side's head dim,
 * `stride` elements apart. Only bytes of those
 * tokens are written, so that a block may grow token by token. A side whose format is KV_NONE:
 * nothing is done. */
void kv_encode(const struct kv_layout *l, const struct kv_geometry *g, void *block, uint32_t layer,
	       uint32_t head, enum kv_side side, uint32_t first_token, uint32_t n, const void *src,
	       enum kv_dtype dtype, size_t stride);

/* The inverse, to the original (unrotated) domain unless `rotated`. V of KV_NONE is decoded as K's
 * first head_dim_v dims. Elements of 16 and 8 bits saturate at their type's largest number. */
void kv_decode(const struct kv_layout *l, const struct kv_geometry *g, const void *block,
	       uint32_t layer, uint32_t head, enum kv_side side, uint32_t first_token, uint32_t n,
	       bool rotated, void *dst, enum kv_dtype dtype, size_t stride);

/* The fast path of attention: the first `tokens` (at most 16) tokens of one side of one atom, to vectors of p->d
 * floats, `stride` apart, in the rotated domain for rotated formats. Bytes of later tokens never reach the result.
 * The side's format is not KV_NONE. */
void kv_decode_atom(const struct kv_part *p, const uint8_t *atom, unsigned tokens, float *out, size_t stride);

/* Repack between an atom-ordered block and linear vectors (layout of vLLM's own cache for
 * int4_pth): `out` gets n times kv_linear_bytes bytes, and back. Codes and scales are moved, never
 * recomputed. */
void kv_repack_out(const struct kv_layout *l, const struct kv_geometry *g, const void *block,
		   uint32_t layer, uint32_t head, enum kv_side side, uint32_t first_token,
		   uint32_t n, uint8_t *out);
void kv_repack_in(const struct kv_layout *l, const struct kv_geometry *g, void *block, uint32_t layer,
		  uint32_t head, enum kv_side side, uint32_t first_token, uint32_t n, const uint8_t *in);

/* Scalar conversions, round to nearest even; overflow of kv_half_from goes to infinity. */
uint16_t kv_half_from(float f);
float kv_half_to(uint16_t h);
uint16_t kv_bf16_from(float f);
float kv_bf16_to(uint16_t h);
uint8_t kv_e4m3_from(float f); /* saturates at 448; NaN to 0x7f */
float kv_e4m3_to(uint8_t b);

#endif
