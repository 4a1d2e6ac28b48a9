/* An arena: a budget of memory, of the host or of one GPU, in three units.
 *
 *     extent   the unit of slow work: taken from the system, lent as a descriptor, mapped, registered. It belongs to a
 *              tenant. All have one size, but for the last, which has what is left of the budget.
 *     granule  an extent is so many granules, 64 KiB to 2 MiB each.
 *     span     a run of granules of one extent that is cut into slots of one class. A span without a taken slot is no
 *              more: its granules are free at once, and the next span there may be of any class of the tenant.
 *
 * A class is (tenant, stride): slot i of a span lies i * stride behind the span's place. A layout joins a class whose
 * stride is at most 1/16 larger than what the layout's block needs (arena_class_for). The arena knows slots, not
 * blocks: the caller decides which block is evicted. To move memory from one class to another the caller asks for the
 * coldest window (arena_window_find): the spans of other classes that stand where a span of the asking class could be.
 * It claims the window (arena_claim), empties those spans, and takes.
 *
 * The last granules, 1/64 of all and one at least, are the reserve: arena_take cuts them only for takers that ask for
 * it, which are classes with neither a free nor an evictable slot.
 *
 * Pages of host memory are taken from the kernel ahead of the cutting (arena_preallocate): no span is cut from pages
 * that are not there. They come in steps of 2 MiB until 32 MiB are free. The kernel needs a millisecond for a step, so
 * a caller that needs a slot waits for one step at most. A GPU's memory is there at once.
 *
 * On a device a tenant has one range of addresses, in which its extents lie side by side. Each extent has a *hold*
 * beside it: a page of host memory (store/host/extent.h), which is lent and asked about in its place. arena_extent
 * gives the hold; the memory itself goes to engines by arena_extent_device. The arena is destroyed before the device is
 * closed.
 *
 * Threads: any. Every function takes the arena's mutex itself, briefly. arena_prepare and arena_preallocate leave it
 * while the kernel works. The data path allocates nothing but the record of a new span. An extent lives as long as the
 * arena. */
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
	ARENA_WINDOW_GRANULES = 8192,    /* that one search for a window looks at */
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

struct arena_options {
	uint64_t budget_bytes;           /* over all extents; at least 4096, or the device's granularity */
	/* 0: by the rule: budget / 4 with one tenant, budget / 16 with more, 16 MiB to EXTENT_BYTES_MAX. Else a wish,
	 * at most EXTENT_BYTES_MAX. Either is rounded up to granules, and never more than the budget. */
	uint64_t extent_bytes;
	/* 0: by the rule: budget / 1024, the power of two that is not larger, 64 KiB to 2 MiB, but no more than a
	 * sixteenth of the budget. Else a power of two, 4096 to 1 GiB, at most the budget. Either is at least a
	 * device's granularity. */
	uint64_t granule_bytes;
	uint32_t tenants;                /* that will share the budget; 0 for 1 */
	bool huge_pages;                 /* of host memory */
	bool whole_extents;              /* pages are taken with their extent, which is registered with a GPU then */
	uint64_t first_generation;       /* of the first take, 0 for 1: above those of slots kept from before */
	uint32_t first_extent_id;        /* the others follow; 0 for 1 */
	uint32_t extent_ids;             /* so many extents at most; 0 for ARENA_EXTENT_IDS */
	const struct device_ops *ops;    /* NULL: host memory */
	struct device *device;           /* the caller's; with ops */
};

/* A span. The caller may keep the pointer while one of the span's slots is taken. The first part does not change;
 * `newest`, `held` and `owner` are the caller's alone. */
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

/* A taken slot. What names it is {class, extent, granule, index, generation}: arena_give looks at nothing else. */
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
/* Frees everything, taken slots and lent extents included: the caller answers for no thread touching the memory
 * through the daemon's mapping any more (engines' own mappings live on). NULL allowed. */
void arena_destroy(struct arena *a);

/* The bounds that follow from the options; they do not change. The largest slot is an extent. */
uint64_t arena_extent_bytes(const struct arena *a);
uint64_t arena_granule_bytes(const struct arena *a);

/* ---- classes ---- */

/* What a tenant may take of the budget: `most` bytes (0: all of it), but never what others of the budget are still
 * missing of their `own`, which no other tenant gets. Before the tenant's first extent. EXHAUSTED: no memory. */
enum status arena_tenant_bounds(struct arena *a, uint32_t tenant, uint64_t own, uint64_t most);

