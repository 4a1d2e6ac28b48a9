/* The engine's arithmetic: the reference logits, and that it does not matter, to the last bit, how a prompt is cut into chunks,
 * over how many threads, or whether its prefix was computed or is read from a copy of somebody's packed blocks. */
#include "client/examples/tinylm/engine.h"
#include "client/examples/tinylm/generate.h"
#include "client/examples/tinylm/kvspec.h"
#include "client/examples/tinylm/ppl.h"
#include "client/examples/tinylm/sequence.h"

#include <check.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 4096, GOLDEN = 256, BLOCK = 16 };
/* PROMPT: tokens of the tests other than the reference's; SHARED: of them, reused. */
#ifdef TERRACE_TESTS_SMALL
enum { PROMPT = 48, SHARED = 32, SINGLY = 3 };
static const uint32_t chunks[] = { 33 };
#else
enum { PROMPT = 256, SHARED = 160, SINGLY = 20 };
static const uint32_t chunks[] = { 256, 64, 33, 7 };
#endif

static const char model_folder[] = TEST_DATA "/tinylm-8m";
#ifdef TERRACE_SANITIZED
static const char *const formats[] = { "fp32", "fp16", "int4_pth", "fp8/tq4" };
#else
static const char *const formats[] = { "fp32", "fp16", "bf16", "fp8", "int4_pth", "tq4", "tq3", "tq2", "fp8/tq4" };
#endif
enum { FORMATS = sizeof(formats) / sizeof(formats[0]) };

static struct engine engine;
static uint32_t *tokens;

static void setup(void)
{
	struct ppl_options options = { .windows = 1, .window = GOLDEN };
	struct fault fault;

	ck_assert_msg(engine_open(&engine, model_folder, 3, 100, 0, &fault), "%s", fault.text);
	ck_assert_msg(ppl_read_tokens(TEST_DATA "/tinylm-8m/val_tokens.u16", &options, VOCAB, &tokens, &fault), "%s",
		      fault.text);
}

static void teardown(void)
{
	free(tokens);
	engine_close(&engine);
}

static void read_golden(float logits[VOCAB])
{
	FILE *f = fopen(TEST_DATA "/tinylm-8m/golden_logits_256.npy", "rb");
	char header[128];

	ck_assert_ptr_nonnull(f);
	ck_assert_uint_eq(fread(header, 1, sizeof(header), f), sizeof(header));
	ck_assert_mem_eq(header, "\x93NUMPY\x01\0", 8);
	ck_assert_ptr_nonnull(memmem(header, sizeof(header), "'<f4'", 5));
	ck_assert_uint_eq(fread(logits, sizeof(float), VOCAB, f), VOCAB);
	fclose(f);
}

/* A sequence of that format over f, opened. */
static void open_sequence(struct sequence *s, struct forward *f, const char *format)
{
	struct terrace_layout layout;
	struct kvspec spec;
	struct fault fault;

	ck_assert(kvspec_parse(format, &spec, &fault));
	kvcache_layout(&engine.model.config, engine.model.fingerprint, spec.k, spec.v, BLOCK, &layout);
	ck_assert_msg(sequence_open(s, f, spec.packed ? &layout : NULL, NULL, &fault), "%s", fault.text);
}

START_TEST(test_golden)
{
	static float golden[VOCAB], logits[VOCAB];
	struct sequence s;
	struct fault fault;

	read_golden(golden);
	open_sequence(&s, &engine.forward, "fp32");
	ck_assert_msg(sequence_prefill(&s, tokens, GOLDEN, logits, &fault), "%s", fault.text);
	for (int i = 0; i < VOCAB; i++)
		ck_assert_msg(fabsf(logits[i] - golden[i]) <= 1e-2f, "logit %d: %g, reference %g", i, (double)logits[i],
			      (double)golden[i]);
	sequence_close(&s);
}
END_TEST

