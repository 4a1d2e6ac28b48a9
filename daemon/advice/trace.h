/* The recorder of traces: writes requests, without their contents, to a file for terrace-replay. */
#ifndef TERRACE_DAEMON_ADVICE_TRACE_H
#define TERRACE_DAEMON_ADVICE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct cache;
struct cache_trace_result;
struct request;

/* Records requests into fd, as text that terrace-replay reads, until it is stopped or bytes_max (0: no bound) are
 * written; later requests are counted as dropped. The text has nothing of a prompt: blocks are named by salted hashes.
 * A request is a Lookup or Lease; a Lease after its Lookup is the same one. Takes fd over on OK. BUSY: one is being
 * recorded already. */
enum status cache_trace_start(struct cache *c, int fd, uint64_t bytes_max, const char **why);
/* Writes the rest, and closes the file. NOT_FOUND: nothing is recorded. IO, EXHAUSTED (no room): the file is not
 * complete; *out is written all the same. If the file does not take the rest within disk_close_ms, *out has zeros, and
 * the file is closed when it does, if ever. It waits for the file: call it on a worker. */
enum status cache_trace_stop(struct cache *c, struct cache_trace_result *out, const char **why);
/* errno of the write by which the recording under way failed: later requests are not in it. 0: none. */
int cache_trace_error(struct cache *c);
/* A request, for the recorder. */
void trace_note(struct cache *c, const struct request *r);

#endif
