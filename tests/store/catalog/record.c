/* Records: what is encoded decodes to the same, and nothing else decodes. */
#include "store/catalog/record.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static struct block_record block(void)
{
	return (struct block_record){ .layout_id = 0x0102030405060708ull, .tenant = 9, .key_bytes = 20, .key = "a key of twenty byte",
				      .disk_id = 0xfedcba9876543210ull, .slab = 17, .slot = 3, .generation = 977,
				      .slot_bytes = 40960, .stored_unix_ms = 1700000000123ull, .position = 4096,
				      .tokens = 16, .turn = 2, .role = 3, .flushed = true, .parent_bytes = 5,
				      .parent = "above" };
}

START_TEST(a_block_comes_back)
{
	static const uint8_t key[] = { 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9 };
	struct block_record b = block(), back;
	uint8_t alone[RECORD_KEY_MAX];
	struct record r;
	size_t n;

	ck_assert_int_eq(block_record_encode(&b, &r), STATUS_OK);
	ck_assert_uint_eq(r.key_bytes, 32);
	ck_assert_uint_eq(r.value_bytes, 64 + 5);
	ck_assert_mem_eq(r.key, key, sizeof(key));
	ck_assert_mem_eq(r.key + 12, b.key, 20);
	ck_assert_uint_eq(r.value[0], BLOCK_RECORD_VERSION);
	ck_assert_uint_eq(r.value[4], 17);
	ck_assert_int_eq(block_record_key(&b, alone, &n), STATUS_OK);
	ck_assert_uint_eq(n, 32);
	ck_assert_mem_eq(alone, r.key, n);
	ck_assert_int_eq(block_record_decode(r.key, r.key_bytes, r.value, r.value_bytes, &back), STATUS_OK);
	ck_assert_uint_eq(back.layout_id, b.layout_id);
	ck_assert_uint_eq(back.tenant, b.tenant);
	ck_assert_uint_eq(back.key_bytes, b.key_bytes);
	ck_assert_mem_eq(back.key, b.key, sizeof(b.key));
	ck_assert_uint_eq(back.disk_id, b.disk_id);
	ck_assert_uint_eq(back.slab, b.slab);
	ck_assert_uint_eq(back.slot, b.slot);
	ck_assert_uint_eq(back.generation, b.generation);
	ck_assert_uint_eq(back.slot_bytes, b.slot_bytes);
	ck_assert_uint_eq(back.stored_unix_ms, b.stored_unix_ms);
	ck_assert_uint_eq(back.position, b.position);
	ck_assert_uint_eq(back.tokens, b.tokens);
	ck_assert_uint_eq(back.turn, b.turn);
	ck_assert_uint_eq(back.role, b.role);
	ck_assert(back.flushed == b.flushed);
	ck_assert_uint_eq(back.parent_bytes, b.parent_bytes);
	ck_assert_mem_eq(back.parent, b.parent, sizeof(b.parent));
}
END_TEST

/* Every member at and beyond its bounds, before writing and after reading. */
START_TEST(a_block_out_of_bounds_is_refused)
{
	struct {
		struct block_record b;
		enum status s;
	} row[20];
	struct block_record back;
	struct record r;
	int n = 0;

#define ROW(member, v, outcome) (row[n].b = block(), row[n].b.member = (v), row[n++].s = STATUS_##outcome)
	ROW(key_bytes, 0, INVALID);
	ROW(key_bytes, 1, OK);
	ROW(key_bytes, SLOT_KEY_MAX, OK);
	ROW(key_bytes, SLOT_KEY_MAX + 1, INVALID);
	ROW(parent_bytes, 0, OK);
	ROW(parent_bytes, SLOT_KEY_MAX, OK);
	ROW(parent_bytes, SLOT_KEY_MAX + 1, INVALID);
	ROW(slab, 0, INVALID);
	ROW(generation, 0, INVALID);
	ROW(tokens, 0, INVALID);
	ROW(slot_bytes, 0, INVALID);
	ROW(slot_bytes, SLOT_HEADER_BYTES, INVALID);
	ROW(slot_bytes, 2 * SLOT_HEADER_BYTES, OK);
	ROW(slot_bytes, 2 * SLOT_HEADER_BYTES + 1, INVALID);
	ROW(slot_bytes, SLOT_BYTES_MAX, OK);
	ROW(slot_bytes, (uint64_t)SLOT_BYTES_MAX + 4096, INVALID);
	ROW(role, BLOCK_RECORD_ROLE_MAX, OK);
	ROW(role, BLOCK_RECORD_ROLE_MAX + 1, INVALID);
	ROW(slot, UINT32_MAX, OK);
#undef ROW
	for (int i = 0; i < n; i++) {
		ck_assert_msg(block_record_encode(&row[i].b, &r) == row[i].s, "row %d", i);
		if (row[i].s == STATUS_OK)
			ck_assert_int_eq(block_record_decode(r.key, r.key_bytes, r.value, r.value_bytes, &back), STATUS_OK);
	}
}
END_TEST

