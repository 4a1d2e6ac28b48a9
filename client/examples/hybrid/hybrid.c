/* How an engine keeps a hybrid model in Terrace: one session over three layouts whose blocks have different sizes.
 *
 *     full     2 full-attention layers    64 tokens a block    all blocks of the prefix are needed
 *     window   10 layers of window 512    32 tokens a block    those with any of the last 511 tokens are needed
 *     state    the recurrent layer        one a 512 tokens     keep_last 1: the state at the prefix's end is needed
 *
 * A key names the end of 16 tokens (the session's unit), and a block is stored under the key of its last unit: a block
 * of 64 tokens under every 4th key. The blocks at the end of a prompt are partial, so that a prompt may end at any key.
 * Window and state are sparse: they are stored only where a later prompt may continue, every 512 tokens and at the end.
 *
 * Three prompts are served. The second continues the first, the third leaves it after 800 tokens. For each the program
 * prints the cells of the session, the cached prefix, and how far the results are from those of the naive engine
 * (model.c), which computes everything anew. */
#include "model.h"

#include <terrace.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNIT = 16, KEYS_MAX = TOKENS_MAX / UNIT, KEY_BYTES = 16, RESUME_TOKENS = 512 };
enum { FULL, WINDOWED, STATE, LAYOUTS };

static const uint32_t block_tokens[LAYOUTS] = { 64, 32, RESUME_TOKENS };

struct engine {
	struct terrace_client *client;
	struct terrace_session *session;
	struct terrace_layout layouts[LAYOUTS];
	uint8_t keys[KEYS_MAX][KEY_BYTES]; /* of the prompt that is served */
	uint32_t key_count;
};

static void must(enum terrace_status status, const char *what)
{
	if (status == TERRACE_OK)
		return;
	fprintf(stderr, "hybrid: %s: %s\n", what, terrace_error());
	exit(1);
}

/* ---- the session ---- */

static struct terrace_layout attention_layout(const char *group, uint32_t layers, uint32_t tokens, uint32_t window)
{
	struct terrace_layout l = TERRACE_LAYOUT_INIT;

	terrace_fingerprint(group, strlen(group), l.fingerprint);
	l.layers = layers;
	l.heads = l.total_heads = 1;
	l.head_dim_k = l.head_dim_v = DIM;
	l.block_tokens = tokens;
	l.k_format = l.v_format = TERRACE_FORMAT_FP16;
	l.window = window;
	return l;
}

/* The layout of the recurrent states. Terrace has no codec for states, so it is opaque, with a name and version for the
 * form of the bytes. */
static struct terrace_layout state_layout(void)
{
	struct terrace_layout l = TERRACE_LAYOUT_INIT;

	terrace_fingerprint("hybrid example, state", 21, l.fingerprint);
	l.k_format = TERRACE_FORMAT_OPAQUE;
	l.opaque_bytes = sizeof(struct state);
	strcpy(l.opaque_name, "hybrid_example/f32/1");
	l.block_tokens = block_tokens[STATE];
	return l;
}

static void open_session(struct engine *e)
{
	struct terrace_session_options options = TERRACE_SESSION_OPTIONS_INIT;
	struct terrace_layout_rule rules[LAYOUTS] = { TERRACE_LAYOUT_RULE_INIT, TERRACE_LAYOUT_RULE_INIT,
						      TERRACE_LAYOUT_RULE_INIT };

	e->layouts[FULL] = attention_layout("hybrid example, full", LAYERS / FULL_EVERY, block_tokens[FULL], 0);
	e->layouts[WINDOWED] = attention_layout("hybrid example, window", LAYERS - LAYERS / FULL_EVERY,
						block_tokens[WINDOWED], WINDOW);
	e->layouts[STATE] = state_layout();
	for (uint32_t l = 0; l < LAYOUTS; l++)
		rules[l].partial = true;
	rules[WINDOWED].sparse = rules[STATE].sparse = true; /* what is not stored of them is not missing */
	rules[STATE].keep_last = 1;
	options.unit_tokens = UNIT;
	options.rules = rules;
	must(terrace_connect(NULL, &e->client), "connect"); /* $TERRACE_ADDRESS, or the default socket */
	must(terrace_session_open(e->client, e->layouts, LAYOUTS, &options, &e->session), "session");
}

/* Makes the keys of a sequence, each of which names all tokens up to its end. Tokens behind the last whole unit have
 * none. */
static void name_keys(struct engine *e, const struct sequence *s)
{
	e->key_count = s->count / UNIT;
	for (uint32_t i = 0; i < e->key_count; i++)
		terrace_chain_hash(i ? e->keys[i - 1] : NULL, s->tokens + i * UNIT, UNIT, NULL, 0, e->keys[i]);
}

static struct terrace_keys keys_from(const struct engine *e, uint32_t first)
{
	return (struct terrace_keys){ e->keys[first], e->key_count - first, KEY_BYTES };
}

