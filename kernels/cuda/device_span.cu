/* See device_span.h. */
#include "kernels/cuda/device_span.h"

#include <cstdlib>
#include <cstring>

namespace
{

constexpr uint32_t ROOM_MIN = 64;

/* How many begin at the address or before it. */
uint32_t before(const struct device_spans *s, uint64_t address)
{
	uint32_t low = 0, high = s->count;

	while (low < high) {
		const uint32_t middle = low + (high - low) / 2;

		if (s->spans[middle].begin <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

} // namespace

bool device_spans_add(struct device_spans *s, struct device_span span)
{
	const uint32_t at = before(s, span.begin);

	if (s->count == s->room) {
		const uint32_t room = s->room ? 2 * s->room : ROOM_MIN;
		struct device_span *spans = (struct device_span *)realloc(s->spans, room * sizeof *spans);

		if (!spans)
			return false;
		s->spans = spans;
		s->room = room;
	}
	memmove(&s->spans[at + 1], &s->spans[at], (s->count - at) * sizeof *s->spans);
	s->spans[at] = span;
	s->count++;
	return true;
}

void device_spans_remove(struct device_spans *s, struct device_span span)
{
	const uint32_t behind = before(s, span.begin);

	memmove(&s->spans[behind - 1], &s->spans[behind], (s->count - behind) * sizeof *s->spans);
	s->count--;
}

struct device_span device_spans_find(const struct device_spans *s, uint64_t address)
{
	const uint32_t n = before(s, address);

	return n && address < s->spans[n - 1].end ? s->spans[n - 1] : device_span{0, 0};
}

void device_spans_free(struct device_spans *s)
{
	free(s->spans);
}
