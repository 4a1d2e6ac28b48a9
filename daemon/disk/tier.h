/* The disk tier behind the cache: what its files ask of each other (disk/tier.c, disk/slab_map.c, disk/transfer.c,
 * disk/load.c, disk/compact.c, disk/spill.c, call/flush.c, block/wait.c, disk/restore.c) and the rest of the cache of them.
 *
 * A *unit* is a disk that is in use. A disk of the options that could not be used at the start is no unit: it is in tier->out, with the reason,
 * until the next start (disk/open.c). A unit's slabs are *racks* here: whose block is in which slot. Racks of one slot size on one unit are a *class*,
 * with an eviction policy of its own, for what leaves a disk is not what leaves memory.
 *
 * A *move* is one transfer: a spill (memory to disk), a load (disk to memory) or a burial (a tombstone over a header). It holds a
 * pin on its block. A block has one move at a time; whoever wants the same waits for it through a link.
 *
 *     spill:  dirty block -> slot (free, or a victim's) -> write -> checksums -> rack, catalog     block stays readable in memory all along
 *     load:   block on disk -> slot in memory -> read -> checksums -> shelf, policy
 *     bury:   slot whose header names a removed block -> tombstone -> free
 *
 * A slab that is given up (compaction, or another slot size needs its bytes) may hold the only durable copy of a block that memory
 * has, and that was flushed: such a block is spilled once more, elsewhere, and the slab is deleted when that copy is synced
 * (disk/compact.c). Until then the block has both slots; the old one is in the graves from the moment that it has the new one.
 *
 * The rule of the dead: the header in a taken disk slot names either the block that the rack has there, or one that nobody could
 * have been told is deleted: Delete waits for the burial, or for the write that displaces the header. Graves are the list of those; of a
 * block that is removed while it is spilled the spill is an orphan, whose end is a burial.
 *
 * Like the rest of the cache, all under its lock but where a comment says otherwise.
 */
#ifndef TERRACE_DAEMON_DISK_TIER_H
#define TERRACE_DAEMON_DISK_TIER_H

#include "daemon/threads/await.h"
#include "daemon/cache_private.h"
#include "daemon/threads/pool.h"
#include "store/catalog/record.h"
#include "store/catalog/catalog.h"
#include "store/slab/disk.h"

enum {
	RACK_BUCKETS = 256,
	MOVE_BUCKETS = 1024,
	CLASS_COLD = 64,
	UNSYNCED_BUCKETS = 1 << 15,
	RACK_CURSOR_BITS = 27,         /* of a walk over the disks */
	RACK_SLOTS_MAX = 1 << RACK_CURSOR_BITS, /* more than the smallest ones in a slab of a TiB, the largest that can be configured */
};

struct rack_slot {
	struct block *block;           /* NULL: none, or it is on its way in or out */
	struct policy_node node;       /* of the class's policy, while block is set */
};

struct rack {
	struct disk_class *class;
	struct rack *next, *hash_next; /* of the class; of the bucket */
	uint32_t slab, slots;
	uint32_t blocks;
	uint32_t moves;                /* spills into and out of it and burials in it that are under way */
	bool leaving;                  /* its slab is to be deleted: what it has is not durable */
	bool sealed;                   /* ... now: nothing is loaded from it any more */
	struct move *copied;           /* spills of its blocks elsewhere: written, not synced */
	struct move *left;             /* burials of what was there, begun when its slab is gone, or stays */
	uint32_t left_count;
	bool gone;                     /* its slab is deleted */
	struct rack_slot at[];
};

struct disk_class {
	struct unit *unit;
	struct disk_class *next;
	uint64_t slot_bytes;
	struct policy *policy;
	uint64_t policy_room;          /* slots that it was told of last */
	struct rack *racks;
	uint64_t slots, blocks;        /* in these */
	bool wanted;                   /* a slab, by the chores */
	bool full;                     /* the budget has no slab for it: displace */
	uint64_t full_us;              /* since when */
	uint64_t cold[CLASS_COLD], cold_us; /* ids of some that may be displaced, as of a search then */
	uint32_t cold_at, cold_count;
};

