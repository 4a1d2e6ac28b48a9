/* Blocks that are lent to other members (daemon/call/loan.h): what is lent stays until the loan ends, and no longer;
 * what is read is what was committed, header and all; each address has its share. */
#include "daemon/block/block.h"
#include "daemon/block/key.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/peer.h"
#include "daemon/block/quota.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/cache.h"
#include "daemon/call/delete.h"
#include "daemon/call/loan.h"
#include "daemon/call/stream.h"
#include "store/slot.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <stdlib.h>
#include <string.h>

enum { HOST = 256, NAMES = 8, HOLD_US = 2 * 1000 * 1000 };

static struct rig r;
static const struct cache_peer addresses[2] = { { .user = { 1, 1 } }, { .user = { 2, 2 } } };

static void ready(void *arg)
{
	(void)arg;
}

/* Lends `count` blocks from that key on to an address; returns how many. */
static uint32_t lend(uint32_t address, uint64_t first, uint32_t count, struct cache_loan *out, bool *lent)
{
	const struct cache_keys keys = rig_keys(first, count);
	struct index_ident name[HOST];
	const char *why = NULL;

	for (uint32_t i = 0; i < count; i++)
		block_ident(r.c->pools[0], keys.bytes + i * keys.key_bytes, keys.key_bytes, &name[i]);
	const struct cache_loan_call q = { &addresses[address], name, count, HOLD_US, r.now };
	const enum status s = cache_lend(r.c, &q, out, lent, &why);

	free((void *)keys.bytes);
	ck_assert(s == STATUS_OK || (s == STATUS_EXHAUSTED && why && !out->handle && !out->blocks));
	return out->blocks;
}

static enum status read_one(uint64_t loan, uint32_t tenant, uint32_t index, struct cache_read *out)
{
	struct cache_wait wait = { .ready = ready };
	const struct cache_loan_read q = { tenant, loan, index, r.now };
	enum status s;

	while ((s = cache_loan_read_begin(r.c, &q, out, &wait, &r.why)) == STATUS_BUSY)
		rig_tick(r.c, r.now);
	cache_wait_end(r.c, &wait);
	return s;
}

/* What is read is a slot of that block. */
static void read_is(uint64_t loan, uint32_t index, uint64_t n)
{
	const struct layout_pool *p = r.c->pools[0];
	uint8_t key[RIG_KEY_BYTES];
	struct slot_ident ident;
	struct cache_read read;
	struct slot_header h;

	ck_assert_int_eq(read_one(loan, addresses[0].tenant, index, &read), STATUS_OK);
	ck_assert_int_eq(cache_read_check(r.c, &read, &h), STATUS_OK);
	rig_key(key, n);
	block_slot_ident(p, key, sizeof(key), &ident);
	ck_assert_int_eq(slot_header_match(&h, &ident, 0), STATUS_OK);
	ck_assert_int_eq(slot_block_check(&h, read.block), STATUS_OK);
	ck_assert(rig_matches(read.block, p->geometry.block_bytes, n, 0));
	cache_read_end(r.c, &read);
}

static uint64_t pinned(void)
{
	uint64_t bytes;

	cache_lock(r.c);
	bytes = tenant_of_number(r.c, 0)->pinned_bytes;
	cache_unlock(r.c);
	return bytes;
}

