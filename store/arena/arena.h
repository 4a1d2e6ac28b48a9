/* An arena: a budget of memory, of the host or of one GPU, in three units.
 *
 *     extent   the unit of slow work: taken from the system, lent as a descriptor, mapped, registered. It belongs to a
 *              tenant. All extents have one size, but the last one has what is left of the budget.
 *     granule  an extent consists of granules of 64 KiB to 2 MiB each.
 *     span     a run of granules of one extent that is cut into slots of one class. When its last slot is given back
 *              the span ends: its granules are free at once, and the next span there may be of any class of the
 *              tenant.
 *
 * A class is (tenant, stride): slot i of a span lies i * stride behind the span's beginning. A layout joins a class
 * whose stride is at most 1/16 larger than what the layout's block needs (arena_class_for). The arena knows slots, not
 * blocks: the caller decides which block is evicted. To move memory from one class to another the caller asks for the
 * coldest window (arena_window_find). A window is a run of granules that would hold a span of the asking class and now
 * holds spans of other classes. The caller claims the window (arena_claim), empties those spans, and takes.
 *
 * The last granules, 1/64 of all and at least one, are the reserve. arena_take cuts them only for callers that ask for
 * it: classes with neither a free nor an evictable slot.
 *
 * Pages of host memory are taken from the kernel before spans are cut from them (arena_preallocate). They are taken in
 * steps of 2 MiB until 32 MiB are free. The kernel needs a millisecond for a step, so a caller that needs a slot waits
 * for one step at most. With whole_extents, and on a GPU, a step is a whole extent.
 *
 * On a device a tenant has one range of addresses, in which its extents lie side by side. Each extent has a *hold*
 * beside it: a page of host memory (store/host/extent.h) that is lent, and asked about, in place of the device's
 * memory. arena_extent gives the hold; arena_extent_device gives the memory itself to engines. The arena is destroyed
 * before the device is closed.
 *
 * Threads: any. Every function takes the arena's mutex itself, briefly. arena_prepare and arena_preallocate leave it
 * while the kernel works. The data path allocates nothing but the record of a new span. An extent lives as long as the
 * arena, or until its tenant has to give it back (arena_extent_remove).
 */
#ifndef TERRACE_STORE_ARENA_ARENA_H
#define TERRACE_STORE_ARENA_ARENA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

enum {
	ARENA_CLASSES_MAX = 4096,        /* in all */
	ARENA_EXTENT_IDS = (1 << 24) - 1, /* an arena has so many */
	ARENA_SPAN_GRANULES = 16,        /* the most a span has, unless one slot needs more */
	ARENA_WINDOW_GRANULES = 8192,    /* granules that one search for a window looks at */
	ARENA_GROWTH_WAIT_S = 10,
	ARENA_USE_STEP_US = 100 * 1000,
	ARENA_WHY_MAX = 160,             /* as HOST_WHY_MAX */
	ARENA_HOST_UNIT = 4096,          /* strides of host memory are multiples of it */
	ARENA_DEVICE_UNIT = 256,         /* the same of a device's */
};
#define ARENA_PREALLOCATED_BYTES (32ull << 20)
#define ARENA_STEP_BYTES (2ull << 20)
#define ARENA_EXTENT_BYTES_MIN (16ull << 20)

struct arena;
struct arena_class;
struct arena_extent;

struct arena_options {
	uint64_t budget_bytes;           /* over all extents; at least 4096, or the device's granularity */
	/* 0: budget / 4 with one tenant, budget / 16 with more, but at least 16 MiB and at most EXTENT_BYTES_MAX.
	 * Otherwise the wished size, at most EXTENT_BYTES_MAX. Both are rounded up to granules (with huge_pages to 2
	 * MiB), and are never more than the budget. */
	uint64_t extent_bytes;
	/* 0: the largest power of two up to budget / 1024, from 64 KiB to 2 MiB, but at most a sixteenth of the budget.
	 * Otherwise a power of two from 4096 to 1 GiB, which is lowered to fit the budget. Both are at least a device's
	 * granularity. */
	uint64_t granule_bytes;
	uint32_t tenants;                /* tenants that will share the budget; 0 for 1 */
	bool huge_pages;                 /* of host memory */
	bool whole_extents;              /* an extent is made with all its pages, because it is then registered with a
					  * GPU */
	uint64_t first_generation;       /* the generation of the first take, 0 for 1; above those of slots kept from an
					  * earlier run */
	uint32_t first_extent_id;        /* the others follow; 0 for 1 */
	uint32_t extent_ids;             /* so many extents at most; 0 for ARENA_EXTENT_IDS */
	const struct device_ops *ops;    /* NULL: host memory */
	struct device *device;           /* the caller's; with ops */
};

