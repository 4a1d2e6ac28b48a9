/* The owner's table: messages in order, repair by digests, runs that leave, deleted names, bounds; and random calls
 * against a plain shadow. */
#include "daemon/directory/table.h"

#include "tests/daemon/directory/rig.h"

#define SECOND 1000000ull
#define REFUSED (100 * SECOND)

enum { HOLDERS = 6, NAMES = 60, TENANTS = 2 };

static struct directory *make(uint64_t bytes)
{
	const struct directory_options options = { .bytes_max = bytes, .refused_us = REFUSED };
	struct directory *d;

	ck_assert_int_eq(directory_create(&options, &d), STATUS_OK);
	return d;
}

static void members(struct directory *d, uint32_t count, uint64_t epoch)
{
	struct directory_member at[DIRECTORY_MEMBERS_MAX];

	for (uint32_t i = 0; i < count; i++)
		at[i] = rig_member(i, epoch);
	directory_members(d, at, count);
}

static struct directory_sender from(uint32_t holder, uint64_t sequence)
{
	return (struct directory_sender){ .run = rig_run(holder, 1), .sequence = sequence };
}

static enum status tell(struct directory *d, const struct directory_sender *s, uint64_t name, bool remove)
{
	const struct directory_change c = { .name = rig_name(name), .remove = remove };
	struct directory_published out = { 0 };

	return directory_publish(d, s, &c, 1, 0, 0, &out);
}

static struct directory_found find(struct directory *d, uint64_t name, uint64_t now)
{
	const struct public_name n = rig_name(name);
	struct directory_found out;

	directory_find(d, 0, &n, 1, now, &out);
	return out;
}

START_TEST(old_messages_change_nothing)
{
	struct directory *d = make(1 << 16);
	struct directory_sender s = from(0, 5), unknown = from(9, 1), other_run = from(0, 9);
	struct digest old;
	struct digest_set set;
	struct directory_counts counts;

	other_run.run.epoch = 2;
	members(d, 2, 1);
	ck_assert_int_eq(tell(d, &s, 1, false), STATUS_OK);
	ck_assert_int_eq(tell(d, &s, 1, true), STATUS_STALE);
	s.sequence = 4;
	ck_assert_int_eq(tell(d, &s, 1, true), STATUS_STALE);
	ck_assert_uint_eq(find(d, 1, 0).count, 1);
	ck_assert_int_eq(tell(d, &unknown, 1, false), STATUS_UNAVAILABLE);
	ck_assert_int_eq(tell(d, &other_run, 1, true), STATUS_UNAVAILABLE);
	/* A bucket of before a removal does not bring the name back. */
	const struct directory_change c = { .name = rig_name(1) };
	struct directory_published out;

	s.sequence = 7;
	ck_assert_int_eq(tell(d, &s, 1, true), STATUS_OK);
	digest_begin(&old, 1);
	digest_add(&old, &c.name);
	s.sequence = 6;
	ck_assert_int_eq(directory_digest(d, &s, &old, &set), STATUS_STALE);
	memset(&set, 0, sizeof set);
	set.buckets = 1;
	set.bits[0] = 1;
	const struct directory_buckets b = { &set, &c, 1, false };

	ck_assert_int_eq(directory_replace(d, &s, &b, 0, &out), STATUS_STALE);
	ck_assert_uint_eq(find(d, 1, 0).count, 0);
	old.buckets = 3;
	set.buckets = 0;
	s.sequence = 8;
	ck_assert_int_eq(directory_digest(d, &s, &old, &set), STATUS_INVALID);
	ck_assert_int_eq(directory_replace(d, &s, &b, 0, &out), STATUS_INVALID);
	directory_counts(d, &counts);
	ck_assert_uint_eq(counts.stale, 4);
	ck_assert_uint_eq(counts.unknown, 2);
	directory_destroy(d);
}
END_TEST

