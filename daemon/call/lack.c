/* What a call wants of sources by name: which blocks its keys lack, what the sources say of them, and what of it is
 * asked for or fetched (call/arrival.h). */
#include "daemon/call/arrival.h"
#include "daemon/call/arrival_steps.h"

#include "daemon/block/block.h"
#include "daemon/block/grid.h"
#include "daemon/block/key.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/source.h"
#include "daemon/block/wait.h"
#include "daemon/call/admission.h"
#include "daemon/call/deleted.h"
#include "daemon/call/source.h"
#include "daemon/directory/segment.h"
#include "daemon/exports/exports.h"
#include "daemon/session/lease.h"
#include "store/index.h"

#include <stdlib.h>
#include <string.h>

enum { WORTH_OF_10 = 8, PROBES = 2 * CACHE_LAYOUTS_MAX };

/* The cells of a call that the index lacks, and what the sources by name say of them. */
struct lack {
	struct cache *cache;
	const struct lease *lease;      /* with what is there already */
	struct cache_wait *wait;
	uint32_t count;
	struct run_key key[ARRIVALS_A_CALL];
	uint32_t cell[ARRIVALS_A_CALL];
	uint8_t word[ARRIVALS_A_CALL]; /* the best that any source says */
	uint8_t asked[ARRIVALS_A_CALL]; /* 1 + the source that may tell; 0: none */
	/* the last of them is there only to find out which member has the others: see lack_probe */
	bool probes;
	bool comes;
	bool ahead;                    /* it is to come also if the call does not wait */
};

/* Whether the layout can have a block at that key's position. */
static bool has_cell(const struct admission *a, uint32_t cell)
{
	const struct grid *g = a->keys->grid;

	return !g || grid_has_cell(&g->rule[cell % a->layouts], (uint64_t)a->keys->first + cell / a->layouts);
}

static void cell_key(const struct admission *a, uint32_t cell, struct run_key *out)
{
	const uint8_t *key = a->keys->bytes + (size_t)(cell / a->layouts) * a->keys->key_bytes;
	struct layout_pool *p = a->pools[cell % a->layouts];
	const uint64_t position = (uint64_t)a->keys->first + cell / a->layouts;
	const uint64_t begins = segment_first(segment_of(position));

	*out = (struct run_key){ .pool = p, .told = exports_told(a->keys->grid, position) };
	if (begins >= a->keys->first)
		out->segment_key = a->keys->bytes + (begins - a->keys->first) * a->keys->key_bytes;
	block_ident(p, key, a->keys->key_bytes, &out->name);
}

/* Whether asking for it can tell which member has the blocks around it. */
static bool may_be_found(struct cache *c, const struct run_key *key)
{
	uint8_t word = SOURCE_NOT;

	for (uint32_t s = 0; s < c->source_count && word != SOURCE_MAY; s++)
		if (c->sources_by_name >> s & 1)
			c->sources[s]->ops->known(c, c->sources[s], &(struct key_run){ 1, key }, &word);
	return word == SOURCE_MAY;
}

/* Members are told of few positions. With many layouts none of those that may be asked for is among the cells that one
 * call asks for; then the next one behind them takes the place of the last. */
static void lack_probe(struct lack *k, const struct admission *a)
{
	const uint32_t cells = a->keys->count * a->layouts;
	uint32_t cell = k->cell[k->count - 1] + 1;
	struct run_key key;

	for (uint32_t tries = 0; cell < cells && tries < PROBES; cell++) {
		if (k->lease->block[cell] || !has_cell(a, cell))
			continue;
		cell_key(a, cell, &key);
		if (!key.told || !key.segment_key)
			continue;
		tries++;
		if (!may_be_found(k->cache, &key))
			continue;
		k->key[k->count - 1] = key;
		k->cell[k->count - 1] = cell;
		k->probes = true;
		return;
	}
}

/* The first ones: what the prefix lacks first is asked for first. */
static void lack_gather(struct lack *k, const struct admission *a, const struct lease *l)
{
	const uint32_t cells = a->keys->count * a->layouts;

	for (uint32_t i = 0; i < cells && k->count < ARRIVALS_A_CALL; i++) {
		if (l->block[i] || !has_cell(a, i))
			continue;
		cell_key(a, i, &k->key[k->count]);
		k->cell[k->count++] = i;
	}
}

static void lack_ask_words(struct lack *k)
{
	struct cache *c = k->cache;
	const struct key_run all = { k->count, k->key };
	uint8_t word[ARRIVALS_A_CALL];

	memset(k->word, SOURCE_NOT, sizeof(k->word));
	memset(k->asked, 0, sizeof(k->asked));
	for (uint32_t s = 0; s < c->source_count; s++) {
		if (!(c->sources_by_name >> s & 1))
			continue;
		c->sources[s]->ops->known(c, c->sources[s], &all, word);
		for (uint32_t i = 0; i < k->count; i++) {
			if (word[i] == SOURCE_MAY && !k->asked[i])
				k->asked[i] = (uint8_t)(s + 1);
			k->word[i] = word[i] > k->word[i] ? word[i] : k->word[i];
		}
	}
	for (uint32_t i = 0; c->deleted && i < k->count; i++)
		if (deleted_has(c, &k->key[i].name))
			k->word[i] = SOURCE_NOT;
}

