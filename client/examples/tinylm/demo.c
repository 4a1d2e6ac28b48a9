/* The demo: runs each format through the daemon (demo_case.c), measures perplexities, starts a second engine process,
 * prints what came out and checks that it is what Terrace promises. */
#include "demo.h"

#include "demo_case.h"
#include "demo_process.h"

#include <jansson.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static const char formats_default[] = "fp16,fp8,int4_pth,fp8/tq4,tq4,tq3,tq2";

struct demo {
	const struct options *options;
	struct engine engine;
	struct demo_prompts prompts;
	struct generate_options generate;
	struct ppl_options ppl;
	uint32_t *held_out;
	struct ppl_result fp32;
	char salt[40];
	struct demo_case cases[KVSPEC_LIST_MAX + 1];
	uint32_t case_count; /* case 0 is the one of --format */
	struct demo_second second;
	uint32_t broken;               /* promises that did not hold */
};

/* ---- running ----------------------------------------------------------------------------------------------------- */

static bool demo_open(struct demo *d, const struct options *o, struct fault *fault)
{
	const char *path = o->tokens;
	char in_model[4096];
	uint64_t run;

	d->options = o;
	if (getrandom(&run, sizeof(run), 0) != (ssize_t)sizeof(run))
		return fault_set(fault, "no random numbers to be had");
	snprintf(d->salt, sizeof(d->salt), "%.16s%016" PRIx64, o->salt ? o->salt : "demo-", run);
	if (!engine_open(&d->engine, o->model, o->threads, o->chunk, 0, fault) ||
	    !demo_prompts_make(&d->engine.model, &d->prompts, fault))
		return false;
	d->engine.forward.cuda = o->cuda;
	d->generate = (struct generate_options){ .tokens_max = o->count, .temperature = o->temperature, .seed = o->seed,
						 .block_tokens = o->block_tokens };
	d->ppl = (struct ppl_options){ o->demo_windows, 0, o->block_tokens, o->chunk, o->threads, o->cuda };
	snprintf(in_model, sizeof(in_model), "%s/val_tokens.u16", o->model);
	if (!path)
		path = in_model;
	return ppl_set_window(&d->ppl, &d->engine.model.config, o->window, fault) &&
	       ppl_read_tokens(path, &d->ppl, d->engine.model.config.vocab, &d->held_out, fault);
}

static void demo_close(struct demo *d)
{
	for (uint32_t i = 0; i < d->case_count; i++)
		demo_case_free(&d->cases[i]);
	free(d->held_out);
	demo_prompts_free(&d->prompts);
	engine_close(&d->engine);
}

static bool run_case(struct demo *d, const struct kvspec *spec, struct fault *fault)
{
	if (!demo_case_run(&d->engine, spec, d->options->address, d->salt, &d->prompts, &d->generate,
			   &d->cases[d->case_count], fault))
		return false;
	d->case_count++;
	return true;
}

/* Wakes the CPU up, so that the first time that is measured is like the others. */
static bool warm_up(struct demo *d, struct fault *fault)
{
	struct generate_options one = d->generate;
	struct generated g;

	one.tokens_max = 1;
	if (!generate_run(&d->engine.forward, &d->options->format, NULL, d->prompts.b, d->prompts.b_count, &one, &g, fault))
		return false;
	generated_free(&g);
	return true;
}

/* Runs the format of --format first, then the others of the list. */
static bool run_formats(struct demo *d, struct fault *fault)
{
	struct kvspec list[KVSPEC_LIST_MAX];
	uint32_t count = d->options->format_count;

	memcpy(list, d->options->formats, sizeof(list));
	if (count == 0 && !kvspec_parse_list(formats_default, list, &count, fault))
		return false;
	for (uint32_t i = 0; i < count; i++) {
		if (list[i].packed && strcmp(list[i].name, d->options->format.name) != 0 && !run_case(d, &list[i], fault))
			return false;
	}
	return true;
}

static bool run_perplexities(struct demo *d, struct fault *fault)
{
	struct kvspec plain = { .name = "fp32" };

	if (!ppl_run(&d->engine.model, &plain, &d->ppl, d->held_out, &d->fp32, fault))
		return false;
	for (uint32_t i = 0; i < d->case_count; i++) {
		if (!ppl_run(&d->engine.model, &d->cases[i].spec, &d->ppl, d->held_out, &d->cases[i].ppl, fault))
			return false;
	}
	return true;
}