START_TEST(a_run_that_left_is_not_found)
{
	struct directory *d = make(1 << 20);
	struct directory_counts counts;
	uint64_t sequence = 0;

	members(d, 3, 1);
	for (uint32_t h = 0; h < 3; h++)
		for (uint32_t i = 0; i < 100; i++) {
			const struct directory_sender s = from(h, ++sequence);

			ck_assert_int_eq(tell(d, &s, i, false), STATUS_OK);
		}
	ck_assert_uint_eq(find(d, 50, 0).count, 3);
	members(d, 2, 1); /* the last one left */
	ck_assert_uint_eq(find(d, 50, 0).count, 2);
	directory_counts(d, &counts);
	ck_assert_uint_eq(counts.entries, 300);
	ck_assert_uint_eq(counts.dead, 100);
	members(d, 2, 2); /* the others were started again */
	ck_assert_uint_eq(find(d, 50, 0).count, 0);
	ck_assert(directory_sweep(d, 250, 0));
	directory_counts(d, &counts);
	ck_assert_uint_eq(counts.entries, 50);
	ck_assert(!directory_sweep(d, 250, 0));
	directory_counts(d, &counts);
	ck_assert_uint_eq(counts.entries, 0);
	ck_assert_uint_eq(counts.dead, 0);
	/* Lists that change without end need no more slots than there are. */
	for (uint64_t epoch = 3; epoch < 12; epoch++) {
		members(d, DIRECTORY_MEMBERS_MAX, epoch);
		struct directory_sender s = { .run = rig_run(epoch, epoch), .sequence = 1 };

		ck_assert_int_eq(tell(d, &s, epoch, false), STATUS_OK);
		ck_assert_uint_eq(find(d, epoch, 0).count, 1);
	}
	directory_destroy(d);
}
END_TEST

START_TEST(the_oldest_go_first)
{
	struct directory *d = make(64 * 1000);
	struct directory_counts counts;
	struct directory_sender s = from(0, 0);

	members(d, 1, 1);
	directory_counts(d, &counts);
	ck_assert_uint_eq(counts.capacity, 1000);
	for (uint32_t i = 0; i < 1000; i++) {
		s.sequence++;
		tell(d, &s, i, false);
	}
	s.sequence++;
	tell(d, &s, 0, false); /* told again: not the oldest any more */
	for (uint32_t i = 1000; i < 1100; i++) {
		s.sequence++;
		tell(d, &s, i, false);
	}
	directory_counts(d, &counts);
	ck_assert_uint_eq(counts.entries, 1000);
	ck_assert_uint_eq(counts.dropped, 100);
	ck_assert_uint_eq(find(d, 0, 0).count, 1);
	for (uint32_t i = 1; i < 1100; i++)
		ck_assert_uint_eq(find(d, i, 0).count, i > 100);
	/* A full table asks for nothing that it lacks, but still for what it has too much. */
	struct digest theirs;
	struct digest_set set;
	const struct public_name lacked = rig_name(5), more = rig_name(500);

	digest_begin(&theirs, DIGEST_BUCKETS_MAX);
	digest_add(&theirs, &lacked);
	for (uint32_t i = 0; i < 1100; i++) {
		const struct public_name name = rig_name(i);

		if (find(d, i, 0).count && i != 500)
			digest_add(&theirs, &name);
	}
	s.sequence++;
	ck_assert_int_eq(directory_digest(d, &s, &theirs, &set), STATUS_OK);
	ck_assert(!digest_set_has(&set, &lacked));
	ck_assert(digest_set_has(&set, &more));
	directory_destroy(d);
}
END_TEST

static uint32_t found_of(struct directory *d, uint64_t first, uint32_t count)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < count; i++)
		n += find(d, first + i, 0).count;
	return n;
}

/* In whatever order they come: each holder that tells no more than its share of a full table keeps all of it. */
START_TEST(a_flood_displaces_no_other)
{
	enum { CAPACITY = 1000, SHARE = CAPACITY / 4, FEW = 20, FLOOD = 5000 };
	struct directory *d = make(64 * CAPACITY);
	struct directory_sender s[4] = { from(0, 0), from(1, 0), from(2, 0), from(3, 0) };
	struct directory_counts counts;
	const bool late = _i;

	members(d, 4, 1);
	for (uint32_t i = 0; i < FEW; i++, s[1].sequence++)
		tell(d, &(struct directory_sender){ s[1].run, s[1].sequence + 1 }, 10000 + i, false);
	for (uint32_t i = 0; i < FLOOD; i++) {
		s[0].sequence++;
		tell(d, &s[0], i, false);
		if (late ? i < FLOOD - SHARE : i >= SHARE)
			continue;
		s[2].sequence++;
		tell(d, &s[2], 20000 + (late ? i - (FLOOD - SHARE) : i), false);
	}
	for (uint32_t i = 0; i < SHARE; i++) {
		s[3].sequence++;
		tell(d, &s[3], 30000 + i, false);
	}
	directory_counts(d, &counts);
	ck_assert_uint_eq(counts.entries, CAPACITY);
	ck_assert_uint_eq(found_of(d, 10000, FEW), FEW);
	ck_assert_uint_eq(found_of(d, 20000, SHARE), SHARE);
	ck_assert_uint_eq(found_of(d, 30000, SHARE), SHARE);
	ck_assert_uint_eq(found_of(d, FLOOD - (CAPACITY - 2 * SHARE - FEW), CAPACITY - 2 * SHARE - FEW),
			  CAPACITY - 2 * SHARE - FEW); /* the newest of the flood */
	directory_destroy(d);
}
END_TEST

