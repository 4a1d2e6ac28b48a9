/* A new record for a block whose host copy was found to be wrong. */
#ifndef TERRACE_DAEMON_VRAM_REPLACE_H
#define TERRACE_DAEMON_VRAM_REPLACE_H

struct block;
struct cache;
struct vram_move;

/* Ready copies become another block's, with the pins of leases, and the moves from them to other GPUs, with who waits for these: all but what a way
 * down is of. In the hands of who has both blocks out of the books. */
void vram_hand_over(struct cache *c, struct block *b, struct block *heir);
/* An up has found that what memory has is not the block: at once, what is elsewhere goes on without it, also for who waits for the move's end. Leases
 * of the copy that were granted ahead know. What was found so by another GPU's move, or is deleted, has been dealt with. */
void vram_up_wrong(struct cache *c, struct vram_move *m);

#endif
