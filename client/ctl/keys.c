/* Reads keys. An error names the word or the line that contains it. */
#include "client/ctl/keys.h"
#include "client/ctl/ctl.h"
#include "client/ctl/errors.h"
#include "client/ctl/values.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>


enum { KEYS_MAX = 4096, CHAIN_KEY_BYTES = 16 };

int keys_from_words(const struct ctl_args *args, struct terrace_keys *keys)
{
	uint32_t count = (uint32_t)args->word_count, key_bytes = 0, n;
	uint8_t *bytes = malloc((size_t)count * TERRACE_KEY_BYTES_MAX);
	uint8_t key[TERRACE_KEY_BYTES_MAX];

	if (!bytes)
		return ctl_failed("keys: no memory for %u of them", count);
	for (uint32_t i = 0; i < count; i++) {
		if (!ctl_parse_key(args->words[i], key, &n)) {
			free(bytes);
			return ctl_usage(args->command, "'%s' is no key: it has 2 to 128 hex digits, two a byte",
					 args->words[i]);
		}
		if (key_bytes && n != key_bytes) {
			free(bytes);
			return ctl_usage(args->command, "'%s': it is not as long as the keys before it: those of a call have the same length",
					 args->words[i]);
		}
		key_bytes = n;
		memcpy(bytes + (size_t)i * key_bytes, key, key_bytes);
	}
	*keys = (struct terrace_keys){.bytes = bytes, .count = count, .key_bytes = key_bytes};
	return CTL_OK;
}

static bool is_between(int c)
{
	return c > 0 && strchr(" \t\r\n,[]", c);
}

/* The next token id: 1, 0 at the end, -1 for anything that is not a number of 32 bits. Lists with commas and
 * brackets pass. */
static int next_token(FILE *file, uint32_t *token)
{
	uint64_t v = 0;
	int c = getc(file), digits = 0;

	while (is_between(c))
		c = getc(file);
	for (; c >= '0' && c <= '9' && v <= UINT32_MAX; c = getc(file), digits++)
		v = v * 10 + (unsigned)(c - '0');
	if (c == EOF && !digits)
		return 0;
	if (!digits || v > UINT32_MAX || (c != EOF && !is_between(c)))
		return -1;
	*token = (uint32_t)v;
	return 1;
}

/* block: room for block_tokens. */
static int chain(FILE *file, const char *path, uint32_t *block, uint32_t block_tokens, const char *salt, uint8_t *bytes,
		 uint32_t *count)
{
	uint32_t n = 0;
	int got;

	*count = 0;
	while ((got = next_token(file, &block[n])) == 1) {
		if (++n < block_tokens)
			continue;
		if (*count == KEYS_MAX)
			return ctl_failed("%s: it has more than %d blocks: split it", path, KEYS_MAX);
		terrace_chain_hash(*count ? bytes - CHAIN_KEY_BYTES : NULL, block, n, salt,
				   salt ? strlen(salt) : 0, bytes);
		bytes += CHAIN_KEY_BYTES;
		(*count)++;
		n = 0;
	}
	if (got < 0)
		return ctl_failed("%s: what stands behind token %u is no token id: the file is a list of decimal numbers of 32 bits", path,
				  *count * block_tokens + n);
	if (ferror(file))
		return ctl_failed("%s: %s: --tokens wants a readable file of token ids, or -", path, strerror(errno));
	return *count ? CTL_OK : ctl_failed("%s: its %u tokens are no whole block of %u: give a longer prompt, or another --block-tokens", path, n, block_tokens);
}

int keys_from_tokens(const char *path, uint32_t block_tokens, const char *salt, struct terrace_keys *keys)
{
	bool standard = !strcmp(path, "-");
	FILE *file = standard ? stdin : fopen(path, "r");
	uint32_t count = 0, *block;
	uint8_t *bytes;
	int code;

	if (!file)
		return ctl_failed("%s: %s: --tokens wants a readable file of token ids, or -", path, strerror(errno));
	bytes = malloc((size_t)KEYS_MAX * CHAIN_KEY_BYTES);
	block = malloc((size_t)block_tokens * sizeof(*block));
	code = bytes && block ? chain(file, path, block, block_tokens, salt, bytes, &count)
			      : ctl_failed("%s: no memory for its keys", path);
	free(block);
	if (!standard)
		fclose(file);
	if (code) {
		free(bytes);
		return code;
	}
	*keys = (struct terrace_keys){.bytes = bytes, .count = count, .key_bytes = CHAIN_KEY_BYTES};
	return CTL_OK;
}
