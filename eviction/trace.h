/* A trace of requests in memory: which request asked for which chain of blocks, and when. A reader
 * (eviction/replay/read.c) fills it and the replay runs it. Names of blocks become dense numbers, 0 .. unique - 1, in
 * order of appearance.
 *
 * Only full blocks are kept: the last, partial block of a prompt counts in `tokens` alone.
 */
#ifndef TERRACE_EVICTION_TRACE_H
#define TERRACE_EVICTION_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct trace_request {
	uint64_t time_us;
	uint64_t session;  /* 0: the trace does not say */
	uint64_t first;    /* its blocks are blocks[first] .. blocks[first + count - 1] */
	uint32_t count;
	uint32_t about;    /* of a report (count 0): the length of the chain that it is about, from blocks[first] on;
			    * otherwise 0 */
	uint32_t tokens;   /* of the prompt */
	uint16_t turn;     /* 1 for a session's first; 0: the trace does not say */
	uint8_t hint;      /* enum policy_hint */
};

struct trace {
	uint32_t block_tokens;
	uint32_t unique;
	uint32_t request_count, request_max;
	uint64_t block_count, block_max;
	struct trace_request *requests; /* by time */
	uint32_t *blocks;
	struct trace_names *names;
};

/* trace_fini accepts zeroed memory; a finished trace may be initialised again. */
void trace_init(struct trace *t, uint32_t block_tokens);
void trace_fini(struct trace *t);

/* Appends a request of `count` named blocks. The first r->tokens / block_tokens of them are full and kept; first, count
 * and about of `r` are set here. A request with a hint and without tokens is a report. It is about the chain that ends
 * with ids[0], if one of the last thousands of requests (of the session, if it is known) had that block. INVALID:
 * earlier than the request before. EXHAUSTED: no memory, or too many names for 32 bits. On failure the trace is as it
 * was. */
enum status trace_add(struct trace *t, const struct trace_request *r, const uint64_t *ids, uint32_t count);

/* Gives the last request of every session POLICY_HINT_END with probability `recall`, and any other request with
 * probability `false_rate` (0 .. 1), by a fixed random sequence. Where the trace does not name sessions, a request
 * counts as the last one if no later request holds its deepest block. Reports do not count as requests here and stay as
 * they are. EXHAUSTED: no memory. */
enum status trace_hint_end(struct trace *t, double recall, double false_rate);

#endif
