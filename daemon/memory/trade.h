/* Memory that goes from one class to another: the coldest spans of other classes are emptied and cut anew. */
#ifndef TERRACE_DAEMON_MEMORY_TRADE_H
#define TERRACE_DAEMON_MEMORY_TRADE_H

#include <stdbool.h>

#include "daemon/block/counters.h"

struct arena_window;
struct block;
struct cache;
struct memory_class;
struct memory_trade;

/* With the lock. The class claims the coldest window of other classes' memory, if it has no claim yet. own: its next
 * victim; the window must have been idle a quarter longer. NULL: it has no victim, and any window will do. False: it
 * has no claim. */
bool trade_begin(struct cache *c, struct memory_class *k, const struct block *own);
/* With the lock: the class is about to evict this block. Once in a span's worth of evictions it compares, and begins a
 * trade if that is worth it. */
void trade_look(struct cache *c, struct memory_class *k, const struct block *own);
/* Without the lock, for a caller that waits: empties the window that the class has claimed. With disks, blocks that no
 * disk has are spilled first, for a tenth of a second at most; then they are dropped. A claim that cannot be emptied is
 * given up. */
void trade_finish(struct cache *c, struct memory_class *k);
/* With the lock, about once a second: memory that was emptied for a class, and that the class did not take, goes to any
 * class. */
void trades_tick(struct cache *c);
/* Without the lock, now and then: steps of all trades that no caller waits for. */
void trades_chores(struct cache *c);

/* MORE: the step ended before the window did. PASSED: every block of it was looked at. */
enum emptying { EMPTYING_MORE, EMPTYING_PASSED };

/* With the lock, in a read section: evicts what can go of some hundred blocks of the window, from where the last step
 * ended. Blocks that only memory has are spilled first, unless t->drops. What is pinned stays. */
enum emptying emptying_step(struct cache *c, struct memory_trade *t, const struct arena_window *w, enum counter reason);

#endif
