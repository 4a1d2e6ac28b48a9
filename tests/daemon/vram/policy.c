/* What the policies of GPUs are told, and what they say of it: requests, once each, to the GPUs that a session works on; why a copy is on a
 * GPU, and why it left. */
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/explain.h"
#include "daemon/call/lease.h"
#include "daemon/session/attachment.h"
#include "daemon/session/open.h"
#include "kernels/format.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <stdlib.h>
#include <string.h>

static void lookup(struct vram_rig *v, uint64_t first, uint32_t count)
{
	rig_prefix(&v->r, first, count);
	rig_tick(v->r.c, v->r.now += 1000);
}

static bool explain(struct vram_rig *v, uint64_t n, struct cache_explained *out)
{
	uint8_t key[RIG_KEY_BYTES];
	uint32_t shown;

	rig_key(key, n);
	ck_assert_int_eq(cache_explain(v->r.c, &(struct cache_block_name){ .tenant = "", .key = key,
			.key_bytes = sizeof(key) }, v->r.now, out, 1, &shown, &v->r.why), STATUS_OK);
	return shown;
}

/* Its copy on that GPU, or in another tier; NULL: none. */
static const struct cache_explained_tier *copy_of(const struct cache_explained *e, const char *tier, uint32_t gpu)
{
	for (uint32_t i = 0; i < e->tiers; i++)
		if (!strcmp(e->at[i].tier, tier) && e->at[i].gpu == gpu)
			return &e->at[i];
	return NULL;
}

static uint32_t feature(struct vram_rig *v, uint64_t n, uint32_t gpu, const char *name)
{
	const struct cache_explained_tier *t;
	struct cache_explained e;

	ck_assert(explain(v, n, &e));
	t = copy_of(&e, "gpu", gpu);
	ck_assert_ptr_nonnull(t);
	ck_assert_str_eq(t->policy, "graph");
	for (uint32_t i = 0; i < t->features; i++)
		if (!strcmp(t->feature[i].name, name))
			return t->feature[i].value;
	return 0;
}

/* Another session, as an engine beside it has one. */
static void join(struct vram_rig *to, const struct vram_rig *from)
{
	struct kv_layout l = vr_layout(0);
	uint64_t session;

	*to = *from;
	ck_assert_int_eq(cache_session_open(to->r.c, &(struct cache_open_call){ .tenant = "", .layouts = &l,
			.layout_count = 1, .engine = "other", .now_us = to->r.now }, &to->r.s, &to->r.why),
			 STATUS_OK);
	ck_assert_int_eq(cache_attach(to->r.c, to->r.s.token, 1, to->r.now, &to->r.attachment, &session, &to->r.why), STATUS_OK);
}

START_TEST(requests_are_told_once)
{
	struct cache_place p[6];
	struct cache_leased l;
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32, .policy = "graph",
	    .no_progress_page = true });
	lookup(&v, 0, 4);
	ck_assert_uint_eq(vr_put(&v, 0, 0, 4), 4);
	lookup(&v, 0, 6);
	ck_assert_uint_eq(vr_put(&v, 0, 4, 2), 2);
	ck_assert_uint_eq(feature(&v, 0, 0, "uses_remembered"), 2);
	ck_assert_uint_eq(feature(&v, 5, 0, "turn"), 2);
	ck_assert_uint_eq(feature(&v, 5, 0, "uses_remembered"), 1);
	/* The same prompt again is the same request; when it comes back later, its lookup and its lease are one. */
	lookup(&v, 0, 6);
	lookup(&v, 0, 6);
	ck_assert_uint_eq(feature(&v, 5, 0, "uses_remembered"), 1);
	v.r.now += 40000000;
	lookup(&v, 0, 6);
	ck_assert_uint_eq(feature(&v, 5, 0, "uses_remembered"), 2);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 6, true, false, p, &l), STATUS_OK);
	vr_release(&v, &l);
	ck_assert_uint_eq(feature(&v, 5, 0, "uses_remembered"), 2);
	rig_quiet(&v.r);
	vr_close(&v);
}
END_TEST

/* Two engines with a GPU each: what one asks for is no use of the other's copies. */
START_TEST(each_gpu_hears_of_its_own)
{
	struct vram_rig v, other;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 2, .gpu_slots = 16, .host_slots = 32, .policy = "graph",
	    .no_progress_page = true });
	join(&other, &v);
	ck_assert_uint_eq(vr_put(&v, 0, 0, 4), 4);
	rig_quiet(&v.r);
	ck_assert_uint_eq(vr_warm(&other, 1, 0, 4), 4);
	rig_quiet(&v.r);
	for (uint32_t i = 0; i < 3; i++) {
		v.r.now += 40000000;
		lookup(&v, 0, 4);
	}
	ck_assert_uint_eq(feature(&v, 3, 0, "uses_remembered"), 4);
	ck_assert_uint_eq(feature(&v, 3, 1, "uses_remembered"), 0);
	vr_close(&v);
}
END_TEST

