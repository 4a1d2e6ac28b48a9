/* What clients have been granted: sessions, leases and reservations by their handles, their ages, and the pending keys
 * of reservations. With the cache's lock, but for lookups of a session's place. */
#ifndef TERRACE_DAEMON_SESSION_GRANTS_H
#define TERRACE_DAEMON_SESSION_GRANTS_H

#include "daemon/block/aging.h"
#include "daemon/block/handle.h"

struct part;

enum { PENDING_KEY_BUCKETS = 16384 };

/* Zeroed at first. */
struct grants {
	struct handle_places session_places;
	struct handles leases, reservations;
	struct aging_queue lease_age, reservation_age;
	struct part *pending_keys[PENDING_KEY_BUCKETS];
	struct handle_source random;   /* for handles */
};

#endif
