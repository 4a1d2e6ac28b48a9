#include "tests/daemon/local/rig.h"

#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/local/local_calls.h"
#include "daemon/local/socket.h"
#include "daemon/process/daemon.h"
#include "daemon/process/part.h"
#include "daemon/threads/pool.h"
#include "tests/sim/device.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

struct shell s;
char hold[64];
uint8_t packet[2 * FDSOCK_CALL_BYTES_MAX];
static struct fd_socket *fd_socket;

void local_rig_open(void)
{
	char why[256] = "";

	snprintf(hold, sizeof hold, "/tmp/terrace-near-%d", getpid());
	setenv("SIM_GPU_DEVICES", "1", 1);
	setenv("SIM_GPU_HOLD_FILE", hold, 1);
	strcat(hold, ".0");
	shell_open_all(&s, NULL, terrace_device_ops());
	s.config.connections_max = 2 * CONNECTIONS; /* one process has half */
	s.config.adaptive_poll = true;
	ck_assert_int_eq(workers_create(2, 16, &s.daemon.workers), STATUS_OK);
	ck_assert_msg(local_create(&s.daemon, &s.daemon.local, why, sizeof why) == STATUS_OK, "%s", why);
	ck_assert_msg(fd_socket_create(&s.daemon, s.config.fd_socket, 0600, 2 * CONNECTIONS, &fd_socket, why,
	    sizeof why) == STATUS_OK, "%s", why);
}

void local_rig_close(void)
{
	unlink(hold);
	local_part.calls_stop(s.daemon.local, NET_S * 1000000ull);
	ck_assert(local_part.calls_wait(s.daemon.local, NET_S * 1000000ull));
	fd_socket_part.destroy(fd_socket);
	ck_assert(workers_stop(s.daemon.workers, NET_S * 1000000ull));
	local_part.destroy(s.daemon.local);
	workers_destroy(s.daemon.workers);
	shell_close(&s);
}

/* ---- a caller ---- */

static int dial(void)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0), bytes = 2 * FDSOCK_CALL_BYTES_MAX;

	strcpy(to.sun_path, s.config.fd_socket);
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	return fd;
}

ssize_t hear(int fd, void *into, size_t size)
{
	struct pollfd p = { fd, POLLIN, 0 };

	ck_assert_int_eq(poll(&p, 1, NET_S * 1000), 1);
	ssize_t n = recv(fd, into, size, 0);

	return n < 0 && errno == ECONNRESET ? 0 : n;
}

struct fdsock_head head_of(enum fdsock_type type)
{
	return (struct fdsock_head){ FDSOCK_MAGIC, FDSOCK_VERSION, (uint16_t)type };
}

int greet_with(enum fdsock_type type, const uint8_t token[16], struct fdsock_welcome *w)
{
	struct fdsock_hello h = { .head = head_of(type) };
	int fd = dial();

	memcpy(h.token, token, sizeof h.token);
	ck_assert_int_eq(send(fd, &h, sizeof h, 0), sizeof h);
	ck_assert_int_eq(hear(fd, w, sizeof *w), sizeof *w);
	return fd;
}

int caller(void)
{
	struct fdsock_welcome w;
	int fd = greet_with(FDSOCK_CALLER, s.session.token, &w);

	ck_assert_uint_eq(w.status, STATUS_OK);
	ck_assert_uint_eq(w.session, s.session.id);
	ck_assert_uint_eq(w.epoch, cache_epoch(s.daemon.cache));
	ck_assert_uint_eq(w.attachment, 0);
	return fd;
}

void say(int fd, enum fdsock_method method, const void *request, uint64_t left_us)
{
	struct fdsock_call call = { .head = head_of(FDSOCK_CALL), .method = method, .left_us = left_us };
	size_t n = sizeof call + protobuf_c_message_get_packed_size(request);

	ck_assert_uint_le(n, sizeof packet);
	memcpy(packet, &call, sizeof call);
	protobuf_c_message_pack(request, packet + sizeof call);
	ck_assert_int_eq(send(fd, packet, n, MSG_NOSIGNAL), (ssize_t)n);
}

