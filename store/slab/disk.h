/* A disk: one data folder of slab files, each a run of equal slots, on a ring of its own.
 *
 *     FOLDER/disk.id            the disk's identity: a random 64-bit id, format version, a CRC of the file
 *     FOLDER/slab-000017.trc    [4 KiB slab header | slot 0 | slot 1 | ...]
 *     FOLDER/slab-000018.tmp    a slab that is being made; removed at open
 *     FOLDER/slab-000018.gone   empty: the highest number once used, when that slab was dropped
 *     FOLDER/quarantine         why the disk was given up; the slabs are wiped at the next open
 *     FOLDER/run                the run that used the disk last, as the disk's owner names it
 *     FOLDER/absent             other disks that were not in use while this one was, as the owner listed them
 *
 * Slabs. A slab's slots have one size, the stride of its class (store/class_rule.h); blocks of all layouts of that
 * class share it. A block may be smaller than its slot: a transfer has the block's bytes and not the slot's. Slabs are
 * made when they are needed, preallocated, until the budget is used. A disk slot has the bytes of a host slot
 * (store/slot.h). So a spill is one write and a load is one read, straight from and to the host tier's registered
 * memory.
 *
 * A slab is of one class for its whole life. To give its bytes to another class it is deleted, and a new file with a
 * new number is made: in a file with other slots, old headers at new offsets could bring deleted blocks back. Slabs are
 * small (disk_slab_bytes), so that every class finds one.
 *
 * Slots. The disk knows which slots are taken, not what is in them: the caller decides which block leaves. One rule
 * keeps deleted blocks deleted: *a taken slot is given back only when its header no longer names a block*, that is,
 * after disk_tombstone has succeeded on it. A slot whose old block is displaced by a new one is simply written again,
 * and is not given back in between. So a scan of headers finds no block that the owner believed to be deleted.
 *
 * Health, the worst first:
 *
 *     QUARANTINED  A read, write or sync met EIO, or another error that a sound disk does not report (lack of memory
 *                  is the machine's). Nothing is read or written any more, for the life of this struct, and waiting
 *                  requests are cancelled. A thread tries to leave the marker file FOLDER/quarantine. With it the
 *                  next disk_open wipes the slabs and takes a new id before the folder is used again: deletes
 *                  meanwhile left no tombstones there.
 *     SLOW         The oldest transfer that the kernel has is older than slow_us. Requests below RING_URGENT are
 *                  refused with BUSY until it is younger.
 *     FULL         For a second after ENOSPC, EDQUOT or EFBIG. If making a slab met it, no slab is made. If a write
 *                  met it, no slot is taken or written either. After the second it is tried again. Reads and
 *                  tombstones go on.
 *
 * Transfers use O_DIRECT where the file system has it, else the page cache; disk_look tells which.
 *
 * Threads: any; a mutex inside, held briefly. Completions as in store/ring/ring.h. disk_slab_prepare is slow
 * (fallocate).
 */
#ifndef TERRACE_STORE_SLAB_DISK_H
#define TERRACE_STORE_SLAB_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/ring/ring.h"
#include "store/status.h"

struct slot_header;

enum {
	/* The version of disk.id and of slab headers. A newer one is refused. Version 2 is opened too: its slots have
	 * headers of SLOT_VERSION 2. Version 1 is opened too: its slab headers have no checksum, so they are checked
	 * against the file's size alone. disk.id gets the present version as soon as the folder is opened, since an
	 * older daemon would take the slots written from then on for damaged ones. */
	DISK_VERSION = 3,
	DISK_SLABS_MAX = RING_FILES_MAX - 1, /* one is disk.id */
	DISK_SLAB_HEADER_BYTES = 4096,
	DISK_SLABS_WISHED = 1024, /* the wished number of slabs of a disk: a slab takes the budget divided by it */
	DISK_SLABS_AT_ONCE = 16,
	DISK_SLABS_ENOUGH = 1536, /* a smaller wished size is raised until a disk has at most so many slabs */
};
#define DISK_SLAB_BYTES_LEAST (1ull << 20)

/* The size of a slab file on a disk with that budget: budget / DISK_SLABS_WISHED, at least DISK_SLAB_BYTES_LEAST, so
 * that a disk has more slabs than there are classes. It is at most most_bytes (0: no bound), unless that would make
 * more than `files` slabs (0: DISK_SLABS_ENOUGH). A slab whose one slot needs more takes what the slot needs. Slots
 * that do not fill a slab make it smaller, by less than half: so a disk has at most twice `files` slabs. */
