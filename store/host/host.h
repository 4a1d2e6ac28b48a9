/* The host tier: a budget of memory, cut into extents, cut into slots. The same over a GPU's memory (store/device.h).
 *
 * A *pool* serves one (tenant, layout). Its extents belong to it for life: they are never handed to
 * another pool, they are drained and freed, and count against the budget until every engine that
 * had mapped them has let go. The tier knows slots and extents, not blocks: who is evicted is the
 * caller's business.
 *
 * An extent has the wished size or an eighth of the budget, whichever is less, but room for at
 * least one slot. They are made when they are needed; a pool does not shrink by itself.
 *
 * On a device a pool has one range of addresses, in which its extents lie side by side, and each extent a *hold* beside it: a page of
 * host memory (store/host/extent.h), which is what is lent and asked about in its place; host_extent gives that. The memory itself goes
 * to engines by host_extent_device. The tier is destroyed before the device is closed.
 *
 * Threads: any. Every function takes the tier's mutex itself, briefly. The data path allocates no
 * memory but new extents; making one takes its pages from the kernel (0.3 s a GiB) and stops only
 * takers of the same pool that find no free slot, for at most HOST_GROWTH_WAIT_S.
 */
#ifndef TERRACE_STORE_HOST_HOST_H
#define TERRACE_STORE_HOST_HOST_H

#include <stdbool.h>
#include <stdint.h>

#include "store/device.h"
#include "store/host/extent.h"
#include "store/status.h"

enum {
	HOST_POOLS_MAX = 4096,
	HOST_GROWTH_WAIT_S = 10,
	HOST_EXTENT_IDS = 1 << 24, /* a tier has so many at a time; then they come again */
	HOST_DEVICE_SLOT_ALIGN = 256,
};

struct host_tier;
struct host_pool;

struct host_options {
	uint64_t budget_bytes;   /* of memory over all extents, at least 4096; of a device its granularity */
	uint64_t extent_bytes;   /* wished size of an extent, 4096 .. EXTENT_BYTES_MAX */
	bool huge_pages;         /* of host memory */
	uint64_t first_generation; /* of the first take, 0 for 1: above all of earlier runs, if their slots are kept */
	uint32_t first_extent_id; /* of extent_ids from there on; 0 for 1 */
	uint32_t extent_ids;     /* at least 2; 0 for HOST_EXTENT_IDS */
	const struct device_ops *ops; /* NULL: host memory */
	struct device *device;   /* the caller's; with ops */
};

/* Where a slot is. */
struct host_slot {
	struct host_pool *pool;
	uint32_t extent;         /* id */
	uint32_t index;          /* in the extent */
	uint8_t *at;             /* address in the daemon; NULL on a device */
	uint64_t address;        /* on the device, 0 in host memory */
	uint64_t offset;         /* in the extent */
	uint64_t generation;     /* new at each take: no two takes of a run have the same; never 0 */
};

/* INVALID: an option is out of its bounds. EXHAUSTED: no memory. UNAVAILABLE: the device is lost. Takes no extent yet. */
enum status host_create(const struct host_options *o, struct host_tier **out);
/* Frees everything, taken slots and lent extents included: the caller answers for nobody touching
 * the memory through the daemon's mapping any more (engines' own mappings live on). NULL allowed. */
void host_destroy(struct host_tier *t);

/* The pool of (tenant, layout), made if new; it lives as long as the tier. INVALID: slot_bytes is
 * 0, no multiple of 4096 (of HOST_DEVICE_SLOT_ALIGN on a device), beyond the budget or EXTENT_BYTES_MAX, or not what the pool was
 * made with. EXHAUSTED: more than HOST_POOLS_MAX pools, or no memory. */
enum status host_pool_get(struct host_tier *t, uint32_t tenant, uint64_t layout_id, uint64_t slot_bytes,
			  struct host_pool **out);

/* A free slot of the pool: the first of one of its extents, of one of which nobody has had any only if all others are full. Its bytes are whatever was there before (of the same tenant and layout, or
 * zeroes). It does not last. MISS: no slot is free. */
enum status host_slot_try(struct host_pool *p, struct host_slot *out);

/* Makes one extent, with all its slots free, unless the pool has `slots` (at least 1) free ones already; waits for one that is being made.
 * *extent: one that has a free slot. EXHAUSTED: no budget, memory or descriptor for an extent: evict something of this pool, or start a
 * drain elsewhere, and try again. IO: the kernel refused it for another reason (host_usage has the errno). UNAVAILABLE, UNSUPPORTED,
 * INTERNAL: so did the device (host_usage has its words). */
enum status host_pool_prepare(struct host_pool *p, uint32_t slots, uint32_t *extent);

/* A generation as the next take would have it, for something that is to be taken elsewhere: no take has it. */
uint64_t host_generation(struct host_tier *t);

/* Gives a slot back for reuse. In a draining extent it only counts down. Giving back what is not
 * taken is a programmer's error: asserted, and without asserts ignored. */
void host_slot_give(const struct host_slot *s);

/* Begins to drain an extent: no slot of it is taken any more. It is freed by host_doomed_free when
 * its last slot is back and nobody holds it. OK also if it drains already. NOT_FOUND: no such
 * extent (any more). */
enum status host_extent_drain(struct host_tier *t, uint32_t extent);

/* Takes drained extents that nobody holds out of the tier: NULL or a chain for host_doomed_free. To
 * be called by the thread that lends extents, or under the lock under which that is done. */
struct host_extent;
struct host_extent *host_doomed_take(struct host_tier *t);
/* Frees them, which lasts (unmapping), and only then gives their bytes back to the budget. Any
 * thread, without that lock. Returns the number freed. NULL allowed. */
uint32_t host_doomed_free(struct host_tier *t, struct host_extent *doomed);

/* The extent by id, for lending and probing, on a device its hold; NULL if unknown. The pointer stays valid until the
 * extent is taken out, which happens only in host_doomed_take and host_destroy. */
struct extent *host_extent(struct host_tier *t, uint32_t id);

struct host_device_extent {
	int fd;                  /* a descriptor of the memory, close-on-exec, the caller's to close */
	uint64_t address, bytes; /* in this process */
	uint64_t at, range_bytes; /* its place in the pool's range, and how large that is */
};
/* An extent of device memory, for a process that is to import it. NOT_FOUND: unknown, or host memory. EXHAUSTED: no descriptors. */
enum status host_extent_device(struct host_tier *t, uint32_t id, struct host_device_extent *out);
/* The pool's owner, to check who may map an extent: false if unknown. Each output may be NULL. */
bool host_extent_owner(struct host_tier *t, uint32_t id, uint32_t *tenant, uint64_t *layout_id,
		       bool *draining);

struct host_usage {
	uint64_t budget_bytes, extent_bytes, draining_bytes; /* extent_bytes includes draining ones */
	uint64_t slots;          /* of extents that are not draining */
	uint64_t slots_used;     /* taken ones, draining extents included */
	uint64_t open_failures;  /* extents that the budget allowed and the kernel or the device did not */
	uint32_t extents, pools;
	int open_error;          /* errno of the last of them, 0 if there was none, or it was the device's */
	char open_why[HOST_WHY_MAX]; /* the device's words for it; empty if they were none */
	bool huge_pages;         /* there are extents and all are on huge pages */
};
void host_usage(struct host_tier *t, struct host_usage *out);
/* The bytes of the budget that no extent has, draining ones included. It does not last. */
uint64_t host_unused(struct host_tier *t);

#endif
