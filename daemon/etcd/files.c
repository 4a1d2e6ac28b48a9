/* Small files that are read anew at each connection, so that a renewed certificate or password needs no restart. */
#include "daemon/etcd/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *file_read(const char *path, size_t most, size_t *bytes, char *why, size_t why_size)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	char *text = fd < 0 ? NULL : malloc(most + 1);
	size_t n = 0;
	ssize_t got = fd < 0 ? -1 : 0;
	int error = fd < 0 ? errno : ENOMEM;

	while (text && n <= most && (got = read(fd, text + n, most + 1 - n)) > 0)
		n += (size_t)got;
	if (text && got < 0)
		error = errno;
	if (fd >= 0)
		close(fd);
	if (text && got >= 0 && n && n <= most) {
		text[n] = 0;
		*bytes = n;
		return text;
	}
	if (text && got >= 0)
		snprintf(why, why_size, "%.200s: it is %s", path,
			 n ? "too large to be the file that is meant" : "empty");
	else
		snprintf(why, why_size, "%.200s: %s", path, strerror(error));
	free(text);
	return NULL;
}
