/* How to embed libterrace: an engine's two halves in one page. The first request finds nothing, computes keys and
 * values, packs them into the daemon's memory and publishes them; the second finds the block and attends straight from
 * it. The "model" is one layer with one head and made-up vectors; everything else is what a real engine does. */
#include <terrace.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 16, DIM = 64, KEY_BYTES = 16 };

/* Ends the program if a call did not return TERRACE_OK; terrace_error() has the words. An engine would compute without
 * the cache here. */
static void must(enum terrace_status status, const char *what)
{
	if (status == TERRACE_OK)
		return;
	fprintf(stderr, "hello: %s: %s\n", what, terrace_error());
	exit(1);
}

/* The first request: computes the block's keys and values and stores them packed. */
static void store(struct terrace_session *session, const struct terrace_layout *layout, const struct terrace_keys *keys)
{
	struct terrace_reservation *reservation;
	enum terrace_status status;
	float k[TOKENS][DIM], v[TOKENS][DIM];
	void *slot;

	for (int t = 0; t < TOKENS; t++)
		for (int d = 0; d < DIM; d++) {
			k[t][d] = d % TOKENS == t;
			v[t][d] = (float)t;
		}
	must(terrace_reserve(session, keys, NULL, 0, &status, &reservation), "reserve");
	slot = terrace_reservation_block(reservation, 0, 0); /* NULL: another engine has stored it, or is about to */
	if (slot)
		must(terrace_encode(layout, slot, 0, 0, 0, TOKENS, k, DIM, v, DIM, TERRACE_F32), "encode");
	must(terrace_commit(reservation, 0, &status, NULL), "commit"); /* visible now, whole; the reservation is gone */
	printf("stored %d tokens in %llu bytes: %s\n", TOKENS, (unsigned long long)terrace_block_bytes(layout),
	       terrace_status_text(status));
}

/* The second request: attends from the packed block, in place. */
static void attend(const struct terrace_lease *lease, const struct terrace_layout *layout)
{
	const void *block = terrace_lease_block(lease, 0, 0);
	struct terrace_attend_options o = TERRACE_ATTEND_OPTIONS_INIT;
	float q[DIM], out[DIM], lse, mean = 0;

	for (int d = 0; d < DIM; d++)
		q[d] = d % TOKENS == 5 ? 16 : 0; /* looks for token 5 */
	o.queries = o.q_heads = 1;
	o.q = q;
	o.blocks = &block;
	o.block_count = 1;
	o.kv_tokens = terrace_lease_tokens(lease, 0);
	o.out = out;
	o.lse = &lse; /* to merge with what the engine attends to itself: terrace_merge() */
	must(terrace_attend(layout, &o), "attend");
	for (int d = 0; d < DIM; d++)
		mean += out[d] / DIM;
	printf("attended to %u cached tokens: mean value %.2f, log-sum-exp %.2f\n", o.kv_tokens, mean, lse);
}

int main(void)
{
	uint32_t tokens[TOKENS] = {72, 101, 108, 108, 111}; /* the prompt's token ids */
	uint8_t key[KEY_BYTES];
	struct terrace_keys keys = {key, 1, KEY_BYTES};
	struct terrace_layout layout = TERRACE_LAYOUT_INIT;
	struct terrace_client *client;
	struct terrace_session *session;
	struct terrace_lease *lease;
	enum terrace_status status;

	terrace_fingerprint("hello, one made-up layer", 24, layout.fingerprint);
	layout.layers = layout.heads = layout.total_heads = 1;
	layout.head_dim_k = layout.head_dim_v = DIM;
	layout.block_tokens = TOKENS;
	layout.k_format = layout.v_format = TERRACE_FORMAT_TQ4;
	must(terrace_connect(NULL, &client), "connect"); /* $TERRACE_ADDRESS, or the default socket */
	must(terrace_session_open(client, &layout, 1, NULL, &session), "session");

	terrace_chain_hash(NULL, tokens, TOKENS, NULL, 0, key); /* the next block's hash would chain on this one */
	status = terrace_lease(session, &keys, TERRACE_LEASE_PREFIX, 0, &lease);
	if (status == TERRACE_MISS) { /* not a failure: compute, and store for the next request */
		store(session, &layout, &keys);
		status = terrace_lease(session, &keys, TERRACE_LEASE_PREFIX, 0, &lease);
	} else if (status == TERRACE_OK) {
		printf("found in the cache\n");
	}
	must(status, "lease");
	attend(lease, &layout);
	terrace_release(lease); /* the block may be evicted from here on */

	terrace_session_close(session);
	terrace_disconnect(client);
	return 0;
}
