/* See daemon/membership/node_id.h. Written aside, synced and renamed: a crash leaves none or a whole one. */
#include "daemon/membership/node_id.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { HEX = 2 * MEMBER_NODE_BYTES, PATH_BYTES = 640 };

static bool parse(const char *text, ssize_t n, uint8_t out[MEMBER_NODE_BYTES])
{
	static const char digits[] = "0123456789abcdef";

	if (n != HEX + 1 || text[HEX] != '\n')
		return false;
	for (int i = 0; i < HEX; i++) {
		const char *at = memchr(digits, text[i], 16);

		if (!at)
			return false;
		out[i / 2] = (uint8_t)(i % 2 ? out[i / 2] | (at - digits) : (at - digits) << 4);
	}
	return true;
}

/* Writes a new file aside and renames it. 0, or an errno. */
static int write_new(const char *path, const uint8_t node[MEMBER_NODE_BYTES])
{
	char aside[PATH_BYTES + 8], text[HEX + 2];
	int error = 0;

	for (int i = 0; i < MEMBER_NODE_BYTES; i++)
		snprintf(text + 2 * i, 3, "%02x", node[i]);
	text[HEX] = '\n';
	snprintf(aside, sizeof aside, "%s.new", path);
	const int fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	if (fd < 0)
		return errno;
	if (write(fd, text, HEX + 1) != HEX + 1 || fsync(fd))
		error = errno ? errno : EIO;
	close(fd);
	if (!error && rename(aside, path))
		error = errno;
	return error;
}

enum status node_id_read(const char *data_dir, uint8_t out[MEMBER_NODE_BYTES], char *why, size_t size)
{
	char path[PATH_BYTES], text[HEX + 2];
	int error;

	snprintf(path, sizeof path, "%.600s/node_id", data_dir);
	const int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 && errno == ENOENT) {
		if (getrandom(out, MEMBER_NODE_BYTES, 0) != MEMBER_NODE_BYTES)
			error = EIO;
		else
			error = write_new(path, out);
		if (!error)
			return STATUS_OK;
		snprintf(why, size, "cannot make %.600s: %s: make the folder writable, or give it room", path,
			 strerror(error));
		return STATUS_IO;
	}
	const ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text);

	error = errno;
	if (fd >= 0)
		close(fd);
	if (n < 0) {
		snprintf(why, size, "cannot read %.600s: %s", path, strerror(error));
		return STATUS_IO;
	}
	if (parse(text, n, out))
		return STATUS_OK;
	snprintf(why, size, "%.600s is not 32 hex digits and a line's end: delete it, and the daemon makes another",
		 path);
	return STATUS_CORRUPT;
}
