/* Reader of the safetensors format: an 8-byte little-endian header length, a JSON header that gives each tensor's dtype,
 * shape and [begin, end) in the data, then the data. The file is not trusted: everything that a tensor's address and length
 * follow from is checked before it is handed out. */
#ifndef TINYLM_SAFETENSORS_H
#define TINYLM_SAFETENSORS_H

#include "fault.h"

#include <stddef.h>
#include <stdint.h>

enum { SAFETENSORS_DIMS_MAX = 8 };

enum safetensors_dtype {
	SAFETENSORS_BOOL,
	SAFETENSORS_U8,
	SAFETENSORS_I8,
	SAFETENSORS_F8_E5M2,
	SAFETENSORS_F8_E4M3,
	SAFETENSORS_U16,
	SAFETENSORS_I16,
	SAFETENSORS_F16,
	SAFETENSORS_BF16,
	SAFETENSORS_U32,
	SAFETENSORS_I32,
	SAFETENSORS_F32,
	SAFETENSORS_U64,
	SAFETENSORS_I64,
	SAFETENSORS_F64
};

struct safetensors_tensor {
	char *name;
	enum safetensors_dtype dtype;
	uint32_t dims;
	uint64_t shape[SAFETENSORS_DIMS_MAX];
	uint64_t begin, bytes; /* in the data */
	const void *data;      /* inside the buffer that was parsed; not necessarily aligned */
};

struct safetensors {
	struct safetensors_tensor *tensors; /* in order of begin */
	size_t count;
};

/* Parses a whole file of `size` bytes. The buffer must outlive *out. Refused: lengths that do not fit, JSON that is not
 * the format's, unknown dtypes, shapes whose product is not the tensor's bytes, overlaps and holes. On failure *out is empty. */
bool safetensors_parse(const void *data, size_t size, struct safetensors *out, struct fault *fault);

/* The tensor of that name, or NULL. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *st, const char *name);

/* "BF16". */
const char *safetensors_dtype_name(enum safetensors_dtype dtype);

/* Frees; zeroed memory is fine. */
void safetensors_free(struct safetensors *st);

#endif
