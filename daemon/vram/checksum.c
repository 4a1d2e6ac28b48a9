/* Checksums beside the copies to and from GPUs.
 *
 * A block's checksums, one a layer, are computed at its put, in memory or by the GPU (vram/commit_sums.h), or else at
 * its first download. Slots outside of GPUs have them in their headers. A GPU's copy keeps one checksum over them.
 * Downloads are compared with that, so that bytes that went wrong on a GPU or on the bus do not get new checksums.
 *
 * Uploads, with gpu_verify_up: threads sum the blocks in memory beside the GPU's copies. They stay behind the copies,
 * since the GPU reads more slowly what a CPU has just read, and go block by block unless a lease waits for layers; then
 * the first layer is summed at once. A progress page has a second word for each GPU, which shows how far the checksums
 * are. Only the first of the batches being summed, in the order of their beginning, moves words: so a word covers all
 * uploads before its fence, as the copies' word does. Blocks that came to memory for the upload, from a disk or another
 * GPU, were checked then, and are not summed again. */
#include "daemon/vram/checksum.h"

#include "daemon/block/block.h"
#include "daemon/block/check.h"
#include "daemon/block/key.h"
#include "daemon/block/layout_bytes.h"
#include "daemon/block/lock.h"
#include "daemon/block/observer.h"
#include "daemon/block/slot_at.h"
#include "daemon/threads/checksum_pool.h"
#include "daemon/vram/commit_sums.h"
#include "daemon/vram/copy_queue.h"
#include "daemon/vram/transfer_table.h"
#include "daemon/vram/piece_sums.h"
#include "daemon/vram/progress.h"
#include "daemon/vram/queue.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "store/device.h"
#include "store/slot.h"
#include "store/status.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	PIECE_BYTES = 64 << 10, RUN_BYTES = 128 << 10, /* of one layer of several blocks; of blocks as they lie */
	SHORT_BYTES = 4 << 20,         /* a list of less has too few of the large pieces for the threads: it is in small ones in any case */
	HEADERS = 16,
	LINE = 64,
	TRANSFER_HINT_DISTANCE = 6, BLOCK_HINT_DISTANCE = 3, /* of the one that is looked at */
	STALL_US = 20 * 1000,          /* a layer takes a tenth of that to be copied, or the list has not begun */
};

uint32_t vram_sums_of(const void *slot, uint32_t layers)
{
	return slot_crc32c(0, (const uint8_t *)slot + offsetof(struct slot_header, layer_crc), layers * sizeof(uint32_t));
}

/* ---- down ---- */

static bool may_be_sound(const struct vram_transfer *m, bool whole)
{
	return whole || (!m->early && m->slot->summed);
}

/* Whose layers' sums stand in its header, if it may be sound. Its slot's description stands still while it is pinned. `whole`: all of it has come;
 * else it has if its sum says so. */
static void seal(struct vram_transfer *m, bool whole)
{
	const struct vram_slot *s = m->slot;
	const struct block *b = m->block;
	const struct layout_pool *p = b->pool;
	uint8_t layout[LAYOUT_BYTES_MAX];
	struct slot_ident ident;
	struct slot_info info = { .parent_bytes = s->parent_bytes, .role = s->role, .turn = s->turn, .tokens = b->tokens,
				  .position = s->position };

	m->bad = !may_be_sound(m, whole);
	if (m->bad)
		return;
	memcpy(info.parent, s->parent, sizeof(info.parent));
	block_slot_ident(p, block_key(b), block_key_bytes(b), &ident);
	ident.layout = layout;
	ident.layout_bytes = layout_pack(&p->layout, layout);
	m->header_crc = slot_seal_header(m->host.at, &ident, &info, b->generation, s->stored_unix_ms);
	m->sums = vram_sums_of(m->host.at, ident.layers);
	m->bad = !m->early && s->summed && s->sums != m->sums;
}

