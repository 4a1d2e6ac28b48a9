/* Memory that is written over after its commit: whoever takes bytes out of it finds that, and the block is a miss.
 *
 * Each test that loops does so over the rows of `damages`: what a stray write may hit, from a bit of the block to a header that was made anew with
 * right checksums, which the daemon alone can tell from the one that was committed.
 */
#include "daemon/block/check.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/quota.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/call/commit.h"
#include "daemon/call/inspect.h"
#include "daemon/call/lease.h"
#include "daemon/call/reserve.h"
#include "daemon/call/stream.h"
#include "daemon/disk/compact.h"
#include "daemon/session/attachment.h"
#include "daemon/session/end.h"
#include "kernels/format.h"
#include "store/ring/ring.h"
#include "store/slot.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"
#include "tests/daemon/scribble_rig.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HOST = 64, DISK = 512, HALF = RIG_TOKENS / 2 };

/* ---- what is written ---- */

static void hit_first(uint8_t *slot, uint64_t block_bytes)
{
	(void)block_bytes;
	slot[SLOT_HEADER_BYTES] ^= 1;
}

/* Of a block that is not full: behind its tokens. */
static void hit_tail(uint8_t *slot, uint64_t block_bytes)
{
	slot[SLOT_HEADER_BYTES + block_bytes - 1] ^= 0x80;
}

static void hit_all(uint8_t *slot, uint64_t block_bytes)
{
	memset(slot, 0xff, SLOT_HEADER_BYTES + block_bytes);
}

static void hit_sum(uint8_t *slot, uint64_t block_bytes)
{
	(void)block_bytes;
	slot[offsetof(struct slot_header, layer_crc)] ^= 1;
}

static void hit_key(uint8_t *slot, uint64_t block_bytes)
{
	(void)block_bytes;
	slot[offsetof(struct slot_header, key)] ^= 1;
}

static void hit_length(uint8_t *slot, uint64_t block_bytes)
{
	const uint32_t layers = UINT32_MAX;
	const uint64_t bytes = UINT64_MAX / 2;

	(void)block_bytes;
	memcpy(slot + offsetof(struct slot_header, layers), &layers, sizeof(layers));
	memcpy(slot + offsetof(struct slot_header, layer_bytes), &bytes, sizeof(bytes));
}

static void hit_tokens(uint8_t *slot, uint64_t block_bytes)
{
	struct slot_header *h = (struct slot_header *)slot;

	(void)block_bytes;
	h->tokens = 1;
	scribble_reseal(slot, h->generation);
}

static void hit_and_reseal(uint8_t *slot, uint64_t block_bytes)
{
	hit_first(slot, block_bytes);
	scribble_reseal(slot, ((struct slot_header *)slot)->generation);
}

static void hit_generation(uint8_t *slot, uint64_t block_bytes)
{
	(void)block_bytes;
	scribble_reseal(slot, ((struct slot_header *)slot)->generation + 1);
}

static const struct damage {
	const char *name;
	scribble_fn *hit;
} damages[] = {
	{ "the tail", hit_tail },
	{ "the block, resealed", hit_and_reseal },
	{ "a layer's sum", hit_sum },
	{ "all of the slot", hit_all },
	{ "the first byte", hit_first },
	{ "the key", hit_key },
	{ "the length", hit_length },
	{ "the tokens, resealed", hit_tokens },
	{ "the generation, resealed", hit_generation },
};
enum { DAMAGES = sizeof(damages) / sizeof(damages[0]) };
/* So many of the first of them with disks, as each run takes its time. */
#ifdef TERRACE_SANITIZED
enum { WITH_DISKS = 2 };
#else
enum { WITH_DISKS = 4 };
#endif

/* ---- where it is written ---- */