struct unit {
	struct disk *disk;
	uint64_t id, wiped_id;         /* wiped_id: of what it was before this open; 0: the same */
	uint32_t number;               /* among the units */
	uint32_t configured;           /* among the options' disks: the number that people know it by */
	const struct cache_disk_options *options;
	struct disk_class *classes;
	struct rack *rack_hash[RACK_BUCKETS];
	uint32_t spilling, loading;    /* moves under way */
	bool failed;                   /* its blocks are being given up */
	bool banned;                   /* the catalog has been told */
	bool over;                     /* its slabs take more than its budget, as an earlier run's was larger */
	bool scan;                     /* look at its headers: the catalog's last word is not of its last run */
	uint64_t slabs_lost, blocks_lost; /* as the catalog named them at the start */
	uint64_t sweep;                /* where that is: rack_cursor() */
	bool swept;
	uint64_t doubted;              /* of its blocks; they are looked at: */
	uint64_t look;                 /* ... where the next search for one begins: rack_cursor() */
	uint32_t looks;                /* ... reads under way that nobody waits for */
	int64_t look_bytes;            /* ... that may be read now, as of then: */
	uint64_t look_us;
	uint64_t written, synced;      /* writes of headers, numbered from 1 on, which are all those of earlier runs; so many are durable */
	uint64_t unsynced[UNSYNCED_BUCKETS]; /* the last of them that concerns a name of the bucket: its header was written, or overwritten */
};

#define GENERATIONS_RESERVED (1ull << 32) /* at each start */

enum move_kind { MOVE_SPILL, MOVE_LOAD, MOVE_BURY };

struct move {
	struct disk_request io;        /* first */
	struct cache *cache;
	enum move_kind kind;
	enum ring_priority priority;
	struct move *block_next;       /* of the bucket by block */
	struct move *grave_next;       /* of the bucket by name, if `grave` */
	struct move *hungry_next;      /* loads that wait for memory; burials that the disk did not take yet */
	struct move *orphan_next;
	struct cache_wait_link *links;
	struct unit *unit;
	struct rack *rack;
	uint32_t rack_slot;
	struct block *block;           /* pinned; NULL: a burial */
	struct host_slot slot;         /* of a load */
	struct shelf *shelf;
	bool spare;                    /* of a load: takes only what memory can spare, unless somebody else waits for it */
	bool for_gpu;                  /* of a load: a GPU reads it next; constant */
	bool grave;                    /* the header in the slot names `dead` until this is done */
	struct index_ident dead;
	uint64_t dead_generation;
	struct pool *dead_pool;
	struct slot_header *page;      /* of a burial */
	struct move *also;             /* a burial's second name for the header, after a write that failed */
	struct move *old;              /* of a spill out of a rack: the burial of the slot that the block has there */
	bool written;                  /* ... and in rack->copied */
	struct work check;             /* of a load, and of a spill that has been written; what it found: */
	enum status judged;
	bool known;                    /* of a load: header_crc is that of the header which was written there, */
	uint32_t header_crc;           /* ... and in the end that of the one which was read */
	uint64_t position;             /* of the block's first token */
	struct move *checked_next;
};

/* One thing that a wait waits for: a move, a sync, a commit of the catalog; and a pin it keeps. */
struct cache_wait_link {
	struct cache_wait *wait;       /* NULL: given up; freed when it is done */
	struct cache_wait_link *next;  /* of the wait */
	struct cache_wait_link *move_next;
	struct block *pinned;
	struct gpu *gpu;               /* apart: where; NULL: in memory */
	bool apart;                    /* one copy of it alone is */
	bool done;
	bool errand;                   /* it is of a struct wait_errand */
	uint8_t part;                  /* 1 + of_unit's index; 0: none */
};

/* A link that is a request of its own. */
struct wait_errand {
	struct cache_wait_link link;   /* first */
	struct cache *cache;
	struct disk_request sync;
	uint64_t covers;               /* the unit's `written` when it began */
};

/* A disk of the options that could not be used at the start. */
struct disk_out {
	uint32_t configured;
	char why[CACHE_WHY_MAX];
	const char *remedy;
};

