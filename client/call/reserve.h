/* Reservations: slots to write in place. */
#ifndef TERRACE_CLIENT_CALL_RESERVE_H
#define TERRACE_CLIENT_CALL_RESERVE_H

#include "client/call/places.h"

struct client_message;

enum { CLIENT_REFUSAL_MAX = 320 };

struct terrace_reservation {
	struct client_view *view; /* with a reference */
	unsigned generation;
	bool open;                     /* an open block */
	uint64_t open_first;           /* where a block covers several keys: the block's first token, and */
	uint64_t open_cells;           /* a bit for each layout that has a slot of it */
	uint32_t count;                /* keys */
	uint64_t *ids;                 /* [count] the daemon's numbers; 0: no slot */
	enum terrace_status *statuses; /* [count] the daemon's status for each key */
	struct client_places places;
	char why[CLIENT_REFUSAL_MAX]; /* why keys are EXHAUSTED; otherwise empty */
};

struct client_reserving {
	struct client_view *view;
	uint32_t count;
	uint32_t first; /* position of the first key */
	const uint64_t *cells; /* [count], until the request is sent; NULL */
	bool open;
	int32_t gpu; /* -1: slots in host memory; else it has been made ready */
	uint64_t deadline_us;
	uint64_t call; /* its number, until there is a reply; then 0 */
	struct terrace_reservation *reservation; /* the answer */
};

/* Reads a ReserveReply and maps the extents that it names. Slots that cannot be used are given back. */
enum terrace_status client_reserve_read(struct client_reserving *reserving, const struct client_message *message);

/* TERRACE_OK, or the status with which the handle cannot be used. */
enum terrace_status client_reservation_check(const struct terrace_reservation *reservation);

/* Aborts the reservation's slots at the daemon. With `wait` it waits for the answer, a second at most. */
void client_reservation_abort(struct terrace_reservation *reservation, bool wait);

/* Ends the use of the mappings and frees the handle. The slots were committed or aborted before. */
void client_reservation_free(struct terrace_reservation *reservation);

#endif
