/* The daemon's Unix SEQPACKET socket: hands over memory descriptors, knows which process holds what, takes one-way releases.
 *
 * One message a packet, a fixed struct in the machine's own byte order (both ends are on one machine). Conversation:
 *
 *     client HELLO(token)        -> daemon WELCOME(status, attachment)      once, first
 *     client MAP(extent, write)  -> daemon EXTENT(status, bytes) + descriptor (SCM_RIGHTS); of GPU memory two: the hold, the memory
 *     client UNMAPPED(extent)       no answer: the mapping and the descriptor are gone; FDSOCK_EXTENT_NONE: of all
 * extents client RELEASE(leases)        no answer
 *     client PREMAP(gpu)          -> daemon OFFER(extents), and more of them as there are more
 *     client LISTEN               -> daemon RETIRE(extent), when it wants one back
 *
 * Host memory is lent to be written (MAP with write 1) to an attachment that has a reservation in that extent, made by a Reserve that named the
 * attachment; before, the answer is PRECONDITION. What is mapped then may stay mapped, for later reservations, but the
 * client keeps writable the pages of reserved slots alone. To be read it is lent to any attachment of the tenant's
 * sessions: an extent belongs to a tenant, and holds blocks of any of its layouts. A GPU's driver exports its memory in
 * one form, which can be written, so `write` says there only how the client means to map it.
 *
 * PREMAP asks to be told which extents of the tenant there are on a GPU, or in host memory, so that they can be mapped
 * before a lease names them: at once those that there are, and from then on each new one, when it has been made. An
 * offer lends nothing: what is wanted of it is asked for by MAP, which may be refused. Nothing has to be mapped, and what
 * is offered too late, or never, is mapped by the lease that names it. A daemon says in WELCOME that it knows PREMAP;
 * another would hang up.
 *
 * LISTEN says that the client reads the socket at all times, and unmaps an extent that RETIRE names as
 * soon as it does not use it; then it says UNMAPPED. The extent is to go to another tenant, and stays with this one for
 * as long as a process has it mapped. A daemon says in WELCOME that it may ask so (FDSOCK_KNOWS_LISTEN).
 *
 * A connection whose first packet is CALLER carries *local calls* and nothing else: the requests and replies of
 * terrace.proto, by the same handlers, without gRPC's way. It makes no attachment, is served by a thread of its own,
 * and is one session's: a request that names another is DENIED.
 *
 *     client CALLER(token)          -> daemon WELCOME(status, attachment 0) once, first
 *     client CALL(method, request)  -> daemon REPLY(status, reply)          one at a time
 *
 * A WELCOME with EXHAUSTED: there is no room for one more such connection, or the process or its user holds its share of them; later there may
 * be.
 *
 * A daemon that does not know the type hangs up: its clients go by gRPC. One that knows it says so in the WELCOME of an attachment; if it hangs up
 * all the same, that has another reason, and a caller may come again. The next CALL says that the reply before it was read. A caller
 * that hangs up without having read its reply, or whose process ends so, gives back what the reply grants; so a caller whose time is up
 * closes the connection. FDSOCK_BY_GRPC for a status: nothing was done, the same request is to be made by gRPC (its reply would be too
 * long for a packet).
 *
 * The daemon takes the peer's identity from SO_PEERCRED, watches its pidfd, and hands each attachment an open file
 * description of its own on which it holds a byte-range lock: the lock disappears when the last descriptor AND the last
 * mapping of it are gone, in whatever process (forked children too). A description to be written has a second byte.
 * Slots of an engine are reused only when its byte is free and, unless it said UNMAPPED, its process has ended: work of
 * its GPU may outlive the process's last mapping by a little. A client that ends a session and lives on says UNMAPPED
 * before it hangs up.
 *
 * A client of version 2 has host memory alone, without offers or local calls; its packets are answered by its version.
 * (The client library of the first version speaks it, but gets no token any more: OpenSession refuses it.) It maps
 * whole extents to be written, and does not say UNMAPPED of host memory when it ends a session: of such an attachment the bytes alone tell whether slots are free. Other versions are hung up
 * on.
 *
 * An extent of GPU memory (store/device.h) comes with a *hold*: a descriptor of one page of host memory with that lock, which the client
 * maps and keeps mapped for as long as it has the GPU's memory mapped or work of its own may touch it. Slots there are
 * reused by the same rule, with the hold for the mapping.
 *
 * The *progress page* of an attachment is host memory of its own, asked for by MAP of FDSOCK_EXTENT_PROGRESS_PAGE
 * (writable): FDSOCK_PROGRESS_PAGE_WORDS words of 4 bytes by which the daemon tells work on a GPU how far a copy has
 * come (LeaseReply.progress_page_word). The client may write them too: to let its own work go on when the daemon is
 * gone. When copies to the GPU that it promised come to nothing, since it loses the GPU or the driver has no memory for
 * them, or since checksums are wrong, the daemon writes 1 to word progress_page_word + FDSOCK_PROGRESS_PAGE_FAILED and
 * then, from the CPU, moves the word itself on to all that it promised: a thread that sees the word reached
 * looks at the other one behind it, and if that is not 0, the bytes may not be there. That stays so as long as the attachment: its
 * later leases on that GPU name no word, and are granted when their copies are there. With
 * LeaseReply.progress_page_summed the daemon looks at checksums beside the copies, and says how far it is at word progress_page_word + FDSOCK_PROGRESS_PAGE_SUMMED, by the same numbers: a layer is there when both words have reached it. */
#ifndef TERRACE_PROTO_FDSOCK_H
#define TERRACE_PROTO_FDSOCK_H

#include <stdint.h>

