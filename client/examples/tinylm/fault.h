/* What went wrong, in words for the person at the terminal. Every function of this example that can fail returns bool
 * and fills a fault; the message names the file or the field concerned and has no newline. */
#ifndef TINYLM_FAULT_H
#define TINYLM_FAULT_H

#include <stdbool.h>

struct fault {
	char text[400];
};

/* Writes the message, cut if it is too long. */
void fault_write(struct fault *fault, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Writes the message and is false, so that a check is one line: `return fault_set(fault, "...")`. A macro, so that
 * compilers see that it is always false. */
#define fault_set(...) (fault_write(__VA_ARGS__), false)

/* Puts "prefix: " before the message that is there; returns false. */
bool fault_prefix(struct fault *fault, const char *prefix);

#endif
