/* Leases: protected blocks, mapped. */
#ifndef TERRACE_CLIENT_LEASE_H
#define TERRACE_CLIENT_LEASE_H

#include "client/places.h"
#include "client/rpc.h"

struct terrace_lease {
	struct client_view *view; /* with a reference */
	unsigned generation;
	uint64_t id;
	struct client_places places;
};

struct client_leasing {
	struct client_view *view;
	uint32_t count; /* keys asked for */
	enum terrace_lease_mode mode;
	uint64_t deadline_us;
	struct terrace_lease *lease; /* the answer */
};

/* Reads a LeaseReply and maps what it names. A lease that cannot be used is given back. */
enum terrace_status client_lease_read(struct client_leasing *leasing, const struct client_message *message);

/* Makes the handle of lease `id`, which the daemon has given, over places as client_places_init takes them. On failure the lease
 * is given back. */
enum terrace_status client_lease_create(struct client_view *view, uint64_t id, const Terrace__V1__Places *reply,
					uint32_t keys, const uint8_t *wanted, bool sparse, uint64_t deadline_us,
					struct terrace_lease **lease);

/* Gives a lease back, one way: over the fd socket, or, when that is gone, by a call nobody waits for. */
void client_lease_return(struct client_view *view, uint64_t id);

#endif
