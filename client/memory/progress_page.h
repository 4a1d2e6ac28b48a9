/* The progress page of an attachment (proto/fdsock.h): words in host memory by which the daemon tells streams how far
 * the copies to a GPU have come that a lease was granted ahead of.
 *
 * What such a lease waits for is a *promise*. When the daemon or the GPU dies before it is kept, the promise is broken: whoever asks is
 * told, and the word is moved on from here, so that no stream waits for ever. */
#ifndef TERRACE_CLIENT_MEMORY_PROGRESS_PAGE_H
#define TERRACE_CLIENT_MEMORY_PROGRESS_PAGE_H

#include "client/include/terrace.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct client_gpu;
struct client_mapping;

/* Copies to come: of `layers` layers, 0 if there are none. Its owner's until client_progress_page_forget. */
struct client_promise {
	/* of the progress page's list; link NULL: on none, since it was kept, or the progress page is closed */
	struct client_promise *next, **link;
	struct client_gpu *gpu;
	uint32_t word, base, layers;
	bool summed;                         /* the word of checksums must be reached too */
	uint64_t until_us;                   /* broken then */
	atomic_int broken;                   /* the enum terrace_status, once broken; set before the word is moved */
};

struct client_progress_page {
	pthread_mutex_t lock;            /* guards what follows */
	struct client_mapping *mapping;  /* NULL: not asked for yet; in use for good */
	struct client_promise *promises; /* those that were not kept when last looked at */
	bool watched;                    /* by a thread, which looks by and by */
	bool closed;
};

void client_progress_page_init(struct client_progress_page *progress_page);
void client_progress_page_fini(struct client_progress_page *progress_page);

/* The promise's owner goes. */
void client_progress_page_forget(struct client_progress_page *progress_page, struct client_promise *promise);

/* The device address of the promise's word, on GPU g. */
uint64_t client_progress_page_address(const struct client_progress_page *progress_page,
				      const struct client_promise *promise, uint32_t g);
/* The same of the word of checksums, if this layer is still waited for there; else 0. */
uint64_t client_progress_page_sums_address(const struct client_progress_page *progress_page,
				   const struct client_promise *promise, uint32_t layer,
				   uint32_t g);

/* Breaks what is not kept. False: nothing was broken, and the progress page may be unmapped. True: streams may still be
 * on their way past a word, and the page stays for the life of the process. */
bool client_progress_page_close(struct client_progress_page *progress_page);

bool client_progress_page_closed(struct client_progress_page *progress_page);

/* True if all that was promised is there, so that no wait is needed. */
bool client_progress_page_kept(struct client_progress_page *progress_page, const struct client_promise *promise);

/* For gpu/progress.c, with the progress page's lock: */

/* The promise's copies are there. */
bool client_progress_page_reached(const struct client_progress_page *progress_page,
				  const struct client_promise *promise);
void client_promise_link(struct client_progress_page *progress_page, struct client_promise *promise);
/* Looks which promises are kept, and breaks those that `broken_by` gives a status for, or that the daemon says have
 * failed. False: none is left. */
bool client_progress_page_look(struct client_progress_page *progress_page,
		       enum terrace_status (*broken_by)(const struct client_promise *promise, void *arg), void *arg);

#endif
