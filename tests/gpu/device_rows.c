/* Lists of neighbours, which a device may copy as the rows of fewer, larger copies: part of device.c. */
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
