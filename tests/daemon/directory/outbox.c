/* What a holder tells: batches, what is taken back in time, messages and answers that are lost, owners that change or
 * are started again; and random runs with real tables, after which each owner has what it must and nothing else. */
#include "daemon/directory/outbox.h"

#include "daemon/directory/table.h"
#include "tests/daemon/directory/rig.h"

#define SECOND 1000000ull
#define STEP (SECOND / 10)

enum { SELF = 100 };

static struct outbox *make(uint32_t names, uint32_t messages)
{
	struct outbox_options options = { .names_max = names, .messages_a_second = messages, .seed = 3 };
	struct directory_run self = rig_run(SELF, 1);
	struct outbox *o;

	memcpy(options.self, self.node, sizeof options.self);
	ck_assert_int_eq(outbox_create(&options, &o), STATUS_OK);
	return o;
}

static void members(struct outbox *o, const struct directory_member *at, uint32_t count, uint64_t now)
{
	struct owners *owners;

	ck_assert_int_eq(owners_create(at, count, &owners), STATUS_OK);
	outbox_members(o, owners, now);
	owners_drop(owners);
}

static struct directory_change change(uint64_t name, uint64_t segment)
{
	return (struct directory_change){ .name = rig_name(name), .segment = rig_hash(segment), .tenant = 7 };
}

static void add(struct outbox *o, uint64_t name, uint64_t now)
{
	const struct directory_change c = change(name, name / 8);

	ck_assert_int_eq(outbox_add(o, &c, now), STATUS_OK);
}

static void take_back(struct outbox *o, uint64_t name, uint64_t now)
{
	const struct public_name n = rig_name(name);

	outbox_remove(o, &n, now);
}

static void end(struct outbox *o, const struct outbox_message *m, enum status status, uint64_t now)
{
	const struct outbox_reply reply = { .status = status };

	outbox_end(o, m, &reply, now);
}

static struct outbox_message m, second_message;

START_TEST(batches)
{
	const struct directory_member one = rig_member(0, 1);
	struct outbox *o = make(1000, 1000);
	struct outbox_counts counts;
	uint64_t now = 50 * SECOND;

	members(o, &one, 1, now);
	ck_assert(!outbox_next(o, now, &m));
	add(o, 1, now);
	add(o, 2, now + 10);
	take_back(o, 2, now + 20); /* in time: costs nothing */
	take_back(o, 3, now + 20); /* was never there */
	ck_assert(!outbox_next(o, now + SECOND - 1, &m));
	now += SECOND;
	ck_assert(outbox_next(o, now, &m));
	ck_assert_int_eq(m.kind, OUTBOX_PUBLISH);
	ck_assert(directory_run_equal(&m.to, &one.run));
	ck_assert_uint_eq(m.count, 1);
	ck_assert_uint_eq(m.told, 1);
	const struct directory_change expected = change(1, 0);
	ck_assert(public_name_equal(&m.changes[0].name, &expected.name));
	ck_assert_uint_eq(m.changes[0].segment, expected.segment);
	ck_assert_uint_eq(m.changes[0].tenant, 7);
	ck_assert(!m.changes[0].remove);
	/* One message at a time: 100 names wait for its end, not for a second. */
	for (uint32_t i = 10; i < 110; i++)
		add(o, i, now);
	ck_assert(!outbox_next(o, now, &second_message));
	end(o, &m, STATUS_OK, now);
	ck_assert(outbox_next(o, now, &second_message));
	ck_assert_uint_eq(second_message.count, 100);
	ck_assert_uint_eq(second_message.told, 101);
	ck_assert_uint_gt(second_message.sequence, m.sequence);
	for (uint32_t i = 1; i < 100; i++) /* those of one segment are neighbours */
		for (uint32_t k = i + 1; k < 100; k++)
			if (second_message.changes[k].segment == second_message.changes[i - 1].segment)
				ck_assert_uint_eq(second_message.changes[i].segment, second_message.changes[k].segment);
	end(o, &second_message, STATUS_OK, now);
	/* Taken back: told, then forgotten. */
	add(o, 2, now);
	take_back(o, 1, now);
	ck_assert(!outbox_next(o, now + OUTBOX_REMOVE_WAIT_US - 1, &m)); /* sooner than additions */
	ck_assert(outbox_next(o, now + OUTBOX_REMOVE_WAIT_US, &m));
	ck_assert_uint_eq(m.count, 2);
	ck_assert_int_eq(m.changes[0].remove, public_name_equal(&m.changes[0].name, &expected.name));
	ck_assert_uint_eq(m.told, 101);
	outbox_counts(o, &counts);
	ck_assert_uint_eq(counts.names, 102);
	end(o, &m, STATUS_OK, now + SECOND);
	outbox_counts(o, &counts);
	ck_assert_uint_eq(counts.names, 101);
	ck_assert_uint_eq(counts.waiting, 0);
	ck_assert_uint_eq(counts.messages, 3);
	ck_assert_uint_eq(counts.changes, 103);
	outbox_destroy(o);
}
END_TEST

