/* See block/grid.h. */
#include "daemon/block/grid.h"

#include "daemon/block/key.h"
#include "kernels/format.h"

#include <stddef.h>
#include <string.h>

/* ---- what OpenSession says ---- */

/* Full blocks of B tokens that hold any of the last w - 1 tokens: r * unit of these may lie in a partial block instead,
 * and from some r on that saves one full block. Where a block is one unit, its last one may have fewer valid tokens: if
 * it has too few, one full block more is needed. */
static void rule_of_window(struct grid_rule *r, uint32_t unit, uint32_t block_tokens, uint32_t window)
{
	const uint32_t tokens = window - 1, need = tokens / block_tokens + (tokens % block_tokens != 0);
	const uint32_t first =
		need ? tokens - (need - 1) * block_tokens : 0; /* how many of them lie in the first needed block */

	r->need = need < GRID_ALL ? need : GRID_ALL - 1;
	r->slack = (uint16_t)(r->units == 1 ? first : first / unit + (first % unit != 0));
}

static const char *rule_problem(uint32_t unit, const struct kv_layout *l, const struct grid_wish *w)
{
	if (l->block_tokens % unit)
		return "unit_tokens: block_tokens of a layout is no multiple of it";
	if (l->block_tokens / unit > GRID_UNITS_MAX)
		return "unit_tokens: a layout's block has more than 65535 units";
	if (w->last && l->window)
		return "rules: a layout has either a window or keep_last, not both";
	if (w->last > GRID_LAST_MAX)
		return "rules: keep_last is more than 4096, the keys of a call";
	_Static_assert(GRID_LAST_MAX == 4096 && GRID_UNITS_MAX == 65535, "the words say so");
	if (w->sparse && !w->last && !l->window)
		return "rules: a sparse layout wants a window or keep_last: without either each prefix needs all of "
		       "its blocks";
	return NULL;
}

static void rule_make(struct grid_rule *r, uint32_t unit, const struct kv_layout *l, const struct grid_wish *w)
{
	*r = (struct grid_rule){
		.need = GRID_ALL, .units = (uint16_t)(l->block_tokens / unit), .slack = UINT16_MAX,
		.partial = w->partial && l->block_tokens != unit, .sparse = w->sparse,
	};
	if (w->last) {
		r->need = w->last;
		r->slack = 1;
	} else if (l->window) {
		rule_of_window(r, unit, l->block_tokens, l->window);
	}
}

/* The layout that serves best to stand for a chain: of the best kind, the one with the smallest blocks. */
static uint32_t main_of(const struct grid *g)
{
	uint32_t best = 0, best_kind = 0;

	for (uint32_t l = 0; l < g->layouts; l++) {
		const struct grid_rule *r = &g->rule[l];
		const uint32_t kind = r->need == GRID_ALL ? 2 : !r->sparse;

		if (l && (kind < best_kind || (kind == best_kind && r->units >= g->rule[best].units)))
			continue;
		best = l;
		best_kind = kind;
	}
	return best;
}

const char *grid_make(struct grid *g, uint32_t unit, const struct kv_layout *layouts, uint32_t count,
		      const struct grid_wish *wishes)
{
	static const struct grid_wish none;

	for (uint32_t l = 0; l < count && !unit; l++)
		if (layouts[l].block_tokens != layouts[0].block_tokens)
			return "all layouts of a session have the same block_tokens, unless it says unit_tokens";
	*g = (struct grid){ .unit = unit ? unit : layouts[0].block_tokens, .layouts = count };
	for (uint32_t l = 0; l < count; l++) {
		const struct grid_wish *w = wishes ? &wishes[l] : &none;

		const char *problem = rule_problem(g->unit, &layouts[l], w);

		if (problem)
			return problem;
		rule_make(&g->rule[l], g->unit, &layouts[l], w);
		g->chained |= g->rule[l].units > 1;
	}
	g->main = main_of(g);
	if (grid_multiple(g) > CACHE_KEYS_MAX)
		return "unit_tokens: the layouts' blocks end at one position only every so many keys that no call has "
		       "them: let layouts have partial blocks";
	for (uint32_t l = 0; wishes && l < count; l++)
		if (wishes[l].last || wishes[l].sparse)
			return NULL;
	if (!g->chained)
		g->unit = 0;
	return NULL;
}

