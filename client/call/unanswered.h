/* What the daemon has granted to a call whose reply did not come: cancelled, or its deadline over, or the connection broken, while the reply
 * was on its way. Nobody here knows its number, so that it is given back by the call's.
 *
 * The daemon sees that a call is cancelled before it sees the recall: what is not granted by then is not granted any more. */
#ifndef TERRACE_CLIENT_CALL_UNANSWERED_H
#define TERRACE_CLIENT_CALL_UNANSWERED_H

#include "client/include/terrace.h"

struct client_view;

/* A number for a call, its own among all of the session's. Needs the view's attachment. */
uint64_t client_recall_number(struct client_view *view);

/* After a call that ended so without a reply; call 0: it had one. Has given back, by a call that nobody waits for, what it may have been
 * granted. Keeps terrace_error's words. */
void client_recall(struct client_view *view, uint64_t call, enum terrace_status status);

#endif
