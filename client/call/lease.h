/* Leases: protected blocks, mapped. */
#ifndef TERRACE_CLIENT_CALL_LEASE_H
#define TERRACE_CLIENT_CALL_LEASE_H

#include "client/gpu/stream_thread.h"
#include "client/memory/progress_page.h"
#include "client/call/places.h"

struct client_message;

struct terrace_lease {
	struct client_view *view; /* with a reference */
	unsigned generation;
	uint64_t id;
	struct client_places places;
	struct client_promise promise; /* of copies to its GPU */
	struct client_after after;     /* of terrace_release_after */
};

struct client_leasing {
	struct client_view *view;
	uint32_t count; /* keys asked for */
	enum terrace_lease_mode mode;
	uint32_t first; /* position of the first key */
	struct client_gpu *device; /* the GPU whose driver is asked while the call is under way; NULL: it was asked
				    * already */
	int32_t gpu;    /* -1: none; else it has been made ready */
	bool gpu_or_host;
	uint64_t deadline_us;
	uint64_t call;  /* the call's number, until there is a reply; then 0 */
	struct terrace_lease *lease; /* the answer */
};

/* Reads a LeaseReply and maps the extents that it names. A lease that cannot be used is given back. */
enum terrace_status client_lease_read(struct client_leasing *leasing, const struct client_message *message);

/* Makes the handle of lease `id`, which the daemon has granted, over the places of `placing`. On failure the lease is
 * given back. */
enum terrace_status client_lease_create(struct client_view *view, uint64_t id, const struct client_placing *placing,
					struct terrace_lease **lease);

/* Gives a lease back without waiting for an answer: over the fd socket or, when that is gone, by a call for which no
 * thread waits. The text of an earlier failure stays. */
void client_lease_return(struct client_view *view, uint64_t id);

#endif
