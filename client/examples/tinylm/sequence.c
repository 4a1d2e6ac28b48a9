/* Blocks of a sequence: borrowed, reserved or private; see sequence.h. */
#include "sequence.h"

#include "clock.h"

#include <stdlib.h>
#include <string.h>

bool sequence_open(struct sequence *s, struct forward *forward, const struct terrace_layout *layout,
		   struct prefix_cache *cache, struct fault *fault)
{
	const uint32_t capacity = forward->positions;
	uint32_t blocks;

	memset(s, 0, sizeof(*s));
	s->forward = forward;
	s->cache = cache;
	if (!kvcache_init(&s->kv, &forward->model->config, layout, capacity, fault))
		return false;
	if (layout && forward->cuda && !kvcache_use_device(&s->kv, forward->rows_max, fault)) {
		sequence_close(s);
		return false;
	}
	if (s->kv.device && cache)
		prefix_cache_use_gpu(cache);
	s->block_tokens = kvcache_grain(&s->kv);
	blocks = (capacity + s->block_tokens - 1) / s->block_tokens;
	s->tokens = malloc(capacity * sizeof(*s->tokens));
	s->blocks = calloc(blocks, sizeof(*s->blocks));
	s->keys = calloc(blocks, sizeof(*s->keys));
	s->leases = calloc((size_t)blocks + 2, sizeof(struct terrace_lease *)); /* prefix, prompt, one a tail block */
	if (!s->tokens || !s->blocks || !s->keys || !s->leases) {
		sequence_close(s);
		return fault_set(fault, "out of memory");
	}
	return true;
}

void sequence_close(struct sequence *s)
{
	kvcache_fini(&s->kv); /* first: copies of leased blocks to the GPU may be under way */
	terrace_abort(s->filling);
	terrace_abort(s->open);
	for (uint32_t i = 0; i < s->lease_count; i++)
		terrace_release(s->leases[i]);
	for (uint32_t i = 0; i < s->block_count; i++)
		free(s->blocks[i].memory);
	free(s->tokens);
	free(s->blocks);
	free(s->keys);
	free(s->leases);
	memset(s, 0, sizeof(*s));
}

/* ---- where a block's bytes are ----------------------------------------------------------------------------------- */

static bool cache_usable(const struct sequence *s)
{
	return s->cache && !s->cache->gone;
}

/* Whether the daemon lends the GPU's memory. Blocks that are leased or reserved there have an address on the GPU, and
 * none on the CPU. */
static bool lends_gpu(const struct sequence *s)
{
	return s->kv.device && s->cache && s->cache->gpu >= 0;
}

static void place(struct sequence *s, uint32_t i, enum sequence_owner owner, const void *block, void *slot, uint64_t address)
{
	s->blocks[i].owner = owner;
	s->kv.slots[i] = slot;
	s->kv.blocks[i] = block;
	if (s->kv.device)
		kvdevice_place(s->kv.device, i, address);
}

/* Gives block i the slot of key `key` of the reservation, to be written. False: that key has no slot. */
static bool place_reserved(struct sequence *s, uint32_t i, enum sequence_owner owner, struct terrace_reservation *r, uint32_t key,
			   const uint64_t *addresses)
{
	void *slot = terrace_reservation_block(r, key, 0);
	uint64_t address = addresses ? addresses[key] : 0;

	if (!slot && !address)
		return false;
	place(s, i, owner, slot, slot, address);
	return true;
}

/* Gives block i the block of key `key` of the lease, whole. False: the lease has no such block. */
static bool place_leased(struct sequence *s, uint32_t i, const struct terrace_lease *lease, uint32_t key,
			 const uint64_t *addresses)
{
	const void *block = terrace_lease_block(lease, key, 0);
	uint64_t address = addresses ? addresses[key] : 0;

	if ((!block && !address) || terrace_lease_tokens(lease, key) != s->block_tokens)
		return false;
	place(s, i, SEQUENCE_LEASED, block, NULL, address);
	return true;
}

/* The addresses of a lease or reservation of `count` keys: the caller's to free(). NULL: they are not the GPU's (or
 * there is no memory, and then they have no block either). */
static uint64_t *lease_addresses(const struct sequence *s, const struct terrace_lease *lease)
{
	uint64_t *addresses = lends_gpu(s) ? calloc(terrace_lease_count(lease) + 1, sizeof(*addresses)) : NULL;

	if (addresses)
		terrace_lease_addresses(lease, 0, addresses);
	return addresses;
}

