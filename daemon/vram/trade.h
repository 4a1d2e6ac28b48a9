/* Trades: memory of a GPU that changes from one class of slots to another (vram/trade.c). With the lock. */
#ifndef TERRACE_DAEMON_VRAM_TRADE_H
#define TERRACE_DAEMON_VRAM_TRADE_H

#include <stdbool.h>

struct cache;
struct gpu;
struct vram_class;

/* A step of the class's trade; begins one, once a span's worth of the class's copies has been evicted, if another
 * class's memory has been idle for longer by a quarter than what the class would evict next. */
void vram_trade(struct cache *c, struct vram_class *k);
/* The same for a class that has nothing to evict: takes the coldest memory there is, without comparing. drops: what
 * cannot go down is dropped. False: no other class has memory that can be emptied now. */
bool vram_trade_force(struct cache *c, struct vram_class *k, bool drops);
/* It has begun one that has not ended. */
bool vram_trading(struct vram_class *k);
/* One step of every trade on the GPU; gives up those that lead to nothing. */
void vram_trades_step(struct cache *c, struct gpu *g);

#endif
