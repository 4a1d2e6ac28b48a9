/* What is wrong with a configuration, and the form of its files: for the parts that read one without the whole struct
 * config. */
#ifndef TERRACE_DAEMON_PROCESS_CONFIG_ERRORS_H
#define TERRACE_DAEMON_PROCESS_CONFIG_ERRORS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { CONFIG_FILE_MAX = 1 << 20 };

/* What went wrong, a line each: `PLACE: sentence`. Lines beyond the room are counted, not kept. */
struct config_errors {
	uint32_t count, untold; /* untold: those that are not in the text */
	char text[4096];
};

/* Adds an error: one line. */
void config_complain(struct config_errors *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints the errors, and how many more there are. */
void config_errors_print(const struct config_errors *e, FILE *to);

/* The whole file, for free(). A pipe is read to its end. NULL: errno says why; ETIMEDOUT: nothing came from a pipe for
 * 5 s; EFBIG: it has more than CONFIG_FILE_MAX bytes. */
char *config_file_bytes(const char *path, size_t *n);
#define CONFIG_PIPE_IDLE "nothing came for 5 s: is it a pipe that is not written to?"

/* Reads `name = value` lines, n bytes of them, and hands each to `take`, NUL-terminated and without blanks at their
 * ends; or what is wrong with the line, with name and value NULL. Lines count from 1. */
typedef void config_take_fn(void *arg, unsigned line, const char *problem, const char *name, const char *value);
void config_lines(const char *bytes, size_t n, config_take_fn *take, void *arg);

#endif
