/* The CPU kernels, on one core. Encode and decode, in bytes of fp16 K and V a second, against memcpy of those bytes;
 * attention (one query of 32 heads over 8 KV heads, d = 128, over a long context) against attention over blocks
 * of plain fp16, and in packed bytes a second against reading these bytes. And what a call pays so that its results do not depend on the
 * caller's mode of floating-point arithmetic, against the shortest call there is.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/include/terrace.h"
#include "kernels/float_mode.h"
#include "tests/bench/bench.h"
#include "tests/bench/service.h"

enum {
	TOKENS = 1024, /* encoded and decoded */
	CONTEXT = 32768,
	CONTEXT_QUICK = 2048,
	BLOCK_TOKENS = 16,
	HEADS = 8,
	Q_HEADS = 32,
	DIM = 128,
	TOKEN_BYTES = 2 * 2 * HEADS * DIM, /* fp16 K and V */
};

#define ENCODE_TQ4_LEAST 0.15 /* of memcpy */
#define ATTEND_TQ4_LEAST 1.5  /* times attention over fp16 */
#define ATTEND_FP16_LEAST 0.6 /* of reading the blocks */

enum { COPY, ENCODE, DECODE, READ, ATTEND_FP16, ATTEND, WORK_COUNT };

static const enum terrace_format formats[] = {
	TERRACE_FORMAT_FP16, TERRACE_FORMAT_BF16, TERRACE_FORMAT_FP8, TERRACE_FORMAT_INT4_PTH,
	TERRACE_FORMAT_TQ4,  TERRACE_FORMAT_TQ3,  TERRACE_FORMAT_TQ2};
enum { FORMAT_COUNT = sizeof(formats) / sizeof(formats[0]) };

/* Blocks of one format, a context long. */
struct sequence {
	struct terrace_layout layout;
	uint64_t block_bytes, bytes;
	uint8_t *memory;
	const void **blocks;
};

struct kernel_bench {
	uint32_t context;
	struct sequence fp16, other;
	uint16_t *source, *target; /* fp16: [K, V][HEADS][TOKENS][DIM] */
	uint16_t *q;
	float *out;
};

static uint16_t *vectors(uint16_t *all, int side, uint32_t head, uint32_t token)
{
	return all + (((size_t)side * HEADS + head) * TOKENS + token) * DIM;
}

/* The sequence's first TOKENS tokens. */
static void code(struct kernel_bench *b, const struct sequence *s, bool decode)
{
	for (uint32_t i = 0; i < TOKENS / BLOCK_TOKENS; i++) {
		uint8_t *block = s->memory + i * s->block_bytes;

		for (uint32_t h = 0; h < HEADS; h++) {
			uint16_t *all = decode ? b->target : b->source;
			uint16_t *k = vectors(all, 0, h, i * BLOCK_TOKENS),
				 *v = vectors(all, 1, h, i * BLOCK_TOKENS);

			if (decode)
				service_check(terrace_decode(&s->layout, block, 0, h, 0, BLOCK_TOKENS, k, DIM,
							     v, DIM, TERRACE_F16),
					      "decode");
			else
				service_check(terrace_encode(&s->layout, block, 0, h, 0, BLOCK_TOKENS, k, DIM,
							     v, DIM, TERRACE_F16),
					      "encode");
		}
	}
}

static void attend(struct kernel_bench *b, const struct sequence *s)
{
	struct terrace_attend_options options = TERRACE_ATTEND_OPTIONS_INIT;

	options.queries = 1;
	options.q_heads = Q_HEADS;
	options.q = b->q;
	options.q_dtype = TERRACE_F16;
	options.blocks = s->blocks;
	options.block_count = options.kv_tokens = b->context;
	options.block_count /= BLOCK_TOKENS;
	options.out = b->out;
	options.out_dtype = TERRACE_F32;
	service_check(terrace_attend(&s->layout, &options), "attend");
	bench_keep((uint64_t)(fabsf(b->out[0]) * 1e3f));
}

static void do_work(struct kernel_bench *b, const struct sequence *s, int work)
{
	switch (work) {
	case COPY:
		memcpy(b->target, b->source, (size_t)TOKENS * TOKEN_BYTES);
		bench_keep(b->target[7]);
		break;
	case READ:
		bench_keep(bench_sum(s->memory, s->bytes));
		break;
	case ATTEND_FP16:
		attend(b, &b->fp16);
		break;
	case ATTEND:
		attend(b, s);
		break;
	default:
		code(b, s, work == DECODE);
	}
}

static uint16_t random_half(uint64_t *seed)
{
	uint64_t r = bench_random(seed);

	return (uint16_t)((r & 0x83ff) | (10 + (r >> 20) % 6) << 10); /* +-2^-5 .. 2 */
}

/* The tokens after the first TOKENS repeat them. */
static void sequence_make(struct kernel_bench *b, struct sequence *s, enum terrace_format format)
{
	uint32_t count = b->context / BLOCK_TOKENS;
	uint64_t first;

	s->layout = service_layout("bench kernels", format, 1, HEADS, DIM);
	s->block_bytes = terrace_block_bytes(&s->layout);
	s->bytes = count * s->block_bytes;
	s->memory = aligned_alloc(64, (s->bytes + 63) / 64 * 64);
	s->blocks = calloc(count, sizeof(*s->blocks));
	if (!s->memory || !s->blocks)
		bench_die("out of memory");
	for (uint32_t i = 0; i < count; i++)
		s->blocks[i] = s->memory + i * s->block_bytes;
	first = TOKENS / BLOCK_TOKENS * s->block_bytes;
	memset(s->memory, 0, first);
	code(b, s, false);
	for (uint64_t at = first; at < s->bytes; at += first)
		memcpy(s->memory + at, s->memory, first);
}

