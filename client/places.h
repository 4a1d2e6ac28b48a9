/* Where leased or reserved blocks lie in this process: addresses, and the mappings that hold them. */
#ifndef TERRACE_CLIENT_PLACES_H
#define TERRACE_CLIENT_PLACES_H

#include "client/session.h"
#include "terrace.pb-c.h"

/* Embedded in leases and reservations. Zeroed memory is an empty one. */
struct client_places {
	struct client_attachment *attachment; /* with a reference */
	uint32_t keys, layouts;
	void **blocks;                        /* [keys][layouts], NULL where there is none */
	uint32_t *tokens;                     /* [keys] valid tokens */
	struct client_mapping **mappings;     /* each used once */
	uint32_t mapping_count;
};

/* Takes the places of `keys` blocks from a reply: checks every number of it, maps what is not mapped. `wanted` has a byte a key: 0:
 * key without a block, whatever the reply says (NULL: all wanted). A block may be absent in windowed layouts, and with
 * `sparse` (a key then is absent in all layouts). TERRACE_INTERNAL for nonsense, else as client_fds_map. */
enum terrace_status client_places_init(struct client_places *places, const struct client_view *view,
				       const Terrace__V1__Places *reply, uint32_t keys, const uint8_t *wanted, bool sparse,
				       bool writable, uint64_t deadline_us);

/* Ends the use of the mappings. */
void client_places_fini(struct client_places *places);

/* NULL outside. */
void *client_places_block(const struct client_places *places, uint32_t key, uint32_t layout);

#endif
