/* Lists of neighbours, which a device may copy as the rows of fewer, larger copies, and lists of many pieces at places of chance, which it
 * may divide among several engines: part of device.c. */
#include "tests/gpu/device_rig.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Neighbours, over the edge of an extent: `step` apart on one side and side by side on the other, a gap in the middle, the last ones
 * backwards. Nothing between them is touched. */
static void rows_case(struct device_rig *r, uint64_t bytes, uint64_t step, uint32_t parts, bool told)
{
	enum { PAIRS = 24 };
	struct device_pair up[PAIRS], down[PAIRS];
	uint8_t *wanted = malloc(r->bytes);
	uint64_t back = r->bytes / 2, edge = r->range + r->bytes - 7 * bytes;
	struct rig_copy c;

	rig_fill(r->host, r->bytes);
	memcpy(wanted, r->host, r->bytes);
	for (uint32_t i = 0; i < PAIRS; i++) {
		uint64_t from = (i + (i > 9)) * step, to = back + (i < 18 ? i : 18 + PAIRS - 1 - i) * step;

		up[i] = (struct device_pair){ r->host_address + from, edge + i * bytes };
		down[i] = (struct device_pair){ edge + i * bytes, r->host_address + to };
		memcpy(wanted + to, wanted + from, bytes);
	}
	c = (struct rig_copy){ .list = { .pairs = up, .count = PAIRS, .parts = parts, .part_bytes = bytes / parts, .way = DEVICE_UP,
					 .progress = told ? r->words_address : 0, .progress_base = 7 } };
	rig_begin(r, &c);
	CHECK(rig_end(&c) == STATUS_OK);
	CHECK(!told || atomic_load(&r->words[0]) == 7 + parts);
	c = (struct rig_copy){ .list = { .pairs = down, .count = PAIRS, .parts = parts, .part_bytes = bytes / parts, .way = DEVICE_DOWN } };
	rig_begin(r, &c);
	CHECK(rig_end(&c) == STATUS_OK);
	CHECK(memcmp(r->host, wanted, r->bytes) == 0);
	free(wanted);
}

void rig_test_rows(void)
{
	const char *words;
	const struct device_ops *ops = rig_load(&words);
	struct device_extent beside;
	struct device_rig r;
	int fd;

	rig_open(&r, ops, 0);
	EXPECT(ops->extent_make(r.device, r.range + r.bytes, r.bytes, &beside, &fd, &why), STATUS_OK);
	for (int told = 0; told < 2; told++) {
		rows_case(&r, 64 << 10, 64 << 10, 32, told);
		rows_case(&r, 64 << 10, 68 << 10, 4, told);
		rows_case(&r, 4096, 4096 + 16, 2, told);
		rows_case(&r, 48, 64, 1, told);
	}
	ops->extent_drop(r.device, &beside);
	close(fd);
	rig_close(&r);
}

/* Places of chance on the GPU for the pieces of host memory from `first` on. */
static struct device_pair *chance(const struct device_rig *r, uint32_t count, uint64_t piece, uint64_t first, bool up)
{
	struct device_pair *pairs = malloc(count * sizeof(*pairs));

	for (uint32_t i = 0; i < count; i++)
		pairs[i] = (struct device_pair){ r->host_address + first + i * piece, r->range + i * piece };
	for (uint32_t i = count; i > 1; i--) {
		uint32_t other = (uint32_t)(rig_random() % i);
		uint64_t swapped = pairs[i - 1].to;

		pairs[i - 1].to = pairs[other].to;
		pairs[other].to = swapped;
	}
	for (uint32_t i = 0; !up && i < count; i++)
		pairs[i] = (struct device_pair){ pairs[i].to, pairs[i].from };
	return pairs;
}

/* Two lists over each other and one list down behind them; the second one's bytes stay, all of them and nothing else's. */
static void scattered_case(struct device_rig *r, uint32_t count, uint64_t piece)
{
	const uint64_t bytes = count * piece, half = r->bytes / 2;
	struct device_pair *up[2], *down = chance(r, count, piece, 0, false);
	uint8_t *sent = malloc(2 * half), *wanted = malloc(half);
	struct rig_copy c[2], back = { .list = { .pairs = down, .count = count, .parts = 1, .part_bytes = piece, .way = DEVICE_DOWN } };

	CHECK(bytes <= half);
	rig_fill(r->host, 2 * half);
	memcpy(sent, r->host, 2 * half);
	for (int k = 0; k < 2; k++) {
		up[k] = chance(r, count, piece, k * half, true);
		c[k] = (struct rig_copy){ .list = { .pairs = up[k], .count = count, .parts = 1, .part_bytes = piece, .way = DEVICE_UP } };
		rig_begin(r, &c[k]);
	}
	for (int k = 0; k < 2; k++)
		CHECK(rig_end(&c[k]) == STATUS_OK);
	memset(r->host, 0x5a, 2 * half);
	rig_begin(r, &back);
	CHECK(rig_end(&back) == STATUS_OK);
	memset(wanted, 0x5a, half);
	for (uint32_t i = 0; i < count; i++)
		for (uint32_t k = 0; k < count; k++)
			if (down[k].from == up[1][i].to) {
				memcpy(wanted + (down[k].to - r->host_address), sent + (up[1][i].from - r->host_address), piece);
				break;
			}
	CHECK(memcmp(r->host, wanted, half) == 0);
	for (uint64_t i = half; i < 2 * half; i++)
		CHECK(r->host[i] == 0x5a);
	for (int k = 0; k < 2; k++)
		free(up[k]);
	free(down);
	free(sent);
	free(wanted);
}

void rig_test_scattered(void)
{
	const char *words;
	const struct device_ops *ops = rig_load(&words);
	struct device_rig r;

	rig_open(&r, ops, 32 << 20);
	scattered_case(&r, 4096, 4096);
	scattered_case(&r, 1024, 16 << 10);
	scattered_case(&r, 300, 48 << 10);
	scattered_case(&r, 250, 64 << 10);
	scattered_case(&r, 520, 16400);
	scattered_case(&r, 100, 100 << 10);
	rig_close(&r);
}
