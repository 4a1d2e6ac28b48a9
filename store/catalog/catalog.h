/* The catalog: what must survive a restart, in LMDB.
 *
 * Tables of small records, written in batches by one thread, never on the caller's time. What is queued together by one thread is
 * applied in that order; a batch is one LMDB transaction, synced, so that after a power cut the catalog is what it was after
 * some batch. The caller queues a record only after the data that it names is on disk. Records are the owner's bytes; the catalog adds
 * its own checksum to each (CRC-32C behind the value) and hands up none that does not match.
 *
 * The file is never trusted: before it is mapped, a child process proves its pages (store/catalog/pages.h: LMDB must not be made to
 * write over live ones) and walks every record of every table (a truncated LMDB file kills its reader with SIGBUS: it is the
 * child that dies). The child also leaves a word for what it found.
 *
 *     FOLDER/data.mdb, lock.mdb     LMDB's; format version in the table meta
 *     FOLDER/lock                   the flock of the one process; files are 0600
 *     FOLDER/new.mdb                one in the making, renamed to data.mdb when it is whole
 *     FOLDER/damaged-1.mdb          what catalog_open has put aside; the last three are kept, the newest has the highest number
 *
 * The map grows by itself when it is full. Readers in other processes (mdb_copy) that have died are cleared at open and every minute.
 *
 * Threads: any but for create and destroy. Completions on the catalog's thread.
 */
#ifndef TERRACE_STORE_CATALOG_CATALOG_H
#define TERRACE_STORE_CATALOG_CATALOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/status.h"

enum {
	/* Opens 2 too, whose blocks have keys of at most 32 bytes: it becomes 3 at open, and its records stay as they
	 * are. Opens 1 too, whose records have no checksum: it is rewritten at open. */
	CATALOG_VERSION = 3,
	CATALOG_KEY_MAX = 128,
	CATALOG_VALUE_MAX = 4096,
	CATALOG_WHY_MAX = 400, /* a sentence with the folder, the cause and the next step */
};

enum catalog_table { CATALOG_BLOCKS, CATALOG_EDGES, CATALOG_LAYOUTS, CATALOG_TENANTS, CATALOG_SLABS, CATALOG_META, CATALOG_TABLES };

struct catalog_options {
	const char *folder;         /* made (0700) if missing */
	uint64_t map_bytes;         /* at first; 0: 64 MiB. Grows up to map_bytes_max */
	uint64_t map_bytes_max;     /* 0: 64 GiB */
	uint64_t queue_bytes_max;   /* waiting at most, 16 bytes a change included; beyond: EXHAUSTED. 0: 64 MiB */
	uint32_t batch_ms;          /* a change waits at most so long for company. 0: 100 */
	uint32_t check_timeout_ms;  /* for the child, and 50 ms more for each MiB of the file, 3 minutes at most. 0: 60 s */
	uint32_t reader_look_ms;    /* how often readers in other processes are looked at. 0: a minute */
	uint32_t reader_old_ms;     /* how long one of them may see the same state before the view tells of it. 0: 10 minutes */
	const char *child;          /* a program that is run as `child catalog-check FOLDER` by posix_spawn, NULL: a plain fork (only
				     * while the process has one thread) */
};

enum catalog_state {
	CATALOG_FOUND,              /* sound, used as it is */
	CATALOG_FRESH,              /* there was none: made anew */
	CATALOG_DAMAGED,            /* put aside, and made anew: the caller rebuilds it from the slots */
};

struct catalog;

/* OK with *state. UNSUPPORTED: of a newer version; nothing was touched. BUSY: another process has it
 * (flock on FOLDER/lock). IO: the folder cannot be used, or the child could not do its work.
 * EXHAUSTED: no memory. why: a sentence of at most why_bytes (from 1), also for CATALOG_DAMAGED; else
 * "". The calling thread must be the only one that forks; SIGCHLD must not be ignored. */
enum status catalog_open(const struct catalog_options *o, struct catalog **out, enum catalog_state *state, char *why,
			 size_t why_bytes);
