/* What terracectl says when something fails. Every sentence names the thing, then the cause, then, where the reader can do something, the next
 * step. As text it is one line on standard error, behind "terracectl: ". With --json it is one JSON object a line, on standard error too, so that
 * standard output has nothing but the result: {"error": SENTENCE, "exit": CODE, "command": NAME, "usage": LINE, "status": NAME}. The last three
 * are there where there is a command, where its line makes no sense, and where a call to the daemon failed. */
#ifndef TERRACE_CTL_ERRORS_H
#define TERRACE_CTL_ERRORS_H

#include "client/include/terrace.h"

struct ctl_command;

/* From now on errors are JSON. To be called before anything is parsed, so that errors of the command line are, too. */
void ctl_errors_as_json(void);
/* The command that errors are about; NULL: none yet. */
void ctl_errors_of(const struct ctl_command *command);

/* Says what is wrong with the command line, how it should look and where help is. Returns CTL_USAGE. */
int ctl_usage(const struct ctl_command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Says what failed. Returns CTL_FAILED. */
int ctl_failed(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same with another exit code (client/ctl/ctl.h), which is returned: an answer that is no, or a daemon that is not there. */
int ctl_failed_with(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same of a call that ended with `status`. Returns CTL_UNREACHABLE if no daemon answered, else CTL_FAILED. */
int ctl_failed_status(enum terrace_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
