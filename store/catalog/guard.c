/* The guard before the catalog's file: the lock, the child that checks the file first, and the damaged files put aside.
 */
#include "store/catalog/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "store/catalog/catalog.h"
#include "store/crash_point.h"
#include "store/shortage.h"

extern char **environ;

static enum status io(char *why, size_t why_bytes, const char *folder, const char *what)
{
	char words[SHORTAGE_WORDS_MAX];

	snprintf(why, why_bytes, "catalog %s: %s: %s", folder, what, shortage_words(errno, words, sizeof(words)));
	return STATUS_IO;
}

static int folder_open(const char *folder)
{
	return open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

enum status catalog_guard_lock(const char *folder, int *fd, char *why, size_t why_bytes)
{
	int dir, lock;

	if (mkdir(folder, 0700) != 0 && errno != EEXIST)
		return io(why, why_bytes, folder, "cannot make the folder");
	dir = folder_open(folder);
	if (dir < 0)
		return io(why, why_bytes, folder, "cannot open the folder");
	lock = openat(dir, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	close(dir);
	if (lock < 0)
		return io(why, why_bytes, folder, "cannot open its lock");
	if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
		bool busy = errno == EWOULDBLOCK;

		io(why, why_bytes, folder, busy ? "another process has it" : "cannot lock it");
		close(lock);
		return busy ? STATUS_BUSY : STATUS_IO;
	}
	*fd = lock;
	return STATUS_OK;
}

enum status catalog_guard_present(const char *folder, char *why, size_t why_bytes)
{
	int dir = folder_open(folder), rc;
	struct stat st;

	if (dir < 0)
		return io(why, why_bytes, folder, "cannot open the folder");
	rc = fstatat(dir, "data.mdb", &st, AT_SYMLINK_NOFOLLOW);
	close(dir);
	if (rc != 0 && errno != ENOENT)
		return io(why, why_bytes, folder, "data.mdb");
	return rc != 0 || (S_ISREG(st.st_mode) && st.st_size == 0) ? STATUS_MISS : STATUS_OK;
}

/* ---- the child ---- */

static void child_by_fork(const char *folder, int word)
{
	static const int deadly[] = { SIGABRT, SIGBUS, SIGSEGV, SIGILL, SIGFPE, SIGTERM };

	/* Signal handlers of the parent do not concern the child. */
	for (size_t i = 0; i < sizeof(deadly) / sizeof(deadly[0]); i++)
		signal(deadly[i], SIG_DFL);
	if (dup2(word, STDERR_FILENO) < 0)
		_exit(CATALOG_UNKNOWN);
	_exit(catalog_check(folder));
}

static int child_by_spawn(const char *program, const char *folder, int word, pid_t *pid)
{
	char *argv[] = { (char *)(uintptr_t)program, "catalog-check", (char *)(uintptr_t)folder, NULL };
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	sigset_t none;
	int rc;

	sigemptyset(&none);
	posix_spawn_file_actions_init(&files);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
	rc = posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDWR, 0);
	if (rc == 0)
		rc = posix_spawn_file_actions_adddup2(&files, STDIN_FILENO, STDOUT_FILENO);
	if (rc == 0)
		rc = posix_spawn_file_actions_adddup2(&files, word, STDERR_FILENO);
	if (rc == 0)
		rc = posix_spawn(pid, program, &files, &attr, argv, environ);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&files);
	return rc;
}

static int child_start(const char *folder, const char *program, int word, pid_t *pid)
{
	if (program)
		return child_by_spawn(program, folder, word, pid);
	*pid = fork();
	if (*pid == 0)
		child_by_fork(folder, word);
	return *pid < 0 ? errno : 0;
}

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* Keeps the first non-empty line of the child's output and reads the rest away. True: at its end. False: the time is
 * over. */
static bool listen_until(int fd, int64_t deadline_ms, char *why, size_t why_bytes)
{
	char chunk[512];
	size_t kept = 0;
	bool first_line = true;

	for (;;) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		int64_t left = deadline_ms - now_ms();
		ssize_t n;

		if (left <= 0)
			return false;
		if (poll(&p, 1, left > INT_MAX ? INT_MAX : (int)left) <= 0)
			continue;
		n = read(fd, chunk, sizeof(chunk));
		if (n == 0 || (n < 0 && errno != EINTR))
			return true;
		for (ssize_t i = 0; i < n && first_line; i++) {
			first_line = chunk[i] != '\n' || kept == 0;
			if (chunk[i] != '\n' && kept + 1 < why_bytes)
				why[kept++] = chunk[i] >= ' ' && chunk[i] <= '~' ? chunk[i] : '?';
		}
		if (why_bytes > 0)
			why[kept] = 0;
	}
}

