/* Writing goes through kinds and entries in order. Reading checks all entries of a piece before it takes the first. An
 * impossible value (a weight that is no number, a class that does not exist) refuses the piece even if the checksum is
 * right: a policy must not get into a state that it cannot reach by itself.
 */
#include "eviction/graph_keep.h"

#include <math.h>
#include <string.h>

#include "eviction/hash.h"
#include "eviction/recompute.h"

enum kind { KIND_CHOICE, KIND_CELLS, KIND_CLASSES, KIND_BLOCKS, KINDS };

enum {
	VERSION = 3,
	BLOCKS_MAX = 1 << 17,
	BLOCKS_LOOKED_AT = 1 << 12,    /* blocks looked at for one piece */
	CELL_BYTES = 2 + 2 + 8, OCTAVE_BYTES = 8,
	CLASS_BYTES = 2 + 2 + 8 + 4 * SURVIVAL_BUCKETS,
	BLOCK_BYTES = 3 * 4 + 2 + 4 + 3, SAMPLE_BYTES = 4 + 4,
	SUM_AT = 16,
};

#define MAGIC 0x4b504754u
#define SQUARES_FIRST HAZARD_SQUARES_FIRST
#define WEIGHT_MAX 1e4f
#define COUNT_MAX 1e12f
#define HITS_MIN 1e-30f
#define HITS_MAX 1e6f
#define ODDS_LEAST -80.0f          /* beyond this the odds have no float */
#define ODDS_MOST 15.0f

/* If fields are added to these structs, they must be kept too. */
_Static_assert(sizeof(struct hazard_cell) == 8 + 8 * HAZARD_OCTAVES, "CELLS");
_Static_assert(sizeof(struct duel_standing) == 4 + 4 * DUEL_ROWS * (1 + DUEL_ROWS) + 4, "CHOICE");
_Static_assert(sizeof(struct hazard) == sizeof(struct hazard_cell) * HAZARD_CELLS + 12 * SURVIVAL_BUCKETS + 8 + 2 * FEATURES + 4, "CHOICE");
_Static_assert(sizeof(struct survival) == CLASSES * (8 * SURVIVAL_BUCKETS + 12 + 1), "CLASSES");
_Static_assert(HAZARD_OCTAVES <= 16, "the bits of a cell");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are written as they lie in memory");

/* Bytes being written or read, from `at` on. */
struct writer {
	uint8_t *out;
	size_t at;
};
struct reader {
	const uint8_t *in;
	size_t at, size;
};

static void put(struct writer *w, const void *from, size_t bytes)
{
	memcpy(w->out + w->at, from, bytes);
	w->at += bytes;
}

static void put16(struct writer *w, uint32_t n)
{
	const uint16_t v = (uint16_t)n;

	put(w, &v, sizeof(v));
}

static void put32(struct writer *w, uint32_t n)
{
	put(w, &n, sizeof(n));
}

static bool get(struct reader *r, void *to, size_t bytes)
{
	if (r->size - r->at < bytes)
		return false;
	memcpy(to, r->in + r->at, bytes);
	r->at += bytes;
	return true;
}

static bool get_floats(struct reader *r, float *out, uint32_t count, float least, float most)
{
	if (!get(r, out, 4ull * count))
		return false;
	for (uint32_t i = 0; i < count; i++)
		if (!(out[i] >= least && out[i] <= most))
			return false;
	return true;
}

/* A hash of the features, ages and classes: with another shape the numbers in a piece mean something else. */
static uint32_t shape(void)
{
	uint64_t h = hash_mix(SURVIVAL_BUCKETS << 16 | SURVIVAL_FIRST_LOG) ^ hash_mix(CLASS_LEVELS << 16 | CLASS_SLOPES);

	for (uint32_t f = 0; f < FEATURES; f++)
		h = hash_mix(h ^ features_steps[f]);
	return (uint32_t)h;
}

uint64_t graph_piece_sum(const uint8_t *bytes, size_t size)
{
	uint64_t h = hash_mix(size), word;

	for (size_t at = 0; at < size; at += 8) {
		word = 0;
		if (at != SUM_AT)
			memcpy(&word, bytes + at, size - at < 8 ? size - at : 8);
		h = hash_mix(h ^ word);
	}
	return h;
}

/* ---- out ---- */

