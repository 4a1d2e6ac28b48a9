/* A process's attachment to a session: the SEQPACKET socket of proto/fdsock.h and the memory extents mapped through it.
 *
 * Sessions, leases and reservations hold references. The session's reopen leaves the old attachment to the leases that still
 * use it; its close has all unmapped, whoever still holds a reference. What a GPU's driver unmaps goes by tasks
 * (driver/driver_thread.h). */
#ifndef TERRACE_CLIENT_MEMORY_ATTACHMENT_H
#define TERRACE_CLIENT_MEMORY_ATTACHMENT_H

#include "client/driver/driver_thread.h"
#include "client/memory/progress_page.h"
#include "client/memory/mapping.h"

#include <pthread.h>
#include <stdatomic.h>

enum { CLIENT_MAPPINGS_MAX = 65536, CLIENT_CLOSE_WAIT_US = 10000000, CLIENT_OFFERS_MAX = 8192 };

/* What this process does with a GPU: of each its extents are mapped ahead. */
enum client_use {
	CLIENT_USE_LEASE,   /* its memory, to be read */
	CLIENT_USE_RESERVE, /* its memory, to be written */
	CLIENT_USE_HOST     /* host memory that it reads: registered with it */
};

#define CLIENT_USE_BIT(use, g) (1ull << ((unsigned)(use) * DEVICES_MAX + (g)))

struct client_attachment;
struct client_packet;
struct fdsock_offer;

struct client_offer {
	uint32_t extent, tier; /* GPU, by the session's number; DEVICES_MAX: host memory */
};

/* What is mapped before a lease names it (memory/premap.c). With the attachment's lock, but for the atomics. */
struct client_premap {
	bool known;                   /* by the daemon; from the opening on */
	_Atomic uint64_t uses;        /* a bit each, CLIENT_USE_BIT */
	atomic_bool hears;            /* `hearing` is under way */
	uint32_t asked, answered;     /* tiers: that offers have been asked of; that all that there was then has been offered of */
	struct client_offer *offers;  /* [count] that have not been taken back */
	uint32_t count, capacity;
	uint32_t next;                /* there is nothing to do for those before, as long as the uses are these */
	uint64_t again_us;            /* not before: the daemon has not answered */
	uint32_t apart;               /* mappings that are `coming` or `registering` */
	enum terrace_status failed;   /* the last that could not be mapped or registered, since somebody last asked */
	struct client_driver_task hearing; /* without a reference, until it is closed */
	/* Takes the offers of a packet, with the lock; set before they are asked for. */
	void (*offered)(struct client_attachment *attachment, const struct fdsock_offer *offer);
};

struct client_attachment {
	atomic_uint references;
	uint64_t id;          /* the daemon's number of it */
	bool knows_callers;   /* the daemon: local calls */
	int socket;           /* written by the end alone, after the last talk */
	struct client_lent_memory memory; /* what may map belongs to the thread that talks */
	struct client_progress_page progress_page;
	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t idle;  /* `talking` became false, `streams` less, or `closed` true */
	bool talking;         /* a thread is in a conversation, and reads all that comes; or it unmaps */
	uint32_t waiting;     /* threads that wait to be that one, for a call of the engine's */
	uint32_t streams;     /* what waits for work of a GPU that touches the memory (gpu/stream_thread.h) */
	bool closed;          /* the table is only kept for its readers */
	bool ending, ended;   /* it is being unmapped, and the daemon told; that is over */
	bool dropped;         /* the task's: nothing is mapped any more, */
	bool progress_page_stays; /* but the progress page */
	bool broken;          /* the socket is of no more use */
	bool sweep_asked;     /* `sweeping` is under way */
	bool tends;           /* `tending` is under way */
	struct client_premap premap;
	struct client_mapping **mappings; /* by rising extent, to be read before to be written */
	uint32_t count, capacity, retiring; /* retiring: of them */
	uint64_t close_wait_us;         /* how long a close waits for streams and talks */
	struct client_driver_task sweeping, unmapping; /* with a reference each */
	struct client_driver_task tending; /* of pages that are writable; without a reference, until it is closed */
};

