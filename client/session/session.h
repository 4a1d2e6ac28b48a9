/* A session as one process sees it. */
#ifndef TERRACE_CLIENT_SESSION_SESSION_H
#define TERRACE_CLIENT_SESSION_SESSION_H

#include "client/include/terrace.h"
#include "kernels/format.h"

#include <stdatomic.h>
#include <stdbool.h>

struct client_attachment;
struct client_gpu;
struct client_job;
struct client_lent;
struct client_local_calls;
struct terrace_client;

enum { CLIENT_WHY_MAX = 128 };

struct client_layout {
	struct kv_layout layout;
	struct kv_geometry geometry;
	uint64_t id;
	uint32_t keep_last;  /* of the layout's rule (terrace_layout_rule), as are the next two */
	bool partial, sparse;
};

/* One opening of a session, with all that a call needs to know of it. The session and the calls, leases and
 * reservations made in it share it, so that these outlive a close or a reopen. Immutable but for the
 * atomic members. */
struct client_view {
	atomic_uint references;
	struct terrace_client *client;        /* with a reference */
	uint64_t id, epoch;
	struct terrace_token token;
	struct client_attachment *attachment; /* with a reference; NULL: no memory is borrowed */
	struct client_local_calls *local;     /* NULL: every call goes by gRPC */
	char why_not[CLIENT_WHY_MAX]; /* why there is no attachment */
	_Atomic uint64_t load_bytes_s; /* of the last LookupReply */
	atomic_uint calls;            /* call numbers given out (client_recall_number) */
	uint32_t
		unit; /* tokens of a key, in a session that states units or rules; 0: a plain session, see
		       * client_view_unit */
	uint32_t multiple;            /* prefixes are multiples of so many keys */
	bool unchained;
	struct client_lent *lent;     /* the GPUs of the daemon's answer; owned by the view */
	uint32_t layout_count;
	struct client_layout layouts[];
};

struct terrace_session {
	unsigned generation;
	bool owner; /* this process opened the session; otherwise it joined it */
	bool gpu_write_back, local_only;
	uint32_t tokens_per_second;
	char *tenant, *engine;
	struct client_view *view; /* replaced by reopen */
};

/* The tokens that a key has in the session. */
static inline uint32_t client_view_unit(const struct client_view *view)
{
	return view->unit ? view->unit : view->layouts[0].layout.block_tokens;
}

/* Whether a block covers several keys. */
static inline bool client_view_chained(const struct client_view *view)
{
	for (uint32_t l = 0; l < view->layout_count; l++)
		if (view->layouts[l].layout.block_tokens != client_view_unit(view))
			return true;
	return false;
}

void client_view_hold(struct client_view *view);
void client_view_drop(struct client_view *view);

/* Checks at the begin of every call on a session that the handle is a session and that the process is no forked
 * child. */
enum terrace_status client_session_check(const struct terrace_session *session);

/* TERRACE_OK, or TERRACE_PRECONDITION with the reason that borrowing is off. */
enum terrace_status client_borrow_check(const struct client_view *view);

/* Prepares a call with GPU g of the session: opens the GPU, maps and registers the progress page. TERRACE_UNSUPPORTED,
 * TERRACE_INVALID, and statuses as client_fds_map. */
enum terrace_status client_view_use_gpu(const struct client_view *view, uint32_t g, uint64_t deadline_us);
/* As client_view_use_gpu, without asking the driver whether the GPU is lost, which takes some 30 us. The caller asks
 * later: *gpu. */
enum terrace_status client_view_use_gpu_unasked(const struct client_view *view, uint32_t g, uint64_t deadline_us, struct client_gpu **gpu);

/* Carries out a call of a session, as a local call where possible. NOT_FOUND means that the daemon does not know the
 * session: it is returned as TERRACE_STALE. */
enum terrace_status client_view_call(const struct client_view *view, const struct client_job *job);
enum terrace_status client_view_status(enum terrace_status status);

/* TERRACE_OK, or TERRACE_STALE if a reply came from another boot of the daemon. */
enum terrace_status client_epoch_check(const struct client_view *view, uint64_t epoch);

/* Turns a status number from the wire into a status. */
enum terrace_status client_status_of_wire(int number);
/* Sets DEADLINE for each of `count` statuses, for a call whose time was up without an answer. statuses NULL: does
 * nothing. */
void client_statuses_late(enum terrace_status *statuses, uint32_t count);

/* Bytes that protobuf-c may point at; it does not write them. */
#define CLIENT_BINARY(bytes, size) ((ProtobufCBinaryData){(size), (uint8_t *)(uintptr_t)(bytes)})

#endif