/* The longest prefix if all cells whose word is at least `least` were present. */
static uint32_t lack_prefix(const struct lack *k, const struct admission *a, const struct lease *l,
			    enum source_word least)
{
	static const struct block whole = { .tokens = UINT16_MAX }; /* what comes is taken to be full */
	const struct grid *grid = a->keys->grid;
	struct grid_run cells;
	struct prefix_run run;
	struct prefix p;

	prefix_begin(&p, a->keys->count);
	for (uint32_t j = 0; j < a->layouts; j++) {
		uint32_t at = 0;

		if (grid)
			grid_run_begin(&cells, &grid->rule[j], a->keys->first);
		else
			prefix_layout(&run, a->pools[j]);
		for (uint32_t i = 0; i < a->keys->count; i++) {
			const uint32_t cell = i * a->layouts + j;

			while (at < k->count && k->cell[at] < cell)
				at++;
			const bool arrived = at < k->count && k->cell[at] == cell && k->word[at] >= least;
			const struct block *b = l->block[cell] ? l->block[cell] : arrived ? &whole : NULL;

			if (grid)
				grid_run_feed(&p, &cells, b, cell_falls_short(cells.rule, b));
			else
				prefix_feed(&p, &run, b);
		}
	}
	return prefix_longest(&p);
}

/* Whether a prefix of n keys, of which the last block is taken to be full unless it is there, needs that cell. */
static bool is_needed(const struct lack *k, const struct admission *a, uint32_t cell, uint32_t n)
{
	const uint32_t layout = cell % a->layouts, i = cell / a->layouts;
	const struct block *last = n ? k->lease->block[(size_t)(n - 1) * a->layouts + layout] : NULL;
	struct grid_need need;
	struct prefix_run run;

	if (i >= n)
		return false;
	if (a->keys->grid) {
		const struct grid_rule *rule = &a->keys->grid->rule[layout];

		grid_need(rule, a->keys->first, n, cell_falls_short(rule, last), &need);
		return grid_needs(&need, (uint64_t)a->keys->first + i);
	}
	prefix_layout(&run, a->pools[layout]);
	return i >= prefix_first(n, prefix_need(&run, last));
}

/* Picks the cells that n keys need and whose word is `which`. Joins those that are under way, and leaves them out. */
static uint32_t lack_pick(struct lack *k, const struct admission *a, uint32_t n, enum source_word which,
			  struct run_key *rest, uint8_t *source)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < k->count; i++) {
		const bool probe = k->probes && i + 1 == k->count && which == SOURCE_MAY && count;
		if (k->word[i] != which || !(probe || is_needed(k, a, k->cell[i], n)))
			continue;
		if (arrivals_join(k->cache, &k->key[i].name, k->wait, &k->comes))
			continue;
		source[count] = which == SOURCE_MAY ? (uint8_t)(k->asked[i] - 1) : SOURCE_NONE;
		rest[count++] = k->key[i];
	}
	return count;
}

/* Sends the picked names to their sources, the names of one source together. ask: asks for the names; else fetches
 * them. */
static void lack_send(struct lack *k, uint32_t count, const struct run_key *key, const uint8_t *source, bool ask)
{
	struct cache *c = k->cache;
	struct run_key of[ARRIVALS_A_CALL];

	for (uint32_t s = 0; s < c->source_count; s++) {
		struct key_run run = { 0, of };

		for (uint32_t i = 0; i < count; i++)
			if (source[i] == s && run.count < arrivals_room(c))
				of[run.count++] = key[i];
		if (run.count && ask)
			k->comes |= arrival_ask(c, c->sources[s], &run, k->wait, k->ahead);
		else if (run.count)
			k->comes |= arrival_fetch(c, c->sources[s], &run, k->wait, k->ahead) > 0;
	}
}

/* A round that memory had too little room for is not counted, if some of it comes and memory is being made: the next
 * one goes on. The call's own time is the bound. The first one counts: a call at stage 0 is a new one. */
static void memory_comes(struct lack *k)
{
	if (k->comes && k->wait && k->wait->stage > 1 && arrivals_lack_memory(k->cache))
		k->wait->stage--;
}

