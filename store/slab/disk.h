/* A disk: one data folder of slab files, each a run of equal slots, on a ring of its own.
 *
 *     FOLDER/disk.id            who the disk is: a random 64-bit id, format version, its own CRC
 *     FOLDER/slab-000017.trc    [4 KiB slab header | slot 0 | slot 1 | ...]
 *     FOLDER/slab-000018.tmp    a slab that is being made; removed at open
 *     FOLDER/slab-000018.gone   empty: the highest number once used, when that slab was dropped
 *     FOLDER/quarantine         why the disk was given up; the slabs are wiped at the next open
 *     FOLDER/run                the run that used the disk last, as its owner names it
 *     FOLDER/absent             which disks were not in use while this one was, as its owner told it
 *
 * A slab's slots have one size, the stride of its class (store/class_rule.h); blocks of all layouts of that class share
 * it. A block may be smaller than its slot: a transfer has the block's bytes and not the slot's. Slabs are made when
 * they are needed, preallocated, until the budget is used; a disk slot has the bytes of a host slot (store/slot.h), so
 * a spill is one write and a load is one read, straight from and to the host tier's registered memory.
 *
 * A slab is of one class for its whole life. To give its bytes to another class it is deleted, and a new file with a
 * new number is made: an old header at a new offset would bring deleted blocks back. So that every class finds a slab,
 * slabs are small (disk_slab_bytes).
 *
 * The disk knows which slots are taken, not what is in them: the caller decides which block leaves. The rule that keeps
 * deleted blocks dead: *a taken slot is given back only when its header no longer names a block*, that is after
 * disk_tombstone has succeeded on it; a slot whose old block is displaced by a new one is simply written again and
 * never given back between. So a scan of headers finds no block that its owner believed to be gone.
 *
 * Health, the worst first: QUARANTINED: a read, write or sync met EIO (or anything else that a sound disk does not say;
 * lack of memory is not the disk's): nothing is read or written any more, for the life of this struct; what waits is
 * cancelled; and a marker file is tried to be left (FOLDER/quarantine, on a thread of its own), with which the next
 * disk_open wipes the slabs and takes a new id before the folder is used again: what was deleted meanwhile could not be
 * tombstoned there. SLOW: the oldest transfer the kernel has is older than slow_us: idle and ahead requests are refused
 * BUSY until it is younger. FULL: for a second after ENOSPC, EDQUOT or EFBIG: a new slab met it: no slab is made; a
 * write met it: nor is a slot taken or written. Then it is tried again. Reads and tombstones go on.
 *
 * O_DIRECT where the file system has it (else plain, and disk_look says so).
 *
 * Threads: any; a mutex inside, held for short. Completions as in store/ring/ring.h. disk_slab_prepare lasts
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
	/* Of disk.id and slab headers. A newer version is refused. 2 is opened too: its slots have headers of
	 * SLOT_VERSION 2. 1 is opened too: its slab headers have no checksum, so they are checked against the file's
	 * size alone. disk.id gets the present version as soon as the folder is opened, since an older daemon would
	 * take the slots written from then on for damaged ones. */
	DISK_VERSION = 3,
	DISK_SLABS_MAX = RING_FILES_MAX - 1, /* one is disk.id */
	DISK_SLAB_HEADER_BYTES = 4096,
	DISK_SLABS_WISHED = 1024, /* of a disk: what one slab takes is the budget divided by it */
	DISK_SLABS_AT_ONCE = 16,
	DISK_SLABS_ENOUGH = 1536, /* a smaller wish makes slabs so small that there are so many, not more */
};
#define DISK_SLAB_BYTES_LEAST (1ull << 20)

/* What a slab file of a disk with that budget takes: a DISK_SLABS_WISHED-th of it and DISK_SLAB_BYTES_LEAST at
 * least, so that a disk has more slabs than there are classes; at most most_bytes (0: no bound), as long as not more
 * than `files` slabs come of it (0: DISK_SLABS_ENOUGH). A slab whose one slot is larger takes what that needs; slots
 * that do not fill a slab make it smaller, by less than half: a disk has at most twice `files`. */
