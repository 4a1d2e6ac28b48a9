/* Any packets from the daemon on the fd socket, with and without descriptors: refused, or what they say holds; and no descriptor or
 * mapping is left behind. The first byte chooses who reads them: the packet reader, an attachment that listens, or one that has asked
 * for an extent. Then each packet is a byte (its length, and in the top two bits what descriptors come with it) and its bytes.
 */
#include "client/clock.h"
#include "client/packet.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FILE_BYTES = 64 << 10, PACKETS_MAX = 16, EXTENT = 1 };

static int memory = -1;

static void must(bool x)
{
	if (!x)
		abort();
}

/* The lowest free descriptor: another one, and one has been lost. */
static int lowest_free(void)
{
	int fd = dup(memory);

	must(fd >= 0);
	close(fd);
	return fd;
}

static void packet_send(int socket, const uint8_t *bytes, size_t n, unsigned descriptors)
{
	union {
		struct cmsghdr align;
		uint8_t bytes[CMSG_SPACE(2 * sizeof(int))];
	} control = {0};
	struct iovec part = {(void *)(uintptr_t)bytes, n};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	int fds[2] = {descriptors == 2 ? socket : memory, memory};
	size_t count = descriptors == 3 ? 2 : descriptors ? 1 : 0;

	if (count) {
		struct cmsghdr *c;

		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(count * sizeof(int));
		c = CMSG_FIRSTHDR(&message);
		*c = (struct cmsghdr){
			.cmsg_len = CMSG_LEN(count * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(c), fds, count * sizeof(int));
	}
	must(sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n);
}

static void mapping_touch(const struct client_mapping *m)
{
	const volatile uint8_t *base = m->base;

	must(m->bytes > 0 && m->bytes <= FILE_BYTES);
	(void)base[0];
	(void)base[m->bytes - 1];
}

static void read_packets(int socket)
{
	enum terrace_status status;
	struct client_packet packet;

	while (!(status = client_packet_receive(socket, 0, &packet))) {
		struct client_mapping mapping = {0};

		if (packet.body.head.type == FDSOCK_EXTENT && !client_packet_map(&packet, &mapping)) {
			mapping_touch(&mapping);
			munmap(mapping.base, mapping.bytes);
		}
		client_packet_fini(&packet);
	}
	must(status == TERRACE_DEADLINE || status == TERRACE_UNAVAILABLE || status == TERRACE_INTERNAL);
}

static struct client_attachment *attachment_of(int socket)
{
	struct client_attachment *a = calloc(1, sizeof(*a));

	atomic_init(&a->references, 1);
	a->socket = socket;
	pthread_mutex_init(&a->lock, NULL);
	pthread_cond_init(&a->idle, NULL);
	return a;
}

static void attachment_run(struct client_attachment *a, bool ask)
{
	struct client_mapping *m;

	if (ask && !client_fds_map(a, EXTENT, false, client_deadline_us(10000000), &m)) {
		mapping_touch(m);
		must(m->extent == EXTENT && m->uses == 1);
		client_fds_listen(a);
		client_fds_unmap(a, m);
	}
	client_fds_listen(a);
	for (uint32_t i = 0; i < a->count; i++)
		must(a->mappings[i]->uses == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct client_attachment *a;
	int ends[2], lowest;
	size_t at = 1;

	if (!size)
		return 0;
	if (memory < 0) {
		memory = memfd_create("fuzz", MFD_CLOEXEC);
		must(memory >= 0 && !ftruncate(memory, FILE_BYTES));
	}
	lowest = lowest_free();
	must(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
	for (int i = 0; i < PACKETS_MAX && at < size; i++) {
		size_t n = data[at] & 0x3f;
		unsigned descriptors = data[at++] >> 6;

		n = n < size - at ? n : size - at;
		packet_send(ends[1], data + at, n, descriptors);
		at += n;
	}
	shutdown(ends[1], SHUT_WR); /* nobody waits for more */
	if (data[0] % 3 == 0) {
		read_packets(ends[0]);
		close(ends[0]);
	} else {
		a = attachment_of(ends[0]);
		attachment_run(a, data[0] % 3 == 2);
		client_fds_drop(a);
	}
	close(ends[1]);
	must(lowest_free() == lowest);
	return 0;
}
