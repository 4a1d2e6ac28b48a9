/* Opaque layouts in the format table: what is refused, with which sentence; ids; checked pieces; and that no entry of the
 * kernels takes one for something that it can read. */
#include "kernels/attend_pass.h"
#include "kernels/format.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static struct kv_layout sound(void)
{
	return (struct kv_layout){
		.fingerprint = {7}, .block_tokens = 64, .k_format = KV_OPAQUE, .layout_version = KV_LAYOUT_VERSION,
		.opaque_bytes = 37440, .opaque_name = "vllm/deepseek_v4/1",
	};
}

#define FIELD(name, value, says) {offsetof(struct kv_layout, name), value, says}

/* Each sentence names the field, and says what to do. */
START_TEST(problems)
{
	static const struct {
		size_t at;
		uint32_t value;
		const char *says;
	} bad[] = {
		FIELD(opaque_bytes, 0, "opaque_bytes is 0: give"),
		FIELD(opaque_bytes, 40, "no multiple of 16: round it up"),
		FIELD(opaque_bytes, 1073737728 + 16, "more than 1073737728, which is 512 checked pieces"),
		FIELD(opaque_bytes, UINT32_MAX / 16 * 16, "more than 1073737728"),
		FIELD(layers, 7, "no multiple of layers"),
		FIELD(layers, 32, "opaque_bytes / layers is no multiple of 16"),
		FIELD(layers, 513, "0 to 512"),
		FIELD(v_format, KV_F16, "v_format of an opaque layout must be none"),
		FIELD(v_format, KV_OPAQUE, "v_format of an opaque layout must be none"),
		FIELD(head_dim_k, 128, "are of codecs: set them to 0"),
		FIELD(head_dim_v, 128, "are of codecs"),
		FIELD(rotation_version, 1, "are of codecs"),
		FIELD(codebook_version, 1, "are of codecs"),
		FIELD(int4_rounding, 1, "are of codecs"),
		FIELD(layout_version, 2, "layout_version"),
		FIELD(block_tokens, 0, "1 to 65535"),
		FIELD(block_tokens, 65536, "1 to 65535"),
		FIELD(heads, 1, "total_heads"),
		FIELD(first_head, 1, "heads must be"),
		FIELD(total_heads, 8, "heads must be"),
	};
	struct kv_layout l = sound();

	ck_assert_ptr_null(kv_layout_problem(&l));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		const char *problem;

		l = sound();
		memcpy((char *)&l + bad[i].at, &bad[i].value, 4);
		problem = kv_layout_problem(&l);
		ck_assert_msg(problem != NULL, "case %zu is accepted", i);
		ck_assert_msg(strstr(problem, bad[i].says) != NULL, "case %zu says: %s", i, problem);
	}
	l = sound();
	l.layers = 2;
	l.first_layer = UINT32_MAX;
	ck_assert_ptr_nonnull(strstr(kv_layout_problem(&l), "overflows"));
}
END_TEST

START_TEST(what_is_allowed)
{
	static const struct {
		uint32_t bytes, layers, heads, first_head, total_heads, tokens;
	} good[] = {
		{16, 0, 0, 0, 0, 1}, {16, 1, 0, 0, 0, 65535}, {1073737728, 0, 0, 0, 0, 3584}, {512 * 2097136, 512, 0, 0, 0, 16},
		{37440, 0, 2, 6, 8, 64}, {37440, 3, 1, 0, 1, 17},
	};

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		struct kv_layout l = sound();

		l.opaque_bytes = good[i].bytes;
		l.layers = good[i].layers;
		l.heads = good[i].heads;
		l.first_head = good[i].first_head;
		l.total_heads = good[i].total_heads;
		l.block_tokens = good[i].tokens;
		ck_assert_msg(!kv_layout_problem(&l), "case %zu: %s", i, kv_layout_problem(&l));
	}
}
END_TEST

START_TEST(names)
{
	static const struct {
		const char *name, *says; /* NULL: good */
	} known[] = {
		{"vllm/int4_per_token_head/1", NULL}, {"a/1", NULL}, {"A.b_c+d-e/9/123456789", NULL},
		{"123456789012345678901234567890123456789012345678901234567890/12", NULL},
		{"1234567890123456789012345678901234567890123456789012345678901/12", "longer than 63"},
		{"", "is empty: name the format"}, {"/", "empty part"}, {"/1", "empty part"}, {"a//1", "empty part"}, {"a/1/", "empty part"},
		{"a", "no version: end it"}, {"1", "no version"}, {"a/b", "no version"}, {"a/0", "no version"}, {"a/01", "no version"},
		{"a/1b", "no version"}, {"a/-1", "no version"}, {"a/1234567890", "no version"},
		{"a b/1", "none of letters"}, {"a\n/1", "none of letters"}, {"a:b/1", "none of letters"}, {"\xc3\xa4/1", "none of letters"},
		{"a/1\"", "none of letters"},
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		struct kv_layout l = sound();
		const char *problem;

		memset(l.opaque_name, 0, sizeof(l.opaque_name));
		memcpy(l.opaque_name, known[i].name, strnlen(known[i].name, sizeof(l.opaque_name)));
		problem = kv_layout_problem(&l);
		if (known[i].says)
			ck_assert_msg(problem && strstr(problem, "opaque_name ") && strstr(problem, known[i].says), "\"%s\" says: %s",
				      known[i].name, problem ? problem : "nothing");
		else
			ck_assert_msg(!problem, "\"%s\" says: %s", known[i].name, problem);
	}
	struct kv_layout l = sound();

	l.opaque_name[40] = 'x'; /* behind the NUL: equal layouts are equal in memory */
	ck_assert_ptr_nonnull(strstr(kv_layout_problem(&l), "behind its end"));
}
END_TEST

