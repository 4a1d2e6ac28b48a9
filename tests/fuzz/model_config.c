/* Any bytes as a config.json: refused, or a model whose sizes the engine can trust. */
#include <stdlib.h>

#include "client/examples/tinylm/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct model_config c;
	struct fault fault = { 0 };

	if (model_config_parse((const char *)data, size, &c, &fault) &&
	    (c.kv_heads == 0 || c.q_heads % c.kv_heads != 0 || c.layers == 0 || c.vocab == 0))
		abort();
	return 0;
}