struct tier {
	struct unit units[CACHE_DISKS_MAX];
	uint32_t unit_count;
	struct disk_out out[CACHE_DISKS_MAX];
	uint32_t out_count;
	bool deleted;                  /* a block: it may lie on a disk that is out */
	uint64_t pardon[CACHE_DISKS_MAX]; /* disks that this run banned since they are out: without a delete its end takes that back */
	uint32_t pardon_count;
	bool pardon_folders;           /* the same of the folders of those that are out */
	struct catalog *catalog;
	enum catalog_state catalog_state;
	char catalog_why[160];         /* if it was damaged */
	struct cache_catalog_state found; /* of it: left_out (disks that are neither units nor out), blocks_absent, and what is lost */
	const struct policy_ops *policy;
	struct move *moves[MOVE_BUCKETS], *graves[MOVE_BUCKETS];
	struct move *hungry, **hungry_end;
	struct move *unburied, **unburied_end;
	struct move *orphans;          /* spills whose block was removed: a header that names it may come yet */
	struct move *_Atomic checked;  /* loads that are to be ended, the last first; who found none before his takes the lock, and ends all */
	struct move *_Atomic written;  /* spills that are to be checked, the last first; the thread that found none before its own has all of them checked */
	uint64_t moving_bytes;         /* slots that spills and loads pin */
	uint32_t move_count;
	uint32_t turn;                 /* the unit that spills next */
	uint32_t spill_first;          /* the pool whose blocks do */
	uint64_t first_generation;     /* of this run's takes */
	uint64_t highest_generation;   /* seen on the disks */
	uint64_t doubt;                /* no doubted block has a higher generation; 0: there is none */
	uint64_t hurry_until_us;       /* so long they are looked at as fast as the disks read */
	uint64_t generation_lift;      /* added to those of takes: a lost catalog had promised higher ones */
	bool stopping;
	bool all;                      /* cache_settle: spill everything */
	bool restored;
	bool rebuild;                  /* without the catalog */
	bool scan;                     /* look at every header: the catalog may lag behind them */
	bool renewing;                 /* the catalog is being made anew: a scrub tells it what it finds */
	bool graves_lost;              /* for lack of memory a header may name a dead block: deletes are not sure any more */
	bool lagging;                  /* the catalog could not be told of something: only a scan finds all */
	pthread_t restorer;
	struct await restorer_end;
	bool restorer_started;
	struct cache *left_next;       /* of the caches whose disks were left behind */
	_Atomic bool restorer_stop;
	uint64_t restored_blocks, restored_us;
	uint32_t layouts_kept;         /* pools whose layout the catalog has been told */
};

/* ---- disk/tier.c: birth, death, chores ---- */

/* Without the lock. create opens catalog and disks; start takes up what is there, once the host tier exists. */
enum status tier_create(struct cache *c, const char **why);
uint64_t tier_first_generation(struct cache *c);
enum status tier_start(struct cache *c, const char **why);
/* Ends all moves; no thread of the tier's runs after it. False: a disk has not answered within disk_close_ms, or the catalog's: what its
 * requests touch, which is the whole cache, must stay as it is. read: somebody may be in the catalog still, which then stays open. */
bool tier_stop(struct cache *c, bool read);
void tier_destroy(struct cache *c); /* after the blocks are gone */

/* ---- disk/open.c: what a start finds, and believes ---- */

/* Opens the catalog and the disks of the options: those that can be used are units, the others are out. Not OK: *why says what the daemon is not to
 * start with; what was opened stays open. */
enum status tier_open(struct cache *c, const char **why);
/* By the disk's number among the options; NULL: it is out, or there is none. */
struct unit *unit_configured(struct tier *t, uint32_t configured);
/* Of a disk that has failed: the catalog is told that it is to be wiped before it is used again. False: its queue is full. */
bool unit_ban(struct tier *t, const struct unit *u);
/* At the end, when nothing can be deleted any more: if nothing was, disks that are out keep their blocks. Lasts: the disks write. */
void tier_pardon(struct cache *c);

/* ---- disk/tier.c, again ---- */

void tier_tick(struct cache *c);
/* True: there is something for tier_chores, or cache_disk_chores. */
bool tier_wants(struct cache *c);
void tier_wake(struct cache *c);
/* Without the lock: memory for loads that wait for it. */
void tier_chores(struct cache *c);
/* Without the lock: registers an extent's memory with the disks, into buffer[CACHE_DISKS_MAX]. */
void tier_buffers_add(struct cache *c, const struct extent *e, uint32_t *buffer);
void tier_buffers_drop(struct cache *c, const uint32_t *buffer);
/* A disk said UNAVAILABLE or IO: its blocks are given up from now on. */
void unit_failed(struct cache *c, struct unit *u);
/* If it has failed: all that it has is given up, from the beginning. */
void unit_sweep_anew(struct unit *u);
/* The rows of Stats about disks, without the lock. */
void tier_stats(struct cache *c, cache_stat_fn *emit, void *arg);