uint32_t answer(int fd, const ProtobufCMessageDescriptor *type, void *message)
{
	ssize_t n = hear(fd, packet, sizeof packet);
	struct fdsock_reply r;

	ck_assert_int_ge(n, (ssize_t)sizeof r);
	memcpy(&r, packet, sizeof r);
	ck_assert_uint_eq(r.head.magic, FDSOCK_MAGIC);
	ck_assert_int_eq(r.head.type, FDSOCK_REPLY);
	ck_assert(r.status == STATUS_OK || r.status == FDSOCK_BY_GRPC || n > (ssize_t)sizeof r); /* why */
	if (r.status == STATUS_OK && type) {
		ProtobufCMessage *m = protobuf_c_message_unpack(type, NULL, (size_t)n - sizeof r, packet + sizeof r);

		ck_assert_ptr_nonnull(m);
		*(ProtobufCMessage **)message = m;
	}
	return r.status;
}

void drop(void *message)
{
	protobuf_c_message_free_unpacked(message, NULL);
}

Terrace__V1__Keys keys_of(const char *bytes, uint32_t key_bytes)
{
	Terrace__V1__Keys k = TERRACE__V1__KEYS__INIT;

	k.keys = (ProtobufCBinaryData){ strlen(bytes), (uint8_t *)(uintptr_t)bytes };
	k.key_bytes = key_bytes;
	return k;
}

Terrace__V1__Keys k1;

Terrace__V1__LookupRequest lookup_k1(void)
{
	Terrace__V1__LookupRequest q = TERRACE__V1__LOOKUP_REQUEST__INIT;

	k1 = keys_of("k1", 2);
	q.session = s.session.id;
	q.keys = &k1;
	return q;
}

uint64_t attachment;

int attach(void)
{
	struct fdsock_welcome w;
	int fd = greet_with(FDSOCK_HELLO, s.session.token, &w);

	ck_assert_uint_eq(w.status, STATUS_OK);
	attachment = w.attachment;
	return fd;
}

Terrace__V1__LeaseRequest lease_k1(bool gpu)
{
	Terrace__V1__LeaseRequest q = TERRACE__V1__LEASE_REQUEST__INIT;

	k1 = keys_of("k1", 2);
	q.session = s.session.id;
	q.keys = &k1;
	q.attachment = attachment;
	q.gpu = gpu;
	return q;
}

/* ---- what is seen from outside ---- */

double stat_of(const char *name, const char *labels)
{
	struct shell_stat w = { name, labels, 0 };

	local_part.stats(s.daemon.local, shell_find_stat, &w);
	return w.value;
}

void until(const char *name, const char *labels, double value)
{
	const uint64_t end = daemon_now_us() + NET_S * 1000000ull;

	while (stat_of(name, labels) != value && daemon_now_us() < end)
		usleep(1000);
	ck_assert_msg(stat_of(name, labels) == value, "%s{%s} is %g, not %g", name, labels, stat_of(name, labels), value);
}

void held_becomes(uint64_t leases, uint64_t reservations)
{
	const uint64_t end = daemon_now_us() + NET_S * 1000000ull;
	struct cache_load load;

	do {
		cache_load(s.daemon.cache, &load);
		usleep(1000);
	} while ((load.leases != leases || load.reservations != reservations) && daemon_now_us() < end);
	ck_assert_uint_eq(load.leases, leases);
	ck_assert_uint_eq(load.reservations, reservations);
}

void hold_copies(void)
{
	int fd = open(hold, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

	ck_assert_int_ge(fd, 0);
	close(fd);
}

void lease_waits(int fd, uint64_t left_us)
{
	Terrace__V1__LeaseRequest q = lease_k1(true);

	hold_copies();
	say(fd, FDSOCK_LEASE, &q, left_us);
	until("terrace_local_calls", "", 1);
	usleep(20000);
	ck_assert_double_eq(stat_of("terrace_local_calls", ""), 1);
}

void until_a_worker_runs(void)
{
	const uint64_t end = daemon_now_us() + NET_S * 1000000ull;
	struct workers_view view;

	do {
		usleep(1000);
		workers_look(s.daemon.workers, &view);
	} while (!view.running && daemon_now_us() < end);
	ck_assert_uint_ge(view.running, 1);
}
