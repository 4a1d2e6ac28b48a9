/* See daemon/local/socket_rig.h. */
#include "tests/daemon/local/socket_rig.h"

#include "daemon/local/socket.h"
#include "daemon/process/daemon.h"
#include "daemon/process/log.h"
#include "daemon/process/part.h"
#include "daemon/threads/pool.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

struct shell shell;
struct fd_socket *fd_socket;

void fd_socket_rig_open(const struct device_ops *ops)
{
	char why[256] = "";

	shell_open_all(&shell, NULL, ops);
	log_setup(LOG_WARN, LOG_LOGFMT);
	ck_assert_int_eq(workers_create(1, 4, &shell.daemon.workers), STATUS_OK);
	ck_assert_msg(fd_socket_create(&shell.daemon, shell.config.fd_socket, 0600, FD_SOCKET_CONNECTIONS, &fd_socket,
	    why, sizeof why) == STATUS_OK, "%s", why);
}

void fd_socket_rig_close(void)
{
	fd_socket_part.destroy(fd_socket);
	workers_destroy(shell.daemon.workers);
	ck_assert_int_ne(access(shell.config.fd_socket, F_OK), 0);
	shell_close(&shell);
}

int dial(void)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	strcpy(to.sun_path, shell.config.fd_socket);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	return fd;
}

ssize_t hear_two(int fd, void *packet, size_t size, int *got)
{
	char room[CMSG_SPACE(2 * sizeof(int))];
	struct iovec iov = { packet, size };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room };
	struct pollfd p = { fd, POLLIN, 0 };

	ck_assert_int_eq(poll(&p, 1, NET_S * 1000), 1);
	ssize_t n = recvmsg(fd, &m, 0);
	struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&m);

	got[0] = got[1] = -1;
	if (c)
		memcpy(got, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
	return n < 0 && errno == ECONNRESET ? 0 : n;
}

ssize_t hear(int fd, void *packet, size_t size, int *got)
{
	int two[2];
	ssize_t n = hear_two(fd, packet, size, two);

	ck_assert_int_eq(two[1], -1);
	if (got)
		*got = two[0];
	return n;
}

int greet_any(struct fdsock_welcome *w)
{
	struct fdsock_hello h = { HEAD(FDSOCK_HELLO), { 0 } };
	int fd = dial();

	memcpy(h.token, shell.session.token, sizeof h.token);
	ck_assert_int_eq(send(fd, &h, sizeof h, 0), sizeof h);
	ck_assert_int_eq(hear(fd, w, sizeof *w, NULL), sizeof *w);
	return fd;
}

int greet(struct fdsock_welcome *w)
{
	int fd = greet_any(w);

	ck_assert_uint_eq(w->status, STATUS_OK);
	return fd;
}

double stat_of(const char *name)
{
	struct shell_stat w = { name, "", -1 };

	fd_socket_part.stats(fd_socket, shell_find_stat, &w);
	return w.value;
}

void until(const char *name, double value)
{
	const uint64_t end = daemon_now_us() + NET_S * 1000000ull;

	while (stat_of(name) != value && daemon_now_us() < end)
		usleep(5000);
	ck_assert_msg(stat_of(name) == value, "%s is %g, not %g", name, stat_of(name), value);
}