static void sequence_free(struct sequence *s)
{
	free(s->memory);
	free(s->blocks);
	*s = (struct sequence){0};
}

static void set_up(struct kernel_bench *b)
{
	size_t elements = (size_t)TOKENS * TOKEN_BYTES / 2;
	uint64_t seed = 6;

	b->context = bench_options.quick ? CONTEXT_QUICK : CONTEXT;
	b->source = malloc(elements * 2);
	b->target = malloc(elements * 2);
	b->q = malloc(2 * Q_HEADS * DIM);
	b->out = malloc(sizeof(float) * Q_HEADS * DIM);
	if (!b->source || !b->target || !b->q || !b->out)
		bench_die("out of memory");
	for (size_t i = 0; i < elements; i++)
		b->source[i] = random_half(&seed);
	for (size_t i = 0; i < Q_HEADS * DIM; i++)
		b->q[i] = random_half(&seed);
	sequence_make(b, &b->fp16, TERRACE_FORMAT_FP16);
}

/* Bytes a nanosecond of a case and of its baseline; least: the target of their ratio, 0: none. */
static void report(const char *name, enum terrace_format format, const char *baseline, const char *unit,
		   double value, double base, double least)
{
	char text[64];

	snprintf(text, sizeof(text), "%s %s / %s", name, terrace_format_name(format), baseline);
	bench_report(&(struct bench_figure){
		.bench = "kernels",
		.name = text,
		.unit = unit,
		.value = value,
		.baseline = base,
		.goal = least > 0 ? BENCH_AT_LEAST : BENCH_NONE,
		.target = least,
	});
}

static void report_format(const struct kernel_bench *b, enum terrace_format f, const double best_ns[WORK_COUNT])
{
	double coded = (double)TOKENS * TOKEN_BYTES, attended = (double)b->context * TOKEN_BYTES;
	double packed = (double)b->other.bytes;
	bool tq4 = f == TERRACE_FORMAT_TQ4, fp16 = f == TERRACE_FORMAT_FP16;

	report("encode", f, "memcpy", "GB/s fp16", coded / best_ns[ENCODE], coded / best_ns[COPY],
	       tq4 ? ENCODE_TQ4_LEAST : 0);
	report("decode", f, "memcpy", "GB/s fp16", coded / best_ns[DECODE], coded / best_ns[COPY], 0);
	report("attend", f, "attend fp16", "GB/s fp16", attended / best_ns[ATTEND],
	       attended / best_ns[ATTEND_FP16], tq4 ? ATTEND_TQ4_LEAST : 0);
	report("attend", f, "read of its bytes", "GB/s", packed / best_ns[ATTEND], packed / best_ns[READ],
	       fp16 ? ATTEND_FP16_LEAST : 0);
}

enum { MODE_CALLS = 100000 };

/* The mode set and set back, and a merge of one float, which does so; in nanoseconds. */
static void bench_float_mode(void)
{
	double mode_ns = INFINITY, merge_ns = INFINITY;
	float out[2] = {1, 2}, lse[2] = {0, 0};

	for (unsigned round = 0; round < bench_options.rounds; round++) {
		uint64_t start = bench_now_ns(), middle;

		for (int i = 0; i < MODE_CALLS; i++)
			kv_float_mode_leave(kv_float_mode_enter());
		middle = bench_now_ns();
		for (int i = 0; i < MODE_CALLS; i++)
			service_check(terrace_merge(1, 1, &out[0], &lse[0], &out[1], &lse[1]), "merge");
		mode_ns = fmin(mode_ns, (double)(middle - start) / MODE_CALLS);
		merge_ns = fmin(merge_ns, (double)(bench_now_ns() - middle) / MODE_CALLS);
	}
	bench_report(&(struct bench_figure){
		.bench = "kernels",
		.name = "float mode / merge of one float",
		.unit = "ns",
		.value = mode_ns,
		.baseline = merge_ns,
		.goal = BENCH_NONE,
	});
}

int bench_kernels(void)
{
	struct kernel_bench b = {0};
	double best_ns[WORK_COUNT];

	set_up(&b);
	for (int f = 0; f < FORMAT_COUNT; f++) {
		for (int work = 0; work < WORK_COUNT; work++)
			best_ns[work] = INFINITY;
		sequence_make(&b, &b.other, formats[f]);
		for (unsigned round = 0; round < bench_options.rounds; round++)
			for (int work = 0; work < WORK_COUNT; work++) {
				uint64_t start = bench_now_ns();

				do_work(&b, &b.other, work);
				best_ns[work] = fmin(best_ns[work], (double)(bench_now_ns() - start));
			}
		report_format(&b, formats[f], best_ns);
		sequence_free(&b.other);
	}
	bench_float_mode();
	sequence_free(&b.fp16);
	free(b.source);
	free(b.target);
	free(b.q);
	free(b.out);
	return 0;
}
