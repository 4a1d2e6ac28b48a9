/* A model ready to run: what --generate and --demo share. */
#ifndef TINYLM_ENGINE_H
#define TINYLM_ENGINE_H

#include "forward.h"

struct engine {
	struct model model;
	struct workers workers;
	struct forward forward;
};

/* threads 0: one a CPU; chunk: tokens of a prefill step; context: positions of the longest sequence, 0 the model's.
 * Beyond those that it was trained with the arithmetic is the same, and the text is worth little. On the CPU, unless
 * forward.cuda is then set. */
bool engine_open(struct engine *e, const char *directory, uint32_t threads, uint32_t chunk, uint32_t context, struct fault *fault);

/* Closes an engine. Zeroed memory is fine. */
void engine_close(struct engine *e);

#endif
