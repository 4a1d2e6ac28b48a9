/* tinylm: the program. Parses the command line and runs one mode; see options.c for the modes. */
#include "demo.h"
#include "device.h"
#include "engine.h"
#include "generate.h"
#include "options.h"
#include "ppl.h"

#include <jansson.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char formats_default[] = "fp8,fp8/tq4,tq4,int4_pth,tq3,tq2";

enum { PROMPT_MAX = 1 << 20 };

/* ---- --ppl ------------------------------------------------------------------------------------------------------- */

static json_t *ppl_json(const char *name, const struct ppl_result *r, double base)
{
	return json_pack("{s:s, s:f, s:f, s:f, s:f}", "format", name, "perplexity", r->perplexity, "nats", r->nats,
			 "nats_over_fp32", r->nats - base, "seconds", r->seconds);
}

/* Measures fp32 and then each format; prints rows as they come, or gathers them for --json. */
static bool ppl_rows(const struct options *o, const struct model *model, const struct ppl_options *ppl,
		     const uint32_t *tokens, json_t *list, struct fault *fault)
{
	struct kvspec specs[KVSPEC_LIST_MAX + 1] = { { .name = "fp32" } };
	uint32_t count = o->format_count;
	double base = 0;

	memcpy(specs + 1, o->formats, sizeof(o->formats));
	if (count == 0 && !kvspec_parse_list(formats_default, specs + 1, &count, fault))
		return false;
	if (!o->json)
		printf("%u windows of %u tokens, every K and V read back from packed blocks of %u tokens%s\n\n"
		       "format      perplexity      nats    over fp32   seconds\n", ppl->windows, ppl->window,
		       ppl->block_tokens, ppl->cuda ? " on the GPU" : "");
	for (uint32_t i = 0; i <= count; i++) {
		struct ppl_result r;

		if (i > 0 && !specs[i].packed)
			continue; /* the baseline, asked for by name */
		if (!ppl_run(model, &specs[i], ppl, tokens, &r, fault))
			return false;
		base = i == 0 ? r.nats : base;
		json_array_append_new(list, ppl_json(specs[i].name, &r, base));
		if (!o->json)
			printf("%-10s %11.4f %9.4f %+12.4f %9.1f\n", specs[i].name, r.perplexity, r.nats, r.nats - base,
			       r.seconds);
		fflush(stdout);
	}
	return true;
}

static bool run_ppl(const struct options *o, struct fault *fault)
{
	struct ppl_options ppl = { o->windows, 0, o->block_tokens, o->chunk, o->threads, o->cuda };
	json_t *list = json_array(), *root = NULL;
	uint32_t *tokens = NULL;
	struct model model;
	char path[4096];
	bool ok;

	if (!model_open(&model, o->model, fault)) {
		json_decref(list);
		return false;
	}
	snprintf(path, sizeof(path), "%s/val_tokens.u16", o->model);
	ok = ppl_set_window(&ppl, &model.config, o->window, fault) &&
	     ppl_read_tokens(o->tokens ? o->tokens : path, &ppl, model.config.vocab, &tokens, fault) &&
	     ppl_rows(o, &model, &ppl, tokens, list, fault);
	if (ok && o->json) {
		root = json_pack("{s:i, s:i, s:O}", "windows", (int)ppl.windows, "window_tokens", (int)ppl.window, "formats",
				 list);
		json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(7));
		printf("\n");
	}
	json_decref(root);
	json_decref(list);
	free(tokens);
	model_close(&model);
	return ok;
}

/* ---- --generate -------------------------------------------------------------------------------------------------- */

static void emit_token(void *arg, uint32_t token)
{
	const struct tokenizer *t = arg;

	fwrite(t->text + t->tokens[token].at, 1, t->tokens[token].bytes, stdout);
	fflush(stdout);
}

/* Reads the prompt's text; for "-" it is standard input, up to PROMPT_MAX bytes. */
static bool read_prompt(const char *prompt, char **text, size_t *bytes, struct fault *fault)
{
	char *out = malloc(PROMPT_MAX + 1);

	if (!out)
		return fault_set(fault, "out of memory");
	if (strcmp(prompt, "-") == 0) {
		*bytes = fread(out, 1, PROMPT_MAX + 1, stdin);
	} else {
		*bytes = strlen(prompt) > PROMPT_MAX ? PROMPT_MAX + 1 : strlen(prompt);
		memcpy(out, prompt, *bytes > PROMPT_MAX ? PROMPT_MAX : *bytes);
	}
	if (*bytes > PROMPT_MAX) {
		free(out);
		return fault_set(fault, "the prompt has more than %d bytes", PROMPT_MAX);
	}
	*text = out;
	return true;
}

