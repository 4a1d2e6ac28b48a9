/* What the commands of terracectl share: exit codes, the table of commands and their options, and the parsed command
 * line.
 *
 * One static table with a row for each command drives parsing and --help. A command gets arguments whose form was
 * checked (options known, values present); it checks numbers and their ranges itself. It prints its result on stdout
 * and its errors on stderr, and returns an exit code. Single-threaded.
 */
#ifndef TERRACE_CTL_CTL_H
#define TERRACE_CTL_CTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ctl_exit {
	CTL_OK = 0,
	CTL_FAILED = 1,	     /* the daemon refused, input or output failed */
	CTL_USAGE = 2,	     /* the command line makes no sense; nothing was done */
	CTL_NO = 3,	     /* the answer is no: a miss, not serving, not drained */
	CTL_DAMAGED = 4,     /* a block's checksum does not match */
	CTL_UNREACHABLE = 5, /* no daemon at the address, or no answer in time */
};

enum { CTL_OPTIONS_MAX = 8 };

struct ctl_option {
	const char *name;  /* without the dashes */
	const char *value; /* the name of its value in the help; NULL: a flag */
	const char *help;
};

struct ctl_args {
	const struct ctl_command *command;
	const char *address; /* NULL: the library's default */
	const char *tls_cert, *tls_key, *tls_ca, *tls_name; /* NULL each: the library's default */
	uint64_t timeout_us; /* 0: the command's default */
	bool json;
	const char *value[CTL_OPTIONS_MAX]; /* value of the command's option i; NULL: not given; "" for a flag that was
					     * given */
	char **words;			    /* the words that are not options */
	int word_count;
};

struct ctl_command {
	const char *name;
	const char *synopsis;			    /* behind the name */
	const char *summary;			    /* one line */
	const char *text;			    /* the man page's description */
	const char *exits;			    /* what the exit codes mean here */
	int words_min, words_max;		    /* max -1: any number */
	struct ctl_option options[CTL_OPTIONS_MAX]; /* ended by a NULL name if there are fewer */
	int (*run)(const struct ctl_args *args);
};

/* The commands, ended by a NULL name. */
extern const struct ctl_command ctl_commands[];

int ctl_run_status(const struct ctl_args *args);
int ctl_run_stat(const struct ctl_args *args);
int ctl_run_config(const struct ctl_args *args);
int ctl_run_peers(const struct ctl_args *args);
int ctl_run_layouts(const struct ctl_args *args);
int ctl_run_lookup(const struct ctl_args *args);
int ctl_run_locate(const struct ctl_args *args);
int ctl_run_inspect(const struct ctl_args *args);
int ctl_run_explain(const struct ctl_args *args);
int ctl_run_graph(const struct ctl_args *args);
int ctl_run_trace(const struct ctl_args *args);
int ctl_run_warm(const struct ctl_args *args);
int ctl_run_flush(const struct ctl_args *args);
int ctl_run_compact(const struct ctl_args *args);
int ctl_run_verify(const struct ctl_args *args);
int ctl_run_drain(const struct ctl_args *args);
int ctl_run_codec(const struct ctl_args *args);
int ctl_run_certs(const struct ctl_args *args);
int ctl_run_plan(const struct ctl_args *args);

#endif
