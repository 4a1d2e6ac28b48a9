/* The Llama forward pass; see forward.h. */
#include "forward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LOGIT_PART = 512 }; /* outputs of a part of the output matrix */

/* ---- set-up ------------------------------------------------------------------------------------------------------ */

static void fill_rope(struct forward *f)
{
	const uint32_t half = f->model->config.head_dim / 2;

	for (uint32_t i = 0; i < half; i++) {
		/* Computed in float, as the model was trained: the rounding of the frequency is part of the model. */
		float frequency = 1.0f / powf(f->model->config.rope_theta, (float)(2 * i) / (float)(2 * half));

		for (uint32_t p = 0; p < f->positions; p++) {
			f->rope_cos[(size_t)p * half + i] = cosf((float)p * frequency);
			f->rope_sin[(size_t)p * half + i] = sinf((float)p * frequency);
		}
	}
}

bool forward_init(struct forward *f, const struct model *model, struct workers *workers, uint32_t rows_max,
		  uint32_t positions, struct fault *fault)
{
	const struct model_config *c = &model->config;
	const struct {
		float **to;
		size_t floats;
	} buffers[] = {
		{ &f->rope_cos, (size_t)positions * (c->head_dim / 2) },
		{ &f->rope_sin, (size_t)positions * (c->head_dim / 2) },
		{ &f->x, (size_t)rows_max * c->hidden },
		{ &f->h, (size_t)rows_max * c->hidden },
		{ &f->q, (size_t)rows_max * c->q_heads * c->head_dim },
		{ &f->attended, (size_t)rows_max * c->q_heads * c->head_dim },
		{ &f->k, (size_t)rows_max * c->kv_heads * c->head_dim },
		{ &f->v, (size_t)rows_max * c->kv_heads * c->head_dim },
		{ &f->gate, (size_t)rows_max * c->intermediate },
		{ &f->up, (size_t)rows_max * c->intermediate },
	};
	bool ok = true;

	memset(f, 0, sizeof(*f));
	f->model = model;
	f->workers = workers;
	f->rows_max = rows_max;
	f->positions = positions;
	f->part_count = workers->count == 1 ? 1 : 2 * workers->count; /* later rows see more: uneven parts */
	for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++) {
		*buffers[i].to = malloc(buffers[i].floats * sizeof(float));
		ok = ok && *buffers[i].to;
	}
	for (uint32_t i = 0; i < f->part_count; i++) {
		f->parts[i].scratch = malloc(kvcache_scratch(c, positions) * sizeof(float));
		ok = ok && f->parts[i].scratch;
	}
	if (!ok) {
		forward_fini(f);
		return fault_set(fault, "out of memory");
	}
	fill_rope(f);
	return true;
}

void forward_fini(struct forward *f)
{
	float *const buffers[] = { f->rope_cos, f->rope_sin, f->x, f->h,    f->q,
				   f->attended, f->k,        f->v, f->gate, f->up };

	for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++)
		free(buffers[i]);
	for (uint32_t i = 0; i < FORWARD_PARTS_MAX; i++)
		free(f->parts[i].scratch);
	memset(f, 0, sizeof(*f));
}

/* ---- one layer --------------------------------------------------------------------------------------------------- */

/* Rotates each head's pairs (i, i + half) by the position's angles. */
static void rope(const struct forward *f, float *x, uint32_t heads, uint32_t position)
{
	const uint32_t half = f->model->config.head_dim / 2;
	const float *cosine = f->rope_cos + (size_t)position * half, *sine = f->rope_sin + (size_t)position * half;

	for (uint32_t h = 0; h < heads; h++, x += 2 * half) {
		for (uint32_t i = 0; i < half; i++) {
			float a = x[i], b = x[i + half];

			x[i] = a * cosine[i] - b * sine[i];
			x[i + half] = b * cosine[i] + a * sine[i];
		}
	}
}

/* The rows of a part. They are cut at positions that are multiples of the cache's grain, so that no two threads write
 * one block. */
static bool part_rows(const struct forward *f, uint32_t part, uint32_t *row, uint32_t *rows)
{
	const uint32_t grain = kvcache_grain(f->kv);
	const uint32_t begin = f->first / grain, end = (f->first + f->rows - 1) / grain + 1;
	uint32_t from = (begin + (uint32_t)((uint64_t)(end - begin) * part / f->cut)) * grain;
	uint32_t to = (begin + (uint32_t)((uint64_t)(end - begin) * (part + 1) / f->cut)) * grain;

	from = from < f->first ? f->first : from;
	to = to > f->first + f->rows ? f->first + f->rows : to;
	if (from >= to)
		return false;
	*row = from - f->first;
	*rows = to - from;
	return true;
}

/* First step of a layer: normalises, projects, rotates, and stores K and V. */
static void store_part(void *arg, uint32_t part)
{
	struct forward *f = arg;
	const struct model_config *c = &f->model->config;
	const struct model_layer *l = &f->model->layers[f->layer];
	const uint32_t q_width = c->q_heads * c->head_dim, kv_width = c->kv_heads * c->head_dim;
	float *x, *h, *q, *k, *v;
	uint32_t row, rows;

	if (!part_rows(f, part, &row, &rows))
		return;
	x = f->x + (size_t)row * c->hidden;
	h = f->h + (size_t)row * c->hidden;
	q = f->q + (size_t)row * q_width;
	k = f->k + (size_t)row * kv_width;
	v = f->v + (size_t)row * kv_width;
	for (uint32_t r = 0; r < rows; r++)
		panel_rms_norm(x + (size_t)r * c->hidden, l->input_norm, c->hidden, c->rms_eps, h + (size_t)r * c->hidden);
	panel_multiply(&l->q, 0, q_width, rows, h, c->hidden, q, q_width, false);
	panel_multiply(&l->k, 0, kv_width, rows, h, c->hidden, k, kv_width, false);
	panel_multiply(&l->v, 0, kv_width, rows, h, c->hidden, v, kv_width, false);
	for (uint32_t r = 0; r < rows; r++) {
		rope(f, q + (size_t)r * q_width, c->q_heads, f->first + row + r);
		rope(f, k + (size_t)r * kv_width, c->kv_heads, f->first + row + r);
	}
	if (!f->kv->device && !kvcache_store(f->kv, f->layer, f->first + row, rows, k, v, &f->parts[part].fault))
		f->parts[part].failed = true;
}

