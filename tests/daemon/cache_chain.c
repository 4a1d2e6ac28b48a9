/* See daemon/cache_chain.h. */
#include "tests/daemon/cache_chain.h"

#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/commit.h"
#include "daemon/call/lease.h"
#include "daemon/call/lookup.h"
#include "daemon/call/reserve.h"
#include "store/status.h"

#include <stdlib.h>

static struct cache_keys keys_of(const uint64_t *keys, uint32_t count)
{
	uint8_t *bytes = malloc((size_t)count * RIG_KEY_BYTES + 1);

	ck_assert_ptr_nonnull(bytes);
	for (uint32_t i = 0; i < count; i++)
		rig_key(bytes + (size_t)i * RIG_KEY_BYTES, keys[i]);
	return (struct cache_keys){ bytes, count, RIG_KEY_BYTES };
}

static void put_rest(struct rig *r, const struct cache_keys *k, uint32_t from)
{
	uint32_t count = k->count - from, items = 0;
	const struct cache_keys rest = { k->bytes + (size_t)from * k->key_bytes, count, k->key_bytes };
	struct cache_place *places = calloc((size_t)count * r->s.layouts, sizeof(*places));
	struct cache_commit_item *item = calloc(count, sizeof(*item));
	struct slot_info *info = calloc(count, sizeof(*info));
	enum status *st = calloc(count, sizeof(*st));
	uint64_t *id = calloc(count, sizeof(*id));

	for (uint32_t i = 0; i < count; i++)
		info[i].position = (uint64_t)(from + i) * RIG_TOKENS;
	ck_assert_int_eq(cache_reserve(r->c, &(struct cache_reserve_call){ .session = r->s.id, .keys = &rest,
			.info = info, .on = &(struct cache_on){ .attachment = r->attachment,
								.gpu = CACHE_HOST }, .may_grow = true,
			.now_us = r->now, .statuses = st, .reservations = id, .places = places,
			.places_max = count * r->s.layouts }, &r->why), STATUS_OK);
	for (uint32_t i = 0; i < count; i++)
		if (st[i] == STATUS_OK)
			item[items++].reservation = id[i];
	ck_assert_int_eq(cache_commit(r->c, &(struct cache_commit_call){ .session = r->s.id, .items = item,
			.count = items, .now_us = r->now, .unix_ms = 1, .statuses = st }, NULL, &r->why),
			 STATUS_OK);
	free(places);
	free(item);
	free(info);
	free(st);
	free(id);
}

/* Leases are kept while the rest is put, so that what is there is not evicted for it. */
uint32_t chain_request(struct rig *r, const uint64_t *keys, uint32_t count)
{
	struct cache_keys k = keys_of(keys, count);
	struct cache_place *places = calloc((size_t)count * r->s.layouts + 1, sizeof(*places));
	struct cache_leased first = { 0 };
	uint32_t prefix;

	ck_assert_int_eq(cache_lookup(r->c, r->s.id, &k, &prefix, NULL, 0, &r->why), STATUS_OK);
	if (count)
		cache_lease(r->c, &(struct cache_lease_call){ .session = r->s.id, .keys = &k,
							      .on = &(struct cache_on){
				.attachment = r->attachment, .gpu = CACHE_HOST }, .now_us = r->now,
							      .places = places,
							      .places_max = count * r->s.layouts }, &first,
			    NULL, &r->why);
	if (first.blocks < count)
		put_rest(r, &k, first.blocks);
	if (first.lease)
		ck_assert_int_eq(cache_release(r->c, r->s.id, first.lease), STATUS_OK);
	free(places);
	free((void *)k.bytes);
	return first.blocks;
}

uint32_t chain_lookup(struct rig *r, const uint64_t *keys, uint32_t count)
{
	struct cache_keys k = keys_of(keys, count);
	uint32_t prefix;

	ck_assert_int_eq(cache_lookup(r->c, r->s.id, &k, &prefix, NULL, 0, &r->why), STATUS_OK);
	free((void *)k.bytes);
	return prefix;
}

uint32_t chain_serve(struct rig *r, const uint64_t *keys, uint32_t count)
{
	struct cache_keys k = keys_of(keys, count);
	struct cache_place *places = calloc((size_t)count * r->s.layouts + 1, sizeof(*places));
	struct cache_leased first = { 0 };

	rig_lease_keys(r, &k, places, &first);
	if (first.blocks < count)
		put_rest(r, &k, first.blocks);
	if (first.lease)
		ck_assert_int_eq(cache_release(r->c, r->s.id, first.lease), STATUS_OK);
	free(places);
	free((void *)k.bytes);
	return first.blocks;
}

void chain_report(struct rig *r, const uint64_t *keys, uint32_t count, enum cache_event event)
{
	struct cache_keys k = keys_of(keys, count);

	ck_assert_int_eq(cache_report(r->c, r->s.id, &k, &(struct cache_hint){ .event = event }, r->now,
				      &r->why), STATUS_OK);
	free((void *)k.bytes);
}