static uint32_t put_choice(const struct graph_kept *k, struct writer *w)
{
	const struct hazard *m = &k->memory->hazard;
	const struct graph_choice *c = &k->choice;
	const float floats[] = { c->spared_back, c->refused_back, c->lru_misses, c->returns, c->standing.hits, m->loss, m->base_loss };
	const uint8_t bytes[] = { c->row, c->misses_little, c->begins, 0 };

	put(w, floats, sizeof(floats));
	put(w, c->standing.lead, sizeof(c->standing.lead));
	put(w, c->standing.variance, sizeof(c->standing.variance));
	put32(w, c->standing.events);
	put16(w, m->seen);
	put(w, bytes, sizeof(bytes));
	put16(w, 0);
	put(w, &c->begins_left, 8);
	put(w, m->hits, sizeof(m->hits));
	put(w, m->events, sizeof(m->events));
	for (uint32_t b = 0; b < SURVIVAL_BUCKETS; b++)
		put(w, &(float){ fminf(fmaxf(m->base[b], ODDS_LEAST), ODDS_MOST) }, 4);
	return 1;
}

static uint32_t octaves_of(const struct hazard_cell *c)
{
	uint32_t bits = 0;

	for (uint32_t o = 0; o < HAZARD_OCTAVES; o++)
		bits |= (uint32_t)(c->at[o] != 0 || c->at_squares[o] != SQUARES_FIRST) << o;
	return bits;
}

static uint32_t put_cells(const struct graph_kept *k, uint32_t *next, struct writer *w)
{
	uint32_t count = 0;

	for (; *next < HAZARD_CELLS && POLICY_PIECE_MAX - w->at >= CELL_BYTES + OCTAVE_BYTES * HAZARD_OCTAVES; ++*next) {
		const struct hazard_cell *c = &k->memory->hazard.cells[*next];
		const uint32_t octaves = octaves_of(c);

		if (!octaves && c->any == 0 && c->any_squares == SQUARES_FIRST)
			continue;
		count++;
		put16(w, *next);
		put16(w, octaves);
		put(w, &c->any, 4);
		put(w, &c->any_squares, 4);
		for (uint32_t o = 0; o < HAZARD_OCTAVES; o++)
			if (octaves >> o & 1) {
				put(w, &c->at[o], 4);
				put(w, &c->at_squares[o], 4);
			}
	}
	return count;
}

/* Corrects a mean that rounding has put out of bounds. */
static float saved_in_bounds(float saved, float hits)
{
	return fminf(fmaxf(saved, hits), hits * RECOMPUTE_MAX);
}

static uint32_t put_classes(const struct graph_kept *k, uint32_t *next, struct writer *w)
{
	uint32_t count = 0;

	for (; *next < k->used_count && POLICY_PIECE_MAX - w->at >= CLASS_BYTES; ++*next) {
		const uint32_t class = k->used[*next];

		if (!k->survival->told[class])
			continue;
		count++;
		put16(w, class);
		put16(w, k->survival->told[class]);
		put(w, &k->survival->hits[class], 4);
		put(w, &(float){ saved_in_bounds(k->survival->saved[class], k->survival->hits[class]) }, 4);
		put(w, k->survival->hazard[class], sizeof(k->survival->hazard[class]));
	}
	return count;
}

/* next: how many of the last BLOCKS_MAX blocks were looked at. Blocks that are made meanwhile shift the others: one may
 * then come twice, or not at all. */
static uint32_t put_blocks(const struct graph_kept *k, uint32_t *next, struct writer *w)
{
	const uint32_t all = k->memory->records_used < BLOCKS_MAX ? k->memory->records_used : BLOCKS_MAX;
	struct memory_kept b;
	uint32_t count = 0;

	put32(w, k->memory->buckets_count);
	for (uint32_t n = 0; *next < all && n < BLOCKS_LOOKED_AT && POLICY_PIECE_MAX - w->at >= BLOCK_BYTES + SAMPLE_BYTES; n++, ++*next) {
		if (!memory_keep(k->memory, all - 1 - *next, k->now_us, &b))
			continue;
		count++;
		put32(w, b.tag);
		put32(w, b.bucket);
		put32(w, b.age_ms);
		put16(w, b.class);
		put(w, (uint8_t[]){ b.uses, b.children, b.turn, b.flags, b.hint, b.pace[0], b.pace[1] }, 7);
		if (b.flags & MEMORY_SAMPLED) {
			put32(w, b.features);
			put(w, &b.weight, 4);
		}
	}
	return count;
}

