/* Copies that left a tier: when, why and how old. Of the last tens of thousands; a table of sets, in which the oldest gives way.
 *
 * A copy that is asked for again within a minute is *regretted*: had it stayed, it would have been a hit, or no load.
 */
#include "daemon/cache_advice.h"

#include <stdio.h>
#include <string.h>

#define REGRET_US (60 * 1000 * 1000ull)

/* Idle for less than so many seconds; the last has no bound. */
static const uint32_t ages[GONE_AGES] = { 1, 10, 60, 300, 1800, 7200, 86400, UINT32_MAX };

static struct gone *set_of(const struct cache *c, uint64_t id)
{
	return c->advice->gone[(id ^ id >> 32) % GONE_SETS];
}

static void count_age(struct cache *c, bool on_disk, uint64_t idle_us)
{
	uint32_t i = 0;

	while (i < GONE_AGES - 1 && idle_us >= ages[i] * 1000000ull)
		i++;
	c->advice->gone_by_age[on_disk][i]++;
}

void gone_note(struct cache *c, uint64_t id, const struct policy_node *n, bool on_disk, enum gone_reason reason)
{
	uint64_t idle_us = c->now_us - n->last_use_us;
	struct gone *set = set_of(c, id), *at = &set[0];

	for (uint32_t i = 0; i < GONE_WAYS && at->id != id; i++)
		if (set[i].id == id || set[i].when_us < at->when_us)
			at = &set[i];
	*at = (struct gone){ .id = id, .when_us = c->now_us, .uses = n->uses, .on_disk = on_disk, .reason = reason,
			     .idle_ms = idle_us / 1000 < UINT32_MAX ? (uint32_t)(idle_us / 1000) : UINT32_MAX };
	count_age(c, on_disk, idle_us);
}

static struct gone *find(const struct cache *c, uint64_t id)
{
	struct gone *set = set_of(c, id);

	for (uint32_t i = 0; i < GONE_WAYS; i++)
		if (set[i].id == id)
			return &set[i];
	return NULL;
}

const struct gone *gone_find(const struct cache *c, uint64_t id)
{
	return find(c, id);
}

void gone_forget(struct cache *c, uint64_t id)
{
	struct gone *g = find(c, id);

	if (g)
		*g = (struct gone){ .id = 0 };
}

void gone_asked(struct cache *c, uint64_t id)
{
	struct gone *g = find(c, id);

	if (!g || g->regretted || c->now_us - g->when_us > REGRET_US)
		return;
	g->regretted = true;
	cache_count(c, g->on_disk ? COUNTER_REGRETTED_DISK : COUNTER_REGRETTED_HOST, 1);
}

const char *gone_word(enum gone_reason r)
{
	static const char *const words[GONE_REASONS] = { "full", "drain", "shed", "refused", "lost", "compact" };

	return words[r];
}

void gone_stats(struct cache *c, cache_stat_fn *emit, void *arg)
{
	uint64_t counts[2][GONE_AGES];

	cache_lock(c);
	memcpy(counts, c->advice->gone_by_age, sizeof(counts));
	cache_unlock(c);
	for (int disk = 0; disk < 2; disk++) {
		uint64_t sum = 0;

		for (uint32_t i = 0; i < GONE_AGES; i++) {
			char labels[48], below[16];

			sum += counts[disk][i];
			snprintf(below, sizeof(below), "%u", ages[i]);
			snprintf(labels, sizeof(labels), "tier=%s,idle_below_s=%s", disk ? "disk" : "host", i == GONE_AGES - 1 ? "inf" : below);
			emit(arg, "terrace_evictions_by_idle_total", labels, (double)sum, true,
			     "blocks that left a tier, by how long they had not been used");
		}
	}
}
