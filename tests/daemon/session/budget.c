/* Layouts whose block some tier can never have: what is refused when a session opens, what is told then, and what calls
 * that name such a GPU say. */
#include "daemon/session/budget.h"

#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/call/lease.h"
#include "daemon/call/reserve.h"
#include "daemon/call/warm.h"
#include "daemon/session/attachment.h"
#include "daemon/session/open.h"
#include "kernels/format.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>

/* Of so many layers of 64 KiB each. */
static struct kv_layout layers(uint32_t n)
{
	struct kv_layout l = vr_layout(0);

	l.layers = n;
	return l;
}

static enum status open_session(struct rig *r, uint32_t n, struct cache_session_view *v)
{
	const struct kv_layout l[2] = { layers(1), layers(n) };

	return cache_session_open(r->c, &(struct cache_open_call){ .tenant = "", .layouts = l, .layout_count = 2,
			.engine = "", .now_us = r->now }, v, &r->why);
}

/* ---- host memory ---- */

static void host_refuses(const struct cache_options *o, uint32_t fits, const char *place, const char *option)
{
	struct cache_session_view v = { .id = 99 };
	char extent[32];
	struct rig r;

	rig_open(&r, o, 1);
	ck_assert_int_eq(open_session(&r, fits, &v), STATUS_OK);
	v.id = 99;
	ck_assert_int_eq(open_session(&r, fits + 1, &v), STATUS_INVALID);
	ck_assert_uint_eq(v.id, 99);
	snprintf(extent, sizeof(extent), "takes %u bytes of", ((fits + 1) << 16) + SLOT_HEADER_BYTES);
	ck_assert_msg(strstr(r.why, "layouts[1]") && strstr(r.why, extent), "%s", r.why);
	ck_assert_msg(strstr(r.why, place) && strstr(r.why, option), "%s", r.why);
	rig_close(&r);
}

START_TEST(what_host_memory_can_never_have_is_refused)
{
	struct cache_options o = rig_options(1);

	o.granule_bytes = 64 << 10;
	o.host_bytes = 8 << 20;
	o.extent_bytes = 1 << 20;
	host_refuses(&o, 15, "an extent has 1048576 at most", ": raise extent_bytes");
	o.extent_bytes = o.host_bytes = 1 << 20;
	host_refuses(&o, 15, "an extent has 1048576 at most", ": raise host_bytes");
	o.host_bytes = 8 << 20;
	o.extent_bytes = 4 << 20;
	o.pinned_bytes_max = 1 << 20;
	host_refuses(&o, 15, "leases and reservations may hold 1048576 at most", ": raise pinned_share or host_bytes");
}
END_TEST

/* What the rule lets pass is stored. */
START_TEST(what_fits_is_stored)
{
	struct cache_options o = rig_options(1);
	const struct kv_layout l = layers(15);
	struct rig r;

	o.granule_bytes = 64 << 10;
	o.host_bytes = 8 << 20;
	o.extent_bytes = 1 << 20;
	o.pinned_bytes_max = 1 << 20;
	rig_open_layouts(&r, &o, &l, 1);
	ck_assert_uint_eq(rig_put(&r, 0, 1), 1);
	rig_close(&r);
}
END_TEST

/* ---- GPUs and disks ---- */

struct told {
	uint32_t gpus, disks;          /* a bit each */
	char why[2][320];              /* of the last GPU and disk */
};

static void note(void *arg, const struct cache_unfit *u)
{
	struct told *t = arg;

	ck_assert_int_eq((u->gpu < 0) + (u->disk < 0), 1);
	t->gpus |= u->gpu >= 0 ? 1u << u->gpu : 0;
	t->disks |= u->disk >= 0 ? 1u << u->disk : 0;
	snprintf(t->why[u->gpu < 0], sizeof(t->why[0]), "%s", u->why);
}

static struct told told_of(struct cache *c, uint64_t session)
{
	struct told t = { .gpus = 0 };

	cache_unfit(c, session, note, &t);
	return t;
}

static void says(const char *why, const char *place, const char *option)
{
	ck_assert_msg(strstr(why, "layouts[0]") && strstr(why, place) && strstr(why, option), "%s", why);
}

/* Host memory in extents of 4 MiB; two GPUs of 2 MiB; if `disks` is not NULL, one of 1 MiB and one of 8. A session over
 * one layout of so many layers of 64 KiB. */
