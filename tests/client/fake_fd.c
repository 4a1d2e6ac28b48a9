/* The fake daemon's fd socket: one thread, which polls its listener and its clients. */
#include "tests/client/fake.h"

#include "proto/fdsock.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void packet_send(int socket, const void *packet, size_t bytes, const int *fds, size_t count)
{
	union {
		struct cmsghdr align;
		uint8_t bytes[CMSG_SPACE(2 * sizeof(int))];
	} control = {0};
	struct iovec part = {(void *)(uintptr_t)packet, bytes};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

	if (count) {
		struct cmsghdr *c;

		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(count * sizeof(int));
		c = CMSG_FIRSTHDR(&message);
		*c = (struct cmsghdr){
			.cmsg_len = CMSG_LEN(count * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(c), fds, count * sizeof(int));
	}
	sendmsg(socket, &message, MSG_NOSIGNAL);
}

static struct fdsock_head head_of(enum fdsock_type type)
{
	return (struct fdsock_head){FDSOCK_MAGIC, FDSOCK_VERSION, (uint16_t)type};
}

static void map_answer(struct fake *f, int socket, const struct fdsock_map *map)
{
	struct fdsock_extent e = {.head = head_of(FDSOCK_EXTENT), .extent = map->extent, .write = map->write,
				  .page_bytes = 4096, .bytes = f->extent_bytes, .gpu = FDSOCK_NO_GPU};
	const bool twice = f->fd_fault == FAKE_FD_TWO_DESCRIPTORS;
	int fds[2] = {-1, -1}, pipe_fds[2] = {-1, -1};
	size_t count;

	f->maps++;
	if (f->fd_fault == FAKE_FD_SILENT)
		return;
	if (f->fd_fault == FAKE_FD_GARBAGE) {
		packet_send(socket, "not a packet at all", 19, NULL, 0);
		return;
	}
	if (f->fd_fault == FAKE_FD_HANGS_UP) {
		shutdown(socket, SHUT_RDWR);
		return;
	}
	if (f->fd_fault != FAKE_FD_REFUSES && f->gpu.ops && fake_gpu_extent(f, &e, fds, &count)) {
		f->gpu_lent += map->extent != FDSOCK_EXTENT_PROGRESS_PAGE;
		packet_send(socket, &e, sizeof(e), fds, count);
		return;
	}
	if (f->fd_fault == FAKE_FD_REFUSES || map->extent < 1 || map->extent > FAKE_EXTENTS) {
		e.status = TERRACE_EXHAUSTED;
		packet_send(socket, &e, sizeof(e), NULL, 0);
		return;
	}
	if (f->fd_fault == FAKE_FD_NO_DESCRIPTOR) {
		packet_send(socket, &e, sizeof(e), NULL, 0);
		return;
	}
	if (f->fd_fault == FAKE_FD_SMALL)
		e.bytes *= 2;
	if (f->fd_fault == FAKE_FD_BAD_PAGE)
		e.page_bytes = 5000;
	if (f->fd_fault == FAKE_FD_HOST_IS_GPU)
		e.gpu = 0;
	if (twice || f->fd_fault == FAKE_FD_PIPE)
		MUST(!pipe(pipe_fds));
	fds[0] = f->fd_fault == FAKE_FD_PIPE ? pipe_fds[0] : f->memory[map->extent - 1];
	fds[1] = pipe_fds[1];
	packet_send(socket, &e, sizeof(e), fds, twice ? 2 : 1);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
}

/* What the session's layouts have on the GPU, or in host memory. */
static void premap_answer(struct fake *f, int socket, const struct fdsock_premap *ahead)
{
	struct fdsock_offer o = {.head = head_of(FDSOCK_OFFER), .gpu = ahead->gpu, .more = f->offers_late};
	const uint32_t first = ahead->gpu == FDSOCK_NO_GPU ? 1 : FAKE_GPU_EXTENT,
		       count = ahead->gpu == FDSOCK_NO_GPU ? FAKE_EXTENTS : f->layouts * FAKE_EXTENTS;

	f->asked_premap++;
	for (uint32_t i = 0; i < count && !f->offers_late; i++)
		o.extents[o.count++] = first + i;
	packet_send(socket, &o, offsetof(struct fdsock_offer, extents) + o.count * sizeof(o.extents[0]), NULL, 0);
}

/* A client that ends says it of everything at once: of a GPU's memory that counts one by one. */
static void unmapped_hear(struct fake *f, const struct fdsock_unmapped *u)
{
	if (u->extent == FDSOCK_EXTENT_NONE) {
		f->all_unmapped++;
		f->unmapped += f->gpu_lent;
		f->gpu_lent = 0;
		return;
	}
	f->unmapped++;
	f->gpu_lent -= u->extent >= FAKE_GPU_EXTENT && u->extent != FDSOCK_EXTENT_PROGRESS_PAGE;
}

static void packet_answer(struct fake *f, int socket, const void *packet, size_t bytes)
{
	const struct fdsock_head *head = packet;
	struct fdsock_welcome welcome = {.head = head_of(FDSOCK_WELCOME), .epoch = f->epoch, .session = f->session,
					 .attachment = 7, .knows = f->offers ? FDSOCK_KNOWS_PREMAP : 0};

	MUST(bytes >= sizeof(*head) && head->magic == FDSOCK_MAGIC && head->version == FDSOCK_VERSION);
	switch (head->type) {
	case FDSOCK_HELLO:
		MUST(bytes == sizeof(struct fdsock_hello));
		packet_send(socket, &welcome, sizeof(welcome), NULL, 0);
		break;
	case FDSOCK_MAP:
		MUST(bytes == sizeof(struct fdsock_map));
		map_answer(f, socket, packet);
		break;
	case FDSOCK_PREMAP:
		MUST(bytes == sizeof(struct fdsock_premap) && f->offers);
		premap_answer(f, socket, packet);
		break;
	case FDSOCK_UNMAPPED:
		unmapped_hear(f, packet);
		break;
	case FDSOCK_RELEASE:
		f->released += ((const struct fdsock_release *)packet)->count;
		break;
	case FDSOCK_CALLER: /* which it does not know */
		shutdown(socket, SHUT_RDWR);
		break;
	default:
		MUST(!"known packet");
	}
}

void *fake_fd_main(void *arg)
{
	struct fake *f = arg;
	struct pollfd polled[FAKE_SOCKETS + 2] = {{.fd = f->stop_pipe[0], .events = POLLIN},
						  {.fd = f->listener, .events = POLLIN}};
	unsigned n = 2;
	uint64_t packet[128];
	bool deaf;

	for (;;) {
		poll(polled, n, -1);
		if (polled[0].revents)
			break;
		pthread_mutex_lock(&f->lock);
		deaf = f->deaf;
		for (unsigned i = 2; i < n && !deaf; i++) {
			ssize_t got = polled[i].fd < 0 || !polled[i].revents
					      ? -1
					      : recv(polled[i].fd, packet, sizeof(packet), MSG_DONTWAIT);

			if (got > 0)
				packet_answer(f, polled[i].fd, packet, (size_t)got);
			else if (!got || (polled[i].fd >= 0 && polled[i].revents && errno != EAGAIN))
				polled[i].fd = -1;
		}
		if (polled[1].revents && n < FAKE_SOCKETS + 2) {
			polled[n] = (struct pollfd){.fd = accept(f->listener, NULL, NULL), .events = POLLIN};
			f->sockets[f->socket_count++] = polled[n++].fd;
		}
		pthread_mutex_unlock(&f->lock);
		if (deaf)
			poll(NULL, 0, 1);
	}
	return NULL;
}

void fake_lend(struct fake *f, uint32_t extent)
{
	const struct fdsock_map map = {.head = head_of(FDSOCK_MAP), .extent = extent};

	pthread_mutex_lock(&f->lock);
	for (unsigned i = 0; i < f->socket_count; i++)
		map_answer(f, f->sockets[i], &map);
	pthread_mutex_unlock(&f->lock);
}

void fake_offer(struct fake *f, bool gpu, uint32_t extent)
{
	struct fdsock_offer o = {.head = head_of(FDSOCK_OFFER), .gpu = gpu ? 0 : FDSOCK_NO_GPU, .count = 1, .extents = {extent}};

	fake_fd_send(f, &o, offsetof(struct fdsock_offer, extents) + sizeof(o.extents[0]));
}

void fake_fd_send(struct fake *f, const void *packet, size_t bytes)
{
	pthread_mutex_lock(&f->lock);
	for (unsigned i = 0; i < f->socket_count; i++)
		packet_send(f->sockets[i], packet, bytes, NULL, 0);
	pthread_mutex_unlock(&f->lock);
}
