/* What a prefix of a session with a grid is, spelt out as the manual says it, without any cleverness: for tests to
 * compare with. Pure functions of layouts, units, keep rules, and a set of stored blocks. */
#ifndef TERRACE_TESTS_DAEMON_PREFIX_MODEL_H
#define TERRACE_TESTS_DAEMON_PREFIX_MODEL_H

#include <stdbool.h>
#include <stdint.h>

enum { MODEL_LAYOUTS = 8 };

struct model_layout {
	uint32_t units;                /* of a block */
	uint32_t window, last;         /* tokens, blocks; both 0: all blocks are kept */
	bool partial;                  /* it may have a block at any position */
};

struct model {
	uint32_t unit;                 /* tokens of a key */
	uint32_t layouts;
	struct model_layout layout[MODEL_LAYOUTS];
	uint32_t first;                /* position of the call's first key */
	uint32_t keys;
	const bool *stored;            /* [keys][layouts] */
};

/* The layout can have a block that ends at that position. */
bool model_has_cell(const struct model *m, uint32_t layout, uint32_t position);
/* A prefix of p units needs the layout's block at that position. */
bool model_needs(const struct model *m, uint32_t layout, uint32_t p, uint32_t position);
/* How many of the call's keys are the longest usable prefix; what stands before the first of them counts as there. */
uint32_t model_prefix(const struct model *m);

#endif
