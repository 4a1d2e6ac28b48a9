/* The places of leased or reserved blocks in this process: addresses, and the mappings that contain them. */
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
	int32_t gpu;                          /* the GPU of `addresses`; -1: none */
	void **blocks;                        /* [keys][layouts]; NULL where there is no block, or only a GPU has it */
	uint64_t *addresses;                  /* [keys][layouts] on the GPU; 0 where there is no block; NULL without a
					       * GPU */
	uint32_t *tokens;                     /* [keys] valid tokens, the fewest of the key's blocks */
	uint32_t first;                       /* position of the first key */
	struct client_mapping **mappings;     /* each mapping counted as used once */
	uint32_t mapping_count;
	struct client_run *runs;              /* of a reservation: the runs before run_writable are writable */
	uint32_t run_count, run_capacity, run_writable;
};

/* What the caller expects of a reply's places. */
struct client_placing {
	const struct client_view *view;
	const Terrace__V1__Places *reply;
	uint32_t keys;
	uint32_t first;        /* position of the first key */
	const uint8_t *wanted; /* a byte for each key; 0: the key has no block, whatever the reply says; NULL: all keys
			        * are wanted */
	bool sparse;           /* a key may be absent in all layouts; in one layout alone it may be absent only if that
			        * layout is windowed */
	bool writable;
	int32_t gpu;           /* -1: all places are in host memory; else they are on that GPU of the session, which is
			        * open, */
	bool host_too;         /* or in host memory, which is then registered with that GPU */
	uint64_t deadline_us;
};

/* Takes the places of blocks from a reply: checks every number, and maps the extents that are not mapped.
 * TERRACE_INTERNAL: a number is impossible. Otherwise as client_fds_map and client_fds_register. */
enum terrace_status client_places_init(struct client_places *places, const struct client_placing *placing);

/* Ends the handle's use of the mappings. */
void client_places_fini(struct client_places *places);

/* Called every CLIENT_REST_US (memory/pages.h) by one thread, once the attachment's `tends` was set. Closes pages that
 * have rested, and unmaps mappings without a writable page for long. False, and then `tends` is false too: no writable
 * mapping is left, or the attachment is *closed. If it is not closed, it may be freed already. */
bool client_places_tend(struct client_attachment *attachment, bool *closed);

/* Writes the GPU's addresses of all keys' blocks in a layout. TERRACE_PRECONDITION: the places are not a GPU's.
 * TERRACE_INVALID: no such layout. */
enum terrace_status client_places_addresses(const struct client_places *places, uint32_t layout, uint64_t *addresses);

/* The valid tokens of a key's block in a layout; 0: there is no block. */
uint32_t client_places_tokens(const struct client_places *places, const struct client_view *view, uint32_t key,
			      uint32_t layout);

/* The address of a key's block in a layout; NULL for a key or layout out of range. */
void *client_places_block(const struct client_places *places, uint32_t key, uint32_t layout);

#endif
