/* The GPU side of daemon/cache_rig.h: a cache over simulated GPUs (sim/device.h), whose blocks are 256 KiB in four layers, eight to an extent. */
#ifndef TERRACE_TESTS_DAEMON_VRAM_RIG_H
#define TERRACE_TESTS_DAEMON_VRAM_RIG_H

#include <pthread.h>
#include <stdatomic.h>

#include "daemon/threads/pool.h"
#include "kernels/format.h"
#include "store/ring/ring.h"
#include "store/slot.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"
#include "tests/sim/device.h"

struct cache_leased;
struct device_ops;

enum {
	VR_LAYERS = 4,
	VR_BLOCK_BYTES = 256 << 10,
	VR_SLOT_BYTES = VR_BLOCK_BYTES + SLOT_HEADER_BYTES,
	VR_EXTENT_SLOTS = SIM_GRANULARITY / VR_BLOCK_BYTES,
	VR_GPUS_MAX = 4,
	VR_PLACED = 1000,               /* a key: see vr_open_filled */
	VR_SMALL = 100,                 /* layouts from this number on have blocks of 132 KiB: they are of another class */
	VR_SMALL_SLOTS = 15,            /* of these a span has so many */
};

struct vram_rig {
	struct rig r;
	_Atomic uint32_t *progress_page; /* the attachment's, as a client has it mapped */
	char folder[64], hold[96], lost[96], sums[96]; /* of the files that hold and lose the GPUs, and hold their checksums */
};

struct vram_rig_options {
	uint32_t gpus, gpu_slots, host_slots; /* gpu_slots: a multiple of VR_EXTENT_SLOTS, without the reserve, which comes on top */
	const struct rig_disks *disks;  /* NULL: none */
	uint32_t disk_count;            /* of these; 0 for 1 */
	bool by_cost;                   /* what a GPU and a disk have comes from the cheaper; else from the GPU, which
					 * is not faster than files when it is simulated */
	const char *policy;             /* NULL: lru */
	uint32_t recompute_growth;      /* that policies are told; 0: none */
	bool no_progress_page, write_back;
	uint32_t layouts;               /* 0 for 1 */
	const struct kv_layout *own;    /* these, so many, instead of vr_layout()'s */
	bool mixed;                     /* the second is of small blocks */
	uint32_t window;                /* of its layouts, in tokens; 0: none */
	uint32_t spill_milli;           /* 0: the rig's */
	uint32_t sum_threads;
	const struct ring_calls *io_calls;
	uint32_t disk_depth;            /* 0: the rig's */
	const struct device_ops *ops;   /* NULL: sim/device.h's */
	uint32_t gpu_close_ms;          /* 0: the cache's */
	uint64_t gpu_prefetch_bytes;    /* with a graph then */
	uint32_t gpu_patience_ms;       /* 0: the cache's */
	bool no_verify;                 /* of what goes up */
	uint64_t poll_us;               /* gpu_poll_us */
	uint32_t gpu_pinned_milli;      /* 0: all, as slots are what bounds them */
	const struct cache_tenant_options *tenants; /* the session is of the first one */
	uint32_t tenant_count;
};

struct kv_layout vr_layout(uint32_t n);
/* Disks for so many of these blocks. */
void vr_disks_make(struct rig_disks *d, uint32_t disks, uint32_t slots);
void vr_open(struct vram_rig *v, const struct vram_rig_options *o);
/* The same, with so many blocks in memory, from key 0 on, and one, VR_PLACED, on GPU 0, which thereby has an extent, and the session a GPU that it
 * works on. Nothing is on its way. */
void vr_open_filled(struct vram_rig *v, const struct vram_rig_options *o, uint32_t blocks);
/* Another session, over vr_layout(layout), on the same cache: v is as `of` otherwise. Nobody watches its process. */
void vr_join(struct vram_rig *v, const struct vram_rig *of, uint32_t layout, const char *engine);
/* The same of the tenant with that number, over vr_layout(0). This process is the one of the attachment. */
void vr_join_tenant(struct vram_rig *v, struct vram_rig *of, uint32_t tenant);
/* Maps its attachment's progress page, as vr_open does. Who joined unmaps it itself, EXTENT_PAGE_BYTES of it. */
void vr_progress_page(struct vram_rig *v);
void vr_close(struct vram_rig *v);
/* The disks seem to be so slow that nothing comes from there that a GPU has. */
void vr_disks_seem_slow(struct rig *r);

