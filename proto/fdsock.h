/* The daemon's Unix SEQPACKET socket: hands over memory descriptors, knows which process holds what, takes one-way releases.
 *
 * One message a packet, a fixed struct in the machine's own byte order (both ends are on one machine). Conversation:
 *
 *     client HELLO(token)        -> daemon WELCOME(status, attachment)      once, first
 *     client MAP(extent, write)  -> daemon EXTENT(status, bytes) + descriptor (SCM_RIGHTS)
 *     client UNMAPPED(extent)       no answer: the mapping and the descriptor are gone
 *     client RELEASE(leases)        no answer
 *     daemon RETIRE(extent)         please unmap when the last lease in it is back
 *
 * The daemon takes the peer's identity from SO_PEERCRED, watches its pidfd, and hands each attachment an open file
 * description of its own on which it holds a byte-range lock: the lock disappears when the last descriptor AND the last
 * mapping of it are gone, in whatever process (forked children too). Slots of a dead engine are reused only then.
 */
#ifndef TERRACE_PROTO_FDSOCK_H
#define TERRACE_PROTO_FDSOCK_H

#include <stdint.h>

enum {
	FDSOCK_MAGIC = 0x46445254, /* "TRDF" */
	FDSOCK_VERSION = 1,
	FDSOCK_LEASES_MAX = 64,
	FDSOCK_EXTENT_NONE = 0xffffffffu,
};

enum fdsock_type {
	FDSOCK_HELLO = 1,
	FDSOCK_WELCOME = 2,
	FDSOCK_MAP = 3,
	FDSOCK_EXTENT = 4,
	FDSOCK_UNMAPPED = 5,
	FDSOCK_RELEASE = 6,
	FDSOCK_RETIRE = 7,
};

struct fdsock_head {
	uint32_t magic;
	uint16_t version;
	uint16_t type; /* enum fdsock_type */
};

struct fdsock_hello {
	struct fdsock_head head;
	uint8_t token[16];
};

struct fdsock_welcome {
	struct fdsock_head head;
	uint32_t status; /* enum status */
	uint32_t pad;
	uint64_t epoch, session, attachment;
};

struct fdsock_map {
	struct fdsock_head head;
	uint32_t extent;
	uint32_t write; /* 1: writable (for reservations), 0: read-only */
};

struct fdsock_extent {
	struct fdsock_head head;
	uint32_t status;
	uint32_t extent;
	uint32_t write;
	uint32_t page_bytes; /* 4096, or the huge page size: mappings are multiples of it */
	uint64_t bytes;
};

/* Also RETIRE's form. */
struct fdsock_unmapped {
	struct fdsock_head head;
	uint32_t extent;
	uint32_t write;
};

struct fdsock_release {
	struct fdsock_head head;
	uint32_t count; /* leases[count] follow; the packet is cut there */
	uint32_t pad;
	uint64_t leases[FDSOCK_LEASES_MAX];
};

#endif
