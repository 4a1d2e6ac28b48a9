/* See calls.h. Each call has three batches under way at most: one that sends, one that receives a message, one that receives the status. */
#include "tests/hostile/calls.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "health.pb-c.h"
#include "terrace.pb-c.h"

enum {
	CHANNELS = 4, FLIGHT_MAX = 48, HELD_MAX = 32, SLOTS = FLIGHT_MAX + HELD_MAX,
	MANY = 20, READ_MOST = 8, CODES = 17,
	LIFE_MS = 500, VALID_LIFE_MS = 15000, WATCH_LIFE_MS = 50, HANG_S = 120, CHANNEL_CALLS = 1500,
};

enum op { OP_SEND, OP_RECEIVE, OP_STATUS };

struct call {
	struct calls *owner;
	struct kind *kind;
	enum shape shape;
	grpc_call *call; /* NULL: the slot is free */
	grpc_metadata_array head, tail;
	grpc_byte_buffer *received, *sending;
	grpc_status_code code;
	grpc_slice details;
	struct opened *of, spare;
	struct rng rng;
	uint64_t number, end_ms;
	uint32_t left, pending, read;
	bool begun, closes, closed, cancelled, kept_open;
};

struct calls {
	const char *address;
	uint64_t seed;
	grpc_completion_queue *queue;
	grpc_channel *channel[CHANNELS];
	struct call slot[SLOTS];
	uint32_t active, held;
	struct kinds kinds;
	struct book book;
	struct trail trail;
	uint64_t codes[CODES], begun;
	uint8_t *scratch;
};

static uint64_t now_ms(void)
{
	const gpr_timespec t = gpr_now(GPR_CLOCK_MONOTONIC);

	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static gpr_timespec in_ms(int64_t ms)
{
	return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(ms, GPR_TIMESPAN));
}

static grpc_channel *dial(const struct calls *c)
{
	grpc_arg args[] = {
		{ .type = GRPC_ARG_STRING, .key = (char *)"grpc.primary_user_agent", .value.string = (char *)"hostile" },
		{ .type = GRPC_ARG_INTEGER, .key = (char *)"grpc.use_local_subchannel_pool", .value.integer = 1 },
		{ .type = GRPC_ARG_INTEGER, .key = (char *)"grpc.initial_reconnect_backoff_ms", .value.integer = 100 },
		{ .type = GRPC_ARG_INTEGER, .key = (char *)"grpc.max_reconnect_backoff_ms", .value.integer = 500 },
		{ .type = GRPC_ARG_INTEGER, .key = (char *)GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, .value.integer = -1 },
	};
	const grpc_channel_args all = { sizeof args / sizeof args[0], args };
	grpc_channel_credentials *open = grpc_insecure_credentials_create();
	grpc_channel *channel = grpc_channel_create(c->address, open, &all);

	grpc_channel_credentials_release(open);
	return channel;
}

struct calls *calls_create(const char *address, uint64_t seed, const struct foreign *foreign)
{
	struct calls *c = calloc(1, sizeof *c);

	if (!c || !(c->scratch = malloc(MESSAGE_MAX)))
		abort();
	grpc_init();
	c->address = address;
	c->seed = seed;
	c->trail = (struct trail){ .thread = "calls", .seed = seed };
	c->book.foreign = foreign;
	c->queue = grpc_completion_queue_create_for_next(NULL);
	for (int i = 0; i < CHANNELS; i++)
		c->channel[i] = dial(c);
	kinds_of_service(&c->kinds, &terrace__v1__cache__descriptor);
	kinds_of_service(&c->kinds, &terrace__v1__admin__descriptor);
	kinds_of_service(&c->kinds, &grpc__health__v1__health__descriptor);
	return c;
}

/* ---- one call ---- */

static void *tag(struct call *k, enum op op)
{
	return (void *)((uintptr_t)k | op);
}

static void batch(struct call *k, const grpc_op *ops, size_t n, enum op op)
{
	if (grpc_call_start_batch(k->call, ops, n, tag(k, op), NULL) != GRPC_CALL_OK)
		abort(); /* a mistake of this file's */
	k->pending++;
}

static void cancel(struct call *k)
{
	k->cancelled = true;
	grpc_call_cancel(k->call, NULL);
}

static void receive(struct call *k)
{
	const grpc_op op = { .op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &k->received };

	batch(k, &op, 1, OP_RECEIVE);
}