/* Half full blocks; the zeroes behind their tokens are theirs all the same. */
static void put_halves(struct rig *r, uint64_t first, uint32_t count)
{
	struct cache_keys k = rig_keys(first, count);
	struct slot_info info[HOST] = { 0 };
	struct cache_commit_item item[HOST] = { 0 };
	struct cache_place p[HOST];
	enum status st[HOST];
	uint64_t id[HOST];

	for (uint32_t i = 0; i < count; i++)
		info[i].tokens = HALF;
	ck_assert_int_eq(cache_reserve(r->c, &(struct cache_reserve_call){ .session = r->s.id, .keys = &k,
			.info = info, .on = &(struct cache_on){ .attachment = r->attachment,
								.gpu = CACHE_HOST }, .may_grow = true,
			.now_us = r->now, .statuses = st, .reservations = id, .places = p,
			.places_max = count }, &r->why), STATUS_OK);
	for (uint32_t i = 0; i < count; i++) {
		ck_assert_int_eq(st[i], STATUS_OK);
		rig_fill(rig_block(r, &p[i]), r->s.block_bytes[0], first + i, 0);
		item[i].reservation = id[i];
	}
	ck_assert_int_eq(cache_commit(r->c, &(struct cache_commit_call){ .session = r->s.id, .items = item,
			.count = count, .now_us = r->now, .unix_ms = 1, .statuses = st }, NULL, &r->why),
			 STATUS_OK);
	free((void *)k.bytes);
}

/* The block's slot of memory, by a lease, as an engine knows it. */
static uint8_t *slot_of(struct rig *r, uint64_t n)
{
	struct cache_leased leased;
	struct cache_place place;

	ck_assert_int_eq(rig_lease(r, n, 1, true, &place, &leased), STATUS_OK);
	ck_assert_int_eq(cache_release(r->c, r->s.id, leased.lease), STATUS_OK);
	return rig_block(r, &place) - SLOT_HEADER_BYTES;
}

static void scribble(struct rig *r, uint64_t n, int damage)
{
	damages[damage].hit(slot_of(r, n), r->s.block_bytes[0]);
}

static void nobody(void *arg)
{
	(void)arg;
}

/* By Get's own way, again when memory was wrong. OK: the bytes are right. */
static enum status get(struct rig *r, uint64_t n)
{
	struct cache_wait w = { .ready = nobody };
	uint8_t key[RIG_KEY_BYTES], copy[RIG_SLOT_BYTES];
	struct cache_read read;
	enum status s;
	uint32_t crc;

	rig_key(key, n);
	do {
		while ((s = cache_read_begin(r->c, &(struct cache_stream_call){ .session = r->s.id, .key = key,
				.key_bytes = sizeof(key), .now_us = r->now }, &read, &w,
					     &r->why)) == STATUS_BUSY)
			rig_quiet(r);
		if (s)
			break;
		s = cache_read_copy(r->c, &read, copy, &crc);
		if (!s) {
			ck_assert(rig_matches_to(copy, read.block_bytes, n, 0, read.tokens));
			ck_assert_uint_eq(crc, slot_crc32c(0, copy, read.block_bytes));
		}
		cache_read_end(r->c, &read);
	} while (s == STATUS_CORRUPT);
	cache_wait_end(r->c, &w);
	return s;
}

static double found(struct rig *r, const char *by)
{
	char label[32];

	snprintf(label, sizeof(label), "found=%s", by);
	return rig_stat(r, "terrace_memory_corrupt_blocks_total", label);
}

/* The one note that there is for the log. */
static void check_note(struct rig *r, uint64_t n, const char *finder)
{
	uint8_t key[RIG_KEY_BYTES];
	struct cache_damage d;
	uint64_t untold;

	rig_key(key, n);
	ck_assert(cache_damage_next(r->c, &d, &untold));
	ck_assert_uint_eq(d.key_bytes, RIG_KEY_BYTES);
	ck_assert_mem_eq(d.key, key, RIG_KEY_BYTES);
	ck_assert_str_eq(d.finder, finder);
	ck_assert(!cache_damage_next(r->c, &d, &untold));
	ck_assert_uint_eq(untold, 0);
}

/* ---- Get, Verify, Inspect ---- */

