/* See proto/file_stamp.h. */
#include "proto/file_stamp.h"

#include <string.h>
#include <sys/stat.h>

void file_stamp_of(const struct stat *st, struct file_stamp *out)
{
	*out = (struct file_stamp){
		.device = st->st_dev,
		.inode = st->st_ino,
		.bytes = (uint64_t)st->st_size,
		.seconds = st->st_mtim.tv_sec,
		.nanoseconds = st->st_mtim.tv_nsec,
	};
}

void file_stamp_take(const char *path, struct file_stamp *out)
{
	struct stat st;

	if (stat(path, &st))
		*out = (struct file_stamp){ .inode = 0 };
	else
		file_stamp_of(&st, out);
}

bool file_stamp_same(const struct file_stamp *a, const struct file_stamp *b)
{
	return !memcmp(a, b, sizeof *a);
}
