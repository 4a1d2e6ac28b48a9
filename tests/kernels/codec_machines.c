/* Every kind of machine packs the same bytes and unpacks the same floats: what the code for AVX2 and for AVX-512
 * makes of a block against what the code for one vector does, to the bit, odd input and all. And what the public header says of
 * 16-bit elements, on every kind of machine that this one can be: blocks keep them, outputs saturate.
 */
#include "kernels/codec.h"
#include "kernels/half.h"
#include "kernels/machine.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TERRACE_SANITIZED
enum { ROUNDS = 8 };
#else
enum { ROUNDS = 80 };
#endif

enum { FORMATS = KV_FORMAT_COUNT - KV_F16 };
enum { TOKENS = 32, GAP = 7, ROW_MAX = KV_HEAD_DIM_MAX + GAP, BLOCK_MAX = 2 * TOKENS * KV_HEAD_DIM_MAX * 2 };

#define DIM(d) d,
static const uint32_t dims[] = {KV_HEAD_DIMS(DIM)};
#undef DIM
static uint64_t state;

static uint64_t random_bits(void)
{
	uint64_t z = state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

static uint32_t below(uint32_t n)
{
	return (uint32_t)(random_bits() % n);
}

static float gaussian(void)
{
	uint64_t x = random_bits(), sum = (x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48);

	return ((float)sum - 2 * 65535) / 37837.0f;
}

enum kind { PLAIN, SIZED, TERNARY, OUTLIERS, ODD, KINDS };

static float element(enum kind kind, float size)
{
	static const float odd[] = {NAN,    -NAN, INFINITY, -INFINITY, 3.4e38f, -3.4e38f, 1e-45f,
				    1e-30f, 1e30f, 0,       -0.0f,     65504,   -65504,   1e-7f};

	switch (kind) {
	case TERNARY:
		return (float)below(3) - 1;
	case OUTLIERS:
		return gaussian() * (below(40) ? 1 : 100);
	case ODD:
		return below(3) ? gaussian() : odd[below(14)];
	case SIZED:
		return size * gaussian();
	default:
		return gaussian();
	}
}

/* What one call encodes, and what it is decoded to. */
struct work {
	struct kv_layout layout;
	struct kv_geometry geometry;
	enum kv_side side;
	uint32_t first, n;
	size_t stride;
	enum kv_dtype in, out;
	bool rotated;
	float source[TOKENS * ROW_MAX];
};

static void make_work(struct work *w, enum kv_format f, uint32_t d, uint64_t seed)
{
	enum kind kind;
	float size;

	state = seed;
	kind = (enum kind)below(KINDS);
	size = expf((float)below(40) - 20);
	w->layout = (struct kv_layout){.layers = 1, .heads = 1, .total_heads = 1, .head_dim_k = d, .head_dim_v = d,
				       .block_tokens = TOKENS, .k_format = f, .v_format = f,
				       .rotation_version = kv_rotation_version(d, d),
				       .codebook_version = KV_CODEBOOK_VERSION,
				       .layout_version = KV_LAYOUT_VERSION};
	kv_geometry_of(&w->layout, &w->geometry);
	w->side = (enum kv_side)below(2);
	w->first = below(2) ? 0 : below(TOKENS);
	w->n = w->first ? 1 + below(TOKENS - w->first) : TOKENS;
	w->stride = d + (below(2) ? 0 : GAP);
	w->in = (enum kv_dtype)below(4);
	w->out = (enum kv_dtype)below(4);
	w->rotated = below(2);
	for (size_t i = 0; i < w->n * w->stride; i++) {
		float x = element(kind, size);

		if (w->in == KV_DTYPE_F32)
			w->source[i] = x;
		else if (w->in == KV_DTYPE_E4M3)
			((uint8_t *)w->source)[i] = kv_e4m3_from(x);
		else
			((uint16_t *)w->source)[i] = w->in == KV_DTYPE_F16 ? kv_half_from(x) : kv_bf16_from(x);
	}
}

struct result {
	uint8_t block[BLOCK_MAX];
	uint8_t out[TOKENS * ROW_MAX * sizeof(float)];
};

static void do_work(const struct work *w, enum kv_machine machine, struct result *r)
{
	kv_machine_limit(machine);
	memset(r, 0x5a, sizeof(*r));
	kv_encode(&w->layout, &w->geometry, r->block, 0, 0, w->side, w->first, w->n, w->source, w->in, w->stride);
	kv_decode(&w->layout, &w->geometry, r->block, 0, 0, w->side, w->first, w->n, w->rotated, r->out, w->out,
		  w->stride);
}

/* _i: format and machine. */
START_TEST(same_bytes)
{
	static struct work w;
	static struct result plain, other;
	enum kv_format f = (enum kv_format)(KV_F16 + _i / 2);
	enum kv_machine machine = _i % 2 ? KV_MACHINE_AVX512 : KV_MACHINE_AVX2;

	for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
		for (uint64_t round = 0; round < ROUNDS; round++) {
			make_work(&w, f, dims[i], (uint64_t)_i * 10000 + i * 1000 + round);
			do_work(&w, KV_MACHINE_PLAIN, &plain);
			do_work(&w, machine, &other);
			ck_assert_mem_eq(other.block, plain.block, sizeof(plain.block));
			ck_assert_mem_eq(other.out, plain.out, sizeof(plain.out));
		}
}
END_TEST

/* The bits that a 16-bit block gives back for those that it was given: of finite numbers the same. */
static uint16_t kept_bits(enum kv_format f, uint16_t bits)
{
	const uint16_t infinity = f == KV_F16 ? 0x7c00 : 0x7f80, magnitude = bits & 0x7fff;

	return magnitude < infinity ? bits : magnitude > infinity ? 0 : bits - 1;
}

/* _i: fp16 or bf16 on a kind of machine; all 65536 elements there are. */
START_TEST(blocks_keep_16_bits)
{
	enum { D = 256, ALL = 0x10000 };
	static uint8_t block[BLOCK_MAX];
	static uint16_t given[TOKENS * D], got[TOKENS * D];
	const enum kv_format f = _i % 2 ? KV_BF16 : KV_F16;
	const enum kv_dtype type = _i % 2 ? KV_DTYPE_BF16 : KV_DTYPE_F16;
	struct work w;
	size_t wrong = 0;

	make_work(&w, f, D, 1);
	kv_machine_limit((enum kv_machine)(_i / 2));
	for (uint32_t first = 0; first < ALL; first += TOKENS * D) {
		for (uint32_t i = 0; i < TOKENS * D; i++)
			given[i] = (uint16_t)(first + i);
		kv_encode(&w.layout, &w.geometry, block, 0, 0, KV_SIDE_K, 0, TOKENS, given, type, D);
		kv_decode(&w.layout, &w.geometry, block, 0, 0, KV_SIDE_K, 0, TOKENS, false, got, type, D);
		for (uint32_t i = 0; i < TOKENS * D; i++)
			wrong += got[i] != kept_bits(f, given[i]);
	}
	ck_assert_uint_eq(wrong, 0);
}
END_TEST

/* _i: a format on a kind of machine. Vectors that pass what 16 bits hold, decoded as fp16 and bf16, are the floats saturated. */
START_TEST(outputs_saturate)
{
	enum { D = 128 };
	static const float sizes[] = {6e4f, 65504, 1e30f, 3.38e38f, INFINITY};
	static uint8_t block[BLOCK_MAX];
	static float x[TOKENS * D], y[TOKENS * D];
	static uint16_t h[TOKENS * D], b[TOKENS * D];
	const enum kv_format f = (enum kv_format)(KV_F16 + _i % FORMATS);
	struct work w;
	size_t wrong = 0, largest = 0;

	make_work(&w, f, D, 2);
	kv_machine_limit((enum kv_machine)(_i / FORMATS));
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		for (uint32_t i = 0; i < TOKENS * D; i++)
			x[i] = below(3) ? sizes[s] * (below(2) ? 1 : -1) : gaussian();
		kv_encode(&w.layout, &w.geometry, block, 0, 0, KV_SIDE_V, 0, TOKENS, x, KV_DTYPE_F32, D);
		kv_decode(&w.layout, &w.geometry, block, 0, 0, KV_SIDE_V, 0, TOKENS, false, y, KV_DTYPE_F32, D);
		kv_decode(&w.layout, &w.geometry, block, 0, 0, KV_SIDE_V, 0, TOKENS, false, h, KV_DTYPE_F16, D);
		kv_decode(&w.layout, &w.geometry, block, 0, 0, KV_SIDE_V, 0, TOKENS, false, b, KV_DTYPE_BF16, D);
		for (uint32_t i = 0; i < TOKENS * D; i++) {
			wrong += h[i] != half_saturated(y[i]) || b[i] != bf16_saturated(y[i]);
			wrong += (h[i] & 0x7fff) > 0x7bff || (b[i] & 0x7fff) > 0x7f7f || !isfinite(y[i]);
			largest += (h[i] & 0x7fff) == 0x7bff;
		}
	}
	ck_assert_uint_eq(wrong, 0);
	ck_assert(largest > 0 || f == KV_INT4_PTH); /* which keeps the rotated vector in fp16, so that nothing so large comes back */
}
END_TEST

/* The machine's best is what runs, and a limit is kept. */
START_TEST(limits)
{
	enum kv_machine best = kv_machine();

	kv_machine_limit(KV_MACHINE_PLAIN);
	ck_assert_int_eq(kv_machine(), KV_MACHINE_PLAIN);
	kv_machine_limit(KV_MACHINE_VNNI);
	ck_assert_int_eq(kv_machine(), best);
	printf("kind of machine: %d\n", (int)best);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("codec_machines");
	TCase *t = tcase_create("codec_machines");
	SRunner *r;
	int failed;

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, same_bytes, 0, 2 * FORMATS);
	tcase_add_loop_test(t, blocks_keep_16_bits, 0, 2 * (1 + (int)kv_machine()));
	tcase_add_loop_test(t, outputs_saturate, 0, FORMATS * (1 + (int)kv_machine()));
	tcase_add_test(t, limits);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
