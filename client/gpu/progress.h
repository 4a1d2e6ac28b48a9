/* Leases that are granted ahead of copies to a GPU: the progress page (memory/board.h) of an attachment is opened, and
 * its promises are looked after. */
#ifndef TERRACE_CLIENT_GPU_PROGRESS_H
#define TERRACE_CLIENT_GPU_PROGRESS_H

#include "client/include/terrace.h"

#include <stdbool.h>
#include <stdint.h>

struct client_attachment;
struct client_promise;

/* Maps the attachment's progress page and registers it with GPU g, if that is not done. As client_fds_map and
 * client_fds_register. */
enum terrace_status client_progress_page_open(struct client_attachment *attachment, uint32_t g, uint64_t deadline_us);

/* Takes up a promise of GPU g (the progress page is open there), whose word, base and layers are the daemon's: it is
 * watched until it is kept or broken. TERRACE_INTERNAL: no such word. TERRACE_EXHAUSTED: no thread to watch it. */
enum terrace_status client_progress_page_promise(struct client_attachment *attachment, uint32_t g,
    struct client_promise *promise);

/* TERRACE_OK: kept. TERRACE_BUSY: not yet. TERRACE_STALE (the daemon has gone), TERRACE_UNAVAILABLE (the GPU is lost, here or at the daemon, or the copies took
 * too long), TERRACE_CANCELLED (the session was closed): broken. */
enum terrace_status client_progress_page_state(struct client_attachment *attachment, struct client_promise *promise);

/* For the thread that watches: looks whether promises are kept or must be broken. False, and it watches no more, when none is left. */
bool client_progress_page_watch(struct client_attachment *attachment);

#endif
