/* The command line by one table: name, argument, help and what it sets; --help is printed from it. */
#include "options.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { KIND_MODE, KIND_PROMPT, KIND_TEXT, KIND_NUMBER, KIND_SEED, KIND_REAL, KIND_FORMAT, KIND_FORMATS, KIND_DEVICE, KIND_FLAG, KIND_HELP };

struct option_row {
	const char *name, *argument; /* argument: NULL if it takes none */
	const char *help;            /* NULL: not shown */
	enum kind kind;
	size_t at;
	uint32_t min, max; /* of a number; min: the mode */
};

#define AT(field) offsetof(struct options, field)

static const struct option_row rows[] = {
	{ "--model", "DIR", "folder with config.json, tokenizer.json and model.safetensors (required)", KIND_TEXT, AT(model) },
	{ "--ppl", NULL, "perplexity on held-out text, unquantised and for each of --formats", KIND_MODE, 0, MODE_PPL },
	{ "--generate", "TEXT", "continue a prompt; - reads it from standard input", KIND_PROMPT, AT(prompt) },
	{ "--demo", NULL, "the tour: two prompts with a shared prefix through the daemon, every format, a second process",
	  KIND_MODE, 0, MODE_DEMO },
	{ "--demo-second", NULL, NULL, KIND_MODE, 0, MODE_DEMO_SECOND },
	{ "--daemon", "ADDRESS", "store and find KV blocks in this daemon, e.g. unix:/run/terrace/terraced.sock", KIND_TEXT,
	  AT(address) },
	{ "--format", "F", "KV format of --generate and --demo: fp32 (not packed), fp16, bf16, fp8, int4_pth, tq4, tq3,\n"
	  "                      tq2, or two as K/V, like fp8/tq4 (default tq4)", KIND_FORMAT, AT(format) },
	{ "--formats", "F,F,...", "KV formats of --ppl and of --demo's table", KIND_FORMATS, AT(formats) },
	{ "--device", "D", "where packed K and V are encoded and attended: cpu (default) or cuda", KIND_DEVICE, AT(cuda) },
	{ "-n", "N", "tokens to generate (default 32)", KIND_NUMBER, AT(count), 1, 1 << 20 },
	{ "--context", "N", "positions of --generate (default: the model's context; beyond it the text is worth little)", KIND_NUMBER,
	  AT(context), 16, 1 << 20 },
	{ "--temperature", "T", "sample at this temperature; 0 is greedy (default)", KIND_REAL, AT(temperature) },
	{ "--seed", "N", "of the sampling (default 1)", KIND_SEED, AT(seed) },
	{ "--windows", "N", "windows of held-out text for --ppl (default 16)", KIND_NUMBER, AT(windows), 1, 1 << 20 },
	{ "--demo-windows", "N", "the same for --demo's table (default 2)", KIND_NUMBER, AT(demo_windows), 1, 1 << 20 },
	{ "--window-tokens", "N", "tokens of a window (default: the model's context)", KIND_NUMBER, AT(window), 2, 1 << 20 },
	{ "--tokens", "FILE", "held-out tokens, little-endian uint16 (default DIR/val_tokens.u16)", KIND_TEXT, AT(tokens) },
	{ "--block-tokens", "N", "tokens a KV block, a multiple of 16 (default 16)", KIND_NUMBER, AT(block_tokens), 16, 256 },
	{ "--chunk", "N", "tokens computed at a time in a prefill (default 256)", KIND_NUMBER, AT(chunk), 1, 4096 },
	{ "--threads", "N", "threads (default: one a CPU)", KIND_NUMBER, AT(threads), 1, 64 },
	{ "--salt", "TEXT", "keeps this engine's blocks apart from those of other salts", KIND_TEXT, AT(salt) },
	{ "--json", NULL, "print one JSON object instead", KIND_FLAG, AT(json) },
	{ "--help", NULL, "this text", KIND_HELP, 0 },
};

static void print_help(void)
{
	printf("tinylm: a small LLM engine that attends straight from packed KV blocks, on libterrace %s\n\n"
	       "usage: tinylm --model DIR --ppl [--windows N] [--formats F,F,...] [--json]\n"
	       "       tinylm --model DIR --generate TEXT [-n N] [--format F] [--daemon ADDRESS] [--json]\n"
	       "       tinylm --model DIR --demo --daemon ADDRESS [--format F] [--formats F,F,...] [--json]\n\n",
	       terrace_version());
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char left[40];

		if (!rows[i].help)
			continue;
		snprintf(left, sizeof(left), "%s %s", rows[i].name, rows[i].argument ? rows[i].argument : "");
		printf("  %-19s %s\n", left, rows[i].help);
	}
	printf("\nWithout --daemon, and whenever the daemon does not answer, everything is computed privately: the text is the\n"
	       "same. --device cuda needs libterrace_cuda, CUDA's runtime and a GPU, and is refused without; fp32 stays on the CPU.\n"
	       "Exit codes: 0 done, 1 failed, 2 wrong usage.\n");
}