/* Of all of its blocks. */
static const struct kv_geometry *geometry_of(const struct copy_batch *f)
{
	return &f->each[0]->pool->geometry;
}

/* Of each block. */
static uint32_t seal_pieces(const struct copy_batch *f)
{
	return (geometry_of(f)->pieces + f->piece - 1) / f->piece;
}

/* How many in all. */
static uint32_t seal_prepare(struct copy_batch *f)
{
	const uint64_t bytes = geometry_of(f)->piece_bytes;

	f->piece = bytes < RUN_BYTES ? (uint32_t)(RUN_BYTES / bytes) : 1;
	for (uint32_t k = 0; k < f->copy.count; k++)
		atomic_init(&f->left[k], seal_pieces(f));
	return f->copy.count * seal_pieces(f);
}

/* Checks some pieces of one block. The thread that does the last piece also does the header. */
static void seal_piece(void *arg, uint32_t i)
{
	struct copy_batch *f = arg;
	const struct kv_geometry *g = geometry_of(f);
	const struct slot_ident sizes = { .block_bytes = g->block_bytes, .layer_bytes = g->piece_bytes };
	const uint32_t pieces = seal_pieces(f), k = i / pieces, first = i % pieces * f->piece, rest = g->pieces - first;
	struct vram_transfer *m = f->each[k];

	if (may_be_sound(m, !f->status))
		slot_seal_layers(m->host.at, &sizes, first, rest < f->piece ? rest : f->piece);
	if (atomic_fetch_sub_explicit(&f->left[k], 1, memory_order_acq_rel) == 1)
		seal(m, !f->status);
}

bool vram_copy_batch_is_unsealed(const struct copy_batch *f)
{
	return f->copy.way == DEVICE_DOWN && !f->sealed && (!f->status || f->status == STATUS_UNAVAILABLE);
}

bool vram_copy_batch_seal(struct copy_batch *f, void (*ended)(void *copy_batch))
{
	if (!vram_copy_batch_is_unsealed(f))
		return false;
	f->sealed = true; /* set before any thread can read it */
	if (sums_begin(f->gpu->cache->sums, seal_prepare(f), seal_piece, ended, f))
		return true; /* it may be over, and gone */
	f->sealed = false;
	return false;
}

void vram_copy_batch_seal_here(struct cache *c, struct copy_batch *f)
{
	sums_each(c->sums, seal_prepare(f), seal_piece, f);
}

void vram_sums_keep(struct block *b, uint32_t sums)
{
	for (struct vram_slot *s = b->vram; s; s = s->next) {
		s->sums = s->summed ? s->sums : sums;
		s->summed = true;
	}
}

/* ---- put there ---- */

static void sum_none(struct cache *c, struct gpu *g, const char *why)
{
	cache_count(c, COUNTER_GPU_PUT_UNSUMMED, 1);
	g->unsummed++;
	if (why)
		snprintf(g->unsummed_why, sizeof(g->unsummed_why), "%s", why);
}

void vram_sum_begin(struct cache *c, struct vram_slot *s)
{
	struct block *b = s->block;

	if (!c->vram->ops->sums) {
		sum_none(c, s->pool->gpu, NULL); /* as was said when it was opened */
		return;
	}
	vram_sum_stage(s);
	block_pin(b);
	c->moving_bytes += b->pool->geometry.need_bytes;
	c->vram->transfer_count++;
	c->vram->staged = true;
}

/* Of a list that ended well: the CRC over the sums of block i, as vram_sums_of() makes it of a header. */
static uint32_t piece_sums_of(const struct piece_sums *p, uint32_t i)
{
	const uint32_t *whole = p->sums + (size_t)i * p->whole, *end = p->sums + (size_t)p->list.count * p->whole + i;
	const uint32_t sum = slot_crc32c(0, whole, p->whole * sizeof(*whole));

	return p->short_bytes ? slot_crc32c(sum, end, sizeof(*end)) : sum;
}