/* ---- disk/slab_map.c ---- */

/* On a disk, and to be had there: one that has failed gives up its blocks, some at a time. */
static inline bool rack_serves(const struct block *b)
{
	return b->rack && !b->rack->class->unit->failed;
}
struct rack *rack_find(struct unit *u, uint32_t slab);
/* Made if new. NULL: no memory, or no such slab. */
struct rack *rack_get(struct cache *c, struct unit *u, uint32_t slab);
void racks_free(struct cache *c, struct unit *u);
void rack_free(struct cache *c, struct rack *r);
struct disk_class *class_get(struct cache *c, struct unit *u, uint64_t slot_bytes); /* NULL: no memory */
/* Block b is in that slot from now on (where, counters, policy). */
void rack_attach(struct cache *c, struct rack *r, uint32_t slot, struct block *b, uint64_t position);
/* It is not any more; the slot stays taken on the disk. A block that is in memory becomes dirty. */
void rack_detach(struct cache *c, struct block *b);
void rack_use(struct cache *c, struct block *b);
/* Whether the block's bytes, in its rack, are only what its header promises. */
void rack_doubt(struct block *b, bool is);
/* It is new to the class's policy, as if it were attached now. */
void rack_renew(struct cache *c, struct block *b, uint64_t position);
/* A slot for a block of that size on the unit: a free one, or that of *victim, which still lies there. MISS: wait for the
 * chores, which make a slab; without `grow` none is made. EXHAUSTED; UNAVAILABLE. */
enum status rack_take(struct cache *c, struct unit *u, uint64_t slot_bytes, bool grow, struct rack **rack, uint32_t *slot,
		      struct block **victim);
/* Where the block lies that a disk would give up for one of another size: of those that it would give up next the one that has been idle longest, and much longer
 * than what this size would (room_much_colder); NULL: there is none. */
struct rack *rack_colder(struct cache *c, const struct disk_class *mine);
/* Tells policies what room their sizes have now. */
void rack_rooms_tell(struct cache *c);
/* Whether every disk is full, and none's policy would give the block the place of another. */
bool rack_refuses(struct cache *c, const struct block *b);
/* Where a walk over the disks is. */
static inline uint64_t rack_cursor(uint32_t unit, uint32_t slab, uint32_t slot)
{
	_Static_assert(CACHE_DISKS_MAX <= 16, "a unit has four bits: the highest is the callers' to use");
	return (uint64_t)unit << (32 + RACK_CURSOR_BITS) | (uint64_t)slab << RACK_CURSOR_BITS | slot;
}
static inline uint32_t rack_cursor_unit(uint64_t cursor)
{
	return (uint32_t)(cursor >> (32 + RACK_CURSOR_BITS));
}
/* The next block on any disk from the cursor on (0: the first), looking at no more than *budget slots; NULL with *budget 0: go on;
 * NULL with some left: no more. */
struct block *tier_next_block(struct cache *c, uint64_t *cursor, uint32_t *budget);
struct block *unit_next_block(struct unit *u, uint64_t *cursor, uint32_t *budget);

/* ---- disk/transfer.c ---- */

struct move *move_of(struct cache *c, const struct block *b);
/* The next move after `after` (NULL: the first) until whose end a header may name that block. */
struct move *grave_of(struct cache *c, const struct index_ident *ident, struct move *after);
/* It is removed while it moves: its spill, if it is one, is an orphan. */
void spill_orphan(struct cache *c, const struct block *b);
/* Joins the move if there is one. w may be NULL. OK: under way. BUSY, EXHAUSTED, UNAVAILABLE, MISS (a slab is being made): not now.
 * A block in a rack that is leaving is copied to another, without a new slab: it is there when the copy was written, synced, and
 * spills_land was called. */
enum status spill_begin(struct cache *c, struct block *b, enum ring_priority priority, struct cache_wait *w);
/* Puts a tombstone on a slot that is not attached any more, whose header names (p, ident, generation); the slot is free afterwards. */
void bury_begin(struct cache *c, struct rack *r, uint32_t slot, struct pool *p, const struct index_ident *ident,
		uint64_t generation);
/* Copies that were written out of a rack (of its list `copied`) have been synced (OK), or are given up. */
void spills_land(struct cache *c, struct move *copied, enum status s);
/* The rack's slab is gone, or stays: the slots that were left are buried. */
void burials_release(struct cache *c, struct rack *r);
/* Burials that waited for the disk. */
void burials_feed(struct cache *c);

