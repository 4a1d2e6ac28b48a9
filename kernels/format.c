/* The format table, block geometry and element order (see format.h; kernels/README.md draws the
 * atom).
 *
 * The order follows the operand fragments of the integer tensor-core instruction m16n8k32 with KV
 * as operand A: with g = lane / 4 and t = lane % 4, a lane wants tokens g and g + 8 of K, and dims
 * g and g + 8 of V. A format's codes are one *plane* of 1, 2, 4, 8 or 16 bits a code, or (tq3) a
 * 2-bit plane and then a 1-bit plane. A plane gives every lane L = d * bits / 16 bytes, kept in
 * 16-byte vectors so that a warp's loads are 512 consecutive bytes; what is left over when L is no
 * multiple of 16 follows, L % 16 bytes a lane.
 */
#include "kernels/format.h"

#include <assert.h>
#include <string.h>

static const struct kv_format_info formats[KV_FORMAT_COUNT] = {
	[KV_NONE] = {"none", 0, 0, false},
	[KV_F16] = {"fp16", 16, 0, false},
	[KV_BF16] = {"bf16", 16, 0, false},
	[KV_FP8] = {"fp8", 8, 2, false},
	[KV_INT4_PTH] = {"int4_pth", 4, 4, true},
	[KV_TQ4] = {"tq4", 4, 2, true},
	[KV_TQ3] = {"tq3", 3, 2, true},
	[KV_TQ2] = {"tq2", 2, 2, true},
};

const struct kv_format_info *kv_format_info(enum kv_format f)
{
	return (unsigned)f < KV_FORMAT_COUNT ? &formats[f] : NULL;
}

bool kv_format_parse(const char *name, enum kv_format *out)
{
	if (strcmp(name, "raw16") == 0) {
		*out = KV_F16;
		return true;
	}
	for (unsigned f = 0; f < KV_FORMAT_COUNT; f++) {
		if (strcmp(name, formats[f].name) == 0) {
			*out = (enum kv_format)f;
			return true;
		}
	}
	return false;
}

bool kv_head_dim_ok(uint32_t d)
{
	return d == 64 || d == 96 || d == 128 || d == 192 || d == 256;
}

static const char *shape_problem(const struct kv_layout *l)
{
	if (l->layers == 0 || l->layers > KV_LAYERS_MAX)
		return "layers must be 1 to 512";
	if (l->first_layer > UINT32_MAX - l->layers)
		return "first_layer + layers overflows";
	if (l->heads == 0 || l->heads > KV_HEADS_MAX || l->total_heads > KV_HEADS_MAX)
		return "heads must be 1 to 1024, and total_heads at most 1024";
	if (l->first_head > l->total_heads || l->heads > l->total_heads - l->first_head)
		return "first_head + heads exceeds total_heads";
	if (!kv_head_dim_ok(l->head_dim_k))
		return "head_dim_k must be 64, 96, 128, 192 or 256";
	if (!kv_head_dim_ok(l->head_dim_v))
		return "head_dim_v must be 64, 96, 128, 192 or 256";
	if (l->block_tokens == 0 || l->block_tokens % KV_ATOM_TOKENS ||
	    l->block_tokens > KV_BLOCK_TOKENS_MAX)
		return "block_tokens must be a multiple of 16, 16 to 256";
	return NULL;
}

const char *kv_layout_problem(const struct kv_layout *l)
{
	const char *problem = shape_problem(l);

	if (problem)
		return problem;
	if (!kv_format_info(l->k_format) || l->k_format == KV_NONE)
		return "k_format is not a format of this version";
	if (!kv_format_info(l->v_format))
		return "v_format is not a format of this version";
	if (l->v_format == KV_NONE && l->head_dim_v > l->head_dim_k)
		return "V of format none is a view of K, so head_dim_v must not exceed head_dim_k";
	if (l->rotation_version != KV_ROTATION_VERSION)
		return "rotation_version is not the one of this build";
	if (l->codebook_version != KV_CODEBOOK_VERSION)
		return "codebook_version is not the one of this build";
	if (l->layout_version != KV_LAYOUT_VERSION)
		return "layout_version is not the one of this build";
	return NULL;
}

static uint32_t codes_bytes(enum kv_format f, uint32_t d)
{
	return KV_ATOM_TOKENS * d * formats[f].code_bits / 8;
}

void kv_geometry_of(const struct kv_layout *l, struct kv_geometry *g)
{
	struct kv_geometry n = {.atoms = l->block_tokens / KV_ATOM_TOKENS};

	n.k_codes = codes_bytes(l->k_format, l->head_dim_k);
	n.k_scales = KV_ATOM_TOKENS * formats[l->k_format].scale_bytes;
	n.v_codes = codes_bytes(l->v_format, l->head_dim_v);
	n.v_scales = KV_ATOM_TOKENS * formats[l->v_format].scale_bytes;
	n.k_codes_at = 0;
	n.k_scales_at = n.k_codes_at + n.k_codes;
	n.v_codes_at = n.k_scales_at + n.k_scales;
	n.v_scales_at = n.v_codes_at + n.v_codes;
	n.atom_bytes = n.v_scales_at + n.v_scales;
	n.chunk_bytes = n.atoms * n.atom_bytes;
	n.layer_bytes = (uint64_t)l->heads * n.chunk_bytes;
	n.block_bytes = l->layers * n.layer_bytes;
	n.slot_bytes =
		(KV_SLOT_ALIGN + n.block_bytes + KV_SLOT_ALIGN - 1) / KV_SLOT_ALIGN * KV_SLOT_ALIGN;
	*g = n;
}