/* A promise between machines, as ids of packed layouts are: the size, the name and its version count. */
START_TEST(ids)
{
	struct kv_layout l = sound();
	const uint64_t id = kv_layout_id(&l);

	ck_assert_msg(id == UINT64_C(0xa60e8c5df6037857), "%llx", (unsigned long long)id);
	for (size_t at = 0; at < offsetof(struct kv_layout, opaque_name) + strlen(l.opaque_name);
	     at += at < KV_FINGERPRINT_BYTES || at >= offsetof(struct kv_layout, opaque_name) ? 1 : 4) {
		if (at == offsetof(struct kv_layout, int4_rounding))
			continue; /* is 0 in opaque layouts */
		l = sound();
		((uint8_t *)&l)[at] ^= 1;
		ck_assert_msg(kv_layout_id(&l) != id, "byte %zu does not count", at);
	}
	l = sound();
	strcpy(l.opaque_name, "vllm/deepseek_v4/2");
	ck_assert_uint_ne(kv_layout_id(&l), id);
	strcpy(l.opaque_name, "vllm/deepseek_v4/11");
	ck_assert_uint_ne(kv_layout_id(&l), id);
}
END_TEST

/* Layers are pieces; else chunks of 64 KiB, or the least multiple of it of which 512 are enough, and the last is what is left. */
START_TEST(pieces)
{
	static const struct {
		uint32_t bytes, layers, pieces, steps;
		uint64_t piece_bytes;
	} known[] = {
		{16, 0, 1, 1, 16}, {65536, 0, 1, 1, 65536}, {65552, 0, 2, 1, 65536}, {37440, 0, 1, 1, 37440}, {37440, 3, 3, 3, 12480},
		{131072, 0, 2, 1, 65536}, {512 * 65536, 0, 512, 1, 65536}, {512 * 65536 + 16, 0, 257, 1, 131072},
		{1024 * 65536, 0, 512, 1, 131072}, {1024 * 65536 + 16, 0, 342, 1, 3 * 65536}, {1073737728, 0, 512, 1, 2097152},
		{512 * 16, 512, 512, 512, 16}, {512 * 2097136, 512, 512, 512, 2097136}, {1 << 20, 1, 1, 1, 1 << 20},
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		struct kv_layout l = sound();
		struct kv_geometry g;

		l.opaque_bytes = known[i].bytes;
		l.layers = known[i].layers;
		ck_assert_msg(!kv_layout_problem(&l), "case %zu: %s", i, kv_layout_problem(&l));
		kv_geometry_of(&l, &g);
		ck_assert_uint_eq(g.block_bytes, known[i].bytes);
		ck_assert_uint_eq(g.pieces, known[i].pieces);
		ck_assert_uint_eq(g.piece_bytes, known[i].piece_bytes);
		ck_assert_uint_eq(g.steps, known[i].steps);
		ck_assert_uint_eq(g.layer_bytes * g.steps, g.block_bytes);
		ck_assert_uint_ge(g.piece_bytes * g.pieces, g.block_bytes);
		ck_assert_uint_lt(g.piece_bytes * (g.pieces - 1), g.block_bytes);
		ck_assert_uint_eq(g.need_bytes, (known[i].bytes + 4096 + 4095) / 4096 * 4096ull);
		ck_assert_uint_le(g.need_bytes, 1 << 30);
		ck_assert_uint_eq(g.atom_bytes | g.chunk_bytes | g.atoms, 0);
	}
}
END_TEST

START_TEST(attention_is_refused)
{
	struct kv_layout l = sound();
	struct kv_geometry g;
	const char *problem;

	kv_geometry_of(&l, &g);
	problem = kv_attend_shape_problem(&(struct kv_attend){.layout = &l, .geometry = &g, .queries = 1, .q_heads = 1, .scale = 1});
	ck_assert_ptr_nonnull(problem);
	ck_assert_ptr_nonnull(strstr(problem, "opaque"));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("opaque");
	TCase *t = tcase_create("opaque");
	SRunner *r;
	int failed;

	tcase_add_test(t, problems);
	tcase_add_test(t, what_is_allowed);
	tcase_add_test(t, names);
	tcase_add_test(t, ids);
	tcase_add_test(t, pieces);
	tcase_add_test(t, attention_is_refused);
	suite_add_tcase(suite, t);
	r = srunner_create(suite);
	srunner_run_all(r, CK_ENV);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
