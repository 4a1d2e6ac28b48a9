/* Byte-level BPE from a tokenizer.json of Hugging Face's form.
 *
 * Encoding cuts the text at special tokens, cuts what is between them into pieces by GPT-2's pattern (the one that a
 * ByteLevel pre-tokenizer with use_regex means), turns each piece's bytes into tokens and merges neighbours, the pair of the
 * lowest rank first. Any bytes can be encoded, UTF-8 or not, and decoding gives them back exactly. */
#ifndef TINYLM_TOKENIZER_H
#define TINYLM_TOKENIZER_H

#include "fault.h"

#include <stddef.h>
#include <stdint.h>

enum { TOKENIZER_SPECIALS_MAX = 64 };

struct tokenizer_token {
	uint32_t at, bytes; /* in struct tokenizer's text */
};

/* One rule: the pair (left, right) becomes `result`; lower ranks go first. */
struct tokenizer_merge {
	uint32_t left, right, result, rank;
};

/* Where the search for a pair begins in a table of `slots` slots. */
static inline uint32_t tokenizer_merge_slot(uint32_t left, uint32_t right, uint32_t slots)
{
	uint64_t mixed = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;

	return (uint32_t)(mixed >> 40) & (slots - 1);
}

/* Immutable once parsed: any number of threads may encode and decode with it. */
struct tokenizer {
	struct tokenizer_token *tokens; /* by id */
	uint32_t count;
	uint8_t *text;                  /* the bytes of all tokens */
	struct tokenizer_merge *merges; /* hash table with open addressing; an empty slot has rank UINT32_MAX */
	uint32_t merge_slots;           /* a power of two */
	uint32_t byte_token[256];
	uint32_t specials[TOKENIZER_SPECIALS_MAX], special_count;
};

/* Parses the text of a tokenizer.json. Another kind of model, normalizer, pre-tokenizer or option than the one implemented
 * is refused by name. On failure *out is empty. */
bool tokenizer_parse(const char *json, size_t size, struct tokenizer *out, struct fault *fault);

/* Encodes text, in which a special token's own text stands for that token. *ids is the caller's to free(). */
bool tokenizer_encode(const struct tokenizer *t, const char *text, size_t bytes, uint32_t **ids, size_t *count,
		      struct fault *fault);

/* The inverse. *text is the caller's to free() and ends with a 0 that *bytes does not count. */
bool tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t count, char **text, size_t *bytes,
		      struct fault *fault);

/* Frees; zeroed memory is fine. */
void tokenizer_free(struct tokenizer *t);

#endif
