/* The class of a block: a few of what the graph knows of it at an access, rounded. Blocks of one class
 * are taken to come back alike; survival.h learns how.
 *
 * A kind says what sort of a block it is, and so when it may come back; a grade within the kind how
 * likely that is.
 */
#ifndef TERRACE_EVICTION_CLASS_H
#define TERRACE_EVICTION_CLASS_H

#include <stdint.h>

enum { CLASS_KINDS = 8, CLASS_GRADES = 16, CLASSES = CLASS_KINDS * CLASS_GRADES };

struct class_features {
	uint8_t uses;      /* of the block, this one too, at least 1 */
	uint8_t children;  /* blocks that followed it */
	uint8_t fresh_log; /* blocks of the request that were not remembered, log2(1 + n) */
	uint8_t turn;      /* of the chain, 1: its first; 0: not known */
	uint8_t gap;       /* since the chain was used before, an age bucket of survival.h + 1; 0: never */
	uint8_t hint;      /* enum policy_hint */
};

/* kind x CLASS_GRADES + grade */
uint32_t class_of(const struct class_features *f);

#endif
