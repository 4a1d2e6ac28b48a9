/* See process/data_dir_lock.h. The kernel drops the lock with the process, however it ends; the lock file itself
 * stays. */
#include "daemon/process/data_dir_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "store/shortage.h"

enum { PATH_BYTES = 4096, TURN_MS = 5000, TURN_LOOK_MS = 10 };

/* Makes the folders as mkdir -p does; the folders made get `mode` whatever the umask. */
static int make_folders(const char *path, mode_t mode)
{
	char part[PATH_BYTES];
	size_t n = strlen(path);

	if (n >= sizeof part) {
		errno = ENAMETOOLONG;
		return -1;
	}
	for (size_t i = 1; i <= n; i++) {
		if (path[i] != '/' && path[i])
			continue;
		memcpy(part, path, i);
		part[i] = 0;
		if (!mkdir(part, mode))
			chmod(part, mode);
		else if (errno != EEXIST)
			return -1;
	}
	return 0;
}

enum status data_dir_lock(const char *path, int *fd, char *why, size_t size)
{
	char file[PATH_BYTES], words[SHORTAGE_WORDS_MAX];

	if (make_folders(path, 0700)) {
		snprintf(why, size, "cannot make the data folder %s: %s: make it, or name another with data_dir", path, shortage_words(errno, words, sizeof words));
		return STATUS_IO;
	}
	if ((size_t)snprintf(file, sizeof file, "%s/lock", path) >= sizeof file) {
		snprintf(why, size, "the data folder %s: its name is too long: name another with data_dir", path);
		return STATUS_IO;
	}
	int lock = open(file, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

	if (lock < 0) {
		snprintf(why, size, "cannot open %s: %s: it must be a file of this user's, in the data folder (data_dir)", file,
			 shortage_words(errno, words, sizeof words));
		return STATUS_IO;
	}
	if (flock(lock, LOCK_EX | LOCK_NB)) {
		enum status s = errno == EWOULDBLOCK ? STATUS_BUSY : STATUS_IO;

		snprintf(why, size, s == STATUS_BUSY ? "another terraced uses the data folder %s: stop that one, or give this one another data_dir"
						: "cannot lock the data folder %s (data_dir): does its file system have locks?",
			 path);
		close(lock);
		return s;
	}
	*fd = lock;
	return STATUS_OK;
}

/* Whether a process answers at the socket. 1: yes; a listener whose backlog is full counts. 0: no. -1: it cannot be
 * told, and errno says why. */
static int is_answered(const char *path)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	const int types[] = { SOCK_STREAM, SOCK_SEQPACKET };

	strncpy(to.sun_path, path, sizeof to.sun_path - 1);
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
		int s = socket(AF_UNIX, types[i] | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error;

		if (s < 0)
			return -1;
		error = connect(s, (struct sockaddr *)&to, sizeof to) ? errno : 0;
		close(s);
		if (!error || error == EAGAIN)
			return 1;
		errno = error;
		if (error != ECONNREFUSED && error != EPROTOTYPE && error != ENOENT)
			return -1;
	}
	return 0;
}

/* Looks at a path for a socket. OK: nothing is there, or (*stale) a socket at which no daemon answers. */
static enum status path_look(const char *path, bool *stale, char *why, size_t size)
{
	struct stat st;

	*stale = false;
	if (lstat(path, &st)) {
		if (errno == ENOENT)
			return STATUS_OK;
		snprintf(why, size, "cannot look at %s: %s: name another place with socket or fd_socket", path, strerror(errno));
		return STATUS_IO;
	}
	if (!S_ISSOCK(st.st_mode)) {
		snprintf(why, size, "%s exists and is no socket: remove it, or name another place with socket or fd_socket", path);
		return STATUS_BUSY;
	}
	switch (is_answered(path)) {
	case 0:
		*stale = true;
		return STATUS_OK;
	case 1:
		snprintf(why, size, "another daemon answers at %s: stop that one, or give this one another socket", path);
		return STATUS_BUSY;
	default:
		snprintf(why, size, "cannot tell if a daemon answers at %s: %s: run as its user, or name another place with socket", path, strerror(errno));
		return STATUS_IO;
	}
}

enum status data_dir_lock_path(const char *path, char *why, size_t size)
{
	bool stale;
	const enum status s = path_look(path, &stale, why, size);

	if (s || !stale || !unlink(path) || errno == ENOENT)
		return s;
	snprintf(why, size, "cannot remove the stale socket %s: %s: remove it, or name another place with socket", path, strerror(errno));
	return STATUS_IO;
}

/* Opens and locks PATH.lock. -1, and errno EWOULDBLOCK: another process has it, or has just removed it. */
static int turn_try(const char *file)
{
	struct stat st;
	int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600), error;

	if (fd < 0)
		return -1;
	if (!flock(fd, LOCK_EX | LOCK_NB)) {
		if (!fstat(fd, &st) && st.st_nlink)
			return fd;
		errno = EWOULDBLOCK;
	}
	error = errno;
	close(fd);
	errno = error;
	return -1;
}

static enum status folder_of(const char *path, char *why, size_t size)
{
	char folder[PATH_BYTES], words[SHORTAGE_WORDS_MAX];
	const char *slash = strrchr(path, '/');

	snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) : 0, path);
	if (!folder[0] || !make_folders(folder, 0755))
		return STATUS_OK;
	snprintf(why, size, "cannot make the folder %s: %s: make it, or name another place with socket", folder, shortage_words(errno, words, sizeof words));
	return STATUS_IO;
}

enum status data_dir_lock_turn(const char *path, int *turn, char *why, size_t size)
{
	const struct timespec look = { .tv_nsec = TURN_LOOK_MS * 1000000l };
	char file[PATH_BYTES], words[SHORTAGE_WORDS_MAX];
	int fd;

	if (folder_of(path, why, size))
		return STATUS_IO;
	snprintf(file, sizeof file, "%s.lock", path);
	for (int ms = 0; (fd = turn_try(file)) < 0 && errno == EWOULDBLOCK && ms < TURN_MS; ms += TURN_LOOK_MS)
		nanosleep(&look, NULL);
	if (fd >= 0) {
		*turn = fd;
		return STATUS_OK;
	}
	if (errno == EWOULDBLOCK) {
		snprintf(why, size, "another daemon that starts or ends keeps %s locked: try again", file);
		return STATUS_BUSY;
	}
	snprintf(why, size, "cannot lock %s: %s", file, shortage_words(errno, words, sizeof words));
	return STATUS_IO;
}

void data_dir_lock_turn_end(const char *path, int turn)
{
	char file[PATH_BYTES];

	if (turn < 0)
		return;
	snprintf(file, sizeof file, "%s.lock", path);
	unlink(file);
	close(turn);
}

enum status data_dir_lock_socket(const char *path, char *why, size_t size)
{
	bool stale;
	int turn;
	enum status s = path_look(path, &stale, why, size); /* before the lock: a user without rights to that is told of the daemon that answers */

	if (s || !stale)
		return s ? s : folder_of(path, why, size);
	s = data_dir_lock_turn(path, &turn, why, size);
	if (s)
		return s;
	s = data_dir_lock_path(path, why, size);
	data_dir_lock_turn_end(path, turn);
	return s;
}
