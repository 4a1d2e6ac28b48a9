/* What the fake daemon does: its cache, and a handler a method. */
#include "tests/client/fake_call.h"

#include "client/call/stream.h"
#include "health.pb-c.h"
#include "kernels/format.h"
#include "proto/fdsock.h"

#include <stdlib.h>
#include <string.h>

/* ---- the cache ---------------------------------------------------------------------------------------------------- */

static struct fake_block *block_find(struct fake *f, const uint8_t *key, size_t bytes, bool stored)
{
	for (int i = 0; i < FAKE_BLOCKS; i++) {
		struct fake_block *b = &f->blocks[i];

		if (b->key_bytes == bytes && !memcmp(b->key, key, bytes) && (stored ? b->stored : b->reservation != 0))
			return b;
	}
	return NULL;
}

static struct fake_block *block_new(struct fake *f, const uint8_t *key, size_t bytes)
{
	for (int i = 0; i < FAKE_BLOCKS; i++) {
		struct fake_block *b = &f->blocks[i];

		if (b->stored || b->reservation)
			continue;
		*b = (struct fake_block){.key_bytes = (uint32_t)bytes, .tokens = 16};
		memcpy(b->key, key, bytes);
		return b;
	}
	return NULL;
}

static uint8_t *block_at(struct fake *f, const struct fake_block *b, uint32_t layout, uint32_t *extent, uint64_t *offset)
{
	uint32_t i = (uint32_t)(b - f->blocks) * f->layouts + layout;

	*extent = 1 + i % FAKE_EXTENTS;
	*offset = i / FAKE_EXTENTS * f->slot_bytes;
	return f->base[i % FAKE_EXTENTS] + *offset + KV_SLOT_ALIGN;
}

static uint32_t keys_count(const Terrace__V1__Keys *keys)
{
	return keys && keys->key_bytes ? (uint32_t)(keys->keys.len / keys->key_bytes) : 0;
}

static const uint8_t *key_at(const Terrace__V1__Keys *keys, uint32_t i)
{
	return keys->keys.data + (size_t)i * keys->key_bytes;
}

static uint32_t prefix_of(struct fake *f, const Terrace__V1__Keys *keys)
{
	uint32_t i = 0;

	while (i < keys_count(keys) && block_find(f, key_at(keys, i), keys->key_bytes, true))
		i++;
	return i;
}

/* Brings a block to the GPU, where it then is. */
static void block_up(struct fake *f, struct fake_block *b)
{
	uint32_t extent;
	uint64_t offset;

	for (uint32_t l = 0; l < f->layouts && !b->gpu; l++)
		memcpy(fake_gpu_at(f, b, l, &extent, &offset), block_at(f, b, l, &extent, &offset), f->block_bytes[l]);
	b->gpu = true;
}

/* Places of blocks, in arrays that live until the next call of it on this thread. */
static void places_fill(struct fake *f, Terrace__V1__Places *p, struct fake_block **blocks, uint32_t count)
{
	static _Thread_local uint32_t extent[FAKE_BLOCKS * 4], tokens[FAKE_BLOCKS * 4];
	static _Thread_local uint64_t offset[FAKE_BLOCKS * 4], generation[FAKE_BLOCKS * 4];
	uint32_t n = 0;

	for (uint32_t i = 0; i < count; i++) {
		for (uint32_t l = 0; l < f->layouts; l++, n++) {
			extent[n] = FDSOCK_EXTENT_NONE;
			offset[n] = tokens[n] = 0;
			generation[n] = 1;
			if (!blocks[i])
				continue;
			if (blocks[i]->gpu)
				fake_gpu_at(f, blocks[i], l, &extent[n], &offset[n]);
			else
				block_at(f, blocks[i], l, &extent[n], &offset[n]);
			tokens[n] = blocks[i]->tokens;
		}
	}
	p->extent = extent;
	p->tokens = tokens;
	p->offset = offset;
	p->generation = generation;
	p->n_extent = p->n_tokens = p->n_offset = p->n_generation = n;
}

