/* Where memory lies (kernels/cuda/device_span.h) beside a list that is gone through from the front: pieces come and go at places of chance, and
 * every place is asked for. */
#include "kernels/cuda/device_span.h"

#include <cstdio>
#include <cstdlib>

namespace
{

constexpr uint32_t PLACES = 512, STEPS = 20000;
constexpr uint64_t APART = 1 << 20, BASE = (uint64_t)1 << 40;

uint64_t seed = 41;

uint64_t chance(uint64_t n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (seed >> 33) % n;
}

void expect(bool is, const char *what, uint32_t step)
{
	if (is)
		return;
	fprintf(stderr, "device_span: step %u: %s\n", step, what);
	exit(1);
}

} // namespace

int main()
{
	struct device_span there[PLACES] = {};
	struct device_spans spans = {};

	for (uint32_t step = 0; step < STEPS; step++) {
		const uint32_t place = (uint32_t)chance(PLACES);
		const uint64_t begin = BASE + place * APART;
		struct device_span *span = &there[place];

		if (span->end) {
			device_spans_remove(&spans, *span);
			*span = {};
		} else {
			*span = {begin, begin + (chance(4) ? APART : 1 + chance(APART))};
			expect(device_spans_add(&spans, *span), "no memory", step);
		}

		const uint32_t asked = (uint32_t)chance(PLACES);
		const uint64_t offset = chance(3) ? chance(APART) : chance(2) ? 0 : APART - 1, address = BASE + asked * APART + offset;
		const struct device_span is = there[asked], found = device_spans_find(&spans, address);

		if (is.end && address < is.end)
			expect(found.begin == is.begin && found.end == is.end, "the wrong one, or none", step);
		else
			expect(!found.begin && !found.end, "one that is not there", step);
	}
	expect(!device_spans_find(&spans, BASE - 1).end && !device_spans_find(&spans, UINT64_MAX).end, "one beyond all", STEPS);
	device_spans_free(&spans);
	return 0;
}
