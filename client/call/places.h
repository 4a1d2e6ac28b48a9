/* Where leased or reserved blocks lie in this process: addresses, and the mappings that hold them. */
#ifndef TERRACE_CLIENT_CALL_PLACES_H
#define TERRACE_CLIENT_CALL_PLACES_H

#include "client/include/terrace.h"
#include "terrace.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

struct client_attachment;
struct client_mapping;
struct client_run;
struct client_view;

/* Embedded in leases and reservations. Zeroed memory is an empty one. */
struct client_places {
	struct client_attachment *attachment; /* with a reference */
	uint32_t keys, layouts;
	int32_t gpu;                          /* whose addresses these are; -1: none's */
	void **blocks;                        /* [keys][layouts], NULL where there is none, or only a GPU has it */
	uint64_t *addresses;                  /* [keys][layouts] on the GPU, 0 where there is none; NULL without a GPU */
	uint32_t *tokens;                     /* [keys] valid tokens, the fewest of the key's blocks */
	uint32_t first;                       /* position of the first key */
	struct client_mapping **mappings;     /* each used once */
	uint32_t mapping_count;
	struct client_run *runs;              /* of a reservation: those before run_writable are writable */
	uint32_t run_count, run_capacity, run_writable;
};

/* What a reply's places are to be. */
struct client_placing {
	const struct client_view *view;
	const Terrace__V1__Places *reply;
	uint32_t keys;
	uint32_t first;        /* position of the first key */
	const uint8_t *wanted; /* a byte a key, 0: key without a block, whatever the reply says; NULL: all wanted */
	bool sparse;           /* a key may be absent in all layouts; one layout may lack it only if it is windowed */
	bool writable;
	int32_t gpu;           /* -1: all are in host memory; else on that GPU of the session, which is open, */
	bool host_too;         /* or in host memory, which is then registered with it */
	uint64_t deadline_us;
};

/* Takes the places of blocks from a reply: checks every number of it, maps what is not mapped. TERRACE_INTERNAL for nonsense, else as
 * client_fds_map and client_fds_register. */
enum terrace_status client_places_init(struct client_places *places, const struct client_placing *placing);

/* Ends the use of the mappings. */
void client_places_fini(struct client_places *places);

/* To be called every CLIENT_REST_US (memory/pages.h) by one thread, once the attachment's `tends` was set: closes pages
 * that have rested, and unmaps what had none for long. False, and `tends` is so: no mapping is left that was to be
 * written, or the attachment is *closed. If it is not closed, it may be gone. */
bool client_places_tend(struct client_attachment *attachment, bool *closed);

/* The GPU's addresses of all keys' blocks in a layout. TERRACE_PRECONDITION: they are not a GPU's; TERRACE_INVALID: no such layout. */
enum terrace_status client_places_addresses(const struct client_places *places, uint32_t layout, uint64_t *addresses);

/* Valid tokens of a key's block in a layout; 0: there is none. */
uint32_t client_places_tokens(const struct client_places *places, const struct client_view *view, uint32_t key,
			      uint32_t layout);

/* NULL outside. */
void *client_places_block(const struct client_places *places, uint32_t key, uint32_t layout);

#endif
