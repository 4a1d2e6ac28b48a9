/* What the daemon says on the fd socket without having been asked. */
#ifndef TERRACE_CLIENT_MEMORY_HEAR_H
#define TERRACE_CLIENT_MEMORY_HEAR_H

#include "client/include/terrace.h"

struct client_attachment;
struct client_packet;

/* With the attachment's lock: takes a packet that answers no question, and its descriptors. */
void client_fds_take(struct client_attachment *attachment, struct client_packet *packet);
/* The same: reads what has come. No thread talks. */
void client_fds_hear(struct client_attachment *attachment);
/* The same to the last packet, when the socket takes no more: of what it lends the daemon is told that it is not mapped. */
void client_fds_hear_out(struct client_attachment *attachment);
/* Without the lock, but with the turn: one packet, until then. */
enum terrace_status client_fds_hear_one(struct client_attachment *attachment, uint64_t deadline_us);

#endif
