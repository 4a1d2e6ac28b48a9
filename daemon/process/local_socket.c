/* See process/local_socket.h. */
#include "daemon/process/local_socket.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/process/data_dir_lock.h"
#include "store/shortage.h"

/* Binds the path. The umask gives the path its mode from its first moment. */
static bool bind_at(struct local_socket *s, const struct sockaddr_un *at, unsigned mode)
{
	const mode_t mask = umask(~(mode_t)mode & 0777);
	const bool bound = !bind(s->fd, (const struct sockaddr *)at, sizeof *at);
	struct stat st;

	umask(mask);
	if (!bound || lstat(at->sun_path, &st))
		return false;
	strcpy(s->path, at->sun_path);
	s->device = st.st_dev;
	s->inode = st.st_ino;
	return true;
}

static enum status listen_at(struct local_socket *s, const char *path, int type, unsigned mode, int backlog, char *why, size_t size)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	char words[SHORTAGE_WORDS_MAX];

	strcpy(at.sun_path, path);
	s->fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (s->fd >= 0 && bind_at(s, &at, mode) && !listen(s->fd, backlog))
		return STATUS_OK;
	snprintf(why, size, "cannot listen on %s: %s: name another place for this socket in the configuration", path, shortage_words(errno, words, sizeof words));
	if (s->path[0])
		unlink(s->path);
	if (s->fd >= 0)
		close(s->fd);
	*s = LOCAL_SOCKET_NONE;
	return STATUS_IO;
}

enum status local_socket_open(struct local_socket *s, const char *path, int type, unsigned mode, int backlog, char *why, size_t size)
{
	enum status status;
	int turn;

	*s = LOCAL_SOCKET_NONE;
	if (strlen(path) >= sizeof s->path) {
		snprintf(why, size, "%s: its name is too long for a socket: name a shorter place", path);
		return STATUS_IO;
	}
	status = data_dir_lock_turn(path, &turn, why, size);
	if (status)
		return status;
	status = data_dir_lock_path(path, why, size);
	if (status == STATUS_OK)
		status = listen_at(s, path, type, mode, backlog, why, size);
	data_dir_lock_turn_end(path, turn);
	return status;
}

/* Whether the path is still this socket's. The open socket keeps its inode, so that no other file has got the
 * number. */
static bool is_own(const struct local_socket *s)
{
	struct stat st;

	return !lstat(s->path, &st) && st.st_dev == s->device && st.st_ino == s->inode;
}

/* Removes the path in a turn, or without one if the lock cannot be made, as on a full file system. The socket still
 * answers, so a daemon that starts leaves it. */
void local_socket_remove(struct local_socket *s)
{
	char why[DATA_DIR_LOCK_WHY_MAX];
	int turn = -1;

	if (s->path[0] && is_own(s)) {
		(void)data_dir_lock_turn(s->path, &turn, why, sizeof why);
		if (is_own(s))
			unlink(s->path);
		data_dir_lock_turn_end(s->path, turn);
	}
	s->path[0] = 0;
}

void local_socket_close(struct local_socket *s)
{
	local_socket_remove(s);
	if (s->fd >= 0)
		close(s->fd);
	s->fd = -1;
}
