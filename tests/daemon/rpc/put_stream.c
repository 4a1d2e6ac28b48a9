/* The Put stream by hand: PutChunks cut into pieces anywhere, in any field order, broken in every way. */
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/stream.h"
#include "daemon/process/daemon.h"
#include "daemon/rpc/call.h"
#include "daemon/rpc/methods.h"
#include "store/slot.h"
#include "store/status.h"
#include "tests/shell.h"

static struct shell s;
static struct rpc_call call;
static const struct rpc_client_stream *put = &rpc_put_stream;

static void setup(void)
{
	shell_open(&s);
	rpc_call_init(&call, &s.daemon, NULL, daemon_now_us(), UINT64_MAX);
	ck_assert_int_eq(put->open(&call), STATUS_OK);
}

static void teardown(void)
{
	struct cache_load load;

	put->close(&call);
	rpc_call_fini(&call);
	cache_load(s.daemon.cache, &load);
	ck_assert_uint_eq(load.reservations, 0);
	shell_close(&s);
}

static size_t chunk(uint8_t *out, const char *key, const uint8_t *data, size_t n)
{
	Terrace__V1__PutChunk m = TERRACE__V1__PUT_CHUNK__INIT;
	Terrace__V1__PutHeader h = TERRACE__V1__PUT_HEADER__INIT;

	h.session = s.session.id;
	if (key) {
		h.key = (ProtobufCBinaryData){ strlen(key), (uint8_t *)key };
		m.header = &h;
	}
	m.data = (ProtobufCBinaryData){ n, (uint8_t *)data };
	return terrace__v1__put_chunk__pack(&m, out);
}

static enum status say(const void *bytes, size_t n)
{
	struct rpc_span one = { bytes, n };

	return put->message(&call, &one, 1);
}

static void check_stored(const char *key, const uint8_t *want)
{
	struct cache_read r;
	const char *why = "";

	ck_assert_int_eq(cache_read_begin(s.daemon.cache, &(struct cache_stream_call){ .session = s.session.id,
			.key = (const uint8_t *)key, .key_bytes = (uint32_t)strlen(key),
			.now_us = daemon_now_us() }, &r, NULL, &why), STATUS_OK);
	ck_assert_int_eq(memcmp(r.block, want, r.block_bytes), 0);
	cache_read_end(s.daemon.cache, &r);
}

/* Any cut of the messages into pieces gives the same block. */
START_TEST(cuts_do_not_matter)
{
	size_t bytes = s.session.block_bytes[0];
	uint8_t *block = malloc(bytes), *packed = malloc(bytes + 256);
	struct rpc_span spans[64];

	srand48(_i);
	for (int round = 0; round < 40; round++) {
		char key[16];
		size_t sent = 0;

		snprintf(key, sizeof key, "k%d", round);
		for (size_t i = 0; i < bytes; i++)
			block[i] = (uint8_t)lrand48();
		while (sent < bytes) {
			size_t piece = 1 + (size_t)lrand48() % (bytes - sent), at = 0, count = 0;
			size_t n = chunk(packed, sent ? NULL : key, block + sent, piece);

			for (; at < n && count < 63; count++) {
				size_t cut = (size_t)lrand48() % (lrand48() % 2 ? 4 : 200);

				cut = cut < n - at ? cut : n - at;
				spans[count] = (struct rpc_span){ packed + at, cut };
				at += cut;
			}
			spans[count++] = (struct rpc_span){ packed + at, n - at };
			ck_assert_msg(put->message(&call, spans, count) == STATUS_OK, "%s", call.why);
			sent += piece;
		}
		check_stored(key, block);
	}
	ProtobufCMessage *reply;

	ck_assert_int_eq(put->end(&call, &reply), STATUS_OK);
	ck_assert_uint_eq(((Terrace__V1__PutReply *)reply)->n_status, 40);
	free(block);
	free(packed);
}
END_TEST

