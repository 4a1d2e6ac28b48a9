/* What the cache's calls answer: sessions, leases, blocks, disks, GPUs, and why they are as they are. */
#ifndef TERRACE_DAEMON_BLOCK_VIEWS_H
#define TERRACE_DAEMON_BLOCK_VIEWS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/values.h"
#include "kernels/format.h"
#include "store/device.h"
#include "store/slot.h"

struct cache;
struct quota_holder;

/* The number by which cache_attach_lend lends the attachment's progress page in place of an extent. */
#define CACHE_EXTENT_PROGRESS_PAGE 0xfffffffeu

/* ---- administration ---- */

/* The metric of memory that sessions hold, which administrators alone see. */
#define CACHE_STAT_OF_SESSIONS "terrace_session_held_bytes"

/* Bounds of what cache_explain tells: ranks, features of a policy, copies of a block. */
enum { CACHE_RANK_MAX = 4096, CACHE_FEATURES_MAX = 8, CACHE_TIERS_EXPLAINED = 2 + DEVICES_MAX };

/* Bytes of the sentence that says why the catalog was damaged, or fails. */
enum { CACHE_CATALOG_WHY_MAX = 400 };

/* ---- sessions ----
 *
 * A session, a lease and a reservation are named by handles: 64 random bits, known only to the client that they were
 * granted to (block/handle.h). */

struct cache_session_view {
	uint64_t id;                     /* its handle: for its holder alone, as the token is */
	uint64_t number;                 /* public: for logs, statistics and people; no call takes it but cache_explain */
	uint8_t token[CACHE_TOKEN_BYTES];
	uint32_t layouts;
	uint64_t layout_id[CACHE_LAYOUTS_MAX], block_bytes[CACHE_LAYOUTS_MAX], slot_bytes[CACHE_LAYOUTS_MAX];
	struct kv_layout layout[CACHE_LAYOUTS_MAX];
	uint32_t unit;                   /* of its grid (block/grid.h); 0: a plain session */
	uint64_t rule[CACHE_LAYOUTS_MAX]; /* of its grid, packed */
};

struct cache_leased {
	uint64_t lease;
	uint32_t blocks;      /* keys */
	uint32_t layouts;
	/* Copies to the GPU that are under way. Layer i of all blocks is there once the word of the attachment's
	 * progress page has reached progress_page_base + i + 1; with progress_page_summed, once the word behind it
	 * (FDSOCK_PROGRESS_PAGE_SUMMED) has too. 0 layers: all are there. */
	uint32_t progress_page_word, progress_page_base, progress_page_layers;
	bool progress_page_summed;
};

struct cache_commit_item {
	uint64_t reservation;
	uint32_t tokens;            /* 0: as reserved */
	uint8_t key_bytes;          /* not 0: open blocks become stored ones, with keys of so many bytes */
	uint8_t key[SLOT_KEY_MAX];
	bool keep_open;             /* open blocks: they only grow */
	const struct slot_info *info; /* NULL: as reserved */
};

/* A put by stream that is under way: a slot in one layout that the daemon itself writes. */
struct cache_write {
	uint64_t reservation;
	uint8_t *block;             /* block_bytes to fill */
	uint64_t block_bytes;
};

struct cache_read {
	const uint8_t *block;       /* engines may write there: see cache_read_copy and cache_read_check */
	uint64_t block_bytes;
	uint32_t tokens;
	void *pin;
	struct quota_holder *holder; /* that is charged for it */
	uint64_t copy_bytes;         /* of QUOTA_COPIES */
};

/* A copy in memory that was found damaged. */
struct cache_damage {
	uint64_t layout_id;
	uint8_t key_bytes, key[SLOT_KEY_MAX];
	const char *finder;         /* a fixed word: "get", "spill", "verify", "gpu" */
};

struct cache_watch_event {
	uint64_t sequence;          /* counts by one within the watch, from 1 */
	enum cache_watch_kind kind;
	enum cache_reason reason;
	const char *tier;           /* of STORED and MOVED: fixed words, as in struct cache_block_view; else "" */
	uint32_t layout;            /* index into the session's layouts */
	uint8_t key_bytes;
	uint8_t key[SLOT_KEY_MAX];
};

