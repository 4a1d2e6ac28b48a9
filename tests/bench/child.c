/* The processes a bench starts, and its temporary folder: both go away with it. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/bench.h"

enum { CHILDREN_MAX = 16, STOP_MS = 10000, WAIT_MS = 10 };

static pid_t children[CHILDREN_MAX]; /* 0: free */
static pid_t owner;		     /* whose exit cleans up: not that of a child between fork and exec */

static int remove_entry(const char *path, const struct stat *s, int type, struct FTW *ftw)
{
	(void)s;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void clean_up(void)
{
	if (getpid() != owner)
		return;
	for (int i = 0; i < CHILDREN_MAX; i++)
		if (children[i])
			bench_stop(children[i]);
	nftw(bench_options.folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* Only what a handler may call: another program removes the folder. */
static void on_signal(int number)
{
	for (int i = 0; i < CHILDREN_MAX; i++)
		if (children[i])
			kill(children[i], SIGKILL);
	if (fork() == 0)
		execl("/bin/rm", "rm", "-rf", "--", bench_options.folder, (char *)NULL);
	_exit(128 + number);
}

void bench_folder_make(void)
{
	const char *base = getenv("TMPDIR");

	if (!base || strlen(base) > 30) /* a socket's path is short */
		base = "/tmp";
	snprintf(bench_options.folder, sizeof(bench_options.folder), "%s/terrace-bench-XXXXXX", base);
	if (!mkdtemp(bench_options.folder)) {
		fprintf(stderr, "terrace-bench: %s: %s\n", bench_options.folder, strerror(errno));
		exit(1);
	}
	owner = getpid();
	atexit(clean_up);
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
}

void bench_die(const char *format, ...)
{
	va_list list;

	fprintf(stderr, "terrace-bench: ");
	va_start(list, format);
	vfprintf(stderr, format, list);
	va_end(list);
	fputc('\n', stderr);
	exit(1);
}

static void child_exec(const char *log, const char *const *arguments, pid_t parent)
{
	int fd = open(log, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGINT, SIG_IGN); /* the parent stops it */
	if (getppid() != parent || fd < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
		_exit(126);
	execvp(arguments[0], (char *const *)(uintptr_t)arguments);
	dprintf(2, "%s: %s\n", arguments[0], strerror(errno));
	_exit(127);
}

void bench_log_path(const char *name, char *path, size_t bytes)
{
	snprintf(path, bytes, "%s/%s.log", bench_options.folder, name);
}

int bench_spawn(const char *name, const char *const *arguments)
{
	pid_t parent = getpid(), pid;
	char log[128];
	int i = 0;

	while (i < CHILDREN_MAX && children[i])
		i++;
	if (i == CHILDREN_MAX)
		bench_die("too many children");
	bench_log_path(name, log, sizeof(log));
	pid = fork();
	if (pid < 0)
		bench_die("fork: %s", strerror(errno));
	if (pid == 0)
		child_exec(log, arguments, parent);
	children[i] = pid;
	return pid;
}

static void forget(int pid)
{
	for (int i = 0; i < CHILDREN_MAX; i++)
		if (children[i] == pid)
			children[i] = 0;
}

void bench_stop(int pid)
{
	const struct timespec pause = {0, 1000000};

	kill(pid, SIGTERM);
	for (int i = 0; i < STOP_MS; i++) {
		if (waitpid(pid, NULL, WNOHANG) != 0) {
			forget(pid);
			return;
		}
		nanosleep(&pause, NULL);
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	forget(pid);
}

void bench_wait(int pid)
{
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
}

int bench_wait_for(int pid, unsigned seconds)
{
	const struct timespec pause = {0, WAIT_MS * 1000000};
	int status = 0;

	for (unsigned i = 0; waitpid(pid, &status, WNOHANG) == 0; i++) {
		if (i == seconds * (1000 / WAIT_MS))
			bench_die("a program that was started has no end within %u s", seconds);
		nanosleep(&pause, NULL);
	}
	forget(pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

uint64_t bench_work_ns(int pid)
{
	clockid_t clock = CLOCK_PROCESS_CPUTIME_ID;
	struct timespec t;

	if ((pid && clock_getcpuclockid(pid, &clock)) || clock_gettime(clock, &t))
		bench_die("a process's time is not known: has it ended?");
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

void bench_log_print(const char *name)
{
	char path[128], text[4096];
	ssize_t n = 0;
	int fd;

	bench_log_path(name, path, sizeof(path));
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		off_t end = lseek(fd, 0, SEEK_END);

		n = pread(fd, text, sizeof(text) - 1,
			  end > (off_t)sizeof(text) ? end - (off_t)sizeof(text) + 1 : 0);
		close(fd);
	}
	text[n > 0 ? n : 0] = '\0';
	fprintf(stderr, "%s\n", text);
}

bool bench_ended(int pid, const char *name)
{
	if (waitpid(pid, NULL, WNOHANG) == 0)
		return false;
	forget(pid);
	fprintf(stderr, "terrace-bench: %s has ended:\n", name);
	bench_log_print(name);
	return true;
}
