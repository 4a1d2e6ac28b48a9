/* The fake daemon's calls: a thread each, which speaks gRPC. */
#include "tests/client/fake_call.h"

#include "client/transport/grpc_call.h" /* its marks for ThreadSanitizer */

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <stdlib.h>
#include <string.h>

/* ---- a call ------------------------------------------------------------------------------------------------------- */

static bool batch(struct fake_call *c, const grpc_op *ops, size_t n)
{
	grpc_event event;

	TAG_RELEASE(c);
	MUST(grpc_call_start_batch(c->call, ops, n, c, NULL) == GRPC_CALL_OK);
	event = grpc_completion_queue_pluck(c->queue, c, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
	TAG_ACQUIRE(c);
	return event.success;
}

/* The next message of the client, joined; NULL at the end. */
uint8_t *fake_receive(struct fake_call *c, size_t *bytes)
{
	grpc_byte_buffer *buffer = NULL;
	grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &buffer};
	grpc_byte_buffer_reader reader;
	grpc_slice slice;
	uint8_t *data;

	if (!batch(c, &op, 1) || !buffer)
		return NULL;
	MUST(grpc_byte_buffer_reader_init(&reader, buffer));
	slice = grpc_byte_buffer_reader_readall(&reader);
	*bytes = GRPC_SLICE_LENGTH(slice);
	data = malloc(*bytes + 1);
	memcpy(data, GRPC_SLICE_START_PTR(slice), *bytes);
	grpc_slice_unref(slice);
	grpc_byte_buffer_reader_destroy(&reader);
	grpc_byte_buffer_destroy(buffer);
	return data;
}

static void greet(struct fake_call *c, grpc_op *ops, size_t *n)
{
	if (c->greeted)
		return;
	ops[(*n)++] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
	c->greeted = true;
}

void fake_send_bytes(struct fake_call *c, const void *bytes, size_t size)
{
	grpc_slice slice = grpc_slice_from_copied_buffer(bytes, size);
	grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
	grpc_op ops[2] = {0};
	size_t n = 0;

	grpc_slice_unref(slice);
	greet(c, ops, &n);
	ops[n++] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = buffer};
	batch(c, ops, n);
	grpc_byte_buffer_destroy(buffer);
}

void fake_send_message(struct fake_call *c, const ProtobufCMessage *message)
{
	size_t size = protobuf_c_message_get_packed_size(message);
	uint8_t *bytes = malloc(size + 1);

	protobuf_c_message_pack(message, bytes);
	fake_send_bytes(c, bytes, size);
	free(bytes);
}

void fake_end(struct fake_call *c, grpc_status_code code, const char *words)
{
	grpc_slice details = grpc_slice_from_copied_string(words);
	int cancelled;
	grpc_op ops[3] = {0};
	size_t n = 0;

	greet(c, ops, &n);
	ops[n] = (grpc_op){.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
	ops[n].data.send_status_from_server.status = code;
	ops[n++].data.send_status_from_server.status_details = &details;
	ops[n++] = (grpc_op){.op = GRPC_OP_RECV_CLOSE_ON_SERVER, .data.recv_close_on_server.cancelled = &cancelled};
	batch(c, ops, n);
	grpc_slice_unref(details);
}

/* Never answers: waits for the client to give up. */
void fake_stall(struct fake_call *c)
{
	int cancelled;
	grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER, .data.recv_close_on_server.cancelled = &cancelled};

	batch(c, &op, 1);
}

/* A unary reply, with the faults. */
void fake_answer(struct fake_call *c, ProtobufCMessage *reply)
{
	struct fake *f = c->fake;

	if (f->raw_method && !strcmp(f->raw_method, c->method)) {
		fake_send_bytes(c, f->raw, f->raw_bytes);
	} else {
		if (f->twist)
			f->twist(f, c->method, reply);
		fake_send_message(c, reply);
	}
	fake_end(c, GRPC_STATUS_OK, "");
}

/* ---- threads ------------------------------------------------------------------------------------------------------ */

static void call_free(struct fake_call *c)
{
	if (c->call)
		grpc_call_unref(c->call);
	grpc_completion_queue_shutdown(c->queue);
	while (grpc_completion_queue_pluck(c->queue, NULL, gpr_inf_future(GPR_CLOCK_REALTIME), NULL).type !=
	       GRPC_QUEUE_SHUTDOWN)
		;
	grpc_completion_queue_destroy(c->queue);
	grpc_call_details_destroy(&c->details);
	grpc_metadata_array_destroy(&c->metadata);
	free(c);
}

static void *call_main(void *arg)
{
	struct fake_call *c = arg;
	struct fake *f = c->fake;
	size_t size = 0;
	uint8_t *bytes = fake_receive(c, &size);

	pthread_mutex_lock(&f->lock);
	f->calls++;
	if (bytes)
		fake_call_dispatch(c, bytes, size);
	pthread_mutex_unlock(&f->lock);
	free(bytes);
	call_free(c);
	pthread_mutex_lock(&f->lock);
	f->running--;
	pthread_cond_broadcast(&f->idle);
	pthread_mutex_unlock(&f->lock);
	return NULL;
}

void fake_call_request(struct fake *f)
{
	struct fake_call *c = calloc(1, sizeof(*c));

	c->fake = f;
	c->queue = grpc_completion_queue_create_for_pluck(NULL);
	grpc_call_details_init(&c->details);
	grpc_metadata_array_init(&c->metadata);
	TAG_RELEASE(c);
	MUST(grpc_server_request_call(f->server, &c->call, &c->details, &c->metadata, c->queue, f->queue, c) ==
	     GRPC_CALL_OK);
}

void *fake_accept_main(void *arg)
{
	struct fake *f = arg;

	for (;;) {
		grpc_event event = grpc_completion_queue_next(f->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
		struct fake_call *c = event.tag;
		pthread_t thread;
		char path[96];

		if (event.type == GRPC_QUEUE_SHUTDOWN)
			return NULL;
		if (c == (void *)f)
			continue;
		TAG_ACQUIRE(c);
		if (!event.success) {
			call_free(c);
			continue;
		}
		snprintf(path, sizeof(path), "%.*s", (int)GRPC_SLICE_LENGTH(c->details.method),
			 (const char *)GRPC_SLICE_START_PTR(c->details.method));
		snprintf(c->method, sizeof(c->method), "%.31s", strrchr(path, '/') + 1);
		pthread_mutex_lock(&f->lock);
		f->running++;
		if (!f->ending)
			fake_call_request(f);
		pthread_mutex_unlock(&f->lock);
		MUST(!pthread_create(&thread, NULL, call_main, c));
		pthread_detach(thread);
	}
}
