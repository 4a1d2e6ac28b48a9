/* A process's attachment to a session: the SEQPACKET socket of proto/fdsock.h and the memory extents mapped through it.
 *
 * Sessions, leases and reservations hold references. When a session is reopened, the old attachment stays for the
 * leases that still use it. When it is closed, everything is unmapped, even if references remain. Memory that a GPU's
 * driver must unmap is unmapped by tasks (driver/driver_thread.h).
 */
#ifndef TERRACE_CLIENT_MEMORY_ATTACHMENT_H
#define TERRACE_CLIENT_MEMORY_ATTACHMENT_H

#include "client/driver/driver_thread.h"
#include "client/memory/progress_page.h"
#include "client/memory/mapping.h"

#include <pthread.h>
#include <stdatomic.h>

enum { CLIENT_MAPPINGS_MAX = 65536, CLIENT_CLOSE_WAIT_US = 10000000, CLIENT_OFFERS_MAX = 8192 };

/* The uses that this process makes of a GPU. For each use, extents are mapped ahead. */
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

/* The extents that are mapped before a lease names them (memory/premap.c). Guarded by the attachment's lock, except the
 * atomics. */
struct client_premap {
	bool known;                   /* the daemon knows offers; set at the opening */
	_Atomic uint64_t uses;        /* a bit each, CLIENT_USE_BIT */
	atomic_bool hears;            /* `hearing` is under way */
	uint32_t asked, answered;     /* bits of tiers: whose offers were asked for; whose offers were all received */
	struct client_offer *offers;  /* [count] offers that were not taken back */
	uint32_t count, capacity;
	uint32_t next;                /* the offers before this one need nothing, as long as `uses` does not change */
	uint64_t again_us;            /* the time before which not to ask again: the daemon has not answered */
	uint32_t apart;               /* mappings that are `coming` or `registering` */
	enum terrace_status failed;   /* the status of the last extent that could not be mapped or registered, since a
				       * caller last asked */
	struct client_driver_task hearing; /* without a reference, until it is closed */
	/* Takes the offers of a packet, under the lock. Set before offers are asked for. */
	void (*offered)(struct client_attachment *attachment, const struct fdsock_offer *offer);
	/* Takes the daemon's word, under the lock, that it wants the extent back. Set before offers are asked for. */
	void (*asked_back)(struct client_attachment *attachment, uint32_t extent);
};

struct client_attachment {
	atomic_uint references;
	uint64_t id;          /* the daemon's number of it */
	bool knows_callers;   /* the daemon knows local calls */
	int socket;           /* written only at the end, after the last conversation */
	struct client_lent_memory memory; /* its parts that map belong to the thread that has the turn */
	struct client_progress_page progress_page;
	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t idle;  /* `talking` became false, `streams` became less, or `closed` became true */
	bool talking;         /* a thread has the turn: it talks and reads all packets, or it unmaps */
	uint32_t waiting;     /* threads that wait for the turn, for a call of the engine's */
	uint32_t streams;     /* tasks that wait for work of a GPU that uses the memory (gpu/stream_thread.h) */
	bool closed;          /* the table is only kept for its readers */
	bool ending, ended;   /* its memory is being unmapped and the daemon told; both are done */
	bool dropped;         /* for the task: no memory is mapped any more, */
	bool progress_page_stays; /* but the progress page */
	bool broken;          /* the socket cannot be used any more */
	bool sweep_asked;     /* `sweeping` is under way */
	bool tends;           /* `tending` is under way */
	struct client_premap premap;
	struct client_mapping **mappings; /* by rising extent; of one extent the readable mapping before the writable
					   * one */
	uint32_t count, capacity, retiring; /* retiring: how many of them are */
	uint64_t close_wait_us;         /* how long a close waits for streams and talks */
	struct client_driver_task sweeping, unmapping; /* with a reference each */
	struct client_driver_task tending; /* looks after writable pages; without a reference, until the attachment is
					    * closed */
};

/* Connects to the socket and joins the session. The attachment has one reference. `lent` is copied.
 * TERRACE_UNAVAILABLE, TERRACE_DEADLINE, TERRACE_DENIED, or the daemon's status. TERRACE_STALE: the daemon is of
 * another epoch, or the session is another one. */