/* A lease that is granted while its copies are under way is a use of what comes: the access that the policy was told of. */
START_TEST(a_lease_of_what_is_coming_is_a_use)
{
	struct cache_explained e;
	struct cache_place p[2];
	struct cache_leased l;
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32, .policy = "graph", .recompute_growth = 16 });
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 4), 4);
	ck_assert_uint_eq(vr_put(&v, 0, 100, 1), 1); /* the GPU has an extent now */
	rig_quiet(&v.r);
	vr_hold(&v, 0, 0);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 2, true, false, p, &l), STATUS_OK);
	ck_assert_uint_gt(l.progress_page_layers, 0);
	vr_go(&v, 0);
	vr_wait_layers(&v, &l);
	rig_quiet(&v.r);
	vr_release(&v, &l);
	ck_assert(explain(&v, 0, &e));
	ck_assert_str_eq(copy_of(&e, "gpu", 0)->kept, "");
	ck_assert_uint_eq(feature(&v, 0, 0, "uses_remembered"), 1);
	v.r.now += 40000000;
	lookup(&v, 0, 2);
	ck_assert_uint_eq(feature(&v, 0, 0, "uses_remembered"), 2);
	ck_assert_uint_ge(feature(&v, 0, 0, "cost_milli"), 1000); /* the GPU's policy goes by it, too */
	vr_close(&v);
}
END_TEST

START_TEST(why_it_is_there)
{
	const struct cache_explained_tier *t;
	struct cache_explained e;
	struct cache_place p[1];
	struct cache_leased l;
	struct vram_rig v;
	uint8_t key[RIG_KEY_BYTES];

	vr_open(&v, &(struct vram_rig_options){ .gpus = 2, .gpu_slots = 16, .host_slots = 32, .write_back = true });
	for (uint64_t n = 0; n < 4; n++) {
		v.r.now += 1000000;
		ck_assert_uint_eq(vr_put(&v, 1, n, 1), 1);
	}
	rig_quiet(&v.r); /* else they are pinned until the GPU has summed them */
	ck_assert(explain(&v, 2, &e));
	ck_assert_str_eq(e.tier, "gpu");
	ck_assert_uint_eq(e.tiers, 1);
	ck_assert_str_eq(e.at[0].tier, "gpu");
	ck_assert_uint_eq(e.at[0].gpu, 1);
	ck_assert_str_eq(e.at[0].kept, "only");
	ck_assert_uint_eq(e.at[0].idle_ms, 1000);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 4), 4); /* they have come down */
	rig_quiet(&v.r);
	ck_assert_int_eq(vr_lease(&v, 1, 2, 1, true, false, p, &l), STATUS_OK);
	rig_key(key, 0);
	ck_assert(explain(&v, 2, &e));
	ck_assert_uint_eq(e.tiers, 2);
	t = copy_of(&e, "gpu", 1);
	ck_assert_str_eq(t->kept, "pinned");
	ck_assert(!memcmp(t->rival, key, sizeof(key)));
	vr_release(&v, &l);
	ck_assert(explain(&v, 3, &e));
	t = copy_of(&e, "gpu", 1);
	ck_assert_str_eq(t->policy, "lru");
	ck_assert_str_eq(t->kept, "");
	ck_assert(t->ranked);
	ck_assert_uint_eq(t->rank, 2); /* block 2 has just been used */
	ck_assert_ptr_nonnull(copy_of(&e, "host", 0));
	vr_close(&v);
}
END_TEST

