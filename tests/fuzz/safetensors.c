/* Any bytes as a safetensors file: refused, or every tensor lies inside the buffer. */
#include <stdint.h>
#include <stdlib.h>

#include "client/examples/tinylm/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct safetensors file;
	struct fault fault = { 0 };

	if (!safetensors_parse(data, size, &file, &fault))
		return 0;
	for (size_t i = 0; i < file.count; i++) {
		const struct safetensors_tensor *t = &file.tensors[i];
		const uint8_t *at = t->data;

		if (t->bytes > 0 && (at < data || t->bytes > size || at > data + size - t->bytes))
			abort();
		if (safetensors_find(&file, t->name) == NULL)
			abort();
	}
	safetensors_free(&file);
	return 0;
}