/* A span. The caller may keep the pointer while one of the span's slots is taken. The fields of the first part do not
 * change. The caller alone writes `newest`, `held` and `owner`. */
struct arena_span {
	struct arena_class *class;
	uint32_t extent;                 /* id */
	uint32_t granule, granules;      /* the first in the extent, and how many: (extent, granule) names the span */
	uint32_t slots;
	uint64_t stride;
	uint64_t offset;                 /* of slot 0 in the extent */
	uint8_t *at;                     /* address of slot 0 in the daemon; NULL on a device */
	uint64_t address;                /* of slot 0 on the device; 0 in host memory */

	_Atomic uint32_t newest;         /* last use of any of its slots: arena_span_use; 0 when cut */
	_Atomic uint32_t held;           /* slots that are pinned or reserved: a span with any is in no window */
	void *owner;                     /* the caller's record of the span; NULL when cut */
};

/* A taken slot. {class, extent, granule, index, generation} names it: arena_give reads nothing else. */
struct arena_slot {
	struct arena_class *class;
	struct arena_span *span;         /* good while the slot is taken */
	uint32_t extent, granule;        /* the span's */
	uint32_t index;                  /* in the span */
	uint8_t *at;                     /* address in the daemon; NULL on a device */
	uint64_t address;                /* on the device; 0 in host memory */
	uint64_t offset;                 /* in the extent */
	uint64_t generation;             /* new at each take: no two takes of a run have the same; never 0 */
};

/* INVALID: an option is out of its bounds. EXHAUSTED: no memory. UNAVAILABLE: the device is lost. Takes no extent
 * yet. */
enum status arena_create(const struct arena_options *o, struct arena **out);
/* Frees everything, taken slots and lent extents included. The caller guarantees that no thread uses the memory through
 * the daemon's mapping any more. Engines' own mappings live on. NULL allowed. */
void arena_destroy(struct arena *a);

/* The sizes that follow from the options; they do not change. A slot is at most as large as an extent. */
uint64_t arena_extent_bytes(const struct arena *a);
uint64_t arena_granule_bytes(const struct arena *a);

/* ---- classes ---- */

/* Bounds what a tenant may take of the budget: `most` bytes (0: all of it; less than a granule: nothing). `own`
 * bytes are kept for the tenant: no other tenant gets what it still lacks of them. Called before the tenant's first
 * extent. EXHAUSTED: no memory. */
enum status arena_tenant_bounds(struct arena *a, uint32_t tenant, uint64_t own, uint64_t most);

/* The class for blocks of need_bytes, any number. It is the tenant's class with the smallest stride that is at most
 * 1/16 larger than the need, rounded up to the unit. If there is none, a class with just that stride is made. A tenant
 * that has CLASS_RULE_MOST classes joins the next larger one. A need above all of them makes a class 1/16 larger than
 * the need, so that few more classes follow. A class lives as long as the arena. PRECONDITION: a slot would be larger
 * than an extent (the option extent_bytes raises the limit). EXHAUSTED: ARENA_CLASSES_MAX, or no memory. */
enum status arena_class_for(struct arena *a, uint32_t tenant, uint64_t need_bytes, struct arena_class **out);
uint64_t arena_class_stride(const struct arena_class *k);

/* The rule of strides alone: the stride that a need gets where the tenant has `n` classes with `strides`, in any order.
 * UINT64_MAX: need_bytes is too large to be rounded. */
