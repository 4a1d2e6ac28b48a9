/* The three pipes are served by one poll loop, so that neither side can block the other. */
#include "tests/client/ctl/run.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS_MAX = 64, CHUNK = 65536, LIMIT_S = 60 };

struct sink {
	int fd;
	unsigned char *data;
	size_t bytes;
};

static pid_t spawn(const char *const *arguments, int in, int out, int err)
{
	char *words[WORDS_MAX + 2] = {(char *)TERRACECTL};
	pid_t parent = getpid(), pid;

	for (int i = 0; arguments[i]; i++) {
		ck_assert_int_lt(i, WORDS_MAX);
		words[i + 1] = (char *)arguments[i];
	}
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
		_exit(126);
	execv(TERRACECTL, words);
	_exit(127);
}

/* Takes what there is; closes at the end. */
static void sink_read(struct sink *s)
{
	ssize_t n;

	s->data = realloc(s->data, s->bytes + CHUNK + 1);
	ck_assert_ptr_nonnull(s->data);
	n = read(s->fd, s->data + s->bytes, CHUNK);
	if (n > 0) {
		s->bytes += (size_t)n;
	} else if (n == 0 || errno != EINTR) {
		close(s->fd);
		s->fd = -1;
	}
	s->data[s->bytes] = '\0';
}

static void feed(int *fd, const unsigned char *in, size_t bytes, size_t *at)
{
	ssize_t n = write(*fd, in + *at, bytes - *at);

	if (n > 0)
		*at += (size_t)n;
	if (*at == bytes || (n < 0 && errno != EINTR && errno != EAGAIN)) {
		close(*fd);
		*fd = -1;
	}
}

static void serve(int in_fd, const unsigned char *in, size_t in_bytes, struct sink *out, struct sink *err)
{
	time_t end = time(NULL) + LIMIT_S;
	size_t at = 0;

	fcntl(in_fd, F_SETFL, O_NONBLOCK);
	while ((in_fd >= 0 || out->fd >= 0 || err->fd >= 0) && time(NULL) < end) {
		struct pollfd p[] = {{in_fd, POLLOUT, 0}, {out->fd, POLLIN, 0}, {err->fd, POLLIN, 0}};

		poll(p, 3, 1000);
		if (p[0].revents)
			feed(&in_fd, in, in_bytes, &at);
		if (p[1].revents)
			sink_read(out);
		if (p[2].revents)
			sink_read(err);
	}
	if (in_fd >= 0)
		close(in_fd);
	if (out->fd >= 0)
		close(out->fd);
	if (err->fd >= 0)
		close(err->fd);
}

/* Its streams are closed: it is ending, or hangs. */
static int reap(pid_t pid)
{
	const struct timespec pause = {0, 5 * 1000 * 1000};
	time_t end = time(NULL) + LIMIT_S;
	int status;

	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (time(NULL) >= end)
			kill(pid, SIGKILL);
		nanosleep(&pause, NULL);
	}
	return status;
}

struct ctl_run ctl_run(const char *const *arguments, const void *in, size_t in_bytes)
{
	int in_pipe[2], out_pipe[2], err_pipe[2], status;
	struct sink out = {0}, err = {0};
	pid_t pid;

	signal(SIGPIPE, SIG_IGN);
	ck_assert_int_eq(pipe2(in_pipe, O_CLOEXEC), 0);
	ck_assert_int_eq(pipe2(out_pipe, O_CLOEXEC), 0);
	ck_assert_int_eq(pipe2(err_pipe, O_CLOEXEC), 0);
	pid = spawn(arguments, in_pipe[0], out_pipe[1], err_pipe[1]);
	close(in_pipe[0]);
	close(out_pipe[1]);
	close(err_pipe[1]);
	out.fd = out_pipe[0];
	err.fd = err_pipe[0];
	serve(in_pipe[1], in, in_bytes, &out, &err);
	status = reap(pid);
	return (struct ctl_run){
		.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
		.out = out.data,
		.out_bytes = out.bytes,
		.err = (char *)err.data,
	};
}

void ctl_run_free(struct ctl_run *run)
{
	free(run->out);
	free(run->err);
}
