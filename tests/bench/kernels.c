/* The CPU kernels: how many bytes of fp16 K and V a second go in or come out on one core. Encode and decode
 * against memcpy of those bytes, attend (one query of 32 heads over 8 KV heads, d = 128) against attend over
 * blocks of plain fp16.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/include/terrace.h"
#include "tests/bench/bench.h"
#include "tests/bench/service.h"

enum { TOKENS = 1024, BLOCK_TOKENS = 16, BLOCKS = TOKENS / BLOCK_TOKENS, HEADS = 8, Q_HEADS = 32, DIM = 128 };
#define FP16_BYTES (2.0 * 2 * TOKENS * HEADS * DIM) /* K and V */

enum { COPY, ENCODE, DECODE, ATTEND, WORK_COUNT };

static const enum terrace_format formats[] = {
	TERRACE_FORMAT_FP16, TERRACE_FORMAT_BF16, TERRACE_FORMAT_FP8, TERRACE_FORMAT_INT4_PTH,
	TERRACE_FORMAT_TQ4,  TERRACE_FORMAT_TQ3,  TERRACE_FORMAT_TQ2};
enum { FORMAT_COUNT = sizeof(formats) / sizeof(formats[0]) };

struct kernel_bench {
	struct terrace_layout layout[FORMAT_COUNT];
	uint8_t *blocks[FORMAT_COUNT];
	uint64_t block_bytes[FORMAT_COUNT];
	uint16_t *source, *target; /* fp16: [K, V][HEADS][TOKENS][DIM] */
	uint16_t *q;
	float *out;
	double best_ns[FORMAT_COUNT][WORK_COUNT];
};

static uint16_t *vectors(uint16_t *all, int side, uint32_t head, uint32_t token)
{
	return all + (((size_t)side * HEADS + head) * TOKENS + token) * DIM;
}

static void encode(struct kernel_bench *b, int f, bool decode)
{
	for (uint32_t i = 0; i < BLOCKS; i++) {
		uint8_t *block = b->blocks[f] + i * b->block_bytes[f];

		for (uint32_t h = 0; h < HEADS; h++) {
			uint16_t *all = decode ? b->target : b->source;
			uint16_t *k = vectors(all, 0, h, i * BLOCK_TOKENS),
				 *v = vectors(all, 1, h, i * BLOCK_TOKENS);

			if (decode)
				service_check(terrace_decode(&b->layout[f], block, 0, h, 0, BLOCK_TOKENS, k,
							     DIM, v, DIM, TERRACE_F16),
					      "decode");
			else
				service_check(terrace_encode(&b->layout[f], block, 0, h, 0, BLOCK_TOKENS, k,
							     DIM, v, DIM, TERRACE_F16),
					      "encode");
		}
	}
}

static void attend(struct kernel_bench *b, int f)
{
	struct terrace_attend_options options = TERRACE_ATTEND_OPTIONS_INIT;
	const void *blocks[BLOCKS];

	for (uint32_t i = 0; i < BLOCKS; i++)
		blocks[i] = b->blocks[f] + i * b->block_bytes[f];
	options.queries = 1;
	options.q_heads = Q_HEADS;
	options.q = b->q;
	options.q_dtype = TERRACE_F16;
	options.blocks = blocks;
	options.block_count = BLOCKS;
	options.kv_tokens = TOKENS;
	options.out = b->out;
	options.out_dtype = TERRACE_F32;
	service_check(terrace_attend(&b->layout[f], &options), "attend");
	bench_keep((uint64_t)(fabsf(b->out[0]) * 1e3f));
}

static void do_work(struct kernel_bench *b, int f, int work)
{
	switch (work) {
	case COPY:
		memcpy(b->target, b->source, (size_t)FP16_BYTES);
		bench_keep(b->target[f]);
		break;
	case ATTEND:
		attend(b, f);
		break;
	default:
		encode(b, f, work == DECODE);
	}
}

static uint16_t random_half(uint64_t *seed)
{
	uint64_t r = bench_random(seed);

	return (uint16_t)((r & 0x83ff) | (10 + (r >> 20) % 6) << 10); /* +-2^-5 .. 2 */
}

static void set_up(struct kernel_bench *b)
{
	uint64_t seed = 6;

	b->source = malloc((size_t)FP16_BYTES);
	b->target = malloc((size_t)FP16_BYTES);
	b->q = malloc(2 * Q_HEADS * DIM);
	b->out = malloc(sizeof(float) * Q_HEADS * DIM);
	if (!b->source || !b->target || !b->q || !b->out)
		bench_die("out of memory");
	for (size_t i = 0; i < (size_t)FP16_BYTES / 2; i++)
		b->source[i] = random_half(&seed);
	for (size_t i = 0; i < Q_HEADS * DIM; i++)
		b->q[i] = random_half(&seed);
	for (int f = 0; f < FORMAT_COUNT; f++) {
		b->layout[f] = service_layout("bench kernels", formats[f], 1, HEADS, DIM);
		b->block_bytes[f] = terrace_block_bytes(&b->layout[f]);
		b->blocks[f] = aligned_alloc(64, (BLOCKS * b->block_bytes[f] + 63) / 64 * 64);
		if (!b->blocks[f])
			bench_die("out of memory");
		for (int work = 0; work < WORK_COUNT; work++)
			b->best_ns[f][work] = INFINITY;
	}
}

static void report(const struct kernel_bench *b)
{
	static const char *const names[] = {"", "encode", "decode", "attend"};
	char name[64];

	for (int work = ENCODE; work < WORK_COUNT; work++) {
		for (int f = 0; f < FORMAT_COUNT; f++) {
			double baseline = work == ATTEND ? b->best_ns[0][ATTEND] : b->best_ns[f][COPY];

			snprintf(name, sizeof(name), "%s %s / %s", names[work],
				 terrace_format_name(formats[f]), work == ATTEND ? "attend fp16" : "memcpy");
			bench_report(&(struct bench_figure){
				.bench = "kernels",
				.name = name,
				.unit = "GB/s fp16",
				.value = FP16_BYTES / b->best_ns[f][work],
				.baseline = FP16_BYTES / baseline,
			});
		}
	}
}

int bench_kernels(void)
{
	struct kernel_bench b = {0};

	set_up(&b);
	for (unsigned round = 0; round < bench_options.rounds; round++) {
		for (int f = 0; f < FORMAT_COUNT; f++) {
			for (int work = 0; work < WORK_COUNT; work++) {
				uint64_t start = bench_now_ns();

				do_work(&b, f, work);
				b.best_ns[f][work] =
					fmin(b.best_ns[f][work], (double)(bench_now_ns() - start));
			}
		}
	}
	report(&b);
	for (int f = 0; f < FORMAT_COUNT; f++)
		free(b.blocks[f]);
	free(b.source);
	free(b.target);
	free(b.q);
	free(b.out);
	return 0;
}
