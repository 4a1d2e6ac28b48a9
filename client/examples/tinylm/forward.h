/* The transformer: tokens in, hidden states and logits out, K and V into a kvcache.
 *
 * A run takes a chunk of tokens through all layers. The rows (tokens) are split over the worker threads; within a layer there
 * are two steps, since every row's K and V must be stored before any row attends. If the cache is on the GPU, storing and attending
 * are one call between the two, by the thread that runs the forward. */
#ifndef TINYLM_FORWARD_H
#define TINYLM_FORWARD_H

#include "kvcache.h"
#include "model.h"
#include "workers.h"

enum { FORWARD_PARTS_MAX = 2 * WORKERS_MAX };

/* Scratch of one part of a run. */
struct forward_part {
	float *scratch;
	bool failed;
	struct fault fault;
};

/* One user at a time; the model and the workers may be shared (workers by one user at a time). */
struct forward {
	const struct model *model;
	struct workers *workers;
	uint32_t rows_max;   /* tokens of a run */
	uint32_t positions;  /* of the longest sequence */
	bool cuda;           /* packed caches of sequences are to be on the GPU; false after forward_init */
	float *rope_cos, *rope_sin; /* [positions][head_dim / 2] */
	float *x, *h;        /* [rows_max][hidden]: the residual stream; a normalised copy */
	float *q, *attended; /* [rows_max][q_heads * head_dim] */
	float *k, *v;        /* [rows_max][kv_heads * head_dim] */
	float *gate, *up;    /* [rows_max][intermediate] */
	struct forward_part parts[FORWARD_PARTS_MAX];
	uint32_t part_count;
	/* of the run that is going on */
	struct kvcache *kv;
	uint32_t first, rows, layer, cut; /* cut: into how many parts */
	uint32_t logit_row, logit_rows;
	float *logits;
};

bool forward_init(struct forward *f, const struct model *model, struct workers *workers, uint32_t rows_max,
		  uint32_t positions, struct fault *fault);
void forward_fini(struct forward *f);

/* Runs n tokens (1 to rows_max, ids below the vocabulary's size) that follow the kv->count tokens in kv, and stores their K
 * and V. The blocks of a packed cache must be there. On failure kv->count is as before. */
bool forward_run(struct forward *f, struct kvcache *kv, const uint32_t *tokens, uint32_t n, struct fault *fault);

/* Logits [rows][vocab] after tokens first_row .. of the last run. */
void forward_logits(struct forward *f, uint32_t first_row, uint32_t rows, float *logits);

#endif