uint64_t arena_stride_for(const uint64_t *strides, uint32_t n, uint64_t need_bytes, uint32_t unit);
/* The rule of spans alone: the granules of a span of that stride. It is the smallest number that wastes at most 1/32 as
 * the tail behind the last whole slot, or else the number that wastes the smallest part. It is at most
 * ARENA_SPAN_GRANULES and a sixteenth of an extent, unless one slot needs more. Never more than extent_granules; 0: one
 * slot needs more than that. */
uint32_t arena_span_granules(uint64_t stride, uint64_t granule_bytes, uint32_t extent_granules);

struct arena_class_usage {
	uint32_t spans, span_granules;   /* the class's spans; the granules of its next span */
	uint32_t span_slots;             /* the slots of its next span */
	uint64_t slots, slots_used;      /* slots of its open spans; taken slots of all its spans */
	uint64_t free;                   /* slots that arena_take could give now without the reserve */
	uint64_t room;                   /* `slots`, and the slots that memory without a span would give, the reserve
					  * not counted */
};
void arena_class_usage(struct arena_class *k, struct arena_class_usage *out);

/* ---- slots ---- */

/* Where a new span may be cut. ARENA_SPARE: outside the reserve. ARENA_RESERVE: from the reserve too. ARENA_PIECES:
 * from the reserve too, and, where no run of granules is large enough because other classes' spans left it in pieces,
 * with as few granules as one slot needs. */
enum arena_from { ARENA_SPARE, ARENA_RESERVE, ARENA_PIECES };

/* Takes a free slot. It is the lowest free slot of a span of the class that has one; a span is used up before the next
 * one is touched. If no span has a free slot, a new span is cut: from the class's claim if all granules of the claim
 * are free, else from the smallest run of free granules that is large enough. The slot's bytes are what was there
 * before: of the same tenant, of any class. *cut (may be NULL): the span is new. The caller stamps the span
 * (arena_span_use). MISS: the class has no free slot, and no new span can be cut. EXHAUSTED: no memory for the span's
 * record. */
enum status arena_take(struct arena_class *k, enum arena_from from, struct arena_slot *out, bool *cut);

/* Whether arena_take from ARENA_SPARE would find a slot now. */
bool arena_can_take(struct arena_class *k);

/* Gives a slot back. True: it was its span's last slot, and the span has ended; *owner (may be NULL) is then the span's
 * `owner`, which the caller frees. To give back a slot that is not taken is a programmer's error: asserted, and without
 * asserts ignored. Extent, span, class, index and generation are compared for it. */
bool arena_give(const struct arena_slot *s, void **owner);

/* Gives out the next generation, for something that is taken elsewhere than in the arena. No take gets the same one. */
uint64_t arena_generation(struct arena *a);

/* ---- spans, and moving memory from class to class ---- */

static inline uint32_t arena_use_step(uint64_t now_us)
{
	return (uint32_t)(now_us / ARENA_USE_STEP_US);
}

/* Notes a use of one of the span's slots. Called by any thread that has a slot of it. Writes at most once a step. */
static inline void arena_span_use(struct arena_span *s, uint64_t now_us)
{
	const uint32_t step = arena_use_step(now_us);

	if (atomic_load_explicit(&s->newest, memory_order_relaxed) != step)
		atomic_store_explicit(&s->newest, step, memory_order_relaxed);
}

/* Notes that n more of the span's slots (fewer if n is negative) are pinned or reserved. Only one thread at a time
 * calls it; other threads only read the count. */
static inline void arena_span_hold(struct arena_span *s, int n)
{
	const uint32_t held = atomic_load_explicit(&s->held, memory_order_relaxed);

	atomic_store_explicit(&s->held, held + (uint32_t)n, memory_order_relaxed);
}

/* The span that has that granule. NULL: the granule is free, or there is no such extent. The pointer is valid as long
 * as the caller knows that a slot of the span is taken. To walk the spans of a window or an extent: the next granule is
 * s->granule + s->granules. */
struct arena_span *arena_span_at(struct arena *a, uint32_t extent, uint32_t granule);

