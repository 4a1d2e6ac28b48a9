/* Layouts to and from their message: every field has its own place, and a message that cannot be read changes nothing. */
#include "kernels/format.h"
#include "proto/layout_message.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* No two fields are equal; whether it makes sense is not asked here. */
static struct kv_layout every_field(void)
{
	struct kv_layout l = {
		.first_layer = 1, .layers = 2, .first_head = 3, .heads = 4, .total_heads = 5, .head_dim_k = 6, .head_dim_v = 7,
		.block_tokens = 8, .k_format = KV_TQ4, .v_format = KV_FP8, .window = 9, .rotation_version = 10,
		.codebook_version = 11, .layout_version = 12, .int4_rounding = KV_ROUND_BF16,
		.rope_dim = 13, .rope_format = KV_TQ3,
	};

	for (int i = 0; i < KV_FINGERPRINT_BYTES; i++)
		l.fingerprint[i] = (uint8_t)(100 + i);
	return l;
}

START_TEST(each_field_has_its_place)
{
	const struct kv_layout l = every_field();
	Terrace__V1__Layout m;

	layout_message_write(&l, &m);
	ck_assert_uint_eq(m.fingerprint.len, KV_FINGERPRINT_BYTES);
	ck_assert_mem_eq(m.fingerprint.data, l.fingerprint, KV_FINGERPRINT_BYTES);
	ck_assert_uint_eq(m.first_layer, 1);
	ck_assert_uint_eq(m.layers, 2);
	ck_assert_uint_eq(m.first_head, 3);
	ck_assert_uint_eq(m.heads, 4);
	ck_assert_uint_eq(m.total_heads, 5);
	ck_assert_uint_eq(m.head_dim_k, 6);
	ck_assert_uint_eq(m.head_dim_v, 7);
	ck_assert_uint_eq(m.block_tokens, 8);
	ck_assert_int_eq(m.k_format, TERRACE__V1__FORMAT__FORMAT_TQ4);
	ck_assert_int_eq(m.v_format, TERRACE__V1__FORMAT__FORMAT_FP8);
	ck_assert_uint_eq(m.window, 9);
	ck_assert_uint_eq(m.rotation_version, 10);
	ck_assert_uint_eq(m.codebook_version, 11);
	ck_assert_uint_eq(m.layout_version, 12);
	ck_assert_uint_eq(m.int4_rounding, 1);
	ck_assert_uint_eq(m.rope_dim, 13);
	ck_assert_int_eq(m.rope_format, TERRACE__V1__FORMAT__FORMAT_TQ3);
}
END_TEST

START_TEST(over_the_wire_and_back)
{
	const struct kv_layout l = every_field();
	struct kv_layout out;
	Terrace__V1__Layout m, *heard;
	uint8_t bytes[256];
	size_t n;

	memset(&out, 0, sizeof(out));
	layout_message_write(&l, &m);
	ck_assert_uint_le(terrace__v1__layout__get_packed_size(&m), sizeof(bytes));
	n = terrace__v1__layout__pack(&m, bytes);
	heard = terrace__v1__layout__unpack(NULL, n, bytes);
	ck_assert_ptr_nonnull(heard);
	ck_assert(layout_message_read(heard, &out));
	ck_assert_mem_eq(&out, &l, sizeof(l));
	terrace__v1__layout__free_unpacked(heard, NULL);
}
END_TEST

START_TEST(another_fingerprint_is_refused)
{
	static const size_t lengths[] = { 0, KV_FINGERPRINT_BYTES - 1, KV_FINGERPRINT_BYTES + 1 };
	const struct kv_layout l = every_field();
	uint8_t bytes[KV_FINGERPRINT_BYTES + 1] = { 0 };
	struct kv_layout out, before;
	Terrace__V1__Layout m;

	memset(&out, 0xa5, sizeof(out));
	before = out;
	layout_message_write(&l, &m);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		m.fingerprint = (ProtobufCBinaryData){ lengths[i], bytes };
		ck_assert(!layout_message_read(&m, &out));
		ck_assert_mem_eq(&out, &before, sizeof(out));
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("layout_message");
	TCase *tc = tcase_create("layout_message");
	SRunner *runner;
	int failed;

	tcase_add_test(tc, each_field_has_its_place);
	tcase_add_test(tc, over_the_wire_and_back);
	tcase_add_test(tc, another_fingerprint_is_refused);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
