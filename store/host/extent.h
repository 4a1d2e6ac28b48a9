/* An extent: one memfd of the host tier. The daemon maps it and lends it to engines.
 *
 * Lending. An engine process gets a *new open file description* of the memfd (re-opened through /proc/self/fd,
 * read-only or read-write). On it the daemon has set an open-file-description lock of one byte, at the offset of that
 * attachment's number. The kernel drops the lock when the last descriptor and the last mapping of that description are
 * gone, in whatever process. So forked children and re-sent descriptors are covered. extent_held() asks the kernel for
 * the lock. A dead engine's slots may be reused when its lock is gone and its process has ended. On a read-write
 * description the daemon locks a second byte, EXTENT_WRITERS further on: extent_written() asks for it whether an
 * attachment can write.
 *
 * Memory. The memfd is sealed against shrinking and growing. Its pages are taken from the kernel before they are used,
 * so that a machine without free memory does not make the daemon take SIGBUS later (but see holes below). Its mode is
 * 0600: an engine of another user cannot make a writable description out of a read-only one.
 *
 * What an engine may do to its own tenant. It can drop the lock of its own descriptor. It can lock other bytes for as
 * long as it lives: its tenant's slots then stay quarantined, and extent_lend refuses that extent to other engines of
 * the tenant (BUSY). With a writable descriptor it can punch holes, since every seal that forbids holes also forbids
 * writing. Blocks in a hole read as zeroes, as if the engine had written zeroes. At the next touch the kernel gives new
 * pages for a hole. If there are no free huge pages then, the process that touches the hole gets SIGBUS, and that
 * process may be the daemon. So a session's token must not be given to strangers.
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
	HOST_WHY_MAX = 160,               /* room for a device's words when it gives no memory */
};

/* The highest attachment number that extent_lend takes. */
#define EXTENT_ATTACHMENT_MAX 0x80000000u
/* The locks of attachments that can write: byte EXTENT_WRITERS + the attachment's number. */
#define EXTENT_WRITERS (1ull << 32)

struct extent {
	uint32_t id;
	int fd;               /* the daemon's own description */
	uint8_t *base;        /* NULL: not open */
	uint64_t bytes;       /* a multiple of page_bytes */
	uint32_t page_bytes;  /* 4096, or 2 MiB with huge pages */
	_Atomic int error;    /* errno of the last failure */
};

/* Makes an extent of at least `bytes`, rounded up to pages; with huge pages a multiple of 2 MiB wastes nothing. huge:
 * tries MFD_HUGETLB first and falls back silently to small pages, with transparent huge pages asked for. Takes the
 * pages at once, about 0.3 s a GiB. On failure *e is closed, with the errno in e->error. INVALID: no bytes, or more
 * than EXTENT_BYTES_MAX. EXHAUSTED: no memory, address space or descriptors. IO: anything else. */
enum status extent_open(struct extent *e, uint32_t id, uint64_t bytes, bool huge);
/* As extent_open, but takes only the first `present` bytes of pages. The other pages must not be touched before
 * extent_populate has taken them: the machine may not have them. (Huge pages are set aside for the mapping; the kernel
 * gives them at the touch.) */
enum status extent_open_part(struct extent *e, uint32_t id, uint64_t bytes, uint64_t present, bool huge);
/* Takes the pages of [from, from + bytes), which are whole pages of the extent. Pages that are there already stay as
 * they are. Slow. INVALID: no such pages. EXHAUSTED, IO: as extent_open; some of the pages may have been taken. */
enum status extent_populate(struct extent *e, uint64_t from, uint64_t bytes);

/* Unmaps and closes. Engines' mappings stay theirs. Accepts zeroed memory and a closed extent. */
void extent_close(struct extent *e);

/* Makes the description to send to an attachment (1 .. EXTENT_ATTACHMENT_MAX). *fd is close-on-exec, and the caller
 * closes it after sending. Several descriptions of one attachment (read-only and writable) share its byte. INVALID: the
 * number is out of range. EXHAUSTED: no descriptors or locks. BUSY: an engine has locked that byte against the daemon.
 * IO: anything else. */
enum status extent_lend(struct extent *e, uint32_t attachment, bool write, int *fd);

/* True while any descriptor or mapping that was lent to the attachment lives; also when the kernel does not answer. */
bool extent_held(const struct extent *e, uint32_t attachment);
/* True while any descriptor or mapping lives that was lent to the attachment for writing; also when the kernel does not
 * answer. */
bool extent_written(const struct extent *e, uint32_t attachment);

#endif