/* `sum`: over those of its pieces. NULL: it is not to be had, and why. A lost GPU's slot may be no block's any more. */
static void sum_end(struct cache *c, struct vram_slot *s, struct block *b, const uint32_t *sum, const char *why)
{
	if (sum)
		cache_count(c, COUNTER_GPU_PUT_SUMMED, 1);
	else
		sum_none(c, s->pool->gpu, why);
	s->pool->class->sums_due--;
	if (s->block)
		s->sum_due = false;
	if (s->block && sum)
		vram_sums_keep(s->block, *sum);
	c->moving_bytes -= b->pool->geometry.need_bytes;
	c->vram->transfer_count--;
	block_unpin(b);
	c->vram->room_due = true;
}

void vram_sum_end(struct cache *c, struct sum_list *l, uint32_t i)
{
	const uint32_t sum = l->status ? 0 : piece_sums_of(&l->sums, i);

	sum_end(c, l->slot[i], l->block[i], l->status ? NULL : &sum, *l->why ? l->why : status_text(l->status));
}

void vram_sums_fail(struct cache *c, struct gpu *g)
{
	for (struct vram_slot *s = vram_sums_unsent(g), *next; s; s = next) {
		next = s->sum_next;
		sum_end(c, s, s->block, NULL, g->lost ? "the GPU is lost" : "the daemon stops");
	}
}

/* ---- across ---- */

/* What has come to another GPU, in lists of as many sums as one may have, one after the other. */
struct arrival {
	struct piece_sums sums;        /* first */
	struct copy_batch *copy_batch;
	uint32_t from, count, most;    /* moves of this list: the first one, how many, at most */
	uint64_t at[];                 /* [most]; behind it the sums */
};

static struct arrival *arrival_make(struct copy_batch *f)
{
	const uint32_t each = piece_sums_each(geometry_of(f)), fit = DEVICE_SUMS_MAX / each;
	const uint32_t most = f->copy.count < fit ? f->copy.count : fit;
	struct arrival *a = malloc(sizeof(*a) + most * (sizeof(a->at[0]) + each * sizeof(uint32_t)));

	if (!a)
		return NULL;
	*a = (struct arrival){ .copy_batch = f, .most = most };
	return a;
}

static void arrival_done(struct piece_sums *sums, enum status s);

/* False: there are no more, or they cannot be summed. */
static bool arrival_begin(struct arrival *a)
{
	struct copy_batch *f = a->copy_batch;
	const uint32_t rest = f->copy.count - a->from, count = rest < a->most ? rest : a->most;
	const char *why;

	for (uint32_t i = 0; i < count; i++)
		a->at[i] = f->pairs[a->from + i].to;
	a->count = count;
	a->sums = (struct piece_sums){ .ops = f->gpu->cache->vram->ops, .device = f->gpu->device,
				       .done = arrival_done };
	piece_sums_prepare(&a->sums, geometry_of(f), a->at, count, (uint32_t *)&a->at[a->most]);
	return count && !piece_sums_begin(&a->sums, &why);
}

/* What sums a slot keeps is looked at with the lock, at the list's end. */
static void arrival_done(struct piece_sums *sums, enum status s)
{
	struct arrival *a = (struct arrival *)sums;
	struct copy_batch *f = a->copy_batch;

	for (uint32_t i = 0; !s && i < a->count; i++) {
		struct vram_transfer *m = f->each[a->from + i];

		m->sums = piece_sums_of(&a->sums, i);
		m->arrived = true;
	}
	a->from += a->count;
	if (!s && arrival_begin(a))
		return;
	free(a);
	vram_copy_batch_part_ended(f);
}

bool vram_copy_batch_sum_across(struct copy_batch *f)
{
	const struct cache *c = f->gpu->cache;
	struct arrival *a = NULL;

	if (f->copy.way == DEVICE_ACROSS && !f->status && c->options.gpu_verify_up && c->vram->ops->sums)
		a = arrival_make(f);
	if (!a)
		return false;
	if (arrival_begin(a))
		return true; /* it may be over, and gone */
	free(a);
	return false;
}

