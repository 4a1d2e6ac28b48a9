/* Events and single calls. See daemon/etcd/engine.h. */
#include "daemon/etcd/engine.h"

#include "store/clock.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/support/time.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { LOOK_US = 200000 };

enum status engine_fail(struct etcd *e, enum status s, const char *format, ...)
{
	const int n = snprintf(e->why, sizeof e->why, "etcd at %.200s: ", e->endpoint);
	va_list args;

	va_start(args, format);
	vsnprintf(e->why + n, sizeof e->why - (size_t)n, format, args);
	va_end(args);
	for (char *at = e->why; *at; at++)
		if ((unsigned char)*at < ' ' || (unsigned char)*at >= 0x7f)
			*at = '?'; /* it may quote what came over the network */
	return s;
}

/* ---- events ---- */

static gpr_timespec time_of(uint64_t until_us)
{
	const uint64_t now = clock_us(), left = until_us > now ? until_us - now : 0;

	return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros((int64_t)left, GPR_TIMESPAN));
}

/* Notes one event. False: none came until then, or in LOOK_US: nothing but a call of gRPC's puts an event into a queue,
 * so an interrupt is looked for. */
static bool note_event(struct etcd *e, uint64_t until_us)
{
	const uint64_t look_us = clock_us() + LOOK_US;
	grpc_event event = grpc_completion_queue_next(e->queue, time_of(until_us < look_us ? until_us : look_us), NULL);

	if (event.type != GRPC_OP_COMPLETE)
		return false;
	e->pending[(char *)event.tag - e->tags] = false;
	return true;
}

bool engine_wait(struct etcd *e, enum engine_tag tag, uint64_t until_us)
{
	while (e->pending[tag]) {
		if (atomic_load_explicit(&e->interrupted, memory_order_acquire))
			return false;
		if (!note_event(e, until_us) && clock_us() >= until_us)
			return false;
	}
	return true;
}

void engine_reap(struct etcd *e, enum engine_tag tag, struct wire *w)
{
	bool cancelled = false;

	while (e->pending[tag]) {
		if (!cancelled && atomic_load_explicit(&e->interrupted, memory_order_acquire)) {
			grpc_call_cancel(w->call, NULL);
			cancelled = true;
		}
		note_event(e, UINT64_MAX);
	}
}

void etcd_interrupt(struct etcd *e)
{
	atomic_store_explicit(&e->interrupted, true, memory_order_release);
}

void etcd_resume(struct etcd *e, uint64_t call_us)
{
	e->options.call_us = call_us;
	atomic_store_explicit(&e->interrupted, false, memory_order_release);
}

enum status etcd_sleep(struct etcd *e, uint64_t wait_us)
{
	const uint64_t until_us = clock_us() + wait_us;

	while (!atomic_load_explicit(&e->interrupted, memory_order_acquire)) {
		if (clock_us() >= until_us)
			return STATUS_OK;
		note_event(e, until_us);
	}
	return STATUS_CANCELLED;
}

/* ---- one gRPC call ---- */

void wire_start(struct etcd *e, struct wire *w, enum engine_tag tag, const grpc_op *ops, size_t n)
{
	e->pending[tag] = grpc_call_start_batch(w->call, ops, n, &e->tags[tag], NULL) == GRPC_CALL_OK;
}

enum status wire_begin(struct etcd *e, struct wire *w, const char *path, uint64_t wait_us)
{
	const gpr_timespec until = wait_us ? time_of(clock_us() + wait_us) : gpr_inf_future(GPR_CLOCK_MONOTONIC);

	memset(w, 0, sizeof *w);
	if (!e->channel)
		return engine_fail(e, STATUS_UNAVAILABLE, "%s: there is no connection", path);
	w->call = grpc_channel_create_call(e->channel, NULL, GRPC_PROPAGATE_DEFAULTS, e->queue,
					   grpc_slice_from_static_string(path), NULL, until, NULL);
	if (!w->call)
		return engine_fail(e, STATUS_INTERNAL, "%s: gRPC makes no call", path);
	grpc_metadata_array_init(&w->initial);
	grpc_metadata_array_init(&w->trailing);
	w->details = grpc_empty_slice();
	w->code = GRPC_STATUS_UNKNOWN;
	return STATUS_OK;
}

void wire_end(struct wire *w)
{
	if (!w->call)
		return;
	grpc_metadata_array_destroy(&w->initial);
	grpc_metadata_array_destroy(&w->trailing);
	grpc_slice_unref(w->details);
	if (w->sent)
		grpc_byte_buffer_destroy(w->sent);
	if (w->received)
		grpc_byte_buffer_destroy(w->received);
	grpc_call_unref(w->call);
	memset(w, 0, sizeof *w);
}

