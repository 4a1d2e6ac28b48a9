/* Which pages of a mapping of host memory this process may write: those of its reserved slots, and no others. A stray
 * write elsewhere ends the process that made it, and damages no block.
 *
 * Memory that is lent to be written is mapped to be read. A reservation makes the pages of its slots writable. They
 * stay so for a second after it has ended, and longer while other reservations come and go there: to close a page and
 * to open it again takes some tenths of a microsecond, and a session that puts steadily is to find pages as it left
 * them. So then no more are closed than a bounded time allows. Pages are as large as the daemon's: 2 MiB where it has
 * huge ones, and then a page may hold others' slots, too. */
#ifndef TERRACE_CLIENT_MEMORY_PAGES_H
#define TERRACE_CLIENT_MEMORY_PAGES_H

#include "client/include/terrace.h"

struct client_pages;

/* What client_pages_rest() does with pages that no reservation uses. */
enum client_rest {
	/* Closes those that three calls have found unused; a call comes every CLIENT_REST_US. Where reservations have
	 * begun or ended since the third call before, it begins to close none once that time has come. */
	CLIENT_REST_A_SECOND,
	CLIENT_REST_NOW       /* closes all of them */
};

enum { CLIENT_REST_US = 500 * 1000 };

/* Of memory that is mapped to be read, from a descriptor that allows writing. NULL: no memory. */
struct client_pages *client_pages_create(uint8_t *base, uint64_t bytes, uint32_t page_bytes);
/* The memory may be unmapped by then. NULL allowed. */
void client_pages_destroy(struct client_pages *pages);

/* Makes the pages of a range inside the memory writable, and counts one use of them. TERRACE_DENIED: the descriptor
 * does not allow it. TERRACE_EXHAUSTED: the process has no room for another mapping, or a page has too many uses. */
enum terrace_status client_pages_open(struct client_pages *pages, uint64_t offset, uint64_t bytes);
/* Ends one use. */
void client_pages_leave(struct client_pages *pages, uint64_t offset, uint64_t bytes);
/* True: some page is still writable. */
bool client_pages_rest(struct client_pages *pages, enum client_rest how, uint64_t until_us);

#endif