static void lack_fetch(struct lack *k, const struct admission *a, uint32_t n)
{
	struct run_key key[ARRIVALS_A_CALL];
	uint8_t from[ARRIVALS_A_CALL];
	const uint32_t count = lack_pick(k, a, n, SOURCE_HAS, key, from), by_name = k->cache->sources_by_name;
	/* Of several sources each run is begun before the next is chosen for, so that they share what all have. */
	const uint32_t most = by_name & (by_name - 1) ? SOURCE_RUN : ARRIVALS_A_CALL;

	for (uint32_t at = 0, sent = 0; at < count; at += SOURCE_RUN) {
		const struct key_run run = { count - at < SOURCE_RUN ? count - at : SOURCE_RUN, key + at };
		const uint32_t end = at + run.count;

		block_source(k->cache, &run, ~by_name, from + at);
		if (end - sent < most && end < count)
			continue;
		lack_send(k, end - sent, key + sent, from + sent, false);
		sent = end;
	}
	k->comes = k->comes || arrivals_await_memory(k->cache, k->wait);
	memory_comes(k);
}

static void lack_ask(struct lack *k, const struct admission *a, uint32_t n)
{
	struct run_key key[ARRIVALS_A_CALL];
	uint8_t of[ARRIVALS_A_CALL];
	const uint32_t count = lack_pick(k, a, n, SOURCE_MAY, key, of);

	lack_send(k, count, key, of, true);
}

/* The time until all of the run is there, each from its source, and the sources side by side. UINT64_MAX: some of it
 * cannot be brought. */
static uint64_t run_us(struct cache *c, const struct key_run *run, const uint8_t *from)
{
	struct run_key key[ARRIVALS_A_CALL];
	uint64_t us = 0;

	for (uint32_t s = 0; s < c->source_count; s++) {
		struct key_run of = { 0, key };
		struct source_cost cost;

		for (uint32_t i = 0; i < run->count; i++)
			if (from[i] == s)
				key[of.count++] = run->key[i];
		if (!of.count)
			continue;
		if (!c->sources[s]->ops->estimate(c, c->sources[s], &of, &cost))
			return UINT64_MAX;
		us = cost.last_us > us ? cost.last_us : us;
	}
	return us;
}

/* Whether the keys behind the first n, up to `has`, come sooner than the engine computes their tokens. Only a prefix
 * saves anything: it is all of them or none. */
static bool is_worth(const struct lack *k, const struct admission *a, uint32_t n, uint32_t has)
{
	const uint32_t unit = a->keys->grid ? a->keys->grid->unit : a->pools[0]->layout.block_tokens;
	struct run_key key[ARRIVALS_A_CALL];
	uint8_t from[ARRIVALS_A_CALL];
	uint32_t count = 0;

	if (!a->tokens_a_second)
		return true;
	for (uint32_t i = 0; i < k->count; i++)
		if (k->word[i] == SOURCE_HAS && is_needed(k, a, k->cell[i], has))
			key[count++] = k->key[i];
	for (uint32_t at = 0; at < count; at += SOURCE_RUN) {
		const struct key_run run = { count - at < SOURCE_RUN ? count - at : SOURCE_RUN, key + at };

		block_source(k->cache, &run, ~k->cache->sources_by_name, from + at);
	}
	const uint64_t compute_us = (uint64_t)(has - n) * unit * 1000000 / a->tokens_a_second;

	return run_us(k->cache, &(struct key_run){ count, key }, from) < compute_us * WORTH_OF_10 / 10;
}

static struct lack *lack_create(struct admission *a, const struct lease *l)
{
	struct lack *k = arrivals_get(a->cache) ? calloc(1, sizeof(*k)) : NULL;

	if (!k)
		return NULL;
	k->cache = a->cache;
	k->lease = l;
	k->wait = a->wait;
	k->ahead = a->ahead;
	lack_gather(k, a, l);
	lack_ask_words(k);
	if (k->count == ARRIVALS_A_CALL && !memchr(k->word, SOURCE_MAY, k->count))
		lack_probe(k, a);
	if (k->probes)
		lack_ask_words(k);
	return k;
}

bool arrivals_ask(struct admission *a, const struct lease *l)
{
	struct lack *k = lack_create(a, l);
	uint32_t n, has, may;
	bool more;

	if (!k)
		return false;
	n = lack_prefix(k, a, l, SOURCE_HAS + 1);
	has = lack_prefix(k, a, l, SOURCE_HAS);
	may = lack_prefix(k, a, l, SOURCE_MAY);
	if (may > has)
		lack_ask(k, a, may);
	more = has > n || k->comes;
	free(k);
	return more;
}

bool arrivals_begin(struct admission *a, const struct lease *l)
{
	struct lack *k = lack_create(a, l);
	uint32_t n, has, may;
	bool comes;

	if (!k)
		return false;
	n = lack_prefix(k, a, l, SOURCE_HAS + 1);
	has = lack_prefix(k, a, l, SOURCE_HAS);
	may = lack_prefix(k, a, l, SOURCE_MAY);
	if (has > n && (!a->all || may == a->keys->count) && is_worth(k, a, n, has))
		lack_fetch(k, a, has);
	if (may > has && (!a->all || may == a->keys->count))
		lack_ask(k, a, may);
	comes = k->comes;
	free(k);
	return comes;
}