/* What the block's header in host memory says, a sound one, is known from now on without it. */
static void remember(struct vram_slot *s, const struct slot_header *h)
{
	s->position = h->position;
	s->stored_unix_ms = h->stored_unix_ms;
	s->turn = h->turn;
	s->role = h->role;
	s->parent_bytes = h->parent_bytes;
	memcpy(s->parent, h->parent, sizeof(s->parent));
	s->sums = vram_sums_of(h, h->layers);
	s->summed = true;
}

/* ---- up ---- */

/* What a thread has found that is not the block. */
struct found {
	struct vram_transfer *transfer[HEADERS];
	uint32_t count;
};

/* An up has found that what memory has is not the block, which is removed. What another GPU's up has found before, or what is deleted, has been dealt
 * with. */
static void up_wrong(struct cache *c, struct vram_transfer *m)
{
	if (!block_live(m->block))
		return;
	cache_count(c, COUNTER_GPU_UP_CORRUPT, 1);
	m->gpu->corrupt_up++;
	memory_damaged(c, m->block, COUNTER_MEMORY_WRONG_GPU);
}

/* Tells leases that have such a copy, before they are told that it is there. A copy that only calls wait for is in no
 * lease yet. From then on memory's copy is not used any more either. */
static void found_tell(struct found *f)
{
	struct gpu *g = f->count ? f->transfer[0]->gpu : NULL;
	struct cache *c = g ? g->cache : NULL;
	bool held = false;

	if (!f->count)
		return;
	cache_thread_enter(); /* it may be the device's */
	cache_lock(c);
	for (uint32_t i = 0; i < f->count; i++) {
		struct vram_transfer *m = f->transfer[i];

		held |= !m->bad && m->slot->pins;
		m->bad = m->slot->failed = true;
	}
	if (held)
		observe_copies_failed(c, g);
	for (uint32_t i = 0; i < f->count; i++)
		up_wrong(c, f->transfer[i]);
	cache_unlock(c);
	cache_thread_leave();
	f->count = 0;
}

static void found_add(struct found *f, struct vram_transfer *m)
{
	f->transfer[f->count++] = m;
	if (f->count == HEADERS)
		found_tell(f);
}

/* What a look at a header touches lies on one cache line behind another: the transfer, then its block and the GPU's
 * slot, then the header, all of which is read. Each is asked for while those before it are looked at. (GCC leaves out
 * calls of what does nothing else.) */
static inline __attribute__((always_inline)) void fetch_header(struct copy_batch *f, uint32_t k)
{
	const uint32_t count = f->copy.count;
	const struct vram_transfer *m;

	if (k + TRANSFER_HINT_DISTANCE < count)
		__builtin_prefetch(f->each[k + TRANSFER_HINT_DISTANCE]);
	if (k + BLOCK_HINT_DISTANCE < count) {
		m = f->each[k + BLOCK_HINT_DISTANCE];
		block_hint(m->block);
		__builtin_prefetch(&m->block->generation);
		__builtin_prefetch(&m->slot->position, 1);
		__builtin_prefetch(&m->slot->state, 1);
	}
	if (k + 1 < count) {
		const uint8_t *slot = block_slot_at(f->each[k + 1]->block);

		for (uint32_t at = 0; at < SLOT_HEADER_BYTES; at += LINE)
			__builtin_prefetch(slot + at);
	}
}

static const uint8_t *layer_at(const struct vram_transfer *m, uint32_t layer)
{
	return block_slot_at(m->block) + SLOT_HEADER_BYTES + layer * m->block->pool->geometry.layer_bytes;
}

static struct slot_ident ident_of(const struct vram_transfer *m)
{
	const struct block *b = m->block;
	struct slot_ident ident;

	block_slot_ident(b->pool, block_key(b), block_key_bytes(b), &ident);
	return ident;
}