/* Waits for the child until the deadline, then kills it. False: its end could not be learned. */
static bool reap(pid_t pid, int64_t deadline_ms, int *how, bool *late)
{
	const struct timespec nap = { 0, 1000000 };
	pid_t got;

	*late = false;
	while ((got = waitpid(pid, how, WNOHANG)) == 0 && now_ms() < deadline_ms)
		nanosleep(&nap, NULL);
	if (got == 0) {
		*late = true;
		kill(pid, SIGKILL);
		do
			got = waitpid(pid, how, 0);
		while (got < 0 && errno == EINTR);
	}
	return got == pid;
}

static enum catalog_verdict verdict(int how, char *why, size_t why_bytes)
{
	int code = WIFEXITED(how) ? WEXITSTATUS(how) : -1;

	if (code == CATALOG_SOUND || code == CATALOG_NEWER || code == CATALOG_UNKNOWN)
		return (enum catalog_verdict)code;
	if (WIFSIGNALED(how) && why[0] == 0)
		snprintf(why, why_bytes, "catalog: the check died of it: %s", strsignal(WTERMSIG(how)));
	return code == 127 ? CATALOG_UNKNOWN : CATALOG_UNSOUND;
}

enum catalog_verdict catalog_guard_check(const char *folder, const char *child, uint32_t timeout_ms, char *why,
					 size_t why_bytes)
{
	int64_t deadline = now_ms() + timeout_ms;
	int word[2], how = 0, rc;
	bool late;
	pid_t pid;

	if (pipe2(word, O_CLOEXEC) != 0) {
		io(why, why_bytes, folder, "no pipe for the check");
		return CATALOG_UNKNOWN;
	}
	rc = child_start(folder, child, word[1], &pid);
	close(word[1]);
	if (rc != 0) {
		errno = rc;
		io(why, why_bytes, folder, "cannot start the check");
		close(word[0]);
		return CATALOG_UNKNOWN;
	}
	why[0] = 0;
	listen_until(word[0], deadline, why, why_bytes);
	close(word[0]);
	if (!reap(pid, deadline, &how, &late)) {
		io(why, why_bytes, folder, "the check is lost");
		return CATALOG_UNKNOWN;
	}
	if (late) {
		snprintf(why, why_bytes, "catalog: the check did not end within %u ms", timeout_ms);
		return CATALOG_UNSOUND;
	}
	return verdict(how, why, why_bytes);
}

/* ---- damaged ones ---- */

static void damaged_name(int n, char name[32])
{
	snprintf(name, 32, "damaged-%d.mdb", n);
}

/* A free number among the kept names; the oldest file is deleted if none is free. */
static int damaged_room(int dir)
{
	char from[32], to[32];
	struct stat st;

	for (int n = 1; n <= CATALOG_DAMAGED_KEPT; n++) {
		damaged_name(n, to);
		if (fstatat(dir, to, &st, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT)
			return n;
	}
	for (int n = 1; n < CATALOG_DAMAGED_KEPT; n++) {
		damaged_name(n + 1, from);
		damaged_name(n, to);
		renameat(dir, from, dir, to);
	}
	return CATALOG_DAMAGED_KEPT;
}

enum status catalog_guard_put_aside(const char *folder, char *why, size_t why_bytes)
{
	enum status s = STATUS_OK;
	int dir = folder_open(folder);
	char name[32];

	if (dir < 0)
		return io(why, why_bytes, folder, "cannot open the folder");
	damaged_name(damaged_room(dir), name);
	/* lock.mdb belongs to the old file: a process that still reads the old file must not count as a reader of the
	 * new one. */
	CRASH_POINT("aside_begin");
	unlinkat(dir, "lock.mdb", 0);
	CRASH_POINT("aside_rename");
	if (renameat(dir, "data.mdb", dir, name) != 0 || fsync(dir) != 0)
		s = io(why, why_bytes, folder, "cannot put the damaged file aside");
	CRASH_POINT("aside_done");
	close(dir);
	return s;
}
