/* Layouts as bytes: every field comes back, and records of the first version, which end in zeroes, are read as they were. */
#include "daemon/block/layout_bytes.h"

#include "kernels/format.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static struct kv_layout some(void)
{
	return (struct kv_layout){
		.fingerprint = "a model's", .first_layer = 1, .layers = 2, .first_head = 3, .heads = 4, .total_heads = 8,
		.head_dim_k = 128, .head_dim_v = 64, .block_tokens = 16, .k_format = KV_INT4_PTH, .v_format = KV_TQ4,
		.window = 512, .rotation_version = 1, .codebook_version = 1, .layout_version = 1,
		.int4_rounding = KV_ROUND_BF16,
	};
}

static struct kv_layout with_rope(void)
{
	struct kv_layout l = some();

	l.first_head = 0;
	l.heads = l.total_heads = 1;
	l.head_dim_k = l.head_dim_v = KV_LATENT_DIM;
	l.v_format = KV_NONE;
	l.rotation_version = KV_ROTATION_VERSION_2;
	l.rope_dim = KV_ROPE_DIM;
	l.rope_format = KV_FP8;
	return l;
}

/* _i: 1 with a rope part. */
START_TEST(every_field_comes_back)
{
	const struct kv_layout in = _i ? with_rope() : some();
	uint8_t bytes[LAYOUT_BYTES_MAX];
	struct kv_layout out;
	uint32_t n;

	ck_assert_ptr_null(kv_layout_problem(&in));
	n = layout_pack(&in, bytes);
	ck_assert_uint_eq(n, _i ? LAYOUT_BYTES + 8 : LAYOUT_BYTES);
	ck_assert(layout_unpack(bytes, n, &out));
	ck_assert_mem_eq(&in, &out, sizeof(in));
	ck_assert_uint_eq(kv_layout_id(&in), kv_layout_id(&out));
}
END_TEST

/* Neither form is read as the other, and a rope part has to be one. */
START_TEST(a_rope_part_has_its_form)
{
	struct kv_layout in = with_rope(), out;
	uint8_t bytes[LAYOUT_BYTES_MAX];

	layout_pack(&in, bytes);
	ck_assert(!layout_unpack(bytes, LAYOUT_BYTES, &out));
	bytes[0] = 1;
	ck_assert(!layout_unpack(bytes, LAYOUT_BYTES_MAX, &out));
	ck_assert(!layout_unpack(bytes, LAYOUT_BYTES_MAX - 4, &out));
	layout_pack(&in, bytes);
	bytes[LAYOUT_BYTES] = 32;
	ck_assert(!layout_unpack(bytes, LAYOUT_BYTES_MAX, &out));
	bytes[LAYOUT_BYTES] = bytes[LAYOUT_BYTES + 4] = 0; /* none, in the form of one */
	ck_assert(!layout_unpack(bytes, LAYOUT_BYTES_MAX, &out));
}
END_TEST

START_TEST(a_record_of_the_first_version_rounds_to_fp16)
{
	struct kv_layout in = some(), out;
	uint8_t bytes[LAYOUT_BYTES_MAX];

	in.int4_rounding = KV_ROUND_F16;
	layout_pack(&in, bytes);
	for (int i = 92; i < LAYOUT_BYTES; i++)
		ck_assert_uint_eq(bytes[i], 0);
	ck_assert(layout_unpack(bytes, LAYOUT_BYTES, &out));
	ck_assert_int_eq(out.int4_rounding, KV_ROUND_F16);
}
END_TEST

static struct kv_layout opaque(void)
{
	return (struct kv_layout){
		.fingerprint = "a model's", .first_layer = 1, .layers = 2, .first_head = 3, .heads = 4, .total_heads = 8, .block_tokens = 784,
		.k_format = KV_OPAQUE, .window = 512, .layout_version = 1, .opaque_bytes = 64, .opaque_name = "vllm/mamba2_state/1",
	};
}

START_TEST(an_opaque_one_comes_back)
{
	const struct kv_layout in = opaque();
	uint8_t bytes[LAYOUT_BYTES_MAX];
	struct kv_layout out;

	ck_assert_ptr_null(kv_layout_problem(&in));
	ck_assert_uint_eq(layout_pack(&in, bytes), LAYOUT_BYTES_MAX);
	ck_assert(layout_unpack(bytes, LAYOUT_BYTES_MAX, &out));
	ck_assert_mem_eq(&in, &out, sizeof(in));
	ck_assert_uint_eq(kv_layout_id(&in), kv_layout_id(&out));
}
END_TEST

START_TEST(what_is_no_opaque_one_is_refused)
{
	const struct kv_layout in = opaque(), packed = some();
	uint8_t bytes[LAYOUT_BYTES_MAX] = { 0 };
	struct kv_layout out;

	layout_pack(&in, bytes);
	ck_assert(!layout_unpack(bytes, LAYOUT_BYTES, &out));
	ck_assert(!layout_unpack(bytes, LAYOUT_BYTES_MAX - 1, &out));
	bytes[LAYOUT_BYTES_MAX - 1] = 'x'; /* behind the name */
	ck_assert(!layout_unpack(bytes, LAYOUT_BYTES_MAX, &out));
	layout_pack(&in, bytes);
	memcpy(bytes, &(uint32_t){ 1 }, 4);
	ck_assert(!layout_unpack(bytes, LAYOUT_BYTES_MAX, &out));
	memset(bytes, 0, sizeof(bytes));
	layout_pack(&packed, bytes);
	memcpy(bytes, &(uint32_t){ 2 }, 4); /* a packed one in the other form */
	ck_assert(!layout_unpack(bytes, LAYOUT_BYTES_MAX, &out));
}
END_TEST

START_TEST(what_is_no_layout_is_refused)
{
	const struct kv_layout in = some();
	uint8_t bytes[LAYOUT_BYTES_MAX];
	struct kv_layout out;

	layout_pack(&in, bytes);
	ck_assert(!layout_unpack(bytes, LAYOUT_BYTES - 1, &out));
	bytes[LAYOUT_BYTES - 4] = 7; /* no rounding */
	ck_assert(!layout_unpack(bytes, LAYOUT_BYTES, &out));
	layout_pack(&in, bytes);
	bytes[0] = 9; /* no form */
	ck_assert(!layout_unpack(bytes, LAYOUT_BYTES, &out));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("layout_bytes");
	TCase *t = tcase_create("layout_bytes");
	SRunner *r;
	int failed;

	tcase_add_loop_test(t, every_field_comes_back, 0, 2);
	tcase_add_test(t, a_rope_part_has_its_form);
	tcase_add_test(t, a_record_of_the_first_version_rounds_to_fp16);
	tcase_add_test(t, what_is_no_layout_is_refused);
	tcase_add_test(t, an_opaque_one_comes_back);
	tcase_add_test(t, what_is_no_opaque_one_is_refused);
	suite_add_tcase(suite, t);
	r = srunner_create(suite);
	srunner_run_all(r, CK_ENV);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
