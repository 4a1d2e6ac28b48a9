/* One call, see transport/grpc_call.h. A call with one message each way is a single batch of gRPC, so it costs no more
 * than gRPC itself.
 */
#include "client/transport/grpc_call.h"

#include "client/value/clock.h"

#include <grpc/byte_buffer.h>
#include <stdlib.h>
#include <string.h>

enum { SEGMENTS_INLINE = 64, BATCH_MAX = 6 };

#define CACHE "/terrace.v1.Cache/"
#define ADMIN "/terrace.v1.Admin/"

static const struct {
	const char *path;
	bool streamed; /* many messages come back */
} methods[CLIENT_METHOD_COUNT] = {
	[CLIENT_OPEN_SESSION] = {CACHE "OpenSession", false},
	[CLIENT_ATTACH] = {CACHE "Attach", false},
	[CLIENT_CLOSE_SESSION] = {CACHE "CloseSession", false},
	[CLIENT_LOOKUP] = {CACHE "Lookup", false},
	[CLIENT_LEASE] = {CACHE "Lease", false},
	[CLIENT_RELEASE] = {CACHE "Release", false},
	[CLIENT_RESERVE] = {CACHE "Reserve", false},
	[CLIENT_COMMIT] = {CACHE "Commit", false},
	[CLIENT_ABORT] = {CACHE "Abort", false},
	[CLIENT_PUT] = {CACHE "Put", false},
	[CLIENT_GET] = {CACHE "Get", true},
	[CLIENT_TOUCH] = {CACHE "Touch", false},
	[CLIENT_REPORT] = {CACHE "Report", false},
	[CLIENT_DELETE] = {CACHE "Delete", false},
	[CLIENT_WARM] = {CACHE "Warm", false},
	[CLIENT_FLUSH] = {CACHE "Flush", false},
	[CLIENT_WATCH] = {CACHE "Watch", true},
	[CLIENT_ADMIN_STATS] = {ADMIN "Stats", false},
	[CLIENT_ADMIN_INSPECT] = {ADMIN "Inspect", false},
	[CLIENT_ADMIN_EXPLAIN] = {ADMIN "Explain", false},
	[CLIENT_ADMIN_GRAPH] = {ADMIN "Graph", false},
	[CLIENT_ADMIN_TRACE_START] = {ADMIN "TraceStart", false},
	[CLIENT_ADMIN_TRACE_STOP] = {ADMIN "TraceStop", false},
	[CLIENT_ADMIN_VERIFY] = {ADMIN "Verify", false},
	[CLIENT_ADMIN_COMPACT] = {ADMIN "Compact", false},
	[CLIENT_ADMIN_LAYOUTS] = {ADMIN "Layouts", false},
	[CLIENT_ADMIN_DRAIN] = {ADMIN "Drain", false},
	[CLIENT_ADMIN_CONFIG] = {ADMIN "Config", false},
	[CLIENT_ADMIN_PEERS] = {ADMIN "Peers", false},
	[CLIENT_ADMIN_LOCATE] = {ADMIN "Locate", false},
	[CLIENT_HEALTH_CHECK] = {"/grpc.health.v1.Health/Check", false},
};

const char *client_call_path(enum client_method method)
{
	return methods[method].path;
}

/* ---- messages ----------------------------------------------------------------------------------------------------- */

static size_t varint_put(uint8_t *to, uint64_t value)
{
	size_t n = 0;

	for (; value >= 0x80; value >>= 7)
		to[n++] = (uint8_t)(value | 0x80);
	to[n++] = (uint8_t)value;
	return n;
}

static grpc_byte_buffer *out_pack(const struct client_out *out)
{
	size_t packed = protobuf_c_message_get_packed_size(out->message), head_bytes = 0;
	uint8_t head[20];
	grpc_byte_buffer *buffer;
	grpc_slice slice;

	if (out->tail_bytes) {
		head_bytes = varint_put(head, (uint64_t)out->tail_field << 3 | 2);
		head_bytes += varint_put(head + head_bytes, out->tail_bytes);
	}
	slice = grpc_slice_malloc(packed + head_bytes + out->tail_bytes);
	protobuf_c_message_pack(out->message, GRPC_SLICE_START_PTR(slice));
	if (out->tail_bytes) {
		memcpy(GRPC_SLICE_START_PTR(slice) + packed, head, head_bytes);
		memcpy(GRPC_SLICE_START_PTR(slice) + packed + head_bytes, out->tail, out->tail_bytes);
	}
	buffer = grpc_raw_byte_buffer_create(&slice, 1);
	grpc_slice_unref(slice);
	return buffer;
}

/* Shows the received buffer's slices to job.take. */
static enum terrace_status message_take(struct client_rpc_call *c)
{
	grpc_slice_buffer *slices = &c->received->data.raw.slice_buffer;
	struct client_segment few[SEGMENTS_INLINE], *segments = few;
	enum terrace_status status;

