/* A ring of words. A writer takes its words by moving `taken`, fills them, and last of all writes the first one, which
 * says how many they are; zero there means that it is not done yet. The reader zeroes what it gives back. So an
 * unfinished message delays the messages behind it, but no writer.
 */
#include "daemon/advice/mailbox.h"

#include <stdatomic.h>
#include <stdlib.h>

bool mailbox_init(struct mailbox *m, uint64_t count)
{
	m->words = malloc(count * sizeof(*m->words));
	m->count = count;
	for (uint64_t i = 0; m->words && i < count; i++) /* takes the pages now, not over the first hour */
		atomic_init(&m->words[i], 0);
	return m->words;
}

void mailbox_fini(struct mailbox *m)
{
	free(m->words);
	m->words = NULL;
}

bool mailbox_begin(struct mailbox *m, uint32_t words, struct letter *l)
{
	uint64_t at = atomic_load_explicit(&m->taken, memory_order_relaxed);

	do {
		/* Acquire: the reader has zeroed what is taken here. */
		if (at + words + 1 - atomic_load_explicit(&m->freed, memory_order_acquire) > m->count) {
			atomic_fetch_add_explicit(&m->dropped, 1, memory_order_relaxed);
			return false;
		}
	} while (!atomic_compare_exchange_weak_explicit(&m->taken, &at, at + words + 1, memory_order_relaxed,
							memory_order_relaxed));
	*l = (struct letter){ at, words };
	return true;
}

void mailbox_send(struct mailbox *m, const struct letter *l)
{
	atomic_store_explicit(&m->words[l->at & (m->count - 1)], (uint64_t)l->words + 1, memory_order_release);
}

bool mailbox_next(struct mailbox *m, struct letter *l)
{
	uint64_t at = atomic_load_explicit(&m->freed, memory_order_relaxed);
	uint64_t words = atomic_load_explicit(&m->words[at & (m->count - 1)], memory_order_acquire);

	if (!words)
		return false;
	*l = (struct letter){ at, (uint32_t)words - 1 };
	return true;
}

void mailbox_free(struct mailbox *m, const struct letter *l)
{
	for (uint32_t i = 0; i <= l->words; i++)
		atomic_store_explicit(&m->words[(l->at + i) & (m->count - 1)], 0, memory_order_relaxed);
	atomic_store_explicit(&m->freed, l->at + l->words + 1, memory_order_release);
}
