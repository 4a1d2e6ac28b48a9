/* The list of members, from keys of etcd to observers: records that are none, lists and their differences, members that
 * are absent. */
#include "daemon/membership/node_id.h"
#include "daemon/membership/record.h"
#include "daemon/membership/view.h"
#include "daemon/names/names.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/held_folder.h"

static struct member member(const char *name, uint64_t epoch)
{
	struct member m = { .address = "n1.example:7070", .version = "1.2.3", .node = { 1, 2, 3 }, .epoch = epoch,
			    .host_bytes = 1 << 20, .draining = true };

	snprintf(m.name, sizeof m.name, "%s", name);
	return m;
}

static const uint32_t numbers[] = { 1, 70, 71, 72 };
static struct names *names; /* of this daemon: 70 and 71 have a secret, 72 an old one, too */

static struct secret secret(uint8_t seed, uint32_t fingerprint)
{
	return (struct secret){ .key = { seed, 1 }, .fingerprint = fingerprint, .same = { seed } };
}

static void secrets_set(struct names *of, const uint32_t fingerprints[4])
{
	for (uint32_t i = 0; i < 4; i++) {
		const struct secret s = secret((uint8_t)(i + 1), fingerprints[i]);

		names_set(of, i, fingerprints[i] ? &s : NULL, NULL);
	}
}

static void begin(void)
{
	const struct secret current = secret(9, 1003), old = secret(10, 903);

	ck_assert_int_eq(names_create(numbers, 4, &names), STATUS_OK);
	secrets_set(names, (const uint32_t[]){ 0, 1001, 1002, 0 });
	names_set(names, 3, &current, &old);
}

static void end(void)
{
	names_destroy(names);
}

static const char *read_back(const char *name, const uint8_t *value, size_t n, struct member *out)
{
	return record_read((const uint8_t *)name, strlen(name), value, n, names, out);
}

/* What is left of a damaged record of "a" is no member, or one that has all that a member must have. */
static void none_or_sound(const uint8_t *value, size_t n)
{
	struct member back, untouched;
	const char *problem;

	memset(&back, 0xa5, sizeof back);
	untouched = back;
	problem = read_back("a", value, n, &back);
	if (problem) {
		ck_assert_mem_eq(&back, &untouched, sizeof back);
		return;
	}
	ck_assert_str_eq(back.name, "a");
	ck_assert_ptr_nonnull(strchr(back.address, ':'));
	ck_assert_uint_lt(strnlen(back.address, sizeof back.address), sizeof back.address);
	ck_assert_uint_lt(strnlen(back.version, sizeof back.version), sizeof back.version);
	ck_assert_uint_ne(back.epoch, 0);
}

START_TEST(record_comes_back)
{
	const struct member m = member("a", 7);
	uint8_t value[RECORD_BYTES_MAX];
	struct member back;
	const size_t n = record_write(&m, names, value);

	ck_assert_ptr_null(read_back("a", value, n, &back));
	ck_assert_uint_eq(back.same_secret[0], 1 << 1 | 1 << 2 | 1 << 3);
	memset(back.same_secret, 0, sizeof back.same_secret);
	ck_assert_mem_eq(&back, &m, sizeof m);
	ck_assert_str_eq(read_back("b", value, n, &back), "it does not say the name that its key has");
	ck_assert_str_eq(read_back("a", value, 0, &back), "it does not say the name that its key has");
	for (size_t cut = 1; cut < n; cut++)
		none_or_sound(value, cut);
	for (size_t i = 0; i < n; i++) {
		value[i] ^= 0xff;
		none_or_sound(value, n);
		value[i] ^= 0xff;
	}
}
END_TEST