/* An addition whose answer is lost may have been applied: a removal must be told. */
START_TEST(lost_answers)
{
	const struct directory_member one = rig_member(0, 1);
	struct outbox *o = make(1000, 1000);
	uint64_t now = 50 * SECOND;

	members(o, &one, 1, now);
	add(o, 1, now);
	ck_assert(outbox_next(o, now += SECOND, &m));
	take_back(o, 1, now);
	end(o, &m, STATUS_DEADLINE, now);
	/* Tried again after a quarter of a second, then half of one, up to 16. */
	for (uint32_t i = 0; i < 10; i++) {
		const uint64_t wait = i < 6 ? OUTBOX_RETRY_US << i : OUTBOX_RETRY_MAX_US;

		ck_assert(!outbox_next(o, now + wait - 1, &m));
		ck_assert(outbox_next(o, now += wait, &m));
		ck_assert_uint_eq(m.count, 1);
		ck_assert(m.changes[0].remove);
		end(o, &m, STATUS_UNAVAILABLE, now);
	}
	ck_assert(outbox_next(o, now += 16 * SECOND, &m));
	end(o, &m, STATUS_OK, now);
	ck_assert(!outbox_next(o, now += 2 * SECOND, &m) || m.kind == OUTBOX_DIGEST);
	outbox_destroy(o);
}
END_TEST

START_TEST(bounds)
{
	struct directory_member at[100];
	struct outbox *o = make(5000, 10);
	const struct directory_change more = change(5000, 1);
	struct outbox_counts counts;
	uint64_t now = 50 * SECOND;
	uint32_t messages = 0;

	for (uint32_t i = 0; i < 100; i++)
		at[i] = rig_member(i, 1);
	members(o, at, 100, now);
	for (uint32_t i = 0; i < 5000; i++)
		add(o, i, now);
	ck_assert_int_eq(outbox_add(o, &more, now), STATUS_EXHAUSTED);
	outbox_counts(o, &counts);
	ck_assert_uint_eq(counts.turned_away, 1);
	ck_assert_uint_eq(counts.names, 5000);
	ck_assert_uint_eq(counts.segments, 625);
	ck_assert_uint_eq(counts.waiting, 10000);
	for (uint32_t i = 0; i < 55; i++, now += STEP)
		while (outbox_next(o, now, &m)) {
			end(o, &m, STATUS_OK, now);
			messages++;
		}
	ck_assert_uint_ge(messages, 50);
	ck_assert_uint_le(messages, 57);
	for (uint32_t i = 0; i < 100; i++, now += STEP)
		while (outbox_next(o, now, &m))
			end(o, &m, STATUS_OK, now);
	outbox_counts(o, &counts);
	ck_assert_uint_eq(counts.waiting, 0);
	outbox_destroy(o);
	const struct outbox_options none = { .names_max = 0, .messages_a_second = 1 };
	ck_assert_int_eq(outbox_create(&none, &o), STATUS_INVALID);
	outbox_destroy(NULL);
}
END_TEST

