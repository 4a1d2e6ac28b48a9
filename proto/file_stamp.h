/* What tells that a file has changed: a rename over it, or a write. For files that are read again while a program
 * runs. Threads: any. */
#ifndef TERRACE_PROTO_FILE_STAMP_H
#define TERRACE_PROTO_FILE_STAMP_H

#include <stdbool.h>
#include <stdint.h>

struct stat;

/* All zeroes: there is no such file, or it cannot be reached. */
struct file_stamp {
	uint64_t device, inode, bytes;
	int64_t seconds, nanoseconds; /* of its last write */
};
void file_stamp_take(const char *path, struct file_stamp *out);
/* Of an open file, from what fstat says. */
void file_stamp_of(const struct stat *st, struct file_stamp *out);
bool file_stamp_same(const struct file_stamp *a, const struct file_stamp *b);

#endif
