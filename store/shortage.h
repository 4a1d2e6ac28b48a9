/* The sentence for people about a file that cannot be written because a resource is used up or the file system is
 * read-only: the cause, and what an operator can do. A leaf: any part may include it.
 */
#ifndef TERRACE_STORE_SHORTAGE_H
#define TERRACE_STORE_SHORTAGE_H

#include <stdbool.h>
#include <stddef.h>

/* The errnos of a write that finds no room: ENOSPC, EDQUOT, EFBIG. It may succeed later, when there is room again. */
bool shortage_is(int error);

/* Writes a sentence for people into `text`, at most `bytes` of it, and returns text. For a full file system, a quota, a
 * limit on file sizes and a read-only file system it has the cause and the next step. For any other errno it is the
 * errno's text. Any thread. */
const char *shortage_words(int error, char *text, size_t bytes);
enum { SHORTAGE_WORDS_MAX = 128 };

#endif
