/* The format table: the ONE place where sizes, strides, alignment and element order of a packed KV block are computed.
 * Allocator, codec, attention, disk and wire ask here; no other code does this arithmetic.
 *
 * A *layout* describes one KV group (kv_layout). A *block* holds block_tokens tokens of it:
 *
 *     block = [layer][kv_head] chunk           chunk = atom[block_tokens / 16]
 *     atom  = { K codes | K scales | V codes | V scales | rope codes | rope scales }
 *             (16 tokens, 16-byte aligned parts)
 *
 * So one (layer, head) chunk is one contiguous bulk copy, and so is a whole block. The bytes are the same in VRAM, in
 * host memory, on disk and on the wire.
 *
 * Inside an atom the codes are in the order in which the tensor cores need them: a lane's 16-byte load is an MMA
 * operand fragment (kernels/README.md draws it). K is contracted over the head dim and V over the tokens, so their
 * orders differ. No byte holds codes of two tokens.
 *
 * A layout with a *rope part* is that of multi-head latent attention (MLA). K is the latent, of 512 dims and any
 * format. V is a view of the latent. The 64 dims of the key that carry its position follow in a format of their own, in
 * K's element order. A key and a query then have 576 elements, the latent's first.
 */
#ifndef TERRACE_KERNELS_FORMAT_H
#define TERRACE_KERNELS_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	KV_ATOM_TOKENS = 16,      /* tokens of an atom */
	KV_SLOT_ALIGN = 4096,     /* slots start and end at this multiple; also the header's size */
	KV_LAYERS_MAX = 512,      /* layers of one layout (bounded by the CRCs in a slot header) */
	KV_BLOCK_TOKENS_MAX = 256,
	KV_HEADS_MAX = 1024,
	KV_LAYOUT_VERSION = 1,    /* version of the order of bytes described here */
	KV_CODEBOOK_VERSION = 1,  /* version of the tq codebooks */
	KV_ROTATION_VERSION = 1,  /* version of the randomized Hadamard rotation of head dims 64, 96, 128, 192, 256 */
	KV_ROTATION_VERSION_2 = 2, /* the same, and that of 80, 112, 512 (kv_rotation_version) */
	KV_FINGERPRINT_BYTES = 32,
	KV_PIECE_BYTES = 65536,   /* of a checked piece of an opaque block without layers, or a multiple of it */
	KV_PIECES_MAX = 512,      /* checked pieces of a block */
	/* Bytes of an opaque block: 512 pieces of 2 MiB, less a header, are the largest slot. */
	KV_OPAQUE_BYTES_MAX = (1 << 30) - KV_SLOT_ALIGN,
	KV_OPAQUE_TOKENS_MAX = 65535,
	KV_OPAQUE_NAME_BYTES = 64, /* room for an opaque layout's name, with the NUL behind it */
	KV_LATENT_DIM = 512,      /* head_dim_k and head_dim_v of a layout with a rope part */
	KV_ROPE_DIM = 64,         /* its rope_dim */
	KV_KEY_DIM_MAX = KV_LATENT_DIM + KV_ROPE_DIM, /* elements of the longest key (kv_key_dims) */
};

/* Values are on disk and on the wire: never renumber. */
enum kv_format {
	KV_NONE = 0,     /* no V: V is a view of K's first head_dim_v dims (MLA) */
	KV_F16 = 1,      /* raw16, IEEE half */
	KV_BF16 = 2,     /* raw16, bfloat16 */
	KV_FP8 = 3,      /* E4M3 codes, one fp16 scale a vector */
	KV_INT4_PTH = 4, /* vLLM's per-token-head INT4: 4-bit codes, fp32 scale with 4-bit zero point */
	KV_TQ4 = 5,      /* TurboQuant, sign + 3-bit magnitude, fp16 scale */
	KV_TQ3 = 6,      /* sign + 2-bit magnitude */
	KV_TQ2 = 7,      /* sign + 1-bit magnitude */
#ifdef TERRACE_TEST_FORMAT
	KV_TEST_FORMAT = 8, /* of tests alone, which add a format and see what that changes */
#endif
	KV_FORMAT_COUNT,
	KV_OPAQUE = 128  /* K of an opaque layout: bytes of another program's. It is in no table of codecs */
};

