/* One extent of the daemon's memory in this process: host memory or a GPU's, read-only or writable.
 *
 * An extent of host memory is mapped whole, kept from children of fork(), and registered with a GPU when something there first wants
 * its address. One to be written is mapped to be read, but for the pages of reserved slots (memory/pages.h).
 * An extent of a GPU's memory is imported at its place in a range of addresses of its tenant, so that extents lie side
 * by side; its *hold*, a page of host memory, is mapped for as long. What to read and what to write have ranges of
 * their own. */
#ifndef TERRACE_CLIENT_MEMORY_MAPPING_H
#define TERRACE_CLIENT_MEMORY_MAPPING_H

#include "client/include/terrace.h"
#include "client/memory/lent.h"

#include <stdatomic.h>

struct client_gpu;
struct client_packet;
struct client_pages;

struct client_mapping {
	uint32_t extent;
	bool writable;
	bool retiring;  /* the daemon wants it back */
	bool coming;    /* it is being imported, by one who uses it once: `device` is his yet */
	bool registering; /* it is being registered with a GPU, by one who uses it once */
	uint32_t uses;  /* leases and reservations of this process */
	bool guarded;   /* host memory to be written: only pages of reserved slots are writable */
	uint32_t page_bytes; /* of guarded memory */
	uint32_t rests; /* the same: looks in a row that found no page writable (call/places.c) */
	struct client_pages *pages; /* the same; NULL: none has been writable yet. The owner's to destroy */
	uint8_t *base;  /* of a GPU's memory: the hold. NULL: being unmapped, or the daemon has not been told yet; unchanged while in use */
	uint64_t bytes; /* of the extent */
	uint32_t gpu;   /* the session's number of it, or FDSOCK_NO_GPU */
	uint64_t range_id, at;       /* of a GPU's memory: its range, and where in that */
	struct device_extent device; /* of a GPU's memory */
	uint32_t ready; /* of host memory: GPUs with which it is registered, a bit each; the owner's */
	/* Of host memory: [DEVICES_MAX] its addresses on the session's GPUs, 0 where it is not registered; NULL: nowhere.
	 * The owner's to free(). */
	uint64_t *registered;
};

/* Slots of a reservation in host memory that lie side by side, header and all. */
struct client_run {
	struct client_mapping *mapping;
	uint64_t offset, bytes;
};

/* Address space for extents on a GPU: of one tenant, to be read or to be written. */
struct client_range {
	uint64_t id;
	uint32_t gpu;
	bool writable;
	uint64_t address, bytes;
};

/* Where an attachment's GPU memory is. Zeroed memory will do; `lent` is set before anything else is called. */
struct client_lent_memory {
	struct client_lent lent;
	struct client_gpu *_Atomic gpus[DEVICES_MAX]; /* as in `lent`; NULL: not opened yet */
	struct client_range *ranges;                  /* whoever may map may read and add */
	uint32_t range_count;
};

/* GPU number g of the session, opened. TERRACE_UNSUPPORTED (the daemon lends none; see client_gpu_open), TERRACE_INVALID (no such
 * number). Any thread. */
enum terrace_status client_lent_gpu(struct client_lent_memory *memory, uint32_t g, struct client_gpu **out);

/* Maps the extent of an EXTENT packet into *mapping, whose `extent` and `writable` are set, but for a GPU's memory, whose hold alone is
 * mapped. The packet keeps its descriptors. What the daemon says; TERRACE_INTERNAL for nonsense; TERRACE_EXHAUSTED, TERRACE_UNSUPPORTED,
 * TERRACE_UNAVAILABLE (the GPU is lost). One thread at a time. */
enum terrace_status client_mapping_prepare(struct client_lent_memory *memory, const struct client_packet *packet,
					   struct client_mapping *mapping);

/* Imports a GPU's memory after that, by the same packet; nothing is left to be done for host memory. Writes `device` alone. As above; if it
 * fails, client_mapping_forget is next. Any threads, each its mapping. */
enum terrace_status client_mapping_import(struct client_lent_memory *memory, const struct client_packet *packet,
					  struct client_mapping *mapping);

/* Unmaps what was prepared and is not to be imported. */
void client_mapping_forget(struct client_mapping *mapping);

/* Registers host memory with GPU g, if it is not. One thread at a time a mapping. */
enum terrace_status client_mapping_register(struct client_lent_memory *memory, struct client_mapping *mapping, uint32_t g);

/* Unregisters and unmaps, and leaves the words of the struct, `registered` too, to their readers. Nothing touches the memory any more. */
void client_mapping_drop(struct client_lent_memory *memory, const struct client_mapping *mapping);

/* Gives the ranges back, when no mapping is left. */
void client_lent_memory_fini(struct client_lent_memory *memory);

#endif
