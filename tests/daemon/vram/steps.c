/* See daemon/vram/steps.h. */
#include "tests/daemon/vram/steps.h"

#include <stdatomic.h>

#include "eviction/policy.h"
#include "store/index.h"

static _Atomic uint64_t steps;

static void step(uint64_t n)
{
	atomic_fetch_add_explicit(&steps, n, memory_order_relaxed);
}

void steps_begin(void)
{
	atomic_store(&steps, 0);
}

uint64_t steps_taken(void)
{
	return atomic_load(&steps);
}

/* What the linker puts in the place of a call to `name`, which is __real_name here. */
#define IN_PLACE_OF(type, name, ...)      \
	type __real_##name(__VA_ARGS__); \
	type __wrap_##name(__VA_ARGS__); \
	type __wrap_##name(__VA_ARGS__)

IN_PLACE_OF(struct index_record *, index_find, struct index *x, const struct index_ident *ident)
{
	step(1);
	return __real_index_find(x, ident);
}

IN_PLACE_OF(void, index_find_many, struct index *x, uint32_t tenant, uint64_t layout_id, const uint8_t *keys, uint32_t key_bytes, uint32_t count,
	    struct index_record **out)
{
	step(count);
	__real_index_find_many(x, tenant, layout_id, keys, key_bytes, count, out);
}

IN_PLACE_OF(bool, index_pin, struct index_record *r, bool *first)
{
	step(1);
	return __real_index_pin(r, first);
}

IN_PLACE_OF(uint32_t, index_unpin, struct index_record *r)
{
	step(1);
	return __real_index_unpin(r);
}

/* ---- policies: a row of the table, whose functions count ---- */

static const struct policy_ops *real_ops;

struct asked {
	bool (*may)(const struct policy_node *, void *);
	void *arg;
};

static bool counted_may(const struct policy_node *n, void *arg)
{
	const struct asked *a = arg;

	step(1);
	return a->may(n, a->arg);
}

static struct policy_node *counted_victim(struct policy *p, bool (*may)(const struct policy_node *, void *), void *arg, uint32_t scan_max)
{
	step(1);
	return real_ops->victim(p, counted_may, &(struct asked){ may, arg }, scan_max);
}

static bool counted_walk(struct policy *p, bool (*visit)(const struct policy_node *, void *), void *arg, uint32_t max)
{
	step(1);
	return real_ops->walk(p, counted_may, &(struct asked){ visit, arg }, max);
}

static void counted_insert(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	step(1);
	real_ops->insert(p, n, e);
}

static void counted_use(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	step(1);
	real_ops->use(p, n, e);
}

static void counted_remove(struct policy *p, struct policy_node *n)
{
	step(1);
	real_ops->remove(p, n);
}

IN_PLACE_OF(const struct policy_ops *, policy_find, const char *name)
{
	static struct policy_ops counted;

	real_ops = __real_policy_find(name);
	if (!real_ops)
		return NULL;
	counted = *real_ops;
	counted.victim = counted_victim;
	counted.insert = counted_insert;
	counted.use = counted_use;
	counted.remove = counted_remove;
	counted.walk = real_ops->walk ? counted_walk : NULL;
	return &counted;
}