static void header_look(struct vram_transfer *m, struct found *f)
{
	struct slot_header h;

	if (memory_header(m->block, &h))
		remember(m->slot, &h);
	else
		found_add(f, m);
}

/* Of what may be another block, with sums that are right. */
static bool is_named(const struct vram_transfer *m)
{
	const struct slot_ident ident = ident_of(m);

	return slot_header_names((const struct slot_header *)block_slot_at(m->block), &ident, m->block->generation);
}

static bool is_sum(const struct vram_transfer *m, uint32_t piece, uint32_t sum)
{
	const uint8_t *sums = block_slot_at(m->block) + offsetof(struct slot_header, layer_crc);
	uint32_t known;

	memcpy(&known, sums + piece * sizeof(known), sizeof(known));
	return known == sum;
}

/* Of a block whose pieces are not its layers, which has one layer. */
static bool pieces_sound(const struct vram_transfer *m, const uint8_t *next)
{
	const struct kv_geometry *g = &m->block->pool->geometry;
	const uint8_t *at = layer_at(m, 0);

	for (uint32_t i = 0; i < g->pieces; i++) {
		const uint64_t bytes = slot_layer_bytes(g->block_bytes, g->piece_bytes, i);

		if (!is_sum(m, i, slot_crc32c_next(0, at, bytes, i + 1 < g->pieces ? at + bytes : next)))
			return false;
		at += bytes;
	}
	return true;
}

static bool layer_sound(const struct vram_transfer *m, uint32_t layer, const uint8_t *next)
{
	const struct kv_geometry *g = &m->block->pool->geometry;

	if (g->pieces != g->steps)
		return pieces_sound(m, next);
	return is_sum(m, layer, slot_crc32c_next(0, layer_at(m, layer), g->layer_bytes, next));
}

/* `next`: the layer that is looked at after it, or NULL. */
static void layer_look(struct vram_transfer *m, uint32_t layer, const uint8_t *next, struct found *f)
{
	if (!layer_sound(m, layer, next) || (!layer && !is_named(m)))
		found_add(f, m);
}

/* With the lock of those being summed. The lists that are done with, which leave it. */
static struct copy_batch *words_take(struct gpu *g)
{
	struct copy_batch *over = NULL, **end = &over, *f;

	while ((f = g->summing)) {
		if (f->fence)
			progress_page_summed(f->fence->progress_page, g, f->copy.progress_base + f->layers_summed);
		if (f->summing)
			break;
		g->summing = f->summing_next;
		f->summing_next = NULL;
		*end = f;
		end = &f->summing_next;
	}
	if (!g->summing)
		g->summing_end = &g->summing;
	return over;
}

static void copy_batches_end(struct copy_batch *f)
{
	for (struct copy_batch *next; f; f = next) {
		next = f->summing_next;
		vram_copy_batch_part_ended(f);
	}
}

static void summed(struct copy_batch *f)
{
	struct gpu *g = f->gpu;
	struct copy_batch *over;

	pthread_mutex_lock(&g->summing_lock);
	f->layers_summed = f->copy.parts;
	f->summing = false;
	over = words_take(g);
	pthread_mutex_unlock(&g->summing_lock);
	copy_batches_end(over);
}

/* All has been looked at. */
static void looked(void *copy_batch)
{
	struct copy_batch *f = copy_batch;

	if (f->summing)
		summed(f);
	else
		vram_copy_batch_part_ended(f);
}

static void layer_summed(struct copy_batch *f)
{
	struct gpu *g = f->gpu;

	pthread_mutex_lock(&g->summing_lock);
	while (f->layers_summed < f->copy.parts && !atomic_load_explicit(&f->left[f->layers_summed], memory_order_acquire))
		f->layers_summed++;
	if (g->summing == f && f->fence)
		progress_page_summed(f->fence->progress_page, g, f->copy.progress_base + f->layers_summed);
	pthread_mutex_unlock(&g->summing_lock);
}