START_TEST(data_before_header_and_unknown_fields)
{
	size_t bytes = s.session.block_bytes[0];
	uint8_t *block = malloc(bytes), *packed = malloc(bytes + 256);
	/* Fields 9 (varint), 10 (fixed64), 11 (bytes) and 12 (fixed32) are of no version we know. */
	static const uint8_t unknown[] = { 9 << 3, 0x96, 1, 10 << 3 | 1, 1, 2, 3, 4, 5, 6, 7, 8, 11 << 3 | 2, 2, 1, 2,
					   12 << 3 | 5, 1, 2, 3, 4 };

	memset(block, 7, bytes);
	size_t n = chunk(packed, NULL, block, bytes);

	memcpy(packed + n, unknown, sizeof unknown);
	n += sizeof unknown;
	n += chunk(packed + n, "last", NULL, 0);
	ck_assert_msg(say(packed, n) == STATUS_OK, "%s", call.why);
	check_stored("last", block);
	free(block);
	free(packed);
}
END_TEST

START_TEST(stored_block_is_passed_over)
{
	size_t bytes = s.session.block_bytes[0];
	uint8_t *block = calloc(1, bytes), *packed = malloc(bytes + 256);
	ProtobufCMessage *reply;

	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(say(packed, chunk(packed, "same", block, bytes)), STATUS_OK);
	ck_assert_int_eq(put->end(&call, &reply), STATUS_OK);
	const Terrace__V1__PutReply *r = (const Terrace__V1__PutReply *)reply;

	ck_assert_uint_eq(r->n_status, 2);
	ck_assert_int_eq(r->status[0], TERRACE__V1__STATUS__OK);
	ck_assert_int_eq(r->status[1], TERRACE__V1__STATUS__EXISTS);
	free(block);
	free(packed);
}
END_TEST

START_TEST(checksum_is_checked)
{
	size_t bytes = s.session.block_bytes[0];
	uint8_t *block = calloc(1, bytes), *packed = malloc(bytes + 256);
	Terrace__V1__PutChunk m = TERRACE__V1__PUT_CHUNK__INIT;
	Terrace__V1__PutHeader h = TERRACE__V1__PUT_HEADER__INIT;
	ProtobufCMessage *reply;
	const char *why = "";

	m.header = &h;
	m.data = (ProtobufCBinaryData){ bytes, block };
	h.session = s.session.id;
	h.key = (ProtobufCBinaryData){ 3, (uint8_t *)"crc" };
	h.has_crc = true;
	h.crc32c = slot_crc32c(0, block, bytes) ^ 1;
	ck_assert_int_eq(say(packed, terrace__v1__put_chunk__pack(&m, packed)), STATUS_OK);
	h.crc32c ^= 1;
	h.key.data = (uint8_t *)"crd";
	ck_assert_int_eq(say(packed, terrace__v1__put_chunk__pack(&m, packed)), STATUS_OK);
	ck_assert_int_eq(put->end(&call, &reply), STATUS_OK);
	ck_assert_int_eq(((Terrace__V1__PutReply *)reply)->status[0], TERRACE__V1__STATUS__CORRUPT);
	ck_assert_int_eq(((Terrace__V1__PutReply *)reply)->status[1], TERRACE__V1__STATUS__OK);
	ck_assert_int_eq(cache_read_begin(s.daemon.cache, &(struct cache_stream_call){ .session = s.session.id,
			.key = (const uint8_t *)"crc", .key_bytes = 3, .now_us = daemon_now_us() },
					  &(struct cache_read){ 0 }, NULL, &why), STATUS_MISS);
	check_stored("crd", block);
	free(block);
	free(packed);
}
END_TEST

