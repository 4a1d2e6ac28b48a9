/* Packets of the fd socket. */
#include "client/transport/packet.h"

#include "client/value/clock.h"
#include "client/value/status.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
	SEND_TRIES = 4,
	SEND_WAIT_MS = 2,
	DESCRIPTORS_MAX = 8, /* two at most are right; room for more, so that they can be closed */
};

enum terrace_status client_packet_status(uint32_t number)
{
	return number > TERRACE_OK && number <= TERRACE_INTERNAL ? (enum terrace_status)number : TERRACE_INTERNAL;
}

static enum terrace_status status_of_errno(int error, const char *what)
{
	enum terrace_status status = error == EACCES || error == EPERM ? TERRACE_DENIED
				     : error == ENOMEM || error == EMFILE || error == ENFILE
					     ? TERRACE_EXHAUSTED
					     : TERRACE_UNAVAILABLE;

	return client_fail(status, "%s: %s", what, strerror(error));
}

/* Connecting to a Unix socket does not take time, unless the listener's backlog is full (EAGAIN). */
static int connect_until(int socket, const struct sockaddr_un *address, uint64_t deadline_us)
{
	while (connect(socket, (const struct sockaddr *)address, sizeof(*address))) {
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN || !client_left_ms(deadline_us))
			return errno;
		poll(NULL, 0, 1);
	}
	return 0;
}

enum terrace_status client_packet_connect(const char *path, uint64_t deadline_us, int *out)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int s, error;

	if (strlen(path) >= sizeof(address.sun_path))
		return client_fail(TERRACE_INVALID, "the fd socket's path is longer than %zu bytes",
				   sizeof(address.sun_path) - 1);
	strcpy(address.sun_path, path);
	s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (s < 0)
		return status_of_errno(errno, "fd socket");
	error = connect_until(s, &address, deadline_us);
	if (error) {
		close(s);
		return status_of_errno(error, path);
	}
	*out = s;
	return TERRACE_OK;
}

bool client_packet_send(int socket, const void *packet, size_t bytes)
{
	for (int i = 0; i < SEND_TRIES; i++) {
		struct pollfd ready = {.fd = socket, .events = POLLOUT};

		if (send(socket, packet, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)bytes)
			return true;
		if (errno != EAGAIN && errno != EINTR)
			return false;
		poll(&ready, 1, SEND_WAIT_MS);
	}
	return false;
}

enum terrace_status client_packet_send_until(int socket, const void *packet, size_t bytes, uint64_t deadline_us)
{
	struct pollfd ready = {.fd = socket, .events = POLLOUT | POLLRDHUP};

	while (send(socket, packet, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)bytes) {
		if (errno != EAGAIN && errno != EINTR)
			return status_of_errno(errno, "fd socket");
		if (!client_left_ms(deadline_us))
			return client_fail(TERRACE_DEADLINE, "the daemon's fd socket took nothing in the call's time: "
					   "give it more, or see if the daemon is busy (terracectl status)");
		if (poll(&ready, 1, client_left_ms(deadline_us)) > 0 && ready.revents & POLLRDHUP)
			return client_fail(TERRACE_UNAVAILABLE, "the daemon's fd socket is closed: "
					   "the daemon has restarted or is stopping: open the session again (terrace_session_reopen)");
	}
	return TERRACE_OK;
}

/* Keeps the first descriptors that came and closes the others. */
static void descriptors_take(struct msghdr *message, struct client_packet *packet)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
		size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
			if (packet->descriptors[0] < 0)
				packet->descriptors[0] = fd;
			else if (packet->descriptors[1] < 0)
				packet->descriptors[1] = fd;
			else
				close(fd);
		}
	}
}

static bool offer_sound(const struct fdsock_offer *o, size_t bytes)
{
	return bytes >= offsetof(struct fdsock_offer, extents) && o->count <= FDSOCK_OFFERS_MAX &&
	       bytes == offsetof(struct fdsock_offer, extents) + o->count * sizeof(o->extents[0]);
}

static bool packet_sound(const struct client_packet *packet, size_t bytes)
{
	const struct fdsock_head *head = &packet->body.head;

	if (bytes < sizeof(*head) || head->magic != FDSOCK_MAGIC || head->version != FDSOCK_VERSION)
		return false;
	switch (head->type) {
	case FDSOCK_WELCOME:
		return bytes == sizeof(packet->body.welcome);
	case FDSOCK_EXTENT:
		return bytes == sizeof(packet->body.extent);
	case FDSOCK_OFFER:
		return offer_sound(&packet->body.offer, bytes);
	case FDSOCK_RETIRE:
		return bytes == sizeof(packet->body.retire);
	default:
		return false;
	}
}

/* One recvmsg: bytes, 0 at the end, -1 with errno. */
static ssize_t packet_read(int socket, struct client_packet *packet, bool *cut)
{
	union {
		struct cmsghdr align;
		uint8_t bytes[CMSG_SPACE(DESCRIPTORS_MAX * sizeof(int))];
	} control;
	struct iovec part = {&packet->body, sizeof(packet->body)};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	ssize_t n;

	packet->descriptors[0] = packet->descriptors[1] = -1;
	n = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n >= 0)
		descriptors_take(&message, packet);
	packet->lost = message.msg_flags & MSG_CTRUNC;
	*cut = message.msg_flags & MSG_TRUNC;
	return n;
}

enum terrace_status client_packet_receive(int socket, uint64_t deadline_us, struct client_packet *packet)
{
	bool cut;

	for (;;) {
		struct pollfd ready = {.fd = socket, .events = POLLIN};
		ssize_t n = packet_read(socket, packet, &cut);

		if (n > 0 && !cut && packet_sound(packet, (size_t)n))
			return TERRACE_OK;
		if (n > 0) {
			client_packet_fini(packet);
			return client_fail(TERRACE_INTERNAL, "the daemon's fd socket sent garbage (%zd bytes): "
					   "is it of another version?", n);
		}
		if (!n)
			return client_fail(TERRACE_UNAVAILABLE, "the daemon has closed the fd socket: "
					   "it has restarted or is stopping, or the session has ended: open it again (terrace_session_reopen)");
		if (errno != EAGAIN && errno != EINTR)
			return status_of_errno(errno, "fd socket");
		if (!deadline_us)
			return TERRACE_DEADLINE;
		if (!client_left_ms(deadline_us))
			return client_fail(TERRACE_DEADLINE, "the daemon's fd socket did not answer in the call's time: "
					   "give it more, or see if the daemon is busy (terracectl status)");
		poll(&ready, 1, client_left_ms(deadline_us));
	}
}

void client_packet_fini(struct client_packet *packet)
{
	for (int i = 0; i < 2; i++) {
		if (packet->descriptors[i] >= 0)
			close(packet->descriptors[i]);
		packet->descriptors[i] = -1;
	}
}

const char *client_packet_file_problem(const struct client_packet *packet, int i, uint64_t bytes)
{
	struct stat file;

	if (packet->descriptors[i] < 0)
		return "no descriptor came with it";
	if (fstat(packet->descriptors[i], &file) || !S_ISREG(file.st_mode))
		return "its descriptor is not of memory";
	if (file.st_size < 0 || (uint64_t)file.st_size < bytes)
		return "its memory is smaller than said";
	return NULL;
}
