/* Copies that left a tier: when, why and how old. It has the last tens of thousands of them, in a table of sets; in
 * each set a new entry replaces the oldest.
 *
 * A copy that is asked for again within a minute is *regretted*: had it stayed, it would have been a hit, or no load.
 */
#include "daemon/advice/eviction_log.h"

#include "daemon/advice/advice.h"
#include "daemon/block/counters.h"
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "eviction/policy.h"

#include <stdio.h>
#include <string.h>

#define REGRET_US (60 * 1000 * 1000ull)

/* Idle for less than so many seconds; the last has no bound. */
static const uint32_t ages[EVICTION_LOG_AGES] = { 1, 10, 60, 300, 1800, 7200, 86400, UINT32_MAX };

/* The log's id of a copy. A block that has left a GPU may still be in memory, and leave that, too: a GPU's copy has an
 * id of its own. */
static uint64_t mark_of(uint64_t id, bool gpu)
{
	return gpu ? id ^ 0x9e3779b97f4a7c15ull : id;
}

static struct eviction_log_entry *set_of(const struct cache *c, uint64_t id)
{
	return c->advice->eviction_log[(id ^ id >> 32) % EVICTION_LOG_SETS];
}

static void count_age(struct cache *c, enum eviction_tier tier, uint64_t idle_us)
{
	uint32_t i = 0;

	while (i < EVICTION_LOG_AGES - 1 && idle_us >= ages[i] * 1000000ull)
		i++;
	c->advice->evictions_by_age[tier][i]++;
}

void eviction_log_hint(const struct cache *c, uint64_t id, bool gpu)
{
	const struct eviction_log_entry *set = set_of(c, mark_of(id, gpu));

	for (int i = 0; i < EVICTION_LOG_WAYS; i += 2) /* there are two in a cache line */
		__builtin_prefetch(&set[i], 1);
}

void eviction_log_note(struct cache *c, uint64_t id, const struct policy_node *n, enum eviction_tier tier,
		       enum eviction_reason reason)
{
	uint64_t idle_us = c->now_us - n->last_use_us;
	struct eviction_log_entry *set, *at;

	id = mark_of(id, tier == EVICTION_GPU);
	set = at = set_of(c, id);

	for (uint32_t i = 0; i < EVICTION_LOG_WAYS && at->id != id; i++)
		if (set[i].id == id || set[i].when_us < at->when_us)
			at = &set[i];
	*at = (struct eviction_log_entry){ .id = id, .when_us = c->now_us, .uses = n->uses, .tier = tier,
			     .reason = reason,
			     .idle_ms = idle_us / 1000 < UINT32_MAX ? (uint32_t)(idle_us / 1000) : UINT32_MAX };
	count_age(c, tier, idle_us);
}

static struct eviction_log_entry *find(const struct cache *c, uint64_t id)
{
	struct eviction_log_entry *set = set_of(c, id);

	for (uint32_t i = 0; i < EVICTION_LOG_WAYS; i++)
		if (set[i].id == id)
			return &set[i];
	return NULL;
}

const struct eviction_log_entry *eviction_log_find(const struct cache *c, uint64_t id, bool gpu)
{
	return find(c, mark_of(id, gpu));
}

void eviction_log_forget(struct cache *c, uint64_t id, bool gpu)
{
	struct eviction_log_entry *g = find(c, mark_of(id, gpu));

	if (g)
		*g = (struct eviction_log_entry){ .id = 0 };
}

static void regret(struct cache *c, struct eviction_log_entry *g)
{
	static const enum counter counters[EVICTION_TIERS] = { COUNTER_REGRETTED_HOST, COUNTER_REGRETTED_DISK,
	    COUNTER_REGRETTED_GPU };

	if (!g || g->regretted || c->now_us - g->when_us > REGRET_US)
		return;
	g->regretted = true;
	cache_count(c, counters[g->tier], 1);
}

void eviction_log_asked(struct cache *c, uint64_t id, bool gpu)
{
	regret(c, find(c, id));
	if (gpu)
		regret(c, find(c, mark_of(id, true)));
}

const char *eviction_reason_word(enum eviction_reason r)
{
	static const char *const words[EVICTION_REASONS] = { "full", "trade", "shed", "refused", "lost", "compact",
							      "peer" };

	return words[r];
}

void eviction_log_stats(struct cache *c, cache_stat_fn *emit, void *arg)
{
	static const char *const tiers[EVICTION_TIERS] = { "host", "disk", "gpu" };
	uint64_t counts[EVICTION_TIERS][EVICTION_LOG_AGES];

	cache_lock(c);
	memcpy(counts, c->advice->evictions_by_age, sizeof(counts));
	cache_unlock(c);
	for (int tier = 0; tier < EVICTION_TIERS; tier++) {
		uint64_t sum = 0;

		for (uint32_t i = 0; i < EVICTION_LOG_AGES; i++) {
			char labels[48], below[16];

			sum += counts[tier][i];
			snprintf(below, sizeof(below), "%u", ages[i]);
			snprintf(labels, sizeof(labels), "tier=%s,idle_below_s=%s", tiers[tier],
			    i == EVICTION_LOG_AGES - 1 ? "inf" : below);
			emit(arg, "terrace_evictions_by_idle_total", labels, (double)sum, true,
			     "blocks that left a tier, by how long they had not been used");
		}
	}
}
