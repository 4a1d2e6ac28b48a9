/* Prompt in, tokens out; see generate.h. */
#include "generate.h"

#include "clock.h"
#include "unicode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Draws a number in [0, 1) by splitmix64. */
static double draw(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	z ^= z >> 31;
	return (double)(z >> 11) * 0x1p-53;
}

static uint32_t greatest(const float *logits, uint32_t n)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < n; i++) {
		if (logits[i] > logits[best])
			best = i;
	}
	return best;
}

static uint32_t pick(float *logits, uint32_t n, float temperature, uint64_t *seed)
{
	double left;

	if (temperature <= 0)
		return greatest(logits, n);
	for (uint32_t i = 0; i < n; i++)
		logits[i] /= temperature;
	panel_softmax(logits, n, n);
	left = draw(seed);
	for (uint32_t i = 0; i < n; i++) {
		left -= (double)logits[i];
		if (left < 0)
			return i;
	}
	return greatest(logits, n); /* rounding left a little over */
}

/* Runs the generation's loop. The last token is not run through the model: nothing follows it. */
static bool decode(struct sequence *s, const struct generate_options *o, float *logits, struct generated *out,
		   struct fault *fault)
{
	const struct model_config *c = &s->forward->model->config;
	uint64_t seed = o->seed;

	while (out->count < o->tokens_max) {
		uint32_t token = pick(logits, c->vocab, o->temperature, &seed);

		if (token == c->eos)
			break;
		out->tokens[out->count++] = token;
		if (o->emit)
			o->emit(o->arg, token);
		if (out->count == o->tokens_max || s->count == s->forward->positions)
			break;
		if (!sequence_append(s, token, logits, fault))
			return false;
	}
	return true;
}

static bool run_sequence(struct sequence *s, const uint32_t *prompt, uint32_t n, const struct generate_options *options,
			 float *logits, struct generated *out, struct fault *fault)
{
	double begin;
	bool ok;

	if (!sequence_prefill(s, prompt, n, logits, fault))
		return false;
	begin = clock_s();
	ok = decode(s, options, logits, out, fault);
	out->decode_seconds = clock_s() - begin;
	out->stats = s->stats;
	return ok;
}

bool generate_run(struct forward *forward, const struct kvspec *spec, struct prefix_cache *cache, const uint32_t *prompt,
		  uint32_t n, const struct generate_options *options, struct generated *out, struct fault *fault)
{
	const struct model *model = forward->model;
	struct terrace_layout layout;
	struct generated g = { 0 };
	struct sequence s;
	float *logits;
	bool ok = false;

	kvcache_layout(&model->config, model->fingerprint, spec->k, spec->v, options->block_tokens, &layout);
	if (!sequence_open(&s, forward, spec->packed ? &layout : NULL, cache, fault))
		return false;
	logits = malloc(model->config.vocab * sizeof(*logits));
	g.tokens = malloc(((size_t)options->tokens_max + 1) * sizeof(*g.tokens));
	if (logits && g.tokens)
		ok = run_sequence(&s, prompt, n, options, logits, &g, fault);
	else
		fault_write(fault, "out of memory");
	free(logits);
	sequence_close(&s);
	if (ok)
		*out = g;
	else
		generated_free(&g);
	return ok;
}

void generated_free(struct generated *g)
{
	free(g->tokens);
	memset(g, 0, sizeof(*g));
}

bool generate_prompt(const struct model *model, uint32_t context, const char *text, size_t bytes, uint32_t **tokens, uint32_t *count,
		     struct fault *fault)
{
	uint32_t *ids, *all;
	size_t n;

	if (!tokenizer_encode(&model->tokenizer, text, bytes, &ids, &n, fault))
		return false;
	if (n + 1 > context) {
		free(ids);
		return fault_set(fault, "the prompt has %zu tokens, the context is %u", n + 1, context);
	}
	all = malloc((n + 1) * sizeof(*all));
	if (!all) {
		free(ids);
		return fault_set(fault, "out of memory");
	}
	all[0] = model->config.bos;
	memcpy(all + 1, ids, n * sizeof(*ids));
	free(ids);
	*tokens = all;
	*count = (uint32_t)n + 1;
	return true;
}

char *generate_text(const struct model *model, const uint32_t *tokens, uint32_t count)
{
	struct fault fault;
	size_t bytes, at = 0;
	char *text;

	if (!tokenizer_decode(&model->tokenizer, tokens, count, &text, &bytes, &fault))
		return NULL;
	while (at < bytes) {
		uint32_t c;
		size_t length = unicode_next((const uint8_t *)text + at, bytes - at, &c);

		if (c == UNICODE_BROKEN || (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f)
			text[at] = '?';
		else if (c >= 0x80 && c < 0xa0)
			memset(text + at, '?', length);
		at += length;
	}
	return text;
}