uint64_t disk_slab_bytes(uint64_t budget_bytes, uint64_t most_bytes, uint32_t files);

struct disk_options {
	const char *folder;        /* made (0700) if it is missing, unless must_exist; its parent must exist */
	bool must_exist;           /* the folder has been a disk before: if its disk.id is missing, nothing is made */
	uint64_t budget_bytes;     /* the bytes of all slab files together */
	uint64_t slab_bytes;       /* wished size of a slab file (disk_slab_bytes); at most the budget */
	uint64_t slow_us;          /* 0: never slow; the age is looked at once a millisecond at most */
	struct ring_options ring;
};

struct disk;

struct disk_place {
	uint32_t slab;             /* number in the file name, never used twice under one disk_id; 0: no place */
	uint32_t slot;
};

/* Opens a disk. BUSY: another process has the folder (flock on disk.id). UNSUPPORTED: the folder is of a newer version.
 * CORRUPT: disk.id is damaged, is no disk.id, or is missing though there are slabs; nothing was touched. NOT_FOUND:
 * must_exist, and there is no disk.id; nothing was made. (An empty disk.id in a folder without slabs stands for a new
 * disk.) IO: the folder cannot be made, read or written. No marker is left then, so a caller that goes on without the
 * disk must know that the disk's old slots are still there. INVALID: an option. EXHAUSTED: no memory or descriptors.
 * Otherwise as ring_create. why (never NULL) gets a sentence with the file and the reason, at most why_bytes long.
 *
 * Slab files with a damaged header are left alone and not used; disk_look counts them, and disk_slab_problem names the
 * problem. All slots of existing slabs are taken at first. After the catalog or a scan has marked the slots in use,
 * call disk_slot_free_unmarked. */
enum status disk_open(const struct disk_options *o, struct disk **out, char *why, size_t why_bytes);
/* Waits for requests under way and cancels the others. Syncs nothing. NULL allowed. */
void disk_close(struct disk *d);
/* As disk_close, but waits no longer than wait_us for a disk that hangs: in a transfer, or in a thread that makes or
 * deletes a slab. False: the disk is left behind. The kernel may still read and write the memory of its requests. So
 * that memory and all buffers must stay mapped, and unused, to the end of the process. A running `done` has returned
 * then, and `done` is not called any more. The folder stays locked. d must not be used any more. */
bool disk_close_by(struct disk *d, uint64_t wait_us);
/* Leaves the disk behind, as disk_close_by does, without waiting. For a caller that has a thread which hangs inside the
 * disk (disk_scan). */
void disk_leave(struct disk *d);
uint64_t disk_id(const struct disk *d);

/* The run that used the disk last, as disk_run_set noted it. 0: not known (no run was noted, or the note is of an older
 * version, damaged or another disk's). An owner that keeps a catalog of the disk can tell by it whether the catalog is
 * of that run. */
uint64_t disk_run(const struct disk *d);
/* Notes durably that a run uses the disk from now on. Called before the first slot is taken. run: not 0, and never used
 * before. OK: the note is `run`, or it could not be made and is 0. UNAVAILABLE: even the old note could not be removed,
 * and the disk is quarantined. One thread at a time. Slow. */
enum status disk_run_set(struct disk *d, uint64_t run);

/* Reads the ids of the disks that were not in use while this one was, as disk_absent_set noted them. Returns their
 * number; 0: there is no list, or it is damaged. The owner keeps the same facts in its catalog. The list is for the
 * case that the catalog was lost: the owner can still tell on which disks blocks may lack their deletion. */
enum { DISK_ABSENT_MAX = 1024 };
uint32_t disk_absent(const struct disk *d, uint64_t ids[DISK_ABSENT_MAX]);
/* Replaces the list durably by these ids (the first DISK_ABSENT_MAX). IO: the list is as it was. One thread at a time.
 * Slow. */
enum status disk_absent_set(struct disk *d, const uint64_t *ids, uint32_t count);

/* ---- slots ---- */

/* Takes a free slot of that size. MISS: no slot is free now; disk_slab_prepare may make some. EXHAUSTED: the disk is
 * full. UNAVAILABLE: quarantined. INVALID: slot_bytes is no multiple of 4096 up to SLOT_BYTES_MAX. */