START_TEST(why_it_left)
{
	struct cache_explained e;
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 8, .host_slots = 64 });
	ck_assert_uint_eq(vr_put(&v, 0, 0, 8), 8);
	rig_quiet(&v.r);
	v.r.now += 2000000;
	ck_assert_uint_eq(vr_put(&v, 0, 8, 4), 4);
	rig_quiet(&v.r);
	v.r.now += 3000000;
	ck_assert_double_eq(rig_stat(&v.r, "terrace_evictions_by_idle_total", "tier=gpu,idle_below_s=10"), 4);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_evictions_by_idle_total", "tier=host,idle_below_s=inf"), 0);
	ck_assert(explain(&v, 0, &e));
	ck_assert_str_eq(e.tier, "host");
	ck_assert_str_eq(e.left, "gpu");
	ck_assert_str_eq(e.left_reason, "full");
	ck_assert_uint_eq(e.left_ms_ago, 3000);
	ck_assert(!e.regretted);
	lookup(&v, 0, 2);
	ck_assert(explain(&v, 1, &e));
	ck_assert(e.regretted);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_evictions_regretted_total", "tier=gpu"), 2);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_evictions_regretted_total", "tier=host"), 0);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 1), 1);
	rig_quiet(&v.r); /* the progress page knows of a copy before the accounting do */
	ck_assert(explain(&v, 0, &e));
	ck_assert_str_eq(e.left, "");
	vr_close(&v);
}
END_TEST

static struct cache_leased lease_late(struct vram_rig *v, uint64_t first)
{
	const struct cache_on on = { .attachment = v->r.attachment, .gpu = 0, .deferred = true };
	struct cache_keys k = rig_keys(first, 2);
	struct cache_place p[2];
	struct cache_leased l;

	ck_assert_int_eq(cache_lease(v->r.c, &(struct cache_lease_call){ .session = v->r.s.id, .keys = &k,
			.all = true, .on = &on, .now_us = v->r.now, .places = p, .places_max = 2 }, &l, NULL,
				     &v->r.why), STATUS_OK);
	ck_assert_uint_gt(l.progress_page_layers, 0);
	free((void *)k.bytes);
	return l;
}

/* In memory. */
static uint64_t uses(struct vram_rig *v, uint64_t n)
{
	struct cache_explained e;

	ck_assert(explain(v, n, &e));
	ck_assert_ptr_nonnull(copy_of(&e, "host", 0));
	return copy_of(&e, "host", 0)->uses;
}

/* Of one whose copies are held the policies are told when they are asked to be, when it ends, and before another lease; else when its copies have come. */
START_TEST(a_late_lease_is_told_of)
{
	enum status statuses[VR_EXTENT_SLOTS + 1];
	struct cache_leased l, other;
	struct cache_place p[2];
	struct vram_rig v;
	double requests;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32 });
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 10), 10);
	ck_assert_uint_eq(vr_put(&v, 0, 100, VR_EXTENT_SLOTS + 1), VR_EXTENT_SLOTS + 1); /* the GPU has two extents now */
	rig_quiet(&v.r);
	ck_assert_int_eq(rig_delete(&v.r, 100, VR_EXTENT_SLOTS + 1, statuses), STATUS_OK);
	ck_assert_uint_eq(uses(&v, 0), 0);
	requests = rig_stat(&v.r, "terrace_requests_total", "");
	vr_hold(&v, 0, 0);
	l = lease_late(&v, 0);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_requests_total", ""), requests);
	ck_assert_uint_eq(uses(&v, 0), 0);
	cache_leases_notify(v.r.c);
	ck_assert_double_eq(rig_stat(&v.r, "terrace_requests_total", ""), requests + 1);
	ck_assert_uint_eq(uses(&v, 0), 1);
	other = lease_late(&v, 2);
	ck_assert_uint_eq(uses(&v, 2), 0);
	vr_release(&v, &other);
	ck_assert_uint_eq(uses(&v, 2), 1);
	other = lease_late(&v, 4);
	ck_assert_uint_eq(uses(&v, 5), 0);
	vr_release(&v, &l);
	ck_assert_uint_eq(uses(&v, 5), 1);
	vr_release(&v, &other);
	l = lease_late(&v, 6);
	ck_assert_int_eq(vr_lease(&v, CACHE_HOST, 0, 2, true, false, p, &other), STATUS_OK);
	ck_assert_uint_eq(uses(&v, 6), 1);
	vr_release(&v, &other);
	vr_go(&v, 0);
	other = lease_late(&v, 8);
	vr_wait_layers(&v, &other);
	rig_quiet(&v.r);
	ck_assert_uint_eq(uses(&v, 9), 1);
	ck_assert_uint_eq(uses(&v, 0), 2);
	vr_release(&v, &l);
	vr_release(&v, &other);
	vr_close(&v);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { requests_are_told_once, each_gpu_hears_of_its_own, a_lease_of_what_is_coming_is_a_use, why_it_is_there,
				       why_it_left, a_late_lease_is_told_of };

	return rig_main("cache_vram_policy", tests, sizeof(tests) / sizeof(tests[0]));
}
