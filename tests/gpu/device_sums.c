/* Lists of checksums (store/device.h) against sums that are computed here, bit by bit: pieces of all sizes that begin and end anywhere, many
 * lists at once, what a device refuses, and lists that are under way when the device is closed. Part of device.c. */
#include "tests/gpu/device_rig.h"

#include <string.h>
#include <time.h>

enum { LISTS = 40 };

/* A list and its end. */
struct rig_sums {
	struct device_sums list;
	sem_t ended;
	enum status status;
	uint32_t times;
};

static uint32_t crc32c(const uint8_t *at, uint64_t bytes)
{
	static uint32_t table[256];
	uint32_t r = UINT32_MAX;

	for (uint32_t i = 0; !table[255] && i < 256; i++) {
		table[i] = i;
		for (int bit = 0; bit < 8; bit++)
			table[i] = table[i] & 1 ? (table[i] >> 1) ^ 0x82f63b78u : table[i] >> 1;
	}
	for (uint64_t i = 0; i < bytes; i++)
		r = (r >> 8) ^ table[(r ^ at[i]) & 255];
	return ~r;
}

static void ended(struct device_sums *list, enum status s)
{
	struct rig_sums *c = list->arg;

	c->status = s;
	c->times++;
	sem_post(&c->ended);
}

static enum status sums_try(struct device_rig *r, struct rig_sums *c)
{
	const char *why = "";

	c->list.done = ended;
	c->list.arg = c;
	c->times = 0;
	CHECK(sem_init(&c->ended, 0, 0) == 0);
	return r->ops->sums(r->device, &c->list, &why);
}

static enum status sums_end(struct rig_sums *c)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += RIG_WAIT_S;
	CHECK(sem_timedwait(&c->ended, &until) == 0);
	sem_destroy(&c->ended);
	CHECK(c->times == 1);
	return c->status;
}

/* Places by chance, of what the device has as r->host has it. */
static void sums_case(struct device_rig *r, uint32_t count, uint32_t parts, uint64_t part_bytes)
{
	const uint64_t room = r->bytes - parts * part_bytes;
	uint32_t *sums = malloc((count * parts + 1) * sizeof(*sums));
	uint64_t *at = malloc(count * sizeof(*at));
	struct rig_sums c;

	CHECK(sums && at && parts * part_bytes <= r->bytes);
	for (uint32_t i = 0; i < count; i++)
		at[i] = r->range + (i ? rig_random() % (room / DEVICE_COPY_ALIGN + 1) * DEVICE_COPY_ALIGN : room / DEVICE_COPY_ALIGN * DEVICE_COPY_ALIGN);
	sums[count * parts] = 0x5a5a5a5a;
	c.list = (struct device_sums){ .at = at, .count = count, .parts = parts, .part_bytes = part_bytes, .sums = sums };
	CHECK(sums_try(r, &c) == STATUS_OK);
	CHECK(sums_end(&c) == STATUS_OK);
	for (uint32_t i = 0; i < count * parts; i++)
		CHECK(sums[i] == crc32c(r->host + (at[i / parts] - r->range) + i % parts * part_bytes, part_bytes));
	CHECK(sums[count * parts] == 0x5a5a5a5a);
	free(at);
	free(sums);
}

static void sums_refused(struct device_rig *r)
{
	const uint64_t place = r->range, unaligned = r->range + 8, outside = r->range + r->bytes - 16, host = r->host_address;
	uint32_t sums[4];
	const struct device_sums wrong[] = {
		{ .at = &place, .count = 0, .parts = 1, .part_bytes = 16, .sums = sums },
		{ .at = &place, .count = 1, .parts = 0, .part_bytes = 16, .sums = sums },
		{ .at = &place, .count = 1, .parts = 1, .part_bytes = 0, .sums = sums },
		{ .at = &place, .count = 1, .parts = 1, .part_bytes = DEVICE_SUMS_PART_MAX + 1, .sums = sums },
		{ .at = &place, .count = 1, .parts = DEVICE_SUMS_MAX + 1, .part_bytes = 1, .sums = sums },
		{ .at = &place, .count = 3, .parts = DEVICE_SUMS_MAX / 2, .part_bytes = 1, .sums = sums },
		{ .at = &unaligned, .count = 1, .parts = 1, .part_bytes = 16, .sums = sums },
		{ .at = &outside, .count = 1, .parts = 1, .part_bytes = 17, .sums = sums },
		{ .at = &host, .count = 1, .parts = 1, .part_bytes = 16, .sums = sums },
	};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct rig_sums c = { .list = wrong[i] };

		CHECK(sums_try(r, &c) == STATUS_INVALID);
		CHECK(c.times == 0);
		sem_destroy(&c.ended);
	}
}

