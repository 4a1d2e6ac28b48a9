/* The library's CUDA calls against a plugin that has no GPU: what is loaded, what is refused, and that every option arrives. */
#include <check.h>
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "client/include/terrace.h"
#include "tests/client/driver/fake_plugin.h"

static struct client_cuda_noted *noted;

static struct terrace_layout layout_of(enum terrace_format format)
{
	struct terrace_layout l = TERRACE_LAYOUT_INIT;

	l.layers = 2;
	l.heads = l.total_heads = 4;
	l.head_dim_k = l.head_dim_v = 128;
	l.block_tokens = 32;
	l.k_format = l.v_format = format;
	return l;
}

static void load(void)
{
	void *library;
	struct client_cuda_noted *(*get)(void);

	ck_assert_int_eq(terrace_cuda_load(CUDA_PLUGIN), TERRACE_OK);
	library = dlopen(CUDA_PLUGIN, RTLD_NOW | RTLD_NOLOAD);
	ck_assert_ptr_nonnull(library);
	get = (struct client_cuda_noted * (*)(void)) dlsym(library, "client_cuda_noted");
	noted = get();
	noted->workspace = 4096;
}

START_TEST(test_no_plugin_is_unsupported)
{
	struct terrace_layout l = layout_of(TERRACE_FORMAT_TQ4);
	struct terrace_cuda_attend_options o = TERRACE_CUDA_ATTEND_OPTIONS_INIT;
	size_t bytes = 7;

	ck_assert_int_eq(terrace_cuda_load("/nowhere/libterrace_cuda.so"), TERRACE_UNSUPPORTED);
	ck_assert_ptr_nonnull(strstr(terrace_error(), "/nowhere"));
	ck_assert_int_eq(terrace_cuda_load(NOT_A_PLUGIN), TERRACE_UNSUPPORTED);
	ck_assert_int_eq(terrace_cuda_attend_workspace(&l, &o, &bytes), TERRACE_UNSUPPORTED);
	ck_assert_uint_eq(bytes, 7);
}
END_TEST

START_TEST(test_no_device_is_unsupported)
{
	struct terrace_layout l = layout_of(TERRACE_FORMAT_TQ4);
	struct terrace_cuda_attend_options o = TERRACE_CUDA_ATTEND_OPTIONS_INIT;
	struct terrace_cuda_merge_options m = TERRACE_CUDA_MERGE_OPTIONS_INIT;
	size_t bytes = 7;

	load();
	noted->problem = "no device here";
	ck_assert_int_eq(terrace_cuda_load(NULL), TERRACE_UNSUPPORTED);
	ck_assert_ptr_nonnull(strstr(terrace_error(), "no device here"));
	/* The plugin is loaded by then; every call is refused all the same, and none reaches it. */
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(terrace_cuda_attend(&l, &o, NULL), TERRACE_UNSUPPORTED);
		ck_assert_ptr_nonnull(strstr(terrace_error(), "no device here"));
		ck_assert_int_eq(terrace_cuda_merge(&m, NULL), TERRACE_UNSUPPORTED);
		ck_assert_int_eq(terrace_cuda_attend_workspace(&l, &o, &bytes), TERRACE_UNSUPPORTED);
	}
	ck_assert_uint_eq(noted->calls, 0);
	ck_assert_uint_eq(bytes, 7);
	noted->problem = NULL; /* another device is the current one */
	ck_assert_int_eq(terrace_cuda_attend(&l, &o, NULL), TERRACE_OK);
	ck_assert_uint_eq(noted->calls, 1);
}
END_TEST

