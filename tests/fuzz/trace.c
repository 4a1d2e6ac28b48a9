/* Any bytes as a request trace: refused with words, or a trace that can be freed. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "eviction/replay/read.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct trace trace;
	char why[256] = "";
	char *text = malloc(size);

	if (text == NULL && size > 0)
		return 0;
	memcpy(text, data, size);
	if (trace_parse(text, size, &trace, why, sizeof why) == STATUS_OK)
		trace_fini(&trace);
	else if (why[0] == 0)
		abort();
	free(text);
	return 0;
}
