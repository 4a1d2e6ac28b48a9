/* What the files of this folder share: disk.c (open, close), folder.c (files by name), run.c, absent.c, slab.c (slots
 * and slabs), transfer.c, health.c, scan.c. No other file includes it.
 *
 * Locks: `grow` (one slab is made or dropped at a time) is taken before `mutex`. The ring's functions that wait for its
 * thread (adding and removing files and buffers) are called without `mutex`, because completions take it.
 */
#ifndef TERRACE_STORE_SLAB_PRIVATE_H
#define TERRACE_STORE_SLAB_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "store/slab/disk.h"

/* ---- the folder: every file by name (slab/folder.c) ---- */

struct disk_folder {
	const char *path;          /* the owner's */
	int fd, id_fd;             /* id_fd carries the flock; -1: not open */
	/* disk.id opened again, for the ring: the kernel may hold a ring's files for a while after the ring's end, but
	 * must not hold the lock. */
	int sync_fd;
	uint64_t id, wiped_id;     /* wiped_id: before it was wiped; 0: it was not */
	bool direct;
};

/* Makes or opens the folder, takes its lock, reads disk.id, wipes a quarantined folder, removes half-made slabs. On
 * failure nothing stays open. Statuses and why as disk_open. */
enum status disk_folder_open(struct disk_folder *f, const char *path, bool must_exist, char *why, size_t why_bytes);
void disk_folder_close(struct disk_folder *f);
/* Syncs the folder: names that were added or removed are durable then. Returns an errno. */
int disk_folder_sync(const struct disk_folder *f);
/* Reads the first bytes of a small file. Returns how many it read; 0: the file cannot be read, or there is none. */
size_t disk_folder_read(const struct disk_folder *f, const char *name, void *at, size_t bytes);
/* Writes the bytes to the file, in place (flags: 0) or after emptying it (O_TRUNC), and syncs the file, but not its
 * name. Returns an errno. */
int disk_folder_write(const struct disk_folder *f, const char *name, int flags, const void *at, size_t bytes);
/* Writes the quarantine marker, as far as the disk allows it. */
void disk_folder_mark(const struct disk_folder *f, const char *why);

/* Lists the numbers of the slab files, rising, in an array that the caller frees. *last: the highest number ever used.
 * Returns an errno. */
int disk_folder_slabs(const struct disk_folder *f, uint32_t **numbers, uint32_t *count, uint32_t *last);

struct disk_slab_file {
	uint32_t number, slots;
	uint64_t slot_bytes, bytes;
	int fd;
	bool sparse;               /* the file system has not set its space aside */
};

/* Makes files, durable under their names, from number, slots and slot_bytes, and fills in the other fields. Making
 * several together costs little more than one: after the first file's sync the others' find nothing to do. *made: so
 * many, from the first on, exist. Returns an errno if none does. */
int disk_slab_files_make(const struct disk_folder *f, struct disk_slab_file *files, uint32_t count, uint32_t *made);
/* Opens file s->number and fills in the rest of *s. Returns an errno, or 0 with *problem: NULL; or a fixed sentence,
 * and then only s->bytes is filled in. */
int disk_slab_file_open(const struct disk_folder *f, struct disk_slab_file *s, const char **problem);
/* Deletes the file and closes s->fd. last: its number is the highest ever used and must be remembered. Returns an
 * errno. */
int disk_slab_file_remove(const struct disk_folder *f, struct disk_slab_file *s, bool last);

/* ---- slabs and slots (slab/slab.c) ---- */

struct slab {
	struct disk_slab_file file;
	struct disk_class *class;
	struct slab *prev, *next;  /* in the class's list while listed: not closed, not full */
	bool listed, closed;
	bool dirty;                /* written since the last sync, or found at open */
	bool syncing;              /* part of the running round of syncs: it waits in sync_first, or the ring has its
				    * sync */
	uint32_t used, hint;       /* no free slot below word `hint` of `taken` */
	uint32_t ring_file, under_way;
	struct slab *sync_next;
	struct ring_request sync;
	struct disk *disk;
	uint64_t *taken;           /* a bit a slot */
	uint64_t *marked;          /* in slabs found at open, until disk_slot_free_unmarked; then NULL */
};

/* Slabs of one slot size. */
struct disk_class {
	uint64_t slot_bytes;
	struct slab *first, *last;
	uint32_t empty;            /* slabs without a taken slot */
	uint64_t free;             /* free slots in the slabs of the list */
	struct disk_class *next;
};

struct disk {
	struct disk_options options; /* folder: a copy of its own */
	struct disk_folder folder;
	struct ring *ring;
	uint32_t id_file;          /* disk.id's number in the ring: synced when no slab needs a sync */
	pthread_mutex_t grow, mutex;
	/* Guarded by mutex: */
	struct slab **slabs;       /* DISK_SLABS_MAX; numbers rise */
	uint32_t slab_count, slabs_damaged, last_number;
	uint32_t empty, sparse;    /* numbers of slabs: without a taken slot; without space set aside */
	struct disk_class *classes;
	uint64_t slab_bytes;
	uint64_t slots, slots_used; /* over all slabs */
	struct disk_request *requests; /* reads and writes that the ring has */
	bool left_behind;          /* disk_close_by: `done` is not called any more */
	_Atomic uint32_t telling;  /* the number of `done`s that run; raised under the mutex */
	struct disk *left_next;
	struct {
		bool running;
		struct disk_request *now, *later; /* requests of callers, for this round and for the next */
		struct slab *first;    /* slabs of this round that the ring does not have yet */
		uint32_t under_way;
		enum status status;    /* the first failure of the round */
		int error;
		struct ring_request idle;
	} sync;
	struct {
		bool quarantined, marking;
		char why[160];
		char shortage[160];    /* as disk_view.shortage */
		bool shortage_in_write;
		uint64_t grow_until_us, write_until_us; /* full until these times: for new slabs, for writes */
		uint64_t slow_look_us, slow_oldest_us;
		uint64_t corrupt, refused_slow, full_events;
		pthread_t marker;
		atomic_bool marked;    /* the marker was written, or could not be */
	} health;
};

/* Adopts an open file as a slab, with its slots all taken (found) or all free. EXHAUSTED: no memory; the file stays the
 * caller's. */
enum status disk_slab_adopt(struct disk *d, const struct disk_slab_file *file, bool found);
/* Frees every slab and closes its file. The ring has ended before. */
void disk_slabs_free(struct disk *d);
/* The slab of that number, or NULL; mutex held. */
struct slab *disk_slab_find(const struct disk *d, uint32_t number);
bool disk_slot_taken(const struct slab *s, uint32_t slot);

/* ---- transfers (slab/transfer.c) ---- */

/* As disk_read, but a slow disk does not refuse it. */
enum status disk_read_patient(struct disk *d, struct disk_place p, void *at, uint32_t bytes,
			      struct disk_request *q);

/* ---- health (slab/health.c); mutex held ---- */

bool disk_is_slow(struct disk *d);
/* Notes that a transfer or a file operation failed with that errno. */
void disk_failed(struct disk *d, int error, const char *what, uint32_t slab);
void disk_full_grow(struct disk *d, int error, uint32_t slab);
void disk_full_write(struct disk *d, int error, uint32_t slab);
void disk_give_up(struct disk *d, const char *why);

#endif
