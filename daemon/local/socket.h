/* The fd door: the SEQPACKET socket of proto/fdsock.h. Engines attach here, get the descriptors of memory
 * extents, and give leases back.
 *
 * One thread with an epoll of its own; it also runs cache_tick every 50 ms. A connection belongs to one
 * process (SO_PEERCRED), watched by its pidfd: the attachment ends when either the socket or the process
 * does, whichever the kernel tells first. What the process may still touch is not decided here but by the
 * extents' locks (store/host/extent.h).
 */
#ifndef TERRACE_DAEMON_LOCAL_SOCKET_H
#define TERRACE_DAEMON_LOCAL_SOCKET_H

#include "daemon/block/values.h"
#include "store/status.h"

#include <stddef.h>

struct daemon;
struct door;

/* path "": no socket, only the ticks. Binds with `mode` and starts the thread. BUSY: another daemon has the path. IO: why[size] has a
 * sentence. */
enum status door_create(const struct daemon *d, const char *path, unsigned mode, uint32_t connections_max,
			struct door **out, char *why, size_t size);
/* Ends every attachment, joins the thread, removes the socket; then waits for what workers do for it, at most wait_us. False: one has not come
 * back; then door_stats and door_stop again are left. NULL is fine. */
bool door_stop(struct door *d, uint64_t wait_us);
/* The same, however long it takes, and frees. NULL is fine. */
void door_destroy(struct door *d);

/* Any thread. */
void door_stats(struct door *d, cache_stat_fn *emit, void *arg);

/* What a connection may say. Checks a packet of n bytes (any bytes): its type, or 0 if it is not well
 * formed or not a client's to send. Fuzzed. */
int door_packet_type(const void *packet, size_t n);

#endif
