/* The sentence about a file that cannot be written because something is used up or not allowed: the cause, and what an
 * operator does about it. A leaf: any part may include it. */
#ifndef TERRACE_STORE_SHORTAGE_H
#define TERRACE_STORE_SHORTAGE_H

#include <stdbool.h>
#include <stddef.h>

/* The errnos of a write that finds no room: ENOSPC, EDQUOT, EFBIG. It may succeed later, when there is room again. */
bool shortage_is(int error);

/* For people, at most `bytes` of it: of a full file system, a quota, a limit on the size of files, a read-only file system: the cause and the
 * next step; of any other errno its text. Returns text. Any thread. */
const char *shortage_words(int error, char *text, size_t bytes);
enum { SHORTAGE_WORDS_MAX = 128 };

#endif
