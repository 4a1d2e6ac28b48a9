/* Processes that are attached to a session, and the extents that they hold. */
#ifndef TERRACE_DAEMON_SESSION_ATTACHMENT_H
#define TERRACE_DAEMON_SESSION_ATTACHMENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/block/values.h"
#include "store/status.h"

struct board;
struct cache;
struct cache_lent;
struct offers;
struct session;

enum { ATTACHMENT_BUCKETS = 1024 };

enum { ATTACHMENTS_MAX = 256 }; /* a session */

enum { LENT_MAX = 65536 }; /* extents an attachment */

struct written {
	uint32_t extent, slots;
};

struct attachment {
	struct attachment *next, *hash_next;
	struct session *session;
	uint32_t number;               /* also the byte it locks in each extent lent to it */
	pid_t pid;                     /* for people */
	int pidfd;                     /* -1: not known */
	struct board *board;           /* NULL: none was asked for */
	bool gone;
	uint32_t lending;              /* descriptors of extents being made outside the lock */
	uint32_t boarding;             /* the same of its board, for which GPUs' drivers may take their time */
	uint32_t lent_count, lent_cap;
	uint32_t *lent;                /* extents, those with LENT_TOLD (session/attachment.c) by the process's word no more */
	struct written *written;       /* [written_count] host extents in which its reservations have slots */
	uint32_t written_count, written_cap, written_at; /* the last: where it was last looked */
	struct offers *offers;         /* NULL: it has not asked for any (session/offer.c) */
};

/* ---- attachments: called by the fd door ---- */

/* A process joins a session. DENIED: unknown token; EXHAUSTED: 256 attachments a session. Numbers are never
 * used twice. */
enum status cache_attach(struct cache *c, const uint8_t token[CACHE_TOKEN_BYTES], pid_t pid, uint64_t now_us,
			 uint64_t *attachment, uint64_t *session, const char **why);
/* Its process, to tell when it has exited: slots on GPUs are not reused before, unless it unmapped them. Takes the descriptor over; the
 * first counts. */
void cache_attach_watch(struct cache *c, uint64_t attachment, int pidfd);
/* A descriptor of an extent of the session's layouts; the caller sends and closes it. DENIED (not of its
 * layouts, or the attachment or its session is gone), NOT_FOUND (no such extent, or draining), EXHAUSTED. write, of host memory: PRECONDITION
 * unless the attachment has a reservation in the extent. */
enum status cache_attach_map(struct cache *c, uint64_t attachment, uint32_t extent, bool write, int *fd,
			     uint64_t *bytes, uint32_t *page_bytes);
enum status cache_attach_lend(struct cache *c, uint64_t attachment, uint32_t extent, bool write, struct cache_lent *out);
/* Its own word, verified with the kernel. */
void cache_attach_unmapped(struct cache *c, uint64_t attachment, uint32_t extent);
struct attachment *attachment_find(struct cache *c, uint64_t number);
/* NULL or why that is not a live attachment of the session. */
const char *attachment_problem(struct cache *c, const struct session *s, uint64_t number);
/* True while it holds an extent, or may: forgets those it does not hold. */
bool attachment_holds(struct cache *c, struct attachment *a, uint32_t *probes);
bool attachment_has_lent(const struct attachment *a, uint32_t extent);
/* Its process has a slot more of that extent of host memory to write, or one less. False: no memory to note it. */
bool attachment_writes(struct attachment *a, uint32_t extent, bool more);
void attachment_free(struct cache *c, struct attachment *a);
void offers_free(struct offers *o); /* NULL allowed */

#endif