grpc_byte_buffer *wire_pack(const ProtobufCMessage *message)
{
	grpc_slice slice = grpc_slice_malloc(protobuf_c_message_get_packed_size(message));
	grpc_byte_buffer *out;

	protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
	out = grpc_raw_byte_buffer_create(&slice, 1);
	grpc_slice_unref(slice);
	return out;
}

ProtobufCMessage *wire_unpack(const ProtobufCMessageDescriptor *type, grpc_byte_buffer *bytes)
{
	grpc_byte_buffer_reader reader;
	ProtobufCMessage *out = NULL;

	if (!bytes || !grpc_byte_buffer_reader_init(&reader, bytes))
		return NULL;
	grpc_slice all = grpc_byte_buffer_reader_readall(&reader);

	out = protobuf_c_message_unpack(type, NULL, GRPC_SLICE_LENGTH(all), GRPC_SLICE_START_PTR(all));
	grpc_slice_unref(all);
	grpc_byte_buffer_reader_destroy(&reader);
	return out;
}

/* The status of a gRPC code. etcd says by INVALID_ARGUMENT that a password is wrong, by FAILED_PRECONDITION that it has
 * no users. */
static enum status status_of(grpc_status_code code, bool authenticates)
{
	switch (code) {
	case GRPC_STATUS_OK: return STATUS_OK;
	case GRPC_STATUS_UNAUTHENTICATED:
	case GRPC_STATUS_PERMISSION_DENIED: return STATUS_DENIED;
	case GRPC_STATUS_INVALID_ARGUMENT:
	case GRPC_STATUS_FAILED_PRECONDITION: return authenticates ? STATUS_DENIED : STATUS_UNAVAILABLE;
	case GRPC_STATUS_NOT_FOUND: return STATUS_NOT_FOUND;
	case GRPC_STATUS_OUT_OF_RANGE: return STATUS_STALE;
	case GRPC_STATUS_DEADLINE_EXCEEDED: return STATUS_DEADLINE;
	case GRPC_STATUS_RESOURCE_EXHAUSTED: return STATUS_INVALID; /* an answer over ETCD_MESSAGE_MAX */
	default: return STATUS_UNAVAILABLE;
	}
}

enum status wire_status(struct etcd *e, const struct wire *w, const char *name)
{
	const enum status s = status_of(w->code, !strcmp(name, "Authenticate"));

	if (s == STATUS_OK)
		return STATUS_OK;
	if (atomic_load_explicit(&e->interrupted, memory_order_acquire))
		return engine_fail(e, STATUS_CANCELLED, "%s: interrupted", name);
	if (s == STATUS_DEADLINE)
		return engine_fail(e, s, "%s: no answer within %llu ms", name,
				   (unsigned long long)(e->options.call_us / 1000));
	return engine_fail(e, s, "%s: %.*s", name, (int)GRPC_SLICE_LENGTH(w->details),
			   (const char *)GRPC_SLICE_START_PTR(w->details));
}

static enum status answer_of(struct etcd *e, struct wire *w, const char *name, const ProtobufCMessageDescriptor *type,
			     ProtobufCMessage **answer)
{
	const enum status s = wire_status(e, w, name);

	if (s != STATUS_OK)
		return s;
	*answer = wire_unpack(type, w->received);
	return *answer ? STATUS_OK : engine_fail(e, STATUS_INVALID, "%s: the answer is none of etcd's", name);
}

enum status engine_call(struct etcd *e, const char *path, const ProtobufCMessage *ask,
			const ProtobufCMessageDescriptor *type, ProtobufCMessage **answer)
{
	grpc_metadata token = { .key = grpc_slice_from_static_string("token"),
				.value = grpc_slice_from_static_string(e->token) };
	struct wire w;
	enum status s = wire_begin(e, &w, path, e->options.call_us);

	if (s != STATUS_OK)
		return s;
	w.sent = wire_pack(ask);
	const grpc_op ops[] = {
		{ .op = GRPC_OP_SEND_INITIAL_METADATA, .data.send_initial_metadata = { e->token[0] ? 1 : 0, &token } },
		{ .op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = w.sent },
		{ .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT },
		{ .op = GRPC_OP_RECV_INITIAL_METADATA, .data.recv_initial_metadata.recv_initial_metadata = &w.initial },
		{ .op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &w.received },
		{ .op = GRPC_OP_RECV_STATUS_ON_CLIENT,
		  .data.recv_status_on_client = { &w.trailing, &w.code, &w.details, NULL } },
	};

	wire_start(e, &w, TAG_UNARY, ops, sizeof ops / sizeof ops[0]);
	engine_reap(e, TAG_UNARY, &w);
	s = answer_of(e, &w, strrchr(path, '/') + 1, type, answer);
	wire_end(&w);
	return s;
}