struct cache_lent {
	int fd;                     /* of host memory; of a GPU's: the hold */
	int device_fd;              /* of the GPU's memory; -1: host memory */
	int32_t gpu;                /* CACHE_HOST: host memory */
	uint32_t page_bytes;
	uint64_t bytes;
	uint64_t at, range_bytes;   /* of a GPU's: place in its range of addresses, and the size of that */
	uint64_t range_id;          /* of a GPU's: which range of addresses */
};

struct cache_block_view {
	uint64_t layout_id, offset, generation, position, age_ms, idle_ms, uses, block_bytes;
	const char *state, *tier;   /* fixed words: "stored" or "reserved"; of "gpu", "host", "disk" those that have it, as "gpu+disk" */
	uint32_t extent, tokens, pins, turn;
	uint8_t role, parent_bytes, parent[SLOT_KEY_MAX];
	bool checksum_ok;           /* of stored ones */
	struct kv_layout layout;
};

/* One copy, as the policy of its tier sees it. */
struct cache_explained_tier {
	const char *tier, *policy;  /* fixed words: "gpu", "host" or "disk" */
	uint32_t gpu;               /* of a GPU's: its number */
	/* why it stays for now, whatever its rank: "pinned", "moving", "only" (it has no other copy, and is written to
	 * disk first; on a disk: a block that memory or a GPU has stays there too); "": it may go */
	const char *kept;
	uint64_t idle_ms, uses;
	bool ranked, scored;
	uint32_t rank;              /* ranked: blocks that would go before it, less than CACHE_RANK_MAX */
	uint8_t rival_bytes;        /* the block that would go now; 0: none is known */
	uint8_t rival[SLOT_KEY_MAX];
	double score, rival_score;  /* scored: the greater score stays longer, as a rule; in `unit`, a fixed word */
	const char *unit;
	uint32_t features;
	struct {
		const char *name;
		uint32_t value;
	} feature[CACHE_FEATURES_MAX]; /* what the policy decides by */
};

struct cache_explained {
	uint64_t layout_id, id;
	const char *tenant;         /* its name, for the cache's life */
	uint32_t tenant_number;
	const char *policy;         /* of memory: a fixed word */
	const char *tier;           /* fixed words, as in struct cache_block_view; "": it is not there */
	uint64_t age_ms, idle_ms, uses; /* of one that is there */
	uint32_t pins, turn;
	bool not_admitted;          /* the policy would not have admitted it: it is among the first to go */
	bool no_spill;              /* no disk takes it: it is dropped when it leaves memory */
	bool prefetched;            /* loaded before it was asked for, and not used yet */
	bool ranked;                /* in memory, and among the first CACHE_RANK_MAX: */
	uint32_t rank;              /* blocks that would go before it */
	uint8_t rival_bytes;        /* of the block that would go now; 0: none is known */
	uint8_t rival[SLOT_KEY_MAX];
	uint64_t rival_idle_ms, rival_uses;
	/* the tier that last evicted a copy ("gpu", "host", "disk"), if no copy has come back there since; else "" */
	const char *left;
	const char *left_reason;    /* "full", "trade", "shed", "refused", "lost", "compact" or "peer" */
	uint64_t left_ms_ago, left_idle_ms, left_uses;
	bool regretted;             /* it was asked for within a minute after it left */
	uint32_t tiers;
	struct cache_explained_tier at[CACHE_TIERS_EXPLAINED]; /* its copies: on GPUs, in memory, on disk */
};

/* An edge of a key in the graph. key_bytes 0: the other end is a block that is nowhere now; only a hash of its key, the
 * name, is known. */
struct cache_graph_edge {
	uint64_t name;
	float weight;               /* now: observations count half after half an hour */
	/* a fixed word: "prefix_share", "co_attend", "temporal", "semantic"; "spill_link": the key's own copies, an
	 * entry a layout */
	const char *type;
	const char *tier;           /* where it is, as in struct cache_block_view; "": nowhere */
	uint8_t key_bytes, key[SLOT_KEY_MAX];
};

/* What scrubs have checked, and found corrupt, so far. */
struct cache_verified {
	uint64_t blocks, bytes, corrupt;
	/* copies on a disk that could not be read: the disk is slow or failed, or memory is short. Not in blocks */
	uint64_t unread;
};