/* The class for blocks of need_bytes, any number: the tenant's class of the least stride that is at most 1/16 larger
 * than the need, rounded up to the unit; else one of just that is made. A tenant that has CLASS_RULE_MOST joins
 * the next larger one; a need above all of them makes one 1/16 larger than itself, so that few more can come.
 * It lives as long as the arena. PRECONDITION: a slot would be larger than an extent (the option that raises it is
 * extent_bytes). EXHAUSTED: ARENA_CLASSES_MAX, or no memory. */
enum status arena_class_for(struct arena *a, uint32_t tenant, uint64_t need_bytes, struct arena_class **out);
uint64_t arena_class_stride(const struct arena_class *k);

/* The two rules by themselves. The stride that a need gets, where the tenant has the `n` classes of `strides`, in any
 * order; UINT64_MAX where `need_bytes` is too large to be rounded. */
uint64_t arena_stride_for(const uint64_t *strides, uint32_t n, uint64_t need_bytes, uint32_t unit);
/* Granules of a span of that stride: the fewest, at most ARENA_SPAN_GRANULES and a sixteenth of an extent, unless one
 * slot needs more, whose tail behind the last whole slot is at most 1/32 of them; if no number has so small a tail,
 * the one that wastes the smallest part. Never more than extent_granules; 0: one slot needs more than those. */
uint32_t arena_span_granules(uint64_t stride, uint64_t granule_bytes, uint32_t extent_granules);

struct arena_class_usage {
	uint32_t spans, span_granules;   /* how many it has, and what its next one takes */
	uint32_t span_slots;             /* of its next one */
	uint64_t slots, slots_used;      /* of its spans that are not closed; taken ones of all its spans */
	uint64_t free;                   /* slots that can be had now, without the reserve */
	uint64_t room;                   /* `slots`, and those of memory that no span has, the reserve apart */
};
void arena_class_usage(struct arena_class *k, struct arena_class_usage *out);

/* ---- slots ---- */

/* From where a new span may be cut: beside the reserve; from the reserve too; and there, where no run of granules is
 * large enough, since other classes' spans left the reserve in pieces, with as few granules as one slot needs. */
enum arena_from { ARENA_SPARE, ARENA_RESERVE, ARENA_PIECES };

/* A free slot: the first of a span of the class that has one; of two spans the one that was used before is used up
 * before the other. Else the first slot of a new span: where the class has a claim whose granules are all free, there;
 * else in the smallest run of free granules that is large enough. Its bytes are whatever was there before: of the same
 * tenant, any class. *cut (may be NULL): the span is new. The caller stamps the span (arena_span_use). MISS: nothing is
 * free, or not all of a new span is. EXHAUSTED: no memory for the span's record. */
enum status arena_take(struct arena_class *k, enum arena_from from, struct arena_slot *out, bool *cut);

/* Whether arena_take without `reserve` would find a slot now. */
bool arena_can_take(struct arena_class *k);

/* Gives a slot back. True: it was its span's last slot, and the span has ended; *owner (may be NULL) is the span's
 * `owner`, which the caller frees. Giving back a slot that is not taken (extent, span, class, index and generation are
 * compared) is a programmer's error: asserted, and without asserts ignored. */
bool arena_give(const struct arena_slot *s, void **owner);

/* A generation as the next take would have it, for something that is to be taken elsewhere: no take has it. */
uint64_t arena_generation(struct arena *a);

/* ---- spans, and what trades of memory between classes need ---- */

static inline uint32_t arena_use_step(uint64_t now_us)
{
	return (uint32_t)(now_us / ARENA_USE_STEP_US);
}

/* A slot of the span was used. Any thread that has a slot of it; writes once in a step. */
static inline void arena_span_use(struct arena_span *s, uint64_t now_us)
{
	const uint32_t step = arena_use_step(now_us);

	if (atomic_load_explicit(&s->newest, memory_order_relaxed) != step)
		atomic_store_explicit(&s->newest, step, memory_order_relaxed);
}

/* n more of its slots are pinned or reserved, or less. One thread at a time: the count is only read elsewhere. */
static inline void arena_span_hold(struct arena_span *s, int n)
{
	const uint32_t held = atomic_load_explicit(&s->held, memory_order_relaxed);

	atomic_store_explicit(&s->held, held + (uint32_t)n, memory_order_relaxed);
}

/* The span that has that granule, or NULL: it is free, or there is no such extent. The pointer is good as long as the
 * caller knows that a slot of the span is taken. Walk the spans of a window or an extent by granule: the next is at
 * s->granule + s->granules. */
struct arena_span *arena_span_at(struct arena *a, uint32_t extent, uint32_t granule);

