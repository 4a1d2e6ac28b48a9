/* First a replay runs with the online model and only notes the accesses and their features. (The features depend on
 * what the policy remembers at this size.) Then one model a part is fitted, and the replay that counts is run.
 *
 * Outcomes that are not known where a model is fitted are cut off: of an access before the part, only what happens
 * before the part begins is used. The inputs are the steps that the online model sees; finer ones (two an octave of the
 * counts) gave no more hits.
 */
#include "eviction/replay/offline.h"

#include <stdlib.h>
#include <string.h>

#include "eviction/graph.h"
#include "eviction/hash.h"
#include "eviction/replay/boost.h"

/* The blocks that have the same features. */
struct kind {
	uint32_t features;
	uint32_t part;       /* of which `hazard` is + 1; 0: none */
	float hazard[SURVIVAL_BUCKETS];
};

struct access {
	uint64_t at_us, next_us; /* next 0: never again */
	uint32_t kind;
	float weight;
};

struct offline {
	enum offline_kind how;
	uint64_t begins_us[OFFLINE_FOLDS + 1]; /* of the parts; the last: behind the end */
	struct kind *kinds;
	uint32_t *kind_at;       /* by hash of the features: number + 1; 0: none */
	uint32_t kind_count, kind_max; /* kind_at is twice that, a power of two */
	struct access *accesses;
	uint64_t access_count, access_max;
	uint64_t *last;          /* by id: number + 1 of its last access */
	struct boost *models;
	bool broken;             /* out of memory */
};

enum { KINDS_FIRST = 1 << 12 };

_Static_assert((int)BOOST_BINS >= (int)SURVIVAL_BUCKETS && (int)BOOST_BINS >= (int)FEATURE_STEPS_MAX, "an input each");

/* ---- kinds ---- */

static bool kinds_grow(struct offline *o)
{
	uint32_t max = o->kind_max ? 2 * o->kind_max : KINDS_FIRST;
	struct kind *kinds = realloc(o->kinds, max * sizeof(kinds[0]));
	uint32_t *at;

	if (!kinds)
		return false;
	o->kinds = kinds;
	at = calloc(2 * (size_t)max, sizeof(at[0]));
	if (!at)
		return false;
	free(o->kind_at);
	o->kind_at = at;
	o->kind_max = max;
	for (uint32_t i = 0; i < o->kind_count; i++) {
		uint64_t slot = hash_mix(kinds[i].features);

		while (at[slot & (2 * max - 1)])
			slot++;
		at[slot & (2 * max - 1)] = i + 1;
	}
	return true;
}

/* The kind of what has these features; NULL: no memory. */
static struct kind *kind_of(struct offline *o, uint32_t features)
{
	uint32_t *at;

	if (o->kind_count == o->kind_max && !kinds_grow(o))
		return NULL;
	for (uint64_t slot = hash_mix(features);; slot++) {
		at = &o->kind_at[slot & (2 * o->kind_max - 1)];
		if (!*at || o->kinds[*at - 1].features == features)
			break;
	}
	if (!*at) {
		o->kinds[o->kind_count] = (struct kind){ .features = features };
		*at = ++o->kind_count;
	}
	return &o->kinds[*at - 1];
}

static void inputs_of(uint32_t features, uint8_t x[BOOST_INPUTS])
{
	x[0] = 0;
	for (int f = 0; f < FEATURES; f++)
		x[1 + f] = (uint8_t)features_step(features, (enum feature)f);
}

/* ---- what is noted ---- */

static bool note(void *arg, uint64_t id, uint32_t features, float weight, uint64_t now_us, float out[SURVIVAL_BUCKETS])
{
	struct offline *o = arg;
	struct kind *k = kind_of(o, features);

	(void)out;
	if (o->access_count == o->access_max) {
		uint64_t max = o->access_max ? 2 * o->access_max : 1 << 16;
		struct access *accesses = realloc(o->accesses, max * sizeof(accesses[0]));

		o->broken |= !accesses;
		if (!accesses)
			return false;
		o->accesses = accesses;
		o->access_max = max;
	}
	o->broken |= !k;
	if (o->broken)
		return false;
	if (o->last[id])
		o->accesses[o->last[id] - 1].next_us = now_us;
	o->accesses[o->access_count] = (struct access){ .at_us = now_us, .kind = (uint32_t)(k - o->kinds), .weight = weight };
	o->last[id] = ++o->access_count;
	return false;
}

static uint32_t part_at(const struct offline *o, uint64_t now_us)
{
	uint32_t part = 0;

	while (part + 1 < OFFLINE_FOLDS && now_us >= o->begins_us[part + 1])
		part++;
	return part;
}

/* ---- fitting ---- */

/* What became of the blocks of a kind, by the bucket of age: how many came back in it, and how many were last seen in
 * it. */
struct fate {
	float came[SURVIVAL_BUCKETS], lost[SURVIVAL_BUCKETS];
};