/* Several lists at once, while a copy runs beside them. */
static void sums_at_once(struct device_rig *r)
{
	static struct rig_sums lists[LISTS];
	static uint32_t sums[LISTS][8];
	static uint64_t at[LISTS][2];
	const uint64_t half = r->bytes / 2;

	for (uint32_t k = 0; k < LISTS; k++) {
		at[k][0] = r->range + k * 4096;
		at[k][1] = r->range + k * 4096 + 64 * 1024;
		lists[k].list = (struct device_sums){ .at = at[k], .count = 2, .parts = 4, .part_bytes = 1000 + k, .sums = sums[k] };
		CHECK(sums_try(r, &lists[k]) == STATUS_OK);
	}
	CHECK(rig_copy_one(r, DEVICE_UP, r->host_address + half, r->range + half, half) == STATUS_OK);
	for (uint32_t k = 0; k < LISTS; k++) {
		CHECK(sums_end(&lists[k]) == STATUS_OK);
		for (uint32_t i = 0; i < 8; i++)
			CHECK(sums[k][i] == crc32c(r->host + (at[k][i / 4] - r->range) + i % 4 * (1000 + k), 1000 + k));
	}
}

/* Each list ends once. */
static void sums_closed(const struct device_ops *ops)
{
	static struct rig_sums lists[LISTS];
	static uint32_t sums[LISTS][64];
	struct device_rig r;
	uint32_t begun = 0;

	rig_open(&r, ops, 0);
	for (; begun < LISTS; begun++) {
		lists[begun].list = (struct device_sums){ .at = &r.range, .count = 1, .parts = 64, .part_bytes = r.bytes / 64, .sums = sums[begun] };
		CHECK(sums_try(&r, &lists[begun]) == STATUS_OK);
	}
	ops->close(r.device);
	for (uint32_t k = 0; k < begun; k++) {
		const enum status s = sums_end(&lists[k]);

		CHECK(s == STATUS_OK || s == STATUS_CANCELLED);
	}
}

/* A device may have no code for sums: then it says so of each list, and there is nothing to test. */
static bool makes_sums(struct device_rig *r)
{
	uint32_t sum = 0;
	struct rig_sums c = { .list = { .at = &r->range, .count = 1, .parts = 1, .part_bytes = 1, .sums = &sum } };
	const enum status s = sums_try(r, &c);

	if (s == STATUS_OK) {
		CHECK(sums_end(&c) == STATUS_OK);
		return true;
	}
	CHECK(s == STATUS_UNSUPPORTED || s == STATUS_EXHAUSTED);
	CHECK(c.times == 0);
	sem_destroy(&c.ended);
	printf("     sums: not on this device\n");
	return false;
}

void rig_test_sums(void)
{
	static const uint64_t sizes[] = { 1, 2, 3, 15, 16, 17, 31, 511, 512, 513, 4095, 4096, 4097, 17408, 32767, 32768, 32769, 65536 + 5, 1048576 - 3 };
	const char *words;
	const struct device_ops *ops = rig_load(&words);
	struct device_rig r;

	if (!ops->sums) {
		printf("     sums: not of this device\n");
		return;
	}
	rig_open(&r, ops, 0);
	if (!makes_sums(&r)) {
		rig_close(&r);
		return;
	}
	rig_fill(r.host, r.bytes);
	CHECK(rig_copy_one(&r, DEVICE_UP, r.host_address, r.range, r.bytes) == STATUS_OK);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		sums_case(&r, 1, 1, sizes[i]);
		sums_case(&r, 5, 3, sizes[i]);
	}
	sums_case(&r, 1, 1, r.bytes);
	sums_case(&r, 64, DEVICE_SUMS_MAX / 64, 48);
	sums_case(&r, DEVICE_SUMS_MAX, 1, 33);
	sums_refused(&r);
	sums_at_once(&r);
	rig_close(&r);
	sums_closed(ops);
}
