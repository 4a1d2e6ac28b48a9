/* One extent of the daemon's memory in this process: host memory or a GPU's, read-only or writable.
 *
 * An extent of host memory is mapped whole, kept from children of fork(), and registered with a GPU when its address
 * there is first needed. A writable one is mapped read-only, except the pages of reserved slots (memory/pages.h). An
 * extent of a GPU's memory is imported at its place in its tenant's range of addresses, so that extents lie side by
 * side. Its *hold*, a page of host memory, is mapped for as long. Readable and writable extents have ranges of their
 * own.
 */
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
	bool coming;    /* it is being imported, by a thread that holds one use; `device` belongs to that thread until
			 * then */
	bool registering; /* it is being registered with a GPU, by a thread that holds one use */
	uint32_t uses;  /* leases and reservations of this process */
	bool guarded;   /* writable host memory: only pages of reserved slots are writable */
	uint32_t page_bytes; /* of guarded memory */
	uint32_t rests; /* of guarded memory: looks in a row that found no writable page (call/places.c) */
	struct client_pages *pages; /* of guarded memory; NULL: no page has been writable yet. The owner destroys it */
	uint8_t *base;  /* of a GPU's memory: the hold. NULL: being unmapped, or the daemon was not told yet. It does
			 * not change while the mapping is in use */
	uint64_t bytes; /* of the extent */
	uint32_t gpu;   /* the session's number of it, or FDSOCK_NO_GPU */
	uint64_t range_id, at;       /* of a GPU's memory: its range, and its place in the range */
	struct device_extent device; /* of a GPU's memory */
	uint32_t ready; /* of host memory: a bit for each GPU with which it is registered; for the owner */
	/* addresses of host memory on the session's GPUs [DEVICES_MAX], 0 where it is not registered; NULL: it is
	 * registered nowhere, or is a GPU's. The owner frees it. */
	uint64_t *registered;
};

/* Slots of a reservation in host memory that lie side by side, headers included. */
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

/* The places of an attachment's GPU memory. Zeroed memory is enough, but `lent` is set before any function is
 * called. */
struct client_lent_memory {
	struct client_lent lent;
	struct client_gpu *_Atomic gpus[DEVICES_MAX]; /* as in `lent`; NULL: not opened yet */
	struct client_range *ranges;                  /* the thread that may map reads and adds */
	uint32_t range_count;
};

/* Opens GPU number g of the session, if it is not open. TERRACE_UNSUPPORTED (the daemon lends none; see
 * client_gpu_open), TERRACE_INVALID (no such number). Any thread. */
enum terrace_status client_lent_gpu(struct client_lent_memory *memory, uint32_t g, struct client_gpu **out);

/* Maps the extent of an EXTENT packet into *mapping, whose `extent` and `writable` are set; of a GPU's memory it maps
 * only the hold. The packet keeps its descriptors. Returns the daemon's status; TERRACE_INTERNAL: the packet makes no
 * sense; TERRACE_EXHAUSTED, TERRACE_UNSUPPORTED, TERRACE_UNAVAILABLE (the GPU is lost). One thread at a time. */
enum terrace_status client_mapping_prepare(struct client_lent_memory *memory, const struct client_packet *packet,
					   struct client_mapping *mapping);

/* Imports a GPU's memory after client_mapping_prepare, with the same packet. For host memory it does nothing. Writes
 * only `device`. Statuses as above; if it fails, the caller calls client_mapping_forget. Any threads, each with its own
 * mapping. */
enum terrace_status client_mapping_import(struct client_lent_memory *memory, const struct client_packet *packet,
					  struct client_mapping *mapping);

/* Unmaps a mapping that was prepared and will not be imported. */
void client_mapping_forget(struct client_mapping *mapping);

/* Registers host memory with GPU g, if it is not registered. One thread at a time for a mapping. */
enum terrace_status client_mapping_register(struct client_lent_memory *memory, struct client_mapping *mapping, uint32_t g);

/* Unregisters and unmaps. The fields of the struct, `registered` too, stay for their readers. No thread uses the memory
 * any more. */
void client_mapping_drop(struct client_lent_memory *memory, const struct client_mapping *mapping);

/* Frees the ranges, when no mapping is left. */
void client_lent_memory_fini(struct client_lent_memory *memory);

#endif