START_TEST(test_attend_arrives)
{
	struct terrace_layout l = layout_of(TERRACE_FORMAT_TQ4);
	struct terrace_cuda_features f = TERRACE_CUDA_FEATURES_INIT;
	struct terrace_cuda_attend_options o = TERRACE_CUDA_ATTEND_OPTIONS_INIT;
	size_t bytes = 0;

	load();
	f.window = 77;
	f.softcap = 30;
	f.sinks = (const float *)16;
	f.alibi = (const float *)32;
	f.alibi_sqrt = true;
	f.tree_bias = (const float *)48;
	f.ranges = (const int32_t *)64;
	f.range_count = 3;
	f.out_scale = (const float *)80;
	o.layer = 1;
	o.sequences = 5;
	o.queries = 6;
	o.q_heads = 8;
	o.q = (const void *)96;
	o.q_dtype = TERRACE_BF16;
	o.blocks = (const uint64_t *)112;
	o.blocks_stride = 9;
	o.kv_tokens = (const uint32_t *)128;
	o.features = &f;
	o.out = (void *)144;
	o.out_dtype = TERRACE_E4M3;
	o.lse = (float *)160;
	o.workspace = (void *)256;
	o.workspace_bytes = 512;
	o.settled = true;
	o.split_tokens = 4096;
	ck_assert_int_eq(terrace_cuda_attend_workspace(&l, &o, &bytes), TERRACE_OK);
	ck_assert_int_eq(terrace_cuda_attend_workspace(&l, &o, NULL), TERRACE_INVALID);
	ck_assert_uint_eq(bytes, 4096);
	ck_assert_int_eq(terrace_cuda_attend_plan(&l, &o, (void *)17), TERRACE_OK);
	ck_assert_int_eq(terrace_cuda_attend(&l, &o, (void *)18), TERRACE_OK);
	ck_assert_uint_eq(noted->calls, 2);
	ck_assert_ptr_eq(noted->stream, (void *)18);
	ck_assert_uint_eq(noted->layout.layers, 2);
	ck_assert_uint_eq(noted->geometry.block_bytes, terrace_block_bytes(&l));
	const struct kv_cuda_attend *a = &noted->attend;

	ck_assert_uint_eq(a->layer, 1);
	ck_assert_uint_eq(a->sequences, 5);
	ck_assert_uint_eq(a->queries, 6);
	ck_assert_uint_eq(a->q_heads, 8);
	ck_assert_float_eq_tol(a->scale, 1 / sqrtf(128), 1e-7f);
	ck_assert_ptr_eq(a->q, o.q);
	ck_assert_int_eq(a->q_dtype, KV_DTYPE_BF16);
	ck_assert_ptr_eq(a->blocks, o.blocks);
	ck_assert_uint_eq(a->blocks_stride, 9);
	ck_assert_ptr_eq(a->kv_tokens, o.kv_tokens);
	ck_assert_uint_eq(a->features.window, 77);
	ck_assert_float_eq(a->features.softcap, 30);
	ck_assert_ptr_eq(a->features.sinks, f.sinks);
	ck_assert_ptr_eq(a->features.alibi, f.alibi);
	ck_assert(a->features.alibi_sqrt);
	ck_assert_ptr_eq(a->features.tree_bias, f.tree_bias);
	ck_assert_ptr_eq(a->features.ranges, f.ranges);
	ck_assert_uint_eq(a->features.ranges_max, 3);
	ck_assert_ptr_eq(a->features.out_scale, f.out_scale);
	ck_assert_ptr_eq(a->out, o.out);
	ck_assert_int_eq(a->out_dtype, KV_DTYPE_E4M3);
	ck_assert_ptr_eq(a->lse, o.lse);
	ck_assert_ptr_eq(a->workspace, o.workspace);
	ck_assert_uint_eq(a->workspace_bytes, 512);
	ck_assert(a->settled);
	ck_assert_uint_eq(a->split_tokens, 4096);
}
END_TEST