static void open_small(struct vram_rig *v, struct rig_disks *disks, uint32_t n)
{
	static const uint32_t ordinals[2] = { 0, 1 };
	struct cache_options o = disks ? rig_disk_options(disks, 2, 1) : rig_options(1);
	const struct kv_layout l = layers(n);

	if (disks) {
		disks->disk[0].bytes = 1 << 20;
		disks->disk[1].bytes = 8 << 20;
		o.slab_bytes = 1 << 20;
	}
	setenv("SIM_GPU_DEVICES", "2", 1);
	o.granule_bytes = 64 << 10;
	o.host_bytes = 32 << 20;
	o.extent_bytes = 4 << 20;
	o.device_ops = terrace_device_ops();
	o.gpus = ordinals;
	o.gpu_count = 2;
	o.gpu_bytes = 2 << 20;
	o.gpu_pinned_milli = 1000;
	*v = (struct vram_rig){ .progress_page = NULL };
	rig_open_layouts(&v->r, &o, &l, 1);
	cache_attach_watch(v->r.c, v->r.attachment, pidfd_open(getpid(), 0));
}

/* Both GPUs are looked at, and a disk alone that is too small. */
START_TEST(gpus_and_disks_are_told)
{
	static const struct {
		uint32_t layers, gpus, disks;
	} row[] = { { 15, 0, 0 }, { 16, 0, 1 }, { 31, 0, 1 }, { 33, 3, 1 }, { 60, 3, 1 } };
	struct rig_disks disks;
	struct vram_rig v;

	for (uint32_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		rig_disks_make(&disks, NULL, 2, 64);
		open_small(&v, &disks, row[i].layers);
		const struct told t = told_of(v.r.c, v.r.s.id);

		ck_assert_msg(t.gpus == row[i].gpus && t.disks == row[i].disks, "%u layers: GPUs %x, disks %x: %s",
			      row[i].layers, t.gpus, t.disks, t.why[0]);
		if (t.gpus)
			says(t.why[0], "of GPU 1, and an extent has 2097152 at most", ": raise gpu_bytes");
		if (t.disks)
			says(t.why[1], "of disk 0, and a slab that takes all of it has 1044480 at most",
			     ": raise its size in disks");
		ck_assert_uint_eq(rig_put(&v.r, 0, 1), 1);
		rig_close(&v.r);
		rig_disks_remove(&disks);
	}
}
END_TEST

static enum status lease_on(struct rig *r, const struct cache_on *on, struct cache_place *place)
{
	const struct cache_keys k = rig_keys(0, 1);
	struct cache_leased leased;
	enum status s = cache_lease(r->c, &(struct cache_lease_call){ .session = r->s.id, .keys = &k, .all = true,
			.on = on, .now_us = r->now, .places = place, .places_max = 1 }, &leased, NULL, &r->why);

	free((void *)k.bytes);
	return s;
}

/* As long as host memory will do, the GPU is not asked. */
START_TEST(calls_that_name_such_a_gpu_are_refused)
{
	const struct cache_keys k = rig_keys(0, 1);
	struct cache_on on = { .gpu = 1 };
	struct cache_place place;
	struct vram_rig v;
	enum status status;
	uint64_t id = 0;
	uint32_t blocks;

	open_small(&v, NULL, 40);
	on.attachment = v.r.attachment;
	ck_assert_uint_eq(rig_put(&v.r, 0, 1), 1);
	ck_assert_int_eq(vr_reserve(&v, 1, 1, 1, &status, &id, &place), STATUS_INVALID);
	says(v.r.why, "GPU 1", "gpu_bytes");
	ck_assert_int_eq(lease_on(&v.r, &on, &place), STATUS_INVALID);
	says(v.r.why, "GPU 1", "gpu_bytes");
	ck_assert_int_eq(cache_warm(v.r.c, &(struct cache_warm_call){ .session = v.r.s.id, .keys = &k, .gpu = 1,
			.now_us = v.r.now }, NULL, &blocks, &v.r.why), STATUS_INVALID);
	says(v.r.why, "GPU 1", "gpu_bytes");
	on.or_host = true;
	ck_assert_msg(lease_on(&v.r, &on, &place) == STATUS_OK, "%s", v.r.why);
	ck_assert(rig_matches(rig_block(&v.r, &place), v.r.s.block_bytes[0], 0, 0));
	free((void *)k.bytes);
	rig_close(&v.r);
}
END_TEST

/* A block that is nearly all that the GPU has. */
START_TEST(what_is_not_too_large_is_put_on_a_gpu)
{
	struct vram_rig v;

	open_small(&v, NULL, 31);
	ck_assert_uint_eq(vr_put(&v, 1, 0, 1), 1);
	rig_close(&v.r);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		what_host_memory_can_never_have_is_refused, what_fits_is_stored, gpus_and_disks_are_told,
		calls_that_name_such_a_gpu_are_refused, what_is_not_too_large_is_put_on_a_gpu,
	};

	return rig_main("cache_budget", tests, sizeof(tests) / sizeof(tests[0]));
}
