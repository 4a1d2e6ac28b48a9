/* The fd local socket: the SEQPACKET socket of proto/fdsock.h. Engines attach here, get the descriptors of memory
 * extents, and give leases back.
 *
 * One thread with an epoll of its own; it also runs cache_tick every 50 ms. A connection belongs to one process
 * (SO_PEERCRED), watched by its pidfd: the attachment ends when the socket or the process ends, whichever the kernel
 * reports first. The extents' locks (store/host/extent.h) decide what the process may still touch.
 */
#ifndef TERRACE_DAEMON_LOCAL_SOCKET_H
#define TERRACE_DAEMON_LOCAL_SOCKET_H

#include "store/status.h"

#include <stddef.h>
#include <stdint.h>

struct daemon;
struct fd_socket;
struct part_ops;

/* path "": no socket, only the ticks. Binds with `mode` and starts the thread. BUSY: another daemon has the path. IO: why[size] has a
 * sentence. */
enum status fd_socket_create(const struct daemon *d, const char *path, unsigned mode, uint32_t connections_max,
			struct fd_socket **out, char *why, size_t size);
/* Stop, end and figures (process/part.h) of a struct fd_socket. */
extern const struct part_ops fd_socket_part;

/* Checks a packet from a connection, of n bytes (any bytes): its type, or 0 if it is not well formed or not a client's
 * to send. Fuzzed. */
int fd_socket_packet_type(const void *packet, size_t n);

#endif