START_TEST(test_extend_arrives)
{
	struct terrace_layout l = layout_of(TERRACE_FORMAT_FP8);
	struct terrace_cuda_extend_options o = TERRACE_CUDA_EXTEND_OPTIONS_INIT;
	size_t bytes = 0;

	load();
	o.layer = 1;
	o.sequences = 3;
	o.total_queries = 100;
	o.q_heads = 16;
	o.scale = 0.5f;
	o.query_starts = (const uint32_t *)16;
	o.prefix_tokens = (const uint32_t *)32;
	o.q = (const void *)48;
	o.q_dtype = TERRACE_F16;
	o.k = (const void *)64;
	o.v = (const void *)80;
	o.k_stride = 512;
	o.v_stride = 1024;
	o.kv_dtype = TERRACE_BF16;
	o.blocks = (const uint64_t *)96;
	o.blocks_stride = 11;
	o.out = (void *)112;
	o.out_dtype = TERRACE_F32;
	o.lse = (float *)128;
	o.workspace = (void *)256;
	o.workspace_bytes = 512;
	o.tree_stride = 60;
	ck_assert_int_eq(terrace_cuda_extend_workspace(&l, &o, &bytes), TERRACE_OK);
	ck_assert_int_eq(terrace_cuda_extend_workspace(&l, &o, NULL), TERRACE_INVALID);
	ck_assert_uint_eq(bytes, 4096);
	ck_assert_int_eq(terrace_cuda_extend(&l, &o, NULL), TERRACE_OK);
	const struct kv_cuda_extend *e = &noted->extend;

	ck_assert_uint_eq(e->layer, 1);
	ck_assert_uint_eq(e->sequences, 3);
	ck_assert_uint_eq(e->total_queries, 100);
	ck_assert_uint_eq(e->q_heads, 16);
	ck_assert_float_eq(e->scale, 0.5f);
	ck_assert_ptr_eq(e->query_starts, o.query_starts);
	ck_assert_ptr_eq(e->prefix_tokens, o.prefix_tokens);
	ck_assert_ptr_eq(e->q, o.q);
	ck_assert_int_eq(e->q_dtype, KV_DTYPE_F16);
	ck_assert_ptr_eq(e->k, o.k);
	ck_assert_ptr_eq(e->v, o.v);
	ck_assert_uint_eq(e->k_stride, 512);
	ck_assert_uint_eq(e->v_stride, 1024);
	ck_assert_int_eq(e->own_dtype, KV_DTYPE_BF16);
	ck_assert_ptr_eq(e->blocks, o.blocks);
	ck_assert_uint_eq(e->blocks_stride, 11);
	ck_assert_ptr_eq(e->out, o.out);
	ck_assert_int_eq(e->out_dtype, KV_DTYPE_F32);
	ck_assert_ptr_eq(e->lse, o.lse);
	ck_assert_ptr_eq(e->workspace, o.workspace);
	ck_assert_uint_eq(e->workspace_bytes, 512);
	ck_assert_uint_eq(e->tree_stride, 60);
}
END_TEST

START_TEST(test_codec_merge_and_copy_arrive)
{
	struct terrace_layout l = layout_of(TERRACE_FORMAT_INT4_PTH);
	struct terrace_cuda_codec_options o = TERRACE_CUDA_CODEC_OPTIONS_INIT;
	struct terrace_cuda_merge_options m = TERRACE_CUDA_MERGE_OPTIONS_INIT;
	struct terrace_cuda_copy_options c = TERRACE_CUDA_COPY_OPTIONS_INIT;
	const void *outs[2] = { (void *)16, (void *)32 };
	const float *lses[2] = { (float *)48, (float *)64 };

	load();
	o.layer = 1;
	o.tokens = 40;
	o.slots = (const int64_t *)16;
	o.blocks = (const uint64_t *)32;
	o.block_count = 7;
	o.k = (void *)48;
	o.v = (void *)64;
	o.k_stride = 512;
	o.v_stride = 640;
	o.dtype = TERRACE_F16;
	o.rows = (const int64_t *)128;
	for (int decode = 0; decode < 2; decode++) {
		memset(&noted->codec, 0, sizeof(noted->codec));
		ck_assert_int_eq((decode ? terrace_cuda_decode : terrace_cuda_encode)(&l, &o, NULL), TERRACE_OK);
		ck_assert_uint_eq(noted->codec.layer, 1);
		ck_assert_uint_eq(noted->codec.tokens, 40);
		ck_assert_ptr_eq(noted->codec.slots, o.slots);
		ck_assert_ptr_eq(noted->codec.blocks, o.blocks);
		ck_assert_uint_eq(noted->codec.block_count, 7);
		ck_assert_ptr_eq(noted->codec.k, o.k);
		ck_assert_ptr_eq(noted->codec.v, o.v);
		ck_assert_uint_eq(noted->codec.k_stride, 512);
		ck_assert_uint_eq(noted->codec.v_stride, 640);
		ck_assert_int_eq(noted->codec.dtype, KV_DTYPE_F16);
		ck_assert_ptr_eq(noted->codec.rows, o.rows);
	}
	o.size--;
	ck_assert_int_eq(terrace_cuda_decode(&l, &o, NULL), TERRACE_INVALID);
	m.parts = 2;
	m.out = outs;
	m.lse = lses;
	m.rows = 10;
	m.d = 128;
	m.in_dtype = TERRACE_F16;
	m.out_dtype = TERRACE_F32;
	m.merged = (void *)80;
	m.merged_lse = (float *)96;
	ck_assert_int_eq(terrace_cuda_merge(&m, NULL), TERRACE_OK);
	ck_assert_uint_eq(noted->merge.parts, 2);
	ck_assert_ptr_eq(noted->merge.out[1], outs[1]);
	ck_assert_ptr_eq(noted->merge.lse[1], lses[1]);
	ck_assert_uint_eq(noted->merge.rows, 10);
	ck_assert_uint_eq(noted->merge.d, 128);
	ck_assert_int_eq(noted->merge.in_dtype, KV_DTYPE_F16);
	ck_assert_int_eq(noted->merge.out_dtype, KV_DTYPE_F32);
	ck_assert_ptr_eq(noted->merge.merged, m.merged);
	ck_assert_ptr_eq(noted->merge.merged_lse, m.merged_lse);
	m.parts = 17;
	ck_assert_int_eq(terrace_cuda_merge(&m, NULL), TERRACE_INVALID);
	c.count = 12;
	c.from = (const uint64_t *)16;
	c.to = (const uint64_t *)32;
	c.tokens = (const uint32_t *)48;
	c.ctas = 4;
	ck_assert_int_eq(terrace_cuda_copy(&l, &c, NULL), TERRACE_OK);
	ck_assert_uint_eq(noted->copy.count, 12);
	ck_assert_ptr_eq(noted->copy.from, c.from);
	ck_assert_ptr_eq(noted->copy.to, c.to);
	ck_assert_ptr_eq(noted->copy.tokens, c.tokens);
	ck_assert_uint_eq(noted->copy.ctas, 4);
	ck_assert_uint_eq(noted->copy.block_bytes, terrace_block_bytes(&l));
}
END_TEST