	if (c->received->type != GRPC_BB_RAW || c->received->data.raw.compression != GRPC_COMPRESS_NONE)
		return client_fail(TERRACE_INTERNAL, "the daemon sent a compressed message, which it never does: "
				   "is it another program's address?");
	if (!c->job.take)
		return TERRACE_OK;
	if (slices->count > SEGMENTS_INLINE) {
		segments = malloc(slices->count * sizeof(*segments));
		if (!segments)
			return client_fail(TERRACE_EXHAUSTED, "no memory for a message of %zu bytes", slices->length);
	}
	for (size_t i = 0; i < slices->count; i++) {
		segments[i].data = GRPC_SLICE_START_PTR(slices->slices[i]);
		segments[i].size = GRPC_SLICE_LENGTH(slices->slices[i]);
	}
	status = c->job.take(c->job.arg, &(struct client_message){segments, slices->count, slices->length});
	if (segments != few)
		free(segments);
	return status;
}

/* ---- one call ----------------------------------------------------------------------------------------------------- */

/* A call that this side did not cancel was cancelled by a daemon on its way out. */
static enum terrace_status status_of_code(const struct client_rpc_call *c)
{
	switch (c->code) {
	case GRPC_STATUS_OK:
		return TERRACE_OK;
	case GRPC_STATUS_CANCELLED:
		return atomic_load_explicit(&c->cancelled, memory_order_relaxed) ? TERRACE_CANCELLED :
										   TERRACE_UNAVAILABLE;
	case GRPC_STATUS_INVALID_ARGUMENT:
	case GRPC_STATUS_OUT_OF_RANGE:
		return TERRACE_INVALID;
	case GRPC_STATUS_DEADLINE_EXCEEDED:
		return TERRACE_DEADLINE;
	case GRPC_STATUS_NOT_FOUND:
		return TERRACE_NOT_FOUND;
	case GRPC_STATUS_ALREADY_EXISTS:
		return TERRACE_EXISTS;
	case GRPC_STATUS_PERMISSION_DENIED:
	case GRPC_STATUS_UNAUTHENTICATED:
		return TERRACE_DENIED;
	case GRPC_STATUS_RESOURCE_EXHAUSTED:
		return TERRACE_EXHAUSTED;
	case GRPC_STATUS_FAILED_PRECONDITION:
		return TERRACE_PRECONDITION;
	case GRPC_STATUS_ABORTED:
		return TERRACE_BUSY;
	case GRPC_STATUS_UNIMPLEMENTED:
		return TERRACE_UNSUPPORTED;
	case GRPC_STATUS_DATA_LOSS:
		return TERRACE_CORRUPT;
	case GRPC_STATUS_UNAVAILABLE:
	case GRPC_STATUS_UNKNOWN: /* the daemon never says it; the transport does when it breaks ("Stream removed") */
		return TERRACE_UNAVAILABLE;
	default:
		return TERRACE_INTERNAL;
	}
}

/* A call that ends here, by its time or a cancel, loses what has come and was not taken yet; but gRPC tells the daemon's OK if that has come,
 * too. TERRACE_OK: it did not end here. */
static enum terrace_status ended_here(const struct client_rpc_call *c)
{
	if (atomic_load_explicit(&c->cancelled, memory_order_relaxed))
		return TERRACE_CANCELLED;
	return c->job.deadline_us && client_now_us() >= c->job.deadline_us ? TERRACE_DEADLINE : TERRACE_OK;
}

/* The daemon has sent the status and its words, rather than gRPC found one, here or there: the daemon's are marked. gRPC makes a few alone. */
static bool is_daemons(const struct client_rpc_call *c, enum terrace_status status)
{
	if (status != TERRACE_UNAVAILABLE && status != TERRACE_DEADLINE && status != TERRACE_CANCELLED && status != TERRACE_UNSUPPORTED &&
	    status != TERRACE_INTERNAL)
		return true;
	for (size_t i = 0; i < c->trailing.count; i++)
		if (grpc_slice_str_cmp(c->trailing.metadata[i].key, "terrace-status") == 0)
			return true;
	return false;
}

/* The connection does not work: because there is no daemon any more, or another one. A call that waits for the daemon asks again anyway. */
static enum terrace_status lost(const struct client_rpc_call *c, const char *name)
{
	const char *address = c->at->address;
	const int error = c->job.wait_for_ready ? 0 : client_address_error(address);
	char words[CLIENT_ADDRESS_WORDS_MAX], tls[CLIENT_TLS_WORDS_MAX];