/* What the rotated vectors of int4_pth are rounded to before they are coded: the dtype of the model, in which vLLM
 * keeps them. Part of a layout, for it decides codes: 0, fp16, was the only one for a time, and layouts that say 0
 * have the ids they had then. Values are on disk and on the wire: never renumber. */
enum kv_rounding {
	KV_ROUND_F16 = 0,
	KV_ROUND_BF16 = 1,
	KV_ROUNDING_COUNT
};

/* What a format's codes are. */
enum kv_codes {
	KV_CODES_NONE = 0,   /* there are none */
	KV_CODES_RAW,        /* the elements, as 16-bit floats */
	KV_CODES_FLOAT,      /* small floats, times the scale */
	KV_CODES_ZERO_POINT, /* integers less the scale's zero point, times the scale */
	KV_CODES_CODEBOOK,   /* sign and rank of a magnitude (codebook.h), times the scale */
};

#ifdef TERRACE_TEST_FORMAT
#define KV_TEST_ROW(row) row(KV_TEST_FORMAT, "test", 4, 2, false, KV_CODES_FLOAT, test)
#else
#define KV_TEST_ROW(row)
#endif

/* The format table, as row(FORMAT, NAME, CODE_BITS, SCALE_BYTES, ROTATED, CODES, CODEC) for each: a macro, since code
 * for a GPU and constant expressions cannot read the array of kv_format_info. CODEC is which kv_codec_CODEC makes codes
 * of a vector (kernels/vector_codec.h). A format is a row and its codec; what else there is of code for single formats
 * is faster code, which says what it knows and takes no format for another. Which formats share a property is asked
 * here, never told by the order of their numbers. */
#define KV_FORMAT_ROWS(row)                                                     \
	row(KV_NONE, "none", 0, 0, false, KV_CODES_NONE, none)                  \
	row(KV_F16, "fp16", 16, 0, false, KV_CODES_RAW, fp16)                   \
	row(KV_BF16, "bf16", 16, 0, false, KV_CODES_RAW, bf16)                  \
	row(KV_FP8, "fp8", 8, 2, false, KV_CODES_FLOAT, fp8)                    \
	row(KV_INT4_PTH, "int4_pth", 4, 4, true, KV_CODES_ZERO_POINT, int4)     \
	row(KV_TQ4, "tq4", 4, 2, true, KV_CODES_CODEBOOK, codebook)             \
	row(KV_TQ3, "tq3", 3, 2, true, KV_CODES_CODEBOOK, codebook)             \
	row(KV_TQ2, "tq2", 2, 2, true, KV_CODES_CODEBOOK, codebook)             \
	KV_TEST_ROW(row)

/* The names of all formats but "none", with ", " between them: a constant. */
#define KV_FORMAT_NAME_(format, name, bits, scale, rotated, codes, codec) ", " name
#define KV_FORMAT_NAMES (&(KV_FORMAT_ROWS(KV_FORMAT_NAME_))[sizeof(", none, ") - 1])

/* The parts of an atom. Only the first two have an element order: the rope part has K's. */
enum kv_side { KV_SIDE_K = 0, KV_SIDE_V = 1, KV_SIDE_ROPE = 2 };

/* One row a format. */
struct kv_format_info {
	const char *name;     /* "fp16", "bf16", "fp8", "int4_pth", "tq4", "tq3", "tq2", "none" */
	uint8_t code_bits;    /* bits a code */
	uint8_t scale_bytes;  /* bytes of scale a vector: 0, 2 or 4 */
	bool rotated;         /* codes are of the randomized-Hadamard-rotated vector */
	enum kv_codes codes;
};

/* The row of a format, KV_OPAQUE's too; NULL for a number that is not a format. */
const struct kv_format_info *kv_format_info(enum kv_format f);

/* True of the format whose rotated vectors are rounded as the layout's int4_rounding says. */
static inline bool kv_format_rounds(enum kv_format f)
{
	return kv_format_info(f)->codes == KV_CODES_ZERO_POINT;
}

