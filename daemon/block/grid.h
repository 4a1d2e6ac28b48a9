/* The grid of a session: which keys have a block in which layout, and which blocks a prefix needs. Pure functions.
 *
 * A session has a *unit*, the tokens of one key. Key i of a sequence stands for its first i + 1 units; i is the key's
 * *position*. A layout's block covers n units. The layout has a *full* block at each position that is n - 1 modulo n.
 * If it says so, it may also have a *partial* block at any other position, which begins at the boundary before. A
 * position of a layout that may have a block is a *cell*.
 *
 * A prefix of p units needs of a layout, by its keep rule:
 *
 *     all        the full blocks up to p, and the partial block at p - 1 if p is no multiple of n
 *     window w   of these, those with any of the last w - 1 tokens before p
 *     last m     the m blocks that end at p and before: the block at p - 1, full or partial, then full ones
 *
 * In all three, the needed blocks are contiguous and end at p. So a rule is a number: how many *full* blocks before the
 * end are needed. It is one less from some remainder p modulo n on (struct grid_rule).
 *
 * A layout may be *sparse*: absent blocks are expected, and not counted as lost.
 */
#ifndef TERRACE_DAEMON_BLOCK_GRID_H
#define TERRACE_DAEMON_BLOCK_GRID_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/values.h"

struct kv_layout;
struct prefix;

enum {
	GRID_ALL = (1 << 30) - 1,      /* a rule's need: of all full blocks */
	GRID_UNITS_MAX = UINT16_MAX,   /* in a block */
	GRID_LAST_MAX = CACHE_KEYS_MAX,
};

/* Calls begin below this position, so that no position overflows. */
#define GRID_FIRST_MAX (1u << 31)

/* What OpenSession says of a layout beyond the layout's own block_tokens and window. Zeroed: no partial blocks, not
 * sparse, and the rule of the window. */
struct grid_wish {
	uint32_t last;                 /* not 0: the rule is `last m`, with this m */
	bool partial, sparse;
};

/* The rule of a layout. */
struct grid_rule {
	uint32_t need;                 /* full blocks that a prefix of a multiple of n needs; GRID_ALL */
	uint16_t units;                /* n */
	/* From this remainder of p modulo n on a prefix needs one full block less. Where n is 1, and there is no
	 * remainder: tokens that the last block has at least, if one block more is not to be needed */
	uint16_t slack;
	bool partial, sparse;
};

struct grid {
	uint32_t unit;                 /* tokens; 0: the session is plain, see grid_is_plain */
	uint32_t layouts;
	bool chained;                  /* some layout's block covers several units */
	/* the layout that stands for a chain: of those with the rule `all`, the one with the smallest blocks */
	uint32_t main;
	struct grid_rule rule[CACHE_LAYOUTS_MAX];
};

/* Makes the grid of a session. Returns NULL, or what is wrong: a unit that does not divide, or a rule that cannot be
 * met. unit 0: the layouts' own block_tokens, which must then be equal. wishes: [count], or NULL. */
const char *grid_make(struct grid *g, uint32_t unit, const struct kv_layout *layouts, uint32_t count,
		      const struct grid_wish *wishes);
/* A key has one block in every layout, and the windows give the rules: as in sessions without a unit. */
bool grid_is_plain(const struct grid *g);
/* Only prefixes of a multiple of so many units can be usable. */
uint64_t grid_multiple(const struct grid *g);
/* Packs a rule into one word, and unpacks it. */
uint64_t grid_rule_pack(const struct grid_rule *r);
struct grid_rule grid_rule_unpack(uint64_t word);

static inline bool grid_is_full(const struct grid_rule *r, uint64_t position)
{
	return (position + 1) % r->units == 0;
}

static inline bool grid_has_cell(const struct grid_rule *r, uint64_t position)
{
	return r->partial || grid_is_full(r, position);
}

/* The least tokens that the last block of a prefix must have in a layout with one unit a block (see slack); 0: any
 * number will do. */
static inline uint32_t grid_least(const struct grid_rule *r)
{
	return r->units == 1 && r->need && r->need < GRID_ALL ? r->slack : 0;
}

/* How many units the block that ends at that position covers up to there. */
static inline uint32_t grid_units_at(const struct grid_rule *r, uint64_t position)
{
	return (uint32_t)(position % r->units) + 1;
}

/* The number of cells of `count` keys from position `first` on. */
uint64_t grid_cells(const struct grid *g, uint64_t first, uint32_t count);

/* ---- the longest prefix: struct prefix (block/key.h) is fed layout by layout, each layout key by key ---- */

struct grid_run {
	const struct grid_rule *rule;
	uint32_t remainder;            /* of the units before the next key, modulo n */
	uint32_t at;                   /* keys fed */
	uint32_t full, run;            /* full blocks fed; of these, how many are present in a row up to the last */
};

/* Begins a prefix that counts the call's keys. Blocks before position `first` count as present. */
void grid_run_begin(struct grid_run *run, const struct grid_rule *r, uint64_t first);
/* Adds the next key. present: its block is there; false where the layout has no cell. falls_short: the block has fewer
 * valid tokens than grid_least() of the rule. */
void grid_run_feed(struct prefix *p, struct grid_run *run, bool present, bool falls_short);

/* ---- what a prefix needs ---- */

struct grid_need {
	const struct grid_rule *rule;
	uint64_t from, end;            /* positions: of the first full block needed; the one behind the prefix */
};

/* What a prefix needs that ends behind `keys` keys from position `first` on. falls_short: of its last block. Without
 * keys nothing is needed. */
void grid_need(const struct grid_rule *r, uint64_t first, uint32_t keys, bool falls_short, struct grid_need *out);
bool grid_needs(const struct grid_need *n, uint64_t position);

#endif
