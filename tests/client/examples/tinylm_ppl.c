/* What each KV format costs in perplexity on held-out text, every K and V read back from packed blocks. Without an argument
 * a window or two against loose bounds; `tinylm_ppl 16` the 16 windows that the formats' bounds are stated for. */
#include "client/examples/tinylm/ppl.h"

#include <check.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef TERRACE_SANITIZED
enum { WINDOW = 96, WINDOWS = 2 };
#elif defined(TERRACE_TESTS_SMALL)
enum { WINDOW = 384, WINDOWS = 1 };
#else
enum { WINDOW = 2048, WINDOWS = 2 };
#endif

static uint32_t windows = WINDOWS;

/* nats: the increase over fp32 that is allowed over 16 windows; for fewer, half as much again and .003. */
static const struct {
	const char *format;
	double nats;
} bounds[] = {
	{ "fp16", .001 }, { "bf16", .002 },     { "fp8", .004 }, { "fp8/tq4", .007 },
	{ "tq4", .021 },  { "int4_pth", .024 }, { "tq3", .080 }, { "tq2", .32 },
};

static struct ppl_result measure(const struct model *m, const char *format)
{
	struct ppl_options options = { windows, WINDOW, 16, 512, 0 };
	struct ppl_result result;
	struct kvspec spec;
	struct fault fault;
	uint32_t *tokens;

	ck_assert(kvspec_parse(format, &spec, &fault));
	ck_assert_msg(ppl_read_tokens(TEST_DATA "/tinylm-8m/val_tokens.u16", &options, m->config.vocab, &tokens, &fault), "%s",
		      fault.text);
	ck_assert_msg(ppl_run(m, &spec, &options, tokens, &result, &fault), "%s", fault.text);
	free(tokens);
	return result;
}

/* Reference perplexities: 7.8354 over 16 windows of 2048 (the model's README); 5.2989 over the first 2. */
static void check_baseline(const struct ppl_result *r)
{
	ck_assert_uint_eq(r->tokens, (uint64_t)windows * WINDOW);
	ck_assert(isfinite(r->nats));
	if (WINDOW == 2048 && windows == 16)
		ck_assert_double_eq_tol(r->perplexity, 7.8354, .01);
	else if (WINDOW == 2048)
		ck_assert_double_eq_tol(r->perplexity, 5.2989, .01);
}

START_TEST(test_formats)
{
	struct ppl_result base;
	struct fault fault;
	struct model m;

	ck_assert_msg(model_open(&m, TEST_DATA "/tinylm-8m", &fault), "%s", fault.text);
	base = measure(&m, "fp32");
	check_baseline(&base);
	for (size_t i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++) {
		double allowed = windows == 16 ? bounds[i].nats : 1.5 * bounds[i].nats + .003;
		double more = measure(&m, bounds[i].format).nats - base.nats;

		/* A window of a few tokens says little about quality, only that nothing is broken. */
		if (WINDOW < 2048)
			allowed = 3 * bounds[i].nats + .05;
		ck_assert_msg(more <= allowed, "%s: %+.4f nats, %.4f are allowed", bounds[i].format, more, allowed);
	}
	model_close(&m);
}
END_TEST

START_TEST(test_tokens_file)
{
	struct ppl_options options = { 1000, WINDOW, 16, 512, 0 };
	struct fault fault;
	uint32_t *tokens;

	ck_assert(!ppl_read_tokens(TEST_DATA "/tinylm-8m/val_tokens.u16", &options, 4096, &tokens, &fault));
	ck_assert_ptr_nonnull(strstr(fault.text, "1000 windows"));
	options.windows = 1;
	ck_assert(!ppl_read_tokens(TEST_DATA "/tinylm-8m/val_tokens.u16", &options, 100, &tokens, &fault));
	ck_assert_ptr_nonnull(strstr(fault.text, "the vocabulary has 100"));
	ck_assert(!ppl_read_tokens("no such file", &options, 100, &tokens, &fault));
}
END_TEST

int main(int argc, char **argv)
{
	Suite *suite = suite_create("tinylm_ppl");
	TCase *cases = tcase_create("all");
	SRunner *runner;
	int failed;

	if (argc > 1)
		windows = (uint32_t)atoi(argv[1]);
	tcase_set_timeout(cases, 1100);
	tcase_add_test(cases, test_formats);
	tcase_add_test(cases, test_tokens_file);
	suite_add_tcase(suite, cases);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