static uint64_t *reservation_addresses(const struct sequence *s, const struct terrace_reservation *r)
{
	uint64_t *addresses = lends_gpu(s) ? calloc(terrace_reservation_count(r) + 1, sizeof(*addresses)) : NULL;

	if (addresses)
		terrace_reservation_addresses(r, 0, addresses);
	return addresses;
}

static bool place_private(struct sequence *s, uint32_t i, struct fault *fault)
{
	size_t bytes = ((size_t)terrace_block_bytes(&s->kv.layout) + 63) / 64 * 64;

	if (s->kv.device) {
		place(s, i, SEQUENCE_PRIVATE, NULL, NULL, 0); /* its memory is there already */
		return true;
	}
	if (!s->blocks[i].memory)
		s->blocks[i].memory = aligned_alloc(64, bytes);
	if (!s->blocks[i].memory)
		return fault_set(fault, "out of memory");
	place(s, i, SEQUENCE_PRIVATE, s->blocks[i].memory, s->blocks[i].memory, 0);
	return true;
}

/* copy_in makes the GPU's copy of a leased block, copy_out a slot's copy of the GPU's block. On the CPU, and where the
 * daemon lends the GPU's memory, there is one copy only. */
static bool copy_in(struct sequence *s, uint32_t i, struct fault *fault)
{
	return !s->kv.device || lends_gpu(s) || kvdevice_put(s->kv.device, i, s->kv.blocks[i], fault);
}

static bool copy_out(struct sequence *s, uint32_t i, struct fault *fault)
{
	return !s->kv.device || lends_gpu(s) || kvdevice_get(s->kv.device, i, s->kv.slots[i], fault);
}

static void keep_lease(struct sequence *s, struct terrace_lease *lease)
{
	if (lease)
		s->leases[s->lease_count++] = lease;
}

static struct terrace_keys keys_from(struct sequence *s, uint32_t first, uint32_t count)
{
	return (struct terrace_keys){ s->keys[first], count, PREFIX_KEY_BYTES };
}

static struct terrace_block_info info_of(const struct sequence *s, uint32_t i)
{
	struct terrace_block_info info = TERRACE_BLOCK_INFO_INIT;

	info.parent = i ? s->keys[i - 1] : NULL;
	info.parent_bytes = i ? PREFIX_KEY_BYTES : 0;
	info.position = (uint64_t)i * s->block_tokens;
	info.tokens = s->block_tokens;
	return info;
}

/* ---- computing --------------------------------------------------------------------------------------------------- */

/* Runs the tokens that are in s->tokens but not yet in the KV, a chunk at a time. logits may be NULL. */
static bool run_pending(struct sequence *s, float *logits, struct fault *fault)
{
	uint32_t n = 0;

	while (s->kv.count < s->count) {
		uint32_t left = s->count - s->kv.count;

		n = left < s->forward->rows_max ? left : s->forward->rows_max;
		if (!forward_run(s->forward, &s->kv, s->tokens + s->kv.count, n, fault))
			return false;
	}
	if (logits)
		forward_logits(s->forward, n - 1, 1, logits);
	return true;
}

/* Computes the blocks from `first` on again, into private memory, as they are no longer there. logits as of
 * run_pending. */
static bool recompute(struct sequence *s, uint32_t first, float *logits, struct fault *fault)
{
	for (uint32_t i = first; i < s->block_count; i++) {
		s->stats.lost_blocks += s->blocks[i].owner != SEQUENCE_PRIVATE;
		if (s->blocks[i].owner == SEQUENCE_OPEN) {
			terrace_abort(s->open);
			s->open = NULL;
		}
		if (!place_private(s, i, fault))
			return false;
	}
	s->kv.count = first * s->block_tokens;
	return run_pending(s, logits, fault);
}

/* ---- a prompt's blocks ------------------------------------------------------------------------------------------- */

/* Leases the longest stored prefix that leaves one token at least: one must run to give logits. */
static bool borrow_prefix(struct sequence *s, struct fault *fault)
{
	uint32_t wanted = (s->count - 1) / s->block_tokens, got = 0;
	struct terrace_keys keys = keys_from(s, 0, wanted);
	struct terrace_lease *lease = NULL;
	uint64_t *addresses;
	bool ok = true;

	if (wanted == 0 ||
	    !prefix_cache_ok(s->cache, "lease", prefix_cache_lease(s->cache, &keys, TERRACE_LEASE_PREFIX, &lease)))
		return true;
	keep_lease(s, lease);
	addresses = lease_addresses(s, lease);
	while (ok && got < wanted && got < terrace_lease_count(lease) && place_leased(s, got, lease, got, addresses)) {
		ok = copy_in(s, got, fault);
		got++;
	}
	free(addresses);
	if (lends_gpu(s) && got)
		s->kv.device->coming = lease;
	s->block_count = got;
	s->kv.count = got * s->block_tokens;
	s->stats.reused_tokens = s->kv.count;
	return ok;
}