/* Commits what is queued (tried once more if the catalog has failed), tells the flushes, then closes.
 * Nobody calls anything any more. NULL allowed. */
void catalog_close(struct catalog *c);
/* The same, but waits no longer than wait_us. False: the disk under it hangs, and it is left behind as it is, with its thread, to the end
 * of the process: completions may still come. */
bool catalog_close_by(struct catalog *c, uint64_t wait_us);

/* The child's work: opens FOLDER read-only and walks everything. Returns the process's exit code: 0
 * sound, 1 damaged, 2 newer version, 3 cannot tell (I/O). A sentence goes to standard error.
 * Single-threaded callers only; the process gives up core files, and dies with its parent. */
int catalog_check(const char *folder);

/* Queues a change; key and value are copied. OK, EXHAUSTED (queue full: nothing queued, and a batch
 * begins at once), INVALID (sizes; or the key "format" of the table meta, which is the catalog's own),
 * UNAVAILABLE (the queue is full because the catalog has failed, see catalog_look). */
enum status catalog_put(struct catalog *c, enum catalog_table t, const void *key, size_t key_bytes, const void *value, size_t value_bytes);
enum status catalog_drop(struct catalog *c, enum catalog_table t, const void *key, size_t key_bytes);
/* Drops every record of the table. OK, EXHAUSTED, INVALID, UNAVAILABLE as above. */
enum status catalog_empty(struct catalog *c, enum catalog_table t);

/* Calls done(arg, status) when everything queued before is committed and synced: OK, or IO, EXHAUSTED
 * (the file system, a quota, a limit on the size of files or the map is full): it is not, and the view's `why` says why. done runs on the catalog's thread and may queue, but not wait. Starts
 * a batch at once; while the catalog has failed, done comes with the next try. What failed stays
 * queued. EXHAUSTED, UNAVAILABLE: as above, but only beyond 64 KiB of flushes on top of a full queue;
 * done will not come. */
enum status catalog_flush(struct catalog *c, void (*done)(void *arg, enum status s), void *arg);

/* Reads in a snapshot of its own, without what is still queued. get: MISS; *value_bytes in: room, out:
 * size; INVALID: sizes, or the room is too small. CORRUPT: its checksum. EXHAUSTED: more than 510
 * readers at a time. IO: the file cannot be read at present. */
enum status catalog_get(struct catalog *c, enum catalog_table t, const void *key, size_t key_bytes, void *value, size_t *value_bytes);
/* Every record in key order, until visit returns false. Records with a wrong checksum are skipped and counted in
 * *damaged (may be NULL). A walk must not last for hours: LMDB keeps old pages for it, and a map that must grow waits
 * for it. Readers do not wait for that: visit may call get, and may take a lock under which others call it. It may
 * queue changes, but not wait for a flush. key and value are valid during the visit, and unaligned. walk_from: begins
 * at the first key that is not before the given one, for walks in parts. */
enum status catalog_walk(struct catalog *c, enum catalog_table t,
			 bool (*visit)(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes), void *arg,
			 uint64_t *damaged);
enum status catalog_walk_from(struct catalog *c, enum catalog_table t, const void *key, size_t key_bytes,
			      bool (*visit)(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes), void *arg,
			      uint64_t *damaged);

struct catalog_view {
	enum status failed;         /* not OK: commits fail since; `why` says why. Retried each second; puts go on until the queue is full */
	char why[CATALOG_WHY_MAX];
	uint64_t queued_bytes, batches, changes, commit_us_max, map_bytes, map_grown;
	uint64_t used_bytes;        /* of the file, pages that are free again included */
	uint64_t records[CATALOG_TABLES]; /* committed */
	uint64_t readers_cleared;   /* places of readers that had died, so that their pages could be used again */
	int reader_pid;             /* of a process that has read for reader_old_ms a state that is not the last one: no page that has changed
				     * since is used again. 0: none. For how long, and by how much the file has grown meanwhile: */
	uint64_t reader_us, reader_grown_bytes;
};
void catalog_look(struct catalog *c, struct catalog_view *out);

#endif
