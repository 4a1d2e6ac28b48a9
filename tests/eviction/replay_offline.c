/* The offline model: trees that must find what is there to be found, and replays of traces whose answer is known. */
#include "eviction/replay/offline.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "eviction/hash.h"
#include "eviction/replay/boost.h"
#include "eviction/replay/report.h"

enum { BLOCK = 16, CHAIN = 8, REQUESTS = 6000, BACK_AFTER = 100, ROOM = 240, PAIR_CELLS = 64 * 12 };

/* ---- trees ---- */

/* Half of what differs in two inputs comes in bucket 9, nothing else ever does; neither input alone tells, and a third one nothing. */
static uint32_t odd_pairs(struct boost_cell *cells)
{
	uint32_t count = 0;

	for (uint8_t i = 0; i < PAIR_CELLS / 12; i++)
		for (uint8_t b = 0; b < 12; b++) {
			bool odd = (i ^ i >> 1) & 1;

			cells[count++] = (struct boost_cell){ .x = { b, i & 1, i >> 2, 0, i >> 1 & 1 }, .weight = odd && b > 9 ? 1000 : 2000,
							      .hits = odd && b == 9 ? 1000 : 0 };
		}
	return count;
}

START_TEST(trees_find_what_two_inputs_tell)
{
	static struct boost_cell cells[PAIR_CELLS];
	static struct boost once, again;
	float out[SURVIVAL_BUCKETS];
	uint32_t count = odd_pairs(cells);

	ck_assert(boost_fit(&once, cells, count));
	ck_assert(boost_fit(&again, cells, count));
	ck_assert_mem_eq(&once, &again, sizeof(once));
	for (uint8_t k = 0; k < 4; k++) {
		const uint8_t x[BOOST_INPUTS] = { 77, k & 1, 3, 0, k >> 1 }; /* the first is not read */
		bool odd = k == 1 || k == 2;

		boost_predict(&once, x, out);
		for (int b = 0; b < 12; b++)
			ck_assert_msg(odd && b == 9 ? out[b] > 0.4f && out[b] < 0.6f : out[b] < 0.05f, "%u at %d: %g", k, b, (double)out[b]);
	}
}
END_TEST

START_TEST(trees_stay_in_range)
{
	static struct boost_cell cells[64];
	static struct boost m;
	const uint8_t x[BOOST_INPUTS] = { 0 };
	float out[SURVIVAL_BUCKETS];

	for (int all = 0; all < 3; all++) { /* nothing known, all come at once, nothing ever does */
		for (uint8_t b = 0; b < 30; b++)
			cells[b] = (struct boost_cell){ .x = { b }, .weight = 1e9f, .hits = all == 1 ? 1e9f : 0 };
		ck_assert(boost_fit(&m, cells, all ? 30 : 0));
		boost_predict(&m, x, out);
		for (int b = 0; b < SURVIVAL_BUCKETS; b++)
			ck_assert(out[b] >= 1e-6f && out[b] <= 0.95f);
		ck_assert(all != 1 || out[5] > 0.9f);
		ck_assert(all != 2 || out[5] < 1e-3f);
	}
}
END_TEST

/* ---- replays ---- */

static void ask(struct trace *t, uint32_t i, uint64_t chain, uint8_t hint)
{
	const struct trace_request r = { .time_us = i * 250000ull, .tokens = CHAIN * BLOCK, .hint = hint };
	uint64_t ids[CHAIN];

	for (uint32_t k = 0; k < CHAIN; k++)
		ids[k] = chain * CHAIN + k;
	ck_assert_int_eq(trace_add(t, &r, ids, CHAIN), STATUS_OK);
}

/* Every fourth chain is said to go on, and is asked for once more when others have filled three caches; the rest are over.
 * From `turn` on hints mean the opposite. */
static void told_by_hint(struct trace *t, uint32_t turn)
{
	trace_init(t, BLOCK);
	for (uint32_t i = 0; i < REQUESTS; i++) {
		bool back = i % 4 == 2 && i >= BACK_AFTER;
		uint64_t chain = back ? i - BACK_AFTER - 2 : i;
		bool goes_on = i % 4 == 0;

		ask(t, i, chain, goes_on != (i >= turn) ? POLICY_HINT_TOOL : POLICY_HINT_END);
	}
}

static double rate(const struct replay_result *r)
{
	return replay_hit_tokens(r);
}