/* Called after the run that followed a leased prefix: checks that the prefix's bytes were really there. If not,
 * computes again what came of them. */
static bool prefix_arrived(struct sequence *s, float *logits, struct fault *fault)
{
	struct terrace_lease *coming = s->kv.device ? s->kv.device->coming : NULL;

	if (!coming)
		return true;
	s->kv.device->coming = NULL;
	if (prefix_cache_ok(s->cache, "lease", terrace_lease_check(coming)))
		return true;
	s->stats.reused_tokens = 0;
	terrace_abort(s->filling);
	s->filling = NULL;
	return recompute(s, 0, logits, fault);
}

/* Asks for slots for the full blocks behind the prefix. Those that get none stay without memory. */
static void reserve_rest(struct sequence *s, uint32_t full)
{
	uint32_t first = s->block_count, count = full - first;
	struct terrace_keys keys = keys_from(s, first, count);
	struct terrace_block_info *infos = calloc(count ? count : 1, sizeof(*infos));
	struct terrace_reserve_options options = TERRACE_RESERVE_OPTIONS_INIT;
	enum terrace_status status = TERRACE_EXHAUSTED;
	uint64_t *addresses;

	options.gpu = s->cache->gpu;
	for (uint32_t i = 0; infos && i < count; i++)
		infos[i] = info_of(s, first + i);
	if (infos && count > 0)
		status = terrace_reserve_with(s->cache->session, &keys, infos, &options, 0, NULL, &s->filling);
	free(infos);
	if (count == 0 || !prefix_cache_ok(s->cache, "reserve", status))
		return;
	s->filling_first = first;
	addresses = reservation_addresses(s, s->filling);
	for (uint32_t i = 0; i < count && i < terrace_reservation_count(s->filling); i++)
		place_reserved(s, first + i, SEQUENCE_RESERVED, s->filling, i, addresses);
	free(addresses);
}

/* Fills the reserved slots from the GPU. */
static bool fill_slots(struct sequence *s, struct fault *fault)
{
	uint32_t end = s->filling_first + terrace_reservation_count(s->filling);

	for (uint32_t i = s->filling_first; i < end; i++) {
		if (s->blocks[i].owner == SEQUENCE_RESERVED && !copy_out(s, i, fault))
			return false;
	}
	return true;
}

/* Publishes the prompt's reserved blocks and goes on attending from the leased, published ones. A block whose lease is
 * not had may be evicted at any moment: it is computed again. */
static bool publish_prompt(struct sequence *s, struct fault *fault)
{
	uint32_t count = terrace_reservation_count(s->filling), first_lost = UINT32_MAX;
	struct terrace_reservation *filling = s->filling;
	enum terrace_status *statuses;
	struct terrace_lease *lease = NULL;
	uint64_t *addresses;
	bool ok = true;

	if (!fill_slots(s, fault))
		return false;
	statuses = calloc(count ? count : 1, sizeof(*statuses));
	if (!statuses)
		return fault_set(fault, "out of memory");
	s->filling = NULL;
	if (!prefix_cache_ok(s->cache, "commit", terrace_commit(filling, 0, statuses, &lease)))
		lease = NULL;
	keep_lease(s, lease);
	addresses = lease ? lease_addresses(s, lease) : NULL;
	for (uint32_t i = 0; ok && i < count; i++) {
		uint32_t at = s->filling_first + i;

		if (s->blocks[at].owner != SEQUENCE_RESERVED)
			continue;
		if (lease && place_leased(s, at, lease, i, addresses)) {
			s->stats.stored_blocks += statuses[i] == TERRACE_OK;
			ok = statuses[i] == TERRACE_OK || copy_in(s, at, fault); /* else another's bytes */
		} else if (first_lost == UINT32_MAX) {
			first_lost = at;
		}
	}
	free(statuses);
	free(addresses);
	return ok && (first_lost == UINT32_MAX || recompute(s, first_lost, NULL, fault));
}

/* ---- the tail ---------------------------------------------------------------------------------------------------- */

/* Gives block i, the next one, memory: an open block of the daemon's, or private. */
static bool begin_tail(struct sequence *s, uint32_t i, struct fault *fault)
{
	struct terrace_reserve_options options = TERRACE_RESERVE_OPTIONS_INIT;
	struct terrace_block_info info = info_of(s, i);

	if (s->block_count <= i)
		s->block_count = i + 1;
	if (s->cache)
		options.gpu = s->cache->gpu;
	if (cache_usable(s) &&
	    prefix_cache_ok(s->cache, "reserve_open",
			    terrace_reserve_open_with(s->cache->session, &info, &options, 0, &s->open))) {
		uint64_t *address = reservation_addresses(s, s->open);
		bool placed = place_reserved(s, i, SEQUENCE_OPEN, s->open, 0, address);

		free(address);
		if (placed)
			return true;
		terrace_abort(s->open);
		s->open = NULL;
	}
	return place_private(s, i, fault);
}