/* A message has a bound; what did not fit follows. */
START_TEST(one_long_segment)
{
	const struct directory_member one = rig_member(0, 1);
	struct outbox *o = make(3 * OUTBOX_MESSAGE_MAX, 1000);
	struct outbox_counts counts;
	uint64_t now = 50 * SECOND;

	members(o, &one, 1, now);
	for (uint32_t i = 0; i < OUTBOX_MESSAGE_MAX + 100; i++) {
		const struct directory_change c = change(i, 1);

		ck_assert_int_eq(outbox_add(o, &c, now), STATUS_OK);
	}
	ck_assert(outbox_next(o, now, &m));
	ck_assert_uint_eq(m.count, OUTBOX_MESSAGE_MAX);
	end(o, &m, STATUS_OK, now);
	ck_assert(outbox_next(o, now + SECOND, &m));
	ck_assert_uint_eq(m.count, 100);
	ck_assert_uint_eq(m.told, OUTBOX_MESSAGE_MAX + 100);
	end(o, &m, STATUS_OK, now);
	outbox_counts(o, &counts);
	ck_assert_uint_eq(counts.waiting, 0);
	outbox_destroy(o);
}
END_TEST

/* One death: the segments of the dead are told anew over ten seconds, and nothing else is. */
START_TEST(moved_segments_are_spread)
{
	struct directory_member at[20];
	struct outbox *o = make(8000, 1000);
	struct outbox_counts before, after;
	uint64_t now = 50 * SECOND;
	uint64_t changes[12] = { 0 };

	for (uint32_t i = 0; i < 20; i++)
		at[i] = rig_member(i, 1);
	members(o, at, 20, now);
	for (uint32_t i = 0; i < 8000; i++)
		add(o, i, now);
	for (uint32_t i = 0; i < 30; i++, now += STEP)
		while (outbox_next(o, now, &m))
			end(o, &m, STATUS_OK, now);
	outbox_counts(o, &before);
	ck_assert_uint_eq(before.waiting, 0);
	ck_assert_uint_eq(before.changes, 16000);
	members(o, at, 19, now);
	for (uint32_t i = 0; i < 120; i++, now += STEP)
		while (outbox_next(o, now, &m)) {
			if (m.kind == OUTBOX_PUBLISH)
				changes[i / 10] += m.count;
			end(o, &m, STATUS_OK, now);
		}
	outbox_counts(o, &after);
	ck_assert_uint_eq(after.waiting, 0);
	ck_assert_uint_eq(after.changes - before.changes, 8 * (after.moved - before.moved));
	ck_assert_uint_gt(after.changes - before.changes, 8000 * 2 / 20 / 2);
	ck_assert_uint_lt(after.changes - before.changes, 8000 * 2 / 20 * 2);
	for (uint32_t i = 0; i < 12; i++)
		ck_assert_uint_lt(changes[i], (after.changes - before.changes) / 3);
	outbox_destroy(o);
}
END_TEST

