/* The catalog: what must survive a restart, in LMDB.
 *
 * The catalog has tables of small records. One thread writes them in batches, never on the caller's time. Changes that
 * one thread queues are applied in that order. A batch is one LMDB transaction, synced: after a power cut the catalog
 * is what it was after some batch. The caller queues a record only after the data that it names is on disk. Records are
 * the owner's bytes. The catalog adds its own checksum to each (CRC-32C behind the value) and returns no record whose
 * checksum does not match.
 *
 * The file is never trusted. Before it is mapped, a child process checks its pages (store/catalog/pages.h), since wrong
 * pages could make LMDB write over live ones. The child then walks every record of every table. A truncated LMDB file
 * kills its reader with SIGBUS: that kills the child and not the daemon. The child also leaves a sentence about what it
 * found.
 *
 *     FOLDER/data.mdb, lock.mdb     LMDB's; format version in the table meta
 *     FOLDER/lock                   the flock of the one process; files are 0600
 *     FOLDER/new.mdb                one that is being made, renamed to data.mdb when it is whole
 *     FOLDER/damaged-1.mdb          put aside by catalog_open; the last three are kept, the newest as the highest
 *
 * The map grows by itself when it is full. Places of readers in other processes (mdb_copy) that have died are cleared
 * at open and every minute.
 *
 * Threads: any, except for opening and closing. Completions run on the catalog's thread.
 */
#ifndef TERRACE_STORE_CATALOG_CATALOG_H
#define TERRACE_STORE_CATALOG_CATALOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/status.h"

enum {
	/* Version 2 is opened too: its blocks have keys of at most 32 bytes. It becomes 3 at open, and its records stay
	 * as they are. Version 1 is opened too: its records have no checksum. It is rewritten at open. */
	CATALOG_VERSION = 3,
	CATALOG_KEY_MAX = 128,
	CATALOG_VALUE_MAX = 4096,
	CATALOG_WHY_MAX = 400, /* a sentence with the folder, the cause and the next step */
};

enum catalog_table { CATALOG_BLOCKS, CATALOG_EDGES, CATALOG_LAYOUTS, CATALOG_TENANTS, CATALOG_SLABS, CATALOG_META, CATALOG_TABLES };

struct catalog_options {
	const char *folder;         /* made (0700) if missing */
	uint64_t map_bytes;         /* the first size; 0: 64 MiB. It grows up to map_bytes_max */
	uint64_t map_bytes_max;     /* 0: 64 GiB */
	uint64_t queue_bytes_max;   /* bytes that wait at most, 16 a change included; beyond: EXHAUSTED. 0: 64 MiB */
	uint32_t batch_ms;          /* a change waits at most so long for others. 0: 100 */
	uint32_t check_timeout_ms;  /* the time of the child, plus 50 ms for each MiB of the file (3 minutes at most).
				     * 0: 60 s */
	uint32_t reader_look_ms;    /* how often readers in other processes are looked at. 0: a minute */
	uint32_t reader_old_ms;     /* how long such a reader may see the same state before the view reports it. 0: 10
				     * minutes */
	const char *child;          /* a program that posix_spawn runs as `child catalog-check FOLDER`; NULL: a plain
				     * fork (only while the process has one thread) */
};

enum catalog_state {
	CATALOG_FOUND,              /* sound, used as it is */
	CATALOG_FRESH,              /* there was none: made anew */
	CATALOG_DAMAGED,            /* put aside, and made anew: the caller rebuilds it from the slots */
};

struct catalog;

/* Opens the catalog: OK with *state. UNSUPPORTED: the file is of a newer version; nothing was touched. BUSY: another
 * process has the catalog (flock on FOLDER/lock). IO: the folder cannot be used, or the child could not do its work.
 * EXHAUSTED: no memory or thread. why gets a sentence of at most why_bytes (from 1), also with CATALOG_DAMAGED;
 * otherwise "". No other thread may fork meanwhile; SIGCHLD must not be ignored. */
enum status catalog_open(const struct catalog_options *o, struct catalog **out, enum catalog_state *state, char *why,
			 size_t why_bytes);
/* Commits what is queued (tried once more if the catalog has failed), calls the waiting flushes' done, then closes. No
 * other thread may use the catalog any more. NULL allowed. */
