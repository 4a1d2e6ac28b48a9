/* The watch: a stream that stays open beside the single calls. Of its three batches each has a tag of its own; an
 * answer that has come is kept until etcd_watch_next asks for it, and only then the next one is received, so that etcd
 * holds what this thread has no time for. */
#include "daemon/etcd/engine.h"

#include "etcd.pb-c.h"
#include "store/clock.h"

#include <grpc/byte_buffer.h>
#include <string.h>

static void receive(struct etcd *e, bool first)
{
	struct wire *w = &e->watch;
	const grpc_op ops[] = {
		{ .op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &w->received },
		{ .op = GRPC_OP_RECV_INITIAL_METADATA,
		  .data.recv_initial_metadata.recv_initial_metadata = &w->initial },
	};

	wire_start(e, w, TAG_WATCH_RECEIVED, ops, first ? 2 : 1);
}

static void send_create(struct etcd *e, const char *prefix, int64_t revision)
{
	Etcdserverpb__WatchCreateRequest create = ETCDSERVERPB__WATCH_CREATE_REQUEST__INIT;
	Etcdserverpb__WatchRequest ask = ETCDSERVERPB__WATCH_REQUEST__INIT;
	char end[512];
	/* hasleader: etcd ends the stream if this member of etcd is cut off from the others. */
	grpc_metadata metadata[] = {
		{ .key = grpc_slice_from_static_string("hasleader"), .value = grpc_slice_from_static_string("true") },
		{ .key = grpc_slice_from_static_string("token"), .value = grpc_slice_from_static_string(e->token) },
	};

	create.key = engine_text(prefix, strlen(prefix));
	create.range_end = range_end(prefix, end, sizeof end);
	create.start_revision = revision;
	create.fragment = true;
	ask.request_union_case = ETCDSERVERPB__WATCH_REQUEST__REQUEST_UNION_CREATE_REQUEST;
	ask.create_request = &create;
	e->watch.sent = wire_pack(&ask.base);
	const grpc_op ops[] = {
		{ .op = GRPC_OP_SEND_INITIAL_METADATA,
		  .data.send_initial_metadata = { e->token[0] ? 2 : 1, metadata } },
		{ .op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = e->watch.sent },
	};

	wire_start(e, &e->watch, TAG_WATCH_SENT, ops, 2);
}

void watch_close(struct etcd *e)
{
	if (!e->watching)
		return;
	grpc_call_cancel(e->watch.call, NULL);
	for (enum engine_tag tag = TAG_WATCH_SENT; tag <= TAG_WATCH_STATUS; tag++)
		engine_reap(e, tag, &e->watch);
	wire_end(&e->watch);
	e->watching = false;
}

/* The answer that says that the watch has ended, or cannot begin. */
static enum status ended_by(struct etcd *e, const Etcdserverpb__WatchResponse *r)
{
	if (r->compact_revision)
		return engine_fail(e, STATUS_STALE, "Watch: the revision is compacted");
	return engine_fail(e, strstr(r->cancel_reason, "ermission") ? STATUS_DENIED : STATUS_UNAVAILABLE, 
			   "Watch: %.200s", r->cancel_reason[0] ? r->cancel_reason : "etcd has ended it");
}

/* The stream is over; its status says why, and comes at once. */
static enum status stream_ended(struct etcd *e)
{
	if (!engine_wait(e, TAG_WATCH_STATUS, clock_us() + e->options.call_us))
		return engine_fail(e, STATUS_UNAVAILABLE, "Watch: the stream has ended, and its status did not come");
	const enum status s = wire_status(e, &e->watch, "Watch");

	return s == STATUS_OK ? engine_fail(e, STATUS_UNAVAILABLE, "Watch: etcd has ended the stream") : s;
}

/* The next answer, to be freed; *s says why there is none. */
static Etcdserverpb__WatchResponse *take_answer(struct etcd *e, uint64_t until_us, enum status *s)
{
	Etcdserverpb__WatchResponse *r;

	if (!engine_wait(e, TAG_WATCH_RECEIVED, until_us)) {
		*s = atomic_load_explicit(&e->interrupted, memory_order_acquire) ? STATUS_CANCELLED : STATUS_MISS;
		return NULL;
	}
	if (!e->watch.received) {
		*s = stream_ended(e);
		return NULL;
	}
	r = (Etcdserverpb__WatchResponse *)wire_unpack(&etcdserverpb__watch_response__descriptor, e->watch.received);
	grpc_byte_buffer_destroy(e->watch.received);
	e->watch.received = NULL;
	*s = !r ? engine_fail(e, STATUS_INVALID, "Watch: the answer is none of etcd's") :
	     r->canceled ? ended_by(e, r) : STATUS_OK;
	if (*s == STATUS_OK) {
		receive(e, false);
		return r;
	}
	if (r)
		protobuf_c_message_free_unpacked(&r->base, NULL);
	return NULL;
}

enum status etcd_watch(struct etcd *e, const char *prefix, int64_t revision)
{
	Etcdserverpb__WatchResponse *r;
	enum status s;

	watch_close(e);
	s = wire_begin(e, &e->watch, "/etcdserverpb.Watch/Watch", 0);
	if (s != STATUS_OK)
		return s;
	e->watching = true;
	const grpc_op status = { .op = GRPC_OP_RECV_STATUS_ON_CLIENT,
				 .data.recv_status_on_client = { &e->watch.trailing, &e->watch.code,
								 &e->watch.details, NULL } };

	wire_start(e, &e->watch, TAG_WATCH_STATUS, &status, 1);
	send_create(e, prefix, revision);
	receive(e, true);
	r = take_answer(e, clock_us() + e->options.call_us, &s);
	if (s == STATUS_MISS)
		s = engine_fail(e, STATUS_DEADLINE, "Watch: no answer in time");
	if (r && (!r->created || r->n_events))
		s = engine_fail(e, STATUS_INVALID, "Watch: the first answer does not say that the watch is there");
	if (r)
		protobuf_c_message_free_unpacked(&r->base, NULL);
	if (s != STATUS_OK)
		watch_close(e);
	return s;
}

static void give_events(const Etcdserverpb__WatchResponse *r, etcd_take_fn *take, void *arg)
{
	for (size_t i = 0; i < r->n_events; i++) {
		const Etcdserverpb__Event *event = r->events[i];
		const Etcdserverpb__KeyValue *kv = event->kv;

		if (!kv)
			continue;
		const struct etcd_key key = { .key = kv->key.data, .key_bytes = kv->key.len, .value = kv->value.data,
					      .value_bytes = kv->value.len, .mod_revision = kv->mod_revision,
					      .lease = kv->lease,
					      .deleted = event->type == ETCDSERVERPB__EVENT__EVENT_TYPE__DELETE };

		take(arg, &key);
	}
}

enum status etcd_watch_next(struct etcd *e, uint64_t wait_us, etcd_take_fn *take, void *arg)
{
	enum status s;

	if (!e->watching)
		return engine_fail(e, STATUS_UNAVAILABLE, "Watch: there is none");
	Etcdserverpb__WatchResponse *r = take_answer(e, clock_us() + wait_us, &s);

	if (!r)
		return s;
	give_events(r, take, arg);
	protobuf_c_message_free_unpacked(&r->base, NULL);
	return STATUS_OK;
}