/* Lists of the GPU stop before that part of each, until vr_go. */
void vr_hold(struct vram_rig *v, uint32_t gpu, uint32_t part);
void vr_go(struct vram_rig *v, uint32_t gpu);
void vr_lose(struct vram_rig *v, uint32_t gpu);
/* The GPU makes no checksums until vr_sums_go. */
void vr_sums_hold(struct vram_rig *v, uint32_t gpu);
void vr_sums_go(struct vram_rig *v, uint32_t gpu);

/* The block's bytes, where the daemon has them: on a GPU or in memory. */
uint8_t *vr_bytes(struct vram_rig *v, const struct cache_place *p);
bool vr_on_gpu(const struct cache_place *p, uint32_t gpu);
enum status vr_reserve(struct vram_rig *v, int32_t gpu, uint64_t first, uint32_t count, enum status *statuses, uint64_t *ids,
		       struct cache_place *places);
enum status vr_commit(struct vram_rig *v, const uint64_t *ids, uint32_t count, enum status *statuses);
/* Reserve, write, commit; how many are stored by it. */
uint32_t vr_put(struct vram_rig *v, int32_t gpu, uint64_t first, uint32_t count);
/* Until it answers something else than BUSY, ten seconds at most. */
enum status vr_lease(struct vram_rig *v, int32_t gpu, uint64_t first, uint32_t count, bool all, bool or_host,
		     struct cache_place *places, struct cache_leased *out);
uint32_t vr_warm(struct vram_rig *v, int32_t gpu, uint64_t first, uint32_t count);
/* Begun, and not waited for. */
void vr_warm_begin(struct vram_rig *v, int32_t gpu, uint64_t first, uint32_t count);
/* Whether the progress page says that this layer is there. */
bool vr_layer_there(const struct vram_rig *v, const struct cache_leased *l, uint32_t layer);
/* For waits: counts up the _Atomic int. */
void vr_count(void *arg);
/* Until so many of these were ready, with the background's turns. */
void vr_await_called(struct vram_rig *v, const _Atomic int *called, int times);
/* Waits for the last layer. */
void vr_wait_layers(const struct vram_rig *v, const struct cache_leased *l);
bool vr_matches(struct vram_rig *v, const struct cache_place *p, uint64_t n, uint32_t layout);
/* Leases each key by itself on the GPU (CACHE_HOST: in memory), compares, releases; how many were there. */
uint32_t vr_read_all(struct vram_rig *v, int32_t gpu, uint64_t first, uint32_t count);
/* What Lookup says of the key in layout 0. */
uint8_t vr_state(struct vram_rig *v, uint64_t n);
/* Which tiers have the block, of layout 0, as explain says it: "gpu+host"; "": none. Its bytes are not looked at, for which it would come down. */
const char *vr_tier(struct vram_rig *v, uint64_t n);
void vr_release(struct vram_rig *v, const struct cache_leased *l);

/* One bit, in the copy on the GPU or in memory, which is leased for that. */
void vr_flip(struct vram_rig *v, int32_t gpu, uint64_t n, uint32_t at);
/* So many others take what places there are in memory. */
void vr_push_out(struct vram_rig *v, uint32_t blocks);
/* Copies found wrong, "to=gpu" or "to=host". */
double vr_corrupt(struct vram_rig *v, const char *to);
/* Nothing is on its way, and the accounting are right; then both are gone. */
void vr_end(struct vram_rig *v, struct rig_disks *d);
/* Disks with these calls write nothing as long as somebody has the lock. */
extern pthread_mutex_t vr_writes;
extern const struct ring_calls vr_held_writes;
/* Work that keeps its thread until its lock is free. */
struct vr_gate {
	struct work work; /* first: .run = vr_gate_run */
	pthread_mutex_t lock;
};
void vr_gate_run(struct work *w);
/* Verify finds nothing wrong in memory. */
void vr_sound(struct vram_rig *v);

#endif
