#include "daemon/directory/digest.h"

#include <string.h>

uint32_t digest_buckets_for(uint32_t names)
{
	uint32_t buckets = 1;

	while (buckets < DIGEST_BUCKETS_MAX && names > buckets * DIGEST_NAMES_A_BUCKET)
		buckets *= 2;
	return buckets;
}

bool digest_buckets_valid(uint32_t buckets)
{
	return buckets && buckets <= DIGEST_BUCKETS_MAX && !(buckets & (buckets - 1));
}

void digest_begin(struct digest *d, uint32_t buckets)
{
	d->buckets = buckets;
	d->total = 0;
	memset(d->sum, 0, buckets * sizeof d->sum[0]);
	memset(d->count, 0, buckets * sizeof d->count[0]);
}

/* The two words serve different ends: bits of word[0] order names elsewhere too (table.c, owners.c). */
uint32_t digest_bucket(const struct public_name *name, uint32_t buckets)
{
	return (uint32_t)(name->word[1] & (buckets - 1));
}

void digest_add(struct digest *d, const struct public_name *name)
{
	const uint32_t b = digest_bucket(name, d->buckets);

	/* Names are uniformly random: so is the exclusive or of any of them, but of none. */
	d->sum[b] ^= name->word[0] ^ name->word[1] * 0x9e3779b97f4a7c15ull;
	d->count[b]++;
	d->total++;
}

uint32_t digest_compare(const struct digest *a, const struct digest *b, struct digest_set *out)
{
	uint32_t differ = 0;

	memset(out, 0, sizeof *out);
	out->buckets = a->buckets;
	for (uint32_t i = 0; i < a->buckets; i++) {
		if (a->sum[i] == b->sum[i] && a->count[i] == b->count[i])
			continue;
		out->bits[i / 64] |= 1ull << i % 64;
		differ++;
	}
	return differ;
}

bool digest_set_has(const struct digest_set *s, const struct public_name *name)
{
	const uint32_t b = digest_bucket(name, s->buckets);

	return s->bits[b / 64] >> b % 64 & 1;
}

bool digest_set_empty(const struct digest_set *s)
{
	uint64_t any = 0;

	for (uint32_t i = 0; i < DIGEST_BUCKETS_MAX / 64; i++)
		any |= s->bits[i];
	return !any;
}