/* A run of granules for one span of the class that asked. */
struct arena_window {
	uint32_t extent, granule, granules;
	uint32_t spans;                  /* spans that lie in it, wholly or in part */
	uint32_t newest;                 /* the newest use of any of these spans */
};
/* Finds the coldest window for a span of the class, in the tenant's extents: the one whose newest use is the oldest,
 * and of equal ones the one with the fewest spans. At least one span lies in it. No span of the class itself lies in
 * it, no span that is closed or has `held` slots, and no granule that another class has claimed. An arena of more than
 * ARENA_WINDOW_GRANULES is searched in parts, one a call: the answer is then the coldest of this part and of what
 * earlier calls for the class have found. Without `reserve`, windows whose free granules belong to the reserve are left
 * out. MISS: there is none in the whole arena. */
enum status arena_window_find(struct arena_class *k, bool reserve, struct arena_window *out);
/* Claims that window for the class: its spans are closed and its granules go to no other class. arena_take cuts the
 * class's next span there as soon as all its granules are free. A class has one claim at a time; the claim ends when
 * its span is cut. BUSY: the class has a claim already, or the window has changed so that arena_window_find would not
 * return it any more. */
enum status arena_claim(struct arena_class *k, const struct arena_window *w);
/* Gets the class's claim; false: it has none. `spans` counts the spans that are left there, `newest` is their newest
 * use. */
bool arena_claimed(struct arena_class *k, struct arena_window *out);
/* Gives up the class's claim: the spans that are left there are open again. Without a claim it does nothing. */
void arena_unclaim(struct arena_class *k);

/* ---- extents ---- */

struct arena_growth {
	uint32_t extent;                 /* the extent whose pages were taken; 0: no pages were taken */
	bool made;                       /* the extent is new, and the caller makes it known */
	bool ready;                      /* all pages of the extent are there now, so registering it causes no page
					  * faults */
	bool more;                       /* set by arena_preallocate: another step is wanted */
};
/* Takes memory after arena_take has missed, one step: the next ARENA_STEP_BYTES of pages, or as many as a span of the
 * class needs. They are pages of an extent that does not have all its pages yet, else of a new extent. Does nothing if
 * by now the class has a free slot or can cut a span without the reserve. Then the caller calls arena_take again, and
 * arena_prepare again if that misses. If another thread takes memory for the tenant, this waits for it,
 * ARENA_GROWTH_WAIT_S at most. EXHAUSTED: no budget, memory or descriptor, or that wait was over: claim a window. IO:
 * the kernel refused for another reason (arena_usage has the errno). UNAVAILABLE, UNSUPPORTED, INTERNAL: the device
 * refused (arena_usage has its words). */
enum status arena_prepare(struct arena_class *k, struct arena_growth *out);
/* Makes an extent for the class's tenant, whatever the tenant has free. The statuses of arena_prepare; BUSY: another
 * thread is taking memory for the tenant. */
enum status arena_extent_add(struct arena_class *k, struct arena_growth *out);
/* One step of preallocation, for the thread that does the daemon's chores. If too little of the tenant's granules with
 * pages is free, it takes the next ARENA_STEP_BYTES of pages, in a new extent where the others have all theirs. Too
 * little is less than ARENA_PREALLOCATED_BYTES, or with whole_extents than a quarter of an extent if that is more. With
 * several tenants it is at most what the tenant's extents lack of its own bytes, or ARENA_STEP_BYTES if that is more.
 * OK also if there is nothing to take, and if the budget is used up. BUSY: another thread is taking memory for the
 * tenant. Otherwise the statuses of arena_prepare. */
enum status arena_preallocate(struct arena *a, uint32_t tenant, struct arena_growth *out);

/* Whether arena_preallocate would take pages. */
bool arena_wants(struct arena *a, uint32_t tenant);

/* The extent with that id, for lending and probing; on a device its hold. NULL: unknown. The pointer stays valid until
 * arena_extent_remove, or arena_destroy. */
struct extent *arena_extent(struct arena *a, uint32_t id);
/* The tenant of the extent, to check which process may map it. False: unknown. */
bool arena_extent_owner(struct arena *a, uint32_t id, uint32_t *tenant);
/* The extent's bytes, as the budget counts them (of a device's memory, not of the hold); 0 if unknown. */
uint64_t arena_extent_size(struct arena *a, uint32_t id);
/* Writes the ids of a tenant's extents, ascending, those from `from` on, `max` at most. Returns how many it wrote. */
uint32_t arena_extents(struct arena *a, uint32_t tenant, uint32_t from, uint32_t *ids, uint32_t max);

