/* Packets that the daemon sends on the fd socket without having been asked. */
#ifndef TERRACE_CLIENT_MEMORY_HEAR_H
#define TERRACE_CLIENT_MEMORY_HEAR_H

#include "client/include/terrace.h"

struct client_attachment;
struct client_packet;

/* With the attachment's lock: takes a packet that answers no request, with its descriptors. */
void client_fds_take(struct client_attachment *attachment, struct client_packet *packet);
/* With the attachment's lock: reads the packets that have arrived. No thread has the turn. */
void client_fds_hear(struct client_attachment *attachment);
/* With the attachment's lock: reads to the last packet, when the socket takes no more. The daemon is told of each
 * extent that it lends in these packets that it is not mapped. */
void client_fds_hear_out(struct client_attachment *attachment);
/* Without the lock, but with the turn: reads one packet, until the deadline at most. */
enum terrace_status client_fds_hear_one(struct client_attachment *attachment, uint64_t deadline_us);

#endif