/* Packing in 16 bits is next to nothing, so the packed path must give the reference too. */
START_TEST(test_golden_packed)
{
	static float golden[VOCAB], logits[VOCAB];
	struct sequence s;
	struct fault fault;

	read_golden(golden);
	open_sequence(&s, &engine.forward, "fp16");
	ck_assert_msg(sequence_prefill(&s, tokens, GOLDEN, logits, &fault), "%s", fault.text);
	for (int i = 0; i < VOCAB; i++)
		ck_assert_msg(fabsf(logits[i] - golden[i]) <= 3e-2f, "logit %d: %g, reference %g", i, (double)logits[i],
			      (double)golden[i]);
	sequence_close(&s);
}
END_TEST

/* Logits after PROMPT tokens, of which the last `singly` are appended one by one. */
static void logits_of(struct forward *f, const char *format, uint32_t singly, float *logits)
{
	struct sequence s;
	struct fault fault;

	open_sequence(&s, f, format);
	ck_assert_msg(sequence_prefill(&s, tokens, PROMPT - singly, logits, &fault), "%s", fault.text);
	for (uint32_t i = PROMPT - singly; i < PROMPT; i++)
		ck_assert_msg(sequence_append(&s, tokens[i], logits, &fault), "%s", fault.text);
	sequence_close(&s);
}

START_TEST(test_cuts_do_not_matter)
{
	static float expected[VOCAB], logits[VOCAB];

	logits_of(&engine.forward, formats[_i], 0, expected);
	logits_of(&engine.forward, formats[_i], SINGLY, logits);
	ck_assert_mem_eq(logits, expected, sizeof(logits));
	for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
		struct workers alone;
		struct forward f;
		struct fault fault;

		ck_assert(workers_init(&alone, i == 0 ? 2 : 1, &fault));
		ck_assert(forward_init(&f, &engine.model, &alone, chunks[i], PROMPT, &fault));
		logits_of(&f, formats[_i], 0, logits);
		ck_assert_msg(memcmp(logits, expected, sizeof(logits)) == 0, "%s in chunks of %u", formats[_i], chunks[i]);
		forward_fini(&f);
		workers_fini(&alone);
	}
}
END_TEST

/* A second sequence attends from copies of the first one's blocks, read-only, and computes the rest. */
START_TEST(test_reused_blocks)
{
	static float expected[VOCAB], logits[VOCAB];
	const char *format = formats[1 + _i];
	struct sequence first, second;
	struct fault fault;
	uint64_t bytes;
	char *copies;

	open_sequence(&first, &engine.forward, format);
	ck_assert(sequence_prefill(&first, tokens, PROMPT, expected, &fault));
	bytes = terrace_block_bytes(&first.kv.layout);
	copies = aligned_alloc(64, (SHARED / BLOCK * bytes + 63) / 64 * 64);
	open_sequence(&second, &engine.forward, format);
	for (uint32_t i = 0; i < SHARED / BLOCK; i++) {
		memcpy(copies + i * bytes, first.kv.blocks[i], bytes);
		second.kv.blocks[i] = copies + i * bytes;
	}
	for (uint32_t i = SHARED / BLOCK; i < PROMPT / BLOCK; i++) {
		second.kv.slots[i] = aligned_alloc(64, (bytes + 63) / 64 * 64);
		second.kv.blocks[i] = second.kv.slots[i];
	}
	second.kv.count = SHARED;
	ck_assert_msg(forward_run(&engine.forward, &second.kv, tokens + SHARED, PROMPT - SHARED, &fault), "%s", fault.text);
	forward_logits(&engine.forward, PROMPT - SHARED - 1, 1, logits);
	ck_assert_mem_eq(logits, expected, sizeof(logits));
	for (uint32_t i = SHARED / BLOCK; i < PROMPT / BLOCK; i++) {
		ck_assert_mem_eq(second.kv.blocks[i], first.kv.blocks[i], bytes);
		free(second.kv.slots[i]);
	}
	free(copies);
	sequence_close(&first);
	sequence_close(&second);
}
END_TEST

START_TEST(test_borrowed_blocks_are_not_written)
{
	static float logits[VOCAB];
	struct sequence s;
	struct fault fault;

	open_sequence(&s, &engine.forward, "tq4");
	ck_assert(sequence_prefill(&s, tokens, 40, logits, &fault));
	s.kv.slots[1] = NULL;
	s.kv.count = 20;
	ck_assert(!forward_run(&engine.forward, &s.kv, tokens + 20, 20, &fault));
	ck_assert_ptr_nonnull(strstr(fault.text, "block 1"));
	ck_assert_uint_eq(s.kv.count, 20);
	sequence_close(&s);
}
END_TEST

