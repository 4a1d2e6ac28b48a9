/* What a tenant's blocks may take of disks, and keep: its share, its cap, and what a restart knows of them. */
#include "daemon/block/values.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <stdlib.h>

enum { DEFAULT = 1, BETA = 7, HOST = 512 };

/* One disk and two tenants: `default`, which has neither share nor cap, and beta. */
struct shares {
	struct rig_disks d;
	struct cache_options o;
	struct cache_tenant_options tenants[2];
	struct rig other, beta;        /* sessions over blocks of one slot */
};

/* A layout whose slots have so many pages of 4 KiB, from 2 on. */
static struct kv_layout pages_layout(uint32_t pages)
{
	struct kv_layout l = rig_layout(pages, 0);

	l.heads = l.total_heads = 7 * (pages - 1); /* of 576 bytes each */
	return l;
}

static void shares_make(struct shares *s, uint32_t slots)
{
	rig_disks_make(&s->d, NULL, 1, slots);
	s->o = rig_disk_options(&s->d, 1, HOST);
	s->o.extent_bytes = 256 << 10;
	s->o.tenants = s->tenants;
	s->o.tenant_count = 2;
	s->o.spill_share_milli = 1000; /* all is spilled */
	for (uint32_t i = 0; i < 2; i++)
		s->tenants[i] = (struct cache_tenant_options){
			.name = i ? "beta" : "default", .number = i ? BETA : DEFAULT,
			.pinned_bytes_max = UINT64_MAX / 4, .host_bytes = s->o.host_bytes / 2,
		};
}

static void shares_open(struct shares *s)
{
	const struct kv_layout l = pages_layout(2);

	rig_open_layouts(&s->other, &s->o, &l, 1);
	rig_restored(&s->other);
	rig_join_tenant(&s->beta, &s->other, BETA, &l, 1);
}

static void shares_remove(struct shares *s)
{
	rig_close(&s->other);
	rig_disks_remove(&s->d);
}

/* Of what was put before, memory has nothing from now on. */
static void shares_again(struct shares *s)
{
	rig_close(&s->other);
	shares_open(s);
}

/* Both clocks are the cache's. */
static void later(struct shares *s, uint64_t us)
{
	s->other.now += us;
	s->beta.now = s->other.now;
	rig_tick(s->other.c, s->other.now);
}

/* Puts that other blocks push out of memory again, so that disks alone have those before. */
static void put_through(struct shares *s, struct rig *r, uint64_t first, uint32_t count)
{
	for (uint32_t i = 0; i < count; i += 8) {
		rig_put_slowly(r, first + i, 8);
		later(s, 1000000);
		r->now = s->other.now;
	}
}

/* What a Flush of everything promised a tenant is known after a restart: its flushed blocks outlast those that come
 * later and are not flushed. */
START_TEST(promises_outlast_a_restart)
{
	enum { KEPT = 32 };
	struct shares s;

	shares_make(&s, 128);
	shares_open(&s);
	rig_put_slowly(&s.beta, 0, KEPT);
	ck_assert_int_eq(rig_flush(&s.beta, 0, 0, NULL), STATUS_OK);
	shares_again(&s);
	ck_assert_uint_eq(rig_read_all(&s.beta, 0, KEPT), KEPT);
	put_through(&s, &s.beta, 1000, 1200);
	ck_assert_uint_eq(rig_read_all(&s.beta, 0, KEPT), KEPT);
	shares_remove(&s);
}
END_TEST

int main(void)
{
	const TTest *tests[] = {
		promises_outlast_a_restart,
	};

	return rig_main("cache_disk_shares", tests, sizeof(tests) / sizeof(tests[0]));
}