static void session_reply(struct fake_call *c)
{
	Terrace__V1__OpenSessionReply reply = TERRACE__V1__OPEN_SESSION_REPLY__INIT;
	Terrace__V1__LayoutReply layouts[4], *pointers[4];
	Terrace__V1__Gpu gpu = TERRACE__V1__GPU__INIT, *gpus = &gpu;
	struct fake *f = c->fake;

	for (uint32_t i = 0; i < f->layouts; i++) {
		const Terrace__V1__Layout *in = f->opened->layouts[i];
		struct kv_layout l = {
			.first_layer = in->first_layer, .layers = in->layers, .first_head = in->first_head,
			.heads = in->heads, .total_heads = in->total_heads, .head_dim_k = in->head_dim_k,
			.head_dim_v = in->head_dim_v, .block_tokens = in->block_tokens,
			.k_format = (enum kv_format)in->k_format, .v_format = (enum kv_format)in->v_format,
			.window = in->window, .rotation_version = in->rotation_version,
			.codebook_version = in->codebook_version, .layout_version = in->layout_version,
		};
		struct kv_geometry g;

		memcpy(l.fingerprint, in->fingerprint.data, sizeof(l.fingerprint));
		kv_geometry_of(&l, &g);
		terrace__v1__layout_reply__init(&layouts[i]);
		layouts[i].layout_id = f->layout_ids[i] = kv_layout_id(&l);
		layouts[i].block_bytes = f->block_bytes[i] = g.block_bytes;
		layouts[i].slot_bytes = g.need_bytes;
		f->slot_bytes = g.need_bytes > f->slot_bytes ? g.need_bytes : f->slot_bytes;
		pointers[i] = &layouts[i];
	}
	reply.epoch = f->epoch;
	reply.session = f->session;
	reply.token = (ProtobufCBinaryData){16, (uint8_t *)"0123456789abcdef"};
	reply.layouts = pointers;
	reply.n_layouts = f->layouts;
	reply.fd_socket = f->fd_path;
	if (f->gpu.ops) {
		gpu.uuid = (ProtobufCBinaryData){sizeof(f->gpu.info.uuid), f->gpu.info.uuid};
		gpu.bytes = 12345;
		reply.gpus = &gpus;
		reply.n_gpus = 1;
	}
	if (!strcmp(c->method, "Attach")) {
		reply.layout_list = f->opened->layouts;
		reply.n_layout_list = f->layouts;
	}
	fake_answer(c, &reply.base);
}

static void do_open(struct fake_call *c, const uint8_t *bytes, size_t size)
{
	struct fake *f = c->fake;

	if (f->opened)
		terrace__v1__open_session_request__free_unpacked(f->opened, NULL);
	f->opened = terrace__v1__open_session_request__unpack(NULL, size, bytes);
	f->layouts = (uint32_t)f->opened->n_layouts;
	f->slot_bytes = 0;
	session_reply(c);
}

static void do_lookup(struct fake_call *c, const uint8_t *bytes, size_t size)
{
	Terrace__V1__LookupRequest *q = terrace__v1__lookup_request__unpack(NULL, size, bytes);
	Terrace__V1__LookupReply reply = TERRACE__V1__LOOKUP_REPLY__INIT;
	struct fake *f = c->fake;
	uint32_t count = keys_count(q->keys);
	uint8_t *states = calloc(count * f->layouts + 1, 1);

	reply.epoch = f->epoch;
	reply.prefix = prefix_of(f, q->keys);
	for (uint32_t i = 0; i < count; i++)
		memset(states + i * f->layouts, block_find(f, key_at(q->keys, i), q->keys->key_bytes, true) != NULL,
		       f->layouts);
	if (q->states)
		reply.states = (ProtobufCBinaryData){count * f->layouts, states};
	fake_answer(c, &reply.base);
	free(states);
	terrace__v1__lookup_request__free_unpacked(q, NULL);
}

static void do_lease(struct fake_call *c, const uint8_t *bytes, size_t size)
{
	Terrace__V1__LeaseRequest *q = terrace__v1__lease_request__unpack(NULL, size, bytes);
	Terrace__V1__LeaseReply reply = TERRACE__V1__LEASE_REPLY__INIT;
	Terrace__V1__Places places = TERRACE__V1__PLACES__INIT;
	struct fake *f = c->fake;
	uint32_t prefix = prefix_of(f, q->keys);
	struct fake_block *blocks[FAKE_BLOCKS];

	reply.epoch = f->epoch;
	if (!prefix || (q->mode == TERRACE__V1__LEASE_MODE__LEASE_ALL && prefix < keys_count(q->keys))) {
		reply.status = TERRACE__V1__STATUS__MISS;
	} else {
		for (uint32_t i = 0; i < prefix; i++) {
			blocks[i] = block_find(f, key_at(q->keys, i), q->keys->key_bytes, true);
			if (q->gpu && !(f->gpu.stays && q->gpu_or_host))
				block_up(f, blocks[i]);
		}
		if (q->gpu) {
			f->gpu.leases++;
			reply.progress_page_word = f->gpu.word;
			reply.progress_page_base = f->gpu.base;
			reply.progress_page_layers = f->gpu.layers;
			reply.progress_page_summed = f->gpu.summed;
		}
		places_fill(f, &places, blocks, prefix);
		reply.lease = f->next_id++;
		reply.blocks = prefix;
		reply.places = &places;
	}
	fake_answer(c, &reply.base);
	terrace__v1__lease_request__free_unpacked(q, NULL);
}

