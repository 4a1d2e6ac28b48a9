/* The baseline of the lease and put benches: Redis on a Unix socket, spoken to by hand so that no client library is measured. */
#include "tests/bench/redis.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/bench.h"

enum { COMMAND_MAX = 64, HEAD_MAX = 32, START_MS = 10000 };

static void write_all(int fd, struct iovec *v, int n)
{
	while (n) {
		ssize_t done = writev(fd, v, n);

		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0)
			bench_die("redis: %s", strerror(errno));
		for (; n && (size_t)done >= v->iov_len; v++, n--)
			done -= (ssize_t)v->iov_len;
		if (n) {
			v->iov_base = (char *)v->iov_base + done;
			v->iov_len -= (size_t)done;
		}
	}
}

static void read_all(int fd, struct iovec *v, int n)
{
	while (n) {
		ssize_t done = readv(fd, v, n);

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			bench_die("redis: %s", done ? strerror(errno) : "the connection has ended");
		for (; n && (size_t)done >= v->iov_len; v++, n--)
			done -= (ssize_t)v->iov_len;
		if (n) {
			v->iov_base = (char *)v->iov_base + done;
			v->iov_len -= (size_t)done;
		}
	}
}

/* A reply whose every byte is known before. */
static void expect(int fd, const char *reply)
{
	char got[HEAD_MAX];
	size_t n = strlen(reply);

	read_all(fd, &(struct iovec){got, n}, 1);
	if (memcmp(got, reply, n))
		bench_die("redis answered '%.*s'", (int)n, got);
}

void redis_set(struct redis *r, uint32_t key, const void *value)
{
	char head[COMMAND_MAX];
	int n = snprintf(head, sizeof(head), "*3\r\n$3\r\nSET\r\n$8\r\n%08x\r\n$%zu\r\n", key,
			 r->value_bytes);
	struct iovec v[3] = {
		{head, (size_t)n}, {(void *)(uintptr_t)value, r->value_bytes}, {(char[]){"\r\n"}, 2}};

	write_all(r->fd, v, 3);
	expect(r->fd, "+OK\r\n");
}

static void send_get(struct redis *r, uint32_t key)
{
	char command[COMMAND_MAX];
	int n = snprintf(command, sizeof(command), "*2\r\n$3\r\nGET\r\n$8\r\n%08x\r\n", key);

	write_all(r->fd, &(struct iovec){command, (size_t)n}, 1);
}

void redis_get(struct redis *r, uint32_t first, uint32_t n, uint32_t ahead, void *value,
	       uint64_t (*take)(const void *, size_t))
{
	char head[HEAD_MAX], got[HEAD_MAX], tail[2];
	size_t head_bytes = (size_t)snprintf(head, sizeof(head), "$%zu\r\n", r->value_bytes);

	for (uint32_t i = 0; i < n && i < ahead; i++)
		send_get(r, first + i);
	for (uint32_t i = 0; i < n; i++) {
		struct iovec v[3] = {{got, head_bytes}, {value, r->value_bytes}, {tail, 2}};

		read_all(r->fd, v, 3);
		if (memcmp(got, head, head_bytes) || memcmp(tail, "\r\n", 2))
			bench_die("redis answered '%.*s'", (int)head_bytes, got);
		if (ahead < n - i)
			send_get(r, first + i + ahead);
		bench_keep(take(value, r->value_bytes));
	}
}

static int try_connect(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	close(fd);
	return -1;
}

bool redis_start(struct redis *r, size_t value_bytes)
{
	const struct timespec pause = {0, 1000000};
	char path[100];

	snprintf(path, sizeof(path), "%s/redis.sock", bench_options.folder);
	unlink(path);
	r->value_bytes = value_bytes;
	r->fd = -1;
	r->pid = bench_spawn("redis", (const char *const[]){bench_options.redis, "--unixsocket", path,
							    "--port", "0", "--save", "", "--appendonly", "no",
							    "--dir", bench_options.folder, NULL});
	for (int i = 0; i < START_MS && r->fd < 0; i++) {
		if (bench_ended(r->pid, "redis")) {
			fprintf(stderr,
				"terrace-bench: no baseline without redis-server (package redis-server)\n");
			return false;
		}
		r->fd = try_connect(path);
		nanosleep(&pause, NULL);
	}
	if (r->fd < 0)
		bench_die("redis-server did not start");
	write_all(r->fd, &(struct iovec){(char[]){"*1\r\n$4\r\nPING\r\n"}, 14}, 1);
	expect(r->fd, "+PONG\r\n");
	return true;
}

void redis_stop(struct redis *r)
{
	close(r->fd);
	bench_stop(r->pid);
}