static const ProtobufCMessageDescriptor *type_of(struct call *k)
{
	const struct kinds *kinds = &k->owner->kinds;

	if (k->shape != SHAPE_ORDER)
		return k->kind->in;
	if (rng_one_in(&k->rng, 2))
		return k->kind->out;
	return kinds->list[rng_below(&k->rng, kinds->count)].in;
}

static grpc_byte_buffer *next_message(struct call *k)
{
	struct calls *c = k->owner;
	const enum shape shape = k->shape == SHAPE_TRUNCATED && rng_one_in(&k->rng, 8) ? SHAPE_EMPTY : k->shape;
	const size_t n = wire_message(c->scratch, MESSAGE_MAX, type_of(k), shape == SHAPE_MANY || shape >= SHAPE_HALF_OPEN ? SHAPE_VALID : shape,
				      &k->rng, &c->book, k->of);
	grpc_slice slice = grpc_slice_from_copied_buffer((const char *)c->scratch, n);
	grpc_byte_buffer *b = grpc_raw_byte_buffer_create(&slice, 1);

	grpc_slice_unref(slice);
	trail_add(&c->trail, k->kind, k->shape, c->scratch, n);
	return b;
}

/* The next message, or the end of them. Nothing if all was said. */
static void send_next(struct call *k)
{
	grpc_op ops[3];
	size_t n = 0;

	if (!k->begun)
		ops[n++] = (grpc_op){ .op = GRPC_OP_SEND_INITIAL_METADATA };
	k->begun = true;
	if (k->left) {
		k->sending = next_message(k);
		ops[n++] = (grpc_op){ .op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = k->sending };
		k->kind->sent[k->shape]++;
		k->left--;
	} else if (k->closes && !k->closed) {
		ops[n++] = (grpc_op){ .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT };
		k->closed = true;
	}
	if (n)
		batch(k, ops, n, OP_SEND);
}

static uint32_t messages_of(struct call *k)
{
	switch (k->shape) {
	case SHAPE_MANY: return MANY;
	case SHAPE_ORDER: return 1 + rng_below(&k->rng, 3);
	case SHAPE_EMPTY: return rng_below(&k->rng, 2);
	default: return 1;
	}
}

static gpr_timespec deadline_of(struct call *k)
{
	static const int64_t some[] = { 1, 10, 200, 5000 };

	if (k->shape == SHAPE_VALID)
		return in_ms(60000);
	if (k->kept_open || rng_one_in(&k->rng, 4))
		return gpr_inf_future(GPR_CLOCK_MONOTONIC);
	return in_ms(some[rng_below(&k->rng, 4)]);
}

/* What closes sessions gets one that is there for that. */
static void choose_session(struct call *k)
{
	struct book *b = &k->owner->book;

	k->of = &b->open[rng_below(&k->rng, b->count)];
	if (strcmp(k->kind->name, "Cache.CloseSession") != 0)
		return;
	k->spare = (struct opened){ .session = 0 };
	if (b->spares)
		k->spare = b->spare[--b->spares];
	k->of = &k->spare;
}

/* Then it is cancelled. A watch has no end of its own. */
static uint64_t life_of(struct call *k)
{
	if (k->kept_open)
		return rng_below(&k->rng, LIFE_MS);
	if (strstr(k->kind->name, "Watch"))
		return rng_below(&k->rng, WATCH_LIFE_MS);
	return k->shape == SHAPE_VALID ? VALID_LIFE_MS : LIFE_MS;
}

static void start(struct calls *c, struct call *k, struct kind *kind, enum shape shape)
{
	const uint64_t number = ++c->begun;
	grpc_slice method = grpc_slice_from_static_string(kind->path);
	grpc_op ops[2] = { { .op = GRPC_OP_RECV_INITIAL_METADATA }, { .op = GRPC_OP_RECV_STATUS_ON_CLIENT } };

	*k = (struct call){ .owner = c, .kind = kind, .shape = shape, .number = number, .details = grpc_empty_slice(),
			    .rng = { c->seed ^ number * 0xd1342543de82ef95ull }, .closes = shape != SHAPE_HALF_OPEN };
	c->trail.number = number;
	k->kept_open = shape == SHAPE_HALF_OPEN;
	k->end_ms = now_ms() + life_of(k);
	k->left = messages_of(k);
	choose_session(k);
	grpc_metadata_array_init(&k->head);
	grpc_metadata_array_init(&k->tail);
	k->call = grpc_channel_create_call(c->channel[number % CHANNELS], NULL, GRPC_PROPAGATE_DEFAULTS, c->queue, method, NULL, deadline_of(k), NULL);
	ops[0].data.recv_initial_metadata.recv_initial_metadata = &k->head;
	ops[1].data.recv_status_on_client.trailing_metadata = &k->tail;
	ops[1].data.recv_status_on_client.status = &k->code;
	ops[1].data.recv_status_on_client.status_details = &k->details;
	c->active++;
	c->held += k->kept_open;
	if (!k->left)
		kind->sent[shape]++;
	send_next(k);
	batch(k, ops, 2, OP_STATUS);
	receive(k);
	if (shape == SHAPE_CANCELLED && rng_one_in(&k->rng, 2))
		cancel(k);
	else if (shape == SHAPE_CANCELLED)
		k->end_ms = now_ms() + rng_below(&k->rng, 4);
}