	if (!error && !c->job.wait_for_ready &&
	    client_tls_problem_soon(&c->at->tls_last, address, &c->at->tls, tls))
		return client_fail(TERRACE_UNAVAILABLE, "%s: %s", name, tls);
	if (!error)
		return client_fail(TERRACE_UNAVAILABLE,
				   "%s: the connection to the daemon at %.200s broke: it has restarted or is stopping: try again, and open sessions again "
				   "(terrace_session_reopen)", name, address);
	client_address_words(address, error, words);
	return client_fail(TERRACE_UNAVAILABLE, "%s: %s", name, words);
}

/* What gRPC found here, in words of ours. */
static enum terrace_status fail_here(const struct client_rpc_call *c, enum terrace_status status, const char *name)
{
	switch (status) {
	case TERRACE_UNAVAILABLE:
		return lost(c, name);
	case TERRACE_DEADLINE:
		return client_fail(status, "%s: the daemon at %.200s did not answer in the call's time: "
				   "give it more, or see if the daemon is busy "
				   "(terracectl status)", name, c->at->address);
	case TERRACE_CANCELLED:
		return client_fail(status, "%s: this process cancelled the call", name);
	case TERRACE_UNSUPPORTED:
		return client_fail(status, "%s: what answers at %.200s does not know this call: is it a terraced, and of this version?", name,
				   c->at->address);
	default:
		return client_fail(status, "%s: gRPC cannot carry the call: %.*s", name, (int)GRPC_SLICE_LENGTH(c->details),
				   (const char *)GRPC_SLICE_START_PTR(c->details));
	}
}

enum terrace_status client_call_status(const struct client_rpc_call *c)
{
	const char *name = strrchr(methods[c->job.method].path, '/') + 1;
	enum terrace_status status = status_of_code(c);

	if (c->taken)
		return client_fail(c->taken, "%s", c->error);
	if (!status && c->job.whole && !c->job.whole(c->job.arg) && (status = ended_here(c)))
		return client_fail(status, "%s: the call ended before all of the answer had come: give it more time", name);
	if (status && (!is_daemons(c, status) || !GRPC_SLICE_LENGTH(c->details)))
		return fail_here(c, status, name);
	if (status)
		return client_fail(status, "%s: %.*s", name, (int)GRPC_SLICE_LENGTH(c->details), 
				   (const char *)GRPC_SLICE_START_PTR(c->details));
	return TERRACE_OK;
}

static void batch_add(grpc_op *ops, size_t *n, grpc_op_type type)
{
	ops[*n] = (grpc_op){.op = type};
	(*n)++;
}

static void add_greeting(struct client_rpc_call *c, grpc_op *ops, size_t *n)
{
	if (c->greeted)
		return;
	batch_add(ops, n, GRPC_OP_SEND_INITIAL_METADATA);
	if (c->job.wait_for_ready)
		ops[*n - 1].flags =
			GRPC_INITIAL_METADATA_WAIT_FOR_READY | GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET;
	c->greeted = true;
}

static void add_listening(struct client_rpc_call *c, grpc_op *ops, size_t *n)
{
	if (c->listening)
		return;
	batch_add(ops, n, GRPC_OP_RECV_INITIAL_METADATA);
	ops[*n - 1].data.recv_initial_metadata.recv_initial_metadata = &c->initial;
	c->listening = true;
}

static void add_receive(struct client_rpc_call *c, grpc_op *ops, size_t *n)
{
	batch_add(ops, n, GRPC_OP_RECV_MESSAGE);
	ops[*n - 1].data.recv_message.recv_message = &c->received;
}

static void add_status(struct client_rpc_call *c, grpc_op *ops, size_t *n)
{
	batch_add(ops, n, GRPC_OP_RECV_STATUS_ON_CLIENT);
	ops[*n - 1].data.recv_status_on_client.trailing_metadata = &c->trailing;
	ops[*n - 1].data.recv_status_on_client.status = &c->code;
	ops[*n - 1].data.recv_status_on_client.status_details = &c->details;
}

/* False if gRPC refuses the batch: a mistake in this file, answered like a broken call. */
static bool batch_start(struct client_rpc_call *c, const grpc_op *ops, size_t n)
{
	TAG_RELEASE(c);
	if (grpc_call_start_batch(c->call, ops, n, c, NULL) == GRPC_CALL_OK)
		return true;
	c->taken = TERRACE_INTERNAL;
	strcpy(c->error, "gRPC refused a batch: a mistake of this library");
	return false;
}

