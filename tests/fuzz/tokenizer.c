/* Any bytes as a tokenizer.json: refused, or the tokenizer encodes any text and decodes it back to the same bytes. */
#include <stdlib.h>
#include <string.h>

#include "client/examples/tinylm/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void round_trip(const struct tokenizer *t, const char *text, size_t bytes)
{
	struct fault fault = { 0 };
	uint32_t *ids;
	char *back;
	size_t count, back_bytes;

	if (!tokenizer_encode(t, text, bytes, &ids, &count, &fault))
		return;
	if (!tokenizer_decode(t, ids, count, &back, &back_bytes, &fault))
		abort();
	if (back_bytes != bytes || memcmp(back, text, bytes) != 0)
		abort();
	free(back);
	free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char text[] = "The kernel's  page cache\n\t\xff\xc3\xa9 42";
	struct tokenizer t;
	struct fault fault = { 0 };

	if (!tokenizer_parse((const char *)data, size, &t, &fault))
		return 0;
	round_trip(&t, text, sizeof(text) - 1);
	round_trip(&t, (const char *)data, size < 256 ? size : 256);
	tokenizer_free(&t);
	return 0;
}
