/* The addresses at which the device's work reaches extents and host memory: pieces of address space that do not
 * overlap, by rising address. A node has thousands of pieces, and each list looks up some. Inside libterrace_cuda.
 */
#ifndef TERRACE_KERNELS_CUDA_DEVICE_SPAN_H
#define TERRACE_KERNELS_CUDA_DEVICE_SPAN_H

#include <stdint.h>

struct device_span {
	uint64_t begin, end;
	bool host = false; /* memory of the host's, not an extent */
};

/* All zero: no pieces. Its owner locks it. */
struct device_spans {
	struct device_span *spans;
	uint32_t count, room;
};

/* False: no memory. */
bool device_spans_add(struct device_spans *s, struct device_span span);
/* One that was added. */
void device_spans_remove(struct device_spans *s, struct device_span span);
/* The one with the address; 0, 0: none. */
struct device_span device_spans_find(const struct device_spans *s, uint64_t address);
void device_spans_free(struct device_spans *s);

#endif
