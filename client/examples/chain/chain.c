/* A prefix as the engines of a cluster share it: `chain store`, `chain lease` and `chain delete`, each at the daemon of
 * $TERRACE_ADDRESS. The prefix is the tokens 0, 1, 2, ..., so `seq 0 1023` makes the file for `terracectl locate
 * --tokens`. Instead of packed keys and values a block has made-up bytes, which follow from its key: so a lease can
 * tell at any node whether they are right. Exit code: 0 done; 1 failed; 2 wrong usage; 3 not all blocks are there. */
#include <terrace.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 64, TOKENS = 16, KEY_BYTES = 16, LAYERS = 8, HEADS = 2, DIM = 128 };
enum { DONE, FAILED, USAGE, MISSING };
#define TIMEOUT_US 20000000ull

/* Ends the program if a call did not return TERRACE_OK; terrace_error() has the words. */
static void must(enum terrace_status status, const char *what)
{
	if (status == TERRACE_OK)
		return;
	fprintf(stderr, "chain: %s: %s\n", what, terrace_error());
	exit(FAILED);
}

static void keys_make(uint8_t keys[BLOCKS][KEY_BYTES])
{
	uint32_t tokens[TOKENS];

	for (uint32_t i = 0; i < BLOCKS; i++) {
		for (uint32_t t = 0; t < TOKENS; t++)
			tokens[t] = i * TOKENS + t;
		terrace_chain_hash(i ? keys[i - 1] : NULL, tokens, TOKENS, NULL, 0, keys[i]);
	}
}

static void block_fill(const uint8_t key[KEY_BYTES], uint8_t *block, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i++)
		block[i] = (uint8_t)(key[i % KEY_BYTES] + i / KEY_BYTES);
}

static int lease(struct terrace_session *session, const struct terrace_keys *keys, uint64_t bytes)
{
	uint8_t *right = malloc(bytes);
	struct terrace_lease *held = NULL;
	enum terrace_status status = terrace_lease(session, keys, TERRACE_LEASE_PREFIX, TIMEOUT_US, &held);
	uint32_t count = 0;

	if (status != TERRACE_MISS)
		must(status, "lease");
	if (status == TERRACE_OK)
		count = terrace_lease_count(held);
	for (uint32_t i = 0; right && i < count; i++) {
		block_fill(keys->bytes + i * KEY_BYTES, right, bytes);
		if (memcmp(terrace_lease_block(held, i, 0), right, bytes)) {
			fprintf(stderr, "chain: block %u has wrong bytes\n", i);
			exit(FAILED);
		}
	}
	printf("leased %u of %u blocks of %llu bytes, all of them right\n", count, BLOCKS, (unsigned long long)bytes);
	if (status == TERRACE_OK)
		terrace_release(held);
	free(right);
	return count == BLOCKS ? DONE : MISSING;
}

static int store(struct terrace_session *session, const struct terrace_keys *keys, uint64_t bytes)
{
	struct terrace_reservation *reservation;
	enum terrace_status statuses[BLOCKS];
	uint32_t stored = 0;

	must(terrace_reserve(session, keys, NULL, TIMEOUT_US, statuses, &reservation), "reserve");
	for (uint32_t i = 0; i < BLOCKS; i++) {
		uint8_t *block = terrace_reservation_block(reservation, i, 0); /* NULL: it is stored already */

		if (block)
			block_fill(keys->bytes + i * KEY_BYTES, block, bytes);
	}
	must(terrace_commit(reservation, TIMEOUT_US, statuses, NULL), "commit");
	for (uint32_t i = 0; i < BLOCKS; i++)
		stored += statuses[i] == TERRACE_OK;
	printf("stored %u of %u blocks of %llu bytes\n", stored, BLOCKS, (unsigned long long)bytes);
	return lease(session, keys, bytes); /* what is used is told to other members soon */
}

static int delete(struct terrace_session *session, const struct terrace_keys *keys)
{
	must(terrace_delete(session, keys, TIMEOUT_US, NULL), "delete");
	printf("deleted %u blocks, and all members have confirmed\n", BLOCKS);
	return DONE;
}

int main(int argc, char **argv)
{
	const char *mode = argc == 2 ? argv[1] : "";
	uint8_t bytes[BLOCKS][KEY_BYTES];
	const struct terrace_keys keys = { bytes[0], BLOCKS, KEY_BYTES };
	struct terrace_layout layout = TERRACE_LAYOUT_INIT;
	struct terrace_client *client;
	struct terrace_session *session;
	int code;

	if (strcmp(mode, "store") && strcmp(mode, "lease") && strcmp(mode, "delete")) {
		fprintf(stderr, "usage: chain {store | lease | delete}\n");
		return USAGE;
	}
	keys_make(bytes);
	terrace_fingerprint("chain, a made-up model", 22, layout.fingerprint);
	layout.layers = LAYERS;
	layout.heads = layout.total_heads = HEADS;
	layout.head_dim_k = layout.head_dim_v = DIM;
	layout.block_tokens = TOKENS;
	layout.k_format = layout.v_format = TERRACE_FORMAT_TQ4;
	must(terrace_connect(NULL, &client), "connect");
	must(terrace_session_open(client, &layout, 1, NULL, &session), "session");
	if (!strcmp(mode, "store"))
		code = store(session, &keys, terrace_block_bytes(&layout));
	else if (!strcmp(mode, "lease"))
		code = lease(session, &keys, terrace_block_bytes(&layout));
	else
		code = delete(session, &keys);
	terrace_session_close(session);
	terrace_disconnect(client);
	return code;
}
