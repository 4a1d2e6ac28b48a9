/* Processes that are attached to a session, and the extents that they hold. */
#ifndef TERRACE_DAEMON_SESSION_ATTACHMENT_H
#define TERRACE_DAEMON_SESSION_ATTACHMENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/block/values.h"
#include "store/status.h"

struct progress_page;
struct cache;
struct cache_lent;
struct offers;
struct session;

enum { ATTACHMENTS_MAX = 256 }; /* a session */

enum { LENT_MAX = 65536 }; /* extents an attachment */

struct written {
	uint32_t extent, slots;
};

/* An extent that an attachment has been lent. */
struct lent {
	uint32_t extent;
	bool told;                     /* its process says that it has unmapped it */
	bool writes;                   /* it was lent writable, and the kernel has not said that this is over */
};

struct attachment {
	struct attachment *next, *hash_next;
	struct session *session;
	uint32_t number;               /* also the byte it locks in each extent lent to it */
	pid_t pid;                     /* for people */
	int pidfd;                     /* -1: not known; nothing is lent before it is */
	struct progress_page *progress_page; /* NULL: none was asked for */
	bool gone;
	bool host_only;                /* see cache_attach_host_only() */
	bool listens;                  /* its process can be asked for an extent (session/retire.h), */
	uint32_t asked;                /* and was asked for this one last */
	uint32_t lending;              /* descriptors of extents being made outside the lock */
	uint32_t boarding;             /* the same for its progress page, for which GPUs' drivers may take long */
	uint32_t lent_count, lent_cap;
	struct lent *lent;             /* by rising extent */
	struct written *written;       /* [written_count] host extents in which its reservations have slots */
	uint32_t written_count, written_cap, written_at; /* the last: where the last search ended */
	struct offers *offers;         /* NULL: it has not asked for offers (session/offer.c) */
};

/* ---- attachments: called by the fd local socket ---- */

/* Whether an open session of that tenant (0: `default`) has the token. */
bool cache_token_is_of(struct cache *c, uint32_t tenant, const uint8_t token[CACHE_TOKEN_BYTES]);
/* A process joins a session. DENIED: unknown token; EXHAUSTED: 256 attachments a session. Numbers are never
 * used twice. */
enum status cache_attach(struct cache *c, const uint8_t token[CACHE_TOKEN_BYTES], pid_t pid, uint64_t now_us,
			 uint64_t *attachment, uint64_t *session, const char **why);
/* The attachment's process: when it has exited, its slots can be reused; before, only if it says that it has unmapped
 * them. Takes the descriptor over; only the first one counts. */
void cache_attach_watch(struct cache *c, uint64_t attachment, int pidfd);
/* The process's library is of the version before (proto/fdsock.h): it gets no GPU memory and no progress page
 * (UNSUPPORTED). It does not say what it unmaps when it ends a session, so only the kernel's word on the mapping
 * counts. */
void cache_attach_host_only(struct cache *c, uint64_t attachment);
/* Descriptors of an extent of the session's tenant, one of host memory and two of a GPU's; with
 * CACHE_EXTENT_PROGRESS_PAGE of the attachment's progress page. The caller sends and closes them. NOT_FOUND (no such
 * extent, or another tenant's), DENIED (the attachment or its session is gone), EXHAUSTED (also: GPU memory, and its
 * process is not watched). write, of host memory: PRECONDITION unless the attachment has a reservation in the
 * extent. */
enum status cache_attach_lend(struct cache *c, uint64_t attachment, uint32_t extent, bool write, struct cache_lent *out);
/* The process says that it has unmapped the extent, or (CACHE_EXTENT_NONE) all; this is verified with the kernel. */
void cache_attach_unmapped(struct cache *c, uint64_t attachment, uint32_t extent);
struct attachment *attachment_find(struct cache *c, uint64_t number);
/* NULL or why that is not a live attachment of the session. */
const char *attachment_problem(struct cache *c, const struct session *s, uint64_t number);
/* Whether the attachment's process holds, or may hold, an extent. Forgets the extents that it does not hold. *probes:
 * how many extents the kernel may still be asked about; at 0 the answer is true. */
bool attachment_holds(struct cache *c, struct attachment *a, uint32_t *probes);
/* Whether the extent has been lent to the attachment, which is not known to have unmapped it. */
bool attachment_lent(const struct attachment *a, uint32_t extent);
/* Whether an attachment has been lent the extent and is not known to have unmapped it; deaf: one that cannot be asked
 * for it. attachments_have also asks the kernel, and forgets attachments that have unmapped it. */
bool attachments_lent(const struct cache *c, uint32_t extent, bool deaf);
bool attachments_have(struct cache *c, uint32_t extent);
/* No attachment counts as asked for an extent any more. */
void attachments_unask(struct cache *c);
/* How many extents the attachment's process can write, as far as the daemon knows. */
uint32_t attachment_writable(const struct attachment *a);
/* Notes that the attachment's process has one slot more to write in that extent of host memory, or one less. False: no
 * memory to note it. */
bool attachment_writes(struct attachment *a, uint32_t extent, bool more);
void attachment_free(struct cache *c, struct attachment *a);
void offers_free(struct offers *o); /* NULL allowed */

#endif
