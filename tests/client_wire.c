/* Decoding: the arena, the cursor, the checksum, and every reply decoder fed with damaged messages. */
#include "client/commit.h"
#include "client/lease.h"
#include "client/lookup.h"
#include "client/report.h"
#include "client/reserve.h"
#include "client/stream.h"
#include "client/watch.h"
#include "client/wire.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef TERRACE_SANITIZED
enum { ROUNDS = 300 };
#else
enum { ROUNDS = 3000 };
#endif
enum { KEYS = 3, EXTENT_BYTES = 1 << 20 };

START_TEST(arena)
{
	struct client_arena a;
	uint8_t *p, *last = NULL;

	client_arena_init(&a);
	for (size_t n = 0; n < 5000; n += 7) {
		p = client_arena_take(&a, n);
		ck_assert_ptr_nonnull(p);
		ck_assert_uint_eq((uintptr_t)p % 16, 0);
		memset(p, 0xee, n);
		if (last)
			ck_assert_uint_eq(last[0], 0xee);
		last = n ? p : NULL;
	}
	ck_assert_ptr_nonnull(client_arena_take(&a, 10 << 20));
	ck_assert_ptr_null(client_arena_take(&a, SIZE_MAX));
	ck_assert_ptr_null(client_arena_take(&a, CLIENT_ARENA_MAX));
	client_arena_fini(&a);
}
END_TEST

START_TEST(crc)
{
	uint8_t bytes[1000];

	ck_assert_uint_eq(client_crc32c(0, "123456789", 9), 0xe3069283);
	ck_assert_uint_eq(client_crc32c(0, "", 0), 0);
	for (int i = 0; i < 1000; i++)
		bytes[i] = (uint8_t)(i * 7);
	for (size_t cut = 0; cut <= 1000; cut += 37)
		ck_assert_uint_eq(client_crc32c(client_crc32c(0, bytes, cut), bytes + cut, 1000 - cut),
				  client_crc32c(0, bytes, 1000));
}
END_TEST

/* A message cut into segments of `piece` bytes, some of them empty. */
struct cut {
	struct client_segment segments[512];
	struct client_message message;
};

static const struct client_message *cut_up(struct cut *c, const uint8_t *bytes, size_t size, size_t piece)
{
	size_t n = 0;

	for (size_t at = 0; at < size; at += piece) {
		c->segments[n++] = (struct client_segment){bytes + at, size - at < piece ? size - at : piece};
		if (n % 3 == 1)
			c->segments[n++] = (struct client_segment){bytes, 0};
	}
	c->message = (struct client_message){c->segments, n, size};
	return &c->message;
}

START_TEST(cursor)
{
	/* field 1 = 300, field 2 = "abc", field 3 fixed64, field 4 fixed32, field 5 = "" */
	static const uint8_t good[] = {8, 0xac, 2, 18, 3, 'a', 'b', 'c', 25, 1, 2, 3, 4, 5, 6, 7, 8, 37, 1, 2, 3, 4, 42, 0};
	static const uint8_t bad[][6] = {{0x80}, {18, 7}, {8}, {25, 1}, {11}, {2, 0}, {8, 0xff, 0xff, 0xff, 0xff, 0xff}};
	static const size_t bad_bytes[] = {1, 2, 1, 2, 1, 2, 6};
	struct cut cut;
	struct client_cursor c;
	uint32_t number, type;
	size_t bytes;
	char text[4] = "";

	for (size_t piece = 1; piece < 20; piece++) {
		client_cursor_init(&c, cut_up(&cut, good, sizeof(good), piece));
		for (uint32_t want = 1; want <= 5; want++) {
			ck_assert(client_cursor_field(&c, &number, &type, &bytes));
			ck_assert_uint_eq(number, want);
			ck_assert_uint_eq(bytes, want == 2 ? 3 : 0);
			client_cursor_copy(&c, text, bytes);
		}
		ck_assert_str_eq(text, "abc");
		ck_assert(!client_cursor_field(&c, &number, &type, &bytes));
		ck_assert(!c.bad);
	}
	for (size_t i = 0; i < sizeof(bad_bytes) / sizeof(bad_bytes[0]); i++) {
		client_cursor_init(&c, cut_up(&cut, bad[i], bad_bytes[i], 1));
		while (client_cursor_field(&c, &number, &type, &bytes))
			;
		ck_assert_msg(c.bad, "bad message %zu passed", i);
	}
	client_cursor_init(&c, cut_up(&cut, good, 0, 1));
	ck_assert(!client_cursor_field(&c, &number, &type, &bytes) && !c.bad);
}
END_TEST

