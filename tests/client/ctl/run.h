/* Runs terracectl as a child with its three standard streams on pipes, for the tests of the tool. */
#ifndef TERRACE_TESTS_CLIENT_CTL_RUN_H
#define TERRACE_TESTS_CLIENT_CTL_RUN_H

#include <stddef.h>

struct ctl_run {
	int code;	    /* exit code; -1: ended by a signal, or after 60 s */
	unsigned char *out; /* bytes, and a NUL behind them */
	size_t out_bytes;
	char *err;
};

/* arguments: without the program's name, ended by NULL. Fails the Check test if the program cannot be run. */
struct ctl_run ctl_run(const char *const *arguments, const void *in, size_t in_bytes);
void ctl_run_free(struct ctl_run *run);

/* ctl_run over the listed words, with no input. */
#define CTL_RUN(...) ctl_run((const char *const[]){__VA_ARGS__, NULL}, NULL, 0)

#endif
