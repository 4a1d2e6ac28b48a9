/* What a format does with a vector. Each format has one struct of this kind, which its row of the format table names
 * (KV_FORMAT_ROWS).
 *
 * With that row it is all that a format needs on a CPU. kernels/codec.c cleans, rotates and rounds vectors as the row
 * says. kernels/chunk.c and kernels/rows.c place codes by the row's bits. Attention decodes the formats for which
 * kernels/lane_order.h has no lanes. Faster code for a format (codec_lanes.h, attend_lanes.h, cuda/) may follow later.
 * Each of these says which formats it knows; the others are left to the general code or, on a GPU, to the caller.
 */
#ifndef TERRACE_KERNELS_VECTOR_CODEC_H
#define TERRACE_KERNELS_VECTOR_CODEC_H

#include "kernels/format.h"

/* Functions are pure, allocate nothing and may be called by any thread. d is a legal head dim; a format that several
 * rows name tells itself by f. */
struct kv_vector_codec {
	/* The largest magnitude that quantise is given, by the layout's int4_rounding: larger ones, infinities too,
	 * have become it, and NaN has become 0. */
	float limit[KV_ROUNDING_COUNT];
	/* x[d] to codes[d], each of the row's code_bits bits, and the bits of the scale (0 where the row has no
	 * scale). */
	void (*quantise)(enum kv_format f, uint32_t d, const float *x, uint16_t *codes, uint32_t *scale);
	/* And back. Any codes and any scale give some floats; only those of quantise have to be finite. */
	void (*dequantise)(enum kv_format f, uint32_t d, const uint16_t *codes, uint32_t scale, float *x);
};

#define DECLARE(format, name, bits, scale, rotated, codes, codec) extern const struct kv_vector_codec kv_codec_##codec;
KV_FORMAT_ROWS(DECLARE)
#undef DECLARE

#endif