void catalog_close(struct catalog *c);
/* As catalog_close, but waits no longer than wait_us. False: the disk under it hangs. The catalog is then left behind,
 * with its thread, to the end of the process; completions may still come. */
bool catalog_close_by(struct catalog *c, uint64_t wait_us);

/* The child's work: opens FOLDER read-only and walks everything. Returns the process's exit code: 0 sound, 1 damaged, 2
 * newer version, 3 not known (I/O). A sentence goes to standard error. Only for a process with one thread; the process
 * disables core files and dies with its parent. */
int catalog_check(const char *folder);

/* Queues a change; key and value are copied. OK. EXHAUSTED: the queue is full; nothing was queued, and a batch begins
 * at once. INVALID: a size, or the key "format" of the table meta, which is the catalog's own. UNAVAILABLE: the queue
 * is full because the catalog has failed (see catalog_look). */
enum status catalog_put(struct catalog *c, enum catalog_table t, const void *key, size_t key_bytes, const void *value, size_t value_bytes);
enum status catalog_drop(struct catalog *c, enum catalog_table t, const void *key, size_t key_bytes);
/* Queues the removal of every record of the table. OK, EXHAUSTED, INVALID, UNAVAILABLE as above. */
enum status catalog_empty(struct catalog *c, enum catalog_table t);

/* Starts a batch at once. Calls done(arg, status) when everything that was queued before is committed and synced: OK.
 * IO or EXHAUSTED (the file system, a quota, a limit on the size of files or the map is full): it is not, it stays
 * queued, and the view's `why` has the reason. While the catalog has failed, done comes with the next attempt. done
 * runs on the catalog's thread; it may queue changes, but not wait. Returns EXHAUSTED, UNAVAILABLE as above, but only
 * when 64 KiB of flushes wait on top of a full queue; done does not come then. */
enum status catalog_flush(struct catalog *c, void (*done)(void *arg, enum status s), void *arg);

/* Reads in a snapshot of its own, without what is still queued. *value_bytes: the room before, the size after the call.
 * MISS: no such record. INVALID: a size is not allowed, or the room is too small. CORRUPT: the record's checksum is
 * wrong. EXHAUSTED: more than 510 readers at a time. IO: the file cannot be read at present. */
enum status catalog_get(struct catalog *c, enum catalog_table t, const void *key, size_t key_bytes, void *value, size_t *value_bytes);
/* Visits every record in key order, until visit returns false. Records with a wrong checksum are skipped and counted in
 * *damaged (may be NULL). A walk must not last for hours: LMDB keeps old pages for it, and a map that must grow waits
 * for it. Other readers do not wait for that growth. So visit may call catalog_get, and may take a lock whose holders
 * call it. visit may queue changes, but must not wait for a flush. key and value are valid during the visit, and
 * unaligned. catalog_walk_from, for walks in parts, begins at the first key that is not before the given one. */
enum status catalog_walk(struct catalog *c, enum catalog_table t,
			 bool (*visit)(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes), void *arg,
			 uint64_t *damaged);
enum status catalog_walk_from(struct catalog *c, enum catalog_table t, const void *key, size_t key_bytes,
			      bool (*visit)(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes), void *arg,
			      uint64_t *damaged);

struct catalog_view {
	enum status failed;         /* not OK: commits fail at present, and `why` has the reason. The catalog retries
				     * each second; puts go on until the queue is full */
	char why[CATALOG_WHY_MAX];
	uint64_t queued_bytes, batches, changes, commit_us_max, map_bytes, map_grown;
	uint64_t used_bytes;        /* bytes of the file in use, free pages included */
	uint64_t records[CATALOG_TABLES]; /* committed */
	uint64_t readers_cleared;   /* places of dead readers that were cleared, so that their pages can be used
				     * again */
	int reader_pid;             /* a process that has read for reader_old_ms a state that is not the last one: pages
				     * that have changed since are not reused. 0: none. The next two: for how long, and
				     * by how much the file has grown meanwhile */
	uint64_t reader_us, reader_grown_bytes;
};
void catalog_look(struct catalog *c, struct catalog_view *out);

#endif