static void do_reserve(struct fake_call *c, const uint8_t *bytes, size_t size)
{
	Terrace__V1__ReserveRequest *q = terrace__v1__reserve_request__unpack(NULL, size, bytes);
	Terrace__V1__ReserveReply reply = TERRACE__V1__RESERVE_REPLY__INIT;
	Terrace__V1__Places places = TERRACE__V1__PLACES__INIT;
	struct fake *f = c->fake;
	uint32_t count = q->open ? (uint32_t)q->n_info : keys_count(q->keys), key_bytes = q->open ? 1 : q->keys->key_bytes;
	Terrace__V1__Status status[FAKE_BLOCKS];
	uint64_t ids[FAKE_BLOCKS];
	struct fake_block *blocks[FAKE_BLOCKS];

	MUST(count <= FAKE_BLOCKS);
	for (uint32_t i = 0; i < count; i++) {
		const uint8_t *key = q->open ? (const uint8_t *)"" : key_at(q->keys, i);

		blocks[i] = NULL;
		ids[i] = 0;
		if (!q->open && block_find(f, key, key_bytes, true))
			status[i] = TERRACE__V1__STATUS__EXISTS;
		else if (!q->open && block_find(f, key, key_bytes, false))
			status[i] = TERRACE__V1__STATUS__BUSY;
		else
			status[i] = (blocks[i] = block_new(f, key, key_bytes)) ? TERRACE__V1__STATUS__OK
									       : TERRACE__V1__STATUS__EXHAUSTED;
		if (blocks[i])
			blocks[i]->reservation = ids[i] = f->next_id++;
		if (blocks[i] && q->n_info)
			blocks[i]->tokens = q->info[i]->tokens;
		if (blocks[i])
			blocks[i]->gpu = q->gpu != 0;
	}
	f->gpu.reserves += q->gpu != 0;
	places_fill(f, &places, blocks, count);
	reply.epoch = f->epoch;
	reply.status = status;
	reply.reservation = ids;
	reply.n_status = reply.n_reservation = count;
	reply.places = &places;
	fake_answer(c, &reply.base);
	terrace__v1__reserve_request__free_unpacked(q, NULL);
}

static struct fake_block *block_reserved(struct fake *f, uint64_t id)
{
	for (int i = 0; i < FAKE_BLOCKS; i++)
		if (id && f->blocks[i].reservation == id)
			return &f->blocks[i];
	return NULL;
}

static void do_commit(struct fake_call *c, const uint8_t *bytes, size_t size)
{
	Terrace__V1__CommitRequest *q = terrace__v1__commit_request__unpack(NULL, size, bytes);
	Terrace__V1__CommitReply reply = TERRACE__V1__COMMIT_REPLY__INIT;
	Terrace__V1__Places places = TERRACE__V1__PLACES__INIT;
	struct fake *f = c->fake;
	Terrace__V1__Status status[FAKE_BLOCKS];
	struct fake_block *blocks[FAKE_BLOCKS];

	if (!q->n_items) {
		fake_end(c, GRPC_STATUS_INVALID_ARGUMENT, "nothing to commit");
		terrace__v1__commit_request__free_unpacked(q, NULL);
		return;
	}
	for (uint32_t i = 0; i < q->n_items; i++) {
		struct fake_block *b = block_reserved(f, q->items[i]->reservation), *winner;

		status[i] = b ? TERRACE__V1__STATUS__OK : TERRACE__V1__STATUS__NOT_FOUND;
		blocks[i] = b;
		if (!b)
			continue;
		if (q->items[i]->tokens && q->items[i]->tokens < b->tokens) { /* an open block only grows */
			status[i] = TERRACE__V1__STATUS__INVALID;
			continue;
		}
		b->reservation = 0;
		if (q->items[i]->key.len) {
			b->key_bytes = (uint32_t)q->items[i]->key.len;
			memcpy(b->key, q->items[i]->key.data, b->key_bytes);
		}
		b->tokens = q->items[i]->tokens ? q->items[i]->tokens : b->tokens;
		winner = block_find(f, b->key, b->key_bytes, true);
		b->stored = !winner;
		if (winner) {
			status[i] = TERRACE__V1__STATUS__EXISTS;
			blocks[i] = winner;
		}
	}
	reply.epoch = f->epoch;
	reply.status = status;
	reply.n_status = q->n_items;
	if (q->lease) {
		places_fill(f, &places, blocks, (uint32_t)q->n_items);
		reply.lease = f->next_id++;
		reply.places = &places;
	}
	fake_answer(c, &reply.base);
	terrace__v1__commit_request__free_unpacked(q, NULL);
}