/* ---- decoders ------------------------------------------------------------------------------------------------------ */

static struct terrace_client *client;
static struct client_view *view;
static uint8_t *block;

/* A view whose attachment has extent 1 mapped and a broken socket, so that decoders run without a daemon. */
static void view_make(void)
{
	struct client_layout *l;
	struct client_attachment *a = calloc(1, sizeof(*a));

	client = calloc(1, sizeof(*client));
	atomic_init(&client->references, 2);
	ck_assert_int_eq(client_rpc_open("unix:/nonexistent/socket", &client->rpc), TERRACE_OK);
	view = calloc(1, sizeof(*view) + sizeof(view->layouts[0]));
	atomic_init(&view->references, 1);
	view->client = client;
	view->epoch = 5;
	view->layout_count = 1;
	l = &view->layouts[0];
	l->layout = (struct kv_layout){
		.layers = 1, .heads = 1, .total_heads = 1, .head_dim_k = 64, .head_dim_v = 64, .block_tokens = 16,
		.k_format = KV_FP8, .v_format = KV_FP8, .rotation_version = KV_ROTATION_VERSION,
		.codebook_version = KV_CODEBOOK_VERSION, .layout_version = KV_LAYOUT_VERSION,
	};
	ck_assert_ptr_null(kv_layout_problem(&l->layout));
	kv_geometry_of(&l->layout, &l->geometry);
	atomic_init(&a->references, 1);
	a->socket = -1;
	a->broken = true;
	pthread_mutex_init(&a->lock, NULL);
	pthread_cond_init(&a->idle, NULL);
	a->mappings = calloc(4, sizeof(struct client_mapping *));
	a->capacity = 4;
	for (int i = 0; i < 2; i++) {
		a->mappings[i] = calloc(1, sizeof(struct client_mapping));
		*a->mappings[i] = (struct client_mapping){.extent = 1, .writable = i, .bytes = EXTENT_BYTES};
		a->mappings[i]->base = mmap(NULL, EXTENT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	}
	a->count = 2;
	view->attachment = a;
	block = calloc(1, l->geometry.block_bytes);
}

static void view_end(void)
{
	client_rpc_close(client->rpc);
	for (uint32_t i = 0; i < view->attachment->count; i++)
		ck_assert_uint_eq(view->attachment->mappings[i]->uses, 0); /* nothing was left in use */
	ck_assert_uint_eq(atomic_load(&view->references), 1);
	client_view_drop(view);
	client_drop(client);
	free(block);
}

static enum terrace_status read_lookup(const struct client_message *m)
{
	uint8_t states[KEYS];
	struct client_lookup lookup = {.view = view, .count = KEYS, .states = states};
	enum terrace_status status = client_lookup_read(&lookup, m);

	ck_assert(status || lookup.prefix <= KEYS);
	return status;
}

static enum terrace_status read_lease(const struct client_message *m)
{
	struct client_leasing leasing = {.view = view, .count = KEYS};
	enum terrace_status status = client_lease_read(&leasing, m);
	uint8_t sum = 0;

	for (uint32_t i = 0; !status && i < terrace_lease_count(leasing.lease); i++) {
		const uint8_t *b = terrace_lease_block(leasing.lease, i, 0);

		for (uint64_t k = 0; k < view->layouts[0].geometry.block_bytes; k += 100)
			sum ^= b[k]; /* inside the mapping, or this crashes */
		ck_assert_uint_le(terrace_lease_tokens(leasing.lease, i), 16);
		ck_assert_uint_eq(sum, 0);
	}
	if (!status)
		terrace_release(leasing.lease);
	return status;
}

static enum terrace_status read_reserve(const struct client_message *m)
{
	struct client_reserving reserving = {.view = view, .count = KEYS};
	enum terrace_status status = client_reserve_read(&reserving, m);

	for (uint32_t i = 0; !status && i < KEYS; i++)
		if (terrace_reservation_block(reserving.reservation, i, 0))
			memset(terrace_reservation_block(reserving.reservation, i, 0), 1,
			       view->layouts[0].geometry.block_bytes);
	if (!status)
		client_reservation_free(reserving.reservation);
	return status;
}

static enum terrace_status read_commit(const struct client_message *m)
{
	uint64_t ids[KEYS] = {1, 0, 2};
	enum terrace_status statuses[KEYS] = {0}, status;
	struct terrace_reservation r = {.view = view, .count = KEYS, .ids = ids, .statuses = statuses};
	struct client_committing committing = {.reservation = &r, .items = 2, .want_lease = true};

	status = client_commit_read(&committing, m);
	ck_assert(!status || !committing.lease);
	terrace_release(committing.lease);
	return status;
}

static enum terrace_status read_put(const struct client_message *m)
{
	struct client_putting putting = {.view = view};

	return client_put_read(&putting, m);
}

static enum terrace_status read_get(const struct client_message *m)
{
	struct client_getting getting = {
		.view = view, .block_bytes = view->layouts[0].geometry.block_bytes, .block_tokens = 16, .block = block};
	enum terrace_status status = client_get_read(&getting, m);

	ck_assert_uint_le(getting.got, getting.block_bytes);
	return status ? status : client_get_check(&getting);
}

static enum terrace_status read_delete(const struct client_message *m)
{
	enum terrace_status statuses[KEYS];

	return client_delete_read(&(struct client_deleting){KEYS, statuses}, m);
}

static enum terrace_status read_watch(const struct client_message *m)
{
	struct terrace_watch_event event;
	enum terrace_status status = client_watch_read(1, &event, m);

	ck_assert(status || (event.key_bytes <= 32 && event.layout == 0));
	return status;
}

/* ---- sound messages to damage --------------------------------------------------------------------------------------- */

static size_t pack(const void *message, uint8_t *out)
{
	return protobuf_c_message_pack(message, out);
}

static size_t sound_lookup(uint8_t *out)
{
	Terrace__V1__LookupReply m = TERRACE__V1__LOOKUP_REPLY__INIT;

	m.epoch = 5;
	m.prefix = 2;
	m.states = (ProtobufCBinaryData){KEYS, (uint8_t *)"\1\1\0"};
	return pack(&m, out);
}

static Terrace__V1__Places *sound_places(size_t n)
{
	static Terrace__V1__Places p;
	static uint32_t extent[KEYS] = {1, 1, 1}, tokens[KEYS] = {16, 16, 9};
	static uint64_t offset[KEYS] = {0, 8192, EXTENT_BYTES - 8192}, generation[KEYS] = {1, 2, 3};

	terrace__v1__places__init(&p);
	p.extent = extent;
	p.tokens = tokens;
	p.offset = offset;
	p.generation = generation;
	p.n_extent = p.n_tokens = p.n_offset = p.n_generation = n;
	return &p;
}

static size_t sound_lease(uint8_t *out)
{
	Terrace__V1__LeaseReply m = TERRACE__V1__LEASE_REPLY__INIT;

	m.epoch = 5;
	m.lease = 1;
	m.blocks = KEYS;
	m.places = sound_places(KEYS);
	return pack(&m, out);
}

static size_t sound_reserve(uint8_t *out)
{
	Terrace__V1__ReserveReply m = TERRACE__V1__RESERVE_REPLY__INIT;
	Terrace__V1__Status status[KEYS] = {0};
	uint64_t ids[KEYS] = {4, 5, 6};

	m.epoch = 5;
	m.status = status;
	m.reservation = ids;
	m.n_status = m.n_reservation = KEYS;
	m.places = sound_places(KEYS);
	return pack(&m, out);
}

static size_t sound_commit(uint8_t *out)
{
	Terrace__V1__CommitReply m = TERRACE__V1__COMMIT_REPLY__INIT;
	Terrace__V1__Status status[KEYS] = {0, TERRACE__V1__STATUS__EXISTS};

	m.epoch = 5;
	m.status = status;
	m.n_status = 2;
	m.lease = 9;
	m.places = sound_places(2);
	return pack(&m, out);
}

static size_t sound_put(uint8_t *out)
{
	Terrace__V1__PutReply m = TERRACE__V1__PUT_REPLY__INIT;
	Terrace__V1__Status status = TERRACE__V1__STATUS__OK;

	m.epoch = 5;
	m.status = &status;
	m.n_status = 1;
	return pack(&m, out);
}

static size_t sound_get(uint8_t *out)
{
	Terrace__V1__GetChunk m = TERRACE__V1__GET_CHUNK__INIT;
	Terrace__V1__GetHeader header = TERRACE__V1__GET_HEADER__INIT;
	uint64_t n = view->layouts[0].geometry.block_bytes;

	header.tokens = 16;
	header.block_bytes = n;
	header.crc32c = client_crc32c(0, block, n);
	m.header = &header;
	m.data = (ProtobufCBinaryData){n, block};
	return pack(&m, out);
}

static size_t sound_delete(uint8_t *out)
{
	Terrace__V1__DeleteReply m = TERRACE__V1__DELETE_REPLY__INIT;
	Terrace__V1__Status status[KEYS] = {0};

	m.status = status;
	m.n_status = KEYS;
	return pack(&m, out);
}

static size_t sound_watch(uint8_t *out)
{
	Terrace__V1__WatchEvent m = TERRACE__V1__WATCH_EVENT__INIT;

	m.epoch = 5;
	m.sequence = 6;
	m.kind = TERRACE__V1__WATCH_KIND__WATCH_MOVED;
	m.key = (ProtobufCBinaryData){16, (uint8_t *)"a key of 16 byte"};
	m.tier = (char *)"host";
	return pack(&m, out);
}

static const struct {
	size_t (*sound)(uint8_t *out);
	enum terrace_status (*read)(const struct client_message *m);
} decoders[] = {
	{sound_lookup, read_lookup}, {sound_lease, read_lease}, {sound_reserve, read_reserve}, {sound_commit, read_commit},
	{sound_put, read_put},       {sound_get, read_get},     {sound_delete, read_delete},   {sound_watch, read_watch},
};

START_TEST(damaged)
{
	uint8_t good[8192], bad[8192];
	struct cut cut;
	size_t size;

	view_make();
	srand((unsigned)_i + 1);
	size = decoders[_i].sound(good);
	ck_assert_uint_le(size, sizeof(good));
	for (size_t piece = 9; piece < 10000; piece *= 3)
		if (size / piece < 300)
			ck_assert_msg(!decoders[_i].read(cut_up(&cut, good, size, piece)), "%s", terrace_error());
	for (int round = 0; round < ROUNDS; round++) {
		size_t n = rand() % 4 ? size : (size_t)rand() % (size + 1);

		memcpy(bad, good, size);
		for (int flips = 1 + rand() % 4; flips; flips--)
			bad[rand() % (size < 64 || rand() % 2 ? size : 64)] ^= (uint8_t)(1 << rand() % 8);
		decoders[_i].read(cut_up(&cut, bad, n, n / 100 + 1));
	}
	view_end();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client_wire");
	TCase *c = tcase_create("wire");
	SRunner *runner;
	int failed;

	tcase_set_timeout(c, 60);
	tcase_add_test(c, arena);
	tcase_add_test(c, crc);
	tcase_add_test(c, cursor);
	tcase_add_loop_test(c, damaged, 0, sizeof(decoders) / sizeof(decoders[0]));
	suite_add_tcase(suite, c);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
