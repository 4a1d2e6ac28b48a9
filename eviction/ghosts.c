/* Entries in one array, linked twice by number: by age, and by hash bucket. Entry 0 is the head of the
 * ring by age. */
#include "eviction/ghosts.h"

#include <stdlib.h>

#include "eviction/hash.h"

enum { GHOSTS_MAX = 1 << 28 };

struct ghost {
	uint64_t id;
	uint32_t older, younger; /* a ring through entry 0: entry 0's younger is the oldest */
	uint32_t bucket_next;    /* the next in the bucket, or the next free one */
};

struct ghosts {
	struct ghost *entries;
	uint32_t *buckets;
	uint32_t mask, free;
	uint64_t count;
};

struct ghosts *ghosts_create(uint64_t max)
{
	struct ghosts *g = calloc(1, sizeof(*g));
	uint32_t n = max == 0 ? 1 : max > GHOSTS_MAX ? GHOSTS_MAX : (uint32_t)max;
	uint32_t buckets = 1;

	while (buckets < n)
		buckets *= 2;
	if (!g)
		return NULL;
	g->entries = calloc((uint64_t)n + 1, sizeof(g->entries[0]));
	g->buckets = calloc(buckets, sizeof(g->buckets[0]));
	if (!g->entries || !g->buckets) {
		ghosts_destroy(g);
		return NULL;
	}
	g->mask = buckets - 1;
	g->free = 1;
	for (uint32_t i = 1; i < n; i++)
		g->entries[i].bucket_next = i + 1;
	return g;
}

void ghosts_destroy(struct ghosts *g)
{
	if (!g)
		return;
	free(g->entries);
	free(g->buckets);
	free(g);
}

bool ghosts_take(struct ghosts *g, uint64_t id)
{
	uint32_t *at = &g->buckets[hash_mix(id) & g->mask];
	struct ghost *e;
	uint32_t i;

	while (*at && g->entries[*at].id != id)
		at = &g->entries[*at].bucket_next;
	i = *at;
	if (!i)
		return false;
	e = &g->entries[i];
	*at = e->bucket_next;
	g->entries[e->older].younger = e->younger;
	g->entries[e->younger].older = e->older;
	e->bucket_next = g->free;
	g->free = i;
	g->count--;
	return true;
}

void ghosts_trim(struct ghosts *g, uint64_t count)
{
	while (g->count > count)
		ghosts_take(g, g->entries[g->entries[0].younger].id);
}

void ghosts_add(struct ghosts *g, uint64_t id)
{
	uint32_t *bucket = &g->buckets[hash_mix(id) & g->mask];
	struct ghost *e;
	uint32_t i;

	if (id == 0)
		return;
	ghosts_take(g, id);
	if (!g->free)
		ghosts_trim(g, g->count - 1);
	i = g->free;
	e = &g->entries[i];
	g->free = e->bucket_next;
	*e = (struct ghost){ .id = id, .older = g->entries[0].older, .bucket_next = *bucket };
	*bucket = i;
	g->entries[e->older].younger = i;
	g->entries[0].older = i;
	g->count++;
}

uint64_t ghosts_count(const struct ghosts *g)
{
	return g->count;
}