/* Parses a format's name, "opaque" too ("raw16" is an alias of "fp16"). False, *out untouched, for an unknown one. */
bool kv_format_parse(const char *name, enum kv_format *out);

/* The head dims, as dim(D) for each, in order of size. Every one is a multiple of 16. */
#define KV_HEAD_DIMS(dim) dim(64) dim(80) dim(96) dim(112) dim(128) dim(192) dim(256) dim(512)
#define KV_COUNT_(d) +1
enum { KV_HEAD_DIM_COUNT = 0 KV_HEAD_DIMS(KV_COUNT_), KV_HEAD_DIM_MAX = 512 };
#undef KV_COUNT_

/* For messages. */
#define KV_HEAD_DIM_NAMES "64, 80, 96, 112, 128, 192, 256 or 512"

/* The number of a head dim in KV_HEAD_DIMS; KV_HEAD_DIM_COUNT for what is none. */
unsigned kv_head_dim_index(uint32_t d);
bool kv_head_dim_ok(uint32_t d);

/* The rotation version of a layout with these head dims: KV_ROTATION_VERSION_2 if one of them is 80, 112 or 512, which
 * version 1 does not have, else KV_ROTATION_VERSION. Version 2 rotates the other dims as version 1 does, so that
 * layouts without a new dim keep their ids. */
uint32_t kv_rotation_version(uint32_t head_dim_k, uint32_t head_dim_v);

struct kv_layout {
	uint8_t fingerprint
		[KV_FINGERPRINT_BYTES]; /* names the model, weights revision and rope settings */
	uint32_t first_layer, layers;              /* of the model, held by this layout */
	uint32_t first_head, heads, total_heads;   /* KV heads: first, held here, of the whole model */
	uint32_t head_dim_k, head_dim_v;
	uint32_t block_tokens;                     /* a multiple of 16, at most KV_BLOCK_TOKENS_MAX */
	enum kv_format k_format, v_format;
	uint32_t window;                           /* sliding window in tokens, 0 for full attention */
	uint32_t rotation_version;                 /* kv_rotation_version(head_dim_k, head_dim_v) */
	uint32_t codebook_version, layout_version;
	enum kv_rounding int4_rounding;            /* KV_ROUND_F16 in layouts without int4_pth */

	uint32_t rope_dim;                         /* KV_ROPE_DIM with a rope part, which wants one head; 0 without */
	enum kv_format rope_format;                /* fp16, bf16 or fp8; KV_NONE without a rope part */

	/* An opaque layout alone, else 0 and empty: a block is so many bytes that no code here looks into. Its k_format
	 * is KV_OPAQUE and its v_format KV_NONE; head dims, rotation_version and codebook_version are 0. heads,
	 * first_head and total_heads name a part of the model as elsewhere, or are all 0. block_tokens is 1 to
	 * KV_OPAQUE_TOKENS_MAX. `layers` is 0, or how many equal parts a block has, which a copy to a GPU tells one by
	 * one. opaque_bytes is a multiple of 16, and of 16 * layers, and at most KV_OPAQUE_BYTES_MAX. opaque_name is
	 * name and version of the bytes' format, "vllm/int4_per_token_head/1": parts of letters, digits and . _ + -,
	 * the last one a number from 1; zeroes behind it. */
	uint32_t opaque_bytes;
	char opaque_name[KV_OPAQUE_NAME_BYTES];
};

static inline bool kv_is_opaque(const struct kv_layout *l)
{
	return l->k_format == KV_OPAQUE;
}

/* What a call that encodes, decodes or attends says to an opaque layout. */
#define KV_OPAQUE_REFUSED                                                                    \
	"the layout is opaque, and its bytes have no codec here: read and write its blocks " \
	"with the engine's own code, or describe K and V by their formats"

/* What a call of attention with a scale of 0 says to a layout with a rope part. */
#define KV_ROPE_SCALE                                                                                               \
	"scale is 0, and the layout has a rope part, whose dims do not tell the scale: give the model's, which for " \
	"DeepSeek V3 is 1/sqrt(192) times what its rope scaling adds"