/* Waits for the bytes of a lease on the GPU, which may still be coming. False: they do not come. */
static bool lease_arrives(struct sequence *s, struct terrace_lease *lease)
{
	struct fault ignored;

	if (!lends_gpu(s))
		return true;
	return terrace_lease_wait_layer(lease, s->kv.layout.layers - 1, s->kv.device->device.stream) == TERRACE_OK &&
	       device_wait(&s->kv.device->device, &ignored) &&
	       prefix_cache_ok(s->cache, "lease", terrace_lease_check(lease));
}

/* Called when the tail block has become full. An open block is published under its key, and leased like any other. */
static bool end_tail(struct sequence *s, uint32_t i, struct fault *fault)
{
	struct terrace_reservation *open = s->open;
	struct terrace_lease *lease = NULL;
	enum terrace_status status;
	struct terrace_keys keys;
	uint64_t *address;
	bool placed;

	if (s->cache) {
		prefix_cache_keys(s->cache, s->tokens, s->key_count, i + 1, s->keys);
		s->key_count = i + 1;
	}
	if (s->blocks[i].owner != SEQUENCE_OPEN)
		return true;
	if (!copy_out(s, i, fault))
		return false;
	s->open = NULL;
	status = terrace_commit_open(open, s->keys[i], PREFIX_KEY_BYTES, s->block_tokens, 0);
	keys = keys_from(s, i, 1);
	if (prefix_cache_ok(s->cache, "commit_open", status) || status == TERRACE_EXISTS)
		prefix_cache_ok(s->cache, "lease", prefix_cache_lease(s->cache, &keys, TERRACE_LEASE_ALL, &lease));
	s->stats.stored_blocks += status == TERRACE_OK;
	keep_lease(s, lease);
	address = lease ? lease_addresses(s, lease) : NULL;
	placed = lease && lease_arrives(s, lease) && place_leased(s, i, lease, 0, address);
	free(address);
	if (!placed)
		return recompute(s, i, NULL, fault);
	return status == TERRACE_OK || copy_in(s, i, fault); /* another's bytes */
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* Gives every block of the prompt memory. */
static bool place_prompt(struct sequence *s, struct fault *fault)
{
	uint32_t full = s->count / s->block_tokens;

	if (s->cache) {
		prefix_cache_keys(s->cache, s->tokens, 0, full, s->keys);
		s->key_count = full;
	}
	if (cache_usable(s) && !borrow_prefix(s, fault))
		return false;
	if (cache_usable(s))
		reserve_rest(s, full);
	for (uint32_t i = s->block_count; i < full; i++) {
		s->block_count = i + 1;
		if (s->blocks[i].owner == SEQUENCE_NONE && !place_private(s, i, fault))
			return false;
	}
	return s->count % s->block_tokens == 0 || begin_tail(s, full, fault);
}

bool sequence_prefill(struct sequence *s, const uint32_t *tokens, uint32_t n, float *logits, struct fault *fault)
{
	double begin = clock_s();

	if (s->count > 0 || n == 0)
		return fault_set(fault, "a prompt of no tokens, or not the first");
	if (n > s->forward->positions)
		return fault_set(fault, "a prompt of %u tokens is more than the context of %u", n, s->forward->positions);
	memcpy(s->tokens, tokens, n * sizeof(*tokens));
	s->count = n;
	if (s->kv.packed && !place_prompt(s, fault))
		return false;
	if (!run_pending(s, logits, fault) || !prefix_arrived(s, logits, fault))
		return false;
	if (s->filling && !publish_prompt(s, fault))
		return false;
	s->stats.prefill_seconds = clock_s() - begin;
	return true;
}

bool sequence_append(struct sequence *s, uint32_t token, float *logits, struct fault *fault)
{
	uint32_t i = s->count / s->block_tokens;

	if (s->count == s->forward->positions)
		return fault_set(fault, "the context of %u tokens is full", s->count);
	if (s->kv.packed && s->count % s->block_tokens == 0 && !begin_tail(s, i, fault))
		return false;
	s->tokens[s->count++] = token;
	if (!run_pending(s, logits, fault))
		return false;
	return !s->kv.packed || s->count % s->block_tokens != 0 || end_tail(s, i, fault);
}
