/* See vram/zero.h. */
#include "daemon/vram/zero.h"

#include "daemon/threads/deadline.h"
#include "kernels/behind.h"
#include "kernels/format.h"

#include <string.h>
#include <time.h>

enum {
	LIST_US = 10 * 1000 * 1000,    /* that one takes at most: by then the driver has ended it, or does not answer */
	AGAIN_NS = 1000 * 1000,
	AGAIN_TIMES = 2000,            /* that a driver without memory is asked */
};

void gpu_zero_init(struct gpu_zero *z, const struct device_ops *ops, struct device *d, uint8_t *host, uint64_t address)
{
	z->ops = ops;
	z->device = d;
	z->host = host;
	z->address = address;
	pthread_mutex_init(&z->turn, NULL);
	pthread_mutex_init(&z->lock, NULL);
	deadline_cond_init(&z->ended);
}

void gpu_zero_fini(struct gpu_zero *z)
{
	if (!z->ops)
		return;
	pthread_cond_destroy(&z->ended);
	pthread_mutex_destroy(&z->lock);
	pthread_mutex_destroy(&z->turn);
}

/* ---- one list ---- */

static void list_ended(struct device_copy *c, enum status s)
{
	struct gpu_zero *z = c->arg;

	pthread_mutex_lock(&z->lock);
	z->status = s;
	z->over = true;
	pthread_cond_signal(&z->ended);
	pthread_mutex_unlock(&z->lock);
}

static enum status list_begin(struct gpu_zero *z)
{
	const struct timespec pause = { .tv_nsec = AGAIN_NS };
	enum status s = STATUS_EXHAUSTED;
	const char *why;

	for (uint32_t i = 0; i < AGAIN_TIMES && s == STATUS_EXHAUSTED; i++) {
		if (i)
			nanosleep(&pause, NULL);
		s = z->ops->copy(z->device, &z->list, &why);
	}
	return s;
}

static enum status list_wait(struct gpu_zero *z)
{
	const struct timespec until = deadline_in(LIST_US);

	pthread_mutex_lock(&z->lock);
	while (!z->over && !pthread_cond_timedwait(&z->ended, &z->lock, &until))
		continue;
	z->stuck = !z->over;
	pthread_mutex_unlock(&z->lock);
	return z->stuck ? STATUS_DEADLINE : z->status;
}

/* Copies the first `count` pairs, of `bytes` each, and waits for that. */
static enum status list_run(struct gpu_zero *z, enum device_way way, uint32_t count, uint64_t bytes)
{
	enum status s;

	z->list = (struct device_copy){ .pairs = z->pairs, .count = count, .parts = 1, .part_bytes = bytes, .way = way,
					.done = list_ended, .arg = z };
	z->over = false;
	s = list_begin(z);
	return s ? s : list_wait(z);
}

/* ---- a block ---- */

struct rest {
	struct gpu_zero *zero;
	uint64_t address;
	const struct kv_layout *layout;
	const struct kv_geometry *geometry;
	uint32_t chunks;               /* of the block: a layer's, a head's */
};

/* How many pieces of `bytes` fit in one half of the buffer and in the pairs; `left` at most. */
static uint32_t pieces(uint64_t bytes, uint32_t left)
{
	const uint64_t fit = ZERO_HALF / bytes, most = fit < ZERO_PAIRS ? fit : ZERO_PAIRS;

	return left < most ? left : (uint32_t)most;
}

/* Fills pairs: from pieces of one half of the buffer to the bytes at `offset` in chunks first .. first + n - 1. */
static void pair_up(const struct rest *r, uint64_t half, uint32_t first, uint32_t n, uint64_t offset, uint64_t bytes)
{
	for (uint32_t i = 0; i < n; i++)
		r->zero->pairs[i] = (struct device_pair){
			.from = half + i * bytes,
			.to = r->address + (first + i) * (uint64_t)r->geometry->chunk_bytes + offset,
		};
}

static void pairs_turn(struct gpu_zero *z, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		z->pairs[i] = (struct device_pair){ .from = z->pairs[i].to, .to = z->pairs[i].from };
}

