/* Packets of the fd socket, one at a time: sends them, receives them, and checks their form. memory/mapping.h checks
 * what a packet says of an extent.
 */
#ifndef TERRACE_CLIENT_TRANSPORT_PACKET_H
#define TERRACE_CLIENT_TRANSPORT_PACKET_H

#include "client/include/terrace.h"
#include "proto/fdsock.h"

struct client_packet {
	union {
		struct fdsock_head head;
		struct fdsock_welcome welcome;
		struct fdsock_extent extent;
		struct fdsock_offer offer;
		struct fdsock_retire retire;
	} body;
	int descriptors[2]; /* the first descriptors that came; -1: none */
	bool lost;          /* descriptors are missing: this process can have no more */
};

/* The head of a packet of this version. */
static inline struct fdsock_head client_packet_head(enum fdsock_type type)
{
	return (struct fdsock_head){FDSOCK_MAGIC, FDSOCK_VERSION, (uint16_t)type};
}

/* A non-blocking, close-on-exec SEQPACKET socket connected to `path`. TERRACE_UNAVAILABLE, TERRACE_DENIED, TERRACE_INVALID. */
enum terrace_status client_packet_connect(const char *path, uint64_t deadline_us, int *out);

/* Sends one packet; tries for a few milliseconds at most. False: it was not sent. */
bool client_packet_send(int socket, const void *packet, size_t bytes);
/* As client_packet_send, but tries until the deadline. TERRACE_DEADLINE: the socket is full, since the other end reads
 * nothing. TERRACE_UNAVAILABLE: the other end is closed, or this one was shut down. */
enum terrace_status client_packet_send_until(int socket, const void *packet, size_t bytes, uint64_t deadline_us);

/* Receives the next packet, of known type and right size. deadline_us 0: does not wait, and sets no error text if none
 * is there. TERRACE_DEADLINE: none came. TERRACE_UNAVAILABLE: the other end is closed. TERRACE_INTERNAL: garbage. */
enum terrace_status client_packet_receive(int socket, uint64_t deadline_us, struct client_packet *packet);

/* Closes the packet's descriptors, if it has any. */
void client_packet_fini(struct client_packet *packet);

/* NULL if descriptor `i` is of a file of at least `bytes`: with a smaller file an access would be a SIGBUS. Otherwise
 * what is wrong. */
const char *client_packet_file_problem(const struct client_packet *packet, int i, uint64_t bytes);

/* The status of a number from the socket; TERRACE_INTERNAL for a number that is no failure of this version. */
enum terrace_status client_packet_status(uint32_t number);

#endif
