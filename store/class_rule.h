/* Which class a layout joins: the one place of the rule, for host memory, for GPUs and for disks.
 *
 * A class is a stride: the bytes from slot to slot. A layout joins a class whose stride is at least what one of the
 * layout's blocks needs and at most 1/16 larger. Of several such classes it joins the one with the smallest stride.
 * Where there is none the layout makes a class whose stride is its need. Where CLASS_RULE_MOST classes exist already,
 * the layout joins the class with the next larger stride, however much larger it is. So at most 1/17 of a slot is
 * wasted while there are few classes, and their number has a bound.
 *
 * A leaf: any part may include it. */
#ifndef TERRACE_STORE_CLASS_RULE_H
#define TERRACE_STORE_CLASS_RULE_H

#include <stdbool.h>
#include <stdint.h>

enum {
	CLASS_RULE_SHARE = 16,           /* a stride is larger by a 16th of the need, at most */
	CLASS_RULE_MOST = 128,           /* classes that the rule makes, for a tenant or for a disk */
};

/* Whether the stride is that of a class which a layout of that need joins. */
static inline bool class_rule_joins(uint64_t stride, uint64_t need_bytes)
{
	return stride >= need_bytes && stride - need_bytes <= need_bytes / CLASS_RULE_SHARE;
}

/* One step of a search through the strides of all classes: returns the better of `best` (0: none found yet) and
 * `stride`. full: there are CLASS_RULE_MOST classes already. If the result is 0 after all strides, the layout makes a
 * new class. */
static inline uint64_t class_rule_better(uint64_t best, uint64_t stride, uint64_t need_bytes, bool full)
{
	const bool may = full ? stride >= need_bytes : class_rule_joins(stride, need_bytes);

	return may && (!best || stride < best) ? stride : best;
}

#endif