START_TEST(deleted_names_are_refused)
{
	struct directory *d = make(1 << 16);
	const struct public_name name = rig_name(1);
	const struct directory_change changes[2] = { { .name = rig_name(2) }, { .name = name } };
	struct directory_found known;
	struct directory_published out;
	struct directory_counts counts;
	uint32_t refused[2];
	uint64_t now = 10 * SECOND;

	members(d, 6, 1);
	for (uint32_t h = 0; h < 6; h++) {
		const struct directory_sender s = from(h, 1);

		tell(d, &s, 1, false);
	}
	directory_refuse(d, 0, &name, 1, now, &known);
	ck_assert_uint_eq(known.all, 6);
	ck_assert_uint_eq(known.count, DIRECTORY_HOLDERS_MAX);
	ck_assert(find(d, 1, now).refused);
	ck_assert_uint_eq(find(d, 1, now).count, 0);
	struct directory_sender s = from(0, 2);

	out.refused = refused;
	ck_assert_int_eq(directory_publish(d, &s, changes, 2, 2, now, &out), STATUS_OK);
	ck_assert_uint_eq(out.refused_count, 1);
	ck_assert_uint_eq(refused[0], 1);
	ck_assert(!out.digest_wanted);
	/* Another tenant's block of that name is another one. */
	const struct directory_change others = { .name = name, .tenant = 1 };

	s.sequence++;
	directory_publish(d, &s, &others, 1, 2, now, &out);
	ck_assert_uint_eq(out.refused_count, 0);
	directory_refuse(d, 0, &name, 1, now + SECOND, NULL);
	ck_assert(find(d, 1, now + SECOND + REFUSED - SECOND).refused);
	now += REFUSED + 3 * SECOND;
	ck_assert(!find(d, 1, now).refused);
	s.sequence++;
	directory_publish(d, &s, changes, 2, 3, now, &out);
	ck_assert_uint_eq(out.refused_count, 0);
	ck_assert_uint_eq(find(d, 1, now).count, 1);
	directory_counts(d, &counts);
	ck_assert_uint_eq(counts.refusals, 1);
	directory_sweep(d, 10, now);
	directory_counts(d, &counts);
	ck_assert_uint_eq(counts.refusals, 0);
	ck_assert_uint_eq(counts.entries, 3);
	directory_destroy(d);
}
END_TEST

START_TEST(too_few_bytes)
{
	const struct directory_options options = { .bytes_max = 4095 };
	struct directory *d;

	ck_assert_int_eq(directory_create(&options, &d), STATUS_INVALID);
	directory_destroy(NULL);
}
END_TEST

/* ---- against a shadow ---- */

struct shadow {
	struct directory *d;
	uint64_t told[HOLDERS][TENANTS][NAMES];   /* the step of the last addition; 0: absent */
	uint64_t refused[TENANTS][NAMES];         /* until this time */
	uint64_t epoch[HOLDERS], last[HOLDERS];   /* the last sequence that the table took */
	bool member[HOLDERS];
	uint64_t step, sequence, now, seed;
};

static uint32_t below(struct shadow *s, uint32_t n)
{
	return rig_below(&s->seed, n);
}

/* A sender, at times with an old sequence, and the status that its message must get. */
static enum status shadow_sender(struct shadow *s, uint32_t h, struct directory_sender *out)
{
	out->run = rig_run(h, s->epoch[h]);
	out->sequence = below(s, 8) ? ++s->sequence : below(s, (uint32_t)s->sequence + 1);
	if (!s->member[h])
		return STATUS_UNAVAILABLE;
	if (out->sequence <= s->last[h])
		return STATUS_STALE;
	s->last[h] = out->sequence;
	return STATUS_OK;
}