static enum status decode_changed(const struct record *r, size_t at, uint8_t v)
{
	struct record changed = *r;
	struct block_record back;

	changed.value[at] = v;
	return block_record_decode(changed.key, changed.key_bytes, changed.value, changed.value_bytes, &back);
}

START_TEST(damaged_blocks_are_refused)
{
	static const size_t reserved[] = { 3, 20, 21, 22, 23 };
	struct block_record b = block(), back;
	struct record r;

	ck_assert_int_eq(block_record_encode(&b, &r), STATUS_OK);
	for (size_t n = 0; n < r.value_bytes; n++)
		ck_assert_int_eq(block_record_decode(r.key, r.key_bytes, r.value, n, &back), STATUS_CORRUPT);
	for (size_t n = 0; n <= 12; n++)
		ck_assert_int_eq(block_record_decode(r.key, n, r.value, r.value_bytes, &back), STATUS_CORRUPT);
	ck_assert_int_eq(block_record_decode(r.key, 12 + SLOT_KEY_MAX + 1, r.value, r.value_bytes, &back), STATUS_CORRUPT);
	ck_assert_int_eq(block_record_decode(r.key, r.key_bytes, r.value, r.value_bytes + 1, &back), STATUS_CORRUPT);
	for (size_t i = 0; i < sizeof(reserved) / sizeof(reserved[0]); i++)
		ck_assert_int_eq(decode_changed(&r, reserved[i], 1), STATUS_CORRUPT);
	ck_assert_int_eq(decode_changed(&r, 0, 0), STATUS_CORRUPT);
	ck_assert_int_eq(decode_changed(&r, 0, BLOCK_RECORD_VERSION + 1), STATUS_UNSUPPORTED);
	ck_assert_int_eq(decode_changed(&r, 2, 6), STATUS_CORRUPT); /* a longer parent than there is */
	ck_assert_int_eq(decode_changed(&r, 4, 0), STATUS_CORRUPT); /* slab 0 */
	ck_assert_int_eq(decode_changed(&r, 56, 1), STATUS_CORRUPT); /* slot bytes */
}
END_TEST

/* As the version before wrote it; it had no longer keys. */
START_TEST(blocks_of_version_1_come_back)
{
	static const struct {
		uint8_t key_bytes, parent_bytes;
		enum status want;
	} rows[] = { { 1, 0, STATUS_OK }, { 32, 32, STATUS_OK }, { 33, 32, STATUS_CORRUPT }, { 32, 33, STATUS_CORRUPT },
				  { SLOT_KEY_MAX, SLOT_KEY_MAX, STATUS_CORRUPT } };

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct block_record b = block(), back = { 0 };
		struct record r;

		b.key_bytes = rows[i].key_bytes;
		b.parent_bytes = rows[i].parent_bytes;
		ck_assert_int_eq(block_record_encode(&b, &r), STATUS_OK);
		ck_assert_int_eq(block_record_decode(r.key, r.key_bytes, r.value, r.value_bytes, &back), STATUS_OK);
		r.value[0] = 1;
		ck_assert_msg(block_record_decode(r.key, r.key_bytes, r.value, r.value_bytes, &back) == rows[i].want,
			      "row %zu", i);
		ck_assert_uint_eq(back.key_bytes, b.key_bytes);
		ck_assert_uint_eq(back.parent_bytes, b.parent_bytes);
	}
}
END_TEST

