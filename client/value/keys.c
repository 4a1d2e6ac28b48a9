/* Hashes for engines that have none of their own, and the check of a call's keys.
 *
 * The chain hash is XXH3-128 (seed 0, canonical big-endian digest) of
 *
 *     1 byte: 1 with a parent, else 0 | 16 bytes: the parent's key, or zeros
 *     token count, 64-bit little-endian | each token id, 32-bit little-endian
 *     salt length, 64-bit little-endian | the salt
 *
 * so that no two inputs have the same bytes. A fingerprint is two XXH3-128 of the text under two fixed seeds.
 */
#include "client/value/keys.h"

#include "client/value/layout.h"
#include "client/value/status.h"

#define XXH_INLINE_ALL /* the streaming state lives on the stack, whatever size another xxhash gives it */
#include <xxhash.h>

#include <endian.h>
#include <string.h>

/* Any two different numbers do; they never change, because fingerprints are stored. */
static const XXH64_hash_t fingerprint_seeds[2] = {0x7465727261636531u, 0x7465727261636532u};

static void update_u64(XXH3_state_t *state, uint64_t value)
{
	uint64_t le = htole64(value);

	XXH3_128bits_update(state, &le, sizeof(le));
}

static void update_tokens(XXH3_state_t *state, const uint32_t *tokens, size_t count)
{
	uint32_t le[64];
	size_t n;

	for (; count; tokens += n, count -= n) {
		n = count < 64 ? count : 64;
		for (size_t i = 0; i < n; i++)
			le[i] = htole32(tokens[i]);
		XXH3_128bits_update(state, le, n * sizeof(le[0]));
	}
}

void terrace_chain_hash(const uint8_t parent[16], const uint32_t *tokens, size_t count, const void *salt,
			size_t salt_bytes, uint8_t key[16])
{
	XXH3_state_t state;
	XXH128_canonical_t digest;
	uint8_t head[17] = {0};

	if (!tokens)
		count = 0;
	if (!salt)
		salt_bytes = 0;
	if (parent) {
		head[0] = 1;
		memcpy(head + 1, parent, 16);
	}
	XXH3_INITSTATE(&state);
	XXH3_128bits_reset(&state);
	XXH3_128bits_update(&state, head, sizeof(head));
	update_u64(&state, count);
	update_tokens(&state, tokens, count);
	update_u64(&state, salt_bytes);
	if (salt_bytes)
		XXH3_128bits_update(&state, salt, salt_bytes);
	XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(&state));
	memcpy(key, digest.digest, 16);
}

void terrace_fingerprint(const void *text, size_t bytes, uint8_t fingerprint[32])
{
	for (int i = 0; i < 2; i++) {
		XXH128_canonical_t digest;

		XXH128_canonicalFromHash(&digest, XXH3_128bits_withSeed(text ? text : "", text ? bytes : 0,
									fingerprint_seeds[i]));
		memcpy(fingerprint + 16 * i, digest.digest, 16);
	}
}

enum terrace_status client_keys_check(const struct terrace_keys *keys)
{
	if (!keys)
		return client_fail(TERRACE_INVALID, "the keys are NULL");
	if (keys->key_bytes < 1 || keys->key_bytes > CLIENT_KEY_BYTES_MAX)
		return client_fail(TERRACE_INVALID, "key_bytes is %u, not 1 to %d", keys->key_bytes,
				   CLIENT_KEY_BYTES_MAX);
	if (keys->count < 1 || keys->count > CLIENT_KEYS_MAX)
		return client_fail(TERRACE_INVALID, "%u keys in one call, not 1 to %d: "
				   "split them over several calls", keys->count, CLIENT_KEYS_MAX);
	if (!keys->bytes)
		return client_fail(TERRACE_INVALID, "the keys' bytes are NULL");
	return TERRACE_OK;
}

void client_keys_message(const struct terrace_keys *keys, Terrace__V1__Keys *out)
{
	terrace__v1__keys__init(out);
	out->key_bytes = keys->key_bytes;
	out->keys = (ProtobufCBinaryData){(size_t)keys->count * keys->key_bytes, (uint8_t *)(uintptr_t)keys->bytes};
}

void client_keys_message_from(const struct terrace_keys *keys, uint32_t first_position, Terrace__V1__Keys *out)
{
	client_keys_message(keys, out);
	out->first_position = first_position;
}

enum terrace_status client_call_options(const struct terrace_call_options *options, uint32_t *first_position)
{
	struct terrace_call_options o = TERRACE_CALL_OPTIONS_INIT;

	if (options && !client_options_copy(&o, sizeof(o), options, sizeof(o)))
		return client_fail(TERRACE_INVALID,
				   "the options' size is not set: begin them with TERRACE_CALL_OPTIONS_INIT");
	*first_position = o.first_position;
	return TERRACE_OK;
}
