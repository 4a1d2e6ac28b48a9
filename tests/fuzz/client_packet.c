/* Any packets from the daemon on the fd socket, with and without descriptors: refused, or what they say holds; and no descriptor, mapping
 * or piece of a GPU is left behind. The GPU is one that only keeps account: what is imported lies inside a range that was reserved, and
 * over nothing else. The first byte chooses who reads them: the packet reader, an attachment that listens, or one that has asked
 * for an extent. Then each packet is a byte (its length, and in the top two bits what descriptors come with it) and its bytes.
 */
#include "client/driver/gpu.h"
#include "client/memory/attachment.h"
#include "client/transport/packet.h"
#include "client/value/clock.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FILE_BYTES = 64 << 10, PACKETS_MAX = 16, EXTENT = 1, GRANULARITY = 4096, PIECES_MAX = 64, WAIT_US = 10000000 };

static int memory = -1;

static void must(bool x)
{
	if (!x)
		abort();
}

/* ---- the GPU ------------------------------------------------------------------------------------------------------- */

struct piece {
	uint64_t at, bytes;
	bool range;
};
static struct piece pieces[PIECES_MAX];
static uint32_t piece_count;
static uint64_t next_address;

static void piece_take(uint64_t at, uint64_t bytes, bool range)
{
	must(piece_count < PIECES_MAX);
	pieces[piece_count++] = (struct piece){at, bytes, range};
}

static void piece_drop(uint64_t at, uint64_t bytes, bool range)
{
	uint32_t i = 0;

	while (i < piece_count && !(pieces[i].at == at && pieces[i].bytes == bytes && pieces[i].range == range))
		i++;
	must(i < piece_count);
	pieces[i] = pieces[--piece_count];
}

static enum status range_reserve(struct device *d, uint64_t bytes, uint64_t *address, const char **why)
{
	(void)d;
	(void)why;
	must(bytes && bytes % GRANULARITY == 0);
	if (bytes > UINT64_MAX - next_address)
		return STATUS_EXHAUSTED;
	*address = next_address;
	next_address += bytes;
	piece_take(*address, bytes, true);
	return STATUS_OK;
}

static void range_free(struct device *d, uint64_t address, uint64_t bytes)
{
	(void)d;
	piece_drop(address, bytes, true);
}

static enum status extent_import(struct device *d, int fd, uint64_t at, uint64_t bytes, bool write, struct device_extent *out,
				 const char **why)
{
	bool inside = false;

	(void)d;
	(void)write;
	*why = "the fuzzer's GPU does not like it";
	must(fd >= 0 && bytes && bytes % GRANULARITY == 0 && at % GRANULARITY == 0);
	for (uint32_t i = 0; i < piece_count; i++) {
		const struct piece *p = &pieces[i];

		inside |= p->range && at >= p->at && at - p->at <= p->bytes && bytes <= p->bytes - (at - p->at);
		must(p->range || at + bytes <= p->at || p->at + p->bytes <= at);
	}
	must(inside);
	if (bytes % (2 * GRANULARITY))
		return STATUS_INVALID;
	*out = (struct device_extent){.address = at, .bytes = bytes};
	piece_take(at, bytes, false);
	return STATUS_OK;
}

static void extent_drop(struct device *d, const struct device_extent *e)
{
	(void)d;
	piece_drop(e->address, e->bytes, false);
}

static const struct device_ops ops = {
	.range_reserve = range_reserve,
	.range_free = range_free,
	.extent_import = extent_import,
	.extent_drop = extent_drop,
};
static struct client_gpu gpu = {.ops = &ops, .granularity = GRANULARITY};

static void lent_fill(struct client_lent_memory *lent)
{
	next_address = GRANULARITY;
	lent->lent.gpu_count = 1;
	lent->gpus[0] = &gpu;
}

/* ---- packets ------------------------------------------------------------------------------------------------------- */

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
	const uint64_t bytes = m->gpu == FDSOCK_NO_GPU ? m->bytes : GRANULARITY;

	must(bytes > 0 && bytes <= FILE_BYTES && (m->gpu == FDSOCK_NO_GPU || m->gpu == 0));
	(void)base[0];
	(void)base[bytes - 1];
}

static void read_packets(int socket)
{
	enum terrace_status status;
	struct client_packet packet;

	while (!(status = client_packet_receive(socket, 0, &packet))) {
		struct client_lent_memory lent = {0};
		struct client_mapping mapping = {0};

		lent_fill(&lent);
		if (packet.body.head.type == FDSOCK_EXTENT && !client_mapping_prepare(&lent, &packet, &mapping)) {
			mapping_touch(&mapping);
			if (client_mapping_import(&lent, &packet, &mapping))
				client_mapping_forget(&mapping);
			else
				client_mapping_drop(&lent, &mapping);
		}
		client_lent_memory_fini(&lent);
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
	a->close_wait_us = WAIT_US;
	lent_fill(&a->memory);
	a->premap.asked = 1 | 1u << DEVICES_MAX;
	return a;
}

static void attachment_run(struct client_attachment *a, bool ask)
{
	struct client_mapping *m;

	/* Two, so that one may lie in the other's way. */
	for (uint32_t i = EXTENT; ask && i <= EXTENT + 1; i++) {
		if (client_fds_map(a, i, false, client_deadline_us(WAIT_US), &m))
			continue;
		mapping_touch(m);
		must(m->extent == i && m->uses == 1);
		client_fds_listen(a);
		client_fds_unmap(a, m);
	}
	client_fds_listen(a);
	client_driver_tasks_settle(client_deadline_us(WAIT_US));
	for (uint32_t i = 0; i < a->premap.count; i++)
		must(a->premap.offers[i].tier == 0 || a->premap.offers[i].tier == DEVICES_MAX);
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
		size_t n = (data[at] & 0x3f) + 1;
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
		client_driver_tasks_settle(client_deadline_us(WAIT_US));
	}
	close(ends[1]);
	must(lowest_free() == lowest && piece_count == 0);
	return 0;
}