/* Elements of a key, and of a query. */
static inline uint32_t kv_key_dims(const struct kv_layout *l)
{
	return l->head_dim_k + l->rope_dim;
}

/* Checks a layout, of whatever origin. Returns NULL if it is sound, else a fixed English sentence
 * that says what is wrong with it. */
const char *kv_layout_problem(const struct kv_layout *l);

/* The 64-bit id: XXH3-64 of a canonical little-endian serialisation of every field; int4_rounding and the rope part,
 * which came later, are left out where they are 0, and what opaque layouts alone have is left out of others. Equal
 * layouts have equal ids on every machine. Never 0. */
uint64_t kv_layout_id(const struct kv_layout *l);

/* Everything derived from a (sound) layout. All sizes in bytes. */
struct kv_geometry {
	uint32_t atoms;                                  /* atoms a chunk */
	uint32_t k_codes, k_scales, v_codes, v_scales, rope_codes, rope_scales; /* size of each part of an atom */
	/* offset of each in the atom */
	uint32_t k_codes_at, k_scales_at, v_codes_at, v_scales_at, rope_codes_at, rope_scales_at;
	uint32_t atom_bytes, chunk_bytes;
	uint64_t layer_bytes, block_bytes;
	uint32_t steps; /* of layer_bytes each, by which a copy tells how far it is: the layers; 1 if there are none */
	/* What has a checksum each: a layer, or, of an opaque block without layers, KV_PIECE_BYTES or the least
	 * multiple of it of which KV_PIECES_MAX cover the block. The last one ends with the block. */
	uint32_t pieces;                                 /* 1 to KV_PIECES_MAX */
	uint64_t piece_bytes;
	uint64_t need_bytes; /* a block with its header, rounded up to KV_SLOT_ALIGN: the least a slot has */
};

/* Blocks of both have the same steps and pieces. */
static inline bool kv_same_shape(const struct kv_geometry *a, const struct kv_geometry *b)
{
	return a->steps == b->steps && a->layer_bytes == b->layer_bytes && a->pieces == b->pieces &&
	       a->piece_bytes == b->piece_bytes;
}

/* Of an opaque layout all that concerns atoms and chunks is 0. */
void kv_geometry_of(const struct kv_layout *l, struct kv_geometry *g);

/* One side of an atom: the format and dims of its vectors, whose element order it has, and where its parts are. */
struct kv_part {
	enum kv_format format; /* KV_NONE: the layout does not have this side, and it takes no bytes */
	enum kv_side order;    /* KV_SIDE_K or KV_SIDE_V */
	uint32_t d;
	uint32_t codes_at, scales_at; /* offsets in the atom */
};

struct kv_part kv_part_of(const struct kv_layout *l, const struct kv_geometry *g, enum kv_side side);

/* Offset in the block of the atom that holds `token` of (layer, head), all relative to the layout. */
static inline uint64_t kv_atom_at(const struct kv_geometry *g, uint32_t layer, uint32_t head,
				  uint32_t token)
{
	return (uint64_t)layer * g->layer_bytes + (uint64_t)head * g->chunk_bytes +
	       (uint64_t)(token / KV_ATOM_TOKENS) * g->atom_bytes;
}

/* Where bits of one code live: `bits` bits from `code_shift` of the code's value stand at `shift`
 * in byte `byte` of the atom's codes part; a 16-bit code is two such places. */
struct kv_place {
	uint32_t byte;
	uint8_t shift, bits, code_shift;
};

/* The places of the code of (token in atom, dim) in the order of K or V: 1 or 2 of them (2: 16-bit codes and tq3's
 * planes). Returns their number. This function IS the element order; tables and vector code are
 * tested against it. */
unsigned kv_code_places(enum kv_format f, enum kv_side side, uint32_t d, uint32_t token, uint32_t dim,
			struct kv_place out[2]);

/* Offset of the token's scale in the atom's scales part: entries ordered t%8*2 + t/8, so that the pair
 * of tokens a lane holds (g and g + 8) is one aligned load. */
static inline uint32_t kv_scale_at(enum kv_format f, uint32_t token)
{
	return (token % 8 * 2 + token / 8) * kv_format_info(f)->scale_bytes;
}

#endif
