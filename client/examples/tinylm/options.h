/* The command line of tinylm. */
#ifndef TINYLM_OPTIONS_H
#define TINYLM_OPTIONS_H

#include "kvspec.h"

enum tinylm_mode { MODE_NONE, MODE_PPL, MODE_GENERATE, MODE_DEMO, MODE_DEMO_SECOND };

struct options {
	enum tinylm_mode mode;
	const char *model;
	const char *tokens;  /* file of held-out tokens; NULL: the model's val_tokens.u16 */
	const char *prompt;  /* "-": standard input */
	const char *address; /* of the daemon; NULL: none */
	const char *salt;
	struct kvspec formats[KVSPEC_LIST_MAX];
	uint32_t format_count; /* 0: not given */
	struct kvspec format;
	uint32_t window; /* 0: the model's context */
	uint32_t context; /* 0: the model's */
	uint32_t count, windows, demo_windows, block_tokens, chunk, threads;
	float temperature;
	uint64_t seed;
	bool cuda; /* --device */
	bool json;
};

/* Exit codes of the program. */
enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* Parses argv. Returns -1 to go on, or the exit code after --help (to stdout) or a complaint (to stderr). */
int options_parse(struct options *o, int argc, char **argv);

#endif