START_TEST(get_has_what_was_committed_or_a_miss)
{
	const struct cache_options o = rig_options(HOST);
	struct rig r;

	rig_open(&r, &o, 1);
	put_halves(&r, 0, 4);
	ck_assert_int_eq(get(&r, 2), STATUS_OK);
	scribble(&r, 2, _i);
	ck_assert_msg(get(&r, 2) == STATUS_MISS, "%s", damages[_i].name);
	ck_assert_double_eq(found(&r, "get"), 1);
	ck_assert_double_eq(rig_stat(&r, "terrace_corrupt_blocks_total", ""), 1);
	check_note(&r, 2, "get");
	ck_assert_uint_eq(rig_prefix(&r, 2, 1), 0);
	ck_assert_int_eq(get(&r, 1), STATUS_OK);
	ck_assert_int_eq(get(&r, 3), STATUS_OK);
	rig_close(&r);
}
END_TEST

/* The copy of what was sent is the reader's own: a write that comes after it was looked at changes nothing of it, and the next reader finds it. */
START_TEST(get_sends_its_own_copy)
{
	const struct cache_options o = rig_options(HOST);
	uint8_t key[RIG_KEY_BYTES], copy[RIG_SLOT_BYTES];
	struct cache_read read;
	struct rig r;
	uint32_t crc;

	rig_open(&r, &o, 1);
	put_halves(&r, 0, 1);
	rig_key(key, 0);
	ck_assert_int_eq(cache_read_begin(r.c, &(struct cache_stream_call){ .session = r.s.id, .key = key,
			.key_bytes = sizeof(key), .now_us = r.now }, &read, NULL, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_read_copy(r.c, &read, copy, &crc), STATUS_OK);
	scribble(&r, 0, _i);
	ck_assert(rig_matches_to(copy, read.block_bytes, 0, 0, read.tokens));
	cache_read_end(r.c, &read);
	ck_assert_int_eq(get(&r, 0), STATUS_MISS);
	rig_close(&r);
}
END_TEST

START_TEST(verify_and_inspect_find_it)
{
	const struct cache_options o = rig_options(HOST);
	struct cache_verified sum = { 0 };
	struct cache_block_view view;
	uint8_t key[RIG_KEY_BYTES];
	uint64_t cursor = 0;
	struct rig r;
	uint32_t n;

	rig_open(&r, &o, 1);
	put_halves(&r, 0, 4);
	scribble(&r, 1, _i);
	rig_key(key, 1);
	ck_assert_int_eq(cache_inspect(r.c, &(struct cache_block_name){ .tenant = "", .key = key,
			.key_bytes = sizeof(key) }, r.now, &view, 1, &n, &r.why), STATUS_OK);
	ck_assert_uint_eq(n, 1);
	ck_assert(!view.checksum_ok);
	ck_assert_uint_eq(view.tokens, HALF);
	ck_assert_uint_eq(view.block_bytes, r.s.block_bytes[0]);
	while (cursor != UINT64_MAX)
		ck_assert_int_eq(cache_verify_step(r.c, &cursor, UINT64_MAX, &sum), STATUS_OK);
	ck_assert_uint_eq(sum.blocks, 4);
	ck_assert_uint_eq(sum.corrupt, 1);
	ck_assert_double_eq(found(&r, "verify"), 1);
	check_note(&r, 1, "verify");
	ck_assert_int_eq(get(&r, 1), STATUS_MISS);
	rig_close(&r);
}
END_TEST

START_TEST(more_than_the_log_has_room_for)
{
	const struct cache_options o = rig_options(2 * HOST);
	struct cache_damage d;
	uint64_t untold, told = 0;
	struct rig r;

	rig_open(&r, &o, 1);
	put_halves(&r, 0, HOST);
	put_halves(&r, HOST, 8);
	for (uint64_t n = 0; n < HOST + 8; n++) {
		scribble(&r, n, 0);
		ck_assert_int_eq(get(&r, n), STATUS_MISS);
	}
	while (cache_damage_next(r.c, &d, &untold))
		told++;
	ck_assert_uint_eq(told, DAMAGES_MAX);
	ck_assert_uint_eq(untold, HOST + 8 - DAMAGES_MAX);
	ck_assert(!cache_damage_next(r.c, &d, &untold));
	ck_assert_uint_eq(untold, 0);
	rig_close(&r);
}
END_TEST

/* ---- spills ---- */

/* What happens to memory around a write, once: before the disk reads it, and after that, before the write's end is told. */
static struct around {
	scribble_fn *before, *after;
	uint64_t key;                  /* of the block; writes of others go on */
	uint64_t block_bytes;
	_Atomic int done;
} around;

static ssize_t write_around(int fd, const void *at, size_t bytes, off_t offset)
{
	const struct slot_header *h = at;
	const bool is = bytes > SLOT_HEADER_BYTES && h->magic == SLOT_MAGIC && !h->tombstone && !memcmp(h->key, &around.key, sizeof(around.key));
	ssize_t written;

	if (is && around.before)
		around.before((uint8_t *)(uintptr_t)at, around.block_bytes);
	written = pwrite(fd, at, bytes, offset);
	if (is && around.after)
		around.after((uint8_t *)(uintptr_t)at, around.block_bytes);
	atomic_fetch_add(&around.done, is);
	return written;
}

static const struct ring_calls calls = { .pwrite = write_around };

static void open_over(struct rig *r, const struct rig_disks *d, uint32_t host_slots, uint32_t spill_milli)
{
	struct cache_options o = rig_disk_options(d, 1, host_slots);

	o.io = CACHE_IO_THREADS;
	o.io_calls = &calls;
	o.spill_share_milli = spill_milli;
	o.sum_threads = 2;
	rig_open(r, &o, 1);
	rig_restored(r);
}

static void open_on(struct rig *r, const struct rig_disks *d, bool background)
{
	open_over(r, d, HOST, background ? 900 : 0);
}

/* Nothing around writes. */
static void disks_make(struct rig_disks *d)
{
	memset(&around, 0, sizeof(around));
	around.key = UINT64_MAX;
	rig_disks_make(d, NULL, 1, DISK);
}

/* In the next run what was answered OK is there, and right, and what was not is a miss. */
static void check_restart(struct rig *r, const struct rig_disks *d, uint64_t lost, uint32_t count)
{
	around.key = UINT64_MAX;
	rig_close(r);
	open_on(r, d, false);
	for (uint64_t n = 0; n < count; n++)
		ck_assert_int_eq(get(r, n), n == lost ? STATUS_MISS : STATUS_OK);
}

static void check_flushed(struct rig *r, uint64_t lost, uint32_t count)
{
	enum status st[HOST];

	ck_assert_int_eq(rig_flush(r, 0, count, st), STATUS_OK);
	for (uint32_t i = 0; i < count; i++)
		ck_assert_int_eq(st[i], i == lost ? STATUS_MISS : STATUS_OK);
}

START_TEST(written_over_before_the_flush)
{
	struct rig_disks d;
	struct rig r;

	disks_make(&d);
	open_on(&r, &d, false);
	put_halves(&r, 0, 8);
	scribble(&r, 5, _i);
	check_flushed(&r, 5, 8);
	ck_assert_double_eq(found(&r, "spill"), 1);
	ck_assert_double_eq(rig_stat(&r, "terrace_spills_total", "status=ok"), 7);
	check_note(&r, 5, "spill");
	check_restart(&r, &d, 5, 8);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* All blocks: those that are dropped are none that are not durable. */
START_TEST(written_over_before_the_flush_of_everything)
{
	struct rig_disks d;
	struct rig r;

	disks_make(&d);
	open_on(&r, &d, false);
	put_halves(&r, 0, 8);
	scribble(&r, 0, _i);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	ck_assert_double_eq(found(&r, "spill"), 1);
	check_restart(&r, &d, 0, 8);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* The disk has read it, and does not say so yet; then it reads what was just written over. */
static void around_the_write(int damage, bool before)
{
	struct rig_disks d;
	struct rig r;

	disks_make(&d);
	open_on(&r, &d, false);
	put_halves(&r, 0, 8);
	around.block_bytes = r.s.block_bytes[0];
	*(before ? &around.before : &around.after) = damages[damage].hit;
	around.key = 3;
	check_flushed(&r, 3, 8);
	ck_assert_int_eq(around.done, 1);
	ck_assert_double_eq(found(&r, "spill"), 1);
	check_restart(&r, &d, 3, 8);
	rig_close(&r);
	rig_disks_remove(&d);
}

START_TEST(written_over_as_the_disk_reads_it)
{
	around_the_write(_i, true);
}
END_TEST

START_TEST(written_over_between_the_write_and_its_answer)
{
	around_the_write(_i, false);
}
END_TEST

/* The one that no check of memory finds: done before the disk read it, and undone before the check. The disk's own checksums find it. */
START_TEST(written_over_and_undone)
{
	struct rig_disks d;
	struct rig r;

	disks_make(&d);
	open_on(&r, &d, false);
	put_halves(&r, 0, 8);
	around.block_bytes = r.s.block_bytes[0];
	around.before = around.after = hit_first;
	around.key = 3;
	check_flushed(&r, UINT64_MAX, 8);
	ck_assert_int_eq(get(&r, 3), STATUS_OK); /* memory's */
	check_restart(&r, &d, 3, 8);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* What the background writes is looked at like what a Flush does. */
START_TEST(written_over_before_a_spill)
{
	struct rig_disks d;
	struct rig r;

	disks_make(&d);
	around.before = damages[_i].hit;
	around.key = 2;
	open_on(&r, &d, true);
	around.block_bytes = r.s.block_bytes[0];
	put_halves(&r, 0, HOST / 2);
	rig_quiet(&r);
	ck_assert_int_eq(around.done, 1);
	ck_assert_double_eq(found(&r, "spill"), 1);
	ck_assert_int_eq(get(&r, 2), STATUS_MISS);
	check_flushed(&r, 2, HOST / 2);
	check_restart(&r, &d, 2, HOST / 2);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* The block goes with its copy in memory, on the disk too, although that was acknowledged; one whose damage is not found before the restart is there. */
START_TEST(written_over_after_the_flush)
{
	struct rig_disks d;
	struct rig r;

	disks_make(&d);
	open_on(&r, &d, false);
	put_halves(&r, 0, 8);
	check_flushed(&r, UINT64_MAX, 8);
	scribble(&r, 6, _i);
	ck_assert_int_eq(get(&r, 6), STATUS_MISS);
	ck_assert_double_eq(found(&r, "get"), 1);
	check_note(&r, 6, "get");
	scribble(&r, 7, _i);
	rig_quiet(&r);
	check_restart(&r, &d, 6, 8);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* A slab that is given up has its blocks copied out of memory: such a copy is looked at as well before it takes the place of the other. Of two slabs
 * the first has fewer blocks left, and the second has room for them. */
START_TEST(written_over_before_a_compaction)
{
	enum { BLOCKS = 96, DELETED = 40, LOST = 50 };
	enum status st[HOST], s;
	struct rig_disks d;
	uint64_t freed;
	struct rig r;

	disks_make(&d);
	open_over(&r, &d, 2 * HOST, 0);
	put_halves(&r, 0, HOST);
	put_halves(&r, HOST, BLOCKS - HOST);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	ck_assert_int_eq(rig_delete(&r, 0, DELETED, st), STATUS_OK);
	scribble(&r, LOST, _i);
	RIG_AWAIT((rig_quiet(&r), (s = cache_compact_step(r.c, 0, 0, &freed)) != STATUS_BUSY));
	ck_assert_int_eq(s, STATUS_OK);
	rig_quiet(&r);
	ck_assert_double_eq(found(&r, "spill"), 1);
	for (int again = 0; again < 2; again++) {
		for (uint64_t n = DELETED; n < BLOCKS; n++)
			ck_assert_int_eq(get(&r, n), n == LOST ? STATUS_MISS : STATUS_OK);
		rig_close(&r);
		open_on(&r, &d, false);
	}
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* ---- loads ---- */

static int on_disk(const struct rig_disks *d, uint64_t n, scribble_fn *hit, uint64_t block_bytes)
{
	return scribble_on_disk(d->folder[0], RIG_SLOT_BYTES, n, hit, block_bytes);
}

/* Out of memory, which keeps the others. */
static void push_out(struct rig *r, uint64_t first)
{
	for (uint32_t i = 0; i < 4 * HOST; i += 8) {
		rig_put(r, first + i, 8);
		rig_quiet(r);
	}
}

/* A copy on disk, too, is held against what the daemon knows of it: one with sums of its own that are right is not the block. */
START_TEST(other_bytes_on_the_disk)
{
	struct rig_disks d;
	struct rig r;

	disks_make(&d);
	open_on(&r, &d, true);
	put_halves(&r, 0, 8);
	check_flushed(&r, UINT64_MAX, 8);
	push_out(&r, 1000);
	ck_assert_int_eq(on_disk(&d, 1, damages[_i].hit, r.s.block_bytes[0]), 1);
	ck_assert_int_eq(get(&r, 1), STATUS_MISS);
	ck_assert_double_eq(rig_stat(&r, "terrace_loads_total", "status=corrupt"), 1);
	ck_assert_int_eq(get(&r, 2), STATUS_OK);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* A disk of an earlier version is read, and what comes from it is held against what it had. */
START_TEST(disks_of_before_open)
{
	struct rig_disks d;
	struct rig r;

	disks_make(&d);
	open_on(&r, &d, true);
	put_halves(&r, 0, 8);
	check_flushed(&r, UINT64_MAX, 8);
	rig_close(&r);
	for (uint64_t n = 0; n < 8; n++)
		ck_assert_int_eq(on_disk(&d, n, scribble_old, 0), 1);
	open_on(&r, &d, true);
	for (uint64_t n = 0; n < 8; n++)
		ck_assert_int_eq(get(&r, n), STATUS_OK);
	push_out(&r, 1000);
	for (uint64_t n = 0; n < 8; n++)
		ck_assert_int_eq(get(&r, n), STATUS_OK);
	scribble(&r, 3, 0);
	ck_assert_int_eq(get(&r, 3), STATUS_MISS);
	ck_assert_double_eq(found(&r, "get"), 1);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* ---- puts by stream ---- */

/* What the client's sum is compared with is what the commit summed. */
START_TEST(a_put_is_what_its_client_sent)
{
	const struct cache_options o = rig_options(HOST);
	uint8_t key[RIG_KEY_BYTES];
	struct cache_write w;
	struct rig r;
	uint32_t crc;

	rig_open(&r, &o, 1);
	rig_key(key, 1);
	for (int changed = 1; changed >= 0; changed--) {
		ck_assert_int_eq(cache_write_begin(r.c, &(struct cache_stream_call){ .session = r.s.id,
				.key = key, .key_bytes = sizeof(key), .now_us = r.now }, &w, &r.why),
				 STATUS_OK);
		rig_fill(w.block, w.block_bytes, 1, 0);
		crc = slot_crc32c(0, w.block, w.block_bytes);
		w.block[w.block_bytes / 2] ^= (uint8_t)changed;
		ck_assert_int_eq(cache_write_end_summed(r.c, r.s.id, &w, crc, r.now, 1), changed ? STATUS_CORRUPT : STATUS_OK);
		ck_assert_uint_eq(rig_prefix(&r, 1, 1), !changed);
	}
	ck_assert_int_eq(get(&r, 1), STATUS_OK);
	rig_close(&r);
}
END_TEST

/* ---- copies of reads have a bound ---- */

enum { WIDE_KIB = 8 * 1024, WIDE_MAX = CACHE_READ_BYTES_MAX / 1024 / WIDE_KIB };

/* Blocks of 8 MiB. */
static struct kv_layout wide(void)
{
	struct kv_layout l = rig_layout(0, 0);

	l.layers = 64;
	l.heads = l.total_heads = 8;
	l.k_format = l.v_format = KV_F16;
	l.block_tokens = 64;
	return l;
}

static enum status read_one(struct rig *r, struct cache_read *read)
{
	uint8_t key[RIG_KEY_BYTES];

	rig_key(key, 0);
	return cache_read_begin(r->c, &(struct cache_stream_call){ .session = r->s.id, .key = key,
			.key_bytes = sizeof(key), .now_us = r->now }, read, NULL, &r->why);
}

START_TEST(reads_leave_room_for_others)
{
	struct cache_options o = rig_options(HOST);
	const struct kv_layout l = wide();
	struct cache_read read[WIDE_MAX + 1], other;
	struct rig r, b;
	int n = 0;

	o.host_bytes = 128 << 20;
	o.extent_bytes = 32 << 20;
	memset(&r, 0, sizeof(r));
	rig_open_layouts(&r, &o, &l, 1);
	ck_assert_uint_eq(r.s.block_bytes[0], WIDE_KIB * 1024);
	ck_assert_uint_eq(rig_put(&r, 0, 1), 1);
	while (n <= WIDE_MAX && read_one(&r, &read[n]) == STATUS_OK)
		n++;
	ck_assert_int_eq(n, WIDE_MAX);
	ck_assert_int_eq(read_one(&r, &other), STATUS_EXHAUSTED);
	ck_assert_ptr_nonnull(strstr(r.why, "read by stream"));
	cache_read_end(r.c, &read[--n]);
	cache_read_end(r.c, &read[n]); /* twice is fine */
	ck_assert_int_eq(read_one(&r, &read[n]), STATUS_OK);
	/* One whose session has ended meanwhile gives back what it has, too. */
	memset(&b, 0, sizeof(b));
	ck_assert_int_eq(cache_session_close(r.c, r.s.id, r.now, &r.why), STATUS_OK);
	for (int i = 0; i <= n; i++)
		cache_read_end(r.c, &read[i]);
	cache_lock(r.c);
	ck_assert_uint_eq(quota_used(r.c->quota, QUOTA_COPIES), 0);
	cache_unlock(r.c);
	rig_close(&r);
}
END_TEST

/* ---- who may write ---- */

static enum status map(struct rig *r, uint64_t attachment, uint32_t extent, bool write)
{
	struct cache_lent lent;
	const enum status s = cache_attach_lend(r->c, attachment, extent, write, &lent);

	if (!s) {
		close(lent.fd);
		cache_attach_unmapped(r->c, attachment, extent);
	}
	return s;
}

START_TEST(memory_is_writable_with_a_reservation_there)
{
	struct cache_options o = rig_options(HOST);
	struct cache_keys k = rig_keys(0, 2);
	struct cache_commit_item item[2] = { 0 };
	struct cache_place place, places[2];
	struct cache_leased leased;
	enum status st[2];
	uint64_t id[2];
	struct rig r, b;

	o.extent_bytes = o.host_bytes;
	rig_open(&r, &o, 1);
	rig_watch(&r, getpid());
	ck_assert_uint_eq(rig_put(&r, 9, 1), 1);
	ck_assert_int_eq(rig_lease(&r, 9, 1, true, &place, &leased), STATUS_OK);
	ck_assert_int_eq(map(&r, r.attachment, place.extent, false), STATUS_OK);
	ck_assert_int_eq(map(&r, r.attachment, place.extent, true), STATUS_PRECONDITION);
	ck_assert_int_eq(cache_reserve(r.c, &(struct cache_reserve_call){ .session = r.s.id, .keys = &k,
			.on = &(struct cache_on){ .attachment = r.attachment, .gpu = CACHE_HOST },
			.may_grow = true, .now_us = r.now, .statuses = st, .reservations = id, .places = places,
			.places_max = 2 }, &r.why), STATUS_OK);
	ck_assert_uint_eq(places[0].extent, place.extent);
	ck_assert_int_eq(map(&r, r.attachment, place.extent, true), STATUS_OK);
	/* Another session's process has none there. */
	rig_join(&b, &r, 1);
	rig_watch(&b, getpid());
	ck_assert_int_eq(map(&b, b.attachment, place.extent, true), STATUS_PRECONDITION);
	ck_assert_int_eq(map(&b, b.attachment, place.extent, false), STATUS_OK);
	ck_assert_int_eq(cache_abort(r.c, r.s.id, id[0]), STATUS_OK);
	ck_assert_int_eq(map(&r, r.attachment, place.extent, true), STATUS_OK); /* the other is there still */
	item[0].reservation = id[1];
	rig_fill(rig_block(&r, &places[1]), r.s.block_bytes[0], 1, 0);
	ck_assert_int_eq(cache_commit(r.c, &(struct cache_commit_call){ .session = r.s.id, .items = item,
			.count = 1, .now_us = r.now, .unix_ms = 1, .statuses = st }, NULL, &r.why), STATUS_OK);
	ck_assert_int_eq(map(&r, r.attachment, place.extent, true), STATUS_PRECONDITION);
	ck_assert_int_eq(cache_release(r.c, r.s.id, leased.lease), STATUS_OK);
	free((void *)k.bytes);
	rig_close(&r);
}
END_TEST

/* Over several extents, in any order: an extent is writable exactly as long as one of the reservations is there. */
START_TEST(each_extent_for_itself)
{
	enum { KEYS = 40 };
	const struct cache_options o = rig_options(HOST);
	struct cache_keys k = rig_keys(0, KEYS);
	struct cache_place places[KEYS];
	enum status st[KEYS];
	uint64_t id[KEYS];
	uint32_t extents = 0;
	struct rig r;

	rig_open(&r, &o, 1);
	rig_watch(&r, getpid());
	ck_assert_int_eq(cache_reserve(r.c, &(struct cache_reserve_call){ .session = r.s.id, .keys = &k,
			.on = &(struct cache_on){ .attachment = r.attachment, .gpu = CACHE_HOST },
			.may_grow = true, .now_us = r.now, .statuses = st, .reservations = id, .places = places,
			.places_max = KEYS }, &r.why), STATUS_OK);
	for (int i = 0; i < KEYS; i++) {
		ck_assert_int_eq(st[i], STATUS_OK);
		extents += !i || places[i].extent != places[i - 1].extent;
	}
	ck_assert_uint_ge(extents, 3);
	for (int n = 0; n < KEYS; n++) {
		const int out = n * 7 % KEYS;

		ck_assert_int_eq(cache_abort(r.c, r.s.id, id[out]), STATUS_OK);
		id[out] = 0;
		for (int i = 0; i < KEYS; i++) {
			bool any = false;

			for (int j = 0; j < KEYS; j++)
				any |= id[j] && places[j].extent == places[i].extent;
			ck_assert_int_eq(map(&r, r.attachment, places[i].extent, true), any ? STATUS_OK : STATUS_PRECONDITION);
		}
	}
	free((void *)k.bytes);
	rig_close(&r);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("cache_scribble");
	TCase *t = tcase_create("scribble");
	const TTest *const over_damages[] = { get_has_what_was_committed_or_a_miss, get_sends_its_own_copy, verify_and_inspect_find_it };
	const TTest *const with_disks[] = {
		written_over_before_the_flush, written_over_before_the_flush_of_everything, written_over_as_the_disk_reads_it,
		written_over_between_the_write_and_its_answer, written_over_before_a_spill, written_over_after_the_flush,
		written_over_before_a_compaction, other_bytes_on_the_disk,
	};
	const TTest *const once[] = {
		more_than_the_log_has_room_for, written_over_and_undone, disks_of_before_open, a_put_is_what_its_client_sent,
		reads_leave_room_for_others, memory_is_writable_with_a_reservation_there,
		each_extent_for_itself,
	};

	tcase_set_timeout(t, 120);
	for (size_t i = 0; i < sizeof(over_damages) / sizeof(over_damages[0]); i++)
		tcase_add_loop_test(t, over_damages[i], 0, DAMAGES);
	for (size_t i = 0; i < sizeof(with_disks) / sizeof(with_disks[0]); i++)
		tcase_add_loop_test(t, with_disks[i], 0, WITH_DISKS);
	for (size_t i = 0; i < sizeof(once) / sizeof(once[0]); i++)
		tcase_add_test(t, once[i]);
	suite_add_tcase(s, t);
	SRunner *runner = srunner_create(s);

	srunner_run_all(runner, CK_ENV);
	const int failed = srunner_ntests_failed(runner);

	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