static uint32_t shadow_count(const struct shadow *s, uint32_t h)
{
	uint32_t n = 0;

	for (uint32_t t = 0; t < TENANTS; t++)
		for (uint32_t i = 0; i < NAMES; i++)
			n += s->told[h][t][i] > 0;
	return n;
}

/* False: refused. */
static bool shadow_add(struct shadow *s, uint32_t h, uint32_t tenant, uint32_t name)
{
	if (s->now < s->refused[tenant][name])
		return false;
	s->told[h][tenant][name] = ++s->step;
	return true;
}

static void publish(struct shadow *s)
{
	const uint32_t h = below(s, HOLDERS), count = below(s, 9);
	uint32_t names[8], refused[8], expected[8], n = 0;
	struct directory_change changes[8];
	struct directory_published out = { .refused = refused };
	struct directory_sender sender;
	const enum status status = shadow_sender(s, h, &sender);

	for (uint32_t i = 0; i < count; i++) {
		names[i] = below(s, NAMES);
		changes[i] = (struct directory_change){ .name = rig_name(names[i]), .remove = below(s, 2) };
		changes[i].tenant = below(s, TENANTS);
		if (status != STATUS_OK)
			continue;
		if (changes[i].remove)
			s->told[h][changes[i].tenant][names[i]] = 0;
		else if (!shadow_add(s, h, changes[i].tenant, names[i]))
			expected[n++] = i;
	}
	const uint32_t told = shadow_count(s, h) + n + !below(s, 3);
	const bool wanted = told != shadow_count(s, h) + n;

	ck_assert_int_eq(directory_publish(s->d, &sender, changes, count, told, s->now, &out), status);
	ck_assert_uint_eq(out.refused_count, n);
	ck_assert_int_eq(out.digest_wanted, status == STATUS_OK && wanted);
	if (n)
		ck_assert_mem_eq(refused, expected, n * sizeof *refused);
}

/* A holder that has other names than was told: its digest finds the buckets, which are then made equal. */
static void repair(struct shadow *s)
{
	const uint32_t h = below(s, HOLDERS), buckets = 1u << below(s, 6), rate = 1 + below(s, 6);
	struct directory_change changes[TENANTS * NAMES];
	uint32_t names[TENANTS * NAMES], count = 0;
	struct directory_published out = { 0 };
	struct directory_sender sender;
	struct digest theirs;
	struct digest_set set;
	const enum status status = shadow_sender(s, h, &sender);
	bool here[TENANTS][NAMES];

	digest_begin(&theirs, buckets);
	for (uint32_t t = 0; t < TENANTS; t++)
		for (uint32_t i = 0; i < NAMES; i++) {
			const struct public_name name = rig_name(i);

			here[t][i] = below(s, 10) < rate ? below(s, 2) : s->told[h][t][i] > 0;
			if (here[t][i])
				digest_add(&theirs, &name);
		}
	ck_assert_int_eq(directory_digest(s->d, &sender, &theirs, &set), status);
	if (status != STATUS_OK)
		return;
	for (uint32_t t = 0; t < TENANTS; t++)
		for (uint32_t i = 0; i < NAMES; i++) {
			const struct directory_change c = { .name = rig_name(i), .tenant = t };

			if (here[t][i] && digest_set_has(&set, &c.name)) {
				names[count] = i;
				changes[count++] = c;
			}
		}
	const bool part = count > 2 && !below(s, 3);
	const struct directory_buckets b = { &set, changes, part ? count / 2 : count, part };

	sender.sequence = s->last[h] = ++s->sequence;
	ck_assert_int_eq(directory_replace(s->d, &sender, &b, s->now, &out), STATUS_OK);
	for (uint32_t i = 0; i < b.count; i++)
		shadow_add(s, h, changes[i].tenant, names[i]);
	for (uint32_t t = 0; t < TENANTS && !part; t++)
		for (uint32_t i = 0; i < NAMES; i++) {
			const struct public_name name = rig_name(i);

			if (digest_set_has(&set, &name) && !here[t][i])
				s->told[h][t][i] = 0;
		}
}