/* ---- answers ---- */

static void note_grants(struct call *k, const ProtobufCMessage *reply)
{
	struct book *b = &k->owner->book;

	if (!strcmp(k->kind->name, "Cache.OpenSession")) {
		const Terrace__V1__OpenSessionReply *r = (const Terrace__V1__OpenSessionReply *)reply;
		struct opened *o = &b->spare[b->spares < SPARES_MAX ? b->spares++ : rng_below(&k->rng, SPARES_MAX)];

		*o = (struct opened){ .session = r->session };
		memcpy(o->token, r->token.data, r->token.len < TOKEN_BYTES ? r->token.len : TOKEN_BYTES);
	} else {
		book_note(k->of, reply);
	}
}

static ProtobufCMessage *unpack(const ProtobufCMessageDescriptor *type, grpc_byte_buffer *from)
{
	grpc_byte_buffer_reader reader;
	ProtobufCMessage *m;
	grpc_slice all;

	if (!grpc_byte_buffer_reader_init(&reader, from))
		return NULL;
	all = grpc_byte_buffer_reader_readall(&reader);
	m = protobuf_c_message_unpack(type, NULL, GRPC_SLICE_LENGTH(all), GRPC_SLICE_START_PTR(all));
	grpc_slice_unref(all);
	grpc_byte_buffer_reader_destroy(&reader);
	return m;
}

static void on_message(struct call *k)
{
	struct calls *c = k->owner;
	ProtobufCMessage *m = unpack(k->kind->out, k->received);

	if (!m) {
		fault(&c->trail, "call %llu, %s %s: a reply that is no %s", (unsigned long long)k->number, k->kind->name, shape_name(k->shape),
		      k->kind->out->name);
		return;
	}
	if (k->shape == SHAPE_VALID && !k->read)
		k->kind->answered++;
	if (k->shape == SHAPE_FOREIGN && !strncmp(k->kind->name, "Cache.", 6) && reply_did_for_others(m))
		fault(&c->trail, "call %llu, %s: did something with the handle of another", (unsigned long long)k->number, k->kind->name);
	note_grants(k, m);
	protobuf_c_message_free_unpacked(m, NULL);
}

static void on_receive(struct call *k)
{
	if (!k->received)
		return;
	on_message(k);
	grpc_byte_buffer_destroy(k->received);
	k->received = NULL;
	if (++k->read == READ_MOST)
		cancel(k);
	receive(k);
}

/* As gRPC says it of a socket that nobody listens on. */
static bool is_unreached(const struct call *k)
{
	static const char words[] = "failed to connect";

	return memmem(GRPC_SLICE_START_PTR(k->details), GRPC_SLICE_LENGTH(k->details), words, sizeof words - 1) != NULL;
}

static void finish(struct call *k)
{
	struct calls *c = k->owner;
	const bool words = GRPC_SLICE_LENGTH(k->details) > 0;

	c->codes[(unsigned)k->code < CODES ? k->code : GRPC_STATUS_UNKNOWN]++;
	if (k->code != GRPC_STATUS_OK && !words)
		fault(&c->trail, "call %llu, %s %s: status %d without a word", (unsigned long long)k->number, k->kind->name, shape_name(k->shape), k->code);
	if (k->code == GRPC_STATUS_UNAVAILABLE && is_unreached(k))
		fault(&c->trail, "call %llu, %s %s: the daemon cannot be reached", (unsigned long long)k->number, k->kind->name, shape_name(k->shape));
	if (k->code == GRPC_STATUS_DATA_LOSS || (k->code == GRPC_STATUS_INTERNAL && !k->cancelled))
		fault(&c->trail, "call %llu, %s %s: status %d: %.*s", (unsigned long long)k->number, k->kind->name, shape_name(k->shape), k->code,
		      (int)GRPC_SLICE_LENGTH(k->details), (const char *)GRPC_SLICE_START_PTR(k->details));
	grpc_metadata_array_destroy(&k->head);
	grpc_metadata_array_destroy(&k->tail);
	grpc_slice_unref(k->details);
	grpc_call_unref(k->call);
	k->call = NULL;
	c->active--;
	c->held -= k->kept_open;
}

