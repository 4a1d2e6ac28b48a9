/* Trades: memory of a GPU moves from one class of slots to another (vram/trade.c). With the lock. */
#ifndef TERRACE_DAEMON_VRAM_TRADE_H
#define TERRACE_DAEMON_VRAM_TRADE_H

#include <stdbool.h>

struct arena_window;
struct cache;
struct gpu;
struct memory_trade;
struct vram_class;

/* One step of the class's trade. After a span's worth of evictions it begins a trade, if another class's memory has
 * been idle a quarter longer than the class's own next victim. */
void vram_trade(struct cache *c, struct vram_class *k);
/* Begins a trade for a class that has nothing to evict: takes the coldest memory of the other classes, without
 * comparing ages. drops: copies that cannot be downloaded are dropped. False: no other class has memory that can be
 * emptied now. */
bool vram_trade_force(struct cache *c, struct vram_class *k, bool drops);
/* Whether the class has a trade that has not ended. */
bool vram_trading(struct vram_class *k);
/* One step in emptying a window that goes to another tenant, from where the last step ended: evicts copies that lie
 * elsewhere too, and begins to download the others, unless t->drops. What is pinned stays. True: the step ended before
 * the window did. */
bool vram_emptying_step(struct cache *c, struct gpu *g, struct memory_trade *t, const struct arena_window *w);
/* One step of every trade on the GPU; gives up trades that make no progress. */
void vram_trades_step(struct cache *c, struct gpu *g);

#endif
