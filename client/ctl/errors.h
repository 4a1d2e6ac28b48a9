/* What terracectl prints when something fails. Every sentence names the thing, then the cause, then, where the reader
 * can do something, the next step. As text it is one line on standard error, behind "terracectl: ". With --json it is
 * one JSON object a line, also on standard error, so that standard output has nothing but the result: {"error":
 * SENTENCE, "exit": CODE, "command": NAME, "usage": LINE, "status": NAME}. command is there if a command is known,
 * usage if the command line makes no sense, status if a call to the daemon failed.
 */
#ifndef TERRACE_CTL_ERRORS_H
#define TERRACE_CTL_ERRORS_H

#include "client/include/terrace.h"

struct ctl_command;

/* Has errors printed as JSON from now on. Called before any parsing, so that errors of the command line are JSON
 * too. */
void ctl_errors_as_json(void);
/* Sets the command that errors are about; NULL: none yet. */
void ctl_errors_of(const struct ctl_command *command);

/* Prints what is wrong with the command line, its right form, and where help is. Returns CTL_USAGE. */
int ctl_usage(const struct ctl_command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints what failed. Returns CTL_FAILED. */
int ctl_failed(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* As ctl_failed, with another exit code (client/ctl/ctl.h), which it returns: for an answer that is no, or a daemon
 * that is not there. */
int ctl_failed_with(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* As ctl_failed, for a call that ended with `status`. Returns CTL_UNREACHABLE if no daemon answered, else
 * CTL_FAILED. */
int ctl_failed_status(enum terrace_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