/* ---- extents that change hands ----
 *
 * A tenant that has more than its own bytes has borrowed the rest. When another one lacks memory, an extent of it is
 * retired: it gives no slot any more. The caller evicts what is in it, asks engines to unmap it, and frees it. Then the
 * other tenant's next extent takes those bytes, as new memory that the kernel or the device has zeroed. */

/* Whether the class's tenant may have another span of the class, the budget has no bytes left for it, and another
 * tenant has an extent that may go to it (arena_retire_find). */
bool arena_lacks(struct arena_class *k);
/* Finds the extent to retire for a class whose tenant lacks memory; 0: none. It is one of another tenant, to whom its
 * own bytes stay, and at least as many beyond them as the class's tenant has then. None of its slots is held. `may` is
 * asked whether an extent will do, under the arena's mutex: it calls nothing of the arena. Of those the one whose
 * newest use is the oldest. */
uint32_t arena_retire_find(struct arena_class *k, bool (*may)(void *arg, uint32_t extent), void *arg);
/* From now on the extent gives no slot. Slots of it that are taken stay taken. BUSY: no such extent, it is retired
 * already, slots of it are held, a class has claimed a part of it, or its pages are being taken just now. */
enum status arena_retire(struct arena *a, uint32_t extent);
/* The extent gives slots again. Does nothing if it is not retired. */
void arena_retire_end(struct arena *a, uint32_t extent);
/* Gets a retired extent as a window of all its granules, with the number of its spans; false: it is not retired. */
bool arena_retired(struct arena *a, uint32_t extent, struct arena_window *out);
/* Whether slots of a retired extent are held. */
bool arena_retired_held(struct arena *a, uint32_t extent);
/* Takes a retired extent in which no slot is taken out of the arena: no call finds it any more. Its bytes stay counted,
 * as its tenant's. BUSY: it is not retired, or has a taken slot. */
enum status arena_extent_remove(struct arena *a, uint32_t extent, struct arena_extent **out);
/* Frees the memory of a removed extent, which may take a device's driver long. No thread reads it or has its `struct
 * extent` any more, and no process has it mapped: a process that all the same has it keeps the memory, which no budget
 * counts then. */
void arena_extent_free(struct arena *a, struct arena_extent *e);

struct arena_device_extent {
	int fd;                          /* a descriptor of the memory, close-on-exec, the caller's to close */
	uint64_t address, bytes;         /* in this process */
	uint64_t at, range_bytes;        /* its place in the tenant's range, and how large that one range is */
};
/* An extent of device memory, for a process that is to import it. NOT_FOUND: unknown, or host memory. EXHAUSTED: no
 * descriptors. */
enum status arena_extent_device(struct arena *a, uint32_t id, struct arena_device_extent *out);

struct arena_usage {
	uint64_t budget_bytes, extent_bytes;
	uint64_t slots;                  /* of spans that are not closed */
	uint64_t slots_used;             /* taken ones of all spans */
	uint64_t granules;               /* granules of all extents */
	uint64_t granules_free;          /* of these, those in no span and no claim, whether or not their pages are
					  * there */
	uint64_t granules_ready;         /* of the free ones, those whose pages are there */
	uint64_t reserve;                /* granules that arena_take keeps back */
	uint64_t open_failures;          /* growths that the budget allowed and the kernel or the device refused */
	uint32_t extents, spans, classes;
	int open_error;                  /* errno of the last refusal; 0: there was none, or it was the device's */
	char open_why[ARENA_WHY_MAX];    /* the device's words for the last refusal; empty: it had none */
	bool huge_pages;                 /* there are extents and all are on huge pages */
};
void arena_usage(struct arena *a, struct arena_usage *out);
/* The bytes of a tenant's extents. */
uint64_t arena_tenant_bytes(struct arena *a, uint32_t tenant);
/* The bytes of the budget that no extent has and that the class's tenant may take. Quick. */
uint64_t arena_class_unused(struct arena_class *k);

#endif