static void step(struct call *k, enum op op, bool success)
{
	k->pending--;
	if (op == OP_SEND) {
		grpc_byte_buffer_destroy(k->sending);
		k->sending = NULL;
		if (success)
			send_next(k);
	} else if (op == OP_RECEIVE) {
		on_receive(k);
	}
	if (!k->pending)
		finish(k);
}

/* ---- all of them ---- */

/* Half-open ones are gone on with, or left, by turns. */
static void end_overdue(struct calls *c)
{
	const uint64_t now = now_ms();

	for (int i = 0; i < SLOTS; i++) {
		struct call *k = &c->slot[i];

		if (!k->call || k->cancelled || now < k->end_ms)
			continue;
		if (k->kept_open && !k->closes && rng_one_in(&k->rng, 3)) {
			k->closes = true;
			k->end_ms = now + LIFE_MS;
			if (!k->sending)
				send_next(k);
		} else {
			cancel(k);
		}
	}
}

static bool poll_once(struct calls *c, int64_t ms)
{
	const grpc_event e = grpc_completion_queue_next(c->queue, in_ms(ms), NULL);

	if (e.type != GRPC_OP_COMPLETE)
		return false;
	step((struct call *)((uintptr_t)e.tag & ~(uintptr_t)3), (enum op)((uintptr_t)e.tag & 3), e.success);
	return true;
}

static void poll_all(struct calls *c, bool wait)
{
	const uint64_t began = now_ms();

	end_overdue(c);
	if (wait)
		while (!poll_once(c, 20) && now_ms() - began < HANG_S * 1000)
			end_overdue(c);
	while (poll_once(c, 0))
		;
	if (now_ms() - began < HANG_S * 1000)
		return;
	fault(&c->trail, "no call has ended for %d s", HANG_S);
	exit(1);
}

static struct call *free_slot(struct calls *c)
{
	for (int i = 0; i < SLOTS; i++)
		if (!c->slot[i].call)
			return &c->slot[i];
	return NULL;
}

static bool has_room(const struct calls *c)
{
	return c->active - c->held < FLIGHT_MAX && c->held < HELD_MAX;
}

void calls_run(struct calls *c, uint64_t messages, const char *without)
{
	static const uint8_t times[SHAPES] = {
		[SHAPE_VALID] = 8, [SHAPE_BOUNDARY] = 4, [SHAPE_WRONG_TYPE] = 3, [SHAPE_UNKNOWN] = 2, [SHAPE_OVERSIZED] = 1, [SHAPE_TRUNCATED] = 3,
		[SHAPE_GARBAGE] = 2, [SHAPE_EMPTY] = 1, [SHAPE_WRONG] = 4, [SHAPE_FOREIGN] = 3, [SHAPE_ORDER] = 1, [SHAPE_MANY] = 1,
		[SHAPE_HALF_OPEN] = 1, [SHAPE_CANCELLED] = 2,
	};
	struct schedule order;

	schedule_init(&order, &c->kinds, times, c->seed);
	while (kinds_sent(&c->kinds) < messages && !faults()) {
		enum shape shape;
		struct kind *kind = schedule_next(&order, &shape);

		if (without && !strcmp(kind->name, without))
			continue;
		while (!has_room(c))
			poll_all(c, true);
		start(c, free_slot(c), kind, shape);
		if (c->begun % CHANNEL_CALLS == 0) { /* with what is under way on it */
			const uint64_t i = c->begun / CHANNEL_CALLS % CHANNELS;

			grpc_channel_destroy(c->channel[i]);
			c->channel[i] = dial(c);
		}
		poll_all(c, false);
	}
	while (c->active)
		poll_all(c, true);
	schedule_fini(&order);
}

/* ---- before and after ---- */