/* Tenants by number, in another order than here; one more there, one without a secret there. */
START_TEST(secrets_of_a_member_are_compared)
{
	static const uint32_t its_numbers[] = { 72, 1, 99, 70, 71 };
	const struct secret s[] = { secret(1, 903), secret(2, 5), secret(3, 6), secret(4, 1001), secret(5, 77) };
	const struct member m = member("a", 7);
	uint8_t value[RECORD_BYTES_MAX];
	struct member back;
	struct names *its;

	ck_assert_int_eq(names_create(its_numbers, 5, &its), STATUS_OK);
	for (uint32_t i = 0; i < 5; i++)
		names_set(its, i, &s[i], NULL);
	ck_assert_ptr_null(read_back("a", value, record_write(&m, its, value), &back));
	ck_assert_uint_eq(back.same_secret[0], 1 << 1 | 1 << 3); /* 70; 72 by this daemon's old one */
	ck_assert_uint_eq(back.other_secret[0], 1 << 2);
	names_set(its, 4, NULL, NULL);
	ck_assert_ptr_null(read_back("a", value, record_write(&m, its, value), &back));
	ck_assert_uint_eq(back.other_secret[0], 0);
	names_destroy(its);
}
END_TEST

START_TEST(a_record_has_room_for_all_tenants)
{
	uint32_t many[NAMES_TENANTS_MAX];
	struct member m = member("a", UINT64_MAX), back;
	uint8_t value[RECORD_BYTES_MAX];
	struct names *all;

	for (uint32_t i = 0; i < NAMES_TENANTS_MAX; i++)
		many[i] = UINT32_MAX - 1 - i;
	ck_assert_int_eq(names_create(many, NAMES_TENANTS_MAX, &all), STATUS_OK);
	for (uint32_t i = 0; i < NAMES_TENANTS_MAX; i++) {
		const struct secret s = secret((uint8_t)i, UINT32_MAX - i);

		names_set(all, i, &s, NULL);
	}
	memset(m.name, 'n', sizeof m.name - 1);
	memset(m.address, 'h', sizeof m.address - 1);
	memcpy(m.address + 200, ":7070", 6);
	memset(m.version, '1', sizeof m.version - 1);
	ck_assert_ptr_null(record_read((const uint8_t *)m.name, strlen(m.name), value, record_write(&m, all, value),
				       all, &back));
	for (int i = 0; i < MEMBER_TENANT_WORDS; i++)
		ck_assert_uint_eq(back.same_secret[i], UINT64_MAX);
	names_destroy(all);
}
END_TEST

START_TEST(records_that_are_none)
{
	static const struct {
		const char *name, *address, *version;
		uint64_t epoch;
	} rows[] = {
		{ "a b", "h:1", "1", 1 }, { "../x", "h:1", "1", 1 }, { "a", "h", "1", 1 }, { "a", "h:0", "1", 1 },
		{ "a", "0.0.0.0:1", "1", 1 }, { "a", "h:1", "1\n", 1 }, { "a", "h:1", "1", 0 }, { "", "h:1", "1", 1 },
	};
	uint8_t value[RECORD_BYTES_MAX];
	struct member m = member(rows[_i].name, rows[_i].epoch), back;

	strcpy(m.address, rows[_i].address);
	strcpy(m.version, rows[_i].version);
	ck_assert_ptr_nonnull(read_back(m.name, value, record_write(&m, names, value), &back));
}
END_TEST

/* ---- lists ---- */

static char heard[256];

static void hear(void *arg, enum member_change change, const struct member *m)
{
	const size_t used = strlen(heard);

	(void)arg;
	snprintf(heard + used, sizeof heard - used, "%c%s ", "+-~*"[change], m->name);
}

START_TEST(observers_hear_the_differences)
{
	const struct members_observer o = { hear, NULL };
	struct member at[] = { member("a", 1), member("b", 2), member("c", 3) };
	const struct members_list *first;
	struct members *m;

	heard[0] = 0;
	ck_assert_int_eq(members_create(&m), STATUS_OK);
	members_observe(m, &o);
	first = members_take(m);
	ck_assert_int_eq(members_publish(m, at, 2), STATUS_OK);
	ck_assert_str_eq(heard, "+a +b ");
	ck_assert_uint_eq(first->count, 0); /* a list that was taken never changes */
	members_drop(first);
	first = members_take(m);
	heard[0] = 0;
	at[1].epoch++;
	at[2].draining = false;
	ck_assert_int_eq(members_publish(m, at + 1, 2), STATUS_OK);
	ck_assert_str_eq(heard, "-a *b +c ");
	heard[0] = 0;
	at[2].absent = true;
	ck_assert_int_eq(members_publish(m, at + 1, 2), STATUS_OK);
	ck_assert_str_eq(heard, "~c ");
	ck_assert_uint_eq(first->count, 2);
	ck_assert_uint_eq(first->at[1].epoch, 2);
	members_drop(first);
	members_destroy(m);
}
END_TEST