/* Connects to the socket and joins. With reference 1. `lent` is copied. TERRACE_UNAVAILABLE, TERRACE_DEADLINE, TERRACE_DENIED, what the
 * daemon says... TERRACE_STALE if it speaks for another epoch or session. */
enum terrace_status client_fds_open(const char *path, const uint8_t token[16], uint64_t epoch, uint64_t session,
				    const struct client_lent *lent, uint64_t deadline_us,
				    struct client_attachment **attachment);

void client_fds_hold(struct client_attachment *attachment);
/* The last drop closes without waiting. */
void client_fds_drop(struct client_attachment *attachment);

/* Lets streams that wait for the progress page go on, and waits some seconds until no stream holds memory and no thread
 * maps any. Then, or, if it was in vain, when that is so, everything is unmapped and the daemon told: where a GPU is
 * concerned by a task, after this. */
void client_fds_close(struct client_attachment *attachment);

/* Counts one use of an extent's mapping, which is made if need be. TERRACE_UNAVAILABLE, TERRACE_DEADLINE, TERRACE_EXHAUSTED,
 * TERRACE_CANCELLED (closed), TERRACE_INTERNAL (the daemon answered nonsense), or the daemon's status. */
enum terrace_status client_fds_map(struct client_attachment *attachment, uint32_t extent, bool writable,
				   uint64_t deadline_us, struct client_mapping **mapping);
/* Has the host memory of a mapping in use registered with GPU g. As client_fds_map, and TERRACE_UNSUPPORTED. */
enum terrace_status client_fds_register(struct client_attachment *attachment, struct client_mapping *mapping, uint32_t g,
					uint64_t deadline_us);

/* From now on what the daemon has is mapped ahead of this use of GPU g, which is open: by a thread of the library, one extent after the other,
 * never where a call of the engine's would map. Costs nothing from the second time on. With a daemon that makes no offers: nothing. */
void client_fds_use(struct client_attachment *attachment, enum client_use use, uint32_t g);
/* Waits, and works, until all that the daemon has offered is mapped. TERRACE_OK: it is, or there are no offers. TERRACE_EXHAUSTED,
 * TERRACE_UNSUPPORTED, TERRACE_UNAVAILABLE, TERRACE_INTERNAL: something of it cannot be; TERRACE_DEADLINE, TERRACE_CANCELLED. */
enum terrace_status client_fds_use_await(struct client_attachment *attachment, uint64_t deadline_us);

/* Counts one more stream that holds the memory; false when it is closed. And one less. */
bool client_fds_stream_begin(struct client_attachment *attachment);
void client_fds_stream_end(struct client_attachment *attachment);

/* True once the daemon's end of the socket is closed, or this one. */
bool client_fds_gone(struct client_attachment *attachment);

/* Ends a use. A retiring extent without uses is unmapped, of a GPU by a task. */
void client_fds_unmap(struct client_attachment *attachment, struct client_mapping *mapping);

/* Reads what the daemon has said in the meantime, without waiting, unless the library's thread does. */
void client_fds_listen(struct client_attachment *attachment);

/* Tells the daemon, one way, that a lease is over. False: the socket does not take it. Never waits long. */
bool client_fds_release(struct client_attachment *attachment, uint64_t lease);

/* For memory/premap.c, without the lock, but with the turn: */

/* Sends MAP and reads until its answer is there. *broken: the socket is of no more use. */
enum terrace_status client_fds_ask(struct client_attachment *attachment, uint32_t extent, bool writable, uint64_t deadline_us,
				   struct client_packet *answer, bool *broken);
/* Maps what the answer to that brings, as client_mapping_prepare; if it fails the daemon is told. */
enum terrace_status client_fds_prepare(struct client_attachment *attachment, const struct client_packet *answer,
				       struct client_mapping *mapping);
/* With the lock: sends PREMAP. False: the socket does not take it. */
bool client_fds_ask_offers(struct client_attachment *attachment, uint32_t tier);
/* The same: forgets the offers of an extent. */
void client_fds_offer_end(struct client_attachment *attachment, uint32_t extent);

/* With the lock: */

/* Has a closed attachment's memory unmapped, once, if nothing uses it any more. The caller's reference stays. Lets the lock go meanwhile. */
void client_fds_end(struct client_attachment *attachment);

#endif