START_TEST(test_repack_arrives)
{
	struct terrace_layout l = layout_of(TERRACE_FORMAT_INT4_PTH);
	struct terrace_cuda_repack_options o = TERRACE_CUDA_REPACK_OPTIONS_INIT;
	const struct kv_cuda_repack *r;

	load();
	r = &noted->repack;
	o.layer = 1;
	o.tokens = 40;
	o.slots = (const int64_t *)16;
	o.page_slots = (const int64_t *)24;
	o.blocks = (const uint64_t *)32;
	o.block_count = 7;
	o.page_tokens = 9;
	o.page_count = UINT64_C(1) << 40;
	o.k = (struct terrace_pages){(void *)48, (void *)64, 1, -2, 3, -4, 5, -6};
	o.v = (struct terrace_pages){(void *)80, (void *)96, -7, 8, -9, 10, -11, 12};
	for (int to = 0; to < 2; to++) {
		memset(&noted->repack, 0, sizeof(noted->repack));
		ck_assert_int_eq((to ? terrace_cuda_repack_to_pages : terrace_cuda_repack_from_pages)(&l, &o, NULL),
				 TERRACE_OK);
		ck_assert_int_eq(noted->to_pages, to);
		ck_assert_uint_eq(r->layer, 1);
		ck_assert_uint_eq(r->tokens, 40);
		ck_assert_ptr_eq(r->slots, o.slots);
		ck_assert_ptr_eq(r->page_slots, o.page_slots);
		ck_assert_ptr_eq(r->blocks, o.blocks);
		ck_assert_uint_eq(r->block_count, 7);
		ck_assert_uint_eq(r->page_tokens, 9);
		ck_assert_uint_eq(r->page_count, UINT64_C(1) << 40);
		ck_assert_ptr_eq(r->side[KV_SIDE_K].codes, o.k.codes);
		ck_assert_ptr_eq(r->side[KV_SIDE_K].scales, o.k.scales);
		ck_assert_int_eq(r->side[KV_SIDE_K].code_page, 1);
		ck_assert_int_eq(r->side[KV_SIDE_K].code_token, -2);
		ck_assert_int_eq(r->side[KV_SIDE_K].code_head, 3);
		ck_assert_int_eq(r->side[KV_SIDE_K].scale_page, -4);
		ck_assert_int_eq(r->side[KV_SIDE_K].scale_token, 5);
		ck_assert_int_eq(r->side[KV_SIDE_K].scale_head, -6);
		ck_assert_ptr_eq(r->side[KV_SIDE_V].codes, o.v.codes);
		ck_assert_int_eq(r->side[KV_SIDE_V].scale_head, 12);
	}
	noted->answer = STATUS_UNSUPPORTED;
	ck_assert_int_eq(terrace_cuda_repack_from_pages(&l, &o, NULL), TERRACE_UNSUPPORTED);
	noted->answer = STATUS_OK;
	l.heads = l.total_heads = 1;
	l.head_dim_k = l.head_dim_v = 512;
	l.v_format = TERRACE_FORMAT_NONE;
	l.rope_dim = 64;
	l.rope_format = TERRACE_FORMAT_BF16;
	ck_assert_int_eq(terrace_cuda_repack_from_pages(&l, &o, NULL), TERRACE_UNSUPPORTED);
	ck_assert_msg(strstr(terrace_error(), "rope part") != NULL, "%s", terrace_error());
	l = layout_of(TERRACE_FORMAT_INT4_PTH);
	o.size--;
	ck_assert_int_eq(terrace_cuda_repack_to_pages(&l, &o, NULL), TERRACE_INVALID);
	ck_assert_int_eq(terrace_cuda_repack_from_pages(&l, NULL, NULL), TERRACE_INVALID);
}
END_TEST

