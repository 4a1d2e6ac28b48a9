/* Gives back what the daemon has granted to a call whose reply did not arrive: the call was cancelled, its deadline
 * passed, or the connection broke while the reply was on its way. The client does not know the numbers of these grants,
 * so they are given back by the call's own number.
 *
 * The daemon sees the cancellation of a call before it sees the recall: so nothing is granted to the call after the
 * recall.
 */
#ifndef TERRACE_CLIENT_CALL_UNANSWERED_H
#define TERRACE_CLIENT_CALL_UNANSWERED_H

#include "client/include/terrace.h"

struct client_view;

/* A number for a call, unique in the session. Needs the view's attachment. */
uint64_t client_recall_number(struct client_view *view);

/* Called after a call that ended with `status`; call 0: it had a reply, and nothing is done. Gives back what the call
 * may have been granted, by a call for which no thread waits. The text of terrace_error stays. */
void client_recall(struct client_view *view, uint64_t call, enum terrace_status status);

#endif
