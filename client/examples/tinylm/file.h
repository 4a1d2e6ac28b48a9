/* A whole file mapped read-only. */
#ifndef TINYLM_FILE_H
#define TINYLM_FILE_H

#include "fault.h"

#include <stddef.h>

struct file_map {
	const void *data; /* NULL when closed */
	size_t size;
};

/* Maps `directory/name`, or `name` alone if directory is NULL. Refuses what is not a regular file, is empty, or is larger than max_bytes. The file must not be
 * truncated while it is mapped. */
bool file_map_open(struct file_map *map, const char *directory, const char *name, size_t max_bytes, struct fault *fault);

/* Unmaps; zeroed memory is fine. */
void file_map_close(struct file_map *map);

#endif
