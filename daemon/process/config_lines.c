/* The lines of a configuration file. See process/config_errors.h. Comments are lines that begin with # or ;, and what
 * stands behind a blank and a ;. */
#include "daemon/process/config_errors.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 1024, FILE_WAIT_MS = 5000 };

/* ---- the file ---- */

/* A pipe may have nothing yet. */
static ssize_t read_some(int fd, char *to, size_t n)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	if (poll(&p, 1, FILE_WAIT_MS))
		return read(fd, to, n);
	errno = ETIMEDOUT;
	return -1;
}

/* NULL, and errno: it cannot be read. */
static char *bytes_from(int fd, size_t *n)
{
	char *bytes = malloc(CONFIG_FILE_MAX + 1);
	ssize_t got = bytes ? 1 : -1;
	int error;

	for (*n = 0; got > 0 && *n <= CONFIG_FILE_MAX; *n += got > 0 ? (size_t)got : 0)
		got = read_some(fd, bytes + *n, CONFIG_FILE_MAX + 1 - *n);
	if (got >= 0 && *n <= CONFIG_FILE_MAX)
		return bytes;
	error = got < 0 ? errno : EFBIG;
	free(bytes);
	errno = error;
	return NULL;
}

char *config_file_bytes(const char *path, size_t *n)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	char *bytes = fd < 0 ? NULL : bytes_from(fd, n);
	const int error = errno;

	if (fd >= 0)
		close(fd);
	errno = error;
	return bytes;
}

/* ---- lines ---- */

static bool is_blank(char c)
{
	return c && strchr(" \t\r\v\f", c);
}

/* Takes the blanks from both ends of n bytes. */
static const char *strip(const char *at, size_t *n)
{
	for (; *n && is_blank(*at); at++)
		--*n;
	while (*n && is_blank(at[*n - 1]))
		--*n;
	return at;
}

static size_t before_comment(const char *line, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (line[i] == ';' && (!i || is_blank(line[i - 1])))
			return i;
	return n;
}

static void take_line(const char *at, size_t n, unsigned line, config_take_fn *take, void *arg)
{
	char pair[LINE_MAX_BYTES];
	const char *value;
	size_t name = 0;

	if (memchr(at, 0, n)) {
		take(arg, line, "the line has a NUL byte: a configuration is text", NULL, NULL);
		return;
	}
	at = strip(at, &n);
	if (!n || *at == '#')
		return;
	n = before_comment(at, n);
	at = strip(at, &n);
	if (!n)
		return;
	while (name < n && at[name] != '=' && at[name] != ':')
		name++;
	if (*at == '[' || name == n || n >= sizeof pair) {
		take(arg, line, *at == '[' ? "sections are not used: leave the line out" : name == n ? "not of the form name = value" : "the line is too long: at most 1023 bytes", NULL, NULL);
		return;
	}
	n -= name + 1;
	value = strip(at + name + 1, &n);
	at = strip(at, &name);
	snprintf(pair, sizeof pair, "%.*s%c%.*s", (int)name, at, 0, (int)n, value);
	take(arg, line, NULL, pair, pair + name + 1);
}

void config_lines(const char *bytes, size_t n, config_take_fn *take, void *arg)
{
	static const char mark[] = "\xef\xbb\xbf"; /* of UTF-8, as some editors begin a file */
	const char *at = bytes, *const end = bytes + n;

	if (n >= sizeof mark - 1 && !memcmp(bytes, mark, sizeof mark - 1))
		at += sizeof mark - 1;
	for (unsigned line = 1; at < end; line++) {
		const char *newline = memchr(at, '\n', (size_t)(end - at)), *stop = newline ? newline : end;

		take_line(at, (size_t)(stop - at), line, take, arg);
		at = newline ? newline + 1 : end;
	}
}
