/* The mailbox by which calls tell the advice their requests: bounded, lock-free, read by the advisor or under the
 * cache's lock. */
#ifndef TERRACE_DAEMON_ADVICE_MAILBOX_H
#define TERRACE_DAEMON_ADVICE_MAILBOX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct mailbox {
	_Atomic uint64_t *words;
	uint64_t count;                /* of words, a power of two */
	_Atomic uint64_t taken;        /* words given to writers since the start */
	_Atomic uint64_t freed;        /* words that the reader is done with */
	_Atomic uint64_t dropped;      /* messages for which there was no room */
};

/* A message that is being written or read. */
struct letter {
	uint64_t at;
	uint32_t words;                /* without the mailbox's own */
};

/* count: a power of two. False: no memory. fini accepts zeroed memory. */
bool mailbox_init(struct mailbox *m, uint64_t count);
void mailbox_fini(struct mailbox *m);
/* Any thread, without waiting. False: no room, which is counted. Each message begun must be sent. */
bool mailbox_begin(struct mailbox *m, uint32_t words, struct letter *l);
void mailbox_send(struct mailbox *m, const struct letter *l);
/* The reader's: the oldest message, if it is finished. It stays until it is freed. */
bool mailbox_next(struct mailbox *m, struct letter *l);
void mailbox_free(struct mailbox *m, const struct letter *l);

static inline void letter_write(struct mailbox *m, const struct letter *l, uint32_t i, uint64_t word)
{
	atomic_store_explicit(&m->words[(l->at + 1 + i) & (m->count - 1)], word, memory_order_relaxed);
}

static inline uint64_t letter_read(const struct mailbox *m, const struct letter *l, uint32_t i)
{
	return atomic_load_explicit(&m->words[(l->at + 1 + i) & (m->count - 1)], memory_order_relaxed);
}

#endif
