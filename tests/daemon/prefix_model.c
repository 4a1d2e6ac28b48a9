/* See daemon/prefix_model.h. */
#include "tests/daemon/prefix_model.h"

bool model_has_cell(const struct model *m, uint32_t layout, uint32_t position)
{
	const struct model_layout *l = &m->layout[layout];

	return l->partial || position % l->units == l->units - 1;
}

/* The blocks of a prefix of p units, from its end: where the j-th ends, in units; 0: there are no more. */
static uint32_t block_end(const struct model_layout *l, uint32_t p, uint32_t j)
{
	const uint32_t whole = p - p % l->units;

	if (p % l->units)
		return j == 0 ? p : (j - 1) * l->units < whole ? whole - (j - 1) * l->units : 0;
	return j * l->units < whole ? whole - j * l->units : 0;
}

/* Whether the prefix needs its j-th block from the end. */
static bool is_kept(const struct model *m, uint32_t layout, uint32_t p, uint32_t j)
{
	const struct model_layout *l = &m->layout[layout];
	const uint64_t end = block_end(l, p, j);

	if (!end)
		return false;
	if (l->last)
		return j < l->last;
	if (!l->window)
		return true;
	for (uint64_t back = 1; back < l->window; back++) /* the last window - 1 tokens: is one of them in it? */
		if (back <= (uint64_t)p * m->unit && (uint64_t)p * m->unit - back < end * m->unit)
			return true;
	return false;
}

bool model_needs(const struct model *m, uint32_t layout, uint32_t p, uint32_t position)
{
	for (uint32_t j = 0; is_kept(m, layout, p, j); j++)
		if (block_end(&m->layout[layout], p, j) == position + 1)
			return true;
	return false;
}

static bool usable(const struct model *m, uint32_t layout, uint32_t p)
{
	for (uint32_t j = 0; is_kept(m, layout, p, j); j++) {
		const uint32_t position = block_end(&m->layout[layout], p, j) - 1;

		if (position < m->first)
			return true;
		if (!m->stored[(position - m->first) * m->layouts + layout])
			return false;
	}
	return true;
}

uint32_t model_prefix(const struct model *m)
{
	for (uint32_t n = m->keys; n > 0; n--) {
		uint32_t l = 0;

		while (l < m->layouts && usable(m, l, m->first + n))
			l++;
		if (l == m->layouts)
			return n;
	}
	return 0;
}
