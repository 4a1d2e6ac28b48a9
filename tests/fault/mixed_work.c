/* Blocks of the mixed load on a GPU; see mixed_work.h. */
#include "tests/fault/mixed_work.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIDE_FLOATS = MIXED_LAYERS * MIXED_TOKENS * MIXED_HEADS * MIXED_DIM };

struct terrace_layout mixed_layout = {
	.size = sizeof(struct terrace_layout),
	.fingerprint = "mixed load",
	.layers = MIXED_LAYERS,
	.heads = MIXED_HEADS,
	.total_heads = MIXED_HEADS,
	.head_dim_k = MIXED_DIM,
	.head_dim_v = MIXED_DIM,
	.block_tokens = MIXED_TOKENS,
	.k_format = TERRACE_FORMAT_TQ4,
	.v_format = TERRACE_FORMAT_TQ4,
};

static _Noreturn void stop(const char *words)
{
	fprintf(stderr, "mixed load: %s\n", words);
	_exit(3);
}

static void must(bool ok, const struct fault *fault)
{
	if (!ok)
		stop(fault->text);
}

static void obeyed(enum terrace_status status)
{
	if (status != TERRACE_OK)
		stop(terrace_error());
}

static void *device_memory(struct mixed_work *w, size_t bytes)
{
	struct fault fault;
	void *memory = device_alloc(&w->device, bytes, &fault);

	must(memory, &fault);
	return memory;
}

static void *host_memory(size_t count, size_t bytes)
{
	void *memory = calloc(count, bytes);

	if (!memory)
		stop("out of memory");
	return memory;
}

static void upload(struct mixed_work *w, void *to, const void *from, size_t bytes)
{
	struct fault fault;

	must(device_put(&w->device, to, from, bytes, &fault), &fault);
}

void mixed_wait(struct mixed_work *w)
{
	struct fault fault;

	must(device_wait(&w->device, &fault), &fault);
}

static struct terrace_cuda_attend_options attend_options(const struct mixed_work *w)
{
	struct terrace_cuda_attend_options o = TERRACE_CUDA_ATTEND_OPTIONS_INIT;

	o.sequences = o.queries = 1;
	o.q_heads = MIXED_HEADS;
	o.q = w->q;
	o.blocks = w->addresses;
	o.blocks_stride = MIXED_CHAIN;
	o.kv_tokens = w->kv_tokens;
	o.out = w->out;
	o.lse = w->lse;
	o.workspace = w->workspace;
	o.workspace_bytes = w->workspace_bytes;
	return o;
}

void mixed_work_open(struct mixed_work *w, uint64_t numbers)
{
	const size_t row = sizeof(float[MIXED_HEADS * MIXED_DIM]);
	struct terrace_cuda_attend_options o;
	int64_t slots[MIXED_TOKENS];
	struct fault fault;

	memset(w, 0, sizeof(*w));
	must(device_open(&w->device, &fault), &fault);
	w->words = terrace_block_bytes(&mixed_layout) / 8;
	w->host = host_memory(MIXED_CHAIN, w->words * 8);
	w->blocks = device_memory(w, MIXED_CHAIN * w->words * 8);
	w->grown = host_memory(numbers, sizeof(*w->grown));
	w->k = host_memory(SIDE_FLOATS, sizeof(float));
	w->v = host_memory(SIDE_FLOATS, sizeof(float));
	w->device_k = device_memory(w, SIDE_FLOATS * sizeof(float));
	w->device_v = device_memory(w, SIDE_FLOATS * sizeof(float));
	w->slots = device_memory(w, sizeof(slots));
	w->addresses = device_memory(w, MIXED_CHAIN * sizeof(uint64_t));
	w->to = device_memory(w, MIXED_CHAIN * sizeof(uint64_t));
	w->q = device_memory(w, row);
	w->out = device_memory(w, row);
	w->lse = device_memory(w, row);
	w->kv_tokens = device_memory(w, sizeof(uint32_t));
	for (int64_t t = 0; t < MIXED_TOKENS; t++)
		slots[t] = t;
	upload(w, w->slots, slots, sizeof(slots));
	o = attend_options(w);
	obeyed(terrace_cuda_attend_workspace(&mixed_layout, &o, &w->workspace_bytes));
	w->workspace = device_memory(w, w->workspace_bytes);
	mixed_wait(w);
}

void mixed_work_close(struct mixed_work *w)
{
	void *const on_device[] = { w->blocks, w->device_k, w->device_v, w->slots, w->addresses, w->to, w->q, w->out, w->lse,
				    w->kv_tokens, w->workspace };

	for (size_t i = 0; i < sizeof(on_device) / sizeof(on_device[0]); i++)
		device_free(on_device[i]);
	device_close(&w->device);
	free(w->host);
	free(w->grown);
	free(w->k);
	free(w->v);
}