enum terrace_status client_fds_open(const char *path, const uint8_t token[16], uint64_t epoch, uint64_t session,
				    const struct client_lent *lent, uint64_t deadline_us,
				    struct client_attachment **attachment);

void client_fds_hold(struct client_attachment *attachment);
/* Drops a reference; the last drop closes the attachment without waiting. */
void client_fds_drop(struct client_attachment *attachment);

/* Lets streams that wait for the progress page go on. Then waits some seconds until no stream uses memory and no thread
 * maps any. Then everything is unmapped and the daemon told; if the wait was in vain, that happens later, when it is
 * possible. Memory of a GPU is unmapped by a task, after this function has returned. */
void client_fds_close(struct client_attachment *attachment);

/* Counts one use of an extent's mapping, and makes the mapping if there is none. TERRACE_UNAVAILABLE, TERRACE_DEADLINE,
 * TERRACE_EXHAUSTED, TERRACE_CANCELLED (closed), TERRACE_INTERNAL (the daemon's answer makes no sense), or the daemon's
 * status. */
enum terrace_status client_fds_map(struct client_attachment *attachment, uint32_t extent, bool writable,
				   uint64_t deadline_us, struct client_mapping **mapping);
/* Registers the host memory of a mapping that is in use with GPU g. Statuses as client_fds_map, and
 * TERRACE_UNSUPPORTED. */
enum terrace_status client_fds_register(struct client_attachment *attachment, struct client_mapping *mapping, uint32_t g,
					uint64_t deadline_us);

/* From now on the daemon's extents are mapped ahead for this use of GPU g, which is open. A thread of the library does
 * it, one extent after the other, and never while a call of the engine's needs the turn. A repeated call costs nothing.
 * With a daemon that makes no offers it does nothing. */
void client_fds_use(struct client_attachment *attachment, enum client_use use, uint32_t g);
/* From now on the socket is read at all times, and the daemon told so: it may ask for extents. */
void client_fds_hear_always(struct client_attachment *attachment);
/* Waits, and helps, until all extents that the daemon has offered are mapped. TERRACE_OK: they are, or there are no
 * offers. TERRACE_EXHAUSTED, TERRACE_UNSUPPORTED, TERRACE_UNAVAILABLE, TERRACE_INTERNAL: an extent cannot be mapped.
 * TERRACE_DEADLINE, TERRACE_CANCELLED. */
enum terrace_status client_fds_use_await(struct client_attachment *attachment, uint64_t deadline_us);

/* Counts one more stream that uses the memory; false: the attachment is closed. client_fds_stream_end counts one
 * less. */
bool client_fds_stream_begin(struct client_attachment *attachment);
void client_fds_stream_end(struct client_attachment *attachment);

/* True once the daemon's end of the socket, or this one, is closed. */
bool client_fds_gone(struct client_attachment *attachment);

/* Ends one use. A retiring extent without uses is unmapped; one of a GPU by a task. */
void client_fds_unmap(struct client_attachment *attachment, struct client_mapping *mapping);

/* Reads the packets that the daemon has sent meanwhile, without waiting, unless the library's thread reads them. */
void client_fds_listen(struct client_attachment *attachment);

/* Tells the daemon that a lease is over, without an answer. False: the socket does not take it. Never waits long. */
bool client_fds_release(struct client_attachment *attachment, uint64_t lease);

/* For memory/premap.c; called without the lock, but with the turn: */

/* Sends MAP and reads until its answer arrives. *broken: the socket cannot be used any more. */
enum terrace_status client_fds_ask(struct client_attachment *attachment, uint32_t extent, bool writable, uint64_t deadline_us,
				   struct client_packet *answer, bool *broken);
/* Maps the extent of that answer, as client_mapping_prepare. If it fails, the daemon is told. */
enum terrace_status client_fds_prepare(struct client_attachment *attachment, const struct client_packet *answer,
				       struct client_mapping *mapping);
/* With the lock: sends PREMAP. False: the socket does not take it. */
bool client_fds_ask_offers(struct client_attachment *attachment, uint32_t tier);
/* With the lock: forgets the offers of an extent. */
void client_fds_offer_end(struct client_attachment *attachment, uint32_t extent);

/* With the lock: */

/* Unmaps a closed attachment's memory, once, if it is not used any more. The caller's reference stays. The lock is
 * released meanwhile. */
void client_fds_end(struct client_attachment *attachment);

#endif
