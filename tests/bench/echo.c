/* The baseline of the rpc bench: the least a gRPC C core server and client can do, in a process of its own. */
#include "tests/bench/echo.h"

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"

#define METHOD "/terrace.bench.Echo/Call"
enum { DEADLINE_S = 10 };

/* Calls that the server is ready to take at a time, so that none waits for the end of the one before. */
enum { READY_CALLS = 8 };

struct server {
	grpc_server *server;
	grpc_completion_queue *queue;
	void *method;
};

struct serving {
	bool answering;
	grpc_call *call;
	gpr_timespec deadline;
	grpc_metadata_array metadata;
	grpc_byte_buffer *message;
	int cancelled;
};

static void await_call(const struct server *server, struct serving *s)
{
	*s = (struct serving){0};
	grpc_metadata_array_init(&s->metadata);
	if (grpc_server_request_registered_call(server->server, server->method, &s->call, &s->deadline,
						&s->metadata, &s->message, server->queue, server->queue,
						s) != GRPC_CALL_OK)
		exit(1);
}

static void answer(struct serving *s)
{
	grpc_op ops[4] = {
		{.op = GRPC_OP_SEND_INITIAL_METADATA},
		{.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = s->message},
		{.op = GRPC_OP_SEND_STATUS_FROM_SERVER,
		 .data.send_status_from_server.status = GRPC_STATUS_OK},
		{.op = GRPC_OP_RECV_CLOSE_ON_SERVER, .data.recv_close_on_server.cancelled = &s->cancelled},
	};

	s->answering = true;
	if (grpc_call_start_batch(s->call, ops, 4, s, NULL) != GRPC_CALL_OK)
		exit(1);
}

static void end_call(struct serving *s)
{
	grpc_byte_buffer_destroy(s->message);
	grpc_metadata_array_destroy(&s->metadata);
	grpc_call_unref(s->call);
}

static bool listen_on(struct server *server, const char *path)
{
	grpc_arg reuse = {
		.type = GRPC_ARG_INTEGER, .key = (char *)GRPC_ARG_ALLOW_REUSEPORT, .value.integer = 0};
	grpc_channel_args args = {1, &reuse};
	char address[160];

	snprintf(address, sizeof(address), "unix:%s", path);
	server->queue = grpc_completion_queue_create_for_next(NULL);
	server->server = grpc_server_create(&args, NULL);
	server->method = grpc_server_register_method(server->server, METHOD, NULL,
						     GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER, 0);
	grpc_server_register_completion_queue(server->server, server->queue, NULL);
	if (!server->method ||
	    !grpc_server_add_http2_port(server->server, address, grpc_insecure_server_credentials_create()))
		return false;
	grpc_server_start(server->server);
	return true;
}

int echo_serve(const char *path)
{
	struct serving calls[READY_CALLS];
	struct server server;

	grpc_init();
	if (!listen_on(&server, path))
		return 1;
	for (int i = 0; i < READY_CALLS; i++)
		await_call(&server, &calls[i]);
	for (;;) { /* until it is killed: a call, its end, the next call */
		grpc_event event =
			grpc_completion_queue_next(server.queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
		struct serving *s = event.tag;

		if (event.type != GRPC_OP_COMPLETE || (!s->answering && !event.success))
			return 1;
		if (!s->answering) {
			answer(s);
			continue;
		}
		end_call(s);
		await_call(&server, s);
	}
}

struct echo {
	int pid;
	grpc_channel *channel;
	grpc_completion_queue *queue;
	void *method;
	grpc_byte_buffer *empty;
};

struct echo *echo_open(void)
{
	char path[100], address[128];
	grpc_channel_credentials *credentials;
	struct echo *e = calloc(1, sizeof(*e));
	grpc_slice nothing = grpc_empty_slice();

	if (!e)
		bench_die("out of memory");
	snprintf(path, sizeof(path), "%s/echo.sock", bench_options.folder);
	snprintf(address, sizeof(address), "unix:%s", path);
	e->pid =
		bench_spawn("echo", (const char *const[]){"/proc/self/exe", ECHO_SERVER_COMMAND, path, NULL});
	grpc_init();
	credentials = grpc_insecure_credentials_create();
	e->channel = grpc_channel_create(address, credentials, NULL);
	grpc_channel_credentials_release(credentials);
	e->queue = grpc_completion_queue_create_for_next(NULL);
	e->method = grpc_channel_register_call(e->channel, METHOD, NULL, NULL);
	e->empty = grpc_raw_byte_buffer_create(&nothing, 1);
	echo_call(e); /* waits for the server */
	return e;
}

void echo_call(struct echo *e)
{
	gpr_timespec deadline =
		gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_seconds(DEADLINE_S, GPR_TIMESPAN));
	grpc_call *call = grpc_channel_create_registered_call(e->channel, NULL, GRPC_PROPAGATE_DEFAULTS,
							      e->queue, e->method, deadline, NULL);
	grpc_metadata_array initial, trailing;
	grpc_byte_buffer *reply = NULL;
	grpc_status_code status;
	grpc_slice details;
	grpc_op ops[6] = {
		{.op = GRPC_OP_SEND_INITIAL_METADATA, .flags = GRPC_INITIAL_METADATA_WAIT_FOR_READY},
		{.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = e->empty},
		{.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
		{.op = GRPC_OP_RECV_INITIAL_METADATA,
		 .data.recv_initial_metadata.recv_initial_metadata = &initial},
		{.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &reply},
		{.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
		 .data.recv_status_on_client = {.trailing_metadata = &trailing,
						.status = &status,
						.status_details = &details}},
	};

	grpc_metadata_array_init(&initial);
	grpc_metadata_array_init(&trailing);
	if (grpc_call_start_batch(call, ops, 6, NULL, NULL) != GRPC_CALL_OK)
		bench_die("echo: the call did not start");
	grpc_completion_queue_next(e->queue, gpr_inf_future(GPR_CLOCK_REALTIME),
				   NULL); /* the call has a deadline */
	if (status != GRPC_STATUS_OK)
		bench_die("echo: status %d", (int)status);
	grpc_byte_buffer_destroy(reply);
	grpc_metadata_array_destroy(&initial);
	grpc_metadata_array_destroy(&trailing);
	grpc_slice_unref(details);
	grpc_call_unref(call);
}

void echo_close(struct echo *e)
{
	grpc_event event;

	grpc_byte_buffer_destroy(e->empty);
	grpc_channel_destroy(e->channel);
	grpc_completion_queue_shutdown(e->queue);
	do
		event = grpc_completion_queue_next(e->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
	while (event.type != GRPC_QUEUE_SHUTDOWN);
	grpc_completion_queue_destroy(e->queue);
	grpc_shutdown();
	bench_stop(e->pid);
	free(e);
}