uint64_t disk_slab_bytes(uint64_t budget_bytes, uint64_t most_bytes, uint32_t files);

struct disk_options {
	const char *folder;        /* made (0700) if it is missing, unless must_exist; its parent must exist */
	bool must_exist;           /* the folder has been a disk: where its disk.id is missing, nothing is made */
	uint64_t budget_bytes;     /* over all slab files */
	uint64_t slab_bytes;       /* wished size of a slab file: disk_slab_bytes; at most the budget */
	uint64_t slow_us;          /* 0: never slow; looked at once a millisecond at most */
	struct ring_options ring;
};

struct disk;

struct disk_place {
	uint32_t slab;             /* number in the file name, never used twice under one disk_id; 0: no place */
	uint32_t slot;
};

/* INVALID, EXHAUSTED as elsewhere. BUSY: another process has the folder (flock on disk.id).
 * UNSUPPORTED: of a newer version. CORRUPT: disk.id is damaged, is no disk.id, or is missing though
 * there are slabs: nothing was touched. NOT_FOUND: must_exist, and there is no disk.id (an empty one in a folder without
 * slabs stands for a new disk): nothing was made. IO: the folder cannot be made, read or written (no marker is
 * left: who goes on without the disk must know that its old slots are still there). Otherwise as
 * ring_create. why (never NULL) gets a sentence with the file and the reason, at most why_bytes long.
 * Slab files with a damaged header are left alone, counted in disk_look, told by disk_slab_problem and not used. Slots of existing
 * slabs are all taken at first: after the catalog or a scan has spoken, call disk_slot_free_unmarked. */
enum status disk_open(const struct disk_options *o, struct disk **out, char *why, size_t why_bytes);
/* Waits for what is under way, cancels the rest, syncs nothing. NULL allowed. */
void disk_close(struct disk *d);
/* The same, but waits no longer than wait_us for a disk that hangs, with a transfer or with a thread that makes or
 * deletes a slab. False: the disk is left behind. The kernel may still read and write the memory of its requests. So
 * that memory and all buffers must stay mapped, and unused, to the end of the process. `done` has returned where it
 * ran, and is not called any more; the folder stays locked; d must not be used. */
bool disk_close_by(struct disk *d, uint64_t wait_us);
/* Without waiting: left behind as by disk_close_by. For a caller with a thread that hangs inside with the disk
 * (disk_scan). */
void disk_leave(struct disk *d);
uint64_t disk_id(const struct disk *d);

/* The run that used the disk last, as disk_run_set noted it; 0: not known (none did, an older version, a damaged file
 * or another disk's). An owner that keeps a catalog of the disk sees by it whether the catalog is of that run. */
uint64_t disk_run(const struct disk *d);
/* Notes durably that a run uses the disk from now on; before the first slot is taken. run: not 0, and never used before. OK: the note
 * is `run`, or could not be made and is 0. UNAVAILABLE: the old one could not even be taken away: the disk is quarantined. One
 * thread at a time. Lasts. */
enum status disk_run_set(struct disk *d, uint64_t run);

/* Disks that were not in use while this one was, by their ids, as disk_absent_set noted them; how many. Who keeps elsewhere what happened
 * to them, and has lost that, knows by it. None: no list, or a damaged one. */
enum { DISK_ABSENT_MAX = 1024 };
uint32_t disk_absent(const struct disk *d, uint64_t ids[DISK_ABSENT_MAX]);
/* Notes durably that these are (the first DISK_ABSENT_MAX), and no others. IO: the list is as it was. One thread at a time. Lasts. */
enum status disk_absent_set(struct disk *d, const uint64_t *ids, uint32_t count);

/* ---- slots ---- */

/* A free slot of that size. MISS: none is free now; disk_slab_prepare may make some. EXHAUSTED: full.
 * UNAVAILABLE: quarantined. INVALID: no multiple of 4096 up to SLOT_BYTES_MAX. */