static void refuse(struct shadow *s)
{
	const uint32_t name = below(s, NAMES), tenant = below(s, TENANTS);
	const struct public_name n = rig_name(name);
	struct directory_found known;
	uint32_t all = 0;

	for (uint32_t h = 0; h < HOLDERS; h++) {
		all += s->told[h][tenant][name] > 0;
		s->told[h][tenant][name] = 0;
	}
	directory_refuse(s->d, tenant, &n, 1, s->now, &known);
	ck_assert_uint_eq(known.all, all);
	s->refused[tenant][name] = s->now + REFUSED + SECOND;
}

static void membership(struct shadow *s)
{
	struct directory_member at[HOLDERS];
	uint32_t count = 0;

	for (uint32_t h = 0; h < HOLDERS; h++) {
		const bool restart = !below(s, 6);
		const bool was = s->member[h];

		s->member[h] = below(s, 5) > 0;
		s->epoch[h] += restart;
		if (!s->member[h] || restart || !was) {
			memset(s->told[h], 0, sizeof s->told[h]);
			s->last[h] = 0;
		}
		if (s->member[h])
			at[count++] = rig_member(h, s->epoch[h]);
	}
	directory_members(s->d, at, count);
}

static void look(struct shadow *s)
{
	for (uint32_t t = 0; t < TENANTS; t++)
		for (uint32_t i = 0; i < NAMES; i++) {
			const struct public_name name = rig_name(i);
			struct directory_found out;
			uint64_t before = UINT64_MAX;
			uint32_t expected = 0;

			directory_find(s->d, t, &name, 1, s->now, &out);
			ck_assert_int_eq(out.refused, s->now < s->refused[t][i]);
			for (uint32_t k = 0; k < out.count; k++) {
				uint64_t latest = 0;
				uint32_t holder = 0;

				for (uint32_t h = 0; h < HOLDERS; h++)
					if (s->told[h][t][i] > latest && s->told[h][t][i] < before) {
						latest = s->told[h][t][i];
						holder = h;
					}
				const struct directory_run run = rig_run(holder, s->epoch[holder]);

				ck_assert_uint_gt(latest, 0);
				ck_assert(directory_run_equal(&out.at[k], &run));
				before = latest;
			}
			for (uint32_t h = 0; h < HOLDERS; h++)
				expected += s->told[h][t][i] > 0;
			if (expected > DIRECTORY_HOLDERS_MAX)
				expected = DIRECTORY_HOLDERS_MAX;
			ck_assert_uint_eq(out.count, expected);
		}
}

START_TEST(random_calls)
{
	struct shadow *s = calloc(1, sizeof *s);
	struct directory_counts counts;
	uint64_t entries = 0;

	s->d = make(1 << 18);
	s->seed = (uint64_t)_i + 1;
	for (uint32_t h = 0; h < HOLDERS; h++)
		s->epoch[h] = 1;
	for (uint32_t step = 0; step < 3000; step++) {
		s->now += below(s, 2) * SECOND;
		switch (below(s, 40)) {
		case 0:
			membership(s);
			break;
		case 1:
			refuse(s);
			break;
		case 2:
			directory_sweep(s->d, below(s, 30), s->now);
			break;
		case 3:
			repair(s);
			break;
		default:
			publish(s);
			break;
		}
		if (step % 20 == 0)
			look(s);
	}
	look(s);
	while (directory_sweep(s->d, 100, s->now))
		;
	for (uint32_t h = 0; h < HOLDERS; h++)
		entries += shadow_count(s, h);
	directory_counts(s->d, &counts);
	ck_assert_uint_eq(counts.entries, entries + counts.refusals);
	ck_assert_uint_eq(counts.dead, 0);
	ck_assert_uint_eq(counts.dropped, 0);
	ck_assert_uint_gt(counts.differing, 0);
	directory_destroy(s->d);
	free(s);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("table");

	tcase_add_test(tc, old_messages_change_nothing);
	tcase_add_test(tc, a_run_that_left_is_not_found);
	tcase_add_test(tc, the_oldest_go_first);
	tcase_add_loop_test(tc, a_flood_displaces_no_other, 0, 2);
	tcase_add_test(tc, deleted_names_are_refused);
	tcase_add_test(tc, too_few_bytes);
	tcase_add_loop_test(tc, random_calls, 0, 20);
	return rig_main(tc, "directory table");
}
