/* Values that all parts of the cache and its callers exchange: bounds, keys, places, reasons. Its options are in
 * block/options.h, what its calls answer in block/views.h.
 */
#ifndef TERRACE_DAEMON_BLOCK_VALUES_H
#define TERRACE_DAEMON_BLOCK_VALUES_H

#include <stdbool.h>
#include <stdint.h>

struct cache;
struct grid;

enum {
	CACHE_KEYS_MAX = 4096,       /* a call */
	CACHE_LAYOUTS_MAX = 64,      /* a session */
	CACHE_BLOCKS_MAX = 32768,    /* cells a call: (key, layout) that can have a block (block/grid.h) */
	CACHE_ENGINE_MAX = 64,
	CACHE_TOKEN_BYTES = 16,
	CACHE_DISKS_MAX = 16,
	CACHE_WHY_MAX = 640,         /* a sentence that may name a folder */
	CACHE_LEFT_OUT_MAX = 8,
	CACHE_LOST_SLABS_MAX = 32,
	CACHE_EXTENT_NONE = -1,      /* 0xffffffff: no place */
	CACHE_HOST = -1,             /* no GPU */
};

/* Read by stream: pins one block, and counts as use. MISS. From disk: BUSY, as in cache_lease. EXHAUSTED: too many
 * bytes are pinned, or other reads' copies fill the memory for copies or the client's share of it; there may be room
 * soon. Call cache_read_end when the copy is not needed any more; twice is fine. */
enum { CACHE_READ_BYTES_MAX = 256 << 20 };

/* ---- other calls ---- */

enum cache_event { CACHE_EVENT_NONE, CACHE_EVENT_TURN_END, CACHE_EVENT_TOOL_CALL, CACHE_EVENT_SESSION_END };

/* ---- watch ---- */

enum cache_watch_kind { CACHE_STORED, CACHE_REMOVED, CACHE_MOVED, CACHE_RESYNC, CACHE_SYNCED };

enum cache_reason { CACHE_REASON_NONE, CACHE_REASON_EVICTED, CACHE_REASON_DELETED, CACHE_REASON_CORRUPT };

enum eviction_tier { EVICTION_HOST, EVICTION_DISK, EVICTION_GPU, EVICTION_TIERS };

enum eviction_reason { EVICTION_FULL, EVICTION_TRADE, EVICTION_SHED, EVICTION_NOT_ADMITTED, EVICTION_LOST,
    EVICTION_COMPACT, EVICTION_PEER, EVICTION_REASONS };

/* Keys back to back. count <= CACHE_KEYS_MAX, 1 <= key_bytes <= SLOT_KEY_MAX, cells <= CACHE_BLOCKS_MAX, first <=
 * GRID_FIRST_MAX: the cache checks, INVALID. */
struct cache_keys {
	const uint8_t *bytes;
	uint32_t count, key_bytes;
	uint32_t first;              /* position of the first key in its sequence */
	const struct grid *grid;     /* of the call's session, set by the cache; NULL: a plain one (block/grid.h) */
};

struct cache_place {
	uint32_t extent;      /* CACHE_EXTENT_NONE: no block here */
	uint32_t tokens;
	uint64_t offset, generation; /* of the slot; in memory the block begins SLOT_HEADER_BYTES later, on a GPU there */
};

/* Where a call wants its blocks, and how. */
struct cache_on {
	uint64_t attachment;
	int32_t gpu;          /* index in the options' order; CACHE_HOST: in memory */
	/* with gpu, of a lease: blocks that are in memory, or on a disk alone, may stay in memory */
	bool or_host;
	uint64_t call;        /* the caller's number for it, for cache_recall; 0: none */
	/* not NULL: a reserve does not wait for memory that another thread is taking; it answers BUSY and sets how long
	 * to wait before the next try. Otherwise unchanged. NULL: the reserve waits */
	uint64_t *again_us;
	/* of a lease: the policies are told of it later, by cache_leases_notify, which this caller calls soon */
	bool deferred;
};

/* Host memory, for a caller without an attachment: what a call takes that names no cache_on. */
static const struct cache_on cache_on_host = { .gpu = CACHE_HOST };

/* A block as people name it. */
struct cache_block_name {
	const char *tenant;   /* "" or "default" */
	uint64_t layout_id;   /* 0: all layouts */
	const uint8_t *key;
	uint32_t key_bytes;
};

/* How fast a device has been, and what it has to do: block/rate.h. */
struct rate {
	double us, bytes;              /* busy for so long with so many bytes */
	uint32_t samples;
	uint64_t queued;               /* bytes that are under way, or wait for it */
	/* when the last transfer ended; of a device that was idle, when it was given work */
	uint64_t ended_us;
};

#endif
