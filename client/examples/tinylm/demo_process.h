/* The demo's second engine: another process of this program that finds the first one's blocks. */
#ifndef TINYLM_DEMO_PROCESS_H
#define TINYLM_DEMO_PROCESS_H

#include "generate.h"
#include "options.h"

struct demo_second {
	long process;
	uint32_t reused;
	bool same; /* its tokens are the expected ones */
	double prefill_seconds;
};

/* Starts this program again as --demo-second, waits for it (at most two minutes) and compares its text. */
bool demo_process_run(const struct options *options, const char *salt, const struct generated *expected,
		      struct demo_second *out, struct fault *fault);

#endif
