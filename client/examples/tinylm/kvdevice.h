/* The packed K and V of one sequence in a GPU's memory, encoded and attended there by Terrace's CUDA kernels.
 *
 * A block is in memory of its own, or, while a lease lends one, at a lent address: then its bytes are read and written
 * there.
 *
 * A run of tokens is one step: kvdevice_begin plans it, then kvdevice_layer does each layer. Every query row is a
 * sequence of its own for the kernel, and its context is cut into spans, whose results are merged in order. A span is
 * too short for the plan to split further, so a row's result has the same bits whatever else the run computes: the text
 * does not depend on what was reused. */
#ifndef TINYLM_KVDEVICE_H
#define TINYLM_KVDEVICE_H

#include "device.h"

#include "terrace.h"

/* Used by one thread at a time. */
struct kvdevice {
	struct device device;
	struct terrace_layout layout;
	uint32_t q_heads, rows_max;
	uint32_t block_count; /* of the capacity */
	uint64_t block_bytes;
	uint32_t span_blocks, span_tokens, spans_max;
	char *blocks;         /* on the device: [block_count][block_bytes], the blocks' own memory */
	char *buffers;        /* on the device: what the pointers below point into */
	uint64_t *addresses;  /* [block_count] */
	int64_t *slots;       /* [rows] */
	uint64_t *tables;     /* [spans][rows][span_blocks] */
	uint32_t *kv_tokens;  /* [spans][rows] */
	float *q, *out;       /* [spans][rows][q_heads][head_dim] */
	float *lse;           /* [spans][rows][q_heads] */
	float *k, *v;         /* [rows][heads][head_dim] */
	void *workspace;
	size_t workspace_bytes;
	uint64_t *host_addresses; /* on the host, of the same shapes */
	int64_t *host_slots;
	uint64_t *host_tables;
	uint32_t *host_tokens;
	uint32_t rows, spans; /* of the step that is going on */
	struct terrace_lease *coming; /* the caller's; NULL: all bytes are there. Else each layer is waited for before it is read */
};

/* Most rows of a run, with so much capacity. */
uint32_t kvdevice_rows_max(const struct terrace_layout *layout, uint32_t capacity);

/* Room for `capacity` tokens of a valid layout and runs of 1 to rows_max tokens. Fails if no kernel does these formats. */
bool kvdevice_open(struct kvdevice *d, const struct terrace_layout *layout, uint32_t q_heads, uint32_t capacity,
		   uint32_t rows_max, struct fault *fault);

/* Zeroed memory is fine. */
void kvdevice_close(struct kvdevice *d);

/* Puts a block at a lent address; 0: into its own memory. Its bytes are what is there. */
void kvdevice_place(struct kvdevice *d, uint32_t block, uint64_t address);

/* Begins the step of the tokens at positions first .. first + rows - 1. */
bool kvdevice_begin(struct kvdevice *d, uint32_t first, uint32_t rows, struct fault *fault);

/* Stores their K and V of one layer, [rows][heads][head_dim], and attends causally; q and out: [rows][q_heads][head_dim]. */
bool kvdevice_layer(struct kvdevice *d, uint32_t layer, const float *k, const float *v, const float *q, float *out,
		    struct fault *fault);

/* Copies the bytes of a whole block in its own memory in and out; the second has them in `to` when it returns. */
bool kvdevice_put(struct kvdevice *d, uint32_t block, const void *from, struct fault *fault);
bool kvdevice_get(struct kvdevice *d, uint32_t block, void *to, struct fault *fault);

#endif
