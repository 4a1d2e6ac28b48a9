/* A process's attachment to a session: the SEQPACKET socket of proto/fdsock.h and the memory extents mapped through it.
 *
 * Sessions, leases and reservations hold references. The session's reopen leaves the old attachment to the leases that still
 * use it; its close unmaps at once, whoever still holds a reference. */
#ifndef TERRACE_CLIENT_FDS_H
#define TERRACE_CLIENT_FDS_H

#include "client/board.h"
#include "client/mapping.h"

#include <pthread.h>
#include <stdatomic.h>

enum { CLIENT_MAPPINGS_MAX = 65536 };

struct client_attachment {
	atomic_uint references;
	uint64_t id;          /* the daemon's number of it */
	int socket;           /* written by close alone, after the last talk */
	struct client_lent_memory memory; /* what may map belongs to the thread that talks */
	struct client_board board;
	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t idle;  /* `talking` became false, or `streams` less */
	bool talking;         /* a thread is in a conversation, and reads all that comes */
	uint32_t streams;     /* what waits for work of a GPU that touches the memory (after.h) */
	bool closed;          /* the table is only kept for its readers */
	bool dropped;         /* nothing is mapped any more, */
	bool board_stays;     /* but the board */
	bool broken;          /* the socket is of no more use */
	struct client_mapping **mappings;
	uint32_t count, capacity;
};

/* Connects to the socket and joins. With reference 1. `lent` is copied. TERRACE_UNAVAILABLE, TERRACE_DEADLINE, TERRACE_DENIED, what the
 * daemon says... TERRACE_STALE if it speaks for another epoch or session. */
enum terrace_status client_fds_open(const char *path, const uint8_t token[16], uint64_t epoch, uint64_t session,
				    const struct client_lent *lent, uint64_t deadline_us,
				    struct client_attachment **attachment);

void client_fds_hold(struct client_attachment *attachment);
/* The last drop unmaps and closes. */
void client_fds_drop(struct client_attachment *attachment);

/* Closes the socket now, lets streams that wait for the board go on, and unmaps everything once no stream holds memory: after some
 * seconds of that in vain it is left to the last drop. */
void client_fds_close(struct client_attachment *attachment);

/* Counts one use of an extent's mapping, which is made if need be. TERRACE_UNAVAILABLE, TERRACE_DEADLINE, TERRACE_EXHAUSTED,
 * TERRACE_CANCELLED (closed), TERRACE_INTERNAL (the daemon answered nonsense), or the daemon's status. */
enum terrace_status client_fds_map(struct client_attachment *attachment, uint32_t extent, bool writable,
				   uint64_t deadline_us, struct client_mapping **mapping);
/* Has the host memory of a mapping in use registered with GPU g. As client_fds_map, and TERRACE_UNSUPPORTED. */
enum terrace_status client_fds_register(struct client_attachment *attachment, struct client_mapping *mapping, uint32_t g,
					uint64_t deadline_us);

/* Counts one more stream that holds the memory; false when it is closed. And one less. */
bool client_fds_stream_begin(struct client_attachment *attachment);
void client_fds_stream_end(struct client_attachment *attachment);

/* True once the daemon's end of the socket is closed, or this one. */
bool client_fds_gone(struct client_attachment *attachment);

/* Ends a use. A retiring extent without uses is unmapped. */
void client_fds_unmap(struct client_attachment *attachment, struct client_mapping *mapping);

/* Reads what the daemon has said in the meantime, without waiting. */
void client_fds_listen(struct client_attachment *attachment);

/* Tells the daemon, one way, that a lease is over. False: the socket does not take it. Never waits long. */
bool client_fds_release(struct client_attachment *attachment, uint64_t lease);

#endif