/* Zeroes, in these chunks, the rest of the atom in which the valid tokens end. The atoms go by way of the host. */
static enum status atoms_keep(const struct rest *r, uint32_t first, uint32_t n, uint32_t tokens)
{
	const uint64_t offset = (uint64_t)(tokens / KV_ATOM_TOKENS) * r->geometry->atom_bytes;
	struct gpu_zero *z = r->zero;
	enum status s;

	pair_up(r, z->address + ZERO_HALF, first, n, offset, r->geometry->atom_bytes);
	pairs_turn(z, n);
	s = list_run(z, DEVICE_DOWN, n, r->geometry->atom_bytes);
	if (s)
		return s;
	kv_zero_behind_atoms(r->layout, r->geometry, z->host + ZERO_HALF, n, tokens % KV_ATOM_TOKENS);
	pairs_turn(z, n);
	return list_run(z, DEVICE_UP, n, r->geometry->atom_bytes);
}

static enum status ends_keep(const struct rest *r, uint32_t tokens)
{
	enum status s = STATUS_OK;

	for (uint32_t i = 0, n; i < r->chunks && !s && tokens % KV_ATOM_TOKENS; i += n) {
		n = pieces(r->geometry->atom_bytes, r->chunks - i);
		s = atoms_keep(r, i, n, tokens);
	}
	return s;
}

/* Zeroes `bytes` bytes from `offset` on in each chunk of the block. */
static enum status piece_zero(const struct rest *r, uint64_t offset, uint64_t bytes)
{
	enum status s = STATUS_OK;

	for (uint32_t i = 0, n; i < r->chunks && !s; i += n) {
		n = pieces(bytes, r->chunks - i);
		pair_up(r, r->zero->address, i, n, offset, bytes);
		s = list_run(r->zero, DEVICE_UP, n, bytes);
	}
	return s;
}

/* Zeroes the atoms of which no token is valid. */
static enum status atoms_zero(const struct rest *r, uint32_t tokens)
{
	const uint32_t full = (tokens + KV_ATOM_TOKENS - 1) / KV_ATOM_TOKENS;
	enum status s = STATUS_OK;

	for (uint64_t at = (uint64_t)full * r->geometry->atom_bytes, n; at < r->geometry->chunk_bytes && !s; at += n) {
		n = r->geometry->chunk_bytes - at < ZERO_HALF ? r->geometry->chunk_bytes - at : ZERO_HALF;
		s = piece_zero(r, at, n);
	}
	return s;
}

static uint64_t tail_of(const struct kv_geometry *g)
{
	return -g->block_bytes % ZERO_UNIT;
}

/* Zeroes the bytes behind the block up to the end of the least slot for it. */
static enum status tail_zero(const struct rest *r)
{
	struct gpu_zero *z = r->zero;

	if (!tail_of(r->geometry))
		return STATUS_OK;
	z->pairs[0] = (struct device_pair){ .from = z->address, .to = r->address + r->geometry->block_bytes };
	return list_run(z, DEVICE_UP, 1, tail_of(r->geometry));
}

/* Where tokens end in an opaque block is not known here: all its bytes are the engine's. */
static bool ends_early(const struct kv_layout *l, uint32_t tokens)
{
	return tokens < l->block_tokens && !kv_is_opaque(l);
}

bool gpu_zero_wants(const struct kv_layout *l, const struct kv_geometry *g, uint32_t tokens)
{
	return ends_early(l, tokens) || tail_of(g);
}

enum status gpu_zero_behind(struct gpu_zero *z, uint64_t address, const struct kv_layout *l,
			    const struct kv_geometry *g, uint32_t tokens)
{
	const struct rest r = { z, address, l, g, l->layers * l->heads };
	enum status s = STATUS_OK;

	pthread_mutex_lock(&z->turn);
	if (z->stuck)
		s = STATUS_DEADLINE;
	if (!s && ends_early(l, tokens))
		s = ends_keep(&r, tokens);
	if (!s && ends_early(l, tokens))
		s = atoms_zero(&r, tokens);
	if (!s)
		s = tail_zero(&r);
	pthread_mutex_unlock(&z->turn);
	return s;
}
