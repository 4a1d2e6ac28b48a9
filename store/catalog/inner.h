/* The catalog's own struct, shared by the files of store/catalog alone.
 *
 * Locks, in the order in which they are taken: `map`, then `mutex`. Readers of the file share `map`; the catalog's
 * thread has it alone while it moves the map. `mutex` guards the queue and the figures; it is held for a copy, never
 * for I/O. `map` admits readers while the catalog's thread waits for it. Otherwise there would be a deadlock: a walk
 * whose visit reads, or takes a lock whose holder reads, would wait for the catalog's thread, which waits for the walk.
 */
#ifndef TERRACE_STORE_CATALOG_INNER_H
#define TERRACE_STORE_CATALOG_INNER_H

#include <pthread.h>

#include "store/catalog/catalog.h"
#include "store/catalog/file.h"

enum change_what { CHANGE_PUT, CHANGE_DROP, CHANGE_EMPTY, CHANGE_FLUSH };

/* One entry of the queue, 8-byte aligned. Behind it are the key, the value and room for the checksum (change_data). */
struct change {
	uint32_t bytes;                 /* of the whole entry, padded */
	uint16_t key_bytes, value_bytes;
	uint8_t what, table;
	uint16_t reserved;
};

static inline uint8_t *change_data(const struct change *ch)
{
	return (uint8_t *)(uintptr_t)(ch + 1);
}

/* The entry of a CHANGE_FLUSH. Flushes are linked in their queue, so that a failure finds them without a walk. */
struct change_flush {
	struct change head;
	void (*done)(void *arg, enum status s);
	void *arg;
	struct change_flush *next;
};

/* A queue's memory: address space for a full queue, whose pages are taken as they are used. */
struct change_queue {
	uint8_t *at;
	size_t used, applied;           /* entries before `applied` are committed */
	struct change_flush *first, *last; /* flushes whose `done` was not called yet */
};

/* Readers in other processes, as the last looks found them. For the catalog's thread alone. */
enum { CATALOG_LOOKS_KEPT = 16 };
struct catalog_readers {
	uint64_t every_ns, old_ns, due_ns;
	struct catalog_look_at {
		uint64_t ns;
		size_t state;           /* the last commit's number */
		uint64_t used;          /* bytes of the file */
	} looks[CATALOG_LOOKS_KEPT], since; /* the earliest first. since: the look that first showed the reader at an
					     * older state */
	uint32_t count;
	int pid;                        /* the reader that sees the oldest state, if that is not the last one; 0:
					 * none */
	size_t state;
};

struct catalog {
	char *folder;
	int lock_fd;
	struct catalog_options options;

	pthread_rwlock_t map;
	struct catalog_file file;       /* env NULL: a failure closed it, and it could not be opened again */

	pthread_mutex_t mutex;
	pthread_cond_t wake;
	bool closing, flush_wanted, ended; /* ended: the thread has */
	uint64_t oldest_ns;             /* when the first change of `filling` came; 0: it is empty */
	struct change_queue *filling;   /* callers append here */
	struct catalog_view view;

	/* The catalog's thread alone: */
	pthread_t thread;
	struct change_queue *draining;  /* being applied */
	const struct change **order;    /* CATALOG_BATCH_MOST pointers, for sorting */
	uint64_t pages;                 /* pages of the tables at the last look */
	struct catalog_readers readers;
	struct change_queue queues[2];
};

/* LMDB keeps at most 131072 changed pages in one transaction. While the tables have few pages, a batch cannot change
 * more than these, however many changes it has. */
enum {
	CATALOG_BATCH_MOST = 262144,      /* changes of a batch, while the tables have at most the next number of
					   * pages */
	CATALOG_BATCH_MOST_PAGES = 81920,
	CATALOG_BATCH_CHANGES = 65536,    /* changes of a batch when they have more */
	CATALOG_BATCH_BYTES = 32 << 20,
};

/* Applies one batch: the front of the queue, within the limits above, in one synced transaction. The map grows if it
 * must. MDB_SUCCESS: *to is where the next batch begins, and *changes the number of changes applied. Otherwise nothing
 * has changed. The catalog's thread. */
int catalog_batch_apply(struct catalog *c, struct change_queue *q, size_t *to, uint64_t *changes);

/* Makes the map larger, waiting for readers. MDB_MAP_FULL: it is as large as it may be. The catalog's
 * thread. */
int catalog_map_grow(struct catalog *c);

/* Opens the file anew after LMDB has given up its environment. The catalog's thread. */
int catalog_map_reopen(struct catalog *c);

/* Clears the places of dead readers, and reports a live one that holds pages back in the view. Due at readers.due_ns.
 * The catalog's thread. */
void catalog_readers_look(struct catalog *c, uint64_t now_ns);

/* Brings the figures of the file into the view. The catalog's thread, or before it runs. */
void catalog_view_refresh(struct catalog *c);

#endif