static bool at_end(const struct graph_kept *k, enum kind kind, uint32_t next)
{
	const uint32_t ends[KINDS] = { 1, HAZARD_CELLS, k->used_count,
				       k->memory->records_used < BLOCKS_MAX ? k->memory->records_used : BLOCKS_MAX };

	return next >= ends[kind];
}

static void finish(uint8_t *out, size_t size, enum kind kind, uint32_t count)
{
	struct writer w = { .out = out };
	uint64_t sum;

	put32(&w, MAGIC);
	put16(&w, VERSION);
	put16(&w, kind);
	put32(&w, count);
	put32(&w, shape());
	sum = graph_piece_sum(out, size);
	put(&w, &sum, 8);
}

size_t graph_keep_piece(const struct graph_kept *k, uint64_t *cursor, uint8_t out[POLICY_PIECE_MAX])
{
	enum kind kind = (enum kind)(*cursor >> 32);
	uint32_t next = (uint32_t)*cursor, count = 0;
	struct writer w;

	while (kind < KINDS && !count) {
		w = (struct writer){ out, GRAPH_PIECE_HEAD };
		if (at_end(k, kind, next)) {
			kind++;
			next = 0;
		} else if (kind == KIND_CHOICE) {
			count = put_choice(k, &w);
			next++;
		} else {
			count = kind == KIND_CELLS ? put_cells(k, &next, &w) : kind == KIND_CLASSES ? put_classes(k, &next, &w) :
							put_blocks(k, &next, &w);
		}
		*cursor = (uint64_t)kind << 32 | next;
		if (count)
			finish(out, w.at, kind, count);
	}
	return count ? w.at : 0;
}

/* ---- in ---- */

static bool get_standing(struct reader *r, struct duel_standing *s)
{
	return get_floats(r, s->lead, DUEL_ROWS, -COUNT_MAX, COUNT_MAX) &&
	       get_floats(r, s->variance[0], DUEL_ROWS * DUEL_ROWS, 0, COUNT_MAX) && get(r, &s->events, 4);
}

static bool get_choice(struct graph_recalled *g, struct reader *r, bool apply)
{
	float floats[5], losses[2], hits[SURVIVAL_BUCKETS], events[SURVIVAL_BUCKETS], base[SURVIVAL_BUCKETS];
	struct hazard *m = &g->memory->hazard;
	struct graph_choice c;
	uint8_t bytes[4];
	uint16_t seen, none;

	if (!get_floats(r, floats, 5, 0, COUNT_MAX) || !get_floats(r, losses, 2, 0, COUNT_MAX) || !get_standing(r, &c.standing) ||
	    !get(r, &seen, 2) || !get(r, bytes, 4) || !get(r, &none, 2) || !get(r, &c.begins_left, 8) ||
	    !get_floats(r, hits, SURVIVAL_BUCKETS, 0, COUNT_MAX) || !get_floats(r, events, SURVIVAL_BUCKETS, 0, COUNT_MAX) ||
	    !get_floats(r, base, SURVIVAL_BUCKETS, ODDS_LEAST, ODDS_MOST))
		return false;
	if (bytes[0] >= DUEL_ROWS || bytes[1] > 1 || bytes[2] > 1 || bytes[3] || none || seen >> FEATURES)
		return false;
	for (uint32_t b = 0; b < SURVIVAL_BUCKETS; b++)
		if (hits[b] > events[b])
			return false;
	if (!apply)
		return true;
	c.spared_back = floats[0];
	c.refused_back = floats[1];
	c.lru_misses = floats[2];
	c.returns = floats[3];
	c.standing.hits = floats[4];
	c.row = bytes[0];
	c.misses_little = bytes[1];
	c.begins = bytes[2];
	g->choice = c;
	g->has_choice = true;
	m->loss = losses[0];
	m->base_loss = losses[1];
	m->seen |= seen;
	memcpy(m->hits, hits, sizeof(hits));
	memcpy(m->events, events, sizeof(events));
	memcpy(m->base, base, sizeof(base));
	return true;
}

static bool get_weight(struct reader *r, float *weight, float *squares)
{
	return get_floats(r, weight, 1, -WEIGHT_MAX, WEIGHT_MAX) && get_floats(r, squares, 1, SQUARES_FIRST, COUNT_MAX);
}