static uint32_t header_pieces(const struct copy_batch *f)
{
	return f->transfers ? (f->copy.count + HEADERS - 1) / HEADERS : 0;
}

/* The pieces of one layer, if a call waits for the batch layer by layer; otherwise of all layers. */
static uint32_t layer_pieces(const struct copy_batch *f)
{
	const uint32_t layers = f->fence ? f->summed_blocks : f->summed_blocks * f->copy.parts;

	return (layers + f->piece - 1) / f->piece;
}

/* In a batch of several layers, headers are checked after the first layer's sums, for which a call may wait; these read
 * only the names in the headers. The headers are a page each, a fifth of a layer's bytes, and count for the next
 * layer. */
static uint32_t header_layer(const struct copy_batch *f)
{
	return f->copy.parts > 1;
}

static void look_headers(struct copy_batch *f, uint32_t from)
{
	struct found found = { .count = 0 };

	for (uint32_t k = from; k < from + HEADERS && k < f->copy.count; k++) {
		fetch_header(f, k);
		header_look(f->each[k], &found);
	}
	found_tell(&found);
}

static void look_layer(struct copy_batch *f, uint32_t layer, uint32_t from)
{
	const uint32_t to = f->summed_blocks - from < f->piece ? f->summed_blocks : from + f->piece;
	struct found found = { .count = 0 };

	for (uint32_t k = from; k < to; k++)
		layer_look(f->each[k], layer, k + 1 < to ? layer_at(f->each[k + 1], layer) : NULL, &found);
	found_tell(&found);
}

/* Layers as they lie, from the one of this number on, all of a block before the next one's: memory is read faster so (terrace-bench sums). */
static void look_run(struct copy_batch *f, uint32_t from)
{
	const uint32_t layers = f->copy.parts, all = f->summed_blocks * layers, to = all - from < f->piece ? all : from + f->piece;
	struct found found = { .count = 0 };

	for (uint32_t i = from; i < to; i++)
		layer_look(f->each[i / layers], i % layers, i + 1 < to ? layer_at(f->each[(i + 1) / layers], (i + 1) % layers) : NULL, &found);
	found_tell(&found);
}

/* The layer that piece i of the work of a list with a fence counts for: the first layer of all blocks, from the last
 * block on, since the GPU, which reads what a processor has just read more slowly, comes from the other end; then the
 * headers; then the second layer of all before the third of any. */
static uint32_t piece_layer(const struct copy_batch *f, uint32_t i)
{
	const uint32_t headers = header_pieces(f), pieces = layer_pieces(f);

	if (i < pieces)
		return 0;
	return i < pieces + headers ? header_layer(f) : (i - headers) / pieces;
}

/* Checks a piece of a batch for which no call waits layer by layer. */
static void look_unwatched(struct copy_batch *f, uint32_t i)
{
	const uint32_t headers = header_pieces(f);

	if (i < headers)
		look_headers(f, i * HEADERS);
	else
		look_run(f, (i - headers) * f->piece);
}

static void look_watched(struct copy_batch *f, uint32_t i)
{
	const uint32_t headers = header_pieces(f), pieces = layer_pieces(f), layer = piece_layer(f, i);

	if (i < pieces)
		look_layer(f, 0, (pieces - 1 - i) * f->piece);
	else if (i < pieces + headers)
		look_headers(f, (i - pieces) * HEADERS);
	else
		look_layer(f, layer, (i - headers) % pieces * f->piece);
	if (f->summing && atomic_fetch_sub_explicit(&f->left[layer], 1, memory_order_acq_rel) == 1)
		layer_summed(f);
}

static void look_piece(void *arg, uint32_t i)
{
	struct copy_batch *f = arg;

	if (f->fence)
		look_watched(f, i);
	else
		look_unwatched(f, i);
}

