/* Moves int4_pth blocks to and from an engine's own pages of the same codes (vLLM's int4_per_token_head). Codes and
 * scales are moved, never recomputed: a round trip changes no bit.
 *
 * A page has tokens, a token has heads, and a head of a token has a vector: head_dim / 2 bytes of codes, low nibble =
 * even dim, and 4 bytes of scale, an fp32 with the zero point in its 4 low bits. The caller says where they are: two
 * addresses and six strides for each side. So pages of [K | scale | V | scale] can be described, and codes and scales
 * in separate arrays too. Strides may be of any sign and alignment.
 *
 * Pages of other formats (vLLM's turboquant_* and fp8) have other codes than packed blocks: they go through kv_decode
 * and kv_encode.
 */
#ifndef TERRACE_KERNELS_REPACK_H
#define TERRACE_KERNELS_REPACK_H

#include "kernels/format.h"

/* One side (K or V) of an engine's pages. Strides are bytes. */
struct kv_pages_side {
	uint8_t *codes;  /* of page 0, token 0, head 0; NULL: the side is left out */
	uint8_t *scales; /* of the same */
	ptrdiff_t code_page, code_token, code_head;
	ptrdiff_t scale_page, scale_token, scale_head;
};

/* A list of tokens of one layer, of all heads. Token i is slots[i] % block_tokens of block slots[i] / block_tokens, and
 * page_slots[i] % page_tokens of page page_slots[i] / page_tokens; one that has a negative number is skipped. */
struct kv_repack {
	const struct kv_layout *layout; /* sound; a side that is not left out is int4_pth */
	const struct kv_geometry *geometry;
	uint32_t layer, tokens;
	const int64_t *slots, *page_slots; /* [tokens] */
	void *const *blocks;               /* by slots[i] / block_tokens, 16-byte aligned */
	uint32_t page_tokens;
	struct kv_pages_side side[2]; /* by enum kv_side */
};

/* Pages to blocks. Writes these tokens' bytes of the blocks and no other; no slot twice. The caller's thread; other
 * threads may read the same pages. Blocks and pages must not overlap. */
void kv_repack_from_pages(const struct kv_repack *r);

/* Blocks to pages. Writes these tokens' codes and scales in the pages and no other byte; no page slot twice. */
void kv_repack_to_pages(const struct kv_repack *r);

#endif