static void print_generated(const struct options *o, const struct model *model, uint32_t prompt_tokens,
			    const struct generated *g)
{
	char *text = generate_text(model, g->tokens, g->count);
	json_t *root;

	if (o->json) {
		root = json_pack("{s:s, s:s, s:i, s:i, s:i, s:f, s:f}", "format", o->format.name, "text", text ? text : "",
				 "prompt_tokens", (int)prompt_tokens, "reused_tokens", (int)g->stats.reused_tokens,
				 "stored_blocks", (int)g->stats.stored_blocks, "prefill_ms", g->stats.prefill_seconds * 1e3,
				 "decode_ms", g->decode_seconds * 1e3);
		if (root)
			json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(7));
		json_decref(root);
	}
	printf("\n");
	fflush(stdout);
	if (!o->json)
		fprintf(stderr, "\n[%s: %u prompt tokens, %u of them reused, prefill %.0f ms; %u tokens in %.0f ms; %u blocks stored]\n",
			o->format.name, prompt_tokens, g->stats.reused_tokens, g->stats.prefill_seconds * 1e3, g->count,
			g->decode_seconds * 1e3, g->stats.stored_blocks);
	free(text);
}

/* Connects if a daemon is named and the KV is packed. NULL, with a word to stderr, when there is none to be had. */
static struct prefix_cache *open_cache(const struct options *o, const struct model *model, struct prefix_cache *cache)
{
	struct terrace_layout layout;
	struct fault fault;

	if (!o->address || !o->format.packed)
		return NULL;
	kvcache_layout(&model->config, model->fingerprint, o->format.k, o->format.v, o->block_tokens, &layout);
	if (prefix_cache_open(cache, o->address, &layout, o->salt, &fault))
		return cache;
	fprintf(stderr, "tinylm: %s; going on without it\n", fault.text);
	return NULL;
}

static bool generate_with(const struct options *o, struct engine *e, const uint32_t *prompt, uint32_t count,
			  struct fault *fault)
{
	struct generate_options generate = { .tokens_max = o->count, .temperature = o->temperature, .seed = o->seed,
					     .block_tokens = o->block_tokens, .emit = o->json ? NULL : emit_token,
					     .arg = &e->model.tokenizer };
	struct prefix_cache memory = { 0 }, *cache = open_cache(o, &e->model, &memory);
	struct generated g = { 0 };
	bool ok = generate_run(&e->forward, &o->format, cache, prompt, count, &generate, &g, fault);

	if (ok)
		print_generated(o, &e->model, count, &g);
	if (memory.note.text[0])
		fprintf(stderr, "tinylm: daemon: %s; went on without it\n", memory.note.text);
	generated_free(&g);
	prefix_cache_close(&memory);
	return ok;
}

static bool run_generate(const struct options *o, struct fault *fault)
{
	struct engine engine;
	uint32_t *prompt = NULL, count = 0;
	size_t bytes = 0;
	char *text = NULL;
	bool ok;

	if (!engine_open(&engine, o->model, o->threads, o->chunk, o->context, fault))
		return false;
	engine.forward.cuda = o->cuda;
	ok = read_prompt(o->prompt, &text, &bytes, fault) &&
	     generate_prompt(&engine.model, engine.forward.positions, text, bytes, &prompt, &count, fault) &&
	     generate_with(o, &engine, prompt, count, fault);
	free(prompt);
	free(text);
	engine_close(&engine);
	return ok;
}

int main(int argc, char **argv)
{
	struct options options;
	struct fault fault;
	int code = options_parse(&options, argc, argv);
	bool ok;

	if (code >= 0)
		return code;
	if (options.cuda && !device_load(&fault)) {
		fprintf(stderr, "tinylm: --device cuda: %s\n", fault.text);
		return EXIT_USAGE;
	}
	if (options.mode == MODE_DEMO)
		return demo_run(&options);
	if (options.mode == MODE_DEMO_SECOND)
		return demo_second(&options);
	ok = options.mode == MODE_PPL ? run_ppl(&options, &fault) : run_generate(&options, &fault);
	if (!ok)
		fprintf(stderr, "tinylm: %s\n", fault.text);
	return ok ? EXIT_OK : EXIT_FAILED;
}
