/* Terrace's CUDA kernels as libterrace calls them, against the CPU's: the blocks of a random sequence are encoded and attended on the
 * GPU the way tinylm does it. Bytes must be equal, attention within 2e-3 of a row's norm, and a row's result the same bits whatever
 * else its step computes. Exits 77 where there is no GPU. */
#include "client/examples/tinylm/kvdevice.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TERRACE_SANITIZED
enum { TOKENS = 530, Q_HEADS = 4 }; /* two spans */
#elif defined(TERRACE_TESTS_SMALL)
enum { TOKENS = 530, Q_HEADS = 8 };
#else
enum { TOKENS = 1300, Q_HEADS = 8 };
#endif
enum { LAYERS = 2, HEADS = 2, DIM = 128, BLOCK = 16, BLOCKS = (TOKENS + BLOCK - 1) / BLOCK };

static const double bound = 2e-3;

static struct terrace_layout layout;
static float k[LAYERS][TOKENS][HEADS][DIM], v[LAYERS][TOKENS][HEADS][DIM], q[LAYERS][TOKENS][Q_HEADS][DIM];
static float expected[LAYERS][TOKENS][Q_HEADS][DIM], whole[LAYERS][TOKENS][Q_HEADS][DIM], pieces[LAYERS][TOKENS][Q_HEADS][DIM];
static char *blocks[BLOCKS];

/* About normal, from xorshift. */
static float noise(void)
{
	static uint64_t state = 88172645463325252u;
	float sum = 0;

	for (int i = 0; i < 6; i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		sum += (float)(state >> 40) * 0x1p-24f - .5f;
	}
	return sum * 1.41421f;
}

static void fill(float *x, size_t n, float scale)
{
	for (size_t i = 0; i < n; i++)
		x[i] = noise() * scale;
}

/* The blocks and the attention of the CPU. */
static void compute_expected(void)
{
	struct terrace_attend_options o = TERRACE_ATTEND_OPTIONS_INIT;

	for (uint32_t i = 0; i < BLOCKS; i++)
		memset(blocks[i], 0, terrace_block_bytes(&layout));
	o.q_heads = Q_HEADS;
	o.queries = TOKENS;
	o.blocks = (const void *const *)blocks;
	o.block_count = BLOCKS;
	o.kv_tokens = TOKENS;
	o.causal = true;
	for (uint32_t l = 0; l < LAYERS; l++) {
		for (uint32_t t = 0; t < TOKENS; t++) {
			for (uint32_t h = 0; h < HEADS; h++)
				terrace_encode(&layout, blocks[t / BLOCK], l, h, t % BLOCK, 1, k[l][t][h], DIM, v[l][t][h], DIM,
					       TERRACE_F32);
		}
		o.layer = l;
		o.q = q[l];
		o.out = expected[l];
		if (terrace_attend(&layout, &o) != TERRACE_OK)
			abort();
	}
}

/* The sequence in steps of `step` tokens. */
static bool compute(struct kvdevice *d, uint32_t step, float out[LAYERS][TOKENS][Q_HEADS][DIM], struct fault *fault)
{
	for (uint32_t at = 0; at < TOKENS; at += step) {
		uint32_t n = TOKENS - at < step ? TOKENS - at : step;

		if (!kvdevice_begin(d, at, n, fault))
			return false;
		for (uint32_t l = 0; l < LAYERS; l++) {
			if (!kvdevice_layer(d, l, k[l][at][0], v[l][at][0], q[l][at][0], out[l][at][0], fault))
				return false;
		}
	}
	return true;
}

/* Bytes of blocks that are not those of the CPU. */
static bool count_wrong_bytes(struct kvdevice *d, uint64_t *wrong, struct fault *fault)
{
	char *bytes = malloc(d->block_bytes);

	*wrong = 0;
	for (uint32_t i = 0; i < BLOCKS; i++) {
		if (!kvdevice_get(d, i, bytes, fault)) {
			free(bytes);
			return false;
		}
		for (uint64_t b = 0; b < d->block_bytes; b++)
			*wrong += bytes[b] != blocks[i][b];
	}
	free(bytes);
	return true;
}

/* The greatest distance of a row from the CPU's, by that one's norm. */
static double distance(void)
{
	const float *a = whole[0][0][0], *b = expected[0][0][0];
	double most = 0;

	for (size_t row = 0; row < (size_t)LAYERS * TOKENS * Q_HEADS; row++, a += DIM, b += DIM) {
		double apart = 0, norm = 0;

		for (int i = 0; i < DIM; i++) {
			apart += (double)(a[i] - b[i]) * (double)(a[i] - b[i]);
			norm += (double)b[i] * (double)b[i];
		}
		apart = sqrt(apart / norm);
		most = apart > most || isnan(apart) ? apart : most;
	}
	return most;
}

static bool check(const char *name, bool *ok, struct fault *fault)
{
	struct kvdevice d;
	uint64_t wrong = 0;
	bool same = false, ran;
	double apart;

	layout = (struct terrace_layout)TERRACE_LAYOUT_INIT;
	layout.layers = LAYERS;
	layout.heads = layout.total_heads = HEADS;
	layout.head_dim_k = layout.head_dim_v = DIM;
	layout.block_tokens = BLOCK;
	if (terrace_format_parse(name, &layout.k_format) != TERRACE_OK)
		return fault_set(fault, "no format %s", name);
	layout.v_format = layout.k_format;
	compute_expected();
	if (!kvdevice_open(&d, &layout, Q_HEADS, TOKENS, 256, fault))
		return false;
	memset(whole, 0xff, sizeof(whole));
	ran = compute(&d, 7, pieces, fault) && compute(&d, 256, whole, fault) && count_wrong_bytes(&d, &wrong, fault);
	kvdevice_close(&d);
	apart = distance();
	same = memcmp(whole, pieces, sizeof(whole)) == 0;
	*ok = *ok && ran && wrong == 0 && apart <= bound && same;
	if (ran)
		printf("%-9s wrong bytes %llu   attention %.2e of %.0e   steps of 7 and of 256: %s   %s\n", name,
		       (unsigned long long)wrong, apart, bound, same ? "the same bits" : "NOT the same bits",
		       wrong == 0 && apart <= bound && same ? "PASS" : "FAIL");
	return ran;
}

int main(void)
{
	static const char *const formats[] = { "fp16", "bf16", "fp8", "int4_pth", "tq4", "tq3", "tq2" };
	struct fault fault = { "" };
	bool ok = true;

	if (!device_load(&fault)) {
		printf("skipped: %s\n", fault.text);
		return 77;
	}
	fill(k[0][0][0], sizeof(k) / sizeof(float), 1);
	fill(v[0][0][0], sizeof(v) / sizeof(float), 1);
	fill(q[0][0][0], sizeof(q) / sizeof(float), 2);
	for (uint32_t i = 0; i < BLOCKS; i++)
		blocks[i] = aligned_alloc(64, (size_t)BLOCK * LAYERS * HEADS * 2 * 512);
	for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
		if (!check(formats[i], &ok, &fault)) {
			printf("%-9s %s   FAIL\n", formats[i], fault.text);
			ok = false;
		}
	}
	for (uint32_t i = 0; i < BLOCKS; i++)
		free(blocks[i]);
	printf("plugin: %s\n", ok ? "PASS" : "FAIL");
	return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
