/* A layout of a tenant: its identity, its geometry, and counts of its blocks. With the cache's lock. */
#ifndef TERRACE_DAEMON_BLOCK_LAYOUT_POOL_H
#define TERRACE_DAEMON_BLOCK_LAYOUT_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/format.h"
#include "store/status.h"

struct arena_class;
struct block;
struct cache;
struct index_link;
struct memory_class;
struct quota_holder;

enum { POOLS_MAX = 4096, CLASSES_MAX = 4096 };

struct tenant {
	const char *name;
	uint32_t number;
	_Atomic bool active;           /* it has had a session or a block: memory is made ready for it */
	uint64_t pinned_bytes_max;     /* that the next three may sum up to */
	uint64_t pinned_bytes;         /* blocks with at least one pin, each once */
	uint64_t beside_bytes;         /* of these, blocks on GPUs whose pins do not hold memory */
	uint64_t reserved_bytes;       /* slots of reservations */
	uint64_t host_most;            /* that it may take of host memory */
	uint64_t gpu_own, gpu_most;    /* of each GPU: that no other tenant gets; that it may take */
	uint64_t fetched_bytes;        /* slots of memory that uploads from a disk hold until they have one on a GPU */
	uint64_t disk_bytes;           /* slots of blocks on disks */
	uint64_t disk_coming;          /* slots that blocks from memory alone are being written to */
	uint64_t disk_own, disk_max;   /* of these: that no other tenant displaces; the most (0: no bound) */
};

/* The class for which memory that another tenant has borrowed was last missing, and when; 0: never. */
struct memory_lack {
	struct arena_class *of;
	uint64_t us;
};

/* The blocks of a layout that no disk has (block/unwritten.h). */
struct unwritten {
	struct index_link *first, *last;
	struct unwritten_walk *walks;
};

/* A place in the list, which may be kept between holds of the lock. It stays behind the block that was returned last,
 * even when that block leaves the list. Zeroed: not begun. */
struct unwritten_walk {
	struct unwritten *list;        /* NULL: not begun */
	struct index_link *seen;       /* the last one; NULL: none yet */
	struct unwritten_walk *next;   /* of the list */
};

/* A layout of a tenant. Lives as long as the cache. */
struct layout_pool {
	struct cache *cache;
	uint32_t number;
	struct tenant *tenant;
	uint64_t layout_id;
	struct kv_layout layout;
	struct kv_geometry geometry;
	struct quota_holder *holder;   /* the client that brought it */
	struct memory_class *class;    /* of its slots in host memory */
	struct layout_pool *class_next; /* in the class's list */
	uint32_t watches;              /* how many want its events */
	uint64_t blocks;               /* published, in memory */
	uint64_t disk_blocks;          /* published, on disk; some of them in memory too */
	uint64_t unverified;           /* of these: not read yet since a crash */
	/* blocks with a generation up to this were acknowledged by a Flush of everything */
	uint64_t flushed_generation;
	uint64_t dirty;                /* in memory, not on disk and not on the way there; 0 without disks */
	/* published blocks on no disk: the dirty ones, those on their way to a disk, those on GPUs alone */
	struct unwritten unwritten;
	struct unwritten_walk spills;  /* where the search for blocks to spill goes on */
	struct unwritten_walk falls;   /* the same for blocks to download from GPUs */
	uint64_t no_spill;             /* of the dirty ones: not to be spilled */
	uint64_t not_admitted_us;      /* when admission last refused a block, and where in a chain */
	uint32_t not_admitted_position;
};

/* The tenants are made with the cache, so any thread may ask. NULL: there is no such tenant. Number 0 and name "" are
 * `default`. */
struct tenant *tenant_of_number(struct cache *c, uint32_t number);
struct tenant *tenant_of_name(struct cache *c, const char *name);
/* When the cache is made, before all else; when it ends, after all else. EXHAUSTED: no memory. */
enum status tenants_make(struct cache *c);
void tenants_unmake(struct cache *c);

/* holder: the client that brings it, if it is new; NULL: not known. */
enum status layout_pool_get(struct cache *c, struct tenant *t, struct quota_holder *holder, const struct kv_layout *l,
			    struct layout_pool **out, const char **why);
struct layout_pool *layout_pool_by_id(struct cache *c, const struct tenant *t, uint64_t layout_id);
void pools_free(struct cache *c);

#endif
