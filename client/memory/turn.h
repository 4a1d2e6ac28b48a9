/* The turn of an attachment: one thread at a time talks (sends MAP and reads until the answer) or unmaps. With the
 * attachment's lock. */
#ifndef TERRACE_CLIENT_MEMORY_TURN_H
#define TERRACE_CLIENT_MEMORY_TURN_H

#include "client/include/terrace.h"

#include <stdbool.h>

struct client_attachment;
struct client_mapping;

/* Waits for the turn. As client_fds_map. */
enum terrace_status client_fds_talk_begin(struct client_attachment *attachment, uint64_t deadline_us);
/* Ends the turn of a thread that has set `talking`, and does what was left to be done at its end. broken: the socket is
 * of no more use. */
void client_fds_talk_end(struct client_attachment *attachment, bool broken);
/* Waits until the flag, which is the lock's, is down, or the deadline. */
bool client_fds_await_down(struct client_attachment *attachment, const bool *flag, uint64_t deadline_us);
/* A mapping is to go when it is not in use. */
void client_fds_retire(struct client_attachment *attachment, struct client_mapping *mapping);
/* Unmaps what is to go and not in use, unless a thread talks, which does it at the end of its turn. */
void client_fds_sweep(struct client_attachment *attachment);
/* The same by the thread that has the turn, of what needs no driver. */
void client_fds_sweep_here(struct client_attachment *attachment);
/* True if there is some of that that the daemon has not heard of. */
bool client_fds_unswept(const struct client_attachment *attachment);

#endif