enum status disk_slot_take(struct disk *d, uint64_t slot_bytes, struct disk_place *out);
/* Gives a slot back. The slot's header has been tombstoned, or was never written (the write failed or was cancelled
 * before it began). */
void disk_slot_give(struct disk *d, struct disk_place p);
/* What the disk has for a block of that class now. SLOT: a free slot. SLAB: no free slot, but the bytes for a slab, or
 * a slab of another class without a block; disk_slab_drop_free and disk_slab_prepare then make room. NONE: neither, or
 * the disk is full or quarantined. The answer may be outdated as soon as it is returned. *free_slots: the number of
 * free slots of the class. */
enum disk_room { DISK_ROOM_NONE, DISK_ROOM_SLAB, DISK_ROOM_SLOT };
enum disk_room disk_room(struct disk *d, uint64_t slot_bytes, uint64_t *free_slots);
/* Makes a slab of that size, unless one has a free slot: OK. EXHAUSTED: no budget is left (displace a block, or drop an
 * empty slab of another size first); or the file system is full; or DISK_SLABS_MAX, descriptors or memory are used up.
 * IO, UNAVAILABLE (quarantined), INVALID. Slow; one at a time. */
enum status disk_slab_prepare(struct disk *d, uint64_t slot_bytes);
/* As disk_slab_prepare, but makes up to `most` slabs (DISK_SLABS_AT_ONCE at most) with the syncs of one, unless
 * free_least slots are free already. OK: at least one slab was made, or none was needed. */
enum status disk_slabs_prepare(struct disk *d, uint64_t slot_bytes, uint32_t most, uint64_t free_least);
/* Deletes the file of a slab of another size that has no taken slot, so that its bytes can be used again. MISS: there
 * is none without transfers or a sync under way. IO, UNAVAILABLE. Slow. */
enum status disk_slab_drop_free(struct disk *d, uint64_t but_slot_bytes);
/* Deletes a slab file, whatever is in it. For compaction: the caller has moved or given up its blocks. STALE: no such
 * slab. BUSY: transfers or a sync of it are under way. IO, UNAVAILABLE. Slow. */
enum status disk_slab_drop(struct disk *d, uint32_t slab);
/* Stops (or resumes) takes from a slab, before it is emptied for disk_slab_drop. */
void disk_slab_close(struct disk *d, uint32_t slab, bool closed);

/* Called after opening: notes that a slot is in use, by so many bytes. STALE: no such slab or slot, or the slot is
 * smaller, or disk_slot_free_unmarked was called. EXISTS: marked twice, or taken since. */
enum status disk_slot_mark(struct disk *d, struct disk_place p, uint64_t bytes);
/* Called once, when all marks are made: every other slot is free from then on. */
void disk_slot_free_unmarked(struct disk *d);

struct disk_slab_view {
	uint32_t slab, slots, used;
	uint64_t slot_bytes, file_bytes;
	bool closed;
};
/* The slab with the lowest number above `after`; false: there is none. */
bool disk_slab_next(struct disk *d, uint32_t after, struct disk_slab_view *out);
/* No new slab file gets that number, or a lower one. For a number that is in use elsewhere. */
void disk_slab_skip(struct disk *d, uint32_t slab);
/* Why slab file `slab` is not in use: a fixed sentence about the file ("is missing", "is too short"). NULL: it is in
 * use. */
const char *disk_slab_problem(struct disk *d, uint32_t slab);

/* ---- transfers ---- */

/* A request for one slot. In the calls below `at` is the slot's memory: slot_bytes long and 4 KiB aligned; `buffer` is
 * of disk_buffer_add, or RING_NONE. */
struct disk_request {
	struct ring_request ring;  /* first */
	struct disk *disk;
	struct disk_place place;
	void (*done)(struct disk_request *q); /* as in ring/ring.h; the caller sets it before the call. q->ring.status
					       * has the outcome */
	struct disk_request *prev, *next;     /* the disk's */
};

/* OK: done will be called. BUSY: the disk is slow, and the request is not urgent. EXHAUSTED: too many requests wait, or
 * (writes) the disk is full. UNAVAILABLE: quarantined. STALE: no such place, or (writes) the slot is not taken.
 * INVALID: `bytes` is no multiple of 4096 up to the slot's size, or `at` is not aligned. `bytes` may be less than the
 * slot; a header alone is SLOT_HEADER_BYTES. A read does not check its bytes: the caller calls slot_header_match and
 * slot_layers_check. */