/* An owner that was started again is told of a few segments at once: there is nothing to spread. */
START_TEST(few_segments_are_told_at_once)
{
	struct directory_member at[3] = { rig_member(0, 1), rig_member(1, 1), rig_member(2, 1) };
	struct outbox *o = make(80, 1000);
	struct outbox_counts before, after;
	uint64_t now = 50 * SECOND, expected = 0;
	struct owners *owners;

	ck_assert_int_eq(owners_create(at, 3, &owners), STATUS_OK);
	for (uint32_t i = 0; i < 10; i++) {
		uint32_t of[OWNERS_A_SEGMENT];

		owners_of(owners, rig_hash(i), of);
		expected += of[0] == 1 || of[1] == 1;
	}
	owners_drop(owners);
	members(o, at, 3, now);
	for (uint32_t i = 0; i < 80; i++)
		add(o, i, now);
	for (uint32_t i = 0; i < 30; i++, now += STEP)
		while (outbox_next(o, now, &m))
			end(o, &m, STATUS_OK, now);
	outbox_counts(o, &before);
	ck_assert_uint_eq(before.changes, 160);
	at[1].run.epoch++;
	members(o, at, 3, now);
	for (uint32_t i = 0; i < 20; i++, now += STEP)
		while (outbox_next(o, now, &m))
			end(o, &m, STATUS_OK, now);
	outbox_counts(o, &after);
	ck_assert_uint_eq(after.changes - before.changes, 8 * expected);
	outbox_destroy(o);
}
END_TEST

/* With 2,040 owners, twice as many as can be checked in a minute, digests take two. */
START_TEST(digests_have_a_bound)
{
	enum { OWNERS_TOLD = 120 * OUTBOX_DIGESTS_A_SECOND };
	struct directory_member *at = calloc(OWNERS_TOLD, sizeof *at);
	struct outbox *o = make(20000, 10000);
	uint64_t now = 50 * SECOND;
	uint32_t digests = 0;

	for (uint32_t i = 0; i < OWNERS_TOLD; i++)
		at[i] = rig_member(i, 1);
	members(o, at, OWNERS_TOLD, now);
	for (uint32_t i = 0; i < 20000; i++) {
		const struct directory_change c = change(i, i);

		ck_assert_int_eq(outbox_add(o, &c, now), STATUS_OK);
	}
	for (uint32_t s = 0; s < 360; s++, now += SECOND)
		while (outbox_next(o, now, &m)) {
			digests += m.kind == OUTBOX_DIGEST && s >= 120;
			end(o, &m, STATUS_OK, now);
		}
	ck_assert_uint_ge(digests, 2 * OWNERS_TOLD - OWNERS_TOLD / 10);
	ck_assert_uint_le(digests, 2 * OWNERS_TOLD + OWNERS_TOLD / 10);
	outbox_destroy(o);
	free(at);
}
END_TEST

START_TEST(refused_names_are_not_told_again)
{
	const struct directory_member two[2] = { rig_member(0, 1), rig_member(1, 1) };
	struct outbox *o = make(100, 1000);
	struct outbox_counts counts;
	uint64_t now = 50 * SECOND;
	const uint32_t refused = 0;
	uint32_t removes = 0;

	members(o, two, 2, now);
	add(o, 1, now);
	ck_assert(outbox_next(o, now += SECOND, &m));
	end(o, &m, STATUS_OK, now);
	ck_assert(outbox_next(o, now, &m));
	const struct outbox_reply reply = { .status = STATUS_OK, .refused = &refused, .refused_count = 1 };
	outbox_end(o, &m, &reply, now);
	for (uint32_t i = 0; i < 30; i++, now += STEP)
		while (outbox_next(o, now, &m)) {
			ck_assert(m.kind == OUTBOX_DIGEST || m.changes[0].remove);
			removes += m.kind == OUTBOX_PUBLISH;
			end(o, &m, STATUS_OK, now);
		}
	ck_assert_uint_eq(removes, 1); /* at the owner that had taken it */
	outbox_counts(o, &counts);
	ck_assert_uint_eq(counts.names, 1);
	ck_assert_uint_eq(counts.waiting, 0);
	add(o, 1, now); /* it is there again */
	outbox_counts(o, &counts);
	ck_assert_uint_eq(counts.waiting, 2);
	take_back(o, 1, now);
	outbox_counts(o, &counts);
	ck_assert_uint_eq(counts.names, 0);
	outbox_destroy(o);
}
END_TEST

/* ---- random runs with real tables ---- */

enum { OWNERS = 12, NAMES = 400, FLIGHTS = OWNERS, OWN = OWNERS - 1 }; /* OWN: the holder itself */