/* ---- what a block's bytes are ------------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

uint64_t mixed_random(uint64_t *state, uint64_t below)
{
	*state += 0x9e3779b97f4a7c15u;
	return mix(*state) % below;
}

static uint64_t word(uint64_t number, uint64_t seed, uint64_t i)
{
	return mix(number * 0x9e3779b9u + seed + i * 0x10001u);
}

void mixed_vectors(struct mixed_work *w, uint64_t number)
{
	for (uint32_t i = 0; i < SIDE_FLOATS; i++) {
		uint64_t x = word(number, 1, i);

		w->k[i] = (float)(x >> 40) * 0x1p-23f - 1;
		w->v[i] = (float)(x & 0xffffff) * 0x1p-23f - 1;
	}
}

static void encode(struct mixed_work *w, uint64_t number, void *block)
{
	const size_t stride = MIXED_HEADS * MIXED_DIM;

	mixed_vectors(w, number);
	for (uint32_t l = 0; l < MIXED_LAYERS; l++)
		for (uint32_t h = 0; h < MIXED_HEADS; h++) {
			size_t at = l * MIXED_TOKENS * stride + h * MIXED_DIM;

			obeyed(terrace_encode(&mixed_layout, block, l, h, 0, MIXED_TOKENS, w->k + at, stride, w->v + at, stride, TERRACE_F32));
		}
}

static uint64_t hash(const struct mixed_work *w, const uint64_t *block)
{
	uint64_t x = 1;

	for (uint64_t i = 0; i < w->words; i++)
		x = (x ^ block[i]) * 0x9e3779b97f4a7c15u + (x >> 29);
	return x | 1;
}

void mixed_fill(struct mixed_work *w, uint64_t number, uint64_t seed, void *block)
{
	uint64_t *words = block;

	if (mixed_grows(number)) {
		encode(w, number, block);
		return;
	}
	for (uint64_t i = 0; i < w->words; i++)
		words[i] = i ? word(number, seed, i) : seed;
}

static void look_grown(struct mixed_work *w, uint64_t number, const void *block)
{
	if (!w->grown[number]) {
		void *fresh = host_memory(w->words, 8);

		encode(w, number, fresh);
		w->grown[number] = hash(w, fresh);
		free(fresh);
	}
	if (hash(w, block) == w->grown[number])
		return;
	fprintf(stderr, "wrong byte: key %" PRIu64 ", a block that grew\n", number);
	_exit(1);
}

void mixed_look(struct mixed_work *w, uint64_t number, const void *block)
{
	const uint64_t *words = block;

	if (mixed_grows(number)) {
		look_grown(w, number, block);
		return;
	}
	for (uint64_t i = 1; i < w->words; i++) {
		if (words[i] == word(number, words[0], i))
			continue;
		fprintf(stderr, "wrong byte: key %" PRIu64 ", word %" PRIu64 " of %" PRIu64 "\n", number, i, w->words);
		_exit(1);
	}
}

/* ---- work on the stream ------------------------------------------------------------------------------------------ */

static void *at(uint64_t address)
{
	return (void *)(uintptr_t)address;
}

void mixed_put(struct mixed_work *w, uint64_t address)
{
	upload(w, at(address), w->host, w->words * 8);
}

static void encode_layer(struct mixed_work *w, uint32_t layer, uint32_t first)
{
	struct terrace_cuda_codec_options o = TERRACE_CUDA_CODEC_OPTIONS_INIT;
	const size_t floats = ((size_t)layer * MIXED_TOKENS + first) * MIXED_HEADS * MIXED_DIM;

	o.layer = layer;
	o.tokens = MIXED_STEP;
	o.slots = w->slots + first;
	o.blocks = w->addresses;
	o.block_count = 1;
	o.k = w->device_k + floats * sizeof(float);
	o.v = w->device_v + floats * sizeof(float);
	o.k_stride = o.v_stride = (size_t)MIXED_HEADS * MIXED_DIM;
	o.dtype = TERRACE_F32;
	obeyed(terrace_cuda_encode(&mixed_layout, &o, w->device.stream));
}

void mixed_grow(struct mixed_work *w, uint32_t first, uint64_t address)
{
	if (first == 0) {
		upload(w, w->device_k, w->k, SIDE_FLOATS * sizeof(float));
		upload(w, w->device_v, w->v, SIDE_FLOATS * sizeof(float));
	}
	upload(w, w->addresses, &address, sizeof(address));
	for (uint32_t l = 0; l < MIXED_LAYERS; l++)
		encode_layer(w, l, first);
}

void mixed_read_layer(struct mixed_work *w, const uint64_t *addresses, uint32_t count, uint32_t layer)
{
	const uint64_t bytes = w->words * 8 / MIXED_LAYERS;
	struct fault fault;

	for (uint32_t i = 0; i < count; i++)
		must(device_get(&w->device, (char *)(w->host + i * w->words) + layer * bytes, at(addresses[i] + layer * bytes), bytes,
				&fault), &fault);
	mixed_wait(w);
}

void mixed_read(struct mixed_work *w, const uint64_t *addresses, uint32_t count)
{
	struct terrace_cuda_copy_options o = TERRACE_CUDA_COPY_OPTIONS_INIT;
	uint64_t to[MIXED_CHAIN];
	struct fault fault;

	for (uint32_t i = 0; i < count; i++)
		to[i] = (uint64_t)(uintptr_t)w->blocks + i * w->words * 8;
	upload(w, w->addresses, addresses, count * sizeof(*addresses));
	upload(w, w->to, to, count * sizeof(*to));
	o.count = count;
	o.from = w->addresses;
	o.to = w->to;
	obeyed(terrace_cuda_copy(&mixed_layout, &o, w->device.stream));
	must(device_get(&w->device, w->host, w->blocks, count * w->words * 8, &fault), &fault);
	mixed_wait(w);
}

void mixed_attend(struct mixed_work *w, const uint64_t *addresses, uint32_t count, uint32_t tokens, uint32_t layer)
{
	struct terrace_cuda_attend_options o = attend_options(w);

	upload(w, w->addresses, addresses, count * sizeof(*addresses));
	upload(w, w->kv_tokens, &tokens, sizeof(tokens));
	o.layer = layer;
	obeyed(terrace_cuda_attend_plan(&mixed_layout, &o, w->device.stream));
	obeyed(terrace_cuda_attend(&mixed_layout, &o, w->device.stream));
}