START_TEST(what_is_there_is_lent)
{
	const struct cache_options o = rig_options(HOST);
	struct cache_loan loan;
	struct cache_read read;
	bool lent[NAMES + 2];

	rig_open(&r, &o, 1);
	ck_assert_uint_eq(rig_put(&r, 1, NAMES), NAMES);
	ck_assert_uint_eq(lend(0, 0, NAMES + 2, &loan, lent), NAMES);
	for (uint32_t i = 0; i < NAMES + 2; i++)
		ck_assert_int_eq(lent[i], i >= 1 && i <= NAMES);
	ck_assert_uint_eq(loan.bytes, NAMES * RIG_SLOT_BYTES);
	ck_assert_uint_eq(pinned(), NAMES * RIG_SLOT_BYTES);
	for (uint32_t i = 1; i <= NAMES; i++)
		read_is(loan.handle, i, i);
	ck_assert_int_eq(read_one(loan.handle, 0, 0, &read), STATUS_INVALID);
	ck_assert_int_eq(read_one(loan.handle, 0, NAMES + 2, &read), STATUS_INVALID);
	ck_assert_int_eq(read_one(loan.handle, 7, 1, &read), STATUS_NOT_FOUND); /* another tenant's */
	ck_assert_int_eq(cache_loan_return(r.c, 7, loan.handle), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_loan_return(r.c, 0, loan.handle), STATUS_OK);
	ck_assert_int_eq(cache_loan_return(r.c, 0, loan.handle), STATUS_NOT_FOUND);
	ck_assert_int_eq(read_one(loan.handle, 0, 1, &read), STATUS_NOT_FOUND);
	ck_assert_uint_eq(pinned(), 0);
	ck_assert_uint_eq(quota_used(r.c->quota, QUOTA_LOANED), 0);
	rig_check_accounting(r.c);
	rig_close(&r);
}
END_TEST

/* No eviction takes what is lent; after its time it may go. A read that has begun goes on. */
START_TEST(a_loan_holds_for_its_time)
{
	const struct cache_options o = rig_options(HOST);
	struct cache_loan loan;
	struct cache_read read;
	struct slot_header h;
	bool lent[4];

	rig_open(&r, &o, 1);
	ck_assert_uint_eq(rig_put(&r, 0, 4), 4);
	ck_assert_uint_eq(lend(0, 0, 4, &loan, lent), 4);
	rig_put(&r, 1000, 2 * HOST);
	ck_assert_uint_eq(rig_prefix(&r, 0, 4), 4);
	ck_assert_int_eq(read_one(loan.handle, 0, 3, &read), STATUS_OK);
	r.now += HOLD_US - 1;
	rig_tick(r.c, r.now);
	read_is(loan.handle, 2, 2);
	r.now++;
	rig_tick(r.c, r.now);
	ck_assert_int_eq(cache_loan_return(r.c, 0, loan.handle), STATUS_NOT_FOUND);
	ck_assert_uint_eq(pinned(), RIG_SLOT_BYTES);
	ck_assert_int_eq(cache_read_check(r.c, &read, &h), STATUS_OK);
	ck_assert_uint_eq(pinned(), RIG_SLOT_BYTES); /* the bytes are read where they lie */
	cache_read_end(r.c, &read);
	ck_assert_uint_eq(pinned(), 0);
	rig_put(&r, 2000, 2 * HOST);
	ck_assert_uint_eq(rig_prefix(&r, 0, 4), 0);
	rig_close(&r);
}
END_TEST

/* All loans have a share of memory, and one address does not get all of it. */
START_TEST(loans_are_bounded)
{
	struct cache_options o = rig_options(HOST);
	struct cache_loan loan[3];
	bool lent[HOST];
	uint32_t first, second;

	rig_open(&r, &o, 1);
	ck_assert_uint_eq(rig_put(&r, 0, HOST / 2), HOST / 2);
	first = lend(0, 0, HOST / 2, &loan[0], lent);
	ck_assert_uint_ge(first, 1);
	ck_assert_uint_le(first * RIG_SLOT_BYTES, o.host_bytes / LOAN_SHARE);
	second = lend(1, 0, HOST / 2, &loan[1], lent);
	ck_assert_uint_ge(second, 1); /* another address still gets some */
	ck_assert_uint_le((first + second) * RIG_SLOT_BYTES, o.host_bytes / LOAN_SHARE);
	ck_assert_uint_eq(lend(0, 0, HOST / 2, &loan[2], lent), 0);
	cache_lock(r.c);
	loans_end(r.c);
	cache_unlock(r.c);
	ck_assert_uint_eq(pinned(), 0);
	rig_close(&r);
}
END_TEST