START_TEST(offline_reaches_the_optimum_where_the_hint_tells)
{
	struct replay_options o = { .capacity = ROOM, .from = REQUESTS / 2 };
	struct replay_result lru, opt, past, cross;
	struct trace t;

	told_by_hint(&t, UINT32_MAX);
	ck_assert_int_eq(replay_run(&t, policy_find("lru"), &o, &lru), STATUS_OK);
	ck_assert_int_eq(replay_opt(&t, true, &o, &opt), STATUS_OK);
	ck_assert_int_eq(offline_run(&t, OFFLINE_PAST, &o, &past), STATUS_OK);
	ck_assert_int_eq(offline_run(&t, OFFLINE_CROSS, &o, &cross), STATUS_OK);
	ck_assert_uint_eq(lru.hit_blocks, 0);
	ck_assert_double_gt(rate(&opt), 24);
	ck_assert_msg(rate(&past) > 0.97 * rate(&opt), "past %.2f, opt %.2f", rate(&past), rate(&opt));
	ck_assert_msg(rate(&cross) > 0.97 * rate(&opt), "cross %.2f, opt %.2f", rate(&cross), rate(&opt));
	trace_fini(&t);
	told_by_hint(&t, 0); /* the opposite of what the online model takes hints to mean at first */
	o.from = 0;
	o.to = REQUESTS / OFFLINE_FOLDS; /* what came later helps where nothing came before */
	ck_assert_int_eq(replay_opt(&t, true, &o, &opt), STATUS_OK);
	ck_assert_int_eq(offline_run(&t, OFFLINE_PAST, &o, &past), STATUS_OK);
	ck_assert_int_eq(offline_run(&t, OFFLINE_CROSS, &o, &cross), STATUS_OK);
	ck_assert_double_gt(rate(&cross), 0.9 * rate(&opt));
	ck_assert_double_gt(rate(&cross), rate(&past));
	trace_fini(&t);
}
END_TEST

/* What hints mean is turned round when the third part begins. Before, `past` does as if nothing would happen, and `cross` goes wrong
 * with what it has from later; in that part `past` goes wrong. */
START_TEST(the_past_knows_nothing_of_later)
{
	enum { TURN = REQUESTS / OFFLINE_FOLDS * 2 };
	struct replay_options o = { .capacity = ROOM, .to = TURN };
	struct replay_result same, turned;
	struct trace t, other;

	told_by_hint(&t, UINT32_MAX);
	told_by_hint(&other, TURN);
	ck_assert_int_eq(offline_run(&t, OFFLINE_PAST, &o, &same), STATUS_OK);
	ck_assert_int_eq(offline_run(&other, OFFLINE_PAST, &o, &turned), STATUS_OK);
	ck_assert_uint_gt(same.hit_blocks, 0);
	ck_assert_uint_eq(same.hit_blocks, turned.hit_blocks);
	ck_assert_int_eq(offline_run(&t, OFFLINE_CROSS, &o, &same), STATUS_OK);
	ck_assert_int_eq(offline_run(&other, OFFLINE_CROSS, &o, &turned), STATUS_OK);
	ck_assert_msg(rate(&turned) < rate(&same) / 2, "cross %.2f, of one meaning %.2f", rate(&turned), rate(&same));
	o.from = TURN + 2 * BACK_AFTER;
	o.to = REQUESTS / OFFLINE_FOLDS * 3;
	ck_assert_int_eq(offline_run(&t, OFFLINE_PAST, &o, &same), STATUS_OK);
	ck_assert_int_eq(offline_run(&other, OFFLINE_PAST, &o, &turned), STATUS_OK);
	ck_assert_msg(rate(&turned) < rate(&same) / 2, "past %.2f, of one meaning %.2f", rate(&turned), rate(&same));
	trace_fini(&t);
	trace_fini(&other);
}
END_TEST

/* No model knows anything of its own part, nor `past` of later ones; and before its part, nothing of what became of it in there. */
START_TEST(a_model_knows_other_parts_only)
{
	static const uint64_t begins[OFFLINE_FOLDS + 1] = { 10, 20, 30, 40, 50, 60 };

	for (uint32_t part = 0; part < OFFLINE_FOLDS; part++)
		for (uint64_t at = 10; at < 60; at++) {
			uint64_t past = at < begins[part] ? begins[part] : 0;

			ck_assert_uint_eq(offline_known_until(OFFLINE_PAST, begins, part, at), past);
			ck_assert_uint_eq(offline_known_until(OFFLINE_CROSS, begins, part, at), at >= begins[part + 1] ? 60 : past);
		}
}
END_TEST