static void do_abort(struct fake_call *c, const uint8_t *bytes, size_t size)
{
	Terrace__V1__AbortRequest *q = terrace__v1__abort_request__unpack(NULL, size, bytes);
	Terrace__V1__AbortReply reply = TERRACE__V1__ABORT_REPLY__INIT;

	for (size_t i = 0; i < q->n_reservations; i++) {
		struct fake_block *b = block_reserved(c->fake, q->reservations[i]);

		if (b)
			*b = (struct fake_block){0};
		c->fake->aborted++;
	}
	fake_answer(c, &reply.base);
	terrace__v1__abort_request__free_unpacked(q, NULL);
}

static void do_delete(struct fake_call *c, const uint8_t *bytes, size_t size)
{
	Terrace__V1__DeleteRequest *q = terrace__v1__delete_request__unpack(NULL, size, bytes);
	Terrace__V1__DeleteReply reply = TERRACE__V1__DELETE_REPLY__INIT;
	uint32_t count = keys_count(q->keys);
	Terrace__V1__Status *status = calloc(count + 1, sizeof(*status));

	for (uint32_t i = 0; i < count; i++) {
		struct fake_block *b = block_find(c->fake, key_at(q->keys, i), q->keys->key_bytes, true);

		status[i] = b ? TERRACE__V1__STATUS__OK : TERRACE__V1__STATUS__MISS;
		if (b)
			*b = (struct fake_block){0};
	}
	reply.status = status;
	reply.n_status = count;
	fake_answer(c, &reply.base);
	free(status);
	terrace__v1__delete_request__free_unpacked(q, NULL);
}

static void do_warm(struct fake_call *c, const uint8_t *bytes, size_t size)
{
	Terrace__V1__WarmRequest *q = terrace__v1__warm_request__unpack(NULL, size, bytes);
	Terrace__V1__WarmReply reply = TERRACE__V1__WARM_REPLY__INIT;

	reply.epoch = c->fake->epoch;
	reply.blocks = q->wait ? prefix_of(c->fake, q->keys) : 0; /* so that a test sees what was asked */
	c->fake->warmed_gpu = q->gpu;
	fake_answer(c, &reply.base);
	terrace__v1__warm_request__free_unpacked(q, NULL);
}

static void do_flush(struct fake_call *c, const uint8_t *bytes, size_t size)
{
	Terrace__V1__FlushRequest *q = terrace__v1__flush_request__unpack(NULL, size, bytes);
	Terrace__V1__FlushReply reply = TERRACE__V1__FLUSH_REPLY__INIT;
	uint32_t count = q->keys ? keys_count(q->keys) : 1;
	Terrace__V1__Status *status = calloc(count + 1, sizeof(*status));

	for (uint32_t i = 0; q->keys && i < count; i++)
		if (!block_find(c->fake, key_at(q->keys, i), q->keys->key_bytes, true))
			status[i] = TERRACE__V1__STATUS__MISS;
	reply.epoch = c->fake->epoch;
	reply.status = status;
	reply.n_status = count;
	fake_answer(c, &reply.base);
	free(status);
	terrace__v1__flush_request__free_unpacked(q, NULL);
}

