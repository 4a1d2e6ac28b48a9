/* The command line: from argv to struct ctl_args. */
#ifndef TERRACE_CTL_ARGS_H
#define TERRACE_CTL_ARGS_H

struct ctl_args;

/* Parses argv. -1: *args is filled in, and its command is to be run. Otherwise an exit code: help or the version was
 * printed (CTL_OK), or the line makes no sense and stderr says why (CTL_USAGE). args->words points into argv, whose
 * order may change. */
int ctl_args_parse(int argc, char **argv, struct ctl_args *args);

#endif
