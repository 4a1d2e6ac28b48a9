/* The writable pages of a mapping of host memory: those of the process's reserved slots, and no others. A stray write
 * elsewhere ends the process that made it, and damages no block.
 *
 * Memory that is lent for writing is mapped read-only at first. A reservation makes the pages of its slots writable.
 * They stay writable for a second after the reservation has ended, and longer while other reservations begin and end
 * there. To close a page and to open it again takes some tenths of a microsecond, and a session that puts steadily
 * should find its pages open. So while reservations come, no more pages are closed than a bounded time allows. Pages
 * have the size of the daemon's pages: 2 MiB where it has huge ones; such a page may contain other processes' slots
 * too.
 */
#ifndef TERRACE_CLIENT_MEMORY_PAGES_H
#define TERRACE_CLIENT_MEMORY_PAGES_H

#include "client/include/terrace.h"

struct client_pages;

/* What client_pages_rest() does with pages that no reservation uses. */
enum client_rest {
	/* Closes pages that three calls have found unused; a call comes every CLIENT_REST_US. If reservations have
	 * begun or ended since the third call before, it begins to close no page after until_us. */
	CLIENT_REST_A_SECOND,
	CLIENT_REST_NOW       /* closes all of them */
};

enum { CLIENT_REST_US = 500 * 1000 };

/* Makes the record of pages for memory that is mapped read-only, from a descriptor that allows writing. NULL: no
 * memory. */
struct client_pages *client_pages_create(uint8_t *base, uint64_t bytes, uint32_t page_bytes);
/* Frees the record. The memory may be unmapped before. NULL allowed. */
void client_pages_destroy(struct client_pages *pages);

/* Makes the pages of a range inside the memory writable, and counts one use of them. TERRACE_DENIED: the descriptor
 * does not allow it. TERRACE_EXHAUSTED: the process has no room for another mapping, or a page has too many uses. */
enum terrace_status client_pages_open(struct client_pages *pages, uint64_t offset, uint64_t bytes);
/* Ends one use of the pages. */
void client_pages_leave(struct client_pages *pages, uint64_t offset, uint64_t bytes);
/* Closes pages that no reservation uses, as `how` says. True: some page is still writable. */
bool client_pages_rest(struct client_pages *pages, enum client_rest how, uint64_t until_us);

#endif