static void names_are(const struct view *v, const char *want)
{
	char got[64] = "";

	for (uint32_t i = 0; i < v->count; i++) {
		strcat(got, v->at[i].name);
		strcat(got, v->at[i].absent ? "? " : " ");
	}
	ck_assert_str_eq(got, want);
}

START_TEST(absent_members_stay_for_a_time)
{
	struct member b = member("b", 1), a = member("a", 1), c = member("c", 1);
	struct view v;

	ck_assert(view_init(&v));
	ck_assert(view_put(&v, &c, 10) && view_put(&v, &a, 10) && view_put(&v, &b, 10));
	names_are(&v, "a b c ");
	view_read_begin(&v);
	ck_assert(view_put(&v, &b, 20));
	ck_assert_uint_eq(v.at[1].since_us, 10); /* the same epoch is known as long as before */
	view_read_end(&v, 100);
	names_are(&v, "a? b c? ");
	ck_assert_uint_eq(view_forget(&v, 99), 100);
	view_read_begin(&v);
	ck_assert(view_put(&v, &c, 60));
	view_read_end(&v, 500); /* what is absent already is given no more time, */
	names_are(&v, "a? b? c ");
	view_read_begin(&v);
	ck_assert(view_put(&v, &c, 60));
	view_read_end(&v, 0); /* and no less */
	names_are(&v, "a? b? c ");
	ck_assert_uint_eq(view_forget(&v, 100), 500);
	names_are(&v, "b? c ");
	view_read_begin(&v);
	view_read_end(&v, 0);
	names_are(&v, "b? ");
	ck_assert_uint_eq(view_forget(&v, 500), UINT64_MAX);
	names_are(&v, "");
	view_fini(&v);
}
END_TEST

START_TEST(a_list_has_a_bound)
{
	struct member m = member("", 1);
	struct view v;

	ck_assert(view_init(&v));
	for (int i = 0; i < MEMBERS_MAX; i++) {
		snprintf(m.name, sizeof m.name, "n%u", (unsigned)i * 2654435761u);
		ck_assert(view_put(&v, &m, 1));
	}
	for (uint32_t i = 1; i < v.count; i++)
		ck_assert_int_lt(strcmp(v.at[i - 1].name, v.at[i].name), 0);
	ck_assert(view_put(&v, &m, 1)); /* it is there already */
	strcpy(m.name, "one-more");
	ck_assert(!view_put(&v, &m, 1));
	view_fini(&v);
}
END_TEST

START_TEST(a_node_keeps_its_id)
{
	char folder[64], path[96], why[1024];
	uint8_t first[MEMBER_NODE_BYTES], again[MEMBER_NODE_BYTES];

	ck_assert(held_folder_make("/tmp", folder, sizeof folder));
	ck_assert_int_eq(node_id_read(folder, first, why, sizeof why), STATUS_OK);
	ck_assert_int_eq(node_id_read(folder, again, why, sizeof why), STATUS_OK);
	ck_assert_mem_eq(first, again, sizeof first);
	snprintf(path, sizeof path, "%s/node_id", folder);
	ck_assert_int_eq(truncate(path, 20), 0);
	ck_assert_int_eq(node_id_read(folder, again, why, sizeof why), STATUS_CORRUPT);
	ck_assert_ptr_nonnull(strstr(why, "delete it"));
	ck_assert_int_eq(node_id_read("/proc/nothing", again, why, sizeof why), STATUS_IO);
	unlink(path);
	rmdir(folder);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("membership");
	TCase *tc = tcase_create("members");
	SRunner *runner;
	int failed;

	tcase_add_checked_fixture(tc, begin, end);
	tcase_add_test(tc, record_comes_back);
	tcase_add_test(tc, secrets_of_a_member_are_compared);
	tcase_add_test(tc, a_record_has_room_for_all_tenants);
	tcase_add_loop_test(tc, records_that_are_none, 0, 8);
	tcase_add_test(tc, observers_hear_the_differences);
	tcase_add_test(tc, absent_members_stay_for_a_time);
	tcase_add_test(tc, a_list_has_a_bound);
	tcase_add_test(tc, a_node_keeps_its_id);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