/* What spills and loads share. create: NULL, no memory. enter: it is the block's one move, with a pin; leave: no more, and the caller unpins the
 * block when its books are done. join: a link for w, which may be NULL; tell: to all of them. judge: what the disk's answer says of the
 * disk. place: where its slot is. */
struct move *tier_move_create(struct cache *c, enum move_kind kind, struct unit *u, enum ring_priority priority);
void tier_move_enter(struct move *m, struct block *b);
void tier_move_leave(struct move *m);
enum status tier_move_join(struct move *m, struct cache_wait *w);
void tier_move_tell(struct move *m, enum status s);
void tier_move_judge(struct move *m, enum status s);
/* Lists that need no lock. push: true if there was one before it, so that another thread is about to take both. take: all, in the order in which they
 * came, by checked_next. */
bool moves_push(struct move *_Atomic *list, struct move *m);
struct move *moves_take(struct move *_Atomic *list);
struct disk_place tier_move_place(const struct move *m);

/* ---- disk/load.c ---- */

/* As spill_begin. Joins what is under way, which is then as urgent as this. */
enum status load_begin(struct cache *c, struct block *b, enum ring_priority priority, struct cache_wait *w);
/* On its way to a GPU. spare: however urgent, it takes what memory can spare: BUSY, as its end too. */
enum status load_begin_for_gpu(struct cache *c, struct block *b, enum ring_priority priority, bool spare);
/* Loads that waited for memory. */
void loads_feed(struct cache *c);

/* ---- disk/compact.c ---- */

/* The idle rack with the fewest blocks; of k, or of all classes from k on but `but`. */
struct rack *rack_least(const struct disk_class *k, const struct disk_class *but, bool all);
/* It is chosen: nothing new comes into it. */
void rack_leave(struct rack *r);
/* Without the lock, on a worker, of a rack that is leaving: copies elsewhere what memory has too, then deletes the slab with what is
 * left in it, counted as `why`. Not OK: the rack stays, and is leaving no more. May last half a second, and a sync. */
enum status rack_give_up(struct cache *c, struct rack *r, enum counter why);
/* Without the lock: a sync, waited for; of a disk that has failed, none. DEADLINE: the disk has not answered in time. */
enum status unit_sync(struct cache *c, struct unit *u, uint64_t wait_us);

/* ---- disk/scrub.c ---- */

/* Where the copy of a block was when the lock was held. */
struct scrub_target {
	struct disk *disk;
	struct disk_place place;
	bool known;                    /* header_crc is that of the header there */
	uint32_t header_crc;
};
static inline struct scrub_target scrub_target_of(const struct block *b)
{
	return (struct scrub_target){ b->rack->class->unit->disk, { b->rack->slab, b->rack_slot }, b->rack_known, block_header_crc(b) };
}
/* Without the lock, of a pinned block: reads and checks its copy. *h: its header, on OK. STALE, CORRUPT: it is not there. Else
 * the disk did not give it. Waits for the disk. */
enum status scrub_copy(struct cache *c, const struct block *b, const struct scrub_target *t, struct slot_header *h);

/* The same by a call that waits, with the lock: one whose bytes are sound is doubted no more, and one whose bytes are wrong is removed when w hears of it. */
enum status scrub_begin(struct cache *c, struct block *b, struct cache_wait *w);
/* Looks at more of the doubted blocks that way, as many as may be under way and read now. */
void scrub_pump(struct cache *c);
/* Somebody waits for all of them, for a while from now on. */
void scrub_hurry(struct cache *c);

/* ---- disk/spill.c ---- */

/* Starts as many spills as the watermark asks for and the disks take. False: there was something to spill, or nothing, and no disk has a place. */
bool spill_pump(struct cache *c);
/* Begins more of this pool's, the coldest first, because somebody waits for memory that they would spare. False: none is under way, and there
 * is nothing more to spare. */
bool spill_hurry(struct cache *c, struct pool *p);

/* ---- block/wait.c ---- */