START_TEST(layouts_come_back)
{
	struct layout_record l = { .layout_id = 5, .slot_bytes = 8192, .layout_bytes = SLOT_LAYOUT_MAX }, back;
	struct record r;

	memset(l.layout, 0x5a, sizeof(l.layout));
	ck_assert_int_eq(layout_record_encode(&l, &r), STATUS_OK);
	ck_assert_int_eq(layout_record_decode(r.key, r.key_bytes, r.value, r.value_bytes, &back), STATUS_OK);
	ck_assert_mem_eq(&back, &l, sizeof(l));
	ck_assert_int_eq(layout_record_decode(r.key, r.key_bytes, r.value, r.value_bytes + 1, &back), STATUS_CORRUPT);
	ck_assert_int_eq(layout_record_decode(r.key, 7, r.value, r.value_bytes, &back), STATUS_CORRUPT);
	ck_assert_int_eq(layout_record_decode(r.key, r.key_bytes, r.value, 15, &back), STATUS_CORRUPT);
	r.value[1] = 1;
	ck_assert_int_eq(layout_record_decode(r.key, r.key_bytes, r.value, r.value_bytes, &back), STATUS_CORRUPT);
	r.value[0] = 2;
	ck_assert_int_eq(layout_record_decode(r.key, r.key_bytes, r.value, r.value_bytes, &back), STATUS_UNSUPPORTED);
	l.layout_bytes++;
	ck_assert_int_eq(layout_record_encode(&l, &r), STATUS_INVALID);
	l.layout_bytes = 0;
	ck_assert_int_eq(layout_record_encode(&l, &r), STATUS_OK);
	ck_assert_int_eq(layout_record_decode(r.key, r.key_bytes, r.value, r.value_bytes, &back), STATUS_OK);
	ck_assert_uint_eq(back.layout_bytes, 0);
	l.slot_bytes = 1;
	ck_assert_int_eq(layout_record_encode(&l, &r), STATUS_INVALID);
}
END_TEST

START_TEST(disks_come_back)
{
	struct disk_record d = { .disk_id = 1, .folder = "/var/lib/terrace/disk 0" }, back;
	struct record r;

	ck_assert_int_eq(disk_record_encode(&d, &r), STATUS_OK);
	ck_assert_int_eq(disk_record_decode(r.key, r.key_bytes, r.value, r.value_bytes, &back), STATUS_OK);
	ck_assert_str_eq(back.folder, d.folder);
	ck_assert_uint_eq(back.disk_id, 1);
	r.value[12] = 0;
	ck_assert_int_eq(disk_record_decode(r.key, r.key_bytes, r.value, r.value_bytes, &back), STATUS_CORRUPT);
	ck_assert_int_eq(disk_record_decode(r.key, r.key_bytes, r.value, 8, &back), STATUS_CORRUPT);
	memset(d.folder, 'f', RECORD_FOLDER_MAX);
	ck_assert_int_eq(disk_record_encode(&d, &r), STATUS_OK);
	ck_assert_uint_eq(r.value_bytes, RECORD_VALUE_MAX);
	ck_assert_int_eq(disk_record_decode(r.key, r.key_bytes, r.value, r.value_bytes, &back), STATUS_OK);
	ck_assert_str_eq(back.folder, d.folder);
	d.folder[RECORD_FOLDER_MAX] = 'f';
	ck_assert_int_eq(disk_record_encode(&d, &r), STATUS_INVALID);
	d.folder[0] = 0;
	ck_assert_int_eq(disk_record_encode(&d, &r), STATUS_INVALID);
}
END_TEST

START_TEST(boots_come_back)
{
	struct boot_record b = { 3, 1ull << 40, UINT64_MAX }, back;
	struct record r;

	ck_assert_int_eq(boot_record_encode(&b, &r), STATUS_OK);
	ck_assert_uint_eq(r.value_bytes, 32);
	ck_assert_int_eq(boot_record_decode(r.key, r.key_bytes, r.value, r.value_bytes, &back), STATUS_OK);
	ck_assert_mem_eq(&back, &b, sizeof(b));
	ck_assert_int_eq(boot_record_decode(r.key, 3, r.value, r.value_bytes, &back), STATUS_CORRUPT);
	ck_assert_int_eq(boot_record_decode("boos", 4, r.value, r.value_bytes, &back), STATUS_CORRUPT);
	ck_assert_int_eq(boot_record_decode(r.key, r.key_bytes, r.value, 31, &back), STATUS_CORRUPT);
	r.value[8] = 0;
	ck_assert_int_eq(boot_record_decode(r.key, r.key_bytes, r.value, r.value_bytes, &back), STATUS_CORRUPT);
	b.boots = 0;
	ck_assert_int_eq(boot_record_encode(&b, &r), STATUS_INVALID);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("store_block_record");
	TCase *tc = tcase_create("records");
	SRunner *sr;
	int failed;

	tcase_add_test(tc, a_block_comes_back);
	tcase_add_test(tc, a_block_out_of_bounds_is_refused);
	tcase_add_test(tc, damaged_blocks_are_refused);
	tcase_add_test(tc, blocks_of_version_1_come_back);
	tcase_add_test(tc, layouts_come_back);
	tcase_add_test(tc, disks_come_back);
	tcase_add_test(tc, boots_come_back);
	suite_add_tcase(s, tc);
	sr = srunner_create(s);
	srunner_run_all(sr, CK_NORMAL);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