/* Byte `k` of the `lane_bytes` bytes that a lane has in a plane, as an offset in the plane. */
static uint32_t lane_byte_at(uint32_t lane_bytes, uint32_t lane, uint32_t k)
{
	uint32_t whole = lane_bytes / 16 * 16;

	if (k < whole)
		return k / 16 * 512 + lane * 16 + k % 16;
	return whole * 32 + lane * (lane_bytes - whole) + (k - whole);
}

/* K, 1 to 8 bits. A lane's words come in pairs, token g then token g + 8; a pair holds `fields`
 * groups of 16 dims, of which the lane has 4t .. 4t + 3. When two pairs fill a 16-byte vector, the
 * fields of one word are two groups apart for 4 bits, so that the low nibbles of both pairs are 32
 * consecutive dims, one k step of the instruction. */
static void k_place(uint32_t bits, uint32_t d, uint32_t token, uint32_t dim, struct kv_place *out)
{
	uint32_t lane_bytes = d * bits / 16, fields = 8 / bits;
	uint32_t lane = token % 8 * 4 + dim / 4 % 4, half = token / 8;
	uint32_t group = dim / 16, e = dim % 4;
	uint32_t pair = group / fields, field = group % fields;

	if (pair < lane_bytes / 8) {
		if (bits == 4 && (pair | 1) < lane_bytes / 8) {
			pair = group / 4 * 2 + group % 2;
			field = group / 2 % 2;
		}
		out->byte = lane_byte_at(lane_bytes, lane, pair * 8 + half * 4 + e);
		out->shift = (uint8_t)(field * bits);
		return;
	}
	/* What is left of the lane: as many bytes for token g, then for token g + 8, elements in
	 * dim order. */
	uint32_t pairs = lane_bytes / 8, part = lane_bytes % 8 / 2;
	uint32_t i = (group - pairs * fields) * 4 + e;

	out->byte = lane_byte_at(lane_bytes, lane, pairs * 8 + half * part + i / fields);
	out->shift = (uint8_t)(i % fields * bits);
}

/* V, 1 to 8 bits: bytes of a word are tokens 2t, 2t + 8, 2t + 1, 2t + 9; words and fields count up
 * the dims g, g + 8, g + 16, ... Only 1 bit at d = 96 has half a word left over: dims 64 .. 95
 * stand there token by token, in dim order. */
static void v_place(uint32_t bits, uint32_t d, uint32_t token, uint32_t dim, struct kv_place *out)
{
	uint32_t fields = 8 / bits, words = d / 8 / fields, lane_bytes = words * 4;
	uint32_t lane = dim % 8 * 4 + token % 8 / 2, e = token % 2 * 2 + token / 8;
	uint32_t row = dim / 8, word = row / fields;

	if (word < words) {
		out->byte = lane_byte_at(lane_bytes, lane, word * 4 + e);
		out->shift = (uint8_t)(row % fields * bits);
		return;
	}
	uint32_t left = dim - words * fields * 8, per_token = (d - words * fields * 8) * bits / 8;

	out->byte = lane_bytes * 32 + token * per_token + left / fields;
	out->shift = (uint8_t)(left % fields * bits);
}

/* 16 bits, the fragment of m16n8k16: K has two dims a word, V two tokens a word. */
static uint32_t raw_place(enum kv_side side, uint32_t d, uint32_t token, uint32_t dim)
{
	uint32_t lane_bytes = d, vector = dim / 16;

	if (side == KV_SIDE_K) {
		uint32_t lane = token % 8 * 4 + dim % 8 / 2, r = token / 8 + dim % 16 / 8 * 2;

		return lane_byte_at(lane_bytes, lane, vector * 16 + r * 4 + dim % 2 * 2);
	}
	uint32_t lane = dim % 8 * 4 + token % 8 / 2, r = dim % 16 / 8 + token / 8 * 2;

	return lane_byte_at(lane_bytes, lane, vector * 16 + r * 4 + token % 2 * 2);
}

unsigned kv_code_places(enum kv_format f, enum kv_side side, uint32_t d, uint32_t token, uint32_t dim,
			struct kv_place out[2])
{
	unsigned bits = formats[f].code_bits, planes = 0, done = 0;

	assert(kv_head_dim_ok(d) && token < KV_ATOM_TOKENS && dim < d);
	if (bits == 16) {
		uint32_t at = raw_place(side, d, token, dim);

		out[0] = (struct kv_place){.byte = at, .bits = 8, .code_shift = 0};
		out[1] = (struct kv_place){.byte = at + 1, .bits = 8, .code_shift = 8};
		return 2;
	}
	while (done < bits) {
		unsigned width = bits == 3 ? 2 - done / 2 : bits;
		struct kv_place *p = &out[planes++];

		if (side == KV_SIDE_K)
			k_place(width, d, token, dim, p);
		else
			v_place(width, d, token, dim, p);
		p->byte += KV_ATOM_TOKENS * d * done / 8;
		p->bits = (uint8_t)width;
		p->code_shift = (uint8_t)done;
		done += width;
	}
	return planes;
}