static uint64_t node_of(uint32_t i)
{
	return i == OWN ? SELF : i;
}

struct flight {
	struct outbox_message m;
	uint64_t ends;
	bool used, lost;              /* lost: the message, or the answer */
	enum status status;
	bool digest_wanted;
	struct digest_set differ;
	uint32_t refused[OUTBOX_MESSAGE_MAX], refused_count;
};

struct world {
	struct outbox *o;
	struct directory *table[OWNERS];
	uint64_t epoch[OWNERS];
	bool member[OWNERS];
	bool wanted[NAMES];
	struct flight flights[FLIGHTS];
	uint64_t now, seed;
	uint32_t loss;                /* of a hundred */
};

static void table_renew(struct world *w, uint32_t i)
{
	const struct directory_options options = { .bytes_max = 1 << 18, .refused_us = SECOND };

	directory_destroy(w->table[i]);
	ck_assert_int_eq(directory_create(&options, &w->table[i]), STATUS_OK);
}

static uint32_t list(const struct world *w, struct directory_member *at)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < OWNERS; i++)
		if (w->member[i])
			at[count++] = rig_member(node_of(i), w->epoch[i]);
	return count;
}

static void apply_list(struct world *w)
{
	struct directory_member at[OWNERS];
	const uint32_t count = list(w, at);

	members(w->o, at, count, w->now);
	for (uint32_t i = 0; i < OWNERS; i++)
		if (w->member[i])
			directory_members(w->table[i], at, count);
}

static void churn(struct world *w)
{
	const uint32_t i = rig_below(&w->seed, OWN);

	if (rig_below(&w->seed, 2)) {
		w->member[i] = !w->member[i];
	} else {
		w->epoch[i]++;
		table_renew(w, i);
	}
	apply_list(w);
}

static void arrive(struct world *w, struct flight *f)
{
	const struct directory_sender from = { .run = rig_run(SELF, 1), .sequence = f->m.sequence };
	struct directory_published out = { .refused = f->refused };
	struct directory *table = NULL;
	const struct directory_buckets b = { &f->m.set, f->m.changes, f->m.count, f->m.part };

	for (uint32_t i = 0; i < OWNERS; i++) {
		const struct directory_run run = rig_run(node_of(i), w->epoch[i]);

		if (directory_run_equal(&run, &f->m.to))
			table = w->table[i];
	}
	f->status = STATUS_UNAVAILABLE;
	if (!table)
		return;
	if (f->m.kind == OUTBOX_PUBLISH)
		f->status = directory_publish(table, &from, f->m.changes, f->m.count, f->m.told, w->now, &out);
	else if (f->m.kind == OUTBOX_DIGEST)
		f->status = directory_digest(table, &from, &f->m.digest, &f->differ);
	else
		f->status = directory_replace(table, &from, &b, w->now, &out);
	f->digest_wanted = f->m.kind != OUTBOX_DIGEST && out.digest_wanted;
	f->refused_count = f->m.kind == OUTBOX_DIGEST ? 0 : out.refused_count;
}

static void send_and_end(struct world *w)
{
	for (uint32_t i = 0; i < FLIGHTS; i++) {
		struct flight *f = &w->flights[i];

		if (!f->used && outbox_next(w->o, w->now, &f->m)) {
			f->used = true;
			f->status = STATUS_DEADLINE;
			f->lost = rig_below(&w->seed, 100) < w->loss;
			if (!f->lost || rig_below(&w->seed, 2))
				arrive(w, f);
			f->ends = w->now + rig_below(&w->seed, w->loss ? 2 * SECOND : STEP);
		} else if (f->used && w->now >= f->ends) {
			const struct outbox_reply reply = {
				.status = f->lost ? STATUS_DEADLINE : f->status, .digest_wanted = f->digest_wanted,
				.refused = f->refused, .refused_count = f->refused_count, .differ = &f->differ,
			};

			outbox_end(w->o, &f->m, &reply, w->now);
			f->used = false;
		}
	}
}

