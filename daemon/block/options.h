/* The options of a cache, as its creator gives them. */
#ifndef TERRACE_DAEMON_BLOCK_OPTIONS_H
#define TERRACE_DAEMON_BLOCK_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct device_ops;
struct ring_calls;

/* One disk of the disk tier: a folder for slab files (store/slab/disk.h). */
struct cache_disk_options {
	const char *folder;
	uint64_t bytes;                  /* budget */
};

/* A tenant, and what it may take of each tier. */
struct cache_tenant_options {
	const char *name;
	uint32_t number;                 /* stands in catalogs: the same for a name for ever; not 0 */
	uint64_t host_bytes;             /* that no other tenant gets */
	uint64_t host_bytes_max;         /* that it may take; 0: all that is free of that of others */
	uint64_t pinned_bytes_max;       /* pinned and reserved slots; beyond: EXHAUSTED */
	uint64_t gpu_bytes;              /* of each GPU, that no other tenant gets */
	uint64_t gpu_bytes_max;          /* of each GPU, that it may take; 0: gpu_bytes, and nothing is borrowed */
	uint64_t disk_bytes;             /* of all disks, that no other tenant displaces */
	uint64_t disk_bytes_max;         /* that it may take; 0: all of them */
	uint64_t calls_max;              /* gRPC calls under way, and connections for local calls, each; 0: no bound */
};

struct cache_options {
	const struct cache_tenant_options *tenants; /* the first is `default`, number 1; kept by the caller */
	uint32_t tenant_count;           /* 0: `default` alone, with all of host memory */
	uint32_t tenant_rows;            /* so many of them have rows in Stats */
	uint64_t host_bytes;             /* budget of the host tier */
	uint64_t extent_bytes;           /* at most 1 GiB */
	uint64_t granule_bytes;          /* as of store/arena/arena.h; 0: by its rule */
	bool huge_pages;
	const char *policy;              /* a name of eviction/policy.h's table */
	uint64_t pinned_bytes_max; /* of the tenant, without a table of them: pinned and reserved slots; beyond:
				      EXHAUSTED */
	uint32_t sum_threads;            /* that compute checksums beside those of disks and GPUs; 0: none; at most 16 are used */
	uint32_t sessions_max;           /* detached sessions included; at most 1 << 20 */
	uint32_t leases_max;             /* over all sessions; at most 1 << 20 */
	uint32_t open_blocks_max;        /* a session */
	uint32_t session_idle_ms;        /* no attachment and no call, nor a watch, for so long: a detached session */
	uint32_t lease_ttl_ms;           /* after it a lease counts as overdue */
	uint32_t reservation_ttl_ms;     /* the same for reservations */
	uint32_t watch_queue;            /* events a watcher may lag behind before RESYNC; at most 1 << 20 */
	/* cache_destroy leaves its records of blocks to the end of the process: freeing one takes a microsecond */
	bool leaves_records;

	/* The advisor: it keeps a graph of what is asked for, and prefetches what the graph expects next. */
	uint32_t graph_nodes;            /* blocks it remembers, some 220 bytes each; 0: no advisor */
	uint32_t advisor_ms;             /* between two rounds; 0: no thread (tests call its rounds themselves) */
	uint64_t prefetch_bytes;         /* a second, read ahead from disks; 0: none */

	/* The disk tier. Without disks what memory cannot hold is dropped, and a restart begins with nothing. */
	const struct cache_disk_options *disks;
	uint32_t disk_count;             /* at most CACHE_DISKS_MAX */
	enum cache_disks_required { CACHE_REQUIRE_NONE, CACHE_REQUIRE_ONE, CACHE_REQUIRE_ALL } disks_required; /* that can be used at the start */
	const char *catalog_folder;      /* made if missing */
	const char *catalog_child;       /* as catalog_options.child; NULL: a plain fork, before other threads exist */
	bool rebuild;                    /* distrust the catalog: make it anew from the slots' headers */
	/* blocks may have been deleted while these disks were not in use: the disks are wiped */
	bool distrust_disks;
	uint64_t slab_bytes;             /* of a slab file at most; 0: no bound. What it takes: disk_slab_bytes() */
	uint32_t slab_files;             /* of a disk, so that descriptors suffice; 0: disk_slab_bytes() decides */
	uint32_t disk_depth;             /* transfers under way, a disk */
	uint32_t disk_slow_ms;           /* a transfer that takes longer makes its disk slow: it sheds spills */
	uint32_t peer_room_milli;        /* this share of the host tier, at most, is given to other members' blocks */
	uint32_t spill_share_milli;      /* this share of the host tier is kept free or copied to disk */
	const char *disk_policy;         /* as policy, for what leaves the disks */
	uint32_t recompute_growth;       /* eviction/recompute.h, of the models that are served; 0: policies are not told */
	enum cache_io { CACHE_IO_AUTO, CACHE_IO_URING, CACHE_IO_THREADS } io;
	const struct ring_calls *io_calls; /* tests inject faults; NULL: the kernel's */
	uint32_t disk_close_ms;          /* cache_destroy waits so long for a disk that hangs; 0: ten seconds */

	/* The VRAM tier. A GPU that cannot be opened is there by its number, and lost. */
	const struct device_ops *device_ops; /* NULL: none */
	const uint32_t *gpus;            /* ordinals of device_ops */
	uint32_t gpu_count;              /* 0: no VRAM tier; at most DEVICES_MAX */
	uint64_t gpu_bytes;              /* budget of each; 0: half of what is free */
	/* share of that which leases, reservations and calls waiting for their copies may hold; beyond: EXHAUSTED */
	uint32_t gpu_pinned_milli;
	uint64_t gpu_prefetch_bytes;     /* a second, brought to GPUs before leases ask; 0: none */
	bool gpu_verify_up;              /* checksums of uploads are computed beside the copy */
	/* how long a lease waits for the next slot in memory on the way to a GPU, and seven times that in all; 0:
	 * 100 */
	uint32_t gpu_patience_ms;
	/* how long after a call (cache_called) the submission threads poll for the next one; 0: they sleep at once */
	uint64_t gpu_poll_us;
	/* cache_destroy waits so long for the GPUs' work, then for each call that frees; 0: ten seconds */
	uint32_t gpu_close_ms;
};

#endif
