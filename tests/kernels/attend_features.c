/* What attention does besides softmax(q k) v (kernels/attend_features.h), against float64, alone and together. */
#include "tests/kernels/attend_rig.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef TERRACE_SANITIZED
enum { RANDOM_CASES = 30, GARBAGE_CASES = 30, LONG_TOKENS = 4096, LONGEST = 150 };
#elif defined(TERRACE_TESTS_SMALL)
enum { RANDOM_CASES = 60, GARBAGE_CASES = 60, LONG_TOKENS = 8192, LONGEST = 1000 };
#else
enum { RANDOM_CASES = 200, GARBAGE_CASES = 120, LONG_TOKENS = 32768, LONGEST = 4095 };
#endif
static uint64_t random_count = RANDOM_CASES; /* `attend_features N TOKENS`: so many, of so long */
static uint32_t long_tokens = LONG_TOKENS;


/* A feature by its number, 0 .. FEATURES - 1, added to a spec of `tokens` tokens. */
enum { FEATURES = 9 };

static void feature_add(struct spec *s, unsigned feature)
{
	static const unsigned random_ones[] = {WITH_SINKS, WITH_ALIBI, WITH_ALIBI_SQRT, WITH_TREE, WITH_RANGES};

	switch (feature) {
	case 5:
		s->own_window = 1 + s->tokens / 3;
		break;
	case 6:
		s->softcap = 1.5f;
		break;
	case 7:
		s->out_type = KV_DTYPE_E4M3;
		break;
	case 8:
		s->out_type = KV_DTYPE_E4M3;
		s->out_scale = .03f;
		break;
	default:
		s->with |= random_ones[feature];
	}
}

/* The last queries of the sequence, as in a step of decoding with a draft. */
static struct spec plain_spec(enum kv_format f, uint32_t tokens, uint32_t queries, uint64_t seed)
{
	return (struct spec){.k = f, .v = f, .dk = 128, .group = 2, .heads = 1, .block_tokens = 64,
			     .tokens = tokens, .queries = queries, .causal = true,
			     .first_pos = (int64_t)tokens - queries, .seed = seed};
}

START_TEST(each_alone)
{
	static const uint32_t lengths[] = {1, 15, 16, 17, 100, LONGEST};

	for (unsigned feature = 0; feature < FEATURES; feature++)
		for (size_t f = 0; f < COUNT(formats); f++)
			for (size_t n = 0; n < COUNT(lengths); n++) {
				struct spec s = plain_spec(formats[f], lengths[n], lengths[n] < 5 ? 1 : 5,
							   feature * 1000 + f * 10 + n);

				feature_add(&s, feature);
				check_spec(&s);
			}
}
END_TEST

/* A cap far above the scores leaves them as they are; one far below, down to the smallest there is, makes them one. */
START_TEST(caps_of_any_size)
{
	static const float caps[] = {1e-45f, 1e-38f, .01f, 300, 5000, 1e6f, 1e30f, 3.4e38f};

	for (size_t i = 0; i < COUNT(caps); i++)
		for (uint32_t queries = 1; queries < 6; queries += 4) {
			struct spec s = plain_spec(formats[i % COUNT(formats)], 200, queries, 10000 + i);

			s.softcap = caps[i];
			check_spec(&s);
			s.dk = 96; /* decoded, in some formats */
			s.q_size = 5;
			check_spec(&s);
		}
}
END_TEST

/* Enough rows for the decoded way. */
START_TEST(many_rows)
{
	for (unsigned feature = 0; feature < FEATURES; feature++) {
		struct spec s = plain_spec(formats[feature % COUNT(formats)], 130, 90, 20000 + feature);

		feature_add(&s, feature);
		check_spec(&s);
		s.causal = false;
		check_spec(&s);
	}
}
END_TEST

START_TEST(long_and_all_together)
{
	static const enum kv_format some[] = {KV_F16, KV_FP8, KV_TQ4};

	for (size_t f = 0; f < COUNT(some); f++) {
		struct spec s = plain_spec(some[f], long_tokens, 1, 30000 + f);

		s.group = 4;
		s.dk = 64;
		s.with = WITH_SINKS | WITH_TREE | WITH_RANGES;
		s.softcap = 20;
		check_spec(&s);
		s.with |= WITH_ALIBI_SQRT;
		s.own_window = long_tokens - 77;
		check_spec(&s);
	}
}
END_TEST

static struct spec random_spec(uint64_t seed)
{
	struct spec s;

	random_state = seed;
	s = plain_spec(formats[random_below(COUNT(formats))], 1 + random_below(200), 1, seed);
	s.v = formats[random_below(COUNT(formats))];
	s.dk = head_dims[random_below(COUNT(head_dims))];
	s.dv = head_dims[random_below(COUNT(head_dims))];
	s.group = 1 + random_below(8);
	s.heads = 1 + random_below(2);
	s.block_tokens = 16u << random_below(4);
	s.queries = 1 + random_below(random_below(4) ? 4 : 40);
	s.causal = random_below(3) > 0;
	s.first_pos = random_below(2) ? (int64_t)s.tokens - s.queries : (int64_t)random_below(s.tokens + 60) - 30;
	s.window = random_below(4) ? 0 : 1 + random_below(120);
	s.q_type = (enum kv_dtype)random_below(3);
	s.out_type = (enum kv_dtype)random_below(4);
	s.q_size = random_below(2) ? 1 : 5;
	s.with = random_below(32);
	s.own_window = random_below(3) ? 0 : 1 + random_below(120);
	s.softcap = random_below(2) ? 0 : .5f + (float)random_below(50);
	s.out_scale = random_below(2) ? 0 : .01f;
	return s;
}