static void do_release(struct fake_call *c, const uint8_t *bytes, size_t size)
{
	Terrace__V1__ReleaseRequest *q = terrace__v1__release_request__unpack(NULL, size, bytes);
	Terrace__V1__ReleaseReply reply = TERRACE__V1__RELEASE_REPLY__INIT;

	c->fake->released += (unsigned)q->n_leases;
	c->fake->recalled += (unsigned)q->n_calls;
	if (q->n_calls)
		c->fake->recalled_call = q->calls[0];
	fake_answer(c, &reply.base);
	terrace__v1__release_request__free_unpacked(q, NULL);
}

static void do_close(struct fake_call *c, const uint8_t *bytes, size_t size)
{
	Terrace__V1__CloseSessionReply reply = TERRACE__V1__CLOSE_SESSION_REPLY__INIT;

	(void)bytes;
	(void)size;
	c->fake->closed_sessions++;
	fake_answer(c, &reply.base);
}

/* Touch and Report. */
static void do_nothing(struct fake_call *c, const uint8_t *bytes, size_t size)
{
	Terrace__V1__TouchReply reply = TERRACE__V1__TOUCH_REPLY__INIT;

	(void)bytes;
	(void)size;
	fake_answer(c, &reply.base);
}

static void do_health(struct fake_call *c, const uint8_t *bytes, size_t size)
{
	Grpc__Health__V1__HealthCheckResponse reply = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;

	(void)bytes;
	(void)size;
	reply.status = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
	fake_answer(c, &reply.base);
}

/* Put: the first message is here, the others follow. */
static void do_put(struct fake_call *c, const uint8_t *bytes, size_t size)
{
	Terrace__V1__PutReply reply = TERRACE__V1__PUT_REPLY__INIT;
	Terrace__V1__PutChunk *chunk = terrace__v1__put_chunk__unpack(NULL, size, bytes);
	Terrace__V1__Status status = TERRACE__V1__STATUS__OK;
	struct fake *f = c->fake;
	uint32_t layout = chunk->header->layout, crc = chunk->header->crc32c, extent;
	uint64_t offset, at = 0;
	uint8_t *copy = malloc(f->block_bytes[layout]), *next;
	struct fake_block *b = block_find(f, chunk->header->key.data, chunk->header->key.len, true);

	if (b)
		status = TERRACE__V1__STATUS__EXISTS;
	else
		b = block_new(f, chunk->header->key.data, chunk->header->key.len);
	if (chunk->header->info)
		b->tokens = chunk->header->info->tokens;
	for (;;) {
		MUST(at + chunk->data.len <= f->block_bytes[layout] && chunk->data.len <= 1 << 20);
		memcpy(copy + at, chunk->data.data, chunk->data.len);
		at += chunk->data.len;
		terrace__v1__put_chunk__free_unpacked(chunk, NULL);
		next = f->hasty_put ? NULL : fake_receive(c, &size);
		if (!next)
			break;
		chunk = terrace__v1__put_chunk__unpack(NULL, size, next);
		free(next);
	}
	if (at == f->block_bytes[layout] && client_crc32c(0, copy, at) == crc && !status) {
		memcpy(block_at(f, b, layout, &extent, &offset), copy, at);
		b->stored = true;
	} else if (!status) {
		status = TERRACE__V1__STATUS__CORRUPT;
	}
	free(copy);
	reply.epoch = f->epoch;
	reply.status = &status;
	reply.n_status = 1;
	fake_answer(c, &reply.base);
}

static void get_send(struct fake_call *c, Terrace__V1__GetHeader *header, const uint8_t *data)
{
	Terrace__V1__GetChunk chunk = TERRACE__V1__GET_CHUNK__INIT;
	struct fake *f = c->fake;
	uint64_t bytes = header->status ? 0 : header->block_bytes - f->short_get, piece = 300000;

	if (f->twist)
		f->twist(f, c->method, &header->base);
	chunk.header = header;
	for (uint64_t at = 0; at < bytes || chunk.header; at += chunk.data.len) {
		chunk.data = (ProtobufCBinaryData){bytes - at < piece ? bytes - at : piece,
						   data ? (uint8_t *)(uintptr_t)data + at : NULL};
		fake_send_message(c, &chunk.base);
		chunk.header = NULL;
	}
}

