/* Decoding: the arena, the cursor, the checksum, and every reply decoder fed with damaged messages. */
#include "client/session/session.h"
#include "tests/client/view.h"

#include <check.h>

#ifdef TERRACE_SANITIZED
enum { ROUNDS = 300 };
#else
enum { ROUNDS = 3000 };
#endif

static struct view_rig rig;

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

START_TEST(cursor)
{
	/* field 1 = 300, field 2 = "abc", field 3 fixed64, field 4 fixed32, field 5 = "" */
	static const uint8_t good[] = {8, 0xac, 2, 18, 3, 'a', 'b', 'c', 25, 1, 2, 3, 4, 5, 6, 7, 8, 37, 1, 2, 3, 4, 42, 0};
	static const uint8_t bad[][6] = {{0x80}, {18, 7}, {8}, {25, 1}, {11}, {2, 0}, {8, 0xff, 0xff, 0xff, 0xff, 0xff}};
	static const size_t bad_bytes[] = {1, 2, 1, 2, 1, 2, 6};
	struct view_cut cut;
	struct client_cursor c;
	uint32_t number, type;
	size_t bytes;
	char text[4] = "";

	for (size_t piece = 1; piece < 20; piece++) {
		client_cursor_init(&c, view_cut(&cut, good, sizeof(good), piece));
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
		client_cursor_init(&c, view_cut(&cut, bad[i], bad_bytes[i], 1));
		while (client_cursor_field(&c, &number, &type, &bytes))
			;
		ck_assert_msg(c.bad, "bad message %zu passed", i);
	}
	client_cursor_init(&c, view_cut(&cut, good, 0, 1));
	ck_assert(!client_cursor_field(&c, &number, &type, &bytes) && !c.bad);
}
END_TEST

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
	m.states = (ProtobufCBinaryData){VIEW_KEYS, (uint8_t *)"\1\1\0"};
	return pack(&m, out);
}

static Terrace__V1__Places *sound_places(size_t n)
{
	static Terrace__V1__Places p;
	static uint32_t extent[VIEW_KEYS] = {1, 1, 1}, tokens[VIEW_KEYS] = {16, 16, 9};
	static uint64_t offset[VIEW_KEYS] = {0, 8192, VIEW_EXTENT_BYTES - 8192}, generation[VIEW_KEYS] = {1, 2, 3};

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
	m.blocks = VIEW_KEYS;
	m.places = sound_places(VIEW_KEYS);
	return pack(&m, out);
}

static size_t sound_reserve(uint8_t *out)
{
	Terrace__V1__ReserveReply m = TERRACE__V1__RESERVE_REPLY__INIT;
	Terrace__V1__Status status[VIEW_KEYS] = {0};
	uint64_t ids[VIEW_KEYS] = {4, 5, 6};

	m.epoch = 5;
	m.status = status;
	m.reservation = ids;
	m.n_status = m.n_reservation = VIEW_KEYS;
	m.places = sound_places(VIEW_KEYS);
	return pack(&m, out);
}

static size_t sound_commit(uint8_t *out)
{
	Terrace__V1__CommitReply m = TERRACE__V1__COMMIT_REPLY__INIT;
	Terrace__V1__Status status[VIEW_KEYS] = {0, TERRACE__V1__STATUS__EXISTS};

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
	uint64_t n = rig.view->layouts[0].geometry.block_bytes;

	header.tokens = 16;
	header.block_bytes = n;
	header.crc32c = client_crc32c(0, rig.block, n);
	m.header = &header;
	m.data = (ProtobufCBinaryData){n, rig.block};
	return pack(&m, out);
}

static size_t sound_delete(uint8_t *out)
{
	Terrace__V1__DeleteReply m = TERRACE__V1__DELETE_REPLY__INIT;
	Terrace__V1__Status status[VIEW_KEYS] = {0};

	m.status = status;
	m.n_status = VIEW_KEYS;
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

/* In the order of view_decoders. */
static size_t (*const sounds[])(uint8_t *out) = {
	sound_lookup, sound_lease, sound_reserve, sound_commit, sound_put, sound_get, sound_delete, sound_watch,
};
_Static_assert(sizeof(sounds) / sizeof(sounds[0]) == VIEW_DECODERS, "a sound message a decoder");

START_TEST(damaged)
{
	uint8_t good[8192], bad[8192];
	struct view_cut cut;
	size_t size;

	view_open(&rig);
	srand((unsigned)_i + 1);
	size = sounds[_i](good);
	ck_assert_uint_le(size, sizeof(good));
	for (size_t piece = 9; piece < 10000; piece *= 3)
		if (size / piece < 300)
			ck_assert_msg(!view_decoders[_i](&rig, view_cut(&cut, good, size, piece)), "%s", terrace_error());
	for (int round = 0; round < ROUNDS; round++) {
		size_t n = rand() % 4 ? size : (size_t)rand() % (size + 1);

		memcpy(bad, good, size);
		for (int flips = 1 + rand() % 4; flips; flips--)
			bad[rand() % (size < 64 || rand() % 2 ? size : 64)] ^= (uint8_t)(1 << rand() % 8);
		view_decoders[_i](&rig, view_cut(&cut, bad, n, n / 100 + 1));
	}
	view_close(&rig);
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
	tcase_add_loop_test(c, damaged, 0, VIEW_DECODERS);
	suite_add_tcase(suite, c);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