START_TEST(test_limits)
{
	static float logits[VOCAB];
	static const uint32_t outside[] = { VOCAB };
	struct workers alone;
	struct sequence s;
	struct forward f;
	struct fault fault;

	ck_assert(workers_init(&alone, 1, &fault));
	ck_assert(forward_init(&f, &engine.model, &alone, 16, 32, &fault));
	open_sequence(&s, &f, "tq4");
	ck_assert(!sequence_prefill(&s, tokens, 33, logits, &fault));
	ck_assert(!sequence_prefill(&s, tokens, 0, logits, &fault));
	ck_assert(sequence_prefill(&s, tokens, 32, logits, &fault));
	ck_assert(!sequence_append(&s, 1, logits, &fault));
	ck_assert_ptr_nonnull(strstr(fault.text, "full"));
	sequence_close(&s);
	open_sequence(&s, &f, "fp32");
	ck_assert(!sequence_prefill(&s, outside, 1, logits, &fault));
	ck_assert_ptr_nonnull(strstr(fault.text, "vocabulary"));
	sequence_close(&s);
	forward_fini(&f);
	workers_fini(&alone);
}
END_TEST

/* Sampling depends on the seed alone. */
START_TEST(test_sampling)
{
	struct generate_options o = { .tokens_max = 20, .temperature = 0.9f, .seed = 5, .block_tokens = BLOCK };
	struct generated a, b, c;
	struct kvspec spec;
	struct fault fault;

	ck_assert(kvspec_parse("tq4", &spec, &fault));
	ck_assert(generate_run(&engine.forward, &spec, NULL, tokens, 40, &o, &a, &fault));
	ck_assert(generate_run(&engine.forward, &spec, NULL, tokens, 40, &o, &b, &fault));
	o.seed = 6;
	ck_assert(generate_run(&engine.forward, &spec, NULL, tokens, 40, &o, &c, &fault));
	ck_assert_uint_eq(a.count, b.count);
	ck_assert_mem_eq(a.tokens, b.tokens, a.count * sizeof(*a.tokens));
	ck_assert(c.count != a.count || memcmp(a.tokens, c.tokens, a.count * sizeof(*a.tokens)) != 0);
	generated_free(&a);
	generated_free(&b);
	generated_free(&c);
}
END_TEST

START_TEST(test_specs)
{
	static const char *const bad[] = { "", "fp64", "none", "tq4/", "/tq4", "tq4/none", "tq4/fp32", "tq4/tq4/tq4", "fp8/tq4,", ",tq4" };
	struct kvspec list[KVSPEC_LIST_MAX];
	struct fault fault;
	uint32_t count;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		ck_assert_msg(!kvspec_parse_list(bad[i], list, &count, &fault), "\"%s\" was taken", bad[i]);
	ck_assert(kvspec_parse_list("fp32,fp8/tq4", list, &count, &fault));
	ck_assert_uint_eq(count, 2);
	ck_assert(!list[0].packed);
	ck_assert_int_eq(list[1].k, TERRACE_FORMAT_FP8);
	ck_assert_int_eq(list[1].v, TERRACE_FORMAT_TQ4);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("tinylm_model");
	TCase *cases = tcase_create("all");
	SRunner *runner;
	int failed;

	tcase_set_timeout(cases, 200);
	tcase_add_checked_fixture(cases, setup, teardown);
	tcase_add_test(cases, test_golden);
	tcase_add_test(cases, test_golden_packed);
	tcase_add_loop_test(cases, test_cuts_do_not_matter, 0, FORMATS);
	tcase_add_loop_test(cases, test_reused_blocks, 0, FORMATS - 1);
	tcase_add_test(cases, test_borrowed_blocks_are_not_written);
	tcase_add_test(cases, test_limits);
	tcase_add_test(cases, test_sampling);
	tcase_add_test(cases, test_specs);
	suite_add_tcase(suite, cases);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