/* A run of granules, for one span of the class that asked. */
struct arena_window {
	uint32_t extent, granule, granules;
	uint32_t spans;                  /* that stand in it, wholly or in part */
	uint32_t newest;                 /* of these, the newest use */
};
/* The coldest window for a span of the class, in the tenant's extents: the one whose newest use is
 * the oldest, of equal ones the one with the fewest spans. In it stands a span at least, but none of the class itself,
 * none that is closed or has `held` slots, and nothing that another class has claimed. An arena of more than
 * ARENA_WINDOW_GRANULES is searched in parts, one a call: the answer is then the coldest of this part and of what
 * earlier calls for the class have found. Without `reserve` it is no window whose free granules the reserve wants for
 * itself. MISS: there is none in all of it. */
enum status arena_window_find(struct arena_class *k, bool reserve, struct arena_window *out);
/* The class's claim on that window: its spans are closed, its granules go to no other class, and arena_take cuts the
 * class's next span there as soon as all of them are free. A class has one claim at a time; it ends when it is cut.
 * BUSY: the class has a claim, or what stands in the window has changed so that arena_window_find would not give it
 * any more. */
enum status arena_claim(struct arena_class *k, const struct arena_window *w);
/* The class's claim, if it has one; `spans` is what is left there, `newest` theirs. */
bool arena_claimed(struct arena_class *k, struct arena_window *out);
/* Gives it up: what is left of its spans is open again. No claim: nothing. */
void arena_unclaim(struct arena_class *k);

/* ---- extents ---- */

struct arena_growth {
	uint32_t extent;                 /* whose pages were taken; 0: none were */
	bool made;                       /* it is a new one, which the caller makes known */
	bool ready;                      /* all its pages are there now: registering it faults in no more */
	bool more;                       /* of arena_preallocate: there is another step to take */
};
/* One step after arena_take has missed, unless by now the class has a free slot or can cut a span without the reserve:
 * takes the next ARENA_STEP_BYTES of pages, or as many as a span of the class needs, of an extent that has not all of
 * its pages yet, else of a new one. Then call arena_take again, and this if it misses again. Waits for another thread
 * that does the same for the tenant. EXHAUSTED: no budget, memory or descriptor: claim a window. IO: the kernel
 * refused it for another reason (arena_usage has the errno). UNAVAILABLE, UNSUPPORTED, INTERNAL: so did the device
 * (arena_usage has its words). */
enum status arena_prepare(struct arena_class *k, struct arena_growth *out);
/* One step of preallocation, for the thread that does the daemon's chores: if less than ARENA_PREALLOCATED_BYTES of the
 * tenant's pages (with several tenants less than ARENA_STEP_BYTES, or than the tenant lacks of its own bytes) are free
 * and there, takes the next ARENA_STEP_BYTES of pages, in a new extent where the others have all theirs. OK also if
 * there is nothing to take. Else statuses as arena_prepare, but not EXHAUSTED for want of budget; BUSY: another thread
 * is at it. */
enum status arena_preallocate(struct arena *a, uint32_t tenant, struct arena_growth *out);

/* Whether arena_preallocate would take pages. */
bool arena_wants(struct arena *a, uint32_t tenant);

/* The extent by id, for lending and probing, on a device its hold; NULL if unknown. The pointer stays valid until
 * arena_destroy. */
struct extent *arena_extent(struct arena *a, uint32_t id);
/* The tenant of the extent, to check which process may map it. False: unknown. */
bool arena_extent_owner(struct arena *a, uint32_t id, uint32_t *tenant);
/* Bytes of it, as the budget counts them (of a device's memory, not of the hold); 0 if unknown. */
uint64_t arena_extent_size(struct arena *a, uint32_t id);
/* Ids of a tenant's extents, ascending, from `from` on, `max` at most; returns how many were written. */
uint32_t arena_extents(struct arena *a, uint32_t tenant, uint32_t from, uint32_t *ids, uint32_t max);

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
	uint64_t granules;               /* of extents */
	uint64_t granules_free;          /* of these, in no span and no claim, their pages there or not */
	uint64_t granules_ready;         /* of these, their pages there */
	uint64_t reserve;                /* granules that arena_take keeps back */
	uint64_t open_failures;          /* growths that the budget allowed and the kernel or the device did not */
	uint32_t extents, spans, classes;
	int open_error;                  /* errno of the last of them, 0 if there was none, or it was the device's */
	char open_why[ARENA_WHY_MAX];    /* the device's words for it; empty if they were none */
	bool huge_pages;                 /* there are extents and all are on huge pages */
};
void arena_usage(struct arena *a, struct arena_usage *out);
/* The bytes of a tenant's extents. */
uint64_t arena_tenant_bytes(struct arena *a, uint32_t tenant);
/* The bytes of the budget that no extent has. It does not last. */
uint64_t arena_unused(struct arena *a);

#endif
