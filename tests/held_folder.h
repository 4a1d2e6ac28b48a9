/* Folders of tests where many leave theirs (memory, above all), which tests/sweep.sh removes once they are nobody's: the process that made one,
 * and what it has started, hold it to their ends, however these come. */
#ifndef TERRACE_TESTS_HELD_FOLDER_H
#define TERRACE_TESTS_HELD_FOLDER_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>

/* A new folder in `base`: its name goes to path[size], of which base and 21 bytes are needed. */
static inline bool held_folder_make(const char *base, char *path, size_t size)
{
	const int n = snprintf(path, size, "%s/terrace-held-XXXXXX", base);
	int fd;

	if (n < 0 || (size_t)n >= size || !mkdtemp(path))
		return false;
	fd = open(path, O_RDONLY | O_DIRECTORY); /* held until the last process that has it is gone */
	return fd >= 0 && flock(fd, LOCK_SH) == 0;
}

#endif
