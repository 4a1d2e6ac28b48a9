/* Opens a model with threads and buffers; see engine.h. */
#include "engine.h"

#include <string.h>

bool engine_open(struct engine *e, const char *directory, uint32_t threads, uint32_t chunk, uint32_t context, struct fault *fault)
{
	memset(e, 0, sizeof(*e));
	if (model_open(&e->model, directory, fault) && workers_init(&e->workers, threads, fault) &&
	    forward_init(&e->forward, &e->model, &e->workers, chunk, context ? context : e->model.config.positions_max, fault))
		return true;
	engine_close(e);
	return false;
}

void engine_close(struct engine *e)
{
	forward_fini(&e->forward);
	workers_fini(&e->workers);
	model_close(&e->model);
}