#define BYTES(...) (const uint8_t[]){ __VA_ARGS__ }, sizeof((const uint8_t[]){ __VA_ARGS__ })
static const struct {
	const uint8_t *bytes;
	size_t n;
	const char *says;
} broken[] = {
	{ BYTES(0), "no PutChunk" },
	{ BYTES(0x12, 0x80), "cut short" },
	{ BYTES(0x12, 5, 1, 2), "cut short" },
	{ BYTES(0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1), "cut short" },
	{ BYTES(0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1), "cut short" },
	{ BYTES(0x12, 1, 1), "no header before it" },
	{ BYTES(0x12, 1, 1, 0x12, 1, 1), "twice" },
	{ BYTES(0x0a, 0, 0x0a, 0), "twice" },
	{ BYTES(0x0a, 0), "header.key" },
	{ BYTES(0x0a, 2, 0xff, 0xff), "no PutHeader" },
	{ BYTES(0x0a, 3, 0x1a, 1, 'k'), "session" },
	{ BYTES(0x48), "no PutChunk" },
	{ BYTES(0x4b), "no PutChunk" },
	{ BYTES(0x49, 1, 2), "no PutChunk" },
	{ BYTES(0x5a, 9, 2), "no PutChunk" },
};

START_TEST(broken_messages)
{
	ck_assert_int_ne(say(broken[_i].bytes, broken[_i].n), STATUS_OK);
	ck_assert_msg(strstr(call.why, broken[_i].says) != NULL, "%s", call.why);
}
END_TEST

START_TEST(wrong_sizes)
{
	size_t bytes = s.session.block_bytes[0];
	uint8_t *block = calloc(1, bytes + 1), *packed = malloc(bytes + 256);
	ProtobufCMessage *reply;

	ck_assert_int_eq(say(packed, chunk(packed, "a", block, bytes + 1)), STATUS_INVALID);
	ck_assert_int_eq(put->end(&call, &reply), STATUS_INVALID);
	put->close(&call);
	put->open(&call);
	ck_assert_int_eq(say(packed, chunk(packed, "b", block, 10)), STATUS_OK);
	ck_assert_int_eq(say(packed, chunk(packed, "c", block, 10)), STATUS_INVALID);
	ck_assert_msg(strstr(call.why, "after 10 of its") != NULL, "%s", call.why);
	put->close(&call);
	put->open(&call);
	ck_assert_int_eq(say(packed, chunk(packed, "d", block, bytes)), STATUS_OK);
	ck_assert_int_eq(say(packed, chunk(packed, NULL, block, 1)), STATUS_INVALID);
	free(block);
	free(packed);
}
END_TEST

/* Mutated messages: any status, no crash, nothing left reserved (teardown looks). */
START_TEST(mutations)
{
	size_t bytes = s.session.block_bytes[0];
	uint8_t *block = calloc(1, bytes), *packed = malloc(bytes + 256);

	srand48(_i + 100);
	for (int round = 0; round < 400; round++) {
		size_t n = chunk(packed, lrand48() % 2 ? "mut" : NULL, block, (size_t)lrand48() % 64);

		for (int k = 0; n && k < 3; k++)
			packed[(size_t)lrand48() % n] = (uint8_t)lrand48();
		if (say(packed, (size_t)lrand48() % (n + 1)) != STATUS_OK) {
			put->close(&call);
			ck_assert_int_eq(put->open(&call), STATUS_OK);
		}
	}
	free(block);
	free(packed);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("rpc_put_stream");
	TCase *t = tcase_create("rpc_put_stream");
	SRunner *r;

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 30);
	tcase_add_loop_test(t, cuts_do_not_matter, 0, 4);
	tcase_add_test(t, data_before_header_and_unknown_fields);
	tcase_add_test(t, stored_block_is_passed_over);
	tcase_add_test(t, checksum_is_checked);
	tcase_add_loop_test(t, broken_messages, 0, sizeof broken / sizeof broken[0]);
	tcase_add_test(t, wrong_sizes);
	tcase_add_loop_test(t, mutations, 0, 4);
	suite_add_tcase(suite, t);
	r = srunner_create(suite);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