static bool get_cell(struct graph_recalled *g, struct reader *r, bool apply)
{
	struct hazard_cell c;
	uint16_t cell, octaves;

	if (!get(r, &cell, 2) || !get(r, &octaves, 2) || cell >= HAZARD_CELLS || octaves >> HAZARD_OCTAVES)
		return false;
	c = g->memory->hazard.cells[cell];
	if (!get_weight(r, &c.any, &c.any_squares))
		return false;
	for (uint32_t o = 0; o < HAZARD_OCTAVES; o++)
		if (octaves >> o & 1 && !get_weight(r, &c.at[o], &c.at_squares[o]))
			return false;
	if (apply)
		g->memory->hazard.cells[cell] = c;
	return true;
}

static bool get_class(struct graph_recalled *g, struct reader *r, bool apply)
{
	float hazard[SURVIVAL_BUCKETS], hits, saved;
	uint16_t class, told;

	if (!get(r, &class, 2) || !get(r, &told, 2) || class >= CLASSES || !told || !get_floats(r, &hits, 1, HITS_MIN, HITS_MAX) ||
	    !get_floats(r, &saved, 1, hits, hits * RECOMPUTE_MAX) || !get_floats(r, hazard, SURVIVAL_BUCKETS, 0, 1))
		return false;
	if (!apply)
		return true;
	memcpy(g->survival->hazard[class], hazard, sizeof(hazard));
	g->survival->hits[class] = hits;
	g->survival->saved[class] = saved;
	g->survival->told[class] = told;
	g->survival->changed[class] = true;
	if (!g->is_used[class])
		g->used[g->used_count++] = class;
	g->is_used[class] = true;
	return true;
}

/* A block whose class has not been recalled is left out: no search would look at its line. */
static bool get_block(struct graph_recalled *g, struct reader *r, bool apply)
{
	struct memory_kept b = { .features = 0 };
	uint8_t bytes[7];

	if (!get(r, &b.tag, 4) || !get(r, &b.bucket, 4) || !get(r, &b.age_ms, 4) || !get(r, &b.class, 2) || !get(r, bytes, 7))
		return false;
	if (b.bucket >= g->memory->buckets_count || b.class >= CLASSES || !bytes[0] || bytes[1] > RECORD_CHILDREN_MAX || bytes[2] > RECORD_TURN_MAX ||
	    bytes[3] >= MEMORY_FLAGS || bytes[4] >= POLICY_HINTS)
		return false;
	if (bytes[3] & MEMORY_SAMPLED && (!get(r, &b.features, 4) || !features_are_packed(b.features) || !get_floats(r, &b.weight, 1, 0, 1)))
		return false;
	b.uses = bytes[0];
	b.children = bytes[1];
	b.turn = bytes[2];
	b.flags = bytes[3];
	b.hint = bytes[4];
	memcpy(b.pace, bytes + 5, 2);
	if (apply && g->is_used[b.class])
		memory_recall(g->memory, &b, g->now_us, g->idle_us);
	return true;
}

static bool get_entries(struct graph_recalled *g, struct reader r, uint16_t kind, uint32_t count, bool apply)
{
	static bool (*const rows[KINDS])(struct graph_recalled *, struct reader *, bool) = { get_choice, get_cell, get_class, get_block };
	uint32_t buckets;

	if (kind >= KINDS || (kind == KIND_CHOICE && count != 1))
		return false;
	if (kind == KIND_BLOCKS && (!get(&r, &buckets, 4) || buckets != g->memory->buckets_count))
		return false;
	while (count--)
		if (!rows[kind](g, &r, apply))
			return false;
	return r.at == r.size;
}

bool graph_recall_piece(struct graph_recalled *g, const uint8_t *bytes, size_t size)
{
	struct reader r = { .in = bytes, .size = size };
	uint32_t magic, count, of_shape;
	uint16_t version, kind;
	uint64_t sum;

	g->has_choice = false;
	g->used_count = 0;
	if (size > POLICY_PIECE_MAX || !get(&r, &magic, 4) || !get(&r, &version, 2) || !get(&r, &kind, 2) || !get(&r, &count, 4) ||
	    !get(&r, &of_shape, 4) || !get(&r, &sum, 8))
		return false;
	if (magic != MAGIC || version != VERSION || of_shape != shape() || sum != graph_piece_sum(bytes, size))
		return false;
	return get_entries(g, r, kind, count, false) && get_entries(g, r, kind, count, true);
}