/* ---- checking ---------------------------------------------------------------------------------------------------- */

static void promise(struct demo *d, bool holds, const char *format, const char *what)
{
	if (holds)
		return;
	d->broken++;
	fprintf(stderr, "tinylm: demo: %s: %s\n", format, what);
}

static void check_promises(struct demo *d)
{
	const uint32_t expected = demo_reusable(&d->prompts, d->generate.block_tokens) * d->generate.block_tokens;

	for (uint32_t i = 0; i < d->case_count; i++) {
		const struct demo_case *c = &d->cases[i];

		promise(d, c->a.stats.reused_tokens == 0, c->spec.name, "prompt A found blocks before any were stored");
		promise(d, c->a.stats.stored_blocks > 0, c->spec.name, "prompt A stored no block");
		promise(d, c->b.stats.reused_tokens == expected, c->spec.name, "prompt B did not reuse the whole shared prefix");
		promise(d, c->same, c->spec.name, "prompt B's text is not the one computed without the daemon");
		promise(d, c->a.stats.lost_blocks + c->b.stats.lost_blocks == 0, c->spec.name, "blocks were lost");
	}
	promise(d, d->second.reused >= expected, "second process", "it did not find the first one's blocks");
	promise(d, d->second.same, "second process", "its text is not the first one's");
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

static void print_text(const struct demo *d, const struct generated *g)
{
	char *text = generate_text(&d->engine.model, g->tokens, g->count), *line = text;

	while (line && *line) {
		size_t length = strcspn(line, "\n");

		printf("    | %.*s\n", (int)length, line);
		line += length + (line[length] != 0);
	}
	free(text);
}

static double ms(double seconds)
{
	return seconds * 1e3;
}

static void print_headline(const struct demo *d)
{
	const struct demo_case *c = &d->cases[0];
	const struct model_config *m = &d->engine.model.config;
	double cold = c->alone.stats.prefill_seconds, warm = c->b.stats.prefill_seconds;

	printf("tinylm demo: %u layers, %u query and %u KV heads of %u; KV blocks of %u tokens, packed as %s%s\n"
	       "daemon at %s\n\n", m->layers, m->q_heads, m->kv_heads, m->head_dim, d->generate.block_tokens, c->spec.name,
	       d->options->cuda ? " on the GPU" : "", d->options->address);
	printf("Prompts A and B begin with the same document: %u of their %u and %u tokens.\n\n", d->prompts.shared,
	       d->prompts.a_count, d->prompts.b_count);
	printf("A: nothing stored yet. Prefilled %u tokens in %.0f ms; packed and stored %u blocks. Goes on:\n",
	       d->prompts.a_count, ms(c->a.stats.prefill_seconds), c->a.stats.stored_blocks);
	print_text(d, &c->a);
	printf("\nB, without the daemon: prefilled %u tokens in %.0f ms.\n", d->prompts.b_count, ms(cold));
	printf("B, with it: %u tokens attended straight from A's packed blocks, %u prefilled in %.0f ms:\n"
	       "   %.0f ms saved, %.1f times as fast. Goes on, %s:\n", c->b.stats.reused_tokens,
	       d->prompts.b_count - c->b.stats.reused_tokens, ms(warm), ms(cold - warm), cold / warm,
	       c->same ? "with the same text both ways" : "NOT WITH THE SAME TEXT");
	print_text(d, &c->b);
}

/* Orders the cases by size, the largest first. */
static void order_cases(const struct demo *d, uint32_t order[])
{
	for (uint32_t i = 0; i < d->case_count; i++) {
		uint32_t at = i;

		for (; at > 0 && d->cases[order[at - 1]].stored_bytes < d->cases[i].stored_bytes; at--)
			order[at] = order[at - 1];
		order[at] = i;
	}
}

static void print_table(const struct demo *d)
{
	uint32_t order[KVSPEC_LIST_MAX + 1];

	order_cases(d, order);
	printf("\nEvery format the same way (KV: A's blocks; perplexity on %" PRIu64 " held-out tokens, %.4f unquantised):\n\n"
	       "  format      reused   B's prefill: alone     warm   same text     KV KiB   of fp16   perplexity    + nats\n",
	       d->fp32.tokens, d->fp32.perplexity);
	for (uint32_t i = 0; i < d->case_count; i++) {
		const struct demo_case *c = &d->cases[order[i]];

		printf("  %-9s %5u/%u %16.0f ms %5.0f ms   %-9s %10.0f   %6.1f%% %12.4f   %+.4f\n", c->spec.name,
		       c->b.stats.reused_tokens, d->prompts.b_count, ms(c->alone.stats.prefill_seconds),
		       ms(c->b.stats.prefill_seconds), c->same ? "yes" : "NO", (double)c->stored_bytes / 1024,
		       100.0 * (double)c->stored_bytes / (double)c->fp16_bytes, c->ppl.perplexity,
		       c->ppl.nats - d->fp32.nats);
	}
}

static void print_second(const struct demo *d)
{
	printf("\nA second engine, process %ld, with a session of its own: reused %u of %u tokens that process %ld had stored,\n"
	       "prefill %.0f ms, %s.\n", d->second.process, d->second.reused, d->prompts.b_count, (long)getpid(),
	       ms(d->second.prefill_seconds), d->second.same ? "the same text" : "NOT THE SAME TEXT");
}

static json_t *case_json(const struct demo *d, const struct demo_case *c)
{
	return json_pack("{s:s, s:i, s:i, s:f, s:f, s:b, s:i, s:I, s:I, s:f, s:f}", "format", c->spec.name, "reused_tokens",
			 (int)c->b.stats.reused_tokens, "prompt_tokens", (int)d->prompts.b_count, "prefill_ms_alone",
			 ms(c->alone.stats.prefill_seconds), "prefill_ms_reused", ms(c->b.stats.prefill_seconds), "same_text",
			 (int)c->same, "stored_blocks", (int)c->a.stats.stored_blocks, "stored_bytes",
			 (json_int_t)c->stored_bytes, "fp16_bytes", (json_int_t)c->fp16_bytes, "perplexity",
			 c->ppl.perplexity, "nats_over_fp32", c->ppl.nats - d->fp32.nats);
}

static void print_json(const struct demo *d)
{
	const struct demo_case *c = &d->cases[0];
	char *a = generate_text(&d->engine.model, c->a.tokens, c->a.count);
	char *b = generate_text(&d->engine.model, c->b.tokens, c->b.count);
	json_t *formats = json_array(), *root;

	for (uint32_t i = 0; i < d->case_count; i++)
		json_array_append_new(formats, case_json(d, &d->cases[i]));
	root = json_pack("{s:b, s:s, s:i, s:s, s:s, s:f, s:o, s:{s:i, s:i, s:b}}", "ok", (int)(d->broken == 0), "format",
			 c->spec.name, "shared_tokens", (int)d->prompts.shared, "text_a", a ? a : "", "text_b", b ? b : "",
			 "perplexity_fp32", d->fp32.perplexity, "formats", formats, "second", "process",
			 (int)d->second.process, "reused_tokens", (int)d->second.reused, "same_text", (int)d->second.same);
	if (root)
		json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(7));
	printf("\n");
	json_decref(root);
	free(a);
	free(b);
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

/* Runs all parts, and prints each as soon as it is known: the later parts take a while. */
static bool run_all(struct demo *d, struct fault *fault)
{
	const bool talk = !d->options->json;

	if (!warm_up(d, fault) || !run_case(d, &d->options->format, fault))
		return false;
	if (talk)
		print_headline(d);
	fflush(stdout);
	if (!run_formats(d, fault) || !run_perplexities(d, fault))
		return false;
	if (talk)
		print_table(d);
	fflush(stdout);
	if (!demo_process_run(d->options, d->salt, &d->cases[0].b, &d->second, fault))
		return false;
	if (talk)
		print_second(d);
	return true;
}

int demo_run(const struct options *options)
{
	struct demo *d = calloc(1, sizeof(*d));
	struct fault fault = { "out of memory" };
	bool ok = d && demo_open(d, options, &fault) && run_all(d, &fault);

	if (!ok)
		fprintf(stderr, "tinylm: %s\n", fault.text);
	if (ok)
		check_promises(d);
	if (ok && options->json)
		print_json(d);
	else if (ok)
		printf("\n%s\n", d->broken ? "Something did not hold: see above." : "All of it held.");
	ok = ok && d->broken == 0;
	if (d)
		demo_close(d);
	free(d);
	return ok ? EXIT_OK : EXIT_FAILED;
}