static void toggle(struct world *w)
{
	const uint32_t name = rig_below(&w->seed, NAMES);

	w->wanted[name] = !w->wanted[name];
	if (w->wanted[name])
		add(w->o, name, w->now);
	else
		take_back(w->o, name, w->now);
}

/* Each owner has what it owns and nothing else; a member that owns nothing has nothing. */
static void check(struct world *w)
{
	struct directory_member at[OWNERS];
	const uint32_t count = list(w, at);
	struct outbox_counts counts;
	struct owners *owners;
	uint64_t expected[OWNERS] = { 0 }, wanted = 0;

	ck_assert_int_eq(owners_create(at, count, &owners), STATUS_OK);
	for (uint32_t i = 0; i < NAMES; i++) {
		const struct directory_change c = change(i, i / 8);
		uint32_t of[2];

		wanted += w->wanted[i];
		owners_of(owners, c.segment, of);
		for (uint32_t k = 0; k < 2 && w->wanted[i]; k++)
			for (uint32_t n = 0; n < OWNERS && of[k] != OWNERS_NONE; n++) {
				const struct directory_run run = rig_run(node_of(n), w->epoch[n]);
				struct directory_found found;

				if (!directory_run_equal(&run, &owners_member(owners, of[k])->run))
					continue;
				directory_find(w->table[n], 7, &c.name, 1, w->now, &found);
				ck_assert_uint_eq(found.count, 1);
				expected[n]++;
			}
	}
	for (uint32_t i = 0; i < OWNERS; i++) {
		struct directory_counts table;

		if (!w->member[i])
			continue;
		while (directory_sweep(w->table[i], 1000, w->now))
			;
		directory_counts(w->table[i], &table);
		ck_assert_uint_eq(table.entries, expected[i]);
	}
	outbox_counts(w->o, &counts);
	ck_assert_uint_eq(counts.names, wanted);
	ck_assert_uint_eq(counts.waiting, 0);
	owners_drop(owners);
}

START_TEST(random_runs)
{
	struct world *w = calloc(1, sizeof *w);

	w->o = make(NAMES, 500);
	w->seed = (uint64_t)_i + 1;
	w->now = 50 * SECOND;
	for (uint32_t i = 0; i < OWNERS; i++) {
		w->epoch[i] = 1;
		w->member[i] = i == OWN;
		table_renew(w, i);
	}
	for (uint32_t round = 0; round < 3; round++) {
		w->loss = 10 + rig_below(&w->seed, 30);
		for (uint32_t step = 0; step < 1000; step++, w->now += STEP) {
			if (step % 50 == 0 && (rig_below(&w->seed, 2) || step == 0))
				churn(w);
			for (uint32_t i = rig_below(&w->seed, 5); i; i--)
				toggle(w);
			send_and_end(w);
		}
		/* Quiet: retries within 16 s, moved segments within 10, a digest and its buckets within 70. */
		w->loss = 0;
		for (uint32_t step = 0; step < 1200; step++, w->now += STEP)
			send_and_end(w);
		check(w);
	}
	for (uint32_t i = 0; i < OWNERS; i++)
		directory_destroy(w->table[i]);
	outbox_destroy(w->o);
	free(w);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("outbox");

	tcase_add_test(tc, batches);
	tcase_add_test(tc, lost_answers);
	tcase_add_test(tc, bounds);
	tcase_add_test(tc, one_long_segment);
	tcase_add_test(tc, moved_segments_are_spread);
	tcase_add_test(tc, few_segments_are_told_at_once);
	tcase_add_test(tc, digests_have_a_bound);
	tcase_add_test(tc, refused_names_are_not_told_again);
	tcase_add_loop_test(tc, random_runs, 0, 20);
	return rig_main(tc, "directory outbox");
}
