/* A model ready to run: what --generate and --demo share. */
#ifndef TINYLM_ENGINE_H
#define TINYLM_ENGINE_H

#include "forward.h"

struct engine {
	struct model model;
	struct workers workers;
	struct forward forward;
};

/* threads 0: one a CPU; chunk: tokens of a prefill step. On the CPU, unless forward.cuda is then set. */
bool engine_open(struct engine *e, const char *directory, uint32_t threads, uint32_t chunk, struct fault *fault);

/* Zeroed memory is fine. */
void engine_close(struct engine *e);

#endif
