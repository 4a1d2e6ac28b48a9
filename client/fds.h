/* A process's attachment to a session: the SEQPACKET socket of proto/fdsock.h and the memory extents mapped through it.
 *
 * Sessions, leases and reservations hold references. The session's reopen leaves the old attachment to the leases that still
 * use it; its close has all unmapped, whoever still holds a reference. What a GPU's driver unmaps goes by errands (errand.h). */
#ifndef TERRACE_CLIENT_FDS_H
#define TERRACE_CLIENT_FDS_H

#include "client/board.h"
#include "client/errand.h"
#include "client/mapping.h"

#include <pthread.h>
#include <stdatomic.h>

enum { CLIENT_MAPPINGS_MAX = 65536, CLIENT_CLOSE_WAIT_US = 10000000 };

struct client_attachment {
	atomic_uint references;
	uint64_t id;          /* the daemon's number of it */
	int socket;           /* written by the end alone, after the last talk */
	struct client_lent_memory memory; /* what may map belongs to the thread that talks */
	struct client_board board;
	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t idle;  /* `talking` became false, `streams` less, or `closed` true */
	bool talking;         /* a thread is in a conversation, and reads all that comes; or it unmaps */
	uint32_t streams;     /* what waits for work of a GPU that touches the memory (after.h) */
	bool closed;          /* the table is only kept for its readers */
	bool ending, ended;   /* it is being unmapped, and the daemon told; that is over */
	bool dropped;         /* the errand's: nothing is mapped any more, */
	bool board_stays;     /* but the board */
	bool broken;          /* the socket is of no more use */
	bool sweep_asked;     /* `sweeping` is under way */
	struct client_mapping **mappings;
	uint32_t count, capacity, told; /* told: so many have been, in the end */
	uint64_t close_wait_us;         /* how long a close waits for streams and talks */
	struct client_errand sweeping, unmapping; /* with a reference each */
};

/* Connects to the socket and joins. With reference 1. `lent` is copied. TERRACE_UNAVAILABLE, TERRACE_DEADLINE, TERRACE_DENIED, what the
 * daemon says... TERRACE_STALE if it speaks for another epoch or session. */
enum terrace_status client_fds_open(const char *path, const uint8_t token[16], uint64_t epoch, uint64_t session,
				    const struct client_lent *lent, uint64_t deadline_us,
				    struct client_attachment **attachment);

void client_fds_hold(struct client_attachment *attachment);
/* The last drop unmaps and closes. */
void client_fds_drop(struct client_attachment *attachment);

/* Lets streams that wait for the board go on, and waits some seconds until no stream holds memory and no thread maps any. Then, or, if it
 * was in vain, when that is so, everything is unmapped and the daemon told: where a GPU is concerned by an errand, after this. */
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

/* Ends a use. A retiring extent without uses is unmapped, of a GPU by an errand. */
void client_fds_unmap(struct client_attachment *attachment, struct client_mapping *mapping);

/* Reads what the daemon has said in the meantime, without waiting. */
void client_fds_listen(struct client_attachment *attachment);

/* Tells the daemon, one way, that a lease is over. False: the socket does not take it. Never waits long. */
bool client_fds_release(struct client_attachment *attachment, uint64_t lease);

/* Between fds.c and fds_end.c, with the lock held: */

/* True if a GPU's driver has a part in the mapping. */
bool client_fds_of_driver(const struct client_mapping *mapping);
/* Tells the daemon that an extent is unmapped. False: the socket does not take it, now. */
bool client_fds_tell(struct client_attachment *attachment, const struct client_mapping *mapping);
/* Has a closed attachment's memory unmapped, once, if nothing uses it any more. The caller's reference stays. Lets the lock go meanwhile. */
void client_fds_end(struct client_attachment *attachment);

#endif
