/* Packets of the fd socket, one at a time: sent, received and checked, their descriptors mapped. */
#ifndef TERRACE_CLIENT_PACKET_H
#define TERRACE_CLIENT_PACKET_H

#include "client/fds.h"
#include "proto/fdsock.h"

struct client_packet {
	union {
		struct fdsock_head head;
		struct fdsock_welcome welcome;
		struct fdsock_extent extent;
		struct fdsock_unmapped unmapped; /* RETIRE */
	} body;
	int descriptor; /* -1: none came */
};

/* A non-blocking, close-on-exec SEQPACKET socket connected to `path`. TERRACE_UNAVAILABLE, TERRACE_DENIED, TERRACE_INVALID. */
enum terrace_status client_packet_connect(const char *path, uint64_t deadline_us, int *out);

/* Sends one packet, trying for a few milliseconds at most. False: it was not sent. */
bool client_packet_send(int socket, const void *packet, size_t bytes);

/* The next packet, of known type and right size. deadline_us 0: without waiting. TERRACE_DEADLINE: none came;
 * TERRACE_UNAVAILABLE: the other end has gone; TERRACE_INTERNAL: garbage. */
enum terrace_status client_packet_receive(int socket, uint64_t deadline_us, struct client_packet *packet);

/* Closes the packet's descriptor, if it has one. */
void client_packet_fini(struct client_packet *packet);

/* Maps the extent of an EXTENT packet into *mapping (whose `writable` is set). The file must really be as large as the packet
 * says: else touching it would be a SIGBUS. */
enum terrace_status client_packet_map(const struct client_packet *packet, struct client_mapping *mapping);

/* A status number from the socket; TERRACE_INTERNAL for one that is no failure of this version. */
enum terrace_status client_packet_status(uint32_t number);

#endif