/* A deleted block that is lent is a miss; its slot is free when the loan ends. */
START_TEST(a_deleted_block_is_a_miss)
{
	const struct cache_options o = rig_options(HOST);
	struct cache_loan loan;
	struct cache_read read;
	enum status s[2];
	bool lent[2];

	rig_open(&r, &o, 1);
	ck_assert_uint_eq(rig_put(&r, 0, 2), 2);
	ck_assert_uint_eq(lend(0, 0, 2, &loan, lent), 2);
	rig_delete(&r, 1, 1, s);
	ck_assert_int_eq(s[0], STATUS_OK);
	ck_assert_int_eq(read_one(loan.handle, 0, 1, &read), STATUS_MISS);
	read_is(loan.handle, 0, 0);
	ck_assert_int_eq(cache_loan_return(r.c, 0, loan.handle), STATUS_OK);
	rig_check_accounting(r.c);
	rig_close(&r);
}
END_TEST

/* A block that an engine has written to is not sent: it is dropped, and nothing stays pinned or charged. */
START_TEST(a_damaged_block_is_a_miss)
{
	const struct cache_options o = rig_options(HOST);
	struct cache_loan loan;
	struct cache_read read;
	struct slot_header h;
	bool lent[2];

	rig_open(&r, &o, 1);
	ck_assert_uint_eq(rig_put(&r, 0, 2), 2);
	ck_assert_uint_eq(lend(0, 0, 2, &loan, lent), 2);
	ck_assert_int_eq(read_one(loan.handle, 0, 1, &read), STATUS_OK);
	((uint8_t *)(uintptr_t)read.block)[read.block_bytes - 1] ^= 1;
	ck_assert_int_eq(cache_read_check(r.c, &read, &h), STATUS_CORRUPT);
	cache_read_end(r.c, &read);
	ck_assert_uint_eq(quota_used(r.c->quota, QUOTA_COPIES), 0);
	ck_assert_int_eq(read_one(loan.handle, 0, 1, &read), STATUS_MISS);
	ck_assert_uint_eq(rig_prefix(&r, 0, 2), 1);
	read_is(loan.handle, 0, 0);
	ck_assert_int_eq(cache_loan_return(r.c, 0, loan.handle), STATUS_OK);
	ck_assert_uint_eq(pinned(), 0);
	rig_check_accounting(r.c);
	rig_close(&r);
}
END_TEST

/* What a disk alone has is lent too, and comes to memory when it is read. */
START_TEST(what_a_disk_has_is_lent)
{
	struct rig_disks d;
	struct cache_options o;
	struct cache_loan loan;
	enum status s[2];
	bool lent[4];

	rig_disks_make(&d, NULL, 1, 256);
	o = rig_disk_options(&d, 1, 64);
	rig_open(&r, &o, 1);
	ck_assert_uint_eq(rig_put(&r, 0, 2), 2);
	ck_assert_int_eq(rig_flush(&r, 0, 2, s), STATUS_OK);
	rig_put_slowly(&r, 100, 128);
	rig_quiet(&r);
	ck_assert_uint_eq(rig_prefix(&r, 0, 2), 2);
	ck_assert_uint_eq(lend(0, 0, 2, &loan, lent), 2);
	read_is(loan.handle, 0, 0);
	read_is(loan.handle, 1, 1);
	ck_assert_int_eq(cache_loan_return(r.c, 0, loan.handle), STATUS_OK);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { what_is_there_is_lent, a_loan_holds_for_its_time, loans_are_bounded,
				       a_deleted_block_is_a_miss, a_damaged_block_is_a_miss, what_a_disk_has_is_lent };

	return rig_main("cache_loan", tests, sizeof(tests) / sizeof(tests[0]));
}