#if defined(__x86_64__)
/* What computes with floats on the host does so in the default mode, whatever the caller's is: a subnormal scale is a scale. */
START_TEST(test_the_callers_float_mode)
{
	enum { USUAL = 0x1f80, FLUSH_AND_ROUND_UP = 0x8040 | 0x4000 };
	struct terrace_layout l = layout_of(TERRACE_FORMAT_TQ4);
	struct terrace_cuda_attend_options a = TERRACE_CUDA_ATTEND_OPTIONS_INIT;
	struct terrace_cuda_extend_options e = TERRACE_CUDA_EXTEND_OPTIONS_INIT;
	size_t bytes;

	load();
	a.scale = e.scale = 1e-40f;
	for (int i = 0; i < 5; i++) {
		enum terrace_status status;
		unsigned after;

		noted->float_mode = 0;
		_mm_setcsr(USUAL | FLUSH_AND_ROUND_UP);
		status = i == 0	  ? terrace_cuda_attend_workspace(&l, &a, &bytes)
			 : i == 1 ? terrace_cuda_attend_plan(&l, &a, NULL)
			 : i == 2 ? terrace_cuda_attend(&l, &a, NULL)
			 : i == 3 ? terrace_cuda_extend_workspace(&l, &e, &bytes)
				  : terrace_cuda_extend(&l, &e, NULL);
		after = _mm_getcsr();
		_mm_setcsr(USUAL);
		ck_assert_int_eq(status, TERRACE_OK);
		ck_assert_uint_eq(after, USUAL | FLUSH_AND_ROUND_UP);
		ck_assert_uint_eq(noted->float_mode, USUAL);
		ck_assert(i < 3 ? noted->attend.scale == 1e-40f : noted->extend.scale == 1e-40f);
	}
}
END_TEST
#endif

static void refused(enum terrace_status status, const char *call)
{
	ck_assert_int_eq(status, TERRACE_UNSUPPORTED);
	ck_assert_msg(strstr(terrace_error(), "opaque") && strstr(terrace_error(), call), "%s", terrace_error());
}

/* Nothing of it reaches the kernels; its blocks can be copied whole. */
START_TEST(test_no_kernel_takes_an_opaque_layout)
{
	struct terrace_layout l = TERRACE_LAYOUT_INIT;
	struct terrace_cuda_attend_options a = TERRACE_CUDA_ATTEND_OPTIONS_INIT;
	struct terrace_cuda_extend_options e = TERRACE_CUDA_EXTEND_OPTIONS_INIT;
	struct terrace_cuda_codec_options c = TERRACE_CUDA_CODEC_OPTIONS_INIT;
	struct terrace_cuda_repack_options r = TERRACE_CUDA_REPACK_OPTIONS_INIT;
	struct terrace_cuda_copy_options o = TERRACE_CUDA_COPY_OPTIONS_INIT;
	const uint32_t tokens = 16;
	size_t bytes;

	l.block_tokens = 16;
	l.k_format = TERRACE_FORMAT_OPAQUE;
	l.opaque_bytes = 4672;
	strcpy(l.opaque_name, "vllm/deepseek_v4_sparse/1");
	load();
	refused(terrace_cuda_attend_workspace(&l, &a, &bytes), "cuda attend");
	refused(terrace_cuda_attend_plan(&l, &a, NULL), "cuda attend");
	refused(terrace_cuda_attend(&l, &a, NULL), "cuda attend");
	refused(terrace_cuda_extend_workspace(&l, &e, &bytes), "cuda extend");
	refused(terrace_cuda_extend(&l, &e, NULL), "cuda extend");
	refused(terrace_cuda_encode(&l, &c, NULL), "cuda encode");
	refused(terrace_cuda_decode(&l, &c, NULL), "cuda decode");
	refused(terrace_cuda_repack_from_pages(&l, &r, NULL), "cuda repack");
	refused(terrace_cuda_repack_to_pages(&l, &r, NULL), "cuda repack");
	o.tokens = &tokens;
	refused(terrace_cuda_copy(&l, &o, NULL), "cuda copy");
	o.tokens = NULL;
	ck_assert_int_eq(terrace_cuda_copy(&l, &o, NULL), TERRACE_OK);
}
END_TEST

