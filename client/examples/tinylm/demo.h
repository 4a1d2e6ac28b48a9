/* tinylm --demo: what Terrace is for, shown with a real model against a live daemon. */
#ifndef TINYLM_DEMO_H
#define TINYLM_DEMO_H

#include "options.h"

/* Runs the demo and prints it. Returns the exit code: EXIT_FAILED also when something the demo promises does not hold. */
int demo_run(const struct options *options);

/* The second engine process of the demo: runs prompt B out of the blocks the first one left, prints one JSON object. */
int demo_second(const struct options *options);

#endif