enum status disk_slot_take(struct disk *d, uint64_t slot_bytes, struct disk_place *out);
/* Its header has been tombstoned, or was never written (a write that failed or was cancelled before it
 * began). */
void disk_slot_give(struct disk *d, struct disk_place p);
/* What the disk has for a block of that class now. SLAB: no free slot, but the bytes for a slab, or a slab of another
 * class without a block, for which disk_slab_drop_free and disk_slab_prepare are to be called. NONE: neither, or the
 * disk is full or quarantined. It may change as soon as it is returned. *free_slots: how many of the class are free. */
enum disk_room { DISK_ROOM_NONE, DISK_ROOM_SLAB, DISK_ROOM_SLOT };
enum disk_room disk_room(struct disk *d, uint64_t slot_bytes, uint64_t *free_slots);
/* Makes a slab of that size unless one has a free slot: OK. EXHAUSTED: no budget left (displace
 * something, or disk_slab_drop an empty slab of another size first) or the file system is full, or
 * DISK_SLABS_MAX, descriptors or memory are used up. IO, UNAVAILABLE (quarantined), INVALID. Lasts; one
 * at a time. */
enum status disk_slab_prepare(struct disk *d, uint64_t slot_bytes);
/* The same, up to `most` of them (DISK_SLABS_AT_ONCE) for the syncs of one, unless free_least slots are free; OK: at least
 * one was made, or none was needed. */
enum status disk_slabs_prepare(struct disk *d, uint64_t slot_bytes, uint32_t most, uint64_t free_least);
/* Takes an entirely free slab of another size away and deletes its file, so that its bytes can be used
 * again. MISS: there is none without transfers under way. IO, UNAVAILABLE. Lasts. */
enum status disk_slab_drop_free(struct disk *d, uint64_t but_slot_bytes);
/* Deletes a slab file whatever is in it (compaction: the caller has moved or given up its blocks).
 * STALE: no such slab. BUSY: transfers or a sync of it are under way. IO, UNAVAILABLE. Lasts. */
enum status disk_slab_drop(struct disk *d, uint32_t slab);
/* Stops (or resumes) takes from a slab, before it is emptied for disk_slab_drop. */
void disk_slab_close(struct disk *d, uint32_t slab, bool closed);

/* After opening: notes that a slot is in use, by so many bytes. STALE: no such slab or slot, or it is smaller, or
 * free_unmarked was called. EXISTS: marked twice, or taken since. */
enum status disk_slot_mark(struct disk *d, struct disk_place p, uint64_t bytes);
/* Once, when all marks are made: every other slot is free. */
void disk_slot_free_unmarked(struct disk *d);

struct disk_slab_view {
	uint32_t slab, slots, used;
	uint64_t slot_bytes, file_bytes;
	bool closed;
};
/* Slabs by rising number, beginning after `after`; false at the end. */
bool disk_slab_next(struct disk *d, uint32_t after, struct disk_slab_view *out);
/* No new slab file gets that number, or a lower one: it is known elsewhere. */
void disk_slab_skip(struct disk *d, uint32_t slab);
/* Why slab file `slab` is not in use, a fixed sentence about the file ("is missing", "is too short"). NULL: it is in use. */
const char *disk_slab_problem(struct disk *d, uint32_t slab);

/* ---- transfers ---- */

/* A request of one slot. at: slot memory, slot_bytes, 4 KiB aligned; buffer: of disk_buffer_add or
 * RING_NONE. */
struct disk_request {
	struct ring_request ring;  /* first */
	struct disk *disk;
	struct disk_place place;
	void (*done)(struct disk_request *q); /* as in ring/ring.h; set before the call. q->ring.status: the outcome */
	struct disk_request *prev, *next;     /* the disk's */
};

/* OK: done will come. BUSY: slow, and the request is not urgent. EXHAUSTED: too many wait, or (writes)
 * the disk is full. UNAVAILABLE: quarantined. STALE: no such place (write: or the slot is not taken).
 * INVALID: bytes is no multiple of 4096 up to the slot's size. A read delivers bytes and no judgement:
 * slot_header_match and slot_layers_check are the caller's. `bytes` may be less than the slot (a header
 * alone: SLOT_HEADER_BYTES). */