START_TEST(test_refusals_have_words)
{
	struct terrace_layout l = layout_of(TERRACE_FORMAT_TQ4), bad = l;
	struct terrace_cuda_attend_options o = TERRACE_CUDA_ATTEND_OPTIONS_INIT;
	static const struct {
		enum status answer;
		enum terrace_status status;
		const char *words;
	} cases[] = {
		{ STATUS_INVALID, TERRACE_INVALID, "bounds" },
		{ STATUS_UNSUPPORTED, TERRACE_UNSUPPORTED, "no kernel" },
		{ STATUS_EXHAUSTED, TERRACE_EXHAUSTED, "workspace" },
		{ STATUS_INTERNAL, TERRACE_INTERNAL, "the words of CUDA" },
	};
	struct terrace_cuda_extend_options e = TERRACE_CUDA_EXTEND_OPTIONS_INIT;
	size_t bytes = 7;

	load();
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		noted->answer = cases[i].answer;
		ck_assert_int_eq(terrace_cuda_attend(&l, &o, NULL), cases[i].status);
		ck_assert_ptr_nonnull(strstr(terrace_error(), cases[i].words));
		ck_assert_int_eq(terrace_cuda_attend_workspace(&l, &o, &bytes), cases[i].status);
		ck_assert_ptr_nonnull(strstr(terrace_error(), cases[i].words));
		ck_assert_int_eq(terrace_cuda_extend_workspace(&l, &e, &bytes), cases[i].status);
		ck_assert_ptr_nonnull(strstr(terrace_error(), cases[i].words));
	}
	ck_assert_uint_eq(bytes, 7);
	noted->answer = STATUS_UNSUPPORTED;
	l.head_dim_v = 96;
	ck_assert_int_eq(terrace_cuda_extend_workspace(&l, &e, &bytes), TERRACE_UNSUPPORTED);
	ck_assert_ptr_nonnull(strstr(terrace_error(), "cuda extend: no kernel for tq4 keys and tq4 values of head dims"));
	ck_assert_ptr_nonnull(strstr(terrace_error(), " and 96 in this build or on this device: every build has"));
	ck_assert_ptr_nonnull(strstr(terrace_error(), "K of 128 with V of 64"));
	l.head_dim_v = l.head_dim_k;
	ck_assert_int_eq(terrace_cuda_attend(&l, NULL, NULL), TERRACE_INVALID);
	o.size = 4;
	ck_assert_int_eq(terrace_cuda_attend(&l, &o, NULL), TERRACE_INVALID);
	bad.head_dim_k = 100;
	o = (struct terrace_cuda_attend_options)TERRACE_CUDA_ATTEND_OPTIONS_INIT;
	ck_assert_int_eq(terrace_cuda_attend(&bad, &o, NULL), TERRACE_INVALID);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client_cuda");
	TCase *tc = tcase_create("cuda");
	SRunner *runner;
	int failed;

#if defined(__x86_64__)
	tcase_add_test(tc, test_the_callers_float_mode);
#endif
	tcase_add_test(tc, test_no_plugin_is_unsupported);
	tcase_add_test(tc, test_no_device_is_unsupported);
	tcase_add_test(tc, test_attend_arrives);
	tcase_add_test(tc, test_extend_arrives);
	tcase_add_test(tc, test_codec_merge_and_copy_arrive);
	tcase_add_test(tc, test_repack_arrives);
	tcase_add_test(tc, test_refusals_have_words);
	tcase_add_test(tc, test_no_kernel_takes_an_opaque_layout);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