/* A layout that sessions or disks have brought so far. */
struct cache_layout_view {
	uint64_t layout_id, block_bytes;
	uint64_t host_blocks, disk_blocks, dirty_blocks; /* in memory, on disk, in memory alone */
	struct kv_layout layout;
};

/* The state of a disk. */
struct cache_disk_state {
	const char *folder;         /* as in the options */
	const char *health;         /* a fixed word: "healthy", "full", "slow", "quarantined"; "unusable": not in use since the start */
	const char *engine;         /* "io_uring" or "threads"; "" if it is unusable, as are all numbers */
	const char *remedy;         /* of "unusable"; "" */
	char why[CACHE_WHY_MAX];    /* of the health; "" */
	char shortage[160];         /* as in struct disk_view */
	char refusal[160];          /* why io_uring is not the engine; "" */
	bool direct, wiped;         /* O_DIRECT is in use; its folder had been given up, and was emptied at the start */
	uint64_t blocks, budget_bytes, slab_bytes;
	uint64_t corrupt;           /* blocks whose bytes proved wrong, in this run */
	uint32_t slabs, slabs_damaged;
	uint32_t slabs_room;        /* slab files that the budget has room for */
	uint32_t sizes;             /* sizes of blocks that have a slab on it, or want one */
	bool small;                 /* its budget is too small for a slab of each of these sizes */
};

/* The state of a GPU. */
struct cache_gpu_view {
	uint8_t uuid[DEVICE_UUID_BYTES]; /* zeroes if it could not be opened */
	char name[DEVICE_NAME_MAX];
	uint32_t ordinal;           /* as in the options */
	uint64_t bytes;             /* budget */
	bool lost;                  /* until the next start */
	char why[160];
	char no_kernel[DEVICE_WORDS_MAX]; /* as in struct device_info */
	uint64_t corrupt_up, corrupt_down; /* copies that were found corrupt on their way, ever */
	uint64_t unsummed;          /* blocks put on the GPU whose checksums it did not compute at the commit, ever */
	/* why the last of them, or why it can compute none. Empty: it computed all */
	char unsummed_why[DEVICE_WORDS_MAX];
};

/* A lost GPU, or a disk that has failed or could not be used at the start: a sentence with number, name and reason. */
struct cache_fault {
	char text[CACHE_WHY_MAX + 64];
};

struct cache_catalog_state {
	const char *found;          /* at the start, a fixed word: "sound", "none" or "damaged" */
	char why[CACHE_CATALOG_WHY_MAX]; /* of "damaged", and then of failing */
	bool rebuilding;            /* at the start it was made anew from the slots' headers */
	bool failing;               /* commits fail now */
	/* everything that earlier runs left has been taken up: so many blocks, in so long */
	bool restored;
	uint64_t restored_blocks, restored_us;
	struct {
		char folder[160];
		const char *why;
	} left_out[CACHE_LEFT_OUT_MAX]; /* the first of the disks that an earlier run had and this run does not name */
	uint32_t left_out_count;
	uint64_t readers_cleared;   /* as in struct catalog_view */
	int reader_pid;
	uint64_t reader_us, reader_grown_bytes;
	/* Blocks that the catalog names and that could not be taken up: on disks that are not in use; and in slab files
	 * that are missing or damaged, the first of which are in lost[]. */
	uint64_t blocks_absent, blocks_lost;
	struct cache_lost_slab {
		uint32_t disk, slab;        /* of the options; as in the file's name */
		uint64_t blocks;
		const char *problem;        /* a fixed sentence about the file: "is missing" */
		/* the earlier run ended in order: the slab was not given up after the catalog's last word */
		bool sure;
	} lost[CACHE_LOST_SLABS_MAX];
	uint32_t slabs_lost;
};

struct cache_trace_result {
	uint64_t requests, blocks, bytes;
	uint64_t dropped;           /* requests without room, or of another block size than the first */
	int error;                  /* errno of the write that failed; 0: none */
};

/* What no disk has when the daemon stops. */
struct cache_unsettled {
	uint64_t blocks;            /* in memory or on GPUs alone, or not written yet */
	bool no_place;              /* the disks are full or have failed, and take nothing any more */
};

struct cache_load {
	uint64_t sessions, detached_sessions, leases, reservations;
	bool hands_on;              /* a drain gives blocks to other members */
};

void cache_load(struct cache *c, struct cache_load *out);

#endif