/* ---- which key has a block in which layout ---- */

/* The key that names a block of a layout: the key at the block's end, or at the prefix's end if the block is
 * partial. */
static uint32_t key_of_block(uint32_t layout, uint32_t block, uint32_t prefix_keys)
{
	const uint32_t end = (block + 1) * (block_tokens[layout] / UNIT);

	return (end < prefix_keys ? end : prefix_keys) - 1;
}

static uint32_t blocks_of(uint32_t layout, uint32_t prefix_keys)
{
	return (prefix_keys * UNIT + block_tokens[layout] - 1) / block_tokens[layout];
}

/* Wants the blocks of window and state that a prompt needs which continues behind `end` keys. */
static void want_resume_point(uint64_t *cells, uint32_t end)
{
	const uint32_t tokens = end * UNIT, first = tokens > WINDOW - 1 ? tokens - (WINDOW - 1) : 0;

	cells[end - 1] |= 1 << STATE;
	for (uint32_t b = first / block_tokens[WINDOWED]; b < blocks_of(WINDOWED, end); b++)
		cells[key_of_block(WINDOWED, b, end)] |= 1 << WINDOWED;
}

/* Sets, for each key, a bit for each layout that is to have a block there. */
static void want_cells(uint64_t cells[KEYS_MAX], uint32_t keys)
{
	memset(cells, 0, KEYS_MAX * sizeof(cells[0]));
	for (uint32_t b = 0; b < blocks_of(FULL, keys); b++)
		cells[key_of_block(FULL, b, keys)] |= 1 << FULL;
	for (uint32_t b = 0; b < blocks_of(STATE, keys); b++)
		want_resume_point(cells, key_of_block(STATE, b, keys) + 1);
}

/* Shows a lookup, which protects nothing: how many keys are usable, and where the block of each cell is. */
static void show_cells(const struct engine *e)
{
	static const char *const names[LAYOUTS] = { "full", "window", "state" };
	const struct terrace_keys keys = keys_from(e, 0);
	uint8_t states[KEYS_MAX][LAYOUTS];
	uint32_t prefix;

	must(terrace_lookup(e->session, &keys, 0, &prefix, states[0]), "lookup");
	for (uint32_t l = 0; l < LAYOUTS; l++) {
		printf("  %-7s", names[l]);
		for (uint32_t i = 0; i < e->key_count; i++)
			putchar(states[i][l] == TERRACE_STATE_NONE	? ' '
				: states[i][l] == TERRACE_STATE_ABSENT	? '.'
									: '#');
		putchar('\n');
	}
}

/* ---- reading ---- */

/* The layout of a layer, and the layer's number in that layout. */
static uint32_t layout_of(uint32_t layer, uint32_t *index)
{
	*index = model_is_full(layer) ? layer / FULL_EVERY : layer - layer / FULL_EVERY;
	return model_is_full(layer) ? FULL : WINDOWED;
}

/* Attends to the cached prefix in place and merges that with the tokens that were computed here. */
static void attend_cached(const struct engine *e, const struct terrace_lease *lease, const struct sequence *s,
			  uint32_t layer, struct result *r)
{
	struct terrace_attend_options o = TERRACE_ATTEND_OPTIONS_INIT;
	const uint32_t prefix = terrace_lease_count(lease), layout = layout_of(layer, &o.layer);
	const void *blocks[KEYS_MAX]; /* NULL before the window: the lease has not taken these */
	float q[DIM], out[DIM], lse;

	o.block_count = blocks_of(layout, prefix);
	for (uint32_t b = 0; b < o.block_count; b++)
		blocks[b] = terrace_lease_block(lease, key_of_block(layout, b, prefix), layout);
	model_query(layer, q);
	o.queries = o.q_heads = 1;
	o.q = q;
	o.blocks = blocks;
	o.kv_tokens = prefix * UNIT;
	o.first_pos = s->count - 1;
	o.causal = true;
	o.out = out;
	o.lse = &lse;
	must(terrace_attend(&e->layouts[layout], &o), "attend");
	must(terrace_merge(1, DIM, r->out[layer], &r->lse[layer], out, &lse), "merge");
}

/* Reads the partial block at the prefix's end. It has the first tokens of a full block that this request completes and
 * writes. */
static void take_partial_block(const struct engine *e, const struct terrace_lease *lease, struct sequence *s,
			       uint32_t layer)
{
	uint32_t index, prefix = terrace_lease_count(lease);
	const uint32_t layout = layout_of(layer, &index), n = prefix * UNIT % block_tokens[layout];
	const uint32_t first = prefix * UNIT - n;

	if (n)
		must(terrace_decode(&e->layouts[layout], terrace_lease_block(lease, prefix - 1, layout), index, 0, 0, n,
				    s->k[layer][first], DIM, s->v[layer][first], DIM, TERRACE_F32),
		     "decode");
}