bool client_call_send(struct client_rpc_call *c, const struct client_out *out)
{
	bool streamed = methods[c->job.method].streamed;
	grpc_op ops[BATCH_MAX];
	size_t n = 0;

	c->sent = out_pack(out);
	add_greeting(c, ops, &n);
	batch_add(ops, &n, GRPC_OP_SEND_MESSAGE);
	ops[n - 1].data.send_message.send_message = c->sent;
	c->phase = CALL_SENDING;
	if (out->last) {
		batch_add(ops, &n, GRPC_OP_SEND_CLOSE_FROM_CLIENT);
		add_listening(c, ops, &n);
		add_receive(c, ops, &n);
		if (!streamed)
			add_status(c, ops, &n);
		c->phase = streamed ? CALL_RECEIVING : CALL_ANSWER;
	}
	return batch_start(c, ops, n);
}

bool client_call_receive(struct client_rpc_call *c)
{
	grpc_op ops[1];
	size_t n = 0;

	add_receive(c, ops, &n);
	c->phase = CALL_RECEIVING;
	return batch_start(c, ops, n);
}

bool client_call_await_status(struct client_rpc_call *c)
{
	grpc_op ops[2];
	size_t n = 0;

	add_listening(c, ops, &n);
	add_status(c, ops, &n);
	c->phase = CALL_STATUS;
	return batch_start(c, ops, n);
}

/* The daemon has ended the call before it was told all: its answer, if it has sent one, and the status. */
static bool await_answer(struct client_rpc_call *c)
{
	grpc_op ops[3];
	size_t n = 0;

	add_listening(c, ops, &n);
	add_receive(c, ops, &n);
	add_status(c, ops, &n);
	c->phase = CALL_ANSWER;
	return batch_start(c, ops, n);
}

void client_call_take(struct client_rpc_call *c)
{
	if (c->received && !c->taken) {
		c->taken = message_take(c);
		if (c->taken)
			strcpy(c->error, terrace_error());
	}
	grpc_byte_buffer_destroy(c->received);
	c->received = NULL;
}

/* A reply in hand counts, even if a cancel or the deadline came before its status: it may name a lease, to be given back. */
static void call_answered(struct client_rpc_call *c)
{
	if (c->received)
		c->code = GRPC_STATUS_OK;
	if (c->code == GRPC_STATUS_OK && !c->received) {
		c->taken = ended_here(c);
		strcpy(c->error, c->taken ? "the call ended before its answer had come: give it more time" : "the daemon answered without a message: is it of another version?");
		c->taken = c->taken ? c->taken : TERRACE_INTERNAL;
	}
	client_call_take(c);
	c->phase = CALL_DONE;
}

bool client_call_step(struct client_rpc_call *c, bool success)
{
	struct client_out out = {0};
	bool message;

	switch (c->phase) {
	case CALL_SENDING:
		grpc_byte_buffer_destroy(c->sent);
		c->sent = NULL;
		if (!success)
			return await_answer(c);
		c->job.more(c->job.arg, &out);
		return client_call_send(c, &out);
	case CALL_RECEIVING:
		message = c->received != NULL;
		client_call_take(c);
		if (c->taken)
			client_call_cancel(c);
		return message && !c->taken ? client_call_receive(c) : client_call_await_status(c);
	case CALL_ANSWER:
		call_answered(c);
		return false;
	default:
		c->phase = CALL_DONE;
		return false;
	}
}

void client_call_cancel(struct client_rpc_call *c)
{
	atomic_store_explicit(&c->cancelled, true, memory_order_relaxed);
	grpc_call_cancel(c->call, NULL);
}

gpr_timespec client_call_time(uint64_t deadline_us)
{
	if (!deadline_us)
		return gpr_inf_future(GPR_CLOCK_MONOTONIC);
	return (gpr_timespec){.tv_sec = (int64_t)(deadline_us / 1000000),
			      .tv_nsec = (int32_t)(deadline_us % 1000000 * 1000),
			      .clock_type = GPR_CLOCK_MONOTONIC};
}

enum terrace_status client_call_init(struct client_rpc_call *c, struct client_rpc *rpc,
				     struct client_endpoint *at, const struct client_job *job,
				     grpc_channel *channel, void *handle, grpc_completion_queue *queue)
{
	*c = (struct client_rpc_call){.rpc = rpc, .at = at, .job = *job, .details = grpc_empty_slice()};
	grpc_metadata_array_init(&c->initial);
	grpc_metadata_array_init(&c->trailing);
	c->call = grpc_channel_create_registered_call(channel, NULL, GRPC_PROPAGATE_DEFAULTS, queue, handle,
						      client_call_time(job->deadline_us), NULL);
	if (!c->call)
		return client_fail(TERRACE_INTERNAL, "gRPC made no call: a mistake of this library");
	return TERRACE_OK;
}

void client_call_fini(struct client_rpc_call *c)
{
	grpc_byte_buffer_destroy(c->sent);
	grpc_byte_buffer_destroy(c->received);
	grpc_metadata_array_destroy(&c->initial);
	grpc_metadata_array_destroy(&c->trailing);
	grpc_slice_unref(c->details);
	grpc_call_unref(c->call);
}