enum {
	FDSOCK_MAGIC = 0x46445254, /* "TRDF" */
	FDSOCK_VERSION = 3,
	FDSOCK_VERSION_BEFORE = 2, /* the daemon speaks it, too: see below */
	FDSOCK_LEASES_MAX = 64,
	FDSOCK_EXTENT_NONE = 0xffffffffu,
	FDSOCK_EXTENT_PROGRESS_PAGE = 0xfffffffeu,
	FDSOCK_PROGRESS_PAGE_WORDS = 1024, /* the progress page is one page */
	/* the words that tell of checksums are so far behind those that tell of progress, */
	FDSOCK_PROGRESS_PAGE_SUMMED = 256,
	FDSOCK_PROGRESS_PAGE_FAILED = 512, /* and those that tell of failures so far */
	FDSOCK_NO_GPU = 0xffffffffu,
	FDSOCK_BY_GRPC = 0xffffffffu,
	FDSOCK_OFFERS_MAX = 256,       /* in one packet */
	FDSOCK_KNOWS_PREMAP = 1,       /* fdsock_welcome.knows: bits */
	FDSOCK_KNOWS_CALLER = 2,
	FDSOCK_KNOWS_LISTEN = 4,
	FDSOCK_CALL_BYTES_MAX = 192 * 1024, /* of a CALL or REPLY, head and all: what a socket takes in one packet by the kernel's defaults */
};

enum fdsock_type {
	FDSOCK_HELLO = 1,
	FDSOCK_WELCOME = 2,
	FDSOCK_MAP = 3,
	FDSOCK_EXTENT = 4,
	FDSOCK_UNMAPPED = 5,
	FDSOCK_RELEASE = 6,
	FDSOCK_CALLER = 8, /* 7: a daemon of version 2 asks for an extent back */
	FDSOCK_CALL = 9,
	FDSOCK_REPLY = 10,
	FDSOCK_PREMAP = 11,
	FDSOCK_OFFER = 12,
	FDSOCK_LISTEN = 13,
	FDSOCK_RETIRE = 14,
	FDSOCK_TYPES_END
};

/* What can be called locally; named as in the service Cache. */
enum fdsock_method {
	FDSOCK_LOOKUP = 1,
	FDSOCK_LEASE = 2,
	FDSOCK_GIVE_BACK = 3, /* Release */
	FDSOCK_RESERVE = 4,
	FDSOCK_COMMIT = 5,
	FDSOCK_ABORT = 6,
	FDSOCK_TOUCH = 7,
	FDSOCK_REPORT = 8,
	FDSOCK_WARM = 9,
	FDSOCK_METHODS_END
};

struct fdsock_head {
	uint32_t magic;
	uint16_t version;
	uint16_t type; /* enum fdsock_type */
};

/* Also CALLER's form. */
struct fdsock_hello {
	struct fdsock_head head;
	uint8_t token[16];
};

struct fdsock_welcome {
	struct fdsock_head head;
	uint32_t status; /* enum status */
	uint32_t knows;  /* of an attachment: FDSOCK_KNOWS_..., bits; 0 from a daemon that knows none of that */
	uint64_t epoch, session, attachment; /* session: its handle, 64 random bits; attachment: a small number, of use in that session alone */
};

struct fdsock_map {
	struct fdsock_head head;
	uint32_t extent;
	uint32_t write; /* 1: writable (after the reservation of a slot there), 0: read-only */
};

struct fdsock_extent {
	struct fdsock_head head;
	uint32_t status;
	uint32_t extent;
	uint32_t write;
	uint32_t page_bytes; /* 4096, or the huge page size: mappings are multiples of it */
	uint64_t bytes;
	uint32_t gpu;        /* number, as in OpenSessionReply; FDSOCK_NO_GPU: host memory */
	uint32_t pad;
	uint64_t at;         /* of GPU memory: bytes from the beginning of its range of addresses on that GPU, so that
			      * extents lie side by side in the client as in the daemon */
	uint64_t range;      /* bytes of that range */
	uint64_t range_id;   /* which of the GPU's ranges that is: a number that means nothing else */
};

struct fdsock_unmapped {
	struct fdsock_head head;
	uint32_t extent;
	uint32_t write;
};

struct fdsock_premap {
	struct fdsock_head head;
	uint32_t gpu; /* number, as in OpenSessionReply; FDSOCK_NO_GPU: host memory */
	uint32_t pad;
};

struct fdsock_offer {
	struct fdsock_head head;
	uint32_t gpu;   /* as in PREMAP */
	uint32_t more;  /* 1: another one of what there is already follows */
	/* extents[count] follow, none of them FDSOCK_EXTENT_PROGRESS_PAGE or NONE; the packet is cut there */
	uint32_t count;
	uint32_t pad;
	uint32_t extents[FDSOCK_OFFERS_MAX];
};

/* LISTEN is a head alone. */
struct fdsock_retire {
	struct fdsock_head head;
	uint32_t extent;
	uint32_t pad;
};

struct fdsock_release {
	struct fdsock_head head;
	uint32_t count; /* leases[count] follow; the packet is cut there */
	uint32_t pad;
	uint64_t leases[FDSOCK_LEASES_MAX]; /* handles, of leases of the connection's session; others are passed over */
};

struct fdsock_call {
	struct fdsock_head head;
	uint32_t method;  /* enum fdsock_method */
	uint32_t pad;
	uint64_t left_us; /* until the caller's deadline; 0: the daemon's own bound alone */
	/* the packed request follows */
};

struct fdsock_reply {
	struct fdsock_head head;
	uint32_t status;  /* enum status, or FDSOCK_BY_GRPC */
	uint32_t pad;
	/* OK: the packed reply follows; else a sentence, without its NUL */
};

#endif