/* Reads the cached prefix, and returns the number of its keys. Its blocks stay until the lease is released. */
static uint32_t read_prefix(const struct engine *e, struct sequence *s, struct terrace_lease **lease)
{
	const struct terrace_keys keys = keys_from(e, 0);
	enum terrace_status status = terrace_lease(e->session, &keys, TERRACE_LEASE_PREFIX, 0, lease);
	uint32_t prefix;

	if (status == TERRACE_MISS) { /* not a failure */
		*lease = NULL;
		return 0;
	}
	must(status, "lease");
	prefix = terrace_lease_count(*lease);
	memcpy(&s->state[prefix * UNIT - 1], terrace_lease_block(*lease, prefix - 1, STATE), sizeof(s->state[0]));
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		take_partial_block(e, *lease, s, layer);
	return prefix;
}

/* ---- writing ---- */

/* Writes key i's block of a layout, if the daemon gave a slot for it. A block that is stored already has none. */
static void write_block(const struct engine *e, const struct sequence *s, uint32_t i, uint32_t layout, void *slot)
{
	const uint32_t end = (i + 1) * UNIT, first = i * UNIT / block_tokens[layout] * block_tokens[layout];
	uint32_t index;

	if (layout == STATE) {
		memcpy(slot, &s->state[end - 1], sizeof(s->state[0]));
		return;
	}
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		if (layout_of(layer, &index) == layout)
			must(terrace_encode(&e->layouts[layout], slot, index, 0, 0, end - first,
					    s->k[layer][first], DIM, s->v[layer][first], DIM, TERRACE_F32),
			     "encode");
}

/* Stores what was computed: the blocks of the keys behind the prefix. The call names these by the position of the
 * first. */
static void store(const struct engine *e, const struct sequence *s, uint32_t prefix)
{
	struct terrace_reserve_options options = TERRACE_RESERVE_OPTIONS_INIT;
	const struct terrace_keys keys = keys_from(e, prefix);
	struct terrace_reservation *reservation;
	uint64_t cells[KEYS_MAX];
	void *slot;

	if (prefix == e->key_count)
		return;
	want_cells(cells, e->key_count);
	options.first_position = prefix;
	options.cells = cells + prefix;
	must(terrace_reserve_with(e->session, &keys, NULL, &options, 0, NULL, &reservation), "reserve");
	for (uint32_t i = 0; i < keys.count; i++)
		for (uint32_t l = 0; l < LAYOUTS; l++)
			if ((slot = terrace_reservation_block(reservation, i, l)))
				write_block(e, s, prefix + i, l, slot);
	must(terrace_commit(reservation, 0, NULL, NULL), "commit");
}

/* ---- requests ---- */

static float difference(const struct result *a, const struct result *b)
{
	float most = 0, d;

	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t i = 0; i < DIM; i++) {
			d = fabsf(a->out[l][i] - b->out[l][i]);
			most = d <= most ? most : d; /* a NaN too */
		}
	return most;
}

/* Serves a prompt. s has only the prompt's tokens yet. */
static void serve(struct engine *e, struct sequence *s, struct result *r)
{
	struct terrace_lease *lease;
	uint32_t prefix;

	name_keys(e, s);
	prefix = read_prefix(e, s, &lease);
	printf("%u of %u tokens are cached\n", prefix * UNIT, s->count);
	model_compute(s, prefix * UNIT);
	model_attend(s, prefix * UNIT, r);
	for (uint32_t layer = 0; layer < LAYERS && prefix; layer++)
		attend_cached(e, lease, s, layer, r);
	store(e, s, prefix);
	terrace_release(lease); /* its blocks may be evicted from here on */
	show_cells(e);
}

/* Makes a prompt. Its first `shared` tokens are the same in all prompts; the others are its own. */
static struct sequence *prompt(uint32_t shared, uint32_t count, uint32_t own)
{
	struct sequence *s = calloc(1, sizeof(*s));

	if (!s)
		exit(1);
	s->count = count;
	for (uint32_t t = 0; t < count; t++)
		s->tokens[t] = t * 7919 + (t < shared ? 0 : own);
	return s;
}

static void request(struct engine *e, uint32_t shared, uint32_t count, uint32_t own)
{
	struct sequence *cached = prompt(shared, count, own), *naive = prompt(shared, count, own);
	struct result with, without;

	serve(e, cached, &with);
	model_compute(naive, 0);
	model_attend(naive, 0, &without);
	printf("  largest difference from the naive engine: %.6f\n", (double)difference(&with, &without));
	free(cached);
	free(naive);
}

int main(void)
{
	struct engine e = { 0 };

	open_session(&e);
	request(&e, 1200, 1200, 0);
	request(&e, 1504, 1504, 0);   /* the same conversation, 304 tokens later */
	request(&e, 800, 1200, 1000); /* another one: its last common point with a state is at 512 tokens */
	terrace_session_close(e.session);
	terrace_disconnect(e.client);
	return 0;
}