START_TEST(offline_replays_repeat)
{
	const struct replay_options o = { .capacity = ROOM };
	struct replay_result once, again;
	struct trace t;

	told_by_hint(&t, UINT32_MAX);
	for (int k = OFFLINE_PAST; k <= OFFLINE_CROSS; k++) {
		ck_assert_int_eq(offline_run(&t, (enum offline_kind)k, &o, &once), STATUS_OK);
		ck_assert_int_eq(offline_run(&t, (enum offline_kind)k, &o, &again), STATUS_OK);
		ck_assert_mem_eq(&once, &again, sizeof(once));
	}
	ck_assert_int_eq(offline_run(&t, OFFLINE_PAST, &(struct replay_options){ 0 }, &once), STATUS_INVALID);
	trace_fini(&t);
}
END_TEST

START_TEST(a_trace_of_few_requests_is_no_trouble)
{
	const struct replay_options o = { .capacity = 3 };

	for (uint32_t requests = 0; requests < 8; requests++) {
		struct replay_result r;
		struct trace t;

		trace_init(&t, BLOCK);
		for (uint32_t i = 0; i < requests; i++)
			ask(&t, i, 1, 0);
		for (int k = OFFLINE_PAST; k <= OFFLINE_CROSS; k++) {
			ck_assert_int_eq(offline_run(&t, (enum offline_kind)k, &o, &r), STATUS_OK);
			ck_assert_uint_eq(r.requests, requests);
			ck_assert_uint_eq(r.hit_blocks, requests ? 3 * (requests - 1) : 0);
		}
		trace_fini(&t);
	}
}
END_TEST

/* ---- what is printed ---- */

static struct row row_of(const char *policy, uint64_t hits)
{
	return (struct row){ .policy = policy, .size = 0.01, .capacity = 9, .result = { .tokens = 1000, .hit_tokens = hits, .cost = 4000, .saved = 3 * (double)hits } };
}

START_TEST(shares_are_of_the_gap_and_of_the_gain)
{
	static const char *const expected =
		"policy,size,capacity,hit_tokens,hit_blocks,requests,evicted,refused,gap,gain_of_graph,saved_cost\n"
		"lru,0.01,9,10.0000,0.0000,0,0,0,0.00,0.00,7.5000\n"
		"opt,0.01,9,50.0000,0.0000,0,0,0,100.00,20.00,37.5000\n"
		"graph,0.01,9,18.0000,0.0000,0,0,0,20.00,100.00,13.5000\n"
		"offline-past,0.01,9,9.0000,0.0000,0,0,0,-2.50,0.00,6.7500\n"
		"offline-cross,0.01,9,20.0000,0.0000,0,0,0,25.00,80.00,15.0000\n";
	struct row rows[] = { row_of("lru", 100), row_of("opt", 500), row_of("graph", 180), row_of("offline-past", 90),
			      row_of("offline-cross", 200) };
	char program[] = "terrace-replay", trace[] = "--trace", file[] = "t", offline[] = "--offline", size[] = "--size", share[] = "0.01";
	char *argv[] = { program, trace, file, offline, size, share, NULL };
	char text[1024], why[256];
	struct options o;
	FILE *f = fmemopen(text, sizeof(text), "w");

	ck_assert_ptr_nonnull(f);
	ck_assert(options_parse(6, argv, &o, why, sizeof(why)));
	ck_assert_uint_eq(o.policy_count, 5);
	for (int i = 0; i < 5; i++)
		ck_assert_str_eq(o.policies[i], rows[i].policy);
	report_compare(&o, rows);
	report_csv(f, &o, rows);
	ck_assert_int_eq(fclose(f), 0);
	ck_assert_str_eq(text, expected);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("replay_offline");
	TCase *tc = tcase_create("offline");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 100);
	tcase_add_test(tc, trees_find_what_two_inputs_tell);
	tcase_add_test(tc, trees_stay_in_range);
	tcase_add_test(tc, offline_reaches_the_optimum_where_the_hint_tells);
	tcase_add_test(tc, the_past_knows_nothing_of_later);
	tcase_add_test(tc, a_model_knows_other_parts_only);
	tcase_add_test(tc, offline_replays_repeat);
	tcase_add_test(tc, a_trace_of_few_requests_is_no_trouble);
	tcase_add_test(tc, shares_are_of_the_gap_and_of_the_gain);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
