/* A process's attachment to a session: the SEQPACKET socket of proto/fdsock.h and the memory extents mapped through it.
 *
 * Sessions, leases and reservations hold references. The session's reopen leaves the old attachment to the leases that still
 * use it; its close unmaps at once, whoever still holds a reference. */
#ifndef TERRACE_CLIENT_FDS_H
#define TERRACE_CLIENT_FDS_H

#include "client/include/terrace.h"

#include <pthread.h>
#include <stdatomic.h>

enum { CLIENT_MAPPINGS_MAX = 65536 };

struct client_mapping {
	uint32_t extent;
	bool writable;
	bool retiring;  /* the daemon wants it back */
	uint32_t uses;  /* leases and reservations of this process */
	uint8_t *base;  /* NULL: unmapped, but the daemon has not been told yet; unchanged while in use */
	uint64_t bytes;
};

struct client_attachment {
	atomic_uint references;
	uint64_t id;          /* the daemon's number of it */
	int socket;           /* written by close alone, after the last talk */
	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t idle;  /* `talking` became false */
	bool talking;         /* a thread is in a conversation, and reads all that comes */
	bool closed;          /* nothing is mapped any more; the table is only kept for its readers */
	bool broken;          /* the socket is of no more use */
	struct client_mapping **mappings;
	uint32_t count, capacity;
};

/* Connects to the socket and joins. With reference 1. TERRACE_UNAVAILABLE, TERRACE_DEADLINE, TERRACE_DENIED, what the daemon
 * says... TERRACE_STALE if it speaks for another epoch or session. */
enum terrace_status client_fds_open(const char *path, const uint8_t token[16], uint64_t epoch, uint64_t session,
				    uint64_t deadline_us, struct client_attachment **attachment);

void client_fds_hold(struct client_attachment *attachment);
/* The last drop unmaps and closes. */
void client_fds_drop(struct client_attachment *attachment);

/* Unmaps everything and closes the socket now. */
void client_fds_close(struct client_attachment *attachment);

/* Counts one use of an extent's mapping, which is made if need be. TERRACE_UNAVAILABLE, TERRACE_DEADLINE, TERRACE_EXHAUSTED,
 * TERRACE_CANCELLED (closed), TERRACE_INTERNAL (the daemon answered nonsense), or the daemon's status. */
enum terrace_status client_fds_map(struct client_attachment *attachment, uint32_t extent, bool writable,
				   uint64_t deadline_us, struct client_mapping **mapping);
/* Ends a use. A retiring extent without uses is unmapped. */
void client_fds_unmap(struct client_attachment *attachment, struct client_mapping *mapping);

/* Reads what the daemon has said in the meantime, without waiting. */
void client_fds_listen(struct client_attachment *attachment);

/* Tells the daemon, one way, that a lease is over. False: the socket does not take it. Never waits long. */
bool client_fds_release(struct client_attachment *attachment, uint64_t lease);

#endif
