/* The progress page of an attachment (proto/fdsock.h): words in host memory. A lease may be granted before its copies
 * to a GPU have ended; through these words the daemon tells streams how far the copies are.
 *
 * What such a lease waits for is a *promise*. If the daemon or the GPU dies before a promise is kept, the promise is
 * broken: callers that ask are told, and the word is moved on by this process, so that no stream waits for ever.
 */
#ifndef TERRACE_CLIENT_MEMORY_PROGRESS_PAGE_H
#define TERRACE_CLIENT_MEMORY_PROGRESS_PAGE_H

#include "client/include/terrace.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct client_gpu;
struct client_mapping;

/* A promise: the copies of `layers` layers will be made; 0: there are none. It belongs to its owner until
 * client_progress_page_forget. */
struct client_promise {
	/* links of the progress page's list; link NULL: it is on no list, since it was kept or the progress page is
	 * closed */
	struct client_promise *next, **link;
	struct client_gpu *gpu;
	uint32_t word, base, layers;
	bool summed;                         /* the word of checksums must be reached too */
	uint64_t until_us;                   /* it is broken at this time */
	atomic_int broken;                   /* the enum terrace_status once it is broken; set before the word is moved
					      * on */
};

struct client_progress_page {
	pthread_mutex_t lock;            /* guards what follows */
	struct client_mapping *mapping;  /* NULL: not asked for yet; then it is in use to the end */
	struct client_promise *promises; /* promises that were not kept at the last look */
	bool watched;                    /* a thread looks at the promises repeatedly */
	bool closed;
};

void client_progress_page_init(struct client_progress_page *progress_page);
void client_progress_page_fini(struct client_progress_page *progress_page);

/* Ends a promise for its owner, which may then free it. */
void client_progress_page_forget(struct client_progress_page *progress_page, struct client_promise *promise);

/* The device address of the promise's word, on GPU g. */
uint64_t client_progress_page_address(const struct client_progress_page *progress_page,
				      const struct client_promise *promise, uint32_t g);
/* The device address of the word of checksums, if the promise still waits for this layer there; else 0. */
uint64_t client_progress_page_sums_address(const struct client_progress_page *progress_page,
				   const struct client_promise *promise, uint32_t layer,
				   uint32_t g);

/* Breaks the promises that are not kept. False: none was broken, and the progress page may be unmapped. True: streams
 * may still be about to pass a word, and the page stays for the life of the process. */
bool client_progress_page_close(struct client_progress_page *progress_page);

bool client_progress_page_closed(struct client_progress_page *progress_page);

/* True if the promise is kept, so that no wait is needed. */
bool client_progress_page_kept(struct client_progress_page *progress_page, const struct client_promise *promise);

/* For gpu/progress.c, called with the progress page's lock: */

/* Whether the promise's copies have ended. */
bool client_progress_page_reached(const struct client_progress_page *progress_page,
				  const struct client_promise *promise);
void client_promise_link(struct client_progress_page *progress_page, struct client_promise *promise);
/* Looks which promises are kept. Breaks those for which `broken_by` returns a status, or that the daemon reports as
 * failed. False: none is left. */
bool client_progress_page_look(struct client_progress_page *progress_page,
		       enum terrace_status (*broken_by)(const struct client_promise *promise, void *arg), void *arg);

#endif
