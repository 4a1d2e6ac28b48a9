/* The format table and block geometry (see format.h; places.h has the element order, and kernels/README.md draws it).
 */
#include "kernels/format.h"

#include "kernels/places.h"

#include <assert.h>
#include <string.h>

static const struct kv_format_info formats[KV_FORMAT_COUNT] = {
#define ROW(format, name, code_bits, scale_bytes, rotated, codes, codec) \
	[format] = {name, code_bits, scale_bytes, rotated, codes},
	KV_FORMAT_ROWS(ROW)
#undef ROW
};

static const struct kv_format_info opaque = { .name = "opaque", .codes = KV_CODES_NONE };

const struct kv_format_info *kv_format_info(enum kv_format f)
{
	if (f == KV_OPAQUE)
		return &opaque;
	return (unsigned)f < KV_FORMAT_COUNT ? &formats[f] : NULL;
}

bool kv_format_parse(const char *name, enum kv_format *out)
{
	if (strcmp(name, "raw16") == 0) {
		*out = KV_F16;
		return true;
	}
	if (strcmp(name, opaque.name) == 0) {
		*out = KV_OPAQUE;
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

unsigned kv_head_dim_index(uint32_t d)
{
#define DIM(n) n,
	static const uint32_t dims[KV_HEAD_DIM_COUNT] = {KV_HEAD_DIMS(DIM)};
#undef DIM
	unsigned i = 0;

	while (i < KV_HEAD_DIM_COUNT && dims[i] != d)
		i++;
	return i;
}

bool kv_head_dim_ok(uint32_t d)
{
	return kv_head_dim_index(d) < KV_HEAD_DIM_COUNT;
}

static bool of_second_version(uint32_t d)
{
	return d == 80 || d == 112 || d == 512;
}

uint32_t kv_rotation_version(uint32_t head_dim_k, uint32_t head_dim_v)
{
	return of_second_version(head_dim_k) || of_second_version(head_dim_v) ? KV_ROTATION_VERSION_2
									      : KV_ROTATION_VERSION;
}

static const char *heads_problem(const struct kv_layout *l)
{
	if (l->heads == 0 || l->heads > KV_HEADS_MAX || l->total_heads > KV_HEADS_MAX)
		return "heads must be 1 to 1024, and total_heads at most 1024";
	if (l->first_head > l->total_heads || l->heads > l->total_heads - l->first_head)
		return "first_head + heads exceeds total_heads";
	return NULL;
}

static const char *shape_problem(const struct kv_layout *l)
{
	if (l->layers == 0 || l->layers > KV_LAYERS_MAX)
		return "layers must be 1 to 512";
	if (l->first_layer > UINT32_MAX - l->layers)
		return "first_layer + layers overflows";
	if (heads_problem(l))
		return heads_problem(l);
	if (!kv_head_dim_ok(l->head_dim_k))
		return "head_dim_k must be " KV_HEAD_DIM_NAMES;
	if (!kv_head_dim_ok(l->head_dim_v))
		return "head_dim_v must be " KV_HEAD_DIM_NAMES;
	if (l->block_tokens == 0 || l->block_tokens % KV_ATOM_TOKENS ||
	    l->block_tokens > KV_BLOCK_TOKENS_MAX)
		return "block_tokens must be a multiple of 16, 16 to 256";
	return NULL;
}

/* Of the layouts of multi-head latent attention. */
static const char *rope_problem(const struct kv_layout *l)
{
	if (l->rope_dim == 0)
		return l->rope_format == KV_NONE ? NULL : "rope_format must be none where rope_dim is 0";
	if (l->rope_dim != KV_ROPE_DIM)
		return "rope_dim must be 64, or 0 for a layout without a rope part";
	if (l->rope_format != KV_F16 && l->rope_format != KV_BF16 && l->rope_format != KV_FP8)
		return "rope_format must be fp16, bf16 or fp8 where rope_dim is 64";
	if (l->head_dim_k != KV_LATENT_DIM)
		return "K of a layout with a rope part is its latent, so head_dim_k must be 512";
	if (l->v_format != KV_NONE)
		return "V of a layout with a rope part is a view of its latent, so v_format must be none";
	if (l->head_dim_v != KV_LATENT_DIM)
		return "V of a layout with a rope part is its whole latent, so head_dim_v must be 512";
	if (l->heads != 1 || l->total_heads != 1)
		return "all heads of a model with a rope part share one latent, so heads and total_heads must be 1";
	return NULL;
}

_Static_assert(KV_LATENT_DIM == 512 && KV_ROPE_DIM == 64, "they are told above");

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool is_name_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || strchr("._+-", c);
}

/* Of the part behind the last '/'. */
static bool is_version(const char *part)
{
	const size_t n = strlen(part);

	return n <= 9 && part[0] != '0' && strspn(part, "0123456789") == n;
}

static const char *parts_problem(const char *name)
{
	const char *last = name;

	for (const char *at = name; *at; at++) {
		if (*at != '/' && !is_name_char(*at))
			return "opaque_name has a character that is none of letters, digits and . _ + - /: leave it "
			       "out";
		if (*at == '/' && (at == last || !at[1]))
			return "opaque_name has an empty part: begin and end it without /, and have one / between two "
			       "parts";
		if (*at == '/')
			last = at + 1;
	}
	if (last == name || !is_version(last))
		return "opaque_name has no version: end it with / and a number from 1, as in "
		       "\"vllm/int4_per_token_head/1\"";
	return NULL;
}

static const char *name_problem(const char name[KV_OPAQUE_NAME_BYTES])
{
	const size_t n = strnlen(name, KV_OPAQUE_NAME_BYTES);

	if (n == 0)
		return "opaque_name is empty: name the format of the bytes and its version, as in "
		       "\"vllm/int4_per_token_head/1\"";
	if (n == KV_OPAQUE_NAME_BYTES)
		return "opaque_name is longer than 63 bytes: shorten it";
	for (size_t i = n; i < KV_OPAQUE_NAME_BYTES; i++)
		if (name[i])
			return "opaque_name has bytes behind its end: set them to 0";
	return parts_problem(name);
}
_Static_assert(KV_OPAQUE_NAME_BYTES == 64, "it is told above");

static const char *bytes_problem(const struct kv_layout *l)
{
	if (l->opaque_bytes == 0)
		return "opaque_bytes is 0: give the bytes of a block, a multiple of 16";
	if (l->opaque_bytes % 16)
		return "opaque_bytes is no multiple of 16: round it up, and pad the block";
	if (l->opaque_bytes > KV_OPAQUE_BYTES_MAX)
		return "opaque_bytes is more than 1073737728, which is 512 checked pieces of 2 MiB less a header: "
		       "give a block fewer tokens, or its layers to several layouts";
	if (l->layers && l->opaque_bytes % l->layers)
		return "opaque_bytes is no multiple of layers, which have equal bytes: pad them, or set layers to 0";
	if (l->layers && l->opaque_bytes / l->layers % 16)
		return "opaque_bytes / layers is no multiple of 16: pad each layer, or set layers to 0";
	return NULL;
}
_Static_assert(KV_OPAQUE_BYTES_MAX == 1073737728, "it is told above");

static const char *opaque_problem(const struct kv_layout *l)
{
	const char *problem;

	if (l->v_format != KV_NONE)
		return "v_format of an opaque layout must be none: its bytes hold K and V, or whatever they are";
	if (l->head_dim_k || l->head_dim_v || l->rotation_version || l->codebook_version || l->int4_rounding)
		return "head_dim_k, head_dim_v, rotation_version, codebook_version and int4_rounding are of codecs: "
		       "set them to 0 in an opaque layout";
	if (l->rope_dim || l->rope_format != KV_NONE)
		return "rope_dim and rope_format are of codecs: set them to 0 in an opaque layout";
	if (l->layers > KV_LAYERS_MAX)
		return "layers of an opaque layout must be 0 to 512: share them out among several layouts, or set "
		       "layers to 0";
	if (l->first_layer > UINT32_MAX - l->layers)
		return "first_layer + layers overflows";
	if ((l->heads || l->first_head || l->total_heads) && heads_problem(l))
		return heads_problem(l);
	if (l->block_tokens == 0 || l->block_tokens > KV_OPAQUE_TOKENS_MAX)
		return "block_tokens of an opaque layout must be 1 to 65535: give what the engine has in a block";
	if (l->layout_version != KV_LAYOUT_VERSION)
		return "layout_version is not the one of this build, 1";
	problem = bytes_problem(l);
	return problem ? problem : name_problem(l->opaque_name);
}
_Static_assert(KV_OPAQUE_TOKENS_MAX == 65535, "it is told above");

static bool has_opaque_fields(const struct kv_layout *l)
{
	if (l->opaque_bytes)
		return true;
	for (size_t i = 0; i < KV_OPAQUE_NAME_BYTES; i++)
		if (l->opaque_name[i])
			return true;
	return false;
}

_Static_assert(KV_ROTATION_VERSION == 1 && KV_ROTATION_VERSION_2 == 2 && KV_CODEBOOK_VERSION == 1
	&& KV_LAYOUT_VERSION == 1, "they are told below");

const char *kv_layout_problem(const struct kv_layout *l)
{
	const char *problem;

	if (kv_is_opaque(l))
		return opaque_problem(l);
	problem = shape_problem(l);
	if (problem)
		return problem;
	if (has_opaque_fields(l))
		return "opaque_bytes and opaque_name are of opaque layouts: set k_format to opaque, or leave them 0 "
		       "and empty";
	if (!kv_format_info(l->k_format) || l->k_format == KV_NONE)
		return "k_format is not a format of this version";
	if (!kv_format_info(l->v_format) || l->v_format == KV_OPAQUE)
		return "v_format is not a format of this version";
	if (l->v_format == KV_NONE && l->head_dim_v > l->head_dim_k)
		return "V of format none is a view of K, so head_dim_v must not exceed head_dim_k";
	if (l->rotation_version != kv_rotation_version(l->head_dim_k, l->head_dim_v))
		return "rotation_version is not the one of this build: 2 with a head dim of 80, 112 or 512, else 1";
	if (l->codebook_version != KV_CODEBOOK_VERSION)
		return "codebook_version is not the one of this build, 1";
	if (l->layout_version != KV_LAYOUT_VERSION)
		return "layout_version is not the one of this build, 1";
	if ((unsigned)l->int4_rounding >= KV_ROUNDING_COUNT)
		return "int4_rounding must be 0 (fp16) or 1 (bf16)";
	if (l->int4_rounding && !kv_format_rounds(l->k_format) && !kv_format_rounds(l->v_format))
		return "int4_rounding is of int4_pth alone: it must be 0 where neither K nor V has that format";
	return rope_problem(l);
}

static uint32_t codes_bytes(enum kv_format f, uint32_t d)
{
	return KV_ATOM_TOKENS * d * formats[f].code_bits / 8;
}

static uint64_t need_of(uint64_t block_bytes)
{
	return (KV_SLOT_ALIGN + block_bytes + KV_SLOT_ALIGN - 1) / KV_SLOT_ALIGN * KV_SLOT_ALIGN;
}

static void opaque_geometry(const struct kv_layout *l, struct kv_geometry *g)
{
	const uint64_t units = (l->opaque_bytes + (uint64_t)KV_PIECE_BYTES - 1) / KV_PIECE_BYTES;
	struct kv_geometry n = {.block_bytes = l->opaque_bytes, .steps = l->layers ? l->layers : 1};

	n.layer_bytes = n.block_bytes / n.steps;
	n.piece_bytes = l->layers ? n.layer_bytes : (units + KV_PIECES_MAX - 1) / KV_PIECES_MAX * KV_PIECE_BYTES;
	n.pieces = (uint32_t)((n.block_bytes + n.piece_bytes - 1) / n.piece_bytes);
	if (n.pieces == 1)
		n.piece_bytes = n.block_bytes;
	n.need_bytes = need_of(n.block_bytes);
	*g = n;
}

static void packed_geometry(const struct kv_layout *l, struct kv_geometry *g)
{
	struct kv_geometry n = {.atoms = l->block_tokens / KV_ATOM_TOKENS};

	n.k_codes = codes_bytes(l->k_format, l->head_dim_k);
	n.k_scales = KV_ATOM_TOKENS * formats[l->k_format].scale_bytes;
	n.v_codes = codes_bytes(l->v_format, l->head_dim_v);
	n.v_scales = KV_ATOM_TOKENS * formats[l->v_format].scale_bytes;
	n.rope_codes = codes_bytes(l->rope_format, l->rope_dim);
	n.rope_scales = KV_ATOM_TOKENS * formats[l->rope_format].scale_bytes;
	n.k_codes_at = 0;
	n.k_scales_at = n.k_codes_at + n.k_codes;
	n.v_codes_at = n.k_scales_at + n.k_scales;
	n.v_scales_at = n.v_codes_at + n.v_codes;
	n.rope_codes_at = n.v_scales_at + n.v_scales;
	n.rope_scales_at = n.rope_codes_at + n.rope_codes;
	n.atom_bytes = n.rope_scales_at + n.rope_scales;
	n.chunk_bytes = n.atoms * n.atom_bytes;
	n.layer_bytes = (uint64_t)l->heads * n.chunk_bytes;
	n.block_bytes = l->layers * n.layer_bytes;
	n.steps = n.pieces = l->layers;
	n.piece_bytes = n.layer_bytes;
	n.need_bytes = need_of(n.block_bytes);
	*g = n;
}

void kv_geometry_of(const struct kv_layout *l, struct kv_geometry *g)
{
	if (kv_is_opaque(l))
		opaque_geometry(l, g);
	else
		packed_geometry(l, g);
}

struct kv_part kv_part_of(const struct kv_layout *l, const struct kv_geometry *g, enum kv_side side)
{
	assert(!kv_is_opaque(l));
	switch (side) {
	case KV_SIDE_V:
		return (struct kv_part){l->v_format, KV_SIDE_V, l->head_dim_v, g->v_codes_at, g->v_scales_at};
	case KV_SIDE_ROPE:
		return (struct kv_part){l->rope_format, KV_SIDE_K, l->rope_dim, g->rope_codes_at, g->rope_scales_at};
	default:
		return (struct kv_part){l->k_format, KV_SIDE_K, l->head_dim_k, g->k_codes_at, g->k_scales_at};
	}
}

unsigned kv_code_places(enum kv_format f, enum kv_side side, uint32_t d, uint32_t token, uint32_t dim,
			struct kv_place out[2])
{
	assert(kv_head_dim_ok(d) && token < KV_ATOM_TOKENS && dim < d);
	return places_of(formats[f].code_bits, side, d, token, dim, out);
}