uint64_t offline_known_until(enum offline_kind how, const uint64_t begins_us[OFFLINE_FOLDS + 1], uint32_t part, uint64_t at_us)
{
	if (at_us < begins_us[part])
		return begins_us[part];
	return how == OFFLINE_CROSS && at_us >= begins_us[part + 1] ? begins_us[OFFLINE_FOLDS] : 0;
}

static void count_fates(const struct offline *o, uint32_t part, struct fate *fates)
{
	for (uint64_t i = 0; i < o->access_count; i++) {
		const struct access *a = &o->accesses[i];
		uint64_t until = offline_known_until(o->how, o->begins_us, part, a->at_us);

		if (!until)
			continue;
		if (a->next_us && a->next_us < until)
			fates[a->kind].came[survival_bucket(a->next_us - a->at_us)] += a->weight;
		else
			fates[a->kind].lost[survival_bucket(until - a->at_us)] += a->weight;
	}
}

static uint32_t cells_of(const struct kind *k, const struct fate *f, struct boost_cell *out)
{
	uint8_t x[BOOST_INPUTS];
	float outgrew = 0;
	uint32_t count = 0;

	inputs_of(k->features, x);
	for (uint32_t b = SURVIVAL_BUCKETS; b-- > 0;) {
		float weight = f->came[b] + outgrew;

		if (weight > 0) {
			out[count].weight = weight;
			out[count].hits = f->came[b];
			memcpy(out[count].x, x, sizeof(x));
			out[count++].x[0] = (uint8_t)b;
		}
		outgrew = weight + f->lost[b];
	}
	return count;
}

static bool fit(struct offline *o, uint32_t part)
{
	struct fate *fates = calloc(o->kind_count + 1u, sizeof(fates[0]));
	struct boost_cell *cells = calloc((uint64_t)o->kind_count * SURVIVAL_BUCKETS + 1, sizeof(cells[0]));
	uint32_t count = 0;
	bool ok = fates && cells;

	if (ok) {
		count_fates(o, part, fates);
		for (uint32_t k = 0; k < o->kind_count; k++)
			count += cells_of(&o->kinds[k], &fates[k], cells + count);
		ok = boost_fit(&o->models[part], cells, count);
	}
	free(fates);
	free(cells);
	return ok;
}

/* ---- what is told ---- */

static bool tell(void *arg, uint64_t id, uint32_t features, float weight, uint64_t now_us, float out[SURVIVAL_BUCKETS])
{
	struct offline *o = arg;
	uint32_t part = part_at(o, now_us);
	struct kind *k;

	(void)id;
	(void)weight;
	if (part == 0 && o->how == OFFLINE_PAST)
		return false;
	k = kind_of(o, features);
	o->broken |= !k;
	if (!k)
		return false;
	if (k->part != part + 1) {
		uint8_t x[BOOST_INPUTS];

		inputs_of(features, x);
		boost_predict(&o->models[part], x, k->hazard);
		k->part = part + 1;
	}
	memcpy(out, k->hazard, sizeof(k->hazard));
	return true;
}

/* ---- the runs ---- */

static void prepare(struct policy *p, void *model)
{
	graph_set_model(p, model);
}

static enum status replay(struct offline *o, const struct trace *t, struct graph_model m, struct replay_options r,
			  struct replay_result *out)
{
	enum status s;

	m.arg = o;
	r.prepare = prepare;
	r.prepare_arg = &m;
	s = replay_run(t, &policy_graph, &r, out);
	return s == STATUS_OK && o->broken ? STATUS_EXHAUSTED : s;
}

static bool init(struct offline *o, const struct trace *t)
{
	for (uint32_t k = 0; k < OFFLINE_FOLDS; k++)
		o->begins_us[k] = t->requests[(uint64_t)t->request_count * k / OFFLINE_FOLDS].time_us;
	o->begins_us[OFFLINE_FOLDS] = t->requests[t->request_count - 1].time_us + 1;
	o->last = calloc((uint64_t)t->unique + 1, sizeof(o->last[0]));
	o->models = calloc(OFFLINE_FOLDS, sizeof(o->models[0]));
	return o->last && o->models && kinds_grow(o);
}

static void fini(struct offline *o)
{
	free(o->kinds);
	free(o->kind_at);
	free(o->accesses);
	free(o->last);
	free(o->models);
}

enum status offline_run(const struct trace *t, enum offline_kind kind, const struct replay_options *o,
			struct replay_result *out)
{
	struct offline offline = { .how = kind };
	struct replay_result ignored, told;
	enum status s = STATUS_EXHAUSTED;

	if (t->request_count == 0)
		return replay_run(t, &policy_graph, o, out);
	if (!init(&offline, t))
		goto done;
	s = replay(&offline, t, (struct graph_model){ .tell = note }, *o, &ignored);
	for (uint32_t k = kind == OFFLINE_PAST; k < OFFLINE_FOLDS && s == STATUS_OK; k++)
		s = fit(&offline, k) ? STATUS_OK : STATUS_EXHAUSTED;
	if (s == STATUS_OK)
		s = replay(&offline, t, (struct graph_model){ .tell = tell }, *o, &told);
	if (s == STATUS_OK)
		*out = told;
done:
	fini(&offline);
	return s;
}
