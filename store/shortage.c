/* See shortage.h. */
#include "store/shortage.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct {
	int error;
	const char *cause, *step;
} shortages[] = {
	{ ENOSPC, "the file system is full", "free room there" },
	{ EDQUOT, "the quota is used up", "free room there, or raise the quota" },
	{ EFBIG, "a file may not be that large", "raise the limit on file sizes (ulimit -f, LimitFSIZE)" },
	{ EROFS, "the file system is read-only", "mount it for writing" },
};

bool shortage_is(int error)
{
	return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

const char *shortage_words(int error, char *text, size_t bytes)
{
	char room[64];
	const char *plain = strerror_r(error, room, sizeof(room));

	for (size_t i = 0; i < sizeof(shortages) / sizeof(shortages[0]); i++) {
		if (shortages[i].error != error)
			continue;
		snprintf(text, bytes, "%s (%s): %s", shortages[i].cause, plain, shortages[i].step);
		return text;
	}
	snprintf(text, bytes, "%s", plain);
	return text;
}