START_TEST(random_cases)
{
	for (uint64_t i = 0; i < random_count; i++) {
		struct spec s = random_spec(40000 + i);

		check_spec(&s);
	}
	check_worst_error();
}
END_TEST

/* Blocks whose other bytes differ, and scratch of any content, give the same bits. */
START_TEST(garbage_is_never_read)
{
	for (uint64_t i = 0; i < GARBAGE_CASES; i++) {
		struct spec s = random_spec(50000 + i);

		check_other_bytes(&s);
	}
}
END_TEST

/* A sink is all that a query without tokens sees; without one it sees nothing. */
START_TEST(sinks_without_tokens)
{
	struct spec s = plain_spec(KV_TQ4, 20, 7, 60000);
	struct bed b;

	s.first_pos = -3;
	s.with = WITH_SINKS;
	check_spec(&s);
	bed_init(&b, &s);
	b.a.kv_tokens = 0;
	ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
	check_guards(&b);
	for (size_t i = 0; i < b.rows; i++)
		ck_assert(b.lse[i] == b.sinks[i % 2] && ((float *)b.out)[i * s.dk] == 0);
	bed_fini(&b);
}
END_TEST

/* Bounds of E4M3: what passes 448 times the scale saturates. */
START_TEST(e4m3_saturates)
{
	struct spec s = plain_spec(KV_F16, 33, 1, 70000);
	struct bed b;
	size_t largest = 0, nan = 0;

	s.out_type = KV_DTYPE_E4M3;
	s.out_scale = 1e-4f;
	s.v_mean = 2;
	bed_init(&b, &s);
	ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
	check_guards(&b);
	for (size_t i = 0; i < b.out_bytes; i++) {
		uint8_t byte = ((uint8_t *)b.out)[i];

		largest += (byte & 0x7f) == 0x7e;
		nan += (byte & 0x7f) == 0x7f;
	}
	ck_assert(largest == b.out_bytes && nan == 0);
	bed_fini(&b);
}
END_TEST

static void refused(const struct bed *b, const struct kv_attend *a)
{
	const uint8_t *out = b->out;
	size_t written = 0;

	ck_assert_ptr_nonnull(kv_attend_run(a, b->scratch));
	for (size_t i = 0; i < b->out_bytes; i++)
		written += out[i] != 0xff;
	ck_assert_uint_eq(written, 0);
}

#define REFUSED(field, value)                   \
	do {                                    \
		struct kv_attend bad = b.a;     \
		bad.features.field = (value);   \
		refused(&b, &bad);              \
	} while (0)

START_TEST(bad_features_are_refused)
{
	struct spec s = plain_spec(KV_FP8, 40, 3, 80000);
	float bad_number = NAN, infinite = INFINITY, none = -INFINITY, zero = 0;
	struct bed b;

	s.with = WITH_SINKS | WITH_ALIBI | WITH_TREE | WITH_RANGES;
	bed_init(&b, &s);
	REFUSED(softcap, -1);
	REFUSED(softcap, INFINITY);
	REFUSED(softcap, NAN);
	REFUSED(ranges_max, 65);
	REFUSED(ranges, (const int32_t *)((uintptr_t)b.ranges + 2));
	REFUSED(ranges, NULL);
	REFUSED(sinks, (const float *)((uintptr_t)b.sinks + 1));
	REFUSED(out_scale, &bad_number);
	REFUSED(out_scale, &infinite);
	REFUSED(out_scale, &none);
	REFUSED(out_scale, &zero);
	b.sinks[1] = NAN;
	refused(&b, &b.a);
	b.sinks[1] = INFINITY;
	refused(&b, &b.a);
	b.sinks[1] = 0;
	b.alibi[0] = -INFINITY;
	refused(&b, &b.a);
	b.alibi[0] = 1;
	b.tree[8] = NAN;
	refused(&b, &b.a);
	b.tree[8] = 0;
	ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
	bed_fini(&b);
}
END_TEST

static void tests_add(TCase *tc)
{
	tcase_add_test(tc, each_alone);
	tcase_add_test(tc, caps_of_any_size);
	tcase_add_test(tc, many_rows);
	tcase_add_test(tc, long_and_all_together);
	tcase_add_test(tc, random_cases);
	tcase_add_test(tc, garbage_is_never_read);
	tcase_add_test(tc, sinks_without_tokens);
	tcase_add_test(tc, e4m3_saturates);
	tcase_add_test(tc, bad_features_are_refused);
}

int main(int argc, char **argv)
{
	if (argc > 2) {
		random_count = strtoull(argv[1], NULL, 10);
		long_tokens = (uint32_t)strtoul(argv[2], NULL, 10);
	}
	return on_every_machine("attend_features", tests_add);
}