/* Its layer has been copied; or it is the first, or a header, or none is waited for any more. */
static bool look_due(void *arg, uint32_t i)
{
	struct copy_batch *f = arg;
	const uint32_t layer = piece_layer(f, i);
	uint64_t now, since = 0;

	if (i < layer_pieces(f) + header_pieces(f) || atomic_load_explicit(&f->all_due, memory_order_relaxed))
		return true;
	if (progress_page_copied(f->fence->progress_page, f->gpu, f->copy.progress_base + layer + 1)) {
		if (atomic_load_explicit(&f->stalled_us, memory_order_relaxed))
			atomic_store_explicit(&f->stalled_us, 0, memory_order_relaxed);
		return true;
	}
	now = vram_clock_us();
	if (!atomic_compare_exchange_strong(&f->stalled_us, &since, now) && now > since + STALL_US)
		atomic_store_explicit(&f->all_due, true, memory_order_relaxed);
	return false;
}

/* Those that are to be summed come first. */
static void look_prepare(struct copy_batch *f)
{
	const uint64_t bytes = f->copy.part_bytes, piece = f->fence ||
	    bytes * f->copy.parts * f->copy.count < SHORT_BYTES ? PIECE_BYTES : RUN_BYTES;
	uint32_t first = 0, rest;

	for (const struct vram_transfer *m = f->transfers; m; m = m->next)
		f->summed_blocks += f->summing && !m->checked;
	rest = f->summed_blocks;
	f->mixed = f->summed_blocks && f->summed_blocks < f->copy.count;
	for (struct vram_transfer *m = f->mixed ? f->transfers : NULL; m; m = m->next)
		f->each[m->checked ? rest++ : first++] = m;
	f->piece = bytes < piece ? (uint32_t)(piece / bytes) : 1;
	for (uint32_t i = 0; f->summing && f->fence && i < f->copy.parts; i++)
		atomic_init(&f->left[i], layer_pieces(f) + (i == header_layer(f) ? header_pieces(f) : 0));
}

void vram_copy_batch_enter(struct copy_batch *f)
{
	struct gpu *g = f->gpu;

	atomic_store_explicit(&f->parts, 2, memory_order_relaxed);
	if (!g->cache->options.gpu_verify_up)
		return;
	f->summing = true;
	pthread_mutex_lock(&g->summing_lock);
	f->summing_next = NULL;
	*g->summing_end = f;
	g->summing_end = &f->summing_next;
	pthread_mutex_unlock(&g->summing_lock);
}

static uint32_t pieces_of(const struct copy_batch *f)
{
	return header_pieces(f) + layer_pieces(f) * (f->fence ? f->copy.parts : 1);
}

bool vram_copy_batch_look(struct copy_batch *f)
{
	struct cache *c = f->gpu->cache;

	look_prepare(f);
	if (f->summed_blocks)
		cache_count(c, COUNTER_GPU_UP_SUMMED, f->summed_blocks * f->copy.parts * f->copy.part_bytes);
	return pieces_of(f) && sums_begin_due(c->sums, pieces_of(f), look_piece, f->summing &&
						f->fence ? look_due : NULL, looked, f,
						f->elsewhere); /* it may be gone */
}

void vram_copy_batch_look_here(struct copy_batch *f)
{
	const uint32_t pieces = pieces_of(f);

	for (uint32_t i = 0; i < pieces; i++)
		look_piece(f, i);
	looked(f);
}

void vram_copy_batch_copied(struct copy_batch *f)
{
	atomic_store_explicit(&f->all_due, true, memory_order_relaxed);
	if (f->behind && f->status)
		looked(f); /* the copies have failed, so the bytes are not used */
	else if (f->behind && !vram_copy_batch_look(f))
		vram_copy_batch_look_here(f);
}

void vram_copy_batch_part_ended(struct copy_batch *f)
{
	if (atomic_fetch_sub_explicit(&f->parts, 1, memory_order_acq_rel) == 1)
		vram_copy_batch_ended(f);
}
