/* Reads a trace file, as it is or packed with xz, in any of these forms, told apart by the first line:
 *
 * - Text: `# NAME TOKENS_PER_BLOCK REQUESTS BLOCKS`, then a line a request,
 *   `TIMESTAMP_MS INPUT_TOKENS SESSION HINT N ID1 .. IDN`. HINT: 0 not known, 1 the turn ends in a tool
 *   call, 2 it ends the turn, 3 it ends the session. A SESSION of 0 is not known. A line of no tokens with a HINT is a report
 *   about the chain that ends with ID1. Other lines that begin with # are comments.
 * - Mooncake: a JSON object a line with timestamp (ms), input_length, hash_ids (of 512-token blocks).
 * - Qwen-Bailian: the same with timestamp in seconds, hash_ids of 16-token blocks, chat_id,
 *   parent_chat_id (-1: none) and turn. A chat is a turn; those that follow one another are a session.
 *
 * A request's last block may be partial: only full ones are kept.
 */
#ifndef TERRACE_EVICTION_REPLAY_READ_H
#define TERRACE_EVICTION_REPLAY_READ_H

#include <stddef.h>

#include "eviction/trace.h"

/* The caller finishes *out (trace_fini) when OK. IO: cannot be read; CORRUPT: not xz inside, or a line
 * that is none of the forms; EXHAUSTED: no memory, or more than 4 GiB. Otherwise `why` (`why_bytes` long)
 * says what and where. */
enum status trace_read(const char *path, struct trace *out, char *why, size_t why_bytes);

/* Reads a trace from `bytes` bytes of text in memory, which are written to. Otherwise as trace_read. */
enum status trace_parse(char *text, size_t bytes, struct trace *out, char *why, size_t why_bytes);

#endif
