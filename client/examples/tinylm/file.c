/* Read-only mapping of a model's files; see file.h. */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool map_descriptor(struct file_map *map, int fd, const char *path, size_t max_bytes, struct fault *fault)
{
	struct stat st;
	void *data;

	if (fstat(fd, &st) != 0)
		return fault_set(fault, "%s: %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return fault_set(fault, "%s: not a regular file", path);
	if (st.st_size == 0)
		return fault_set(fault, "%s: the file is empty", path);
	if ((uint64_t)st.st_size > max_bytes)
		return fault_set(fault, "%s: %lld bytes, at most %zu are taken", path, (long long)st.st_size, max_bytes);
	data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (data == MAP_FAILED)
		return fault_set(fault, "%s: cannot map: %s", path, strerror(errno));
	map->data = data;
	map->size = (size_t)st.st_size;
	return true;
}

bool file_map_open(struct file_map *map, const char *directory, const char *name, size_t max_bytes, struct fault *fault)
{
	char path[4096];
	bool ok;
	int fd;

	map->data = NULL;
	map->size = 0;
	if (snprintf(path, sizeof(path), "%s%s%s", directory ? directory : "", directory ? "/" : "", name) >=
	    (int)sizeof(path))
		return fault_set(fault, "the path of %s is too long", name);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO in its place must not hang us */
	if (fd < 0)
		return fault_set(fault, "%s: %s", path, strerror(errno));
	ok = map_descriptor(map, fd, path, max_bytes, fault);
	close(fd);
	return ok;
}

void file_map_close(struct file_map *map)
{
	if (map->data)
		munmap((void *)map->data, map->size);
	map->data = NULL;
	map->size = 0;
}