static bool parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
	char *end;

	errno = 0;
	*out = strtoull(text, &end, 10);
	return text[0] >= '0' && text[0] <= '9' && *end == 0 && errno == 0 && *out >= min && *out <= max;
}

static bool set_mode(struct options *o, enum tinylm_mode mode, struct fault *fault)
{
	if (o->mode != MODE_NONE)
		return fault_set(fault, "one of --ppl, --generate and --demo, not two");
	o->mode = mode;
	return true;
}

static bool set_real(const struct option_row *row, const char *value, float *out, struct fault *fault)
{
	char *end;
	float number = strtof(value, &end);

	if (end == value || *end || !(number >= 0 && number <= 100))
		return fault_set(fault, "%s takes a number from 0 to 100", row->name);
	*out = number;
	return true;
}

/* Sets what one option says. */
static bool apply(struct options *o, const struct option_row *row, const char *value, struct fault *fault)
{
	void *field = (char *)o + row->at;
	uint64_t number;

	switch (row->kind) {
	case KIND_MODE:
		return set_mode(o, (enum tinylm_mode)row->min, fault);
	case KIND_PROMPT:
		memcpy(field, &value, sizeof(value));
		return set_mode(o, MODE_GENERATE, fault);
	case KIND_TEXT:
		memcpy(field, &value, sizeof(value));
		return true;
	case KIND_NUMBER:
		if (!parse_number(value, row->min, row->max, &number))
			return fault_set(fault, "%s takes a whole number from %u to %u", row->name, row->min, row->max);
		*(uint32_t *)field = (uint32_t)number;
		return true;
	case KIND_SEED:
		if (!parse_number(value, 0, UINT64_MAX, &o->seed))
			return fault_set(fault, "%s takes a whole number", row->name);
		return true;
	case KIND_REAL:
		return set_real(row, value, field, fault);
	case KIND_FORMAT:
		return kvspec_parse(value, field, fault);
	case KIND_FORMATS:
		return kvspec_parse_list(value, field, &o->format_count, fault);
	case KIND_DEVICE:
		if (strcmp(value, "cpu") != 0 && strcmp(value, "cuda") != 0)
			return fault_set(fault, "%s takes cpu or cuda", row->name);
		*(bool *)field = strcmp(value, "cuda") == 0;
		return true;
	case KIND_FLAG:
		*(bool *)field = true;
		return true;
	case KIND_HELP:
		break;
	}
	return true;
}

static const struct option_row *find(const char *name)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		if (strcmp(rows[i].name, name) == 0)
			return &rows[i];
	}
	return NULL;
}

static bool check(const struct options *o, struct fault *fault)
{
	if (o->mode == MODE_NONE)
		return fault_set(fault, "one of --ppl, --generate and --demo is needed");
	if (!o->model)
		return fault_set(fault, "--model is needed");
	if (o->block_tokens % 16 != 0)
		return fault_set(fault, "--block-tokens takes a multiple of 16");
	if (o->mode >= MODE_DEMO && !o->address)
		return fault_set(fault, "--demo needs --daemon");
	if (o->mode >= MODE_DEMO && !o->format.packed)
		return fault_set(fault, "--demo needs a packed --format");
	if (o->mode == MODE_GENERATE && o->cuda && !o->format.packed)
		return fault_set(fault, "--device cuda needs a packed --format");
	return true;
}

static void set_defaults(struct options *o)
{
	struct fault fault;

	memset(o, 0, sizeof(*o));
	kvspec_parse("tq4", &o->format, &fault);
	o->count = 32;
	o->windows = 16;
	o->demo_windows = 2;
	o->block_tokens = 16;
	o->chunk = 256;
	o->seed = 1;
}

int options_parse(struct options *o, int argc, char **argv)
{
	struct fault fault;
	bool ok = true;

	set_defaults(o);
	for (int i = 1; ok && i < argc; i++) {
		const struct option_row *row = find(argv[i]);

		if (row && row->kind == KIND_HELP) {
			print_help();
			return EXIT_OK;
		}
		if (!row)
			ok = fault_set(&fault, "unknown option \"%.60s\"", argv[i]);
		else if (row->argument && i + 1 == argc)
			ok = fault_set(&fault, "%s needs %s", row->name, row->argument);
		else
			ok = apply(o, row, row->argument ? argv[++i] : NULL, &fault);
	}
	if (ok && check(o, &fault))
		return -1;
	fprintf(stderr, "tinylm: %s (tinylm --help tells more)\n", fault.text);
	return EXIT_USAGE;
}
