/* Perplexity, a window a thread; see ppl.h. Each thread has an engine and blocks of its own, so threads share nothing but
 * the model and the counter of windows. */
#include "ppl.h"

#include "clock.h"
#include "file.h"
#include "forward.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { LOGIT_ROWS = 32 }; /* rows of logits at a time, which bounds the memory for a large vocabulary */

/* One thread's engine. */
struct lane {
	struct workers alone;
	struct forward forward;
	struct kvcache kv;
	void *memory; /* the packed blocks */
	float *logits;
};

struct ppl {
	const struct model *model;
	const struct kvspec *spec;
	const struct ppl_options *options;
	const uint32_t *tokens;
	atomic_uint next;
	double *nats; /* [windows], each written by the thread that ran it */
	bool failed[WORKERS_MAX];
	struct fault faults[WORKERS_MAX];
};

bool ppl_set_window(struct ppl_options *options, const struct model_config *config, uint32_t window, struct fault *fault)
{
	if (window > config->positions_max)
		return fault_set(fault, "a window of %u tokens is more than the context of %u", window,
				 config->positions_max);
	options->window = window ? window : config->positions_max;
	return true;
}

bool ppl_read_tokens(const char *path, const struct ppl_options *options, uint32_t vocab, uint32_t **tokens,
		     struct fault *fault)
{
	size_t count = (size_t)options->windows * options->window + 1;
	const uint8_t *bytes;
	struct file_map map;
	uint32_t *out;

	if (!file_map_open(&map, NULL, path, (size_t)1 << 40, fault))
		return false;
	bytes = map.data;
	out = map.size / 2 >= count ? malloc(count * sizeof(*out)) : NULL;
	if (map.size / 2 < count) {
		fault_write(fault, "%s: %zu tokens, %u windows of %u need %zu", path, map.size / 2, options->windows,
			  options->window, count);
	} else if (!out) {
		fault_write(fault, "out of memory");
	}
	for (size_t i = 0; out && i < count; i++) {
		out[i] = (uint32_t)bytes[2 * i] | (uint32_t)bytes[2 * i + 1] << 8;
		if (out[i] >= vocab) {
			fault_write(fault, "%s: token %zu is %u, the vocabulary has %u", path, i, out[i], vocab);
			free(out);
			out = NULL;
		}
	}
	file_map_close(&map);
	*tokens = out;
	return out != NULL;
}

/* ---- a lane ------------------------------------------------------------------------------------------------------ */

static void lane_fini(struct lane *l)
{
	free(l->logits);
	free(l->memory);
	kvcache_fini(&l->kv);
	forward_fini(&l->forward);
	workers_fini(&l->alone);
}

static bool lane_blocks(struct lane *l, struct fault *fault)
{
	uint64_t bytes = terrace_block_bytes(&l->kv.layout);
	uint32_t blocks = (l->kv.capacity + l->kv.layout.block_tokens - 1) / l->kv.layout.block_tokens;

	if (l->forward.cuda)
		return kvcache_use_device(&l->kv, l->forward.rows_max, fault);
	l->memory = aligned_alloc(4096, (blocks * bytes + 4095) / 4096 * 4096);
	if (!l->memory)
		return fault_set(fault, "out of memory");
	for (uint32_t i = 0; i < blocks; i++) {
		l->kv.slots[i] = (char *)l->memory + i * bytes;
		l->kv.blocks[i] = l->kv.slots[i];
	}
	return true;
}

static bool lane_init(struct lane *l, const struct ppl *p, struct fault *fault)
{
	const struct ppl_options *o = p->options;
	const struct model_config *c = &p->model->config;
	struct terrace_layout layout;

	memset(l, 0, sizeof(*l));
	kvcache_layout(c, p->model->fingerprint, p->spec->k, p->spec->v, o->block_tokens, &layout);
	l->logits = malloc((size_t)LOGIT_ROWS * c->vocab * sizeof(float));
	if (!l->logits)
		return fault_set(fault, "out of memory");
	if (!workers_init(&l->alone, 1, fault) ||
	    !forward_init(&l->forward, p->model, &l->alone, o->chunk, o->window, fault))
		return false;
	l->forward.cuda = o->cuda;
	return kvcache_init(&l->kv, c, p->spec->packed ? &layout : NULL, o->window, fault) &&
	       (!p->spec->packed || lane_blocks(l, fault));
}

/* Adds up -ln p(next) over the rows of the last run. */
static double score_rows(struct lane *l, const uint32_t *next, uint32_t rows)
{
	const uint32_t vocab = l->forward.model->config.vocab;
	double nats = 0;

	for (uint32_t r = 0; r < rows; r += LOGIT_ROWS) {
		uint32_t count = rows - r < LOGIT_ROWS ? rows - r : LOGIT_ROWS;

		forward_logits(&l->forward, r, count, l->logits);
		for (uint32_t i = 0; i < count; i++) {
			const float *logits = l->logits + (size_t)i * vocab;

			nats += panel_log_sum_exp(logits, vocab) - (double)logits[next[r + i]];
		}
	}
	return nats;
}

static bool run_window(struct lane *l, const struct ppl *p, uint32_t w, struct fault *fault)
{
	const uint32_t *tokens = p->tokens + (size_t)w * p->options->window;
	double nats = 0;

	l->kv.count = 0;
	for (uint32_t at = 0; at < p->options->window; at += p->options->chunk) {
		uint32_t left = p->options->window - at;
		uint32_t n = left < p->options->chunk ? left : p->options->chunk;

		if (!forward_run(&l->forward, &l->kv, tokens + at, n, fault))
			return false;
		nats += score_rows(l, tokens + at + 1, n);
	}
	p->nats[w] = nats;
	return true;
}

static void lane_run(void *arg, uint32_t part)
{
	struct ppl *p = arg;
	struct lane lane;
	bool ok = lane_init(&lane, p, &p->faults[part]);
	uint32_t w;

	while (ok && (w = atomic_fetch_add(&p->next, 1)) < p->options->windows)
		ok = run_window(&lane, p, w, &p->faults[part]);
	p->failed[part] = !ok;
	lane_fini(&lane);
}

/* Runs the lanes and gathers what they found. */
static bool run_lanes(struct ppl *p, struct workers *lanes, struct ppl_result *result, struct fault *fault)
{
	double begin = clock_s(), nats = 0;

	workers_run(lanes, lanes->count, lane_run, p);
	for (uint32_t i = 0; i < lanes->count; i++) {
		if (p->failed[i]) {
			*fault = p->faults[i];
			return false;
		}
	}
	for (uint32_t w = 0; w < p->options->windows; w++)
		nats += p->nats[w];
	result->tokens = (uint64_t)p->options->windows * p->options->window;
	result->nats = nats / (double)result->tokens;
	result->perplexity = exp(result->nats);
	result->seconds = clock_s() - begin;
	return true;
}

bool ppl_run(const struct model *model, const struct kvspec *spec, const struct ppl_options *options,
	     const uint32_t *tokens, struct ppl_result *result, struct fault *fault)
{
	struct ppl *p = calloc(1, sizeof(*p));
	struct workers lanes = { 0 };
	bool ok = false;

	if (!p)
		return fault_set(fault, "out of memory");
	p->model = model;
	p->spec = spec;
	p->options = options;
	p->tokens = tokens;
	p->nats = calloc(options->windows, sizeof(*p->nats));
	if (!p->nats)
		fault_write(fault, "out of memory");
	else if (workers_init(&lanes, options->threads, fault))
		ok = run_lanes(p, &lanes, result, fault);
	workers_fini(&lanes);
	free(p->nats);
	free(p);
	return ok;
}
