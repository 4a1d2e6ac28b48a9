/* See call/unanswered.h. */
#include "client/call/unanswered.h"

#include "client/session/connect.h"
#include "client/memory/attachment.h"
#include "client/session/session.h"
#include "client/value/clock.h"
#include "client/transport/grpc.h"
#include "client/value/status.h"

#include "terrace.pb-c.h"

enum { RECALL_TIMEOUT_US = 10 * 1000 * 1000 };

uint64_t client_recall_number(struct client_view *view)
{
	return view->attachment->id << 32 | (1 + (atomic_fetch_add_explicit(&view->calls, 1, memory_order_relaxed) & 0x7fffffff));
}

static void recall_done(void *arg, enum terrace_status status)
{
	(void)status; /* the daemon is gone, or has forgotten the session: with all that it had */
	client_view_drop(arg);
}

/* Whether a call that ended with this status may have been granted by the daemon: the library itself sets these
 * statuses. */
static bool may_be_granted(enum terrace_status status)
{
	return status == TERRACE_DEADLINE || status == TERRACE_CANCELLED || status == TERRACE_UNAVAILABLE;
}

void client_recall(struct client_view *view, uint64_t number, enum terrace_status status)
{
	Terrace__V1__ReleaseRequest request = TERRACE__V1__RELEASE_REQUEST__INIT;
	struct client_words words;
	struct client_rpc_call *call;

	if (!number || !may_be_granted(status))
		return;
	client_words_keep(&words);
	request.session = view->id;
	request.calls = &number;
	request.n_calls = 1;
	client_view_hold(view);
	if (client_rpc_start(view->client->rpc,
			     &(struct client_job){
				     .method = CLIENT_RELEASE,
				     .deadline_us = client_deadline_us(RECALL_TIMEOUT_US),
				     .first = {.message = &request.base, .last = true},
				     .arg = view,
			     },
			     recall_done, &call))
		client_view_drop(view);
	client_words_back(&words);
}
