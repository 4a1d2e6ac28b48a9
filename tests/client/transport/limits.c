/* Bounds that need no daemon: structs of other versions, a socket whose other end never stops talking, a mapping table that is closed under its
 * reader, and more asynchronous calls than are allowed. */
#include "client/memory/attachment.h"
#include "client/memory/mapping.h"
#include "tests/client/view.h"

#include "client/value/clock.h"
#include "client/value/layout.h"
#include "client/transport/packet.h"
#include "client/transport/address.h"
#include "client/transport/grpc_call.h"
#include "tests/held_folder.h"

#include <check.h>
#include <errno.h>
#include <string.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* Queues offers for the attachment, `most` or as many as the socket takes. */
static unsigned offers_send(int socket, unsigned most)
{
	struct fdsock_offer offer = {.head = {FDSOCK_MAGIC, FDSOCK_VERSION, FDSOCK_OFFER}, .count = 1, .extents = {99}};
	const size_t bytes = offsetof(struct fdsock_offer, extents) + sizeof(offer.extents[0]);
	unsigned n = 0;

	while (n < most && send(socket, &offer, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes)
		n++;
	return n;
}

/* Structs of callers that know less than this version, or more; the first version ended with `b`. */
START_TEST(stamped_structs)
{
	struct stamped {
		size_t size;
		uint32_t a, b, c, d;
	} out, in = {sizeof(in), 1, 2, 3, 4};
	const size_t first = offsetof(struct stamped, c);

	for (size_t size = 0; size < first; size++) {
		in.size = size;
		ck_assert(!client_options_copy(&out, sizeof(out), &in, first));
		ck_assert(!client_options_give(&in, &out, sizeof(out), first));
	}
	for (in.size = first; in.size <= sizeof(in); in.size += sizeof(in.c)) {
		memset(&out, 0xff, sizeof(out));
		ck_assert(client_options_copy(&out, sizeof(out), &in, first));
		ck_assert_uint_eq(out.size, in.size);
		ck_assert(out.a == 1 && out.b == 2);
		ck_assert_uint_eq(out.c, in.size > first ? 3 : 0);
		ck_assert_uint_eq(out.d, in.size == sizeof(in) ? 4 : 0);
	}
	in.size = sizeof(in);
	memset(&out, 0xff, sizeof(out));
	ck_assert(client_options_copy(&out, first, &in, first)); /* this library's is the first one */
	ck_assert(out.b == 2 && out.c == UINT32_MAX);
	out = (struct stamped){sizeof(out), 5, 6, 7, 8};
	in.size = first;
	ck_assert(client_options_give(&in, &out, sizeof(out), first));
	ck_assert(in.size == first && in.a == 5 && in.b == 6 && in.c == 3 && in.d == 4);
	in.size = sizeof(in);
	ck_assert(client_options_give(&in, &out, first, first));
	ck_assert(in.size == sizeof(in) && in.b == 6 && !in.c && !in.d);
	in.size = (size_t)1 << 40;
	ck_assert(!client_options_copy(&out, sizeof(out), &in, first));
}
END_TEST

static unsigned packets_left(int socket)
{
	struct client_packet packet;
	unsigned n = 0;

	while (!client_packet_receive(socket, 0, &packet))
		n++;
	return n;
}

/* A daemon that never stops talking keeps nobody: neither past a deadline nor in what was not to wait at all. */
START_TEST(talkative)
{
	struct client_attachment *a = view_attachment();
	struct client_mapping *m;
	int ends[2];

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	a->socket = ends[0];
	a->broken = false;
	ck_assert_uint_eq(offers_send(ends[1], 5), 5);
	ck_assert_int_eq(client_fds_map(a, 7, false, client_now_us(), &m), TERRACE_DEADLINE);
	ck_assert_uint_eq(packets_left(ends[0]), 4);
	ck_assert_uint_gt(offers_send(ends[1], 100000), 256);
	client_fds_listen(a);
	ck_assert_uint_gt(packets_left(ends[0]), 0);
	client_fds_drop(a);
	close(ends[1]);
}
END_TEST

/* Whoever has been given a mapping may read what it says until its use ends, also after a close. */
START_TEST(closed_under_a_reader)
{
	struct client_attachment *a = view_attachment();
	struct client_mapping *m, *other;
	const uint8_t *base;

	ck_assert_int_eq(client_fds_map(a, 1, false, client_deadline_us(0), &m), TERRACE_OK);
	base = m->base;
	client_fds_hold(a);
	client_fds_close(a);
	ck_assert_ptr_eq(m->base, base);
	ck_assert_uint_eq(m->bytes, VIEW_EXTENT_BYTES);
	ck_assert_int_eq(client_fds_map(a, 1, false, client_deadline_us(0), &other), TERRACE_CANCELLED);
	client_fds_unmap(a, m);
	client_fds_close(a);
	client_fds_drop(a);
	client_fds_drop(a);
}
END_TEST

static enum terrace_status take(void *arg, const struct client_message *message)
{
	(void)arg;
	(void)message;
	return TERRACE_OK;
}

static void count(void *arg, enum terrace_status status)
{
	ck_assert(status);
	atomic_fetch_add((atomic_uint *)arg, 1);
}

/* Calls that wait for a daemon that never comes: one too many is refused, and every other one ends. */
/* Where the process has no room for gRPC a connect says so: gRPC itself would end the process, or not come back. In a process of its own. */
static int connect_without(int resource, rlim_t most)
{
	const struct rlimit limit = {most, most};
	struct terrace_connect_options o = TERRACE_CONNECT_OPTIONS_INIT;
	struct terrace_client *client;
	enum terrace_status status;

	o.address = "unix:/nonexistent/terraced.sock";
	o.timeout_us = 50000;
	if ((!getuid() && setresuid(65534, 65534, 65534)) || setrlimit(resource, &limit))
		return 100;
	status = terrace_connect(&o, &client);
	return status == TERRACE_EXHAUSTED && !strstr(terrace_error(), "for gRPC") ? 101 : (int)status;
}

START_TEST(no_room_for_grpc)
{
	static const struct {
		int resource;
		rlim_t most;
		int want;
	} cases[] = {
		{RLIMIT_NOFILE, 3, TERRACE_EXHAUSTED}, {RLIMIT_NOFILE, 6, TERRACE_EXHAUSTED}, {RLIMIT_NOFILE, 64, TERRACE_UNAVAILABLE},
		{RLIMIT_NPROC, 1, TERRACE_EXHAUSTED},  {RLIMIT_NPROC, 5, TERRACE_EXHAUSTED},
	};
	pid_t pid = fork();
	int state;

	if (pid == 0) {
		alarm(20); /* else it is there for ever */
		_exit(connect_without(cases[_i].resource, cases[_i].most));
	}
	ck_assert_int_eq(waitpid(pid, &state, 0), pid);
	ck_assert(WIFEXITED(state));
	ck_assert_int_eq(WEXITSTATUS(state), cases[_i].want);
}
END_TEST

START_TEST(too_many_calls)
{
	Terrace__V1__LookupRequest request = TERRACE__V1__LOOKUP_REQUEST__INIT;
	enum terrace_status status = TERRACE_OK;
	atomic_uint ended = 0;
	struct client_rpc_call *call;
	struct client_rpc *rpc;
	unsigned started = 0;

	ck_assert_int_eq(client_rpc_open("unix:/nonexistent/socket", 0, NULL, &rpc), TERRACE_OK);
	while (!status && started < 5000) {
		status = client_rpc_start(rpc,
					  &(struct client_job){
						  .method = CLIENT_LOOKUP,
						  .deadline_us = client_deadline_us(100000000),
						  .wait_for_ready = true,
						  .first = {.message = &request.base, .last = true},
						  .take = take,
						  .arg = &ended,
					  },
					  count, &call);
		started += !status;
	}
	ck_assert_int_eq(status, TERRACE_EXHAUSTED);
	ck_assert_uint_eq(started, 4096);
	client_rpc_close(rpc);
	ck_assert_uint_eq(atomic_load(&ended), started);
	client_rpc_destroy(rpc);
}
END_TEST

/* terrace_connect does not wait for leave to use a socket: the wait would be longer than this test may take. */
static void denied_at_once(const char *address)
{
	struct terrace_connect_options o = TERRACE_CONNECT_OPTIONS_INIT;
	struct terrace_client *none;

	o.address = address;
	o.timeout_us = 3600000000;
	ck_assert_int_eq(terrace_connect(&o, &none), TERRACE_DENIED);
	ck_assert_ptr_nonnull(strstr(terrace_error(), ": Permission denied: this user may not use the socket: add the user to the socket's group"));
}

/* A daemon that is not there, one that died, one that others may not speak to, and one that says nothing. */
START_TEST(why_nobody_answers)
{
	char folder[64], address[128];
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	const int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	ck_assert(held_folder_make("/tmp", folder, sizeof(folder)));
	snprintf(at.sun_path, sizeof(at.sun_path), "%s/s", folder);
	snprintf(address, sizeof(address), "unix:%s", at.sun_path);
	ck_assert_int_eq(client_address_error(address), ENOENT);
	ck_assert_int_eq(bind(s, (const struct sockaddr *)&at, sizeof(at)), 0);
	ck_assert_int_eq(client_address_error(address), ECONNREFUSED);
	ck_assert_int_eq(listen(s, 1), 0);
	for (int i = 0; i < 4; i++) /* more than its queue takes */
		ck_assert_int_eq(client_address_error(address), 0);
	ck_assert_int_eq(client_address_error("127.0.0.1:1"), ECONNREFUSED);
	ck_assert_int_eq(chmod(folder, 0), 0);
	if (geteuid() == 0)
		ck_assert_int_eq(seteuid(65534), 0);
	ck_assert_int_eq(client_address_error(address), EACCES);
	denied_at_once(address);
	if (getuid() == 0)
		ck_assert_int_eq(seteuid(0), 0);
	ck_assert_int_eq(chmod(folder, 0700), 0);
	close(s);
	unlink(at.sun_path);
	rmdir(folder);
}
END_TEST

/* And the words of a connect say it. */
START_TEST(connect_says_why)
{
	struct terrace_connect_options o = TERRACE_CONNECT_OPTIONS_INIT;
	struct terrace_client *none;

	o.address = "unix:/nonexistent/socket";
	o.timeout_us = 1000;
	ck_assert_int_eq(terrace_connect(&o, &none), TERRACE_UNAVAILABLE);
	ck_assert_str_eq(terrace_error(), "connect: unix:/nonexistent/socket: no daemon is there: No such file or directory: "
					  "start terraced, or give its address (TERRACE_ADDRESS, or --address of terracectl)");
}
END_TEST

static bool never_whole(const void *arg)
{
	(void)arg;
	return false;
}

/* gRPC drops a message that has come when the call's time is up, or it is cancelled, and says the daemon's OK all the same: that is no breach of
 * the daemon's, and no damage. */
START_TEST(answers_that_were_dropped)
{
	const enum terrace_status expected[] = {TERRACE_DEADLINE, TERRACE_CANCELLED, TERRACE_OK};
	struct client_rpc_call c = {.job = {.whole = never_whole}, .code = GRPC_STATUS_OK};

	for (int i = 0; i < 3; i++) {
		c.job.deadline_us = i ? client_deadline_us(600000000) : 1;
		c.cancelled = i == 1;
		c.job.method = CLIENT_GET;
		c.taken = TERRACE_OK;
		ck_assert_int_eq(client_call_status(&c), expected[i]);
		c.job.method = CLIENT_LEASE;
		c.phase = CALL_ANSWER;
		ck_assert(!client_call_step(&c, true));
		ck_assert_int_eq(client_call_status(&c), expected[i] ? expected[i] : TERRACE_INTERNAL);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client_bounds");
	TCase *c = tcase_create("bounds");
	SRunner *runner;
	int failed;

	tcase_set_timeout(c, 60);
	tcase_add_test(c, stamped_structs);
	tcase_add_test(c, talkative);
	tcase_add_test(c, closed_under_a_reader);
	tcase_add_test(c, too_many_calls);
	tcase_add_loop_test(c, no_room_for_grpc, 0, 5);
	tcase_add_test(c, why_nobody_answers);
	tcase_add_test(c, connect_says_why);
	tcase_add_test(c, answers_that_were_dropped);
	suite_add_tcase(suite, c);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
