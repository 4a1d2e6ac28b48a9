/* Leases that are granted before their copies to a GPU have ended: opens the progress page (memory/progress_page.h) of
 * an attachment, and watches its promises.
 */
#ifndef TERRACE_CLIENT_GPU_PROGRESS_H
#define TERRACE_CLIENT_GPU_PROGRESS_H

#include "client/include/terrace.h"

#include <stdbool.h>
#include <stdint.h>

struct client_attachment;
struct client_promise;

/* Maps the attachment's progress page and registers it with GPU g, if that is not done yet. Statuses as client_fds_map
 * and client_fds_register. */
enum terrace_status client_progress_page_open(struct client_attachment *attachment, uint32_t g, uint64_t deadline_us);

/* Takes up a promise of GPU g, on which the progress page is open. Its word, base and layers come from the daemon. The
 * promise is watched until it is kept or broken. TERRACE_INTERNAL: no such word. TERRACE_EXHAUSTED: no thread to watch
 * it. */
enum terrace_status client_progress_page_promise(struct client_attachment *attachment, uint32_t g,
    struct client_promise *promise);

/* The state of a promise. TERRACE_OK: kept. TERRACE_BUSY: not kept yet. It is broken with TERRACE_STALE (the daemon has
 * ended), TERRACE_UNAVAILABLE (the GPU is lost, here or at the daemon, or the copies took too long), or
 * TERRACE_CANCELLED (the session was closed). */
enum terrace_status client_progress_page_state(struct client_attachment *attachment, struct client_promise *promise);

/* For the watching thread: looks which promises are kept or must be broken. False: none is left, and the thread stops
 * watching. */
bool client_progress_page_watch(struct client_attachment *attachment);

#endif