/* A call whose reply is waited for. NULL: it failed with *code. */
static ProtobufCMessage *ask(struct calls *c, const char *name, const ProtobufCMessage *request, grpc_status_code *code)
{
	struct call k = { .owner = c, .details = grpc_empty_slice() };
	grpc_op ops[6] = { { .op = GRPC_OP_SEND_INITIAL_METADATA }, { .op = GRPC_OP_SEND_MESSAGE }, { .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT },
			   { .op = GRPC_OP_RECV_INITIAL_METADATA }, { .op = GRPC_OP_RECV_MESSAGE }, { .op = GRPC_OP_RECV_STATUS_ON_CLIENT } };
	const size_t n = protobuf_c_message_pack(request, c->scratch);
	grpc_slice slice = grpc_slice_from_copied_buffer((const char *)c->scratch, n);
	ProtobufCMessage *reply = NULL;

	for (uint32_t i = 0; i < c->kinds.count; i++)
		if (!strcmp(c->kinds.list[i].name, name))
			k.kind = &c->kinds.list[i];
	k.sending = grpc_raw_byte_buffer_create(&slice, 1);
	grpc_slice_unref(slice);
	k.call = grpc_channel_create_call(c->channel[0], NULL, GRPC_PROPAGATE_DEFAULTS, c->queue, grpc_slice_from_static_string(k.kind->path), NULL,
					  in_ms(HANG_S * 1000), NULL);
	ops[0].flags = GRPC_INITIAL_METADATA_WAIT_FOR_READY | GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET;
	ops[1].data.send_message.send_message = k.sending;
	ops[3].data.recv_initial_metadata.recv_initial_metadata = &k.head;
	ops[4].data.recv_message.recv_message = &k.received;
	ops[5].data.recv_status_on_client.trailing_metadata = &k.tail;
	ops[5].data.recv_status_on_client.status = &k.code;
	ops[5].data.recv_status_on_client.status_details = &k.details;
	batch(&k, ops, 6, OP_STATUS);
	grpc_completion_queue_next(c->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
	*code = k.code;
	if (k.received)
		reply = unpack(k.kind->out, k.received);
	grpc_byte_buffer_destroy(k.received);
	grpc_byte_buffer_destroy(k.sending);
	grpc_metadata_array_destroy(&k.head);
	grpc_metadata_array_destroy(&k.tail);
	grpc_slice_unref(k.details);
	grpc_call_unref(k.call);
	return reply;
}

void calls_open_session(struct calls *c, struct opened *out, char *fd_socket, size_t room)
{
	struct rng rng = { c->seed };
	const size_t n = wire_message(c->scratch, MESSAGE_MAX, &terrace__v1__open_session_request__descriptor, SHAPE_VALID, &rng, &c->book, out);
	Terrace__V1__OpenSessionRequest *request = terrace__v1__open_session_request__unpack(NULL, n, c->scratch);
	Terrace__V1__OpenSessionReply *r;
	grpc_status_code code;

	if (!request)
		abort();
	request->gpu_write_back = false;
	r = (Terrace__V1__OpenSessionReply *)ask(c, "Cache.OpenSession", &request->base, &code);
	if (!r || r->token.len != TOKEN_BYTES) {
		fprintf(stderr, "no session: status %d\n", code);
		exit(1);
	}
	*out = (struct opened){ .session = r->session };
	memcpy(out->token, r->token.data, TOKEN_BYTES);
	for (size_t i = 0; i < r->n_layouts && i < LAYOUTS; i++)
		out->block_bytes[i] = r->layouts[i]->block_bytes;
	snprintf(fd_socket, room, "%s", r->fd_socket);
	protobuf_c_message_free_unpacked(&r->base, NULL);
	protobuf_c_message_free_unpacked(&request->base, NULL);
}

bool calls_is_admin(struct calls *c)
{
	Terrace__V1__DrainRequest request = TERRACE__V1__DRAIN_REQUEST__INIT;
	grpc_status_code code;

	request.undo = true;
	ProtobufCMessage *reply = ask(c, "Admin.Drain", &request.base, &code);

	if (reply)
		protobuf_c_message_free_unpacked(reply, NULL);
	return code == GRPC_STATUS_OK;
}

struct book *calls_book(struct calls *c)
{
	return &c->book;
}

const struct kinds *calls_kinds(const struct calls *c)
{
	return &c->kinds;
}

void calls_print_codes(const struct calls *c)
{
	printf("statuses");
	for (int i = 0; i < CODES; i++)
		if (c->codes[i])
			printf(" %d=%llu", i, (unsigned long long)c->codes[i]);
	printf("\n");
}

void calls_destroy(struct calls *c)
{
	for (int i = 0; i < CHANNELS; i++)
		grpc_channel_destroy(c->channel[i]);
	grpc_completion_queue_shutdown(c->queue);
	while (grpc_completion_queue_next(c->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type != GRPC_QUEUE_SHUTDOWN)
		;
	grpc_completion_queue_destroy(c->queue);
	grpc_shutdown();
	free(c->scratch);
	free(c);
}