enum status disk_read(struct disk *d, struct disk_place p, void *at, uint32_t bytes, uint32_t buffer,
		      enum ring_priority priority, struct disk_request *q);
enum status disk_write(struct disk *d, struct disk_place p, const void *at, uint32_t bytes, uint32_t buffer,
		       enum ring_priority priority, struct disk_request *q);
/* Writes a tombstone over the slot's header: `page` is SLOT_HEADER_BYTES, 4 KiB aligned, the caller's
 * until done, sealed by slot_tombstone. Urgent, and also on a full disk. */
enum status disk_tombstone(struct disk *d, struct disk_place p, const void *page, struct disk_request *q);
/* Makes all writes that were done before durable, those of earlier runs, slab headers and file sizes too. Urgent. One
 * at a time reaches the kernel; callers that come meanwhile share the next. If it fails, with any errno, the disk is
 * quarantined: it is not known what is durable. */
enum status disk_sync(struct disk *d, struct disk_request *q);
/* A read or write, only while it waits: see ring_promote. False for a sync. */
bool disk_promote(struct disk *d, struct disk_request *q, enum ring_priority priority);
/* Takes a waiting read or write back: its `done` comes with CANCELLED. One that the kernel has goes on: see
 * ring_cancel.
 */
void disk_withdraw(struct disk *d, struct disk_request *q);

/* Memory for transfers without a copy. Not from `done`. */
enum status disk_buffer_add(struct disk *d, void *base, uint64_t bytes, uint32_t *buffer);

/* ---- scan ---- */

/* Reads the header of every slot, in the order of the files, several at a time, and calls visit(arg,
 * place, slot_bytes, header) for each, on the calling thread: with NULL for one that is neither sound nor
 * a tombstone (damaged or never written; *damaged, may be NULL, counts damaged ones, and is written
 * whatever comes back; a header whose block does not fit its slot is damaged). visit may call the disk.
 * Idle priority, but not refused on a slow disk. CANCELLED: visit returned false. IO: the disk failed.
 * UNAVAILABLE: quarantined, or being closed. EXHAUSTED: no memory. Lasts: about 4 KiB a slot. */
enum status disk_scan(struct disk *d,
		      bool (*visit)(void *arg, struct disk_place p, uint64_t slot_bytes,
				    const struct slot_header *h),
		      void *arg, uint64_t *damaged);

/* ---- health ---- */

enum disk_health { DISK_HEALTHY, DISK_FULL, DISK_SLOW, DISK_QUARANTINED };
const char *disk_health_name(enum disk_health h);
/* Tells the disk that its bytes proved wrong `n` times (checksums): counted, for people. */
void disk_note_corrupt(struct disk *d, uint64_t n);
/* The caller found a reason of its own (an unsound answer of the catalog, an operator's order). */
void disk_quarantine(struct disk *d, const char *why);

struct disk_view {
	const char *folder;
	enum disk_health health;
	char why[160];             /* of the health, for people; "" if healthy */
	char shortage[160];        /* what kept a slab or a write from room last, also while it is not tried; "" once there was some since */
	bool direct;               /* O_DIRECT is in use */
	bool space_promised;       /* every slab has its space; false: ENOSPC may come to a write */
	bool wiped;                /* the folder carried a quarantine marker when it was opened */
	uint64_t wiped_id;         /* the id that it had before; 0: not wiped */
	bool marked;               /* quarantined, and the marker was left, or has proved impossible to leave */
	uint64_t budget_bytes, slab_bytes_used; /* damaged slabs included */
	uint64_t slab_bytes;       /* what a slab file takes, unless one slot takes more */
	uint32_t slabs, slabs_damaged;
	uint64_t slots, slots_used, corrupt, refused_slow, full_events;
	struct ring_view ring;
	char refusal[160];         /* ring_refusal */
};
void disk_look(struct disk *d, struct disk_view *out);

#endif