/* A link to what `done` will be told of; NULL: no memory. pin: kept pinned until the wait ends; may be NULL. */
struct cache_wait_link *wait_link(struct cache *c, struct cache_wait *w, struct block *pin);
/* Its event has come. */
void wait_link_done(struct cache *c, struct cache_wait_link *l, enum status s);
/* Whether a call may wait (again): one whose loads were shed, or that has waited often, takes what memory has. */
enum { WAIT_ROUNDS = 4 };
static inline bool wait_wanted(struct cache_wait *w)
{
	return w && !w->last && !w->shed && w->stage++ < WAIT_ROUNDS;
}
/* What it waits for is under way, and it may go on waiting. */
static inline bool wait_goes_on(const struct cache_wait *w)
{
	return w && w->outstanding && !w->last;
}
/* A pin alone; of one copy, on that GPU or in memory (NULL). */
bool wait_pin(struct cache *c, struct cache_wait *w, struct block *b);
bool wait_pin_on(struct cache *c, struct cache_wait *w, struct block *b, struct gpu *gpu);
void wait_spares_free(struct vram *v);
/* It is that disk's to end (a number), or the catalog's (WAIT_CATALOG). */
enum { WAIT_CATALOG = CACHE_DISKS_MAX };
void wait_link_part(struct cache_wait *w, struct cache_wait_link *l, uint32_t part);
/* What it waits for is not told to it any more, and what it pins may go. */
void wait_links_drop(struct cache *c, struct cache_wait *w);
/* From now on it pins the copy on that GPU, where there is one, alone. */
void wait_link_apart(struct cache_wait_link *l, struct gpu *gpu);
/* It is of that block instead, of all its copies. */
void wait_link_follow(struct cache_wait_link *l, struct block *b);
/* The same in the hands of who has both blocks out of the books, of one that is not apart. */
void wait_link_over(struct cache_wait_link *l, struct block *heir);
/* Waits for a commit of all that the catalog was told; for a sync of a unit. */
enum status wait_catalog(struct cache *c, struct cache_wait *w);
enum status wait_sync(struct cache *c, struct cache_wait *w, struct unit *u);

/* A header of that name on the disk has been written, or overwritten. */
void unit_wrote(struct unit *u, const struct index_ident *ident);
/* Such a write may not be durable there. */
bool unit_unsynced(const struct unit *u, const struct index_ident *ident);

/* ---- disk/restore.c ---- */

/* The restorer's thread. */
void *restore_main(void *cache);
/* Without the lock: all that the catalog was told is committed. Asks goes_on (NULL: always) from time to time whether to wait on. DEADLINE: it has not
 * come in ten seconds, or was not to be waited for. */
enum status tier_commit(struct tier *t, bool (*goes_on)(const void *arg), const void *arg);
/* The bytes by which a layout is known again: at most SLOT_LAYOUT_MAX. */
enum { LAYOUT_BYTES = 96 };
void layout_pack(const struct kv_layout *l, uint8_t out[LAYOUT_BYTES]);
/* False: not the bytes of a sound layout. */
bool layout_unpack(const uint8_t *bytes, size_t n, struct kv_layout *out);
/* ---- disk/restore_order.c ---- */

/* What was taken up, for the order in which disks give it up; the restorer's. */
struct restored {
	uint64_t id, parent;           /* names as policies know them; parent 0: none */
	uint64_t stored_ms;
	uint64_t position;             /* of its first token */
	struct rack *rack;
	uint32_t slot;
};
struct restored_notes {
	struct restored *at;
	size_t count, room;
	bool lost;                     /* no memory for one */
};
/* With or without the lock. */
void restored_note(struct restored_notes *n, const struct restored *one);
/* Without the lock: tells the disks' policies of all that is still where it was noted, coldest first. */
void restored_order(struct cache *c, struct restored_notes *n);
void restored_notes_free(struct restored_notes *n);

/* ---- disk/lost.c ---- */

bool unit_has_slab(const struct unit *u, uint32_t slab);
/* With the lock: a record names a slot of a slab that is not in use, or (in_use) that has no such slot. It is forgotten and counted. */
void lost_record(struct cache *c, struct unit *u, uint32_t slab, const struct index_ident *ident, bool in_use);
/* Without the lock, after all records: what is wrong with each of those files. */
void lost_judge(struct cache *c);
/* Without the lock, before any: files that were lost in earlier runs and are back are deleted. */
void lost_return(struct cache *c);

/* ---- disk/restore.c, again ---- */

/* Tells the catalog of a block that is on disk now, or no more. */
void catalog_tell(struct cache *c, const struct block *b, const struct slot_header *h);
void catalog_untell(struct cache *c, const struct index_ident *ident);

#endif
