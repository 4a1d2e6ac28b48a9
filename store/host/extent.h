/* An extent: one memfd of the host tier, mapped by the daemon and lent to engines.
 *
 * The descriptor handed to an engine process is a *new open file description* of the memfd (re-opened through
 * /proc/self/fd, read-only or read-write), on which the daemon has set an open-file-description lock of one byte, at
 * the offset of that attachment's number. The kernel drops the lock when the last descriptor and the last mapping of
 * that description are gone, in whatever process: forked children and re-sent descriptors are covered. extent_held()
 * asks for it. That, not a timer or a socket, says when a dead engine's slots may be reused. A read-write description
 * locks a second byte, EXTENT_WRITERS further on: extent_written() asks whether an attachment can write.
 *
 * The memfd is sealed against shrinking and growing, and its pages are taken from the kernel before they are used, so
 * that no full machine makes the daemon take SIGBUS later (holes: see below). Its mode is 0600: an engine of another
 * user cannot make a writable description out of a read-only one.
 *
 * What an engine may do to its own tenant: with its descriptor it can drop its own lock; lock other bytes, for as long
 * as it lives (its tenant's slots then stay quarantined, and other engines of the tenant are refused that extent,
 * BUSY); or, with a writable one, punch holes, which no seal forbids that lets engines write: blocks there read as
 * zeroes, as if it had written them. Pages of a hole come back from the kernel at the next touch; of huge pages there
 * may be none left then, and the process that touches it, even the daemon, gets SIGBUS. So a session's token must not
 * be given to strangers.
 *
 * Threads: any, under the caller's lock. extent_held, extent_written and extent_lend may run at the same time as each
 * other and as accesses to the memory.
 */
#ifndef TERRACE_STORE_HOST_EXTENT_H
#define TERRACE_STORE_HOST_EXTENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

enum {
	EXTENT_PAGE_BYTES = 4096,
	EXTENT_HUGE_PAGE_BYTES = 2 << 20,
	EXTENT_BYTES_MAX = 1 << 30,       /* io_uring's limit for a registered buffer */
	HOST_WHY_MAX = 160,               /* words of a device that did not give memory */
};

/* The highest attachment number that extent_lend takes. */
#define EXTENT_ATTACHMENT_MAX 0x80000000u
/* Where the bytes of those begin that can write. */
#define EXTENT_WRITERS (1ull << 32)

struct extent {
	uint32_t id;
	int fd;               /* the daemon's own description */
	uint8_t *base;        /* NULL: not open */
	uint64_t bytes;       /* a multiple of page_bytes */
	uint32_t page_bytes;  /* 4096, or 2 MiB with huge pages */
	_Atomic int error;    /* errno of the last failure */
};

/* Makes an extent of at least `bytes` (rounded up to pages; a multiple of 2 MiB wastes nothing with
 * huge pages). huge: try MFD_HUGETLB first, fall back silently (transparent huge pages are asked
 * for then). Takes the pages at once, so it lasts about 0.3 s a GiB. On failure *e is closed, with
 * the errno in e->error. INVALID: no bytes, or more than EXTENT_BYTES_MAX. EXHAUSTED: no memory,
 * address space or descriptors. IO: anything else. */
enum status extent_open(struct extent *e, uint32_t id, uint64_t bytes, bool huge);
/* The same, but takes only the first `present` bytes of pages. The others must not be touched before extent_populate
 * has taken them: the machine may not have them. (Huge pages are set aside for the mapping; the kernel gives them at
 * the touch.) */
enum status extent_open_part(struct extent *e, uint32_t id, uint64_t bytes, uint64_t present, bool huge);
/* Takes the pages of [from, from + bytes), whole pages of the extent; those that are there stay as they are. Lasts.
 * INVALID: no such pages. EXHAUSTED, IO: as extent_open; some may have been taken. */
enum status extent_populate(struct extent *e, uint64_t from, uint64_t bytes);

/* Unmaps and closes. Engines' mappings stay theirs. Accepts zeroed memory and a closed extent. */
void extent_close(struct extent *e);

/* Makes the description to send to an attachment (1 .. EXTENT_ATTACHMENT_MAX), close-on-exec. *fd
 * is the caller's to close after sending. Several descriptions of one attachment (read-only and
 * writable) share its byte. INVALID: the number is out of range. EXHAUSTED: no descriptors or
 * locks. BUSY: an engine has locked that byte against us. IO: anything else. */
enum status extent_lend(struct extent *e, uint32_t attachment, bool write, int *fd);

/* True while any descriptor or mapping lent to the attachment lives; also if the kernel does not say. */
bool extent_held(const struct extent *e, uint32_t attachment);
/* True while any descriptor or mapping lives that was lent to the attachment to be written; also if the kernel does not
 * say. */
bool extent_written(const struct extent *e, uint32_t attachment);

#endif
