/* UTF-8, a character at a time: for texts from outside that are written to the log or into a reply. */
#ifndef TERRACE_DAEMON_PROCESS_LOG_CHARACTER_H
#define TERRACE_DAEMON_PROCESS_LOG_CHARACTER_H

#include <stddef.h>
#include <stdint.h>

/* The character at p, and its length in UTF-8; the byte itself, and 1, where no character begins in its shortest form. */
uint32_t log_character(const unsigned char *p, size_t *length);

#endif
