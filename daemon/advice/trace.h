/* The recorder of traces. */
#ifndef TERRACE_DAEMON_ADVICE_TRACE_H
#define TERRACE_DAEMON_ADVICE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct cache;
struct cache_trace_result;
struct request;

/* Records requests into fd, as text that terrace-replay reads, until it is stopped or bytes_max (0: no bound) are written; what
 * comes after is counted as dropped. Nothing of a prompt is in it: blocks are named by salted hashes. A request is a Lookup or
 * Lease; a Lease after its Lookup is the same one. Takes fd over on OK. BUSY: one is being recorded already. */
enum status cache_trace_start(struct cache *c, int fd, uint64_t bytes_max, const char **why);
/* Writes what is left, and closes the file. NOT_FOUND: nothing is recorded. IO, EXHAUSTED (no room): the file is not whole; *out is written then too, with
 * zeros if the file does not take what is left within disk_close_ms: then it is closed when it does, if ever. Waits for the file: on a worker. */
enum status cache_trace_stop(struct cache *c, struct cache_trace_result *out, const char **why);
/* errno of the write by which the recording that is under way has failed: what comes now is not in it. 0: none has. */
int cache_trace_error(struct cache *c);
/* A request, for the recorder. */
void trace_note(struct cache *c, const struct request *r);

#endif