enum status disk_read(struct disk *d, struct disk_place p, void *at, uint32_t bytes, uint32_t buffer,
		      enum ring_priority priority, struct disk_request *q);
enum status disk_write(struct disk *d, struct disk_place p, const void *at, uint32_t bytes, uint32_t buffer,
		       enum ring_priority priority, struct disk_request *q);
/* Writes a tombstone over the slot's header. `page` is SLOT_HEADER_BYTES, 4 KiB aligned, made by slot_tombstone; the
 * caller keeps it valid until done. The write is urgent, and also goes to a full disk. */
enum status disk_tombstone(struct disk *d, struct disk_place p, const void *page, struct disk_request *q);
/* Makes durable all writes that were done before the call, those of earlier runs too, with slab headers and file sizes.
 * Urgent. One sync at a time reaches the kernel; callers that come meanwhile share the next. If a sync fails, with any
 * errno, the disk is quarantined: it is not known what is durable. */
enum status disk_sync(struct disk *d, struct disk_request *q);
/* Raises the priority of a read or write that still waits: see ring_promote. False for a sync. */
bool disk_promote(struct disk *d, struct disk_request *q, enum ring_priority priority);
/* Takes a waiting read or write back: its `done` is called with CANCELLED. A request that the kernel has goes on: see
 * ring_cancel. */
void disk_withdraw(struct disk *d, struct disk_request *q);

/* Registers memory, for transfers without a copy: see ring_buffer_add. Not from `done`. */
enum status disk_buffer_add(struct disk *d, void *base, uint64_t bytes, uint32_t *buffer);
/* Ends that: see ring_buffer_remove. Not from `done`. */
void disk_buffer_remove(struct disk *d, uint32_t buffer);

/* ---- scan ---- */

/* Reads the header of every slot, in the order of the files, several at a time. Calls visit(arg, place, slot_bytes,
 * header) for each, on the calling thread; visit may call the disk. header is NULL if it is unsound: damaged or never
 * written. (A tombstone is sound.) *damaged (may be NULL) counts the damaged headers, and is written whatever the
 * outcome; a header whose block does not fit its slot counts as damaged. The reads have idle priority, but a slow disk
 * does not refuse them. CANCELLED: visit returned false. IO: the disk failed. UNAVAILABLE: quarantined, or being
 * closed. EXHAUSTED: no memory. Slow: about 4 KiB are read for each slot. */
enum status disk_scan(struct disk *d,
		      bool (*visit)(void *arg, struct disk_place p, uint64_t slot_bytes,
				    const struct slot_header *h),
		      void *arg, uint64_t *damaged);

/* ---- health ---- */

enum disk_health { DISK_HEALTHY, DISK_FULL, DISK_SLOW, DISK_QUARANTINED };
const char *disk_health_name(enum disk_health h);
/* Notes that bytes of the disk failed their checksums `n` times. The disk counts them for people and does nothing
 * else. */
void disk_note_corrupt(struct disk *d, uint64_t n);
/* Quarantines the disk for a reason of the caller's (an unsound answer of the catalog, an operator's order). */
void disk_quarantine(struct disk *d, const char *why);

struct disk_view {
	const char *folder;
	enum disk_health health;
	char why[160];             /* the reason for the health, for people; "" if healthy */
	char shortage[160];        /* the last shortage that stopped a new slab or a write, kept while nothing new is
				    * tried; "" once one succeeded since */
	bool direct;               /* O_DIRECT is in use */
	bool space_promised;       /* every slab has its space on the file system; false: a write may meet ENOSPC */
	bool wiped;                /* the folder carried a quarantine marker when it was opened */
	uint64_t wiped_id;         /* the id that the disk had before; 0: not wiped */
	bool marked;               /* quarantined, and the marker was written, or could not be written */
	uint64_t budget_bytes, slab_bytes_used; /* damaged slabs included */
	uint64_t slab_bytes;       /* the size of a slab file, unless one slot needs more */
	uint32_t slabs, slabs_damaged;
	uint64_t slots, slots_used, corrupt, refused_slow, full_events;
	struct ring_view ring;
	char refusal[160];         /* ring_refusal */
};
void disk_look(struct disk *d, struct disk_view *out);

#endif
