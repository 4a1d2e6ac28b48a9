/* The order in which disks displace the blocks that a start has found. */
#ifndef TERRACE_DAEMON_DISK_RESTORE_ORDER_H
#define TERRACE_DAEMON_DISK_RESTORE_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cache;
struct slab_map;

/* A block that was taken up, noted for that order. The restorer's. */
struct restored {
	uint64_t id, parent;           /* names as policies know them; parent 0: none */
	uint64_t stored_ms;
	uint64_t position;             /* of its first token */
	struct slab_map *slab_map;
	uint32_t slot;
};

struct restored_notes {
	struct restored *at;
	size_t count, room;
	bool lost;                     /* there was no memory for a note */
};

/* With or without the lock. */
void restored_note(struct restored_notes *n, const struct restored *one);
/* Without the lock: tells the disks' policies all noted blocks that are still where they were, coldest first. */
void restored_order(struct cache *c, struct restored_notes *n);
void restored_notes_free(struct restored_notes *n);

#endif