/* Second step of a layer: attends, and computes the feed-forward part. */
static void attend_part(void *arg, uint32_t part)
{
	struct forward *f = arg;
	const struct model_config *c = &f->model->config;
	const struct model_layer *l = &f->model->layers[f->layer];
	const uint32_t q_width = c->q_heads * c->head_dim, inner = c->intermediate;
	float *x, *h, *attended, *gate, *up;
	uint32_t row, rows;

	if (!part_rows(f, part, &row, &rows))
		return;
	x = f->x + (size_t)row * c->hidden;
	h = f->h + (size_t)row * c->hidden;
	attended = f->attended + (size_t)row * q_width;
	gate = f->gate + (size_t)row * inner;
	up = f->up + (size_t)row * inner;
	if (!f->kv->device && !kvcache_attend(f->kv, f->layer, f->first + row, rows, f->q + (size_t)row * q_width, attended,
					      f->parts[part].scratch, &f->parts[part].fault)) {
		f->parts[part].failed = true;
		return;
	}
	panel_multiply(&l->o, 0, c->hidden, rows, attended, q_width, x, c->hidden, true);
	for (uint32_t r = 0; r < rows; r++)
		panel_rms_norm(x + (size_t)r * c->hidden, l->post_norm, c->hidden, c->rms_eps, h + (size_t)r * c->hidden);
	panel_multiply(&l->gate, 0, inner, rows, h, c->hidden, gate, inner, false);
	panel_multiply(&l->up, 0, inner, rows, h, c->hidden, up, inner, false);
	panel_swiglu(gate, up, (size_t)rows * inner);
	panel_multiply(&l->down, 0, c->hidden, rows, gate, inner, x, c->hidden, true);
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static bool run_step(struct forward *f, void (*task)(void *arg, uint32_t part), struct fault *fault)
{
	workers_run(f->workers, f->cut, task, f);
	for (uint32_t i = 0; i < f->cut; i++) {
		if (f->parts[i].failed) {
			*fault = f->parts[i].fault;
			return false;
		}
	}
	return true;
}

static bool run_layer(struct forward *f, struct fault *fault)
{
	struct kvdevice *device = f->kv->device;

	return run_step(f, store_part, fault) &&
	       (!device || kvdevice_layer(device, f->layer, f->k, f->v, f->q, f->attended, fault)) &&
	       run_step(f, attend_part, fault);
}

bool forward_run(struct forward *f, struct kvcache *kv, const uint32_t *tokens, uint32_t n, struct fault *fault)
{
	const struct model_config *c = &f->model->config;
	const uint32_t limit = kv->capacity < f->positions ? kv->capacity : f->positions;

	if (n == 0 || n > f->rows_max)
		return fault_set(fault, "%u tokens in a run, 1 to %u are taken", n, f->rows_max);
	if (n > limit || kv->count > limit - n)
		return fault_set(fault, "%u tokens are more than the context of %u", kv->count + n, limit);
	for (uint32_t i = 0; i < n; i++) {
		if (tokens[i] >= c->vocab)
			return fault_set(fault, "token %u is not in the vocabulary of %u", tokens[i], c->vocab);
		memcpy(f->x + (size_t)i * c->hidden, f->model->embedding + (size_t)tokens[i] * c->hidden,
		       c->hidden * sizeof(float));
	}
	f->kv = kv;
	f->first = kv->count;
	f->rows = n;
	f->cut = n == 1 ? 1 : f->part_count;
	for (uint32_t i = 0; i < f->part_count; i++)
		f->parts[i].failed = false;
	if (kv->device && !kvdevice_begin(kv->device, kv->count, n, fault))
		return false;
	for (f->layer = 0; f->layer < c->layers; f->layer++) {
		if (!run_layer(f, fault))
			return false;
	}
	kv->count += n;
	return true;
}

static void logits_part(void *arg, uint32_t part)
{
	struct forward *f = arg;
	const struct model_config *c = &f->model->config;
	uint32_t first = part * LOGIT_PART, outs = c->vocab - first < LOGIT_PART ? c->vocab - first : LOGIT_PART;

	panel_multiply(&f->model->head, first, outs, f->logit_rows, f->h + (size_t)f->logit_row * c->hidden, c->hidden,
		       f->logits + first, c->vocab, false);
}

void forward_logits(struct forward *f, uint32_t first_row, uint32_t rows, float *logits)
{
	const struct model_config *c = &f->model->config;

	for (uint32_t r = first_row; r < first_row + rows; r++)
		panel_rms_norm(f->x + (size_t)r * c->hidden, f->model->final_norm, c->hidden, c->rms_eps,
			       f->h + (size_t)r * c->hidden);
	f->logit_row = first_row;
	f->logit_rows = rows;
	f->logits = logits;
	workers_run(f->workers, (c->vocab + LOGIT_PART - 1) / LOGIT_PART, logits_part, f);
}
