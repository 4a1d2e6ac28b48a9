/* The turn of an attachment: one thread at a time talks (sends MAP and reads until the answer) or unmaps. With the
 * attachment's lock. */
#ifndef TERRACE_CLIENT_MEMORY_TURN_H
#define TERRACE_CLIENT_MEMORY_TURN_H

#include "client/include/terrace.h"

#include <stdbool.h>

struct client_attachment;
struct client_mapping;

/* Waits for the turn. Statuses as client_fds_map. */
enum terrace_status client_fds_talk_begin(struct client_attachment *attachment, uint64_t deadline_us);
/* Ends the turn of a thread that has set `talking`, and does the work that was left for the end of the turn. broken:
 * the socket cannot be used any more. */
void client_fds_talk_end(struct client_attachment *attachment, bool broken);
/* Waits until the flag, which the lock guards, is false, or until the deadline. */
bool client_fds_await_down(struct client_attachment *attachment, const bool *flag, uint64_t deadline_us);
/* Marks a mapping: it is unmapped when it is not in use. */
void client_fds_retire(struct client_attachment *attachment, struct client_mapping *mapping);
/* Unmaps marked mappings that are not in use. If a thread has the turn, that thread does it at the end of the turn
 * instead. */
void client_fds_sweep(struct client_attachment *attachment);
/* As client_fds_sweep, for the thread that has the turn: unmaps only memory that needs no driver. */
void client_fds_sweep_here(struct client_attachment *attachment);
/* Whether there is an unmapped mapping of which the daemon has not been told yet. */
bool client_fds_unswept(const struct client_attachment *attachment);

#endif