bool grid_is_plain(const struct grid *g)
{
	return !g->unit;
}

uint64_t grid_multiple(const struct grid *g)
{
	uint64_t multiple = 1;

	for (uint32_t l = 0; l < g->layouts; l++) {
		const struct grid_rule *r = &g->rule[l];
		uint64_t a = multiple, b = r->units;

		if (r->partial || !r->need)
			continue;
		while (b) {
			const uint64_t rest = a % b;

			a = b;
			b = rest;
		}
		if (multiple <= UINT32_MAX)
			multiple = multiple / a * r->units;
	}
	return multiple;
}

uint64_t grid_rule_pack(const struct grid_rule *r)
{
	return (uint64_t)r->need << 34 | (uint64_t)r->units << 18 | (uint64_t)r->slack << 2 |
	       (uint64_t)r->partial << 1 | r->sparse;
}

struct grid_rule grid_rule_unpack(uint64_t word)
{
	return (struct grid_rule){
		.need = (uint32_t)(word >> 34), .units = (uint16_t)(word >> 18), .slack = (uint16_t)(word >> 2),
		.partial = word >> 1 & 1, .sparse = word & 1,
	};
}

uint64_t grid_cells(const struct grid *g, uint64_t first, uint32_t count)
{
	uint64_t cells = 0;

	for (uint32_t l = 0; l < g->layouts; l++) {
		const struct grid_rule *r = &g->rule[l];

		cells += r->partial ? count : (first + count) / r->units - first / r->units;
	}
	return cells;
}

/* ---- prefixes ---- */

/* The number of full blocks that a prefix needs if its units leave that remainder. */
static uint32_t need_at(const struct grid_rule *r, uint32_t remainder)
{
	return r->need == GRID_ALL ? GRID_ALL : r->need - (r->need && remainder && remainder >= r->slack);
}

void grid_run_begin(struct grid_run *run, const struct grid_rule *r, uint64_t first)
{
	*run = (struct grid_run){ .rule = r, .remainder = (uint32_t)(first % r->units) };
}

void grid_run_feed(struct prefix *p, struct grid_run *run, bool present, bool falls_short)
{
	const struct grid_rule *r = run->rule;
	uint32_t need;

	run->at++;
	run->remainder = run->remainder + 1 == r->units ? 0 : run->remainder + 1;
	if (!run->remainder) {
		run->full++;
		run->run = present ? run->run + 1 : 0;
		if (!present && r->need == GRID_ALL && run->at <= p->limit)
			p->limit = run->at - 1;
	}
	if (!r->need)
		return;
	need = need_at(r, run->remainder) + falls_short;
	if ((run->remainder && !present) || run->run < (need < run->full ? need : run->full))
		p->valid[run->at / 64] &= ~(1ull << run->at % 64);
}

void grid_need(const struct grid_rule *r, uint64_t first, uint32_t keys, bool falls_short, struct grid_need *out)
{
	const uint64_t end = first + keys;
	const uint32_t remainder = (uint32_t)(end % r->units);
	const uint64_t units = ((uint64_t)need_at(r, remainder) + falls_short) * r->units;

	*out = (struct grid_need){ .rule = r, .end = end, .from = end - remainder };
	if (!keys || !r->need)
		out->end = 0;
	out->from = out->from > units ? out->from - units : 0;
}

bool grid_needs(const struct grid_need *n, uint64_t position)
{
	if (position >= n->end)
		return false;
	return grid_is_full(n->rule, position) ? position >= n->from : position + 1 == n->end;
}