static void do_get(struct fake_call *c, const uint8_t *bytes, size_t size)
{
	Terrace__V1__GetRequest *q = terrace__v1__get_request__unpack(NULL, size, bytes);
	Terrace__V1__GetHeader header = TERRACE__V1__GET_HEADER__INIT;
	struct fake *f = c->fake;
	struct fake_block *b = block_find(f, q->keys->keys.data, q->keys->key_bytes, true);
	const uint8_t *data = NULL;
	uint32_t extent;
	uint64_t offset;

	header.status = b ? TERRACE__V1__STATUS__OK : TERRACE__V1__STATUS__MISS;
	if (b) {
		data = block_at(f, b, q->layout, &extent, &offset);
		header.tokens = b->tokens;
		header.block_bytes = f->block_bytes[q->layout];
		header.crc32c = client_crc32c(0, data, header.block_bytes) ^ f->corrupt_get;
	}
	if (f->raw_method && !strcmp(f->raw_method, "Get"))
		fake_send_bytes(c, f->raw, f->raw_bytes);
	else
		get_send(c, &header, data);
	fake_end(c, GRPC_STATUS_OK, "");
	terrace__v1__get_request__free_unpacked(q, NULL);
}

/* Three events, then nothing more until the watcher goes. */
static void do_watch(struct fake_call *c, const uint8_t *bytes, size_t size)
{
	Terrace__V1__WatchEvent event = TERRACE__V1__WATCH_EVENT__INIT;

	(void)bytes;
	(void)size;
	for (int i = 0; i < 3; i++) {
		event.epoch = c->fake->epoch;
		event.sequence = (uint64_t)i + 1;
		event.kind = i < 2 ? TERRACE__V1__WATCH_KIND__WATCH_STORED : TERRACE__V1__WATCH_KIND__WATCH_SYNCED;
		event.key = (ProtobufCBinaryData){i < 2 ? 16 : 0, (uint8_t *)"a key of 16 byte"};
		if (c->fake->twist)
			c->fake->twist(c->fake, "Watch", &event.base);
		fake_send_message(c, &event.base);
	}
	pthread_mutex_unlock(&c->fake->lock);
	fake_stall(c);
	pthread_mutex_lock(&c->fake->lock);
}

static const struct {
	const char *name;
	void (*run)(struct fake_call *c, const uint8_t *bytes, size_t size);
} handlers[] = {
	{"OpenSession", do_open}, {"Lookup", do_lookup}, {"Lease", do_lease}, {"Reserve", do_reserve},
	{"Commit", do_commit},    {"Abort", do_abort},   {"Delete", do_delete}, {"Release", do_release},
	{"CloseSession", do_close}, {"Touch", do_nothing}, {"Report", do_nothing}, {"Check", do_health},
	{"Put", do_put}, {"Get", do_get}, {"Watch", do_watch}, {"Warm", do_warm}, {"Flush", do_flush},
};

/* The number that a granting call has given itself; 0: it is none. */
static uint64_t number_of(const char *method, const uint8_t *bytes, size_t size)
{
	const ProtobufCMessageDescriptor *type = !strcmp(method, "Lease")   ? &terrace__v1__lease_request__descriptor :
						 !strcmp(method, "Reserve") ? &terrace__v1__reserve_request__descriptor :
						 !strcmp(method, "Commit")  ? &terrace__v1__commit_request__descriptor : NULL;
	ProtobufCMessage *q = type ? protobuf_c_message_unpack(type, NULL, size, bytes) : NULL;
	uint64_t number = 0;

	if (q)
		memcpy(&number, (const char *)q + protobuf_c_message_descriptor_get_field_by_name(type, "call")->offset, sizeof(number));
	protobuf_c_message_free_unpacked(q, NULL);
	return number;
}

void fake_call_dispatch(struct fake_call *c, const uint8_t *bytes, size_t size)
{
	struct fake *f = c->fake;

	if (f->stall_method && !strcmp(f->stall_method, c->method)) {
		f->stalled_call = number_of(c->method, bytes, size);
		pthread_mutex_unlock(&f->lock);
		fake_stall(c);
		pthread_mutex_lock(&f->lock);
		return;
	}
	if (f->fail_method && !strcmp(f->fail_method, c->method)) {
		fake_end(c, f->fail_code, "as the test wants it");
		return;
	}
	if (!strcmp(c->method, "Attach")) {
		session_reply(c);
		return;
	}
	for (size_t i = 0; i < sizeof(handlers) / sizeof(handlers[0]); i++)
		if (!strcmp(handlers[i].name, c->method)) {
			handlers[i].run(c, bytes, size);
			return;
		}
	fake_end(c, GRPC_STATUS_UNIMPLEMENTED, c->method);
}
